//! The differences between Unix and Windows: a file for each system, with the same names. Apart from this module and
//! the crates that call foreign libraries, no code asks for the system.
//!
//! The Windows side compiles, but was never run.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;
