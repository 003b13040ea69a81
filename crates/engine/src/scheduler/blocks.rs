//! Which slots hold which block of the cache.
//!
//! A block of the pool counts the slots that hold it: all sequences with a common beginning hold its blocks, and none
//! of them writes to these any more. A block without holders is free, or idle if it has a key. A sequence with the
//! same beginning can find an idle block again, until it is the least recently used one when a block is needed.
//!
//! A slot may give up and get blocks while a step is in flight that still writes to its old blocks. This is safe: a
//! device works in order, so the next owner's rows come later, and no row reads a position that its own sequence did
//! not write or find complete.

use std::collections::HashMap;
use std::ops::Range;

use super::lru::Lru;
use super::prefix::{PrefixBlock, PrefixKey};
use crate::graph::kv_cache::KvLayout;

/// The block tables of all slots, and the pool.
#[derive(Debug)]
pub struct BlockTables {
    /// Tables by group: (n_slots, table_blocks), row-major.
    tables: Vec<Vec<u32>>,
    block_tokens: usize,
    /// None if every layer has a window that is shorter than a sequence may be.
    pool: Option<Pool>,
}

/// The blocks of the layers that see everything.
#[derive(Debug)]
struct Pool {
    group: usize,
    table_blocks: usize,
    /// How many slots hold a block.
    holders: Vec<u32>,
    /// Blocks without holder and key.
    free: Vec<u32>,
    /// Blocks without holder, found by their keys.
    idle: Lru,
    names: Vec<Option<PrefixBlock>>,
    by_key: HashMap<PrefixKey, u32>,
    /// Blocks of each slot.
    held: Vec<usize>,
    /// Entries of the table that changed since the last call.
    changes: Vec<Range<usize>>,
    /// Keys under which nothing is found any more.
    evicted: Vec<PrefixKey>,
}

impl BlockTables {
    /// All blocks free. A slot's entries that it does not hold point at a block it may read: rows never look there.
    pub(crate) fn new(layout: &KvLayout) -> Self {
        let groups = layout.groups();
        let ring = |len: usize| (0..len as u32).collect();
        let table = |group: &crate::graph::kv_cache::KvGroup| {
            let len = layout.n_slots * group.table_blocks;
            if group.window.is_some() { ring(len) } else { vec![0; len] }
        };
        let pool = groups.iter().position(|group| group.window.is_none()).map(|group| {
            let n_blocks = groups[group].n_blocks;
            Pool {
                group,
                table_blocks: groups[group].table_blocks,
                holders: vec![0; n_blocks],
                free: (0..n_blocks as u32).rev().collect(),
                idle: Lru::default(),
                names: vec![None; n_blocks],
                by_key: HashMap::new(),
                held: vec![0; layout.n_slots],
                changes: Vec::new(),
                evicted: Vec::new(),
            }
        });
        Self { tables: groups.iter().map(table).collect(), block_tokens: layout.block_tokens, pool }
    }

    /// The table of a group: (n_slots, table_blocks), row-major.
    pub(crate) fn table(&self, group: usize) -> &[u32] {
        &self.tables[group]
    }

    /// The group whose table changed, and which of its entries, since this was asked last: those who keep a copy need
    /// look nowhere else.
    pub(crate) fn take_changes(&mut self) -> Option<(usize, Vec<Range<usize>>)> {
        let pool = self.pool.as_mut().filter(|pool| !pool.changes.is_empty())?;
        Some((pool.group, std::mem::take(&mut pool.changes)))
    }

    /// Blocks that so many positions take.
    pub(crate) fn blocks_of(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_tokens)
    }

    /// Whether there is a pool.
    pub(crate) fn have_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Blocks that a slot could get.
    pub(crate) fn n_available(&self) -> usize {
        self.pool.as_ref().map_or(usize::MAX, |pool| pool.free.len() + pool.idle.len())
    }

    /// Blocks of the pool: held by slots, idle, and all.
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.pool.as_ref().map_or([0; 3], |pool| {
            let (all, idle) = (pool.holders.len(), pool.idle.len());
            [all - idle - pool.free.len(), idle, all]
        })
    }

    /// Whether `slot` has room for `n_tokens` positions.
    pub(crate) fn has_room(&self, slot: usize, n_tokens: usize) -> bool {
        self.pool.as_ref().is_none_or(|pool| n_tokens <= pool.held[slot] * self.block_tokens)
    }

    /// Gives `slot` room for `n_tokens` positions, more than it has; false (and nothing changed) when the pool has too
    /// few blocks.
    pub(crate) fn grow(&mut self, slot: usize, n_tokens: usize) -> bool {
        let n_blocks = self.blocks_of(n_tokens);
        let Some(pool) = &mut self.pool else { return true };
        let held = pool.held[slot];
        if n_blocks > pool.table_blocks || n_blocks.saturating_sub(held) > pool.free.len() + pool.idle.len() {
            return false;
        }
        for i in held..n_blocks {
            let block = pool.take();
            pool.holders[block as usize] = 1;
            self.tables[pool.group][slot * pool.table_blocks + i] = block;
        }
        pool.set_held(slot, held.max(n_blocks));
        true
    }

    /// Takes back the blocks of `slot`. Of blocks with keys, those at the end are reused first: without the blocks
    /// before them they are useless.
    pub(crate) fn release(&mut self, slot: usize) {
        let Some(pool) = &mut self.pool else { return };
        let first = slot * pool.table_blocks;
        let held = std::mem::take(&mut pool.held[slot]);
        for &block in self.tables[pool.group][first..first + held].iter().rev() {
            let holders = &mut pool.holders[block as usize];
            *holders -= 1;
            match (*holders, pool.names[block as usize]) {
                (0, Some(_)) => pool.idle.push(block),
                (0, None) => pool.free.push(block),
                _ => {}
            }
        }
    }

    /// From here on, a search for the name finds this complete block of `slot`. If another block has the name already,
    /// that one stays.
    pub(crate) fn keep(&mut self, slot: usize, name: PrefixBlock) {
        let Some(pool) = &mut self.pool else { return };
        let block = self.tables[pool.group][slot * pool.table_blocks + name.index];
        if pool.names[block as usize].is_none() && !pool.by_key.contains_key(&name.key) {
            pool.name(block, name);
        }
    }

    /// The names of idle blocks, the least recently used first.
    pub(crate) fn idle(&self) -> impl Iterator<Item = PrefixBlock> {
        let pool = self.pool.as_ref();
        pool.into_iter().flat_map(|pool| pool.idle.iter().filter_map(|block| pool.names[block as usize]))
    }

    /// The group of the pool, and the block of it that is found by this key.
    pub(crate) fn place(&self, key: &PrefixKey) -> Option<(usize, usize)> {
        let pool = self.pool.as_ref()?;
        Some((pool.group, *pool.by_key.get(key)? as usize))
    }

    /// A free block for what was kept elsewhere, found by its name from here on; nothing is given up for it.
    pub(crate) fn adopt(&mut self, name: PrefixBlock) -> Option<(usize, usize)> {
        let pool = self.pool.as_mut().filter(|pool| !pool.by_key.contains_key(&name.key))?;
        let block = pool.free.pop()?;
        pool.name(block, name);
        pool.idle.push(block);
        Some((pool.group, block as usize))
    }

    /// Blocks that have neither a holder nor a key; 0 without a pool.
    pub(crate) fn n_free(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.free.len())
    }

    /// What is found by this key was used just now.
    pub(crate) fn used(&mut self, key: &PrefixKey) {
        let Some(pool) = &mut self.pool else { return };
        if let Some(&block) = pool.by_key.get(key).filter(|&&block| pool.holders[block as usize] == 0) {
            pool.idle.push(block);
        }
    }

    /// Whether a block has this key.
    pub(crate) fn has(&self, key: &PrefixKey) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.by_key.contains_key(key))
    }

    /// How many of these keys belong to idle blocks.
    pub(crate) fn n_idle(&self, keys: &[PrefixKey]) -> usize {
        let Some(pool) = &self.pool else { return 0 };
        keys.iter().filter(|key| pool.by_key.get(key).is_some_and(|&block| pool.holders[block as usize] == 0)).count()
    }

    /// Has `slot`, which holds nothing, begin with the blocks of these keys, which are there.
    pub(crate) fn share(&mut self, slot: usize, keys: &[PrefixKey]) {
        let Some(pool) = &mut self.pool else { return };
        assert_eq!(pool.held[slot], 0, "a slot is released before it gets a beginning");
        for (i, key) in keys.iter().enumerate() {
            let block = pool.by_key[key];
            let holders = &mut pool.holders[block as usize];
            *holders += 1;
            if *holders == 1 {
                pool.idle.remove(block);
            }
            self.tables[pool.group][slot * pool.table_blocks + i] = block;
        }
        pool.set_held(slot, keys.len());
    }

    /// Keys under which nothing is found any more, since this was asked last.
    pub(crate) fn take_evicted(&mut self) -> Vec<PrefixKey> {
        self.pool.as_mut().map_or_else(Vec::new, |pool| std::mem::take(&mut pool.evicted))
    }

    /// From here on no block is found by a key.
    pub(crate) fn forget_keys(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        while let Some(block) = pool.idle.pop() {
            pool.free.push(block);
        }
        pool.names.fill(None);
        pool.by_key.clear();
        pool.evicted.clear();
    }
}

impl Pool {
    /// A free block, or the idle one that was used longest ago. The caller knows that there is one.
    fn take(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        let block = self.idle.pop().expect("counted before");
        if let Some(PrefixBlock { key, .. }) = self.names[block as usize].take() {
            self.by_key.remove(&key);
            self.evicted.push(key);
        }
        block
    }

    fn name(&mut self, block: u32, name: PrefixBlock) {
        self.names[block as usize] = Some(name);
        self.by_key.insert(name.key, block);
    }

    fn set_held(&mut self, slot: usize, n_blocks: usize) {
        let (first, held) = (slot * self.table_blocks, std::mem::replace(&mut self.held[slot], n_blocks));
        if n_blocks > held {
            self.changes.push(first + held..first + n_blocks);
        }
    }
}

#[cfg(test)]
impl BlockTables {
    /// The blocks that `slot` holds.
    pub(super) fn held(&self, slot: usize) -> &[u32] {
        let pool = self.pool.as_ref().expect("a pool");
        &self.tables[pool.group][slot * pool.table_blocks..][..pool.held[slot]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::layout;

    fn key(ids: &[u32]) -> PrefixKey {
        PrefixKey::root(0).then(ids)
    }

    fn block(index: usize, key: PrefixKey) -> PrefixBlock {
        PrefixBlock { key, before: PrefixKey::root(0), index }
    }

    #[test]
    fn blocks_are_lent_once_and_come_back() {
        let mut tables = BlockTables::new(&layout(3, 100, 1000, 48));
        assert!(tables.grow(0, 1000) && tables.grow(1, 1000) && tables.grow(2, 1000));
        assert!(!tables.grow(2, 1025), "a table has no more places");
        let mut all = tables.table(0).to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..48).collect::<Vec<_>>());
        tables.release(1);
        assert!(tables.grow(1, 65));
        assert_eq!((tables.n_available(), tables.counts()), (14, [34, 0, 48]));
    }

    #[test]
    fn what_changed_of_a_table_is_told_once() {
        let mut tables = BlockTables::new(&layout(2, 100, 640, 20));
        assert!(tables.grow(0, 1) && tables.grow(1, 130) && tables.grow(0, 64) && tables.grow(0, 65));
        assert_eq!(tables.take_changes(), Some((0, vec![0..1, 10..13, 1..2])));
        assert_eq!(tables.take_changes(), None);
    }

    #[test]
    fn a_kept_block_is_shared_and_then_found_until_the_room_is_needed() {
        let mut tables = BlockTables::new(&layout(3, 100, 256, 6));
        let keys = [key(&[1]), key(&[2]), key(&[3])];
        assert!(tables.grow(0, 192));
        for (i, key) in keys.iter().enumerate() {
            tables.keep(0, block(i, *key));
        }
        tables.share(1, &keys[..1]);
        assert_eq!(tables.held(1), &tables.held(0)[..1]);
        tables.release(0);
        assert_eq!((tables.counts(), tables.n_idle(&keys)), ([1, 2, 6], 2));
        tables.release(1);
        assert_eq!((tables.counts(), tables.n_available()), ([0, 3, 6], 6));
        // Three are free; the fourth is the end of what was kept, though it was given back with what is before it.
        assert!(tables.grow(2, 256));
        assert_eq!(keys.map(|key| tables.has(&key)), [true, true, false]);
        assert!(tables.grow(0, 64));
        assert_eq!(tables.take_evicted(), [keys[2], keys[1]]);
        tables.forget_keys();
        assert_eq!((tables.counts(), tables.has(&keys[0])), ([5, 0, 6], false));
    }

    #[test]
    fn what_was_kept_elsewhere_takes_free_blocks_and_no_others() {
        let mut tables = BlockTables::new(&layout(2, 100, 128, 4));
        assert!(tables.grow(0, 128));
        tables.keep(0, block(0, key(&[1])));
        tables.release(0);
        assert!(tables.grow(0, 128)); // two are free, and the one that is found is another
        let names = [2, 3].map(|id| block(0, key(&[id])));
        assert_eq!(tables.adopt(block(0, key(&[1]))), None, "it is there");
        let (group, place) = tables.adopt(names[0]).expect("one is free");
        assert_eq!(tables.place(&names[0].key), Some((group, place)));
        assert!(!tables.held(0).contains(&(place as u32)));
        assert_eq!((tables.n_free(), tables.adopt(names[1])), (0, None));
        let order = |tables: &BlockTables| tables.idle().map(|name| name.key).collect::<Vec<_>>();
        assert_eq!(order(&tables), [key(&[1]), key(&[2])]);
        tables.used(&key(&[1]));
        assert_eq!(order(&tables), [key(&[2]), key(&[1])]);
    }

    #[test]
    fn two_blocks_of_the_same_text_have_one_key() {
        let mut tables = BlockTables::new(&layout(2, 100, 128, 4));
        assert!(tables.grow(0, 64) && tables.grow(1, 64));
        tables.keep(0, block(0, key(&[1])));
        tables.keep(1, block(0, key(&[1])));
        tables.release(1);
        assert_eq!(tables.counts(), [1, 0, 4]);
        tables.release(0);
        assert_eq!(tables.counts(), [0, 1, 4]);
    }

    #[test]
    fn a_model_whose_layers_all_have_windows_has_no_pool() {
        let without = BlockTables::new(&crate::graph::kv_cache::tests::rings_alone());
        assert_eq!([&without, &BlockTables::new(&layout(2, 100, 128, 4))].map(BlockTables::have_pool), [false, true]);
        assert_eq!((without.counts(), without.n_free()), ([0; 3], 0));
    }
}
