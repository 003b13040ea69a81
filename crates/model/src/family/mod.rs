//! A model family as a file: `models/<name>.toml`, whose format `models/README.md` describes.
//!
//! A file says what checkpoints of the family hold: the dimensions, their keys and ranges; what must be as expected or
//! the checkpoint is refused; the tensors, how each format spells them, how they are shared out among devices, how
//! random ones are drawn; the published models by name; and a layer of the forward pass as a list of ops ([`layer`]),
//! of which `engine`'s `graph/forward` makes nodes. `config` has the dimensions of one model, and `checkpoint` reads
//! everything that it knows of a tensor here. [`known`] are the families of this process.

pub(crate) mod check;
mod error;
mod file;
pub mod known;
pub mod layer;

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value;
use serde::Deserialize;

pub use error::FamilyError;
pub use known::{known, named};

use layer::{Operand, Statement};

use expression::{Expression, Scope};
use format;

/// A family.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name, which is also its file's.
    pub name: String,
    /// Its file, as errors name it.
    path: String,
    /// What `model_type` is in `config.json`.
    pub(crate) model_types: Vec<String>,
    /// What `general.architecture` is in GGUF, behind which the model's own keys stand.
    pub(crate) architectures: Vec<String>,
    /// How chats are written: `harmony`, or `template`, the checkpoint's own; where it is not said, the tokenizer
    /// tells.
    pub chat: Option<String>,
    /// The dimensions, which are whole numbers.
    pub dims: Vec<Dim>,
    pub numbers: Vec<Number>,
    /// What is computed of the dimensions, by name.
    pub(crate) facts: BTreeMap<String, Expression>,
    /// How positions become angles.
    pub(crate) rope: Rope,
    /// What `config.json` says, where it says it: by key, behind a dot inside of an object.
    pub(crate) expected_in_json: BTreeMap<String, Expected>,
    /// What GGUF files say: by key, behind the architecture's name.
    pub(crate) expected_in_gguf: BTreeMap<String, Expected>,
    /// The published models.
    pub shapes: Vec<Shape>,
    /// All tensors of a model, in the order of a `.bin` file.
    pub tensors: Vec<FamilyTensor>,
    pub forward: Forward,
}

/// A layer of the forward pass, from the residual stream `x` to `x`.
#[derive(Clone, Debug)]
pub struct Forward {
    layer: Vec<Statement>,
    /// What those of a number (`layer`) do for which a condition holds: the first that does.
    others: Vec<(Expression, Vec<Statement>)>,
    /// What is done behind the layers, to the rows that want logits.
    last: Vec<Statement>,
}

/// How positions become angles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rope {
    /// The number that is the base.
    pub(crate) theta: String,
    /// The dimension that says how many values of a head rotate.
    pub(crate) dim: String,
    /// What stretches the context.
    pub(crate) scaling: RopeScaling,
    /// The tensor of GGUF files, if there is one, by which each pair's angle is divided.
    pub(crate) divisors: Option<String>,
}

/// What stretches the context beyond the one that a model was trained with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RopeScaling {
    /// Nothing: files that say otherwise are refused.
    None,
    /// YaRN, as OpenAI computes it, or nothing where a file says so.
    Yarn {
        /// The number that is its factor.
        factor: String,
        /// The dimension that is the context's length before it.
        original: String,
    },
    /// As Llama 3.1 does: pairs that turn seldom within the context's length before it, slow down by a factor. Where
    /// that length is 0 all do, which is linear scaling; where the factor is 1 none does.
    Llama3 {
        /// The number that is its factor.
        factor: String,
        /// The number of turns below which pairs slow down by all of it.
        low: String,
        /// The number of turns from which on pairs stay.
        high: String,
        /// The dimension that is the context's length before it.
        original: String,
    },
}

impl RopeScaling {
    /// The number that is the factor, and the dimension that is the context's length before it.
    pub(crate) fn factor_and_original(&self) -> Option<(&String, &String)> {
        match self {
            Self::None => None,
            Self::Yarn { factor, original } | Self::Llama3 { factor, original, .. } => Some((factor, original)),
        }
    }
}

/// A dimension of a model.
#[derive(Clone, Debug)]
pub struct Dim {
    /// Its name, under which expressions know it.
    pub(crate) name: String,
    /// The least that it may be.
    pub(crate) min: i64,
    pub(crate) max: i64,
    /// Its keys in `config.json`: where it stands under several, it must be the same.
    pub(crate) json: Vec<String>,
    /// Its keys in GGUF, behind the architecture's name: the first that is there.
    pub(crate) gguf: Vec<String>,
    /// It is 1 for GGUF files that lack this tensor, and 0 for those that have it.
    pub(crate) gguf_lacks: Option<String>,
    /// It is 1 for GGUF files that have this tensor, and 0 for those that lack it.
    pub(crate) gguf_has: Option<String>,
    /// What `null` means in `config.json`; elsewhere that is as good as nothing.
    pub(crate) null: Option<i64>,
    /// What it is where a file does not say: uses dimensions that have no default.
    pub(crate) default: Option<Expression>,
    /// It does not exceed this.
    pub(crate) at_most: Option<Expression>,
    pub(crate) multiple_of: Option<Expression>,
}

/// A number of a model that need not be whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    pub name: String,
    /// It is finite and greater than this.
    pub(crate) above: f32,
    /// Its keys in `config.json`.
    pub(crate) json: Vec<String>,
    /// Its keys in GGUF, behind the architecture's name.
    pub(crate) gguf: Vec<String>,
    /// What it is where a checkpoint does not say.
    pub(crate) default: Option<f64>,
}

/// A value that must be as expected.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Text(String),
    Flag(bool),
    /// A number, within a millionth of it.
    Number(f64),
    /// A dimension, or what is computed of some.
    Dims(Expression),
}

/// A published model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub(crate) name: String,
    /// Every dimension and every number but those that have a default.
    pub(crate) values: BTreeMap<String, f64>,
}

/// A tensor that a model has once, or once in every layer.
#[derive(Clone, Debug)]
pub struct FamilyTensor {
    /// The canonical name; of a tensor in a layer, what follows `block.{l}.`.
    pub name: String,
    /// Whether every layer has one.
    pub(crate) per_layer: bool,
    /// Whether it is a matrix of all experts, which may be quantised.
    pub is_expert: bool,
    /// Whether it is left as it is where matrices are quantised.
    pub(crate) is_exact: bool,
    /// Only where this holds: over dimensions, and the number of the `layer`.
    when: Option<Expression>,
    /// Elements of each dimension, outermost first.
    shape: Vec<Expression>,
    /// What it is made of, by [`NamingScheme`].
    spelled: [Spelled; NamingScheme::ALL.len()],
    /// How stored tensors are put together where one stands for several.
    stack: Option<Stack>,
    /// Stored tensors of GGUF whose rows are in another order.
    pairs: Option<Pairs>,
    /// What a device has of it.
    pub(crate) cut: Sharding,
    /// How a random one is drawn.
    pub(crate) draw: Draw,
}

/// Where tensors have names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingScheme {
    /// OpenAI's original checkpoints, whose names are ours.
    OpenAi,
    /// Hugging Face's transformers.
    HuggingFace,
    /// GGUF files, as llama.cpp's converter writes them.
    Gguf,
    /// The same as Ollama's converter writes them: what a family does not name has the names of the others.
    Ollama,
}

impl NamingScheme {
    pub(crate) const ALL: [Self; 4] = [Self::OpenAi, Self::HuggingFace, Self::Gguf, Self::Ollama];
}

/// What a tensor is made of in a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// The tensor of this name, as it is.
    Same(String),
    /// Those of these names, put together as the tensor's [`Stack`] says.
    Stacked(Vec<String>),
    /// With its innermost two dimensions swapped; as it is in MXFP4.
    Transposed(String),
}

/// How stored tensors are put together.
#[derive(Clone, Debug)]
pub(crate) enum Stack {
    /// One behind the other; the number of rows of each.
    Rows(Vec<Expression>),
    /// Row by row in turn: each has as many as the others, of the second dimension.
    InTurn,
}

/// Stored tensors in whose heads neighbouring rows rotate together: row `2 i + s` of a head is row `s * rows / 2 + i`
/// of ours, where s is 0 or 1.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    /// Their names in GGUF.
    gguf: Vec<String>,
    /// Rows of a head.
    rows: Expression,
}

/// A stored tensor that one of the model's is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPiece<'a> {
    /// Its name; of a tensor in a layer, what follows the layer's number.
    pub name: &'a str,
    /// Its shape, outermost dimension first.
    pub(crate) shape: Vec<usize>,
    /// Rows of a head, where neighbouring ones rotate together.
    pub(crate) pairs: Option<usize>,
}

/// What a device has of a tensor that several share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Sharding {
    #[default]
    #[serde(rename = "whole")]
    Whole,
    /// Rows: of the query heads, of the key heads and of the value heads its own.
    #[serde(rename = "head rows")]
    HeadRows,
    /// Rows: of its query heads.
    #[serde(rename = "query head rows")]
    QueryHeadRows,
    /// Columns: of its query heads.
    #[serde(rename = "query head columns")]
    QueryHeadColumns,
    /// Rows of each expert: gates and ups, in turn, of its hidden features.
    #[serde(rename = "gate and up rows")]
    GateAndUpRows,
    /// Rows: all gates of its hidden features, then all ups.
    #[serde(rename = "gate rows, up rows")]
    GateRowsUpRows,
    /// Columns: of its hidden features, or their blocks.
    #[serde(rename = "feature columns")]
    FeatureColumns,
    /// Rows: of its ids, where the devices divide the vocabulary.
    #[serde(rename = "vocabulary rows")]
    VocabularyRows,
    /// All on the first device, zeros elsewhere: what is added once.
    #[serde(rename = "first device")]
    FirstDevice,
}

/// The uniform distribution of a random tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Draw {
    /// From `centre - reach` to `centre + reach`.
    Around { centre: f32, reach: f32 },
    /// Around 0, with this standard deviation.
    Deviation(f32),
    /// Around 0, with the standard deviation `1/sqrt(inputs)`, inputs being the last dimension: activations keep their
    /// size from layer to layer.
    Matrix,
}

impl Family {
    /// The dimension of a name.
    pub(crate) fn dim(&self, name: &str) -> Option<&Dim> {
        self.dims.iter().find(|dim| dim.name == name)
    }

    /// The tensors that a statement's name stands for: the one of this name, or those whose names go on behind it
    /// (`attn.qkv` for `attn.qkv.weight` and `attn.qkv.bias`, `mlp.mlp1` for `mlp.mlp1_weight`).
    pub fn tensors_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a FamilyTensor> {
        self.tensors.iter().filter(move |tensor| tensor.is_of(name))
    }

    /// Whether what an op makes with these tensors is a part of a sum, where several devices share them.
    pub(crate) fn is_summed(&self, name: &str) -> bool {
        self.tensors_of(name).any(|tensor| matches!(tensor.cut, Sharding::QueryHeadColumns | Sharding::FeatureColumns))
    }

    /// The tensor of a canonical name, or the one of whose blocks it is a parameter (a scale), and whether it is that.
    pub fn tensor(&self, name: &str) -> Option<(&FamilyTensor, bool)> {
        let inner = name.strip_prefix("block.").and_then(|rest| rest.split_once('.')).map(|(_, inner)| inner);
        let of = |is_it: &dyn Fn(&FamilyTensor, &str) -> bool| {
            self.tensors.iter().find(|tensor| match (tensor.per_layer, inner) {
                (true, Some(inner)) => is_it(tensor, inner),
                (false, _) => is_it(tensor, name),
                (true, None) => false,
            })
        };
        let parameters = || format::BlockFormat::all().iter().flat_map(|format| format.parameters);
        let is_beside = |tensor: &FamilyTensor, name: &str| {
            parameters().any(|parameter| parameter.name_beside(&tensor.name) == name)
        };
        let itself = of(&|tensor, name| tensor.name == name).map(|tensor| (tensor, false));
        itself.or_else(|| of(&is_beside).map(|tensor| (tensor, true)))
    }

    /// Whether a tensor of this canonical name has something for each expert, of which a token needs its own alone.
    pub(crate) fn is_of_experts(&self, name: &str) -> bool {
        let inner = name.strip_prefix("block.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, inner)| inner);
        let stems = self
            .tensors
            .iter()
            .filter(|tensor| tensor.is_expert)
            .filter_map(|tensor| tensor.name.strip_suffix("weight"));
        stems.into_iter().any(|stem| inner.starts_with(stem))
    }
}

impl Statement {
    /// Whether it gives a part of a sum, where several devices share the model.
    pub fn is_summed(&self, family: &Family) -> bool {
        let is_summed = |operand: &Operand| matches!(operand, Operand::Weights(name) if family.is_summed(name));
        self.args.iter().any(|arg| is_summed(&arg.operand))
    }
}

impl Forward {
    /// What layer `l` does in a model of these dimensions.
    pub fn statements(&self, dims: &Scope, l: usize) -> &[Statement] {
        let scope = Arc::new(in_layer(dims, l));
        // A condition that has no value is of a model that `check` refuses.
        let other = self.others.iter().find(|(when, _)| when.holds(&scope).unwrap_or(false));
        other.map_or(&self.layer, |(_, statements)| statements)
    }

    /// What is done behind the layers, to the rows that want logits.
    pub fn last(&self) -> &[Statement] {
        &self.last
    }
}

/// The same dimensions, and the number of a layer.
pub fn in_layer(dims: &Scope, l: usize) -> Scope {
    dims.with_scalars(&BTreeMap::from([("layer".to_owned(), l as u64)]))
}

/// The dimensions that every family has: the program itself computes with them.
pub(crate) const NEEDED: [&str; 4] = ["vocab_size", "hidden_size", "num_hidden_layers", "max_seq_len"];

/// The dimensions of a model, for expressions.
pub(crate) fn scope<'a>(dims: impl IntoIterator<Item = (&'a str, usize)>) -> Arc<Scope> {
    let known = dims.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
    Arc::new(Scope::new(known.collect()))
}

impl FamilyTensor {
    /// Whether a statement's name stands for it, or for it and others.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
    }

    /// The layers that have it in a model of these dimensions; of a tensor outside of the layers, 0 if there is one.
    pub(crate) fn layers(&self, dims: &Scope, n_layers: usize) -> Vec<usize> {
        let candidates = 0..if self.per_layer { n_layers } else { 1 };
        let Some(when) = &self.when else { return candidates.collect() };
        let holds = |l: &usize| when.holds(&Arc::new(in_layer(dims, *l))).unwrap_or_else(|error| panic!("{error}"));
        candidates.filter(holds).collect()
    }

    /// Its shape in a model of these dimensions, outermost first. They must lie in their ranges.
    pub fn shape(&self, dims: &Arc<Scope>) -> Vec<usize> {
        self.shape.iter().map(|expression| value(expression, dims)).collect()
    }

    /// What it is made of in a format.
    pub(crate) fn spelled(&self, format: NamingScheme) -> &Spelled {
        &self.spelled[format as usize]
    }

    /// How that is put together.
    pub(crate) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    fn piece<'a>(
        &self,
        name: &'a String,
        shape: Vec<usize>,
        format: NamingScheme,
        dims: &Arc<Scope>,
    ) -> StoredPiece<'a> {
        let is_paired = |pairs: &&Pairs| format == NamingScheme::Gguf && pairs.gguf.contains(name);
        let pairs = self.pairs.as_ref().filter(is_paired).map(|pairs| value(&pairs.rows, dims));
        StoredPiece { name, shape, pairs }
    }

    /// The stored tensors that it is made of in a format.
    pub fn pieces(&self, format: NamingScheme, dims: &Arc<Scope>) -> Vec<StoredPiece<'_>> {
        let shape = self.shape(dims);
        match (self.spelled(format), &self.stack) {
            (Spelled::Same(name), _) => vec![self.piece(name, shape, format, dims)],
            (Spelled::Transposed(name), _) => {
                let mut turned = shape.clone();
                turned.swap(shape.len() - 1, shape.len() - 2);
                vec![self.piece(name, turned, format, dims)]
            }
            (Spelled::Stacked(names), Some(Stack::Rows(rows))) => {
                let of = |rows: &Expression| [&[value(rows, dims)], &shape[1..]].concat();
                names.iter().zip(rows).map(|(name, rows)| self.piece(name, of(rows), format, dims)).collect()
            }
            (Spelled::Stacked(names), _) => {
                let mut part = shape.clone();
                part[1] /= names.len();
                names.iter().map(|name| self.piece(name, part.clone(), format, dims)).collect()
            }
        }
    }
}

/// Shapes are products of few dimensions, which are below 2^31.
fn value(expression: &Expression, dims: &Arc<Scope>) -> usize {
    let value = expression.whole(dims).unwrap_or_else(|error| panic!("{error}"));
    usize::try_from(value).unwrap_or(usize::MAX)
}
