//! Memory of several devices that all of them can access: side by side, at the same addresses on each.

use std::sync::{Arc, Mutex, PoisonError};

use super::calls::{Called, Calls, Handle};
use super::device::Device;
use super::memory::Pinned;
use crate::GpuError;

/// A piece of memory on each of several devices. Piece `i` lies on device `i`, and is what that one reaches soonest.
pub(super) struct Shared {
    devices: Vec<Arc<Device>>,
    address: u64,
    piece_bytes: usize,
    /// Memory that was created, in the order of the devices.
    memory: Vec<u64>,
    /// How many of them are mapped.
    n_mapped: usize,
}

impl Shared {
    /// Pieces of `len_bytes` bytes at least, all as long; what they hold is undefined.
    ///
    /// # Errors
    /// [`GpuError::Unreachable`] for devices that do not see each other, or the runtime's words.
    pub(crate) fn new(devices: Vec<Arc<Device>>, len_bytes: usize) -> Result<Self, GpuError> {
        for device in &devices {
            let calls = device.enter()?;
            for other in devices.iter().filter(|other| !Arc::ptr_eq(other, device)) {
                let ordinal = other.enter()?.ordinal();
                let reaches = device.call("ask which devices it reaches", |calls| calls.reaches(ordinal))?;
                if ordinal == calls.ordinal() || !reaches {
                    let (device, other) = (device.label.clone(), other.label.clone());
                    return Err(GpuError::Unreachable { device, other });
                }
            }
        }
        let mut piece_bytes = len_bytes.max(1);
        for device in &devices {
            let granularity_bytes = device.call("ask how memory is mapped", |calls| calls.granularity_bytes())?;
            piece_bytes = piece_bytes.next_multiple_of(granularity_bytes.max(1));
        }
        let all_bytes = piece_bytes * devices.len();
        let address = devices[0].call("reserve addresses", |calls| calls.reserve_addresses(all_bytes))?;
        let mut shared = Self { devices, address, piece_bytes, memory: Vec::new(), n_mapped: 0 };
        shared.fill()?;
        Ok(shared)
    }

    fn fill(&mut self) -> Result<(), GpuError> {
        for (i, device) in self.devices.iter().enumerate() {
            let memory = device.call("allocate shared memory", |calls| calls.create_memory(self.piece_bytes))?;
            self.memory.push(memory);
            // SAFETY: the addresses were reserved for as many pieces as there are devices, and nothing is mapped there.
            device.call("map shared memory", |calls| unsafe { calls.map(self.at(i), self.piece_bytes, memory) })?;
            self.n_mapped += 1;
        }
        for device in &self.devices {
            // SAFETY: all of it was mapped above.
            device.call("share memory", |calls| unsafe { calls.allow(self.address, self.len_bytes()) })?;
        }
        Ok(())
    }

    fn at(&self, piece: usize) -> u64 {
        self.address + (piece * self.piece_bytes) as u64
    }

    /// Where the first piece begins, for each of the devices; the others follow.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of all pieces.
    pub(crate) fn len_bytes(&self) -> usize {
        self.devices.len() * self.piece_bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for device in &self.devices {
            device.release_after_use("finish with shared memory", |_| Ok(()));
        }
        for (i, device) in self.devices.iter().enumerate().take(self.n_mapped) {
            // SAFETY: mapped by `fill`, and no stream uses it any more.
            device.release("unmap shared memory", |calls| unsafe { calls.unmap(self.at(i), self.piece_bytes) });
        }
        for (device, memory) in self.devices.iter().zip(&self.memory) {
            // SAFETY: created by `fill`, and not mapped any more.
            device.release("free shared memory", |calls| unsafe { calls.release_memory(*memory) });
        }
        let len_bytes = self.len_bytes();
        // SAFETY: reserved by `new`, and nothing is mapped there any more.
        self.devices[0].release("free addresses", |calls| unsafe { calls.free_addresses(self.address, len_bytes) });
    }
}

/// A stream beside the one of all launches, for what must not wait for these.
pub(super) struct Aside {
    device: Arc<Device>,
    stream: Handle,
    /// Where words arrive that are read.
    pinned: Mutex<Pinned>,
}

/// Words that are read at a time, at most.
const READ_WORDS: usize = 4096;

// SAFETY: a handle that only the runtime looks into, from any thread.
unsafe impl Send for Aside {}
// SAFETY: as above.
unsafe impl Sync for Aside {}

impl Aside {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let pinned = Mutex::new(Pinned::new(device, 4 * READ_WORDS)?);
        let stream = device.call("create a stream", |calls| calls.create_stream())?;
        Ok(Self { device: Arc::clone(device), stream, pinned })
    }

    /// Reads words at `address`, which the caller knows to be there, whatever the device is busy with.
    pub(crate) fn read(&self, address: u64, words: &mut [u32]) -> Result<(), GpuError> {
        let len_bytes = 4 * words.len();
        if words.len() > READ_WORDS {
            return Err(GpuError::Range { what: "read", len_bytes, available_bytes: 4 * READ_WORDS });
        }
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let to = pinned.at(0);
        let read = |calls: &dyn Calls| -> Called {
            // SAFETY: the caller's; the pinned memory is long enough, and nobody looks at it before the stream was
            // waited for.
            unsafe {
                calls.copy_from_device(to, address, len_bytes, self.stream)?;
                calls.synchronize_stream(self.stream)
            }
        };
        self.device.call("read beside what runs", read)?;
        for (word, bytes) in words.iter_mut().zip(pinned.bytes().chunks_exact(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().expect("four"));
        }
        Ok(())
    }

    /// Sets `n` words at `address`, which the caller knows to be there, whatever the device is busy with.
    pub(crate) fn fill(&self, address: u64, value: u32, n: usize) -> Result<(), GpuError> {
        let fill = |calls: &dyn Calls| -> Called {
            // SAFETY: the caller's; the stream is alive.
            unsafe {
                calls.fill(address, value, n, self.stream)?;
                calls.synchronize_stream(self.stream)
            }
        };
        self.device.call("write beside what runs", fill)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // SAFETY: created by `new`; whatever was on it has been waited for.
        self.device.release("destroy a stream", |calls| unsafe { calls.destroy_stream(self.stream) });
    }
}
