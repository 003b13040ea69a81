//! A model family as a file: `models/<name>.toml`, whose format `models/README.md` describes.
//!
//! What stands in the file today are the tensors: their shapes, how each format of checkpoints spells them, how they
//! are shared out among devices, and how random ones are drawn. `checkpoint` reads everything that it knows of a tensor
//! here. The dimensions are still those of [`ModelConfig`].

mod error;
mod file;

use std::sync::{Arc, LazyLock};

use minijinja::Value;

pub use error::FamilyError;

use crate::config::ModelConfig;
use crate::embedded;
use crate::template::expression::{Expression, Scope};

/// A family.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name, which is also its file's.
    pub name: String,
    /// All tensors of a model, in the order of a `.bin` file.
    pub tensors: Vec<FamilyTensor>,
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
    /// Behind each other: each has so many rows.
    Rows(Vec<Expression>),
    /// Row by row in turn: each has as many as the others, of the second dimension.
    InTurn,
}

/// What a device has of a tensor that several share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
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

    /// The tensor of a name.
    ///
    /// # Panics
    /// There is none.
    pub fn tensor(&self, name: &str) -> &FamilyTensor {
        self.tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .unwrap_or_else(|| panic!("{} has no `{name}`", self.name))
    }
}

impl FamilyTensor {
    /// Its shape in a model, outermost first. The dimensions must have passed [`ModelConfig::check`].
    pub fn shape(&self, config: &ModelConfig) -> Vec<usize> {
        self.shape.iter().map(|expression| value(expression, config)).collect()
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
    pub fn pieces(&self, format: Format, config: &ModelConfig) -> Vec<(&str, Vec<usize>)> {
        let shape = self.shape(config);
        match (self.spelled(format), &self.stack) {
            (Spelled::Same(name), _) => vec![(name, shape)],
            (Spelled::Transposed(name), _) => {
                let mut turned = shape.clone();
                turned.swap(shape.len() - 1, shape.len() - 2);
                vec![(name, turned)]
            }
            (Spelled::Stacked(names), Some(Stack::Rows(rows))) => {
                let of = |rows: &Expression| [&[value(rows, config)], &shape[1..]].concat();
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

/// Dimensions are below 2^31 where they were checked, and shapes are products of few of them.
fn value(expression: &Expression, config: &ModelConfig) -> usize {
    let known = config.dimensions().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
    let scope = Arc::new(Scope::new(known.collect()));
    let value = expression.whole(&scope).unwrap_or_else(|error| panic!("{error}"));
    usize::try_from(value).unwrap_or(usize::MAX)
}
