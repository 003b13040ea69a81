//! What the parent hands to a worker, and what a worker can answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

use super::stamp::Stamp;

/// Where a compiler is and what it needs around it. Found by the parent, which never opens the compiler itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toolchain {
    /// The name of the compiler.
    pub name: String,
    /// The C compiler, or the library of hipRTC or NVRTC; without it the worker tries the usual names.
    pub compiler: Option<PathBuf>,
    /// What goes before all other arguments: `gcc` of `CC="ccache gcc"`.
    pub arguments: Vec<String>,
    /// What the worker's environment holds beyond the fixed names (`LD_LIBRARY_PATH`, `ROCM_PATH`, `CUDA_PATH`).
    pub environment: BTreeMap<String, String>,
    /// What starts the worker, if not the system's loader: `ld-linux-x86-64.so.2 --library-path …`.
    pub launcher: Vec<String>,
}

/// One kernel to compile. The worker's current folder, `TMPDIR` and `HOME` are one private folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompileJob {
    /// The compiler to use.
    pub(crate) toolchain: Toolchain,
    /// The rendered source, whole.
    pub(crate) source: String,
    /// The name of the kernel in the object.
    pub(crate) entry: String,
    pub(crate) target: String,
    /// Compiler options, in order.
    pub(crate) options: Vec<String>,
    /// Address space that the worker and what it starts may each use.
    pub(crate) memory_bytes: u64,
    /// What the compiler stated of itself when the parent had it asked last.
    pub(crate) stated: Option<Stated>,
    /// Not to compile anything, but to read this object.
    #[serde(default)]
    pub(crate) reads: Option<Reads>,
}

/// An object to be disassembled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reads {
    pub(crate) object: Vec<u8>,
    /// Whether the lines of the source are wanted, which it has if it was compiled with `-gline-tables-only`.
    pub(crate) with_lines: bool,
}

/// A compiler's description of itself, and its files at that time: while they do not change, it need not run again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stated {
    /// As [`CompileOutput::facts`].
    pub(crate) facts: Vec<String>,
    pub(super) files: Vec<Stamp>,
}

impl Stated {
    /// The facts, if they still hold: to be asked after the compile, so that a compiler replaced meanwhile is noticed.
    pub(super) fn facts_if_it_holds(&self) -> Option<Vec<String>> {
        (!self.files.is_empty() && self.files.iter().all(Stamp::holds)).then(|| self.facts.clone())
    }
}

/// What a compiler made. What it printed is captured by the parent; `log` holds what it returned besides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileOutput {
    /// The compiled code. A worker's answer has it after the JSON, not in it.
    #[serde(skip)]
    pub object: Vec<u8>,
    pub log: String,
    /// What identifies the compiler that was really used, in a fixed order: versions, build ids. They must be the same
    /// after every compile by the same compiler. The first names it for people, on one line.
    pub(crate) facts: Vec<String>,
    /// The files that the compiler consists of. While they stay as they are, so does its identity. Empty if it was
    /// not asked.
    pub(crate) files: Vec<PathBuf>,
}

/// A compile that made no object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub(crate) how: How,
    /// The compiler's output.
    pub(crate) log: String,
}

/// The result of a compile.
pub(super) type Outcome = Result<CompileOutput, Failure>;

/// The ways in which a compile fails. A compiler answers `Rejected`, `Unavailable`, `BadObject`, `Crashed`, `Exited` or
/// `OutOfMemory`; the parent sees the others, and makes `Failed` of a refusal that names no line of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// The compiler refused the source, and said at which line: it will again.
    Rejected,
    /// The compiler failed and did not say that it was the source: the options, the linker, the machine.
    Failed,
    /// The compiler could not be opened or started, or had no room to work.
    Unavailable,
    /// A signal ended the worker.
    Crashed { signal: i32 },
    /// The worker, or the compiler in it, ended without an answer.
    Exited { code: i32 },
    /// The deadline passed and the worker was killed.
    TimedOut {
        /// The deadline, in milliseconds.
        after_ms: u64,
    },
    /// The worker ran into its memory limit, or the system killed it.
    OutOfMemory,
    /// The compiler failed where there is hardly any room on the disk.
    NoRoom {
        /// What is left for its temporary files, in bytes.
        free_bytes: u64,
    },
    /// It printed without end and was killed.
    Chatter {
        /// The limit of its output, in bytes.
        max_bytes: u64,
    },
    /// The object cannot be loaded.
    BadObject { what: String },
    /// The answer was damaged.
    Garbage {
        /// What was expected and found.
        what: String,
    },
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected => write!(f, "the compiler refused it"),
            Self::Failed => write!(f, "the compiler failed"),
            Self::Unavailable => write!(f, "the compiler could not be used"),
            Self::Crashed { signal } => write!(f, "the compiler crashed with signal {signal}{}", signal_name(*signal)),
            Self::Exited { code } => write!(f, "the compiler ended without an answer, exit code {code}"),
            Self::TimedOut { after_ms } => write!(f, "the compiler was still busy after {after_ms} ms and was killed"),
            Self::OutOfMemory => write!(f, "the compiler ran out of memory"),
            Self::NoRoom { free_bytes } => {
                write!(f, "the compiler failed, and only {free_bytes} bytes are left for its temporary files")
            }
            Self::Chatter { max_bytes } => {
                write!(f, "the compiler printed more than {max_bytes} bytes and was killed")
            }
            Self::BadObject { what } => write!(f, "the compiler made an object that cannot be loaded: {what}"),
            Self::Garbage { what } => write!(f, "the compiler's answer is damaged: {what}"),
        }
    }
}

/// The meaning of a signal for the ended process, for messages; empty if unknown.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction)",
        5 => " (trap)",
        6 => " (abort)",
        7 => " (bus error)",
        8 => " (arithmetic error)",
        9 => " (killed; for memory?)",
        11 => " (segmentation fault)",
        25 => " (output too large)",
        _ => "",
    }
}

impl How {
    /// What can be done about it where the kernel is not the reason. `variable` names the compiler to use.
    pub(super) fn cure(&self, variable: &str) -> Option<String> {
        Some(match self {
            Self::Rejected => return None,
            Self::OutOfMemory => "compile fewer kernels at a time: set `GPTOSS_JIT_JOBS=1`".into(),
            Self::NoRoom { .. } => "set `TMPDIR` to a folder with more room, and start again".into(),
            Self::TimedOut { .. } | Self::Chatter { .. } | Self::BadObject { .. } => {
                format!("`gptoss-jit doctor` tries the compiler on a small kernel; `{variable}` names another one")
            }
            _ => format!(
                "this failure is not remembered, so start again; if it recurs, `gptoss-jit doctor` tries the compiler, and \
                 `{variable}` names another one"
            ),
        })
    }
}

impl Toolchain {
    /// A compiler by name, in this file or library; without one the worker finds it.
    pub(super) fn new(name: &str, compiler: Option<PathBuf>) -> Self {
        let (arguments, environment, launcher) = Default::default();
        Self { name: name.to_owned(), compiler, arguments, environment, launcher }
    }

    /// The C or C++ compiler as a command, with the arguments that come before all others.
    pub(super) fn command(&self) -> Option<std::process::Command> {
        let mut command = std::process::Command::new(self.compiler.as_deref()?);
        command.args(&self.arguments).stdin(std::process::Stdio::null());
        Some(command)
    }

    /// What the compiler calls the source in its messages.
    pub(super) fn source_name(&self) -> &'static str {
        super::named(&self.name).map_or("", super::Compiler::source_name)
    }

    /// What its diagnostics call the source.
    pub(super) fn names_in_diagnostics(&self) -> Vec<&'static str> {
        super::named(&self.name).map_or_else(Vec::new, super::Compiler::names_in_diagnostics)
    }
}

const FILE: &str = "job.json";

impl CompileJob {
    /// Leaves the job where [`Self::read`] finds it.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(FILE), serde_json::to_vec(self)?)
    }

    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(FILE))?)?)
    }
}
