//! What can go wrong between a source and its object.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::job::{Failure, How};
use crate::error::Hint;

/// No object. Clonable, because several requests may ask for the same kernel.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// A compile ended without an object.
    #[error("could not compile kernel `{kernel}` for {target}: {how}{}{}", source_line(.source_path), log_lines(.log))]
    Failed {
        /// The kernel's label.
        kernel: Box<str>,
        /// The target id.
        target: Box<str>,
        /// What happened.
        how: How,
        /// It happened twice in the same way.
        twice: bool,
        /// Where the rendered source was kept, if it was.
        source_path: Option<PathBuf>,
        /// What the compiler said; its names for the source are rewritten to ours.
        log: String,
    },
    /// The canary kernel did not compile.
    #[error("could not compile a small kernel with {} for {target}: {how}{}", .compiler, log_lines(.log))]
    Canary {
        /// What people call the compiler.
        compiler: &'static str,
        /// What can be done about it.
        hint: String,
        /// The target id.
        target: Box<str>,
        /// What happened.
        how: How,
        /// What the compiler said.
        log: String,
    },
    /// There is no C compiler.
    #[error("could not find a C compiler: looked for {}", .looked_for.join(", "))]
    NoHostCompiler {
        /// What was tried.
        looked_for: Vec<String>,
    },
    /// What was named as a compiler's library, or as its folder, is none.
    #[error("could not find {compiler} in `{}`", .root.display())]
    NotThere {
        /// What people call the compiler.
        compiler: &'static str,
        /// The file or folder.
        root: PathBuf,
        /// What can be done about it.
        hint: &'static str,
    },
    /// A library or a version changed after its identity was found out.
    #[error("could not use what {} made: it was replaced while the program ran", .compiler)]
    CompilerChanged {
        /// What people call the compiler.
        compiler: &'static str,
    },
    /// The path of this program is unknown.
    #[error("could not find the path of this program, which compiles in processes of its own")]
    NoWorker {
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// A worker could not be started.
    #[error("could not start the compile worker `{}`", .program.display())]
    NotStarted {
        /// The worker, or the loader that starts it.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The worker's private folder could not be made or read.
    #[error("could not use the temporary folder `{}`", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
}

impl CompileError {
    pub(super) fn failed(kernel: &str, target: &str, failure: Failure, twice: bool) -> Self {
        let Failure { how, log } = failure;
        Self::Failed { kernel: kernel.into(), target: target.into(), how, twice, source_path: None, log }
    }

    /// What the compiler said.
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

    /// Whether the same source would fail again: it was refused, or the compiler died of it twice in the same way.
    pub fn is_deterministic(&self) -> bool {
        match self {
            Self::Failed { how: How::Rejected, .. } => true,
            Self::Failed { how: How::Crashed { .. } | How::Exited { .. }, twice, .. } => *twice,
            _ => false,
        }
    }
}

impl Hint for CompileError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Failed { how: How::TimedOut { .. } | How::OutOfMemory, .. } => {
                Some("compile fewer kernels at a time: set `GPTOSS_JIT_JOBS=1`".into())
            }
            Self::Failed { kernel, .. } => {
                Some(format!("`gptoss-jit kernels show {kernel}` prints the rendered source with line numbers"))
            }
            Self::Canary { hint, .. } => Some(hint.clone()),
            Self::NoHostCompiler { .. } => Some(
                "install a compiler: `apt install gcc g++`, or name one with `CC=/path/to/cc` or `CXX=/path/to/c++`"
                    .into(),
            ),
            Self::NotThere { hint, .. } => Some((*hint).into()),
            Self::CompilerChanged { .. } => Some("start the program again".into()),
            Self::Folder { .. } => Some("set `TMPDIR` to a folder that can be written".into()),
            Self::NoWorker { .. } | Self::NotStarted { .. } => None,
        }
    }
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

    #[test]
    fn a_failure_tells_what_where_and_the_log() {
        let failure = Failure { how: How::Crashed { signal: 6 }, log: "munmap_chunk(): invalid pointer\n".into() };
        let error = CompileError::failed("linear/gemv", "gfx942", failure, true);
        assert_eq!(
            error.to_string(),
            "could not compile kernel `linear/gemv` for gfx942: the compiler crashed with signal 6 (abort)\nmunmap_chunk(): invalid pointer"
        );
        assert!(error.is_deterministic());
    }

    #[test]
    fn only_what_would_happen_again_is_deterministic() {
        let failed = |how, twice| CompileError::failed("k", "t", Failure { how, log: String::new() }, twice);
        assert!(failed(How::Rejected, false).is_deterministic());
        assert!(!failed(How::Crashed { signal: 11 }, false).is_deterministic());
        assert!(!failed(How::TimedOut { after_ms: 1 }, true).is_deterministic());
        assert!(!failed(How::OutOfMemory, true).is_deterministic());
        assert!(!failed(How::Garbage { what: "x".into() }, true).is_deterministic());
    }
}
