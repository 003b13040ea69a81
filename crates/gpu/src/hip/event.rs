//! Marks on the stream: when everything before them was done.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use hip_runtime_sys::sys::{self, Handle};

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
    pub fn new(device: &Arc<Device>) -> Result<Self, GpuError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is valid for writes.
        let code = unsafe { (device.enter()?.event_create_with_flags)(&mut event, sys::EVENT_DEFAULT) };
        device.check("create an event", "hipEventCreateWithFlags", code)?;
        Ok(Self { device: Arc::clone(device), event })
    }

    /// Puts the mark behind everything on the stream.
    pub fn record(&self) -> Result<(), GpuError> {
        // SAFETY: event and stream are alive.
        let code = unsafe { (self.device.enter()?.event_record)(self.event, self.device.stream) };
        self.device.check("record an event", "hipEventRecord", code)
    }

    /// Waits until the device has come to the mark.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the event is alive.
        let code = unsafe { (self.device.enter()?.event_synchronize)(self.event) };
        self.device.check("finish what was launched", "hipEventSynchronize", code)
    }

    /// The device's time from an earlier mark to this one; both have been come to.
    pub fn since(&self, start: &Event) -> Result<Duration, GpuError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, and `milliseconds` is valid for writes.
        let code = unsafe { (self.device.enter()?.event_elapsed_time)(&mut milliseconds, start.event, self.event) };
        self.device.check("take the time", "hipEventElapsedTime", code)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed nowhere else.
        self.device.release("destroy an event", "hipEventDestroy", |hip| unsafe { (hip.event_destroy)(self.event) });
    }
}
