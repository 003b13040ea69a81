//! Copies between this process and the device, through pinned memory and in chunks: a copy out of pageable memory
//! makes the driver pin it first, and pinning the tens of gigabytes of a mapped checkpoint hangs some machines.

use std::sync::Arc;

use rayon::prelude::*;

use super::calls::Handle;
use super::device::Device;
use super::event::Event;
use super::memory::Pinned;
use crate::{ALIGNMENT_BYTES, GpuError};

/// Bytes of one half of the ring, and the longest single copy.
pub(super) const HALF_BYTES: usize = 16 << 20;

/// Bytes that a thread copies alone: several threads read main memory faster than one, and take time to wake up.
const SHARE_BYTES: usize = 1 << 20;

/// A ring of two halves: while the device copies out of one, the other is filled.
pub(super) struct Staging {
    device: Arc<Device>,
    /// Of the device, for what is written.
    stream: Handle,
    pinned: Pinned,
    half: usize,
    /// Where the next copy goes, in bytes from the ring's start.
    next: usize,
    /// When the device is done with a half; none when it is not using it.
    done: [Option<Event>; 2],
}

// SAFETY: a handle that only the runtime looks into, from any thread.
unsafe impl Send for Staging {}

impl Staging {
    pub(crate) fn new(device: &Arc<Device>, stream: Handle) -> Result<Self, GpuError> {
        let pinned = Pinned::new(device, 2 * HALF_BYTES)?;
        Ok(Self { device: Arc::clone(device), stream, pinned, half: 0, next: 0, done: [None, None] })
    }

    /// Copies `bytes` to `address` on the device, which the caller knows to have room for them. When this returns,
    /// `bytes` may go, and what follows on the stream will see the copy.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let mut to = address;
        for chunk in bytes.chunks(HALF_BYTES) {
            let at = self.reserve(chunk.len())?;
            fill(&mut self.pinned.bytes()[at..at + chunk.len()], chunk);
            let (from, len_bytes, device) = (self.pinned.at(at), chunk.len(), &self.device);
            // SAFETY: the caller's buffer has room at `to`, and the reserved part of the ring is not touched until
            // its event or the stream has been waited for.
            device.call("copy to the device", |calls| unsafe {
                calls.copy_to_device(to, from, len_bytes, self.stream)
            })?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies from `address` on the device, where the caller knows as many bytes to be, after everything that was
    /// launched. For a ring of the stream of launches.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        let mut from = address;
        for chunk in bytes.chunks_mut(HALF_BYTES) {
            let at = self.reserve(chunk.len())?;
            let (to, len_bytes, device) = (self.pinned.at(at), chunk.len(), &self.device);
            // SAFETY: as in `write`, the other way.
            device.call("copy from the device", |calls| unsafe {
                calls.copy_from_device(to, from, len_bytes, device.stream)
            })?;
            device.synchronize()?;
            chunk.copy_from_slice(&self.pinned.bytes()[at..at + chunk.len()]);
            // The stream is empty, so is the ring.
            (self.half, self.next, self.done) = (0, 0, [None, None]);
            from += chunk.len() as u64;
        }
        Ok(())
    }

    /// Room for a copy of at most half the ring; waits when the device is still copying out of it.
    fn reserve(&mut self, len_bytes: usize) -> Result<usize, GpuError> {
        if self.next + len_bytes > (self.half + 1) * HALF_BYTES {
            let event = Event::new(&self.device)?;
            event.record_on(self.stream)?;
            self.done[self.half] = Some(event);
            self.half = 1 - self.half;
            self.next = self.half * HALF_BYTES;
            if let Some(event) = self.done[self.half].take() {
                event.wait()?;
            }
        }
        let at = self.next;
        self.next = (at + len_bytes).next_multiple_of(ALIGNMENT_BYTES);
        Ok(at)
    }
}

fn fill(to: &mut [u8], from: &[u8]) {
    if from.len() <= SHARE_BYTES {
        return to.copy_from_slice(from);
    }
    let shares = to.par_chunks_mut(SHARE_BYTES).zip(from.par_chunks(SHARE_BYTES));
    shares.for_each(|(to, from)| to.copy_from_slice(from));
}
