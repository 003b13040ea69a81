//! Gives the prefix cache's contents to code that stores them elsewhere, and takes them back.

use super::Scheduler;
use super::prefix::{BlockRange, PrefixBlock};
use super::step::BlockCopy;

/// A part of what is kept of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PrefixPart {
    /// Its last block, in the layers that see everything.
    Block,
    /// What the next token sees of the layers with a window.
    Windows,
}

impl Scheduler {
    /// Prefixes whose last block is idle, the least recently used first.
    pub(crate) fn kept(&self) -> Vec<PrefixBlock> {
        if self.keeps_prefixes { self.tables.idle().collect() } else { Vec::new() }
    }

    /// Whether a sequence begins after a prefix only where its windows are there, too.
    pub(crate) fn needs_windows(&self) -> bool {
        !self.snapshots.ranges(0, 0).is_empty()
    }

    /// Where a part of a prefix lies, if it is there.
    pub(crate) fn part(&self, name: &PrefixBlock, part: PrefixPart) -> Option<Vec<BlockRange>> {
        match part {
            PrefixPart::Block => {
                let (group, first) = self.tables.place(&name.key)?;
                Some(vec![BlockRange { group, first, n_blocks: 1 }])
            }
            PrefixPart::Windows => self.snapshots.place(name),
        }
    }

    /// Free room for a part of a prefix, which is found from here on. `None` where it is there, or where no room is
    /// free: nothing is given up for it.
    pub(crate) fn adopt(&mut self, name: &PrefixBlock, part: PrefixPart) -> Option<Vec<BlockRange>> {
        match part {
            _ if !self.keeps_prefixes => None,
            PrefixPart::Block => {
                let (group, first) = self.tables.adopt(*name)?;
                Some(vec![BlockRange { group, first, n_blocks: 1 }])
            }
            PrefixPart::Windows => self.snapshots.adopt(name),
        }
    }

    /// Blocks and snapshots that could be adopted.
    pub(crate) fn room(&self) -> (usize, bool) {
        (self.tables.n_free(), self.snapshots.has_room())
    }

    /// A prefix was used just now.
    pub(crate) fn used(&mut self, name: &PrefixBlock) {
        self.tables.used(&name.key);
        self.snapshots.used(&name.key);
    }

    /// The copies that were due before the next step, for a caller that makes them now.
    pub(crate) fn take_copies(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.copies)
    }
}
