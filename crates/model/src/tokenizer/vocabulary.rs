//! The tokens of a tokenizer, by id and by their bytes.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};
use bytes::Bytes;

/// The tokens of a tokenizer. The bytes of all of them are slices of one allocation.
pub(super) struct Vocabulary {
    /// What a token prints, by id.
    pieces: Vec<Bytes>,
    ids: Ids,
    /// Tokens that no text is merged to.
    specials: HashMap<Bytes, u32>,
    /// Of these, tokens that are recognised in every prompt.
    added: HashSet<u32>,
    /// Lengths of the special tokens' names in bytes, longest first.
    special_lengths: Vec<usize>,
    /// Finds the places where the names of special tokens begin. Made when it is needed first; `None` if they are too
    /// many for that.
    special_places: OnceLock<Option<AhoCorasick>>,
    /// The token `<0xHH>` of a byte, where there is one.
    byte_tokens: [Option<u32>; 256],
    /// No merge gives more bytes than this.
    max_token_length: usize,
    /// Which pairs merge, where that is listed; else those do whose bytes together are a token, the lowest id first.
    merges: Option<Merges>,
    fallback: Fallback,
}

/// The lowest id with these bytes.
enum Ids {
    Listed(HashMap<Bytes, u32>),
    /// By a table that is part of the program.
    BuiltIn(fn(&[u8]) -> Option<u32>),
}

pub(super) struct Merges {
    pub(crate) order: MergeOrder,
    /// Whether a word that is a token is that token, whatever its parts merge to.
    pub(crate) ignored_for_words: bool,
}

/// Which of several pairs merges first: that of the lowest rank.
pub(super) enum MergeOrder {
    /// The place in a list of pairs, by the ids of both. Others do not merge.
    Pairs(HashMap<(u32, u32), u32>),
    /// A rank of every token that two others make, by its id.
    Made(Vec<u32>),
}

/// What text becomes for which there is no token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fallback {
    /// Whether merging begins with characters and not with bytes: a character without a token is then the tokens of
    /// its bytes, where all of them have one.
    pub(crate) of_characters: bool,
    /// The token of what has no other.
    pub(crate) unknown: Option<u32>,
    /// Whether several of these side by side are one token.
    pub(crate) fuses: bool,
    /// Whether bytes without a token are left out before anything merges.
    pub(crate) is_first: bool,
}

/// One token, as its source describes it.
#[derive(Clone)]
pub(super) struct Token {
    pub(crate) bytes: Bytes,
    pub(crate) kind: TokenKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Text that merges to it.
    Ordinary,
    /// Its name, where names of tokens are taken as such.
    Special,
    /// The same, and in prompts that are no messages its name is always taken.
    Added,
    /// One byte of a character that has no token; its bytes are a name.
    Byte(u8),
    Unused,
}

/// Whether tokens named `<0xHH>` stand for a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteNames {
    Decoded,
    Literal,
}

impl Vocabulary {
    /// Indexes tokens; their ids are their positions. Of tokens with the same bytes, text gives the lowest id.
    pub(crate) fn new(tokens: Vec<Token>, max_token_length: usize, byte_names: ByteNames) -> Self {
        let mut ids = HashMap::with_capacity(tokens.len());
        let pieces = Vec::with_capacity(tokens.len());
        let mut vocabulary = Self::from_pieces(pieces, Ids::Listed(HashMap::new()), max_token_length);
        for (id, Token { bytes, kind }) in tokens.into_iter().enumerate() {
            let id = u32::try_from(id).expect("vocabularies have fewer than 2^32 tokens");
            if matches!(kind, TokenKind::Special | TokenKind::Added) {
                vocabulary.add_special(bytes.clone(), id);
            }
            if kind == TokenKind::Added {
                vocabulary.added.insert(id);
            }
            if !matches!(kind, TokenKind::Unused | TokenKind::Byte(_)) {
                ids.entry(bytes.clone()).or_insert(id);
            }
            let byte = match kind {
                TokenKind::Byte(byte) => Some(byte),
                _ => (byte_names == ByteNames::Decoded).then(|| byte_named(&bytes)).flatten(),
            };
            vocabulary.pieces.push(match byte {
                Some(byte) => {
                    vocabulary.byte_tokens[usize::from(byte)].get_or_insert(id);
                    Bytes::copy_from_slice(&[byte])
                }
                None => bytes,
            });
        }
        vocabulary.ids = Ids::Listed(ids);
        vocabulary
    }

    /// Tokens whose index is part of the program, with the names of the special ones.
    pub(crate) fn built_in(
        pieces: Vec<Bytes>,
        id: fn(&[u8]) -> Option<u32>,
        specials: impl Iterator<Item = (Bytes, u32)>,
    ) -> Self {
        let longest = pieces.iter().map(Bytes::len).max().unwrap_or(0);
        let mut vocabulary = Self::from_pieces(pieces, Ids::BuiltIn(id), longest);
        for (name, id) in specials {
            vocabulary.add_special(name, id);
        }
        vocabulary
    }

    fn from_pieces(pieces: Vec<Bytes>, ids: Ids, max_token_length: usize) -> Self {
        Self {
            pieces,
            ids,
            specials: HashMap::new(),
            added: HashSet::new(),
            special_lengths: Vec::new(),
            special_places: OnceLock::new(),
            byte_tokens: [None; 256],
            max_token_length,
            merges: None,
            fallback: Fallback::default(),
        }
    }

    /// Merges by a list from here on.
    pub(crate) fn set_merges(&mut self, merges: Merges, fallback: Fallback) {
        (self.merges, self.fallback) = (Some(merges), fallback);
    }

    pub(crate) fn fallback(&self) -> Fallback {
        self.fallback
    }

    /// Whether merges are listed.
    pub(crate) fn lists_merges(&self) -> bool {
        self.merges.is_some()
    }

    /// Gives a special token a name, which may be one of several. A name of no bytes would be found everywhere: it is
    /// left out, as Hugging Face does.
    pub(crate) fn add_special(&mut self, name: Bytes, id: u32) {
        if name.is_empty() {
            return;
        }
        if let Err(at) = self.special_lengths.binary_search_by(|len| name.len().cmp(len)) {
            self.special_lengths.insert(at, name.len());
        }
        self.specials.entry(name).or_insert(id);
        self.special_places.take();
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// What a token prints.
    pub(crate) fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize).map(|piece| &piece[..])
    }

    /// No token that text is merged to has more bytes than this.
    pub(crate) fn max_token_length(&self) -> usize {
        self.max_token_length
    }

    /// The token with exactly these bytes.
    pub(crate) fn id(&self, bytes: &[u8]) -> Option<u32> {
        match &self.ids {
            Ids::Listed(ids) => ids.get(bytes).copied(),
            Ids::BuiltIn(id) => id(bytes),
        }
    }

    /// The token that a word with these bytes is, without any merging.
    pub(crate) fn word(&self, bytes: &[u8]) -> Option<u32> {
        match &self.merges {
            Some(Merges { ignored_for_words: false, .. }) => None,
            _ => self.ordinary(bytes),
        }
    }

    /// When two neighbours, which meet at byte `middle` of these, merge: lower ones merge first. `None` if they do not.
    pub(crate) fn merge_rank(&self, bytes: &[u8], middle: usize) -> Option<u32> {
        match self.merges.as_ref().map(|merges| &merges.order) {
            None => self.ordinary(bytes),
            Some(MergeOrder::Pairs(ranks)) => {
                let (left, right) = bytes.split_at(middle);
                ranks.get(&(self.id(left)?, self.id(right)?)).copied()
            }
            Some(MergeOrder::Made(ranks)) => {
                let id = self.id(bytes).filter(|&id| !self.is_special(id) || self.added.contains(&id));
                ranks.get(id? as usize).copied()
            }
        }
    }

    /// The token with exactly these bytes, if it is no special one.
    fn ordinary(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.max_token_length {
            return None;
        }
        self.id(bytes).filter(|&id| self.specials.get(bytes) != Some(&id))
    }

    /// The token `<0xHH>` of a byte.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }

    pub(crate) fn special(&self, name: &[u8]) -> Option<u32> {
        self.specials.get(name).copied()
    }

    /// Whether there are tokens whose names are always taken in prompts.
    pub(crate) fn has_added(&self) -> bool {
        !self.added.is_empty()
    }

    /// Whether this is the name of such a token.
    pub(crate) fn is_added(&self, name: &[u8]) -> bool {
        self.special(name).is_some_and(|id| self.added.contains(&id))
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.piece(id).is_some_and(|name| self.special(name) == Some(id))
    }

    /// The special tokens named in a text, as (offset, length, id): the leftmost first, the longest where several
    /// begin. Where `is_meant` denies the bytes from an offset and of a length, they are text.
    pub(crate) fn specials_in<'a>(
        &'a self,
        text: &'a [u8],
        mut is_meant: impl FnMut(usize, usize) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, usize, u32)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            while let Some(place) = self.special_place(text, at) {
                at = place;
                let rest = &text[at..];
                let mut meant = |len| Some((len, self.special(rest.get(..len)?)?)).filter(|_| is_meant(at, len));
                let found = self.special_lengths.iter().find_map(|&len| meant(len));
                if let Some((len, id)) = found {
                    at += len;
                    return Some((at - len, len, id));
                }
                at += 1;
            }
            None
        })
    }

    /// The first place, from a byte on, where the name of a special token may begin.
    fn special_place(&self, text: &[u8], from: usize) -> Option<usize> {
        let places = self.special_places.get_or_init(|| {
            let kind = MatchKind::LeftmostFirst;
            AhoCorasick::builder().match_kind(kind).build(self.specials.keys()).ok()
        });
        let Some(places) = places else { return (from < text.len()).then_some(from) };
        places.find(text.get(from..)?).map(|found| from + found.start())
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The byte that a name of the form `<0xHH>` stands for.
pub(super) fn byte_named(name: &[u8]) -> Option<u8> {
    let &[b'<', b'0', b'x', high, low, b'>'] = name else { return None };
    let digit = |c: u8| char::from(c).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_name_is_six_characters_with_two_hex_digits() {
        assert_eq!(byte_named(b"<0x0A>"), Some(10));
        assert_eq!(byte_named(b"<0xfF>"), Some(255));
        for name in ["<0x0A", "<0x0A>x", "<0X0A>", "<0x0G>", "<0x+1>"] {
            assert_eq!(byte_named(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn the_longest_special_wins_where_two_begin() {
        let token = |text: &'static str| Token { bytes: Bytes::from_static(text.as_bytes()), kind: TokenKind::Special };
        let vocabulary = Vocabulary::new(vec![token("<a"), token("<a>"), token("b")], 3, ByteNames::Literal);
        let found: Vec<_> = vocabulary.specials_in(b"x<a><ab<", |_, _| true).collect();
        assert_eq!(found, [(1, 3, 1), (4, 2, 0), (6, 1, 2)]);
        let found: Vec<_> = vocabulary.specials_in(b"x<a><ab<", |at, len| (at, len) != (1, 3) && at != 4).collect();
        assert_eq!(found, [(1, 2, 0), (6, 1, 2)], "what is denied may begin with another");
    }

    #[test]
    fn a_name_of_no_bytes_is_found_nowhere() {
        let token = |text: &'static str| Token { bytes: Bytes::from_static(text.as_bytes()), kind: TokenKind::Special };
        let vocabulary = Vocabulary::new(vec![token(""), token("<a>")], 3, ByteNames::Literal);
        assert_eq!(vocabulary.specials_in(b"x<a>", |_, _| true).take(9).collect::<Vec<_>>(), [(1, 3, 1)]);
    }
}
