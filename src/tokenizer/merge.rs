//! Byte-pair encoding of one piece: the pair of the lowest rank is merged, the leftmost of equals, until none is left.
//! The rank is the id of what the pair makes, or its place in a list of merges. A heap of candidate pairs makes that
//! O(n log n) in the length of the piece.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::vocabulary::Vocabulary;

/// What bytes become for which there is no token, as in gpt-oss-amd.
const UNKNOWN: u32 = 0;

/// Encodes a piece as gpt-oss-amd does: always by merging from single bytes.
pub(super) fn encode_piece(vocabulary: &Vocabulary, piece: &[u8], ids: &mut Vec<u32>) {
    merge(vocabulary, piece, |part| ids.push(vocabulary.id(part).unwrap_or(UNKNOWN)));
}

/// Encodes a word as OpenAI does: a word that is a token is that token (unless a list of merges says that it is not
/// so). A byte without a token of its own is given the token `<0xHH>`: in a `tokenizer.bin` the NUL byte is stored so.
pub(super) fn encode_word(vocabulary: &Vocabulary, word: &str, ids: &mut Vec<u32>) {
    let word = word.as_bytes();
    if let Some(id) = vocabulary.word(word) {
        ids.push(id);
        return;
    }
    merge(vocabulary, word, |part| {
        let byte_token = || vocabulary.byte_token(*part.first()?).filter(|_| part.len() == 1);
        ids.push(vocabulary.id(part).or_else(byte_token).unwrap_or(UNKNOWN));
    });
}

/// Merges a piece and gives its parts from left to right.
fn merge<'a>(vocabulary: &Vocabulary, piece: &'a [u8], mut part: impl FnMut(&'a [u8])) {
    let mut parts = Parts::of_bytes(piece.len());
    let mut candidates = BinaryHeap::new();
    let offer = |candidates: &mut BinaryHeap<Reverse<Candidate>>, parts: &Parts, left: usize| {
        let Some(end) = parts.end_of_pair(left) else { return };
        if let Some(rank) = vocabulary.merge_rank(&piece[left..end], parts.end[left] - left) {
            candidates.push(Reverse(Candidate { rank, left, end }));
        }
    };
    for left in 0..piece.len() {
        offer(&mut candidates, &parts, left);
    }
    while let Some(Reverse(Candidate { left, end, .. })) = candidates.pop() {
        // A candidate is stale if one of its two has since been merged with another neighbour.
        if parts.end_of_pair(left) != Some(end) {
            continue;
        }
        parts.merge_pair(left);
        if let Some(before) = parts.before(left) {
            offer(&mut candidates, &parts, before);
        }
        offer(&mut candidates, &parts, left);
    }
    let mut start = 0;
    while start < piece.len() {
        let end = parts.end[start];
        part(&piece[start..end]);
        start = end;
    }
}

/// Two neighbours that make a token. Ordered by what is merged first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    end: usize,
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

    proptest! {
        #[test]
        fn merging_with_a_heap_is_the_literal_procedure(
            tokens in tokens(), max_length in 1usize..7, piece in "[abcd]{0,60}"
        ) {
            let list = tokens.iter().map(|(bytes, is_special)| Token {
                bytes: Bytes::from(bytes.clone()),
                kind: if *is_special { TokenKind::Special } else { TokenKind::Ordinary },
            });
            let vocabulary = Vocabulary::new(list.collect(), max_length, ByteNames::Decoded);
            let mut ids = Vec::new();
            encode_piece(&vocabulary, piece.as_bytes(), &mut ids);
            prop_assert_eq!(ids, literal(&tokens, max_length, piece.as_bytes()));
        }
    }
}
