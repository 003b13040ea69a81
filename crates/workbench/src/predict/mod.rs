//! Predicts how long a kernel takes on a chip that is not here, from its machine code.
//!
//! A [`Predictor`] compiles candidates and reads their objects: registers, LDS, and of each loop the instructions and
//! cycles ([`Round`]; `llvm-mca`'s models for AMD, or instructions counted where there is none, the schedule in the
//! object itself for NVIDIA). [`Compiled::predict`]
//! puts that, a launch's geometry and its [`Work`] together, for any number of rows. Nothing is measured, and the model
//! is simple on purpose; `docs/performance.md` says how far its predictions are from times that were.
//!
//! # The model
//!
//! - **Rounds.** A loop goes round as often as it takes to do all operations, or to move all bytes, whichever is more;
//!   a tile that is not full takes as long as a full one, and blocks without a tile take nothing (`[padded]` of a
//!   template). What is outside of loops is gone through once by each wave, on the way that takes longest; where it
//!   does all, so is the loop.
//! - **Generations.** A compute unit holds as many blocks as registers and LDS leave room for; blocks that find no room
//!   wait. A generation of blocks takes as long as its fullest compute unit: a round of all waves of a SIMD takes what
//!   one wave takes alone, waiting for every result, or what all of them take to issue, whichever is more.
//! - **Memory.** Every byte comes from memory once, at the chip's bandwidth, and what loops move again comes from its
//!   last cache.
//! - **Code.** A loop (or all of a kernel without one) that the instruction cache does not hold has no prediction: its
//!   instructions come from the last cache, and how many waves share them nobody knows.
//! - A launch takes a time by itself, and the first bytes and the last ones the latency of the memory: of plain reads
//!   of 17, 33 and 66 MB one after the other on an H200 that says 5.1, 8.6 and 15.9 us, and 5.2, 8.9 and 16.4 were
//!   measured.

pub mod against;
mod candidates;
mod chip;
pub mod step;

use std::fmt;

pub use candidates::{Compiled, PredictError, Predictor};
pub use chip::Chip;

/// One round of a loop, or once through what is outside of loops, for one wave. Predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Address of its first instruction.
    pub(crate) address: u64,
    pub n_instructions: usize,
    /// Bytes from the first of these to the last.
    pub(crate) code_bytes: u64,
    /// Cycles of a wave that has the SIMD for itself and waits for every result.
    pub alone_cycles: f64,
    /// Cycles that it keeps the busiest unit of its SIMD: with enough waves a round takes no longer.
    pub busy_cycles: f64,
    /// Operations, a multiply-add being two, of the matrix unit where there are any, else of all other units.
    pub flop: f64,
    /// Bytes of memory that are loaded and stored, all lanes being active.
    pub memory_bytes: f64,
}

/// What is known of a compiled kernel, without its launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Code {
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Private memory of a thread, in bytes: spilled registers are there.
    pub private_bytes: u32,
    /// The loop in which the work is done.
    pub main_loop: Option<Round>,
    /// What is outside of loops, or all of it if there is none that works.
    pub outside: Round,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) n_blocks: u64,
    /// Threads of a block.
    pub(crate) block_size: u32,
}

/// The time of one launch, in its parts. They overlap: see [`Prediction::seconds`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds to bring and store every byte once, and until the first and the last are there.
    pub memory_s: f64,
    /// Seconds in which the last cache serves what loops ask for.
    pub cache_s: f64,
    /// Seconds of all units issuing and computing, if the work were spread evenly and nothing waited.
    pub compute_s: f64,
    /// Seconds of waves one after the other: waiting where there are too few of them, and the last generation of blocks
    /// that does not fill the chip. At least [`Self::compute_s`].
    pub waves_s: f64,
    /// Seconds of the launch itself, and of the first and last bytes.
    pub launch_s: f64,
    /// Blocks that a compute unit holds at a time; 0 if it holds none, and all times are infinite.
    pub blocks_per_unit: u32,
    /// Generations of blocks; the last one may be a fraction.
    pub generations: f64,
}

/// What a prediction says bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The memory's bandwidth.
    Memory,
    /// The last cache's bandwidth.
    Cache,
    /// Issuing and computing.
    Compute,
    /// Waiting: too few waves, or a last generation of few blocks.
    Latency,
    Launch,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Compute => "compute",
            Self::Latency => "latency",
            Self::Launch => "launch",
        })
    }
}

/// A guess of how perfectly memory, cache and waves overlap: the exponent of the norm in which their times are added. 1
/// would be one after the other, infinity the longest alone.
const OVERLAP: f64 = 3.0;

impl Prediction {
    /// The time of one launch, in seconds.
    pub fn seconds(&self) -> f64 {
        self.launch_s + self.kernel_s()
    }

    /// The same without the launch itself.
    pub fn kernel_s(&self) -> f64 {
        let parts = [self.memory_s, self.cache_s, self.waves_s];
        parts.iter().map(|part| part.powf(OVERLAP)).sum::<f64>().powf(1.0 / OVERLAP)
    }

    /// The longest part of the time, which bounds the kernel.
    pub fn bound(&self) -> Bound {
        let waves = if self.compute_s > 0.6 * self.waves_s { Bound::Compute } else { Bound::Latency };
        let parts = [
            (Bound::Memory, self.memory_s),
            (Bound::Cache, self.cache_s),
            (waves, self.waves_s),
            (Bound::Launch, self.launch_s),
        ];
        parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are four").0
    }
}

/// Predicts the time of one launch.
///
/// - `flop`: operations that it goes through, those that are done for nothing among them
/// - `bytes`: what it has to bring and store at least
pub(crate) fn predict(code: &Code, geometry: Geometry, flop: Option<f64>, bytes: f64, chip: &Chip) -> Prediction {
    let n_blocks = geometry.n_blocks as f64;
    let waves_per_block = f64::from(geometry.block_size.div_ceil(chip.wave_size).max(1));
    let n_waves = n_blocks * waves_per_block;
    let blocks_per_unit = chip.blocks_per_unit(code, geometry.block_size);
    let at_a_time = f64::from(blocks_per_unit) * f64::from(chip.units);
    let generations = n_blocks / at_a_time;

    let (main, outside) = (code.main_loop.unwrap_or_default(), code.outside);
    let rounds_of = |work: f64, of_round: f64| if of_round > 0.0 { work / of_round } else { 0.0 };
    let rounds = rounds_of(flop.unwrap_or(0.0), main.flop).max(rounds_of(bytes, main.memory_bytes)).max(n_waves);
    // Where what is outside of loops does all, the loop that works was unrolled whole: what is taken for it copies.
    let is_unrolled = n_waves * outside.memory_bytes >= bytes && n_waves * outside.flop >= flop.unwrap_or(0.0);
    let rounds = if is_unrolled { n_waves } else { rounds };
    let per_wave = if code.main_loop.is_some() { rounds / n_waves.max(1.0) } else { 0.0 };

    // What a generation takes whose fullest unit has so many blocks.
    let generation_cycles = |blocks: f64| {
        let waves = (blocks * waves_per_block / f64::from(chip.simds)).max(1.0);
        let of = |round: Round| round.alone_cycles.max(waves * round.busy_cycles);
        per_wave * of(main) + of(outside)
    };
    let full = generations.floor();
    let last_blocks = ((generations - full) * f64::from(blocks_per_unit)).ceil();
    let mut cycles = full * generation_cycles(f64::from(blocks_per_unit));
    if last_blocks > 0.0 {
        cycles += generation_cycles(last_blocks);
    }
    let busy = n_waves * (per_wave * main.busy_cycles + outside.busy_cycles);
    let loaded = n_waves * (per_wave * main.memory_bytes + outside.memory_bytes);
    let spilled = n_waves * f64::from(chip.wave_size) * f64::from(code.private_bytes) * 2.0;
    Prediction {
        memory_s: 2.0 * chip.latency_cycles / chip.clock_hz + bytes / chip.memory_bytes_per_s,
        cache_s: (loaded.max(bytes) + spilled) / chip.cache_bytes_per_s,
        compute_s: busy / f64::from(chip.units * chip.simds) / chip.clock_hz,
        waves_s: if blocks_per_unit == 0 { f64::INFINITY } else { cycles / chip.clock_hz },
        launch_s: chip.launch_s,
        blocks_per_unit,
        generations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten units of two SIMDs at 1 GHz, 1 TB/s and twice that from the cache.
    fn chip() -> Chip {
        Chip {
            units: 10,
            simds: 2,
            waves_per_simd: 8,
            vgprs: 512,
            vgpr_granule: 8,
            lds_bytes: 65_536,
            max_blocks: 16,
            max_one_wave_blocks: 16,
            wave_size: 32,
            clock_hz: 1e9,
            memory_bytes_per_s: 1e12,
            cache_bytes_per_s: 2e12,
            latency_cycles: 500.0,
            launch_s: 1e-6,
            instruction_cache_bytes: 32_768,
            matrix_flop_per_s: 0.0,
        }
    }

    fn code() -> Code {
        let main = Round { alone_cycles: 100.0, busy_cycles: 10.0, memory_bytes: 512.0, ..Round::default() };
        Code { vgprs: 64, main_loop: Some(main), ..Code::default() }
    }

    #[test]
    fn few_waves_wait_and_many_hide_it() {
        // 10 blocks of one wave: 1,000 rounds each of 100 cycles.
        let few = predict(&code(), Geometry { n_blocks: 10, block_size: 32 }, None, 5_120_000.0, &chip());
        assert!((few.waves_s - 1e-4).abs() < 1e-9, "{few:?}");
        assert_eq!(few.bound(), Bound::Latency);
        // 160 waves of one block each: 8 on each SIMD, which hide all but a round.
        let many = predict(&code(), Geometry { n_blocks: 160, block_size: 32 }, None, 5_120_000.0, &chip());
        assert!((many.waves_s - 1e-4 / 16.0).abs() < 1e-9 && (many.memory_s - 6.12e-6).abs() < 1e-12, "{many:?}");
        assert!(many.seconds() < few.seconds());
    }

    #[test]
    fn a_last_block_takes_as_long_as_a_generation() {
        let times = [160, 161, 320].map(|n_blocks| {
            let one = Geometry { n_blocks, block_size: 32 };
            predict(&code(), one, None, 512.0 * n_blocks as f64, &chip()).waves_s
        });
        assert!((times[1] / times[0] - 2.0).abs() < 1e-9 && (times[2] / times[1] - 1.0).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn the_constants_are_those_whose_error_was_stated() {
        // Who changes one states the error anew: `step::error_on_h200`, and the table of `docs/performance.md`.
        assert_eq!((OVERLAP, chip::CONSTANTS), (3.0, [0.95, 2.0, 500.0, 2.0]));
        assert_eq!(crate::isa::waits::CONSTANTS, [64.0, 5.0, 10.0]);
        let one = predict(&code(), Geometry { n_blocks: 40, block_size: 256 }, None, 5_120_000.0, &chip());
        // Two generations of 31.25 rounds of 100 cycles; 5.12 us of memory and twice 0.5; half of 5.12 of cache.
        let parts = [2.0 * 31.25 * 100e-9, 6.12e-6, 2.56e-6f64];
        let sum = parts.iter().map(|part| part.powi(3)).sum::<f64>().cbrt();
        assert!((one.kernel_s() / sum - 1.0).abs() < 1e-9 && (one.seconds() - sum - 1e-6).abs() < 1e-12, "{one:?}");
    }

    #[test]
    fn what_finds_no_room_never_ends() {
        let large = Code { lds_bytes: 70_000, ..code() };
        let never = predict(&large, Geometry { n_blocks: 1, block_size: 32 }, None, 512.0, &chip());
        assert_eq!((never.blocks_per_unit, never.seconds()), (0, f64::INFINITY));
    }
}
