//! Memory of a device, and memory of this process that a device can reach. Only these owners free it.

use std::ffi::c_void;
use std::sync::Arc;
use std::{ptr, slice};

use memmap2::{MmapMut, MmapRaw};

use super::calls::{Calls, status};
use super::device::Device;
use crate::GpuError;
use crate::memory::{BufferView, HostMemory};

pub(super) struct Allocation {
    device: Arc<Device>,
    address: u64,
}

// SAFETY: an address on the device, which nothing of this process looks through; freeing may happen on any thread.
unsafe impl Send for Allocation {}
// SAFETY: as above; nothing can be done with a shared one but asking where it is.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `len_bytes` bytes, at least one, aligned to 256 bytes; what they hold is undefined.
    pub(crate) fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        let calls = device.enter()?;
        let address = calls.allocate(len_bytes.max(1)).map_err(|error| {
            if error.code != status::OUT_OF_MEMORY {
                return device.error("allocate memory", error);
            }
            let free_bytes = calls.memory().ok().map(|(free_bytes, _)| free_bytes);
            GpuError::OutOfMemory { device: device.label.clone(), len_bytes, free_bytes }
        })?;
        Ok(Self { device: Arc::clone(device), address })
    }

    /// Where it is, as the device sees it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed nowhere else, and nothing on the stream uses it any more.
        self.device.release_after_use("free memory", |calls| unsafe { calls.free(self.address) });
    }
}

/// Pinned memory of this process: the device copies to and from it by itself. If no more can be pinned, ordinary memory
/// is used: the runtime copies from it before the call returns, and to it through its own memory.
pub(super) struct Pinned {
    device: Arc<Device>,
    pointer: *mut c_void,
    len_bytes: usize,
    /// What it is where it could not be pinned.
    pages: Option<MmapRaw>,
}

// SAFETY: ordinary memory that belongs to this owner; freeing may happen on any thread.
unsafe impl Send for Pinned {}
// SAFETY: a shared one tells where its bytes are, and touches none of them.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len_bytes` zeroed bytes.
    pub(crate) fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        Self::if_possible(device, len_bytes)?.map_or_else(|| Self::unpinned(device, len_bytes), Ok)
    }

    /// The same; none if that much cannot be pinned, which is reported once.
    pub(crate) fn if_possible(device: &Arc<Device>, len_bytes: usize) -> Result<Option<Self>, GpuError> {
        match device.enter()?.allocate_pinned(len_bytes) {
            Ok(pointer) => {
                // SAFETY: the call gave that many bytes. Rust may only look at bytes that were written.
                unsafe { ptr::write_bytes(pointer.cast::<u8>(), 0, len_bytes) };
                Ok(Some(Self { device: Arc::clone(device), pointer, len_bytes, pages: None }))
            }
            Err(error) if error.code == status::OUT_OF_MEMORY => {
                device.warn_of_unpinned(len_bytes, &error);
                Ok(None)
            }
            Err(error) => Err(device.error("allocate pinned memory", error)),
        }
    }

    fn unpinned(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        let none = |_| {
            let device = format!("{} (memory of the host)", device.label);
            GpuError::OutOfMemory { device, len_bytes, free_bytes: None }
        };
        let pages = MmapRaw::from(MmapMut::map_anon(len_bytes.max(1)).map_err(none)?);
        Ok(Self { device: Arc::clone(device), pointer: pages.as_mut_ptr().cast(), len_bytes, pages: Some(pages) })
    }

    /// The bytes. The caller knows that no copy of the device touches the part that it uses.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated and written by `new`; the borrow of `self` is the only way to them.
        unsafe { slice::from_raw_parts_mut(self.pointer.cast(), self.len_bytes) }
    }

    /// Where the bytes from `offset_bytes` on begin, for a copy.
    pub(crate) fn at(&self, offset_bytes: usize) -> *mut c_void {
        self.pointer.wrapping_byte_add(offset_bytes)
    }
}

impl HostMemory for Pinned {
    fn address(&self) -> *mut u8 {
        self.pointer.cast()
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let is_pinned = self.pages.is_none();
        // SAFETY: allocated by `new`, freed nowhere else, and no copy uses it any more.
        let free = |calls: &dyn Calls| if is_pinned { unsafe { calls.free_pinned(self.pointer) } } else { Ok(()) };
        self.device.release_after_use("free pinned memory", free);
    }
}

/// Memory of this process that was pinned where it lies, as long as this lives.
pub(super) struct Registered {
    device: Arc<Device>,
    view: BufferView,
    pointer: *mut u8,
}

// SAFETY: ordinary memory that the view keeps alive; unregistering may happen on any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; a shared one tells where its bytes are, and touches none of them.
unsafe impl Sync for Registered {}

impl Registered {
    /// Pins all of a view of this process's memory.
    pub(crate) fn new(device: &Arc<Device>, view: &BufferView) -> Result<Self, GpuError> {
        let pointer = view.host_address()?;
        // SAFETY: the view's memory is as long, and kept alive below.
        device.call("pin memory", |calls| unsafe { calls.register(pointer.cast(), view.len_bytes()) })?;
        Ok(Self { device: Arc::clone(device), view: view.clone(), pointer })
    }
}

impl HostMemory for Registered {
    fn address(&self) -> *mut u8 {
        self.pointer
    }

    fn len_bytes(&self) -> usize {
        self.view.len_bytes()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let pointer = self.pointer.cast();
        // SAFETY: registered by `new`, unregistered nowhere else, and no copy uses it any more.
        self.device.release_after_use("unpin memory", |calls| unsafe { calls.unregister(pointer) });
    }
}
