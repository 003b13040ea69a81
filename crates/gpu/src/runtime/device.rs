//! The owner of one device; all other owners in this folder keep it alive.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use vendor_library::CallError;

use super::calls::{Called, Calls, Handle};
use crate::GpuError;

/// A device and its stream: every copy and every launch is on it, so that they run in the order in which they were
/// made; but for copies ahead of what needs them, which have a stream of their own. Waiting is for these alone, never
/// for the device, which other programs use too.
pub(crate) struct Device {
    calls: Box<dyn Calls>,
    /// `hip:0`, for messages.
    pub(crate) label: String,
    pub(crate) stream: Handle,
    /// Made with the first copy that is made ahead.
    copies: OnceLock<Handle>,
    /// Whether a call failed, and that was said.
    told: AtomicBool,
    /// Whether it was said that no more memory can be pinned.
    told_unpinned: AtomicBool,
}

// SAFETY: a runtime's functions may be called from any thread, and the stream is a handle that only they look into.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(calls: Box<dyn Calls>, label: String) -> Result<Self, GpuError> {
        let mut device = Self {
            calls,
            label,
            stream: ptr::null_mut(),
            copies: OnceLock::new(),
            told: AtomicBool::new(false),
            told_unpinned: AtomicBool::new(false),
        };
        device.stream = device.call("create a stream", |calls| calls.create_stream())?;
        Ok(device)
    }

    /// The stream of copies that are made ahead. Called by one thread at a time.
    pub(crate) fn copies(&self) -> Result<Handle, GpuError> {
        if let Some(stream) = self.copies.get() {
            return Ok(*stream);
        }
        let stream = self.call("create a stream", |calls| calls.create_stream())?;
        Ok(*self.copies.get_or_init(|| stream))
    }

    /// The calls, with this device as the calling thread's current one. Runtimes keep the current device per thread,
    /// and the calling thread may be new or have used another device since.
    pub(crate) fn enter(&self) -> Result<&dyn Calls, GpuError> {
        self.check("use the device", self.calls.enter())?;
        Ok(&*self.calls)
    }

    /// Makes a call, and says what was being done if it fails.
    pub(crate) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&dyn Calls) -> Called<T>,
    ) -> Result<T, GpuError> {
        self.check(what, call(self.enter()?))
    }

    fn check<T>(&self, what: &'static str, called: Called<T>) -> Result<T, GpuError> {
        called.map_err(|source| self.error(what, source))
    }

    /// What was being done and the runtime's words.
    pub(crate) fn error(&self, what: &'static str, source: CallError) -> GpuError {
        self.told.store(true, Ordering::Relaxed);
        GpuError::Call { device: self.label.clone(), what, source }
    }

    /// Says once that memory of this process could not be pinned.
    pub(crate) fn warn_of_unpinned(&self, len_bytes: usize, error: &CallError) {
        if !self.told_unpinned.swap(true, Ordering::Relaxed) {
            let label = &self.label;
            tracing::warn!("{label}: no {len_bytes} bytes of main memory can be pinned, copies take longer: {error}");
        }
    }

    /// Waits for everything on the stream, and returns a kernel's error.
    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is alive as long as this is.
        self.call("finish what was launched", |calls| unsafe { calls.synchronize_stream(self.stream) })
    }

    /// Gives something back by `free`, for `drop`. A failure is a warning, unless something failed before: after a
    /// kernel's error, every call fails.
    pub(crate) fn release(&self, what: &'static str, free: impl FnOnce(&dyn Calls) -> Called) {
        let released = self.calls.enter().and_then(|()| free(&*self.calls));
        if let Err(error) = released
            && !self.told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{}: could not {what}: {error}", self.label);
        }
    }

    /// The same for what the stream may still be using.
    pub(crate) fn release_after_use(&self, what: &'static str, free: impl FnOnce(&dyn Calls) -> Called) {
        for &stream in std::iter::once(&self.stream).chain(self.copies.get()) {
            // SAFETY: the stream is alive as long as this is.
            self.release("finish what was launched", |calls| unsafe { calls.synchronize_stream(stream) });
        }
        self.release(what, free);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(&copies) = self.copies.get() {
            self.release_after_use("finish copies", |_| Ok(()));
            self.copies.take();
            // SAFETY: created by `copies`, and whatever was on it is done.
            self.release("destroy a stream", |calls| unsafe { calls.destroy_stream(copies) });
        }
        if !self.stream.is_null() {
            // SAFETY: created by `open`; all that used it held on to this device and is gone.
            self.release_after_use("destroy the stream", |calls| unsafe { calls.destroy_stream(self.stream) });
        }
    }
}
