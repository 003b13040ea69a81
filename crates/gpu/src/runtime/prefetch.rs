//! Copies to the device ahead of their use, beside launches: on a separate stream, with events that order copies and
//! the launches that use them.

use std::sync::Arc;

use super::calls::Handle;
use super::device::Device;
use super::event::Event;
use super::staging::Staging;
use crate::memory::BufferView;
use crate::{GpuError, PREFETCHES};

/// The stream of copies, and how far it is.
pub(super) struct Prefetch {
    device: Arc<Device>,
    stream: Handle,
    /// For memory that the device does not reach by itself.
    staging: Option<Staging>,
    slots: [Slot; PREFETCHES],
}

/// A part of the device's memory that is filled again and again.
struct Slot {
    /// Behind the copies, on their stream.
    filled: Event,
    /// Behind the launches that use them, on that of the launches.
    used: Event,
    /// Whether there were any.
    was_used: bool,
}

// SAFETY: a handle that only the runtime looks into, from any thread.
unsafe impl Send for Prefetch {}

impl Prefetch {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let stream = device.copies()?;
        let slot = || -> Result<Slot, GpuError> {
            Ok(Slot { filled: Event::new(device)?, used: Event::new(device)?, was_used: false })
        };
        let slots = [slot()?, slot()?];
        Ok(Self { device: Arc::clone(device), stream, staging: None, slots })
    }

    /// Has memory copied, to addresses where the caller knows room for it, as soon as what the slot held is used no
    /// more.
    pub(crate) fn fill(&mut self, slot: usize, copies: &[(&BufferView, u64)]) -> Result<(), GpuError> {
        let Slot { filled, used, was_used } = &self.slots[slot];
        if *was_used {
            used.delay(self.stream)?;
        }
        for &(from, to) in copies.iter().filter(|(from, _)| from.len_bytes() > 0) {
            if from.is_pinned() {
                let (pointer, len_bytes) = (from.host_address()?, from.len_bytes());
                // SAFETY: the view is as long; what its memory is freed by waits for the stream first.
                self.device.call("copy to the device", |calls| unsafe {
                    calls.copy_to_device(to, pointer.cast_const().cast(), len_bytes, self.stream)
                })?;
            } else {
                let staging = match &mut self.staging {
                    Some(staging) => staging,
                    none => none.insert(Staging::new(&self.device, self.stream)?),
                };
                // SAFETY: what is prefetched is written before, and by nobody while it is.
                staging.write(to, unsafe { from.bytes() }?)?;
            }
        }
        filled.record_on(self.stream)
    }

    /// Has what is launched next wait for the copies.
    pub(crate) fn begin_use(&self, slot: usize) -> Result<(), GpuError> {
        self.slots[slot].filled.delay(self.device.stream)
    }

    /// Has copies that follow wait for what was launched so far.
    pub(crate) fn end_use(&mut self, slot: usize) -> Result<(), GpuError> {
        self.slots[slot].used.record()?;
        self.slots[slot].was_used = true;
        Ok(())
    }
}
