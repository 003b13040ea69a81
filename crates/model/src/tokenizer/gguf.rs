//! Tokenizers of GGUF files.

use super::bpe::{self, BpeError, SpelledBpe, Spelling, UnknownToken};
use super::pieces::{Pieces, Prefix};
use super::split::Split;
use super::{Tokenizer, TokenizerError, Way};
use crate::checkpoint::gguf::model::{GgufTokenizer, TokenLists};

/// The kinds that are read: llama.cpp's words for BPE of bytes, and for SentencePiece's.
const BYTES: &str = "gpt2";
const PIECES: &str = "llama";

impl Tokenizer {
    /// The tokenizer that a GGUF file's keys spell. `vocab_size` is the number of the model's tokens; text is split as
    /// `split` says, else as the file does.
    ///
    /// # Errors
    /// It is of another kind, its way of splitting is not known, or its lists do not fit each other.
    pub fn from_gguf(
        gguf: &GgufTokenizer,
        vocab_size: Option<usize>,
        split: Option<Split>,
    ) -> Result<Self, TokenizerError> {
        let TokenLists { ordinary, names, in_prompts, unused, merges } = gguf.lists();
        let owned = |list: Vec<(&str, u32)>| list.into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
        let spelled = SpelledBpe {
            tokens: owned(ordinary),
            added: owned(names),
            in_prompts: owned(in_prompts),
            unused: owned(unused),
            ..SpelledBpe::default()
        };
        let (way, spelled) = match gguf.model.as_str() {
            BYTES => {
                let (split, ignore_merges) = way_of_words(gguf, split)?;
                let merges = merges.into_iter().enumerate().map(|(index, text)| bpe::pair(index, text));
                (Way::Words(split), SpelledBpe { merges: merges.collect::<Result<_, _>>()?, ignore_merges, ..spelled })
            }
            PIECES if split.is_some() => return Err(BpeError::NoWords.into()),
            PIECES => {
                let Some(scores) = &gguf.scores else {
                    return Err(unsupported("tokenizer.ggml.scores", "a number for each token", "nothing").into());
                };
                let prefix = if gguf.adds_blank { Prefix::Each } else { Prefix::Never };
                let pieces = Pieces { prefix, strips: gguf.adds_blank, ..Pieces::default() };
                let unknown = gguf.unknown.map(|id| UnknownToken { id, fuses: false });
                let scores = Some(scores.clone());
                (Way::Pieces(pieces), SpelledBpe { spelling: Spelling::Text, scores, unknown, ..spelled })
            }
            other => {
                let expected = "`gpt2`, which is byte-level BPE, or `llama`, which is SentencePiece's";
                return Err(unsupported("tokenizer.ggml.model", expected, other).into());
            }
        };
        Self::from_spelled(spelled, vocab_size, way)
    }
}

impl GgufTokenizer {
    /// Whether it is SentencePiece's.
    pub fn is_sentencepiece(&self) -> bool {
        self.model == PIECES
    }
}

/// How a file splits into words, unless another way was chosen, and whether words that are tokens are those.
fn way_of_words(gguf: &GgufTokenizer, split: Option<Split>) -> Result<(Split, bool), TokenizerError> {
    match (split, gguf.pre.as_deref().and_then(Split::of_llama_cpp)) {
        (split, Some((own, ignore_merges))) => Ok((Split::chosen(own, split)?, ignore_merges)),
        (Some(split), None) => Ok((split, false)),
        (None, None) => {
            let found = gguf.pre.as_deref().unwrap_or("nothing");
            Err(unsupported("tokenizer.ggml.pre", "the name of a known way of splitting text", found).into())
        }
    }
}

fn unsupported(key: &'static str, expected: &'static str, found: &str) -> BpeError {
    BpeError::Unsupported { key, expected, found: format!("`{found}`") }
}
