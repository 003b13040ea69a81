//! The checkpoint's chat template as a chat format: the template writes prompts. The answer is the model's text up to
//! the end of its turn. `markup` says how reasoning and calls are marked, `reader` finds them, and `grammar` enforces
//! them.

mod answer;
mod call;
mod grammar;
mod json_prefix;
pub(super) mod markup;
mod messages;
mod reader;

use std::sync::Arc;

use serde_json::{Map, Value};

use super::specials::Specials;
use super::{AnswerParser, Begun, Besides, ChatFormat, ChatFormatError, Conversation, Prompt, Thinking, Untaken};
use crate::chat_template::{ChatTemplate, ChatTemplateError, Given};
use crate::grammar::{GrammarError, Layout, Wanted};
use crate::{MessagePart, Turn};
use answer::TemplateAnswer;
use markup::Markup;
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;

/// A template, and the vocabulary that it writes in.
#[derive(Debug)]
pub(super) struct TemplateFormat {
    template: ChatTemplate,
    /// The one for conversations with tools, if that is another.
    tool_template: Option<ChatTemplate>,
    markup: Arc<Markup>,
    tokenizer: Tokenizer,
    specials: Specials,
    /// Values for the template, unless a conversation sets them.
    usual_words: Map<String, Value>,
}

impl TemplateFormat {
    /// # Errors
    /// A file of marks that is none.
    pub(super) fn new(
        template: ChatTemplate,
        tool_template: Option<ChatTemplate>,
        besides: Besides<'_>,
        tokenizer: Tokenizer,
        specials: Specials,
    ) -> Result<Self, ChatFormatError> {
        let sources = [Some(&template), tool_template.as_ref()].into_iter().flatten().map(ChatTemplate::source);
        let markup = Markup::by(&besides.marks, &sources.collect::<Vec<_>>().join("\n"), &tokenizer)?;
        let usual_words = besides.words;
        Ok(Self { template, tool_template, markup: Arc::new(markup), tokenizer, specials, usual_words })
    }

    /// The template of a conversation with these tools.
    fn template_for(&self, tools: &[Value]) -> &ChatTemplate {
        self.tool_template.as_ref().filter(|_| !tools.is_empty()).unwrap_or(&self.template)
    }

    /// What the template is given of a conversation.
    fn given(&self, conversation: &Conversation<'_>) -> Given {
        let mut words = self.usual_words.clone();
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
        let tools = conversation.tools.iter().map(messages::tool).collect();
        let id_length = self.markup.calls.as_ref().and_then(|marks| marks.id_length);
        let messages = messages::messages(conversation.turns, id_length);
        let is_continued = conversation.goes_on;
        Given { messages, tools, words, words_of_others: conversation.words.clone(), is_continued }
    }

    /// Whether the template says what it is given, which it may have no place for.
    fn check_taken(&self, given: &Given, conversation: &Conversation<'_>) -> Result<(), ChatFormatError> {
        let check = |without: Given, what: Untaken| {
            let template = self.template_for(&given.tools);
            let is_alike = template.writes_alike(given, &without).map_err(ChatFormatError::OnlyTemplate)?;
            if is_alike { Err(ChatFormatError::NotTaken { what }) } else { Ok(()) }
        };
        if !given.tools.is_empty() {
            check(Given { tools: Vec::new(), ..given.clone() }, Untaken::Tools)?;
        }
        let is_call =
            |turn: &Turn| matches!(turn, Turn::Assistant(made) if matches!(made.part, MessagePart::Call { .. }));
        if conversation.turns.iter().any(is_call) {
            let mut without = given.clone();
            without.messages.iter_mut().for_each(|message| message.tool_calls.clear());
            check(without, Untaken::Calls)?;
        }
        if matches!(conversation.thinking, Thinking::Effort(_)) {
            let mut words = given.words.clone();
            words.retain(|name, _| !["enable_thinking", "reasoning_effort"].contains(&name.as_str()));
            check(Given { words, ..given.clone() }, Untaken::Effort)?;
        }
        Ok(())
    }

    /// Whether a prompt ends where thoughts begin.
    fn ends_in_thoughts(&self, ids: &[u32]) -> bool {
        let Some(marks) = &self.markup.reasoning else { return false };
        // As many tokens as a mark and blanks after it may take.
        let tail = &ids[ids.len().saturating_sub(marks.begin.len() + 4)..];
        let tail = self.tokenizer.decode_all(tail).unwrap_or_default();
        String::from_utf8_lossy(&tail).trim_end().ends_with(&marks.begin)
    }
}

impl ChatFormat for TemplateFormat {
    /// The date is not told: templates ask for it.
    fn prompt(&self, conversation: &Conversation<'_>, limit: &Limit<'_>) -> Result<Prompt, ChatFormatError> {
        let given = self.given(conversation);
        self.check_taken(&given, conversation)?;
        let template = self.template_for(&given.tools);
        let ids = template.prompt_of(&given, &self.tokenizer).map_err(|error| match error {
            ChatTemplateError::Tokenizer(error) => ChatFormatError::Tokenizer(error),
            error => ChatFormatError::OnlyTemplate(error),
        })?;
        limit.check(ids.len())?;
        let begun = Begun {
            ids: Vec::new(),
            in_answer: conversation.goes_on || conversation.thinking == Thinking::No,
            in_reasoning: !conversation.goes_on && self.ends_in_thoughts(&ids),
            tools: conversation.tools.iter().filter(|_| conversation.may_call).cloned().collect(),
        };
        Ok(Prompt { ids, begun })
    }

    fn answer(&self, begun: Begun, goes_on: bool) -> Box<dyn AnswerParser> {
        let (markup, ends) = (Arc::clone(&self.markup), self.specials.ends.clone());
        Box::new(TemplateAnswer::new(self.tokenizer.clone(), markup, ends, begun, goes_on))
    }

    /// The vocabulary's ends: in a chat they end a turn.
    fn stop_ids(&self) -> &[u32] {
        &self.specials.ends
    }

    fn has_headers(&self) -> bool {
        false
    }

    fn reads_calls(&self) -> bool {
        self.markup.calls.is_some()
    }

    fn opens_thoughts(&self) -> bool {
        let sources = [Some(&self.template), self.tool_template.as_ref()];
        let writes = |begin: &str| sources.iter().flatten().any(|template| template.source().contains(begin));
        self.markup.reasoning.as_ref().is_some_and(|marks| writes(&marks.begin))
    }
}

impl Layout for TemplateFormat {
    fn grammar(&self, wanted: &Wanted) -> Result<String, GrammarError> {
        self.end_of_answer()?;
        grammar::grammar(wanted, &self.markup, &self.tokenizer, &self.specials.ends)
    }

    fn end_of_answer(&self) -> Result<u32, GrammarError> {
        self.specials.ends.first().copied().ok_or(GrammarError::NoEnd)
    }

    fn usual_beginning(&self) -> Vec<u32> {
        Vec::new()
    }
}
