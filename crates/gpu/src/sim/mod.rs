//! The `sim` device: executes a GPU's kernels on this machine's cores, and watches them.
//!
//! An object is the kernel's text, as a GPU's compiler gets it, compiled for the CPU behind
//! `templates/lib/simulator.hip.j2`, which defines HIP's words and calls back before every access to memory. [`block`]
//! runs the threads of a block as coroutines; [`context`] is what it shares with the object; [`object`] loads objects
//! and knows their lines. What a GPU would do silently is an error here: access outside of the arguments and of LDS,
//! misaligned vectors, races in LDS, a barrier or a wave operation that not all threads reach. Memory starts as NaN.

mod block;
mod context;
mod object;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rayon::ThreadPool;

use crate::host::{self, pointer};
use crate::launch::{Argument, ArgumentKind, Kernel, KernelSpec, Launch};
use crate::memory::{Buffer, BufferView};
use crate::{DeviceMemory, Driver, GpuError};
use block::{Grid, Stop};
use context::Range;
use object::Object;

/// What memory holds before anything is written to it: NaN as a float, far out of range as an index.
const UNWRITTEN: u8 = 0xff;

/// This machine's cores in the place of a GPU.
pub struct SimDriver {
    arch: String,
    wave_size: u32,
    pool: ThreadPool,
    /// Held while anything reads or writes buffers: what makes the safe functions of [`Driver`] race-free.
    stream: Mutex<()>,
}

/// A kernel, loaded once for each thread that runs blocks: its LDS is static memory of the object.
struct Function {
    bytes: Vec<u8>,
    copies: Vec<Mutex<Option<Object>>>,
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
            .map_err(GpuError::Threads)?;
        Ok(Self { arch: arch.to_owned(), wave_size, pool, stream: Mutex::new(()) })
    }
}

/// Where a buffer of the simulator is in this process: for a runtime that pretends to be a GPU's, and copies.
pub fn address(view: &BufferView) -> Option<usize> {
    view.host_address().ok().map(|address| address.expose_provenance())
}

impl Driver for SimDriver {
    fn describe(&self) -> String {
        format!("sim:{} (a GPU's kernels, executed on {} threads of this machine)", self.arch, self.parallelism())
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
        let mut copies = vec![Mutex::new(Some(first))];
        copies.resize_with(self.parallelism(), Mutex::default);
        Ok(Kernel::new(spec, Function { bytes: object.to_vec(), copies }))
    }

    fn launch(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<(), GpuError> {
        kernel.check(launch.args)?;
        let function: &Function = kernel.function()?;
        let args = launch.args.iter().map(pointer).collect::<Result<Vec<_>, _>>()?;
        let args = Pointers(args);
        let ranges = ranges(&kernel.spec, launch.args)?;
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let grid = Grid {
            blocks: launch.grid,
            block_size: kernel.spec.block_size,
            wave_size: self.wave_size,
            ranges: &ranges,
        };
        let next = AtomicU64::new(0);
        let too_many = || GpuError::Blocks { entry: kernel.entry().to_owned(), grid: launch.grid };
        let n_blocks = launch.grid.iter().try_fold(1u64, |n, &axis| n.checked_mul(axis.into())).ok_or_else(too_many)?;
        let stopped: Mutex<Option<GpuError>> = Mutex::new(None);
        self.pool.broadcast(|worker| {
            let result = function.run(worker.index(), &kernel.spec, &grid, args.as_slice(), || {
                let block = next.fetch_add(1, Ordering::Relaxed);
                (block < n_blocks).then_some(block)
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
        loop {
            block::run(object, grid, args, block).map_err(|stop| fault(object, spec, grid, block, stop))?;
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
        line: stop.line(object),
        block: grid.index(block),
        thread: stop.thread,
    }
}

/// Where the kernel may read and write, those that it may write first.
fn ranges(spec: &KernelSpec, args: &[Argument]) -> Result<Vec<(usize, Range)>, GpuError> {
    let mut ranges = Vec::new();
    for (i, (spec, arg)) in spec.args.iter().zip(args).enumerate() {
        if let Argument::Memory { view, required_bytes } = arg {
            let begin = view.host_address()? as usize;
            ranges.push((i, Range::global(begin, begin + required_bytes, spec.kind == ArgumentKind::Write)));
        }
    }
    ranges.sort_by_key(|(_, range)| !range.is_writable());
    Ok(ranges)
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
