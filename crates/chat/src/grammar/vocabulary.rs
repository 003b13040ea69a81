//! A tokenizer's vocabulary as `llguidance` takes it.

use std::sync::Arc;

use llguidance::ParserFactory;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use model::tokenizer::Tokenizer;

/// A longer token is never allowed: tries have a byte for lengths.
const MAX_TOKEN_LENGTH: usize = 255;

/// The vocabulary as a trie, and the tokenizer, for texts within an answer.
struct Environment {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// What a grammar forces is tokenized as the model was trained to read it, where that gives the same bytes.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let ids = self.tokenizer.encode(bytes).unwrap_or_default();
        let is_whole = self.tokenizer.decode_all(&ids).is_ok_and(|decoded| decoded == bytes);
        if is_whole { ids } else { self.trie.greedy_tokenize(bytes) }
    }
}

/// The id that ends a grammar in the trie: after all of the tokenizer, which has its own ends.
pub(super) fn end_id(tokenizer: &Tokenizer) -> u32 {
    u32::try_from(tokenizer.vocab_size()).expect("vocabularies have fewer than 2^32 tokens")
}

/// Makes the trie and what is computed of it once.
pub(super) fn factory(tokenizer: &Tokenizer) -> Result<ParserFactory, String> {
    let end = end_id(tokenizer);
    let mut words: Vec<Vec<u8>> = (0..end).map(|id| word(tokenizer, id)).collect();
    words.push(special(b"<|end of the grammar|>"));
    let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
    let environment: TokEnv = Arc::new(Environment { tokenizer: tokenizer.within_text(), trie });
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
        .map_err(|error| error.to_string())?;
    factory.limits_mut().verbose_errors = false;
    factory.quiet();
    Ok(factory)
}

/// Special tokens begin with a byte that no text has, so that no text is taken for one.
fn special(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

/// The bytes of a token; none for those that must not come.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.decode(id).unwrap_or_default();
    match bytes {
        _ if bytes.is_empty() || bytes.len() >= MAX_TOKEN_LENGTH => Vec::new(),
        _ if tokenizer.is_special(id) => special(bytes),
        _ => bytes.to_vec(),
    }
}
