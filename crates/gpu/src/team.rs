//! Threads that run the blocks of launches together. After a launch they look for the next one before they sleep, so
//! that a launch is handed over in about a microsecond.

use std::cell::{Cell, UnsafeCell};
use std::hint;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The threads, except the one that launches, which begins the step.
pub(crate) struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held by the thread that has begun a step.
    step: Mutex<()>,
}

/// State shared by all threads.
struct Shared {
    /// The number of the round in the upper half; whether it is open, and how many have joined it and not left.
    round: AtomicU64,
    /// The work of the round. Written while no round is open and no thread is in one.
    work: UnsafeCell<Option<Work>>,
    /// Whether a thread's work panicked in the round.
    has_failed: AtomicBool,
    /// Threads that sleep, or are about to.
    n_asleep: AtomicUsize,
    /// Steps that were begun: each wakes the sleeping threads.
    steps: AtomicU64,
    /// Whether the team has ended. A thread that falls asleep holds this until it sleeps.
    has_ended: Mutex<bool>,
    changed: Condvar,
}

/// The work of a round. It lives until no thread is in the round any more; the launching thread waits for that.
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
/// The bits of a round's number.
const NUMBER: u64 = !(NEXT - 1);

/// How long a thread looks for the next round before it sleeps: longer than a GPU takes for its part of a layer.
const PATIENCE: Duration = Duration::from_micros(500);

/// Looks before a thread lets others have its core: two or three microseconds.
const LOOKS: u32 = 50;

thread_local! {
    /// The team whose step the thread has begun, as its address.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

impl Team {
    /// Starts `n_threads - 1` threads; the launching thread is the last of the team.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(n_threads: usize, name: &str) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            round: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            has_failed: AtomicBool::new(false),
            n_asleep: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
            has_ended: Mutex::new(false),
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
        let _step = Step { _held: lock(&self.step), before: WITHIN.replace(own) };
        self.shared.steps.fetch_add(1, Ordering::SeqCst);
        self.shared.wake();
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
        shared.has_failed.store(false, Ordering::Relaxed);
        let number = shared.round.load(Ordering::Relaxed) & NUMBER;
        shared.round.store(number.wrapping_add(NEXT) | OPEN, Ordering::SeqCst);
        let open = Open(shared);
        shared.wake();
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
    _held: MutexGuard<'a, ()>,
    /// What the thread was within before.
    before: usize,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        WITHIN.set(self.before);
    }
}

/// An open round, until it is dropped.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.round.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while self.0.round.load(Ordering::Acquire) & INSIDE > 0 {
            looks += 1;
            if looks < LOOKS { hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

/// A thread in a round, until it is dropped.
struct Inside<'a>(&'a Shared);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.round.fetch_sub(1, Ordering::Release);
    }
}

/// What a thread finds that waits for work.
enum Found {
    /// A round that is open, as it was when it was found.
    Round(u64),
    /// A step, whose first round may come soon.
    Step,
    End,
}

impl Shared {
    /// Wakes sleeping threads. Called after a change: either a thread about to sleep sees the change, or this sees that
    /// thread.
    fn wake(&self) {
        if self.n_asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.has_ended));
            self.changed.notify_all();
        }
    }

    /// What a thread does from its start to its end.
    fn serve(&self) {
        let mut done = 0; // the round that it has been in last
        loop {
            match self.look(done).map_or_else(|| self.sleep(done), Found::Round) {
                Found::Round(round) => self.join(round, &mut done),
                Found::Step => {}
                Found::End => return,
            }
        }
    }

    /// Looks for an open round other than the one that is done, for a while.
    fn look(&self, done: u64) -> Option<u64> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                let round = self.round.load(Ordering::Acquire);
                if is_new(round, done) {
                    return Some(round);
                }
                hint::spin_loop();
            }
            thread::yield_now(); // to whoever else has something to do
            if start.elapsed() > PATIENCE {
                return None;
            }
        }
    }

    /// Sleeps until there is something.
    fn sleep(&self, done: u64) -> Found {
        let mut has_ended = lock(&self.has_ended);
        let steps = self.steps.load(Ordering::SeqCst);
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            let round = self.round.load(Ordering::SeqCst);
            if *has_ended {
                break Found::End;
            } else if is_new(round, done) {
                break Found::Round(round);
            } else if self.steps.load(Ordering::SeqCst) != steps {
                break Found::Step;
            }
            has_ended = self.changed.wait(has_ended).unwrap_or_else(PoisonError::into_inner);
        };
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Does the work of a round, unless it was closed, or another thread joined it, since it was looked at.
    fn join(&self, round: u64, done: &mut u64) {
        if self.round.compare_exchange(round, round + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        *done = round & NUMBER;
        let _inside = Inside(self);
        // SAFETY: the round is open, or waits for this thread to leave: its work was written before it was opened, and
        // is alive.
        let work = unsafe { (*self.work.get()).expect("an open round has work") };
        // SAFETY: as above.
        let done = panic::catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }));
        if done.is_err() {
            self.has_failed.store(true, Ordering::Relaxed); // for whoever launched it
        }
    }
}

fn is_new(round: u64, done: u64) -> bool {
    round & OPEN > 0 && round & NUMBER != done
}

impl Drop for Team {
    fn drop(&mut self) {
        *lock(&self.shared.has_ended) = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // none panics
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
    fn threads_that_sleep_wake_up_for_a_launch() {
        let team = Team::new(3, "test").unwrap();
        let asleep = || team.shared.n_asleep.load(Ordering::SeqCst);
        for _ in 0..5 {
            let start = Instant::now();
            while asleep() < 2 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody sleeps");
                thread::sleep(PATIENCE);
            }
            // Three have to come, or it does not end.
            let n_here = AtomicUsize::new(0);
            team.within(|| {
                team.together(&|| {
                    n_here.fetch_add(1, Ordering::SeqCst);
                    while n_here.load(Ordering::SeqCst) < 3 {
                        thread::yield_now();
                    }
                });
            });
        }
    }

    #[test]
    fn work_that_panics_ends_the_launch_and_not_the_program() {
        let team = Team::new(2, "test").unwrap();
        let caller = thread::current().id();
        for who_panics in [true, false] {
            let has_come = AtomicBool::new(false);
            // Both come; the thread that launches panics, or the other one.
            let work = || {
                if thread::current().id() == caller {
                    while !has_come.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                } else {
                    has_come.store(true, Ordering::SeqCst);
                }
                assert!((thread::current().id() == caller) != who_panics, "as it should");
            };
            let launch = || team.within(|| team.together(&work));
            assert!(panic::catch_unwind(AssertUnwindSafe(launch)).is_err(), "{who_panics}");
            team.within(|| team.together(&|| {}));
        }
    }
}
