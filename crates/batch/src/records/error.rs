//! Errors of the file of finished answers.

use std::io;
use std::path::PathBuf;

use hint::Hint;

/// What to do where records are of another run.
pub(crate) const RESTART_HINT: &str = "give that run's prompts and flags, or drop the answers with `--restart`";

/// Why answers cannot be kept, or not be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    #[error("could not keep answers in `{}`", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another process uses it.
    #[error("could not keep answers in `{}`: another process uses it", path.display())]
    Busy { path: PathBuf },
    /// Some other file has the name.
    #[error("could not go on from `{}`: it holds no records of this program", path.display())]
    NoRecords { path: PathBuf },
    /// It is of a run with other settings.
    #[error("could not go on from `{}`: its {n_done} answers have other settings: {}", path.display(), differences.join(", "))]
    OtherSettings { path: PathBuf, n_done: usize, differences: Vec<String> },
    /// It answers prompts that are not there.
    #[error("could not go on from `{}`: it has an answer to prompt {index}, but there are only {n}", path.display())]
    TooMany {
        path: PathBuf,
        /// Counted from 1.
        index: u32,
        n: usize,
    },
}

impl Hint for RecordsError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Io { .. } => "finished answers are kept; run the same command again to continue",
            Self::Busy { .. } => "wait for it, or name another file with `-o` or `--records`",
            Self::NoRecords { .. } => "name another file with `--records`",
            Self::OtherSettings { .. } | Self::TooMany { .. } => RESTART_HINT,
        };
        Some(hint.to_owned())
    }
}
