//! An answer in the form of chat completions: one reasoning, one content, and calls. A stream sends it in [`Delta`]s;
//! a whole answer is their sum.

use serde_json::{Value, json};

use crate::answer::{AnswerDelta, Drawn, Kind};
use crate::logprobs;
use crate::tools::Tools;
use chat::BETWEEN_MESSAGES;
use model::tokenizer::Tokenizer;

/// What is added to a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delta {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content {
        text: String,
        /// Its tokens, if they were asked for.
        drawn: Vec<Drawn>,
    },
    Call {
        index: usize,
        /// What its result has to name.
        id: String,
        name: String,
    },
    /// More of a call's arguments.
    Arguments { index: usize, text: String },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ChatMessage {
    reasoning: String,
    content: String,
    drawn: Vec<Drawn>,
    calls: Vec<Call>,
    open: Option<Open>,
    /// The open item has no text yet.
    is_fresh: bool,
}

#[derive(Clone, Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Clone, Copy, Debug)]
enum Open {
    Reasoning,
    Content,
    Call,
}

impl ChatMessage {
    /// Takes a step, and returns what it adds, if anything.
    pub(crate) fn take(&mut self, step: AnswerDelta) -> Option<Delta> {
        match (step, self.open) {
            (AnswerDelta::Opened(kind), _) => self.open(kind),
            (AnswerDelta::Text { text, .. }, Some(Open::Reasoning)) => {
                let text = self.separated(text, self.reasoning.is_empty());
                self.reasoning += &text;
                Some(Delta::Reasoning(text))
            }
            (AnswerDelta::Text { text, drawn }, Some(Open::Content)) => {
                let text = self.separated(text, self.content.is_empty());
                self.content += &text;
                self.drawn.extend(drawn.iter().cloned());
                Some(Delta::Content { text, drawn })
            }
            (AnswerDelta::Text { text, .. }, Some(Open::Call)) => {
                self.calls.last_mut()?.arguments += &text;
                Some(Delta::Arguments { index: self.calls.len() - 1, text })
            }
            (AnswerDelta::Closed { .. } | AnswerDelta::Text { .. }, _) => None,
        }
    }

    fn open(&mut self, kind: Kind) -> Option<Delta> {
        self.is_fresh = true;
        match kind {
            Kind::Reasoning => self.open = Some(Open::Reasoning),
            Kind::Message(_) => self.open = Some(Open::Content),
            Kind::Call { id, function } => {
                self.open = Some(Open::Call);
                let name = Tools::name_in_prompt(&function.name, function.namespace.as_deref());
                let index = self.calls.len();
                self.calls.push(Call { id: id.clone(), name: name.clone(), arguments: String::new() });
                return Some(Delta::Call { index, id, name });
            }
        }
        None
    }

    /// The first text of a message, if others of its kind came before, stands apart from them.
    fn separated(&mut self, text: String, is_first: bool) -> String {
        if text.is_empty() || !std::mem::take(&mut self.is_fresh) || is_first {
            return text;
        }
        BETWEEN_MESSAGES.to_owned() + &text
    }

    /// The whole message. A call that was cut is part of it, as of a stream: the finish reason says that it was.
    pub(crate) fn json(&self, exclude_reasoning: bool) -> Value {
        let calls = &self.calls;
        let content =
            if self.content.is_empty() && !calls.is_empty() { Value::Null } else { self.content.clone().into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
        if !self.reasoning.is_empty() && !exclude_reasoning {
            message["reasoning"] = self.reasoning.clone().into();
            message["reasoning_content"] = self.reasoning.clone().into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls
                .iter()
                .map(|call| {
                    let function = json!({"name": call.name, "arguments": call.arguments});
                    json!({"id": call.id, "type": "function", "function": function})
                })
                .collect();
        }
        message
    }

    /// `logprobs` of the choice.
    pub(crate) fn logprobs(&self, tokenizer: &Tokenizer) -> Value {
        logprobs_json(&self.drawn, tokenizer)
    }
}

/// `{content: […], refusal: null}`.
fn logprobs_json(drawn: &[Drawn], tokenizer: &Tokenizer) -> Value {
    json!({"content": logprobs::json(drawn, tokenizer), "refusal": null})
}

impl Delta {
    /// The `delta` of a choice.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Reasoning(text) => json!({"reasoning": text, "reasoning_content": text}),
            Self::Content { text, .. } => json!({"content": text}),
            Self::Call { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
            Self::Arguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
        }
    }

    /// `logprobs` of the choice: null if there are none.
    pub(crate) fn logprobs(&self, tokenizer: &Tokenizer) -> Value {
        match self {
            Self::Content { drawn, .. } if !drawn.is_empty() => logprobs_json(drawn, tokenizer),
            _ => Value::Null,
        }
    }

    /// Whether it is left out where reasoning is.
    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self, Self::Reasoning(_))
    }
}
