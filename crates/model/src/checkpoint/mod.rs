//! Checkpoints: files in, named tensors out.
//!
//! Whatever the format, a [`Checkpoint`] holds OpenAI's canonical names, one tensor per layer, shapes outermost
//! first, and bytes that are slices of the mapped file wherever they are as the kernels want them; the rest is
//! [`rearranged`] where it is used. [`tensors`] is the list of names and shapes, [`encoding`] says which tensors hold a
//! matrix.
//!
//! [`bin`] reads gpt-oss-amd's `.bin` files, and [`layout`] says what is known to be wrong in some of them.
//! [`safetensors`], in a [`folder`] with a [`config_json`], and [`gguf`] fill an [`inventory`] of [`stored`] tensors,
//! of which [`assembly`] makes those of the model; [`f8`] finds scales of bytes, [`foreign`] names what is not read.
//! [`download`] knows what is there of a file that is not. [`random`] describes weights that are made where they are
//! used; [`kept`] keeps a file's types; [`tensor_parallel`] cuts a model for several devices, into [`slice`]s;
//! [`export`] writes any checkpoint as a `.bin` file, and [`size`] says what one takes.

pub(crate) mod assembly;
pub mod bin;
mod blocks;
pub(crate) mod config_json;
pub mod conversion;
pub mod download;
pub mod encoding;
mod error;
pub mod export;
mod f8;
pub(crate) mod folder;
mod foreign;
pub mod gguf;
pub(crate) mod inventory;
pub mod kept;
pub mod layout;
pub mod quantized;
pub mod random;
pub(crate) mod rearranged;
pub(crate) mod safetensors;
pub(crate) mod size;
pub(crate) mod slice;
pub(crate) mod stored;
pub mod tensor_parallel;
pub mod tensors;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::config::ModelConfig;
use format::Dtype;

pub use error::CheckpointError;
pub use foreign::ForeignQuantization;
use gguf::model::GgufTokenizer;
use layout::{Layout, LayoutFinding};
use quantized::{Quantization, Quantized};
use random::RandomNumbers;
use rearranged::{ElementConversion, ElementOrder, Piece, Rearranged};
use slice::Slice;
use stored::Number;

/// What the seeds' exporters name the tokenizer of a `.bin` file.
pub const TOKENIZER_BIN: &str = "tokenizer.bin";

/// A model: its dimensions and every weight by its canonical name.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub config: ModelConfig,
    /// Every tensor of [`tensors::groups`], under its name; for those in MXFP4 the parts of [`encoding`].
    pub tensors: BTreeMap<String, Tensor>,
    /// What was wrong or unusual, and what was done about it.
    pub findings: Vec<LayoutFinding>,
    /// The files that it comes from.
    pub origin: CheckpointOrigin,
}

/// Where a checkpoint comes from.
#[derive(Clone, Debug, Default)]
pub struct CheckpointOrigin {
    /// The files that hold its tensors; none if it was made or read from memory.
    pub files: Vec<PathBuf>,
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// The tokenizer that comes with it.
    pub tokenizer: Option<TokenizerSource>,
    /// The source of the chat template that comes with it.
    pub chat_template: Option<String>,
    /// That for conversations with tools, if it has one of its own.
    pub tool_template: Option<String>,
}

/// A tokenizer that comes with a checkpoint.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// A `tokenizer.json`, or beside a `.bin` file a `tokenizer.bin`.
    File(PathBuf),
    /// Keys of a GGUF file.
    Gguf(Box<GgufTokenizer>),
}

/// A weight by its canonical name, with its shape, dtype and bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The canonical name, such as `block.0.attn.qkv.weight`.
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub elements: Elements,
    /// Where the first of the bytes that it is made of lies in its file; `None` for weights that no file has.
    pub file_offset: Option<u64>,
}

/// The elements of a tensor.
#[derive(Clone, Debug)]
pub enum Elements {
    /// Row-major, little-endian. A slice of a mapped file is aligned to 4 bytes (f32) or 2 (bf16) at
    /// best, and not at all if the file was embedded in a program: read with unaligned loads, or copy.
    Bytes(Bytes),
    /// In a file, but not as they are wanted: made where they are used.
    Rearranged(Rearranged),
    /// In no file: made where they are used.
    Random(RandomNumbers),
    /// A part of another tensor, made where it is used.
    Slice(Slice),
    /// The codes or the scales of another tensor, made where they are used.
    Quantized(Quantized),
}

impl Checkpoint {
    /// Reads a checkpoint: a folder with a `config.json` and safetensors files (or their index), one safetensors file
    /// with a `config.json` beside it, a GGUF file or any one of its parts, or a `.bin` file; only the last uses
    /// `layout`. The contents decide the kind. Weights stay in the mapped file; those in another form are made at use.
    ///
    /// # Errors
    /// [`CheckpointError::File`] around what is wrong with it.
    pub fn open(path: &Path, layout: Layout) -> Result<Self, CheckpointError> {
        Self::read_path(path, layout)
            .map_err(|source| CheckpointError::File { path: path.to_owned(), source: Box::new(source) })
    }

    /// Reads a `.bin` checkpoint that is in memory already.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(bytes: Bytes, layout: Layout) -> Result<Self, CheckpointError> {
        bin::read(bytes, layout)
    }

    fn read_path(path: &Path, layout: Layout) -> Result<Self, CheckpointError> {
        if path.is_dir() {
            layout.expect_none("a folder")?;
            return folder::read(path);
        }
        let bytes = download::map(path)?;
        let is_named = |extension: &str| path.extension().is_some_and(|found| found == extension);
        if folder::is_index(path) {
            layout.expect_none("an index of safetensors files")?;
            return folder::read(path.parent().unwrap_or(Path::new("")));
        }
        // The name counts where a file is too damaged to tell by what it holds.
        if safetensors::is_safetensors(&bytes) || is_named("safetensors") {
            layout.expect_none("a safetensors file")?;
            return folder::read_file(path, &bytes);
        }
        if gguf::is_gguf(&bytes) || is_named("gguf") {
            layout.expect_none("a GGUF file")?;
            return gguf::model::read(gguf::parts::read(path, &bytes)?);
        }
        let mut checkpoint = bin::read(bytes.clone(), layout)?;
        let tokenizer = path.with_file_name(TOKENIZER_BIN);
        checkpoint.origin.tokenizer = download::is_named(&tokenizer).then_some(TokenizerSource::File(tokenizer));
        checkpoint.origin.files.push(path.to_owned());
        checkpoint.origin.total_bytes = bytes.len() as u64;
        Ok(checkpoint)
    }

    /// The type of everything but the experts' matrices.
    pub fn dense_dtype(&self) -> Dtype {
        self.tensor(tensors::EMBEDDING).dtype
    }

    /// The type of the experts' matrices, if the model has any.
    pub fn expert_dtype(&self) -> Option<Dtype> {
        let is_matrix = |tensor: &&Tensor| self.is_expert(tensor) && tensor.dtype != Dtype::U8;
        self.tensors.values().find(is_matrix).map(|tensor| tensor.dtype)
    }

    /// The matrix that makes logits from the last norm: the embedding, if the two are tied.
    pub fn unembedding(&self) -> &'static str {
        if self.tensors.contains_key(tensors::UNEMBEDDING) { tensors::UNEMBEDDING } else { tensors::EMBEDDING }
    }

    /// The types of its matrices, in words: `bf16 and experts mxfp4`.
    pub fn weights(&self) -> String {
        let is_matrix = |tensor: &&Tensor| tensor.name.ends_with("weight") && !self.is_expert(tensor);
        let dense: BTreeSet<&str> = self.tensors.values().filter(is_matrix).map(|tensor| tensor.dtype.name()).collect();
        let dense = dense.into_iter().collect::<Vec<_>>().join(", ");
        let experts = self.expert_dtype().map_or_else(String::new, |dtype| format!(" and experts {dtype}"));
        format!("{dense}{experts}")
    }

    /// Whether a tensor is one of the experts' matrices, or of their scales.
    fn is_expert(&self, tensor: &Tensor) -> bool {
        self.config.family.tensor(&tensor.name).is_some_and(|(tensor, _)| tensor.is_expert)
    }

    /// The tensor of this name, which must be one of [`Self::tensors`]: every reader provides all of them.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("no reader leaves out `{name}`"))
    }

    /// The same model for computing in bf16: weights that are f32 only because they are stored in f16 or in blocks, or
    /// among such, become bf16, rounded to the nearest. Those of files that store f32 throughout stay f32, and MXFP4
    /// stays MXFP4.
    pub fn rounded(&self) -> Self {
        let of = |is_expert: bool| self.tensors.values().filter(move |tensor| self.is_expert(tensor) == is_expert);
        let rounds = [false, true].map(|is_expert| of(is_expert).any(Tensor::is_widened));
        let mut checkpoint = self.clone();
        for tensor in checkpoint.tensors.values_mut() {
            if tensor.dtype == Dtype::F32 && !tensor.is_sum() && rounds[usize::from(self.is_expert(tensor))] {
                *tensor = tensor.with_dtype(Dtype::Bf16);
            }
        }
        checkpoint
    }

    /// The same model with its plain matrices quantised, except experts' and those that the family marks as exact. They
    /// are converted at use, from the file's data.
    pub fn quantized(&self, to: Quantization) -> Self {
        let is_exact = |tensor: &Tensor| match self.config.family.tensor(&tensor.name) {
            Some((of_family, _)) => of_family.is_expert || of_family.is_exact || !tensor.name.ends_with("weight"),
            None => true,
        };
        let quantized = |tensor: &Tensor| if is_exact(tensor) { vec![tensor.clone()] } else { tensor.quantized(to) };
        let tensors = self.tensors.values().flat_map(quantized).map(|tensor| (tensor.name.clone(), tensor)).collect();
        Self { tensors, ..self.clone() }
    }
}

impl Tensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.dtype.len_bytes(self.len())
    }

    /// The elements, if they are in a file or in memory in the form that is used.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.elements {
            Elements::Bytes(bytes) => Some(bytes),
            Elements::Rearranged(_) | Elements::Random(_) | Elements::Slice(_) | Elements::Quantized(_) => None,
        }
    }

    /// What it is made of: slices of files or of memory, in their order. None of a random one.
    pub fn sources(&self) -> Vec<&Bytes> {
        match &self.elements {
            Elements::Bytes(bytes) => vec![bytes],
            Elements::Rearranged(rearranged) => rearranged.sources(),
            Elements::Random(_) => Vec::new(),
            Elements::Slice(slice) => slice.whole().sources(),
            Elements::Quantized(part) => part.whole().sources(),
        }
    }

    /// About how many bytes of it lie in a file and not in memory.
    pub fn not_in_memory(&self) -> usize {
        self.bytes().map_or(0, |bytes| mapped_file::not_in_memory(bytes))
    }

    /// The elements: where they lie, or made in memory of their own. `None` for random ones, which only devices make.
    ///
    /// # Errors
    /// [`CheckpointError::OutOfMemory`], [`CheckpointError::NotQuantized`], [`CheckpointError::NotFinite`].
    pub fn read(&self) -> Result<Option<Bytes>, CheckpointError> {
        match &self.elements {
            Elements::Bytes(bytes) => Ok(Some(bytes.clone())),
            Elements::Rearranged(rearranged) => self.make(rearranged).map(Some),
            Elements::Random(_) => Ok(None),
            Elements::Slice(slice) => self.made(slice.len_bytes(), |to| slice.write_to(to)).map(Some),
            Elements::Quantized(part) => self.made(part.len_bytes(), |to| part.write_to(to)).map(Some),
        }
    }

    /// Makes what is of another tensor.
    fn made(
        &self,
        len_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), CheckpointError>,
    ) -> Result<Bytes, CheckpointError> {
        let mut result = Ok(());
        let made = mapped_file::filled(len_bytes, |bytes| result = write(bytes));
        result?;
        made.map_err(|_| CheckpointError::OutOfMemory { name: self.name.clone(), len_bytes: len_bytes as u64 })
    }

    /// Makes what is to be made of a file.
    fn make(&self, rearranged: &Rearranged) -> Result<Bytes, CheckpointError> {
        let len_bytes = rearranged.len_bytes();
        if !rearranged.is_finite() {
            return Err(CheckpointError::NotFinite { name: self.name.clone() });
        }
        mapped_file::filled(len_bytes, |bytes| rearranged.write_to(bytes))
            .map_err(|_| CheckpointError::OutOfMemory { name: self.name.clone(), len_bytes: len_bytes as u64 })
    }

    /// The same tensor as f32 or bf16, rounded to the nearest. What does not consist of such numbers stays what it is.
    pub(crate) fn with_dtype(&self, dtype: Dtype) -> Self {
        let number = match self.dtype {
            Dtype::F32 => Number::F32,
            Dtype::Bf16 => Number::Bf16,
            _ => return self.clone(),
        };
        let elements = match &self.elements {
            _ if dtype == self.dtype => return self.clone(),
            Elements::Bytes(bytes) => {
                let piece = Piece {
                    bytes: bytes.clone(),
                    step: ElementConversion::Convert { from: number, to: dtype },
                    pairs: None,
                    offset: None,
                    scales: None,
                };
                Elements::Rearranged(Rearranged::new(vec![piece], ElementOrder::Concatenated, 1))
            }
            Elements::Rearranged(rearranged) => Elements::Rearranged(rearranged.with_dtype(dtype)),
            Elements::Random(numbers) => Elements::Random(*numbers),
            Elements::Slice(slice) => Elements::Slice(slice.with_whole(slice.whole().with_dtype(dtype))),
            Elements::Quantized(_) => unreachable!("codes and scales are no such numbers"),
        };
        Self { dtype, elements, ..self.clone() }
    }

    /// Whether it has no elements. Those of a checkpoint always have some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is f32 because something is added to what the file has.
    fn is_sum(&self) -> bool {
        matches!(&self.elements, Elements::Rearranged(rearranged) if rearranged.is_sum())
    }

    /// Whether it is f32 and the file has less.
    fn is_widened(&self) -> bool {
        match &self.elements {
            Elements::Rearranged(_) if self.is_sum() => false,
            Elements::Rearranged(rearranged) => {
                self.dtype == Dtype::F32 && rearranged.stored().any(|number| number != Number::F32)
            }
            Elements::Slice(slice) => slice.whole().is_widened(),
            Elements::Bytes(_) | Elements::Random(_) | Elements::Quantized(_) => false,
        }
    }
}
