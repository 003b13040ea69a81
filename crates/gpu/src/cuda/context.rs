//! A device's primary context, which a thread must make current before it uses the device.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use cuda_driver_sys::sys::{DeviceId, Handle, function_attribute};
use cuda_driver_sys::{CallError, Cuda};

/// A hold on the context, which all libraries of a process share.
pub(super) struct Context {
    pub(crate) cuda: Arc<Cuda>,
    pub(crate) device: DeviceId,
    context: Handle,
}

// SAFETY: a handle that only the driver looks into, from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn retain(cuda: &Arc<Cuda>, ordinal: usize) -> Result<Self, CallError> {
        let ordinal = c_int::try_from(ordinal).expect("the caller compared it with the number of devices");
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: both are valid for writes.
        unsafe {
            cuda.check("cuDeviceGet", (cuda.device_get)(&mut device, ordinal))?;
            cuda.check("cuDevicePrimaryCtxRetain", (cuda.primary_context_retain)(&mut context, device))?;
        }
        Ok(Self { cuda: Arc::clone(cuda), device, context })
    }

    /// Makes it the calling thread's.
    pub(crate) fn enter(&self) -> Result<(), CallError> {
        // SAFETY: it is held.
        self.cuda.check("cuCtxSetCurrent", unsafe { (self.cuda.context_set_current)(self.context) })
    }

    /// Free and total memory of the calling thread's device, in bytes.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CallError> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: both are valid for writes.
        let code = unsafe { (self.cuda.mem_get_info)(&mut free_bytes, &mut total_bytes) };
        self.cuda.check("cuMemGetInfo", code).map(|()| (free_bytes, total_bytes))
    }

    /// Allows launches of a function of this device as much dynamic shared memory.
    ///
    /// # Safety
    /// The function must be of a module that is loaded on this device.
    pub(crate) unsafe fn allow_shared_bytes(&self, function: Handle, len_bytes: u32) -> Result<(), CallError> {
        let len_bytes = c_int::try_from(len_bytes).unwrap_or(c_int::MAX);
        // SAFETY: the caller's.
        let code = unsafe {
            (self.cuda.func_set_attribute)(function, function_attribute::MAX_DYNAMIC_SHARED_BYTES, len_bytes)
        };
        self.cuda.check("cuFuncSetAttribute", code)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `retain`, released nowhere else.
        let code = unsafe { (self.cuda.primary_context_release)(self.device) };
        if let Err(error) = self.cuda.check("cuDevicePrimaryCtxRelease", code) {
            tracing::debug!("could not release a CUDA context: {error}");
        }
    }
}
