//! What the objects of a template use of a GPU.

use gpu::code_object::KernelFacts;

/// The most that any of several kernels uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Vector registers of a lane, accumulation registers included where they share the file.
    pub vgprs: u32,
    /// Scalar registers of a wave.
    pub sgprs: u32,
    /// LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Registers that did not fit.
    pub spills: u32,
    /// Private memory of a thread, in bytes.
    pub private_bytes: u32,
    /// Waves that a SIMD has room for, of the kernel with the fewest; `None` without facts about the compute unit.
    pub occupancy: Option<u32>,
}

impl Uses {
    /// Takes one more kernel in.
    pub fn add(&mut self, kernel: &KernelFacts, occupancy: Option<u32>) {
        self.vgprs = self.vgprs.max(kernel.vgprs);
        self.sgprs = self.sgprs.max(kernel.sgprs);
        self.lds_bytes = self.lds_bytes.max(kernel.lds_bytes);
        self.spills = self.spills.max(kernel.spills());
        self.private_bytes = self.private_bytes.max(kernel.private_bytes);
        self.occupancy = match (self.occupancy, occupancy) {
            (Some(before), Some(now)) => Some(before.min(now)),
            (before, now) => before.or(now),
        };
    }
}
