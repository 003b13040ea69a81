//! From a status to a `Result` that names the call.

use vendor_library::{CallError, text_of};

use crate::sys::{Api, Status, status};

impl Api {
    /// Success, or the call and what the runtime says of its status.
    ///
    /// # Errors
    /// [`CallError`] for any other status than success.
    pub fn check(&self, call: &'static str, code: Status) -> Result<(), CallError> {
        if code == status::SUCCESS {
            return Ok(());
        }
        // SAFETY: both take any number and answer with a literal, or null in versions to come.
        let (name, text) = unsafe {
            let (name, text) = ((self.get_error_name)(code), (self.get_error_string)(code));
            (text_of(name, "unknown status"), text_of(text, "no description"))
        };
        Err(CallError { call, code, name, text })
    }
}
