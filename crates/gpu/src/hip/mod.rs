//! The `hip` device: an AMD GPU through the HIP runtime, which is opened when it is asked for.
//!
//! The last of three layers, above the functions and their check in `hip-runtime-sys`: safe owners that give back what
//! they created. [`runtime`] finds devices; `device` is one with its stream; `memory`, `event`, `module` and `graph` own
//! what lives on it; `staging` copies. [`HipDriver`] joins them.

mod device;
mod event;
mod graph;
mod memory;
mod module;
mod runtime;
mod staging;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::code_object::{CodeObject, DeviceLimits};
use crate::launch::{Graph, Kernel, KernelSpec, Launch};
use crate::memory::{Buffer, BufferView, OwnerId};
use crate::{Driver, GpuError};
use device::Device;
use event::Event;
use graph::{Executable, Recorded};
use memory::Allocation;
use module::{Function, LoadError};
pub use runtime::{HipDeviceFacts, HipRuntime};
use staging::Staging;

/// An AMD GPU.
pub struct HipDriver {
    device: Arc<Device>,
    facts: HipDeviceFacts,
    owner: OwnerId,
    /// Held while anything is put on the stream, so that launches and copies of several threads do not mix.
    stream: Mutex<Stream>,
}

/// What is made when it is first needed.
#[derive(Default)]
struct Stream {
    staging: Option<Staging>,
    /// Before and after a launch whose time is taken.
    events: Option<[Event; 2]>,
}

impl HipDriver {
    /// One of the runtime's devices.
    ///
    /// # Errors
    /// As [`HipRuntime::facts`]; [`GpuError::Hip`] when the device cannot be used.
    pub fn new(runtime: &HipRuntime, ordinal: usize) -> Result<Self, GpuError> {
        let facts = runtime.facts(ordinal)?;
        let device = Arc::new(Device::open(Arc::clone(&runtime.hip), ordinal)?);
        Ok(Self { device, facts, owner: OwnerId::new(), stream: Mutex::default() })
    }

    /// What the device says of itself.
    pub fn facts(&self) -> &HipDeviceFacts {
        &self.facts
    }

    fn limits(&self) -> DeviceLimits {
        DeviceLimits { wave_size: self.facts.wave_size, lds_bytes: self.facts.lds_bytes }
    }

    /// What this device made of the object: another device's kernel would run there, at addresses of this one.
    fn function<'k>(&self, kernel: &'k Kernel) -> Result<&'k Function, GpuError> {
        let function: &Function = kernel.function()?;
        let foreign = || GpuError::ForeignKernel { entry: kernel.entry().to_owned() };
        function.is_of(&self.device).then_some(function).ok_or_else(foreign)
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
            none => Ok(none.insert(Staging::new(device)?)),
        }
    }

    fn events(&mut self, device: &Arc<Device>) -> Result<&[Event; 2], GpuError> {
        match &mut self.events {
            Some(events) => Ok(events),
            none => Ok(none.insert([Event::new(device)?, Event::new(device)?])),
        }
    }
}

impl Driver for HipDriver {
    fn describe(&self) -> String {
        let HipDeviceFacts { name, arch, compute_units, .. } = &self.facts;
        format!("{} ({name}, {arch}, {compute_units} CUs)", self.device.label)
    }

    fn parallelism(&self) -> usize {
        self.facts.compute_units
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
        let said = CodeObject::parse(object)
            .map_err(|error| GpuError::NotLoadable { entry: spec.entry.clone(), reason: error.to_string() })?;
        let no_binary = |source| GpuError::NoBinary {
            entry: spec.entry.clone(),
            device: self.device.label.clone(),
            device_arch: self.facts.arch.clone(),
            object_arch: said.target.clone(),
            source,
        };
        if !runs_on(&said.target, &self.facts.arch) {
            return Err(no_binary(None));
        }
        said.agrees(&spec, self.limits())?;
        let function = Function::load(&self.device, object, &spec).map_err(|failed| match failed {
            LoadError::NoBinary(source) => no_binary(Some(source)),
            LoadError::Other(error) => error,
        })?;
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
        let _stream = self.stream();
        let captured = Executable::capture(&self.device, || self.record(launches))?;
        Ok(captured.map(Graph::new))
    }

    fn replay(&self, graph: &Graph) -> Result<(), GpuError> {
        let executable: &Executable = graph.recorded()?;
        if !executable.is_of(&self.device) {
            return Err(GpuError::ForeignGraph);
        }
        let _stream = self.stream();
        executable.launch()
    }

    fn write(&self, view: &BufferView, bytes: &[u8]) -> Result<(), GpuError> {
        view.check_write(bytes.len())?;
        let address = view.device_address(self.owner)?;
        self.stream().staging(&self.device)?.write(address, bytes)
    }

    fn read(&self, view: &BufferView, bytes: &mut [u8]) -> Result<(), GpuError> {
        view.check_read(bytes.len())?;
        let address = view.device_address(self.owner)?;
        self.stream().staging(&self.device)?.read(address, bytes)
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        work();
    }
}

/// Whether an object that says it is for `target` may run on a device that says it is `arch`. Flags that the object does
/// not state may be either way; of an object for a whole family (`gfx11-generic`) the runtime knows better.
fn runs_on(target: &str, arch: &str) -> bool {
    let (mut wanted, mut found) = (target.split(':'), arch.split(':'));
    let name = wanted.next().unwrap_or_default();
    let flags: Vec<&str> = arch.split(':').skip(1).collect();
    name.ends_with("-generic") || (Some(name) == found.next() && wanted.all(|flag| flags.contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_runs_on_its_chip_with_its_flags() {
        for (target, arch, runs) in [
            ("gfx1100", "gfx1100", true),
            ("gfx1100", "gfx1101", false),
            ("gfx90a", "gfx90a:sramecc+:xnack-", true),
            ("gfx90a:xnack-", "gfx90a:sramecc+:xnack-", true),
            ("gfx90a:xnack+", "gfx90a:sramecc+:xnack-", false),
            ("gfx11-generic", "gfx1152", true),
        ] {
            assert_eq!(runs_on(target, arch), runs, "{target} on {arch}");
        }
    }
}
