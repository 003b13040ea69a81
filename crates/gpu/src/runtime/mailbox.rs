//! Pinned memory that the device copies to while this process continues.

use std::sync::Arc;

use super::device::Device;
use super::event::Event;
use super::memory::Pinned;
use crate::GpuError;
use crate::mailbox::Letters;

/// Room for one copy at a time.
pub(super) struct Inbox {
    device: Arc<Device>,
    pinned: Pinned,
    len_bytes: usize,
    /// Behind the copy, on the stream.
    copied: Event,
    /// Bytes of the copy; none before the first.
    posted: Option<usize>,
}

impl Inbox {
    pub(crate) fn new(device: &Arc<Device>, len_bytes: usize) -> Result<Self, GpuError> {
        let (pinned, copied) = (Pinned::new(device, len_bytes)?, Event::new(device)?);
        Ok(Self { device: Arc::clone(device), pinned, len_bytes, copied, posted: None })
    }

    /// Whether it was made for this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Puts a copy on the stream, from `address` on the device, where the caller knows as many bytes to be. Called with
    /// the stream in hand.
    pub(crate) fn post(&mut self, address: u64, len_bytes: usize) -> Result<(), GpuError> {
        if len_bytes > self.len_bytes {
            return Err(GpuError::Range { what: "post", len_bytes, available_bytes: self.len_bytes });
        }
        // Of two copies that nobody waited for the later one counts, and the stream makes them one after the other.
        self.posted = None;
        if len_bytes > 0 {
            let to = self.pinned.at(0);
            // SAFETY: both sides are long enough, as was checked here and by the caller; nobody looks at the pinned
            // memory before `wait` has waited for the event after the copy, and dropping it waits for the stream.
            self.device.call("copy from the device", |calls| unsafe {
                calls.copy_from_device(to, address, len_bytes, self.device.stream)
            })?;
        }
        self.copied.record()?;
        self.posted = Some(len_bytes);
        Ok(())
    }
}

impl Letters for Inbox {
    fn wait(&mut self) -> Result<&[u8], GpuError> {
        let Some(len_bytes) = self.posted else { return Ok(&[]) };
        self.copied.wait()?;
        Ok(&self.pinned.bytes()[..len_bytes])
    }
}
