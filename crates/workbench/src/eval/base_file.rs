//! llama.cpp's file of a model's probabilities (`llama-perplexity --kl-divergence-base`). All of it is little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `_logits_` |
//! | 4, 4, 4 | i32: tokens of a window, tokens of the vocabulary, windows |
//! | 4 each | i32: the tokens of all windows, as the text has them |
//! | the rest | of each scored token: f32 scale, f32 least, a u16 for each token of the vocabulary, padded to even |
//!
//! The logarithm of a probability is `scale * code + least`. Logits more than 16 below the largest are written as that
//! far below it: their probabilities are lost, and what is below -16 is left out of divergences.

use bytes::Bytes;

use super::distribution::{Compared, Distribution};
use super::windows::{SHORTEST_CONTEXT, Windows, scored};
use hint::Hint;

/// What every such file begins with.
pub const MAGIC: &[u8; 8] = b"_logits_";

/// The magic and three numbers.
const HEADER_BYTES: usize = 20;

/// The two parameters of a row.
const ROW_HEADER_BYTES: usize = 8;

/// Logits that are further than this below the largest are not told apart.
const DEPTH: f32 = 16.0;

/// Logarithms of probabilities up to this are left out of divergences.
const FLOOR: f64 = -16.0;

/// A base file, whose rows are read on demand.
#[derive(Clone, Debug)]
pub struct BaseFile {
    bytes: Bytes,
    context: usize,
    vocab_size: usize,
    /// (n_windows * context)
    tokens: Vec<u32>,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaseFileError {
    /// It is another kind of file.
    #[error("the file does not begin with `_logits_`")]
    Magic,
    /// A number of the header makes no sense.
    #[error("the header's {name} is {found}, expected at least {expected}")]
    Header { name: &'static str, found: i32, expected: usize },
    /// A token that the vocabulary does not have.
    #[error("token {index} has the id {found}, expected an id below the vocabulary's size, {vocab_size}")]
    Token { index: usize, found: i32, vocab_size: usize },
    /// It is longer or shorter than its header says.
    #[error("the file has {found} bytes, expected {expected} (windows: {n_windows})")]
    Length {
        found: usize,
        expected: usize,
        /// That it should hold.
        n_windows: usize,
        /// That it holds to the last byte.
        n_whole: usize,
    },
    /// The model has another vocabulary.
    #[error("the file is of a vocabulary of {found} tokens, the model has {expected}")]
    Vocabulary { found: usize, expected: usize },
    /// It is of another text, or of another tokenizer.
    #[error("the file's token {index} is {found}, that of the text is {expected}")]
    OtherText { index: usize, found: u32, expected: u32 },
    /// It is of windows of another length.
    #[error("the file is of windows of {found} tokens, expected {expected}")]
    Context { found: usize, expected: usize },
    /// It has fewer windows than were asked for.
    #[error("the file has {found} windows, expected {expected}")]
    TooFewWindows { found: usize, expected: usize },
}

impl Hint for BaseFileError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Magic | Self::Header { .. } | Self::Token { .. } => {
                "`eval --write-base FILE` writes such a file, and so does `llama-perplexity --kl-divergence-base`"
                    .into()
            }
            Self::Length { n_whole: 0, .. } => "the file was cut off; write it again".into(),
            Self::Length { n_whole, n_windows, .. } if n_whole < n_windows => {
                format!("the file was cut off; `--chunks {n_whole}` takes the windows that are whole")
            }
            Self::Length { .. } => "data follows its end; write it again".into(),
            Self::Vocabulary { .. } => "models are compared only if their tokens are the same".into(),
            Self::OtherText { .. } => {
                "the file belongs to another text or tokenizer; without `--text` its own tokens are used".into()
            }
            Self::Context { found, .. } => format!("`--context {found}` is what the file has"),
            Self::TooFewWindows { found, .. } => format!("`--chunks {found}` takes what the file has"),
        })
    }
}

impl BaseFile {
    /// Reads what precedes the rows.
    ///
    /// - `most`: so many windows are used, and the rest of the file may be missing
    ///
    /// # Errors
    /// The file is no such file, or shorter or longer than it should be.
    pub fn read(bytes: Bytes, most: Option<usize>) -> Result<Self, BaseFileError> {
        let word =
            |at: usize| bytes.get(at..at + 4).map(|word| i32::from_le_bytes(word.try_into().expect("four bytes")));
        if !bytes.starts_with(MAGIC) {
            return Err(BaseFileError::Magic);
        }
        let number = |at: usize, name: &'static str, expected: usize| {
            let found = word(at).unwrap_or(0);
            let size = usize::try_from(found).ok().filter(|size| *size >= expected);
            size.ok_or(BaseFileError::Header { name, found, expected })
        };
        let context = number(8, "tokens of a window", SHORTEST_CONTEXT)?;
        let vocab_size = number(12, "vocabulary", 1)?;
        let n_windows = number(16, "number of windows", 1)?;
        let mut file = Self { bytes: Bytes::new(), context, vocab_size, tokens: Vec::new() };
        let first_row = HEADER_BYTES.saturating_add(n_windows.saturating_mul(context).saturating_mul(4));
        let window_bytes = file.row_bytes().saturating_mul(scored(context).len());
        let expected = first_row.saturating_add(n_windows.saturating_mul(window_bytes));
        let (found, n_whole) = (bytes.len(), bytes.len().saturating_sub(first_row) / window_bytes);
        let is_enough = most.is_some_and(|most| most.max(1) <= n_whole.min(n_windows)) && found <= expected;
        if found != expected && !is_enough {
            return Err(BaseFileError::Length { found, expected, n_windows, n_whole });
        }
        for index in 0..n_windows * context {
            let found = word(HEADER_BYTES + 4 * index).unwrap_or(-1);
            let id = u32::try_from(found).ok().filter(|id| (*id as usize) < vocab_size);
            file.tokens.push(id.ok_or(BaseFileError::Token { index, found, vocab_size })?);
        }
        file.bytes = bytes.slice(first_row..);
        Ok(file)
    }

    /// Tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Those that it should hold: the last ones may be missing.
    pub fn n_windows(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// The tokens of all windows, as the text has them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether it is of these windows, or of more after them, and of a vocabulary of that size.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, windows: &Windows, vocab_size: usize) -> Result<(), BaseFileError> {
        if self.vocab_size != vocab_size {
            return Err(BaseFileError::Vocabulary { found: self.vocab_size, expected: vocab_size });
        }
        if self.context != windows.context() {
            return Err(BaseFileError::Context { found: self.context, expected: windows.context() });
        }
        let mut pairs = self.tokens.iter().zip(windows.tokens()).enumerate();
        if let Some((index, (&found, &expected))) = pairs.find(|(_, (found, expected))| found != expected) {
            return Err(BaseFileError::OtherText { index, found, expected });
        }
        let (found, expected) = (self.n_windows(), windows.n_windows());
        if found < expected { Err(BaseFileError::TooFewWindows { found, expected }) } else { Ok(()) }
    }

    /// What the base says after a scored position.
    ///
    /// - `scored`: which of those of the window
    pub fn row(&self, window: usize, scored: usize) -> CodedDistribution<'_> {
        let index = window * super::windows::scored(self.context).len() + scored;
        let row = &self.bytes[index * self.row_bytes()..][..ROW_HEADER_BYTES + 2 * self.vocab_size];
        let parameter = |at: usize| f64::from(f32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes")));
        CodedDistribution { scale: parameter(0), least: parameter(4), codes: &row[ROW_HEADER_BYTES..] }
    }

    fn row_bytes(&self) -> usize {
        row_bytes(self.vocab_size)
    }
}

fn row_bytes(vocab_size: usize) -> usize {
    ROW_HEADER_BYTES + 2 * vocab_size.next_multiple_of(2)
}

/// One scored token's probabilities, as the file codes them.
#[derive(Clone, Copy, Debug)]
pub struct CodedDistribution<'a> {
    scale: f64,
    least: f64,
    /// (vocab_size)  u16, little-endian
    codes: &'a [u8],
}

impl CodedDistribution<'_> {
    fn log_probabilities(&self) -> impl Iterator<Item = f64> {
        let codes = self.codes.chunks_exact(2).map(|code| u16::from_le_bytes([code[0], code[1]]));
        codes.map(|code| self.scale * f64::from(code) + self.least)
    }

    /// Compares a distribution with it, over the tokens whose logarithm is above -16.
    ///
    /// # Panics
    /// The vocabularies have other sizes.
    pub fn compare(&self, distribution: &Distribution<'_>, target: usize) -> Compared {
        assert_eq!(2 * distribution.logits().len(), self.codes.len(), "one vocabulary");
        let (mut best, mut largest, mut divergence) = (0, f64::NEG_INFINITY, 0.0);
        for (id, of_base) in self.log_probabilities().enumerate() {
            if of_base > largest {
                (best, largest) = (id, of_base);
            }
            if of_base > FLOOR {
                divergence += of_base.exp() * (of_base - distribution.log_probability(id));
            }
        }
        let base_nll = -self.log_probabilities().nth(target).expect("a token of the vocabulary");
        Compared { base_nll, divergence, is_same_best: best == distribution.best() }
    }
}

/// What precedes the rows, which follow window by window.
pub fn header(windows: &Windows, vocab_size: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for number in [windows.context(), vocab_size, windows.n_windows()] {
        bytes.extend((number as i32).to_le_bytes());
    }
    bytes.extend(windows.tokens().iter().flat_map(|&id| id.to_le_bytes()));
    bytes
}

/// The row of a distribution, in f32 as llama.cpp computes it.
pub fn encoded(distribution: &Distribution<'_>) -> Vec<u8> {
    let (largest, smallest) = distribution.range();
    let smallest = smallest.max(largest - DEPTH);
    let least = (f64::from(smallest) - distribution.log_sum()) as f32;
    let scale = (largest - smallest) / f32::from(u16::MAX);
    let per_step = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut row = Vec::with_capacity(row_bytes(distribution.logits().len()));
    row.extend(scale.to_le_bytes());
    row.extend(least.to_le_bytes());
    for &logit in distribution.logits() {
        let code = (per_step * (logit - smallest)).round_ties_even().max(0.0); // a cast stops at the largest u16
        row.extend((code as u16).to_le_bytes());
    }
    row.resize(row_bytes(distribution.logits().len()), 0);
    row
}

#[cfg(test)]
mod tests;
