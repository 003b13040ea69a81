//! Errors of reading a checkpoint, and what to do about them.

use std::io;
use std::path::PathBuf;

use super::config_json::ConfigFileError;
use super::download::{self, DownloadError};
use super::folder::FolderError;
use super::foreign::ForeignQuantization;
use super::gguf::GgufError;
use super::inventory::Mismatches;
use super::safetensors::SafetensorsError;
use crate::config::ConfigError;
use crate::family::FamilyError;
use format::Dtype;
use hint::Hint;

/// Why a checkpoint could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// What is wrong with a file, with its name.
    #[error("could not read checkpoint `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: Box<CheckpointError>,
    },
    /// What is wrong with one of several files.
    #[error("could not read its file `{}`", path.display())]
    Part {
        path: PathBuf,
        #[source]
        source: Box<CheckpointError>,
    },
    /// The file could not be opened or mapped.
    #[error("could not map the file")]
    Map(#[source] io::Error),
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
        #[source]
        source: ConfigError,
    },
    /// The dimensions do not fit each other.
    #[error("the dimensions do not make a model")]
    Config(#[from] ConfigError),
    /// The family's file, which is not the built-in one, has something that no header says.
    #[error("the header of a `.bin` file has no `{name}`, and the family's file no default for it")]
    NotInHeader {
        /// The dimension or number.
        name: &'static str,
    },
    /// A model that `.bin` files have no place for.
    #[error("`.bin` files hold models of the family gpt-oss, and this one is of `{family}`")]
    NoBin { family: String },
    /// The dimensions promise more than 2^64 bytes.
    #[error("the dimensions describe a model of more than 2^64 bytes")]
    TooLarge,
    /// The file's size fits neither element type.
    #[error(
        "the header describes {parameters} parameters: {f32_bytes} bytes as f32 or {bf16_bytes} bytes as bf16; the \
         file has {found} bytes, {}", misfit(*found, *f32_bytes, *bf16_bytes)
    )]
    Size {
        parameters: u64,
        /// Size of an f32 file.
        f32_bytes: u64,
        /// Size of a bf16 file.
        bf16_bytes: u64,
        found: u64,
    },
    /// A layout that only `.bin` files can have.
    #[error("`--layout` says what an exporter of `.bin` files got wrong; this is {found}")]
    Layout {
        /// The kind of file that it is.
        found: &'static str,
    },
    /// The file is not there, or not whole.
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The tensors are quantised in a way that is not read.
    #[error(transparent)]
    Foreign(#[from] ForeignQuantization),
    /// The file of the model's family is broken.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The files' tensors are not those of the model.
    #[error(transparent)]
    Tensors(#[from] Mismatches),
    /// What the numbers of a block share is no number.
    #[error("`{name}` has a block whose scale or offset is infinite or NaN")]
    NotFinite { name: String },
    /// A number that no quantised one is near.
    #[error("could not quantise `{name}`: row {row} has a number that {to} cannot hold")]
    NotQuantized { name: String, row: usize, to: Dtype },
    /// The weights do not fit into memory.
    #[error("could not allocate {len_bytes} bytes for `{name}`")]
    OutOfMemory { name: String, len_bytes: u64 },
}

impl Hint for CheckpointError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File { path, source } | Self::Part { path, source } => match &**source {
                Self::Safetensors(error) if error.is_cut_short() => Some(download::again(path)),
                source => source.hint(),
            },
            Self::Download(error) => error.hint(),
            Self::Safetensors(error) => error.hint(),
            Self::Gguf(error) => error.hint(),
            Self::ConfigFile(error) => error.hint(),
            Self::Folder(error) => error.hint(),
            Self::Foreign(error) => error.hint(),
            Self::Family(error) => error.hint(),
            Self::Tensors(error) => error.hint(),
            Self::NotInHeader { name } => Some(format!("give `{name}` a `default` in the file of the family gpt-oss")),
            Self::NoBin { .. } => Some("`run` accepts the original file as it is".into()),
            Self::Layout { .. } => Some("leave `--layout` out".into()),
            Self::Header { source, .. } | Self::Config(source) => source.hint(),
            Self::Size { found, bf16_bytes, .. } if found < bf16_bytes => {
                Some("the file is cut short: copy or export it again and compare its size".into())
            }
            Self::Size { .. } | Self::NoHeader { .. } | Self::TooLarge => {
                Some("is this a `.bin` checkpoint? Only its size identifies one".into())
            }
            Self::OutOfMemory { .. } => {
                Some("converted weights need memory: export the checkpoint to `.bin` once".into())
            }
            Self::NotFinite { .. } => Some("the file is damaged: copy it again, or convert the model again".into()),
            Self::NotQuantized { .. } => {
                Some("leave `--quantize` out, or copy the file again: it may be damaged".into())
            }
            Self::Map(source) if source.kind() == io::ErrorKind::NotFound => {
                Some("a model is a `.bin`, `.gguf` or `.safetensors` file, or a folder with a `config.json`".into())
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
