//! What a model writes after the prompt of a template: its answer, and nothing else.

use std::mem;

use crate::chat_format::{AnswerEvent, AnswerParser, ChatFormatError, Purpose};
use crate::{AssistantMessage, MessagePart};
use model::tokenizer::Tokenizer;
use model::tokenizer::stream::TextStream;

/// An answer without headers, as far as it was read. Special tokens are never text.
#[derive(Clone, Debug)]
pub(super) struct PlainAnswer {
    tokenizer: Tokenizer,
    ends: Vec<u32>,
    goes_on: bool,
    stream: TextStream,
    text: String,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    /// It is being written.
    Open,
    Over,
}

impl PlainAnswer {
    pub(super) fn new(tokenizer: Tokenizer, ends: Vec<u32>, goes_on: bool) -> Self {
        let (stream, text, state) = (TextStream::default(), String::new(), State::Before);
        Self { tokenizer, ends, goes_on, stream, text, state }
    }

    fn start(&mut self) -> Vec<AnswerEvent> {
        match mem::replace(&mut self.state, State::Open) {
            State::Before => vec![AnswerEvent::Started { purpose: Purpose::Answer, tool: None }],
            State::Open | State::Over => Vec::new(),
        }
    }

    fn tell(&mut self, text: String, events: &mut Vec<AnswerEvent>) {
        if !text.is_empty() {
            self.text += &text;
            events.push(AnswerEvent::Text(text));
        }
    }

    fn end(&mut self, is_unfinished: bool, events: &mut Vec<AnswerEvent>) {
        let rest = self.stream.finish();
        self.tell(rest, events);
        events.push(AnswerEvent::Ended { is_unfinished, ids: None });
        self.state = State::Over;
    }
}

impl AnswerParser for PlainAnswer {
    fn push(&mut self, id: u32) -> Vec<AnswerEvent> {
        if self.is_over() {
            return Vec::new();
        }
        let mut events = self.start();
        if self.ends.contains(&id) && !self.goes_on {
            self.end(false, &mut events);
        } else if !self.ends.contains(&id) && !self.tokenizer.is_special(id) {
            let piece = self.tokenizer.decode(id).map(<[u8]>::to_vec).unwrap_or_default(); // an id of no token is none
            let text = self.stream.push(&piece);
            self.tell(text, &mut events);
        }
        events
    }

    fn finish(&mut self) -> Vec<AnswerEvent> {
        let mut events = Vec::new();
        if self.state == State::Open {
            self.end(true, &mut events);
        }
        self.state = State::Over;
        events
    }

    fn is_over(&self) -> bool {
        self.state == State::Over
    }

    fn n_reasoning_tokens(&self) -> usize {
        0
    }

    fn repairs(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    fn messages(&self) -> Result<Vec<AssistantMessage>, ChatFormatError> {
        let has_ended = self.is_over() && !self.text.is_empty();
        Ok(has_ended.then(|| MessagePart::answer(self.text.clone()).into()).into_iter().collect())
    }
}
