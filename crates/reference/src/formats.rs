//! Numbers in blocks: a decoder for each format, and random blocks.

use std::borrow::Cow;

use super::case::{ReferenceError, Tensors, named, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::{BlockFormat, Dtype, Parameter};

/// The number that code `i` of a row stands for, by the parameters that it has. Products are exact in f32, and here;
/// sums with an offset, and products with a scale in f32, are rounded to f32, as they are where they are stored.
fn decoded(dtype: Dtype, i: usize, code: f64, parameters: &[f64]) -> f64 {
    // The code with its high bits, of which a word has those of this many codes.
    let with = |high: f64, every: usize| {
        let (bits, below) = (32 / every, dtype.size_bits());
        let own = high as u32 >> (bits * (i % every)) & ((1 << bits) - 1);
        code + f64::from(own << below)
    };
    let rounded = |value: f64| f64::from(value as f32);
    match (dtype, parameters) {
        (Dtype::Mxfp4, &[scale]) => code * power_of_two(scale),
        (Dtype::Q8_0, &[scale]) => scale * code,
        (Dtype::Q4_1, &[scale, offset]) => rounded(scale * code + offset),
        (Dtype::Q4_0, &[scale]) => scale * (code - 8.0),
        (Dtype::Q5_0, &[scale, high]) => scale * (with(high, 32) - 16.0),
        (Dtype::Q5_1, &[scale, offset, high]) => rounded(scale * with(high, 32) + offset),
        (Dtype::Iq4Nl, &[scale]) => scale * LEVELS[code as usize],
        (Dtype::Q4K, &[scale, offset, by, times]) => rounded(scale * by * code - offset * times),
        (Dtype::Q5K, &[scale, offset, high, by, times]) => rounded(scale * by * with(high, 32) - offset * times),
        (Dtype::Q6K, &[scale, high, by]) => scale * f64::from(by as u8 as i8) * (with(high, 16) - 32.0),
        (Dtype::Q2K, &[scale, offset, both]) => rounded(scale * (both % 16.0) * code - offset * (both / 16.0).floor()),
        (Dtype::Q3K, &[scale, high, by]) => scale * (by - 32.0) * (with(high, 32) - 4.0),
        (Dtype::Iq4Xs, &[scale, by]) => scale * (by - 32.0) * LEVELS[code as usize],
        (Dtype::F8E4M3, &[scale]) => rounded(scale * code),
        _ => unreachable!("every format has a decoder"),
    }
}

/// What the codes of IQ4_NL and IQ4_XS stand for (ggml's `kvalues_iq4nl`).
const LEVELS: [f64; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// What a scale of MXFP4 stands for: 2^(scale - 127), and NaN for 255 (E8M0, OCP Microscaling Formats, 5.4.1).
fn power_of_two(scale: f64) -> f64 {
    if scale == 255.0 { f64::NAN } else { (scale - 127.0).exp2() }
}

/// All rows of a matrix among the inputs, `k` numbers each, whatever it is stored as.
pub(super) fn rows<'a>(inputs: &'a Tensors, name: &str, k: usize) -> Result<Cow<'a, [f64]>, ReferenceError> {
    let codes = tensor(inputs, name)?;
    let Some(format) = codes.dtype().format() else { return Ok(Cow::Borrowed(codes.values())) };
    let parameters = parameters(inputs, name, format)?;
    let row_len = row_of(format, k);
    let row = |(n, codes): (usize, &[f64])| {
        let of_row = parameters.iter().zip(format.parameters).map(|(values, parameter)| {
            let len = row_len / parameter.every;
            &values.values()[n * len..][..len]
        });
        decoded_row(format, codes, &of_row.collect::<Vec<_>>(), k)
    };
    Ok(codes.values().chunks(row_len).enumerate().flat_map(row).collect())
}

/// Row `n` of it; nothing else of a large matrix is made.
pub(super) fn row(inputs: &Tensors, name: &str, k: usize, n: usize) -> Result<Vec<f64>, ReferenceError> {
    let codes = tensor(inputs, name)?;
    let part = |tensor: &Tensor, len: usize| tensor.gather(n * len..(n + 1) * len);
    let Some(format) = codes.dtype().format() else { return Ok(part(codes, k).values().to_vec()) };
    let row_len = row_of(format, k);
    let parameters = parameters(inputs, name, format)?.into_iter().zip(format.parameters);
    let parameters: Vec<Tensor> =
        parameters.map(|(values, parameter)| part(values, row_len / parameter.every)).collect();
    let of_row: Vec<&[f64]> = parameters.iter().map(Tensor::values).collect();
    Ok(decoded_row(format, part(codes, row_len).values(), &of_row, k))
}

/// The first `k` numbers of a row of whole blocks.
fn decoded_row(format: &BlockFormat, codes: &[f64], parameters: &[&[f64]], k: usize) -> Vec<f64> {
    // Numbers that share all parameters.
    let n = format.parameters.iter().map(|parameter| parameter.every).min().expect("a format has parameters");
    let mut numbers = Vec::with_capacity(k);
    for (g, codes) in codes[..k].chunks(n).enumerate() {
        let value = |(values, parameter): (&&[f64], &Parameter)| values[g * n / parameter.every];
        let of_group: Vec<f64> = parameters.iter().zip(format.parameters).map(value).collect();
        let number = |(i, &code): (usize, &f64)| decoded(format.dtype, g * n + i, code, &of_group);
        numbers.extend(codes.iter().enumerate().map(number));
    }
    numbers
}

fn row_of(format: &BlockFormat, k: usize) -> usize {
    let [rows, columns] = format.block;
    assert_eq!(rows, 1, "no format with a decoder has blocks of several rows");
    k.next_multiple_of(columns)
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

/// A random matrix under a name, and its parameters beside it: codes, their high bits and the factors of parts of a
/// block all alike, and the scales of neighbouring blocks differ by up to 2^4. Among those of f16 and f32 are zeros,
/// small (of f16 subnormal) and negative ones.
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
    let row_len = row_of(format, k);
    let (size_of_codes, widest) = (size_of_codes(dtype), if dtype == Dtype::Mxfp4 { -55..86 } else { -22..8 });
    let (mut scales, mut offsets) = (Vec::new(), Vec::new());
    for _ in 0..n_rows {
        let middle = match is_wide {
            true => f64::from(widest.start) + random.below(widest.len()) as f64,
            false => (size / size_of_codes).log2().round(),
        };
        for _ in 0..row_len / format.block_len() {
            let exponent = middle + random.below(5) as f64 - 2.0;
            let scale = match dtype {
                Dtype::Mxfp4 => 127.0 + exponent,
                _ => random_f16(exponent, random),
            };
            scales.push(scale);
            // The middle of the codes, about, which is added or, with a factor of its own, taken off.
            offsets.push(match dtype {
                Dtype::Q4_1 => -scale * (7.5 + random.normal()),
                Dtype::Q5_1 => -scale * (15.5 + random.normal()),
                Dtype::Q4K => scale * (7.5 + random.normal()),
                Dtype::Q5K => scale * (15.5 + random.normal()),
                Dtype::Q2K => scale * (1.5 + random.normal()),
                _ => 0.0,
            });
        }
    }
    let mut tensors = named([(name, random.codes(dtype, n_rows * row_len))]);
    for parameter in format.parameters {
        let len = n_rows * row_len / parameter.every;
        let values = match (parameter.name, dtype) {
            ("scale", _) => std::mem::take(&mut scales),
            ("offset", _) => std::mem::take(&mut offsets),
            ("high", _) => (0..len).map(|_| f64::from(random.bits() as u32)).collect(),
            // Bytes of two factors of 4 bits, or one of 8; else one of 6.
            (_, Dtype::Q2K | Dtype::Q6K) => (0..len).map(|_| random.below(256) as f64).collect(),
            _ => (0..len).map(|_| random.below(64) as f64).collect(),
        };
        tensors.insert(parameter.name_beside(name), Tensor::rounded(parameter.dtype, values));
    }
    tensors
}

/// What a random code stands for in a block of scale 1, its root mean square, with the spread of scales: 2.1 times that
/// of the middle one. Of MXFP4 sums of what is larger than 2^85, and its squares, leave f32; what is smaller than 2^-55
/// is lost beside a bias.
fn size_of_codes(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Mxfp4 => 6.0,
        Dtype::Q8_0 => 155.0,
        Dtype::Q5_0 | Dtype::Q5_1 => 20.0,
        Dtype::Iq4Nl => 140.0,
        Dtype::Q4K => 540.0,
        Dtype::Q5K => 1080.0,
        Dtype::Q6K => 2900.0,
        Dtype::Q2K => 29.0,
        Dtype::Q3K => 91.0,
        Dtype::Iq4Xs => 2600.0,
        Dtype::F8E4M3 => 210.0,
        _ => 10.0,
    }
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

    /// 0x38 is 1, 0x3f 1.875, 0x7e 448, 0x01 2^-9, 0x07 7 * 2^-9, 0x08 2^-6.
    #[test]
    fn f8_e4m3_is_its_scale_times_small_floats() {
        let mut codes = vec![0u8; 128];
        codes[..8].copy_from_slice(&[0x38, 0x3f, 0x7e, 0x01, 0x07, 0x08, 0xb8, 0x80]);
        let mut second = vec![0u8; 128];
        second[..2].copy_from_slice(&[0x39, 0x38]);
        let inputs = named([
            ("weight", Tensor::from_bytes(Dtype::F8E4M3, &[codes, second].concat())),
            ("scale", Tensor::rounded(Dtype::F32, vec![0.5, 1.0 + 2f64.powi(-23)])),
        ]);
        let all = rows(&inputs, "weight", 130).unwrap();
        assert_eq!(all[..4], [0.5, 0.9375, 224.0, 2f64.powi(-10)]);
        assert_eq!(all[4..8], [7.0 * 2f64.powi(-10), 2f64.powi(-7), -0.5, 0.0]);
        // 1.125 (1 + 2^-23) is rounded, to the nearest of what f32 has there.
        assert_eq!(all[128..], [1.125 + 2f64.powi(-23), 1.0 + 2f64.powi(-23)]);
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
        for dtype in BlockFormat::all().iter().map(|format| format.dtype) {
            let made = random_rows(dtype, "weight", [300, 2560], Sizes::Alike(0.25), &mut Random::new(3));
            let all = rows(&made, "weight", 2560).unwrap();
            assert_eq!(all.len(), 300 * 2560);
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
