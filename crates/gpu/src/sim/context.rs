//! What a running block shares with the object: the same structs as in `templates/lib/simulator.hip.j2`.

use corosensei::Yielder;

/// Addresses that a kernel may use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub begin: usize,
    pub end: usize,
    is_writable: u32,
    is_lds: u32,
    first_cell: usize,
}

impl Range {
    /// An argument's memory.
    pub fn global(begin: usize, end: usize, is_writable: bool) -> Self {
        Self { begin, end, is_writable: is_writable.into(), is_lds: 0, first_cell: 0 }
    }

    /// A variable in LDS, whose bytes are watched in cells of four.
    pub fn lds(begin: usize, end: usize, first_cell: usize) -> Self {
        Self { begin, end, is_writable: 1, is_lds: 1, first_cell }
    }

    pub fn is_writable(&self) -> bool {
        self.is_writable != 0
    }

    pub fn len_bytes(&self) -> usize {
        self.end - self.begin
    }
}

/// What is known of four bytes of LDS; only the object looks into it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    epochs: [u32; 4],
    threads: [u16; 2],
    flags: [u8; 4],
}

/// Bytes that a lane can leave for the others.
pub(super) const SLOT_BYTES: usize = 256;

/// What a thread waits for, or why it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// All threads of the block.
    Barrier { line: u32 },
    /// All lanes of the wave.
    Wave { line: u32 },
    /// It did something that it must not.
    Fault(Fault),
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub kind: FaultKind,
    pub address: usize,
    pub len_bytes: u32,
    /// Where in the object's code.
    pub pc: usize,
    /// The other party of a race.
    pub other_thread: u32,
}

/// How an access was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Read,
    Write,
    ReadOnly,
    Misaligned,
    Race,
}

/// The running thread, and what it may touch.
#[repr(C)]
pub(super) struct Context {
    pub thread: u32,
    pub block: [u32; 3],
    pub grid: [u32; 3],
    pub epoch: u32,
    pub wave_epoch: u32,
    pub parity: u32,
    pub n_ranges: u32,
    pub ranges: *const Range,
    pub cells: *mut Cell,
    pub slots: *mut u8,
    pub stack_begin: usize,
    pub stack_end: usize,
    pub wait: extern "C" fn(*mut Context, u32, u32),
    pub fault: extern "C" fn(*mut Context, u32, usize, u32, usize, u32),
    /// The object's text does not know what follows.
    pub yielder: *const Yielder<(), Pause>,
}

/// Called by the object when the running thread has to wait.
pub(super) extern "C" fn wait(context: *mut Context, what: u32, line: u32) {
    let pause = if what == 0 { Pause::Barrier { line } } else { Pause::Wave { line } };
    suspend(context, pause);
}

/// Called by the object when the running thread must not go on.
pub(super) extern "C" fn fault(
    context: *mut Context,
    kind: u32,
    address: usize,
    len_bytes: u32,
    pc: usize,
    other_thread: u32,
) {
    let kind = match kind {
        0 => FaultKind::Read,
        1 => FaultKind::Write,
        2 => FaultKind::ReadOnly,
        3 => FaultKind::Misaligned,
        _ => FaultKind::Race,
    };
    let fault = Fault { kind, address, len_bytes, pc, other_thread };
    loop {
        suspend(context, Pause::Fault(fault)); // nobody resumes it: the block is given up
    }
}

fn suspend(context: *mut Context, pause: Pause) {
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, and no
    // reference to it is held meanwhile; the yielder is the running coroutine's, set before it was resumed.
    unsafe { (*(*context).yielder).suspend(pause) };
}
