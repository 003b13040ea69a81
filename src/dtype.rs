//! Element types of tensors, as the templates and the checkpoint formats name them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of one element in memory. The lower-case name is also the C type in rendered source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// The upper half of an `F32`: 8 exponent bits, 7 mantissa bits.
    Bf16,
    /// IEEE binary16.
    F16,
    /// Unsigned 32-bit integer: token ids, positions, indices.
    U32,
    /// Signed 32-bit integer.
    I32,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::F16, Self::U32, Self::I32];

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The name used in templates, tables and messages: `f32`, `bf16`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::U32 => "u32",
            Self::I32 => "i32",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
