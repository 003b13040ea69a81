//! A model family as a file: `models/<name>.toml`, whose format `models/README.md` describes.
//!
//! A file says what checkpoints of the family hold: the dimensions, their keys and ranges; what must be as expected or
//! the checkpoint is refused; the tensors, how each format spells them, how they are shared out among devices, how
//! random ones are drawn; and the published models by name. `config` has the dimensions of one model, and `checkpoint`
//! reads everything that it knows of a tensor here. The forward pass is Rust (`graph/forward.rs`).

mod error;
mod file;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use minijinja::Value;
use serde::Deserialize;

pub use error::FamilyError;

use crate::embedded;
use crate::template::expression::{Expression, Scope};

/// A family.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name, which is also its file's.
    pub name: String,
    /// The dimensions, which are whole numbers.
    pub dims: Vec<Dim>,
    /// The other numbers.
    pub numbers: Vec<Number>,
    /// What `config.json` says, where it says it: by key, behind a dot inside of an object.
    pub expected_in_json: BTreeMap<String, Expected>,
    /// What GGUF files say: by key, behind the architecture's name.
    pub expected_in_gguf: BTreeMap<String, Expected>,
    /// The published models.
    pub shapes: Vec<Shape>,
    /// All tensors of a model, in the order of a `.bin` file.
    pub tensors: Vec<FamilyTensor>,
}

/// A dimension of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    /// Its name, under which expressions know it.
    pub name: String,
    /// The least that it may be.
    pub min: i64,
    /// The most.
    pub max: i64,
    /// Its keys in `config.json`: where it stands under several, it must be the same.
    pub json: Vec<String>,
    /// Its keys in GGUF, behind the architecture's name: the first that is there.
    pub gguf: Vec<String>,
    /// What `null` means in `config.json`; elsewhere that is as good as nothing.
    pub null: Option<i64>,
}

/// A number of a model that need not be whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// Its name.
    pub name: String,
    /// It is finite and greater than this.
    pub above: f32,
    /// What it is where a checkpoint does not say.
    pub default: Option<f64>,
}

/// A value that must be as expected.
#[derive(Clone, Debug)]
pub enum Expected {
    /// A text.
    Text(String),
    /// True or false.
    Flag(bool),
    /// A number, within a millionth of it.
    Number(f64),
    /// A dimension, or what is computed of some.
    Dims(Expression),
}

/// A published model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// Every dimension and every number.
    pub values: BTreeMap<String, f64>,
}

/// A tensor that a model has once, or once in every layer.
#[derive(Clone, Debug)]
pub struct FamilyTensor {
    /// The canonical name; of a tensor in a layer, what follows `block.{l}.`.
    pub name: String,
    /// Whether every layer has one.
    pub per_layer: bool,
    /// Whether it is a matrix of all experts, which may be quantised.
    pub is_expert: bool,
    /// Elements of each dimension, outermost first.
    shape: Vec<Expression>,
    /// What it is made of, by [`Format`].
    spelled: [Spelled; Format::ALL.len()],
    /// How stored tensors are put together where one stands for several.
    stack: Option<Stack>,
    /// What a device has of it.
    pub cut: Cut,
    /// How a random one is drawn.
    pub draw: Draw,
}

/// Where tensors have names of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenAI's original checkpoints, whose names are ours.
    OpenAi,
    /// Hugging Face's transformers.
    HuggingFace,
    /// GGUF files, as llama.cpp's converter writes them.
    Gguf,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OpenAi, Self::HuggingFace, Self::Gguf];
}

/// What a tensor is made of in a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spelled {
    /// The tensor of this name, as it is.
    Same(String),
    /// Those of these names, put together as the tensor's [`Stack`] says.
    Stacked(Vec<String>),
    /// With its innermost two dimensions swapped; as it is in MXFP4.
    Transposed(String),
}

/// How stored tensors are put together.
#[derive(Clone, Debug)]
pub enum Stack {
    /// One behind the other; the number of rows of each.
    Rows(Vec<Expression>),
    /// Row by row in turn: each has as many as the others, of the second dimension.
    InTurn,
}

/// What a device has of a tensor that several share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Cut {
    /// All of it.
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
pub enum Draw {
    /// From `centre - reach` to `centre + reach`.
    Around {
        /// The middle.
        centre: f32,
        /// Half the width.
        reach: f32,
    },
    /// Around 0, with this standard deviation.
    Deviation(f32),
    /// Around 0, with the standard deviation `1/sqrt(inputs)`, inputs being the last dimension: activations keep their
    /// size from layer to layer.
    Matrix,
}

impl Family {
    /// OpenAI's gpt-oss.
    pub fn gpt_oss() -> &'static Self {
        static FAMILY: LazyLock<Family> = LazyLock::new(|| {
            let (name, text) =
                embedded::MODELS.iter().find(|(name, _)| *name == "gpt-oss.toml").expect("it is built in");
            Family::read(&format!("<built in>/{name}"), text).unwrap_or_else(|error| panic!("{error}"))
        });
        &FAMILY
    }

    /// The dimension of a name.
    ///
    /// # Panics
    /// There is none.
    pub fn dim(&self, name: &str) -> &Dim {
        let found = self.dims.iter().find(|dim| dim.name == name);
        found.unwrap_or_else(|| panic!("{} has no `{name}`", self.name))
    }

    /// The number of a name.
    ///
    /// # Panics
    /// There is none.
    pub fn number(&self, name: &str) -> &Number {
        let found = self.numbers.iter().find(|number| number.name == name);
        found.unwrap_or_else(|| panic!("{} has no `{name}`", self.name))
    }
}

/// The dimensions of a model, for expressions.
pub fn scope<'a>(dims: impl IntoIterator<Item = (&'a str, usize)>) -> Arc<Scope> {
    let known = dims.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
    Arc::new(Scope::new(known.collect()))
}

impl FamilyTensor {
    /// Its shape in a model of these dimensions, outermost first. They must lie in their ranges.
    pub fn shape(&self, dims: &Arc<Scope>) -> Vec<usize> {
        self.shape.iter().map(|expression| value(expression, dims)).collect()
    }

    /// What it is made of in a format.
    pub fn spelled(&self, format: Format) -> &Spelled {
        &self.spelled[format as usize]
    }

    /// How that is put together.
    pub fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    /// The names and shapes of the stored tensors that it is made of in a format.
    pub fn pieces(&self, format: Format, dims: &Arc<Scope>) -> Vec<(&str, Vec<usize>)> {
        let shape = self.shape(dims);
        match (self.spelled(format), &self.stack) {
            (Spelled::Same(name), _) => vec![(name, shape)],
            (Spelled::Transposed(name), _) => {
                let mut turned = shape.clone();
                turned.swap(shape.len() - 1, shape.len() - 2);
                vec![(name, turned)]
            }
            (Spelled::Stacked(names), Some(Stack::Rows(rows))) => {
                let of = |rows: &Expression| [&[value(rows, dims)], &shape[1..]].concat();
                names.iter().map(String::as_str).zip(rows.iter().map(of)).collect()
            }
            (Spelled::Stacked(names), _) => {
                let mut part = shape.clone();
                part[1] /= names.len();
                names.iter().map(|name| (name.as_str(), part.clone())).collect()
            }
        }
    }
}

/// Shapes are products of few dimensions, which are below 2^31.
fn value(expression: &Expression, dims: &Arc<Scope>) -> usize {
    let value = expression.whole(dims).unwrap_or_else(|error| panic!("{error}"));
    usize::try_from(value).unwrap_or(usize::MAX)
}
