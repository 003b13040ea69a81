//! Accesses against a judge that remembers all of them.

use std::iter;
use std::ptr;

use super::*;

const N_THREADS: usize = 8;
const WAVE_SIZE: usize = 4;

/// What orders threads, and what they did, all of it: nothing is forgotten and nothing stands for several.
struct Run {
    /// Threads of a block, behind each other.
    threads: Vec<Thread>,
    block_size: usize,
    done: Vec<(usize, u64, u32, u32)>,
}

#[derive(Clone)]
struct Thread {
    time: u32,
    floor: u32,
    wave_floor: u32,
    /// Of each thread, the accesses that come before this one's next.
    knows: Vec<u64>,
}

impl Run {
    fn new(block_size: usize) -> Self {
        let thread = Thread { time: 1, floor: 0, wave_floor: 0, knows: vec![0; N_THREADS] };
        Self { threads: vec![thread; N_THREADS], block_size, done: Vec::new() }
    }

    /// These threads meet; a block's floor is what all of it has behind it.
    fn meet(&mut self, first: usize, n: usize) {
        let threads = &mut self.threads[first..first + n];
        let latest = threads.iter().map(|thread| thread.time).max().expect("some");
        let all = |i: usize| threads.iter().map(|thread| thread.knows[i]).max().expect("some");
        let knows: Vec<u64> = (0..N_THREADS).map(all).collect();
        for thread in threads {
            (thread.time, thread.wave_floor, thread.knows) = (latest + 1, latest, knows.clone());
            if n == self.block_size {
                thread.floor = latest;
            }
        }
    }

    /// Whether an access races, by all that was done before.
    fn races(&mut self, thread: usize, mask: u32, how: u32) -> bool {
        let knows = &self.threads[thread].knows;
        let conflicts = |other: u32| match (how, other) {
            (IS_WRITE, _) | (_, IS_WRITE) => true,
            (one, other) => one != other, // one of them an atomic
        };
        let races = self.done.iter().any(|&(who, count, bytes, what)| {
            bytes & mask != 0 && conflicts(what) && who != thread && count > knows[who]
        });
        let own = &mut self.threads[thread].knows[thread];
        *own += 1;
        self.done.push((thread, *own, mask, how));
        races
    }

    /// The same by the stamps of a cell.
    fn is_seen<const IS_LDS: bool>(&self, order: &Order, range: &Range, thread: usize, mask: u32, how: u32) -> bool {
        let Thread { time, floor, wave_floor, .. } = self.threads[thread];
        let (block, within) = ((thread / self.block_size) as u64, (thread % self.block_size) as u32);
        let stamp = Stamp::new(block, within, time).0;
        let context = ptr::null_mut();
        let own = Own { context, stamp, floor, wave_floor, wave_size: WAVE_SIZE as u32, order };
        let (begin, len_bytes) = (range.begin + mask.trailing_zeros() as usize, mask.count_ones());
        if IS_LDS && own.is_plain_in_lds(range, Access { begin, len_bytes, how, pc: 0 }) {
            return false; // as most accesses are judged
        }
        let cell = range.cell(0);
        let mut defined = own.defined::<IS_LDS>(cell);
        let seen = own.touch_of::<IS_LDS>(range, 0, &mut defined, mask, how);
        if how & IS_WRITE != 0 {
            cell.defined.store(defined | mask, Ordering::Relaxed);
        }
        seen.is_some()
    }
}

/// How many of so many runs of eight threads end with a race. Every access to a word is judged as by one who
/// remembers everything: bytes, halves and words, read and written, or changed by atomics and written.
fn judge<const IS_LDS: bool>(block_size: usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % end
    };
    let mut n_races = 0;
    for run_number in 0..20_000 {
        let (cell, order) = (cells(1), Order::new(block_size as u32));
        let range = match IS_LDS {
            true => Range::lds(0, 4, cell.as_ptr()),
            false => Range::global(0, 4, cell.as_ptr(), 2, false),
        };
        let (mut run, mut told) = (Run::new(block_size), Vec::new());
        let shared = if run_number % 2 == 0 { 0 } else { IS_WRITE | IS_ATOMIC };
        for _ in 0..40 {
            let thread = below(N_THREADS);
            match below(10) {
                0 => run.meet(thread / block_size * block_size, block_size),
                1 => run.meet(thread / WAVE_SIZE * WAVE_SIZE, WAVE_SIZE),
                _ => {
                    let len = [1, 1, 2, 4][below(4)];
                    let mask = ((1 << len) - 1) << (below(4 / len) * len);
                    let how = if below(8) == 0 { IS_WRITE } else { shared };
                    told.push((thread, mask, how));
                    let seen = run.is_seen::<IS_LDS>(&order, &range, thread, mask, how);
                    assert_eq!(seen, run.races(thread, mask, how), "run {run_number}: {told:?}");
                    if seen {
                        n_races += 1;
                        break;
                    }
                }
            }
        }
    }
    n_races
}

#[test]
fn every_race_for_a_byte_is_seen_and_nothing_else() {
    for n_races in iter::once(judge::<true>(8)).chain([4, 8].map(judge::<false>)) {
        assert!((10_000..20_000).contains(&n_races), "{n_races} of 20,000 runs race");
    }
}

#[test]
fn an_atomic_races_with_plain_readers_of_all_blocks_and_not_the_last_alone() {
    const WORD: usize = 64;
    for known in [[false, true], [true, false], [true, true]] {
        let (cell, order) = (cells(1), Order::new(2));
        let range = Range::global(0, 4, cell.as_ptr(), 2, false);
        let run = Run::new(2);
        for (block, is_known) in known.into_iter().enumerate() {
            assert!(!run.is_seen::<false>(&order, &range, 2 * block, 0xf, 0));
            if is_known {
                let stamp = Stamp::new(block as u64, 0, 1);
                order.fence(stamp, 0);
                order.synchronise(stamp, WORD);
            }
        }
        let third = Stamp::new(2, 0, 1);
        order.synchronise(third, WORD);
        order.fence(third, 0);
        let seen = run.is_seen::<false>(&order, &range, 4, 0xf, IS_WRITE | IS_ATOMIC);
        assert_eq!(seen, known != [true, true], "{known:?}");
    }
}

#[test]
fn who_wrote_an_address_is_told_to_its_block() {
    const BEGIN: usize = 0x1000;
    let cell = cells(3);
    let range = Range::global(BEGIN, BEGIN + 12, cell.as_ptr(), 2, false);
    let stamp = Stamp::new(5, 1, 3);
    cell[1].write.store(stamp.0, Ordering::Relaxed);
    for offset in 0..12 {
        let expected = (offset / 4 == 1).then_some(stamp.0);
        assert_eq!(writer(&range, BEGIN + offset, 5).map(|stamp| stamp.0), expected, "{offset}");
        assert!(writer(&range, BEGIN + offset, 6).is_none(), "of another block");
    }
    assert!(writer(&range, BEGIN - 1, 5).is_none());
}

#[test]
fn who_wrote_a_byte_of_a_word_is_told_of_that_byte_alone() {
    const BEGIN: usize = 0x1000;
    let cell = cells(2);
    let range = Range::global(BEGIN, BEGIN + 8, cell.as_ptr(), 2, false);
    let (stamp, of_word) = (Stamp::new(5, 1, 3), Stamp::new(5, 0, 2));
    cell.iter().for_each(|cell| cell.write.store(of_word.0, Ordering::Relaxed));
    cell[1].defined.store(IS_SPLIT, Ordering::Relaxed);
    range.bytes_of(1)[2].write.store(stamp.0, Ordering::Relaxed);
    let found = [0, 3, 4, 5, 6, 7].map(|offset| writer(&range, BEGIN + offset, 5).map(|stamp| stamp.0));
    assert_eq!(found, [Some(of_word.0), Some(of_word.0), None, None, Some(stamp.0), None]);
}
