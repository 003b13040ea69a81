//! What numbers in blocks are: a decoder for each format, and random blocks.

use std::borrow::Cow;

use super::case::{ReferenceError, Tensors, named, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::BlockFormat;
use format::Dtype;

/// The number that a code stands for, by the parameters of its block. Those of MXFP4 and Q8_0 are exact in f32; that of
/// Q4_1 is rounded to it, as it is where it is stored.
fn decoded(dtype: Dtype, code: f64, parameters: &[f64]) -> f64 {
    match (dtype, parameters) {
        (Dtype::Mxfp4, &[scale]) => code * power_of_two(scale),
        (Dtype::Q8_0, &[scale]) => scale * code,
        (Dtype::Q4_1, &[scale, offset]) => f64::from((scale * code + offset) as f32),
        _ => unreachable!("every format has a decoder"),
    }
}

/// What a scale of MXFP4 stands for: 2^(scale - 127), and NaN for 255 (E8M0, OCP Microscaling Formats, 5.4.1).
fn power_of_two(scale: f64) -> f64 {
    if scale == 255.0 { f64::NAN } else { (scale - 127.0).exp2() }
}

/// All rows of a matrix among the inputs, `k` numbers each, whatever it is stored as.
pub(super) fn rows<'a>(inputs: &'a Tensors, name: &str, k: usize) -> Result<Cow<'a, [f64]>, ReferenceError> {
    let codes = tensor(inputs, name)?;
    let Some(format) = codes.dtype().format() else { return Ok(Cow::Borrowed(codes.values())) };
    let parameters = parameters(inputs, name, format)?;
    let [row_len, row_blocks] = row_of(format, k);
    let row = |(n, codes): (usize, &[f64])| {
        let of_row: Vec<&[f64]> = parameters.iter().map(|one| &one.values()[n * row_blocks..][..row_blocks]).collect();
        decoded_row(format, codes, &of_row, k)
    };
    Ok(codes.values().chunks(row_len).enumerate().flat_map(row).collect())
}

/// Row `n` of it; nothing else of a large matrix is made.
pub(super) fn row(inputs: &Tensors, name: &str, k: usize, n: usize) -> Result<Vec<f64>, ReferenceError> {
    let codes = tensor(inputs, name)?;
    let part = |tensor: &Tensor, len: usize| tensor.gather(n * len..(n + 1) * len);
    let Some(format) = codes.dtype().format() else { return Ok(part(codes, k).values().to_vec()) };
    let [row_len, row_blocks] = row_of(format, k);
    let parameters: Vec<Tensor> =
        parameters(inputs, name, format)?.into_iter().map(|one| part(one, row_blocks)).collect();
    let of_row: Vec<&[f64]> = parameters.iter().map(Tensor::values).collect();
    Ok(decoded_row(format, part(codes, row_len).values(), &of_row, k))
}

/// The first `k` numbers of a row of whole blocks.
fn decoded_row(format: &BlockFormat, codes: &[f64], parameters: &[&[f64]], k: usize) -> Vec<f64> {
    let block = |(b, codes): (usize, &[f64])| {
        let of_block: Vec<f64> = parameters.iter().map(|one| one[b]).collect();
        codes.iter().map(|&code| decoded(format.dtype, code, &of_block)).collect::<Vec<_>>()
    };
    codes.chunks(format.block_len()).enumerate().flat_map(block).take(k).collect()
}

/// Codes and blocks of a row.
fn row_of(format: &BlockFormat, k: usize) -> [usize; 2] {
    let [rows, columns] = format.block;
    assert_eq!(rows, 1, "no format with a decoder has blocks of several rows");
    [k.next_multiple_of(columns), k.div_ceil(columns)]
}

fn parameters<'a>(inputs: &'a Tensors, name: &str, format: &BlockFormat) -> Result<Vec<&'a Tensor>, ReferenceError> {
    format.parameters.iter().map(|one| tensor(inputs, &one.name_beside(name))).collect()
}

/// How large the numbers of a random matrix are.
#[derive(Clone, Copy)]
pub(super) enum Sizes {
    /// All about this root mean square.
    Alike(f64),
    /// In a format with blocks each row has its own, anywhere in a wide range; elsewhere all are about this.
    ByRow(f64),
}

/// A random matrix under a name, and its parameters beside it: codes all alike, and the scales of neighbouring blocks
/// differ by up to 2^4. Among those of f16 are zeros, subnormal and negative ones.
pub(super) fn random_rows(
    dtype: Dtype,
    name: &str,
    [n_rows, k]: [usize; 2],
    sizes: Sizes,
    random: &mut Random,
) -> Tensors {
    let (size, is_wide) = match sizes {
        Sizes::Alike(size) => (size, false),
        Sizes::ByRow(size) => (size, true),
    };
    let Some(format) = dtype.format() else {
        return named([(name, random.normals(dtype, n_rows * k, size))]);
    };
    let [row_len, row_blocks] = row_of(format, k);
    // Binary logarithms of scales: where rows are alike, and where each has its own. Codes have a root mean square of
    // 2.9 (MXFP4), 74 (Q8_0) and 4.6 beside their middle (Q4_1), scales spread so one of 2.1 times the middle. Of MXFP4
    // sums of what is larger than 2^85, and its squares, leave f32; what is smaller than 2^-55 is lost beside a bias.
    let (size_of_codes, widest) = match dtype {
        Dtype::Mxfp4 => (6.0, -55..86),
        Dtype::Q8_0 => (155.0, -22..8),
        _ => (10.0, -22..8),
    };
    let (mut scales, mut offsets) = (Vec::new(), Vec::new());
    for _ in 0..n_rows {
        let middle = match is_wide {
            true => f64::from(widest.start) + random.below(widest.len()) as f64,
            false => (size / size_of_codes).log2().round(),
        };
        for _ in 0..row_blocks {
            let exponent = middle + random.below(5) as f64 - 2.0;
            let scale = match dtype {
                Dtype::Mxfp4 => 127.0 + exponent,
                _ => random_f16(exponent, random),
            };
            scales.push(scale);
            // The middle of the codes, about.
            offsets.push(if dtype == Dtype::Q4_1 { -scale * (7.5 + random.normal()) } else { 0.0 });
        }
    }
    let mut tensors = named([(name, random.codes(dtype, n_rows * row_len))]);
    for (parameter, values) in format.parameters.iter().zip([scales, offsets]) {
        tensors.insert(parameter.name_beside(name), Tensor::rounded(parameter.dtype, values));
    }
    tensors
}

/// A number from 2^exponent to twice that; now and then one of a kind that a kernel may forget.
fn random_f16(exponent: f64, random: &mut Random) -> f64 {
    match random.below(32) {
        0 => 0.0,
        1 => 2f64.powi(-24) * (1 + random.below(1000)) as f64,
        2 | 3 => -exponent.exp2() * (1.0 + random.uniform()),
        _ => exponent.exp2() * (1.0 + random.uniform()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_of_mxfp4_is_a_power_of_two_and_its_largest_value_no_number() {
        assert_eq!([0.0, 126.0, 127.0, 254.0].map(power_of_two), [2f64.powi(-127), 0.5, 1.0, 2f64.powi(127)]);
        assert!(power_of_two(255.0).is_nan());
    }

    #[test]
    fn rows_of_mxfp4_are_scaled_block_by_block_and_lose_what_fills_their_last_block() {
        let mut weight = vec![1.0; 2 * 64]; // two rows of 33: two blocks each
        (weight[0], weight[31], weight[32], weight[33], weight[64]) = (6.0, 2.0, -0.5, 4.0, 3.0);
        let inputs = named([
            ("weight", Tensor::rounded(Dtype::Mxfp4, weight)),
            ("scale", Tensor::rounded(Dtype::U8, vec![128.0, 126.0, 127.0, 130.0])),
        ]);
        let all = rows(&inputs, "weight", 33).unwrap();
        assert_eq!(all.len(), 66);
        assert_eq!([all[0], all[1], all[31], all[32]], [12.0, 2.0, 4.0, -0.25]);
        assert_eq!([all[33], all[34], all[65]], [3.0, 1.0, 8.0]);
        assert_eq!(row(&inputs, "weight", 33, 1).unwrap(), all[33..]);
    }

    /// Bytes written by hand: 0x3400 is 0.25, 0xbc00 is -1, 0x0001 is 2^-24.
    #[test]
    fn q8_0_is_its_scale_times_signed_bytes() {
        let mut codes: Vec<u8> = (0..64).map(|i| (i * 4) as u8).collect(); // 0, 4, …, 124, -128, …
        (codes[31], codes[63]) = (0x7f, 0xff);
        let scales = [0x00, 0x34, 0x00, 0xbc, 0x01, 0x00, 0x00, 0x34];
        let inputs = named([
            ("weight", Tensor::from_bytes(Dtype::Q8_0, &[codes.clone(), codes].concat())),
            ("scale", Tensor::from_bytes(Dtype::F16, &scales)),
        ]);
        let all = rows(&inputs, "weight", 64).unwrap();
        assert_eq!([all[0], all[1], all[30], all[31]], [0.0, 1.0, 30.0, 31.75]);
        assert_eq!([all[32], all[33], all[63]], [128.0, 124.0, 1.0]);
        assert_eq!([all[65], all[95], all[96]], [4.0 * 2f64.powi(-24), 127.0 * 2f64.powi(-24), -32.0]);
        assert_eq!(row(&inputs, "weight", 64, 1).unwrap(), all[64..]);
    }

    /// 0x3800 is 0.5, 0xc100 is -2.5; 0x3c01 is 1 + 2^-10, 0x0001 is 2^-24.
    #[test]
    fn q4_1_is_its_scale_times_its_nibbles_and_an_offset() {
        let codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe].repeat(4);
        let inputs = named([
            ("table", Tensor::from_bytes(Dtype::Q4_1, &codes)),
            ("table_scale", Tensor::from_bytes(Dtype::F16, &[0x00, 0x38, 0x01, 0x3c])),
            ("table_offset", Tensor::from_bytes(Dtype::F16, &[0x00, 0xc1, 0x01, 0x00])),
        ]);
        let all = rows(&inputs, "table", 40).unwrap();
        assert_eq!(all.len(), 40);
        assert_eq!([all[0], all[1], all[2], all[15], all[31]], [-2.5, -2.0, -1.5, 5.0, 5.0]);
        // 1 + 2^-10 + 2^-24 is between two numbers of f32, 2 (1 + 2^-10) + 2^-24 too: the even one is taken.
        let one = 1.0 + 2f64.powi(-10);
        assert_eq!([all[32], all[33], all[34]], [2f64.powi(-24), one, 2.0 * one]);
    }

    #[test]
    fn random_rows_have_their_size_and_all_kinds_of_blocks() {
        for dtype in [Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q4_1] {
            let made = random_rows(dtype, "weight", [300, 320], Sizes::Alike(0.25), &mut Random::new(3));
            let all = rows(&made, "weight", 320).unwrap();
            assert_eq!(all.len(), 300 * 320);
            let size = (all.iter().map(|value| value * value).sum::<f64>() / all.len() as f64).sqrt();
            assert!((0.12..0.5).contains(&size), "{dtype}: {size}");
            let wide = random_rows(dtype, "weight", [300, 320], Sizes::ByRow(0.25), &mut Random::new(3));
            assert!(rows(&wide, "weight", 320).unwrap().iter().all(|value| (*value as f32).is_finite()), "{dtype}");
            if dtype != Dtype::Mxfp4 {
                let scales = made["scale"].values();
                let has = |is: fn(&f64) -> bool| scales.iter().filter(|scale| is(scale)).count() > 20;
                assert!(has(|s| *s == 0.0) && has(|s| *s < 0.0) && has(|s| *s > 0.0 && *s < 2f64.powi(-14)));
            }
        }
    }
}
