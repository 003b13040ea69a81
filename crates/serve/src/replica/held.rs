//! An estimate of a replica's prefix cache, from the prompts that were sent to it.

use std::collections::HashSet;

use engine::scheduler::PrefixKey;

/// The names of the prefixes of a request, one for each complete block.
#[derive(Clone, Debug)]
pub(super) struct Prefixes {
    root: PrefixKey,
    block_tokens: usize,
    keys: Vec<PrefixKey>,
}

impl Prefixes {
    /// Of a prompt. Others with the same salt have the same names.
    pub(crate) fn new(cache_salt: u64, block_tokens: usize, prompt: &[u32]) -> Self {
        let mut prefixes = Self { root: PrefixKey::root(cache_salt), block_tokens, keys: Vec::new() };
        prefixes.follow(prompt, &[]);
        prefixes
    }

    /// Goes on: the prompt has been followed by this.
    pub(crate) fn follow(&mut self, prompt: &[u32], generated: &[u32]) {
        let ids = [prompt, generated].concat();
        for block in ids.chunks_exact(self.block_tokens).skip(self.keys.len()) {
            let before = self.keys.last().unwrap_or(&self.root);
            self.keys.push(before.then(block));
        }
    }
}

/// Prefixes that went to a replica lately: about as many blocks as its cache has.
#[derive(Debug)]
pub(super) struct Held {
    /// Half of them at most.
    most: usize,
    /// Those since the last time that these were half of them, and those before.
    young: HashSet<PrefixKey>,
    old: HashSet<PrefixKey>,
}

impl Held {
    /// Nothing, of a cache of this many blocks.
    pub(crate) fn new(n_blocks: usize) -> Self {
        Self { most: n_blocks.div_ceil(2).max(1), young: HashSet::new(), old: HashSet::new() }
    }

    /// How many blocks of these are there, from the beginning on.
    pub(crate) fn n_blocks(&self, of: &Prefixes) -> usize {
        of.keys.iter().take_while(|key| self.young.contains(key) || self.old.contains(key)).count()
    }

    /// These are there now, whatever else is.
    pub(crate) fn keep(&mut self, of: &Prefixes) {
        for key in &of.keys {
            if self.young.len() >= self.most {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(ids: &[u32]) -> Prefixes {
        Prefixes::new(7, 2, ids)
    }

    #[test]
    fn what_begins_alike_is_found_as_far_as_whole_blocks_go() {
        let mut held = Held::new(100);
        let mut of = prefixes(&[1, 2, 3, 4, 5]);
        held.keep(&of);
        let found = |held: &Held, ids: &[u32]| held.n_blocks(&prefixes(ids));
        assert_eq!(found(&held, &[1, 2, 3, 4, 5, 6, 7, 8]), 2);
        assert_eq!((found(&held, &[1, 2, 3]), found(&held, &[1]), found(&held, &[3, 4])), (1, 0, 0));
        assert_eq!(held.n_blocks(&Prefixes::new(8, 2, &[1, 2, 3, 4])), 0, "another's");
        of.follow(&[1, 2, 3, 4, 5], &[6, 7, 8]);
        held.keep(&of);
        assert_eq!(found(&held, &[1, 2, 3, 4, 5, 6, 7, 8]), 4);
    }

    #[test]
    fn no_more_is_known_than_a_cache_holds_and_what_came_last_is() {
        let mut held = Held::new(10);
        let one = |i: u32| prefixes(&[i, i]);
        for i in 0..1000 {
            held.keep(&one(i));
            assert!(held.len() <= 10);
        }
        assert!((995..1000).all(|i| held.n_blocks(&one(i)) == 1));
        assert_eq!(held.n_blocks(&one(500)), 0);
    }
}
