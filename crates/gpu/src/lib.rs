//! Devices, memory, modules and launches: everything between the graph and a driver.
//!
//! A [`Driver`] is one device. It allocates [`Buffer`]s, loads compiled [`Kernel`]s and launches them over a grid
//! of blocks. Nothing above this crate holds a raw pointer. Drivers: [`host`], this machine's cores, where a block is
//! one call of a C function; [`hip`], an AMD GPU; [`cuda`], an NVIDIA GPU; [`sim`], a GPU on this machine's cores.
//!
//! What makes [`Driver::launch`] a safe function is checked in [`launch`]: the kernel's own description of its
//! arguments equals the contract's when it is loaded, and every launch passes the right number of arguments of
//! the right kind, in memory that is long enough and writable where the kernel writes. That a kernel stays
//! within the lengths its contract states is the template's part, tested against the references.

#![allow(unsafe_code)]

pub mod amx;
pub mod code_object;
mod cubin;
pub mod cuda;
pub mod elf;
mod gcn_code;
pub mod hip;
pub mod host;
pub mod numa;
pub mod sim;

mod display;
mod error;
mod facts;
mod launch;
mod mailbox;
mod memory;
mod power;
mod runtime;
mod team;

pub use cubin::code as cubin_code;
pub use error::GpuError;
pub use facts::{DeviceFacts, GpuRuntime, Runtime, RuntimeNames};
pub use gcn_code::code as gcn_code;
pub use launch::{Argument, ArgumentKind, ArgumentSpec, Graph, Kernel, KernelSpec, Launch};
pub use mailbox::Mailbox;
pub use memory::{ALIGNMENT_BYTES, Buffer, BufferView};

use std::any::Any;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// What could still be allocated.
    pub free_bytes: usize,
    pub total_bytes: usize,
}

/// Parts of a device's memory that [`Driver::prefetch`] fills in turns: one is filled while the other is used.
pub const PREFETCHES: usize = 2;

/// One device: memory, modules, launches. Launches run in the order they are made.
pub trait Driver: Any + Send + Sync {
    /// The device in words, for people: name, cores or compute units.
    fn describe(&self) -> String;

    /// Blocks that run at the same time: cores on the host, compute units on a GPU.
    fn parallelism(&self) -> usize;

    /// Its memory, free and in all; `None` if unknown.
    ///
    /// # Errors
    /// The device's words.
    fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        Ok(None)
    }

    /// Memory for `len_bytes` bytes, aligned to 256 bytes; what it holds is undefined.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError>;

    /// Memory of whole pages, `len_bytes` long at least, between two pages whose touch ends the process; `None` from a
    /// device that has no such memory. For checks of kernels.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    fn fenced(&self, _len_bytes: usize) -> Result<Option<Buffer>, GpuError> {
        Ok(None)
    }

    /// Read-only bytes as device memory, aligned to [`Self::alignment_bytes`]. On the host they are used where they
    /// lie.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where a copy is needed.
    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError>;

    /// What the address of uploaded memory is a multiple of, in bytes: 256 where bytes are copied, 1 where they are
    /// not.
    fn alignment_bytes(&self) -> usize {
        256
    }

    /// Whether uploaded bytes take memory of the device, besides where they lie.
    fn copies_uploads(&self) -> bool {
        true
    }

    /// Loads a compiled object and looks its kernel up.
    ///
    /// # Errors
    /// [`GpuError::NotLoadable`], [`GpuError::NoEntry`], or [`GpuError::Abi`] when the object describes other
    /// arguments than `spec`.
    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError>;

    /// Runs a kernel over its grid; later launches see what it wrote. A device may run it later: the next call that
    /// waits reports its error.
    ///
    /// # Errors
    /// [`GpuError::Argument`] when the arguments do not fit the kernel's.
    fn launch(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<(), GpuError>;

    /// The same, and how long the device took.
    ///
    /// # Errors
    /// As [`Self::launch`].
    fn launch_timed(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<Duration, GpuError> {
        let start = Instant::now();
        self.launch(kernel, launch)?;
        Ok(start.elapsed())
    }

    /// Records launches that will be made again and again, with these arguments and in this order, so that
    /// [`Self::replay`] makes them as one. Nothing runs now. `None` from a device that gains nothing by it.
    ///
    /// # Errors
    /// As [`Self::launch`], or the device's words; the launches can still be made one by one.
    fn capture(&self, _launches: &[(&Kernel, Launch<'_>)]) -> Result<Option<Graph>, GpuError> {
        Ok(None)
    }

    /// Makes all launches of a graph.
    ///
    /// # Errors
    /// [`GpuError::ForeignGraph`], or the device's words.
    fn replay(&self, _graph: &Graph) -> Result<(), GpuError> {
        Err(GpuError::ForeignGraph)
    }

    /// Makes all launches of a graph, and how long the device took for them.
    ///
    /// # Errors
    /// As [`Self::replay`].
    fn replay_timed(&self, _graph: &Graph) -> Result<Duration, GpuError> {
        Err(GpuError::ForeignGraph)
    }

    /// Room for `len_bytes` bytes that the device puts into this process on its own. `None` from a device whose
    /// launches are done when they return: nothing is gained by looking later.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or the device's words.
    fn mailbox(&self, _len_bytes: usize) -> Result<Option<Mailbox>, GpuError> {
        Ok(None)
    }

    /// Has the device copy the first `len_bytes` bytes of `view` to the mailbox, after everything launched so far and
    /// before what is launched next. What the mailbox held is lost.
    ///
    /// # Errors
    /// [`GpuError::Range`] when view or mailbox is shorter, [`GpuError::ForeignMailbox`], or the device's words.
    fn post(&self, _mailbox: &mut Mailbox, _view: &BufferView, _len_bytes: usize) -> Result<(), GpuError> {
        Err(GpuError::ForeignMailbox)
    }

    /// Copies `bytes` to the start of `view`.
    ///
    /// # Errors
    /// [`GpuError::Range`] when they do not fit or the memory is read-only.
    fn write(&self, view: &BufferView, bytes: &[u8]) -> Result<(), GpuError>;

    /// Sets every byte of `view`, before what is launched next.
    ///
    /// # Errors
    /// [`GpuError::Range`] when the memory is read-only, or the device's words.
    fn fill(&self, view: &BufferView, byte: u8) -> Result<(), GpuError> {
        self.write(view, &vec![byte; view.len_bytes()])
    }

    /// Copies the start of `view` into `bytes`, after everything launched so far.
    ///
    /// # Errors
    /// [`GpuError::Range`] when the view is shorter.
    fn read(&self, view: &BufferView, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Copies all of `from` to the start of `to`, which shares no byte with it: after everything launched so far and
    /// before what is launched next.
    ///
    /// # Errors
    /// [`GpuError::Range`] when it does not fit or the memory is read-only.
    fn copy(&self, from: &BufferView, to: &BufferView) -> Result<(), GpuError> {
        let mut bytes = vec![0; from.len_bytes()];
        self.read(from, &mut bytes)?;
        self.write(to, &bytes)
    }

    /// Zeroed memory of this process, from and to which the device copies without anybody's help: what [`Self::bring`]
    /// and [`Self::send`] are fast with. Any driver of this process's memory can use it.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    fn staging(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        host::allocate(len_bytes)
    }

    /// Memory of this process that kernels of the device read and write where it is, over the bus (zero-copy). It
    /// begins with `bytes`; what the rest holds is undefined. `None` where the system lets no so much be pinned.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Range`] for more bytes than it is long, or the device's words.
    fn zero_copy(&self, len_bytes: usize, bytes: &[u8]) -> Result<Option<Buffer>, GpuError> {
        let buffer = self.allocate(len_bytes)?;
        self.write(&buffer.view(), bytes)?;
        Ok(Some(buffer))
    }

    /// Copies memory of the device, the first of each pair, to the start of memory of this process, after everything
    /// launched so far, and waits until all of it is there.
    ///
    /// # Errors
    /// [`GpuError::Range`] when something does not fit, [`GpuError::ForeignMemory`], or the device's words, also about
    /// what was launched.
    fn bring(&self, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        copies.iter().try_for_each(|(from, to)| self.copy(from, to))
    }

    /// Copies memory of this process, the first of each pair, to the start of memory of the device, before what is
    /// launched next. The bytes stay as they are until the device has been waited for.
    ///
    /// # Errors
    /// As [`Self::bring`].
    fn send(&self, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        copies.iter().try_for_each(|(from, to)| self.copy(from, to))
    }

    /// Memory of this process from which the device copies by itself, in place, as long as the view lives. `None` for
    /// bytes with another owner, such as a mapped file's.
    ///
    /// # Errors
    /// [`GpuError::ForeignMemory`], or the device's words.
    fn pin(&self, view: &BufferView) -> Result<Option<BufferView>, GpuError> {
        Ok(Some(view.clone()))
    }

    /// Copies memory of this process, the first of each pair, to the start of memory of the device, beside what was
    /// launched: as soon as nothing uses any more what was copied there before, as [`Self::end_use`] says. Whoever
    /// uses it asks [`Self::begin_use`] first. From pinned memory ([`Self::pin`]) the device copies by itself; other
    /// memory is copied to pinned memory first, for which this waits. The bytes stay as they are until what uses them
    /// is done. A device whose launches are done when they return copies at once.
    ///
    /// - `slot`: which part of the device's memory, below [`PREFETCHES`]
    ///
    /// # Errors
    /// As [`Self::bring`].
    fn prefetch(&self, _slot: usize, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        self.send(copies)
    }

    /// Has what is launched next wait for what was prefetched into a slot last.
    ///
    /// # Errors
    /// The device's words.
    fn begin_use(&self, _slot: usize) -> Result<(), GpuError> {
        Ok(())
    }

    /// What was launched so far is all that uses what was prefetched into a slot: the next may come.
    ///
    /// # Errors
    /// The device's words.
    fn end_use(&self, _slot: usize) -> Result<(), GpuError> {
        Ok(())
    }

    /// Whether the device drives a display, as the system reports: the desktop waits for running kernels.
    fn has_display(&self) -> bool {
        false
    }

    /// The power that the device draws now, in watts; `None` if its driver does not report it.
    fn power_watts(&self) -> Option<f64> {
        None
    }

    /// Memory that this device and others see, in one piece after the other: piece `i` is on device `i`, this one's is
    /// the first. All are as long, `len_bytes` or some more; what they hold is undefined. Gives all of it as each of
    /// the devices sees it, this one first.
    ///
    /// # Errors
    /// [`GpuError::ForeignMemory`] for devices of another kind, [`GpuError::Unreachable`] for such as do not see each
    /// other, [`GpuError::OutOfMemory`] or the device's words.
    fn shared(&self, others: &[&dyn Driver], len_bytes: usize) -> Result<Vec<BufferView>, GpuError> {
        // Memory of this process is everybody's whose memory is.
        let n_devices = 1 + others.len();
        let view = self.allocate(len_bytes.next_multiple_of(ALIGNMENT_BYTES) * n_devices)?.view();
        Ok(vec![view; n_devices])
    }

    /// Sets all words of shared memory, whatever the device is busy with.
    ///
    /// # Errors
    /// [`GpuError::ForeignMemory`] for memory that is not shared, or the device's words.
    fn fill_now(&self, view: &BufferView, value: u32) -> Result<(), GpuError> {
        view.store_words(value)
    }

    /// Reads words of shared memory, whatever the device is busy with: what others wrote last, or what was there
    /// before.
    ///
    /// # Errors
    /// As [`Self::fill_now`]; [`GpuError::Range`] for more words than there are, or than a device is asked for at once.
    fn read_now(&self, view: &BufferView, words: &mut [u32]) -> Result<(), GpuError> {
        view.load_words(words)
    }

    /// Waits until everything launched so far is done.
    ///
    /// # Errors
    /// The device's words, also about what was launched.
    fn wait(&self) -> Result<(), GpuError> {
        Ok(())
    }

    /// Runs `work`, which makes launches, in the place from which launches are cheapest.
    fn enter(&self, work: &mut (dyn FnMut() + Send));
}
