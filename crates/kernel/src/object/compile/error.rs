//! Errors between a source and its object.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::job::{CompileJob, Failure, How};
use super::{Compiler, named, title};
use hint::Hint;

/// No object. Cloneable, because several requests may ask for the same kernel.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// A compile ended without an object.
    #[error("could not compile kernel `{kernel}` for {target}: {how}{}{}", source_line(.source_path), log_lines(.log))]
    Failed {
        kernel: Box<str>,
        target: Box<str>,
        how: How,
        /// The name of the compiler.
        compiler: &'static str,
        /// Where the rendered source was kept, if it was.
        source_path: Option<PathBuf>,
        /// What the compiler said; its names for the source are rewritten to ours.
        log: String,
    },
    /// It was not tried: the compiler was stopped at the deadline before, and would be again.
    #[error(
        "did not compile kernel `{kernel}` for {target}: {} was still busy after {deadline_s} s with {}, and is not waited for \
         any more", title(.compiler), kernels(.stopped_at)
    )]
    GivenUp {
        kernel: Box<str>,
        target: Box<str>,
        /// The name of the compiler.
        compiler: &'static str,
        /// The kernels that it was busy with.
        stopped_at: Vec<String>,
        /// How long it was waited for, each time.
        deadline_s: u64,
    },
    /// Nothing is compiled any more, as was asked for.
    #[error("did not compile kernel `{kernel}`: the time limit was reached")]
    TimeIsOver { kernel: Box<str> },
    /// The canary kernel did not compile.
    #[error("could not compile a small kernel with {} for {target}: {how}{}", .compiler, log_lines(.log))]
    Canary {
        /// The compiler's name for people.
        compiler: &'static str,
        /// What to do about it.
        hint: String,
        target: Box<str>,
        how: How,
        /// The compiler's output.
        log: String,
    },
    /// The code in an object cannot be read.
    #[error("could not disassemble `{entry}` for {target} with the comgr of hipRTC: {how}{}", log_lines(.log))]
    NoCode { entry: Box<str>, target: Box<str>, how: How, log: String },
    /// There is no C compiler.
    #[error("could not find a C compiler: looked for {}", .looked_for.join(", "))]
    NoHostCompiler { looked_for: Vec<String> },
    /// What was named as a compiler's library, or as its folder, is none.
    #[error("could not find {compiler} in `{}`", .root.display())]
    NotThere {
        /// The compiler's name for people.
        compiler: &'static str,
        root: PathBuf,
        /// What to do about it.
        hint: &'static str,
    },
    /// A library or a version changed after its identity was found out.
    #[error("could not use the result of {}: it was replaced while the program ran", .compiler)]
    CompilerChanged {
        /// The compiler's name for people.
        compiler: &'static str,
    },
    /// A worker could not be started.
    #[error("could not start the compile worker `{}`", .program.display())]
    NotStarted {
        /// The worker, or the loader that starts it.
        program: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// The worker's private folder could not be made or read.
    #[error("could not use the temporary folder `{}`", .folder.display())]
    Folder {
        folder: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
}

impl CompileError {
    pub(super) fn failed(kernel: &str, job: &CompileJob, failure: Failure) -> Self {
        let Failure { how, log } = failure;
        let compiler = named(&job.toolchain.name).map_or("", Compiler::name);
        Self::Failed {
            kernel: kernel.into(),
            target: job.target.as_str().into(),
            how,
            compiler,
            source_path: None,
            log,
        }
    }

    /// The compiler's output.
    pub fn log(&self) -> &str {
        match self {
            Self::Failed { log, .. } | Self::Canary { log, .. } => log,
            _ => "",
        }
    }

    /// The same, told where the source lies.
    pub(crate) fn with_source_path(mut self, path: Option<PathBuf>) -> Self {
        if let Self::Failed { source_path, .. } = &mut self {
            *source_path = path;
        }
        self
    }

    /// Whether the same source would fail again: the compiler named a line of it. However else a compile fails, and
    /// however often, it may be the machine's fault.
    pub fn is_deterministic(&self) -> bool {
        matches!(self, Self::Failed { how: How::Rejected, .. })
    }

    /// Whether the compiler is not there, as opposed to not working.
    pub fn is_absence(&self) -> bool {
        let is_unavailable = matches!(self, Self::Canary { how: How::Unavailable, .. });
        is_unavailable || matches!(self, Self::NoHostCompiler { .. } | Self::NotThere { .. })
    }

    /// Whether no other kernel would fare better with this compiler.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self, Self::GivenUp { .. } | Self::NoHostCompiler { .. } | Self::NotThere { .. } | Self::Canary { .. })
    }
}

impl Hint for CompileError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Failed { kernel, how, compiler, .. } => how.cure(variable(compiler)).or_else(|| {
                Some(format!("`gptoss-jit kernels show {kernel}` prints the rendered source with line numbers"))
            }),
            Self::GivenUp { compiler, .. } => How::TimedOut { after_ms: 0 }.cure(variable(compiler)),
            Self::Canary { hint, .. } => Some(hint.clone()),
            Self::NoCode { .. } => {
                Some("`gptoss-jit doctor` shows which hipRTC was found; `GPTOSS_JIT_HIPRTC` names another one".into())
            }
            Self::NoHostCompiler { .. } => Some(
                "install a compiler: `apt install gcc g++`, or name one with `CC=/path/to/cc` or `CXX=/path/to/c++`"
                    .into(),
            ),
            Self::TimeIsOver { .. } => None,
            Self::NotThere { hint, .. } => Some((*hint).into()),
            Self::CompilerChanged { .. } => Some("start the program again".into()),
            Self::Folder { .. } => Some("set `TMPDIR` to a writable folder with free space".into()),
            Self::NotStarted { .. } => {
                Some("`ulimit -u` shows how many processes may run; `GPTOSS_JIT_JOBS=1` needs the fewest".into())
            }
        }
    }
}

fn variable(compiler: &str) -> &'static str {
    named(compiler).map_or("CC", Compiler::variable)
}

fn kernels(labels: &[String]) -> String {
    labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" and ")
}

pub(crate) fn source_line(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!("\n  source: {}", path.display())).unwrap_or_default()
}

pub(crate) fn log_lines(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{}", log.trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::compile::Toolchain;

    fn failed(how: How, log: &str) -> CompileError {
        let job = CompileJob {
            toolchain: Toolchain::new("hiprtc", None),
            source: String::new(),
            entry: "k".into(),
            target: "gfx942".into(),
            options: Vec::new(),
            memory_bytes: 0,
            stated: None,
            reads: None,
        };
        CompileError::failed("linear/gemv", &job, Failure { how, log: log.into() })
    }

    #[test]
    fn a_failure_tells_what_where_and_the_log() {
        let error = failed(How::Crashed { signal: 6 }, "munmap_chunk(): invalid pointer\n");
        assert_eq!(
            error.to_string(),
            "could not compile kernel `linear/gemv` for gfx942: the compiler crashed with signal 6 (abort)\nmunmap_chunk(): invalid pointer"
        );
    }

    #[test]
    fn only_a_refusal_is_held_against_the_kernel() {
        assert!(failed(How::Rejected, "").is_deterministic());
        assert!(failed(How::Rejected, "").hint().unwrap().contains("kernels show linear/gemv"));
        let passing = [
            How::Failed,
            How::Unavailable,
            How::Crashed { signal: 11 },
            How::Exited { code: 1 },
            How::TimedOut { after_ms: 1 },
            How::OutOfMemory,
            How::NoRoom { free_bytes: 1 },
            How::Chatter { max_bytes: 1 },
            How::BadObject { what: "x".into() },
            How::Garbage { what: "x".into() },
        ];
        for how in passing {
            let error = failed(how, "");
            assert!(!error.is_deterministic(), "{error}");
            assert!(!error.hint().unwrap().contains("kernels show"), "{error}: the kernel is not to blame");
        }
    }
}
