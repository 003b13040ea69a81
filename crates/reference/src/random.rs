//! Random numbers for test inputs: the same on every machine for the same seed.

use super::drawn::{Drawn, a_number};
use super::tensor::Tensor;
use format::Dtype;

/// From this many elements on they are drawn when they are asked for.
const MANY: usize = 1 << 20;

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough for inputs.
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let bits = word(self.state, 0);
        self.state = self.state.wrapping_add(STEP);
        bits
    }

    /// Uniform in [0, 1), a multiple of 2^-24: an f32 holds it.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 40) as f64 / f64::from(1 << 24)
    }

    /// A whole number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A normal number of mean 0 and variance 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Normal numbers times `scale`, rounded to the type.
    pub(crate) fn normals(&mut self, dtype: Dtype, len: usize, scale: f64) -> Tensor {
        if len >= MANY {
            return Tensor::drawn(Drawn::normals(dtype, len, scale, self));
        }
        Tensor::rounded(dtype, (0..len).map(|_| scale * self.normal()).collect())
    }

    /// All codes of a small type alike; a number of them that fills whole bytes.
    pub(crate) fn codes(&mut self, dtype: Dtype, len: usize) -> Tensor {
        if len >= MANY {
            return Tensor::drawn(Drawn::codes(dtype, len, self));
        }
        let bytes: Vec<u8> = (0..dtype.len_bytes(len)).map(|_| a_number(dtype, self.below(256) as u8)).collect();
        Tensor::from_bytes(dtype, &bytes)
    }

    /// Whole numbers below `end`. The first two are the ends of the range.
    pub(crate) fn indices(&mut self, len: usize, end: usize) -> Tensor {
        let index = |i| match i {
            0 => end - 1,
            1 => 0,
            _ => self.below(end),
        };
        Tensor::whole((0..len).map(index))
    }

    /// Puts the items in a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// What the state moves on by.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The i-th word of the numbers that begin at a seed.
pub(super) fn word(seed: u64, i: usize) -> u64 {
    let mut bits = seed.wrapping_add(STEP.wrapping_mul(i as u64 + 1));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
