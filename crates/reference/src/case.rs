//! An op's inputs and expected outputs, and how references read and write them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::tensor::Tensor;
use format::Dtype;

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
    /// The type that contracts call `activation`; f32 by default. Outputs are not rounded to it.
    pub activation: Option<Dtype>,
    /// The kind of random inputs, by a name that the op knows: for what the usual mixture meets rarely.
    pub inputs: Option<String>,
    /// The scalar arguments, `n_tokens` above all.
    pub scalars: BTreeMap<String, f64>,
}

/// A tensor as it should be after the op, and how much a kernel may differ.
///
/// A float `got` is right when `|got - want| <= atol + rtol * scale`, with the contract's `rtol` and `atol`; an integer
/// must be equal. Values are not rounded to the type in which a kernel stores them: comparisons add a rounding for
/// types narrower than f32 ([`Tensor::rounding`]).
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
        op: String,
        /// The ops that have one.
        known: String,
    },
    /// The case does not say something that the reference needs.
    #[error("the reference needs the {what} `{name}`, which the case does not give")]
    Missing {
        /// `dim`, `constant`, `flag`, `dtype`, `scalar` or `tensor`.
        what: &'static str,
        name: String,
    },
    /// No op of the run has inputs of that kind.
    #[error("there are no inputs `{kind}` of `{ops}`, only {known}")]
    UnknownInputs {
        kind: String,
        /// The ops, joined by `+`.
        ops: String,
        /// The kinds that they have.
        known: String,
    },
    /// The dimensions contradict each other.
    #[error("the dimensions of the case contradict each other: {why}")]
    Contradiction {
        /// What does not fit what.
        why: String,
    },
    /// It is not told what an op of a fused run hands to the next.
    #[error("`{op}` writes {}; in a fused run it hands on what the next op calls `{next}`, its `y`, or all that it writes", found.join(", "))]
    NotFusible {
        op: String,
        found: Vec<String>,
        /// What the next op begins with.
        next: &'static str,
    },
}

impl Case {
    pub(super) fn dim(&self, name: &str) -> Result<usize, ReferenceError> {
        self.dims.get(name).map(|&dim| dim as usize).ok_or_else(|| missing("dim", name))
    }

    pub(super) fn constant(&self, name: &str) -> Result<f64, ReferenceError> {
        self.constants.get(name).map(|&constant| constant.into()).ok_or_else(|| missing("constant", name))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ReferenceError> {
        self.flags.get(name).copied().ok_or_else(|| missing("flag", name))
    }

    pub(super) fn dtype(&self, name: &str) -> Result<Dtype, ReferenceError> {
        self.dtypes.get(name).copied().ok_or_else(|| missing("dtype", name))
    }

    pub(super) fn activation(&self) -> Dtype {
        self.activation.unwrap_or(Dtype::F32)
    }

    pub(super) fn number(&self, name: &str) -> Result<f64, ReferenceError> {
        self.scalars.get(name).copied().ok_or_else(|| missing("scalar", name))
    }

    pub(super) fn scalar(&self, name: &str) -> Result<usize, ReferenceError> {
        self.number(name).map(|value| value as usize)
    }

    pub(super) fn n_tokens(&self) -> Result<usize, ReferenceError> {
        self.scalar("n_tokens")
    }

    /// Whether inputs of this kind are asked for.
    pub(super) fn wants(&self, kind: &str) -> bool {
        self.inputs.as_deref() == Some(kind)
    }
}

impl Output {
    /// Values whose tolerance is relative to themselves.
    pub(super) fn plain(values: Vec<f64>) -> Self {
        let scale = values.iter().map(|value| value.abs()).collect();
        Self { values, scale }
    }

    /// Values, each with its scale.
    pub(super) fn scaled(pairs: Vec<(f64, f64)>) -> Self {
        let (values, scale) = pairs.into_iter().unzip();
        Self { values, scale }
    }
}

fn missing(what: &'static str, name: &str) -> ReferenceError {
    ReferenceError::Missing { what, name: name.to_owned() }
}

pub(super) fn tensor<'a>(tensors: &'a Tensors, name: &str) -> Result<&'a Tensor, ReferenceError> {
    tensors.get(name).ok_or_else(|| missing("tensor", name))
}

/// The places of the values, the largest first; of equal ones (0 and -0 are equal) the lower place.
pub(super) fn falling(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap_or(Ordering::Equal).then(a.cmp(&b)));
    order
}

/// Named tensors as a map.
pub(super) fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// The only tensor that an op writes.
pub(super) fn only(name: &str, output: Output) -> Outputs {
    Outputs::from([(name.to_owned(), output)])
}
