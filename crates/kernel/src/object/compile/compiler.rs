//! A compiler from the program's view: how it is found, called and identified.

use std::fmt;

use super::job::{CompileJob, CompileOutput, Failure, How, Toolchain};
use super::{CompileError, CompilerOptions};
use crate::target::Target;
use crate::template::Precision;

/// One of the compilers in [`super::COMPILERS`].
pub trait Compiler: fmt::Debug + Sync {
    /// What keys, tables and messages call it: `hiprtc`. No two have the same.
    fn name(&self) -> &'static str;

    /// What people call it: `hipRTC`, `the C compiler`.
    fn title(&self) -> &'static str;

    /// What it calls the source in its messages. A constant: some write it into the object.
    fn source_name(&self) -> &'static str;

    /// What its diagnostics call a kernel's text, which may give itself another name (`#line`).
    fn names_in_diagnostics(&self) -> Vec<&'static str> {
        vec![self.source_name()]
    }

    /// The variable of the environment that names it.
    fn variable(&self) -> &'static str;

    /// Whether it makes the objects for a target.
    fn compiles_for(&self, target: &Target) -> bool;

    /// The options for a target at a precision. They are part of a kernel's key, so nothing is left to a default.
    fn options(&self, target: &Target, precision: Precision) -> Vec<String>;

    /// Where it is. In the parent: looks at paths and at the environment, opens nothing.
    ///
    /// # Errors
    /// If it is missing, or not at the given place.
    fn find(&self, options: &CompilerOptions) -> Result<Toolchain, CompileError>;

    /// A small kernel whose object tells compilers apart that say the same of themselves.
    fn canary(&self) -> Canary;

    /// Compiles, in the worker, whose current folder is private. What the compiler prints goes where the worker's own
    /// output goes.
    ///
    /// # Errors
    /// Whatever kept it from making an object.
    fn compile(&self, job: &CompileJob) -> Result<CompileOutput, Failure>;

    /// What can be done where not even the canary compiles; `log` is what the compiler said.
    fn hint(&self, how: &How, target: &str, log: &str) -> String {
        let _ = (how, target, log);
        "`gptoss-jit doctor` shows which compiler was found".into()
    }
}

/// A fixed kernel. The digest of its object is part of the compiler's identity.
#[derive(Clone, Copy, Debug)]
pub struct Canary {
    pub(crate) source: &'static str,
    pub(crate) entry: &'static str,
    /// Options; the compiler adds what follows from the target.
    pub(crate) options: &'static [&'static str],
}
