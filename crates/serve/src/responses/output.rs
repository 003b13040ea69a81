//! The output of a response, item by item, and the events for it.

use serde_json::{Value, json};

use crate::answer::{AnswerDelta, Drawn, Finish, Kind};
use crate::logprobs;
use crate::tools::Function;
use model::tokenizer::Tokenizer;

/// An event of a stream: its type, and its fields but `type` and `sequence_number`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamEvent {
    /// `response.output_text.delta`.
    pub(crate) kind: &'static str,
    pub(crate) fields: Value,
}

/// What was made so far.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    items: Vec<Item>,
    /// Makes the ids of items, and of nothing else.
    id: String,
    tokenizer: Tokenizer,
    has_logprobs: bool,
}

#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    id: String,
    text: String,
    drawn: Vec<Drawn>,
    /// Reasoning, sealed for a client that asked for it.
    sealed: Option<String>,
    status: &'static str,
}

impl Output {
    /// Nothing yet. Ids of items end in `id`; with `has_logprobs`, messages tell how probable their tokens were.
    pub(crate) fn new(id: String, tokenizer: Tokenizer, has_logprobs: bool) -> Self {
        Self { items: Vec::new(), id, tokenizer, has_logprobs }
    }

    pub(crate) fn json(&self) -> Value {
        self.items.iter().map(|item| self.item(item)).collect()
    }

    /// Which item is the last, which is open or was closed.
    pub(crate) fn open_index(&self) -> Option<usize> {
        self.items.len().checked_sub(1)
    }

    /// What its client is to carry of the open item.
    pub(crate) fn set_sealed(&mut self, sealed: Option<String>) {
        if let Some(item) = self.items.last_mut() {
            item.sealed = sealed;
        }
    }

    /// Takes a step of the answer.
    pub(crate) fn take(&mut self, step: AnswerDelta) -> Vec<StreamEvent> {
        match step {
            AnswerDelta::Opened(kind) => self.open(kind),
            AnswerDelta::Text { text, drawn } => self.text(&text, drawn),
            AnswerDelta::Closed { is_whole } => self.close(is_whole),
        }
    }

    fn open(&mut self, kind: Kind) -> Vec<StreamEvent> {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message(_) => "msg",
            Kind::Call { function: Function { is_custom: true, .. }, .. } => "ctc",
            Kind::Call { .. } => "fc",
        };
        let id = format!("{prefix}_{}-{}", self.id, self.items.len());
        let item = Item { kind, id, text: String::new(), drawn: Vec::new(), sealed: None, status: "in_progress" };
        let mut added = self.item(&item);
        let mut events = Vec::new();
        if !matches!(item.kind, Kind::Call { .. }) {
            added["content"] = json!([]);
        }
        let output_index = self.items.len();
        events.push(StreamEvent {
            kind: "response.output_item.added",
            fields: json!({"output_index": output_index, "item": added}),
        });
        if let Some(part) = self.part(&item) {
            events.push(self.event("response.content_part.added", &item, output_index, json!({"part": part})));
        }
        self.items.push(item);
        events
    }

    fn text(&mut self, text: &str, drawn: Vec<Drawn>) -> Vec<StreamEvent> {
        let Some(item) = self.items.last_mut() else { return Vec::new() };
        item.text += text;
        let item = item.clone_head();
        let mut fields = json!({"delta": text});
        let kind = match item.kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message(_) => {
                fields["logprobs"] = self.logprobs(&drawn);
                "response.output_text.delta"
            }
            Kind::Call { function: Function { is_custom: true, .. }, .. } => "response.custom_tool_call_input.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        if let Some(item) = self.items.last_mut() {
            item.drawn.extend(drawn);
        }
        vec![self.event(kind, &item, self.items.len() - 1, fields)]
    }

    fn close(&mut self, is_whole: bool) -> Vec<StreamEvent> {
        let Some(item) = self.items.last_mut() else { return Vec::new() };
        item.status = if is_whole { "completed" } else { "incomplete" };
        let item = &self.items[self.items.len() - 1];
        let output_index = self.items.len() - 1;
        let event = |kind, fields| self.event(kind, item, output_index, fields);
        let mut events = Vec::new();
        match &item.kind {
            Kind::Reasoning => events.push(event("response.reasoning_text.done", json!({"text": item.text}))),
            Kind::Message(_) => {
                let fields = json!({"text": item.text, "logprobs": self.logprobs(&item.drawn)});
                events.push(event("response.output_text.done", fields));
            }
            Kind::Call { function: Function { is_custom: true, .. }, .. } => {
                events.push(event("response.custom_tool_call_input.done", json!({"input": item.text})));
            }
            Kind::Call { function, .. } => {
                let fields = json!({"name": function.name, "arguments": item.text});
                events.push(event("response.function_call_arguments.done", fields));
            }
        }
        if let Some(part) = self.part(item) {
            events.push(event("response.content_part.done", json!({ "part": part })));
        }
        events.push(StreamEvent {
            kind: "response.output_item.done",
            fields: json!({"output_index": output_index, "item": self.item(item)}),
        });
        events
    }

    /// An event inside of an item.
    fn event(&self, kind: &'static str, item: &Item, output_index: usize, mut fields: Value) -> StreamEvent {
        fields["item_id"] = item.id.clone().into();
        fields["output_index"] = output_index.into();
        if !matches!(item.kind, Kind::Call { .. }) {
            fields["content_index"] = 0.into();
        }
        StreamEvent { kind, fields }
    }

    fn item(&self, item: &Item) -> Value {
        let Item { id, text, status, .. } = item;
        let content = self.part(item);
        match &item.kind {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": id, "summary": [], "content": [content],
                "encrypted_content": item.sealed, "status": status,
            }),
            Kind::Message(phase) => json!({
                "type": "message", "id": id, "role": "assistant", "status": status, "phase": phase.name(),
                "content": [content],
            }),
            Kind::Call { id: call_id, function } => {
                let (kind, given) = match function.is_custom {
                    true => ("custom_tool_call", "input"),
                    false => ("function_call", "arguments"),
                };
                let mut call = json!({
                    "type": kind, "id": id, "call_id": call_id, "name": function.name, given: text, "status": status,
                });
                if let Some(namespace) = &function.namespace {
                    call["namespace"] = namespace.clone().into();
                }
                call
            }
        }
    }

    /// The one part of an item's content; calls have none.
    fn part(&self, item: &Item) -> Option<Value> {
        match &item.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": item.text})),
            Kind::Message(_) => Some(json!({
                "type": "output_text", "text": item.text, "annotations": [], "logprobs": self.logprobs(&item.drawn),
            })),
            Kind::Call { .. } => None,
        }
    }

    fn logprobs(&self, drawn: &[Drawn]) -> Value {
        if self.has_logprobs { logprobs::json(drawn, &self.tokenizer) } else { json!([]) }
    }
}

impl Item {
    fn clone_head(&self) -> Self {
        let (kind, id) = (self.kind.clone(), self.id.clone());
        Self { kind, id, text: String::new(), drawn: Vec::new(), sealed: None, status: self.status }
    }
}

/// The status of a response, and why it is incomplete.
pub(crate) fn status(finish: Finish) -> (&'static str, Value) {
    match finish {
        Finish::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
        Finish::Stop | Finish::ToolCalls => ("completed", Value::Null),
    }
}
