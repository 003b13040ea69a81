//! The `cuda` device: an NVIDIA GPU through the CUDA driver, which is opened on demand.
//!
//! Like [`crate::hip`], it is the layer above `cuda-driver-sys`: [`devices`] finds devices, `context` makes a device
//! current on a thread, and `calls` are the driver's functions for [`crate::runtime`]. An object's own description is
//! compared with its contract before it is loaded.

mod calls;
mod context;
mod devices;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use cuda_driver_sys::nvml::PowerMeter;

use crate::code_object::{CodeObject, DeviceLimits};
use crate::display::is_connected;
use crate::launch::KernelSpec;
use crate::runtime::{Chip, Device, Function, Gpu, LoadError};
use crate::{DeviceFacts, GpuError, GpuRuntime};
use calls::CudaCalls;
use context::Context;
pub use devices::CudaRuntime;

/// An NVIDIA GPU, driven through the CUDA driver.
pub type CudaDriver = Gpu<CudaChip>;

/// The first release of CUDA whose graphs say when a kernel may begin (`cudaGraphKernelNodePortProgrammatic`
/// in its headers): in older ones, a captured launch could not be early.
const EARLY_IN_GRAPHS: (u32, u32) = (12, 3);

/// What is known of an NVIDIA GPU.
pub struct CudaChip {
    facts: DeviceFacts,
    context: Arc<Context>,
    /// Opened when the power is first asked for; `None` inside if it cannot be.
    meter: OnceLock<Option<PowerMeter>>,
}

impl CudaDriver {
    /// One of the driver's devices.
    ///
    /// # Errors
    /// As [`CudaRuntime::facts`]; [`GpuError::Call`] when the device cannot be used.
    pub fn new(runtime: &CudaRuntime, ordinal: usize) -> Result<Self, GpuError> {
        let (context, facts) = runtime.open_device(ordinal)?;
        let context = Arc::new(context);
        let launches_early = runtime.release().is_some_and(|release| release >= EARLY_IN_GRAPHS);
        let calls = CudaCalls { context: Arc::clone(&context), launches_early };
        Self::open(Box::new(calls), format!("cuda:{ordinal}"), CudaChip { facts, context, meter: OnceLock::new() })
    }

    /// What the device says of itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.chip().facts
    }
}

impl Chip for CudaChip {
    fn describe(&self) -> String {
        let DeviceFacts { name, arch, compute_units, .. } = &self.facts;
        format!("{name}, {arch}, {compute_units} SMs")
    }

    fn parallelism(&self) -> usize {
        self.facts.compute_units
    }

    fn has_display(&self) -> bool {
        devices::pci_address(&self.context).is_some_and(|address| is_connected(Path::new("/"), address))
    }

    fn power_watts(&self) -> Option<f64> {
        let open = || {
            let address = devices::pci_address(&self.context)?.to_string();
            PowerMeter::open(None, &address).unwrap_or_else(|error| {
                tracing::debug!("the power that {} draws is unknown: {error}", self.facts.device);
                None
            })
        };
        self.meter.get_or_init(open).as_ref()?.watts()
    }

    fn load(&self, device: &Arc<Device>, object: &[u8], spec: &KernelSpec) -> Result<Function, GpuError> {
        // Parsed whole: the driver reads as far as the headers lead it.
        CodeObject::of_kernel(object, spec)?.agrees(spec, DeviceLimits::from_facts(&self.facts))?;
        let function = Function::load(device, object, spec).map_err(|failed| match failed {
            LoadError::NoBinary(source) => GpuError::NoBinary {
                entry: spec.entry.clone(),
                device: device.label.clone(),
                device_arch: self.facts.arch.clone(),
                object_arch: "another chip".to_owned(),
                object_version: None,
                source: Some(source),
            },
            LoadError::Other(error) => error,
        })?;
        if spec.lds_bytes > 0 {
            // SAFETY: the function was just loaded on this device.
            unsafe { self.context.allow_shared_bytes(function.handle(), spec.lds_bytes) }
                .map_err(|source| device.error("ask for a block's shared memory", source))?;
        }
        Ok(function)
    }
}
