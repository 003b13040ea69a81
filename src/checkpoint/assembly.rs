//! From the tensors that files hold to those of the model: each format is a table of names and of what lies how.
//!
//! What is as the kernels want it stays where it is mapped; the rest becomes a [`Rearranged`]. Kernels take one type
//! for all tensors but the experts' matrices, and one for those: bf16 where everything stored is exactly that, else
//! f32. Files mix types (GGUF keeps vectors and the router in f32 whatever the rest is), so this is where they are
//! brought to one.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::encoding::{Encoding, Part};
use super::inventory::{Form, Inventory, Mismatches, StoredTensor};
use super::rearranged::{Order, Piece, Rearranged, Step};
use super::stored::{Codec, Number, is_bf16};
use super::tensors::{EMBEDDING, Group, MLP1_WEIGHT, MLP2_WEIGHT, UNEMBEDDING, groups};
use super::{Elements, Tensor};
use crate::config::ModelConfig;
use crate::dtype::Dtype;

/// How a family of files names and lays out the tensors of the model.
pub(super) struct Format {
    /// What precedes a layer's number in its tensors' names; a dot follows it.
    layer_prefix: &'static str,
    /// For every group, what its tensors are made of.
    spellings: [(&'static str, Made); 16],
    mxfp4: Mxfp4,
}

/// What a tensor is made of, by the names of the stored ones.
enum Made {
    /// As it is.
    Same(&'static str),
    /// Query, key and value heads apart.
    Heads([&'static str; 3]),
    /// Gates and ups apart.
    GateUp([&'static str; 2]),
    /// With its innermost two dimensions swapped; as it is in MXFP4.
    Transposed(&'static str),
}

/// How the experts' matrices are stored in MXFP4.
enum Mxfp4 {
    /// Codes and scales apart: what is appended to the matrix' name.
    Apart { codes: &'static str, scales: &'static str },
    /// In blocks that hold both, under the matrix' name.
    Blocks,
}

/// Hugging Face's transformers.
pub(super) const HUGGING_FACE: Format = Format {
    layer_prefix: "model.layers.",
    spellings: [
        (EMBEDDING, Made::Same("model.embed_tokens.weight")),
        (UNEMBEDDING, Made::Same("lm_head.weight")),
        ("attn.norm.scale", Made::Same("input_layernorm.weight")),
        ("mlp.norm.scale", Made::Same("post_attention_layernorm.weight")),
        ("norm.scale", Made::Same("model.norm.weight")),
        (
            "attn.qkv.weight",
            Made::Heads(["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"]),
        ),
        ("attn.qkv.bias", Made::Heads(["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"])),
        ("attn.out.weight", Made::Same("self_attn.o_proj.weight")),
        ("attn.out.bias", Made::Same("self_attn.o_proj.bias")),
        ("attn.sinks", Made::Same("self_attn.sinks")),
        ("mlp.gate.weight", Made::Same("mlp.router.weight")),
        ("mlp.gate.bias", Made::Same("mlp.router.bias")),
        (MLP1_WEIGHT, Made::Transposed("mlp.experts.gate_up_proj")),
        ("mlp.mlp1_bias", Made::Same("mlp.experts.gate_up_proj_bias")),
        (MLP2_WEIGHT, Made::Transposed("mlp.experts.down_proj")),
        ("mlp.mlp2_bias", Made::Same("mlp.experts.down_proj_bias")),
    ],
    mxfp4: Mxfp4::Apart { codes: "_blocks", scales: "_scales" },
};

/// OpenAI's original checkpoints, whose names are ours.
pub(super) const OPENAI: Format = Format {
    layer_prefix: "block.",
    spellings: [
        (EMBEDDING, Made::Same(EMBEDDING)),
        (UNEMBEDDING, Made::Same(UNEMBEDDING)),
        ("attn.norm.scale", Made::Same("attn.norm.scale")),
        ("mlp.norm.scale", Made::Same("mlp.norm.scale")),
        ("norm.scale", Made::Same("norm.scale")),
        ("attn.qkv.weight", Made::Same("attn.qkv.weight")),
        ("attn.qkv.bias", Made::Same("attn.qkv.bias")),
        ("attn.out.weight", Made::Same("attn.out.weight")),
        ("attn.out.bias", Made::Same("attn.out.bias")),
        ("attn.sinks", Made::Same("attn.sinks")),
        ("mlp.gate.weight", Made::Same("mlp.gate.weight")),
        ("mlp.gate.bias", Made::Same("mlp.gate.bias")),
        (MLP1_WEIGHT, Made::Same(MLP1_WEIGHT)),
        ("mlp.mlp1_bias", Made::Same("mlp.mlp1_bias")),
        (MLP2_WEIGHT, Made::Same(MLP2_WEIGHT)),
        ("mlp.mlp2_bias", Made::Same("mlp.mlp2_bias")),
    ],
    mxfp4: Mxfp4::Apart { codes: ".blocks", scales: ".scales" },
};

/// GGUF files, as llama.cpp's converter writes them.
pub(super) const GGUF: Format = Format {
    layer_prefix: "blk.",
    spellings: [
        (EMBEDDING, Made::Same("token_embd.weight")),
        (UNEMBEDDING, Made::Same("output.weight")),
        ("attn.norm.scale", Made::Same("attn_norm.weight")),
        ("mlp.norm.scale", Made::Same("post_attention_norm.weight")),
        ("norm.scale", Made::Same("output_norm.weight")),
        ("attn.qkv.weight", Made::Heads(["attn_q.weight", "attn_k.weight", "attn_v.weight"])),
        ("attn.qkv.bias", Made::Heads(["attn_q.bias", "attn_k.bias", "attn_v.bias"])),
        ("attn.out.weight", Made::Same("attn_output.weight")),
        ("attn.out.bias", Made::Same("attn_output.bias")),
        ("attn.sinks", Made::Same("attn_sinks.weight")),
        ("mlp.gate.weight", Made::Same("ffn_gate_inp.weight")),
        ("mlp.gate.bias", Made::Same("ffn_gate_inp.bias")),
        (MLP1_WEIGHT, Made::GateUp(["ffn_gate_exps.weight", "ffn_up_exps.weight"])),
        ("mlp.mlp1_bias", Made::GateUp(["ffn_gate_exps.bias", "ffn_up_exps.bias"])),
        (MLP2_WEIGHT, Made::Same("ffn_down_exps.weight")),
        ("mlp.mlp2_bias", Made::Same("ffn_down_exps.bias")),
    ],
    mxfp4: Mxfp4::Blocks,
};

/// A tensor of the model made of numbers, whose type is not decided yet.
struct PlannedTensor {
    name: String,
    shape: Vec<usize>,
    pieces: Vec<StoredTensor>,
    order: Order,
    is_expert: bool,
}

/// Takes everything that the model has out of the files.
///
/// # Errors
/// All tensors that are missing, left over, or not of the expected shape and type.
pub(super) fn assemble(
    mut inventory: Inventory,
    format: &Format,
    config: &ModelConfig,
) -> Result<BTreeMap<String, Tensor>, Mismatches> {
    let mut taking =
        Taking { format, config, has_mxfp4: format.has_mxfp4(&inventory), planned: vec![], tensors: vec![] };
    for group in &groups(config) {
        for l in 0..group.count(config) {
            taking.group(&mut inventory, group, l);
        }
    }
    let Taking { planned, mut tensors, .. } = taking;
    inventory.finish()?;
    let dtypes = [false, true].map(|is_expert| dtype(planned.iter().filter(|planned| planned.is_expert == is_expert)));
    tensors.extend(planned.into_iter().map(|planned| {
        let dtype = dtypes[usize::from(planned.is_expert)];
        planned.tensor(dtype)
    }));
    Ok(tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
}

/// The assembly under way.
struct Taking<'a> {
    format: &'a Format,
    config: &'a ModelConfig,
    has_mxfp4: bool,
    planned: Vec<PlannedTensor>,
    tensors: Vec<Tensor>,
}

impl Taking<'_> {
    /// Takes what the tensor of a group in layer `l` is made of.
    fn group(&mut self, inventory: &mut Inventory, group: &Group, l: usize) {
        let made = self.format.made_of(group.name);
        let is_expert = matches!(group.name, MLP1_WEIGHT | MLP2_WEIGHT);
        if is_expert && self.has_mxfp4 {
            let parts: [Part; 2] = Encoding::Mxfp4.parts(group).try_into().expect("codes and scales");
            let tensors = match self.format.mxfp4 {
                Mxfp4::Apart { codes, scales } => self.apart(inventory, group, l, parts, [codes, scales]),
                Mxfp4::Blocks => self.blocks(inventory, group, l, parts),
            };
            self.tensors.extend(tensors.into_iter().flatten());
            return;
        }
        // Numbers in blocks of 32 along rows; a row of what is put together by turns may be a single number.
        let takes_blocks = group.shape.len() > 1 && group.name.ends_with("weight");
        let wanted = if takes_blocks { Form::Number } else { Form::Plain };
        let Some(pieces) = self.pieces(inventory, group, l, wanted) else { return };
        let order = match (made, group.shape.as_slice()) {
            (Made::Same(_) | Made::Heads(_), _) => Order::Concatenated,
            (Made::GateUp(_), _) => Order::Interleaved,
            (Made::Transposed(_), &[.., n_rows, _]) => Order::Transposed { n_rows },
            (Made::Transposed(_), _) => panic!("`{}` is no matrix", group.name),
        };
        self.planned.push(PlannedTensor {
            name: group.name_in(l),
            shape: group.shape.clone(),
            pieces,
            order,
            is_expert,
        });
    }

    /// What a tensor is made of; `None` if anything is wrong with any of it.
    fn pieces(&self, inventory: &mut Inventory, group: &Group, l: usize, wanted: Form) -> Option<Vec<StoredTensor>> {
        let pieces = self.format.made_of(group.name).pieces(group, self.config);
        let taken = pieces.iter().map(|(name, shape)| {
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
        parts: [Part; 2],
        suffixes: [&str; 2],
    ) -> [Option<Tensor>; 2] {
        let (Made::Same(name) | Made::Transposed(name)) = self.format.made_of(group.name) else {
            panic!("codes and scales apart belong to whole matrices")
        };
        let [codes_part, scales_part] = parts;
        let block_len = codes_part.dtype.block_len().expect("codes have scales");
        let codes_shape = [&scales_part.shape[..], &[codes_part.dtype.len_bytes(block_len)]].concat();
        let shapes = [codes_shape, scales_part.shape.clone()];
        let mut take = |part: Part, suffix: &str, shape: &[usize]| {
            let stored = self.format.name_in(&format!("{name}{suffix}"), group, l);
            let taken = inventory.take(stored, shape, Form::Byte)?;
            Some(Tensor {
                name: Group { name: part.name, ..group.clone() }.name_in(l),
                dtype: part.dtype,
                shape: part.shape,
                elements: Elements::Bytes(taken.bytes),
                file_offset: Some(taken.file_offset),
            })
        };
        [take(codes_part, suffixes[0], &shapes[0]), take(scales_part, suffixes[1], &shapes[1])]
    }

    /// Codes and scales out of blocks that hold both.
    fn blocks(&self, inventory: &mut Inventory, group: &Group, l: usize, parts: [Part; 2]) -> [Option<Tensor>; 2] {
        let Some(pieces) = self.pieces(inventory, group, l, Form::Mxfp4Blocks) else { return [None, None] };
        let order = if pieces.len() == 1 { Order::Concatenated } else { Order::Interleaved };
        let file_offset = Some(pieces[0].file_offset);
        parts.map(|part| {
            let step = if part.dtype.block_len().is_some() { Step::Mxfp4Codes } else { Step::Mxfp4Scales };
            let pieces = pieces.iter().map(|piece| Piece { bytes: piece.bytes.clone(), step });
            let row_len = *part.shape.last().expect("the experts' matrices have three dimensions");
            Some(Tensor {
                name: Group { name: part.name, ..group.clone() }.name_in(l),
                dtype: part.dtype,
                elements: Elements::Rearranged(Rearranged::new(pieces.collect(), order, row_len)),
                shape: part.shape,
                file_offset,
            })
        })
    }
}

impl Format {
    fn made_of(&self, group: &str) -> &Made {
        let spelling = self.spellings.iter().find(|(name, _)| *name == group);
        &spelling.expect("every format has all groups").1
    }

    fn name_in(&self, name: &str, group: &Group, l: usize) -> String {
        if group.per_layer { format!("{}{l}.{name}", self.layer_prefix) } else { name.to_owned() }
    }

    /// Whether the experts' matrices are in MXFP4, judged by one of the first layer's.
    fn has_mxfp4(&self, inventory: &Inventory) -> bool {
        let first = |name: &str| inventory.get(&format!("{}0.{name}", self.layer_prefix));
        match (&self.mxfp4, self.made_of(MLP2_WEIGHT)) {
            (Mxfp4::Apart { codes, .. }, Made::Same(name) | Made::Transposed(name)) => {
                first(&format!("{name}{codes}")).is_some()
            }
            (Mxfp4::Blocks, Made::Same(name)) => {
                first(name).is_some_and(|tensor| tensor.stored.codec == Some(Codec::Mxfp4Blocks))
            }
            _ => false,
        }
    }
}

impl Made {
    /// The names and shapes of what a group's tensor is made of.
    fn pieces(&self, group: &Group, config: &ModelConfig) -> Vec<(&'static str, Vec<usize>)> {
        let shape = &group.shape;
        match self {
            Self::Same(name) => vec![(name, shape.clone())],
            Self::Heads(names) => {
                let heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads];
                let of = |n: usize| [&[n * config.head_dim], &shape[1..]].concat();
                names.iter().copied().zip(heads.map(of)).collect()
            }
            Self::GateUp(names) => {
                let mut half = shape.clone();
                half[1] /= 2;
                names.iter().map(|name| (*name, half.clone())).collect()
            }
            Self::Transposed(name) => {
                let mut turned = shape.clone();
                turned.swap(shape.len() - 1, shape.len() - 2);
                vec![(name, turned)]
            }
        }
    }
}

/// The type that holds all of these numbers exactly: what they are, if they are all alike, bf16 if that loses nothing,
/// else f32. Only where bf16 and f32 are mixed is it read whether the f32 ones are bf16, the smallest first.
fn dtype<'a>(planned: impl Iterator<Item = &'a PlannedTensor>) -> Dtype {
    let pieces: Vec<&StoredTensor> = planned.flat_map(|planned| &planned.pieces).collect();
    let has = |number| pieces.iter().any(|piece| piece.number() == Some(number));
    if has(Number::F16) || has(Number::Q8_0) || !has(Number::Bf16) {
        return Dtype::F32;
    }
    let mut f32s: Vec<&Bytes> =
        pieces.iter().filter(|piece| piece.number() == Some(Number::F32)).map(|piece| &piece.bytes).collect();
    f32s.sort_by_key(|bytes| bytes.len());
    if f32s.into_iter().all(|bytes| is_bf16(bytes)) { Dtype::Bf16 } else { Dtype::F32 }
}

impl PlannedTensor {
    fn tensor(self, dtype: Dtype) -> Tensor {
        let Self { name, shape, pieces, order, .. } = self;
        let file_offset = Some(pieces[0].file_offset);
        let elements = match pieces.as_slice() {
            [only] if order == Order::Concatenated && only.number().and_then(Number::dtype) == Some(dtype) => {
                Elements::Bytes(only.bytes.clone())
            }
            _ => Elements::Rearranged(rearranged(pieces, order, dtype, &shape)),
        };
        Tensor { name, dtype, shape, elements, file_offset }
    }
}

fn rearranged(pieces: Vec<StoredTensor>, order: Order, dtype: Dtype, shape: &[usize]) -> Rearranged {
    let row_len = match order {
        Order::Concatenated | Order::Transposed { .. } if shape.len() > 1 => shape[shape.len() - 1],
        Order::Interleaved if shape.len() > 2 => shape[shape.len() - 1],
        _ => 1, // the biases: what is put together are single numbers
    };
    let piece = |piece: StoredTensor| {
        let from = piece.number().expect("taken as numbers");
        Piece { bytes: piece.bytes, step: Step::Convert { from, to: dtype } }
    };
    Rearranged::new(pieces.into_iter().map(piece).collect(), order, row_len)
}
