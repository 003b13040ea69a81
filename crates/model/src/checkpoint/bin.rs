//! gpt-oss-amd's `.bin` files: a header of 60 bytes, then all tensors packed, f32 or bf16, little-endian.
//!
//! The format has no magic number, no version and no checksum; only the header's ranges and the file's exact size can
//! be checked. The size also tells the element type. Known mistakes of exporters in the header are corrected here,
//! mistakes in the tensors in [`super::layout`].

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::layout::{Decided, Layout, LayoutFinding};
use super::rearranged::{ElementConversion, ElementOrder, Piece, Rearranged};
use super::stored::Number;
use super::tensors::{EMBEDDING, GATE_WEIGHT, MLP2_WEIGHT, UNEMBEDDING, groups, parameters};
use super::{Checkpoint, CheckpointError, CheckpointOrigin, Elements, Tensor};
use crate::config::{ConfigError, ModelConfig, dimension};
use crate::family::Dim;
use crate::family::known::{gpt_oss, usable};
use format::Dtype;

/// Bytes before the first tensor: 15 words of 4 bytes.
pub(crate) const HEADER_BYTES: usize = 60;

/// The words of the header in order: our name, and the name in gpt-oss-amd's sources.
pub const HEADER: [(&str, &str); 15] = [
    ("vocab_size", "vocab_size"),
    ("hidden_size", "hidden_dim"),
    ("num_experts", "n_experts"),
    ("experts_per_token", "experts_per_token"),
    ("intermediate_size", "intermediate_dim"),
    ("num_hidden_layers", "n_layers"),
    ("head_dim", "head_dim"),
    ("num_attention_heads", "n_attn_heads"),
    ("num_key_value_heads", "n_kv_heads"),
    ("max_seq_len", "seq_len"),
    ("initial_context_length", "initial_context_length"),
    ("rope_theta", "rope_theta"),
    ("rope_scaling_factor", "rope_scaling_factor"),
    ("sliding_window", "sliding_window"),
    ("swiglu_limit", "swiglu_limit"),
];

pub(super) fn read(bytes: Bytes, layout: Layout) -> Result<Checkpoint, CheckpointError> {
    let mut findings = Vec::new();
    let config = read_header(&bytes, &mut findings)?;
    let dtype = dtype_by_size(bytes.len() as u64, &config)?;
    let decided = layout.decide(config.max_seq_len, &mut findings);
    let tensors = slice_tensors(&bytes, &config, dtype, decided);
    Ok(Checkpoint { config, tensors, findings, origin: CheckpointOrigin::default() })
}

/// Takes every tensor's slice of the file.
fn slice_tensors(bytes: &Bytes, config: &ModelConfig, dtype: Dtype, decided: Decided) -> BTreeMap<String, Tensor> {
    let mut tensors = BTreeMap::new();
    let mut offset = HEADER_BYTES; // stays within the file: the sum of all sizes was compared with its length
    for group in groups(config) {
        for &l in &group.layers {
            let len_bytes = dtype.len_bytes(group.shape.iter().product());
            let (name, shape) = (unswapped(group.name_in(l), decided.swapped), group.shape.clone());
            let slice = bytes.slice(offset..offset + len_bytes);
            let is_transposed = decided.transposed && matches!(group.tensor.name.as_str(), GATE_WEIGHT | MLP2_WEIGHT);
            let elements = if is_transposed { transposed(slice, dtype, &shape) } else { Elements::Bytes(slice) };
            let file_offset = Some(offset as u64);
            tensors.insert(name.clone(), Tensor { name, dtype, shape, elements, file_offset });
            offset += len_bytes;
        }
    }
    assert_eq!(offset, bytes.len(), "the tensors fill the file");
    tensors
}

/// Matrices `(…, rows, columns)` that are stored `(…, columns, rows)`.
fn transposed(bytes: Bytes, dtype: Dtype, shape: &[usize]) -> Elements {
    let &[.., n_rows, row_len] = shape else { panic!("{shape:?} is no matrix") };
    let from = if dtype == Dtype::F32 { Number::F32 } else { Number::Bf16 };
    let piece =
        Piece { bytes, step: ElementConversion::Convert { from, to: dtype }, pairs: None, offset: None, scales: None };
    Elements::Rearranged(Rearranged::new(vec![piece], ElementOrder::Transposed { n_rows }, row_len))
}

/// The name of what lies where `name` is expected.
fn unswapped(name: String, swapped: bool) -> String {
    match name.as_str() {
        EMBEDDING if swapped => UNEMBEDDING.into(),
        UNEMBEDDING if swapped => EMBEDDING.into(),
        _ => name,
    }
}

/// The element type for which a file of this size would be whole.
fn dtype_by_size(found: u64, config: &ModelConfig) -> Result<Dtype, CheckpointError> {
    let parameters = parameters(config).ok_or(CheckpointError::TooLarge)?;
    let size = |dtype: Dtype| {
        let tensors = parameters.checked_mul(dtype.size_bits() as u64 / 8)?;
        tensors.checked_add(HEADER_BYTES as u64)
    };
    let f32_bytes = size(Dtype::F32).ok_or(CheckpointError::TooLarge)?;
    let bf16_bytes = size(Dtype::Bf16).ok_or(CheckpointError::TooLarge)?;
    // The two differ by at least two bytes, since every model has a parameter.
    match found {
        _ if found == f32_bytes => Ok(Dtype::F32),
        _ if found == bf16_bytes => Ok(Dtype::Bf16),
        _ => Err(CheckpointError::Size { parameters, f32_bytes, bf16_bytes, found }),
    }
}

fn read_header(bytes: &[u8], findings: &mut Vec<LayoutFinding>) -> Result<ModelConfig, CheckpointError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err(CheckpointError::NoHeader { found: bytes.len(), expected: HEADER_BYTES });
    };
    let words = RefCell::new(Words { header, findings });
    let family = gpt_oss();
    usable(family)?;
    let config = ModelConfig::from_values(
        family,
        |dim| words.borrow_mut().integer(dim).transpose(),
        |number| Ok::<_, CheckpointError>(words.borrow_mut().float(&number.name)),
        |name| CheckpointError::NotInHeader { name },
    )?;
    match config.check() {
        Err(source @ ConfigError::BadFloat { field, .. }) => match offset_of(field) {
            Some(offset) => Err(CheckpointError::Header { offset, source }),
            None => Err(source.into()),
        },
        other => Ok(other.map(|()| config)?),
    }
}

/// Where a field lies; `None` of those that the header does not have.
fn offset_of(field: &str) -> Option<usize> {
    HEADER.iter().position(|(ours, _)| *ours == field).map(|word| 4 * word)
}

/// The header's words, mended as they are read.
struct Words<'a> {
    header: &'a [u8; HEADER_BYTES],
    findings: &'a mut Vec<LayoutFinding>,
}

impl Words<'_> {
    fn word(&self, offset: usize) -> [u8; 4] {
        [self.header[offset], self.header[offset + 1], self.header[offset + 2], self.header[offset + 3]]
    }

    /// A whole number in its field's range. Above 2^24, `initial_context_length` and `sliding_window` are the bits of
    /// a float: the fork's exporter wrote them so for a while.
    fn integer(&mut self, dim: &'static Dim) -> Option<Result<usize, CheckpointError>> {
        let field = dim.name.as_str();
        let offset = offset_of(field)?;
        let mut value = i64::from(i32::from_le_bytes(self.word(offset)));
        let float = f32::from_le_bytes(self.word(offset));
        if matches!(field, "initial_context_length" | "sliding_window")
            && value > 1 << 24
            && (1.0..=16_777_216.0).contains(&float)
            && float.fract() == 0.0
        {
            value = float as i64;
            self.findings.push(LayoutFinding::FloatInInteger { field, offset, value: value as usize });
        }
        Some(dimension(dim, value).map_err(|source| CheckpointError::Header { offset, source }))
    }

    /// A float. Those of a model are never tiny: below 1e-30 the word is an integer, as in a file made with a
    /// config.json that says 150000 and not 150000.0.
    fn float(&mut self, field: &'static str) -> Option<f32> {
        let offset = offset_of(field)?;
        let mut value = f32::from_le_bytes(self.word(offset));
        if value > 0.0 && value < 1e-30 {
            value = i32::from_le_bytes(self.word(offset)) as f32;
            self.findings.push(LayoutFinding::IntegerInFloat { field, offset, value });
        }
        Some(value)
    }
}
