//! Prompts to token ids.

use std::sync::Arc;

use serde_json::Map;

use super::request_line::{LineError, Prompt, RequestLine};
use chat::chat_format::{self, Begun, ChatFormat, ChatFormatError, Conversation, Thinking};
use chat::{Reasoning, Turn};
use model::tokenizer::Tokenizer;
use model::tokenizer::limit::Limit;

/// A tokenizer, and a format for conversations.
#[derive(Clone, Debug)]
pub struct Prompter {
    pub(crate) tokenizer: Tokenizer,
    chat: Result<Arc<dyn ChatFormat>, Arc<ChatFormatError>>,
    usual: Usual,
}

/// Defaults for fields that conversations omit.
#[derive(Clone, Debug, Default)]
pub struct Usual {
    /// The date: `2025-06-28`.
    pub current_date: String,
    pub reasoning: Option<Reasoning>,
}

impl Prompter {
    /// Without a format it does for texts.
    pub fn new(tokenizer: Tokenizer, chat: Result<Arc<dyn ChatFormat>, ChatFormatError>, usual: Usual) -> Self {
        Self { tokenizer, chat: chat.map_err(Arc::new), usual }
    }

    /// The format of conversations.
    ///
    /// # Errors
    /// [`LineError::NoChat`].
    pub fn chat(&self) -> Result<&dyn ChatFormat, LineError> {
        self.chat.as_deref().map_err(|why| LineError::NoChat(Arc::clone(why)))
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// Its words are not in the vocabulary, or nothing can be made of a conversation.
    pub fn ids(&self, prompt: &Prompt, reasoning: Option<Reasoning>) -> Result<Vec<u32>, LineError> {
        match prompt {
            Prompt::Text(text) => Ok(self.tokenizer.begun(self.tokenizer.encode_prompt(text)?)),
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Messages(turns) => Ok(self.prompt(turns, reasoning)?.ids),
        }
    }

    /// What of a line's prompt is the model's. It is written again where that may be more than nothing: answers are
    /// read long after prompts are, and by other processes.
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub(crate) fn begun(&self, asked: &RequestLine) -> Result<Begun, LineError> {
        match &asked.prompt {
            Prompt::Messages(turns) if self.chat()?.opens_thoughts() => {
                Ok(self.prompt(turns, asked.wishes.reasoning)?.begun)
            }
            _ => Ok(Begun::default()),
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// There is no format, or nothing can be made of the conversation.
    pub fn prompt(&self, turns: &[Turn], reasoning: Option<Reasoning>) -> Result<chat_format::Prompt, LineError> {
        let conversation = Conversation {
            current_date: Some(self.usual.current_date.clone()),
            thinking: Thinking::from(reasoning.or(self.usual.reasoning)),
            tools: &[],
            may_call: false,
            format: None,
            turns,
            goes_on: false,
            words: Map::new(),
        };
        Ok(self.chat()?.prompt(&conversation, &Limit::NONE)?)
    }
}
