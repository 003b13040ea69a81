//! What a model writes, token by token, as the items of an answer: reasoning, messages and calls.
//!
//! Both chat APIs are written from these steps, streamed or not, so that a stream joined is the whole answer.

use std::mem;
use std::sync::Arc;

use super::history::AssistantTurn;
use super::stop_text::StopText;
use super::tools::{Function, Tools};
use chat::chat_format::{AnswerEvent, AnswerParser, Purpose};
use chat::{AssistantMessage, MessagePart, Phase};
use engine::scheduler::{FinishReason, LogitRowLogprobs};
use model::tokenizer::Tokenizer;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What the model thinks.
    Reasoning,
    Message(Phase),
    Call {
        /// What the result has to name.
        id: String,
        function: Function,
    },
}

/// A token that is part of a message's text, and how probable it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    /// How probable it and others were.
    pub(crate) logprobs: LogitRowLogprobs,
}

/// A step of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnswerDelta {
    /// An item begins. No other is open.
    Opened(Kind),
    /// More text of the open item: of a call, its arguments.
    Text {
        text: String,
        /// The tokens of it, of messages in requests that ask for them.
        drawn: Vec<Drawn>,
    },
    Closed {
        /// It was not cut by the most tokens that there may be.
        is_whole: bool,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model said all that it had to, or a stop string came.
    Stop,
    /// There may be no more tokens.
    Length,
    /// It waits for what it called.
    ToolCalls,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// What an answer is made with.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    /// To tell how long tokens are.
    pub(crate) tokenizer: Tokenizer,
    /// The names of functions.
    pub(crate) tools: Tools,
    /// Where visible text ends.
    pub(crate) stop: StopText,
    /// The answer ends with its first call.
    pub(crate) one_call: bool,
    /// Tokens that end it, and are no part of it.
    pub(crate) stop_ids: Vec<u32>,
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    parser: Box<dyn AnswerParser>,
    making: Arc<Making>,
    open: Option<Open>,
    id: String,
    n_calls: usize,
    has_stopped: bool,
    /// The stop string that ended it.
    stop_found: Option<String>,
    was_cut: bool,
    n_tokens: usize,
    /// Tokens that are not yet part of a text.
    drawn: Vec<Drawn>,
    turn: AssistantTurn,
}

/// An item that is open.
#[derive(Debug)]
struct Open {
    kind: Kind,
    text: String,
    stop: StopText,
    /// Tokens of text that is held back, each with where in the text it begins, in bytes.
    held: Vec<(usize, Drawn)>,
    n_drawn_bytes: usize,
}

impl Answer {
    /// Nothing yet. The ids of calls are made of `id`.
    pub(crate) fn new(parser: Box<dyn AnswerParser>, making: Arc<Making>, id: String) -> Self {
        let (has_stopped, was_cut, n_tokens, n_calls) = (false, false, 0, 0);
        let (drawn, turn) = (Vec::new(), Vec::new());
        let stop_found = None;
        Self { parser, making, open: None, id, n_calls, has_stopped, stop_found, was_cut, n_tokens, drawn, turn }
    }

    /// Takes the next token. None are taken once [it is over](Self::is_over).
    pub(crate) fn push(&mut self, token: u32, logprobs: Option<Box<LogitRowLogprobs>>) -> Vec<AnswerDelta> {
        let mut steps = Vec::new();
        if self.is_over() {
            return steps;
        }
        self.n_tokens += 1;
        if self.making.stop_ids.contains(&token) {
            let events = self.parser.finish();
            self.take(events, None, &mut steps);
            self.has_stopped = true;
            return steps;
        }
        if let Some(logprobs) = logprobs.filter(|_| !self.making.tokenizer.is_special(token)) {
            self.drawn.push(Drawn { token, logprobs: *logprobs });
        }
        let events = self.parser.push(token);
        self.take(events, Some(token), &mut steps);
        steps
    }

    /// Ends the answer: `reason` is why no more tokens come.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<AnswerDelta> {
        let mut steps = Vec::new();
        if !self.is_over() {
            self.was_cut = reason == FinishReason::Length;
            let events = self.parser.finish();
            self.take(events, None, &mut steps);
        }
        steps
    }

    /// Whether all that comes is not part of it.
    pub(crate) fn is_over(&self) -> bool {
        self.has_stopped || self.parser.is_over()
    }

    pub(crate) fn finish_reason(&self) -> Finish {
        match (self.was_cut, self.n_calls) {
            (true, _) => Finish::Length,
            (false, 0) => Finish::Stop,
            (false, _) => Finish::ToolCalls,
        }
    }

    /// The stop string that ended it, if one did.
    pub(crate) fn stop_found(&self) -> Option<&str> {
        self.stop_found.as_deref()
    }

    /// All tokens that were taken.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Those of reasoning, with its headers.
    pub(crate) fn n_reasoning_tokens(&self) -> usize {
        self.parser.n_reasoning_tokens()
    }

    /// What had to be read otherwise than it was written, and how often.
    pub(crate) fn repairs(&self) -> Vec<(&'static str, usize)> {
        self.parser.repairs()
    }

    /// The messages that ended, for when they come back.
    pub(crate) fn turn(&self) -> &AssistantTurn {
        &self.turn
    }

    fn take(&mut self, events: Vec<AnswerEvent>, token: Option<u32>, steps: &mut Vec<AnswerDelta>) {
        let begins = events.iter().position(|event| matches!(event, AnswerEvent::Started { .. }));
        if let Some(begins) = begins {
            // What is told now is a header; what of it is a text after all follows at once.
            let n_text = match events.get(begins + 1) {
                Some(AnswerEvent::Text(text)) => text.len(),
                _ => 0,
            };
            self.keep_last_drawn(n_text);
        }
        for event in events {
            if self.has_stopped {
                break;
            }
            match event {
                AnswerEvent::Started { purpose, tool } => self.start(purpose, tool.as_deref(), steps),
                AnswerEvent::Text(text) if self.is_repaired_arguments(&text, token) => {}
                AnswerEvent::Text(text) => self.text(&text, steps),
                AnswerEvent::Ended { is_unfinished, ids } => self.close(is_unfinished, ids, steps),
            }
        }
    }

    /// Forgets drawn tokens but the last, which have so many bytes.
    fn keep_last_drawn(&mut self, n_bytes: usize) {
        let (mut first, mut n_found) = (self.drawn.len(), 0);
        while first > 0 && n_found < n_bytes {
            first -= 1;
            n_found += self.len_bytes(&self.drawn[first]);
        }
        self.drawn.drain(..first);
    }

    fn len_bytes(&self, drawn: &Drawn) -> usize {
        self.making.tokenizer.decode(drawn.token).map_or(0, <[u8]>::len)
    }

    fn start(&mut self, purpose: Purpose, tool: Option<&str>, steps: &mut Vec<AnswerDelta>) {
        let kind = self.kind_of(purpose, tool);
        let stop = if matches!(kind, Kind::Message(_)) { self.making.stop.clone() } else { StopText::default() };
        steps.push(AnswerDelta::Opened(kind.clone()));
        self.open = Some(Open { kind, text: String::new(), stop, held: Vec::new(), n_drawn_bytes: 0 });
    }

    fn kind_of(&mut self, purpose: Purpose, tool: Option<&str>) -> Kind {
        match (purpose, tool) {
            (_, Some(name)) => {
                let id = if self.n_calls == 0 { self.id.clone() } else { format!("{}-{}", self.id, self.n_calls) };
                self.n_calls += 1;
                Kind::Call { id, function: self.making.tools.function(name) }
            }
            (Purpose::Reasoning, None) => Kind::Reasoning,
            (Purpose::Commentary, None) => Kind::Message(Phase::Commentary),
            (Purpose::Answer | Purpose::Untold, None) => Kind::Message(Phase::FinalAnswer),
        }
    }

    fn text(&mut self, text: &str, steps: &mut Vec<AnswerDelta>) {
        let drawn = mem::take(&mut self.drawn);
        let lengths: Vec<usize> = drawn.iter().map(|drawn| self.len_bytes(drawn)).collect();
        let Some(open) = &mut self.open else { return };
        for (drawn, len_bytes) in drawn.into_iter().zip(lengths) {
            open.held.push((open.n_drawn_bytes, drawn));
            open.n_drawn_bytes += len_bytes;
        }
        let text = open.stop.push(text);
        open.tell(text, false, steps);
        if open.stop.is_over() {
            self.has_stopped = true;
            self.stop_found = open.stop.found().map(str::to_owned);
            open.held.clear();
            self.close(true, None, steps);
        }
    }

    /// Whether a text is not the model's but the parser's, which takes no arguments for `{}`: of a tool that takes
    /// text, no text is one. It comes with what ends the call.
    fn is_repaired_arguments(&self, text: &str, token: Option<u32>) -> bool {
        let is_empty = |open: &Open| {
            matches!(&open.kind, Kind::Call { function, .. } if function.is_custom) && open.text.trim().is_empty()
        };
        let ends_call = token.is_none_or(|token| self.making.tokenizer.is_special(token));
        ends_call && text == "{}" && self.open.as_ref().is_some_and(is_empty)
    }

    /// Closes what is open. `ids` are the message's, if it may come again as it is.
    fn close(&mut self, is_unfinished: bool, ids: Option<Vec<u32>>, steps: &mut Vec<AnswerDelta>) {
        let Some(mut open) = self.open.take() else { return };
        let rest = open.stop.finish();
        open.tell(rest, true, steps);
        let is_whole = !is_unfinished || !self.was_cut;
        steps.push(AnswerDelta::Closed { is_whole });
        self.has_stopped |= self.making.one_call && is_whole && matches!(open.kind, Kind::Call { .. });
        let part = open.part();
        if is_whole || !matches!(part, MessagePart::Call { .. }) {
            self.turn.push(AssistantMessage { part, ids });
        }
    }
}

impl Open {
    /// Emits a text, and the tokens that begin in the text so far.
    fn tell(&mut self, text: String, is_end: bool, steps: &mut Vec<AnswerDelta>) {
        self.text += &text;
        let n_told = self.text.len();
        let n_drawn = self.held.iter().take_while(|(begin, _)| is_end || *begin < n_told).count();
        let drawn: Vec<Drawn> = match self.kind {
            Kind::Message(_) => self.held.drain(..n_drawn).map(|(_, drawn)| drawn).collect(),
            Kind::Reasoning | Kind::Call { .. } => Vec::new(),
        };
        if !text.is_empty() || !drawn.is_empty() {
            steps.push(AnswerDelta::Text { text, drawn });
        }
    }

    fn part(self) -> MessagePart {
        let text = self.text;
        match self.kind {
            Kind::Reasoning => MessagePart::Reasoning(text),
            Kind::Message(phase) => MessagePart::Content { text, phase: Some(phase) },
            Kind::Call { id, function } => {
                let name = Tools::name_in_prompt(&function.name, function.namespace.as_deref());
                MessagePart::Call { id, name, arguments: text, is_text: function.is_custom }
            }
        }
    }
}
