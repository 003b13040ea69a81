//! Catches what the processor refuses in a kernel, by a signal: a division by 0, an address without memory, a full
//! stack. The thread stops as after any other mistake, and the process continues.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::context::{Context, Fault, FaultKind, Pause, PauseKind, Stamp, suspend};
use super::hang::{here, places, registers};

const SIGNALS: [libc::c_int; 4] = [libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGBUS];

/// So far below a stack an address is still taken to be meant as one of it: of what has no room there.
const BELOW_STACK: usize = 64 << 10;

/// Bytes of a page; a stack begins with an inaccessible one.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// From here on, a simulated kernel that the processor stops is reported with its line. For a process without other
/// handlers of these signals.
pub fn catch_signals() {
    // SAFETY: it asks nothing of its caller.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    PAGE_BYTES.store(page_bytes.unwrap_or(4096), Ordering::Relaxed);
    for signal in SIGNALS {
        // SAFETY: all zero is a valid `sigaction`; the handler has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
}

/// Gives the thread up if a kernel was interrupted, and else lets the process end as it would have.
extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, interrupted: *mut libc::c_void) {
    // SAFETY: the system gives a valid context of what was interrupted, on this thread.
    if !unsafe { give_up(signal, info, interrupted.cast()) } {
        // SAFETY: it asks nothing; the instruction is executed once more, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Whether the thread goes on by giving way for good. It takes no lock and allocates nothing.
unsafe fn give_up(signal: libc::c_int, info: *mut libc::siginfo_t, interrupted: *mut libc::ucontext_t) -> bool {
    let (context, code) = here();
    let context = context.cast_mut();
    // SAFETY: a block's context and its threads live while it is noted here, and are only used by this thread.
    unsafe {
        if context.is_null() || (*context).thread.is_null() {
            return false;
        }
        let (thread, [stack, len_bytes]) = ((*context).thread, (*(*context).thread).stack);
        let usable = stack + PAGE_BYTES.load(Ordering::Relaxed);
        let Some([pc, top]) = registers(interrupted) else { return false };
        let address = (*info).si_addr() as usize;
        let is_overflow = matches!(signal, libc::SIGSEGV | libc::SIGBUS)
            && (stack.saturating_sub(BELOW_STACK)..usable).contains(&address);
        // What the kernel calls may hold what others wait for.
        if !(code[0]..code[1]).contains(&pc) && !is_overflow {
            return false;
        }
        let places = places(pc, top.max(usable), [stack, len_bytes], code);
        let kind = if is_overflow { FaultKind::Overflow } else { FaultKind::Signal(signal) };
        let parties = [Stamp((*thread).stamp); 2];
        let further = std::array::from_fn(|i| places[i + 1]);
        (*context).fault = Some(Fault { kind, address, len_bytes: 0, pc: places[0], further, parties });
        // Of a full stack the half is free again: nobody returns to what is there.
        let free = if is_overflow { stack + len_bytes / 2 } else { top };
        go_on(interrupted, stopped, context, free)
    }
}

/// The thread continues here and is never resumed: the block is given up.
unsafe extern "C" fn stopped(context: *mut Context) -> ! {
    loop {
        suspend(context, Pause::new(PauseKind::Fault, 0));
    }
}

/// What was interrupted goes on in a function, on the stack below `free`.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
unsafe fn go_on(
    interrupted: *mut libc::ucontext_t,
    function: unsafe extern "C" fn(*mut Context) -> !,
    context: *mut Context,
    free: usize,
) -> bool {
    /// Bytes below the top that a function may use without saying so.
    const RED_ZONE: usize = 128;
    // SAFETY: the caller has it from the system. As after a call, the top is a word below a multiple of 16.
    unsafe {
        let registers = &mut (*interrupted).uc_mcontext.gregs;
        registers[libc::REG_RSP as usize] = (((free - RED_ZONE) & !15) - size_of::<usize>()) as i64;
        registers[libc::REG_RDI as usize] = context as i64;
        registers[libc::REG_RIP as usize] = function as usize as i64;
    }
    true
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
unsafe fn go_on(
    interrupted: *mut libc::ucontext_t,
    function: unsafe extern "C" fn(*mut Context) -> !,
    context: *mut Context,
    free: usize,
) -> bool {
    // SAFETY: the caller has it from the system.
    unsafe {
        let registers = &mut (*interrupted).uc_mcontext;
        registers.sp = (free & !15) as u64;
        registers.regs[0] = context as u64;
        registers.pc = function as usize as u64;
    }
    true
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
unsafe fn go_on(
    _: *mut libc::ucontext_t,
    _: unsafe extern "C" fn(*mut Context) -> !,
    _: *mut Context,
    _: usize,
) -> bool {
    false
}
