//! What the object calls before every access to memory, and what is wrong with one.
//!
//! Of what a launch writes every element is watched, and of LDS every word: a [`Cell`] has the stamps of who wrote it
//! last and who read it last. Compiled with the program, not with each kernel: it is more text than most of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::context::{Context, FaultKind, Range, Stamp, Watch, stop};
use super::order::Order;

/// What is known of an element of global memory or of a word of LDS. Blocks that run at once may look at it at once; of
/// two stamps left at once one may be lost, and with it a race.
#[derive(Default)]
pub(super) struct Cell {
    /// The stamp of who wrote it last.
    write: AtomicU64,
    /// The stamp of who read it last, or changed it by an atomic: those that may do so at once.
    shared: AtomicU64,
    /// Its low bits: bytes that were written. Above: in which block, if it is LDS.
    defined: AtomicU32,
}

/// So many cells of which nothing is known. Those that are never looked at cost nothing.
pub(super) fn cells(n: usize) -> Box<[Cell]> {
    // SAFETY: all bytes zero is a cell, the default one.
    unsafe { Box::<[Cell]>::new_zeroed_slice(n).assume_init() }
}

/// How memory is accessed: a plain load is 0, a plain store this.
const IS_WRITE: u32 = 1;
const IS_ATOMIC: u32 = 2;

/// Bytes of a cell, in a stamp and in `defined`.
const MASK: u64 = Stamp::MASK;

/// The running thread.
struct Own<'a> {
    context: *mut Context,
    stamp: u64,
    /// The time of the block's last barrier: whatever its threads did up to then, all of them know.
    floor: u32,
    /// The same of the wave's.
    wave_floor: u32,
    wave_size: u32,
    order: &'a Order,
}

/// An access to memory.
#[derive(Clone, Copy)]
struct Access {
    begin: usize,
    len_bytes: u32,
    how: u32,
    /// Where in the object's code.
    pc: usize,
}

/// Called by the object before the running thread accesses memory. Does not return from an access that is wrong.
pub(super) extern "C" fn access(
    context: *mut Context,
    begin: usize,
    len_bytes: u32,
    alignment: u32,
    how: u32,
    pc: usize,
) {
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, and
    // nobody else uses it while one of its threads runs. No reference to it is held, but for a moment in `range_of`.
    let [stack_begin, stack_end] = unsafe { (*context).stack };
    let (end, is_write) = (begin.saturating_add(len_bytes as usize), how & IS_WRITE != 0);
    if begin >= stack_begin && end <= stack_end {
        return;
    }
    let fault = |kind| stop(context, kind, begin, len_bytes, pc, 0);
    let Some(range) = range_of(context, begin, end, pc) else {
        return fault(if is_write { FaultKind::Write } else { FaultKind::Read });
    };
    if is_write && !range.is_writable {
        fault(FaultKind::ReadOnly);
    }
    debug_assert!(alignment.is_power_of_two());
    if begin & (alignment as usize - 1) != 0 {
        fault(FaultKind::Misaligned);
    }
    if range.watch == Watch::Nothing {
        return;
    }
    // SAFETY: as above; the order lives as long, and is only used by shared reference.
    let own = unsafe {
        Own {
            context,
            stamp: (*context).stamp,
            floor: (*context).floor,
            wave_floor: (*context).wave_floor,
            wave_size: (*context).wave_size,
            order: &*(*context).order,
        }
    };
    let access = Access { begin, len_bytes, how, pc };
    if range.watch == Watch::Lds {
        return own.touch_all::<true>(range, access);
    }
    own.touch_all::<false>(range, access);
    if how & IS_ATOMIC != 0 {
        own.order.synchronise(Stamp(own.stamp), begin);
    }
}

/// Where these bytes lie. Most places in the code touch one tensor: it is looked for first.
fn range_of<'a>(context: *mut Context, begin: usize, end: usize, pc: usize) -> Option<&'a Range> {
    // SAFETY: as in `access`; the ranges are a slice of the worker's, which lives as long as the block runs.
    let (ranges, recent) = unsafe { (&*(*context).ranges, &mut (*context).recent[pc >> 2 & 255]) };
    let has = |range: &&Range| begin >= range.begin && end <= range.end;
    if let Some(range) = ranges.get(usize::from(*recent)).filter(has) {
        return Some(range);
    }
    let i = ranges.iter().position(|range| has(&range))?;
    *recent = u16::try_from(i).unwrap_or_default();
    Some(&ranges[i])
}

impl Own<'_> {
    /// Whether what has this stamp comes before what the running thread does now, in every run.
    fn is_before<const IS_LDS: bool>(&self, stamp: u64) -> bool {
        let differs = stamp ^ self.stamp;
        let same_block = Stamp(differs).block_bits() == 0;
        if !same_block {
            return IS_LDS || self.knows(stamp); // LDS is another block's no more
        }
        let (time, other) = (Stamp(stamp).time(), Stamp(differs).thread());
        if time <= self.floor {
            return true;
        }
        let same_thread = other == 0 && stamp & Stamp::LANES == 0;
        if stamp & Stamp::WAVES == 0 && other < self.wave_size && (time <= self.wave_floor || same_thread) {
            return true;
        }
        !IS_LDS && self.knows(stamp)
    }

    fn knows(&self, stamp: u64) -> bool {
        self.order.knows(Stamp(self.stamp), Stamp(stamp))
    }

    fn touch_all<const IS_LDS: bool>(&self, range: &Range, access: Access) {
        let Access { begin, len_bytes, how, pc } = access;
        let shift = if IS_LDS { 2 } else { range.cell_shift };
        let cell_bytes = 1u32 << shift;
        let block = if IS_LDS { Stamp(self.stamp).block_bits() << 4 } else { 0 };
        let offset = begin - range.begin;
        let mut first = offset as u32 & (cell_bytes - 1);
        let mut done = 0;
        for i in offset >> shift.. {
            if done >= len_bytes {
                return;
            }
            // SAFETY: the access lies in the range, which has a cell for each of its elements; they live as long as the
            // launch.
            let cell = unsafe { &*range.cells.add(i) };
            let n_bytes = (cell_bytes - first).min(len_bytes - done);
            let mask = ((1u32 << n_bytes) - 1) << first;
            let defined = cell.defined.load(Ordering::Relaxed);
            let defined = if defined & !15 == block { defined } else { block };
            let fault = |kind, other| stop(self.context, kind, begin + done as usize, n_bytes, pc, other);
            if how != IS_WRITE && (IS_LDS || range.is_undefined) && !defined & mask != 0 {
                fault(FaultKind::Undefined, 0);
            }
            if let Some(other) = self.touch::<IS_LDS>(cell, mask.into(), how) {
                fault(FaultKind::Race, other);
            }
            if how & IS_WRITE != 0 {
                cell.defined.store(defined | mask, Ordering::Relaxed);
            }
            done += n_bytes;
            first = 0;
        }
    }

    /// Bytes of one cell, those in `mask`. Gives the stamp of an access that nothing orders before this one.
    fn touch<const IS_LDS: bool>(&self, cell: &Cell, mask: u64, how: u32) -> Option<u64> {
        const ELSEWHERE: u64 = Stamp::ELSEWHERE;
        const MANY: u64 = Stamp::LANES | Stamp::WAVES;
        let peek = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let leave = |word: &AtomicU64, stamp| word.store(stamp, Ordering::Relaxed);
        let kind = if how & IS_ATOMIC != 0 { Stamp::ATOMIC } else { 0 };
        let mine = self.stamp | mask | kind;
        let is_shared = kind != 0 || how & IS_WRITE == 0;
        let is_known =
            if is_shared { peek(&cell.shared) & !(MANY | ELSEWHERE) == mine } else { peek(&cell.write) == mine };
        if is_known {
            return None;
        }
        // Blocks that know nothing of each other run at once: by the exchange, one of two that write sees the other.
        let exchanges = !is_shared && !IS_LDS;
        let old = if exchanges { cell.write.swap(mine, Ordering::SeqCst) } else { peek(&cell.write) };
        if old & mask != 0 && !self.is_before::<IS_LDS>(old) {
            return Some(old);
        }
        if !is_shared && (old ^ mine) & !MASK == 0 {
            leave(&cell.write, mine | old);
        } else if !is_shared && IS_LDS {
            leave(&cell.write, mine);
        }

        let old = peek(&cell.shared);
        if old == 0 {
            if is_shared {
                leave(&cell.shared, mine);
            }
            return None;
        }
        // Nothing new of it: no cell that most threads read takes longer than this.
        let differs = (old ^ mine) & !(MASK | Stamp::LANES | ELSEWHERE | Stamp::THREADS);
        if is_shared && differs == Stamp::WAVES && old & mask == mask && (IS_LDS || old & ELSEWHERE == 0) {
            return None;
        }
        let (is_other_kind, before) = (!is_shared || old & Stamp::ATOMIC != kind, self.is_before::<IS_LDS>(old));
        if is_other_kind && old & mask != 0 && !before {
            return Some(old);
        }
        if !IS_LDS && old & ELSEWHERE != 0 {
            let conflicts = |other: Stamp| match how {
                0 => other.is_atomic(),
                IS_WRITE => true,
                _ => !other.is_atomic(),
            };
            let other = self.order.conflict(address_of(cell), Stamp(self.stamp), mask as u32, conflicts);
            if let Some(other) = other {
                return Some(other.0);
            }
        }
        if !is_shared {
            return None;
        }

        let mut made = mine | old & ELSEWHERE;
        if Stamp(old ^ mine).block_bits() != 0 {
            if !before {
                self.order.keep(address_of(cell), Stamp(old));
                made |= ELSEWHERE;
            }
        } else if !before && old & mask != 0 {
            // Several at once, of which one stamp is kept; of other bytes, the last.
            made |= old & (MASK | MANY);
            made |= if Stamp(old ^ mine).thread() < self.wave_size { Stamp::LANES } else { MANY };
            if Stamp(old).time() > Stamp(made).time() {
                made = Stamp(made).at(Stamp(old).time()).0;
            }
        } else if before && Stamp(old).time() == Stamp(mine).time() {
            made |= old & MASK; // by the same thread
        }
        leave(&cell.shared, made);
        None
    }
}

fn address_of(cell: &Cell) -> usize {
    std::ptr::from_ref(cell).addr()
}
