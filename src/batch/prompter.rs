//! Prompts to token ids.

use super::asked::{LineError, Prompt};
use crate::chat_template::ChatTemplate;
use crate::harmony::{Harmony, HarmonyError, Message, Reasoning, Role, SystemMessage, developer_text};
use crate::tokenizer::Tokenizer;

/// Who writes the prompts of conversations.
#[derive(Clone, Debug)]
pub enum ChatStyle {
    /// OpenAI's harmony: a system message of the model's own, and instructions in a developer message.
    OpenAi {
        /// `2025-06-28`, in the system message.
        current_date: String,
        /// How long the model is to think, where a line does not say.
        reasoning: Reasoning,
    },
    /// Harmony with the system messages that are given and no others, as the built-in tiny model was trained.
    Plain,
    /// The checkpoint's chat template.
    Template(ChatTemplate),
}

/// A tokenizer, and a format for conversations.
#[derive(Clone, Debug)]
pub struct Prompter {
    /// For texts and ids.
    pub tokenizer: Tokenizer,
    harmony: Result<Harmony, Vec<&'static str>>,
    style: ChatStyle,
}

impl Prompter {
    /// A vocabulary without harmony's tokens does for texts.
    pub fn new(tokenizer: Tokenizer, style: ChatStyle) -> Self {
        let harmony = Harmony::new(tokenizer.clone()).map_err(|error| match error {
            HarmonyError::MissingSpecials { names } => names,
            HarmonyError::Tokenizer(_) => Vec::new(),
        });
        Self { tokenizer, harmony, style }
    }

    /// The format of answers to conversations.
    ///
    /// # Errors
    /// [`HarmonyError::MissingSpecials`].
    pub fn harmony(&self) -> Result<&Harmony, HarmonyError> {
        self.harmony.as_ref().map_err(|names| HarmonyError::MissingSpecials { names: names.clone() })
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// Its words are not in the vocabulary, or nothing can be made of a conversation.
    pub fn ids(&self, prompt: &Prompt, reasoning: Option<Reasoning>) -> Result<Vec<u32>, LineError> {
        let messages = match prompt {
            Prompt::Text(text) => return Ok(self.tokenizer.encode(text)?),
            Prompt::Ids(ids) => return Ok(ids.clone()),
            Prompt::Messages(messages) => messages,
        };
        match &self.style {
            ChatStyle::Template(template) => Ok(template.prompt(messages, &self.tokenizer)?),
            ChatStyle::Plain => Ok(self.harmony()?.prompt(&plain(messages))?),
            ChatStyle::OpenAi { current_date, reasoning: usual } => {
                let reasoning = reasoning.unwrap_or(*usual);
                let system =
                    SystemMessage { current_date: Some(current_date.clone()), reasoning, has_functions: false };
                let conversation: Vec<Message> =
                    std::iter::once(system.message()).chain(instructed(messages)).collect();
                Ok(self.harmony()?.prompt(&conversation)?)
            }
        }
    }
}

/// Instructions are system messages.
fn plain(messages: &[Message]) -> Vec<Message> {
    let plain = |message: &Message| match message.role {
        Role::Developer => Message { role: Role::System, ..message.clone() },
        _ => message.clone(),
    };
    messages.iter().map(plain).collect()
}

/// System and developer messages are instructions, those at the beginning in one message.
fn instructed(messages: &[Message]) -> Vec<Message> {
    let is_instruction = |message: &Message| matches!(message.role, Role::System | Role::Developer);
    let n_first = messages.iter().take_while(|message| is_instruction(message)).count();
    let (first, rest) = messages.split_at(n_first);
    let texts: Vec<&str> = first.iter().map(|message| message.text.as_str()).filter(|text| !text.is_empty()).collect();
    let first = Some(texts.join("\n\n")).filter(|text| !text.is_empty());
    let developer = |text: &str| Message::new(Role::Developer, developer_text(text));
    let later = |message: &Message| if is_instruction(message) { developer(&message.text) } else { message.clone() };
    first.map(|text| developer(&text)).into_iter().chain(rest.iter().map(later)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harmony::Channel;

    #[test]
    fn instructions_are_one_developer_message_in_front_of_the_rest() {
        let messages = [
            Message::new(Role::System, "Be kind."),
            Message::new(Role::Developer, "Be brief."),
            Message::new(Role::User, "Hello"),
            Message::assistant(Channel::Final, "Hi"),
            Message::new(Role::System, "Now be loud."),
        ];
        let harmony = Harmony::new(Tokenizer::o200k_harmony()).expect("it has the special tokens");
        assert_eq!(
            harmony.spelled(&harmony.prompt(&instructed(&messages)).expect("UTF-8")),
            "<|start|>developer<|message|># Instructions\n\nBe kind.\n\nBe brief.<|end|>\
             <|start|>user<|message|>Hello<|end|><|start|>assistant<|channel|>final<|message|>Hi<|end|>\
             <|start|>developer<|message|># Instructions\n\nNow be loud.<|end|><|start|>assistant"
        );
        assert_eq!(instructed(&messages[2..3]), messages[2..3], "no instructions, no message");
    }
}
