//! Code objects on a device, and the launch of their kernels.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use vendor_library::CallError;

use super::calls::{Handle, Shape, status};
use super::device::Device;
use crate::GpuError;
use crate::launch::{Argument, KernelSpec, Launch};
use crate::memory::OwnerId;

/// A kernel of a loaded module.
pub(crate) struct Function {
    function: Handle,
    module: Module,
    block_size: u32,
    lds_bytes: u32,
    is_early: bool,
}

/// Why an object was not loaded.
pub(crate) enum LoadError {
    /// The runtime says that it is not for this device.
    NoBinary(CallError),
    Other(GpuError),
}

impl From<GpuError> for LoadError {
    fn from(error: GpuError) -> Self {
        Self::Other(error)
    }
}

struct Module {
    device: Arc<Device>,
    module: Handle,
    /// Versions of the runtime differ in whether they copy the image.
    _image: Vec<u8>,
}

// SAFETY: handles that only the runtime looks into, from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Loads an object that is known to fit `spec`.
    pub(crate) fn load(device: &Arc<Device>, object: &[u8], spec: &KernelSpec) -> Result<Self, LoadError> {
        let image = object.to_vec();
        // SAFETY: the image is a whole object: the caller has read it, or knows that its bytes are what a compiler
        // made.
        let module = unsafe { device.enter()?.load_module(&image) }.map_err(|source| match source.code {
            status::NO_BINARY_FOR_GPU | status::SHARED_OBJECT_INIT_FAILED => LoadError::NoBinary(source),
            _ => LoadError::Other(device.error("load a kernel", source)),
        })?;
        let module = Module { device: Arc::clone(device), module, _image: image };
        let function = module.function(&spec.entry)?;
        Ok(Self { function, module, block_size: spec.block_size, lds_bytes: spec.lds_bytes, is_early: spec.is_early })
    }

    /// The runtime's own, for questions about it.
    pub(crate) fn handle(&self) -> Handle {
        self.function
    }

    /// Whether it was loaded on this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.module.device, device)
    }

    /// Puts a launch on the stream; its arguments were checked. What the kernel reads and writes must live until the
    /// stream has been waited for, which the owners of memory see to.
    pub(crate) fn launch(&self, owner: OwnerId, launch: &Launch<'_>) -> Result<(), GpuError> {
        let device = &self.module.device;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        // The address of the variable that holds an address, or of the value itself: both outlive the call, which
        // copies what is after them.
        let addresses = launch
            .args
            .iter()
            .map(|arg| match arg {
                Argument::Memory { view, .. } => view.device_address(owner),
                _ => Ok(0),
            })
            .collect::<Result<Vec<u64>, _>>()?;
        let mut arguments: Vec<*mut c_void> = launch
            .args
            .iter()
            .zip(&addresses)
            .map(|(arg, address)| match arg {
                Argument::Memory { .. } => (&raw const *address).cast_mut().cast(),
                Argument::U32(value) => (&raw const *value).cast_mut().cast(),
                Argument::I32(value) => (&raw const *value).cast_mut().cast(),
                Argument::F32(value) => (&raw const *value).cast_mut().cast(),
            })
            .collect();
        let shape =
            Shape { grid: launch.grid, block: self.block_size, lds_bytes: self.lds_bytes, is_early: self.is_early };
        // SAFETY: function and stream are alive; the object's own description of its arguments was compared with the
        // spec when it was loaded, and the launch's with the spec now, so there are as many pointers as the kernel has
        // arguments, each to a value of its size. Staying inside the lengths is the template's contract.
        device.call("launch a kernel", |calls| unsafe {
            calls.launch(self.function, &shape, device.stream, &mut arguments)
        })
    }
}

impl Module {
    fn function(&self, entry: &str) -> Result<Handle, GpuError> {
        let missing = || GpuError::NoEntry { symbol: entry.to_owned() };
        let name = CString::new(entry).map_err(|_| missing())?;
        // SAFETY: the module is loaded.
        unsafe { self.device.enter()?.function(self.module, &name) }.map_err(|error| match error.code {
            status::NOT_FOUND => missing(),
            _ => self.device.error("look a kernel up", error),
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `Function::load`, unloaded nowhere else, and nothing on the stream runs its kernel.
        self.device.release_after_use("unload a kernel", |calls| unsafe { calls.unload_module(self.module) });
    }
}
