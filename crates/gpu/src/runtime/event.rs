//! Events on a stream: the time when everything before them was done.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Handle;
use super::device::Device;
use crate::GpuError;

/// A mark that can be put on the stream again and again.
pub(super) struct Event {
    device: Arc<Device>,
    event: Handle,
}

// SAFETY: a handle that only the runtime looks into, from any thread.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let event = device.call("create an event", |calls| calls.create_event())?;
        Ok(Self { device: Arc::clone(device), event })
    }

    /// Puts the mark after everything on the stream.
    pub(crate) fn record(&self) -> Result<(), GpuError> {
        self.record_on(self.device.stream)
    }

    /// Puts the mark after everything on one of the device's streams.
    pub(crate) fn record_on(&self, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: event and stream are alive.
        self.device.call("record an event", |calls| unsafe { calls.record_event(self.event, stream) })
    }

    /// Has what follows on one of the device's streams wait until the device has come to the mark.
    pub(crate) fn delay(&self, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: event and stream are alive.
        self.device.call("wait for an event", |calls| unsafe { calls.delay(stream, self.event) })
    }

    /// Waits until the device has come to the mark.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the event is alive.
        self.device.call("finish what was launched", |calls| unsafe { calls.synchronize_event(self.event) })
    }

    /// The device's time from an earlier mark to this one; both have been come to.
    pub(crate) fn since(&self, start: &Event) -> Result<Duration, GpuError> {
        // SAFETY: both events are alive.
        let took = self.device.call("take the time", |calls| unsafe { calls.milliseconds(start.event, self.event) });
        Ok(Duration::from_secs_f64(f64::from(took?.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed nowhere else.
        self.device.release("destroy an event", |calls| unsafe { calls.destroy_event(self.event) });
    }
}
