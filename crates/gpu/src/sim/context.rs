//! What a running block shares with the object: the same structs as in `templates/lib/hip/simulator.hip.j2`.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::access::{access, counted_access, misaligned};
use super::coroutine::{Coroutine, Link};
use super::object::SimEntryPoint;
use super::order::Order;
use super::watch::{Cell, cells};

/// Addresses that a kernel may use.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(crate) begin: usize,
    pub(crate) end: usize,
    pub(crate) is_writable: bool,
    pub(crate) watch: Watch,
    /// Of what is watched: one for each `1 << cell_shift` bytes.
    pub(crate) cells: *const Cell,
    pub(crate) cell_shift: u32,
    /// One for each byte, made when there are threads that have parts of a cell.
    bytes: Arc<OnceLock<Box<[Cell]>>>,
    /// Whether reading unwritten memory is an error.
    pub(crate) is_undefined: bool,
}

// SAFETY: the cells live as long as the launch, and consist of atomics.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

/// Which accesses are checked for races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Nothing,
    Lds,
    Global,
}

impl Range {
    /// Memory of which only the bounds are checked.
    pub(crate) fn unwatched(begin: usize, end: usize, is_writable: bool) -> Self {
        let (watch, cells, bytes) = (Watch::Nothing, ptr::null(), Arc::default());
        Self { begin, end, is_writable, watch, cells, cell_shift: 0, bytes, is_undefined: false }
    }

    /// Memory that a launch may write, watched in elements of `1 << cell_shift` bytes, of which `cells` has one each.
    pub(crate) fn global(begin: usize, end: usize, cells: *const Cell, cell_shift: u32, is_undefined: bool) -> Self {
        let (is_writable, watch, bytes) = (true, Watch::Global, Arc::default());
        Self { begin, end, is_writable, watch, cells, cell_shift, bytes, is_undefined }
    }

    /// A variable in LDS, watched in words of four bytes, of which `cells` has one each.
    pub(crate) fn lds(begin: usize, end: usize, cells: *const Cell) -> Self {
        Self { watch: Watch::Lds, ..Self::global(begin, end, cells, 2, true) }
    }

    /// Bytes of an element, where they are known.
    pub(crate) fn element_bytes(&self) -> Option<usize> {
        (self.watch == Watch::Global).then(|| 1 << self.cell_shift)
    }

    /// One of the cells that it is watched in.
    pub(crate) fn cell(&self, i: usize) -> &Cell {
        debug_assert!(i < self.len_bytes().div_ceil(1 << self.cell_shift));
        // SAFETY: there is one for each element of the range, and they live as long as the launch.
        unsafe { &*self.cells.add(i) }
    }

    /// The cells of one cell's bytes.
    pub(crate) fn bytes_of(&self, cell: usize) -> &[Cell] {
        let n_cells = self.len_bytes().div_ceil(1 << self.cell_shift);
        let all = self.bytes.get_or_init(|| cells(n_cells << self.cell_shift));
        &all[cell << self.cell_shift..][..1 << self.cell_shift]
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.end - self.begin
    }

    /// Whether these bytes, as addresses, are of it.
    pub(crate) fn has(&self, begin: usize, end: usize) -> bool {
        begin >= self.begin && end <= self.end
    }
}

/// An access: which bytes of a cell, how, by which thread and when. A thread's time grows at each barrier and fence;
/// after a barrier all threads have the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub u64);

impl Stamp {
    const THREAD_SHIFT: u32 = 8;
    const BLOCK_SHIFT: u32 = 18;
    const TIME_SHIFT: u32 = 42;
    /// Which bytes of the cell were accessed, a bit each.
    pub(crate) const MASK: u64 = 15;
    /// Whether it stands for several lanes of its wave, or several waves of its block.
    pub(crate) const LANES: u64 = 16;
    pub(crate) const WAVES: u64 = 32;
    pub(crate) const ATOMIC: u64 = 64;
    /// Whether the cell had to leave stamps of other blocks elsewhere ([`Order::keep`]).
    pub(crate) const ELSEWHERE: u64 = 128;
    pub(crate) const THREADS: u64 = (Self::MAX_THREADS as u64 - 1) << Self::THREAD_SHIFT;
    /// Threads that a block may have: no GPU takes more.
    pub(crate) const MAX_THREADS: u32 = 1 << (Self::BLOCK_SHIFT - Self::THREAD_SHIFT);
    /// Blocks that stamps can tell apart.
    pub(crate) const MAX_BLOCKS: u64 = (1 << (Self::TIME_SHIFT - Self::BLOCK_SHIFT)) - 1;
    /// The last time that a stamp can hold.
    pub(crate) const MAX_TIME: u32 = (1 << (64 - Self::TIME_SHIFT)) - 1;

    /// Of a thread at a time; `block` counts through the grid.
    pub(crate) fn new(block: u64, thread: u32, time: u32) -> Self {
        debug_assert!(block < Self::MAX_BLOCKS && thread < Self::MAX_THREADS && time <= Self::MAX_TIME);
        let thread = u64::from(thread) << Self::THREAD_SHIFT;
        Self((block + 1) << Self::BLOCK_SHIFT | u64::from(time) << Self::TIME_SHIFT | thread)
    }

    pub(crate) fn block(self) -> u64 {
        u64::from(self.block_bits()) - 1
    }

    /// The block's number and one.
    pub(crate) fn block_bits(self) -> u32 {
        (self.0 >> Self::BLOCK_SHIFT & Self::MAX_BLOCKS) as u32
    }

    /// The same stamp at another time.
    pub(crate) fn at(self, time: u32) -> Self {
        Self(self.0 & ((1 << Self::TIME_SHIFT) - 1) | u64::from(time) << Self::TIME_SHIFT)
    }

    pub(crate) fn thread(self) -> u32 {
        (self.0 >> Self::THREAD_SHIFT) as u32 & (Self::MAX_THREADS - 1)
    }

    pub(crate) fn time(self) -> u32 {
        (self.0 >> Self::TIME_SHIFT) as u32
    }

    /// Which bytes of the cell.
    pub(crate) fn mask(self) -> u32 {
        (self.0 & Self::MASK) as u32
    }

    /// Whether it stands for several threads of its block, up to its time.
    pub(crate) fn is_of_many(self) -> bool {
        self.0 & (Self::LANES | Self::WAVES) != 0
    }

    pub(crate) fn is_atomic(self) -> bool {
        self.0 & Self::ATOMIC != 0
    }
}

/// Bytes that a lane can leave for the others.
pub(super) const SLOT_BYTES: usize = 256;

/// Those bytes, in one piece with those of the next lane, and aligned as the object's vectors are.
#[derive(Clone)]
#[repr(align(16))]
pub(super) struct Slot(#[expect(dead_code, reason = "objects alone look at it")] pub [u8; SLOT_BYTES]);

/// What a thread waits for, or why it stopped, and in which line. One word: it is copied whenever a thread gives way,
/// and a processor waits for what is read in other pieces than it was just written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause(u64);

/// The first three as the object counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseKind {
    /// All threads of the block.
    Barrier,
    /// All lanes of the wave.
    Wave,
    /// The same, and what each of them knew is then known to all, as after a barrier.
    WaveBarrier,
    /// It did something that it must not: [`Context::fault`].
    Fault,
    End,
    /// It may be waiting for another lane of its wave, in a loop without any operation of the wave.
    Looking,
    /// Nothing: it can run.
    Nothing,
}

impl Pause {
    pub(crate) const NONE: Self = Self::new(PauseKind::Nothing, 0);

    pub(crate) const fn new(kind: PauseKind, line: u32) -> Self {
        Self((kind as u64) << 32 | line as u64)
    }

    pub(crate) fn line(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn kind(self) -> PauseKind {
        use PauseKind::{Barrier, End, Fault, Looking, Nothing, Wave, WaveBarrier};
        let is = |kind: &PauseKind| *kind as u64 == self.0 >> 32;
        [Barrier, Wave, WaveBarrier, Fault, End, Looking].into_iter().find(is).unwrap_or(Nothing)
    }

    pub(crate) fn is(self, kind: PauseKind) -> bool {
        self.0 >> 32 == kind as u64
    }

    /// Whether it is for the lanes of its wave.
    pub(crate) fn is_of_wave(self) -> bool {
        self.is(PauseKind::Wave) || self.is(PauseKind::WaveBarrier)
    }

    /// Whether it is for others.
    pub(crate) fn is_waiting(self) -> bool {
        self.is(PauseKind::Barrier) || self.is_of_wave()
    }
}

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) address: usize,
    pub(crate) len_bytes: u32,
    /// Where in the object's code.
    pub(crate) pc: usize,
    /// Where that may have been called, if it has no line itself: return addresses, or 0.
    pub(crate) further: [usize; 7],
    /// Who races: this one now, and that one before.
    pub(crate) parties: [Stamp; 2],
}

/// How an access was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Read,
    Write,
    ReadOnly,
    Misaligned,
    /// A pointer to a type of this alignment, which stands for the length.
    Unaligned,
    Race,
    Undefined,
    /// The same of what another thread of the block writes before the next barrier.
    Early,
    /// The kernel's own `assert` does not hold.
    Assertion,
    /// The processor refused an instruction, with this signal.
    Signal(i32),
    /// The thread's stack is full.
    Overflow,
}

#[repr(C)]
pub(super) struct Thread {
    /// Its number in the block.
    pub index: u32,
    /// Which half of the slots its next wave operation uses.
    pub parity: u32,
    /// The object's text does not know what follows. Who it is, and when: its time grows at each barrier and fence.
    pub stamp: u64,
    /// Where its stack begins, and its length.
    pub stack: [usize; 2],
    /// The time of its wave's last barrier.
    pub wave_floor: u32,
    /// Why it was suspended.
    pub pause: Pause,
    pub coroutine: Coroutine,
    /// The word of its last atomic, and how many in succession were on that word.
    pub last_atomic: usize,
    pub n_looks: u32,
}

/// What a block's threads share.
#[repr(C)]
pub(super) struct Context {
    pub thread: *mut Thread,
    pub block: [u32; 3],
    pub grid: [u32; 3],
    pub slots: *mut u8,
    pub calls: Calls,
    /// The object's text does not know what follows. Who runs when the running thread gives way, in turn, and who is
    /// after the last of them.
    pub turn: [*const *mut Thread; 2],
    /// The time of the block's last barrier.
    pub floor: u32,
    pub wave_size: u32,
    pub ranges: *const [Range],
    /// Ranges of these by the place in the code that used them last.
    pub(crate) recent: [*const Range; 256],
    /// The function that a thread begins with.
    pub entry: SimEntryPoint,
    pub args: *const *const c_void,
    /// Of the running coroutine and of who resumed the first of its wave.
    pub link: Link,
    /// What the running thread did that it must not. Here, because pauses are many and small.
    pub(crate) fault: Option<Fault>,
    /// What of all blocks orders accesses.
    pub(crate) order: *const Order,
    /// Whether a lane of the running wave gave way as [`PauseKind::Looking`].
    pub(crate) is_looking: bool,
}

/// After this many atomics in succession on one word, a thread gives way to the other lanes of its wave.
const LOOKS: u32 = 16;

/// The functions that the object calls.
#[repr(C)]
pub(super) struct Calls {
    wait: extern "C" fn(*mut Context, u32, u32),
    access: extern "C" fn(*mut Context, usize, u32, usize),
    misaligned: extern "C" fn(*mut Context, usize, u32, usize),
    fence: extern "C" fn(*mut Context),
}

pub(super) const CALLS: Calls = Calls { wait, access, misaligned, fence };

/// The same where accesses are counted.
pub(super) const COUNTING_CALLS: Calls = Calls { wait, access: counted_access, misaligned, fence };

/// Called by the object when the running thread has to wait.
extern "C" fn wait(context: *mut Context, what: u32, line: u32) {
    let kind = match what {
        0 => PauseKind::Barrier,
        1 => PauseKind::Wave,
        _ => PauseKind::WaveBarrier,
    };
    suspend(context, Pause::new(kind, line));
}

/// The running thread must not go on.
pub(super) fn stop(context: *mut Context, kind: FaultKind, address: usize, len_bytes: u32, pc: usize, other: u64) {
    let parties = [Stamp(now(context).stamp), Stamp(other)];
    // SAFETY: as in `suspend`.
    unsafe { (*context).fault = Some(Fault { kind, address, len_bytes, pc, further: [0; 7], parties }) };
    loop {
        suspend(context, Pause::new(PauseKind::Fault, 0)); // nobody resumes it: the block is given up
    }
}

/// Called before an atomic. A lane that waits in a loop for a word which another lane is to change, or which another
/// device changes only once another lane told it, would else wait for ever: on a GPU the lanes of a wave run together.
pub(super) fn look(context: *mut Context, address: usize) {
    // SAFETY: as in `suspend`.
    unsafe {
        let thread = (*context).thread;
        let is_again = (*thread).last_atomic == address;
        (*thread).last_atomic = address;
        (*thread).n_looks = if is_again { (*thread).n_looks + 1 } else { 0 };
        if (*thread).n_looks < LOOKS {
            return;
        }
        (*thread).n_looks = 0;
        (*context).is_looking = true;
    }
    suspend(context, Pause::new(PauseKind::Looking, 0));
}

/// Whether an address is of the running thread's stack.
pub(super) fn is_on_stack(context: *mut Context, address: usize) -> bool {
    // SAFETY: as in `suspend`.
    let [stack, stack_bytes] = unsafe { (*(*context).thread).stack };
    address.wrapping_sub(stack) < stack_bytes
}

/// The running thread executes a fence for the device.
extern "C" fn fence(context: *mut Context) {
    let Now { thread, stamp, floor, order } = now(context);
    order.fence(Stamp(stamp), floor);
    // At its end time stands; the block's next barrier says that the block is too long.
    if Stamp(stamp).time() < Stamp::MAX_TIME {
        // SAFETY: as in `suspend`; `now` gave no reference to the thread.
        unsafe { (*thread).stamp = stamp + (1 << Stamp::TIME_SHIFT) };
    }
}

/// The running thread, and what orders it among others.
struct Now<'a> {
    thread: *mut Thread,
    stamp: u64,
    floor: u32,
    order: &'a Order,
}

fn now<'a>(context: *mut Context) -> Now<'a> {
    // SAFETY: the object passes on the context that `block::run` gave it; it, its threads and the launch's order, which
    // is only used by shared reference, live as long as the block runs, and nobody else uses the context while one of
    // its threads runs.
    unsafe {
        let thread = (*context).thread;
        Now { thread, stamp: (*thread).stamp, floor: (*context).floor, order: &*(*context).order }
    }
}

/// Where a place in the code touched memory last, if these bytes lie there too: most touch one tensor.
#[inline(always)]
pub(super) fn recent_range<'a>(context: *mut Context, begin: usize, end: usize, pc: usize) -> Option<&'a Range> {
    // SAFETY: as in `suspend`; the ranges are the worker's, which live as long as the block runs.
    let recent = unsafe { (*context).recent[pc >> 2 & 255].as_ref() };
    recent.filter(|range| range.has(begin, end))
}

/// The range with these bytes.
pub(super) fn range_of<'a>(context: *mut Context, begin: usize, end: usize, pc: usize) -> Option<&'a Range> {
    // SAFETY: as above.
    let (ranges, recent) = unsafe { (&*(*context).ranges, &mut (*context).recent[pc >> 2 & 255]) };
    let range = ranges.iter().find(|range| range.has(begin, end))?;
    *recent = range;
    Some(range)
}

/// Gives way to others, until it is resumed: to the next one in turn, unless the block is given up.
#[inline(always)]
pub(super) fn suspend(context: *mut Context, pause: Pause) {
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, as its
    // threads do, and no reference to any of them is held meanwhile; the link is what the first one in turn was resumed
    // with.
    unsafe {
        let own = (*context).thread;
        (*own).pause = pause;
        let link = &raw mut (*context).link;
        let next = move || {
            let next = if pause.is(PauseKind::Fault) { None } else { Context::next_in_turn(context) };
            next.map(|next| &raw mut (*next).coroutine)
        };
        Coroutine::suspend(&raw mut (*own).coroutine, next, context, link);
    }
}

impl Context {
    /// The next one in turn is the running thread.
    ///
    /// # Safety
    /// The context is valid, and has no other user.
    #[inline(always)]
    pub unsafe fn next_in_turn(context: *mut Self) -> Option<*mut Thread> {
        // SAFETY: between the two are those that are in turn.
        unsafe {
            let [next, end] = (*context).turn;
            if next == end {
                return None;
            }
            (*context).turn[0] = next.add(1);
            (*context).thread = *next;
            Some(*next)
        }
    }
}
