//! The values of a GGUF file's keys.

use std::fmt;

use bytes::Bytes;

use super::GgufError;

/// A value. Text and arrays are slices of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number of a type without a sign.
    Unsigned(u64),
    /// A whole number of a type with one.
    Signed(i64),
    /// A number of 32 or 64 bits.
    Float(f64),
    Bool(bool),
    /// UTF-8.
    Text(String),
    Array(Array),
}

/// An array whose elements are read on demand; all of them were checked to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    kind: u32,
    len: u64,
    bytes: Bytes,
}

const UINT8: u32 = 0;
const INT8: u32 = 1;
const UINT16: u32 = 2;
const INT16: u32 = 3;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const UINT64: u32 = 10;
const INT64: u32 = 11;
const FLOAT64: u32 = 12;

/// Bytes of a value, where all of a type have the same.
fn len_bytes(kind: u32) -> Option<u64> {
    match kind {
        UINT8 | INT8 | BOOL => Some(1),
        UINT16 | INT16 => Some(2),
        UINT32 | INT32 | FLOAT32 => Some(4),
        UINT64 | INT64 | FLOAT64 => Some(8),
        _ => None,
    }
}

impl Value {
    pub(super) fn read(cursor: &mut Cursor, key: &str) -> Result<Self, GgufError> {
        let part = || format!("the value of `{key}`");
        match cursor.u32(part)? {
            STRING => Ok(Self::Text(cursor.text(part)?)),
            ARRAY => Ok(Self::Array(Array::read(cursor, key)?)),
            kind => Self::number(cursor, kind, key),
        }
    }

    /// A whole number that is not below 0, of whichever type.
    pub(super) fn unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    fn number(cursor: &mut Cursor, kind: u32, key: &str) -> Result<Self, GgufError> {
        let part = || format!("the value of `{key}`");
        let Some(len) = len_bytes(kind) else { return Err(GgufError::ValueType { part: part(), found: kind }) };
        let bytes = cursor.take(len, part)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(&bytes);
        let unsigned = u64::from_le_bytes(word);
        Ok(match kind {
            INT8 => Self::Signed(i64::from(unsigned as i8)),
            INT16 => Self::Signed(i64::from(unsigned as i16)),
            INT32 => Self::Signed(i64::from(unsigned as i32)),
            INT64 => Self::Signed(unsigned as i64),
            FLOAT32 => Self::Float(f64::from(f32::from_bits(unsigned as u32))),
            FLOAT64 => Self::Float(f64::from_bits(unsigned)),
            BOOL if unsigned > 1 => {
                let (expected, found) = ("a bool, 0 or 1".into(), unsigned.to_string());
                return Err(GgufError::Key { key: key.to_owned(), expected, found });
            }
            BOOL => Self::Bool(unsigned == 1),
            _ => Self::Unsigned(unsigned),
        })
    }
}

impl Array {
    fn read(cursor: &mut Cursor, key: &str) -> Result<Self, GgufError> {
        let part = || format!("the array `{key}`");
        let (kind, len) = (cursor.u32(part)?, cursor.u64(part)?);
        let begin = cursor.at();
        match len_bytes(kind) {
            Some(element) => drop(cursor.take(len.saturating_mul(element), part)?),
            // Each takes its length's bytes at least, so that a lying length ends with the file.
            None if kind == STRING => {
                for i in 0..len {
                    cursor.text_bytes(|| format!("element {i} of `{key}`"))?;
                }
            }
            None => return Err(GgufError::ValueType { part: part(), found: kind }),
        }
        Ok(Self { kind, len, bytes: cursor.since(begin) })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its texts, if it is an array of texts.
    pub(crate) fn texts(&self) -> Option<impl Iterator<Item = &str>> {
        let mut rest = &self.bytes[..];
        let next = move || {
            let (len, behind) = rest.split_first_chunk::<8>()?;
            let (text, behind) = behind.split_at_checked(u64::from_le_bytes(*len) as usize)?;
            rest = behind;
            Some(str::from_utf8(text).expect("checked when it was read"))
        };
        (self.kind == STRING).then(|| std::iter::from_fn(next))
    }

    /// Its numbers, if it is an array of 32-bit whole numbers, with or without sign.
    pub(crate) fn words(&self) -> Option<impl Iterator<Item = u32>> {
        let words = self.bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        matches!(self.kind, UINT32 | INT32).then_some(words)
    }

    /// Its numbers, if it is an array of floats of 32 bits.
    pub(crate) fn floats(&self) -> Option<impl Iterator<Item = f32>> {
        let floats = self.bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float));
        (self.kind == FLOAT32).then_some(floats)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Text(text) => {
                let shown: String = text.chars().take(60).collect();
                write!(f, "`{shown}`{}", if shown.len() < text.len() { "…" } else { "" })
            }
            Self::Array(array) => write!(f, "an array of {} values", array.len),
        }
    }
}

/// A place in a file. Whatever is taken is known to be there.
pub(super) struct Cursor<'a> {
    file: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a Bytes) -> Self {
        Self { file, at: 0 }
    }

    /// Bytes after the file's beginning.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// What was read from `begin` on.
    pub(crate) fn since(&self, begin: usize) -> Bytes {
        self.file.slice(begin..self.at)
    }

    /// The next bytes; `part` names what they belong to.
    pub(crate) fn take(&mut self, len: u64, part: impl FnOnce() -> String) -> Result<Bytes, GgufError> {
        let begin = self.at;
        if len > (self.file.len() - begin) as u64 {
            return Err(GgufError::Truncated { part: part(), offset: begin, expected: len, found: self.file.len() });
        }
        self.at += len as usize;
        Ok(self.file.slice(begin..self.at))
    }

    pub(crate) fn u32(&mut self, part: impl FnOnce() -> String) -> Result<u32, GgufError> {
        let bytes = self.take(4, part)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn u64(&mut self, part: impl FnOnce() -> String) -> Result<u64, GgufError> {
        let bytes = self.take(8, part)?;
        Ok(u64::from_le_bytes(*bytes.first_chunk().expect("eight were taken")))
    }

    /// A length and so many bytes of UTF-8.
    pub(crate) fn text_bytes(&mut self, part: impl Fn() -> String) -> Result<Bytes, GgufError> {
        let len = self.u64(&part)?;
        let begin = self.at;
        let bytes = self.take(len, &part)?;
        match str::from_utf8(&bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(GgufError::NotUtf8 { part: part(), offset: begin + error.valid_up_to() }),
        }
    }

    pub(crate) fn text(&mut self, part: impl Fn() -> String) -> Result<String, GgufError> {
        let bytes = self.text_bytes(part)?;
        Ok(str::from_utf8(&bytes).expect("just checked").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_type_are_what_their_bytes_say() {
        let read = |kind: u32, bytes: &[u8]| {
            let file = Bytes::from([&kind.to_le_bytes(), bytes].concat());
            Value::read(&mut Cursor::new(&file), "key").expect("a value")
        };
        let unsigned = |kind, bytes: &[u8]| read(kind, bytes) == Value::Unsigned(200);
        assert!(unsigned(UINT8, &[200]) && unsigned(UINT16, &[200, 0]) && unsigned(UINT32, &[200, 0, 0, 0]));
        assert!(unsigned(UINT64, &200_u64.to_le_bytes()));
        let signed = |kind, bytes: &[u8]| read(kind, bytes) == Value::Signed(-3);
        assert!(
            signed(INT8, &[253]) && signed(INT16, &(-3_i16).to_le_bytes()) && signed(INT32, &(-3_i32).to_le_bytes())
        );
        assert!(signed(INT64, &(-3_i64).to_le_bytes()));
        assert_eq!(read(FLOAT32, &1.5_f32.to_le_bytes()), Value::Float(1.5));
        assert_eq!(read(FLOAT64, &0.1_f64.to_le_bytes()), Value::Float(0.1));
        assert_eq!((read(BOOL, &[1]), read(BOOL, &[0])), (Value::Bool(true), Value::Bool(false)));
    }

    #[test]
    fn an_array_is_empty_where_it_has_no_element() {
        let read = |values: &[u16]| {
            let head = [ARRAY.to_le_bytes(), UINT16.to_le_bytes()].concat();
            let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let file = Bytes::from([head, (values.len() as u64).to_le_bytes().to_vec(), elements].concat());
            match Value::read(&mut Cursor::new(&file), "key").expect("a value") {
                Value::Array(array) => (array.len(), array.is_empty()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([read(&[]), read(&[7]), read(&[7, 8])], [(0, true), (1, false), (2, false)]);
    }
}
