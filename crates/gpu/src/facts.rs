//! What a GPU says of itself, whoever made it.

/// What a GPU's runtime tells about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// `hip:0`, `cuda:1`.
    pub device: String,
    /// The product: `AMD Radeon RX 7900 XTX`, `NVIDIA H200`.
    pub name: String,
    /// The target id with its flags, `gfx90a:sramecc+:xnack-`, or the compute capability as compilers name it, `sm_90`.
    pub arch: String,
    /// Lanes of a wave: 32 or 64.
    pub wave_size: u32,
    /// LDS that one block may use without asking for more, in bytes.
    pub lds_bytes: u32,
    /// Compute units, or streaming multiprocessors.
    pub compute_units: usize,
    /// Whether it shares the host's memory.
    pub is_integrated: bool,
    /// Memory that nobody uses, in bytes.
    pub free_bytes: usize,
    /// Memory, in bytes.
    pub total_bytes: usize,
}

/// What a device gives to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Lanes of a wave.
    pub wave_size: u32,
    /// LDS that one block may use, in bytes.
    pub lds_bytes: u32,
}

impl DeviceLimits {
    /// Of a device.
    pub(crate) fn of(facts: &DeviceFacts) -> Self {
        Self { wave_size: facts.wave_size, lds_bytes: facts.lds_bytes }
    }
}
