//! What Unix has and Windows has not, or has in another way: a file for each, with the same names. Above the crates
//! that call foreign libraries, nothing else asks which system this is.
//!
//! The side of Windows is compiled and was never run.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;
