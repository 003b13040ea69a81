//! BPE from files: tokens, and either a list of the pairs that merge, the first before the others, or a score of every
//! token. GPT-2's kind writes the bytes of tokens as printable characters. SentencePiece's kind has text, U+2581 for
//! blanks, and `<0xHH>` for the bytes of characters without a token. `tokenizer.json` and GGUF files have either;
//! [`super::json`] reads the former.

use std::collections::HashMap;

use bytes::Bytes;

use super::pieces::BLANK;
use super::split::Split;
use super::vocabulary::{ByteNames, Fallback, MergeOrder, Merges, Token, TokenKind, Vocabulary, byte_named};
use super::{Tokenizer, TokenizerError, Way};
use hint::Hint;

/// What is wrong with a BPE tokenizer.
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
    #[error("merge {index}, `{left}` and `{right}`, does not join two tokens to a third")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// The first of the pair.
        left: String,
        right: String,
    },
    /// Tokens of several bytes, which nothing would give.
    #[error("{n_tokens} tokens have several bytes, and there are no merges")]
    NoMerges { n_tokens: usize },
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
    /// A score that has no place among others.
    #[error("the token {id} has the score {found}, expected a finite number")]
    Score { id: usize, found: f32 },
    /// Fewer scores than tokens.
    #[error("there are {found} scores, expected one for each of {n_tokens} tokens")]
    Scores { found: usize, n_tokens: usize },
    /// A way of splitting was chosen for what is not split.
    #[error("`--split` does not apply: this tokenizer is SentencePiece's, which merges whole texts")]
    NoWords,
}

impl Hint for BpeError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unsupported { key: "pre_tokenizer", .. } => {
                "`--split` chooses how text is split; `-z FILE` uses another tokenizer".into()
            }
            Self::Unsupported { key: "tokenizer.ggml.pre", .. } => {
                let known: Vec<&str> = Split::llama_cpp_names().collect();
                format!("known: {}; `--split` chooses one; `-z FILE` uses another tokenizer", known.join(", "))
            }
            Self::Unsupported { .. } => {
                "GPT-2's byte-level BPE and SentencePiece's BPE are supported; `-z FILE` uses another file".into()
            }
            Self::NoWords => "leave it out".into(),
            _ => "the file is damaged, or belongs to another kind of tokenizer; `-z FILE` uses another one".into(),
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
    /// Tokens that are recognised in every prompt, whoever wrote it.
    pub in_prompts: Vec<(String, u32)>,
    /// Tokens that nothing gives.
    pub unused: Vec<(String, u32)>,
    /// Pairs that merge, first the one that merges first.
    pub merges: Vec<(String, String)>,
    /// Whether a word that is a token is that token, whatever its parts merge to.
    pub ignore_merges: bool,
    /// What the characters of tokens are.
    pub spelling: Spelling,
    /// Of each token by id, instead of pairs: two that make the token of the highest score merge first.
    pub scores: Option<Vec<f32>>,
    /// The token of what has none.
    pub unknown: Option<UnknownToken>,
    /// Whether bytes without a token are left out before anything merges, not after.
    pub leaves_out_first: bool,
}

/// What the characters of tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spelling {
    /// Bytes, as GPT-2 writes them.
    #[default]
    Bytes,
    /// Text, with U+2581 for blanks, and `<0xHH>` for single bytes.
    Text,
}

/// The token of what has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownToken {
    pub id: u32,
    /// Whether several side by side are one.
    pub fuses: bool,
}

impl Tokenizer {
    /// Makes a tokenizer of a file's lists. `vocab_size` is the number of the model's tokens: ids that the file gives
    /// no token are nothing when decoded.
    ///
    /// # Errors
    /// [`TokenizerError::Bpe`].
    pub fn from_spelled(
        spelled: SpelledBpe,
        vocab_size: Option<usize>,
        way: impl Into<Way>,
    ) -> Result<Self, TokenizerError> {
        Ok(Self::new(spelled.vocabulary(vocab_size.unwrap_or(0))?, way))
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
    fn vocabulary(self, vocab_size: usize) -> Result<Vocabulary, BpeError> {
        let (speller, is_text) = (Speller::new(self.spelling), self.spelling == Spelling::Text);
        let named: HashMap<u32, &str> =
            self.added.iter().chain(&self.in_prompts).map(|(text, id)| (*id, text.as_str())).collect();
        // Some files list added tokens among the others, too.
        let n_others = self.tokens.iter().filter(|(text, id)| named.get(id) != Some(&text.as_str())).count();
        let n_listed = n_others + self.added.len() + self.in_prompts.len() + self.unused.len();
        let n_tokens = vocab_size.max(n_listed);
        let mut slots = Slots { tokens: vec![None; n_tokens] };
        for (text, id) in &self.added {
            slots.put(text, *id, text.clone().into(), TokenKind::Special)?;
        }
        for (text, id) in &self.in_prompts {
            // Blanks are what text has, and merge to such a token; its name is in no text.
            let is_merged = is_text && text.contains(BLANK);
            let kind = if is_merged { TokenKind::Ordinary } else { TokenKind::Added };
            let bytes = if is_merged { speller.bytes(text, *id)? } else { text.clone().into() };
            slots.put(text, *id, bytes, kind)?;
        }
        for (text, id) in &self.unused {
            slots.put(text, *id, text.clone().into(), TokenKind::Unused)?;
        }
        let mut n_merged = 0;
        for (text, id) in &self.tokens {
            let is_added = slots.has(text, *id, &speller);
            if !is_added {
                let bytes = speller.bytes(text, *id)?;
                let kind = match byte_named(text.as_bytes()) {
                    Some(byte) if is_text => TokenKind::Byte(byte),
                    // Blanks of texts are written otherwise.
                    _ if is_text && text.contains(' ') => TokenKind::Unused,
                    _ => TokenKind::Ordinary,
                };
                let is_merged = if is_text { text.chars().nth(1).is_some() } else { bytes.len() > 1 };
                n_merged += usize::from(is_merged && kind == TokenKind::Ordinary);
                slots.put(text, *id, bytes, kind)?;
            }
        }
        if self.merges.is_empty() && self.scores.is_none() && n_merged > 0 {
            return Err(BpeError::NoMerges { n_tokens: n_merged });
        }
        let mut vocabulary = slots.vocabulary();
        // Real vocabularies lack bytes that no text has, or few: those are left out of what is encoded.
        let is_lacked = |byte: &u8| vocabulary.id(&[*byte]).is_none();
        if let Some(byte) = (b' '..=b'~').find(is_lacked).filter(|_| !is_text) {
            return Err(BpeError::NoByte { byte });
        }
        let order = match self.scores {
            Some(scores) => MergeOrder::Made(ranks_of_scores(&scores, n_listed)?),
            None => MergeOrder::Pairs(ranks(&vocabulary, &speller, self.merges)?),
        };
        let unknown = self.unknown.filter(|unknown| (unknown.id as usize) < n_tokens);
        let fallback = Fallback {
            of_characters: is_text,
            unknown: unknown.map(|unknown| unknown.id),
            fuses: unknown.is_some_and(|unknown| unknown.fuses),
            is_first: self.leaves_out_first && unknown.is_none(),
        };
        vocabulary.set_merges(Merges { order, ignored_for_words: self.ignore_merges }, fallback);
        Ok(vocabulary)
    }
}

/// The place of every token's score among all: the highest comes first, and those that are alike have the same.
fn ranks_of_scores(scores: &[f32], n_tokens: usize) -> Result<Vec<u32>, BpeError> {
    if scores.len() < n_tokens {
        return Err(BpeError::Scores { found: scores.len(), n_tokens });
    }
    if let Some((id, &found)) = scores.iter().enumerate().find(|(_, score)| !score.is_finite()) {
        return Err(BpeError::Score { id, found });
    }
    let mut sorted: Vec<f32> = scores.iter().map(|score| score + 0.0).collect(); // -0 is 0
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted.dedup();
    let rank = |score: &f32| sorted.partition_point(|other| other > score) as u32;
    Ok(scores.iter().map(rank).collect())
}

/// The place of every pair of ids in the list of merges.
fn ranks(
    vocabulary: &Vocabulary,
    speller: &Speller,
    merges: Vec<(String, String)>,
) -> Result<HashMap<(u32, u32), u32>, BpeError> {
    let mut ranks = HashMap::with_capacity(merges.len());
    for (index, (left, right)) in merges.into_iter().enumerate() {
        let pair = || {
            let (left, right) = (speller.bytes(&left, 0).ok()?, speller.bytes(&right, 0).ok()?);
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
    fn has(&self, text: &str, id: u32, speller: &Speller) -> bool {
        let slot = self.tokens.get(id as usize).and_then(Option::as_ref);
        slot.is_some_and(|token| match token.kind {
            TokenKind::Special | TokenKind::Added => token.bytes == text.as_bytes(),
            TokenKind::Ordinary => matches!(speller, Speller::Text) && token.bytes == text.replace(BLANK, " "),
            TokenKind::Byte(_) | TokenKind::Unused => false,
        })
    }

    fn vocabulary(self) -> Vocabulary {
        let nothing = || Token { bytes: Bytes::new(), kind: TokenKind::Unused };
        let tokens: Vec<Token> = self.tokens.into_iter().map(|token| token.unwrap_or_else(nothing)).collect();
        let longest = tokens.iter().map(|token| token.bytes.len()).max().unwrap_or(0);
        Vocabulary::new(tokens, longest, ByteNames::Literal)
    }
}

/// What reads the texts of tokens.
enum Speller {
    /// GPT-2's way of writing bytes: printable characters of Latin-1 stand for themselves, the other bytes, in order,
    /// for the characters from U+0100 on.
    Bytes(Box<[Option<u8>; 0x100 + 68]>),
    Text,
}

impl Speller {
    fn new(spelling: Spelling) -> Self {
        if spelling == Spelling::Text {
            return Self::Text;
        }
        let mut bytes = Box::new([None; 0x100 + 68]);
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            let is_printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let at = if is_printable { usize::from(byte) } else { next };
            bytes[at] = Some(byte);
            next += usize::from(!is_printable);
        }
        Self::Bytes(bytes)
    }

    /// The bytes of a token.
    fn bytes(&self, text: &str, id: u32) -> Result<Bytes, BpeError> {
        let Self::Bytes(bytes) = self else { return Ok(text.replace(BLANK, " ").into()) };
        let byte = |character: char| {
            let byte = bytes.get(character as usize).copied().flatten();
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
    use super::super::pieces::{Pieces, Prefix};
    use super::*;

    /// The 256 bytes, then `th`, `he`, `the`, and a name.
    fn spelled() -> SpelledBpe {
        let Speller::Bytes(bytes) = Speller::new(Spelling::Bytes) else { unreachable!("asked for") };
        let mut alphabet: Vec<(String, u32)> = (0..bytes.len())
            .filter_map(|c| Some((char::from_u32(c as u32)?.to_string(), u32::from(bytes[c]?))))
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
        // Added tokens that are among the others, too, are counted once.
        let mut twice = spelled();
        let (first, n) = (twice.added[0].clone(), twice.tokens.len() + twice.added.len());
        twice.tokens.push(first);
        assert_eq!(Tokenizer::from_spelled(twice, None, Split::O200k).unwrap().vocab_size(), n);
    }

    /// As with SmolLM2, whose vocabulary lacks 21 bytes.
    #[test]
    fn a_byte_without_a_token_is_left_out_or_unknown() {
        let lacking = || {
            let mut spelled = spelled();
            spelled.tokens.retain(|(_, id)| ![0x04, 0xc3, 0xa9].contains(id));
            spelled
        };
        let ids = |spelled: SpelledBpe, text: &[u8]| tokenizer(spelled).unwrap().encode(text).unwrap();
        // `he` merges across a byte that was left out before.
        let early = SpelledBpe { leaves_out_first: true, ..lacking() };
        assert_eq!(ids(early, "hée".as_bytes()), [257]);
        assert_eq!(ids(lacking(), "hée".as_bytes()), [u32::from(b'h'), u32::from(b'e')]);
        let unknown = |fuses| SpelledBpe { unknown: Some(UnknownToken { id: 259, fuses }), ..lacking() };
        assert_eq!(ids(unknown(false), b"\x04\x04he\x04"), [259, 259, 257, 259]);
        assert_eq!(ids(unknown(true), b"\x04\x04he\x04"), [259, 257, 259]);
        let tokenizer = tokenizer(lacking()).unwrap();
        assert_eq!(tokenizer.encode("\u{4}the\u{4}ê".as_bytes()).unwrap(), [u32::from(b't'), 257, 0xaa]);
        assert_eq!(tokenizer.encode(b"\x04").unwrap(), [0; 0]);
        let long = "\u{4}".repeat(5000) + "the";
        assert_eq!(tokenizer.encode(long.as_bytes()).unwrap(), [u32::from(b't'), 257]);
    }

    /// Tokens as SentencePiece writes them, by scores and by pairs.
    fn text(pairs: bool) -> SpelledBpe {
        let mut names = vec!["\u{2581}", "a", "b", "ab", "\u{2581}a", "bb", "é", "\u{2581}\u{2581}"];
        let bytes: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
        names.extend(bytes.iter().map(String::as_str));
        let tokens: Vec<_> = names.iter().zip(0..).map(|(name, id)| ((*name).to_owned(), id)).collect();
        let mut scores: Vec<f32> = vec![-9.0; tokens.len()];
        // `ab` and `bb` are alike: the first in a text comes first.
        (scores[3], scores[4], scores[5], scores[7]) = (-1.0, -2.0, -1.0, -3.0);
        let merge = |left: &str, right: &str| (left.to_owned(), right.to_owned());
        let blank = "\u{2581}";
        let merges = vec![merge("a", "b"), merge("b", "b"), merge(blank, "a"), merge(blank, blank)];
        let (scores, merges) = if pairs { (None, merges) } else { (Some(scores), Vec::new()) };
        SpelledBpe { tokens, scores, merges, spelling: Spelling::Text, ..SpelledBpe::default() }
    }

    #[test]
    fn text_merges_by_scores_or_pairs_and_what_has_no_token_becomes_bytes() {
        let pieces = Pieces { prefix: Prefix::Each, strips: true, ..Pieces::default() };
        for pairs in [false, true] {
            let tokenizer = Tokenizer::from_spelled(text(pairs), None, pieces).unwrap();
            let ids = |text: &str| tokenizer.encode(text.as_bytes()).unwrap();
            assert_eq!(ids("a"), [4]);
            assert_eq!(ids("abb"), [0, 3, 2], "the best score first");
            assert_eq!(ids("bbb"), [0, 5, 2], "the first of two that are alike");
            assert_eq!(ids("  é"), [7, 0, 6], "three blanks, the first put there");
            assert_eq!(ids("日\n"), [0, 8 + 0xe6, 8 + 0x97, 8 + 0xa5, 8 + 0x0a]);
            assert_eq!(ids("<0x41>").len(), 7, "a byte's name is text");
            assert_eq!(ids(""), [0; 0]);
            for text in ["a b", " a", "日本\n\0", "\u{2581}"] {
                let whole = tokenizer.text_of(&ids(text)).unwrap();
                assert_eq!(String::from_utf8(whole).unwrap(), text.replace('\u{2581}', " "));
            }
            let within = tokenizer.within_text().encode(b"a b").unwrap();
            assert_eq!((&within[..], tokenizer.decode_all(&within).unwrap()), (&[1, 0, 2][..], b"a b".to_vec()));
            // Windows of a long text end at characters, and change nothing.
            let long = "é日ab".repeat(2000);
            assert_eq!(ids(&long)[1..6], ids("é日ab")[1..], "as alone");
            assert_eq!(ids(&long).len(), 1 + 5 * 2000);
        }
    }

    #[test]
    fn scores_that_do_not_fit_are_refused() {
        let refused = |scores: Vec<f32>| {
            let spelled = SpelledBpe { scores: Some(scores), ..text(false) };
            Tokenizer::from_spelled(spelled, None, Pieces::default()).unwrap_err().to_string()
        };
        assert_eq!(refused(vec![0.0; 3]), "there are 3 scores, expected one for each of 264 tokens");
        let mut scores = vec![0.0; 264];
        scores[7] = f32::NAN;
        assert_eq!(refused(scores), "the token 7 has the score NaN, expected a finite number");
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
        refused(|s| s.merges.push(("x".into(), "y".into())), "merge 3, `x` and `y`, does not join two tokens");
    }
}
