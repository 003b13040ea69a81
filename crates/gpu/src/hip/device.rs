//! One device of a HIP runtime, as its owner: what every other owner of this folder holds on to.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hip_runtime_sys::sys::{self, Handle, Status};
use hip_runtime_sys::{Hip, HipError};

use crate::GpuError;

/// A device and its one stream: every copy and every launch is on it, so that they run in the order in which they were
/// made. Waiting is for this stream alone, never for the device, which other programs use too.
pub(super) struct Device {
    pub hip: Arc<Hip>,
    ordinal: c_int,
    /// `hip:0`, for messages.
    pub label: String,
    pub stream: Handle,
    /// Whether a call failed, and that was said.
    told: AtomicBool,
}

// SAFETY: the runtime's functions may be called from any thread, and the stream is a handle that only they look into.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub fn open(hip: Arc<Hip>, ordinal: usize) -> Result<Self, GpuError> {
        let label = format!("hip:{ordinal}");
        let ordinal = c_int::try_from(ordinal).expect("the caller compared it with the number of devices");
        let mut device = Self { hip, ordinal, label, stream: ptr::null_mut(), told: AtomicBool::new(false) };
        // SAFETY: `stream` is valid for writes.
        let code = unsafe { (device.enter()?.stream_create_with_flags)(&mut device.stream, sys::STREAM_NON_BLOCKING) };
        device.check("create a stream", "hipStreamCreateWithFlags", code)?;
        Ok(device)
    }

    /// The functions, with this device as the calling thread's current one: HIP keeps that per thread, and whoever
    /// calls may be on one that was never here, or was at another device since.
    pub fn enter(&self) -> Result<&Hip, GpuError> {
        // SAFETY: takes any number.
        let code = unsafe { (self.hip.set_device)(self.ordinal) };
        self.check("use the device", "hipSetDevice", code)?;
        Ok(&self.hip)
    }

    /// Success, or what was being done and the runtime's words.
    pub fn check(&self, what: &'static str, call: &'static str, code: Status) -> Result<(), GpuError> {
        self.hip.check(call, code).map_err(|source| {
            self.told.store(true, Ordering::Relaxed);
            self.error(what, source)
        })
    }

    pub fn error(&self, what: &'static str, source: HipError) -> GpuError {
        GpuError::Hip { device: self.label.clone(), what, source }
    }

    /// Waits for everything on the stream. What a kernel did wrong is told here.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is alive as long as this is.
        let code = unsafe { (self.enter()?.stream_synchronize)(self.stream) };
        self.check("finish what was launched", "hipStreamSynchronize", code)
    }

    /// Gives something back by `free`, for `drop`: a failure is a warning, unless something failed before. What a kernel
    /// did wrong is told by every call from then on.
    pub fn release(&self, what: &'static str, call: &'static str, free: impl FnOnce(&Hip) -> Status) {
        // SAFETY: takes any number.
        let code = unsafe { (self.hip.set_device)(self.ordinal) };
        let released = self.hip.check("hipSetDevice", code).and_then(|()| self.hip.check(call, free(&self.hip)));
        if let Err(error) = released
            && !self.told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{}: could not {what}: {error}", self.label);
        }
    }

    /// The same for what the stream may still be using.
    pub fn release_after_use(&self, what: &'static str, call: &'static str, free: impl FnOnce(&Hip) -> Status) {
        self.release("finish what was launched", "hipStreamSynchronize", |hip| {
            // SAFETY: the stream is alive as long as this is.
            unsafe { (hip.stream_synchronize)(self.stream) }
        });
        self.release(what, call, free);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: created by `open`; all that used it held on to this device and is gone.
            self.release_after_use("destroy the stream", "hipStreamDestroy", |hip| unsafe {
                (hip.stream_destroy)(self.stream)
            });
        }
    }
}
