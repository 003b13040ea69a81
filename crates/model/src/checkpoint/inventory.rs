//! A file's tensors by their stored names. They are taken out one by one, and every mismatch with the model is
//! recorded, so that one error lists all of them.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use super::stored::{Codec, Number, StoredType};
use hint::Hint;

/// The tensors of the files that make up a checkpoint, by the names that the files give them.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    tensors: BTreeMap<String, StoredTensor>,
    mismatches: Vec<Mismatch>,
}

/// A tensor as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) stored: StoredType,
    /// Outermost dimension first.
    pub(crate) shape: Vec<u64>,
    /// As many as type and shape say.
    pub(crate) bytes: Bytes,
    /// Where they lie in their file.
    pub(crate) file_offset: u64,
}

/// Element types that a place in the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Numbers that stand alone.
    Plain,
    /// Those, and numbers in blocks.
    Number,
    /// Blocks of MXFP4, scales included.
    Mxfp4Blocks,
    /// Codes of MXFP4.
    Byte,
    /// Its scales.
    Scale,
}

/// A difference between what the model wants and what the files hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Mismatch {
    /// The model needs it, and no file has it.
    Missing {
        /// Its name in the files.
        name: String,
        /// Its type and shape.
        expected: String,
    },
    /// A file has it, and the model has no place for it.
    Extra {
        /// Its name in the files.
        name: String,
        /// Its type and shape.
        found: String,
    },
    /// It has other dimensions.
    Shape {
        /// Its name in the files.
        name: String,
        /// As the dimensions of the model want it.
        expected: String,
        found: String,
    },
    /// It has elements of a type that its place does not take.
    Type {
        /// Its name in the files.
        name: String,
        /// The types that are taken.
        expected: &'static str,
        found: &'static str,
    },
}

/// All that does not fit.
#[derive(Debug, thiserror::Error)]
#[error("{} of the tensors do not match the model's dimensions:{}", .0.len(), lines(.0))]
pub struct Mismatches(pub Vec<Mismatch>);

impl Hint for Mismatches {
    fn hint(&self) -> Option<String> {
        let is_missing = |mismatch: &Mismatch| matches!(mismatch, Mismatch::Missing { .. });
        let is_type = |mismatch: &Mismatch| matches!(mismatch, Mismatch::Type { .. });
        Some(if self.0.iter().all(is_missing) {
            "is a file of the checkpoint missing? For a sharded one, name the folder or its index, not one file".into()
        } else if self.0.iter().all(is_type) {
            "convert the model to one of the expected types, without loss of precision".into()
        } else {
            "do weights, family and dimensions belong together?".into()
        })
    }
}

fn lines(mismatches: &[Mismatch]) -> String {
    mismatches.iter().map(|mismatch| format!("\n    {mismatch}")).collect()
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => write!(f, "`{name}` is missing, expected {expected}"),
            Self::Extra { name, found } => write!(f, "`{name}` has no place in the model, found {found}"),
            Self::Shape { name, expected, found } => write!(f, "`{name}` is {found}, expected {expected}"),
            Self::Type { name, expected, found } => write!(f, "`{name}` consists of {found}, expected {expected}"),
        }
    }
}

impl Inventory {
    /// Adds what a file holds. Gives back the name of a tensor that is there already.
    pub(crate) fn add(&mut self, name: String, tensor: StoredTensor) -> Result<(), String> {
        match self.tensors.contains_key(&name) {
            true => Err(name),
            false => {
                self.tensors.insert(name, tensor);
                Ok(())
            }
        }
    }

    /// Adds what another file holds. Gives back the name of a tensor that is there already.
    pub(super) fn join(&mut self, other: Self) -> Result<(), String> {
        other.tensors.into_iter().try_for_each(|(name, tensor)| self.add(name, tensor))
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// Looks at a tensor, which stays.
    pub(crate) fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// Takes a tensor of numbers that stand alone out, as [`Self::take`] does.
    pub(super) fn take_plain(&mut self, name: String, shape: &[usize]) -> Option<StoredTensor> {
        self.take(name, shape, Form::Plain)
    }

    /// Takes a tensor out that nothing needs, if it is there.
    pub(super) fn leave_out(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Takes a tensor out, if it is as it is wanted; notes what is wrong otherwise.
    pub(super) fn take(&mut self, name: String, shape: &[usize], wanted: Form) -> Option<StoredTensor> {
        let Some(found) = self.tensors.remove(&name) else {
            let expected = format!("{}, {}", wanted.names(), shape_text(shape));
            self.mismatches.push(Mismatch::Missing { name, expected });
            return None;
        };
        let is_shape = found.shape.iter().eq(shape.iter().map(|&n| n as u64).collect::<Vec<_>>().iter());
        let is_type = found.stored.codec.is_some_and(|codec| wanted.takes(codec));
        if !is_shape {
            let (expected, found) = (shape_text(shape), shape_text(&found.shape));
            self.mismatches.push(Mismatch::Shape { name: name.clone(), expected, found });
        }
        if !is_type {
            self.mismatches.push(Mismatch::Type { name, expected: wanted.names(), found: found.stored.name });
        }
        (is_shape && is_type).then_some(found)
    }

    /// Whether everything was as wanted, and nothing is left.
    ///
    /// # Errors
    /// All that is not so.
    pub(crate) fn finish(self) -> Result<(), Mismatches> {
        let Self { tensors, mut mismatches } = self;
        mismatches.extend(tensors.into_iter().map(|(name, tensor)| Mismatch::Extra {
            name,
            found: format!("{}, {}", tensor.stored.name, shape_text(&tensor.shape)),
        }));
        if mismatches.is_empty() { Ok(()) } else { Err(Mismatches(mismatches)) }
    }
}

impl StoredTensor {
    /// The type of its numbers; `None` for codes and scales.
    pub(super) fn number(&self) -> Option<Number> {
        match self.stored.codec {
            Some(Codec::Number(number)) => Some(number),
            _ => None,
        }
    }
}

impl Form {
    fn takes(self, codec: Codec) -> bool {
        match self {
            Self::Plain => matches!(codec, Codec::Number(Number::F32 | Number::F16 | Number::Bf16)),
            Self::Number => matches!(codec, Codec::Number(_)),
            Self::Mxfp4Blocks => matches!(codec, Codec::Mxfp4Blocks(_)),
            Self::Byte => codec == Codec::Byte,
            Self::Scale => matches!(codec, Codec::Byte | Codec::Exponent),
        }
    }

    fn names(self) -> &'static str {
        match self {
            Self::Plain => "BF16, F16 or F32",
            Self::Number => {
                "BF16, F16, F32, F8_E4M3 or (GGUF) Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS or Q2_K to Q6_K"
            }
            Self::Mxfp4Blocks => "MXFP4",
            Self::Byte => "U8",
            Self::Scale => "U8 or F8_E8M0",
        }
    }
}

/// `(3, 4)`
fn shape_text<T: fmt::Display>(shape: &[T]) -> String {
    let dimensions: Vec<String> = shape.iter().map(T::to_string).collect();
    format!("({})", dimensions.join(", "))
}
