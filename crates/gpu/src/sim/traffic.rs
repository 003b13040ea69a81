//! How the lanes of a wave access memory together, if requested: which banks of LDS they meet in, and how many cache
//! lines they touch. A lane's nth access at a place of the code, between two places where the wave meets, counts with
//! the nth access of the other lanes there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::context::{Context, Watch, range_of, recent_range};
use super::object::Object;

/// Banks of LDS, of four bytes each.
const BANKS: usize = 32;

/// Bytes of a line of the cache.
const LINE: usize = 128;

/// Where an access goes: LDS or global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    Lds,
    Global,
}

/// Accesses of waves in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many: one access of all lanes of a wave counts once.
    pub n: u64,
    /// Of LDS the cycles that its banks take, of other memory the lines that are touched.
    pub taken: u64,
    /// The same if lanes went to it in the best way.
    pub least: u64,
}

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static TOTAL: Mutex<BTreeMap<(u32, Space), Traffic>> = Mutex::new(BTreeMap::new());

/// An access of a wave: the place in the code, and which of each lane's there.
type Together = (usize, u32);

#[derive(Default)]
struct Open {
    /// How often each thread was in each place.
    counts: HashMap<(u32, usize), u32>,
    together: HashMap<Together, (Space, Vec<(usize, u32)>)>,
    done: BTreeMap<(usize, Space), Traffic>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::new(Open::default());
}

/// From now on, accesses of this process' simulated kernels are counted, or are not.
pub fn count_traffic(is_counted: bool) {
    IS_COUNTED.store(is_counted, Ordering::Relaxed);
}

/// What was counted since this was asked last, by the line of the kernel's text.
pub fn take_traffic() -> BTreeMap<(u32, Space), Traffic> {
    std::mem::take(&mut *TOTAL.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(super) fn is_counted() -> bool {
    IS_COUNTED.load(Ordering::Relaxed)
}

/// An access of the running thread, which is not on its stack.
pub(super) fn count(context: *mut Context, thread: u32, begin: usize, len_bytes: u32, pc: usize) {
    let end = begin.saturating_add(len_bytes as usize);
    // What is nowhere is refused by who watches.
    let Some(range) = recent_range(context, begin, end, pc).or_else(|| range_of(context, begin, end, pc)) else {
        return;
    };
    let space = if range.watch == Watch::Lds { Space::Lds } else { Space::Global };
    OPEN.with_borrow_mut(|open| {
        let nth = open.counts.entry((thread, pc)).or_default();
        let together = open.together.entry((pc, *nth)).or_insert_with(|| (space, Vec::new()));
        together.1.push((begin, len_bytes));
        *nth += 1;
    });
}

/// The lanes of a wave have met, or are done.
pub(super) fn meet() {
    OPEN.with_borrow_mut(|open| {
        open.counts.clear();
        for ((pc, _), (space, accesses)) in open.together.drain() {
            let found = of_wave(space, &accesses);
            let all = open.done.entry((pc, space)).or_default();
            *all = all.with(found);
        }
    });
}

/// Tells what this thread of ours has counted, in lines of the object's text.
pub(super) fn tell(object: &Object) {
    let done = OPEN.with_borrow_mut(|open| std::mem::take(&mut open.done));
    let mut total = TOTAL.lock().unwrap_or_else(PoisonError::into_inner);
    for ((pc, space), found) in done {
        let Some(&line) = object.lines(pc).first() else { continue };
        let all = total.entry((line, space)).or_default();
        *all = all.with(found);
    }
}

/// One access of a wave.
fn of_wave(space: Space, accesses: &[(usize, u32)]) -> Traffic {
    let bytes = |size: usize| -> BTreeSet<usize> {
        let of = |&(begin, len): &(usize, u32)| begin / size..=(begin + len.max(1) as usize - 1) / size;
        accesses.iter().flat_map(of).collect()
    };
    let (taken, least) = match space {
        Space::Lds => {
            let words = bytes(4);
            let mut banks = [0; BANKS];
            words.iter().for_each(|word| banks[word % BANKS] += 1);
            (banks.into_iter().max().unwrap_or(0), words.len().div_ceil(BANKS))
        }
        Space::Global => (bytes(LINE).len(), bytes(1).len().div_ceil(LINE)),
    };
    Traffic { n: 1, taken: taken as u64, least: least as u64 }
}

impl Traffic {
    /// The sum of both counts.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { n: self.n + other.n, taken: self.taken + other.taken, least: self.least + other.least }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_are_counted_by_their_words_and_lines_by_their_bytes() {
        let wave = |space, stride: usize, len| {
            let all: Vec<(usize, u32)> = (0..32).map(|lane| (4096 + lane * stride, len)).collect();
            let Traffic { taken, least, .. } = of_wave(space, &all);
            (taken, least)
        };
        assert_eq!(wave(Space::Lds, 4, 4), (1, 1), "one after the other");
        assert_eq!(wave(Space::Lds, 0, 4), (1, 1), "all the same word");
        assert_eq!(wave(Space::Lds, 8, 4), (2, 1), "every other bank");
        assert_eq!(wave(Space::Lds, 128, 4), (32, 1), "one bank");
        assert_eq!(wave(Space::Lds, 132, 4), (1, 1), "a column of padded rows");
        assert_eq!(wave(Space::Lds, 16, 16), (4, 4), "whole vectors");
        assert_eq!(wave(Space::Global, 4, 4), (1, 1));
        assert_eq!(wave(Space::Global, 256, 4), (32, 1));
        assert_eq!(wave(Space::Global, 16, 16), (4, 4));
    }

    #[test]
    fn counts_add_up_one_by_one() {
        let (one, other) = (Traffic { n: 1, taken: 5, least: 7 }, Traffic { n: 2, taken: 30, least: 40 });
        assert_eq!(one.with(other), Traffic { n: 3, taken: 35, least: 47 });
    }

    #[test]
    fn nothing_is_counted_before_somebody_asks() {
        let before = is_counted();
        count_traffic(true);
        assert_eq!((before, is_counted()), (false, true));
        count_traffic(false);
        assert!(!is_counted());
    }
}
