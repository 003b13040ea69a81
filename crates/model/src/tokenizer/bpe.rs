//! Byte-level BPE as GPT-2 spells it: tokens whose bytes are written as printable characters, and a list of the pairs
//! that merge, the first before the others. `tokenizer.json` and GGUF files both have it; [`super::json`] reads the
//! former.

use std::collections::HashMap;

use bytes::Bytes;

use super::split::Split;
use super::vocabulary::{ByteNames, Merges, Token, TokenKind, Vocabulary};
use super::{Tokenizer, TokenizerError};
use hint::Hint;

/// What is wrong with a byte-level BPE tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum BpeError {
    /// The file is longer than any.
    #[error("the file has {found} bytes, expected {max} at most")]
    TooLong { found: usize, max: usize },
    /// The file is not JSON, or not a tokenizer's.
    #[error("could not read the JSON")]
    Json(#[source] serde_json::Error),
    /// Something that would be tokenised otherwise.
    #[error("`{key}` is {found}, expected {expected}")]
    Unsupported { key: &'static str, expected: &'static str, found: String },
    /// An id beyond all others, or beyond the model's.
    #[error("the token `{text}` has the id {id}, expected one below {n_tokens}")]
    IdRange {
        text: String,
        id: u32,
        /// Tokens of the model or of the file, whichever are more.
        n_tokens: usize,
    },
    /// Two tokens of the same id.
    #[error("two tokens have the id {id}, the second is `{text}`")]
    IdTaken { id: u32, text: String },
    /// A token's text has a character that stands for no byte.
    #[error("the token {id}, `{text}`, has the character {character:?}, which stands for no byte")]
    Character { id: u32, text: String, character: char },
    /// A merge of or to what is no token.
    #[error("merge {index}, `{left}` and `{right}`, is not of two tokens to a third")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// The first of the pair.
        left: String,
        right: String,
    },
    /// Tokens of several bytes, which nothing would give.
    #[error("{n_tokens} tokens have several bytes, and there are no merges")]
    NoMerges {
        /// Such tokens.
        n_tokens: usize,
    },
    /// A merge that is not a pair.
    #[error("merge {index}, `{found}`, is not two texts with a blank between them")]
    NoPair {
        /// Its place in the list.
        index: usize,
        found: String,
    },
    /// Not even plain text can be encoded.
    #[error("no token stands for the byte 0x{byte:02x} alone")]
    NoByte { byte: u8 },
}

impl Hint for BpeError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unsupported { key: "pre_tokenizer", .. } => {
                "`--split` chooses a way of splitting text; `-z FILE` takes another tokenizer".into()
            }
            Self::Unsupported { key: "tokenizer.ggml.pre", .. } => {
                let known: Vec<&str> = Split::llama_cpp_names().collect();
                format!("known are {}; `--split` chooses one; `-z FILE` takes another tokenizer", known.join(", "))
            }
            Self::Unsupported { .. } => "only byte-level BPE is read; `-z FILE` takes another file".into(),
            _ => "the file is damaged, or belongs to another kind of tokenizer; `-z FILE` takes another one".into(),
        })
    }
}

/// A tokenizer as its file spells it.
#[derive(Debug, Default)]
pub struct SpelledBpe {
    /// Tokens that text merges to, with their ids.
    pub tokens: Vec<(String, u32)>,
    /// Tokens that are names and stand for themselves: control tokens for the most part.
    pub added: Vec<(String, u32)>,
    /// The same, but that prompts always have them, whoever wrote them.
    pub in_prompts: Vec<(String, u32)>,
    /// Tokens that nothing gives.
    pub unused: Vec<(String, u32)>,
    /// Pairs that merge, first the one that merges first.
    pub merges: Vec<(String, String)>,
    /// Whether a word that is a token is that token, whatever its parts merge to.
    pub ignore_merges: bool,
}

impl Tokenizer {
    /// Makes a tokenizer of a file's lists. `vocab_size` is the number of the model's tokens: ids that the file gives
    /// no token are nothing when decoded.
    ///
    /// # Errors
    /// [`TokenizerError::Bpe`].
    pub fn from_spelled(spelled: SpelledBpe, vocab_size: Option<usize>, split: Split) -> Result<Self, TokenizerError> {
        Ok(Self::new(spelled.vocabulary(vocab_size.unwrap_or(0))?, split))
    }
}

impl Tokenizer {
    /// A vocabulary of single bytes, with these names at their ids and `n_tokens` ids or more: what takes the place of
    /// another one where its words do not matter.
    pub fn of_bytes(n_tokens: usize, names: &[(u32, String)]) -> Self {
        let n_named = names.iter().map(|(id, _)| *id as usize + 1).max().unwrap_or(0);
        let nothing = Token { bytes: Bytes::new(), kind: TokenKind::Unused };
        let mut tokens = vec![nothing; n_tokens.max(n_named + 256)];
        for (id, name) in names {
            tokens[*id as usize] = Token { bytes: name.clone().into(), kind: TokenKind::Special };
        }
        let free = tokens.iter_mut().filter(|token| token.kind == TokenKind::Unused);
        for (byte, token) in (0..=u8::MAX).zip(free) {
            *token = Token { bytes: Bytes::copy_from_slice(&[byte]), kind: TokenKind::Ordinary };
        }
        let longest = names.iter().map(|(_, name)| name.len()).max().unwrap_or(1);
        Self::new(Vocabulary::new(tokens, longest, ByteNames::Literal), Split::O200k)
    }
}

impl SpelledBpe {
    /// Whether there is a byte that no token stands for alone.
    pub(super) fn lacks_a_byte(&self) -> bool {
        let spelling = Spelling::new();
        let alone =
            self.tokens.iter().filter(|(text, id)| spelling.bytes(text, *id).is_ok_and(|bytes| bytes.len() == 1));
        alone.count() < 256
    }

    fn vocabulary(self, vocab_size: usize) -> Result<Vocabulary, BpeError> {
        let spelling = Spelling::new();
        let n_listed = self.tokens.len() + self.added.len() + self.in_prompts.len() + self.unused.len();
        let n_tokens = vocab_size.max(n_listed);
        let mut slots = Slots { tokens: vec![None; n_tokens] };
        for (text, id) in &self.added {
            slots.put(text, *id, text.clone().into(), TokenKind::Special)?;
        }
        for (text, id) in &self.in_prompts {
            slots.put(text, *id, text.clone().into(), TokenKind::Added)?;
        }
        for (text, id) in &self.unused {
            slots.put(text, *id, text.clone().into(), TokenKind::Unused)?;
        }
        let mut n_merged = 0;
        for (text, id) in &self.tokens {
            let is_added = slots.has(text, *id);
            if !is_added {
                let bytes = spelling.bytes(text, *id)?;
                n_merged += usize::from(bytes.len() > 1);
                slots.put(text, *id, bytes, TokenKind::Ordinary)?;
            }
        }
        if self.merges.is_empty() && n_merged > 0 {
            return Err(BpeError::NoMerges { n_tokens: n_merged });
        }
        let mut vocabulary = slots.vocabulary();
        // Real vocabularies lack bytes that no text has, or few: those are left out of what is encoded.
        if let Some(byte) = (b' '..=b'~').find(|byte| vocabulary.id(&[*byte]).is_none()) {
            return Err(BpeError::NoByte { byte });
        }
        let ranks = ranks(&vocabulary, &spelling, self.merges)?;
        vocabulary.set_merges(Merges { ranks, ignored_for_words: self.ignore_merges });
        Ok(vocabulary)
    }
}

/// The place of every pair of ids in the list of merges.
fn ranks(
    vocabulary: &Vocabulary,
    spelling: &Spelling,
    merges: Vec<(String, String)>,
) -> Result<HashMap<(u32, u32), u32>, BpeError> {
    let mut ranks = HashMap::with_capacity(merges.len());
    for (index, (left, right)) in merges.into_iter().enumerate() {
        let pair = || {
            let (left, right) = (spelling.bytes(&left, 0).ok()?, spelling.bytes(&right, 0).ok()?);
            vocabulary.id(&[&left[..], &right[..]].concat())?;
            Some((vocabulary.id(&left)?, vocabulary.id(&right)?))
        };
        match pair() {
            Some(pair) => ranks.insert(pair, index as u32),
            None => return Err(BpeError::Merge { index, left, right }),
        };
    }
    Ok(ranks)
}

/// Tokens by id, as they come.
struct Slots {
    tokens: Vec<Option<Token>>,
}

impl Slots {
    fn put(&mut self, text: &str, id: u32, bytes: Bytes, kind: TokenKind) -> Result<(), BpeError> {
        let n_tokens = self.tokens.len();
        let Some(slot) = self.tokens.get_mut(id as usize) else {
            return Err(BpeError::IdRange { text: text.to_owned(), id, n_tokens });
        };
        match slot.replace(Token { bytes, kind }) {
            None => Ok(()),
            Some(_) => Err(BpeError::IdTaken { id, text: text.to_owned() }),
        }
    }

    /// Whether this very token is there already: some files list added tokens among the others too.
    fn has(&self, text: &str, id: u32) -> bool {
        let slot = self.tokens.get(id as usize).and_then(Option::as_ref);
        slot.is_some_and(|token| {
            token.bytes == text.as_bytes() && matches!(token.kind, TokenKind::Special | TokenKind::Added)
        })
    }

    fn vocabulary(self) -> Vocabulary {
        let nothing = || Token { bytes: Bytes::new(), kind: TokenKind::Unused };
        let tokens: Vec<Token> = self.tokens.into_iter().map(|token| token.unwrap_or_else(nothing)).collect();
        let longest = tokens.iter().map(|token| token.bytes.len()).max().unwrap_or(0);
        Vocabulary::new(tokens, longest, ByteNames::Literal)
    }
}

/// GPT-2's way of writing bytes: printable characters of Latin-1 stand for themselves, the other bytes, in order, for
/// the characters from U+0100 on.
struct Spelling {
    bytes: [Option<u8>; 0x100 + 68],
}

impl Spelling {
    fn new() -> Self {
        let mut bytes = [None; 0x100 + 68];
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            let is_printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let at = if is_printable { usize::from(byte) } else { next };
            bytes[at] = Some(byte);
            next += usize::from(!is_printable);
        }
        Self { bytes }
    }

    /// The bytes of a token.
    fn bytes(&self, text: &str, id: u32) -> Result<Bytes, BpeError> {
        let byte = |character: char| {
            let byte = self.bytes.get(character as usize).copied().flatten();
            byte.ok_or_else(|| BpeError::Character { id, text: text.to_owned(), character })
        };
        text.chars().map(byte).collect::<Result<Vec<u8>, _>>().map(Bytes::from)
    }
}

/// Two texts with a blank between them.
///
/// # Errors
/// [`BpeError::NoPair`].
pub(crate) fn pair(index: usize, text: &str) -> Result<(String, String), BpeError> {
    let no_pair = || BpeError::NoPair { index, found: text.to_owned() };
    let (left, right) = text.split_once(' ').ok_or_else(no_pair)?;
    Ok((left.to_owned(), right.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 256 bytes, then `th`, `he`, `the`, and a name.
    fn spelled() -> SpelledBpe {
        let spelling = Spelling::new();
        let mut alphabet: Vec<(String, u32)> = (0..spelling.bytes.len())
            .filter_map(|c| Some((char::from_u32(c as u32)?.to_string(), u32::from(spelling.bytes[c]?))))
            .collect();
        alphabet.extend([("th", 256), ("he", 257), ("the", 258)].map(|(text, id)| (text.to_owned(), id)));
        let merge = |left: &str, right: &str| (left.to_owned(), right.to_owned());
        SpelledBpe {
            tokens: alphabet,
            added: vec![("<|end|>".into(), 259)],
            merges: vec![merge("h", "e"), merge("t", "h"), merge("th", "e")],
            ..SpelledBpe::default()
        }
    }

    fn tokenizer(spelled: SpelledBpe) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::from_spelled(spelled, Some(261), Split::O200k)
    }

    #[test]
    fn pairs_merge_by_their_place_in_the_list_and_not_by_their_ids() {
        let of = |spelled| tokenizer(spelled).unwrap().encode(b"the then\0\xc3\xa9").unwrap();
        // `he` comes first in the list, and then nothing makes `t` and `he` one: the order of ids would.
        let (t, space, n) = (u32::from(b't'), u32::from(b' '), u32::from(b'n'));
        assert_eq!(of(spelled()), [t, 257, space, t, 257, n, 0, 0xc3, 0xa9]);
        assert_eq!(of(SpelledBpe { ignore_merges: true, ..spelled() })[..2], [258, space]);
        let mut other = spelled();
        other.merges.rotate_left(1);
        assert_eq!(of(other)[..3], [258, space, 258]);
    }

    #[test]
    fn names_are_tokens_where_text_is_trusted_and_ids_without_a_token_are_nothing() {
        let tokenizer = tokenizer(spelled()).unwrap();
        assert_eq!(tokenizer.encode_with_specials(b"the<|end|>").unwrap(), [u32::from(b't'), 257, 259]);
        assert_eq!(tokenizer.encode(b"<|end|>").unwrap().len(), 7);
        assert_eq!(tokenizer.decode_all(&[258, 259, 260]).unwrap(), b"the<|end|>");
        assert_eq!(tokenizer.vocab_size(), 261);
    }

    /// As with SmolLM2, whose vocabulary lacks 21 bytes.
    #[test]
    fn a_byte_without_a_token_is_left_out_when_all_else_is_merged() {
        let mut spelled = spelled();
        assert!(!spelled.lacks_a_byte());
        spelled.tokens.retain(|(_, id)| ![0x04, 0xc3].contains(id));
        assert!(spelled.lacks_a_byte());
        let tokenizer = tokenizer(spelled).unwrap();
        assert_eq!(tokenizer.encode("\u{4}the\u{4}é".as_bytes()).unwrap(), [u32::from(b't'), 257, 0xa9]);
        assert_eq!(tokenizer.encode(b"\x04").unwrap(), [0; 0]);
        let long = "\u{4}".repeat(5000) + "the";
        assert_eq!(tokenizer.encode(long.as_bytes()).unwrap(), [u32::from(b't'), 257]);
    }

    #[test]
    fn lists_that_do_not_fit_each_other_are_refused() {
        let refused = |change: fn(&mut SpelledBpe), message: &str| {
            let mut changed = spelled();
            change(&mut changed);
            let error = tokenizer(changed).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(error.hint().is_some());
        };
        refused(|s| s.tokens[3].1 = 70_000, "the token `$` has the id 70000, expected one below 261");
        refused(|s| s.tokens[3].1 = 256, "two tokens have the id 256, the second is `th`");
        refused(|s| s.added.push(("<|x|>".into(), 257)), "two tokens have the id 257, the second is `he`");
        refused(|s| s.tokens[256].0 = "日".into(), "the token 256, `日`, has the character '日'");
        refused(|s| s.tokens.retain(|(_, id)| *id != 0x21), "no token stands for the byte 0x21 alone");
        refused(|s| s.merges.clear(), "3 tokens have several bytes, and there are no merges");
        refused(|s| s.merges.push(("x".into(), "y".into())), "merge 3, `x` and `y`, is not of two tokens");
    }
}
