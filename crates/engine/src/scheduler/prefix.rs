//! The prefix cache: skips computing the beginning of a sequence if another one began with the same tokens.
//!
//! A prefix ends at the end of a block. Its key covers everything that determines the block's contents: the salt and
//! all tokens up to there. For layers with full attention the blocks themselves are found by their keys
//! ([`super::blocks`]). Window layers keep only the last positions of a slot, in a ring that the next sequence takes
//! over; so copies of rings are kept, the snapshots. A sequence may begin after a block if that block and all before
//! it are there, and, for models with windows, a snapshot with its key.
//!
//! Snapshots are made only at block boundaries. Then they need only whole blocks, no sequence ever writes to a block
//! that another one holds, and a sequence computes at most 63 tokens again, in the step that reads its new tokens
//! anyway.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::lru::Lru;
use super::step::BlockCopy;
use crate::graph::kv_cache::{BLOCK_TOKENS, KvLayout};

/// The name of a prefix: a digest, so no two prefixes with the same name can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixKey(pub(crate) [u8; 32]);

/// The last block of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixBlock {
    /// Of the prefix that it ends.
    pub(crate) key: PrefixKey,
    /// Of the one that is before it.
    pub(crate) before: PrefixKey,
    /// Blocks before it.
    pub(crate) index: usize,
}

/// Blocks of a group of layers side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) group: usize,
    pub(crate) first: usize,
    pub(crate) n_blocks: usize,
}

impl PrefixKey {
    /// The empty prefix, from which all prefixes with this salt begin.
    pub fn root(salt: u64) -> Self {
        Self(Sha256::digest(salt.to_le_bytes()).into())
    }

    /// Of what this is the name of, and these tokens.
    #[must_use]
    pub fn then(&self, ids: &[u32]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
        Self(hasher.finalize().into())
    }
}

/// Which snapshots there are, and where they lie.
#[derive(Debug)]
pub(super) struct Snapshots {
    rings: Vec<Ring>,
    free: Vec<u32>,
    order: Lru,
    keys: Vec<Option<PrefixKey>>,
    by_key: HashMap<PrefixKey, u32>,
}

/// The rings of a group of layers.
#[derive(Debug)]
struct Ring {
    group: usize,
    table_blocks: usize,
    /// Where the snapshots begin, in blocks.
    first_snapshot: usize,
    /// Blocks of one of them.
    snapshot_blocks: usize,
}

impl Snapshots {
    pub(crate) fn new(layout: &KvLayout) -> Self {
        let ring = |(group, of): (usize, &crate::graph::kv_cache::KvGroup)| {
            let (table_blocks, snapshot_blocks) = (of.table_blocks, of.snapshot_blocks());
            let first_snapshot = layout.n_slots * table_blocks;
            of.window.map(|_| Ring { group, table_blocks, first_snapshot, snapshot_blocks })
        };
        Self {
            rings: layout.groups().iter().enumerate().filter_map(ring).collect(),
            free: (0..layout.n_snapshots as u32).rev().collect(),
            order: Lru::default(),
            keys: vec![None; layout.n_snapshots],
            by_key: HashMap::new(),
        }
    }

    /// Whether a sequence may begin after the block of this key, as far as rings go.
    pub(crate) fn has(&self, key: &PrefixKey) -> bool {
        self.rings.is_empty() || self.by_key.contains_key(key)
    }

    /// Where the snapshot for a prefix lies: of each ring as much as was seen there. `None` where there is none, or no
    /// ring.
    pub(crate) fn place(&self, name: &PrefixBlock) -> Option<Vec<BlockRange>> {
        self.by_key.get(&name.key).map(|&snapshot| self.ranges(snapshot, name.index))
    }

    /// A free snapshot for what was kept elsewhere; none is given up for it.
    pub(crate) fn adopt(&mut self, name: &PrefixBlock) -> Option<Vec<BlockRange>> {
        if self.rings.is_empty() || self.by_key.contains_key(&name.key) {
            return None;
        }
        let snapshot = self.free.pop()?;
        self.keys[snapshot as usize] = Some(name.key);
        self.by_key.insert(name.key, snapshot);
        self.order.push(snapshot);
        Some(self.ranges(snapshot, name.index))
    }

    /// Whether another could be adopted.
    pub(crate) fn has_room(&self) -> bool {
        !self.rings.is_empty() && !self.free.is_empty()
    }

    /// What a snapshot for the prefix that ends with block `index` takes, free or not.
    pub(crate) fn ranges(&self, snapshot: u32, index: usize) -> Vec<BlockRange> {
        let range = |ring: &Ring| BlockRange {
            group: ring.group,
            first: ring.first_snapshot + snapshot as usize * ring.snapshot_blocks,
            n_blocks: ring.seen((index + 1) * BLOCK_TOKENS).len(),
        };
        self.rings.iter().map(range).collect()
    }

    /// The snapshot for this key was used just now.
    pub(crate) fn used(&mut self, key: &PrefixKey) {
        if let Some(&snapshot) = self.by_key.get(key) {
            self.order.push(snapshot);
        }
    }

    /// The copies that make the rings of `slot` what they were at `position`, where the block of `key` ends.
    pub(crate) fn restore(&mut self, key: &PrefixKey, slot: usize, position: usize, copies: &mut Vec<BlockCopy>) {
        let Some(&snapshot) = self.by_key.get(key) else { return };
        self.order.push(snapshot);
        for ring in &self.rings {
            ring.pair(slot, snapshot, position, |[of_slot, kept]| push(copies, ring.group, kept, of_slot));
        }
    }

    /// Plans the copies that keep the rings of `slot` as they were at `position`, where the block of `key` ends, unless
    /// they are kept already or the rings no longer hold all of it. `newest` is the last position written to them;
    /// without drafts it is in the block before or after `position`, and the rings hold all. Returns whether they do.
    pub(crate) fn keep(
        &mut self,
        key: PrefixKey,
        slot: usize,
        position: usize,
        newest: usize,
        copies: &mut Vec<BlockCopy>,
    ) -> bool {
        if let Some(&snapshot) = self.by_key.get(&key) {
            self.order.push(snapshot);
            return true;
        }
        if !self.rings.iter().all(|ring| ring.holds(position, newest)) {
            return false;
        }
        let free = if self.rings.is_empty() { None } else { self.free.pop().or_else(|| self.order.pop()) };
        let Some(snapshot) = free else { return true };
        if let Some(former) = self.keys[snapshot as usize].replace(key) {
            self.by_key.remove(&former);
        }
        self.by_key.insert(key, snapshot);
        self.order.push(snapshot);
        for ring in &self.rings {
            ring.pair(slot, snapshot, position, |[of_slot, kept]| push(copies, ring.group, of_slot, kept));
        }
        true
    }

    /// Gives up the snapshot of a prefix whose blocks are gone.
    pub(crate) fn give_up(&mut self, key: &PrefixKey) {
        if let Some(snapshot) = self.by_key.remove(key) {
            self.keys[snapshot as usize] = None;
            self.order.remove(snapshot);
            self.free.push(snapshot);
        }
    }

    /// Gives up all of them.
    pub(crate) fn forget(&mut self) {
        let keys: Vec<PrefixKey> = self.by_key.keys().copied().collect();
        keys.iter().for_each(|key| self.give_up(key));
    }
}

impl Ring {
    /// The blocks before `position`, oldest first, that hold what a token there sees.
    fn seen(&self, position: usize) -> std::ops::Range<usize> {
        let end = position / BLOCK_TOKENS;
        end.saturating_sub(self.snapshot_blocks)..end
    }

    /// Whether all of that is still there when `newest` was written.
    fn holds(&self, position: usize, newest: usize) -> bool {
        newest / BLOCK_TOKENS < self.seen(position).start + self.table_blocks
    }

    /// Every block that a slot's ring has of it, beside the block of a snapshot that is for it.
    fn pair(&self, slot: usize, snapshot: u32, position: usize, mut each: impl FnMut([usize; 2])) {
        let kept = self.first_snapshot + snapshot as usize * self.snapshot_blocks;
        for (i, block) in self.seen(position).enumerate() {
            each([slot * self.table_blocks + block % self.table_blocks, kept + i]);
        }
    }
}

/// Adds the copy of a block, to the last one if it goes on where that ends.
fn push(copies: &mut Vec<BlockCopy>, group: usize, from: usize, to: usize) {
    if let Some(last) = copies.last_mut()
        && (last.group, last.from + last.n_blocks, last.to + last.n_blocks) == (group, from, to)
    {
        last.n_blocks += 1;
    } else {
        copies.push(BlockCopy { group, from, to, n_blocks: 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::kv_cache::tests::windowed_layout;

    #[test]
    fn a_snapshot_that_is_taken_over_is_the_last_to_go() {
        let mut snapshots = Snapshots::new(&windowed_layout([1, 64, 1024, 16], 128, 2));
        let [first, second, third] = [1, 2, 3].map(PrefixKey::root);
        let mut copies = Vec::new();
        assert!(snapshots.keep(first, 0, 128, 128, &mut copies) && snapshots.keep(second, 0, 192, 192, &mut copies));
        snapshots.restore(&first, 0, 128, &mut copies);
        assert!(snapshots.keep(third, 0, 256, 256, &mut copies));
        assert_eq!([first, second, third].map(|key| snapshots.has(&key)), [true, false, true]);
    }

    #[test]
    fn a_ring_holds_what_is_seen_until_a_block_of_it_is_written_again() {
        let mut snapshots = Snapshots::new(&windowed_layout([1, 64, 4096, 64], 128, 8));
        let (table_blocks, seen_blocks) = (snapshots.rings[0].table_blocks, snapshots.rings[0].snapshot_blocks);
        assert!(table_blocks > seen_blocks);
        for (salt, first) in [(0, 0), (1, 5)] {
            let (position, past) = ((first + seen_blocks) * BLOCK_TOKENS, (first + table_blocks) * BLOCK_TOKENS);
            let mut keep = |newest| snapshots.keep(PrefixKey::root(salt), 0, position, newest, &mut Vec::new());
            assert_eq!([keep(past), keep(past - 1)], [false, true], "the first block that is seen is block {first}");
        }
    }

    #[test]
    fn a_snapshot_that_is_taken_in_lies_behind_the_slots_and_holds_what_is_seen() {
        let layout = windowed_layout([3, 64, 1024, 48], 128, 2);
        let mut snapshots = Snapshots::new(&layout);
        let Ring { group, table_blocks, snapshot_blocks, .. } = snapshots.rings[0];
        let first = layout.n_slots * table_blocks;
        assert!(snapshot_blocks > 1);
        let name = |id, index| PrefixBlock { key: PrefixKey::root(id), before: PrefixKey::root(0), index };
        let range = |first, n_blocks| Some(vec![BlockRange { group, first, n_blocks }]);
        assert!(snapshots.has_room());
        assert_eq!(snapshots.adopt(&name(1, 0)), range(first, 1), "of one block no more than that");
        assert_eq!(snapshots.adopt(&name(1, 0)), None, "it is there");
        let second = range(first + snapshot_blocks, snapshot_blocks);
        assert_eq!(snapshots.adopt(&name(2, 9)), second);
        assert_eq!((snapshots.place(&name(2, 9)), snapshots.place(&name(3, 9))), (second, None));
        assert_eq!((snapshots.adopt(&name(3, 1)), snapshots.has_room()), (None, false));
    }

    #[test]
    fn a_snapshot_that_is_given_up_is_not_found_and_its_place_is_the_next_ones() {
        let mut snapshots = Snapshots::new(&windowed_layout([1, 64, 1024, 16], 128, 2));
        let [first, second, third] = [1, 2, 3].map(PrefixKey::root);
        let keep = |snapshots: &mut Snapshots, key, position| {
            let mut copies = Vec::new();
            assert!(snapshots.keep(key, 0, position, position, &mut copies));
            copies.into_iter().map(|copy| copy.to).collect::<Vec<_>>()
        };
        keep(&mut snapshots, first, 128);
        let place = keep(&mut snapshots, second, 192);
        snapshots.give_up(&second);
        assert_eq!([first, second].map(|key| snapshots.has(&key)), [true, false]);
        assert_eq!(keep(&mut snapshots, third, 256), place);
        assert_eq!([first, third].map(|key| snapshots.has(&key)), [true, true]);
        snapshots.forget();
        assert_eq!([first, third].map(|key| snapshots.has(&key)), [false, false]);
    }

    #[test]
    fn copies_that_go_on_where_one_ends_are_one() {
        let mut copies = Vec::new();
        for (group, from, to) in [(0, 5, 9), (0, 6, 10), (0, 7, 11), (0, 8, 20), (0, 21, 21), (1, 22, 22)] {
            push(&mut copies, group, from, to);
        }
        let copy = |group, from, to, n_blocks| BlockCopy { group, from, to, n_blocks };
        assert_eq!(copies, [copy(0, 5, 9, 3), copy(0, 8, 20, 1), copy(0, 21, 21, 1), copy(1, 22, 22, 1)]);
    }
}
