//! What a running block shares with the object: the same structs as in `templates/lib/hip/simulator.hip.j2`.

use std::ptr;

use corosensei::Yielder;

use super::order::Order;

/// Addresses that a kernel may use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub begin: usize,
    pub end: usize,
    is_writable: u32,
    watch: Watch,
    cells: *mut Cell,
    cell_shift: u32,
    is_undefined: u32,
}

// SAFETY: the cells live as long as the launch, and only the objects of its workers look into them, whose accesses to
// words that two blocks may touch at once are atomic; of two stamps left at once one may be lost, and with it a race.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

/// Which accesses must not meet.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Nothing = 0,
    Lds = 1,
    Global = 2,
}

impl Range {
    /// Memory that is told by its bounds alone.
    pub fn unwatched(begin: usize, end: usize, is_writable: bool) -> Self {
        let (is_writable, cells) = (is_writable.into(), ptr::null_mut());
        Self { begin, end, is_writable, watch: Watch::Nothing, cells, cell_shift: 0, is_undefined: 0 }
    }

    /// Memory that a launch may write, watched in elements of `1 << cell_shift` bytes, of which `cells` has one each.
    pub fn global(begin: usize, end: usize, cells: *mut Cell, cell_shift: u32, is_undefined: bool) -> Self {
        let is_undefined = is_undefined.into();
        Self { begin, end, is_writable: 1, watch: Watch::Global, cells, cell_shift, is_undefined }
    }

    /// A variable in LDS, watched in words of four bytes, of which `cells` has one each.
    pub fn lds(begin: usize, end: usize, cells: *mut Cell) -> Self {
        Self { begin, end, is_writable: 1, watch: Watch::Lds, cells, cell_shift: 2, is_undefined: 1 }
    }

    /// Bytes of an element, where they are known.
    pub fn element_bytes(&self) -> Option<usize> {
        (self.watch == Watch::Global).then(|| 1 << self.cell_shift)
    }

    pub fn len_bytes(&self) -> usize {
        self.end - self.begin
    }
}

/// What is known of an element of global memory or of a word of LDS; only the object looks into it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    write: u64,
    shared: u64,
    defined: [u32; 2],
}

/// So many cells of which nothing is known. Those that are never looked at cost nothing.
pub(super) fn cells(n: usize) -> Box<[Cell]> {
    // SAFETY: all bytes zero is a cell, the default one.
    unsafe { Box::<[Cell]>::new_zeroed_slice(n).assume_init() }
}

/// An access: which bytes of a cell, how, by whom and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub u64);

impl Stamp {
    const THREAD_SHIFT: u32 = 8;
    const BLOCK_SHIFT: u32 = 18;
    const TIME_SHIFT: u32 = 42;
    /// Threads that a block may have: no GPU takes more.
    pub const MAX_THREADS: u32 = 1 << (Self::BLOCK_SHIFT - Self::THREAD_SHIFT);
    /// Blocks that stamps can tell apart.
    pub const MAX_BLOCKS: u64 = (1 << (Self::TIME_SHIFT - Self::BLOCK_SHIFT)) - 1;
    /// The last time that a stamp can hold.
    pub const MAX_TIME: u32 = (1 << (64 - Self::TIME_SHIFT)) - 1;

    /// Of a thread at a time; `block` counts through the grid.
    pub fn new(block: u64, thread: u32, time: u32) -> Self {
        debug_assert!(block < Self::MAX_BLOCKS && thread < Self::MAX_THREADS && time <= Self::MAX_TIME);
        let thread = u64::from(thread) << Self::THREAD_SHIFT;
        Self((block + 1) << Self::BLOCK_SHIFT | u64::from(time) << Self::TIME_SHIFT | thread)
    }

    pub fn block(self) -> u64 {
        (self.0 >> Self::BLOCK_SHIFT & Self::MAX_BLOCKS) - 1
    }

    pub fn thread(self) -> u32 {
        (self.0 >> Self::THREAD_SHIFT) as u32 & (Self::MAX_THREADS - 1)
    }

    pub fn time(self) -> u32 {
        (self.0 >> Self::TIME_SHIFT) as u32
    }

    /// Which bytes of the cell.
    pub fn mask(self) -> u32 {
        self.0 as u32 & 15
    }

    /// Whether it stands for several threads of its block, up to its time.
    pub fn is_of_many(self) -> bool {
        self.0 & (16 | 32) != 0
    }

    pub fn is_atomic(self) -> bool {
        self.0 & 64 != 0
    }
}

/// Bytes that a lane can leave for the others.
pub(super) const SLOT_BYTES: usize = 256;

/// What a thread waits for, or why it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// All threads of the block.
    Barrier { line: u32 },
    /// All lanes of the wave; `joins`: what each of them knew is then known to all, as behind a barrier.
    Wave { line: u32, joins: bool },
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
    /// Who races: this one now, and that one before.
    pub parties: [Stamp; 2],
}

/// How an access was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Read,
    Write,
    ReadOnly,
    Misaligned,
    Race,
    Undefined,
}

/// The running thread, and what it may touch.
#[repr(C)]
pub(super) struct Context {
    pub stamp: u64,
    pub floor: u32,
    pub wave_floor: u32,
    pub thread: u32,
    pub block: [u32; 3],
    pub grid: [u32; 3],
    pub parity: u32,
    pub n_ranges: u32,
    pub ranges: *const Range,
    pub slots: *mut u8,
    pub stack_begin: usize,
    pub stack_end: usize,
    pub calls: Calls,
    /// The object's text does not know what follows.
    pub yielder: *const Yielder<(), Pause>,
    /// What of all blocks orders accesses.
    pub order: *const Order,
}

/// What the object calls.
#[repr(C)]
pub(super) struct Calls {
    wait: extern "C" fn(*mut Context, u32, u32),
    fault: extern "C" fn(*mut Context, u32, usize, u32, usize, u64),
    fence: extern "C" fn(*mut Context),
    synchronise: extern "C" fn(*mut Context, usize),
    knows: extern "C" fn(*mut Context, u64) -> u32,
    keep: extern "C" fn(*mut Context, *const Cell, u64),
    conflict: extern "C" fn(*mut Context, *const Cell, u32, u32) -> u64,
}

pub(super) const CALLS: Calls = Calls { wait, fault, fence, synchronise, knows, keep, conflict };

/// Called by the object when the running thread has to wait.
extern "C" fn wait(context: *mut Context, what: u32, line: u32) {
    suspend(context, if what == 0 { Pause::Barrier { line } } else { Pause::Wave { line, joins: what == 2 } });
}

/// Called by the object when the running thread must not go on.
extern "C" fn fault(context: *mut Context, kind: u32, address: usize, len_bytes: u32, pc: usize, other: u64) {
    let kind = match kind {
        0 => FaultKind::Read,
        1 => FaultKind::Write,
        2 => FaultKind::ReadOnly,
        3 => FaultKind::Misaligned,
        4 => FaultKind::Race,
        _ => FaultKind::Undefined,
    };
    let parties = [Stamp(now(context).stamp), Stamp(other)];
    let fault = Fault { kind, address, len_bytes, pc, parties };
    loop {
        suspend(context, Pause::Fault(fault)); // nobody resumes it: the block is given up
    }
}

/// The running thread executes a fence for the device.
extern "C" fn fence(context: *mut Context) {
    let Now { stamp, floor, order } = now(context);
    order.fence(Stamp(stamp), floor);
    // At its end time stands; the block's next barrier says that the block is too long.
    if Stamp(stamp).time() < Stamp::MAX_TIME {
        // SAFETY: as in `suspend`; `now` gave no reference to the context itself.
        unsafe { (*context).stamp = stamp + (1 << Stamp::TIME_SHIFT) };
    }
}

/// The running thread changes a word of global memory by an atomic.
extern "C" fn synchronise(context: *mut Context, address: usize) {
    let Now { stamp, order, .. } = now(context);
    order.synchronise(Stamp(stamp), address);
}

extern "C" fn knows(context: *mut Context, stamp: u64) -> u32 {
    let Now { stamp: own, order, .. } = now(context);
    order.knows(Stamp(own), Stamp(stamp)).into()
}

extern "C" fn keep(context: *mut Context, cell: *const Cell, stamp: u64) {
    now(context).order.keep(cell.addr(), Stamp(stamp));
}

extern "C" fn conflict(context: *mut Context, cell: *const Cell, mask: u32, how: u32) -> u64 {
    let Now { stamp, order, .. } = now(context);
    let conflicts = |other: Stamp| match how {
        0 => other.is_atomic(),
        IS_WRITE => true,
        _ => !other.is_atomic(),
    };
    order.conflict(cell.addr(), Stamp(stamp), mask, conflicts).map_or(0, |stamp| stamp.0)
}

/// How a plain store accesses memory; a load is 0, the rest atomics.
const IS_WRITE: u32 = 1;

/// The running thread, and what orders it among others.
struct Now<'a> {
    stamp: u64,
    floor: u32,
    order: &'a Order,
}

fn now<'a>(context: *mut Context) -> Now<'a> {
    // SAFETY: the object passes on the context that `block::run` gave it; it and the launch's order, which is only used
    // by shared reference, live as long as the block runs, and nobody else uses the context while one of its threads
    // runs.
    unsafe { Now { stamp: (*context).stamp, floor: (*context).floor, order: &*(*context).order } }
}

fn suspend(context: *mut Context, pause: Pause) {
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, and no
    // reference to it is held meanwhile; the yielder is the running coroutine's, set before it was resumed.
    unsafe { (*(*context).yielder).suspend(pause) };
}
