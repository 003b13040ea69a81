//! What a model writes after the prompt of a template, token by token.

use std::mem;
use std::sync::Arc;

use super::markup::Markup;
use super::reader::{Piece, Reader};
use crate::chat_format::{AnswerEvent, AnswerParser, Begun, ChatFormatError, Purpose};
use crate::{AssistantMessage, MessagePart, Phase};
use model::tokenizer::Tokenizer;
use model::tokenizer::stream::TextStream;

/// An answer, as far as it was read. Special tokens are never text, unless they are marks.
#[derive(Clone, Debug)]
pub(super) struct TemplateAnswer {
    tokenizer: Tokenizer,
    markup: Arc<Markup>,
    ends: Vec<u32>,
    goes_on: bool,
    stream: TextStream,
    reader: Reader,
    /// The message that is open, and its text.
    open: Option<(Purpose, String)>,
    /// The call that is open: its name, and its arguments so far.
    call: Option<(String, String)>,
    ended: Vec<MessagePart>,
    is_over: bool,
    n_reasoning_tokens: usize,
}

impl TemplateAnswer {
    pub(super) fn new(tokenizer: Tokenizer, markup: Arc<Markup>, ends: Vec<u32>, begun: Begun, goes_on: bool) -> Self {
        let reader = Reader::new(Arc::clone(&markup), begun.tools, begun.in_reasoning);
        let (stream, open, ended) = (tokenizer.text_stream(), None, Vec::new());
        let (is_over, n_reasoning_tokens, call) = (false, 0, None);
        Self { tokenizer, markup, ends, goes_on, stream, reader, open, call, ended, is_over, n_reasoning_tokens }
    }

    fn take(&mut self, pieces: Vec<Piece>, events: &mut Vec<AnswerEvent>) {
        for piece in pieces {
            match piece {
                Piece::Thought(text) => self.tell(Purpose::Reasoning, text, events),
                Piece::Words(text) => self.tell(Purpose::Answer, text, events),
                Piece::ThoughtEnds => self.close(false, events),
                Piece::Call(call) => {
                    self.begin_call(call.name, events);
                    self.go_on_call(call.arguments, events);
                    self.end_call(false, events);
                }
                Piece::CallBegins(name) => self.begin_call(name, events),
                Piece::Arguments(text) => self.go_on_call(text, events),
                Piece::CallEnds { is_unfinished } => self.end_call(is_unfinished, events),
            }
        }
    }

    fn begin_call(&mut self, name: String, events: &mut Vec<AnswerEvent>) {
        self.close(false, events);
        events.push(AnswerEvent::Started { purpose: Purpose::Commentary, tool: Some(name.clone()) });
        self.call = Some((name, String::new()));
    }

    fn go_on_call(&mut self, text: String, events: &mut Vec<AnswerEvent>) {
        if let Some((_, arguments)) = &mut self.call {
            arguments.push_str(&text);
        }
        events.push(AnswerEvent::Text(text));
    }

    fn end_call(&mut self, is_unfinished: bool, events: &mut Vec<AnswerEvent>) {
        let Some((name, arguments)) = self.call.take() else { return };
        events.push(AnswerEvent::Ended { is_unfinished, ids: None });
        let text = format!("{name} {arguments}");
        self.ended.push(MessagePart::Content { text, phase: Some(Phase::Commentary) });
    }

    /// Opens a message, where none for this is open.
    fn open(&mut self, purpose: Purpose, events: &mut Vec<AnswerEvent>) {
        if self.open.as_ref().is_none_or(|(open, _)| *open != purpose) {
            self.close(false, events);
            events.push(AnswerEvent::Started { purpose, tool: None });
            self.open = Some((purpose, String::new()));
        }
    }

    fn tell(&mut self, purpose: Purpose, text: String, events: &mut Vec<AnswerEvent>) {
        self.open(purpose, events);
        if let Some((_, told)) = &mut self.open {
            told.push_str(&text);
        }
        if !text.is_empty() {
            events.push(AnswerEvent::Text(text));
        }
    }

    fn close(&mut self, is_unfinished: bool, events: &mut Vec<AnswerEvent>) {
        let Some((purpose, text)) = self.open.take() else { return };
        events.push(AnswerEvent::Ended { is_unfinished, ids: None });
        if !text.is_empty() {
            self.ended.push(match purpose {
                Purpose::Reasoning => MessagePart::Reasoning(text),
                _ => MessagePart::answer(text),
            });
        }
    }

    fn end(&mut self, is_unfinished: bool, events: &mut Vec<AnswerEvent>) {
        let rest = self.stream.finish();
        let mut pieces = self.reader.push(&rest);
        let is_cut = is_unfinished || self.reader.is_thinking();
        pieces.extend(self.reader.finish());
        self.take(pieces, events);
        self.close(is_cut, events);
        self.is_over = true;
    }

    /// The text of a token: a special one has none, but for marks.
    fn piece(&self, id: u32) -> Vec<u8> {
        let bytes = self.tokenizer.decode(id).unwrap_or_default(); // an id of no token is none
        let is_silent = self.tokenizer.is_special(id) && !self.markup.has(&String::from_utf8_lossy(bytes));
        if is_silent { Vec::new() } else { bytes.to_vec() }
    }
}

impl AnswerParser for TemplateAnswer {
    fn push(&mut self, id: u32) -> Vec<AnswerEvent> {
        let mut events = Vec::new();
        if self.is_over {
            return events;
        }
        if !self.reader.has_marks() {
            self.open(Purpose::Answer, &mut events);
        }
        let was_thinking = self.reader.is_thinking();
        if !self.ends.contains(&id) {
            let text = self.stream.push(&self.piece(id));
            let pieces = self.reader.push(&text);
            self.take(pieces, &mut events);
        } else if !self.goes_on {
            self.end(false, &mut events);
        }
        self.n_reasoning_tokens += usize::from(was_thinking || self.reader.is_thinking());
        events
    }

    fn finish(&mut self) -> Vec<AnswerEvent> {
        let mut events = Vec::new();
        if !mem::replace(&mut self.is_over, true) {
            self.end(true, &mut events);
        }
        events
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn n_reasoning_tokens(&self) -> usize {
        self.n_reasoning_tokens
    }

    fn repairs(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    fn messages(&self) -> Result<Vec<AssistantMessage>, ChatFormatError> {
        Ok(self.ended.iter().cloned().map(AssistantMessage::from).collect())
    }
}
