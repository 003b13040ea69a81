//! Makes the model's tensors from those of files, by the family's names for each format.
//!
//! Tensors in the form that kernels take stay in the mapped file; others become a [`Rearranged`]. Kernels take one
//! type for all tensors except the experts' matrices, and one for those: bf16 if everything stored is exact in bf16,
//! else f32. Files mix types (GGUF keeps vectors and the router in f32), so they are made equal here.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::encoding::{Encoding, TensorInfo};
use super::f8::{F8Scales, is_f8};
use super::inventory::{Form, Inventory, Mismatches, StoredTensor};
use super::rearranged::{ElementConversion, ElementOrder, Piece, Rearranged};
use super::stored::{Codec, Mxfp4Order, Number, is_bf16};
use super::tensors::{Group, groups};
use super::{Elements, Tensor};
use crate::config::ModelConfig;
use crate::family::{self, PairedRows, Spelled, Stack, StoredPiece};
use expression::Scope;
use format::Dtype;

/// How a kind of files lays out tensors; how it names them, the family says.
pub(super) struct FileLayout {
    names: family::NamingScheme,
    /// What precedes a layer's number in its tensors' names; a dot follows it.
    layer_prefix: &'static str,
    mxfp4: Mxfp4,
}

/// How the experts' matrices are stored in MXFP4.
enum Mxfp4 {
    /// Codes and scales apart: what is appended to the matrix' name.
    Apart { codes: &'static str, scales: &'static str },
    /// In blocks that hold both, under the matrix' name.
    Blocks,
}

/// Hugging Face's transformers.
pub(super) const HUGGING_FACE: FileLayout = FileLayout {
    names: family::NamingScheme::HuggingFace,
    layer_prefix: "model.layers.",
    mxfp4: Mxfp4::Apart { codes: "_blocks", scales: "_scales" },
};

/// OpenAI's original checkpoints, whose names are ours.
pub(super) const OPENAI: FileLayout = FileLayout {
    names: family::NamingScheme::OpenAi,
    layer_prefix: "block.",
    mxfp4: Mxfp4::Apart { codes: ".blocks", scales: ".scales" },
};

/// GGUF files, as converters of llama.cpp and Ollama write them.
pub(super) const GGUF: FileLayout =
    FileLayout { names: family::NamingScheme::Fused, layer_prefix: "blk.", mxfp4: Mxfp4::Blocks };

/// A tensor of the model made of numbers, whose type is not decided yet.
struct PlannedTensor {
    name: String,
    shape: Vec<usize>,
    pieces: Vec<StoredTensor>,
    /// Of each piece, where it has some.
    scales: Vec<Option<F8Scales>>,
    /// The order of the rows of each piece where they are in pairs.
    pairs: Vec<Option<PairedRows>>,
    /// The number that is added to its elements.
    offset: Option<f32>,
    order: ElementOrder,
    is_expert: bool,
}

/// Takes everything that the model has out of the files.
///
/// # Errors
/// All tensors that are missing, left over, or not of the expected shape and type.
pub(super) fn assemble(
    mut inventory: Inventory,
    format: &FileLayout,
    config: &ModelConfig,
) -> Result<BTreeMap<String, Tensor>, Mismatches> {
    let mut taking = Taking {
        format,
        dims: config.scope(),
        has_mxfp4: format.has_mxfp4(&inventory, config),
        planned: vec![],
        tensors: vec![],
    };
    for group in &groups(config) {
        for &l in &group.layers {
            taking.group(&mut inventory, group, l);
        }
    }
    let Taking { planned, mut tensors, .. } = taking;
    inventory.finish()?;
    // Sums are not of the type of their summands.
    let of = |is_expert| planned.iter().filter(move |one| one.is_expert == is_expert && one.offset.is_none());
    let dtypes = [false, true].map(|is_expert| dtype(of(is_expert)));
    tensors.extend(planned.into_iter().map(|planned| {
        let dtype = planned.offset.map_or(dtypes[usize::from(planned.is_expert)], |_| Dtype::F32);
        planned.tensor(dtype)
    }));
    Ok(tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
}

/// The state of an assembly.
struct Taking<'a> {
    format: &'a FileLayout,
    dims: Arc<Scope>,
    has_mxfp4: bool,
    planned: Vec<PlannedTensor>,
    tensors: Vec<Tensor>,
}

impl Taking<'_> {
    /// Takes what the tensor of a group in layer `l` is made of.
    fn group(&mut self, inventory: &mut Inventory, group: &Group, l: usize) {
        let is_expert = group.tensor.is_expert;
        let names = self.format.names_of(inventory, group, l);
        if is_expert && self.has_mxfp4 {
            let parts: [TensorInfo; 2] = Encoding::Mxfp4.parts(group).try_into().expect("codes and scales");
            let tensors = match self.format.mxfp4 {
                Mxfp4::Apart { codes, scales } => self.apart(inventory, group, l, parts, [codes, scales]),
                Mxfp4::Blocks => self.blocks(inventory, group, l, names, parts),
            };
            self.tensors.extend(tensors.into_iter().flatten());
            return;
        }
        // Numbers in blocks of 32 along rows; a row of what is put together by turns may be a single number.
        let is_turned = matches!(group.tensor.spelled(names), Spelled::Transposed(_));
        let takes_blocks = group.shape.len() > 1 && group.tensor.name.ends_with("weight") && !is_turned;
        let wanted = if takes_blocks { Form::Number } else { Form::Plain };
        let Some(pieces) = self.pieces(inventory, group, l, names, wanted) else { return };
        let order = match (group.tensor.spelled(names), group.tensor.stack()) {
            (Spelled::Stacked(names), Some(Stack::InTurn)) => ElementOrder::Interleaved { at_once: names.len() },
            (Spelled::Same(_) | Spelled::Stacked(_), _) => ElementOrder::Concatenated,
            (Spelled::Transposed(_), _) => ElementOrder::Transposed { n_rows: group.shape[group.shape.len() - 2] },
        };
        let Some(scales) = self.scales(inventory, group, l, names, &pieces) else { return };
        self.planned.push(PlannedTensor {
            scales,
            name: group.name_in(l),
            shape: group.shape.clone(),
            pieces,
            pairs: group.tensor.pieces(names, &self.dims).iter().map(|piece| piece.pairs).collect(),
            offset: group.tensor.offset(names),
            order,
            is_expert,
        });
    }

    /// The scales of pieces in 8 bits; `None` if some are not as they should be.
    fn scales(
        &self,
        inventory: &mut Inventory,
        group: &Group,
        l: usize,
        names: family::NamingScheme,
        pieces: &[StoredTensor],
    ) -> Option<Vec<Option<F8Scales>>> {
        let named = group.tensor.pieces(names, &self.dims);
        let scales = pieces.iter().zip(named).map(|(piece, StoredPiece { name, shape, .. })| {
            let name = self.format.name_in(&name, group, l);
            is_f8(piece).then(|| F8Scales::take(inventory, &name, &shape))
        });
        let scales: Vec<Option<Option<F8Scales>>> = scales.collect();
        scales.into_iter().map(|scales| scales.map_or(Some(None), |of| of.map(Some))).collect()
    }

    /// What a tensor is made of; `None` if anything is wrong with any of it.
    fn pieces(
        &self,
        inventory: &mut Inventory,
        group: &Group,
        l: usize,
        names: family::NamingScheme,
        wanted: Form,
    ) -> Option<Vec<StoredTensor>> {
        let pieces = group.tensor.pieces(names, &self.dims);
        let taken = pieces.iter().map(|StoredPiece { name, shape, .. }| {
            inventory.take(self.format.name_in(name, group, l), shape, wanted) // each, so that all errors are found
        });
        taken.collect::<Vec<_>>().into_iter().collect()
    }

    /// Codes and scales that are stored as two tensors, in our own order.
    fn apart(
        &self,
        inventory: &mut Inventory,
        group: &Group,
        l: usize,
        parts: [TensorInfo; 2],
        suffixes: [&str; 2],
    ) -> [Option<Tensor>; 2] {
        let (Spelled::Same(name) | Spelled::Transposed(name)) = group.tensor.spelled(self.format.names) else {
            panic!("codes and scales apart belong to whole matrices")
        };
        let [codes_part, scales_part] = parts;
        let block_len = codes_part.dtype.format().expect("codes have scales").block_len();
        let codes_shape = [&scales_part.shape[..], &[codes_part.dtype.len_bytes(block_len)]].concat();
        let shapes = [codes_shape, scales_part.shape.clone()];
        let mut take = |part: TensorInfo, suffix: &str, shape: &[usize], wanted: Form| {
            let stored = self.format.name_in(&format!("{name}{suffix}"), group, l);
            let taken = inventory.take(stored, shape, wanted)?;
            Some(Tensor {
                name: part.name_in(l),
                dtype: part.dtype,
                shape: part.shape,
                elements: Elements::Bytes(taken.bytes),
                file_offset: Some(taken.file_offset),
            })
        };
        let codes = take(codes_part, suffixes[0], &shapes[0], Form::Byte);
        [codes, take(scales_part, suffixes[1], &shapes[1], Form::Scale)]
    }

    /// Codes and scales out of blocks that hold both.
    fn blocks(
        &self,
        inventory: &mut Inventory,
        group: &Group,
        l: usize,
        names: family::NamingScheme,
        parts: [TensorInfo; 2],
    ) -> [Option<Tensor>; 2] {
        let Some(pieces) = self.pieces(inventory, group, l, names, Form::Mxfp4Blocks) else { return [None, None] };
        let order = match pieces.len() {
            1 => ElementOrder::Concatenated,
            at_once => ElementOrder::Interleaved { at_once },
        };
        let file_offset = Some(pieces[0].file_offset);
        let format = parts[0].dtype.format().expect("codes are of a format");
        let step = |piece: &StoredTensor, is_codes: bool| match piece.stored.codec {
            _ if !is_codes => ElementConversion::Parameter(format, 0),
            Some(Codec::Mxfp4Blocks(Mxfp4Order::Neighbours)) => ElementConversion::CodesAsTheyAre(format),
            _ => ElementConversion::Codes(format),
        };
        let [codes, scales] = parts;
        [(codes, true), (scales, false)].map(|(part, is_codes)| {
            let pieces = pieces.iter().map(|piece| {
                let (bytes, step) = (piece.bytes.clone(), step(piece, is_codes));
                Piece { bytes, step, pairs: None, offset: None, scales: None }
            });
            let row_len = *part.shape.last().expect("the experts' matrices have three dimensions");
            Some(Tensor {
                name: part.name_in(l),
                dtype: part.dtype,
                elements: Elements::Rearranged(Rearranged::new(pieces.collect(), order, row_len)),
                shape: part.shape,
                file_offset,
            })
        })
    }
}

impl FileLayout {
    fn name_in(&self, name: &str, group: &Group, l: usize) -> String {
        if group.tensor.per_layer { format!("{}{l}.{name}", self.layer_prefix) } else { name.to_owned() }
    }

    /// What names the parts of a tensor have: a GGUF file may have one whole, or in parts.
    fn names_of(&self, inventory: &Inventory, group: &Group, l: usize) -> family::NamingScheme {
        match group.tensor.spelled(self.names) {
            Spelled::Same(name)
                if self.names == family::NamingScheme::Fused
                    && inventory.get(&self.name_in(name, group, l)).is_none() =>
            {
                family::NamingScheme::Gguf
            }
            _ => self.names,
        }
    }

    /// Whether the experts' matrices are in MXFP4, judged by the first layer's that are stored as one.
    fn has_mxfp4(&self, inventory: &Inventory, config: &ModelConfig) -> bool {
        let experts = groups(config).into_iter().filter(|group| group.tensor.is_expert);
        experts.into_iter().any(|group| {
            let (Spelled::Same(name) | Spelled::Transposed(name)) = group.tensor.spelled(self.names) else {
                return false;
            };
            let first = |name: &str| inventory.get(&self.name_in(name, &group, group.layers[0]));
            match self.mxfp4 {
                Mxfp4::Apart { codes, .. } => first(&format!("{name}{codes}")).is_some(),
                Mxfp4::Blocks => {
                    first(name).is_some_and(|tensor| matches!(tensor.stored.codec, Some(Codec::Mxfp4Blocks(_))))
                }
            }
        })
    }
}

/// The type that holds all of these numbers exactly: what they are, if they are all alike, bf16 if that loses nothing,
/// else f32. Only where bf16 and f32 are mixed is it read whether the f32 ones are bf16, the smallest first.
fn dtype<'a>(planned: impl Iterator<Item = &'a PlannedTensor>) -> Dtype {
    let pieces: Vec<&StoredTensor> = planned.flat_map(|planned| &planned.pieces).collect();
    let has = |number| pieces.iter().any(|piece| piece.number() == Some(number));
    let is_other = |piece: &&StoredTensor| !matches!(piece.number(), Some(Number::F32 | Number::Bf16));
    if pieces.iter().any(is_other) || !has(Number::Bf16) {
        return Dtype::F32;
    }
    let mut f32s: Vec<&Bytes> =
        pieces.iter().filter(|piece| piece.number() == Some(Number::F32)).map(|piece| &piece.bytes).collect();
    f32s.sort_by_key(|bytes| bytes.len());
    if f32s.into_iter().all(|bytes| is_bf16(bytes)) { Dtype::Bf16 } else { Dtype::F32 }
}

impl PlannedTensor {
    fn tensor(self, dtype: Dtype) -> Tensor {
        let Self { name, shape, pieces, scales, pairs, offset, order, .. } = self;
        let file_offset = Some(pieces[0].file_offset);
        let elements = match pieces.as_slice() {
            [only]
                if order == ElementOrder::Concatenated
                    && pairs == [None]
                    && offset.is_none()
                    && only.number().and_then(Number::dtype) == Some(dtype) =>
            {
                Elements::Bytes(only.bytes.clone())
            }
            _ => Elements::Rearranged(rearranged(pieces, scales, &pairs, offset, order, dtype, &shape)),
        };
        Tensor { name, dtype, shape, elements, file_offset }
    }
}

fn rearranged(
    pieces: Vec<StoredTensor>,
    scales: Vec<Option<F8Scales>>,
    pairs: &[Option<PairedRows>],
    offset: Option<f32>,
    order: ElementOrder,
    dtype: Dtype,
    shape: &[usize],
) -> Rearranged {
    let row_len = match order {
        ElementOrder::Concatenated | ElementOrder::Transposed { .. } if shape.len() > 1 => shape[shape.len() - 1],
        ElementOrder::Interleaved { .. } if shape.len() > 2 => shape[shape.len() - 1],
        _ => 1, // the biases: what is put together are single numbers
    };
    let piece = |((piece, scales), pairs): ((StoredTensor, Option<F8Scales>), &Option<PairedRows>)| {
        let from = piece.number().expect("taken as numbers");
        let step = ElementConversion::Convert { from, to: dtype };
        Piece { bytes: piece.bytes, step, pairs: *pairs, offset, scales }
    };
    Rearranged::new(pieces.into_iter().zip(scales).zip(pairs).map(piece).collect(), order, row_len)
}
