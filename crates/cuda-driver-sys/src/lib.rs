//! The CUDA driver, opened with dlopen; nothing is linked at build time.
//!
//! The first two of three layers, as in `hip-runtime-sys`: [`sys`] (types and function pointers) and the check of a
//! status ([`Cuda::check`]). The third, owners of memory, streams and modules, is `gpu::runtime`.

#![allow(unsafe_code)]

pub mod nvml;
pub mod sys;

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::ptr;

use sys::{Api, Status};
pub use vendor_library::{CallError, OpenError};

/// The driver is the system's: it comes with the kernel module and not with CUDA, so the loader knows where it is.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Files that may be the driver, best first.
///
/// - `explicit`: the library, or the folder that holds it; then no other is tried
pub fn candidates(explicit: Option<&Path>) -> Vec<PathBuf> {
    match explicit {
        None => NAMES.map(PathBuf::from).to_vec(),
        Some(file) if file.is_file() => vec![file.to_path_buf()],
        Some(folder) => NAMES.iter().map(|name| folder.join(name)).filter(|file| file.exists()).collect(),
    }
}

/// An opened driver: the functions, and which file they are from. The library stays mapped when this is dropped.
pub struct Cuda {
    api: Api,
    path: PathBuf,
}

impl Cuda {
    /// Opens the first of the candidates (files, or bare names for the loader's search path) that is a CUDA driver.
    ///
    /// # Errors
    /// Every candidate with the reason why it was not taken.
    pub fn open(candidates: &[PathBuf]) -> Result<Self, OpenError> {
        let (api, path) = vendor_library::open_first("the CUDA driver", candidates, Api::load)?;
        Ok(Self { api, path })
    }

    /// The candidate that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Success, or the call and what the driver says of its status.
    ///
    /// # Errors
    /// [`CallError`] for any other status than success.
    pub fn check(&self, call: &'static str, code: Status) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        let (mut name, mut text) = (ptr::null(), ptr::null());
        // SAFETY: both are valid for writes, and stay null for a number that the driver does not know; its strings are
        // literals.
        let (name, text) = unsafe {
            let _ = (self.api.get_error_name)(code, &mut name);
            let _ = (self.api.get_error_string)(code, &mut text);
            (vendor_library::text_of(name, "unknown status"), vendor_library::text_of(text, "no description"))
        };
        Err(CallError { call, code, name, text })
    }
}

impl Deref for Cuda {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_says_which_it_lacks() {
        let message = Cuda::open(&["/nonexistent/libcuda.so.1".into(), "libc.so.6".into()]).unwrap_err().to_string();
        assert!(message.starts_with("could not open the CUDA driver; tried"), "{message}");
        assert!(message.contains("/nonexistent/libcuda.so.1") && message.contains("cuInit"), "{message}");
    }

    #[test]
    fn a_named_folder_is_the_only_one() {
        assert_eq!(candidates(Some(Path::new("/nonexistent"))), Vec::<PathBuf>::new());
        assert_eq!(candidates(None)[0], Path::new("libcuda.so.1"));
    }
}
