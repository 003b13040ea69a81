//! The `sim` device: executes a GPU's kernels on this machine's cores, and watches them.
//!
//! An object is the kernel's text, as a GPU's compiler gets it, compiled for the CPU after
//! `templates/lib/hip/simulator.hip.j2`, which defines HIP's words and calls back before every access to memory.
//! [`block`] runs the threads of a block, each a [`coroutine`]; [`context`] is what it shares with the object,
//! [`access`] has the callbacks, and [`watch`] their memory; [`object`] loads objects and knows their lines;
//! [`traffic`] describes how a wave accesses memory; [`hang`] locates kernels that do not end, [`signals`] handles
//! what the processor refuses; [`order`] tracks which block knows of which, [`schedule`] decides which runs first.
//! What a GPU would do silently is an error here: accesses outside of the arguments and of LDS, misaligned pointers,
//! races in LDS and in global memory, reads of unwritten memory, more LDS or threads than a block may have, a barrier
//! or a wave operation that not all threads reach. Memory starts as NaN.

mod access;
mod block;
mod context;
mod coroutine;
#[cfg(unix)]
mod hang;
#[cfg(not(unix))]
#[path = "no_hang.rs"]
mod hang;
mod object;
mod order;
mod schedule;
#[cfg(unix)]
mod signals;
mod traffic;
mod watch;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rayon::ThreadPool;

use crate::host::{self, pointer};
use crate::launch::{Argument, ArgumentKind, Kernel, KernelSpec, Launch};
use crate::memory::{Buffer, BufferView};
use crate::{DeviceMemory, Driver, GpuError};
use block::{Grid, Stop, Worker};
use context::{Range, Stamp};
use hang::Noted;
#[cfg(not(unix))]
pub use hang::catch_signals;
pub use hang::stop_and_look;
use object::Object;
use order::Order;
use schedule::Schedule;
#[cfg(unix)]
pub use signals::catch_signals;
pub use traffic::{Space, Traffic, count_traffic, take_traffic};
use watch::{Cell, cells};

/// What memory holds before anything is written to it: NaN as a float, far out of range as an index.
const UNWRITTEN: u8 = 0xff;

/// This machine's cores in the place of a GPU.
pub struct SimDriver {
    arch: String,
    wave_size: u32,
    /// LDS that a kernel may declare, and that a launch may ask for.
    max_lds_bytes: [u32; 2],
    schedule: Schedule,
    pool: ThreadPool,
    /// Held while anything reads or writes buffers: what makes the safe functions of [`Driver`] race-free.
    stream: Mutex<()>,
}

/// A kernel, loaded once for each thread that runs blocks: its LDS is static memory of the object.
struct Function {
    bytes: Vec<u8>,
    copies: Vec<Mutex<Option<Object>>>,
    has_atomics: bool,
}

impl SimDriver {
    /// A pretended GPU of an arch, on `n_threads` threads; 0 means one for every core.
    ///
    /// # Errors
    /// [`GpuError::Threads`].
    pub fn new(arch: &str, wave_size: u32, n_threads: usize) -> Result<Self, GpuError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(n_threads)
            .thread_name(|i| format!("sim device {i}"))
            .build()
            .map_err(|error| GpuError::Threads(std::io::Error::other(error)))?;
        let (max_lds_bytes, schedule) = ([u32::MAX; 2], Schedule { seed: 0 });
        Ok(Self { arch: arch.to_owned(), wave_size, max_lds_bytes, schedule, pool, stream: Mutex::new(()) })
    }

    /// The same with limits: LDS that kernels may declare, and LDS that launches may request.
    #[must_use]
    pub fn with_lds(self, max_lds_bytes: [u32; 2]) -> Self {
        Self { max_lds_bytes, ..self }
    }

    /// The same, with the order in which blocks, waves and lanes run drawn from a seed; 0 is one after the other.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { schedule: Schedule { seed }, ..self }
    }

    /// Refuses what no block of the chip may have.
    fn grant(&self, spec: &KernelSpec, object: &Object) -> Result<(), GpuError> {
        let [may_declare, may_ask] = self.max_lds_bytes;
        // What a launch asks for is declared like all else here.
        let wanted = [
            ("bytes of LDS at a launch", spec.lds_bytes.into(), u64::from(may_ask)),
            ("bytes of LDS", object.lds_bytes(), if spec.lds_bytes > 0 { may_ask } else { may_declare }.into()),
            ("threads", spec.block_size.into(), Stamp::MAX_THREADS.into()),
        ];
        let too_much = wanted.into_iter().find(|(_, wanted, most)| wanted > most);
        too_much.map_or(Ok(()), |(what, wanted, most)| {
            Err(GpuError::TooMuch { entry: spec.entry.clone(), arch: self.arch.clone(), what, wanted, most })
        })
    }
}

/// Where a buffer of the simulator is in this process: for a runtime that pretends to be a GPU's, and copies.
pub fn address(view: &BufferView) -> Option<usize> {
    view.host_address().ok().map(|address| address.expose_provenance())
}

/// Of the lines of a kernel's text that were marked, in their order, which have run in all of its launches: a text that
/// was marked says where (`check::coverage` in `workbench`). Empty if none was.
///
/// # Errors
/// If it is another device's kernel.
pub fn lines_that_ran(kernel: &Kernel) -> Result<Vec<bool>, GpuError> {
    let function: &Function = kernel.function()?;
    let mut all: Vec<bool> = Vec::new();
    for copy in &function.copies {
        let copy = copy.lock().unwrap_or_else(PoisonError::into_inner);
        let ran = copy.as_ref().map_or_else(Vec::new, Object::ran);
        all.resize(all.len().max(ran.len()), false);
        all.iter_mut().zip(ran).for_each(|(all, ran)| *all |= ran);
    }
    Ok(all)
}

impl Driver for SimDriver {
    fn describe(&self) -> String {
        let n = self.parallelism();
        let s = if n == 1 { "" } else { "s" };
        format!("sim:{} (a GPU's kernels, executed on {n} thread{s} of this machine)", self.arch)
    }

    fn parallelism(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        Ok(host::memory())
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        let buffer = Buffer::filled_pages(len_bytes, UNWRITTEN);
        buffer.map_err(|_| GpuError::OutOfMemory { device: format!("sim:{}", self.arch), len_bytes, free_bytes: None })
    }

    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError> {
        let buffer = self.allocate(bytes.len())?;
        self.write(&buffer.view(), &bytes)?;
        Ok(buffer)
    }

    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError> {
        let first = Object::load(object, &spec)?;
        self.grant(&spec, &first)?;
        let has_atomics = first.has_atomics();
        let mut copies = vec![Mutex::new(Some(first))];
        copies.resize_with(self.parallelism(), Mutex::default);
        Ok(Kernel::new(spec, Function { bytes: object.to_vec(), copies, has_atomics }))
    }

    fn launch(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<(), GpuError> {
        kernel.check(launch.args)?;
        let function: &Function = kernel.function()?;
        let args = launch.args.iter().map(pointer).collect::<Result<Vec<_>, _>>()?;
        let args = Pointers(args);
        let (ranges, _cells) = ranges(&kernel.spec, launch.args)?;
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let order = Order::new(kernel.spec.block_size);
        let grid = Grid {
            blocks: launch.grid,
            block_size: kernel.spec.block_size,
            wave_size: self.wave_size,
            ranges: &ranges,
            order: &order,
            schedule: self.schedule,
        };
        let n_blocks = launch.grid.iter().try_fold(1, |n: u64, &blocks| n.checked_mul(blocks.into()));
        let n_blocks = n_blocks.filter(|n| *n <= Stamp::MAX_BLOCKS).ok_or_else(|| GpuError::TooMuch {
            entry: kernel.spec.entry.clone(),
            arch: self.arch.clone(),
            what: "blocks",
            wanted: n_blocks.unwrap_or(u64::MAX),
            most: Stamp::MAX_BLOCKS,
        })?;
        let next = AtomicU64::new(0);
        let stopped: Mutex<Option<GpuError>> = Mutex::new(None);
        self.pool.broadcast(|worker| {
            // Which block comes when may change what blocks do that hear of each other: they run one by one, so that
            // what a seed shows once it shows always.
            if function.has_atomics && worker.index() > 0 {
                return;
            }
            let result = function.run(worker.index(), &kernel.spec, &grid, args.as_slice(), || {
                let block = next.fetch_add(1, Ordering::Relaxed);
                (block < n_blocks).then(|| grid.schedule.nth(block, n_blocks))
            });
            if let Err(error) = result {
                next.store(n_blocks, Ordering::Relaxed); // the others stop too
                stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        stopped.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn write(&self, view: &BufferView, bytes: &[u8]) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        view.copy_from(bytes)
    }

    fn read(&self, view: &BufferView, bytes: &mut [u8]) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        view.copy_to(bytes)
    }

    fn copy(&self, from: &BufferView, to: &BufferView) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        to.copy_from_view(from)
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        work();
    }
}

impl Function {
    /// Runs blocks until there are no more, on this worker's copy of the kernel.
    fn run(
        &self,
        worker: usize,
        spec: &KernelSpec,
        grid: &Grid<'_>,
        args: &[*const c_void],
        mut next: impl FnMut() -> Option<u64>,
    ) -> Result<(), GpuError> {
        let Some(mut block) = next() else { return Ok(()) };
        let mut copy = self.copies[worker].lock().unwrap_or_else(PoisonError::into_inner);
        if copy.is_none() {
            *copy = Some(Object::load(&self.bytes, spec)?);
        }
        let object = copy.as_ref().expect("just loaded");
        let _noted = Noted::new(object, &spec.entry);
        let on = Worker::new(object, grid, args);
        loop {
            let result = on.run(block).map_err(|stop| fault(object, spec, grid, block, stop));
            if traffic::is_counted() {
                traffic::tell(object);
            }
            result?;
            match next() {
                Some(following) => block = following,
                None => return Ok(()),
            }
        }
    }
}

/// What stopped a block, in words.
fn fault(object: &Object, spec: &KernelSpec, grid: &Grid<'_>, block: u64, stop: Stop) -> GpuError {
    let argument = |i: usize| spec.args.get(i).map_or("an argument", |arg| arg.name.as_str());
    GpuError::Fault {
        entry: spec.entry.clone(),
        what: stop.what(object, grid, &argument),
        lines: stop.lines(object),
        block: grid.index(block),
        thread: stop.thread,
    }
}

/// Arguments by their numbers, and cells.
type Watched = (Vec<(usize, Range)>, Vec<Box<[Cell]>>);

/// Where the kernel may read and write, those that it may write first, and the cells that these are watched in.
fn ranges(spec: &KernelSpec, args: &[Argument]) -> Result<Watched, GpuError> {
    let mut memory = Vec::new();
    for (i, (spec, arg)) in spec.args.iter().zip(args).enumerate() {
        if let Argument::Memory { view, required_bytes } = arg {
            let begin = view.host_address()? as usize;
            memory.push((i, spec, begin, begin + required_bytes));
        }
    }
    memory.sort_by_key(|(_, spec, ..)| spec.kind != ArgumentKind::Write);
    let mut all_cells = Vec::new();
    let watched = memory.iter().map(|&(i, spec, begin, end)| {
        let is_writable = spec.kind == ArgumentKind::Write;
        let Some(cell_shift) = spec.element_bytes.checked_ilog2().filter(|_| is_writable) else {
            return (i, Range::unwatched(begin, end, is_writable));
        };
        let is_shared = memory.iter().any(|&(other, _, from, to)| other != i && from < end && begin < to);
        let cell_shift = cell_shift.min(2);
        let cells = cells((end - begin).div_ceil(1 << cell_shift));
        let first = cells.as_ptr();
        all_cells.push(cells);
        (i, Range::global(begin, end, first, cell_shift, spec.is_undefined && !is_shared))
    });
    let watched = watched.collect();
    Ok((watched, all_cells))
}

/// The argument array of a launch: shared by the threads that run its blocks, and only read by them.
struct Pointers(Vec<*const c_void>);

impl Pointers {
    fn as_slice(&self) -> &[*const c_void] {
        &self.0
    }
}

// SAFETY: the pointers are only read through while the launch that made them runs; what they point at is either a
// value of the launch's own argument list or a buffer, which the stream lock keeps to this launch.
unsafe impl Sync for Pointers {}
