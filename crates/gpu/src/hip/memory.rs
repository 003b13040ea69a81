//! Memory of a device, and memory of this process that a device can reach. Only these owners free it.

use std::ffi::c_void;
use std::sync::Arc;
use std::{ptr, slice};

use hip_runtime_sys::sys::{self, status};

use super::device::Device;
use crate::GpuError;

/// Device memory.
pub(super) struct Allocation {
    device: Arc<Device>,
    pointer: *mut c_void,
}

// SAFETY: an address on the device, which nothing of this process looks through; freeing may happen on any thread.
unsafe impl Send for Allocation {}
// SAFETY: as above; nothing can be done with a shared one but asking where it is.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `len_bytes` bytes, at least one, aligned to 256 bytes; what they hold is undefined.
    pub fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        let hip = device.enter()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: `pointer` is valid for writes.
        let code = unsafe { (hip.malloc)(&mut pointer, len_bytes.max(1)) };
        if code == status::OUT_OF_MEMORY {
            let free_bytes = super::runtime::memory(hip).ok().map(|(free_bytes, _)| free_bytes);
            return Err(GpuError::OutOfMemory { device: device.label.clone(), len_bytes, free_bytes });
        }
        device.check("allocate memory", "hipMalloc", code)?;
        Ok(Self { device: Arc::clone(device), pointer })
    }

    /// Where it is, as the device sees it.
    pub fn address(&self) -> u64 {
        self.pointer.addr() as u64
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: from `hipMalloc`, freed nowhere else, and nothing on the stream uses it any more.
        self.device.release_after_use("free memory", "hipFree", |hip| unsafe { (hip.free)(self.pointer) });
    }
}

/// Pinned memory of this process: copies between it and the device need nobody's help.
pub(super) struct Pinned {
    device: Arc<Device>,
    pointer: *mut c_void,
    len_bytes: usize,
}

// SAFETY: ordinary memory that belongs to this owner; freeing may happen on any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `len_bytes` zeroed bytes.
    pub fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        let mut pointer = ptr::null_mut();
        // SAFETY: `pointer` is valid for writes.
        let code = unsafe { (device.enter()?.host_malloc)(&mut pointer, len_bytes, sys::HOST_MALLOC_DEFAULT) };
        if code == status::OUT_OF_MEMORY {
            let device = format!("{} (pinned memory of the host)", device.label);
            return Err(GpuError::OutOfMemory { device, len_bytes, free_bytes: None });
        }
        device.check("allocate pinned memory", "hipHostMalloc", code)?;
        // SAFETY: the call gave that many bytes. Rust may only look at bytes that were written.
        unsafe { ptr::write_bytes(pointer.cast::<u8>(), 0, len_bytes) };
        Ok(Self { device: Arc::clone(device), pointer, len_bytes })
    }

    /// The bytes. The caller knows that no copy of the device touches the part that it uses.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated and written by `new`; the borrow of `self` is the only way to them.
        unsafe { slice::from_raw_parts_mut(self.pointer.cast(), self.len_bytes) }
    }

    /// Where the bytes from `offset_bytes` on begin, for a copy.
    pub fn at(&self, offset_bytes: usize) -> *mut c_void {
        self.pointer.wrapping_byte_add(offset_bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: from `hipHostMalloc`, freed nowhere else, and no copy uses it any more.
        self.device
            .release_after_use("free pinned memory", "hipHostFree", |hip| unsafe { (hip.host_free)(self.pointer) });
    }
}
