//! Where the libraries of ROCm and CUDA may be and what they are called, why none could be opened, and the message of
//! a failed call. It is the common part of `rtc`, `hip-runtime-sys` and `cuda-driver-sys`, which have the functions.

#![allow(unsafe_code)]

mod candidates;
pub mod mapping;

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};

pub use candidates::{ENVIRONMENTS, Installation};

/// A library that was tried, and why it is not the one that was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The file, or the bare name given to the loader.
    pub path: PathBuf,
    pub(crate) reason: String,
}

impl Attempt {
    /// Whether the library is there, and was not taken for another reason.
    pub fn is_of_a_library_that_is_there(&self) -> bool {
        // Of a bare name the loader says that it does not find it, or what else.
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.is_file() || !self.reason.starts_with(&format!("{name}: cannot open shared object file"))
    }

    /// The other library that it needs, where that is what the loader does not find: `libamd_comgr.so.3`.
    pub fn missing_library(&self) -> Option<&str> {
        let (missing, _) = self.reason.split_once(": cannot open shared object file")?;
        (!self.path.ends_with(missing) && missing != self.path.to_string_lossy()).then_some(missing)
    }
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
    /// `hipRTC`, `the HIP runtime`, `the CUDA driver`.
    pub(crate) what: &'static str,
    /// Each candidate, in order; empty when there was none.
    pub attempts: Vec<Attempt>,
}

fn list(attempts: &[Attempt]) -> String {
    // Names that the loader does not find are one line: that a name is not there says nothing of the others.
    let is_absent = |one: &&Attempt| {
        let is_name = one.path.components().count() == 1;
        is_name && one.reason.contains("No such file") && !one.is_of_a_library_that_is_there()
    };
    let absent: Vec<String> =
        attempts.iter().filter(is_absent).map(|one| format!("`{}`", one.path.display())).collect();
    let others: String = attempts.iter().filter(|one| !is_absent(one)).map(Attempt::to_string).collect();
    match (attempts.is_empty(), absent.len()) {
        (true, _) => " nothing".to_owned(),
        (_, 0) => others,
        (_, 1) => format!("{others}\n  {}, which the loader does not find", absent[0]),
        _ => format!("{others}\n  {}, none of which the loader finds", absent.join(", ")),
    }
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

/// A call that did not succeed, with the library's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{call}` failed: {name} ({code}), {text}")]
pub struct CallError {
    pub call: &'static str,
    /// The number, as in `hipError_t` or `CUresult`.
    pub code: c_int,
    /// `hipErrorOutOfMemory`.
    pub name: String,
    /// What the library says of it.
    pub text: String,
}

/// A library's string, or `otherwise` where there is none.
///
/// # Safety
/// `text` must be null, or a terminated string that is never freed.
pub unsafe fn text_of(text: *const c_char, otherwise: &str) -> String {
    if text.is_null() {
        return otherwise.to_owned();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_lacks_another_is_told_from_one_that_is_not_there() {
        let attempt = |path: &str, reason: &str| Attempt { path: path.into(), reason: reason.into() };
        let tail = "cannot open shared object file: No such file or directory";
        let absent = attempt("libone.so.6", &format!("libone.so.6: {tail}"));
        assert_eq!((absent.is_of_a_library_that_is_there(), absent.missing_library()), (false, None));
        let lacking = attempt("libone.so.6", &format!("libtwo.so.3: {tail}"));
        assert_eq!((lacking.is_of_a_library_that_is_there(), lacking.missing_library()), (true, Some("libtwo.so.3")));
        let other = attempt("libone.so.6", "libone.so.6: undefined symbol: hipInit");
        assert_eq!((other.is_of_a_library_that_is_there(), other.missing_library()), (true, None));
    }
}
