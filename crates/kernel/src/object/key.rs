//! The identity of a compiled kernel.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::compile::Request;

/// Version of the encoding below and of the cache's layout; also in the cache's folder name.
pub(crate) const SCHEMA: u32 = 1;

/// Everything that can change the bytes the compiler returns, and nothing else: no template name, no
/// time, no version of ours, no environment (workers run with a cleared one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelKey {
    /// The rendered source, whole.
    pub source: String,
    /// Compiler options, in order.
    pub options: Vec<String>,
    /// The full target id, as the compiler gets it (`gfx90a:sramecc+:xnack-`, `x86-64-v4`).
    pub target: String,
    /// The name of the kernel in the object.
    pub entry: String,
    /// The name of the compiler.
    pub compiler_name: String,
    /// Identity of the compiler: build ids of its libraries and the digest of a canary kernel.
    pub compiler: String,
}

impl KernelKey {
    /// Of what a compiler of this identity is asked.
    pub(super) fn new(request: &Request, compiler: &str) -> Self {
        Self {
            source: request.source.clone(),
            options: request.options.clone(),
            target: request.target.clone(),
            entry: request.entry.clone(),
            compiler_name: request.compiler.into(),
            compiler: compiler.into(),
        }
    }

    /// The fields by name, in the order in which they are hashed. Options are numbered.
    pub(crate) fn fields(&self) -> Vec<(String, &[u8])> {
        let mut fields: Vec<(String, &[u8])> = vec![
            ("source".into(), self.source.as_bytes()),
            ("target".into(), self.target.as_bytes()),
            ("entry".into(), self.entry.as_bytes()),
            ("backend".into(), self.compiler_name.as_bytes()),
            ("compiler".into(), self.compiler.as_bytes()),
        ];
        fields.extend(self.options.iter().enumerate().map(|(i, option)| (format!("option {i}"), option.as_bytes())));
        fields
    }

    /// SHA-256 over the schema and the fields. Each is prefixed with its length, so no two keys share an encoding.
    pub fn digest(&self) -> Digest {
        digest_of_fields(self.fields().into_iter().map(|(_, bytes)| bytes))
    }
}

/// The digest of a key whose fields, in the order of [`KernelKey::fields`], come from elsewhere than a [`KernelKey`].
pub(super) fn digest_of_fields<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update(SCHEMA.to_le_bytes());
    for bytes in fields {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    Digest(hasher.finalize().into())
}

/// A SHA-256, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of what was given to a hasher.
    pub fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = ();

    /// Reads exactly what [`fmt::Display`] writes, so that two spellings never name one digest.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(());
        }
        for (i, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| ())?;
        }
        Ok(Self(digest))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|()| format!("`{text}` is not a SHA-256 in 64 lower-case hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> KernelKey {
        KernelKey {
            source: "void k() {}".into(),
            options: vec!["-O3".into(), "-g".into()],
            target: "gfx1100".into(),
            entry: "k".into(),
            compiler_name: "hiprtc".into(),
            compiler: "c".into(),
        }
    }

    #[test]
    fn every_field_changes_the_digest() {
        let base = key();
        let changed = [
            KernelKey { source: "void k() { }".into(), ..key() },
            KernelKey { options: vec!["-g".into(), "-O3".into()], ..key() },
            KernelKey { options: vec!["-O3".into()], ..key() },
            KernelKey { target: "gfx1101".into(), ..key() },
            KernelKey { entry: "q".into(), ..key() },
            KernelKey { compiler_name: "sim".into(), ..key() },
            KernelKey { compiler: "d".into(), ..key() },
        ];
        for (i, other) in changed.iter().enumerate() {
            assert_ne!(base.digest(), other.digest(), "change {i}");
        }
    }

    #[test]
    fn fields_cannot_run_into_each_other() {
        let a = KernelKey { options: vec!["ab".into(), "c".into()], ..key() };
        let b = KernelKey { options: vec!["a".into(), "bc".into()], ..key() };
        assert_ne!(a.digest(), b.digest());
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        // The layout written out by hand: schema, then each field after its length.
        let mut bytes = 1u32.to_le_bytes().to_vec();
        for field in ["void k() {}", "gfx1100", "k", "hiprtc", "c", "-O3", "-g"] {
            bytes.extend((field.len() as u64).to_le_bytes());
            bytes.extend(field.as_bytes());
        }
        assert_eq!(key().digest(), Digest::of(&bytes));
    }

    #[test]
    fn a_digest_reads_back() {
        let digest = key().digest();
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!("xyz".parse::<Digest>(), Err(()));
        assert_eq!(digest.to_string().to_uppercase().parse::<Digest>(), Err(()));
        assert_eq!(format!("+{}", &Digest([0x0f; 32]).to_string()[1..]).parse::<Digest>(), Err(()));
    }
}
