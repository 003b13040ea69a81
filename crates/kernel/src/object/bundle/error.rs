//! Errors of bundles.

use std::io;

use hint::Hint;

/// Why a bundle, or a kernel of it, is not used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It could not be read, or another user could have written it.
    #[error("could not open it")]
    Open(#[source] io::Error),
    /// It does not end as a bundle does.
    #[error("it is not a bundle: expected `{expected}` at its end")]
    NotABundle { expected: &'static str },
    /// It is a bundle of another version of this program's.
    #[error("it has format {found}; expected {expected}")]
    Format { expected: u32, found: u32 },
    /// Bytes are not what was written.
    #[error("{what} does not match its SHA-256")]
    Checksum { what: &'static str },
    /// A part of it does not fit the rest.
    #[error("{what} is incomplete")]
    Damaged { what: &'static str },
    /// A frame could not be unpacked.
    #[error("could not unpack a part of it")]
    Unpack(#[source] io::Error),
    /// The manifest is not in the format of this version.
    #[error("could not understand `manifest.json`")]
    Manifest(#[source] serde_json::Error),
}

impl Hint for BundleError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Open(_) => {
                Some("a bundle and its folder must belong to you or root, and be writable by no other user".into())
            }
            _ => Some("`gptoss-jit bundle` makes it anew".into()),
        }
    }
}
