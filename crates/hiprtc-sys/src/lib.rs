//! hipRTC, AMD's run-time compiler: its paths and its functions' names.

use rtc::{Compiler, Installation};

/// AMD's compiler. Its library is one of its own, and since ROCm 7.0 nowhere else; in 5.2 the functions are in HIP's
/// library.
pub static HIPRTC: Compiler = Compiler {
    name: "hipRTC",
    target_option: "--offload-arch=",
    root_variable: "ROCM_PATH",
    installation: Installation::ROCM,
    libraries: &[
        "libhiprtc.so",
        "libhiprtc.so.7",
        "libhiprtc.so.6",
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
    ],
    prefix: "hiprtc",
    code: "GetCode",
    prepare: |_| (),
};

#[cfg(test)]
mod tests {
    use super::*;
    use rtc::Rtc;

    #[test]
    fn the_error_lists_what_was_tried_and_why() {
        let error = Rtc::open(&HIPRTC, &["/nonexistent/libhiprtc.so".into(), "libc.so.6".into()]).unwrap_err();
        let message = error.to_string();
        assert_eq!(error.attempts.len(), 2);
        assert!(message.contains("/nonexistent/libhiprtc.so"), "{message}");
        assert!(message.contains("hiprtcCreateProgram"), "a library without the functions says which: {message}");
    }

    #[test]
    fn no_candidates_is_said_so() {
        assert_eq!(Rtc::open(&HIPRTC, &[]).unwrap_err().to_string(), "could not open hipRTC; tried nothing");
    }
}
