//! The order between a launch's blocks: which accesses of other blocks a thread knows of.
//!
//! A thread's fence releases what it knows, its own accesses included; its next atomic passes this to the word that it
//! changes, and learns what was passed to that word before; the thread knows what it learnt after its next fence. A
//! barrier shares all of that among the threads that meet there. So one thread's fence and another's atomic, with a
//! barrier between them, are as good as both by one thread: fences write back and invalidate caches that a block
//! shares, also for what barriers brought. An atomic without fences orders nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Stamp;

/// What is known of a block: everything up to a time, and of some threads more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    floor: u32,
    /// Threads in order, each with its time. Who fences tells of itself, one after the other: mostly a new last one.
    threads: Vec<(u32, u32)>,
}

impl Known {
    fn merge(&mut self, other: &Self) {
        self.floor = self.floor.max(other.floor);
        if self.threads.is_empty() {
            self.threads.clone_from(&other.threads);
            return;
        }
        other.threads.iter().for_each(|&(thread, time)| self.add(thread, time));
    }

    /// A thread is known up to a time.
    fn add(&mut self, thread: u32, time: u32) {
        let at = match self.threads.last() {
            Some((last, _)) if *last < thread => Err(self.threads.len()),
            _ => self.threads.binary_search_by_key(&thread, |known| known.0),
        };
        match at {
            Ok(i) => self.threads[i].1 = time.max(self.threads[i].1),
            Err(i) => self.threads.insert(i, (thread, time)),
        }
    }

    /// Up to when a thread is known, above the floor.
    fn time_of(&self, thread: u32) -> Option<u32> {
        let i = self.threads.binary_search_by_key(&thread, |known| known.0).ok()?;
        Some(self.threads[i].1)
    }

    /// What is known of each thread of this many is known of the block.
    fn shorten(&mut self, n_threads: usize) {
        if self.threads.len() == n_threads {
            let all = self.threads.iter().map(|(_, time)| *time).min().unwrap_or_default();
            self.floor = self.floor.max(all);
        }
        let floor = self.floor;
        self.threads.retain(|(_, time)| *time > floor);
    }
}

/// What is known, by block.
type Clock = BTreeMap<u64, Known>;

fn merge(into: &mut Arc<Clock>, other: &Arc<Clock>) {
    if Arc::ptr_eq(into, other) || other.is_empty() {
        return;
    }
    if into.is_empty() {
        *into = Arc::clone(other);
        return;
    }
    let clock = Arc::make_mut(into);
    for (&block, known) in other.iter() {
        clock.entry(block).or_default().merge(known);
    }
}

/// What a fence makes known: all that its thread knew, and of its own block this. Two parts, because the first is the
/// same for all threads that met before, and they share it.
#[derive(Clone, Default)]
struct Released {
    known: Arc<Clock>,
    of_block: Arc<Known>,
}

impl Released {
    fn merge(&mut self, other: &Self) {
        merge(&mut self.known, &other.known);
        if !Arc::ptr_eq(&self.of_block, &other.of_block) {
            Arc::make_mut(&mut self.of_block).merge(&other.of_block);
        }
    }

    /// Whether there was no fence.
    fn is_empty(&self) -> bool {
        self.known.is_empty() && *self.of_block == Known::default()
    }
}

#[derive(Clone, Default)]
struct Thread {
    known: Arc<Clock>,
    /// What a fence released to the readers of its later atomics.
    released: Released,
    /// What its atomics learnt.
    heard: Arc<Clock>,
}

/// The order of a launch's accesses.
pub(super) struct Order {
    state: Mutex<State>,
    block_size: u32,
}

#[derive(Default)]
struct State {
    /// The running block, and its threads if any of them fenced or used atomics. Those that met are one.
    block: u64,
    threads: Vec<Arc<Thread>>,
    /// Whether all of them know the same: nothing happened since all met.
    is_joined: bool,
    /// What words of global memory were told.
    told: HashMap<usize, Arc<Clock>>,
    /// By cell: stamps of other blocks for which the cell itself has no room.
    kept: HashMap<usize, Vec<Stamp>>,
}

impl State {
    /// A thread of the running block of `n`, to be changed.
    fn thread(&mut self, own: Stamp, n: u32) -> &mut Thread {
        if self.block != own.block() || self.threads.is_empty() {
            self.block = own.block();
            self.threads = vec![Arc::default(); n as usize];
        }
        self.is_joined = false;
        Arc::make_mut(&mut self.threads[own.thread() as usize])
    }

    fn knows(&self, own: Stamp, other: Stamp) -> bool {
        let thread = self.threads.get(own.thread() as usize).filter(|_| self.block == own.block());
        let Some(known) = thread.and_then(|thread| thread.known.get(&other.block())) else { return false };
        let of_thread = || !other.is_of_many() && known.time_of(other.thread()) >= Some(other.time());
        known.floor >= other.time() || of_thread()
    }
}

impl Order {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { state: Mutex::default(), block_size }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's fence; what is up to `floor` in its own block is known to it.
    pub(crate) fn fence(&self, own: Stamp, floor: u32) {
        let mut state = self.state();
        let thread = state.thread(own, self.block_size);
        let heard = std::mem::take(&mut thread.heard);
        merge(&mut thread.known, &heard);
        thread.released.known = Arc::clone(&thread.known);
        let of_block = Arc::make_mut(&mut thread.released.of_block);
        of_block.floor = floor.max(of_block.floor);
        of_block.add(own.thread(), own.time());
    }

    /// A thread's atomic on a word.
    pub(crate) fn synchronise(&self, own: Stamp, address: usize) {
        let mut state = self.state();
        let told = state.told.get(&address).cloned().unwrap_or_default();
        let thread = state.thread(own, self.block_size);
        merge(&mut thread.heard, &told);
        if !thread.released.is_empty() {
            let released = thread.released.clone();
            drop(told);
            let told = state.told.entry(address).or_default();
            merge(told, &released.known);
            Arc::make_mut(told).entry(own.block()).or_default().merge(&released.of_block);
        }
    }

    /// Joins the knowledge of threads that met at a barrier.
    pub(crate) fn join(&self, block: u64, threads: Range<u32>) {
        let (mut state, n_threads) = (self.state(), self.block_size as usize);
        if state.block != block || state.threads.is_empty() || state.is_joined {
            return; // since they met, none of them did anything that another block could know
        }
        let end = n_threads.min(threads.end as usize);
        state.is_joined = threads.start == 0 && end == n_threads;
        let threads = &mut state.threads[threads.start as usize..end];
        // Since these met before, most of them did nothing of the kind.
        let mut joined = Thread::clone(&threads[0]);
        let mut are_alike = threads.len() > 1;
        for pair in threads.windows(2).filter(|pair| !Arc::ptr_eq(&pair[0], &pair[1])) {
            let thread = &pair[1];
            are_alike = false;
            merge(&mut joined.known, &thread.known);
            joined.released.merge(&thread.released);
            merge(&mut joined.heard, &thread.heard);
        }
        if are_alike {
            return;
        }
        let Released { known, of_block } = &mut joined.released;
        if let Some(known) = known.get(&block) {
            Arc::make_mut(of_block).merge(known);
        }
        if !of_block.threads.is_empty() {
            Arc::make_mut(of_block).shorten(n_threads);
        }
        threads.fill(Arc::new(joined));
    }

    /// Whether what has the other stamp comes before what this thread does now.
    pub(crate) fn knows(&self, own: Stamp, other: Stamp) -> bool {
        self.state().knows(own, other)
    }

    /// Remembers a stamp for which a cell has no room.
    pub(crate) fn keep(&self, cell: usize, stamp: Stamp) {
        self.state().kept.entry(cell).or_default().push(stamp);
    }

    /// What is remembered of a cell is remembered of its bytes.
    pub(crate) fn keep_by_bytes(&self, cell: usize, bytes: impl Iterator<Item = usize>) {
        let mut state = self.state();
        let kept = state.kept.get(&cell).cloned().unwrap_or_default();
        for (i, byte) in bytes.enumerate() {
            let of_byte = kept.iter().filter(|stamp| stamp.mask() >> i & 1 == 1);
            let of_byte: Vec<_> = of_byte.map(|stamp| Stamp(stamp.0 & !Stamp::MASK | 1)).collect();
            state.kept.insert(byte, of_byte);
        }
    }

    /// One of a cell's stamps without room that `conflicts`, and that this thread does not know of.
    pub(crate) fn conflict(
        &self,
        cell: usize,
        own: Stamp,
        mask: u32,
        conflicts: impl Fn(Stamp) -> bool,
    ) -> Option<Stamp> {
        let state = self.state();
        let kept = state.kept.get(&cell)?.iter().copied();
        kept.filter(|&stamp| conflicts(stamp) && stamp.mask() & mask != 0)
            .find(|&stamp| stamp.block() != own.block() && !state.knows(own, stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: usize = 64;

    fn order() -> Order {
        Order::new(4)
    }

    fn meet(order: &Order, block: u64) {
        order.join(block, 0..4);
    }

    /// Thread 1 of block 0 writes at time 1; whether thread 2 of block 1 knows of it in the end.
    fn is_known(steps: impl Fn(&Order)) -> bool {
        let order = order();
        steps(&order);
        order.knows(Stamp::new(1, 2, 2), Stamp::new(0, 1, 1))
    }

    #[test]
    fn fences_and_atomics_order_what_barriers_brought_to_them() {
        assert!(is_known(|order| {
            (0..4).for_each(|thread| order.fence(Stamp::new(0, thread, 1), 0));
            meet(order, 0);
            order.synchronise(Stamp::new(0, 0, 3), WORD);
            order.synchronise(Stamp::new(1, 0, 1), WORD);
            meet(order, 1);
            order.fence(Stamp::new(1, 2, 2), 1);
        }));
    }

    #[test]
    fn nothing_is_ordered_without_one_of_them() {
        let steps: [&dyn Fn(&Order); 6] = [
            &|order| order.fence(Stamp::new(0, 1, 1), 0),
            &|order| meet(order, 0),
            &|order| order.synchronise(Stamp::new(0, 0, 3), WORD),
            &|order| order.synchronise(Stamp::new(1, 0, 1), WORD),
            &|order| meet(order, 1),
            &|order| order.fence(Stamp::new(1, 2, 2), 1),
        ];
        assert!(is_known(|order| steps.iter().for_each(|step| step(order))));
        for left_out in 0..steps.len() {
            let others = |order: &Order| {
                steps.iter().enumerate().filter(|(i, _)| *i != left_out).for_each(|(_, step)| step(order));
            };
            assert!(!is_known(others), "without step {left_out}");
        }
    }

    #[test]
    fn another_word_or_a_later_write_is_not_ordered() {
        assert!(!is_known(|order| {
            order.fence(Stamp::new(0, 1, 1), 0);
            order.synchronise(Stamp::new(0, 1, 2), WORD);
            order.synchronise(Stamp::new(1, 2, 1), WORD + 4);
            order.fence(Stamp::new(1, 2, 1), 0);
        }));
        let order = order();
        order.fence(Stamp::new(0, 1, 1), 0);
        order.synchronise(Stamp::new(0, 1, 2), WORD);
        order.synchronise(Stamp::new(1, 2, 1), WORD);
        order.fence(Stamp::new(1, 2, 1), 0);
        assert!(order.knows(Stamp::new(1, 2, 2), Stamp::new(0, 1, 1)));
        assert!(!order.knows(Stamp::new(1, 2, 2), Stamp::new(0, 1, 2)), "written behind the fence");
        assert!(!order.knows(Stamp::new(1, 2, 2), Stamp::new(0, 0, 1)), "written by another thread");
    }

    #[test]
    fn a_thread_is_known_once_up_to_the_latest_time() {
        let mut known = Known::default();
        [(1, 5), (3, 2), (2, 7), (3, 9), (3, 4), (1, 4)].into_iter().for_each(|(thread, time)| known.add(thread, time));
        assert_eq!(known.threads, [(1, 5), (2, 7), (3, 9)]);
        known.shorten(4);
        assert_eq!((known.floor, known.threads.len()), (0, 3), "nothing is known of one of four");
        known.shorten(3);
        assert_eq!((known.floor, &known.threads[..]), (5, &[(2, 7), (3, 9)][..]));
    }
}
