//! A kernel's task: the problem, the precision, and the tuned parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use format::Dtype;

/// How kernels sum, and the type that activations are stored in: `--precision` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 storage, sums in index order and no fast math, as in gpt-oss-amd.
    F32,
    /// Matrix units, f32 accumulation and residual stream; other activations in bf16, the type of matrix units.
    Bf16,
}

impl Precision {
    /// The name used in templates and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// The type of what a contract calls `activation`.
    pub const fn activation(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A node's problem: everything about it that a rendered kernel may depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// One op, or the run of ops that a fused template covers.
    pub ops: Vec<String>,
    /// The contract's `[dims]`.
    pub dims: BTreeMap<String, u32>,
    /// The contract's `[constants]`.
    pub constants: BTreeMap<String, f32>,
    /// The contract's `[flags]`.
    pub flags: BTreeMap<String, bool>,
    /// The contract's `[dtypes]`.
    pub dtypes: BTreeMap<String, Dtype>,
    pub precision: Precision,
    /// Of a run, the tensors between its ops that others need: `rmsnorm.y`.
    pub keeps: BTreeSet<String>,
}

impl Problem {
    /// Of an op that leaves nothing open but the precision.
    pub fn plain(op: &str, precision: Precision) -> Self {
        let (dims, constants, flags) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (ops, dtypes, keeps) = (vec![op.to_owned()], BTreeMap::new(), BTreeSet::new());
        Self { ops, dims, constants, flags, dtypes, precision, keeps }
    }

    /// SHA-256 of everything that a rendered kernel may depend on, in hex: two problems with one are the same.
    pub fn identity(&self) -> String {
        let Self { ops, dims, constants, flags, dtypes, precision, keeps } = self;
        let mut text = format!("ops {ops:?}\nprecision {precision}\nkeeps {keeps:?}\n");
        text.extend(dims.iter().map(|(name, value)| format!("dim {name} {value}\n")));
        text.extend(constants.iter().map(|(name, value)| format!("constant {name} {:08x}\n", value.to_bits())));
        text.extend(flags.iter().map(|(name, value)| format!("flag {name} {value}\n")));
        text.extend(dtypes.iter().map(|(name, dtype)| format!("dtype {name} {dtype}\n")));
        sha256_hex(text.as_bytes())
    }
}

/// SHA-256 of some bytes, in hex, as tables have it.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tuned parameters of a template, by name.
pub type Params = BTreeMap<String, u32>;
