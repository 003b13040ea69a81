//! What every op should give: plain loops in f64, written from the formulas, and valid random inputs for them.
//!
//! This knows element types and dimensions, nothing of templates, kernels or devices; the contracts (`op.toml`) state
//! shapes and layouts. [`dense`], [`attention`], [`moe`] and [`sample`] hold the ops. What is compared with what
//! comes out of here is said in [`Output`].

mod attention;
mod dense;
mod moe;
mod random;
mod sample;
mod tensor;

use std::collections::BTreeMap;

pub use tensor::Tensor;

use crate::dtype::Dtype;
use random::Random;

/// Tensors by the names of a contract's arguments.
pub type Tensors = BTreeMap<String, Tensor>;

/// What an op should give, by the names of the arguments that it writes.
pub type Outputs = BTreeMap<String, Output>;

/// One problem of an op, or of a run of fused ops: everything that its contract leaves open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// The contract's `[dims]`.
    pub dims: BTreeMap<String, u32>,
    /// The contract's `[constants]`.
    pub constants: BTreeMap<String, f32>,
    /// The contract's `[flags]`.
    pub flags: BTreeMap<String, bool>,
    /// The contract's `[dtypes]`.
    pub dtypes: BTreeMap<String, Dtype>,
    /// The whole-number scalar arguments, `n_tokens` above all.
    pub scalars: BTreeMap<String, u64>,
}

/// A tensor as it should be after the op, and how much a kernel may differ.
///
/// A float `got` is right when `|got - want| <= atol + rtol * scale`, with the contract's `rtol` and `atol`; an integer
/// must be equal. Values are not rounded to the type in which a kernel stores them: who compares grants a type
/// narrower than f32 its rounding ([`Tensor::unit_roundoff`]) on top.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Every element, in the contract's order.
    pub values: Vec<f64>,
    /// What the relative tolerance is relative to, for every element: the sum of the terms' sizes where terms can
    /// cancel, else the value's size. Infinite where the contract leaves the element open.
    pub scale: Vec<f64>,
}

/// A case that the references cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// There is no reference of that op.
    #[error("there is no reference for the op `{op}`, only for {known}")]
    UnknownOp {
        /// What was asked for.
        op: String,
        /// The ops that have one.
        known: String,
    },
    /// The case does not say something that the reference needs.
    #[error("the reference needs the {what} `{name}`, which the case does not give")]
    Missing {
        /// `dim`, `constant`, `flag`, `dtype`, `scalar` or `tensor`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The dimensions contradict each other.
    #[error("the dimensions of the case contradict each other: {why}")]
    Contradiction {
        /// What does not fit what.
        why: String,
    },
    /// An op that is not the last of a fused run has to write one tensor.
    #[error("`{op}` writes {found} tensors; only an op that writes one can be followed by another in a fused run")]
    NotFusible {
        /// The op.
        op: String,
        /// How many it writes.
        found: usize,
    },
}

/// An op's entry in the table of references.
struct Op {
    name: &'static str,
    /// Its first argument: what a fused op before it hands over.
    first: &'static str,
    inputs: fn(&Case, &mut Random) -> Result<Tensors, ReferenceError>,
    run: fn(&Case, &Tensors) -> Result<Outputs, ReferenceError>,
}

const OPS: [Op; 11] = [
    Op { name: "embedding", first: "table", inputs: dense::embedding_inputs, run: dense::embedding },
    Op { name: "rmsnorm", first: "x", inputs: dense::rmsnorm_inputs, run: dense::rmsnorm },
    Op { name: "linear", first: "x", inputs: dense::linear_inputs, run: dense::linear },
    Op { name: "rope_angles", first: "inv_freq", inputs: attention::rope_angles_inputs, run: attention::rope_angles },
    Op { name: "rope_kv", first: "qkv", inputs: attention::rope_kv_inputs, run: attention::rope_kv },
    Op { name: "attention", first: "qkv", inputs: attention::attention_inputs, run: attention::attention },
    Op { name: "moe_route", first: "logit", inputs: moe::route_inputs, run: moe::route },
    Op { name: "moe_sort", first: "expert", inputs: moe::sort_inputs, run: moe::sort },
    Op { name: "moe_mlp1", first: "x", inputs: moe::mlp1_inputs, run: moe::mlp1 },
    Op { name: "moe_mlp2", first: "x", inputs: moe::mlp2_inputs, run: moe::mlp2 },
    Op { name: "sample", first: "logit", inputs: sample::inputs, run: sample::sample },
];

/// Random inputs that are valid for an op or a fused run, rounded to the arguments' types, so that the reference and a
/// kernel see the same numbers. Tensors that are only written are not among them.
///
/// # Errors
/// If an op has no reference, or the case does not fit it.
pub fn inputs(ops: &[String], case: &Case, seed: u64) -> Result<Tensors, ReferenceError> {
    let mut random = Random::new(seed);
    let mut all = Tensors::new();
    for (i, name) in ops.iter().enumerate() {
        let op = find(name)?;
        let mut own = (op.inputs)(case, &mut random)?;
        if i > 0 {
            own.remove(op.first);
        }
        all.extend(own);
    }
    Ok(all)
}

/// What an op or a fused run should give. What one op of a run hands to the next is not rounded.
///
/// # Errors
/// If an op has no reference, the case does not fit it, or an input is missing.
pub fn run(ops: &[String], case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let mut inputs = inputs.clone();
    let mut outputs = Outputs::new();
    for (i, name) in ops.iter().enumerate() {
        let op = find(name)?;
        if i > 0 {
            let found = outputs.len();
            let handed = outputs.pop_first().filter(|_| found == 1);
            let (_, handed) = handed.ok_or_else(|| ReferenceError::NotFusible { op: ops[i - 1].clone(), found })?;
            inputs.insert(op.first.to_owned(), Tensor::unrounded(Dtype::F32, handed.values));
        }
        outputs = (op.run)(case, &inputs)?;
    }
    Ok(outputs)
}

fn find(name: &str) -> Result<&'static Op, ReferenceError> {
    OPS.iter()
        .find(|op| op.name == name)
        .ok_or_else(|| ReferenceError::UnknownOp { op: name.to_owned(), known: OPS.map(|op| op.name).join(", ") })
}

impl Case {
    fn dim(&self, name: &str) -> Result<usize, ReferenceError> {
        self.dims.get(name).map(|&dim| dim as usize).ok_or_else(|| missing("dim", name))
    }

    fn constant(&self, name: &str) -> Result<f64, ReferenceError> {
        self.constants.get(name).map(|&constant| constant.into()).ok_or_else(|| missing("constant", name))
    }

    fn flag(&self, name: &str) -> Result<bool, ReferenceError> {
        self.flags.get(name).copied().ok_or_else(|| missing("flag", name))
    }

    fn dtype(&self, name: &str) -> Result<Dtype, ReferenceError> {
        self.dtypes.get(name).copied().ok_or_else(|| missing("dtype", name))
    }

    fn n_tokens(&self) -> Result<usize, ReferenceError> {
        self.scalars.get("n_tokens").map(|&n| n as usize).ok_or_else(|| missing("scalar", "n_tokens"))
    }
}

impl Output {
    /// Values whose tolerance is relative to themselves.
    fn plain(values: Vec<f64>) -> Self {
        let scale = values.iter().map(|value| value.abs()).collect();
        Self { values, scale }
    }

    /// Values, each with its scale.
    fn scaled(pairs: Vec<(f64, f64)>) -> Self {
        let (values, scale) = pairs.into_iter().unzip();
        Self { values, scale }
    }
}

fn missing(what: &'static str, name: &str) -> ReferenceError {
    ReferenceError::Missing { what, name: name.to_owned() }
}

fn tensor<'a>(tensors: &'a Tensors, name: &str) -> Result<&'a Tensor, ReferenceError> {
    tensors.get(name).ok_or_else(|| missing("tensor", name))
}

/// Named tensors as a map.
fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// The only tensor that an op writes.
fn only(name: &str, output: Output) -> Outputs {
    Outputs::from([(name.to_owned(), output)])
}
