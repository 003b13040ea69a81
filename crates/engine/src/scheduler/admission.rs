//! Which sequence gets a slot, and which gives up its blocks.
//!
//! No sequence waits forever. The oldest running sequence never loses its blocks, and a sequence alone always has room;
//! so it ends, and the next one is the oldest. A preempted sequence is at the front of the queue, where none overtakes
//! it. Another one that waits there for blocks is overtaken a limited number of times.
//!
//! Background requests are the exception: they wait as long as others want their slots or blocks.

use super::Scheduler;
use super::request::Event;
use super::sequence::Sequence;

/// How often a sequence that waits for blocks is overtaken.
const MAX_OVERTAKEN: usize = 16;

/// How far from the front of the queue to look for a request that fits.
const LOOK_BEHIND: usize = 8;

/// Which request gets a slot next.
enum Next {
    /// That one in the queue; so many of its blocks are there already.
    One {
        index: usize,
        n_found: usize,
    },
    /// A request waits, but there are not enough blocks.
    NoBlocks,
    Nobody,
}

impl Scheduler {
    /// Gives every generating sequence the block of its next position. While there are too few, the youngest sequence
    /// is preempted.
    pub(super) fn make_room(&mut self) {
        loop {
            let n_growing = (0..self.slots.len()).filter(|&slot| self.must_grow(slot)).count();
            if n_growing == 0 {
                return;
            }
            if n_growing <= self.tables.n_available() {
                break;
            }
            let running = self.slots.iter().enumerate();
            let running = running.filter_map(|(slot, s)| s.as_ref().map(|s| (s.is_background(), s.id, slot)));
            let (_, _, slot) = running.max().expect("one that grows");
            self.preempt(slot);
        }
        for slot in 0..self.slots.len() {
            if self.must_grow(slot)
                && let Some(sequence) = &self.slots[slot]
            {
                assert!(self.tables.grow(slot, sequence.n_forwarded + 1), "counted above");
            }
        }
    }

    /// Whether the next row of a slot needs a block that it does not hold. A prompt has all of its blocks.
    fn must_grow(&self, slot: usize) -> bool {
        let Some(sequence) = &self.slots[slot] else { return false };
        sequence.is_generating() && !self.tables.has_room(slot, sequence.n_forwarded + 1)
    }

    /// Puts a sequence back to the front of the queue, or of its part that is in the background. Its tokens and random
    /// numbers go with it, also the one that a step in flight is generating, so it goes on as if nothing had happened.
    fn preempt(&mut self, slot: usize) {
        let Some(mut sequence) = self.vacate(slot) else { return };
        sequence.start_over();
        let place = if sequence.is_background() { self.n_foreground() } else { 0 };
        self.waiting.insert(place, sequence);
        self.figures.preemptions += 1;
    }

    /// Fills the slots that are free, in the order of the queue as far as blocks allow. Who is not in the background
    /// gets what those have who are: one after the other gives its slot and its blocks, the youngest first.
    pub(super) fn admit(&mut self) {
        loop {
            let is_short = self.fill_slots();
            let is_background = |sequence: &Sequence| sequence.is_background();
            if !is_short || self.waiting.front().is_none_or(is_background) {
                return;
            }
            let running = self.slots.iter().enumerate();
            let background =
                running.filter_map(|(slot, s)| s.as_ref().filter(|s| s.is_background()).map(|s| (s.id, slot)));
            let Some((_, slot)) = background.max() else { return };
            self.preempt(slot);
        }
    }

    /// Whether those who wait lack slots, or the first of them blocks.
    fn fill_slots(&mut self) -> bool {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let (index, n_found) = match self.next_to_admit() {
                Next::One { index, n_found } => (index, n_found),
                Next::NoBlocks => return true,
                Next::Nobody => return false,
            };
            let Some(sequence) = self.waiting.remove(index) else { return false };
            if index > 0 {
                self.waiting[0].n_overtaken += 1;
            }
            self.begin(slot, sequence, n_found);
        }
        !self.waiting.is_empty()
    }

    /// Who in the queue gets a slot next.
    fn next_to_admit(&mut self) -> Next {
        let Some(front) = self.waiting.front() else { return Next::Nobody };
        let is_background = front.is_background();
        let may_overtake = !front.is_preempted && front.n_overtaken < MAX_OVERTAKEN;
        let last = if may_overtake { LOOK_BEHIND } else { 0 };
        // What those who run may still need, a block each: else who is admitted now would soon be preempted.
        let may_grow = |(slot, sequence): (usize, &Option<Sequence>)| {
            sequence.as_ref().is_some_and(|sequence| !self.tables.has_room(slot, sequence.n_positions()))
        };
        let n_reserved = self.slots.iter().enumerate().filter(|slot| may_grow(*slot)).count();
        let Some(n_available) = self.tables.n_available().checked_sub(n_reserved) else { return Next::NoBlocks };
        let mut lacks_blocks = false;
        for index in 0..self.waiting.len().min(1 + last) {
            let sequence = &mut self.waiting[index];
            if sequence.is_background() != is_background {
                break; // who is in the background overtakes nobody who is not
            }
            if !sequence.is_known() {
                return Next::Nobody; // its last token is on its way
            }
            if self.keeps_prefixes {
                sequence.make_keys(self.block_tokens);
            }
            let sequence = &self.waiting[index];
            let n_found = self.found(sequence);
            if self.is_being_computed(sequence, n_found) {
                continue;
            }
            let n_new = self.tables.blocks_of(sequence.tokens.len()) - n_found;
            if n_new + self.tables.n_idle(&sequence.keys[..n_found]) <= n_available {
                return Next::One { index, n_found };
            }
            lacks_blocks = true;
        }
        if lacks_blocks { Next::NoBlocks } else { Next::Nobody }
    }

    /// How many blocks a sequence may begin with: one token at least is left to compute, and all that are to tell how
    /// probable the next one is.
    fn found(&self, sequence: &Sequence) -> usize {
        if !self.keeps_prefixes {
            return 0;
        }
        let n_tokens = sequence.tokens.len() - 1;
        let n_tokens = if sequence.is_scored() { sequence.n_scored } else { n_tokens };
        let most = n_tokens / self.block_tokens;
        let there = sequence.keys[..most].iter().take_while(|key| self.tables.has(key)).count();
        (1..=there).rev().find(|&n| self.snapshots.has(&sequence.keys[n - 1])).unwrap_or(0)
    }

    /// Whether one that runs computes all that this one could begin with, and more than is there: several answers to
    /// one prompt compute it once.
    fn is_being_computed(&self, waiting: &Sequence, n_found: usize) -> bool {
        let most = |sequence: &Sequence| (sequence.tokens.len() - 1) / self.block_tokens;
        let n_blocks = most(waiting);
        let same = |sequence: &&Sequence| {
            let key = |of: &Sequence| n_blocks.checked_sub(1).and_then(|last| of.keys.get(last)).copied();
            most(sequence) == n_blocks && key(sequence).is_some() && key(sequence) == key(waiting)
        };
        let may_wait_for = |sequence: &Sequence| waiting.is_background() || !sequence.is_background();
        let computes = |sequence: &&Sequence| sequence.is_kept && sequence.n_generated == 0 && may_wait_for(sequence);
        let mut running = self.slots.iter().flatten();
        let may_begin = self.keeps_prefixes && !waiting.is_scored();
        may_begin && n_found < n_blocks && running.any(|sequence| computes(&sequence) && same(&sequence))
    }

    /// Gives a sequence its slot, its blocks, and what of it is there.
    fn begin(&mut self, slot: usize, mut sequence: Sequence, n_found: usize) {
        let n_cached = n_found * self.block_tokens;
        if n_found > 0 {
            let keys = &sequence.keys[..n_found];
            self.tables.share(slot, keys);
            self.snapshots.restore(&keys[n_found - 1], slot, n_cached, &mut self.copies);
        }
        assert!(self.tables.grow(slot, sequence.tokens.len()), "counted before it was admitted");
        (sequence.n_forwarded, sequence.n_written) = (n_cached, n_cached);
        (sequence.n_kept, sequence.last_snapshot) = (n_found, n_cached);
        sequence.is_preempted = false;
        if !std::mem::replace(&mut sequence.was_admitted, true) {
            self.events.push(Event::Admitted { request: sequence.id, cached_tokens: n_cached });
            if self.keeps_prefixes {
                self.figures.prefix_query_tokens += sequence.n_prompt as u64;
                self.figures.prefix_hit_tokens += n_cached as u64;
            }
        }
        self.slots[slot] = Some(sequence);
    }
}
