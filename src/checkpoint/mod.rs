//! Checkpoints: files in, named tensors out.
//!
//! Whatever the format, a [`Checkpoint`] holds OpenAI's canonical names, one tensor per layer, shapes outermost
//! first, and bytes that are slices of the mapped file wherever nothing had to be repaired. [`tensors`] is the list
//! of names and shapes; [`bin`] reads gpt-oss-amd's `.bin` files; [`layout`] says what is known to be wrong in some
//! of them, and [`repair`] mends it; [`encoding`] says which tensors hold a matrix; [`random`] describes weights that are made
//! where they are used; [`export`] writes a checkpoint as a `.bin` file, [`conversion`] its numbers.

pub mod bin;
pub mod conversion;
pub mod encoding;
pub mod export;
pub mod layout;
pub mod random;
pub mod repair;
pub mod size;
pub mod tensors;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytemuck::NoUninit;
use bytes::Bytes;

use crate::config::{ConfigError, ModelConfig};
use crate::dtype::Dtype;
use crate::error::Hint;

use layout::{Finding, Layout};
use random::RandomNumbers;

/// A model: its dimensions and every weight by its canonical name.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The dimensions.
    pub config: ModelConfig,
    /// Every tensor of [`tensors::groups`], under its name; for those in MXFP4 the parts of [`encoding`].
    pub tensors: BTreeMap<String, Tensor>,
    /// What was wrong or unusual, and what was done about it.
    pub findings: Vec<Finding>,
}

/// One weight.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The canonical name, such as `block.0.attn.qkv.weight`.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements.
    pub elements: Elements,
    /// Where the bytes begin in their file; `None` for weights that are not as a file has them.
    pub file_offset: Option<u64>,
}

/// The elements of a tensor.
#[derive(Clone, Debug)]
pub enum Elements {
    /// Row-major, little-endian. A slice of a mapped file is aligned to 4 bytes (f32) or 2 (bf16) at
    /// best, and not at all if the file was embedded in a program: read with unaligned loads, or copy.
    Bytes(Bytes),
    /// Made where they are used.
    Random(RandomNumbers),
}

/// Why a checkpoint could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// What is wrong with a file, with its name.
    #[error("could not read checkpoint `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<CheckpointError>,
    },
    /// The file could not be opened or mapped.
    #[error("could not map the file")]
    Map(#[source] io::Error),
    /// Not even a header.
    #[error("the file has {found} bytes, the header alone takes {expected}")]
    NoHeader {
        /// Bytes in the file.
        found: usize,
        /// Bytes in a header.
        expected: usize,
    },
    /// The header holds a value that no model has.
    #[error("the header's 4 bytes at offset {offset} make no sense")]
    Header {
        /// Where the value lies in the file.
        offset: usize,
        /// What is wrong with it.
        #[source]
        source: ConfigError,
    },
    /// The dimensions do not fit each other.
    #[error("the dimensions do not make a model")]
    Config(#[from] ConfigError),
    /// The dimensions promise more than 2^64 bytes.
    #[error("the dimensions describe a model of more than 2^64 bytes")]
    TooLarge,
    /// The file's size fits neither element type.
    #[error(
        "the header describes {parameters} parameters: {f32_bytes} bytes as f32 or {bf16_bytes} bytes as bf16; the \
         file has {found} bytes, {}", misfit(*found, *f32_bytes, *bf16_bytes)
    )]
    Size {
        /// Number of weights.
        parameters: u64,
        /// Size of an f32 file.
        f32_bytes: u64,
        /// Size of a bf16 file.
        bf16_bytes: u64,
        /// Size of this file.
        found: u64,
    },
    /// The weights do not fit into memory.
    #[error("could not allocate {len_bytes} bytes for `{name}`")]
    OutOfMemory {
        /// The tensor.
        name: String,
        /// Its size.
        len_bytes: u64,
    },
}

impl Hint for CheckpointError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File { source, .. } => source.hint(),
            Self::Header { source, .. } | Self::Config(source) => source.hint(),
            Self::Size { found, bf16_bytes, .. } if found < bf16_bytes => {
                Some("the file is cut short: copy or export it again and compare its size".into())
            }
            Self::Size { .. } | Self::NoHeader { .. } | Self::TooLarge => {
                Some("is this a `.bin` checkpoint? It has no other mark than its size".into())
            }
            Self::OutOfMemory { .. } => Some("a checkpoint that needs no mending is used where it is mapped".into()),
            Self::Map(source) if source.kind() == io::ErrorKind::IsADirectory => {
                Some("name the `.bin` file in the folder".into())
            }
            Self::Map(_) => None,
        }
    }
}

/// How far a size is from the two that are possible.
fn misfit(found: u64, f32_bytes: u64, bf16_bytes: u64) -> String {
    if found < bf16_bytes {
        format!("{} too few for bf16", bf16_bytes - found)
    } else if found < f32_bytes {
        format!("{} too many for bf16 and {} too few for f32", found - bf16_bytes, f32_bytes - found)
    } else {
        format!("{} too many for f32", found - f32_bytes)
    }
}

/// Whether tensors that are stored wrongly are mended while reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Mended,
    AsStored,
}

impl Checkpoint {
    /// Reads a checkpoint. Weights stay in the mapped file, except those that `layout` mends: they are copied.
    ///
    /// # Errors
    /// [`CheckpointError::File`] around what is wrong with it.
    pub fn open(path: &Path, layout: Layout) -> Result<Self, CheckpointError> {
        Self::read_file(path, layout, Contents::Mended)
    }

    /// Reads what a checkpoint consists of, for looking at it: as [`Self::open`], but tensors that would be mended
    /// keep the bytes of the file. This is quick however large the file is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn describe(path: &Path, layout: Layout) -> Result<Self, CheckpointError> {
        Self::read_file(path, layout, Contents::AsStored)
    }

    /// Reads a checkpoint that is in memory already.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(bytes: Bytes, layout: Layout) -> Result<Self, CheckpointError> {
        bin::read(bytes, layout, Contents::Mended)
    }

    fn read_file(path: &Path, layout: Layout, contents: Contents) -> Result<Self, CheckpointError> {
        mapped_file::map(path)
            .map_err(CheckpointError::Map)
            .and_then(|bytes| bin::read(bytes, layout, contents))
            .map_err(|source| CheckpointError::File { path: path.to_owned(), source: Box::new(source) })
    }

    /// The type of everything but the experts' matrices.
    pub fn dense_dtype(&self) -> Dtype {
        self.tensor(tensors::EMBEDDING).dtype
    }

    /// The type of the experts' matrices.
    pub fn expert_dtype(&self) -> Dtype {
        self.tensor(&format!("block.0.{}", tensors::MLP1_WEIGHT)).dtype
    }

    /// The tensor of this name, which must be one of [`Self::tensors`]: every reader provides all of them.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("no reader leaves out `{name}`"))
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

    /// The elements, if they are not yet to be made.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.elements {
            Elements::Bytes(bytes) => Some(bytes),
            Elements::Random(_) => None,
        }
    }

    /// Whether it has no elements. Those of a checkpoint always have some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Elements made in memory, as the bytes of a tensor. They stay aligned to the element type.
fn bytes_of<T: NoUninit + Send + 'static>(elements: Vec<T>) -> Bytes {
    struct Owned<T>(Vec<T>);
    impl<T: NoUninit> AsRef<[u8]> for Owned<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    Bytes::from_owner(Owned(elements))
}
