//! The `hip` device: an AMD GPU through the HIP runtime, which is opened on demand.
//!
//! The last of three layers, above `hip-runtime-sys`' functions and status check. [`devices`] finds devices, and
//! `calls` are HIP's functions for [`crate::runtime`]. An object's description is checked here before it is loaded.

mod calls;
mod devices;

use std::path::Path;
use std::sync::Arc;

use crate::code_object::{CodeObject, DeviceLimits};
use crate::display::is_connected;
use crate::launch::KernelSpec;
use crate::power::{PciAddress, amdgpu_watts};
use crate::runtime::{Chip, Device, Function, Gpu, LoadError};
use crate::{DeviceFacts, GpuError, GpuRuntime};
use calls::HipCalls;
pub use devices::{HipLibrary, HipRuntime, end_process, mapped_file};

/// An AMD GPU, driven through HIP.
pub type HipDriver = Gpu<HipChip>;

/// The facts about an AMD GPU.
pub struct HipChip {
    facts: DeviceFacts,
    pci: Option<PciAddress>,
}

impl HipDriver {
    /// One of the runtime's devices.
    ///
    /// # Errors
    /// As [`HipRuntime::facts`]; [`GpuError::Call`] when the device cannot be used.
    pub fn new(runtime: &HipRuntime, ordinal: usize) -> Result<Self, GpuError> {
        let facts = runtime.facts(ordinal)?;
        let calls = HipCalls::new(Arc::clone(&runtime.hip), ordinal, runtime.release());
        Self::open(Box::new(calls), format!("hip:{ordinal}"), HipChip { facts, pci: runtime.pci_address(ordinal) })
    }

    /// What the device says of itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.chip().facts
    }
}

impl Chip for HipChip {
    fn describe(&self) -> String {
        let facts = &self.facts;
        format!("{}, {}, {}", facts.name, facts.arch, facts.size())
    }

    fn parallelism(&self) -> usize {
        self.facts.compute_units
    }

    fn has_display(&self) -> bool {
        self.pci.is_some_and(|address| is_connected(Path::new("/"), address))
    }

    fn power_watts(&self) -> Option<f64> {
        amdgpu_watts(Path::new("/"), self.pci?)
    }

    fn load(&self, device: &Arc<Device>, object: &[u8], spec: &KernelSpec) -> Result<Function, GpuError> {
        let said = CodeObject::of_kernel(object, spec)?;
        let no_binary = |source| GpuError::NoBinary {
            entry: spec.entry.clone(),
            device: device.label.clone(),
            device_arch: self.facts.arch.clone(),
            object_arch: said.target.clone(),
            object_version: said.version,
            source,
        };
        if !runs_on(&said.target, &self.facts.arch) {
            return Err(no_binary(None));
        }
        said.agrees(spec, DeviceLimits::from_facts(&self.facts))?;
        Function::load(device, object, spec).map_err(|failed| match failed {
            LoadError::NoBinary(source) => no_binary(Some(source)),
            LoadError::Other(error) => error,
        })
    }
}

/// Whether an object that says it is for `target` may run on a device that says it is `arch`. Flags that the object
/// does not state may be either way; of an object for a whole family (`gfx11-generic`) the runtime knows better.
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
