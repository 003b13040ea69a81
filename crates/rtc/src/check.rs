//! From a status to a `Result` that names the call.

use std::ffi::CStr;
use std::fmt;

use crate::sys::{self, Api};

/// A status other than success, with the library's own name for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The number, as in `hiprtcResult`.
    pub(crate) code: i32,
    /// What `hiprtcGetErrorString` says, such as `HIPRTC_ERROR_COMPILATION`.
    pub(crate) name: String,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

impl Api {
    /// Success, or the status by name.
    pub(crate) fn check(&self, code: sys::Status) -> Result<(), Status> {
        if code == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and answers with a static string, or null in versions to come.
        let name = unsafe { (self.get_error_string)(code) };
        let name = if name.is_null() {
            "unknown status".to_owned()
        } else {
            // SAFETY: not null, and hipRTC's strings are literals: terminated and never freed.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(Status { code, name })
    }
}
