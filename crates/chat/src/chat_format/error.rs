//! Errors of choosing a chat format.

use super::template::markup::MarkupError;
use crate::chat_template::ChatTemplateError;
use crate::harmony::HarmonyError;
use hint::Hint;
use model::tokenizer::TokenizerError;

/// Why there is no chat format, or a conversation is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatFormatError {
    /// The vocabulary lacks the tokens of a format that was asked for, or a text could not be encoded.
    #[error(transparent)]
    Harmony(#[from] HarmonyError),
    /// The template that writes the prompts of a format with a way of its own.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// The template of a model that has no other format.
    #[error(transparent)]
    OnlyTemplate(ChatTemplateError),
    /// A model with a vocabulary of another kind, and without a template.
    #[error(
        "the tokenizer lacks the special tokens of harmony ({}), and the checkpoint has no chat template",
        names.join(" ")
    )]
    NoFormat {
        /// As harmony spells them: `<|start|>`.
        names: Vec<&'static str>,
    },
    #[error(transparent)]
    Markup(#[from] MarkupError),
    /// A template was asked for.
    #[error("the checkpoint has no chat template")]
    NoTemplate,
    /// Something that a conversation has, and that the template leaves out of the prompt.
    #[error("this model's chat template does not take {what}")]
    NotTaken { what: Untaken },
    /// What the template wrote is no text of the vocabulary's, or longer than its limit.
    #[error("could not convert a conversation")]
    Tokenizer(#[from] TokenizerError),
}

/// What a template may have no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untaken {
    Tools,
    /// Calls of tools and what they came to.
    Calls,
    Effort,
    /// An answer that the model is to go on with.
    BegunAnswer,
}

impl std::fmt::Display for Untaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tools => "tools",
            Self::Calls => "calls of tools, nor their results",
            Self::Effort => "a reasoning effort",
            Self::BegunAnswer => "answers that are begun",
        })
    }
}

impl ChatFormatError {
    /// Whether it is no fault of the conversation's, but of this machine or the model's files.
    pub fn is_machines(&self) -> bool {
        let (Self::Template(error) | Self::OnlyTemplate(error)) = self else { return false };
        matches!(error, ChatTemplateError::Bounds(_) | ChatTemplateError::Answer(_))
    }

    /// What of a text or its tokens is wrong, if that is what is.
    pub fn tokenizer(&self) -> Option<&TokenizerError> {
        match self {
            Self::Harmony(HarmonyError::Tokenizer(error))
            | Self::Template(ChatTemplateError::Tokenizer(error))
            | Self::OnlyTemplate(ChatTemplateError::Tokenizer(error))
            | Self::Tokenizer(error) => Some(error),
            _ => None,
        }
    }
}

impl Hint for ChatFormatError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Harmony(error) => error.hint(),
            Self::Markup(error) => error.hint(),
            Self::Template(error) => error.hint(),
            Self::OnlyTemplate(ChatTemplateError::Unclear { .. }) => {
                Some("the template searches for markers that the message contains: remove them".into())
            }
            Self::OnlyTemplate(ChatTemplateError::Tokenizer(error)) | Self::Tokenizer(error) => error.hint(),
            Self::OnlyTemplate(_) => None,
            Self::NoFormat { .. } | Self::NoTemplate => {
                Some("this model was not trained on chats: give it plain text".into())
            }
            Self::NotTaken { what: Untaken::Tools | Untaken::Calls } => Some("leave the tools out".into()),
            Self::NotTaken { what: Untaken::Effort | Untaken::BegunAnswer } => Some("leave it out".into()),
        }
    }
}
