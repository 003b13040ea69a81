//! Memory of a device. An owner and a view of it are different types; only the owner frees.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::MmapRaw;

use crate::GpuError;

/// Device memory, reference-counted: views of it keep it alive.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
}

/// Where the bytes of a buffer are.
enum Memory {
    /// Anonymous pages of this process: zeroed, page-aligned, writable.
    Pages(MmapRaw),
    /// Bytes that belong to somebody else, a mapped checkpoint for instance; any alignment.
    ReadOnly(Bytes),
}

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct BufferView {
    buffer: Buffer,
    offset_bytes: usize,
    len_bytes: usize,
}

impl Buffer {
    /// Zeroed pages of this process.
    pub(crate) fn pages(len_bytes: usize) -> std::io::Result<Self> {
        let pages = memmap2::MmapMut::map_anon(len_bytes.max(1))?;
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage); // fewer TLB misses where the kernel grants it
        Ok(Self { memory: Arc::new(Memory::Pages(MmapRaw::from(pages))) })
    }

    /// Somebody else's bytes, where they lie.
    pub(crate) fn read_only(bytes: Bytes) -> Self {
        Self { memory: Arc::new(Memory::ReadOnly(bytes)) }
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        match &*self.memory {
            Memory::Pages(pages) => pages.len(),
            Memory::ReadOnly(bytes) => bytes.len(),
        }
    }

    /// Whether kernels may write to it.
    pub fn is_writable(&self) -> bool {
        matches!(&*self.memory, Memory::Pages(_))
    }

    /// The whole of it.
    pub fn view(&self) -> BufferView {
        BufferView { buffer: self.clone(), offset_bytes: 0, len_bytes: self.len_bytes() }
    }

    fn address(&self) -> *mut u8 {
        match &*self.memory {
            Memory::Pages(pages) => pages.as_mut_ptr(),
            Memory::ReadOnly(bytes) => bytes.as_ptr().cast_mut(),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes{})", self.len_bytes(), if self.is_writable() { "" } else { ", read-only" })
    }
}

impl BufferView {
    /// A part of it; `None` when it reaches past the end.
    pub fn slice(&self, offset_bytes: usize, len_bytes: usize) -> Option<BufferView> {
        let end = offset_bytes.checked_add(len_bytes)?;
        let offset_bytes = self.offset_bytes + offset_bytes;
        (end <= self.len_bytes).then(|| BufferView { buffer: self.buffer.clone(), offset_bytes, len_bytes })
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether kernels may write to it.
    pub fn is_writable(&self) -> bool {
        self.buffer.is_writable()
    }

    /// Where it begins. Valid for `len_bytes` bytes while the view lives; only drivers look at it.
    pub(crate) fn address(&self) -> *mut u8 {
        self.buffer.address().wrapping_add(self.offset_bytes)
    }

    /// Copies into the view. The caller holds the driver's lock: nothing else reads or writes meanwhile.
    pub(crate) fn copy_from(&self, bytes: &[u8]) -> Result<(), GpuError> {
        let available_bytes = if self.is_writable() { self.len_bytes } else { 0 };
        if bytes.len() > available_bytes {
            return Err(GpuError::Range { what: "write", len_bytes: bytes.len(), available_bytes });
        }
        // SAFETY: the view lies within its buffer (checked when it was made) and is at least as long as `bytes`
        // and writable (checked above); a caller's slice cannot overlap anonymous pages that only drivers address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(), bytes.len()) };
        Ok(())
    }

    /// Copies out of the view. The caller holds the driver's lock: nothing writes meanwhile.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        if bytes.len() > self.len_bytes {
            return Err(GpuError::Range { what: "read", len_bytes: bytes.len(), available_bytes: self.len_bytes });
        }
        // SAFETY: the view lies within its buffer and is at least as long as `bytes` (checked above); `bytes` is
        // a unique borrow, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.address(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_stays_inside_its_buffer() {
        let buffer = Buffer::pages(4096).unwrap().view();
        assert!(buffer.slice(4000, 96).is_some());
        assert!(buffer.slice(4000, 97).is_none());
        assert!(buffer.slice(usize::MAX, 2).is_none());
        assert!(buffer.slice(4000, 96).unwrap().slice(1, 96).is_none());
    }

    #[test]
    fn bytes_come_back_and_a_view_keeps_its_buffer_alive() {
        let view = Buffer::pages(64).unwrap().view().slice(8, 4).unwrap();
        view.copy_from(&[1, 2, 3, 4]).unwrap();
        let mut back = [0; 4];
        view.copy_to(&mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
        assert!(matches!(view.copy_from(&[0; 5]), Err(GpuError::Range { available_bytes: 4, .. })));
    }

    #[test]
    fn read_only_memory_refuses_a_write() {
        let view = Buffer::read_only(Bytes::from_static(b"abcd")).view();
        assert!(!view.is_writable());
        assert!(matches!(view.copy_from(b"x"), Err(GpuError::Range { what: "write", .. })));
    }
}
