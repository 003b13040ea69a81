//! Random weights, described by a few numbers and generated at use, so that a shape can be measured without a
//! checkpoint. They need no file, no memory of this process, and no copy to the device.
//!
//! `templates/random_weights` makes the elements, and states the formula. Here are the numbers that each tensor gets,
//! and the same formula for this machine.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::encoding::{Encoding, TensorInfo};
use super::tensors::{Group, groups, parameters};
use super::{Checkpoint, CheckpointError, CheckpointOrigin, Elements, Tensor};
use crate::config::ModelConfig;
use crate::family::Draw;
use crate::family::known::usable;
use format::Dtype;

/// Uniform random numbers, all of a tensor's from one seed.
///
/// Floats are `centre + step * r` with r in -32768 to 32767 (bf16: its upper half); bytes are that, rounded down; of
/// MXFP4 all 16 codes are equally likely, whatever `centre` and `step` are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomNumbers {
    /// Which numbers: made from the seed, and no other tensor's.
    pub stream: u64,
    /// The middle of their range.
    pub centre: f32,
    /// Half the range, divided by 32768.
    pub step: f32,
}

/// Elements of a chunk, whose numbers are counted from its own start.
const CHUNK: usize = 1 << 16;

impl RandomNumbers {
    /// The elements from number `first` on, as many as `out` holds, on this machine: the same bytes as every device
    /// makes. `first` is even where two elements share a byte.
    pub fn write(&self, dtype: Dtype, first: usize, out: &mut [u8]) {
        let piece = dtype.len_bytes(CHUNK);
        out.par_chunks_mut(piece).enumerate().for_each(|(i, out)| self.write_piece(dtype, first + i * CHUNK, out));
    }

    fn write_piece(&self, dtype: Dtype, first: usize, out: &mut [u8]) {
        let scaled = |r: u64| self.centre + self.step * f32::from(r as i16);
        let mut codes = Bits::from(self.stream, first, 4).map(|code| code as u8);
        let mut code = || codes.next().expect("bits have no end");
        let numbers = Bits::from(self.stream, first, 16);
        match dtype {
            Dtype::Mxfp4 => out.fill_with(|| code() | code() << 4),
            Dtype::U8 => out.iter_mut().zip(numbers).for_each(|(out, r)| *out = scaled(r).floor() as u8),
            Dtype::Bf16 => out.chunks_exact_mut(2).zip(numbers).for_each(|(out, r)| {
                out.copy_from_slice(&scaled(r).to_le_bytes()[2..]);
            }),
            Dtype::F32 => out.chunks_exact_mut(4).zip(numbers).for_each(|(out, r)| {
                out.copy_from_slice(&scaled(r).to_le_bytes());
            }),
            _ => panic!("no weights are {dtype}"),
        }
    }
}

/// The random bits of one element after another.
struct Bits {
    stream: u64,
    i: usize,
    /// What is left of the current number; its lowest bits are the next element's.
    number: u64,
    width: usize,
}

impl Bits {
    /// From element `i` on, `width` bits each.
    fn from(stream: u64, i: usize, width: usize) -> Self {
        let mut bits = Self { stream, i, number: 0, width };
        bits.number = bits.number_of(i) >> (i % (64 / width) * width);
        bits
    }

    fn number_of(&self, i: usize) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let counter = mix(self.stream.wrapping_add((i / CHUNK) as u64));
        mix(counter.wrapping_add(GOLDEN.wrapping_mul((i % CHUNK / (64 / self.width) + 1) as u64)))
    }
}

impl Iterator for Bits {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let element = self.number & ((1 << self.width) - 1);
        self.i += 1;
        let is_used_up = self.i.is_multiple_of(64 / self.width);
        self.number = if is_used_up { self.number_of(self.i) } else { self.number >> self.width };
        Some(element)
    }
}

/// The root mean square of MXFP4's codes, all equally likely: their squares are 0, 0.25, 1, 2.25, 4, 9, 16 and 36.
const MXFP4_CODES_SIZE: f64 = 2.926_174_972_214_489; // sqrt(68.5 / 8)

impl Checkpoint {
    /// A checkpoint with random weights, the same for the same arguments on any machine.
    ///
    /// Values are uniform, as the family says (`draw` in `models/*.toml`): matrices have a standard deviation of
    /// `1/sqrt(inputs)`, so that activations keep their size from layer to layer. The numbers are good enough for that
    /// and for nothing else: 65536 steps per tensor.
    ///
    /// **MXFP4**: a code is random, and its block's scale one of two neighbours, so often the larger one that the
    /// deviation is that of the other encodings. With n the smaller one, f how often the larger one, and 2.93 the root
    /// mean square of the codes, that is `2.93^2 * 4^(n - 127) * (1 + 3 f) = 1/inputs`. For 2880 inputs: n = 119, f =
    /// 0.55.
    ///
    /// **The router**: its logits have a standard deviation of about 1 from row to row of the step, and its biases are
    /// of that size too, so that some experts are chosen more often than others, as in a model that was trained. What
    /// that gives is in `tests/it/checkpoint/weights.rs`; how skewed gpt-oss itself is, we have not measured.
    ///
    /// # Errors
    /// Dimensions that make no model, or one of more than 2^64 bytes.
    pub fn random(config: ModelConfig, encoding: Encoding, seed: u64) -> Result<Self, CheckpointError> {
        config.check()?;
        parameters(&config).and_then(|n| n.checked_mul(4)).ok_or(CheckpointError::TooLarge)?;
        let mut tensors = BTreeMap::new();
        usable(config.family)?;
        let groups = groups(&config);
        for (i, group) in groups.iter().enumerate() {
            for (part_index, part) in encoding.parts(group).iter().enumerate() {
                for &l in &group.layers {
                    let number = (i + part_index * groups.len()) * config.num_hidden_layers + l;
                    let numbers = numbers(group, part, mix(seed ^ mix(number as u64)));
                    let tensor = Tensor {
                        name: part.name_in(l),
                        dtype: part.dtype,
                        shape: part.shape.clone(),
                        elements: Elements::Random(numbers),
                        file_offset: None,
                    };
                    tensors.insert(tensor.name.clone(), tensor);
                }
            }
        }
        Ok(Self { config, tensors, findings: Vec::new(), origin: CheckpointOrigin::default() })
    }
}

fn numbers(group: &Group, part: &TensorInfo, stream: u64) -> RandomNumbers {
    let (centre, reach) = match part.dtype {
        Dtype::Mxfp4 => (0.0, 0.0),
        Dtype::U8 => scales(inputs(group)),
        _ => distribution(group),
    };
    RandomNumbers { stream, centre, step: reach / 32768.0 }
}

/// Centre and half width of a group's uniform distribution.
fn distribution(group: &Group) -> (f32, f32) {
    let deviation = |deviation: f32| (0.0, deviation * 3f32.sqrt());
    match group.tensor.draw {
        Draw::Around { centre, reach } => (centre, reach),
        Draw::Deviation(size) => deviation(size),
        Draw::Matrix => deviation((inputs(group) as f32).sqrt().recip()),
    }
}

/// The same for the scales of a matrix in MXFP4: rounded down, they are n and n + 1, the latter with probability f.
fn scales(inputs: usize) -> (f32, f32) {
    let size = (inputs as f64).sqrt().recip() / MXFP4_CODES_SIZE; // the factors' root mean square
    let exponent = size.log2().floor();
    let f = ((size / exponent.exp2()).powi(2) - 1.0) / 3.0;
    ((127.0 + exponent + f + 0.5) as f32, 0.5)
}

fn inputs(group: &Group) -> usize {
    *group.shape.last().expect("every tensor has a dimension")
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::tensors::tests::{gpt_oss_20b, small};
    use super::*;

    fn numbers_of(checkpoint: &Checkpoint, name: &str) -> RandomNumbers {
        match checkpoint.tensor(name).elements {
            Elements::Random(numbers) => numbers,
            _ => panic!("`{name}` has bytes"),
        }
    }

    #[test]
    fn all_tensors_are_there_and_no_two_have_the_same_numbers() {
        let mut streams = std::collections::BTreeSet::new();
        for (encoding, n_tensors) in
            [(Encoding::F32, 3 + 13 * 2), (Encoding::Bf16, 3 + 13 * 2), (Encoding::Mxfp4, 3 + 15 * 2)]
        {
            let checkpoint = Checkpoint::random(small(), encoding, 1).unwrap();
            assert_eq!(checkpoint.tensors.len(), n_tensors);
            assert!(checkpoint.tensors.values().all(|tensor| !tensor.is_empty()));
            let own: Vec<u64> = checkpoint.tensors.keys().map(|name| numbers_of(&checkpoint, name).stream).collect();
            streams.extend(own.iter().copied());
        }
        assert_eq!(streams.len(), 3 + 15 * 2, "encodings share the numbers of what they share");
        let other = Checkpoint::random(small(), Encoding::Bf16, 2).unwrap();
        assert!(!streams.contains(&numbers_of(&other, "norm.scale").stream));
    }

    #[test]
    fn deviations_are_the_documented_ones() {
        let config = small().with("hidden_size", 400);
        let checkpoint = Checkpoint::random(config, Encoding::Bf16, 3).unwrap();
        for (name, centre, deviation) in [
            ("embedding.weight", 0.0, 1.0),
            ("unembedding.weight", 0.0, 0.05),
            ("norm.scale", 1.0, 0.1 / 3f32.sqrt()),
            ("block.1.mlp.mlp1_weight", 0.0, 0.05),
            ("block.0.attn.qkv.bias", 0.0, 0.02 / 3f32.sqrt()),
            ("block.0.mlp.gate.bias", 0.0, 0.75 / 3f32.sqrt()),
        ] {
            let numbers = numbers_of(&checkpoint, name);
            assert_eq!(numbers.centre, centre, "{name}");
            assert!((numbers.step * 32768.0 / 3f32.sqrt() / deviation - 1.0).abs() < 1e-6, "{name}");
        }
    }

    #[test]
    fn scales_of_mxfp4_give_the_deviation_of_the_other_encodings() {
        for inputs in [1, 5, 32, 400, 2880, 4096, 100_000] {
            let (centre, reach) = scales(inputs);
            let (low, f) = ((centre - reach).floor(), f64::from((centre - reach).fract()));
            let factors = f64::from(low - 127.0).exp2().powi(2) * (1.0 + 3.0 * f); // mean square
            let deviation = factors.sqrt() * MXFP4_CODES_SIZE;
            assert!((deviation * (inputs as f64).sqrt() - 1.0).abs() < 1e-4, "{inputs}: {deviation}");
        }
        let (centre, _) = scales(gpt_oss_20b().hidden_size);
        assert!((centre - (119.0 + 0.552 + 0.5)).abs() < 1e-3, "{centre}");
    }
}
