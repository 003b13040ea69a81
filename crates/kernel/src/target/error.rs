//! Errors of archs without facts.

use super::X86_EXTENSIONS;
use hint::Hint;

/// A chip that nothing is known about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No table has facts about it.
    #[error("nothing is known about the arch `{arch}`, expected one of: {}", known.join(", "))]
    UnknownArch { arch: String, known: Vec<String> },
    /// Beyond a level of x86-64 there is no such instruction set that a template asks for.
    #[error(
        "nothing is known about the instruction set `{extension}`, expected one of: {}",
        X86_EXTENSIONS.map(|(name, _)| name).join(", ")
    )]
    UnknownExtension { extension: String },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownArch { .. } => {
                Some("a file `tuning/<arch>.toml` with a [target] table adds it: see `tuning/README.md`".into())
            }
            Self::UnknownExtension { .. } => None,
        }
    }
}
