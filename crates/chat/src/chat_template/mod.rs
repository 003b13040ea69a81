//! The chat template of a checkpoint: Jinja that turns messages into a prompt, rendered as Hugging Face's
//! `apply_chat_template` does: `messages`, `add_generation_prompt`, `raise_exception` and `strftime_now`, Jinja's
//! filters and tests (`filters`), Python's methods of strings, lists and maps (`methods`), blocks trimmed.
//!
//! A template is foreign code, so it runs in a process with bounds on memory, stack and time
//! ([`system::bounded_process`]). It sees the messages' text. Names of special tokens that the template writes become
//! tokens; names in a message stay text, so that no message can end itself with `<|end|>`. `whose` distinguishes the
//! two; if it cannot, the result is an error instead of a prompt.

mod filters;
mod json;
mod methods;
mod moment;
mod percent;
mod render;
mod whose;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use hint::Hint;
use model::tokenizer::{Tokenizer, TokenizerError};
use system::bounded_process::{self, BoundedError};

use render::{PromptRenderJob, PromptRenderResult};
use whose::{Masked, TextOrigin, Whose};

/// The hidden command that renders a template: [`render_worker`].
pub(crate) const COMMAND: &str = "__chat-template";

/// The longest template in bytes; gpt-oss' has 16 thousand.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// A message, as templates know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMessage {
    /// The speaker: `user`.
    pub(crate) role: String,
    pub(crate) content: String,
    /// What the assistant thought before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<String>,
    /// The calls that it makes, as OpenAI's API has them, but for arguments, which are values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<Value>,
    /// The id of the call that it is the result of, and the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<(String, String)>,
}

impl TemplateMessage {
    /// A message without thoughts.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        let (role, content) = (role.to_owned(), content.into());
        Self { role, content, thinking: None, tool_calls: Vec::new(), call: None }
    }

    /// What others than the template say in it.
    fn texts(&self) -> Vec<&str> {
        let mut texts = vec![self.content.as_str()];
        texts.extend(self.thinking.as_deref());
        texts.extend(self.call.as_ref().map(|(_, name)| name.as_str()));
        self.tool_calls.iter().for_each(|call| texts_in(call, &mut texts));
        texts
    }
}

/// All texts in a value.
fn texts_in<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(values) => values.iter().for_each(|value| texts_in(value, texts)),
        Value::Object(entries) => entries.iter().for_each(|(key, value)| {
            texts.push(key);
            texts_in(value, texts);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The inputs of a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Given {
    /// The messages, in order.
    pub(crate) messages: Vec<TemplateMessage>,
    /// The tools, as OpenAI's API has them.
    #[serde(default)]
    pub(crate) tools: Vec<Value>,
    /// What it is given besides, by name.
    #[serde(default)]
    pub(crate) words: Map<String, Value>,
    /// The same, of others.
    #[serde(default)]
    pub(crate) words_of_others: Map<String, Value>,
    /// The prompt ends in the last message, which goes on.
    #[serde(default)]
    pub(crate) is_continued: bool,
}

/// A template that could be compiled.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    program: PathBuf,
}

/// Errors of chat templates.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    #[error("the chat template has {found} bytes, expected {MAX_TEMPLATE_BYTES} at most")]
    TooLong {
        /// In bytes.
        found: usize,
    },
    /// It is not what the language allows.
    #[error("could not compile the chat template: {0}")]
    Compile(String),
    /// It refused the messages, or ran out of steps.
    #[error("could not render the chat template: {0}")]
    Render(String),
    /// It exceeded its bounds.
    #[error("could not run the chat template")]
    Bounds(#[from] BoundedError),
    /// The process that rendered it did not answer as it should.
    #[error("the process that renders the chat template gave an invalid answer")]
    Answer(#[source] serde_json::Error),
    /// A special token that may be the template's or words of a message.
    #[error("cannot tell whether `{name}` in the prompt is the chat template's own or a message's")]
    Unclear { name: String },
    /// Its words are not in the vocabulary.
    #[error("could not convert what the chat template wrote")]
    Tokenizer(#[from] TokenizerError),
}

impl Hint for ChatTemplateError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Tokenizer(source) => source.hint(),
            Self::Unclear { .. } => Some(
                "the template searches for markers that the message contains: remove them, or use `--chat-format harmony`"
                    .into(),
            ),
            _ => Some("`--chat-format harmony` leaves it alone".into()),
        }
    }
}

impl ChatTemplate {
    /// Compiles a template. `program` is what is started to render it: one that calls [`render_worker`] when its only
    /// argument is [`COMMAND`].
    ///
    /// # Errors
    /// [`ChatTemplateError::Compile`] says where it is wrong; [`ChatTemplateError::Bounds`] that it takes too much.
    pub fn new(source: &str, program: &Path) -> Result<Self, ChatTemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatTemplateError::TooLong { found: source.len() });
        }
        let template = Self { source: source.to_owned(), program: program.to_owned() };
        rendered(template.ask(&PromptRenderJob { template: source.to_owned(), conversations: Vec::new() })?)?;
        Ok(template)
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for the assistant's next words, as ids.
    ///
    /// # Errors
    /// [`ChatTemplateError::Render`], [`ChatTemplateError::Bounds`], [`ChatTemplateError::Unclear`],
    /// [`ChatTemplateError::Tokenizer`].
    pub fn prompt(
        &self,
        conversation: &[TemplateMessage],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, ChatTemplateError> {
        self.prompt_of(&Given { messages: conversation.to_vec(), ..Given::default() }, tokenizer)
    }

    /// The same, of more than messages.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn prompt_of(&self, given: &Given, tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatTemplateError> {
        prompt(&self.source, given, tokenizer, |job| self.ask(job))
    }

    /// Whether it writes two things alike, so that it leaves out in what they differ.
    ///
    /// # Errors
    /// [`ChatTemplateError::Bounds`]; [`ChatTemplateError::Render`], where it refuses the first.
    pub(crate) fn writes_alike(&self, one: &Given, other: &Given) -> Result<bool, ChatTemplateError> {
        let conversations = vec![one.clone(), other.clone()];
        let mut texts =
            rendered(self.ask(&PromptRenderJob { template: self.source.clone(), conversations })?)?.into_iter();
        let none = || Err("there is no prompt".to_owned());
        let one = texts.next().unwrap_or_else(none).map_err(ChatTemplateError::Render)?;
        Ok(texts.next().is_some_and(|other| other.is_ok_and(|other| other == one)))
    }

    fn ask(&self, job: &PromptRenderJob) -> Result<PromptRenderResult, ChatTemplateError> {
        let job = serde_json::to_vec(job).expect("texts alone");
        let answer = bounded_process::run(&self.program, COMMAND, &job)?;
        serde_json::from_slice(&answer).map_err(ChatTemplateError::Answer)
    }
}

/// The side of the process that renders: reads a job from stdin, leaves its answer on stdout.
///
/// # Errors
/// They cannot be read or written.
pub(crate) fn render_worker() -> io::Result<()> {
    bounded_process::answer(|job| {
        let answer = match serde_json::from_slice(job) {
            Ok(job) => render::render(&job),
            Err(error) => {
                PromptRenderResult::NoTemplate(format!("this command is started by the program itself ({error})"))
            }
        };
        serde_json::to_vec(&answer).expect("texts alone")
    })
}

fn rendered(answer: PromptRenderResult) -> Result<Vec<Result<String, String>>, ChatTemplateError> {
    match answer {
        PromptRenderResult::NoTemplate(why) => Err(ChatTemplateError::Compile(why)),
        PromptRenderResult::Rendered(texts) => Ok(texts),
    }
}

/// The ids of a prompt, rendered by `ask`: of the conversation as it is, and masked in every way.
fn prompt(
    template: &str,
    given: &Given,
    tokenizer: &Tokenizer,
    ask: impl FnOnce(&PromptRenderJob) -> Result<PromptRenderResult, ChatTemplateError>,
) -> Result<Vec<u32>, ChatTemplateError> {
    let told = given.tools.iter().chain(given.words_of_others.values());
    if let Some(name) = told.into_iter().find_map(|value| name_in(value, tokenizer)) {
        return Err(ChatTemplateError::Unclear { name });
    }
    let masked = Masked::ALL.iter().map(|masked| masked.given(given));
    let conversations = std::iter::once(given.clone()).chain(masked).collect();
    let mut texts = rendered(ask(&PromptRenderJob { template: template.to_owned(), conversations })?)?.into_iter();
    let text = texts.next().unwrap_or_else(|| Err("there is no prompt".into())).map_err(ChatTemplateError::Render)?;
    let masked: Vec<Option<String>> = texts.map(Result::ok).collect();
    let masked = Masked::ALL.into_iter().zip(masked.iter().map(Option::as_deref));
    let whose = Whose::new(&text, masked, template, &given.messages);
    let end = if given.is_continued { end_of_last(&whose, given)? } else { text.len() };
    let mut unclear = None;
    let ids = tokenizer.encode_with_specials_where(&text.as_bytes()[..end], |offset, len| {
        let origin = whose.origin(offset, len);
        if origin == TextOrigin::Unclear {
            unclear.get_or_insert_with(|| text[offset..offset + len].to_owned());
        }
        origin == TextOrigin::Template
    })?;
    match unclear {
        Some(name) => Err(ChatTemplateError::Unclear { name }),
        None => Ok(ids),
    }
}

/// Where the last message ends in a prompt: with its blanks, if they are there. The template's own words may have the
/// same text, such as the names of tokens after it.
fn end_of_last(whose: &Whose<'_>, given: &Given) -> Result<usize, ChatTemplateError> {
    let last = given.messages.last().map_or("", |message| message.content.trim_start());
    let said = last.trim_end();
    let left_out = || ChatTemplateError::Render("the message that is to go on is not in the prompt".to_owned());
    if said.is_empty() {
        return Err(left_out());
    }
    let places = || whose.text.rmatch_indices(said).map(|(at, _)| at);
    let is_unclear = |at: &usize| whose.origin(*at, said.len()) == TextOrigin::Unclear;
    let begin = places().find(|at| whose.is_marked(*at, said.len())).or_else(|| places().find(is_unclear));
    let begin = begin.ok_or_else(left_out)?;
    let whole = if whose.text[begin..].starts_with(last) { last } else { said };
    Ok(begin + whole.len())
}

/// The name of a special token in what a tool or an option says, which a template may write as it stands there.
fn name_in(value: &Value, tokenizer: &Tokenizer) -> Option<String> {
    let in_text = |text: &str| {
        let mut found = None;
        let _ = tokenizer.encode_with_specials_where(text.as_bytes(), |offset, len| {
            found.get_or_insert_with(|| text[offset..offset + len].to_owned());
            false
        });
        // A blank that is a token is one wherever it comes from.
        found.filter(|name| !name.chars().all(char::is_whitespace))
    };
    match value {
        Value::String(text) => in_text(text),
        Value::Array(values) => values.iter().find_map(|value| name_in(value, tokenizer)),
        Value::Object(entries) => {
            entries.iter().find_map(|(key, value)| in_text(key).or_else(|| name_in(value, tokenizer)))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests;
