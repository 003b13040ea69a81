//! One line of a file of prompts: a prompt, and how to answer it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::source::PromptFormat;
use chat::chat_format::ChatFormatError;
use chat::request_fields::{Fate, Place, RequestField};
use chat::{MessagePart, Reasoning, Turn};
use engine::PromptError;
use engine::scheduler::{SamplingWishes, Wish};
use hint::Hint;
use system::foreign_text::{mend_json, should_be};

#[derive(Debug)]
pub(crate) struct RequestLine {
    /// What the line calls itself: `id`, or `custom_id`.
    pub(crate) id: Option<Value>,
    pub(crate) prompt: Prompt,
    /// What it says of its answer; flags say the rest.
    pub(crate) wishes: Wishes,
    /// The model that the line names, if it names one.
    pub(crate) model: Option<String>,
}

/// The start of the text to generate: text, ids or a conversation.
#[derive(Debug)]
pub enum Prompt {
    Text(Vec<u8>),
    Ids(Vec<u32>),
    /// A conversation, to be answered.
    Messages(Vec<Turn>),
}

/// How a line is to be answered, as far as it says.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// Most tokens to generate; `None` leaves it to the flags.
    pub(crate) max_new_tokens: Option<usize>,
    pub(crate) sampling: SamplingWishes,
    /// More ids that end the answer.
    pub(crate) stop_token_ids: Vec<u32>,
    /// How long the model is to think.
    pub(crate) reasoning: Option<Reasoning>,
    /// See [`engine::scheduler::LogitChanges`].
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

/// Why a line of a file of prompts cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("not a JSON object: {0}")]
    NotJson(serde_json::Error),
    /// A field of another type.
    #[error("`{name}` {why}")]
    Field { name: &'static str, why: String },
    /// Fields that are unknown or not supported here.
    #[error(
        "{} not supported in files of prompts{}",
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        why.map_or(String::new(), |why| format!(": {why}"))
    )]
    Unsupported {
        names: Vec<String>,
        /// Why it is not, where it is one that is known.
        why: Option<&'static str>,
    },
    /// No prompt, or several.
    #[error("expected one of `prompt`, `messages` and `ids`, found {found}")]
    NotOnePrompt { found: usize },
    /// A number out of its range.
    #[error("`{name}` is {found}, expected {expected}")]
    OutOfRange { name: &'static str, found: f64, expected: String },
    /// A field of a batch line that has to say something else.
    #[error("`{name}` is `{found}`, expected {expected}")]
    Word { name: &'static str, found: String, expected: &'static str },
    /// A message that is not valid.
    #[error("`messages[{index}]`: {problem}")]
    Message {
        /// Counted from 0.
        index: usize,
        problem: String,
    },
    /// No sequence can begin with the prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// Its words cannot be made tokens.
    #[error(transparent)]
    Tokenizer(#[from] model::tokenizer::TokenizerError),
    /// Its conversation cannot be made tokens.
    #[error(transparent)]
    Chat(#[from] ChatFormatError),
    /// The model has no way of writing conversations.
    #[error(transparent)]
    NoChat(#[from] Arc<ChatFormatError>),
}

impl Hint for LineError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Tokenizer(error) => error.hint(),
            Self::Chat(error) => error.hint(),
            Self::NoChat(error) => error.hint(),
            Self::Prompt(PromptError::Empty) => None,
            Self::Prompt(error) => error.hint(),
            _ => None,
        }
    }
}

impl LineError {
    fn field(name: &'static str, error: &serde_json::Error) -> Self {
        Self::Field { name, why: should_be(&error.to_string()) }
    }

    /// The field that is wrong, if it is one.
    pub(crate) fn param(&self) -> Option<String> {
        match self {
            Self::Field { name, .. } | Self::OutOfRange { name, .. } | Self::Word { name, .. } => {
                Some((*name).to_owned())
            }
            Self::Unsupported { names, .. } => names.first().cloned(),
            Self::Message { index, .. } => Some(format!("messages[{index}]")),
            _ => None,
        }
    }

    /// OpenAI's error code.
    pub(crate) fn code(&self) -> Option<&'static str> {
        match self {
            Self::Prompt(PromptError::TooLong { .. }) => Some("context_length_exceeded"),
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            _ => None,
        }
    }
}

/// Whether a line is one of OpenAI's batch files.
pub(crate) fn is_batch_line(mut line: Vec<u8>) -> bool {
    mend_json(&mut line);
    serde_json::from_slice::<Map<String, Value>>(&line)
        .is_ok_and(|line| line.contains_key("custom_id") && line.contains_key("body"))
}

/// The name that a line has, whatever else is wrong with it.
pub(crate) fn id_of(line: &[u8]) -> Option<Value> {
    #[derive(Deserialize)]
    struct Named {
        custom_id: Option<Value>,
        id: Option<Value>,
    }
    let line: Named = serde_json::from_slice(line).ok()?;
    line.custom_id.or(line.id)
}

impl RequestLine {
    /// Understands a line.
    ///
    /// # Errors
    /// [`LineError`]; a line of [`PromptFormat::Counted`] and [`PromptFormat::Lines`] is always understood.
    pub(crate) fn parse(format: PromptFormat, line: Vec<u8>) -> Result<Self, LineError> {
        match format {
            PromptFormat::Counted | PromptFormat::Lines => {
                let wishes = Wishes::default();
                Ok(Self { id: None, prompt: Prompt::Text(line), wishes, model: None })
            }
            PromptFormat::Jsonl => {
                let mut fields = Fields::read(&line)?;
                let id = fields.take("id")?;
                Self::from_fields(fields, id)
            }
            PromptFormat::Batch => Self::from_batch(&line),
        }
    }

    fn from_batch(line: &[u8]) -> Result<Self, LineError> {
        let mut fields = Fields::read(line)?;
        let id: Option<String> = fields.take("custom_id")?;
        let method: Option<String> = fields.take("method")?;
        if let Some(found) = method.filter(|method| method != "POST") {
            return Err(LineError::Word { name: "method", found, expected: "`POST`" });
        }
        let url: String = fields.take("url")?.unwrap_or_default();
        let expected = "`/v1/chat/completions` or `/v1/completions`";
        let field = match url.as_str() {
            "/v1/chat/completions" => "messages",
            "/v1/completions" => "prompt",
            _ => return Err(LineError::Word { name: "url", found: url, expected }),
        };
        let mut body = Fields(fields.take("body")?.unwrap_or_default());
        fields.end()?;
        if !body.0.contains_key(field) {
            return Err(LineError::NotOnePrompt { found: 0 });
        }
        // OpenAI's completions take ids in the place of a text.
        if body.0.get("prompt").is_some_and(Value::is_array) {
            let ids = body.0.remove("prompt").expect("just seen");
            body.0.insert("ids".into(), ids);
        }
        Self::from_fields(body, id.map(Value::String))
    }

    fn from_fields(mut fields: Fields, id: Option<Value>) -> Result<Self, LineError> {
        let prompt: Option<String> = fields.take("prompt")?;
        let ids: Option<Vec<u32>> = fields.take("ids")?;
        let messages: Option<Vec<Value>> = fields.take("messages")?;
        let messages = messages.map(self::messages).transpose()?;
        let prompts =
            [prompt.map(|text| Prompt::Text(text.into_bytes())), ids.map(Prompt::Ids), messages.map(Prompt::Messages)];
        let mut prompts: Vec<Prompt> = prompts.into_iter().flatten().collect();
        let prompt = match (prompts.pop(), prompts.len()) {
            (Some(prompt), 0) => prompt,
            (prompt, n) => return Err(LineError::NotOnePrompt { found: n + usize::from(prompt.is_some()) }),
        };
        let model = fields.take("model")?;
        let wishes = fields.wishes()?;
        fields.end()?;
        Ok(Self { id, prompt, wishes, model })
    }
}

/// An object whose fields are taken out one by one.
struct Fields(Map<String, Value>);

impl Fields {
    fn read(line: &[u8]) -> Result<Self, LineError> {
        serde_json::from_slice(line).map(Self).map_err(LineError::NotJson)
    }

    /// A field; `null` is none.
    fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, LineError> {
        match self.0.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|error| LineError::field(name, &error)),
        }
    }

    fn sampling(&mut self) -> Result<SamplingWishes, LineError> {
        let mut wishes = SamplingWishes::default();
        for (name, wish) in wishes.fields() {
            match wish {
                Wish::Number(value, range) => *value = self.number(name, &range)?,
                Wish::Count(value) => *value = self.take::<u32>(name)?.map(i64::from),
                Wish::Bits(value) => *value = self.take(name)?,
            }
        }
        Ok(wishes)
    }

    fn number(&mut self, name: &'static str, range: &RangeInclusive<f32>) -> Result<Option<f32>, LineError> {
        let Some(found) = self.take::<f64>(name)? else { return Ok(None) };
        let (low, high) = (*range.start(), *range.end());
        if (f64::from(low)..=f64::from(high)).contains(&found) {
            return Ok(Some(found as f32));
        }
        Err(LineError::OutOfRange { name, found, expected: format!("{low} to {high}") })
    }

    fn wishes(&mut self) -> Result<Wishes, LineError> {
        let max_tokens: Option<usize> = self.take("max_tokens")?;
        let max_completion_tokens = self.take("max_completion_tokens")?;
        let mut logit_bias = Vec::new();
        for (id, bias) in self.take::<Map<String, Value>>("logit_bias")?.unwrap_or_default() {
            let of_field = |error: serde_json::Error| LineError::field("logit_bias", &error);
            let id: u32 = serde_json::from_str(&id).map_err(of_field)?;
            logit_bias.push((id, serde_json::from_value(bias).map_err(of_field)?));
        }
        Ok(Wishes {
            max_new_tokens: max_completion_tokens.or(max_tokens),
            sampling: self.sampling()?,
            stop_token_ids: self.take("stop_token_ids")?.unwrap_or_default(),
            reasoning: self.take::<Effort>("reasoning_effort")?.map(Into::into),
            logit_bias,
        })
    }

    /// Nothing is to be left but what changes nothing: what is not done must not be ignored in silence.
    fn end(self) -> Result<(), LineError> {
        let asks = |name: &str, value: &Value| match RequestField::find(name, Place::Files) {
            _ if value.is_null() => false,
            Some(field) if field.fate(Place::Files) == Fate::Refused => field.asks(value),
            Some(field) => field.fate(Place::Files) != Fate::NoEffect,
            None => true,
        };
        let names: Vec<String> =
            self.0.into_iter().filter(|(name, value)| asks(name, value)).map(|(name, _)| name).collect();
        let why = match names.as_slice() {
            [] => return Ok(()),
            [name] => RequestField::find(name, Place::Files).map(|field| field.why).filter(|why| !why.is_empty()),
            _ => None,
        };
        Err(LineError::Unsupported { names, why })
    }
}

/// What clients say of how long to think. The model knows three of these; others are taken as the nearest.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl From<Effort> for Reasoning {
    fn from(effort: Effort) -> Self {
        match effort {
            Effort::None | Effort::Minimal | Effort::Low => Self::Low,
            Effort::Medium => Self::Medium,
            Effort::High | Effort::Xhigh | Effort::Max => Self::High,
        }
    }
}

#[derive(Deserialize)]
struct RawMessage {
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    tool_calls: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Content {
    #[default]
    Nothing,
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
}

/// The messages of a conversation as OpenAI's API takes them. What the assistant thought in earlier turns is left
/// out, as the model expects.
///
/// # Errors
/// [`LineError::Message`] says which of them is none.
pub fn messages(values: Vec<Value>) -> Result<Vec<Turn>, LineError> {
    let message =
        |(index, value): (usize, Value)| message(value).map_err(|problem| LineError::Message { index, problem });
    values.into_iter().enumerate().map(message).collect()
}

fn message(value: Value) -> Result<Turn, String> {
    let RawMessage { role, content, tool_calls } =
        serde_json::from_value(value).map_err(|error| format!("it {}", should_be(&error.to_string())))?;
    let text = match content {
        Content::Nothing => String::new(),
        Content::Text(text) => text,
        Content::Parts(parts) => {
            let other = parts.iter().find(|part| !["text", "input_text", "output_text"].contains(&part.kind.as_str()));
            if let Some(part) = other {
                return Err(format!("content of type `{}` is not supported", part.kind));
            }
            parts.into_iter().map(|part| part.text).collect()
        }
    };
    if !tool_calls.is_empty() {
        return Err("calls of tools are not supported in files of prompts".into());
    }
    match role.as_str() {
        "system" => Ok(Turn::System(text)),
        "developer" => Ok(Turn::Developer(text)),
        "user" => Ok(Turn::User(text)),
        "assistant" => Ok(Turn::Assistant(MessagePart::answer(text).into())),
        other => Err(format!("role `{other}` is none of system, developer, user and assistant")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_done_refused_or_without_effect_as_the_table_says() {
        let read = |name: &str, value: &Value| {
            let mut line = serde_json::json!({"prompt": "hi"});
            if ["messages", "ids"].contains(&name) {
                line = serde_json::json!({});
            }
            line[name] = value.clone();
            let line = RequestLine::parse(PromptFormat::Jsonl, line.to_string().into_bytes());
            line.map(|line| format!("{line:?}"))
        };
        let without = read("user", &Value::Null).expect("a right line");
        for field in RequestField::all() {
            // A row of another place.
            if field.fate(Place::Files) == Fate::Unknown && RequestField::find(field.name, Place::Files).is_some() {
                continue;
            }
            match (field.fate(Place::Files), read(field.name, &field.example)) {
                (Fate::Done, found) => assert_ne!(found.expect(field.name), without, "{}", field.name),
                (Fate::NoEffect, found) => assert_eq!(found.expect(field.name), without, "{}", field.name),
                (Fate::Refused | Fate::Unknown, found) => {
                    let Err(LineError::Unsupported { names, .. }) = found else { panic!("{}: {found:?}", field.name) };
                    assert_eq!(names, [field.name]);
                }
            }
            if field.fate(Place::Files) == Fate::Refused {
                for value in field.neutral() {
                    assert_eq!(read(field.name, value).expect(field.name), without, "{}", field.name);
                }
            }
        }
    }

    #[test]
    fn a_reason_is_that_of_the_field_that_is_refused() {
        let said = |more: &str| {
            let line = format!("{{\"prompt\": \"a\", {more}}}").into_bytes();
            RequestLine::parse(PromptFormat::Jsonl, line).expect_err(more).to_string()
        };
        let why = RequestField::find("stream", Place::Files).expect("a row").why;
        assert_eq!(said("\"stream\": true"), format!("`stream` not supported in files of prompts: {why}"));
        assert_eq!(said("\"stream\": false, \"foo\": 1"), "`foo` not supported in files of prompts");
        assert_eq!(said("\"stream\": true, \"foo\": 1"), "`stream`, `foo` not supported in files of prompts");
    }

    #[test]
    fn a_conversation_with_calls_of_tools_is_refused_and_says_where() {
        let said = serde_json::json!({"role": "user", "content": "hi"});
        assert_eq!(messages(vec![said.clone()]).expect("right").len(), 1);
        let calls = serde_json::json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call_1"}]});
        match messages(vec![said, calls]) {
            Err(LineError::Message { index: 1, problem }) => assert!(problem.contains("calls of tools"), "{problem}"),
            other => panic!("{other:?}"),
        }
    }
}
