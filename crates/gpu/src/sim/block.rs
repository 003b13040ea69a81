//! Runs the threads of a block: each is a coroutine that runs until it has to wait for others.

use std::cell::RefCell;
use std::ffi::c_void;
use std::{io, ptr};

use super::context::{
    CALLS, COUNTING_CALLS, Context, Fault, FaultKind, Pause, PauseKind, Range, SLOT_BYTES, Slot, Stamp, Thread, Watch,
    range_of, suspend,
};
use super::coroutine::{Coroutine, Link, STACK_BYTES, ThreadStack};
use super::hang::note_block;
use super::object::Object;
use super::order::Order;
use super::schedule::Schedule;
use super::traffic;
use super::watch::{Cell, cells, writer};

/// What all blocks of a launch have in common.
pub(super) struct Grid<'a> {
    pub(crate) blocks: [u32; 3],
    pub(crate) block_size: u32,
    pub(crate) wave_size: u32,
    /// The arguments' memory, each with its index among the arguments.
    pub(crate) ranges: &'a [(usize, Range)],
    /// What orders the accesses of its blocks.
    pub(crate) order: &'a Order,
    /// In which order blocks, waves and lanes run.
    pub(crate) schedule: Schedule,
}

/// What ended a block early.
#[derive(Debug)]
pub(super) struct Stop {
    pub(crate) thread: u32,
    pub(crate) why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    Fault(Fault),
    /// Lanes of a wave, or threads of a block, are not in the same place: this thread waits at a line, another one does
    /// something else.
    Apart {
        at: Pause,
        other_thread: u32,
        other: Pause,
    },
    /// The coroutine has no stack.
    NoStack(io::Error),
    /// More barriers and fences than can be told apart.
    TooLong,
}

impl Grid<'_> {
    /// The coordinates of a block.
    pub(crate) fn index(&self, block: u64) -> [u32; 3] {
        coordinates(self.blocks, block)
    }
}

fn coordinates(blocks: [u32; 3], block: u64) -> [u32; 3] {
    let [x, y, _] = blocks.map(u64::from);
    [block % x, block / x % y, block / x / y].map(|n| n as u32)
}

thread_local! {
    static STACKS: RefCell<Vec<ThreadStack>> = const { RefCell::new(Vec::new()) };
}

/// What a worker needs to run block after block of a launch.
pub(super) struct Worker<'a> {
    object: &'a Object,
    grid: &'a Grid<'a>,
    args: &'a [*const c_void],
    ranges: Vec<Range>,
    /// Of LDS. They say of which block they tell, so one follows the other in them.
    _cells: Box<[Cell]>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(object: &'a Object, grid: &'a Grid<'a>, args: &'a [*const c_void]) -> Self {
        let mut cells = cells(object.n_cells());
        let global = grid.ranges.iter().map(|(_, range)| range.clone());
        let ranges = global.chain(object.ranges(&mut cells)).collect();
        Self { object, grid, args, ranges, _cells: cells }
    }

    /// Runs one block to its end.
    pub(crate) fn run(&self, block: u64) -> Result<(), Stop> {
        run(self.object, self.grid, &self.ranges, self.args, block)
    }
}

fn run(object: &Object, grid: &Grid<'_>, ranges: &[Range], args: &[*const c_void], block: u64) -> Result<(), Stop> {
    object.forget_lds();
    let mut slots = vec![Slot([0; SLOT_BYTES]); 2 * grid.wave_size as usize];
    let mut context = Context {
        thread: ptr::null_mut(),
        block: grid.index(block),
        grid: grid.blocks,
        slots: slots.as_mut_ptr().cast(),
        calls: if traffic::is_counted() { COUNTING_CALLS } else { CALLS },
        turn: [ptr::null(); 2],
        floor: 0,
        wave_size: grid.wave_size,
        ranges,
        recent: [ptr::null(); 256],
        entry: object.entry(),
        args: args.as_ptr(),
        link: Link::NONE,
        fault: None,
        order: grid.order,
        is_looking: false,
    };
    let context = &raw mut context;
    object.bind(context);
    note_block(context, object.code());
    let mut running = Running { context, threads: Vec::new(), turn: Vec::new(), again: Vec::new(), grid, block };
    running.start(grid.block_size)?;
    running.run()
}

struct Running<'a> {
    context: *mut Context,
    threads: Vec<Thread>,
    /// The order of the running wave's threads.
    turn: Vec<*mut Thread>,
    /// Those of them that gave way to the others of their own accord.
    again: Vec<*mut Thread>,
    grid: &'a Grid<'a>,
    block: u64,
}

/// Runs the thread that the context is set to.
unsafe extern "C" fn body(context: *mut Context) -> ! {
    // SAFETY: `run` keeps the context and the arguments until no coroutine runs any more, and holds no reference to the
    // context while one runs; the entry takes the arguments that `Kernel::check` compared with its contract.
    unsafe { ((*context).entry)((*context).args) };
    loop {
        suspend(context, Pause::new(PauseKind::End, 0));
    }
}

impl Running<'_> {
    fn start(&mut self, block_size: u32) -> Result<(), Stop> {
        self.threads.reserve_exact(block_size as usize);
        for index in 0..block_size {
            let stack = STACKS.with_borrow_mut(Vec::pop).map_or_else(ThreadStack::new, Ok);
            let stack = stack.map_err(|error| Stop { thread: index, why: Why::NoStack(error) })?;
            let (bounds, coroutine) = (stack.bounds(), Coroutine::new(stack, body));
            let (stamp, pause) = (Stamp::new(self.block, index, 1).0, Pause::NONE);
            let thread = Thread {
                index,
                parity: 0,
                stamp,
                stack: bounds,
                wave_floor: 0,
                pause,
                coroutine,
                last_atomic: 0,
                n_looks: 0,
            };
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Wave after wave up to the next barrier, until all threads are done.
    fn run(&mut self) -> Result<(), Stop> {
        let wave_size = self.grid.wave_size as usize;
        let n_waves = self.threads.len().div_ceil(wave_size);
        for round in 0.. {
            let mut order = self.grid.schedule.order(n_waves, [self.block, round]);
            while let Some(wave) = order.next() {
                if let Err(stop) = self.run_wave(wave * wave_size, round) {
                    return Err(self.explained(stop, order.map(|wave| wave * wave_size), round));
                }
            }
            if self.threads.iter().all(|thread| thread.pause.is(PauseKind::End)) {
                break;
            }
            self.all_alike(0, self.threads.len())?;
            let latest = latest(&self.threads);
            if latest >= Stamp::MAX_TIME / 2 {
                return Err(Stop { thread: 0, why: Why::TooLong });
            }
            self.grid.order.join(self.block, 0..self.grid.block_size);
            // SAFETY: no coroutine runs, so nothing else uses the context.
            unsafe { (*self.context).floor = latest };
            self.threads.iter_mut().for_each(|thread| thread.stamp = Stamp(thread.stamp).at(latest + 1).0);
        }
        Ok(())
    }

    /// Explains why a thread stopped, after the others went on as far as they can before the next barrier: a thread
    /// that read unwritten memory may only have been too early.
    fn explained(&mut self, stop: Stop, waves: impl Iterator<Item = usize>, round: u64) -> Stop {
        let Why::Fault(fault) = &stop.why else { return stop };
        let mut fault = *fault;
        if fault.kind != FaultKind::Undefined {
            return stop;
        }
        let context = self.context;
        // SAFETY: as in `take_turns`: those that are in turn after the one that stopped, which is not resumed.
        unsafe {
            while let Some(next) = Context::next_in_turn(context) {
                Coroutine::resume(&raw mut (*next).coroutine, context, &raw mut (*context).link);
            }
        }
        for first in waves {
            let _ = self.run_wave(first, round); // what stops them is another mistake, or the same
        }
        let (begin, end) = (fault.address, fault.address + fault.len_bytes as usize);
        let range = range_of(context, begin, end, fault.pc).filter(|range| range.watch != Watch::Nothing);
        let written = range.and_then(|range| (begin..end).find_map(|byte| writer(range, byte, self.block)));
        if let Some(other) = written.filter(|other| other.thread() != stop.thread) {
            (fault.kind, fault.parties[1]) = (FaultKind::Early, other);
        }
        Stop { why: Why::Fault(fault), ..stop }
    }

    /// Runs the lanes of a wave until all wait at a barrier or are done.
    fn run_wave(&mut self, first: usize, round: u64) -> Result<(), Stop> {
        let end = (first + self.grid.wave_size as usize).min(self.threads.len());
        let threads = &raw mut self.threads[first..end];
        let order = self.grid.schedule.order(end - first, [first as u64, round]);
        self.turn.clear();
        // SAFETY: each of the order is one of these.
        self.turn.extend(order.map(|lane| unsafe { threads.cast::<Thread>().add(lane) }));
        loop {
            self.take_turns()?;
            if traffic::is_counted() {
                traffic::meet();
            }
            let wave = &mut self.threads[first..end];
            let pause = wave[0].pause;
            let are_alike = wave.iter().all(|thread| thread.pause == pause);
            if !are_alike || !pause.is_of_wave() {
                let is_apart = wave.iter().any(|thread| thread.pause.is_of_wave());
                return if is_apart { self.all_alike(first, end) } else { Ok(()) };
            }
            // While nobody runs: after it a lane may do what the others are not to know.
            if pause.is(PauseKind::WaveBarrier) {
                self.grid.order.join(self.block, first as u32..end as u32);
                let latest = latest(wave);
                let next = Stamp::MAX_TIME.min(latest + 1); // at its end time stands, as at a fence
                for thread in wave {
                    (thread.wave_floor, thread.stamp) = (latest, Stamp(thread.stamp).at(next).0);
                }
            }
        }
    }

    /// Makes sure that these threads wait in the same place.
    fn all_alike(&self, first: usize, end: usize) -> Result<(), Stop> {
        // Who waits for others is told of who does not come; a wave operation is the narrower of two places.
        let waiting = |wanted: fn(Pause) -> bool| {
            (first..end).map(|i| (i, self.threads[i].pause)).find(|(_, pause)| wanted(*pause))
        };
        let Some((thread, at)) = waiting(Pause::is_of_wave).or_else(|| waiting(Pause::is_waiting)) else {
            return Ok(());
        };
        match (first..end).find(|&i| self.threads[i].pause != at) {
            None => Ok(()),
            Some(other_thread) => {
                let other = self.threads[other_thread].pause;
                let why = Why::Apart { at, other_thread: other_thread as u32, other };
                Err(Stop { thread: thread as u32, why })
            }
        }
    }

    /// Each in turn runs until it waits for others or is done.
    fn take_turns(&mut self) -> Result<(), Stop> {
        self.take_turns_of(self.turn.as_ptr_range())?;
        // SAFETY: no coroutine runs, so nothing else uses the context and the threads.
        while unsafe { std::mem::take(&mut (*self.context).is_looking) } {
            // What they wait for may come from another device, whose thread may need this core.
            std::thread::yield_now();
            self.again.clear();
            // SAFETY: as above.
            let is_looking = |thread: &&*mut Thread| unsafe { (***thread).pause.is(PauseKind::Looking) };
            self.again.extend(self.turn.iter().filter(is_looking));
            self.take_turns_of(self.again.as_ptr_range())?;
        }
        Ok(())
    }

    /// Each in turn runs until it gives way. One may go on for the other: then this hears of the last of them.
    fn take_turns_of(&mut self, turn: std::ops::Range<*const *mut Thread>) -> Result<(), Stop> {
        let context = self.context;
        // SAFETY: no coroutine runs, so nothing else uses the context, whose threads are the block's, and so is the
        // link in it.
        unsafe {
            (*context).turn = [turn.start, turn.end];
            while let Some(next) = Context::next_in_turn(context) {
                Coroutine::resume(&raw mut (*next).coroutine, context, &raw mut (*context).link);
                let last = (*context).thread;
                if (*last).pause.is(PauseKind::Fault) {
                    let fault = (*context).fault.expect("it says what it did");
                    return Err(Stop { thread: (*last).index, why: Why::Fault(fault) });
                }
            }
        }
        Ok(())
    }
}

/// The last time of any of these threads.
fn latest(threads: &[Thread]) -> u32 {
    threads.iter().map(|thread| Stamp(thread.stamp).time()).max().unwrap_or_default()
}

impl Drop for Running<'_> {
    /// Keeps the stacks for the next block.
    fn drop(&mut self) {
        note_block(ptr::null(), [0; 2]);
        let stacks = self.threads.drain(..).filter_map(|thread| thread.coroutine.into_stack());
        STACKS.with_borrow_mut(|kept| kept.extend(stacks));
    }
}

impl Stop {
    /// The lines of the kernel's text, where they are known: the one that it is about, then those that called it.
    pub(crate) fn lines(&self, object: &Object) -> Vec<u32> {
        match &self.why {
            Why::Fault(fault) => object.lines_of(std::iter::once(fault.pc).chain(fault.further)),
            Why::Apart { at, .. } => vec![at.line()],
            Why::NoStack(_) | Why::TooLong => Vec::new(),
        }
    }

    /// What happened, in words.
    pub(crate) fn what<'a>(&self, object: &Object, grid: &Grid<'_>, argument: &dyn Fn(usize) -> &'a str) -> String {
        let place = |pause: &Pause| match pause.kind() {
            PauseKind::Barrier => format!("waits at the barrier in line {}", pause.line()),
            PauseKind::Wave | PauseKind::WaveBarrier => format!("waits at the wave operation in line {}", pause.line()),
            PauseKind::End => "has ended".to_owned(),
            PauseKind::Fault | PauseKind::Looking | PauseKind::Nothing => "stopped".to_owned(),
        };
        match &self.why {
            Why::Fault(fault) => fault.what(object, grid, argument),
            Why::Apart { at, other_thread, other } => {
                format!("{}, which thread {other_thread} does not reach: it {}", place(at), place(other))
            }
            Why::NoStack(error) => format!("has no stack: {error}"),
            Why::TooLong => "passes more barriers and fences than the simulator can count".to_owned(),
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
            FaultKind::Unaligned => {
                let past = self.address % self.len_bytes as usize;
                format!(
                    "uses a misaligned pointer, {place}: its type's alignment is {len_bytes} bytes, and the address is {past} bytes past a multiple of that"
                )
            }
            FaultKind::Race => {
                let [own, other] = self.parties;
                let [x, y, z] = grid.index(other.block());
                let (who, why) = if own.block() == other.block() {
                    (String::new(), "no barrier is between the two")
                } else {
                    let why = "no fence and atomic of the one, then atomic and fence of the other, order the two";
                    (format!(" of block ({x}, {y}, {z})"), why)
                };
                // A stamp of several threads has the number of one of them, which may be the one that came now.
                let whom = match own.block() == other.block() && own.thread() == other.thread() {
                    true => "another thread of its block".to_owned(),
                    false => format!("thread {}{who}", other.thread()),
                };
                format!("races with {whom} for {len_bytes} bytes {place}: {why}")
            }
            FaultKind::Early => {
                let thread = self.parties[1].thread();
                format!(
                    "reads {len_bytes} bytes {place}, which thread {thread} writes only later: no barrier is between the two"
                )
            }
            FaultKind::Assertion => "fails an `assert`".to_owned(),
            FaultKind::Signal(signal) => match signal {
                libc::SIGFPE => "divides a whole number by 0, or the lowest one by -1".to_owned(),
                libc::SIGILL => "reaches an instruction that cannot be executed, such as `__builtin_trap`".to_owned(),
                _ => "uses an address without memory".to_owned(),
            },
            FaultKind::Overflow => {
                format!("needs more than {} KiB of stack, as an endless recursion does", STACK_BYTES >> 10)
            }
            FaultKind::Undefined => format!("reads {len_bytes} bytes {place}, which no thread wrote before"),
        }
    }

    /// The address, as told by the nearest thing that has a name.
    fn place<'a>(&self, object: &Object, grid: &Grid<'_>, argument: &dyn Fn(usize) -> &'a str) -> String {
        let globals = grid.ranges.iter().map(|(i, range)| (range.clone(), format!("`{}`", argument(*i))));
        let named: Vec<(Range, String)> =
            globals.chain(object.lds().map(|lds| (Range::unwatched(lds.begin, lds.end, true), lds.name()))).collect();
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
            let byte = self.address - range.begin;
            match range.element_bytes() {
                Some(element_bytes) => format!("at element {} of {name}", byte / element_bytes),
                None => format!("at byte {byte} of {name}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_along_x_then_y_then_z() {
        let in_order = (0..4).flat_map(|z| (0..3).flat_map(move |y| (0..5).map(move |x| [x, y, z])));
        for (block, expected) in (0..).zip(in_order) {
            assert_eq!(coordinates([5, 3, 4], block), expected, "{block}");
        }
    }
}
