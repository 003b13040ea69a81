//! The HIP runtime, opened with dlopen; nothing is linked at build time.
//!
//! The first two of three layers: [`sys`] (types and function pointers) and `check` (status to `Result`). The third,
//! owners of memory, streams and modules, is `gpu::hip`. [`candidates`] says where to look.

#![allow(unsafe_code)]

pub mod sys;

mod check;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use sys::Api;
use vendor_library::Installation;
pub use vendor_library::{CallError, OpenError};

/// Newest first: an installation may have several.
const NAMES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// Files that may be the HIP runtime, best first; see [`Installation::candidates`].
pub fn candidates(explicit: Option<&Path>, rocm_path: Option<&Path>) -> Vec<PathBuf> {
    Installation::ROCM.candidates(&NAMES, explicit, rocm_path)
}

/// The folders in which they would be.
pub fn searched(explicit: Option<&Path>, rocm_path: Option<&Path>) -> Vec<PathBuf> {
    Installation::ROCM.searched(explicit, rocm_path)
}

/// An opened HIP runtime: the functions, and which file they are from. The library stays mapped when this is dropped.
pub struct Hip {
    api: Api,
    path: PathBuf,
}

impl Hip {
    /// Opens the first of the candidates (files, or bare names for the loader's search path) that is a HIP runtime.
    ///
    /// # Errors
    /// Every candidate with the reason why it was not taken.
    pub fn open(candidates: &[PathBuf]) -> Result<Self, OpenError> {
        let (api, path) = vendor_library::open_first("the HIP runtime", candidates, Api::load)?;
        Ok(Self { api, path })
    }

    /// The candidate that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `gcnArchName` of a device, such as `gfx90a:sramecc+:xnack-`.
    ///
    /// # Errors
    /// The status; a name that is not one comes back as it is, for the caller to refuse.
    pub fn arch_name(&self, device: c_int) -> Result<String, CallError> {
        let properties = &self.api.get_device_properties;
        let mut bytes = vec![0_u8; sys::PROPERTIES_BYTES];
        // SAFETY: the buffer is longer than the structure of any version, and the call writes nothing else.
        let code = unsafe { (properties.call)(bytes.as_mut_ptr(), device) };
        self.check(properties.symbol, code)?;
        let name = &bytes[properties.arch_name_at..][..sys::ARCH_NAME_BYTES];
        let name = CStr::from_bytes_until_nul(name).map_or(name, CStr::to_bytes);
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

impl Deref for Hip {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl fmt::Debug for Hip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hip").field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_says_which_it_lacks() {
        let error = Hip::open(&["/nonexistent/libamdhip64.so".into(), "libc.so.6".into()]).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("could not open the HIP runtime; tried"), "{message}");
        assert!(message.contains("/nonexistent/libamdhip64.so"), "{message}");
        assert!(message.contains("hipInit"), "{message}");
    }
}
