//! Harmony's parser behind the interface of chat formats.

use std::mem;

use crate::chat_format::{AnswerEvent, AnswerParser, Begun, ChatFormatError, Purpose};
use crate::harmony::parser::{Ending, HarmonyParser, ParserEvent, Repair};
use crate::harmony::{Channel, Harmony, HarmonyTurn, Message, MessageKind, Role};
use crate::{AssistantMessage, MessagePart, Phase};
use model::tokenizer::limit::Limit;

/// An answer in harmony, as far as it was read.
#[derive(Clone, Debug)]
pub(super) struct HarmonyAnswer {
    parser: HarmonyParser,
    harmony: Harmony,
    /// Ids of the message that is open, or whose header is.
    ids: Vec<u32>,
    is_call: bool,
    ended: Vec<Message>,
}

impl HarmonyAnswer {
    pub(super) fn new(harmony: &Harmony, begun: Begun, goes_on: bool) -> Self {
        let parser = match (begun.in_answer, goes_on) {
            (true, true) => harmony.transcript_parser_in_final(),
            (true, false) => harmony.parser_in_final(),
            (false, true) => harmony.transcript_parser(),
            (false, false) => harmony.parser(),
        };
        Self { parser, harmony: harmony.clone(), ids: begun.ids, is_call: false, ended: Vec::new() }
    }

    /// `token` is the one that told it, if one did.
    fn event(&mut self, parsed: ParserEvent, token: Option<u32>) -> AnswerEvent {
        match parsed {
            ParserEvent::Started(message) => {
                let (purpose, tool) = kind(&message);
                self.is_call = tool.is_some();
                AnswerEvent::Started { purpose, tool }
            }
            ParserEvent::Text { text, .. } => AnswerEvent::Text(text),
            ParserEvent::Ended { message, ending } => {
                self.ended.push(message);
                let mut ids = mem::take(&mut self.ids);
                if let (Ending::Unfinished, Some(token)) = (ending, token) {
                    ids.pop();
                    self.ids.push(token); // the first of what follows
                }
                AnswerEvent::Ended { is_unfinished: ending == Ending::Unfinished, ids: self.exact(ending, ids) }
            }
        }
    }

    /// The ids of a message as they may stand in a prompt: from `<|start|>` to what ends a message there.
    fn exact(&self, ending: Ending, mut ids: Vec<u32>) -> Option<Vec<u32>> {
        let marks = self.harmony.marks();
        let ends_well =
            if self.is_call { ending == Ending::Call } else { matches!(ending, Ending::End | Ending::Return) };
        if !ends_well || ids.first() != Some(&marks.start) {
            return None;
        }
        if ending == Ending::Return {
            *ids.last_mut()? = marks.end;
        }
        Some(ids)
    }
}

impl AnswerParser for HarmonyAnswer {
    fn push(&mut self, id: u32) -> Vec<AnswerEvent> {
        self.ids.push(id);
        let parsed = self.parser.push(id);
        parsed.into_iter().map(|parsed| self.event(parsed, Some(id))).collect()
    }

    fn finish(&mut self) -> Vec<AnswerEvent> {
        let parsed = self.parser.finish();
        parsed.into_iter().map(|parsed| self.event(parsed, None)).collect()
    }

    fn is_over(&self) -> bool {
        self.parser.is_over()
    }

    fn n_reasoning_tokens(&self) -> usize {
        self.parser.n_reasoning_tokens()
    }

    fn repairs(&self) -> Vec<(&'static str, usize)> {
        self.parser.repairs().map(|(repair, n)| (Repair::name(repair), n)).collect()
    }

    fn messages(&self) -> Result<Vec<AssistantMessage>, ChatFormatError> {
        let head = self.harmony.prompt_of(&[], &Limit::NONE)?.len();
        let made = |message: &Message| {
            let text = message.text.clone();
            let part = match purpose(message) {
                Purpose::Reasoning => MessagePart::Reasoning(text),
                Purpose::Commentary => MessagePart::Content { text, phase: Some(Phase::Commentary) },
                Purpose::Answer | Purpose::Untold => MessagePart::answer(text),
            };
            let mut ids = self.harmony.prompt_of(&[HarmonyTurn::Message(message.clone())], &Limit::NONE)?;
            ids.truncate(ids.len() - head);
            Ok(AssistantMessage { part, ids: Some(ids) })
        };
        self.ended.iter().map(made).collect()
    }
}

/// What a message is for, and the tool that it calls. One of others, who speak only where a model is kept from
/// stopping, is an answer.
fn kind(message: &Message) -> (Purpose, Option<String>) {
    match message.part() {
        _ if message.role != Role::Assistant => (Purpose::Answer, None),
        MessageKind::Call(name) => (purpose(message), Some(name.to_owned())),
        MessageKind::Reasoning | MessageKind::Preamble | MessageKind::Answer => (purpose(message), None),
    }
}

/// By the channel alone.
fn purpose(message: &Message) -> Purpose {
    match message.channel {
        Some(Channel::Analysis) => Purpose::Reasoning,
        Some(Channel::Commentary) => Purpose::Commentary,
        Some(Channel::Final) => Purpose::Answer,
        Some(Channel::Other(_)) | None => Purpose::Untold,
    }
}
