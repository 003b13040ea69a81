//! Runs the threads of a block: each is a coroutine that runs until it has to wait for others.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::context::{self, Cell, Context, Fault, FaultKind, Pause, Range, SLOT_BYTES};
use super::object::{Entry, Object};

/// Stack of a thread. GPU threads have little private memory; the pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 << 10;

/// What all blocks of a launch have in common.
pub(super) struct Grid<'a> {
    /// Blocks in x, y, z.
    pub blocks: [u32; 3],
    pub block_size: u32,
    pub wave_size: u32,
    /// The arguments' memory, each with its index among the arguments.
    pub ranges: &'a [(usize, Range)],
}

/// What ended a block early.
#[derive(Debug)]
pub(super) struct Stop {
    pub thread: u32,
    pub why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    Fault(Fault),
    /// Lanes of a wave, or threads of a block, are not in the same place: this thread waits at a line, another one does
    /// something else.
    Apart {
        at: Pause,
        other_thread: u32,
        other: Option<Pause>,
    },
    /// The coroutine has no stack.
    NoStack(std::io::Error),
}

impl Grid<'_> {
    /// The coordinates of a block.
    pub fn index(&self, block: u64) -> [u32; 3] {
        let [x, y, _] = self.blocks.map(u64::from);
        [block % x, block / x % y, block / x / y].map(|n| n as u32)
    }
}

/// A GPU thread.
struct Thread {
    coroutine: Coroutine<(), Pause, ()>,
    state: State,
    yielder: *const Yielder<(), Pause>,
    parity: u32,
    stack: [usize; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Waiting(Pause),
    Done,
}

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Runs one block to its end.
pub(super) fn run(object: &Object, grid: &Grid<'_>, args: &[*const c_void], block: u64) -> Result<(), Stop> {
    object.forget_lds();
    let ranges: Vec<Range> = grid.ranges.iter().map(|(_, range)| *range).chain(object.ranges()).collect();
    let mut cells = vec![Cell::default(); object.n_cells()];
    let mut slots = vec![0; 2 * grid.wave_size as usize * SLOT_BYTES];
    let mut context = Context {
        thread: 0,
        block: grid.index(block),
        grid: grid.blocks,
        epoch: 1,
        wave_epoch: 1,
        parity: 0,
        n_ranges: ranges.len() as u32,
        ranges: ranges.as_ptr(),
        cells: cells.as_mut_ptr(),
        slots: slots.as_mut_ptr(),
        stack_begin: 0,
        stack_end: 0,
        wait: context::wait,
        fault: context::fault,
        yielder: ptr::null(),
    };
    let context = &raw mut context;
    object.bind(context);
    let mut running = Running { context, threads: Vec::new(), wave_size: grid.wave_size as usize };
    running.start(object.entry(), args, grid.block_size)?;
    running.run()
}

struct Running {
    context: *mut Context,
    threads: Vec<Thread>,
    wave_size: usize,
}

/// What a coroutine is started with. Everything behind the pointers outlives the block.
struct Start {
    entry: Entry,
    args: *const *const c_void,
    context: *mut Context,
}

impl Running {
    fn start(&mut self, entry: Entry, args: &[*const c_void], block_size: u32) -> Result<(), Stop> {
        for thread in 0..block_size {
            let stack = STACKS.with_borrow_mut(Vec::pop).map_or_else(|| DefaultStack::new(STACK_BYTES), Ok);
            let stack = stack.map_err(|error| Stop { thread, why: Why::NoStack(error) })?;
            let bounds = [stack.limit().get(), stack.base().get()];
            let start = Start { entry, args: args.as_ptr(), context: self.context };
            let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Pause>, ()| {
                let start = start;
                // SAFETY: `block::run` keeps the context and the arguments until all coroutines are done or reset, and
                // holds no reference to the context while one runs; the entry takes the arguments that
                // `Kernel::check` compared with its contract.
                unsafe {
                    (*start.context).yielder = yielder;
                    (start.entry)(start.args);
                }
            });
            let thread = Thread { coroutine, state: State::Ready, yielder: ptr::null(), parity: 0, stack: bounds };
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Wave after wave up to the next barrier, until all threads are done.
    fn run(&mut self) -> Result<(), Stop> {
        let n_waves = self.threads.len().div_ceil(self.wave_size);
        loop {
            for wave in 0..n_waves {
                self.run_wave(wave * self.wave_size)?;
            }
            if self.threads.iter().all(|thread| thread.state == State::Done) {
                return Ok(());
            }
            self.all_alike(0, self.threads.len())?;
            // SAFETY: no coroutine runs, so nothing else uses the context.
            unsafe { (*self.context).epoch += 1 };
            self.threads.iter_mut().for_each(|thread| thread.state = State::Ready);
        }
    }

    /// Runs the lanes of a wave until all wait at a barrier or are done.
    fn run_wave(&mut self, first: usize) -> Result<(), Stop> {
        let end = (first + self.wave_size).min(self.threads.len());
        loop {
            for thread in first..end {
                if self.threads[thread].state == State::Ready {
                    self.resume(thread)?;
                }
            }
            let waits = |thread: &Thread| matches!(thread.state, State::Waiting(Pause::Wave { .. }));
            if !self.threads[first..end].iter().any(waits) {
                return Ok(());
            }
            self.all_alike(first, end)?;
            self.threads[first..end].iter_mut().for_each(|thread| thread.state = State::Ready);
        }
    }

    /// Makes sure that these threads wait in the same place.
    fn all_alike(&self, first: usize, end: usize) -> Result<(), Stop> {
        // Who waits for others is told of who does not come; a wave operation is the narrower of two places.
        let waiting = |wanted: fn(&Pause) -> bool| {
            (first..end).find_map(|i| match self.threads[i].state {
                State::Waiting(at) if wanted(&at) => Some((i, at)),
                _ => None,
            })
        };
        let at_wave = waiting(|pause| matches!(pause, Pause::Wave { .. }));
        let Some((thread, at)) = at_wave.or_else(|| waiting(|_| true)) else { return Ok(()) };
        match (first..end).find(|&i| self.threads[i].state != State::Waiting(at)) {
            None => Ok(()),
            Some(other_thread) => {
                let other = match self.threads[other_thread].state {
                    State::Waiting(pause) => Some(pause),
                    State::Ready | State::Done => None,
                };
                let why = Why::Apart { at, other_thread: other_thread as u32, other };
                Err(Stop { thread: thread as u32, why })
            }
        }
    }

    fn resume(&mut self, index: usize) -> Result<(), Stop> {
        let thread = &mut self.threads[index];
        // SAFETY: no coroutine runs, so nothing else uses the context.
        unsafe {
            (*self.context).thread = index as u32;
            (*self.context).parity = thread.parity;
            (*self.context).yielder = thread.yielder;
            [(*self.context).stack_begin, (*self.context).stack_end] = thread.stack;
        }
        let result = thread.coroutine.resume(());
        // SAFETY: as above: it is suspended or done again.
        unsafe {
            thread.yielder = (*self.context).yielder;
            thread.parity = (*self.context).parity;
        }
        thread.state = match result {
            CoroutineResult::Return(()) => State::Done,
            CoroutineResult::Yield(Pause::Fault(fault)) => {
                return Err(Stop { thread: index as u32, why: Why::Fault(fault) });
            }
            CoroutineResult::Yield(pause) => State::Waiting(pause),
        };
        Ok(())
    }
}

impl Drop for Running {
    /// Keeps the stacks for the next block.
    fn drop(&mut self) {
        for mut thread in self.threads.drain(..) {
            if thread.coroutine.started() && !thread.coroutine.done() {
                // SAFETY: what lies on its stack is the kernel's frames, which own nothing, and `Start`, which is
                // pointers.
                unsafe { thread.coroutine.force_reset() };
            } else if !thread.coroutine.started() {
                continue; // it still holds its closure, and goes with its stack
            }
            STACKS.with_borrow_mut(|stacks| stacks.push(thread.coroutine.into_stack()));
        }
    }
}

impl Stop {
    /// The line of the kernel's text, where it is known.
    pub fn line(&self, object: &Object) -> Option<u32> {
        match &self.why {
            Why::Fault(fault) => object.line(fault.pc),
            Why::Apart { at: Pause::Barrier { line } | Pause::Wave { line }, .. } => Some(*line),
            Why::Apart { .. } | Why::NoStack(_) => None,
        }
    }

    /// What happened, in words.
    pub fn what<'a>(&self, object: &Object, grid: &Grid<'_>, argument: &dyn Fn(usize) -> &'a str) -> String {
        let place = |pause: &Pause| match pause {
            Pause::Barrier { line } => format!("waits at the barrier in line {line}"),
            Pause::Wave { line } => format!("waits at the wave operation in line {line}"),
            Pause::Fault(_) => "stopped".to_owned(),
        };
        match &self.why {
            Why::Fault(fault) => fault.what(object, grid, argument),
            Why::Apart { at, other_thread, other } => {
                let other = other.as_ref().map_or("has ended".to_owned(), place);
                format!("{}, which thread {other_thread} does not reach: it {other}", place(at))
            }
            Why::NoStack(error) => format!("has no stack: {error}"),
        }
    }
}

impl Fault {
    fn what<'a>(&self, object: &Object, grid: &Grid<'_>, argument: &dyn Fn(usize) -> &'a str) -> String {
        let place = self.place(object, grid, argument);
        let len_bytes = self.len_bytes;
        match self.kind {
            FaultKind::Read => format!("reads {len_bytes} bytes {place}"),
            FaultKind::Write => format!("writes {len_bytes} bytes {place}"),
            FaultKind::ReadOnly => format!("writes {len_bytes} bytes {place}, which its contract only reads"),
            FaultKind::Misaligned => format!("accesses {len_bytes} bytes at once, misaligned, {place}"),
            FaultKind::Race => {
                let other = self.other_thread;
                format!("races with thread {other} for {len_bytes} bytes {place}: no barrier is between the two")
            }
        }
    }

    /// The address, as told by the nearest thing that has a name.
    fn place<'a>(&self, object: &Object, grid: &Grid<'_>, argument: &dyn Fn(usize) -> &'a str) -> String {
        let globals = grid.ranges.iter().map(|(i, range)| (*range, format!("`{}`", argument(*i))));
        let named: Vec<(Range, String)> = globals.chain(object.lds().map(|range| (range, "LDS".to_owned()))).collect();
        let distance = |range: &Range| match self.address {
            address if address < range.begin => range.begin - address,
            address => (address + self.len_bytes as usize).saturating_sub(range.end),
        };
        let Some((range, name)) = named.iter().min_by_key(|(range, _)| distance(range)) else {
            return "at no argument's address".to_owned();
        };
        let len_bytes = range.len_bytes();
        if distance(range) > 1 << 30 {
            "far from any argument".to_owned()
        } else if self.address < range.begin {
            format!("{} bytes before the beginning of {name}", range.begin - self.address)
        } else if distance(range) > 0 {
            let past = self.address as i128 - range.end as i128;
            if past >= 0 {
                format!("{past} bytes past the end of {name} ({len_bytes} bytes)")
            } else {
                format!("across the end of {name} ({len_bytes} bytes)")
            }
        } else {
            format!("at byte {} of {name}", self.address - range.begin)
        }
    }
}
