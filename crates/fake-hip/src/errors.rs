//! Names of HIP's status codes.

use std::ffi::{CStr, c_char, c_int};

/// Statuses, names and words of the real runtime.
const STATUSES: [(c_int, &CStr, &CStr); 14] = [
    (0, c"hipSuccess", c"no error"),
    (1, c"hipErrorInvalidValue", c"invalid argument"),
    (2, c"hipErrorOutOfMemory", c"out of memory"),
    (100, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (101, c"hipErrorInvalidDevice", c"invalid device ordinal"),
    (200, c"hipErrorInvalidImage", c"device kernel image is invalid"),
    (201, c"hipErrorInvalidContext", c"invalid device context"),
    (209, c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device"),
    (303, c"hipErrorSharedObjectInitFailed", c"shared object initialization failed"),
    (400, c"hipErrorInvalidHandle", c"invalid resource handle"),
    (500, c"hipErrorNotFound", c"named symbol not found"),
    (600, c"hipErrorNotReady", c"device not ready"),
    (719, c"hipErrorLaunchFailure", c"unspecified launch failure"),
    (900, c"hipErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
];

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    let known = STATUSES.iter().find(|(number, ..)| *number == code);
    known.map_or(c"hipErrorUnknown", |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: c_int) -> *const c_char {
    let known = STATUSES.iter().find(|(number, ..)| *number == code);
    known.map_or(c"unknown error", |(_, _, text)| text).as_ptr()
}
