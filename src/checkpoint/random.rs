//! Weights made in memory, so that a shape can be measured without a checkpoint of it.

use std::collections::BTreeMap;

use bytemuck::cast_slice_mut;
use mapped_file::Pages;
use rayon::prelude::*;

use super::tensors::{Group, groups, parameters};
use super::{Checkpoint, CheckpointError, Tensor};
use crate::config::ModelConfig;
use crate::dtype::Dtype;

/// Elements that one stream of numbers fills. Fixed, so that the weights do not depend on the number of threads.
const CHUNK: usize = 1 << 16;

impl Checkpoint {
    /// A checkpoint with random weights, the same for the same arguments on any machine.
    ///
    /// Values are uniform. Matrices have a standard deviation of `1/sqrt(inputs)`, so that activations keep their size
    /// from layer to layer; norm scales lie in 0.9 to 1.1, the embedding has a standard deviation of 1, sinks lie
    /// in -1 to 1 and biases in -0.02 to 0.02. The numbers are good enough for that and for nothing else: 65536 steps
    /// per tensor.
    ///
    /// # Errors
    /// Dimensions that make no model, a `dtype` other than f32 and bf16, or too little memory.
    pub fn random(config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Self, CheckpointError> {
        config.check()?;
        parameters(&config).and_then(|n| n.checked_mul(4)).ok_or(CheckpointError::TooLarge)?;
        let mut tensors = BTreeMap::new();
        for (i, group) in groups(&config).iter().enumerate() {
            for l in 0..group.count(&config) {
                let stream = mix(seed ^ mix((i * config.num_hidden_layers + l) as u64));
                let tensor = random_tensor(group, l, dtype, stream)?;
                tensors.insert(tensor.name.clone(), tensor);
            }
        }
        Ok(Self { config, tensors, findings: Vec::new() })
    }
}

fn random_tensor(group: &Group, l: usize, dtype: Dtype, stream: u64) -> Result<Tensor, CheckpointError> {
    let name = group.name_in(l);
    let len: usize = group.shape.iter().product();
    let out_of_memory = || CheckpointError::OutOfMemory { name: name.clone(), len_bytes: dtype.len_bytes(len) as u64 };
    let (centre, reach) = distribution(group);
    let mut pages = Pages::new(dtype.len_bytes(len)).map_err(|_| out_of_memory())?;
    let bytes = &mut pages.as_mut_slice()[..dtype.len_bytes(len)];
    match dtype {
        Dtype::F32 => fill(cast_slice_mut::<u8, f32>(bytes), stream, centre, reach, |value| value),
        // Cutting off the lower half is rounding enough for random numbers.
        Dtype::Bf16 => {
            fill(cast_slice_mut::<u8, u16>(bytes), stream, centre, reach, |value| (value.to_bits() >> 16) as u16);
        }
        found => return Err(CheckpointError::RandomDtype { found }),
    }
    let bytes = pages.freeze().slice(..dtype.len_bytes(len));
    Ok(Tensor { name, dtype, shape: group.shape.clone(), bytes, file_offset: None })
}

/// Centre and half width of a group's uniform distribution.
fn distribution(group: &Group) -> (f32, f32) {
    let deviation = |deviation: f32| (0.0, deviation * 3f32.sqrt());
    match (group.name, group.shape.as_slice()) {
        (name, _) if name.ends_with("norm.scale") => (1.0, 0.1),
        (name, _) if name.ends_with("bias") => (0.0, 0.02),
        ("attn.sinks", _) => (0.0, 1.0),
        ("embedding.weight", _) => deviation(1.0),
        (_, [.., inputs]) => deviation((*inputs as f32).sqrt().recip()),
        (name, []) => panic!("`{name}` has no shape"),
    }
}

/// Fills with `centre ± reach`, four elements from each 64-bit number.
fn fill<T: Send>(elements: &mut [T], stream: u64, centre: f32, reach: f32, convert: impl Fn(f32) -> T + Sync) {
    let step = reach / 32768.0;
    elements.par_chunks_mut(CHUNK).enumerate().for_each(|(i, chunk)| {
        let mut counter = mix(stream.wrapping_add(i as u64));
        for four in chunk.chunks_mut(4) {
            counter = counter.wrapping_add(GOLDEN);
            let mut bits = mix(counter);
            for element in four {
                *element = convert(centre + step * f32::from(bits as i16));
                bits >>= 16;
            }
        }
    });
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::tensors::tests::small;
    use super::*;

    fn f32s(tensor: &Tensor) -> Vec<f32> {
        match tensor.dtype {
            Dtype::F32 => tensor.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            _ => {
                tensor.bytes.chunks(2).map(|b| f32::from_bits(u32::from(b[1]) << 24 | u32::from(b[0]) << 16)).collect()
            }
        }
    }

    #[test]
    fn all_tensors_are_there_and_depend_on_the_seed_only() {
        let make = |seed| Checkpoint::random(small(), Dtype::Bf16, seed).unwrap();
        let (a, b, c) = (make(1), make(1), make(2));
        assert_eq!(a.tensors.len(), 3 + 13 * 2);
        for (name, tensor) in &a.tensors {
            assert_eq!(tensor.bytes.len(), 2 * tensor.len(), "{name}");
            assert_eq!(tensor.bytes, b.tensors[name].bytes, "{name}");
            assert_ne!(tensor.bytes, c.tensors[name].bytes, "{name}");
        }
        assert_ne!(a.tensor("block.0.attn.qkv.weight").bytes, a.tensor("block.1.attn.qkv.weight").bytes);
    }

    #[test]
    fn deviations_are_the_documented_ones() {
        let config = ModelConfig { hidden_size: 400, vocab_size: 1000, ..small() };
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let checkpoint = Checkpoint::random(config.clone(), dtype, 3).unwrap();
            for (name, centre, deviation) in [
                ("embedding.weight", 0.0, 1.0),
                ("unembedding.weight", 0.0, 0.05),
                ("norm.scale", 1.0, 0.1 / 3f32.sqrt()),
                ("block.1.mlp.mlp1_weight", 0.0, 0.05),
            ] {
                let values = f32s(checkpoint.tensor(name));
                let n = values.len() as f32;
                let mean = values.iter().sum::<f32>() / n;
                let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n;
                assert!((mean - centre).abs() < 4.0 * deviation / n.sqrt() + 0.005, "{name} {dtype}: mean {mean}");
                assert!((variance.sqrt() / deviation - 1.0).abs() < 0.05, "{name} {dtype}: {}", variance.sqrt());
            }
        }
    }

    #[test]
    fn a_dtype_that_holds_no_weights_is_refused() {
        assert!(matches!(
            Checkpoint::random(small(), Dtype::I32, 0),
            Err(CheckpointError::RandomDtype { found: Dtype::I32 })
        ));
    }
}
