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
    /// What the worker's environment holds beyond the fixed names (`LD_LIBRARY_PATH`, `ROCM_PATH`, `CUDA_PATH`).
    pub environment: BTreeMap<String, String>,
    /// What starts the worker, if not the system's loader: `ld-linux-x86-64.so.2 --library-path …`.
    pub launcher: Vec<String>,
}

/// One kernel to compile. The worker's current folder, `TMPDIR` and `HOME` are one private folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The compiler to use.
    pub toolchain: Toolchain,
    /// The rendered source, whole.
    pub source: String,
    /// The name of the kernel in the object.
    pub entry: String,
    /// The full target id.
    pub target: String,
    /// Compiler options, in order.
    pub options: Vec<String>,
    /// Address space that the worker and what it starts may each use.
    pub memory_bytes: u64,
    /// What the compiler stated of itself when the parent had it asked last.
    pub stated: Option<Stated>,
}

/// What a compiler stated of itself, and the files that it consisted of then: while they stay as they are, it need not
/// be asked again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stated {
    /// As [`Made::facts`].
    pub facts: Vec<String>,
    /// At least one.
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
pub struct Made {
    /// The object's bytes.
    #[serde(skip)]
    pub object: Vec<u8>,
    /// Warnings.
    pub log: String,
    /// What identifies the compiler that was really used, in a fixed order: versions, build ids. They must be the same
    /// after every compile by the same compiler. The first names it for people, on one line.
    pub facts: Vec<String>,
    /// The files that the compiler consists of. While they stay as they are, so does its identity. Empty where it was
    /// not asked.
    pub files: Vec<PathBuf>,
}

/// No object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What happened.
    pub how: How,
    /// What the compiler said.
    pub log: String,
}

/// What a compile comes to.
pub(super) type Outcome = Result<Made, Failure>;

/// The ways in which a compile fails. A compiler answers the first two or `OutOfMemory`; the parent sees the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// The compiler refused the source or the options: it will again.
    Rejected,
    /// The compiler could not be opened or started, or had no room to work.
    Unavailable,
    /// A signal ended the worker.
    Crashed {
        /// Its number.
        signal: i32,
    },
    /// The worker, or the compiler in it, ended without an answer.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// The deadline passed and the worker was killed.
    TimedOut {
        /// The deadline, in milliseconds.
        after_ms: u64,
    },
    /// The worker ran into its memory limit, or the system killed it.
    OutOfMemory,
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
            Self::Unavailable => write!(f, "the compiler could not be used"),
            Self::Crashed { signal } => write!(f, "the compiler crashed with signal {signal}{}", signal_name(*signal)),
            Self::Exited { code } => write!(f, "the compiler ended without an answer, exit code {code}"),
            Self::TimedOut { after_ms } => write!(f, "the compiler was still busy after {after_ms} ms and was killed"),
            Self::OutOfMemory => write!(f, "the compiler ran out of memory"),
            Self::Garbage { what } => write!(f, "the compiler's answer is damaged: {what}"),
        }
    }
}

/// What a signal says of who it ended, for messages; empty where that is not known.
pub(crate) fn signal_name(signal: i32) -> &'static str {
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

impl Toolchain {
    /// A compiler by name, in this file or library; without one the worker finds it.
    pub(super) fn of(name: &str, compiler: Option<PathBuf>) -> Self {
        Self { name: name.to_owned(), compiler, environment: BTreeMap::new(), launcher: Vec::new() }
    }

    /// What the compiler calls the source in its messages.
    pub(super) fn source_name(&self) -> &'static str {
        super::named(&self.name).map_or("", super::Compiler::source_name)
    }
}

const FILE: &str = "job.json";

impl Job {
    /// Leaves the job where [`Self::read`] finds it.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(FILE), serde_json::to_vec(self)?)
    }

    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(folder.join(FILE))?)?)
    }
}
