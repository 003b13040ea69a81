//! A limit on the length up to which a text is encoded.

use super::TokenizerError;

/// When to stop encoding a client's text.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    pub max_tokens: usize,
    /// Whether the tokens are still wanted. Called between words, and between the windows of a long one.
    pub is_wanted: &'a dyn Fn() -> bool,
}

impl Limit<'_> {
    /// A text may have any number of tokens, and nobody abandons it.
    pub const NONE: Limit<'static> = Limit { max_tokens: usize::MAX, is_wanted: &|| true };

    /// Checks whether to go on after `n_tokens` tokens.
    ///
    /// # Errors
    /// [`TokenizerError::TooManyTokens`], [`TokenizerError::Abandoned`].
    pub fn check(&self, n_tokens: usize) -> Result<(), TokenizerError> {
        if n_tokens > self.max_tokens {
            Err(TokenizerError::TooManyTokens { max_tokens: self.max_tokens })
        } else if !(self.is_wanted)() {
            Err(TokenizerError::Abandoned)
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Debug for Limit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limit").field("max_tokens", &self.max_tokens).finish_non_exhaustive()
    }
}
