//! A bundle's description of itself: `manifest.json`, its last file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::object::key::Digest;

/// The version of the manifest and of the index after it.
pub const FORMAT: u32 = 1;

/// All of it. Nothing in it depends on when or where it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub schema: u32,
    /// The program that made it.
    pub version: String,
    /// The models that it is for, as they were named.
    pub models: Vec<String>,
    /// How exactly sums are done, for each of the models.
    pub precisions: Vec<String>,
    /// Of all templates, those of folders included, by [`digest_of_files`].
    pub templates_sha256: Digest,
    /// Of all tuning tables.
    pub tuning_sha256: Digest,
    pub targets: Vec<BundleTarget>,
    /// By target, and in the order in which loading a model asks for them.
    pub kernels: Vec<BundledKernel>,
}

/// A target of the bundle, and its compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleTarget {
    /// As a kernel's key has it: `gfx1100`, `x86-64-v4+amx_bf16+avx512bf16`.
    pub target: String,
    /// The kind of compiler: `host`, `hiprtc`, `nvrtc`.
    pub backend: String,
    /// The identity of the compiler, which is no part of the keys here.
    pub compiler: String,
    /// The compiler, for people.
    pub compiler_description: String,
}

/// A kernel in a bundle: its key, and what it was rendered for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledKernel {
    /// The digest of its key without the compiler's identity; the object is the file `objects/KEY`.
    pub key: Digest,
    /// What people call it: `linear/gemv`.
    pub label: String,
    /// The parameters of its template.
    pub params: BTreeMap<String, u32>,
    /// Index of the target.
    pub target: usize,
    /// The name of the kernel in the object.
    pub entry: String,
    /// Compiler options, in order.
    pub options: Vec<String>,
    /// Of the rendered text, which is the file `sources/SHA256`.
    pub source_sha256: Digest,
    /// The object; none if it did not compile and the next choice replaces it.
    pub object: Option<BundledObject>,
}

/// The bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundledObject {
    pub len_bytes: u64,
    pub sha256: Digest,
}

/// The digest of files by name: each name and each text after its length.
pub fn digest_of_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Digest {
    let files: BTreeMap<&str, &str> = files.into_iter().collect();
    let mut hasher = Sha256::new();
    for text in files.iter().flat_map(|(name, text)| [name, text]) {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    Digest::finish(hasher)
}
