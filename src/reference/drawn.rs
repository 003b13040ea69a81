//! Random elements that are made when they are asked for: weights as large as a real model's, of which the reference
//! looks at a few and a device gets the bytes.

use std::sync::OnceLock;

use rayon::prelude::*;

use super::Tensor;
use super::random::{Random, word};
use super::tensor::e2m1;
use crate::dtype::Dtype;

/// Different values that the elements have; a word of random bits chooses four of them.
const N_VALUES: usize = 1 << 16;

/// Elements that one thread makes at a time; a multiple of those that a word gives.
const CHUNK: usize = 1 << 16;

/// Random elements of one type.
#[derive(Debug)]
pub(super) struct Drawn {
    dtype: Dtype,
    seed: u64,
    len: usize,
    /// What a word's 16 bits stand for; empty where elements are the bits themselves.
    table: Vec<f64>,
    values: OnceLock<Vec<f64>>,
}

impl Drawn {
    /// Numbers of a table of normal ones, of this deviation, rounded to the type.
    pub fn normals(dtype: Dtype, len: usize, scale: f64, random: &mut Random) -> Self {
        let table = (0..N_VALUES).map(|_| scale * random.normal()).collect();
        let table = Tensor::rounded(dtype, table).values().to_vec();
        Self { dtype, seed: random.bits(), len, table, values: OnceLock::new() }
    }

    /// All codes of MXFP4 alike.
    pub fn codes(len: usize, random: &mut Random) -> Self {
        Self { dtype: Dtype::Mxfp4, seed: random.bits(), len, table: Vec::new(), values: OnceLock::new() }
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// One element.
    pub fn value(&self, i: usize) -> f64 {
        if self.table.is_empty() {
            return e2m1((word(self.seed, i / 16) >> (4 * (i % 16))) as u8 & 15);
        }
        self.table[usize::from((word(self.seed, i / 4) >> (16 * (i % 4))) as u16)]
    }

    /// All elements; made once.
    pub fn values(&self) -> &[f64] {
        self.values.get_or_init(|| (0..self.len).into_par_iter().map(|i| self.value(i)).collect())
    }

    /// All elements as they lie in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.dtype.len_bytes(self.len)];
        if self.table.is_empty() {
            bytes.par_chunks_mut(8).enumerate().for_each(|(i, bytes)| {
                bytes.copy_from_slice(&word(self.seed, i).to_le_bytes()[..bytes.len()]);
            });
            return bytes;
        }
        let size = self.dtype.len_bytes(1);
        let table = Tensor::rounded(self.dtype, self.table.clone()).to_bytes();
        bytes.par_chunks_mut(CHUNK * size).enumerate().for_each(|(chunk, bytes)| {
            for (i, elements) in bytes.chunks_mut(4 * size).enumerate() {
                let word = word(self.seed, chunk * CHUNK / 4 + i);
                for (j, element) in elements.chunks_exact_mut(size).enumerate() {
                    let at = usize::from((word >> (16 * j)) as u16);
                    element.copy_from_slice(&table[at * size..][..size]);
                }
            }
        });
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_values_and_single_elements_are_the_same() {
        let mut random = Random::new(7);
        let len = CHUNK + 21;
        for drawn in [
            Drawn::normals(Dtype::Bf16, len, 0.5, &mut random),
            Drawn::normals(Dtype::F32, len, 2.0, &mut random),
            Drawn::codes(len + 11, &mut random),
        ] {
            let read = Tensor::from_bytes(drawn.dtype(), &drawn.to_bytes());
            assert_eq!(read.values(), drawn.values());
            assert_eq!(drawn.value(CHUNK + 7), drawn.values()[CHUNK + 7]);
            let n_same = drawn.values().windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!(n_same < len / 8, "neighbours are drawn apart");
        }
    }

    #[test]
    fn drawn_normals_have_their_deviation() {
        let drawn = Drawn::normals(Dtype::F32, 1 << 20, 3.0, &mut Random::new(1));
        let square = drawn.values().iter().map(|value| value * value).sum::<f64>() / drawn.len() as f64;
        assert!((square.sqrt() - 3.0).abs() < 0.05, "{square}");
    }
}
