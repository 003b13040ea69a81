//! The random numbers of one request.

/// The seeds' random numbers: xorshift64*, <https://en.wikipedia.org/wiki/Xorshift#xorshift*>.
#[derive(Clone, Copy, Debug)]
pub(super) struct XorShift(u64);

impl XorShift {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// A number in [0, 1) with 24 random bits.
    pub(super) fn coin(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let upper = (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32;
        (upper >> 8) as f32 / 16_777_216.0
    }
}
