//! A tensor of a family: its names and shape in every format, and how it is assembled from them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;

use super::in_layer;
use expression::{Expression, Scope};

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
    pub(super) when: Option<Expression>,
    /// Elements of each dimension, outermost first.
    pub(super) shape: Vec<Expression>,
    /// What it is made of, by [`NamingScheme`].
    pub(super) spelled: [Spelled; NamingScheme::ALL.len()],
    /// How stored tensors are put together where one stands for several.
    pub(super) stack: Option<Stack>,
    /// Stored tensors whose rows are in another order.
    pub(super) pairs: Option<Pairs>,
    /// What is added to the numbers that a format stores, by [`NamingScheme`].
    pub(super) offset: [Option<f32>; NamingScheme::ALL.len()],
    /// What a device has of it.
    pub(crate) cut: Sharding,
    /// How a random one is drawn.
    pub(crate) draw: Draw,
}

/// The schemes of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingScheme {
    /// OpenAI's original checkpoints, whose names are ours.
    OpenAi,
    /// Hugging Face's transformers.
    HuggingFace,
    /// GGUF files, as llama.cpp's converter writes them.
    Gguf,
    /// The same where one tensor is what are several elsewhere, as some converters write them: what a family does not
    /// name has the names of the others.
    Fused,
}

impl NamingScheme {
    pub(crate) const ALL: [Self; 4] = [Self::OpenAi, Self::HuggingFace, Self::Gguf, Self::Fused];
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

/// What stands for an expert's number, in names of tensors that each expert has.
pub(crate) const EXPERT: &str = "{e}";

/// How stored tensors are put together.
#[derive(Clone, Debug)]
pub(crate) enum Stack {
    /// One after the other; the number of rows of each.
    Rows(Vec<Expression>),
    /// Row by row in turn: each has as many as the others, of the second dimension.
    InTurn,
}

/// Stored tensors in whose heads neighbouring rows rotate together.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    /// Their names in Hugging Face's files.
    pub(super) hf: Vec<String>,
    /// Their names in GGUF.
    pub(super) gguf: Vec<String>,
    /// Rows of a head.
    pub(super) rows: Expression,
    /// Those of them that rotate, from the first on.
    pub(super) rotated: Expression,
}

/// The order of the rows of a stored tensor's heads: row `2 i + s` of those that rotate is row `s * rows / 2 + i` of
/// ours, where s is 0 or 1; the others fill the rest of both halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairedRows {
    /// Rows of a head.
    pub(crate) rows: usize,
    /// Those of them that rotate.
    pub(crate) rotated: usize,
    /// Rows of all heads that are so; those after them stay.
    pub(crate) end: usize,
}

impl PairedRows {
    /// The stored row that becomes row `r`.
    pub(crate) fn stored(&self, r: usize) -> usize {
        if r >= self.end {
            return r;
        }
        let (half, turned) = (self.rows / 2, self.rotated / 2);
        let (head, row) = (r / self.rows, r % self.rows);
        let (s, i) = (row / half, row % half);
        head * self.rows + if i < turned { 2 * i + s } else { self.rotated + s * (half - turned) + i - turned }
    }
}

/// A stored tensor that one of the model's is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPiece<'a> {
    /// Its name; of a tensor in a layer, what follows the layer's number.
    pub name: Cow<'a, str>,
    /// Its shape, outermost dimension first.
    pub(crate) shape: Vec<usize>,
    /// The order of its rows, where neighbouring ones rotate together.
    pub(crate) pairs: Option<PairedRows>,
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
    /// Nothing, since it cannot be cut: there is one device alone.
    #[serde(rename = "one device")]
    OneDevice,
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

impl FamilyTensor {
    /// Whether a statement's name stands for it, or for it and others.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
    }

    /// Its canonical name, in the layer that the canonical name of another tensor says.
    pub(crate) fn canonical_beside(&self, other: &str) -> String {
        let layer = other.strip_prefix("block.").and_then(|rest| rest.split_once('.')).map(|(layer, _)| layer);
        match layer.filter(|_| self.per_layer) {
            Some(layer) => format!("block.{layer}.{}", self.name),
            None => self.name.clone(),
        }
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

    /// The names of the stored tensors that it is made of in a format, as the family's file has them.
    pub fn names(&self, format: NamingScheme) -> &[String] {
        self.spelled(format).names()
    }

    fn piece<'a>(
        &self,
        name: &'a String,
        shape: Vec<usize>,
        format: NamingScheme,
        dims: &Arc<Scope>,
    ) -> StoredPiece<'a> {
        let pairs = self.pairs.as_ref().and_then(|pairs| {
            let end = match format {
                NamingScheme::HuggingFace if pairs.hf.contains(name) => shape[0],
                NamingScheme::Gguf | NamingScheme::Fused if pairs.gguf.contains(name) => shape[0],
                NamingScheme::Fused if !self.names(NamingScheme::Gguf).contains(name) => {
                    self.rows_in_pairs(pairs, dims)
                }
                _ => return None,
            };
            let [rows, rotated] = [&pairs.rows, &pairs.rotated].map(|of| value(of, dims));
            Some(PairedRows { rows, rotated, end })
        });
        StoredPiece { name: Cow::Borrowed(name), shape, pairs }
    }

    /// The first rows of what is one tensor where GGUF may have several: those of the pieces that are in pairs there.
    fn rows_in_pairs(&self, pairs: &Pairs, dims: &Arc<Scope>) -> usize {
        let Some(Stack::Rows(rows)) = &self.stack else { return 0 };
        let pieces = self.names(NamingScheme::Gguf).iter().zip(rows);
        pieces.take_while(|(name, _)| pairs.gguf.contains(name)).map(|(_, rows)| value(rows, dims)).sum()
    }

    /// What is added to the numbers that a format stores.
    pub(crate) fn offset(&self, format: NamingScheme) -> Option<f32> {
        self.offset[format as usize]
    }

    /// The stored tensors that it is made of in a format.
    pub(crate) fn pieces(&self, format: NamingScheme, dims: &Arc<Scope>) -> Vec<StoredPiece<'_>> {
        let shape = self.shape(dims);
        let names = self.names(format);
        if names.iter().any(|name| name.contains(EXPERT)) {
            let mut of_one = shape[1..].to_vec();
            of_one[0] /= names.len();
            let of = |e: usize| {
                let named = move |name: &String| Cow::Owned(name.replace(EXPERT, &e.to_string()));
                let shape = of_one.clone();
                names.iter().map(move |name| StoredPiece { name: named(name), shape: shape.clone(), pairs: None })
            };
            return (0..shape[0]).flat_map(of).collect();
        }
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

impl Spelled {
    pub(crate) fn names(&self) -> &[String] {
        match self {
            Self::Same(name) | Self::Transposed(name) => std::slice::from_ref(name),
            Self::Stacked(names) => names,
        }
    }
}

/// Shapes are products of few dimensions, which are below 2^31.
fn value(expression: &Expression, dims: &Arc<Scope>) -> usize {
    let value = expression.whole(dims).unwrap_or_else(|error| panic!("{error}"));
    usize::try_from(value).unwrap_or(usize::MAX)
}
