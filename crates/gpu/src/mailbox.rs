//! Data that a device copies out, readable only after the copy is complete.

use crate::GpuError;

/// Room in this process for what a device copies there.
pub struct Mailbox(Box<dyn Letters>);

pub(crate) trait Letters: std::any::Any + Send {
    /// Waits for what was posted last, and gives it.
    fn wait(&mut self) -> Result<&[u8], GpuError>;
}

impl Mailbox {
    pub(crate) fn new(letters: impl Letters) -> Self {
        Self(Box::new(letters))
    }

    /// What the driver that asks made, if it was this kind of driver.
    pub(crate) fn letters<L: Letters>(&mut self) -> Result<&mut L, GpuError> {
        let letters: &mut dyn std::any::Any = &mut *self.0;
        letters.downcast_mut().ok_or(GpuError::ForeignMailbox)
    }

    /// Waits until the device has copied what was posted last, and gives it; nothing before the first.
    ///
    /// # Errors
    /// The device's words: also for what went wrong before the copy.
    pub fn wait(&mut self) -> Result<&[u8], GpuError> {
        self.0.wait()
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}
