//! Byte-pair encoding of one piece: the pair of the lowest rank is merged, the leftmost of equals, until none is left.
//! The rank is the id of what the pair makes, or its place in a list of merges. A heap of candidate pairs makes that
//! O(n log n) in the length of the piece.
//!
//! Long pieces are merged window by window, so that the memory is that of a window and a caller may give up between
//! two. That is exact: where each two neighbours of a sequence of parts, merged alone, are these two parts, merging the
//! whole gives the sequence. For no merge crosses an end of a part: look at the first that would. Until then the
//! merges in the two parts beside that end were those of merging the two alone, since a pair that is the best of all is
//! the best of those two; so this merge would come there too, and it does not. Within a window neighbours are such
//! pairs, whatever comes after it; where windows meet that is tried.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocabulary::Vocabulary;

/// What bytes become for which a `tokenizer.bin` has no token, as in gpt-oss-amd.
const UNKNOWN: u32 = 0;

/// Bytes of a window, at least.
const WINDOW: usize = 512;

/// The same, in lengths of the longest token. The last quarter of a window is merged again, with the text after it.
const WINDOW_TOKENS: usize = 4;

/// Encodes a piece as gpt-oss-amd does: always by merging from single bytes. `check` is asked between windows of a long
/// one.
pub(super) fn encode_piece<E>(
    vocabulary: &Vocabulary,
    piece: &[u8],
    ids: &mut Vec<u32>,
    check: impl Fn(usize) -> Result<(), E>,
) -> Result<(), E> {
    let take = |part: &[u8], ids: &mut Vec<u32>| ids.push(vocabulary.id(part).unwrap_or(UNKNOWN));
    encode(vocabulary, piece, take, ids, check)
}

/// Encodes a word as OpenAI does: a word that is a token is that token (unless a list of merges says that it is not
/// so). A byte without a token of its own is given the token `<0xHH>`: in a `tokenizer.bin` the NUL byte is stored so.
/// Without that either, it is the unknown token, or left out. `check` is asked between windows of a long one.
pub(super) fn encode_word<E>(
    vocabulary: &Vocabulary,
    word: &str,
    ids: &mut Vec<u32>,
    check: impl Fn(usize) -> Result<(), E>,
) -> Result<(), E> {
    let word = word.as_bytes();
    if let Some(id) = vocabulary.word(word) {
        ids.push(id);
        return check(ids.len());
    }
    let fallback = vocabulary.fallback();
    let unknown = if vocabulary.lists_merges() { fallback.unknown } else { Some(UNKNOWN) };
    let n_before = ids.len();
    let take = |part: &[u8], ids: &mut Vec<u32>| {
        if let Some(id) = vocabulary.id(part) {
            return ids.push(id);
        }
        let n_known = ids.len();
        ids.extend(part.iter().map_while(|&byte| vocabulary.byte_token(byte)));
        if ids.len() - n_known < part.len() {
            ids.truncate(n_known);
            let is_fused = fallback.fuses && n_known > n_before && ids.last().copied() == unknown;
            ids.extend(unknown.filter(|_| !is_fused));
        }
    };
    let is_lacked = |byte: &u8| vocabulary.id(&[*byte]).is_none();
    if fallback.is_first && !fallback.of_characters && word.iter().any(is_lacked) {
        let known: Vec<u8> = word.iter().copied().filter(|byte| !is_lacked(byte)).collect();
        return encode(vocabulary, &known, take, ids, check);
    }
    encode(vocabulary, word, take, ids, check)
}

fn encode<E>(
    vocabulary: &Vocabulary,
    piece: &[u8],
    take: impl Fn(&[u8], &mut Vec<u32>),
    ids: &mut Vec<u32>,
    check: impl Fn(usize) -> Result<(), E>,
) -> Result<(), E> {
    let n_before = ids.len();
    let mut window = WINDOW.max(WINDOW_TOKENS * vocabulary.max_token_length());
    while piece.len() > window {
        if encode_windows(vocabulary, piece, window, &take, ids, &check)? {
            return Ok(());
        }
        ids.truncate(n_before);
        window *= 2;
    }
    let mut start = 0;
    for end in merged(vocabulary, piece) {
        take(&piece[start..end], ids);
        start = end;
    }
    check(ids.len())
}

/// Encodes a piece by windows of this many bytes; false if two of them do not fit each other. `check` may see some ids
/// more than the piece comes to, if that is found out after them.
fn encode_windows<E>(
    vocabulary: &Vocabulary,
    piece: &[u8],
    window: usize,
    take: &impl Fn(&[u8], &mut Vec<u32>),
    ids: &mut Vec<u32>,
    check: &impl Fn(usize) -> Result<(), E>,
) -> Result<bool, E> {
    // Of the window before: its bytes, and the ends of its parts.
    let (mut bytes, mut ends): (&[u8], Vec<usize>) = (&[], Vec::new());
    // Two parts that are known to stay apart, and the last part so far.
    let (mut apart, mut last): (_, &[u8]) = ((&[][..], &[][..]), &[]);
    let mut from = 0;
    loop {
        let here = &piece[from..end_of_window(vocabulary, piece, from + window)];
        let is_last = from + here.len() == piece.len();
        // Of a character that is repeated, all windows are alike.
        if here != bytes {
            (bytes, ends) = (here, merged(vocabulary, here));
        }
        let meeting = (last, &here[..ends[0]]);
        if !last.is_empty() && meeting != apart {
            if !are_apart(vocabulary, meeting.0, meeting.1) {
                return Ok(false);
            }
            apart = meeting;
        }
        let most = if is_last { here.len() } else { window - window / 4 };
        let mut start = 0;
        for &end in ends.iter().take_while(|&&end| end <= most) {
            last = &here[start..end];
            take(last, ids);
            start = end;
        }
        check(ids.len())?;
        if is_last {
            return Ok(true);
        }
        from += start;
    }
}

/// Where a window ends that would end at a byte: at a character's end, where merging begins with characters.
fn end_of_window(vocabulary: &Vocabulary, piece: &[u8], mut end: usize) -> usize {
    let is_within =
        |end: usize| vocabulary.fallback().of_characters && piece.get(end).is_some_and(|byte| goes_on(*byte));
    while is_within(end) {
        end -= 1;
    }
    piece.len().min(end)
}

/// Whether a byte is within a character of UTF-8.
fn goes_on(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Whether two parts, merged alone, stay two.
fn are_apart(vocabulary: &Vocabulary, left: &[u8], right: &[u8]) -> bool {
    let both = [left, right].concat();
    merged(vocabulary, &both) == [left.len(), both.len()]
}

/// Merges a piece: the ends of its parts, from left to right.
fn merged(vocabulary: &Vocabulary, piece: &[u8]) -> Vec<usize> {
    let mut parts =
        if vocabulary.fallback().of_characters { Parts::of_characters(piece) } else { Parts::of_bytes(piece.len()) };
    let candidate = |parts: &Parts, left: usize| {
        let end = parts.end_of_pair(left)?;
        let rank = vocabulary.merge_rank(&piece[left..end], parts.end[left] - left)?;
        Some(Reverse(Candidate::new(rank, left, end)))
    };
    // Those of single bytes are sorted once; what merging makes of them is fewer.
    let mut first: Vec<_> = (0..piece.len()).filter_map(|left| candidate(&parts, left)).collect();
    first.sort_unstable();
    let mut made = BinaryHeap::new();
    loop {
        let is_of_first = first.last() >= made.peek(); // `Reverse`: the greater merges first
        let next = if is_of_first { first.pop() } else { made.pop() };
        let Some(Reverse(next)) = next else { break };
        let (left, end) = next.pair();
        // A candidate is stale if one of its two has since been merged with another neighbour.
        if parts.end_of_pair(left) != Some(end) {
            continue;
        }
        parts.merge_pair(left);
        if let Some(before) = parts.before(left) {
            made.extend(candidate(&parts, before));
        }
        made.extend(candidate(&parts, left));
    }
    let next = |&start: &usize| Some(parts.end[start]).filter(|&end| end < piece.len());
    let starts = std::iter::successors((!piece.is_empty()).then_some(0), next);
    starts.map(|start| parts.end[start]).collect()
}

/// Two neighbours that make a token. Ordered by what is merged first: the rank, then where they start; a heap compares
/// one number faster than three.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u128);

impl Candidate {
    /// Of a pair that starts at `left` and ends at `end`. Pieces are shorter than 2^48 bytes.
    fn new(rank: u32, left: usize, end: usize) -> Self {
        Self(u128::from(rank) << 96 | (left as u128) << 48 | end as u128)
    }

    /// Where it starts and ends.
    fn pair(self) -> (usize, usize) {
        let bits = |from: u32| (self.0 >> from) as u64 & ((1 << 48) - 1);
        (bits(48) as usize, bits(0) as usize)
    }
}

/// A piece cut into parts: a linked list, indexed by where the parts start.
struct Parts {
    /// Where the part that starts here ends; 0 where no part starts any more.
    end: Vec<usize>,
    /// Where the part before the one that starts here starts.
    before: Vec<usize>,
}

impl Parts {
    fn of_bytes(len: usize) -> Self {
        Self { end: (1..=len).collect(), before: (0..len).map(|start| start.wrapping_sub(1)).collect() }
    }

    fn of_characters(piece: &[u8]) -> Self {
        let mut parts = Self { end: vec![0; piece.len()], before: vec![usize::MAX; piece.len()] };
        let mut start = 0;
        for character in piece.chunk_by(|_, next| goes_on(*next)) {
            let end = start + character.len();
            parts.end[start] = end;
            if let Some(before) = parts.before.get_mut(end) {
                *before = start;
            }
            start = end;
        }
        parts
    }

    /// Where the part after the one at `left` ends; `None` if either of them is not there.
    fn end_of_pair(&self, left: usize) -> Option<usize> {
        let middle = self.end[left];
        (middle > 0 && middle < self.end.len()).then(|| self.end[middle])
    }

    fn before(&self, start: usize) -> Option<usize> {
        (start > 0).then(|| self.before[start])
    }

    fn merge_pair(&mut self, left: usize) {
        let middle = self.end[left];
        let end = self.end[middle];
        self.end[left] = end;
        self.end[middle] = 0;
        if end < self.before.len() {
            self.before[end] = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::vocabulary::{ByteNames, Token, TokenKind};
    use super::*;

    /// The procedure word for word: look at all pairs, merge the best, begin again.
    fn literal(tokens: &[(Vec<u8>, bool)], max_length: usize, piece: &[u8]) -> Vec<u32> {
        let mut ids: HashMap<&[u8], usize> = HashMap::new();
        for (id, (bytes, _)) in tokens.iter().enumerate() {
            ids.entry(bytes).or_insert(id);
        }
        let mut cuts: Vec<usize> = (0..=piece.len()).collect();
        loop {
            let mut best: Option<(usize, usize)> = None;
            for i in 0..cuts.len().saturating_sub(2) {
                let pair = &piece[cuts[i]..cuts[i + 2]];
                let Some(&id) = ids.get(pair) else { continue };
                if pair.len() <= max_length && !tokens[id].1 && best.is_none_or(|(best, _)| id < best) {
                    best = Some((id, i));
                }
            }
            let Some((_, i)) = best else { break };
            cuts.remove(i + 1);
        }
        cuts.windows(2).map(|cut| *ids.get(&piece[cut[0]..cut[1]]).unwrap_or(&0) as u32).collect()
    }

    /// Tokens over three letters, with duplicates, gaps and specials, so that merges collide as often as can be.
    fn tokens() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
        let letter = prop_oneof![Just(b'a'), Just(b'b'), Just(b'c')];
        let token = (prop::collection::vec(letter, 1..6), prop::bool::weighted(0.1));
        prop::collection::vec(token, 1..60)
    }

    fn vocabulary(tokens: &[(Vec<u8>, bool)], max_length: usize) -> Vocabulary {
        let list = tokens.iter().map(|(bytes, is_special)| Token {
            bytes: Bytes::from(bytes.clone()),
            kind: if *is_special { TokenKind::Special } else { TokenKind::Ordinary },
        });
        Vocabulary::new(list.collect(), max_length, ByteNames::Decoded)
    }

    fn endless(_: usize) -> Result<(), Infallible> {
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn merging_with_a_heap_is_the_literal_procedure(
            tokens in tokens(), max_length in 1usize..7, piece in "[abcd]{0,60}"
        ) {
            let vocabulary = vocabulary(&tokens, max_length);
            let mut ids = Vec::new();
            encode_piece(&vocabulary, piece.as_bytes(), &mut ids, endless).unwrap();
            prop_assert_eq!(ids, literal(&tokens, max_length, piece.as_bytes()));
        }

        #[test]
        fn windows_give_what_the_whole_gives_or_say_that_they_do_not_fit(
            tokens in tokens(), piece in "([abc]{1,9}){1,12}|(a|ab|abc){20,60}", window in 8usize..40
        ) {
            let vocabulary = vocabulary(&tokens, 6);
            let (piece, mut ids) = (piece.as_bytes(), Vec::new());
            let take = |part: &[u8], ids: &mut Vec<u32>| ids.push(vocabulary.id(part).unwrap_or(UNKNOWN));
            if encode_windows(&vocabulary, piece, window, &take, &mut ids, &endless).unwrap() {
                prop_assert_eq!(ids, literal(&tokens, 6, piece));
            }
        }
    }

    #[test]
    fn a_long_piece_is_given_up_between_windows() {
        let tokens = [(b"a".to_vec(), false), (b"aa".to_vec(), false)];
        let vocabulary = vocabulary(&tokens, 2);
        let piece = vec![b'a'; 1 << 20];
        let mut ids = Vec::new();
        let check = |n: usize| if n > 10_000 { Err(n) } else { Ok(()) };
        let n = encode_piece(&vocabulary, &piece, &mut ids, check).unwrap_err();
        assert!((10_001..=10_000 + WINDOW).contains(&n), "{n}");
        encode_piece(&vocabulary, &piece[..19_999], &mut Vec::new(), check).unwrap();
    }

    /// Of a walk over letters in which no pair comes twice, pairs merge the sooner the later they stand: what stands at
    /// the end decides how all of it is cut.
    #[test]
    fn windows_that_do_not_fit_are_made_larger() {
        const N_LETTERS: usize = 67; // a prime: steps of any width come to all letters
        let steps = (1..N_LETTERS).flat_map(|width| (1..=N_LETTERS).map(move |step| step * width % N_LETTERS));
        let walk: Vec<u8> = [0].into_iter().chain(steps.map(|letter| letter as u8)).collect();
        let letters = (0..N_LETTERS).map(|letter| (vec![letter as u8], false));
        let pairs = walk.windows(2).rev().map(|pair| (pair.to_vec(), false));
        let tokens: Vec<(Vec<u8>, bool)> = letters.chain(pairs).collect();
        let vocabulary = vocabulary(&tokens, 2);
        assert!(walk.len() > 2 * WINDOW && walk.len() % 2 == 1);

        let id = |part: &[u8]| vocabulary.id(part);
        let take = |part: &[u8], ids: &mut Vec<u32>| ids.extend(id(part));
        let fits = |piece: &[u8]| encode_windows(&vocabulary, piece, WINDOW, &take, &mut Vec::new(), &endless).unwrap();
        assert!(!fits(&walk) && fits(&walk[1..]));
        let mut ids = Vec::new();
        encode_piece(&vocabulary, &walk, &mut ids, endless).unwrap();
        let want: Vec<u32> = [&walk[..1]].into_iter().chain(walk[1..].chunks(2)).filter_map(id).collect();
        assert_eq!(ids, want);
    }
}
