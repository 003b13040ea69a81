//! Errors of a prompt; the engine, the server and batches refuse the same ones.

use hint::Hint;

/// Why no sequence can begin with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    #[error("the prompt has no tokens")]
    Empty,
    /// It is longer than a sequence may be.
    #[error("the prompt has {n_prompt} tokens, a sequence may have {capacity_tokens}")]
    TooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Longest sequence, in tokens.
        capacity_tokens: usize,
    },
    /// A token id that the model has no row for.
    #[error("token id {id} at position {position} is not below the model's vocab_size, {vocab_size}")]
    TokenId {
        id: u32,
        /// The place in the prompt.
        position: usize,
        vocab_size: usize,
    },
}

impl PromptError {
    /// How many tokens may be generated after a prompt, in sequences of up to `capacity_tokens` positions. The last
    /// one is never forwarded, so there may be one more than positions are left.
    ///
    /// # Errors
    /// No sequence can begin with the prompt.
    pub fn room_behind(prompt: &[u32], capacity_tokens: usize, vocab_size: usize) -> Result<usize, Self> {
        let n_prompt = prompt.len();
        if n_prompt == 0 {
            return Err(Self::Empty);
        }
        if n_prompt > capacity_tokens {
            return Err(Self::TooLong { n_prompt, capacity_tokens });
        }
        Self::check_ids(prompt, vocab_size)?;
        Ok(capacity_tokens + 1 - n_prompt)
    }

    /// Whether a model has a row for each of these.
    ///
    /// # Errors
    /// [`Self::TokenId`].
    pub fn check_ids(ids: &[u32], vocab_size: usize) -> Result<(), Self> {
        match ids.iter().position(|&id| id as usize >= vocab_size) {
            Some(position) => Err(Self::TokenId { id: ids[position], position, vocab_size }),
            None => Ok(()),
        }
    }
}

impl Hint for PromptError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Empty => "give a prompt with `-i`".into(),
            Self::TooLong { .. } => "allow more positions with `-n`, or give a shorter prompt".into(),
            Self::TokenId { .. } => "the tokenizer belongs to another model; give this model's with `-z`".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_fills_the_context_leaves_room_for_one_token() {
        let room = |prompt: &[u32]| PromptError::room_behind(prompt, 3, 5);
        assert_eq!((room(&[4]), room(&[0, 1, 2])), (Ok(3), Ok(1)));
        assert_eq!(room(&[]), Err(PromptError::Empty));
        assert_eq!(room(&[0, 1, 2, 9]), Err(PromptError::TooLong { n_prompt: 4, capacity_tokens: 3 }));
        assert_eq!(room(&[4, 5]), Err(PromptError::TokenId { id: 5, position: 1, vocab_size: 5 }));
    }
}
