//! How files store numbers: element types, some of which the program does not compute with, and their conversion to
//! types that it does.

use half::{bf16, f16};

use format::{BlockFormat, Dtype};

use super::blocks::{self, stored_bytes};
use super::f8;

/// An element type, as a file's format names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredType {
    /// The format's own name: `BF16`, `Q8_0`.
    pub(crate) name: &'static str,
    /// Elements that are stored together; the innermost dimension consists of whole blocks.
    pub(crate) block_len: usize,
    /// Bytes of such a block.
    pub(crate) block_bytes: usize,
    /// What can be done with it; `None` for types that no tensor of a gpt-oss model may have.
    pub(crate) codec: Option<Codec>,
}

/// Types that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Numbers that become f32 or bf16.
    Number(Number),
    /// GGUF's MXFP4: a scale, then 32 codes in 16 bytes.
    Mxfp4Blocks(Mxfp4Order),
    /// Bytes that are taken as they are: the codes and the scales of MXFP4 in safetensors.
    Byte,
    /// Exponents of 8 bits: scales of MXFP4, too.
    Exponent,
}

/// Which codes of a block of MXFP4 share a byte, the first in its low half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mxfp4Order {
    /// Codes i and i + 16, as llama.cpp has them.
    Halves,
    /// Neighbours, as Ollama's converter leaves them.
    Neighbours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// IEEE binary32.
    F32,
    /// IEEE binary16: exact in f32, not in bf16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Bytes whose scales lie elsewhere ([`super::f8`]).
    F8E4M3,
    /// Blocks of a format, as GGUF has them ([`super::blocks`]).
    Blocks(Dtype),
}

impl StoredType {
    /// Numbers in blocks of a format.
    pub(crate) fn in_blocks(name: &'static str, dtype: Dtype) -> Self {
        let codec = match dtype {
            Dtype::Mxfp4 => Codec::Mxfp4Blocks(Mxfp4Order::Halves),
            _ => Codec::Number(Number::Blocks(dtype)),
        };
        let block_len = dtype.format().expect("in blocks").block_len();
        Self { name, block_len, block_bytes: stored_bytes(dtype), codec: Some(codec) }
    }

    /// A type whose elements stand alone.
    pub(crate) const fn plain(name: &'static str, bytes: usize, codec: Option<Codec>) -> Self {
        Self { name, block_len: 1, block_bytes: bytes, codec }
    }

    /// Bytes of a tensor of this shape; `None` if rows are not whole blocks, or past 2^64.
    pub(crate) fn len_bytes(&self, shape: &[u64]) -> Option<u64> {
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(self.block_len as u64) {
            return None;
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n))?;
        (elements / self.block_len as u64).checked_mul(self.block_bytes as u64)
    }
}

impl Number {
    /// Bytes that so many elements take; of types with blocks whole ones.
    pub(crate) fn len_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::F32 => 4 * n_elements,
            Self::F16 | Self::Bf16 => 2 * n_elements,
            Self::F8E4M3 => n_elements,
            Self::Blocks(dtype) => n_elements / dtype.format().expect("in blocks").block_len() * stored_bytes(dtype),
        }
    }

    /// The type of the program's that is the same in memory.
    pub(crate) fn dtype(self) -> Option<Dtype> {
        match self {
            Self::F32 => Some(Dtype::F32),
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            Self::F8E4M3 | Self::Blocks(_) => None,
        }
    }

    /// The format that the program has them in, taken apart.
    pub(crate) fn format(self) -> Option<&'static BlockFormat> {
        match self {
            Self::F8E4M3 => Dtype::F8E4M3.format(),
            Self::Blocks(dtype) => dtype.format(),
            Self::F32 | Self::F16 | Self::Bf16 => None,
        }
    }

    /// Writes elements as f32 or bf16, rounded to the nearest, ties to even.
    pub(super) fn convert(self, from: &[u8], wanted: Dtype, to: &mut [u8]) {
        if self.dtype() == Some(wanted) {
            return to.copy_from_slice(from);
        }
        write(wanted, to, |give| self.each(from, give));
    }

    /// Gives every element in order; of bytes without their scales.
    pub(super) fn each(self, from: &[u8], mut give: impl FnMut(f32)) {
        match self {
            Self::F32 => from.as_chunks().0.iter().for_each(|&bytes| give(f32::from_le_bytes(bytes))),
            Self::F16 => from.as_chunks().0.iter().for_each(|&bytes| give(f16::from_le_bytes(bytes).to_f32())),
            Self::Bf16 => from.as_chunks().0.iter().for_each(|&bytes| give(bf16::from_le_bytes(bytes).to_f32())),
            Self::F8E4M3 => from.iter().for_each(|&code| give(f8::value(code))),
            Self::Blocks(dtype) => blocks::each(dtype, from, give),
        }
    }
}

/// Writes numbers as f32 or bf16, rounded to the nearest, ties to even.
pub(super) fn write(wanted: Dtype, to: &mut [u8], numbers: impl FnOnce(&mut dyn FnMut(f32))) {
    match wanted {
        Dtype::F32 => {
            let mut to = to.as_chunks_mut::<4>().0.iter_mut();
            numbers(&mut |value| put(&mut to, value.to_le_bytes()));
        }
        Dtype::Bf16 => {
            let mut to = to.as_chunks_mut::<2>().0.iter_mut();
            numbers(&mut |value| put(&mut to, bf16::from_f32(value).to_le_bytes()));
        }
        _ => panic!("numbers become f32 or bf16, not {wanted}"),
    }
}

fn put<const N: usize>(to: &mut std::slice::IterMut<'_, [u8; N]>, bytes: [u8; N]) {
    if let Some(place) = to.next() {
        *place = bytes;
    }
}

/// Whether f32 values would all stay what they are as bf16.
pub(super) fn is_bf16(f32s: &[u8]) -> bool {
    f32s.as_chunks::<4>().0.iter().all(|bytes| bytes[0] == 0 && bytes[1] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(number: Number, bytes: &[u8], n: usize) -> Vec<f32> {
        let mut to = vec![0; 4 * n];
        number.convert(bytes, Dtype::F32, &mut to);
        to.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Written down from IEEE 754's definitions, not computed by a library.
    #[test]
    fn halves_are_exact_in_f32_and_rounded_to_even_in_bf16() {
        let halves: Vec<u8> = [0x3c00u16, 0xc000, 0x0001, 0x7bff, 0x3c01, 0x3c04, 0x3c0c, 0x8000]
            .iter()
            .flat_map(|h| h.to_le_bytes())
            .collect();
        let want = [1.0, -2.0, 5.960_464_5e-8, 65504.0, 1.000_976_6, 1.003_906_2, 1.011_718_8, -0.0];
        assert_eq!(f32s(Number::F16, &halves, 8), want);
        let mut rounded = vec![0; 16];
        Number::F16.convert(&halves, Dtype::Bf16, &mut rounded);
        let rounded: Vec<u16> = rounded.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        // bf16 keeps 7 bits: 65504 goes up to 65536, 1 + 2^-8 down to 1 and 1 + 3 * 2^-8 up to 1 + 2^-6.
        assert_eq!(rounded, [0x3f80, 0xc000, 0x3380, 0x4780, 0x3f80, 0x3f80, 0x3f82, 0x8000]);
    }

    #[test]
    fn q8_0_is_a_factor_times_signed_bytes() {
        let mut block = 0x3400u16.to_le_bytes().to_vec(); // 0.25
        block.extend((0..32).map(|i| (i * 8 - 128) as i8 as u8));
        let twice = [&block[..], &block[..]].concat();
        let want: Vec<f32> = (0..64).map(|i| 0.25 * ((i % 32) * 8 - 128) as f32).collect();
        assert_eq!(f32s(Number::Blocks(Dtype::Q8_0), &twice, 64), want);
        assert_eq!(Number::Blocks(Dtype::Q8_0).len_bytes(64), twice.len());
    }

    /// Byte i of a block has code i in its low half, and code i + 16, which is 15 - i, in its high half.
    fn codes_of_4_bits() -> Vec<u8> {
        (0..16).map(|i| i | (15 - i) << 4).collect()
    }

    #[test]
    fn q4_0_is_a_factor_times_codes_less_8() {
        let block = [&0xb800u16.to_le_bytes()[..], &codes_of_4_bits()].concat(); // -0.5
        let twice = [&block[..], &block[..]].concat();
        let once: Vec<f32> = (0..16).chain((0..16).rev()).map(|code| -0.5 * (code - 8) as f32).collect();
        assert_eq!(once[..2], [4.0, 3.5]);
        assert_eq!(f32s(Number::Blocks(Dtype::Q4_0), &twice, 64), once.repeat(2));
        assert_eq!(Number::Blocks(Dtype::Q4_0).len_bytes(64), twice.len());
    }

    #[test]
    fn q4_1_is_a_factor_times_codes_and_a_summand() {
        let block = |factor: u16, summand: u16| {
            [&factor.to_le_bytes()[..], &summand.to_le_bytes(), &codes_of_4_bits()].concat()
        };
        let blocks = [block(0x3400, 0xc000), block(0x2e66, 0xabae)].concat(); // 0.25 and -2; 0.1 and -0.06, in f16
        let values = f32s(Number::Blocks(Dtype::Q4_1), &blocks, 64);
        let want: Vec<f32> = (0..16).chain((0..16).rev()).map(|code| 0.25 * code as f32 - 2.0).collect();
        assert_eq!(values[..32], want);
        // 1638 / 2^14 and -1966 / 2^15; what the sum comes to has 13 bits, and stays exact.
        let want: Vec<f32> = (0..16).chain((0..16).rev()).map(|c| (2 * 1638 * c - 1966) as f32 / 32768.0).collect();
        assert_eq!(values[32..], want);
        assert_eq!(Number::Blocks(Dtype::Q4_1).len_bytes(64), blocks.len());
        // The sum is rounded to the nearest: 15 * 1023 * 2^-24 beside 1024 is 7.49 of its last places.
        let blocks = block(0x03ff, 0x6400);
        assert_eq!(f32s(Number::Blocks(Dtype::Q4_1), &blocks, 32)[15], 1024.0 + 7.0 / 8192.0);
    }

    #[test]
    fn f32_is_bf16_if_its_lower_half_is_zero() {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert!(is_bf16(&bytes(&[0.0, -1.5, 1.007_812_5, f32::INFINITY])));
        assert!(!is_bf16(&bytes(&[0.0, 1.0 + 1.0 / 256.0])));
    }

    #[test]
    fn sizes_do_not_wrap_and_rows_are_whole_blocks() {
        let q8 = StoredType { name: "Q8_0", block_len: 32, block_bytes: 34, codec: None };
        assert_eq!(q8.len_bytes(&[3, 64]), Some(3 * 2 * 34));
        assert_eq!(q8.len_bytes(&[3, 33]), None);
        let f32 = StoredType::plain("F32", 4, None);
        assert_eq!(f32.len_bytes(&[]), Some(4));
        assert_eq!(f32.len_bytes(&[1 << 40, 1 << 40]), None);
        assert_eq!(f32.len_bytes(&[1 << 63]), None);
        assert_eq!(f32.len_bytes(&[0, 1 << 63]), Some(0));
    }
}
