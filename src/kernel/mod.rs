//! From a template to an object: choose, render, key, compile or find in the cache.
//!
//! - [`contract`]: what an op is (`op.toml`); [`signature`]: the arguments of a run of fused ops
//! - [`template`]: what a template says of itself (front matter), and whether it fits
//! - [`expression`]: the whole numbers and conditions in both
//! - [`library`]: where templates come from, what shadows what, which are candidates
//! - [`render`]: a template, a problem, parameters and a target in; self-contained source out, with its [`launch`]
//! - [`choice`]: which template with which parameters, by the tuning tables
//! - [`key`]: everything that can change the bytes a compiler returns
//! - [`compile`]: worker processes around `cc` and hipRTC
//! - [`cache`]: the on-disk cache of objects
//! - [`store`]: key → cached or freshly compiled object, many at once
//! - [`pipeline`]: all of that, and loading onto a device: what the graph asks
//! - [`check`]: every template on every test shape against [`crate::reference`]
//! - [`work`]: what a launch has to do at least; [`timing`]: how long it takes
//! - [`work`]: what a launch has to do at least
//! - [`resources`]: what a compiled GPU kernel uses, against its contract and its template's limits
//! - [`isa`]: what the compiler made of a template: disassembly, loops, predicted cycles
//!
//! Nothing here knows the forward pass: that is [`crate::graph`].

pub mod cache;
pub mod check;
pub mod choice;
pub mod compile;
pub mod contract;
mod declaration;
mod environment;
pub mod expression;
mod front_matter;
pub mod isa;
pub mod key;
pub mod launch;
mod lib_header;
pub mod library;
pub mod library_error;
mod names;
mod options;
pub mod params;
pub mod pipeline;
pub mod render;
pub mod resources;
pub mod signature;
pub mod source_file;
pub mod store;
pub mod template;
pub mod timing;
pub mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;

/// How exactly sums are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The seeds' parity mode: f32 storage, sums in index order, no fast math.
    F32,
    /// Matrix units, f32 accumulation, f32 residual stream.
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
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a node of the graph asks for: everything about it that a rendered kernel may depend on.
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
    /// How exactly sums are done.
    pub precision: Precision,
    /// Of a run, the tensors between its ops that others need: `rmsnorm.y`.
    pub keeps: BTreeSet<String>,
}

/// Tuned parameters of a template, by name.
pub type Params = BTreeMap<String, u32>;
