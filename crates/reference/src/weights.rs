//! Reference of `random_weights`.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, only};
use super::random::Random;
use format::Dtype;

pub(super) fn random_inputs(_: &Case, _: &mut Random) -> Result<Tensors, ReferenceError> {
    Ok(Tensors::new())
}

/// y[i] = centre + step * r[i]; r and the types as `templates/random_weights/op.toml` states them.
pub(super) fn random(case: &Case, _: &Tensors) -> Result<Outputs, ReferenceError> {
    let (dtype, len) = (case.dtype("value")?, case.scalar("n_rows")? * case.scalar("row_len")?);
    let stream = (case.scalar("stream_high")? as u64) << 32 | case.scalar("stream_low")? as u64;
    let (centre, step) = (case.number("centre")? as f32, case.number("step")? as f32);
    let scaled = |i| centre + step * f32::from(bits(stream, i, 16) as i16);
    let value = |i| match dtype {
        _ if dtype.format().is_some() => {
            let code = bits(stream, i, dtype.size_bits() as u64) as u8;
            super::tensor::Tensor::from_bytes(dtype, &[code]).values()[0]
        }
        Dtype::U8 => scaled(i).floor().into(),
        Dtype::Bf16 => f32::from_bits(scaled(i).to_bits() & 0xffff_0000).into(),
        _ => scaled(i).into(),
    };
    Ok(only("y", Output::plain((0..len as u64).map(value).collect())))
}

/// Element i of a stream: the lowest `width` bits of what is left when the elements before it in their number are gone.
fn bits(stream: u64, i: u64, width: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let (chunk, in_chunk, per_number) = (i / 65536, i % 65536, 64 / width);
    let counter = mix(stream.wrapping_add(chunk));
    let number = mix(counter.wrapping_add(GOLDEN.wrapping_mul(in_chunk / per_number + 1)));
    number >> (in_chunk % per_number * width) & ((1 << width) - 1)
}

/// SplitMix64's output function.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn values(dtype: Dtype, len: u64, stream: u64, centre: f32, step: f32) -> Vec<f64> {
        let whole =
            [("n_rows", 1), ("row_len", len), ("stream_low", stream & 0xffff_ffff), ("stream_high", stream >> 32)];
        let scalars = whole.map(|(name, value)| (name.to_owned(), value as f64));
        let floats = [("centre", centre), ("step", step)].map(|(name, value)| (name.to_owned(), f64::from(value)));
        let case = Case {
            scalars: scalars.into_iter().chain(floats).collect(),
            dtypes: BTreeMap::from([("value".into(), dtype)]),
            ..Case::default()
        };
        super::super::run(&["random_weights".into()], &case, &Tensors::new()).unwrap().remove("y").unwrap().values
    }

    /// All of the bits, in order.
    fn digest(values: &[f64]) -> u64 {
        values.iter().fold(0, |digest, &value| mix(digest ^ u64::from((value as f32).to_bits())))
    }

    #[test]
    fn the_numbers_are_those_that_the_program_has_made_from_the_start() {
        let embedding = values(Dtype::F32, 100_003, 0xb6bf_613d_bebb_45dc, 0.0, 3f32.sqrt() / 32768.0);
        assert_eq!(
            embedding[..3].iter().map(|v| *v as f32).collect::<Vec<_>>(),
            [-1.100_979_2, 1.170_434_6, 1.177_200_4]
        );
        assert_eq!((embedding[65536] as f32).to_bits(), 0x3f82_4bd5, "the first of the second chunk");
        assert_eq!(digest(&embedding), 0x4273_d07c_c968_c942);
        let norm = values(Dtype::Bf16, 70_001, 0x44fc_9548_3f42_2eb2, 1.0, 0.1 / 32768.0);
        let halves = norm.iter().map(|&v| u64::from((v as f32).to_bits() >> 16));
        assert_eq!(halves.fold(0, |digest, half| mix(digest ^ half)), 0x0da0_4b0f_7584_f62b);
    }

    #[test]
    fn bytes_are_two_neighbours_as_often_as_their_middle_says_and_codes_are_all_alike() {
        let scales = values(Dtype::U8, 1 << 17, 5, 120.05, 0.5 / 32768.0); // from 119.55 to 120.55
        let n_upper = scales.iter().filter(|scale| **scale == 120.0).count();
        assert!(scales.iter().all(|scale| [119.0, 120.0].contains(scale)));
        assert!((n_upper as f64 / scales.len() as f64 - 0.55).abs() < 0.01, "{n_upper}");
        let codes = values(Dtype::Mxfp4, 1 << 17, 5, 0.0, 0.0);
        for value in [0.5, -0.5, 1.5, -3.0, 6.0] {
            let n = codes.iter().filter(|code| **code == value).count() as f64;
            assert!((n / (1 << 17) as f64 * 16.0 - 1.0).abs() < 0.05, "{value}: {n}");
        }
    }
}
