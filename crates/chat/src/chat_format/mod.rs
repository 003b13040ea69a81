//! Chat formats: how conversations become prompts, and tokens become answers, in the form that the model was trained
//! on.
//!
//! [`ChatFormat`] is what commands and the server know. [`choose`] gives a model's format: `harmony` if the vocabulary
//! has its tokens, else the checkpoint's own `template`. [`specials`] says which tokens end a sequence.

mod error;
mod harmony;
pub mod specials;
mod template;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

pub use error::{ChatFormatError, Untaken};
pub use template::markup::MarkupError;

use crate::chat_template::ChatTemplate;
use crate::grammar::{Layout, Thoughts};
use crate::harmony::parser::Repair;
use crate::harmony::{Harmony, HarmonyError};
use crate::{AssistantMessage, MessagePart, Reasoning, ResponseFormat, Tool, Turn};
use model::family::Family;
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;
use specials::Specials;

/// A way of writing conversations, and of reading answers. Its [`Layout`] is that of the grammar of an answer.
pub trait ChatFormat: Layout {
    /// The prompt for the assistant's next words.
    ///
    /// # Errors
    /// More tokens than `limit` takes; something that the format cannot say.
    fn prompt(&self, conversation: &Conversation<'_>, limit: &Limit<'_>) -> Result<Prompt, ChatFormatError>;

    /// Reads what the model writes after a prompt. With `goes_on` it is never over: for models that are kept from
    /// stopping.
    fn answer(&self, begun: Begun, goes_on: bool) -> Box<dyn AnswerParser>;

    /// The tokens after which the model waits for others. They are part of what it writes, and the parser's to read,
    /// unlike those of [`Specials::ends`].
    fn stop_ids(&self) -> &[u32];

    /// Whether a text of no form has a grammar, too: one with headers has.
    fn has_headers(&self) -> bool;

    /// Whether the parser finds calls of tools.
    fn reads_calls(&self) -> bool;

    /// Whether a prompt may end where the model's thoughts have begun.
    fn opens_thoughts(&self) -> bool {
        false
    }
}

/// Everything that makes a prompt.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    /// `2025-06-28`; none if the prompt has no date.
    pub current_date: Option<String>,
    pub thinking: Thinking,
    /// Functions, in order.
    pub tools: &'a [Tool],
    /// Whether they may be called.
    pub may_call: bool,
    /// What the answer is to look like.
    pub format: Option<ResponseFormat>,
    /// The turns, in order.
    pub turns: &'a [Turn],
    /// The last of it is an answer of the assistant, with which the model goes on.
    pub goes_on: bool,
    /// Further values for a template, by name, which come from clients.
    pub words: Map<String, Value>,
}

impl<'a> Conversation<'a> {
    /// The answer that the model continues, if it does, and the turns before it.
    fn begun_answer(&self) -> (Option<&'a str>, &'a [Turn]) {
        match self.turns.split_last() {
            Some((Turn::Assistant(AssistantMessage { part: MessagePart::Content { text, .. }, .. }), before))
                if self.goes_on =>
            {
                (Some(text), before)
            }
            _ => (None, self.turns),
        }
    }
}

/// How long the model is to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// The caller sets nothing: harmony takes [`Reasoning::Medium`], a template its own default.
    #[default]
    Usual,
    No,
    Effort(Reasoning),
}

impl From<Option<Reasoning>> for Thinking {
    fn from(effort: Option<Reasoning>) -> Self {
        effort.map_or(Self::Usual, Self::Effort)
    }
}

/// Token ids to start from, and what the format says about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub ids: Vec<u32>,
    /// What of it is the model's.
    pub begun: Begun,
}

/// The end of a prompt that is the beginning of the message that the model is to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    pub(crate) ids: Vec<u32>,
    /// The message is the answer, without reasoning.
    pub in_answer: bool,
    /// The model's thoughts have begun.
    pub in_reasoning: bool,
    /// Those that may be called, where answers are read by their names.
    pub(crate) tools: Arc<[Tool]>,
}

impl Begun {
    /// Where the model is to think.
    pub fn thoughts(&self) -> Thoughts {
        match (self.in_reasoning, self.in_answer) {
            (true, _) => Thoughts::Begun,
            (false, true) => Thoughts::None,
            (false, false) => Thoughts::May,
        }
    }
}

/// Reads tokens one by one. A sampled model can write anything, so nothing here is an error.
pub trait AnswerParser: fmt::Debug + Send + Sync {
    /// Takes the next token.
    fn push(&mut self, id: u32) -> Vec<AnswerEvent>;

    /// Ends the output: a message that is still open is unfinished.
    fn finish(&mut self) -> Vec<AnswerEvent>;

    /// Whether the turn is over. Later tokens are ignored.
    fn is_over(&self) -> bool;

    /// How many tokens so far were reasoning.
    fn n_reasoning_tokens(&self) -> usize;

    /// What was read otherwise than it was written, by names of [`repairs`], and how often.
    fn repairs(&self) -> Vec<(&'static str, usize)>;

    /// The complete messages so far, for the next prompt of a conversation without tools. There a call is text like any
    /// other, because nothing answers it.
    ///
    /// # Errors
    /// A message that cannot be written; none that was read.
    fn messages(&self) -> Result<Vec<AssistantMessage>, ChatFormatError>;
}

/// Something that became known with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// A message begins. No other is open.
    Started {
        purpose: Purpose,
        /// The tool that is called with it, if one is, without `functions.`.
        tool: Option<String>,
    },
    /// The next whole characters of the message that is open.
    Text(String),
    /// The open message ends.
    Ended {
        /// The model did not end it: the output did, or another message.
        is_unfinished: bool,
        /// Its tokens, if it may stand in a prompt as the model wrote it.
        ids: Option<Vec<u32>>,
    },
}

/// What words of the assistant are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reasoning, which is not shown.
    Reasoning,
    /// To tools, and what it says about using them.
    Commentary,
    Answer,
    /// The model does not say. It is for the person to read, and more may come.
    Untold,
}

impl Purpose {
    /// Whether they are for the person to read.
    pub fn is_for_user(self) -> bool {
        matches!(self, Self::Answer | Self::Untold)
    }
}

/// Names of all that parsers may read otherwise than it was written, as metrics have them.
pub fn repairs() -> impl Iterator<Item = &'static str> {
    Repair::ALL.into_iter().map(Repair::name)
}

/// The word for a format, in a family's file or on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Harmony,
    /// The checkpoint's chat template.
    Template,
}

impl Word {
    /// The family's choice, if it is more than the vocabulary tells: harmony is recognised by its tokens.
    pub fn of_family(family: &Family) -> Option<Self> {
        (family.chat.as_deref() == Some("template")).then_some(Self::Template)
    }
}

/// Writers of prompts, for formats with their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prompts {
    /// The format, with the system message that models of it expect.
    #[default]
    Format,
    /// The format, with the system messages that are given and no others, as the built-in tiny model was trained.
    Plain,
    /// The checkpoint's template, if it has one.
    Checkpoint,
}

/// What a model has to choose a format by.
#[derive(Clone, Debug)]
pub struct Has<'a> {
    pub tokenizer: &'a Tokenizer,
    /// The meanings of its special tokens.
    pub specials: &'a Specials,
    /// The source of its checkpoint's template.
    pub template: Option<&'a str>,
    /// This program, which renders templates: see [`ChatTemplate::new`].
    pub program: &'a Path,
    pub besides: Besides<'a>,
}

/// What the format of a checkpoint's template takes besides it.
#[derive(Clone, Debug, Default)]
pub struct Besides<'a> {
    /// The source of the checkpoint's template for conversations with tools, if that is another.
    pub tool_template: Option<&'a str>,
    /// Values for templates, unless a conversation sets them.
    pub words: Map<String, Value>,
    /// Files that say how models mark thoughts and calls, before those built in.
    pub marks: Vec<PathBuf>,
}

/// The format of a model: what a word says, if there is one; else harmony, if the vocabulary has its tokens; else the
/// checkpoint's template.
///
/// # Errors
/// There is none of these; the template does not compile.
pub fn choose(word: Option<Word>, prompts: Prompts, has: &Has<'_>) -> Result<Arc<dyn ChatFormat>, ChatFormatError> {
    let compiled = |source: &str| ChatTemplate::new(source, has.program);
    let template = |source: &str| -> Result<Arc<dyn ChatFormat>, ChatFormatError> {
        let besides = has.besides.clone();
        let template = compiled(source).map_err(ChatFormatError::OnlyTemplate)?;
        let for_tools = besides.tool_template.map(compiled).transpose().map_err(ChatFormatError::OnlyTemplate)?;
        let (tokenizer, specials) = (has.tokenizer.clone(), has.specials.clone());
        Ok(Arc::new(template::TemplateFormat::new(template, for_tools, besides, tokenizer, specials)?))
    };
    let found = match (word, has.template) {
        (Some(Word::Template), source) => return template(source.ok_or(ChatFormatError::NoTemplate)?),
        (_, source) => (Harmony::new(has.tokenizer.clone()), source),
    };
    match found {
        (Err(HarmonyError::MissingSpecials { .. }), Some(source)) if word.is_none() => template(source),
        (Err(HarmonyError::MissingSpecials { names }), None) if word.is_none() => {
            Err(ChatFormatError::NoFormat { names })
        }
        (harmony, source) => {
            let style = match (prompts, source) {
                (Prompts::Checkpoint, Some(source)) => harmony::Style::Template(compiled(source)?),
                (Prompts::Plain, _) => harmony::Style::Plain,
                (Prompts::Format | Prompts::Checkpoint, _) => harmony::Style::OpenAi,
            };
            Ok(Arc::new(harmony::HarmonyFormat::new(harmony?, style)))
        }
    }
}
