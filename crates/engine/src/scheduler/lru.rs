//! A list in the order of last use.

use std::collections::{BTreeMap, HashMap};

/// Numbers in the order in which they were put in.
#[derive(Debug, Default)]
pub(super) struct Lru {
    by_turn: BTreeMap<u64, u32>,
    turn_of: HashMap<u32, u64>,
    next_turn: u64,
}

impl Lru {
    pub(crate) fn len(&self) -> usize {
        self.by_turn.len()
    }

    /// Puts a number after all others, from wherever it was.
    pub(crate) fn push(&mut self, number: u32) {
        self.remove(number);
        self.by_turn.insert(self.next_turn, number);
        self.turn_of.insert(number, self.next_turn);
        self.next_turn += 1;
    }

    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(turn) = self.turn_of.remove(&number) {
            self.by_turn.remove(&turn);
        }
    }

    /// All of them, the one that was put in first first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.by_turn.values().copied()
    }

    /// Takes out the number that was put in first.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let (_, number) = self.by_turn.pop_first()?;
        self.turn_of.remove(&number);
        Some(number)
    }
}
