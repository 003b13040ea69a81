//! OpenAI's harmony as a chat format: the room [`crate::harmony`] does the work.

mod answer;
mod grammar;

use super::{AnswerParser, Begun, ChatFormat, ChatFormatError, Conversation, Prompt, Thinking, Untaken};
use crate::chat_template::{ChatTemplate, TemplateMessage};
use crate::grammar::{GrammarError, Layout, Wanted};
use crate::harmony::{
    Channel, Developer, Harmony, HarmonyError, HarmonyTurn, Message, Role, SystemMessage, developer_text,
};
use crate::{AssistantMessage, MessagePart, Phase, Reasoning, Turn};
use answer::HarmonyAnswer;
use model::tokenizer::limit::Limit;

/// Who writes the prompts; answers are harmony in any case.
#[derive(Debug)]
pub(super) enum Style {
    /// OpenAI's: a system message of the model's own, and instructions in developer messages.
    OpenAi,
    /// The system messages that are given and no others.
    Plain,
    /// The checkpoint's template.
    Template(ChatTemplate),
}

/// Harmony, and a way of writing its prompts.
#[derive(Debug)]
pub(super) struct HarmonyFormat {
    harmony: Harmony,
    stop_ids: [u32; 2],
    style: Style,
}

impl HarmonyFormat {
    pub(super) fn new(harmony: Harmony, style: Style) -> Self {
        Self { stop_ids: harmony.stop_ids(), harmony, style }
    }
}

impl ChatFormat for HarmonyFormat {
    /// Reasoning before a later answer is left out, and what ends in no `<|end|>` ends so.
    fn prompt(&self, conversation: &Conversation<'_>, limit: &Limit<'_>) -> Result<Prompt, ChatFormatError> {
        let (begun_answer, turns) = conversation.begun_answer();
        let conversation = &Conversation { turns, ..conversation.clone() };
        let turns = match &self.style {
            Style::OpenAi => openai(conversation),
            Style::Plain => conversation.turns.iter().map(plain).collect(),
            Style::Template(_) if begun_answer.is_some() => {
                return Err(ChatFormatError::NotTaken { what: Untaken::BegunAnswer });
            }
            Style::Template(template) => {
                let ids = template.prompt(&entries(conversation.turns), self.harmony.tokenizer())?;
                limit.check(ids.len())?;
                return Ok(Prompt { ids, begun: Begun::default() });
            }
        };
        let mut ids = self.harmony.prompt_of(&turns, limit)?;
        let mut n_begun = self.harmony.prompt_of(&[], &Limit::NONE)?.len();
        let is_plain = conversation.thinking == Thinking::No && !conversation.may_call;
        let in_answer = begun_answer.is_some() || is_plain;
        if in_answer {
            let n_before = ids.len();
            self.harmony.begin_final(&mut ids)?;
            let text = begun_answer.unwrap_or_default().as_bytes();
            self.harmony.tokenizer().encode_within(text, limit, &mut ids).map_err(HarmonyError::from)?;
            n_begun += ids.len() - n_before;
        }
        let begun = Begun { ids: ids[ids.len() - n_begun..].to_vec(), in_answer, ..Begun::default() };
        Ok(Prompt { ids, begun })
    }

    fn answer(&self, begun: Begun, goes_on: bool) -> Box<dyn AnswerParser> {
        Box::new(HarmonyAnswer::new(&self.harmony, begun, goes_on))
    }

    /// `<|return|>` and `<|call|>`.
    fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    fn has_headers(&self) -> bool {
        true
    }

    fn reads_calls(&self) -> bool {
        true
    }
}

impl Layout for HarmonyFormat {
    fn grammar(&self, wanted: &Wanted) -> Result<String, GrammarError> {
        grammar::grammar(wanted, &self.harmony.marks())
    }

    fn end_of_answer(&self) -> Result<u32, GrammarError> {
        Ok(self.harmony.marks().end_of_answer)
    }

    fn usual_beginning(&self) -> Vec<u32> {
        let path = b"<|channel|>analysis<|message|>.<|end|><|start|>assistant<|channel|>";
        self.harmony.tokenizer().encode_with_specials(path).unwrap_or_default()
    }
}

/// The model's own system message; instructions, tools and formats in one developer message; the rest.
fn openai(conversation: &Conversation<'_>) -> Vec<HarmonyTurn> {
    let reasoning = match conversation.thinking {
        Thinking::Usual => Reasoning::default(),
        Thinking::No => Reasoning::Low,
        Thinking::Effort(effort) => effort,
    };
    let system = SystemMessage {
        current_date: conversation.current_date.clone(),
        reasoning,
        has_functions: !conversation.tools.is_empty(),
    };
    let n_leading = conversation.turns.iter().take_while(|turn| instructions(turn).is_some()).count();
    let (leading, rest) = conversation.turns.split_at(n_leading);
    let leading: Vec<&str> = leading.iter().filter_map(instructions).filter(|text| !text.is_empty()).collect();
    let developer = Developer {
        instructions: leading.join("\n\n"),
        tools: conversation.tools.to_vec(),
        formats: conversation.format.iter().cloned().collect(),
    };
    let head = [Some(system.message()), developer.message()].into_iter().flatten().map(HarmonyTurn::Message);
    let later = |turn: &Turn| match instructions(turn) {
        Some(text) => Message::new(Role::Developer, developer_text(text)).into(),
        None => plain(turn),
    };
    head.chain(rest.iter().map(later)).collect()
}

fn instructions(turn: &Turn) -> Option<&str> {
    match turn {
        Turn::System(text) | Turn::Developer(text) => Some(text),
        _ => None,
    }
}

/// A turn in a message of its own. Instructions are system messages.
fn plain(turn: &Turn) -> HarmonyTurn {
    let message = match turn {
        Turn::System(text) | Turn::Developer(text) => Message::new(Role::System, text.as_str()),
        Turn::User(text) => Message::new(Role::User, text.as_str()),
        Turn::Assistant(AssistantMessage { ids: Some(ids), .. }) => return HarmonyTurn::Exact(ids.clone()),
        Turn::Assistant(AssistantMessage { part, ids: None }) => match part {
            MessagePart::Reasoning(text) => Message::assistant(Channel::Analysis, text.as_str()),
            MessagePart::Content { text, phase: Some(Phase::Commentary) } => {
                Message::assistant(Channel::Commentary, text.as_str())
            }
            MessagePart::Content { text, .. } => Message::assistant(Channel::Final, text.as_str()),
            MessagePart::Call { name, arguments, is_text: false, .. } => Message::call(name, arguments),
            MessagePart::Call { name, arguments, is_text: true, .. } => Message::text_call(name, arguments),
        },
        Turn::Result { name, text, .. } => Message::result(name, text.as_str()),
    };
    HarmonyTurn::Message(message)
}

/// Messages as gpt-oss' template knows them. What the assistant thought is the `thinking` of the message after it.
fn entries(turns: &[Turn]) -> Vec<TemplateMessage> {
    let mut thinking = None;
    let mut entries = Vec::new();
    for turn in turns {
        let (role, content) = match turn {
            Turn::System(text) => ("system", text),
            Turn::Developer(text) => ("developer", text),
            Turn::User(text) => ("user", text),
            Turn::Assistant(AssistantMessage { part: MessagePart::Reasoning(text), .. }) => {
                thinking = Some(text.clone());
                continue;
            }
            Turn::Assistant(AssistantMessage {
                part: MessagePart::Content { text, .. } | MessagePart::Call { arguments: text, .. },
                ..
            }) => ("assistant", text),
            Turn::Result { text, .. } => ("tool", text),
        };
        let thinking = thinking.take().filter(|_| role == "assistant");
        entries.push(TemplateMessage { thinking, ..TemplateMessage::new(role, content.as_str()) });
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    use model::tokenizer::Tokenizer;

    #[test]
    fn instructions_are_one_developer_message_in_front_of_the_rest() {
        let turns = [
            Turn::System("Be kind.".into()),
            Turn::Developer("Be brief.".into()),
            Turn::User("Hello".into()),
            Turn::Assistant(MessagePart::answer("Hi").into()),
            Turn::System("Now be loud.".into()),
        ];
        let harmony = Harmony::new(Tokenizer::o200k_harmony()).expect("it has the special tokens");
        let of = |turns: &[Turn]| {
            let (thinking, tools) = (Thinking::Usual, &[][..]);
            let conversation = Conversation {
                current_date: None,
                thinking,
                tools,
                may_call: false,
                format: None,
                turns,
                goes_on: false,
                words: Map::new(),
            };
            let written = openai(&conversation);
            harmony.spelled(&harmony.prompt_of(&written[1..], &Limit::NONE).expect("UTF-8"))
        };
        assert_eq!(
            of(&turns),
            "<|start|>developer<|message|># Instructions\n\nBe kind.\n\nBe brief.<|end|>\
             <|start|>user<|message|>Hello<|end|><|start|>assistant<|channel|>final<|message|>Hi<|end|>\
             <|start|>developer<|message|># Instructions\n\nNow be loud.<|end|><|start|>assistant"
        );
        let hello = "<|start|>user<|message|>Hello<|end|><|start|>assistant";
        assert_eq!(of(&turns[2..3]), hello, "no instructions, no message");
    }
}
