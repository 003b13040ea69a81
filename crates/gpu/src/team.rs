//! Threads that do the blocks of launches together. During a step they wait for the next launch without sleeping, which
//! takes less than a microsecond; between steps they sleep.

use std::cell::{Cell, UnsafeCell};
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The threads, but for the one that launches, which is whoever begins a step.
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by whoever has begun a step.
    step: Mutex<()>,
}

/// What all threads see.
struct Shared {
    /// The number of the round in the upper half; whether it is open, and how many have joined it and not left.
    round: AtomicU64,
    /// What is to be done in the round. Written while none is open and nobody is in one.
    work: UnsafeCell<Option<Work>>,
    /// Whether a step is under way.
    is_awake: AtomicBool,
    /// Whether somebody's work panicked.
    has_failed: AtomicBool,
    wish: Mutex<Wish>,
    changed: Condvar,
}

/// What sleeping threads are told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Sleep,
    Wake,
    End,
}

/// The work of a round. It lives until nobody is in the round any more, for which the launching thread waits.
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn() + Sync));

// SAFETY: what it points at may be called from several threads, and is alive while any of them is in the round.
unsafe impl Send for Work {}
// SAFETY: `work` is written by the launching thread alone, when no round is open and nobody is in one, which `round`
// tells with release and acquire; the rest is made for sharing.
unsafe impl Sync for Shared {}

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const NEXT: u64 = 1 << 32;

/// Looks at a round before a thread lets others have its core: some tens of microseconds.
const LOOKS: u32 = 2000;

thread_local! {
    /// The team whose step the thread has begun, as its address.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

impl Team {
    /// As many threads as there are, that of the caller included.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(n_threads: usize, name: &str) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            round: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            is_awake: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            wish: Mutex::new(Wish::Sleep),
            changed: Condvar::new(),
        });
        let mut team = Self { shared, threads: Vec::new(), step: Mutex::new(()) };
        for i in 1..n_threads {
            let shared = Arc::clone(&team.shared);
            // One that cannot be started ends those before it, by dropping the team.
            team.threads.push(thread::Builder::new().name(format!("{name} {i}")).spawn(move || shared.serve())?);
        }
        Ok(team)
    }

    /// The threads of a launch.
    pub(crate) fn len(&self) -> usize {
        1 + self.threads.len()
    }

    /// Begins a step, does `work`, and ends the step. Within another step of the same thread it does the work alone.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let own = std::ptr::from_ref(self).expose_provenance();
        if WITHIN.get() == own {
            return work();
        }
        let _step = Step { team: self, _held: lock(&self.step), before: WITHIN.replace(own) };
        self.shared.tell(Wish::Wake);
        work()
    }

    /// Does `work` on all threads that come before it is done; each call is to take what is left. Returns when all of
    /// them have. Called within a step.
    pub(crate) fn together(&self, work: &(dyn Fn() + Sync)) {
        if self.threads.is_empty() {
            return work();
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `Open` keeps the reference's owner waiting until nobody uses it any more.
        let work_of_all: *const (dyn Fn() + Sync) = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        // SAFETY: no round is open and nobody is in one: `Open` waited for that, and steps exclude each other.
        unsafe { *shared.work.get() = Some(Work(work_of_all)) };
        let number = shared.round.load(Ordering::Relaxed) & !(NEXT - 1);
        shared.round.store(number.wrapping_add(NEXT) | OPEN, Ordering::Release);
        let open = Open(shared);
        work();
        drop(open);
        assert!(!shared.has_failed.load(Ordering::Relaxed), "a thread of the cpu device panicked");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step, until it is dropped.
struct Step<'a> {
    team: &'a Team,
    _held: MutexGuard<'a, ()>,
    /// What the thread was within before.
    before: usize,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        WITHIN.set(self.before);
        self.team.shared.tell(Wish::Sleep);
    }
}

/// An open round, until it is dropped.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.round.fetch_and(!OPEN, Ordering::AcqRel);
        let mut patience = Patience::default();
        while self.0.round.load(Ordering::Acquire) & INSIDE > 0 {
            patience.wait();
        }
    }
}

/// A thread in a round, until it is dropped.
struct Inside<'a>(&'a Shared);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.has_failed.store(true, Ordering::Relaxed);
        }
        self.0.round.fetch_sub(1, Ordering::Release);
    }
}

impl Shared {
    fn tell(&self, wish: Wish) {
        *lock(&self.wish) = wish;
        self.is_awake.store(wish == Wish::Wake, Ordering::Release);
        if wish != Wish::Sleep {
            self.changed.notify_all();
        }
    }

    /// What a thread does from its start to its end.
    fn serve(&self) {
        let mut done = 0;
        loop {
            let mut wish = lock(&self.wish);
            while *wish == Wish::Sleep {
                wish = self.changed.wait(wish).unwrap_or_else(PoisonError::into_inner);
            }
            if *wish == Wish::End {
                return;
            }
            drop(wish);
            self.take_part(&mut done);
        }
    }

    /// Joins the rounds of a step; `done` is the one that it has been in last.
    fn take_part(&self, done: &mut u64) {
        let mut patience = Patience::default();
        while self.is_awake.load(Ordering::Acquire) {
            let round = self.round.load(Ordering::Acquire);
            let is_new = round & OPEN > 0 && round & !(NEXT - 1) != *done;
            let joined =
                is_new && self.round.compare_exchange(round, round + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if joined {
                *done = round & !(NEXT - 1);
                let _inside = Inside(self);
                // SAFETY: the round is open, or waits for this thread to leave: its work was written before it was
                // opened, and is alive.
                let work = unsafe { (*self.work.get()).expect("an open round has work") };
                // SAFETY: as above.
                unsafe { (*work.0)() };
                patience = Patience::default();
            } else if !is_new {
                patience.wait();
            }
        }
    }
}

/// Waits shortly again and again, at first without giving up the core.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn wait(&mut self) {
        if self.0 < LOOKS {
            self.0 += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.tell(Wish::End);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that panicked was heard of
        }
    }
}

/// How many threads a device of this machine's cores has, where `n_threads` of 0 is one for every core.
pub(crate) fn threads_or_cores(n_threads: usize) -> usize {
    match n_threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_piece_of_work_is_done_once_in_many_rounds() {
        for n_threads in [1, 2, 5] {
            let team = Team::new(n_threads, "test").unwrap();
            assert_eq!(team.len(), n_threads);
            for step in 0..30 {
                team.within(|| {
                    for n in [1, 7, 100] {
                        let next = AtomicUsize::new(0);
                        let done: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                        team.together(&|| {
                            while let Some(piece) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                                piece.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                        assert!(done.iter().all(|piece| piece.load(Ordering::Relaxed) == 1), "step {step}");
                    }
                });
            }
        }
    }

    #[test]
    fn steps_of_two_threads_follow_each_other_and_one_within_another_is_part_of_it() {
        let team = Team::new(3, "test").unwrap();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let step = || {
            for _ in 0..50 {
                team.within(|| {
                    most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    team.within(|| team.together(&|| {}));
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        };
        thread::scope(|scope| {
            scope.spawn(step);
            scope.spawn(step);
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn work_that_panics_ends_the_launch_and_not_the_program() {
        let team = Team::new(2, "test").unwrap();
        let panics = || team.within(|| team.together(&|| panic!("as it should")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }
}
