//! The tokens of OpenAI's `o200k_harmony`, which `tiktoken-rs` carries: by id, and by their bytes. A start unpacks
//! nothing: the tables are in the program as `build.rs` wrote them.

mod hash;

/// All tokens' bytes, in the order of their ids.
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bytes"));
/// Where each ends, as little-endian words.
static ENDS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ends"));
/// A hash table of ids, as little-endian words; [`FREE`] where there is none.
static SLOTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/slots"));

const FREE: u32 = u32::MAX;

/// How many tokens there are: ids are smaller.
pub const N_TOKENS: u32 = (ENDS.len() / 4) as u32;

/// Tokens from this one on are special: their bytes are their names.
pub const FIRST_SPECIAL: u32 = number(include_bytes!(concat!(env!("OUT_DIR"), "/first_special")));

const fn number(digits: &[u8]) -> u32 {
    let (mut number, mut i) = (0, 0);
    while i < digits.len() {
        number = 10 * number + (digits[i] - b'0') as u32;
        i += 1;
    }
    number
}

fn word(words: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(words[4 * i..4 * i + 4].try_into().expect("four bytes"))
}

/// The bytes of a token; none if there is no such id.
pub fn piece(id: u32) -> Option<&'static [u8]> {
    if id >= N_TOKENS {
        return None;
    }
    let end = |id: u32| word(ENDS, id as usize) as usize;
    let start = id.checked_sub(1).map_or(0, end);
    Some(&BYTES[start..end(id)])
}

/// The token with exactly these bytes.
pub fn id(bytes: &[u8]) -> Option<u32> {
    let mut slot = hash::first_slot(bytes);
    loop {
        match word(SLOTS, slot) {
            FREE => return None,
            id if piece(id) == Some(bytes) => return Some(id),
            _ => slot = hash::next_slot(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_found_by_its_bytes_and_nothing_else_is() {
        assert_eq!((N_TOKENS, FIRST_SPECIAL), (201_088, 199_998));
        for token in 0..N_TOKENS {
            assert_eq!(id(piece(token).expect("below the end")), Some(token));
        }
        assert_eq!(piece(N_TOKENS), None);
        assert_eq!((id(b""), id(b"no token has as many words as this")), (None, None));
    }

    #[test]
    fn a_search_is_short() {
        let n_looks = |bytes: &[u8]| {
            let mut slot = hash::first_slot(bytes);
            let mut n = 1;
            while word(SLOTS, slot) != FREE {
                (slot, n) = (hash::next_slot(slot), n + 1);
            }
            n
        };
        let all: u64 = (0..N_TOKENS).map(|token| n_looks(piece(token).expect("below the end"))).sum();
        assert!(all < 4 * u64::from(N_TOKENS), "{all}: what begins like a token");
        let missing: u64 = (0..100_000u32).map(|i| n_looks(&i.to_be_bytes())).sum();
        assert!(missing < 300_000, "{missing}");
    }
}
