//! What is known of memory, and which accesses are wrong.
//!
//! Every element that a launch writes is watched, and every word of LDS: a [`Cell`] has the stamps of its last writer
//! and its last reader. If threads use parts of one, each of its bytes gets a cell.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::context::{Context, FaultKind, Range, Stamp, stop};
use super::order::Order;

/// What is known of an element of global memory or of a word of LDS. Blocks that run at once may look at it at once; of
/// two stamps left at once one may be lost, and with it a race.
#[derive(Debug, Default)]
pub(super) struct Cell {
    /// The stamp of who wrote it last.
    write: AtomicU64,
    /// The stamp of who read it last, or changed it by an atomic: those that may do so at once.
    shared: AtomicU64,
    /// Its low bits: bytes that were written. Above: in which block, if it is LDS; and whether its bytes have cells of
    /// their own, which then know more than this one.
    defined: AtomicU32,
}

/// In [`Cell::defined`].
const IS_SPLIT: u32 = 1 << 31;

/// So many cells of which nothing is known. Those that are never looked at cost nothing.
pub(super) fn cells(n: usize) -> Box<[Cell]> {
    // SAFETY: all bytes zero is a cell, the default one.
    unsafe { Box::<[Cell]>::new_zeroed_slice(n).assume_init() }
}

/// How memory is accessed: a plain load is 0, a plain store this.
pub(super) const IS_WRITE: u32 = 1;
pub(super) const IS_ATOMIC: u32 = 2;
/// No access, but an `assert` that does not hold.
pub(super) const IS_ASSERTION: u32 = 4;

/// Who wrote an address last in this block, if anybody did.
pub(super) fn writer(range: &Range, address: usize, block: u64) -> Option<Stamp> {
    let at = address.checked_sub(range.begin)?;
    let of = |cell: &Cell| Stamp(cell.write.load(Ordering::Relaxed));
    let cell = range.cell(at >> range.cell_shift);
    let stamp = match cell.defined.load(Ordering::Relaxed) & IS_SPLIT {
        0 => of(cell),
        _ => of(&range.bytes_of(at >> range.cell_shift)[at & ((1 << range.cell_shift) - 1)]),
    };
    Some(stamp).filter(|stamp| stamp.0 != 0 && stamp.block() == block)
}

/// Bytes of a cell, in a stamp and in `defined`.
const MASK: u64 = Stamp::MASK;

/// Of a stamp that stands for several threads.
const MANY: u64 = Stamp::LANES | Stamp::WAVES;

/// What is wrong with an access to a cell, or with the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    /// Nothing orders the access with this stamp before it.
    Race(u64),
    /// It is of other bytes than what is known of others: one stamp cannot tell of both.
    Bytes,
}

pub(super) struct Own<'a> {
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
pub(super) struct Access {
    pub(crate) begin: usize,
    pub(crate) len_bytes: u32,
    pub(crate) how: u32,
    /// Where in the object's code.
    pub(crate) pc: usize,
}

impl<'a> Own<'a> {
    #[inline(always)]
    pub(crate) fn new(context: *mut Context) -> Self {
        // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, as
        // the order does, and nobody else uses it while one of its threads runs; no reference to it is held.
        unsafe {
            let thread = (*context).thread;
            Self {
                context,
                stamp: (*thread).stamp,
                floor: (*context).floor,
                wave_floor: (*thread).wave_floor,
                wave_size: (*context).wave_size,
                order: &*(*context).order,
            }
        }
    }
}

impl Own<'_> {
    /// Whether what has this stamp comes before what the running thread does now, in every run.
    #[inline(always)]
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

    /// Whether the running block has had a barrier since, or another block runs.
    fn is_before_floor(&self, stamp: u64) -> bool {
        Stamp(stamp ^ self.stamp).block_bits() != 0 || Stamp(stamp).time() <= self.floor
    }

    /// The running thread's atomic on a word.
    pub(crate) fn synchronise(&self, address: usize) {
        self.order.synchronise(Stamp(self.stamp), address);
    }

    fn knows(&self, stamp: u64) -> bool {
        self.order.knows(Stamp(self.stamp), Stamp(stamp))
    }

    /// Whether there is nothing to find out about bytes of LDS, whole words or some of one word. What is new is left in
    /// their cells, be it of some of them alone: nothing is new of these then.
    #[inline(always)]
    pub fn is_plain_in_lds(&self, range: &Range, access: Access) -> bool {
        let Access { begin, len_bytes, how, .. } = access;
        let offset = begin - range.begin;
        let first = offset as u32 & 3;
        let (n_cells, mask) = match len_bytes {
            len_bytes if first == 0 && len_bytes & 3 == 0 => (len_bytes as usize >> 2, 15),
            len_bytes if first + len_bytes <= 4 => (1, ((1u32 << len_bytes) - 1) << first),
            _ => return false,
        };
        let block = Stamp(self.stamp).block_bits() << 4;
        (0..n_cells).all(|i| {
            let cell = range.cell((offset >> 2) + i);
            let mut defined = cell.defined.load(Ordering::Relaxed);
            if defined & !15 != block {
                if how != IS_WRITE || defined & !(15 | IS_SPLIT) == block {
                    return false; // of another block, so that nobody wrote it, or its bytes have cells of their own
                }
                defined = block;
            }
            if how != IS_WRITE {
                return !defined & mask == 0 && self.is_plain::<true>(cell, mask.into(), how);
            }
            if !self.is_plain::<true>(cell, mask.into(), how) {
                return false;
            }
            cell.defined.store(defined | mask, Ordering::Relaxed);
            true
        })
    }

    /// Bytes of a range. Does not return if something is wrong with that.
    pub(crate) fn touch_all<const IS_LDS: bool>(&self, range: &Range, access: Access) {
        let Access { begin, len_bytes, how, pc } = access;
        let shift = if IS_LDS { 2 } else { range.cell_shift };
        let cell_bytes = 1u32 << shift;
        let offset = begin - range.begin;
        let mut first = offset as u32 & (cell_bytes - 1);
        let mut done = 0;
        for i in offset >> shift.. {
            if done >= len_bytes {
                return;
            }
            let cell = range.cell(i);
            let n_bytes = (cell_bytes - first).min(len_bytes - done);
            let mask = ((1u32 << n_bytes) - 1) << first;
            let mut defined = self.defined::<IS_LDS>(cell);
            let fault = |kind, other| stop(self.context, kind, begin + done as usize, n_bytes, pc, other);
            if how != IS_WRITE && (IS_LDS || range.is_undefined) && !defined & mask != 0 {
                fault(FaultKind::Undefined, 0);
            }
            if let Some(other) = self.touch_of::<IS_LDS>(range, i, &mut defined, mask, how) {
                fault(FaultKind::Race, other);
            }
            if how & IS_WRITE != 0 {
                cell.defined.store(defined | mask, Ordering::Relaxed);
            }
            done += n_bytes;
            first = 0;
        }
    }

    /// What the cell's [`Cell::defined`] is in this block.
    fn defined<const IS_LDS: bool>(&self, cell: &Cell) -> u32 {
        let block = if IS_LDS { Stamp(self.stamp).block_bits() << 4 } else { 0 };
        let defined = cell.defined.load(Ordering::Relaxed);
        if defined & !(15 | IS_SPLIT) == block { defined } else { block }
    }

    /// Bytes of a range's cell, those in `mask`. Gives the stamp of an access that nothing orders before this one.
    #[inline(always)]
    fn touch_of<const IS_LDS: bool>(
        &self,
        range: &Range,
        i: usize,
        defined: &mut u32,
        mask: u32,
        how: u32,
    ) -> Option<u64> {
        if *defined & IS_SPLIT == 0 && self.is_plain::<IS_LDS>(range.cell(i), mask.into(), how) {
            return None;
        }
        self.touch_any::<IS_LDS>(range, i, defined, mask, how)
    }

    /// Whether there is nothing to find out about bytes of one cell: the same was done before, or all that was done
    /// comes before this, or, where this reads LDS, all that was written. Most accesses are of this kind. What is new
    /// is left in the cell.
    #[inline(always)]
    fn is_plain<const IS_LDS: bool>(&self, cell: &Cell, mask: u64, how: u32) -> bool {
        let kind = if how & IS_ATOMIC != 0 { Stamp::ATOMIC } else { 0 };
        let mine = self.stamp | mask | kind;
        let is_shared = how != IS_WRITE;
        let [shared, write] = [&cell.shared, &cell.write].map(|word| word.load(Ordering::Relaxed));
        let old = if is_shared { shared } else { write };
        if old & !(MANY | Stamp::ELSEWHERE) == mine {
            return true;
        }
        if !IS_LDS {
            return false;
        }
        // By others of its wave, or of several waves, at the same time: a write that came before all of theirs came
        // before this too, and none came since, or there was a race. One lane alone may have read what it wrote.
        let differs = old ^ mine;
        if is_shared && differs & !(MANY | Stamp::THREADS) == 0 {
            let is_of_wave = old & Stamp::LANES != 0 && Stamp(differs).thread() < self.wave_size;
            if is_of_wave || old & Stamp::WAVES != 0 {
                return true;
            }
        }
        // What came before the block's last barrier may be of any bytes: nobody asks again.
        let is_past = self.is_before_floor(old);
        if !is_past && (old & MASK != mask || old & Stamp::ATOMIC != kind) || !self.is_before::<true>(write) {
            return false;
        }
        if !is_shared {
            let is_new = self.is_before::<true>(shared);
            if is_new {
                cell.write.store(mine, Ordering::Relaxed);
            }
            return is_new;
        }
        let made = if is_past || self.is_before::<true>(old) { mine } else { self.with(old, mine) };
        cell.shared.store(made, Ordering::Relaxed);
        true
    }

    /// The stamp of several that shared bytes at once, of which one is kept.
    #[inline(always)]
    fn with(&self, old: u64, mine: u64) -> u64 {
        let kind = if Stamp(old ^ mine).thread() < self.wave_size { Stamp::LANES } else { MANY };
        let made = mine | old & (MASK | MANY) | kind;
        if Stamp(old).time() > Stamp(made).time() { Stamp(made).at(Stamp(old).time()).0 } else { made }
    }

    /// The same as `touch_of`, whatever was there.
    #[inline(never)]
    fn touch_any<const IS_LDS: bool>(
        &self,
        range: &Range,
        i: usize,
        defined: &mut u32,
        mask: u32,
        how: u32,
    ) -> Option<u64> {
        let cell = range.cell(i);
        let mut found = Err(Apart::Bytes);
        if *defined & IS_SPLIT == 0 {
            found = self.touch::<IS_LDS>(cell, mask.into(), how);
        }
        if found == Err(Apart::Bytes) {
            found = self.touch_bytes::<IS_LDS>(cell, range.bytes_of(i), defined, mask, how);
        }
        match found {
            Err(Apart::Race(other)) => Some(other),
            _ => None,
        }
    }

    /// The same with a cell for each byte. Who writes all of them plainly makes one of them again.
    #[cold]
    fn touch_bytes<const IS_LDS: bool>(
        &self,
        whole: &Cell,
        bytes: &[Cell],
        defined: &mut u32,
        mask: u32,
        how: u32,
    ) -> Result<(), Apart> {
        if *defined & IS_SPLIT == 0 {
            *defined |= IS_SPLIT;
            whole.defined.store(*defined, Ordering::Relaxed);
            self.split(whole, bytes);
        }
        for (_, byte) in bytes.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
            self.touch::<IS_LDS>(byte, 1, how)?;
        }
        if how == IS_WRITE && mask == (1 << bytes.len()) - 1 {
            *defined &= !IS_SPLIT;
            whole.write.store(self.stamp | u64::from(mask), Ordering::Relaxed);
            whole.shared.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is known of a cell is known of each of its bytes.
    fn split(&self, whole: &Cell, bytes: &[Cell]) {
        let [write, shared] = [&whole.write, &whole.shared].map(|stamp| stamp.load(Ordering::Relaxed));
        for (i, byte) in bytes.iter().enumerate() {
            let own = |stamp: u64| if stamp >> i & 1 == 1 { stamp & !MASK | 1 } else { stamp & Stamp::ELSEWHERE };
            byte.write.store(own(write), Ordering::Relaxed);
            byte.shared.store(own(shared), Ordering::Relaxed);
        }
        if shared & Stamp::ELSEWHERE != 0 {
            self.order.keep_by_bytes(address_of(whole), bytes.iter().map(address_of));
        }
    }

    /// Bytes of one cell, those in `mask`.
    fn touch<const IS_LDS: bool>(&self, cell: &Cell, mask: u64, how: u32) -> Result<(), Apart> {
        const ELSEWHERE: u64 = Stamp::ELSEWHERE;
        let peek = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let leave = |word: &AtomicU64, stamp| word.store(stamp, Ordering::Relaxed);
        let kind = if how & IS_ATOMIC != 0 { Stamp::ATOMIC } else { 0 };
        let mine = self.stamp | mask | kind;
        let is_shared = kind != 0 || how & IS_WRITE == 0;
        let old = if is_shared { peek(&cell.shared) } else { peek(&cell.write) };
        if old & !(MANY | ELSEWHERE) == mine {
            return Ok(());
        }
        // Of what came before the block's last barrier nobody asks again, if it is LDS.
        let is_past = || IS_LDS && self.is_before_floor(old);
        let differs = old ^ mine;
        if differs & MASK != 0 && differs & !MASK != 0 && old & MASK != 0 && !is_past() {
            return Err(Apart::Bytes);
        }
        // Blocks that know nothing of each other run at once: by the exchange, one of two that write sees the other.
        let exchanges = !is_shared && !IS_LDS;
        let old = if exchanges { cell.write.swap(mine, Ordering::SeqCst) } else { peek(&cell.write) };
        if old & mask != 0 && !self.is_before::<IS_LDS>(old) {
            return Err(Apart::Race(old));
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
            return Ok(());
        }
        // Nothing new of it: no cell that most threads read takes longer than this.
        let differs = (old ^ mine) & !(MASK | Stamp::LANES | ELSEWHERE | Stamp::THREADS);
        if is_shared && differs == Stamp::WAVES && old & mask == mask && (IS_LDS || old & ELSEWHERE == 0) {
            return Ok(());
        }
        let (is_other_kind, before) = (!is_shared || old & Stamp::ATOMIC != kind, self.is_before::<IS_LDS>(old));
        if is_other_kind && old & mask != 0 && !before {
            return Err(Apart::Race(old));
        }
        if !IS_LDS && old & ELSEWHERE != 0 {
            let conflicts = |other: Stamp| match how {
                0 => other.is_atomic(),
                IS_WRITE => true,
                _ => !other.is_atomic(),
            };
            let other = self.order.conflict(address_of(cell), Stamp(self.stamp), mask as u32, conflicts);
            if let Some(other) = other {
                return Err(Apart::Race(other.0));
            }
        }
        if !is_shared {
            return Ok(());
        }

        let mut made = mine | old & ELSEWHERE;
        if Stamp(old ^ mine).block_bits() != 0 {
            if !before {
                self.order.keep(address_of(cell), Stamp(old));
                made |= ELSEWHERE;
            }
        } else if !before && old & mask != 0 {
            made = self.with(old, made); // of other bytes, the last
        } else if before && Stamp(old).time() == Stamp(mine).time() {
            made |= old & MASK; // by the same thread
        }
        leave(&cell.shared, made);
        Ok(())
    }
}

fn address_of(cell: &Cell) -> usize {
    std::ptr::from_ref(cell).addr()
}

#[cfg(test)]
mod tests;
