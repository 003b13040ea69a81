//! A compute unit of an AMD GPU as numbers: how many waves fit beside a kernel's registers and LDS; and the peaks of
//! an arch's fastest product.
//!
//! The numbers are data: `[target.compute_unit]` and `[target.product]` in `tuning/<arch>.toml`, with their sources.

use serde::Deserialize;

/// Blocks that can be at a barrier on one compute unit at the same time; blocks of one wave need no barrier.
const MAX_BLOCKS_WITH_BARRIER: u32 = 16;

/// One compute unit. On RDNA it is one in CU mode (`-mcumode`, which all kernels are compiled with): half of a WGP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeUnit {
    /// SIMDs, each with a register file of its own.
    pub simds: u32,
    /// Waves that a SIMD keeps at most.
    pub waves_per_simd: u32,
    /// Vector registers that a lane of a SIMD's file has, for all of its waves; with the accumulation registers where
    /// they are in the same file.
    pub vgprs: u32,
    /// A wave's registers are rounded up to a multiple of this.
    pub vgpr_granule: u32,
    /// LDS, for all of its blocks, in bytes.
    pub lds_bytes: u32,
}

/// The fastest product of an arch, as its maker states it. Limits to hold predictions against, nothing more.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    pub name: String,
    pub compute_units: u32,
    /// The highest clock, in MHz.
    pub clock_mhz: u32,
    /// bf16 operations of the matrix units of one compute unit in a cycle, a multiply-add being two; 0 without any.
    pub matrix_flop_per_cycle: u32,
    /// Bandwidth of its memory, in 10^9 bytes per second.
    pub memory_gbps: f64,
    /// What its last cache before the memory holds, in bytes.
    pub cache_bytes: Option<usize>,
    /// Bandwidth of that cache, in 10^9 bytes per second.
    pub cache_gbps: Option<f64>,
    /// How long a load takes that finds its bytes in no cache, in nanoseconds.
    pub latency_ns: Option<f64>,
    /// What its instruction cache holds, in bytes.
    pub instruction_cache_bytes: Option<u64>,
    /// A launch in a captured graph that does nothing, in microseconds.
    pub launch_us: Option<f64>,
}

impl ComputeUnit {
    /// Waves of one kernel that a SIMD can hold, when nothing else runs: the fullest one, where blocks do not spread
    /// evenly. 0 if not even one block fits. Scalar registers are left out: on gfx9 more than 100 of them would leave
    /// 7.
    ///
    /// - `wave_size`: 32 or 64
    /// - `vgprs`: of a lane, accumulation registers included
    /// - `lds_bytes`: of a block
    /// - `block_size`: threads of a block
    pub fn occupancy(&self, wave_size: u32, vgprs: u32, lds_bytes: u32, block_size: u32) -> u32 {
        let waves_per_block = block_size.max(1).div_ceil(wave_size.max(1));
        let by_waves = self.waves_per_simd * self.simds / waves_per_block;
        let by_barriers = if waves_per_block > 1 { MAX_BLOCKS_WITH_BARRIER } else { u32::MAX };
        let by_lds = self.lds_bytes.checked_div(lds_bytes).unwrap_or(u32::MAX);
        let blocks = by_waves.min(by_barriers).min(by_lds);
        (blocks * waves_per_block).div_ceil(self.simds.max(1)).min(self.waves_by_registers(vgprs))
    }

    /// What keeps a SIMD from holding more waves of a kernel than [`Self::occupancy`].
    pub fn limited_by(&self, wave_size: u32, vgprs: u32, lds_bytes: u32, block_size: u32) -> &'static str {
        let waves = self.occupancy(wave_size, vgprs, lds_bytes, block_size);
        let without = |vgprs, lds_bytes| self.occupancy(wave_size, vgprs, lds_bytes, block_size);
        match () {
            () if waves >= self.waves_per_simd => "the waves that it keeps at most",
            () if without(0, lds_bytes) > waves => "registers",
            () if without(vgprs, 0) > waves => "LDS",
            () if without(0, 0) > waves => "registers, and LDS as well",
            () => "the size of blocks, of which it holds whole ones",
        }
    }

    /// Waves that a SIMD's registers suffice for.
    pub fn waves_by_registers(&self, vgprs: u32) -> u32 {
        let granule = self.vgpr_granule.max(1);
        let allocated = vgprs.max(1).next_multiple_of(granule);
        (self.vgprs / allocated).min(self.waves_per_simd)
    }
}

impl Product {
    /// bf16 operations of all matrix units together, in 10^12 per second.
    pub fn matrix_tflops(&self) -> f64 {
        f64::from(self.compute_units) * f64::from(self.clock_mhz) * f64::from(self.matrix_flop_per_cycle) * 1e-6
    }

    /// Bytes of memory that one compute unit can have per cycle, if all of them share evenly.
    pub fn bytes_per_cycle(&self) -> f64 {
        self.memory_gbps * 1e3 / (f64::from(self.compute_units) * f64::from(self.clock_mhz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RDNA3: ComputeUnit =
        ComputeUnit { simds: 2, waves_per_simd: 16, vgprs: 1536, vgpr_granule: 24, lds_bytes: 65_536 };
    const CDNA2: ComputeUnit =
        ComputeUnit { simds: 4, waves_per_simd: 8, vgprs: 512, vgpr_granule: 8, lds_bytes: 65_536 };

    // That LLVM computes the same is tested in tests/it/workbench/occupancy.rs, on grids of these numbers.

    #[test]
    fn registers_lds_and_blocks_each_limit_the_waves() {
        assert_eq!(RDNA3.occupancy(32, 96, 0, 256), 16);
        assert_eq!(RDNA3.occupancy(32, 97, 0, 256), 12);
        assert_eq!(RDNA3.occupancy(32, 8, 33_000, 256), 4);
        assert_eq!(RDNA3.occupancy(32, 8, 0, 640), 10);
        assert_eq!(CDNA2.occupancy(64, 129, 0, 256), 3);
        assert_eq!(CDNA2.occupancy(64, 8, 4096, 64), 4);
    }

    #[test]
    fn what_limits_the_waves_is_what_more_would_be_had_without() {
        let limit = |vgprs, lds_bytes, block_size| RDNA3.limited_by(32, vgprs, lds_bytes, block_size);
        assert_eq!(limit(96, 0, 256), "the waves that it keeps at most");
        assert_eq!(limit(97, 0, 256), "registers");
        assert_eq!(limit(8, 33_000, 256), "LDS");
        assert_eq!(limit(200, 20_000, 256), "registers");
        assert_eq!(limit(384, 40_000, 256), "registers, and LDS as well");
        assert_eq!(limit(8, 0, 640), "the size of blocks, of which it holds whole ones");
    }

    #[test]
    fn what_does_not_fit_has_no_waves_and_nothing_overflows() {
        assert_eq!(CDNA2.occupancy(64, 8, 65_537, 256), 0);
        assert_eq!(CDNA2.occupancy(64, 513, 0, 256), 0);
        assert_eq!(CDNA2.occupancy(64, 8, 0, 4096), 0);
        assert_eq!(CDNA2.occupancy(0, 0, 0, 0), 8);
        assert_eq!(CDNA2.occupancy(64, u32::MAX - 8, u32::MAX, u32::MAX), 0);
    }
}
