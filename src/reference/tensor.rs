//! Elements with their type: exact as f64, whatever the type.

use half::{bf16, f16};

use crate::dtype::Dtype;

/// Elements in row-major order; the shape is the contract's.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: Dtype,
    values: Vec<f64>,
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
                Dtype::I32 => f64::from(*value as i32),
            };
        }
        Self { dtype, values }
    }

    /// Whole numbers, as u32.
    pub(super) fn whole(values: impl IntoIterator<Item = usize>) -> Self {
        Self { dtype: Dtype::U32, values: values.into_iter().map(|value| value as f64).collect() }
    }

    /// Values as they are: between the ops of a fused run nothing is stored.
    pub(super) fn unrounded(dtype: Dtype, values: Vec<f64>) -> Self {
        Self { dtype, values }
    }

    /// Reads elements as they lie in memory, little-endian. A rest shorter than an element is left out.
    pub fn from_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        let element = |bytes: &[u8]| match (dtype, bytes) {
            (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::U32, &[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
            (Dtype::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f64(),
            (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
            _ => unreachable!("chunks have the size of an element"),
        };
        Self { dtype, values: bytes.chunks_exact(dtype.size_bytes()).map(element).collect() }
    }

    /// The elements as they lie in memory, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.values.len() * self.dtype.size_bytes());
        for &value in &self.values {
            match self.dtype {
                Dtype::F32 => bytes.extend((value as f32).to_le_bytes()),
                Dtype::U32 => bytes.extend((value as u32).to_le_bytes()),
                Dtype::I32 => bytes.extend((value as i32).to_le_bytes()),
                Dtype::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
            }
        }
        bytes
    }

    /// The largest relative error of rounding a number to the type, beyond that of an f32 kernel: 2^-8 for bf16, 2^-11
    /// for f16, 0 for the others.
    pub const fn unit_roundoff(dtype: Dtype) -> f64 {
        match dtype {
            Dtype::Bf16 => 1.0 / 256.0,
            Dtype::F16 => 1.0 / 2048.0,
            Dtype::F32 | Dtype::U32 | Dtype::I32 => 0.0,
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The elements.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// An element that is an index.
    pub(super) fn index(&self, i: usize) -> usize {
        self.values[i] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_from_their_bytes() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::U32, Dtype::I32] {
            let tensor = Tensor::rounded(dtype, vec![0.0, 1.0, 3.25, 77.7]);
            let bytes = tensor.to_bytes();
            assert_eq!(bytes.len(), 4 * dtype.size_bytes());
            assert_eq!(Tensor::from_bytes(dtype, &bytes), tensor);
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        let values = vec![1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -3.9];
        assert_eq!(Tensor::rounded(Dtype::Bf16, values.clone()).values()[..2], [1.0, 1.0 + 4.0 / 256.0]);
        assert_eq!(Tensor::rounded(Dtype::I32, values).values()[2], -3.0);
    }
}
