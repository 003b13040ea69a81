//! Element types of tensors, as templates and checkpoint formats name them. For [`format`]s with blocks, these are the
//! types of codes.

mod blocks;

pub use blocks::{BlockFormat, Parameter, TensorPart};

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
    /// Unsigned 8-bit integer; as a scale of MXFP4 the exponent of 2, plus 127 (E8M0).
    U8,
    /// Signed byte from -127 to 127, of the KV cache, to be multiplied by a scale that a head's elements of one
    /// position share.
    Int8,
    /// 8-bit float (sign, 4 exponent bits, 3 mantissa bits: OCP's E4M3, up to 448) of the KV cache, to be multiplied as
    /// of `Int8`.
    Fp8,
    /// 4-bit float (sign, 2 exponent bits, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6), two to a byte, the even element
    /// in the low half. The C type `mxfp4` is that byte.
    Mxfp4,
    /// Signed byte, to be multiplied by its block's scale.
    Q8_0,
    /// Unsigned 4-bit integer, two to a byte as of `Mxfp4`, to be multiplied by its block's scale; then the block's
    /// offset is added. The C type `q4_1` is that byte.
    Q4_1,
    /// 4 bits as of `Q4_1`; less 8, to be multiplied by its block's scale.
    Q4_0,
    /// The low 4 of 5 bits; less 16, to be multiplied by its block's scale.
    Q5_0,
    /// The low 4 of 5 bits of a whole number, of which the rest is as of `Q4_1`.
    Q5_1,
    /// 4 bits that choose one of 16 levels from -127 to 113, to be multiplied by its block's scale.
    #[serde(rename = "iq4_nl")]
    Iq4Nl,
    /// Unsigned 4-bit integer, to be multiplied by the scale of its 32, which is a multiple of the scale of 256; an
    /// offset made likewise is subtracted.
    #[serde(rename = "q4_k")]
    Q4K,
    /// The low 4 of 5 bits of a whole number, of which the rest is as of `Q4K`.
    #[serde(rename = "q5_k")]
    Q5K,
    /// The low 4 of 6 bits; less 32, to be multiplied by the scale of its 16, a multiple of the scale of 256.
    #[serde(rename = "q6_k")]
    Q6K,
    /// Unsigned 2-bit integer, four to a byte, the first in the lowest bits; scales and offsets of 16 as of `Q4K`.
    #[serde(rename = "q2_k")]
    Q2K,
    /// The low 2 of 3 bits; less 4, to be multiplied by the scale of its 16, a multiple of the scale of 256.
    #[serde(rename = "q3_k")]
    Q3K,
    /// A level as of `Iq4Nl`; the scale of its 32 is a multiple of the scale of 256.
    #[serde(rename = "iq4_xs")]
    Iq4Xs,
    /// 8-bit float (sign, 4 exponent bits with a bias of 7, 3 mantissa bits; no infinities, and NaN where all bits but
    /// the sign are set), to be multiplied by its block's scale.
    #[serde(rename = "f8_e4m3")]
    F8E4M3,
}

impl Dtype {
    /// Every dtype, plain ones first.
    pub const ALL: [Self; 22] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::U32,
        Self::I32,
        Self::U8,
        Self::Int8,
        Self::Fp8,
        Self::Mxfp4,
        Self::Q8_0,
        Self::Q4_1,
        Self::Q4_0,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q2K,
        Self::Q3K,
        Self::Iq4Xs,
        Self::F8E4M3,
    ];

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Size of one element in bits.
    pub const fn size_bits(self) -> usize {
        match self {
            Self::F32 | Self::U32 | Self::I32 => 32,
            Self::Bf16 | Self::F16 => 16,
            Self::U8 | Self::Int8 | Self::Fp8 | Self::Q8_0 | Self::F8E4M3 => 8,
            Self::Mxfp4 | Self::Q4_1 | Self::Q4_0 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl => 4,
            Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 4,
            Self::Q2K | Self::Q3K => 2,
        }
    }

    /// Bytes of `n_elements` side by side; a half-full last byte counts.
    pub const fn len_bytes(self, n_elements: usize) -> usize {
        match self.size_bits() {
            bits @ 0..8 => n_elements.div_ceil(8 / bits),
            bits => n_elements * (bits / 8),
        }
    }

    /// Whole elements in `len_bytes`.
    pub const fn elements_in(self, len_bytes: usize) -> usize {
        match self.size_bits() {
            bits @ 0..8 => len_bytes * (8 / bits),
            bits => len_bytes / (bits / 8),
        }
    }

    /// Bits that an element takes in memory, with its part of what its block shares.
    pub fn stored_bits(self) -> f64 {
        match self.format() {
            None => self.size_bits() as f64,
            Some(format) => 8.0 * format.block_bytes() as f64 / format.block_len() as f64,
        }
    }

    /// The largest number of a type whose elements are multiples of a scale that a head's elements of one position
    /// share; `None` for all types except those of the KV cache.
    pub const fn largest_of_row(self) -> Option<f32> {
        match self {
            Self::Int8 => Some(127.0),
            Self::Fp8 => Some(448.0),
            _ => None,
        }
    }

    /// Whether its elements are whole numbers.
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::U32 | Self::I32 | Self::U8)
    }

    /// The name used in templates, tables and messages: `f32`, `bf16`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U8 => "u8",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
            Self::Mxfp4 => "mxfp4",
            Self::Q8_0 => "q8_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Iq4Nl => "iq4_nl",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Iq4Xs => "iq4_xs",
            Self::F8E4M3 => "f8_e4m3",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mxfp4_share_a_byte() {
        assert_eq!([0, 1, 2, 3].map(|n| Dtype::Mxfp4.len_bytes(n)), [0, 1, 1, 2]);
        assert_eq!(Dtype::Mxfp4.elements_in(16), 32);
        let bits = [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_1, Dtype::Bf16].map(Dtype::stored_bits);
        assert_eq!(bits, [4.25, 8.5, 5.0, 16.0]);
        for dtype in Dtype::ALL {
            assert_eq!(dtype.elements_in(dtype.len_bytes(8)), 8, "{dtype}");
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
    }
}
