//! Tensors that keep the type of their file, and matrices whose pieces do.
//!
//! A matrix that a file has in pieces, such as those of queries, keys and values, can have them in several types. Its
//! pieces are then tensors of their own: of `block.0.attn.qkv.weight`, `block.0.attn.qkv.0.weight` has the rows of the
//! first type, and so on; a bias is divided in the same way.

use std::collections::BTreeMap;
use std::ops::Range;

use super::slice::{Cut, Slice};
use super::stored::Number;
use super::{Checkpoint, Elements, Tensor};
use crate::family::{Family, FamilyTensor};
use format::Dtype;

/// The types that tensors keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StoredWeights {
    /// Block formats such as Q8_0 and Q4_K stay; all else has the type that the precision wants
    #[default]
    Blocks,
    /// Every tensor keeps its file's type, f16 matrices too
    All,
    /// Everything is widened to bf16 or f32
    None,
}

impl StoredWeights {
    /// The type of numbers that they keep; `None` where they do not.
    pub(crate) fn of(self, number: Number) -> Option<Dtype> {
        let in_blocks = number.format().map(|format| format.dtype);
        match self {
            Self::Blocks => in_blocks,
            Self::All => number.dtype().or(in_blocks),
            Self::None => None,
        }
    }
}

/// Of a tensor that is a piece of a matrix: the name of the whole, and which of its pieces this is.
pub fn piece(family: &Family, name: &str) -> Option<(String, usize)> {
    let (stem, argument) = name.rsplit_once('.')?;
    let (stem, number) = stem.rsplit_once('.')?;
    let whole = format!("{stem}.{argument}");
    let number = number.parse().ok()?;
    (family.tensor(name).is_none() && family.tensor(&whole).is_some()).then_some((whole, number))
}

/// The name of a piece of a tensor.
pub fn name_of_piece(whole: &str, number: usize) -> String {
    let (stem, argument) = whole.rsplit_once('.').unwrap_or(("", whole));
    format!("{stem}.{number}.{argument}")
}

impl Checkpoint {
    /// The same model with tensors in their file's types, as far as `kept` says so: blocks of a format stay codes and
    /// parameters, and tensors widened to f32 get their old type back. A matrix with pieces of several types that one
    /// `linear` alone reads is stored in pieces. Other tensors whose pieces differ, and vectors in f16, which kernels
    /// take only as matrices, stay as they are here.
    pub fn as_stored(&self, kept: StoredWeights) -> Self {
        let (mut tensors, mut divided) = (BTreeMap::new(), Vec::new());
        let mut insert = |tensor: Tensor| {
            tensors.insert(tensor.name.clone(), tensor);
        };
        for tensor in self.tensors.values() {
            let pieces = self.pieces(tensor, kept);
            if pieces.is_empty() {
                tensor.as_stored(kept).into_iter().for_each(&mut insert);
                continue;
            }
            let lens: Vec<usize> = pieces.iter().map(|piece| piece.shape[0]).collect();
            pieces.iter().flat_map(|piece| piece.as_stored(kept)).for_each(&mut insert);
            let bias = self.tensors.get(&format!("{}bias", tensor.name.trim_end_matches("weight")));
            for bias in bias.into_iter() {
                bias.rows_apart(&lens).into_iter().for_each(&mut insert);
                divided.push(bias.name.clone());
            }
        }
        divided.iter().for_each(|bias| drop(tensors.remove(bias)));
        Self { tensors, ..self.clone() }
    }

    /// The pieces of a matrix that keep types of their own; none if it stays whole.
    fn pieces(&self, tensor: &Tensor, kept: StoredWeights) -> Vec<Tensor> {
        let Elements::Rearranged(rearranged) = &tensor.elements else { return vec![] };
        let Some(stem) = tensor.name.strip_suffix(".weight").filter(|_| tensor.shape.len() == 2) else { return vec![] };
        let in_layer = stem.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
        let Some((layer, stem)) = in_layer.and_then(|(layer, stem)| Some((layer.parse().ok()?, stem))) else {
            return vec![];
        };
        let statements = self.config.family.forward.statements(&self.config.scope(), layer);
        if !statements.iter().all(|statement| statement.leaves_rows_apart(stem)) {
            return vec![];
        }
        let runs = rearranged.runs(kept);
        let piece = |(i, (n_rows, rearranged))| Tensor {
            name: name_of_piece(&tensor.name, i),
            shape: vec![n_rows, tensor.shape[1]],
            elements: Elements::Rearranged(rearranged),
            ..tensor.clone()
        };
        if runs.len() < 2 { vec![] } else { runs.into_iter().enumerate().map(piece).collect() }
    }

    /// The tensor of this name; where it is in pieces, these.
    pub fn whole_or_pieces(&self, name: &str) -> Vec<&Tensor> {
        match self.tensors.get(name) {
            Some(whole) => vec![whole],
            None => (0..).map_while(|number| self.tensors.get(&name_of_piece(name, number))).collect(),
        }
    }

    /// Of a tensor that is a piece of a matrix, which rows of the whole it has.
    pub(super) fn rows_of_piece(&self, name: &str) -> Option<Range<usize>> {
        let (_, number) = piece(self.config.family, name)?;
        let whole = self.config.family.tensor_or_whole(name)?.0.canonical_beside(name);
        let rows = |number| self.tensors.get(&name_of_piece(&whole, number)).map_or(0, |piece| piece.shape[0]);
        let first = (0..number).map(rows).sum();
        Some(first..first + rows(number))
    }
}

impl Family {
    /// A tensor of the family of which this canonical name is, or is a piece.
    pub fn tensor_or_whole(&self, name: &str) -> Option<(&FamilyTensor, bool)> {
        self.tensor(name).or_else(|| self.tensor(&piece(self, name)?.0))
    }
}

impl Tensor {
    /// The tensors that hold it as its file does: itself or, in a format with blocks, its codes and their parameters.
    fn as_stored(&self, kept: StoredWeights) -> Vec<Self> {
        let Elements::Rearranged(rearranged) = &self.elements else { return vec![self.clone()] };
        let is_matrix = self.name.ends_with("weight") && self.shape.len() > 1;
        let stored = rearranged.stored_dtype(kept);
        let Some(dtype) = stored.filter(|dtype| is_matrix || *dtype != Dtype::F16) else { return vec![self.clone()] };
        let elements = match dtype.format() {
            Some(format) => rearranged.in_blocks(format).into_iter().map(Elements::Rearranged).collect(),
            None => {
                let as_stored = rearranged.with_dtype(dtype);
                vec![as_stored.as_is().cloned().map_or(Elements::Rearranged(as_stored), Elements::Bytes)]
            }
        };
        let parts = dtype.parts(&self.name, &self.shape).into_iter().zip(elements);
        let tensor = |(part, elements): (format::TensorPart, _)| Self {
            name: part.name,
            dtype: part.dtype,
            shape: part.shape,
            elements,
            file_offset: self.file_offset,
        };
        parts.map(tensor).collect()
    }

    /// The pieces of a vector: so many elements each.
    fn rows_apart(&self, lens: &[usize]) -> Vec<Self> {
        let mut first = 0;
        let piece = |(i, &len): (usize, &usize)| {
            let rows = first..first + len;
            first += len;
            let cut = Cut { matrix: [self.len(), 1], rows: vec![rows], columns: 0..1, made: [len, 1] };
            Self {
                name: name_of_piece(&self.name, i),
                shape: vec![len],
                elements: Elements::Slice(Slice::new(self.clone(), cut)),
                ..self.clone()
            }
        };
        lens.iter().enumerate().map(piece).collect()
    }
}
