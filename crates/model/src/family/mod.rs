//! A model family as a file: `models/<name>.toml`, whose format `models/README.md` describes.
//!
//! A file describes the family's checkpoints: dimensions with their keys and ranges; expected values, without which a
//! checkpoint is refused; tensors, their names in each format, their cut among devices, and how random ones are drawn;
//! published models by name; and a layer of the forward pass as a list of ops ([`layer`]), from which `graph/forward`
//! of `engine` makes nodes. `config` has the dimensions of one model; `checkpoint` reads all facts about tensors here.
//! [`known`] are the families of this process.

pub(crate) mod check;
mod error;
mod file;
pub mod known;
pub mod layer;
mod tensor;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Value;

pub use error::FamilyError;
pub use known::{known, named};
pub(crate) use tensor::{Draw, PairedRows, Pairs, Sharding, Spelled, Stack};
pub use tensor::{FamilyTensor, NamingScheme, StoredPiece};

use layer::{Operand, Statement};

use expression::{Expression, Scope};
use format;

/// A family's file, read: dimensions, tensors, published models and layers.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name, which is also its file's.
    pub name: String,
    /// Its file, as errors name it.
    path: String,
    /// What `model_type` is in `config.json`.
    pub(crate) model_types: Vec<String>,
    /// What `general.architecture` is in GGUF, after which the model's own keys stand.
    pub(crate) architectures: Vec<String>,
    /// How chats are written: `harmony`, or `template`, the checkpoint's own; where it is not said, the tokenizer
    /// tells.
    pub chat: Option<String>,
    /// The dimensions, which are whole numbers.
    pub dims: Vec<Dim>,
    pub numbers: Vec<Number>,
    /// Lists of whole numbers, which conditions ask for what is in them.
    pub(crate) lists: Vec<List>,
    /// What is computed of the dimensions, by name.
    pub(crate) facts: BTreeMap<String, Expression>,
    /// How positions become angles: first what layers turn by that do not say.
    pub(crate) ropes: Vec<Rope>,
    /// What `config.json` says, where it says it: by key, after a dot inside of an object.
    pub(crate) expected_in_json: BTreeMap<String, Expected>,
    /// What GGUF files say: by key, after the architecture's name.
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
    /// What is done before the layers, to the rows of the embedding.
    first: Vec<Statement>,
    /// What is done after the layers, to the rows that want logits.
    last: Vec<Statement>,
}

/// How positions become angles.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// What statements call its cosines and sines.
    pub(crate) name: String,
    /// The number that is the base.
    pub(crate) theta: String,
    /// How many values of a head rotate.
    pub(crate) dim: Expression,
    /// What stretches the context.
    pub(crate) scaling: RopeScaling,
    /// The tensor of GGUF files, if there is one, by which each pair's angle is divided.
    pub(crate) divisors: Option<String>,
    /// Where `config.json` has an object for each kind of layers, its key in `rope_parameters`.
    pub(crate) json: Option<String>,
}

/// What statements call the cosines and sines of `[rope]`.
pub const COS_SIN: &str = "cos_sin";

/// What stretches the context beyond the one that a model was trained with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RopeScaling {
    /// Nothing: files that say otherwise are refused.
    None,
    /// YaRN, as OpenAI computes it, or nothing if a file says so.
    Yarn {
        /// The number that is its factor.
        factor: String,
        /// The dimension that is the context's length before it.
        original: String,
    },
    /// All pairs slow down by a factor.
    Linear {
        /// The number that is its factor.
        factor: String,
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
    /// The number that is the factor.
    pub(crate) fn factor(&self) -> Option<&String> {
        match self {
            Self::None => None,
            Self::Linear { factor } | Self::Yarn { factor, .. } | Self::Llama3 { factor, .. } => Some(factor),
        }
    }

    /// The dimension that is the context's length before it.
    pub(crate) fn original(&self) -> Option<&String> {
        match self {
            Self::None | Self::Linear { .. } => None,
            Self::Yarn { original, .. } | Self::Llama3 { original, .. } => Some(original),
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
    /// Its keys in GGUF, after the architecture's name: the first that is there.
    pub(crate) gguf: Vec<String>,
    /// It is 1 for GGUF files that lack this tensor, and 0 for those that have it.
    pub(crate) gguf_lacks: Option<String>,
    /// It is 1 for GGUF files that have one of these tensors, and 0 for those that lack all; of none of these it is
    /// nothing.
    pub(crate) gguf_has: Vec<String>,
    /// What `null` means in `config.json`; elsewhere that is as good as nothing.
    pub(crate) null: Option<i64>,
    /// What it is where a file does not say: uses dimensions that have no default.
    pub(crate) default: Option<Expression>,
    /// It does not exceed this.
    pub(crate) at_most: Option<Expression>,
    pub(crate) multiple_of: Option<Expression>,
}

/// A number of a model that need not be whole.
#[derive(Clone, Debug)]
pub struct Number {
    pub name: String,
    /// It is finite and greater than this.
    pub(crate) above: f32,
    /// Its keys in `config.json`.
    pub(crate) json: Vec<String>,
    /// Its keys in GGUF, after the architecture's name.
    pub(crate) gguf: Vec<String>,
    /// What it is where a checkpoint does not say.
    pub(crate) default: Option<f64>,
    /// It is the square root of this, over the second one if there is one; no checkpoint says it.
    pub(crate) root: Option<(Expression, Option<Expression>)>,
}

/// Whole numbers of a model, as many as its file has; none if it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub(crate) name: String,
    /// Its keys in `config.json`.
    pub(crate) json: Vec<String>,
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

/// A published model: its name and its dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub(crate) name: String,
    /// Every dimension and every number but those that have a default.
    pub(crate) values: BTreeMap<String, f64>,
}

impl Family {
    /// The dimension of a name.
    pub(crate) fn dim(&self, name: &str) -> Option<&Dim> {
        self.dims.iter().find(|dim| dim.name == name)
    }

    /// The tensors for a statement's name: the one of this name, or those whose names continue it (`attn.qkv` for
    /// `attn.qkv.weight` and `attn.qkv.bias`, `mlp.mlp1` for `mlp.mlp1_weight`).
    pub fn tensors_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a FamilyTensor> {
        self.tensors.iter().filter(move |tensor| tensor.is_of(name))
    }

    /// Whether what an op makes with these tensors is a part of a sum, where several devices share them.
    pub(crate) fn is_summed(&self, name: &str) -> bool {
        self.tensors_of(name).any(|tensor| matches!(tensor.cut, Sharding::QueryHeadColumns | Sharding::FeatureColumns))
    }

    /// The tensor of a canonical name, or the tensor whose blocks have it as a parameter (a scale), and whether it is
    /// that.
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

    /// The layer of a tensor that has something for each expert, by its canonical name; none of all others.
    pub fn expert_layer(&self, name: &str) -> Option<usize> {
        let (layer, _) = name.strip_prefix("block.")?.split_once('.')?;
        layer.parse().ok().filter(|_| self.is_of_experts(name))
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

impl Statement {
    /// Whether the rows of these weights can be multiplied apart, as far as this statement uses them: it is nothing but
    /// one `linear`.
    pub(crate) fn leaves_rows_apart(&self, weights: &str) -> bool {
        let is_it = |operand: &Operand| matches!(operand, Operand::Weights(name) if name == weights);
        let is_linear = self.op == check::LINEAR && self.residual.is_none() && self.targets.len() == 1;
        is_linear || !self.args.iter().any(|arg| is_it(&arg.operand))
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

    /// The names of the ropes by which some layer turns.
    pub(crate) fn ropes(&self, dims: &Scope, n_layers: usize) -> BTreeSet<&str> {
        let statements = (0..n_layers).flat_map(|l| self.statements(dims, l));
        let turns = statements.filter(|statement| statement.op == check::ROPE_KV);
        turns
            .map(|statement| match statement.operand(COS_SIN) {
                Some(Operand::Value(name)) => name.as_str(),
                _ => COS_SIN,
            })
            .collect()
    }

    /// What is done before the layers, to the rows of the embedding.
    pub fn first(&self) -> &[Statement] {
        &self.first
    }

    /// What is done after the layers, to the rows that want logits.
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
