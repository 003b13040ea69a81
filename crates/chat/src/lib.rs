//! Chats of any model: messages, tools, and the form of an answer. A chat format turns them into tokens.

pub mod chat_format;
pub mod chat_template;
pub mod grammar;
pub mod harmony;
pub mod request_fields;

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// Does the work for which this program started itself, if this process is such a one: what [`engine::worker`] does, to
/// render a checkpoint's chat template, or to try a grammar.
///
/// # Errors
/// The job cannot be read, or the result cannot be written.
pub fn worker() -> Option<io::Result<()>> {
    let word = std::env::args_os().nth(1)?;
    match word.to_str()? {
        chat_template::COMMAND => Some(chat_template::render_worker()),
        grammar::trial::COMMAND => Some(grammar::trial::try_worker()),
        _ => engine::worker(),
    }
}

/// The separator of two messages of a kind, where both become one text.
pub const BETWEEN_MESSAGES: &str = "\n\n";

/// The namespace of the functions that a developer defines.
pub const FUNCTIONS: &str = "functions";

/// A piece of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Instructions, as a system message.
    System(String),
    /// Instructions, as a developer's message.
    Developer(String),
    /// A message of the user.
    User(String),
    /// A message of the assistant.
    Assistant(AssistantMessage),
    /// What a call came to; it follows the call.
    Result {
        name: String,
        text: String,
        /// No other call follows that was made together with this one.
        is_last: bool,
    },
}

/// A message of the assistant: one that a model made, or that a client says was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssistantMessage {
    pub part: MessagePart,
    /// The whole message as it may be in a prompt, in its format's tokens; none if the model omitted one of them, or if
    /// this is unknown.
    pub ids: Option<Vec<u32>>,
}

impl From<MessagePart> for AssistantMessage {
    fn from(part: MessagePart) -> Self {
        Self { part, ids: None }
    }
}

/// What a message of the assistant says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart {
    Reasoning(String),
    Content {
        text: String,
        /// Its purpose; clients may omit it.
        phase: Option<Phase>,
    },
    Call {
        /// The id that its result refers to.
        id: String,
        /// The tool, as the model knows it.
        name: String,
        /// The arguments of a function, which may be no JSON; or the text that a custom tool takes.
        arguments: String,
        /// It is the text of a custom tool.
        is_text: bool,
    },
}

impl MessagePart {
    /// A final message of the assistant with this text.
    pub fn answer(text: impl Into<String>) -> Self {
        Self::Content { text: text.into(), phase: Some(Phase::FinalAnswer) }
    }

    /// Its approximate size in bytes.
    pub fn size_bytes(&self) -> usize {
        64 + match self {
            Self::Reasoning(text) | Self::Content { text, .. } => text.len(),
            Self::Call { id, name, arguments, .. } => id.len() + name.len() + arguments.len(),
        }
    }
}

/// What words of the assistant are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A preamble before calls.
    Commentary,
    FinalAnswer,
}

impl Phase {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commentary => "commentary",
            Self::FinalAnswer => "final_answer",
        }
    }
}

/// How long the model is to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reasoning {
    /// Briefly
    Low,
    /// As trained
    #[default]
    Medium,
    /// At length
    High,
}

impl Reasoning {
    /// Its spelling: `low`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// [`FUNCTIONS`] for those that a developer defines.
    pub namespace: String,
    /// As the model writes it: see [`is_tool_name`].
    pub name: String,
    /// Its purpose, for the model.
    pub description: Option<String>,
    /// A JSON schema of its arguments, in the order in which the model is to see it; None if it takes none.
    pub parameters: Option<Value>,
    /// Whether arguments must be as the schema says, and not just any object.
    pub strict: bool,
    /// What text it takes, if that and not JSON is what it takes: then it has no parameters.
    pub text: Option<TextInput>,
}

/// The text that a tool takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextInput {
    Any,
    /// That of a grammar in `llguidance`'s dialect of Lark, which is OpenAI's.
    Lark(String),
    /// What a regular expression matches, whole.
    Regex(String),
}

/// A form of the answer. The prompt may tell the model of it; what enforces it is a grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseFormat {
    pub name: String,
    /// Its purpose, for the model.
    pub description: Option<String>,
    pub schema: Value,
}

/// Whether a header can contain a name so that its end is clear: no white space, nothing that begins a special token or
/// arguments, and at most 256 bytes. OpenAI allows less (`[a-zA-Z0-9_-]{1,64}`), MCP's servers use more.
pub fn is_tool_name(name: &str) -> bool {
    let is_fit = |c: char| !c.is_whitespace() && !c.is_control() && !"<{[\"".contains(c);
    (1..=256).contains(&name.len()) && name.chars().all(is_fit)
}

/// Today in UTC: `2025-06-28`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / 86_400)
}

/// The Gregorian date so many days after 1970-01-01. Counted from March, so that the leap day is a year's last.
fn date(days: u64) -> String {
    let days = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year_of_era + next_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (days, want) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_267, "2025-06-28"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), want);
        }
    }
}
