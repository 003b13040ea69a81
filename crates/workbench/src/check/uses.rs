//! The GPU resources that a template's objects use.

use gpu::code_object::KernelFacts;
use serde::{Deserialize, Serialize};

/// The most that any of several kernels uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            vgprs: self.vgprs.max(other.vgprs),
            sgprs: self.sgprs.max(other.sgprs),
            lds_bytes: self.lds_bytes.max(other.lds_bytes),
            spills: self.spills.max(other.spills),
            private_bytes: self.private_bytes.max(other.private_bytes),
            occupancy: match (self.occupancy, other.occupancy) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
        }
    }

    /// Takes one more kernel in.
    pub(crate) fn add(&mut self, kernel: &KernelFacts, occupancy: Option<u32>) {
        *self = self.with(Self {
            vgprs: kernel.vgprs,
            sgprs: kernel.sgprs,
            lds_bytes: kernel.lds_bytes,
            spills: kernel.spills(),
            private_bytes: kernel.private_bytes,
            occupancy,
        });
    }
}
