//! Locates a kernel that does not end. A signal stops the threads that run blocks, and finds the running thread of the
//! block and its place in the object's code. Kernels need no preparation for it.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::context::Context;
use super::object::Object;
use crate::GpuError;

/// How often a thread is looked at until it is found in the object's code and not in what that calls.
const LOOKS: usize = 200;

/// How long a look may take.
const LOOK: Duration = Duration::from_millis(2);

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

/// What a handler found, once `IS_FOUND`.
static IS_FOUND: AtomicBool = AtomicBool::new(false);
static PC: AtomicUsize = AtomicUsize::new(0);
static BLOCK: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
static THREAD: AtomicU32 = AtomicU32::new(0);
/// Whether a place that the stack returns to will do.
static IS_LAST_LOOK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The block that runs here, and the object's code.
    static HERE: Cell<(*const Context, [usize; 2])> = const { Cell::new((ptr::null(), [0; 2])) };
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

/// Looks where the kernels are that run now, for a process that is about to end: a thread that was found does not go
/// on. `what` is what is said of them.
pub fn stop_and_look(what: &str) -> Option<GpuError> {
    // Who is done meanwhile waits for this, and no thread of the list ends.
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    install();
    running.iter().find_map(|runs| {
        for look in 1..=LOOKS {
            IS_LAST_LOOK.store(look == LOOKS, Ordering::Relaxed);
            // SAFETY: the thread has not ended, as it takes itself from the list before.
            if unsafe { libc::pthread_kill(runs.thread, SIGNAL) } != 0 {
                return None;
            }
            std::thread::sleep(LOOK);
            if IS_FOUND.load(Ordering::Acquire) {
                // SAFETY: the thread is in the handler for good, below a block of this object.
                let object = unsafe { &*runs.object };
                // As of a call, the place is the one before.
                let line = object.line(PC.load(Ordering::Relaxed) + 1);
                let block = [0, 1, 2].map(|i| BLOCK[i].load(Ordering::Relaxed));
                let thread = THREAD.load(Ordering::Relaxed);
                return Some(GpuError::Fault { entry: runs.entry.clone(), what: what.to_owned(), line, block, thread });
            }
        }
        None
    })
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
    let (context, code) = HERE.get();
    // SAFETY: the system gives a valid context of what was interrupted; a block's context and its threads live while it
    // is noted here, and their stacks are mapped to their ends.
    unsafe {
        let Some(thread) = context.as_ref().and_then(|context| context.thread.as_ref()) else { return };
        let Some([mut pc, top]) = registers(interrupted.cast()) else { return };
        let is_code = |place: usize| (code[0]..code[1]).contains(&place);
        if !is_code(pc) {
            let [stack, len_bytes] = thread.stack;
            if !IS_LAST_LOOK.load(Ordering::Relaxed) || !(stack..stack + len_bytes).contains(&top) {
                return;
            }
            let words = (top..stack + len_bytes - size_of::<usize>()).step_by(size_of::<usize>());
            let Some(place) = words.map(|at| *(at as *const usize)).find(|word| is_code(*word)) else { return };
            pc = place - 1;
        }
        PC.store(pc, Ordering::Relaxed);
        (0..3).for_each(|i| BLOCK[i].store((*context).block[i], Ordering::Relaxed));
        THREAD.store(thread.index, Ordering::Relaxed);
        IS_FOUND.store(true, Ordering::Release);
        loop {
            libc::pause();
        }
    }
}

/// Where it was in the code, and the top of its stack.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
unsafe fn registers(interrupted: *const libc::ucontext_t) -> Option<[usize; 2]> {
    // SAFETY: the caller has it from the system.
    let registers = unsafe { &(*interrupted).uc_mcontext.gregs };
    Some([libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize] as usize))
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
unsafe fn registers(interrupted: *const libc::ucontext_t) -> Option<[usize; 2]> {
    // SAFETY: the caller has it from the system.
    let registers = unsafe { &(*interrupted).uc_mcontext };
    Some([registers.pc as usize, registers.sp as usize])
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn registers(_: *const libc::ucontext_t) -> Option<[usize; 2]> {
    None
}
