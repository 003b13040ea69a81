//! What ends a server: signals, or their equivalents on Windows.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC, CtrlClose, ctrl_c, ctrl_close};

/// The signals of a person at a terminal, and of a system that ends its services.
#[cfg(unix)]
pub(super) struct Ending(Signal, Signal);
#[cfg(windows)]
pub(super) struct Ending(CtrlC, CtrlClose);

impl Ending {
    /// Watches from here on.
    ///
    /// # Errors
    /// The system's.
    #[cfg(unix)]
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?))
    }

    #[cfg(windows)]
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self(ctrl_c()?, ctrl_close()?))
    }

    /// Waits for the next one.
    pub(super) async fn came(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
