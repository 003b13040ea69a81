//! Where ROCm's libraries may be, under which names, and why none of them could be opened. What `hiprtc-sys` and
//! `hip-runtime-sys` have in common; the functions in a library are theirs.

mod candidates;

use std::fmt;
use std::path::{Path, PathBuf};

pub use candidates::{candidates, searched};

/// A library that was tried, and why it is not the one that was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The file, or the bare name given to the loader.
    pub path: PathBuf,
    /// The loader's words.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  `{}`: {}", self.path.display(), self.reason)
    }
}

/// None of the candidates could be opened and has all functions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not open {what}; tried{}", list(attempts))]
pub struct OpenError {
    /// `hipRTC`, `the HIP runtime`.
    pub what: &'static str,
    /// Each candidate, in order; empty when there was none.
    pub attempts: Vec<Attempt>,
}

fn list(attempts: &[Attempt]) -> String {
    if attempts.is_empty() { " nothing".to_owned() } else { attempts.iter().map(Attempt::to_string).collect() }
}

/// The first of the candidates that `load` takes, and where it is.
///
/// # Errors
/// Every candidate with the reason why it was not taken.
pub fn open_first<T>(
    what: &'static str,
    candidates: &[PathBuf],
    load: impl Fn(&Path) -> Result<T, libloading::Error>,
) -> Result<(T, PathBuf), OpenError> {
    let mut attempts = Vec::new();
    for path in candidates {
        match load(path) {
            Ok(loaded) => return Ok((loaded, path.clone())),
            Err(error) => attempts.push(Attempt { path: path.clone(), reason: loaders_words(&error) }),
        }
    }
    Err(OpenError { what, attempts })
}

/// `libloading` says "dlopen failed" and keeps what the loader said as the cause.
fn loaders_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
