//! Locates a kernel that does not end. A signal stops the threads that run blocks, and finds the running thread of the
//! block and its place in the object's code. Kernels need no preparation for it.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::context::Context;
use super::object::Object;
use crate::GpuError;

/// How often a thread is looked at until it is found in the object's code and not in what that calls, and for how long:
/// a busy machine lets it run, and hear of a signal, only now and then.
const LOOKS: usize = 200;
const LOOKS_TAKE: Duration = Duration::from_secs(3);

/// After so long a look at whether a signal was heard.
const LOOK: Duration = Duration::from_millis(1);

/// The last signal is waited for so often.
const LAST_LOOKS: usize = 500;

/// So many places are kept: where it is, and what its stack may return to.
const MAX_PLACES: usize = 32;

const SIGNAL: libc::c_int = libc::SIGUSR2;

/// A thread that runs blocks of a kernel, while it does.
struct Runs {
    thread: libc::pthread_t,
    object: *const Object,
    entry: String,
}

// SAFETY: the pointer is followed only while its thread is held by the signal's handler, and with it the object.
unsafe impl Send for Runs {}

static RUNNING: Mutex<Vec<Runs>> = Mutex::new(Vec::new());

static FOUND: Found = Found::new();
/// Number of caught signals.
static N_HEARD: AtomicUsize = AtomicUsize::new(0);
/// Whether a place that the stack returns to will do.
static IS_LAST_LOOK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The block that runs here, and the object's code.
    static HERE: Cell<(*const Context, [usize; 2])> = const { Cell::new((ptr::null(), [0; 2])) };
}

/// What a handler found: of one thread alone, as signals may come late, and two threads be in a handler at once.
struct Found {
    /// The thread whose it is, from when it was found, and not 0.
    owner: AtomicUsize,
    is_whole: AtomicBool,
    places: [AtomicUsize; MAX_PLACES],
    block: [AtomicU32; 3],
    thread: AtomicU32,
}

/// Where a thread of a block is in the object's code: as return addresses, the innermost first; the rest are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    places: [usize; MAX_PLACES],
    block: [u32; 3],
    thread: u32,
}

impl Found {
    const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(0),
            is_whole: AtomicBool::new(false),
            places: [const { AtomicUsize::new(0) }; MAX_PLACES],
            block: [const { AtomicU32::new(0) }; 3],
            thread: AtomicU32::new(0),
        }
    }

    /// Keeps what the first thread found that calls it; whether that is this one. It takes no lock.
    fn keep(&self, owner: usize, spot: Spot) -> bool {
        if self.owner.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        self.places.iter().zip(spot.places).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        self.block.iter().zip(spot.block).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        self.thread.store(spot.thread, Ordering::Relaxed);
        self.is_whole.store(true, Ordering::Release);
        true
    }

    /// Whose it is, and where that was.
    fn get(&self) -> Option<(usize, Spot)> {
        let read = || Spot {
            places: self.places.each_ref().map(|place| place.load(Ordering::Relaxed)),
            block: [0, 1, 2].map(|i| self.block[i].load(Ordering::Relaxed)),
            thread: self.thread.load(Ordering::Relaxed),
        };
        self.is_whole.load(Ordering::Acquire).then(|| (self.owner.load(Ordering::Relaxed), read()))
    }
}

/// While it lives, the calling thread runs blocks of a kernel.
pub(super) struct Noted;

impl Noted {
    pub(crate) fn new(object: &Object, entry: &str) -> Self {
        // SAFETY: it asks nothing of its caller.
        let thread = unsafe { libc::pthread_self() };
        let runs = Runs { thread, object, entry: entry.to_owned() };
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(runs);
        Self
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // SAFETY: as above.
        let own = unsafe { libc::pthread_self() };
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|runs| runs.thread != own);
    }
}

/// Says which block runs on this thread; none with a null context.
pub(super) fn note_block(context: *const Context, code: [usize; 2]) {
    HERE.set((context, code));
}

/// Locates the running kernels, for a process that is about to end: a located thread does not continue. `what` is their
/// description for the message.
pub fn stop_and_look(what: &str) -> Option<GpuError> {
    // Who is done meanwhile waits for this, and no thread of the list ends.
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    install();
    for runs in &*running {
        let until = Instant::now() + LOOKS_TAKE;
        for look in 1..=LOOKS {
            let is_last = look == LOOKS || Instant::now() >= until;
            IS_LAST_LOOK.store(is_last, Ordering::Relaxed);
            let n_heard = N_HEARD.load(Ordering::Relaxed);
            // SAFETY: the thread has not ended, as it takes itself from the list before.
            if unsafe { libc::pthread_kill(runs.thread, SIGNAL) } != 0 {
                break;
            }
            for _ in 0..LAST_LOOKS {
                std::thread::sleep(LOOK);
                let is_heard = FOUND.get().is_some() || N_HEARD.load(Ordering::Relaxed) != n_heard;
                if is_heard || !is_last && Instant::now() >= until {
                    break;
                }
            }
            let Some((owner, Spot { places, block, thread })) = FOUND.get() else {
                if is_last {
                    break;
                }
                continue;
            };
            // A thread that was asked before may have been the first to answer.
            let runs = running.iter().find(|runs| runs.thread as usize == owner)?;
            // SAFETY: the thread is in the handler for good, below a block of this object.
            let object = unsafe { &*runs.object };
            // What the simulator adds to the kernel has no lines of its own: who called it does.
            let lines = object.lines_of(places);
            return Some(GpuError::Fault { entry: runs.entry.clone(), what: what.to_owned(), lines, block, thread });
        }
    }
    None
}

fn install() {
    // SAFETY: all zero is a valid `sigaction`; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(SIGNAL, &action, ptr::null_mut());
    }
}

/// Looks at what it interrupted. It takes no lock and allocates nothing.
extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, interrupted: *mut libc::c_void) {
    N_HEARD.fetch_add(1, Ordering::Relaxed);
    let (context, code) = HERE.get();
    // SAFETY: the system gives a valid context of what was interrupted; a block's context and its threads live while it
    // is noted here, and their stacks are mapped to their ends.
    unsafe {
        let Some(thread) = context.as_ref().and_then(|context| context.thread.as_ref()) else { return };
        let Some([pc, top]) = registers(interrupted.cast()) else { return };
        if !(code[0]..code[1]).contains(&pc) && !IS_LAST_LOOK.load(Ordering::Relaxed) {
            return;
        }
        let places = places(pc, top, thread.stack, code);
        if places[0] == 0 {
            return;
        }
        let spot = Spot { places, block: (*context).block, thread: thread.index };
        if !FOUND.keep(libc::pthread_self() as usize, spot) {
            return;
        }
        loop {
            libc::pause();
        }
    }
}

/// The places of the object's code that a thread is in, as return addresses: where it is, and what its stack may return
/// to, the innermost first.
///
/// # Safety
/// The stack is mapped to its end.
pub(super) unsafe fn places(
    pc: usize,
    top: usize,
    [stack, len_bytes]: [usize; 2],
    code: [usize; 2],
) -> [usize; MAX_PLACES] {
    let is_code = |place: usize| (code[0]..code[1]).contains(&place);
    let mut places = [0; MAX_PLACES];
    let mut n = 0;
    if is_code(pc) {
        (places[0], n) = (pc + 1, 1); // as of a call, the place is the one before
    }
    if (stack..stack + len_bytes).contains(&top) {
        for at in (top..stack + len_bytes - size_of::<usize>()).step_by(size_of::<usize>()) {
            // SAFETY: it is in the stack, by the caller.
            let word = unsafe { *(at as *const usize) };
            if n < MAX_PLACES && is_code(word) {
                places[n] = word;
                n += 1;
            }
        }
    }
    places
}

/// The block that runs on this thread, and the object's code.
pub(super) fn here() -> (*const Context, [usize; 2]) {
    HERE.get()
}

/// Where it was in the code, and the top of its stack.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) unsafe fn registers(interrupted: *const libc::ucontext_t) -> Option<[usize; 2]> {
    // SAFETY: the caller has it from the system.
    let registers = unsafe { &(*interrupted).uc_mcontext.gregs };
    Some([libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize] as usize))
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
pub(super) unsafe fn registers(interrupted: *const libc::ucontext_t) -> Option<[usize; 2]> {
    // SAFETY: the caller has it from the system.
    let registers = unsafe { &(*interrupted).uc_mcontext };
    Some([registers.pc as usize, registers.sp as usize])
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) unsafe fn registers(_: *const libc::ucontext_t) -> Option<[usize; 2]> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_of_one_thread() {
        for _ in 0..200 {
            let found = Found::new();
            let spot = |n: u32| Spot { places: [n as usize; MAX_PLACES], block: [n; 3], thread: n };
            let kept: Vec<u32> = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..=3)
                    .map(|n| {
                        scope.spawn({
                            let found = &found;
                            move || found.keep(n as usize, spot(n)).then_some(n)
                        })
                    })
                    .collect();
                threads.into_iter().filter_map(|thread| thread.join().expect("it ends")).collect()
            });
            assert_eq!(kept.len(), 1, "{kept:?}");
            assert_eq!(found.get(), Some((kept[0] as usize, spot(kept[0]))));
        }
        assert_eq!(Found::new().get(), None);
    }
}
