//! The hipRTC backend: opened with dlopen, in the worker only.

use super::identity::Canary;
use super::job::{Failure, How, Job, Made, Toolchain};
use super::{CompileError, CompilerOptions};

/// Where hipRTC is. In the parent: looks at paths and at the environment, opens nothing.
pub(super) fn find(options: &CompilerOptions) -> Result<Toolchain, CompileError> {
    Ok(options.hiprtc.clone())
}

/// Compiles. In the worker, whose current folder is private.
pub(super) fn compile(_job: &Job) -> Result<Made, Failure> {
    Err(Failure { how: How::Unavailable, log: "this build has no hipRTC backend".into() })
}

/// A small kernel whose object tells compilers apart that say the same of themselves.
pub(super) fn canary() -> Canary {
    Canary { source: "", entry: "canary", options: &[] }
}
