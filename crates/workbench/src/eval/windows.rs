//! Cuts a text into windows that do not overlap. The second half of each is scored, so that every scored token has
//! context.

use std::ops::Range;

use hint::Hint;

/// The shortest window with a token that is scored.
pub const SHORTEST_CONTEXT: usize = 3;

/// A text's tokens, cut into windows of equal length.
#[derive(Clone, Debug)]
pub struct Windows {
    /// (n_windows * context): what is after the last whole window is left out.
    tokens: Vec<u32>,
    /// Tokens of a window.
    context: usize,
    /// The token that a model sees in the place of each window's first.
    bos: Option<u32>,
}

/// Why a text cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowsError {
    /// It is shorter than the windows that are wanted.
    #[error("the text has {n_tokens} tokens, expected at least {expected}: {} of {context}", windows(*.expected / *.context))]
    TooShort {
        n_tokens: usize,
        /// Tokens of all windows that are wanted.
        expected: usize,
        context: usize,
    },
    /// A window without a token that is scored.
    #[error("a window has {context} tokens, expected at least {SHORTEST_CONTEXT}: nothing would be scored")]
    ShortContext { context: usize },
    /// The model was not made for so long a window.
    #[error("a window has {context} tokens, expected at most the model's context, {max_seq_len}")]
    LongContext { context: usize, max_seq_len: usize },
}

/// `1 window`, `2 windows`.
fn windows(n: usize) -> String {
    format!("{n} window{}", if n == 1 { "" } else { "s" })
}

impl Hint for WindowsError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::TooShort { n_tokens, context, .. } if n_tokens >= context => {
                format!("`--chunks {}` takes what there is", n_tokens / context)
            }
            Self::TooShort { n_tokens, .. } if *n_tokens >= SHORTEST_CONTEXT => {
                format!("give a longer text, or shorter windows: `--context {n_tokens}` at most")
            }
            Self::TooShort { .. } | Self::ShortContext { .. } => "give a longer text and longer windows".into(),
            Self::LongContext { max_seq_len, .. } => format!("`--context {max_seq_len}` is the longest"),
        })
    }
}

impl Windows {
    /// Cuts a text into windows of `context` tokens.
    ///
    /// - `most`: so many windows are taken; as many as there are, if `None`
    /// - `bos`: the token that a model sees in the place of each window's first
    ///
    /// # Errors
    /// The text is too short, or the windows are.
    pub fn new(
        mut tokens: Vec<u32>,
        context: usize,
        most: Option<usize>,
        bos: Option<u32>,
    ) -> Result<Self, WindowsError> {
        if context < SHORTEST_CONTEXT {
            return Err(WindowsError::ShortContext { context });
        }
        let n_windows = most.unwrap_or(tokens.len() / context).max(1);
        let (n_tokens, expected) = (tokens.len(), n_windows.saturating_mul(context));
        if n_tokens < expected {
            return Err(WindowsError::TooShort { n_tokens, expected, context });
        }
        tokens.truncate(expected);
        Ok(Self { tokens, context, bos })
    }

    /// Whether a model was made for windows of this length.
    ///
    /// # Errors
    /// [`WindowsError::LongContext`].
    pub fn check_context(&self, max_seq_len: usize) -> Result<(), WindowsError> {
        let context = self.context;
        if context > max_seq_len { Err(WindowsError::LongContext { context, max_seq_len }) } else { Ok(()) }
    }

    /// The tokens of all windows, as the text has them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How many there are, at least one.
    pub fn n_windows(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// The positions of a window whose next token is scored. The last position's would be in the next window.
    pub fn scored(&self) -> Range<usize> {
        scored(self.context)
    }

    /// What a model sees of a window, with its first token replaced.
    pub fn seen(&self, window: usize) -> Vec<u32> {
        let mut tokens = self.tokens[window * self.context..][..self.context].to_vec();
        tokens[0] = self.bos.unwrap_or(tokens[0]);
        tokens
    }

    /// The tokens of a window that are scored, in the order of [`Self::scored`].
    pub fn targets(&self, window: usize) -> &[u32] {
        let positions = self.scored();
        &self.tokens[window * self.context..][positions.start + 1..positions.end + 1]
    }
}

/// The positions of a window of this many tokens whose next token is scored.
pub(super) fn scored(context: usize) -> Range<usize> {
    context / 2..context - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_of_each_window_is_scored_and_sees_another_first_token() {
        let windows = Windows::new((10..25).collect(), 6, None, Some(1)).expect("two windows and a rest");
        assert_eq!((windows.n_windows(), windows.tokens().len()), (2, 12));
        assert_eq!(windows.seen(1), [1, 17, 18, 19, 20, 21]);
        // Position 3 predicts token 4, position 4 token 5; what position 5 predicts is in no window.
        assert_eq!((windows.scored(), windows.targets(0), windows.targets(1)), (3..5, &[14, 15][..], &[20, 21][..]));
        let odd = Windows::new((0..7).collect(), 7, None, None).expect("one window");
        assert_eq!((odd.scored(), odd.targets(0), odd.seen(0)[0]), (3..6, &[4, 5, 6][..], 0));
        let shortest = Windows::new(vec![7, 8, 9], SHORTEST_CONTEXT, Some(1), None).expect("one window");
        assert_eq!(shortest.targets(0), [9]);
    }

    #[test]
    fn a_text_that_is_too_short_says_what_would_do() {
        let cut = |n, context, most| Windows::new(vec![0; n], context, most, None).expect_err("too short");
        let told = |error: WindowsError| (error.to_string(), error.hint().expect("a hint"));
        assert_eq!(
            told(cut(5, 6, None)),
            (
                "the text has 5 tokens, expected at least 6: 1 window of 6".into(),
                "give a longer text, or shorter windows: `--context 5` at most".into()
            )
        );
        assert_eq!(
            told(cut(14, 6, Some(3))),
            (
                "the text has 14 tokens, expected at least 18: 3 windows of 6".into(),
                "`--chunks 2` takes what there is".into()
            )
        );
        assert_eq!(cut(0, 6, None).hint().as_deref(), Some("give a longer text and longer windows"));
        assert_eq!(cut(9, 2, None), WindowsError::ShortContext { context: 2 });
        let windows = Windows::new(vec![0; 9], 9, None, None).expect("one window");
        assert_eq!(windows.check_context(8), Err(WindowsError::LongContext { context: 9, max_seq_len: 8 }));
        assert_eq!(windows.check_context(9), Ok(()));
    }
}
