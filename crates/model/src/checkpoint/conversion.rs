//! Converts numbers from one element type to another, row by row, for `.bin` files.

use half::bf16;

use format::Dtype;

/// The numbers of e2m1's 16 codes: a sign, 2 bits of exponent, 1 of mantissa (OCP Microscaling Formats, 5.3.3).
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The numbers of MXFP4's 16 codes in a block with this scale: the factor is `2^(scale - 127)`, and 255 is NaN (5.4.1).
/// They are exact, or infinite from 2^128 on; bf16 holds them exactly too.
pub fn mxfp4_numbers(scale: u8) -> [f32; 16] {
    let factor = match scale {
        0 => 0x0040_0000, // 2^-127, below the normal numbers
        255 => 0x7fc0_0000,
        _ => u32::from(scale) << 23,
    };
    E2M1.map(|number| number * f32::from_bits(factor))
}

#[derive(Clone, Copy)]
pub(super) struct EncodedRow<'a> {
    /// f32, bf16, or MXFP4.
    pub(crate) dtype: Dtype,
    /// Little-endian, as the type has them; of MXFP4 whole blocks.
    pub(crate) numbers: &'a [u8],
    /// A scale for each block, of a type that has them.
    pub(crate) scales: &'a [u8],
}

/// Writes a row's numbers in `to`, which is f32 or bf16, little-endian, as many as `out` holds. Gives how many had to
/// be rounded: to the nearest, of two equally near ones to the even.
pub(super) fn convert(row: EncodedRow, to: Dtype, out: &mut [u8]) -> u64 {
    let EncodedRow { dtype, numbers: bytes, scales } = row;
    match (dtype, dtype.format()) {
        (Dtype::F32, _) => numbers(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(whole(b))), to, out),
        (Dtype::Bf16, _) => numbers(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(whole(b)).to_f32()), to, out),
        (Dtype::Mxfp4, Some(format)) => {
            let block_len = format.block_len();
            let codes = bytes.chunks_exact(dtype.len_bytes(block_len));
            for ((codes, scale), out) in codes.zip(scales).zip(out.chunks_mut(to.len_bytes(block_len))) {
                let of = mxfp4_numbers(*scale);
                let pairs = codes.iter().flat_map(|byte| [of[usize::from(byte & 15)], of[usize::from(byte >> 4)]]);
                numbers(pairs, to, out);
            }
            0
        }
        _ => panic!("no reader gives weights in {dtype}"),
    }
}

fn whole<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("chunks are of this size")
}

fn numbers(numbers: impl Iterator<Item = f32>, to: Dtype, out: &mut [u8]) -> u64 {
    let mut rounded = 0;
    if to == Dtype::F32 {
        for (out, number) in out.chunks_exact_mut(4).zip(numbers) {
            out.copy_from_slice(&number.to_le_bytes());
        }
    } else {
        for (out, number) in out.chunks_exact_mut(2).zip(numbers) {
            let nearest = bf16::from_f32(number);
            rounded += u64::from(number.to_bits() & 0xffff != 0);
            out.copy_from_slice(&nearest.to_le_bytes());
        }
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_is_to_the_nearest_and_counted() {
        let row: Vec<u8> = [1.0f32, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.0, f32::MAX, f32::from_bits(0x7f80_0001)]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let mut out = [0; 12];
        let plain = EncodedRow { dtype: Dtype::F32, numbers: &row, scales: &[] };
        assert_eq!(convert(plain, Dtype::Bf16, &mut out), 4);
        let got: Vec<u16> = out.chunks_exact(2).map(|b| u16::from_le_bytes(whole(b))).collect();
        assert_eq!(got, [0x3f80, 0x3f80, 0x3f82, 0x8000, 0x7f80, 0x7fc0]);
    }

    #[test]
    fn what_fills_the_last_block_of_a_row_is_dropped() {
        let codes: Vec<u8> = [[0x21; 16], [0x43; 16]].concat();
        let mut out = [0; 2 * 35];
        let row = EncodedRow { dtype: Dtype::Mxfp4, numbers: &codes, scales: &[127, 129] };
        assert_eq!(convert(row, Dtype::Bf16, &mut out), 0);
        let got: Vec<f32> = out.chunks_exact(2).map(|b| bf16::from_le_bytes(whole(b)).to_f32()).collect();
        assert_eq!(got[..4], [0.5, 1.0, 0.5, 1.0]);
        assert_eq!(got[32..], [6.0, 8.0, 6.0]);
    }
}
