//! OpenAI's harmony chat format: conversations to prompts here, and model output to messages in [`parser`].
//!
//! A message is `<|start|>{role}<|channel|>{channel}<|message|>{text}<|end|>`; the channel is absent if only the
//! assistant could have one. gpt-oss was trained on this format alone.
//! <https://cookbook.openai.com/articles/openai-harmony> describes it.

mod header;
pub mod parser;
mod tools;
mod turns;
mod typescript;

pub use tools::Developer;
pub use turns::HarmonyTurn;

pub use crate::{FUNCTIONS, Reasoning, ResponseFormat, TextInput, Tool, is_tool_name};
use hint::Hint;
use model::tokenizer::{Tokenizer, TokenizerError};

/// The author of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Identity, dates, reasoning effort, channels: see [`SystemMessage`].
    System,
    /// Instructions, which other formats call the system prompt: see [`developer_text`].
    Developer,
    User,
    Assistant,
    /// A tool, by its name: `functions.get_weather`.
    Tool(String),
}

impl Role {
    /// Its spelling in a header.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool(name) => name,
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            tool => Self::Tool(tool.to_owned()),
        }
    }
}

/// The channel of the assistant's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Channel {
    /// To itself: the chain of thought, not meant to be shown.
    Analysis,
    /// To tools, and what it says about using them.
    Commentary,
    Final,
    /// A name that the format does not have; a model may write anything.
    Other(String),
}

impl Channel {
    /// Its spelling in a header.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Analysis => "analysis",
            Self::Commentary => "commentary",
            Self::Final => "final",
            Self::Other(name) => name,
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "analysis" => Self::Analysis,
            "commentary" => Self::Commentary,
            "final" => Self::Final,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    /// What it is for; messages of the assistant and of tools have one.
    pub channel: Option<Channel>,
    /// The tool that is called (`functions.get_weather`), or `assistant` where a tool answers.
    pub recipient: Option<String>,
    /// What kind of text a tool is given: `json`.
    pub content_type: Option<String>,
    pub text: String,
}

impl Message {
    /// A message with no channel.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, channel: None, recipient: None, content_type: None, text: text.into() }
    }

    /// A message of the assistant.
    pub fn assistant(channel: Channel, text: impl Into<String>) -> Self {
        Self { channel: Some(channel), ..Self::new(Role::Assistant, text) }
    }

    /// A call of the function `name` in the form that the model writes best: with the recipient in the role.
    pub fn call(name: &str, arguments: impl Into<String>) -> Self {
        Self {
            recipient: Some(format!("{FUNCTIONS}.{name}")),
            content_type: Some("json".into()),
            ..Self::assistant(Channel::Commentary, arguments)
        }
    }

    /// A call of the tool `name` that takes text.
    pub(crate) fn text_call(name: &str, text: impl Into<String>) -> Self {
        Self { content_type: None, ..Self::call(name, text) }
    }

    /// The result of the function `name`.
    pub fn result(name: &str, text: impl Into<String>) -> Self {
        Self::tool_result(format!("{FUNCTIONS}.{name}"), text)
    }

    /// The result of a tool.
    pub fn tool_result(tool: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            channel: Some(Channel::Commentary),
            recipient: Some("assistant".into()),
            ..Self::new(Role::Tool(tool.into()), text)
        }
    }

    /// The meaning of an assistant's message for the client. A message with a recipient is a call, on any channel,
    /// whether or not the tool exists; one without a channel, or on an unknown channel, is an answer.
    pub fn part(&self) -> MessageKind<'_> {
        match (&self.recipient, &self.channel) {
            (Some(recipient), _) => {
                let name = recipient.strip_prefix(FUNCTIONS).and_then(|name| name.strip_prefix('.'));
                MessageKind::Call(name.unwrap_or(recipient))
            }
            (None, Some(Channel::Analysis)) => MessageKind::Reasoning,
            (None, Some(Channel::Commentary)) => MessageKind::Preamble,
            (None, _) => MessageKind::Answer,
        }
    }

    fn is_tool_call(&self) -> bool {
        self.role == Role::Assistant && self.recipient.is_some()
    }
}

/// What a message of the assistant is to those who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind<'a> {
    /// Its chain of thought.
    Reasoning,
    /// What it says before a call, or between calls.
    Preamble,
    Answer,
    /// A call of the tool with this name, without `functions.`; the text is the arguments.
    Call(&'a str),
}

/// The system message that gpt-oss expects. A model trained on other system messages is given [`Message::new`] with
/// any text instead, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemMessage {
    /// `2025-06-28`; the line is left out if `None`.
    pub current_date: Option<String>,
    /// How long the model is to think.
    pub reasoning: Reasoning,
    /// Whether the developer message defines functions.
    pub has_functions: bool,
}

impl SystemMessage {
    /// The system message with this text.
    pub fn message(&self) -> Message {
        Message::new(Role::System, self.text())
    }

    fn text(&self) -> String {
        let mut text =
            String::from("You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06");
        if let Some(date) = &self.current_date {
            text += &format!("\nCurrent date: {date}");
        }
        text += &format!("\n\nReasoning: {}", self.reasoning.name());
        text += "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.";
        if self.has_functions {
            text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
        }
        text
    }
}

/// The text of a developer message that only instructs.
pub fn developer_text(instructions: &str) -> String {
    format!("# Instructions\n\n{instructions}")
}

/// Why a conversation cannot be written in harmony, or an answer in it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HarmonyError {
    /// The vocabulary has no such tokens.
    #[error("the tokenizer lacks the special tokens of harmony: {}", names.join(" "))]
    MissingSpecials {
        /// As harmony spells them: `<|start|>`.
        names: Vec<&'static str>,
    },
    /// Text could not be encoded or an id not be decoded.
    #[error("could not convert a message")]
    Tokenizer(#[from] TokenizerError),
}

impl Hint for HarmonyError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::MissingSpecials { .. } => Some("this model was not trained on chats: give it plain text".into()),
            Self::Tokenizer(source) => source.hint(),
        }
    }
}

/// `<|endoftext|>` and `<|return|>` of o200k_harmony, which end a sequence in the seeds, whatever the tokenizer.
const SEEDS_END_IDS: [u32; 2] = [199_999, 200_002];

/// Tokens of o200k_harmony, with those that are reserved: of every gpt-oss.
const O200K_HARMONY_TOKENS: usize = 201_088;

/// The tokens after which a model is done, whatever it writes: `<|endoftext|>` and `<|return|>`. A file of the seeds
/// need not name them; then they are those of the vocabulary that has as many tokens.
pub(crate) fn end_ids(tokenizer: &Tokenizer) -> Vec<u32> {
    let ids: Vec<u32> = ["<|endoftext|>", "<|return|>"].iter().filter_map(|name| tokenizer.special(name)).collect();
    let is_unnamed = ids.is_empty() && tokenizer.vocab_size() == O200K_HARMONY_TOKENS;
    if is_unnamed { SEEDS_END_IDS.to_vec() } else { ids }
}

/// The format in the terms of one tokenizer.
#[derive(Clone, Debug)]
pub struct Harmony {
    tokenizer: Tokenizer,
    start: u32,
    end: u32,
    message: u32,
    channel: u32,
    end_of_answer: u32,
    call: u32,
    constrain: u32,
    end_of_text: Option<u32>,
}

/// The ids of special tokens: `start` is that of `<|start|>`, and the others likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) message: u32,
    pub(crate) channel: u32,
    pub(crate) constrain: u32,
    pub(crate) call: u32,
    /// `<|return|>`
    pub(crate) end_of_answer: u32,
}

impl Harmony {
    /// Looks up the special tokens.
    ///
    /// # Errors
    /// [`HarmonyError::MissingSpecials`] names all those that the tokenizer lacks.
    pub fn new(tokenizer: Tokenizer) -> Result<Self, HarmonyError> {
        let mut names = Vec::new();
        let mut id = |name: &'static str| {
            tokenizer.special(name).unwrap_or_else(|| {
                names.push(name);
                0
            })
        };
        let [start, end, message, channel] = [id("<|start|>"), id("<|end|>"), id("<|message|>"), id("<|channel|>")];
        let [end_of_answer, call, constrain] = [id("<|return|>"), id("<|call|>"), id("<|constrain|>")];
        if names.is_empty() {
            let end_of_text = tokenizer.special("<|endoftext|>");
            Ok(Self { tokenizer, start, end, message, channel, end_of_answer, call, constrain, end_of_text })
        } else {
            Err(HarmonyError::MissingSpecials { names })
        }
    }

    /// The tokenizer that it is in terms of.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens after which the model waits: `<|return|>`, its answer is complete, and `<|call|>`, it calls a tool.
    /// They are part of what it writes, unlike the others of [`end_ids`].
    pub fn stop_ids(&self) -> [u32; 2] {
        [self.end_of_answer, self.call]
    }

    /// The special tokens that structure a generation, for its grammar.
    pub(crate) fn marks(&self) -> Marks {
        let &Self { start, end, message, channel, end_of_answer, call, constrain, .. } = self;
        Marks { start, end, message, channel, constrain, call, end_of_answer }
    }

    /// A parser for what the model writes after such a prompt, up to the end of its turn.
    pub fn parser(&self) -> parser::HarmonyParser {
        parser::HarmonyParser::new(self.clone(), None, false)
    }

    /// The same, after a prompt that continues with [`Self::begin_final`].
    pub fn parser_in_final(&self) -> parser::HarmonyParser {
        parser::HarmonyParser::new(self.clone(), Some(Message::assistant(Channel::Final, "")), false)
    }

    /// [`Self::parser_in_final`], but it is never over.
    pub(crate) fn transcript_parser_in_final(&self) -> parser::HarmonyParser {
        parser::HarmonyParser::new(self.clone(), Some(Message::assistant(Channel::Final, "")), true)
    }

    /// [`Self::parser`], without an end: for whole conversations, and for models that are kept from stopping. Messages
    /// of others keep their roles, and calls without arguments stay as they are.
    pub fn transcript_parser(&self) -> parser::HarmonyParser {
        parser::HarmonyParser::new(self.clone(), None, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tokenizer::bpe::SpelledBpe;
    use model::tokenizer::split::Split;

    #[test]
    fn ends_have_the_ids_that_the_vocabulary_gives_their_names() {
        assert_eq!(end_ids(&Tokenizer::o200k_harmony()), [199_999, 200_002]);
        // Every byte, as GPT-2 writes it, and names elsewhere.
        let small = |added: Vec<(String, u32)>, n: usize| {
            let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let others =
                (0..256).filter(|&byte| !printable(byte)).enumerate().map(|(i, byte)| (0x100 + i as u32, byte));
            let own = (0..256).filter(|&byte| printable(byte)).map(|byte| (byte, byte));
            let text = |c: u32| char::from_u32(c).expect("a character").to_string();
            let tokens = own.chain(others).map(|(c, byte)| (text(c), byte)).collect();
            let spelled = SpelledBpe { tokens, added, ..SpelledBpe::default() };
            Tokenizer::from_spelled(spelled, Some(n), Split::O200k).expect("all bytes are there")
        };
        let names = vec![("<|endoftext|>".to_owned(), 300), ("<|return|>".to_owned(), 301)];
        assert_eq!(end_ids(&small(names.clone(), 201_088)), [300, 301]);
        assert_eq!(end_ids(&small(names[..1].to_vec(), 400)), [300]);
        assert_eq!(end_ids(&small(Vec::new(), 250_000)), [0_u32; 0], "another vocabulary has other tokens there");
        assert_eq!(end_ids(&small(Vec::new(), 201_088)), [199_999, 200_002], "of the seeds' file, without names");
    }

    fn prompt_text(conversation: &[Message]) -> String {
        let harmony = Harmony::new(Tokenizer::o200k_harmony()).expect("it has the special tokens");
        harmony.spelled(&harmony.prompt(conversation).expect("UTF-8"))
    }

    #[test]
    fn the_system_message_is_the_published_one() {
        let system =
            SystemMessage { current_date: Some("2025-06-28".into()), reasoning: Reasoning::High, has_functions: true };
        assert_eq!(
            prompt_text(&[system.message()]),
            "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
             Knowledge cutoff: 2024-06\n\
             Current date: 2025-06-28\n\
             \n\
             Reasoning: high\n\
             \n\
             # Valid channels: analysis, commentary, final. Channel must be included for every message.\n\
             Calls to these tools must go to the commentary channel: 'functions'.<|end|><|start|>assistant"
        );
    }

    #[test]
    fn analysis_before_a_final_answer_is_dropped() {
        let conversation = [
            Message::new(Role::System, "Be kind."),
            Message::new(Role::User, "What is 2 + 2?"),
            Message::assistant(Channel::Analysis, "Simple."),
            Message::assistant(Channel::Final, "2 + 2 = 4."),
            Message::new(Role::User, "What about 9 / 2?"),
        ];
        assert_eq!(
            prompt_text(&conversation),
            "<|start|>system<|message|>Be kind.<|end|><|start|>user<|message|>What is 2 + 2?<|end|>\
             <|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|end|>\
             <|start|>user<|message|>What about 9 / 2?<|end|><|start|>assistant"
        );
    }

    #[test]
    fn analysis_before_a_tool_call_is_kept() {
        let conversation = [
            Message::new(Role::Developer, developer_text("Use a friendly tone.")),
            Message::assistant(Channel::Analysis, "Need to use function get_weather."),
            Message::call("get_weather", r#"{"location":"San Francisco"}"#),
            Message::result("get_weather", r#"{"sunny": true}"#),
        ];
        assert_eq!(
            prompt_text(&conversation),
            "<|start|>developer<|message|># Instructions\n\nUse a friendly tone.<|end|>\
             <|start|>assistant<|channel|>analysis<|message|>Need to use function get_weather.<|end|>\
             <|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"location\":\"San Francisco\"}<|call|>\
             <|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>{\"sunny\": true}<|end|>\
             <|start|>assistant"
        );
    }
}
