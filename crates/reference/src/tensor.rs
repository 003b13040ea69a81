//! Elements with their type: exact as f64, whatever the type.

use std::sync::Arc;

use half::{bf16, f16};

use super::case::Output;
use super::drawn::Drawn;
use format::Dtype;

/// Elements in row-major order; the shape is the contract's. A copy shares them.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: Dtype,
    elements: Elements,
    /// Of what an op of a run hands to the next: what the roundings of each element are measured by.
    sizes: Option<Arc<Vec<f64>>>,
}

/// How the elements are kept.
#[derive(Clone, Debug)]
enum Elements {
    Held(Arc<Vec<f64>>),
    /// By how they were drawn: those of a real model's weights would not fit the memory as f64.
    Drawn(Arc<Drawn>),
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.values() == other.values()
    }
}

impl Tensor {
    /// Each value rounded to what the type can hold, to nearest even.
    pub fn rounded(dtype: Dtype, mut values: Vec<f64>) -> Self {
        for value in &mut values {
            *value = match dtype {
                Dtype::F32 => f64::from(*value as f32),
                Dtype::Bf16 => bf16::from_f64(*value).to_f64(),
                Dtype::F16 => f16::from_f64(*value).to_f64(),
                Dtype::U32 => f64::from(*value as u32),
                Dtype::U8 => f64::from(*value as u8),
                Dtype::Int8 => f64::from(value.round_ties_even().clamp(-127.0, 127.0) as i8),
                Dtype::Fp8 | Dtype::F8E4M3 => e4m3(e4m3_code(*value)),
                Dtype::Mxfp4 => e2m1(e2m1_code(*value)),
                Dtype::Q8_0 => f64::from(value.round_ties_even() as i8),
                Dtype::I32 => f64::from(*value as i32),
                _ => value.round_ties_even().clamp(0.0, f64::from((1_u32 << dtype.size_bits()) - 1)),
            };
        }
        Self::held(dtype, values)
    }

    fn held(dtype: Dtype, values: Vec<f64>) -> Self {
        Self { dtype, elements: Elements::Held(Arc::new(values)), sizes: None }
    }

    /// Elements that are made when they are asked for.
    pub(super) fn drawn(drawn: Drawn) -> Self {
        Self { dtype: drawn.dtype(), elements: Elements::Drawn(Arc::new(drawn)), sizes: None }
    }

    /// Whole numbers, as u32.
    pub(super) fn whole(values: impl IntoIterator<Item = usize>) -> Self {
        Self::held(Dtype::U32, values.into_iter().map(|value| value as f64).collect())
    }

    /// What an op of a run hands to the next, which is not rounded.
    pub(super) fn handed(output: &Output) -> Self {
        let sizes = Some(Arc::new(output.scale.clone()));
        Self { sizes, ..Self::held(Dtype::F32, output.values.clone()) }
    }

    /// What the rounding of element i is measured by, where an op of the same run made it; 0 of what is given, which is
    /// exact.
    pub(super) fn size(&self, i: usize) -> f64 {
        self.sizes.as_ref().map_or(0.0, |sizes| sizes[i])
    }

    /// Reads elements as they lie in memory, little-endian. A rest shorter than an element is left out.
    pub fn from_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        let bits = dtype.size_bits();
        if bits < 8 {
            let value = if dtype == Dtype::Mxfp4 { e2m1 } else { f64::from };
            let codes =
                bytes.iter().flat_map(|byte| (0..8).step_by(bits).map(move |at| byte >> at & ((1 << bits) - 1)));
            return Self::held(dtype, codes.map(value).collect());
        }
        let element = |bytes: &[u8]| match (dtype, bytes) {
            (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::U32, &[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            (Dtype::U8, &[a]) => a.into(),
            (Dtype::Q8_0 | Dtype::Int8, &[a]) => (a as i8).into(),
            (Dtype::Fp8 | Dtype::F8E4M3, &[a]) => e4m3(a),
            _ => unreachable!("chunks have the size of an element"),
        };
        Self::held(dtype, bytes.chunks_exact(dtype.len_bytes(1)).map(element).collect())
    }

    /// The elements as they lie in memory, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let values = match &self.elements {
            Elements::Held(values) => values,
            Elements::Drawn(drawn) => return drawn.to_bytes(),
        };
        let mut bytes = Vec::with_capacity(self.dtype.len_bytes(values.len()));
        let bits = self.dtype.size_bits();
        if bits < 8 {
            let code = if self.dtype == Dtype::Mxfp4 { e2m1_code } else { |value| value as u8 };
            let packed = |codes: &[f64]| codes.iter().rev().fold(0, |byte, &value| byte << bits | code(value));
            return values.chunks(8 / bits).map(packed).collect();
        }
        values.iter().for_each(|&value| put(self.dtype, value, &mut bytes));
        bytes
    }

    /// How far rounding to the type moves a number at most, beyond what an f32 kernel does: 2^-8 of it for bf16, 2^-11
    /// for f16, 2^-2 for mxfp4, 2^-4 for fp8 and f8_e4m3 (and 2^-10, half the distance of their smallest numbers), a
    /// half for int8.
    pub fn rounding(dtype: Dtype, value: f64) -> f64 {
        match dtype {
            Dtype::Bf16 => value.abs() / 256.0,
            Dtype::F16 => value.abs() / 2048.0,
            Dtype::Mxfp4 => value.abs() / 4.0,
            Dtype::Fp8 | Dtype::F8E4M3 => (value.abs() / 16.0).max(1.0 / 1024.0),
            Dtype::Int8 => 0.5,
            _ => 0.0,
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The elements in row-major order.
    pub fn values(&self) -> &[f64] {
        match &self.elements {
            Elements::Held(values) => values,
            Elements::Drawn(drawn) => drawn.values(),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.elements {
            Elements::Held(values) => values.len(),
            Elements::Drawn(drawn) => drawn.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements at these places, in this order; nothing else of a large tensor is made.
    pub fn gather(&self, places: impl Iterator<Item = usize>) -> Self {
        let values = match &self.elements {
            Elements::Held(values) => places.map(|i| values[i]).collect(),
            Elements::Drawn(drawn) => places.map(|i| drawn.value(i)).collect(),
        };
        Self::held(self.dtype, values)
    }

    /// An element that is an index.
    pub(super) fn index(&self, i: usize) -> usize {
        self.values()[i] as usize
    }
}

/// Appends an element of whole bytes.
fn put(dtype: Dtype, value: f64, bytes: &mut Vec<u8>) {
    match dtype {
        Dtype::U8 => bytes.push(value as u8),
        Dtype::Q8_0 | Dtype::Int8 => bytes.push(value as i8 as u8),
        Dtype::Fp8 | Dtype::F8E4M3 => bytes.push(e4m3_code(value)),
        Dtype::F32 => bytes.extend((value as f32).to_le_bytes()),
        Dtype::U32 => bytes.extend((value as u32).to_le_bytes()),
        Dtype::I32 => bytes.extend((value as i32).to_le_bytes()),
        Dtype::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
        Dtype::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
        _ => unreachable!("several share a byte"),
    }
}

/// What the codes of e2m1 stand for, the sign left out (OCP Microscaling Formats, 5.3.3).
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of four bits: the sign, then the code.
fn e2m1(bits: u8) -> f64 {
    let size = E2M1[usize::from(bits & 7)];
    if bits & 8 == 0 { size } else { -size }
}

/// The four bits of the nearest value, of two equally near ones that with an even code; beyond 6 it is 6. By the
/// middles between the values: weights are most of what a reference is given, and all of them are rounded here.
fn e2m1_code(value: f64) -> u8 {
    let size = value.abs();
    let passed = [size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5.0];
    passed.into_iter().map(u8::from).sum::<u8>() | u8::from(value.is_sign_negative()) << 3
}

/// The value of a byte of E4M3 (OCP 8-bit Floating Point, table 1): 480, which its exponent and mantissa would be, is
/// not a number.
fn e4m3(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let size = match (exponent, bits & 127) {
        (_, 127) => f64::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if bits & 128 == 0 { size } else { -size }
}

/// The byte of the nearest value, of two equally near ones that with an even code; beyond 448 it is 448.
fn e4m3_code(value: f64) -> u8 {
    let (sign, size) = (u8::from(value.is_sign_negative()) << 7, value.abs());
    if size.is_nan() {
        return sign | 127;
    }
    let size = size.min(448.0);
    let exponent = if size < 1.0 / 64.0 { -6 } else { size.log2().floor() as i32 };
    let steps = (size / 2f64.powi(exponent - 3)).round_ties_even(); // 16 of them are the next exponent's first
    sign | (((exponent + 6) << 3) as u8 + steps as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_e4m3_are_the_nearest_and_of_two_the_even_one() {
        let sizes = [0.0, 1.0, 448.0, 1000.0, 0.0156, 1.0625, 1.1875, 2f64.powi(-10), 3.0 * 2f64.powi(-10), 17.0];
        let codes = [0x00, 0x38, 0x7e, 0x7e, 0x08, 0x38, 0x3a, 0x00, 0x02, 0x58];
        assert_eq!(sizes.map(e4m3_code), codes);
        assert_eq!(sizes.map(|size| e4m3_code(-size)), codes.map(|code| code | 0x80));
        for code in (0..=255_u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(e4m3_code(e4m3(code)), code);
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn elements_come_back_from_their_bytes() {
        for dtype in Dtype::ALL {
            let tensor = Tensor::rounded(dtype, vec![0.0, 1.0, 3.25, 77.7]); // of 2 bits a byte
            let bytes = tensor.to_bytes();
            assert_eq!(bytes.len(), dtype.len_bytes(4));
            assert_eq!(Tensor::from_bytes(dtype, &bytes), tensor);
        }
    }

    #[test]
    fn codes_of_mxfp4_are_the_nearest_and_of_two_the_even_one() {
        for i in -700..=700 {
            for value in [f64::from(i) / 100.0, f64::from(i) / 100.0 + 1e-9, f64::from(i) / 64.0] {
                let distance = |code: &u8| ((value.abs() - e2m1(*code)).abs(), code % 2);
                let nearest = (0..8).min_by(|a, b| distance(a).partial_cmp(&distance(b)).expect("numbers"));
                assert_eq!(Some(e2m1_code(value) & 7), nearest, "{value}");
                assert_eq!(e2m1_code(value) >> 3 == 1, value.is_sign_negative(), "{value}");
            }
        }
        assert_eq!([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY].map(e2m1_code), [0, 8, 7, 15]);
    }

    #[test]
    fn codes_of_fp8_are_the_nearest_and_of_two_the_even_one() {
        let sizes: Vec<f64> = (0..127).map(e4m3).collect();
        assert!(sizes.is_sorted() && sizes[1] == 1.0 / 512.0 && sizes[8] == 1.0 / 64.0 && sizes[126] == 448.0);
        assert!(e4m3(127).is_nan() && e4m3(255).is_nan());
        for code in 0..=126 {
            assert_eq!([sizes[code], -sizes[code]].map(e4m3_code), [code as u8, code as u8 | 128]);
            let Some(next) = sizes.get(code + 1) else { continue };
            let middle = f64::midpoint(sizes[code], *next);
            let nearest = [middle * (1.0 - 1e-9), middle, middle * (1.0 + 1e-9)].map(e4m3_code).map(usize::from);
            assert_eq!(nearest, [code, code + code % 2, code + 1], "{middle}");
        }
        assert_eq!([1e9, f64::INFINITY, -449.0, f64::NAN].map(e4m3_code), [126, 126, 254, 127]);
    }

    #[test]
    fn mxfp4_is_packed_low_half_first() {
        let tensor = Tensor::rounded(Dtype::Mxfp4, vec![0.5, -6.0, -0.0, 100.0, 2.5, -3.5]);
        assert_eq!(tensor.values(), [0.5, -6.0, -0.0, 6.0, 2.0, -4.0]);
        assert_eq!(tensor.to_bytes(), [0xf1, 0x78, 0xe4]);
        let all = Tensor::from_bytes(Dtype::Mxfp4, &[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
        assert_eq!(all.values()[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(all.values()[8..], [-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]);
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        let values = vec![1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -3.9];
        assert_eq!(Tensor::rounded(Dtype::Bf16, values.clone()).values()[..2], [1.0, 1.0 + 4.0 / 256.0]);
        assert_eq!(Tensor::rounded(Dtype::I32, values).values()[2], -3.0);
    }
}
