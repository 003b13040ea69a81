//! Tokenizers of GGUF files.

use super::bpe::{self, BpeError, SpelledBpe};
use super::split::Split;
use super::{Tokenizer, TokenizerError};
use crate::checkpoint::gguf::model::{GgufTokenizer, TokenLists};

impl Tokenizer {
    /// The tokenizer that a GGUF file's keys spell. `vocab_size` is the number of the model's tokens; text is split as
    /// `split` says, else as the file does.
    ///
    /// # Errors
    /// It is no byte-level BPE, its way of splitting is not known, or its lists do not fit each other.
    pub fn from_gguf(
        gguf: &GgufTokenizer,
        vocab_size: Option<usize>,
        split: Option<Split>,
    ) -> Result<Self, TokenizerError> {
        let unsupported =
            |key, expected, found: &str| BpeError::Unsupported { key, expected, found: format!("`{found}`") };
        if gguf.model != "gpt2" {
            return Err(unsupported("tokenizer.ggml.model", "`gpt2`, which is byte-level BPE", &gguf.model).into());
        }
        let known = gguf.pre.as_deref().and_then(Split::of_llama_cpp);
        let (split, ignore_merges) = match (split, known) {
            (Some(split), known) => (split, known.is_some_and(|(_, ignore_merges)| ignore_merges)),
            (None, Some(known)) => known,
            (None, None) => {
                let found = gguf.pre.as_deref().unwrap_or("nothing");
                return Err(
                    unsupported("tokenizer.ggml.pre", "the name of a known way of splitting text", found).into()
                );
            }
        };
        let TokenLists { ordinary, names, in_prompts, unused, merges } = gguf.lists();
        let merges = merges.into_iter().enumerate().map(|(index, text)| bpe::pair(index, text));
        let owned = |list: Vec<(&str, u32)>| list.into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
        let spelled = SpelledBpe {
            tokens: owned(ordinary),
            added: owned(names),
            in_prompts: owned(in_prompts),
            unused: owned(unused),
            merges: merges.collect::<Result<_, _>>()?,
            ignore_merges,
        };
        Self::from_spelled(spelled, vocab_size, split)
    }
}
