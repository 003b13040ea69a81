//! A GPU behind a vendor's runtime: safe owners that give back what they created.
//!
//! HIP and the CUDA driver have the same structure. `calls` is that structure; `device` is a device with its stream;
//! `memory`, `event`, `module` and `graph` own what is on it; `staging` copies, `prefetch` copies ahead. [`Gpu`] joins
//! them. [`crate::hip`] and [`crate::cuda`] say how the calls are made and what an object must have.

mod calls;
mod device;
mod event;
mod graph;
mod mailbox;
mod memory;
mod module;
mod prefetch;
mod shared;
mod staging;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::launch::{Graph, Kernel, KernelSpec, Launch};
use crate::mailbox::Mailbox;
use crate::memory::{Buffer, BufferView, OwnerId};
use crate::{DeviceMemory, Driver, GpuError};
pub(crate) use calls::{Called, Calls, Handle, Shape, status};
pub(crate) use device::Device;
use event::Event;
use graph::{Executable, Recorded};
use mailbox::Inbox;
use memory::{Allocation, Pinned, Registered};
pub(crate) use module::{Function, LoadError};
use prefetch::Prefetch;
use shared::{Aside, Shared};
use staging::Staging;

/// What a vendor knows of its device.
pub(crate) trait Chip: Send + Sync {
    /// Name, arch and size, for people.
    fn describe(&self) -> String;

    /// Compute units.
    fn parallelism(&self) -> usize;

    /// Whether something is connected to one of its outputs.
    fn has_display(&self) -> bool;

    /// The power that the device draws now, in watts; none if unknown.
    fn power_watts(&self) -> Option<f64>;

    /// Holds an object against `spec` and the device, and loads it.
    fn load(&self, device: &Arc<Device>, object: &[u8], spec: &KernelSpec) -> Result<Function, GpuError>;
}

/// A GPU, through the runtime of the vendor of its chip.
pub struct Gpu<C> {
    device: Arc<Device>,
    chip: C,
    owner: OwnerId,
    /// Whether launches are captured.
    captures: bool,
    /// Held while anything is put on the stream, so that launches and copies of several threads do not mix.
    stream: Mutex<Stream>,
    /// Made with the first memory that is shared: later a stream could not be had without waiting.
    aside: OnceLock<Aside>,
}

/// What is made when it is first needed.
#[derive(Default)]
struct Stream {
    staging: Option<Staging>,
    /// Before and after a launch whose time is taken.
    events: Option<[Event; 2]>,
    prefetch: Option<Prefetch>,
}

#[expect(private_bounds, reason = "whoever is outside has no vendor of his own")]
impl<C: Chip> Gpu<C> {
    pub(crate) fn open(calls: Box<dyn Calls>, label: String, chip: C) -> Result<Self, GpuError> {
        let device = Arc::new(Device::open(calls, label)?);
        let (owner, stream, aside) = (OwnerId::new(), Mutex::default(), OnceLock::new());
        Ok(Self { device, chip, owner, captures: true, stream, aside })
    }

    /// The same, which captures launches or says that it gains nothing by it.
    #[must_use]
    pub fn with_graphs(self, captures: bool) -> Self {
        Self { captures, ..self }
    }

    pub(crate) fn chip(&self) -> &C {
        &self.chip
    }

    /// What this device made of the object: another device's kernel would run there, at addresses of this one.
    fn function<'k>(&self, kernel: &'k Kernel) -> Result<&'k Function, GpuError> {
        let function: &Function = kernel.function()?;
        let foreign = || GpuError::ForeignKernel { entry: kernel.entry().to_owned() };
        function.is_of(&self.device).then_some(function).ok_or_else(foreign)
    }

    /// What this device captured as the graph: another device's holds addresses that mean nothing here.
    fn executable<'g>(&self, graph: &'g Graph) -> Result<&'g Executable, GpuError> {
        let executable: &Executable = graph.recorded()?;
        executable.is_of(&self.device).then_some(executable).ok_or(GpuError::ForeignGraph)
    }

    /// Makes launches, and keeps what they use. Called with the stream in hand.
    fn record(&self, launches: &[(&Kernel, Launch<'_>)]) -> Result<Recorded, GpuError> {
        let mut recorded = Recorded::with_capacity(launches.len());
        for (kernel, launch) in launches {
            kernel.check(launch.args)?;
            self.function(kernel)?.launch(self.owner, launch)?;
            recorded.push(((*kernel).clone(), launch.args.to_vec()));
        }
        Ok(recorded)
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    fn staging(&mut self, device: &Arc<Device>) -> Result<&mut Staging, GpuError> {
        match &mut self.staging {
            Some(staging) => Ok(staging),
            none => Ok(none.insert(Staging::new(device, device.stream)?)),
        }
    }

    fn prefetch(&mut self, device: &Arc<Device>) -> Result<&mut Prefetch, GpuError> {
        match &mut self.prefetch {
            Some(prefetch) => Ok(prefetch),
            none => Ok(none.insert(Prefetch::new(device)?)),
        }
    }

    fn events(&mut self, device: &Arc<Device>) -> Result<&[Event; 2], GpuError> {
        match &mut self.events {
            Some(events) => Ok(events),
            none => Ok(none.insert([Event::new(device)?, Event::new(device)?])),
        }
    }
}

impl<C: Chip + 'static> Driver for Gpu<C> {
    fn describe(&self) -> String {
        format!("{} ({})", self.device.label, self.chip.describe())
    }

    fn parallelism(&self) -> usize {
        self.chip.parallelism()
    }

    fn has_display(&self) -> bool {
        self.chip.has_display()
    }

    fn power_watts(&self) -> Option<f64> {
        self.chip.power_watts()
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        let memory = self.device.call("ask how much memory is free", |calls| calls.memory())?;
        let (free_bytes, total_bytes) = memory;
        Ok(Some(DeviceMemory { free_bytes, total_bytes }))
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        let allocation = Allocation::new(&self.device, len_bytes)?;
        Ok(Buffer::device(self.owner, allocation.address(), len_bytes, allocation))
    }

    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError> {
        let allocation = Allocation::new(&self.device, bytes.len())?;
        let address = allocation.address();
        self.stream().staging(&self.device)?.write(address, &bytes)?;
        Ok(Buffer::device_read_only(self.owner, address, bytes.len(), allocation))
    }

    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError> {
        let function = self.chip.load(&self.device, object, &spec)?;
        Ok(Kernel::new(spec, function))
    }

    fn launch(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<(), GpuError> {
        kernel.check(launch.args)?;
        let function = self.function(kernel)?;
        let _stream = self.stream();
        function.launch(self.owner, launch)
    }

    fn launch_timed(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<Duration, GpuError> {
        kernel.check(launch.args)?;
        let function = self.function(kernel)?;
        let mut stream = self.stream();
        let [before, after] = stream.events(&self.device)?;
        before.record()?;
        function.launch(self.owner, launch)?;
        after.record()?;
        after.wait()?;
        after.since(before)
    }

    fn capture(&self, launches: &[(&Kernel, Launch<'_>)]) -> Result<Option<Graph>, GpuError> {
        if !self.captures {
            return Ok(None);
        }
        let _stream = self.stream();
        let captured = Executable::capture(&self.device, || self.record(launches))?;
        Ok(captured.map(Graph::new))
    }

    fn replay(&self, graph: &Graph) -> Result<(), GpuError> {
        let executable = self.executable(graph)?;
        let _stream = self.stream();
        executable.launch()
    }

    fn replay_timed(&self, graph: &Graph) -> Result<Duration, GpuError> {
        let executable = self.executable(graph)?;
        let mut stream = self.stream();
        let [before, after] = stream.events(&self.device)?;
        before.record()?;
        executable.launch()?;
        after.record()?;
        after.wait()?;
        after.since(before)
    }

    fn mailbox(&self, len_bytes: usize) -> Result<Option<Mailbox>, GpuError> {
        Ok(Some(Mailbox::new(Inbox::new(&self.device, len_bytes)?)))
    }

    fn post(&self, mailbox: &mut Mailbox, view: &BufferView, len_bytes: usize) -> Result<(), GpuError> {
        view.check_read(len_bytes)?;
        let address = view.device_address(self.owner)?;
        let inbox: &mut Inbox = mailbox.letters()?;
        if !inbox.is_of(&self.device) {
            return Err(GpuError::ForeignMailbox);
        }
        let _stream = self.stream();
        inbox.post(address, len_bytes)
    }

    fn write(&self, view: &BufferView, bytes: &[u8]) -> Result<(), GpuError> {
        view.check_write(bytes.len())?;
        let address = view.device_address(self.owner)?;
        self.stream().staging(&self.device)?.write(address, bytes)
    }

    fn fill(&self, view: &BufferView, byte: u8) -> Result<(), GpuError> {
        let len_bytes = view.len_bytes();
        view.check_write(len_bytes)?;
        let address = view.device_address(self.owner)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let _stream = self.stream();
        // SAFETY: the view lies within an allocation of this device, which is freed after what is on the stream.
        self.device
            .call("fill memory", |calls| unsafe { calls.fill_bytes(address, byte, len_bytes, self.device.stream) })
    }

    fn read(&self, view: &BufferView, bytes: &mut [u8]) -> Result<(), GpuError> {
        view.check_read(bytes.len())?;
        let address = view.device_address(self.owner)?;
        self.stream().staging(&self.device)?.read(address, bytes)
    }

    fn copy(&self, from: &BufferView, to: &BufferView) -> Result<(), GpuError> {
        let len_bytes = from.len_bytes();
        to.check_write(len_bytes)?;
        let (source, address) = (from.device_address(self.owner)?, to.device_address(self.owner)?);
        if len_bytes == 0 {
            return Ok(());
        }
        let _stream = self.stream();
        // SAFETY: both views lie within allocations of this device, which are freed after what is on the stream, and
        // the one that is written is long enough.
        self.device.call("copy on the device", |calls| unsafe {
            calls.copy_on_device(address, source, len_bytes, self.device.stream)
        })
    }

    fn staging(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        Ok(Buffer::pinned(Pinned::new(&self.device, len_bytes)?))
    }

    fn zero_copy(&self, len_bytes: usize, bytes: &[u8]) -> Result<Option<Buffer>, GpuError> {
        let (available_bytes, wanted_bytes) = (len_bytes, bytes.len());
        let Some(mut pinned) = Pinned::if_possible(&self.device, len_bytes)? else { return Ok(None) };
        let begin = pinned.bytes().get_mut(..wanted_bytes);
        let too_long = GpuError::Range { what: "write", len_bytes: wanted_bytes, available_bytes };
        begin.ok_or(too_long)?.copy_from_slice(bytes);
        // Both vendors give memory that they pin themselves one address, for this process and for every device.
        let address = pinned.at(0).expose_provenance() as u64;
        Ok(Some(Buffer::device(self.owner, address, len_bytes, pinned)))
    }

    fn bring(&self, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        let _stream = self.stream();
        let copied = copies.iter().try_for_each(|(from, to)| {
            let len_bytes = from.len_bytes();
            to.check_write(len_bytes)?;
            let (source, pointer) = (from.device_address(self.owner)?, to.host_address()?);
            if len_bytes == 0 {
                return Ok(());
            }
            // SAFETY: the first view lies within an allocation of this device, the second is as long in this process,
            // and both are alive until the stream was waited for, below, whatever comes of other copies.
            self.device.call("copy from the device", |calls| unsafe {
                calls.copy_from_device(pointer.cast(), source, len_bytes, self.device.stream)
            })
        });
        let waited = self.device.synchronize();
        copied.and(waited)
    }

    fn send(&self, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        let _stream = self.stream();
        for (from, to) in copies {
            let len_bytes = from.len_bytes();
            to.check_write(len_bytes)?;
            let (pointer, address) = (from.host_address()?, to.device_address(self.owner)?);
            if len_bytes > 0 {
                // SAFETY: as in `bring`, but that nobody waits: what staging memory is freed by waits for the stream
                // first, and the copy out of other memory is made before the call returns.
                self.device.call("copy to the device", |calls| unsafe {
                    calls.copy_to_device(address, pointer.cast_const().cast(), len_bytes, self.device.stream)
                })?;
            }
        }
        Ok(())
    }

    fn pin(&self, view: &BufferView) -> Result<Option<BufferView>, GpuError> {
        if view.is_pinned() {
            return Ok(Some(view.clone()));
        }
        // The pages of a file belong to the system, which may have no room for all of them.
        if !view.is_own() || view.len_bytes() == 0 {
            return Ok(None);
        }
        let pinned = Buffer::pinned(Registered::new(&self.device, view)?).view();
        Ok(Some(if view.is_writable() { pinned } else { pinned.read_only() }))
    }

    fn prefetch(&self, slot: usize, copies: &[(BufferView, BufferView)]) -> Result<(), GpuError> {
        let copies = copies.iter().map(|(from, to)| {
            to.check_write(from.len_bytes())?;
            Ok((from, to.device_address(self.owner)?))
        });
        let copies = copies.collect::<Result<Vec<_>, GpuError>>()?;
        self.stream().prefetch(&self.device)?.fill(slot, &copies)
    }

    fn begin_use(&self, slot: usize) -> Result<(), GpuError> {
        self.stream().prefetch(&self.device)?.begin_use(slot)
    }

    fn end_use(&self, slot: usize) -> Result<(), GpuError> {
        self.stream().prefetch(&self.device)?.end_use(slot)
    }

    fn shared(&self, others: &[&dyn Driver], len_bytes: usize) -> Result<Vec<BufferView>, GpuError> {
        let mut all = vec![self];
        for other in others {
            all.push((*other as &dyn Any).downcast_ref().ok_or(GpuError::ForeignMemory)?);
        }
        for gpu in &all {
            if gpu.aside.get().is_none() {
                let _ = gpu.aside.set(Aside::new(&gpu.device)?);
            }
        }
        let shared = Arc::new(Shared::new(all.iter().map(|gpu| Arc::clone(&gpu.device)).collect(), len_bytes)?);
        let (address, len_bytes) = (shared.address(), shared.len_bytes());
        let view = |gpu: &&Self| Buffer::device(gpu.owner, address, len_bytes, Arc::clone(&shared)).view();
        Ok(all.iter().map(view).collect())
    }

    fn fill_now(&self, view: &BufferView, value: u32) -> Result<(), GpuError> {
        view.check_write(view.len_bytes())?;
        let address = view.device_address(self.owner)?;
        let aside = self.aside.get().ok_or(GpuError::ForeignMemory)?;
        aside.fill(address, value, view.len_bytes() / 4)
    }

    fn read_now(&self, view: &BufferView, words: &mut [u32]) -> Result<(), GpuError> {
        view.check_read(4 * words.len())?;
        let address = view.device_address(self.owner)?;
        let aside = self.aside.get().ok_or(GpuError::ForeignMemory)?;
        aside.read(address, words)
    }

    fn wait(&self) -> Result<(), GpuError> {
        let _stream = self.stream();
        self.device.synchronize()
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        work();
    }
}
