//! From a status to a `Result` that names the call.

use std::ffi::{CStr, c_char};

use crate::sys::{Api, Status, status};

/// A call that did not succeed, with the runtime's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{call}` failed: {name} ({code}), {text}")]
pub struct HipError {
    /// The C function.
    pub call: &'static str,
    /// The number, as in `hipError_t`.
    pub code: Status,
    /// `hipErrorOutOfMemory`.
    pub name: String,
    /// What `hipGetErrorString` says.
    pub text: String,
}

impl Api {
    /// Success, or the call and what the runtime says of its status.
    ///
    /// # Errors
    /// [`HipError`] for any other status than success.
    pub fn check(&self, call: &'static str, code: Status) -> Result<(), HipError> {
        if code == status::SUCCESS {
            return Ok(());
        }
        // SAFETY: both take any number and answer with a static string, or null in versions to come.
        let (name, text) = unsafe { ((self.get_error_name)(code), (self.get_error_string)(code)) };
        Err(HipError { call, code, name: text_of(name, "unknown status"), text: text_of(text, "no description") })
    }
}

fn text_of(text: *const c_char, otherwise: &str) -> String {
    if text.is_null() {
        return otherwise.to_owned();
    }
    // SAFETY: not null, and HIP's strings are literals: terminated and never freed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
