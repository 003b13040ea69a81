//! The header of a safetensors file: eight bytes that say how long it is, JSON that says where each tensor lies, then
//! the tensors, without gaps.
//!
//! Read here and not by the crate `safetensors`: that one lets the last of several tensors of the same name win, and
//! its errors do not say what was expected. Nothing is allocated but names and shapes, which the header itself spells
//! out.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::inventory::{Inventory, StoredTensor};
use super::stored::{Codec, Number, StoredType};
use hint::Hint;

/// Bytes before the JSON.
const LENGTH_BYTES: usize = 8;

/// The longest header that is read. gpt-oss-120b's longest takes about 30 kB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// The types that the format knows.
const TYPES: [StoredType; 20] = [
    StoredType::plain("F32", 4, Some(Codec::Number(Number::F32))),
    StoredType::plain("F16", 2, Some(Codec::Number(Number::F16))),
    StoredType::plain("BF16", 2, Some(Codec::Number(Number::Bf16))),
    StoredType::plain("U8", 1, Some(Codec::Byte)),
    StoredType::plain("F64", 8, None),
    StoredType::plain("I64", 8, None),
    StoredType::plain("U64", 8, None),
    StoredType::plain("C64", 8, None),
    StoredType::plain("I32", 4, None),
    StoredType::plain("U32", 4, None),
    StoredType::plain("I16", 2, None),
    StoredType::plain("U16", 2, None),
    StoredType::plain("I8", 1, None),
    StoredType::plain("BOOL", 1, None),
    StoredType::plain("F8_E4M3", 1, Some(Codec::Number(Number::F8E4M3))),
    StoredType::plain("F8_E5M2", 1, None),
    StoredType::plain("F8_E4M3FNUZ", 1, None),
    StoredType::plain("F8_E5M2FNUZ", 1, None),
    StoredType::plain("F8_E8M0", 1, Some(Codec::Exponent)),
    StoredType { name: "F4", block_len: 2, block_bytes: 1, codec: None },
];

/// What is wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// It ends before its header does.
    #[error("the file has {found} bytes, its header alone takes {expected}")]
    Truncated {
        /// Bytes of the header and what precedes it.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The header is longer than any.
    #[error("the header has {found} bytes, expected {MAX_HEADER_BYTES} at most")]
    HeaderLength {
        /// What the file's first eight bytes say.
        found: u64,
    },
    /// The header is not what it should be.
    #[error("could not read the header")]
    Header(#[source] serde_json::Error),
    /// Two tensors have the same name, in one file or in two.
    #[error("there are two tensors `{name}`")]
    Duplicate { name: String },
    /// A type that the format does not know.
    #[error("`{name}` has the type `{found}`, which is none of the format's")]
    Type { name: String, found: String },
    /// Shape and bytes do not fit.
    #[error(
        "`{name}` takes bytes {begin} to {end} of the data, expected {} for {kind} {shape:?}",
        expected.map_or_else(|| "no such shape".into(), |n| format!("{n} bytes"))
    )]
    Size {
        name: String,
        kind: &'static str,
        shape: Vec<u64>,
        /// Where it says to begin.
        begin: u64,
        /// Where it says to end.
        end: u64,
        /// Bytes that type and shape make; `None` past 2^64.
        expected: Option<u64>,
    },
    /// Tensors overlap, or leave a gap.
    #[error("`{name}` begins at byte {found} of the data, expected {expected}, where the tensor before it ends")]
    Offset {
        name: String,
        /// Where the one before it ends.
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
}

impl Hint for SafetensorsError {
    fn hint(&self) -> Option<String> {
        match self {
            error if error.is_cut_short() => Some("the file is cut short: download or copy it again".into()),
            Self::HeaderLength { .. } | Self::Header(_) => Some("is this a safetensors file?".into()),
            _ => Some("the program that wrote this file violated the format: write it again with `safetensors`".into()),
        }
    }
}

impl SafetensorsError {
    /// Whether there is less of the file than there should be.
    pub(crate) fn is_cut_short(&self) -> bool {
        match self {
            Self::Truncated { .. } => true,
            Self::Data { expected, found } => found < expected,
            _ => false,
        }
    }
}

/// Whether a file begins as a safetensors file does: a length that fits, and a JSON object.
pub(super) fn is_safetensors(bytes: &[u8]) -> bool {
    match (bytes.first_chunk(), bytes.get(LENGTH_BYTES)) {
        (Some(length), Some(b'{')) => u64::from_le_bytes(*length) <= (bytes.len() - LENGTH_BYTES) as u64,
        _ => false,
    }
}

/// Adds a file's tensors to an inventory; gives their names.
///
/// # Errors
/// The first thing that is wrong with the file.
pub(super) fn read(bytes: &Bytes, inventory: &mut Inventory) -> Result<Vec<String>, SafetensorsError> {
    let (header, data) = split(bytes)?;
    let Header(mut entries) = serde_json::from_slice(&header).map_err(SafetensorsError::Header)?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let (mut names, mut next) = (Vec::with_capacity(entries.len()), 0);
    for (name, entry) in entries {
        let (begin, end) = entry.data_offsets;
        let stored = entry.stored(&name)?;
        if begin != next {
            return Err(SafetensorsError::Offset { name, expected: next, found: begin });
        }
        if end > data.len() as u64 {
            return Err(SafetensorsError::Data { expected: end, found: data.len() as u64 });
        }
        next = end;
        let file_offset = (bytes.len() - data.len()) as u64 + begin;
        let bytes = data.slice(begin as usize..end as usize);
        names.push(name.clone());
        let tensor = StoredTensor { stored, shape: entry.shape, bytes, file_offset };
        inventory.add(name, tensor).map_err(|name| SafetensorsError::Duplicate { name })?;
    }
    if next == data.len() as u64 {
        return Ok(names);
    }
    Err(SafetensorsError::Data { expected: next, found: data.len() as u64 })
}

/// The JSON and the tensors.
fn split(bytes: &Bytes) -> Result<(Bytes, Bytes), SafetensorsError> {
    let found = bytes.len() as u64;
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(SafetensorsError::Truncated { expected: LENGTH_BYTES as u64, found });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderLength { found: length });
    }
    let end = LENGTH_BYTES as u64 + length;
    if end > found {
        return Err(SafetensorsError::Truncated { expected: end, found });
    }
    Ok((bytes.slice(LENGTH_BYTES..end as usize), bytes.slice(end as usize..)))
}

/// The entries in the order of the file, those of the same name included.
struct Header(Vec<(String, TensorEntry)>);

#[derive(Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl TensorEntry {
    /// The type, if it and the shape make as many bytes as the entry claims.
    fn stored(&self, name: &str) -> Result<StoredType, SafetensorsError> {
        let Some(stored) = TYPES.iter().find(|known| known.name == self.dtype) else {
            return Err(SafetensorsError::Type { name: name.to_owned(), found: self.dtype.clone() });
        };
        let ((begin, end), expected) = (self.data_offsets, stored.len_bytes(&self.shape));
        if end.checked_sub(begin).is_some_and(|len| Some(len) == expected) {
            return Ok(*stored);
        }
        let (name, shape) = (name.to_owned(), self.shape.clone());
        Err(SafetensorsError::Size { name, kind: stored.name, shape, begin, end, expected })
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for every tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "__metadata__" => drop(map.next_value::<IgnoredAny>()?),
                        _ => entries.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_with_a_length_that_fits_and_an_object() {
        let file = |length: u64, header: &[u8]| [&length.to_le_bytes(), header].concat();
        assert!(is_safetensors(&file(2, b"{}")) && is_safetensors(&file(2, b"{}data")));
        for other in [file(3, b"{}"), file(u64::MAX, b"{}"), file(2, b"[]"), file(0, b""), b"{}".to_vec(), vec![]] {
            assert!(!is_safetensors(&other), "{other:?}");
        }
    }
}
