//! GGUF files, version 3: keys with values, then a list of tensors, then their data.
//!
//! Everything is checked against the bytes that are there before it is used, and arrays stay in the mapped file:
//! nothing is allocated for sizes that a header only claims. [`value`] reads the values, [`parts`] joins several
//! files, [`model`] makes a model.

pub mod model;
pub(super) mod parts;
pub mod value;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use bytes::Bytes;

use super::CheckpointError;
use super::inventory::{Inventory, StoredTensor};
use super::stored::{Codec, Mxfp4Order, Number, StoredType};
use format::Dtype;
use hint::Hint;

use value::{Cursor, Value};

/// The first four bytes of a file.
const MAGIC: &[u8] = b"GGUF";

/// The version that is read: the current one.
const VERSION: u32 = 3;

/// The key that says what a file is, and what the model's own keys begin with.
const ARCHITECTURE: &str = "general.architecture";

/// What Ollama's converter has there of gpt-oss.
const OLLAMA: &str = "gptoss";

/// Ollama's own type number for MXFP4, and the stored type.
const OLLAMA_MXFP4: (u32, StoredType) = {
    let codec = Some(Codec::Mxfp4Blocks(Mxfp4Order::Neighbours));
    (4, StoredType { name: "MXFP4", block_len: 32, block_bytes: 17, codec })
};

/// Most keys, and most tensors. gpt-oss-120b has about 40 and 700.
const MAX_COUNT: u64 = 1 << 16;

/// What `general.alignment` is if the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A file's keys and tensors.
#[derive(Debug, Default)]
pub struct Gguf {
    /// Values by their keys.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors, shapes outermost dimension first.
    pub(crate) tensors: Inventory,
}

/// What is wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file ends within something.
    #[error("the file has {found} bytes and ends within {part}, which takes {expected} bytes from offset {offset}")]
    Truncated {
        /// `the header`, `key 7`, …
        part: String,
        /// Where that part begins.
        offset: usize,
        /// Bytes that it claims to take.
        expected: u64,
        /// Bytes in the whole file.
        found: usize,
    },
    /// It does not begin as a GGUF file does.
    #[error("the file begins with {found:02x?}, expected `GGUF`")]
    Magic {
        /// Its first four bytes.
        found: Vec<u8>,
    },
    /// Another version of the format, or the other byte order.
    #[error("the file is of version {found} of the format, expected {VERSION}")]
    Version { found: u32 },
    /// More keys or tensors than any model has.
    #[error("the file claims {found} {what}, expected {MAX_COUNT} at most")]
    Count {
        /// `keys` or `tensors`.
        what: &'static str,
        found: u64,
    },
    /// A key or a tensor is there twice.
    #[error("{part} is `{name}`, a duplicate")]
    Duplicate {
        /// `key 7` or `tensor 7`.
        part: String,
        name: String,
    },
    #[error("{part} is not UTF-8 at offset {offset}")]
    NotUtf8 {
        part: String,
        /// The first byte that is wrong.
        offset: usize,
    },
    /// A value has a type that the format does not have, or not there.
    #[error("{part} has a value of type {found}, which is none of the format's")]
    ValueType {
        part: String,
        /// The number of the type.
        found: u32,
    },
    /// A tensor has no dimensions, or too many.
    #[error("`{name}` has {found} dimensions, expected 1 to 4")]
    Dimensions { name: String, found: u32 },
    /// A type of elements that is not known.
    #[error("`{name}` has elements of type {found}, which is not known")]
    TensorType {
        name: String,
        /// The number of the type.
        found: u32,
    },
    /// Rows that are not whole blocks, or a size past 2^64.
    #[error(
        "`{name}` cannot be {shape:?} of {kind}: rows are whole blocks of {block_len}, and it must fit into memory"
    )]
    Shape {
        name: String,
        /// Its shape, outermost dimension first.
        shape: Vec<u64>,
        kind: &'static str,
        /// Elements that are stored together.
        block_len: usize,
    },
    /// Tensors overlap, leave gaps, or are not aligned.
    #[error("`{name}` begins at byte {found} of the data, expected {expected}, after the tensor before it")]
    Offset {
        name: String,
        /// Where the one before it ends, aligned.
        expected: u64,
        /// Where it says to begin.
        found: u64,
    },
    /// The data is shorter or longer than the tensors.
    #[error("the tensors take {expected} bytes, the file has {found} after its header")]
    Data {
        /// Bytes of all tensors.
        expected: u64,
        /// Bytes in the file after the header.
        found: u64,
    },
    /// One of several files, and the others cannot be found by its name.
    #[error("the file is one of {n_parts} parts and is named `{found}`, expected `NAME-00001-of-{n_parts:05}.gguf`")]
    PartName { n_parts: u64, found: String },
    /// A key that a model needs is not there.
    #[error("the key `{key}` is missing")]
    MissingKey { key: String },
    /// A key has a value that is not taken.
    #[error("the key `{key}` is {found}, expected {expected}")]
    Key { key: String, expected: String, found: String },
}

impl Hint for GgufError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Truncated { .. } => "the file is cut short: download or copy it again".into(),
            Self::Data { expected, found } if found < expected => {
                "the file is cut short: download or copy it again".into()
            }
            Self::Version { found } if found.swap_bytes() == VERSION => {
                "the file is big-endian: convert it on a little-endian machine".into()
            }
            Self::PartName { .. } => "restore the original names of all parts: the parts are found by them".into(),
            Self::MissingKey { key } | Self::Key { key, .. } if key.starts_with("split.") => {
                "the parts belong to different models: download them again under their own names".into()
            }
            Self::MissingKey { .. } | Self::Key { .. } => {
                "`gptoss-jit models ls` lists the known families, in files of llama.cpp's converter".into()
            }
            _ => "the program that wrote this file violated the format: convert the model again".into(),
        })
    }
}

/// Whether a file says that it is GGUF.
pub(super) fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Gguf {
    /// Reads a file, if it is GGUF. Any one of several parts stands for all of them.
    ///
    /// # Errors
    /// The file cannot be mapped, or is not what it says; a part is missing, or of something else.
    pub fn open(path: &Path) -> Result<Option<Self>, CheckpointError> {
        let bytes = mapped_file::map(path).map_err(CheckpointError::Map)?;
        if is_gguf(&bytes) { Ok(Some(parts::read(path, &bytes)?.file)) } else { Ok(None) }
    }

    /// Reads a file's header, and takes its tensors' slices.
    ///
    /// # Errors
    /// The first thing that is wrong with the file.
    pub fn read(bytes: &Bytes) -> Result<Self, GgufError> {
        let header = Header::read(bytes)?;
        let is_ollama = is_ollama(&header.metadata);
        header.with_tensors(is_ollama)
    }
}

/// Whether Ollama's converter wrote the file that has these keys.
fn is_ollama(metadata: &BTreeMap<String, Value>) -> bool {
    matches!(metadata.get(ARCHITECTURE), Some(Value::Text(found)) if found == OLLAMA)
}

/// A file whose keys are read, and its tensors are not.
struct Header<'a> {
    metadata: BTreeMap<String, Value>,
    bytes: &'a Bytes,
    /// At the list of tensors.
    cursor: Cursor<'a>,
    n_tensors: u64,
}

impl<'a> Header<'a> {
    fn read(bytes: &'a Bytes) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.take(4, || "the header".into())?;
        if magic != MAGIC {
            return Err(GgufError::Magic { found: magic.to_vec() });
        }
        match cursor.u32(|| "the header".into())? {
            VERSION => {}
            found => return Err(GgufError::Version { found }),
        }
        let n_tensors = count(&mut cursor, "tensors")?;
        let n_keys = count(&mut cursor, "keys")?;
        let metadata = metadata(&mut cursor, n_keys)?;
        Ok(Self { metadata, bytes, cursor, n_tensors })
    }

    fn with_tensors(self, is_ollama: bool) -> Result<Gguf, GgufError> {
        let Self { metadata, bytes, mut cursor, n_tensors } = self;
        let listed = (0..n_tensors).map(|i| Listed::read(&mut cursor, i, is_ollama)).collect::<Result<Vec<_>, _>>()?;
        let alignment = alignment(&metadata)?;
        let data_at = (cursor.at() as u64).next_multiple_of(alignment).min(bytes.len() as u64);
        let tensors = place(listed, bytes, data_at as usize, alignment)?;
        Ok(Gguf { metadata, tensors })
    }
}

fn count(cursor: &mut Cursor, what: &'static str) -> Result<u64, GgufError> {
    match cursor.u64(|| "the header".into())? {
        found if found > MAX_COUNT => Err(GgufError::Count { what, found }),
        found => Ok(found),
    }
}

fn metadata(cursor: &mut Cursor, n_keys: u64) -> Result<BTreeMap<String, Value>, GgufError> {
    let mut metadata = BTreeMap::new();
    for i in 0..n_keys {
        let key = cursor.text(|| format!("the name of key {i}"))?;
        let value = Value::read(cursor, &key)?;
        match metadata.entry(key) {
            Entry::Vacant(place) => place.insert(value),
            Entry::Occupied(taken) => {
                return Err(GgufError::Duplicate { part: format!("key {i}"), name: taken.key().clone() });
            }
        };
    }
    Ok(metadata)
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<u64, GgufError> {
    let key = "general.alignment";
    match metadata.get(key) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::Unsigned(n)) if n.is_power_of_two() && n <= 1 << 16 => Ok(n),
        Some(other) => Err(GgufError::Key {
            key: key.into(),
            expected: "a power of two up to 65536".into(),
            found: other.to_string(),
        }),
    }
}

/// An entry of the list of tensors.
struct Listed {
    name: String,
    stored: StoredType,
    /// Outermost dimension first; the file has it the other way round.
    shape: Vec<u64>,
    len_bytes: u64,
    /// From the beginning of the data.
    offset: u64,
}

impl Listed {
    fn read(cursor: &mut Cursor, i: u64, is_ollama: bool) -> Result<Self, GgufError> {
        let name = cursor.text(|| format!("the name of tensor {i}"))?;
        let part = || format!("`{name}`");
        let n_dimensions = cursor.u32(part)?;
        if !(1..=4).contains(&n_dimensions) {
            return Err(GgufError::Dimensions { name, found: n_dimensions });
        }
        let mut shape = (0..n_dimensions).map(|_| cursor.u64(part)).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let (number, offset) = (cursor.u32(part)?, cursor.u64(part)?);
        let own = (is_ollama && number == OLLAMA_MXFP4.0).then_some(OLLAMA_MXFP4.1);
        let Some(stored) = own.or_else(|| stored_type(number)) else {
            return Err(GgufError::TensorType { name, found: number });
        };
        let Some(len_bytes) = stored.len_bytes(&shape) else {
            return Err(GgufError::Shape { name, shape, kind: stored.name, block_len: stored.block_len });
        };
        Ok(Self { name, stored, shape, len_bytes, offset })
    }
}

/// Takes the tensors' slices. They follow each other in the order of the list, each aligned.
fn place(listed: Vec<Listed>, bytes: &Bytes, data_at: usize, alignment: u64) -> Result<Inventory, GgufError> {
    let data = bytes.slice(data_at..);
    let found = data.len() as u64;
    let (mut inventory, mut end) = (Inventory::default(), 0u64);
    for (i, Listed { name, stored, shape, len_bytes, offset }) in listed.into_iter().enumerate() {
        let expected = end.next_multiple_of(alignment);
        if offset != expected {
            return Err(GgufError::Offset { name, expected, found: offset });
        }
        end = offset.saturating_add(len_bytes);
        if end > found {
            return Err(GgufError::Data { expected: end, found });
        }
        let bytes = data.slice(offset as usize..end as usize);
        let tensor = StoredTensor { stored, shape, bytes, file_offset: data_at as u64 + offset };
        let duplicate = |name| GgufError::Duplicate { part: format!("tensor {i}"), name };
        inventory.add(name, tensor).map_err(duplicate)?;
    }
    // The last tensor may or may not be padded.
    if found > end.next_multiple_of(alignment) {
        return Err(GgufError::Data { expected: end, found });
    }
    Ok(inventory)
}

const fn quantised(name: &'static str, block_len: usize, block_bytes: usize) -> StoredType {
    StoredType { name, block_len, block_bytes, codec: None }
}

/// The type of ggml that has this number.
fn stored_type(number: u32) -> Option<StoredType> {
    let in_blocks = BLOCKS.iter().find(|(known, ..)| *known == number);
    let in_blocks = in_blocks.map(|(_, name, dtype)| StoredType::in_blocks(name, *dtype));
    in_blocks.or_else(|| TYPES.iter().find(|(known, _)| *known == number).map(|(_, stored)| *stored))
}

/// Types in blocks that are read, by their numbers.
const BLOCKS: [(u32, &str, Dtype); 13] = [
    (2, "Q4_0", Dtype::Q4_0),
    (3, "Q4_1", Dtype::Q4_1),
    (6, "Q5_0", Dtype::Q5_0),
    (7, "Q5_1", Dtype::Q5_1),
    (8, "Q8_0", Dtype::Q8_0),
    (10, "Q2_K", Dtype::Q2K),
    (11, "Q3_K", Dtype::Q3K),
    (12, "Q4_K", Dtype::Q4K),
    (13, "Q5_K", Dtype::Q5K),
    (14, "Q6_K", Dtype::Q6K),
    (20, "IQ4_NL", Dtype::Iq4Nl),
    (23, "IQ4_XS", Dtype::Iq4Xs),
    (39, "MXFP4", Dtype::Mxfp4),
];

/// The other types by their numbers. Those without a codec are here to be named.
const TYPES: [(u32, StoredType); 19] = [
    (0, StoredType::plain("F32", 4, Some(Codec::Number(Number::F32)))),
    (1, StoredType::plain("F16", 2, Some(Codec::Number(Number::F16)))),
    (30, StoredType::plain("BF16", 2, Some(Codec::Number(Number::Bf16)))),
    (9, quantised("Q8_1", 32, 40)),
    (15, quantised("Q8_K", 256, 292)),
    (16, quantised("IQ2_XXS", 256, 66)),
    (17, quantised("IQ2_XS", 256, 74)),
    (18, quantised("IQ3_XXS", 256, 98)),
    (19, quantised("IQ1_S", 256, 50)),
    (21, quantised("IQ3_S", 256, 110)),
    (22, quantised("IQ2_S", 256, 82)),
    (29, quantised("IQ1_M", 256, 56)),
    (34, quantised("TQ1_0", 256, 54)),
    (35, quantised("TQ2_0", 256, 66)),
    (24, quantised("I8", 1, 1)),
    (25, quantised("I16", 1, 2)),
    (26, quantised("I32", 1, 4)),
    (27, quantised("I64", 1, 8)),
    (28, quantised("F64", 1, 8)),
];
