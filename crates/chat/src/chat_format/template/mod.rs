//! The checkpoint's chat template as a chat format: it writes the prompts, and what the model writes after them up to
//! the end of its turn is its answer.

mod answer;

use serde_json::{Map, Value, json};

use super::specials::Specials;
use super::{AnswerParser, Begun, ChatFormat, ChatFormatError, Conversation, Prompt, Thinking, Untaken};
use crate::chat_template::{ChatTemplate, ChatTemplateError, Given, TemplateMessage};
use crate::grammar::written::{ANY_TEXT, format_schema, inline, mark};
use crate::grammar::{GrammarError, Layout, ToolChoice, Wanted};
use crate::{BETWEEN_MESSAGES, MessagePart, Tool, Turn};
use answer::PlainAnswer;
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;

/// A template, and the vocabulary that it writes in.
#[derive(Debug)]
pub(super) struct TemplateFormat {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    specials: Specials,
}

impl TemplateFormat {
    pub(super) fn new(template: ChatTemplate, tokenizer: Tokenizer, specials: Specials) -> Self {
        Self { template, tokenizer, specials }
    }

    /// What the template is given of a conversation.
    fn given(&self, conversation: &Conversation<'_>) -> Result<Given, ChatFormatError> {
        let mut words = Map::new();
        let named = [("bos_token", &self.specials.bos), ("eos_token", &self.specials.eos)];
        words.extend(named.into_iter().filter_map(|(key, name)| Some((key.to_owned(), name.clone()?.into()))));
        words.extend(match conversation.thinking {
            Thinking::Usual => Map::new(),
            Thinking::No => Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]),
            Thinking::Effort(effort) => Map::from_iter([
                ("enable_thinking".to_owned(), Value::Bool(true)),
                ("reasoning_effort".to_owned(), effort.name().into()),
            ]),
        });
        let tools = conversation.tools.iter().map(tool).collect();
        Ok(Given { messages: entries(conversation.turns)?, tools, words })
    }

    /// Whether the template says what it is given, which it may have no place for.
    fn check_taken(&self, given: &Given, conversation: &Conversation<'_>) -> Result<(), ChatFormatError> {
        let check = |without: Given, what: Untaken| {
            let is_alike = self.template.writes_alike(given, &without).map_err(ChatFormatError::OnlyTemplate)?;
            if is_alike { Err(ChatFormatError::NotTaken { what }) } else { Ok(()) }
        };
        if !given.tools.is_empty() {
            check(Given { tools: Vec::new(), ..given.clone() }, Untaken::Tools)?;
        }
        if matches!(conversation.thinking, Thinking::Effort(_)) {
            let mut words = given.words.clone();
            words.retain(|name, _| !["enable_thinking", "reasoning_effort"].contains(&name.as_str()));
            check(Given { words, ..given.clone() }, Untaken::Effort)?;
        }
        Ok(())
    }
}

impl ChatFormat for TemplateFormat {
    /// The date is not told: templates ask for it.
    fn prompt(&self, conversation: &Conversation<'_>, limit: &Limit<'_>) -> Result<Prompt, ChatFormatError> {
        let given = self.given(conversation)?;
        self.check_taken(&given, conversation)?;
        let ids = self.template.prompt_of(&given, &self.tokenizer).map_err(|error| match error {
            ChatTemplateError::Tokenizer(error) => ChatFormatError::Tokenizer(error),
            error => ChatFormatError::OnlyTemplate(error),
        })?;
        limit.check(ids.len())?;
        Ok(Prompt { ids, begun: Begun::default() })
    }

    fn answer(&self, _: Begun, goes_on: bool) -> Box<dyn AnswerParser> {
        Box::new(PlainAnswer::new(self.tokenizer.clone(), self.specials.ends.clone(), goes_on))
    }

    /// The vocabulary's ends: in a chat they end a turn.
    fn stop_ids(&self) -> &[u32] {
        &self.specials.ends
    }

    fn has_headers(&self) -> bool {
        false
    }

    fn reads_calls(&self) -> bool {
        false
    }
}

impl Layout for TemplateFormat {
    /// The answer, and an end.
    fn grammar(&self, wanted: &Wanted) -> Result<String, GrammarError> {
        if wanted.choice != ToolChoice::None {
            return Err(GrammarError::NoCalls);
        }
        self.end_of_answer()?;
        let ends: Vec<String> = self.specials.ends.iter().map(|&id| mark(id)).collect();
        let ends = ends.join(" | ");
        Ok(match &wanted.format {
            Some(format) => format!("start: form ({ends})\nform: {}", inline(&format_schema(format)?)),
            None => format!("TEXT: {ANY_TEXT}\nstart: TEXT ({ends})"),
        })
    }

    fn end_of_answer(&self) -> Result<u32, GrammarError> {
        self.specials.ends.first().copied().ok_or(GrammarError::NoEnd)
    }

    fn usual_beginning(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// A tool as OpenAI's API has it, which is how templates take it.
fn tool(tool: &Tool) -> Value {
    let mut function = Map::from_iter([("name".to_owned(), Value::from(tool.name.as_str()))]);
    function.extend(tool.description.iter().map(|text| ("description".to_owned(), text.as_str().into())));
    function.extend(tool.parameters.iter().map(|schema| ("parameters".to_owned(), schema.clone())));
    json!({"type": "function", "function": function})
}

/// Messages. Instructions are system messages, those at the beginning one: many templates look for one, there. What
/// the assistant said in several messages is one, and what it thought goes before it.
fn entries(turns: &[Turn]) -> Result<Vec<TemplateMessage>, ChatFormatError> {
    let mut entries: Vec<TemplateMessage> = Vec::new();
    let mut thinking: Option<String> = None;
    for turn in turns {
        match turn {
            Turn::System(text) | Turn::Developer(text) if text.is_empty() => {}
            Turn::System(text) | Turn::Developer(text) => join(&mut entries, "system", text, |all| all.len() == 1),
            Turn::User(text) => entries.push(TemplateMessage::new("user", text.as_str())),
            Turn::Assistant(made) => match &made.part {
                MessagePart::Reasoning(text) => thinking = Some(text.clone()),
                MessagePart::Content { text, .. } => {
                    join(&mut entries, "assistant", text, |_| true);
                    if let (Some(thought), Some(last)) = (thinking.take(), entries.last_mut()) {
                        last.thinking.get_or_insert(thought);
                    }
                }
                MessagePart::Call { .. } => return Err(ChatFormatError::NotTaken { what: Untaken::Calls }),
            },
            Turn::Result { .. } => return Err(ChatFormatError::NotTaken { what: Untaken::Calls }),
        }
    }
    Ok(entries)
}

/// Adds a message, or its text to the last one, if that is of the same role and may be one with it.
fn join(entries: &mut Vec<TemplateMessage>, role: &str, text: &str, is_one: impl Fn(&[TemplateMessage]) -> bool) {
    let may_join = is_one(entries);
    match entries.last_mut().filter(|last| may_join && last.role == role) {
        Some(last) if last.content.is_empty() => last.content = text.to_owned(),
        Some(last) => last.content += &[BETWEEN_MESSAGES, text].concat(),
        None => entries.push(TemplateMessage::new(role, text)),
    }
}
