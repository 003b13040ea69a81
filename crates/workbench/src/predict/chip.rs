//! A chip's facts for predictions, from its tuning table.

use super::Code;
use kernel::target::compute_unit::ComputeUnit;
use kernel::target::{Platform, Target, TargetFacts};
use kernel::template::work::Work;

/// Of the bandwidth that a maker states, what a kernel gets at most; of an H200's 4,800 GB/s 4,597 were measured.
const REACHED_BANDWIDTH: f64 = 0.95;

/// A guess: bandwidth of the last cache as a multiple of the memory's, where no table says it.
const CACHE_TIMES: f64 = 2.0;

/// A guess: how long a load takes that finds its bytes in no cache, in nanoseconds, where no table says it.
const LATENCY_NS: f64 = 500.0;

/// A guess: a launch in a captured graph that does nothing, in microseconds, where no table says it.
const LAUNCH_US: f64 = 2.0;

/// The guesses together.
#[cfg(test)]
pub(super) const CONSTANTS: [f64; 4] = [REACHED_BANDWIDTH, CACHE_TIMES, LATENCY_NS, LAUNCH_US];

/// What the instruction cache holds where no table says it: that of RDNA's WGPs and of two CUs of CDNA2 by AMD's
/// papers, and that of an SM since Volta by those who measured it (arXiv 1804.06826).
const INSTRUCTION_CACHE_BYTES: [u64; 2] = [32 << 10, 128 << 10];

/// Blocks that a compute unit of an AMD GPU holds at most, if they have more than a wave: as many as it has barriers.
const AMD_MAX_BLOCKS: u32 = 16;

/// Blocks that an SM of an NVIDIA GPU holds at most.
const NVIDIA_MAX_BLOCKS: u32 = 32;

/// A chip's peaks, from which times are predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chip {
    /// Compute units: CUs, on RDNA halves of a WGP, on NVIDIA SMs.
    pub(crate) units: u32,
    pub(crate) simds: u32,
    /// Waves that a SIMD keeps at most.
    pub(crate) waves_per_simd: u32,
    /// Vector registers that a lane of a SIMD's file has, for all of its waves.
    pub(crate) vgprs: u32,
    /// A wave's registers are rounded up to a multiple of this.
    pub(crate) vgpr_granule: u32,
    /// LDS of one unit, in bytes.
    pub(crate) lds_bytes: u32,
    /// Blocks of several waves that a unit holds at most.
    pub(crate) max_blocks: u32,
    /// Blocks of one wave that a unit holds at most.
    pub(crate) max_one_wave_blocks: u32,
    /// Lanes of a wave.
    pub(crate) wave_size: u32,
    pub(crate) clock_hz: f64,
    /// What its memory gives a kernel.
    pub(crate) memory_bytes_per_s: f64,
    /// What its last cache gives a kernel.
    pub(crate) cache_bytes_per_s: f64,
    /// Cycles until a load has its bytes from memory.
    pub(crate) latency_cycles: f64,
    /// Seconds of a launch that does nothing, in a captured graph.
    pub(crate) launch_s: f64,
    /// Bytes of instructions that are fetched from nearby.
    pub(crate) instruction_cache_bytes: u64,
    /// Operations of all matrix units in a second; 0 without any.
    pub(crate) matrix_flop_per_s: f64,
}

impl Chip {
    /// A target's; `None` where its table has no `[target.compute_unit]` or no `[target.product]`.
    pub fn for_target(target: &Target, facts: &TargetFacts) -> Option<Self> {
        let (unit, product) = (facts.compute_unit?, facts.product.as_ref()?);
        let clock_hz = f64::from(product.clock_mhz) * 1e6;
        let memory_bytes_per_s = REACHED_BANDWIDTH * product.memory_gbps * 1e9;
        let [of_amd, of_nvidia] = INSTRUCTION_CACHE_BYTES;
        let (max_blocks, max_one_wave_blocks, instruction_cache_bytes) = match target.platform {
            Platform::Nvidia => (NVIDIA_MAX_BLOCKS, NVIDIA_MAX_BLOCKS, of_nvidia),
            Platform::Amd | Platform::Host => (AMD_MAX_BLOCKS, unit.simds * unit.waves_per_simd, of_amd),
        };
        Some(Self {
            units: product.compute_units,
            simds: unit.simds,
            waves_per_simd: unit.waves_per_simd,
            vgprs: unit.vgprs,
            vgpr_granule: unit.vgpr_granule,
            lds_bytes: unit.lds_bytes,
            max_blocks,
            max_one_wave_blocks,
            wave_size: target.wave_size,
            clock_hz,
            memory_bytes_per_s,
            cache_bytes_per_s: product.cache_gbps.map_or(CACHE_TIMES * memory_bytes_per_s, |gbps| gbps * 1e9),
            latency_cycles: product.latency_ns.unwrap_or(LATENCY_NS) * 1e-9 * clock_hz,
            instruction_cache_bytes: product.instruction_cache_bytes.unwrap_or(instruction_cache_bytes),
            launch_s: product.launch_us.unwrap_or(LAUNCH_US) * 1e-6,
            matrix_flop_per_s: 1e12 * product.matrix_tflops(),
        })
    }

    /// The least time of any kernel: that of its bytes, or of its operations on the matrix units, and of a launch.
    pub fn least_s(&self, work: &Work) -> f64 {
        let of_flop = work.flop.filter(|_| self.matrix_flop_per_s > 0.0);
        let flop_s = of_flop.map_or(0.0, |flop| flop / self.matrix_flop_per_s);
        self.launch_s + flop_s.max(work.total_bytes() / self.memory_bytes_per_s)
    }

    /// Blocks of a kernel that one unit holds at a time; 0 if it has no room for one.
    pub(crate) fn blocks_per_unit(&self, code: &Code, block_size: u32) -> u32 {
        let waves = block_size.div_ceil(self.wave_size).max(1);
        let by_lds = self.lds_bytes.checked_div(code.lds_bytes).unwrap_or(u32::MAX);
        let unit = ComputeUnit {
            simds: self.simds,
            waves_per_simd: self.waves_per_simd,
            vgprs: self.vgprs,
            vgpr_granule: self.vgpr_granule,
            lds_bytes: self.lds_bytes,
        };
        let by_registers = unit.waves_by_registers(code.vgprs) * self.simds / waves;
        let by_count = if waves > 1 { self.max_blocks } else { self.max_one_wave_blocks };
        by_registers.min(by_lds).min(by_count)
    }
}
