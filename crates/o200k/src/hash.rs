//! Where a token is in the table: `build.rs` fills it, `lib.rs` looks into it.

/// 2^19 for 201,088 tokens: that something is not there is known after two looks, as a rule.
pub(crate) const N_SLOTS: usize = 1 << 19;

/// The slot where a search for these bytes begins: FNV-1a, its upper bits mixed into the lower ones.
pub(crate) fn first_slot(bytes: &[u8]) -> usize {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ (hash >> 32)) as usize % N_SLOTS
}

pub(crate) fn next_slot(slot: usize) -> usize {
    (slot + 1) % N_SLOTS
}
