//! Memory of a device. An owner and a view of it are different types; only the owner frees.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use memmap2::MmapRaw;

use crate::GpuError;

/// Allocations and places within them are multiples of this, in bytes: the widest access of any GPU, and a whole cache
/// line of all of them.
pub const ALIGNMENT_BYTES: usize = 256;

/// Device memory, reference-counted: views of it keep it alive.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
}

/// Where the bytes of a buffer are.
enum Memory {
    /// Anonymous pages of this process: zeroed, page-aligned, writable.
    Pages(MmapRaw),
    /// The same between two inaccessible pages; the length is that of a page.
    #[cfg_attr(not(unix), expect(dead_code, reason = "made on Unix alone"))]
    Fenced(MmapRaw, usize),
    /// Memory of this process that a device can reach by itself.
    Pinned(Box<dyn HostMemory>),
    /// Bytes with another owner, such as a mapped checkpoint; any alignment.
    ReadOnly(Bytes),
    /// Memory that only one driver can address.
    Device {
        owner: OwnerId,
        /// Where, as that driver's device sees it.
        address: u64,
        len_bytes: usize,
        is_writable: bool,
        /// Frees the memory when it is dropped.
        _allocation: Box<dyn Any + Send + Sync>,
    },
}

/// Writable memory of this process, freed with this owner.
pub(crate) trait HostMemory: Send + Sync {
    /// Where it begins; valid for [`Self::len_bytes`] bytes.
    fn address(&self) -> *mut u8;
    /// Size in bytes.
    fn len_bytes(&self) -> usize;
}

/// A driver, as the owner of memory: an address means nothing to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerId(u64);

impl OwnerId {
    /// One that no other driver of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct BufferView {
    buffer: Buffer,
    offset_bytes: usize,
    len_bytes: usize,
    is_writable: bool,
}

impl Buffer {
    /// Zeroed pages of this process.
    pub(crate) fn pages(len_bytes: usize) -> std::io::Result<Self> {
        let pages = memmap2::MmapMut::map_anon(len_bytes.max(1))?;
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage); // fewer TLB misses where the kernel grants it
        Ok(Self { memory: Arc::new(Memory::Pages(MmapRaw::from(pages))) })
    }

    /// Pages of this process that hold the same byte everywhere.
    pub(crate) fn filled_pages(len_bytes: usize, byte: u8) -> std::io::Result<Self> {
        let mut pages = memmap2::MmapMut::map_anon(len_bytes.max(1))?;
        pages.fill(byte);
        Ok(Self { memory: Arc::new(Memory::Pages(MmapRaw::from(pages))) })
    }

    /// Whole pages of this process, at least `len_bytes` long, between two inaccessible ones: touching those raises a
    /// signal.
    #[cfg(unix)]
    pub(crate) fn fenced(len_bytes: usize) -> std::io::Result<Self> {
        let page_bytes = rustix::param::page_size();
        let too_long = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let inside = len_bytes.max(1).checked_next_multiple_of(page_bytes).ok_or_else(too_long)?;
        let all = inside.checked_add(2 * page_bytes).ok_or_else(too_long)?;
        let pages = MmapRaw::from(memmap2::MmapMut::map_anon(all)?);
        for offset_bytes in [0, page_bytes + inside] {
            let page = pages.as_mut_ptr().wrapping_add(offset_bytes);
            // SAFETY: the page is the first or the last of a mapping that was made above and that nothing refers to.
            unsafe { rustix::mm::mprotect(page.cast(), page_bytes, rustix::mm::MprotectFlags::empty()) }?;
        }
        Ok(Self { memory: Arc::new(Memory::Fenced(pages, page_bytes)) })
    }

    /// Pages without fences: only Unix makes them here.
    #[cfg(not(unix))]
    pub(crate) fn fenced(len_bytes: usize) -> std::io::Result<Self> {
        Self::pages(len_bytes)
    }

    /// Memory of this process that a driver allocated.
    pub(crate) fn pinned(memory: impl HostMemory + 'static) -> Self {
        Self { memory: Arc::new(Memory::Pinned(Box::new(memory))) }
    }

    /// Bytes of another owner, in place.
    pub(crate) fn read_only(bytes: Bytes) -> Self {
        Self { memory: Arc::new(Memory::ReadOnly(bytes)) }
    }

    /// Memory of a device; dropping `allocation` frees it.
    pub(crate) fn device(owner: OwnerId, address: u64, len_bytes: usize, allocation: impl Any + Send + Sync) -> Self {
        let _allocation = Box::new(allocation);
        Self { memory: Arc::new(Memory::Device { owner, address, len_bytes, is_writable: true, _allocation }) }
    }

    /// The same, for kernels to read only.
    pub(crate) fn device_read_only(
        owner: OwnerId,
        address: u64,
        len_bytes: usize,
        allocation: impl Any + Send + Sync,
    ) -> Self {
        let _allocation = Box::new(allocation);
        Self { memory: Arc::new(Memory::Device { owner, address, len_bytes, is_writable: false, _allocation }) }
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        match &*self.memory {
            Memory::Pages(pages) => pages.len(),
            Memory::Fenced(pages, page_bytes) => pages.len() - 2 * page_bytes,
            Memory::Pinned(memory) => memory.len_bytes(),
            Memory::ReadOnly(bytes) => bytes.len(),
            Memory::Device { len_bytes, .. } => *len_bytes,
        }
    }

    /// Whether kernels may write to it.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(&*self.memory, Memory::ReadOnly(_) | Memory::Device { is_writable: false, .. })
    }

    /// A view of all bytes, writable if the buffer is.
    pub fn view(&self) -> BufferView {
        BufferView {
            buffer: self.clone(),
            offset_bytes: 0,
            len_bytes: self.len_bytes(),
            is_writable: self.is_writable(),
        }
    }

    /// Where it begins in this process; `None` for memory of a device.
    fn address(&self) -> Option<*mut u8> {
        match &*self.memory {
            Memory::Pages(pages) => Some(pages.as_mut_ptr()),
            Memory::Fenced(pages, page_bytes) => Some(pages.as_mut_ptr().wrapping_add(*page_bytes)),
            Memory::Pinned(memory) => Some(memory.address()),
            Memory::ReadOnly(bytes) => Some(bytes.as_ptr().cast_mut()),
            Memory::Device { .. } => None,
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
        (end <= self.len_bytes).then(|| BufferView { offset_bytes, len_bytes, ..self.clone() })
    }

    /// The same memory, for kernels to read only from here on.
    pub fn read_only(self) -> BufferView {
        BufferView { is_writable: false, ..self }
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether kernels may write to it.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether a device reaches it by itself.
    pub fn is_pinned(&self) -> bool {
        matches!(&*self.buffer.memory, Memory::Pinned(_))
    }

    /// Whether this is private memory of this process: neither a file's bytes nor a device's.
    pub(crate) fn is_own(&self) -> bool {
        matches!(&*self.buffer.memory, Memory::Pages(_) | Memory::Pinned(_))
    }

    /// The bytes of this process's memory.
    ///
    /// # Safety
    /// There are no writes to them while they are read.
    pub(crate) unsafe fn bytes(&self) -> Result<&[u8], GpuError> {
        // SAFETY: the view lies within its buffer, which it keeps alive; the rest is the caller's.
        self.host_address().map(|address| unsafe { std::slice::from_raw_parts(address, self.len_bytes) })
    }

    /// Where it begins in this process. Valid for `len_bytes` bytes while the view lives; only drivers look at it.
    pub(crate) fn host_address(&self) -> Result<*mut u8, GpuError> {
        let address = self.buffer.address().ok_or(GpuError::ForeignMemory)?;
        Ok(address.wrapping_add(self.offset_bytes))
    }

    /// Where it begins on the device of `driver`.
    pub(crate) fn device_address(&self, driver: OwnerId) -> Result<u64, GpuError> {
        match &*self.buffer.memory {
            Memory::Device { owner, address, .. } if *owner == driver => Ok(address + self.offset_bytes as u64),
            _ => Err(GpuError::ForeignMemory),
        }
    }

    /// Refuses to write more than there is, and into read-only memory.
    pub(crate) fn check_write(&self, len_bytes: usize) -> Result<(), GpuError> {
        let available_bytes = if self.is_writable() { self.len_bytes } else { 0 };
        let fits = len_bytes <= available_bytes;
        if fits { Ok(()) } else { Err(GpuError::Range { what: "write", len_bytes, available_bytes }) }
    }

    /// Refuses to read more than there is.
    pub(crate) fn check_read(&self, len_bytes: usize) -> Result<(), GpuError> {
        let available_bytes = self.len_bytes;
        let fits = len_bytes <= available_bytes;
        if fits { Ok(()) } else { Err(GpuError::Range { what: "read", len_bytes, available_bytes }) }
    }

    /// Copies into the view. The caller holds the driver's lock: nothing else reads or writes meanwhile.
    pub(crate) fn copy_from(&self, bytes: &[u8]) -> Result<(), GpuError> {
        self.check_write(bytes.len())?;
        let address = self.host_address()?;
        // SAFETY: the view lies within its buffer (checked when it was made) and is at least as long as `bytes`
        // and writable (checked above); a caller's slice cannot overlap anonymous pages that only drivers address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        Ok(())
    }

    /// Sets all words of this process's memory, one after the other and each at once: kernels may be looking.
    pub(crate) fn store_words(&self, value: u32) -> Result<(), GpuError> {
        self.check_write(self.len_bytes)?;
        let words = self.host_address()?.cast::<AtomicU32>();
        if !words.is_aligned() {
            return Err(GpuError::ForeignMemory);
        }
        for i in 0..self.len_bytes / 4 {
            // SAFETY: the view lies within its buffer (checked when it was made), is writable and aligned (checked
            // above), and whoever looks meanwhile does so by atomics.
            unsafe { (*words.add(i)).store(value, Ordering::Release) };
        }
        Ok(())
    }

    /// Reads words of this process's memory, one after the other and each at once: kernels may be writing.
    pub(crate) fn load_words(&self, words: &mut [u32]) -> Result<(), GpuError> {
        self.check_read(4 * words.len())?;
        let from = self.host_address()?.cast::<AtomicU32>();
        if !from.is_aligned() {
            return Err(GpuError::ForeignMemory);
        }
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: the view lies within its buffer (checked when it was made), is long enough and aligned (checked
            // above), and whoever writes meanwhile does so by atomics.
            *word = unsafe { (*from.add(i)).load(Ordering::Acquire) };
        }
        Ok(())
    }

    /// Copies all of another view to the start of this one. The caller holds the driver's lock: nothing else reads or
    /// writes meanwhile.
    pub(crate) fn copy_from_view(&self, from: &BufferView) -> Result<(), GpuError> {
        self.check_write(from.len_bytes)?;
        let (source, address) = (from.host_address()?, self.host_address()?);
        // SAFETY: both views lie within their buffers, this one is long enough and writable (checked above), and the
        // copy is one that allows for overlap.
        unsafe { std::ptr::copy(source, address, from.len_bytes) };
        Ok(())
    }

    /// Copies out of the view. The caller holds the driver's lock: nothing writes meanwhile.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) -> Result<(), GpuError> {
        self.check_read(bytes.len())?;
        let address = self.host_address()?;
        // SAFETY: the view lies within its buffer and is at least as long as `bytes` (checked above); `bytes` is
        // a unique borrow, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), bytes.len()) };
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
        let other = Buffer::pages(3).unwrap().view().slice(0, 3).unwrap();
        assert!(matches!(other.copy_from_view(&view), Err(GpuError::Range { available_bytes: 3, .. })));
        other.copy_from_view(&view.slice(1, 3).unwrap()).unwrap();
        other.copy_to(&mut back[..3]).unwrap();
        assert_eq!(back, [2, 3, 4, 4]);
    }

    #[test]
    fn fenced_memory_is_whole_pages_and_all_of_it_can_be_used() {
        let (page_bytes, view) = (rustix::param::page_size(), Buffer::fenced(1).unwrap().view());
        assert_eq!((view.len_bytes(), view.host_address().unwrap() as usize % page_bytes), (page_bytes, 0));
        let mut back = vec![0; page_bytes];
        view.copy_from(&vec![7; page_bytes]).unwrap();
        view.copy_to(&mut back).unwrap();
        assert_eq!(back, vec![7; page_bytes]);
        assert!(Buffer::fenced(usize::MAX).is_err() && Buffer::fenced(usize::MAX - 3 * page_bytes).is_err());
    }

    #[test]
    fn memory_of_a_device_means_nothing_to_others_and_is_freed_once() {
        let (owner, allocation) = (OwnerId::new(), Arc::new(()));
        let view = Buffer::device(owner, 0x1000, 64, Arc::clone(&allocation)).view().slice(8, 4).unwrap();
        assert_eq!(view.device_address(owner).unwrap(), 0x1008);
        assert!(matches!(view.device_address(OwnerId::new()), Err(GpuError::ForeignMemory)));
        assert!(matches!(view.copy_to(&mut [0; 4]), Err(GpuError::ForeignMemory)));
        let whole = view.slice(0, 4);
        drop(view);
        assert_eq!(Arc::strong_count(&allocation), 2);
        drop(whole);
        assert_eq!(Arc::strong_count(&allocation), 1);
    }

    #[test]
    fn read_only_memory_refuses_a_write() {
        let view = Buffer::read_only(Bytes::from_static(b"abcd")).view();
        assert!(!view.is_writable());
        assert!(matches!(view.copy_from(b"x"), Err(GpuError::Range { what: "write", .. })));
        let view = Buffer::pages(64).unwrap().view().read_only();
        assert!(!view.is_writable() && !view.slice(8, 8).unwrap().is_writable());
    }
}
