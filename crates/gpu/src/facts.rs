//! Runtimes of GPUs, and the facts that a GPU reports, for every vendor.

use std::fmt;
use std::path::PathBuf;

use crate::GpuError;

/// The runtime of a vendor's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Hip,
    Cuda,
}

/// What people and the system call a runtime.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeNames {
    /// Of its devices: the `hip` of `hip:0`.
    pub device: &'static str,
    /// `HIP runtime`.
    pub title: &'static str,
    /// The package that installs it.
    pub(crate) package: &'static str,
    pub(crate) library: &'static str,
    /// An arch of its GPUs that every compiler of the last years knows.
    pub known_arch: &'static str,
}

impl Runtime {
    /// All of them, in the order in which devices are listed.
    pub const ALL: [Self; 2] = [Self::Hip, Self::Cuda];

    /// Names of the runtime, its library and its variable, for messages.
    pub const fn names(self) -> RuntimeNames {
        match self {
            Self::Hip => RuntimeNames {
                device: "hip",
                title: "HIP runtime",
                package: "ROCm's HIP runtime",
                library: "libamdhip64.so",
                known_arch: "gfx1100",
            },
            Self::Cuda => RuntimeNames {
                device: "cuda",
                title: "CUDA driver",
                package: "NVIDIA's driver",
                library: "libcuda.so.1",
                known_arch: "sm_90",
            },
        }
    }

    /// The environment variable that says where it is: the library, or the folder that holds it.
    pub fn variable(self) -> String {
        format!("GPTOSS_JIT_{}", self.names().device.to_uppercase())
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names().title)
    }
}

/// A runtime that was opened, and the devices that it finds.
pub trait GpuRuntime {
    /// The library that was opened.
    fn path(&self) -> PathBuf;

    /// What it is, with its version, for people: `CUDA driver for 13.0`.
    fn describe(&self) -> String;

    /// The versions that it states, each with what it is the version of; `?` where it does not say.
    fn versions(&self) -> Vec<(&'static str, String)>;

    /// Its release, major and minor: (6, 4). None if it does not say.
    fn release(&self) -> Option<(u32, u32)>;

    /// How many devices it finds.
    fn n_devices(&self) -> usize;

    /// What a device says of itself.
    ///
    /// # Errors
    /// [`GpuError::NoDevice`]; [`GpuError::Call`] for a question that fails; [`GpuError::Nonsense`] for an answer that
    /// cannot be: the structure may be another one than was expected.
    fn facts(&self, ordinal: usize) -> Result<DeviceFacts, GpuError>;
}

/// The facts that a GPU's runtime reports.
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
    /// Compute units, or streaming multiprocessors. On RDNA a compute unit is half of a WGP, as kernels are compiled
    /// (`-mcumode`) and as AMD counts them when it sells them.
    pub compute_units: usize,
    /// What the runtime counts as multiprocessors: WGPs on RDNA, where two compute units are one; else compute units.
    pub multiprocessors: usize,
    /// Whether it shares the host's memory.
    pub is_integrated: bool,
    /// Free memory, in bytes.
    pub free_bytes: usize,
    /// Memory, in bytes.
    pub total_bytes: usize,
}

impl DeviceFacts {
    /// `96 CUs (48 WGPs)`, `304 CUs`.
    pub fn size(&self) -> String {
        match (self.compute_units, self.multiprocessors) {
            (units, same) if units == same => format!("{units} CUs"),
            (units, wgps) => format!("{units} CUs ({wgps} WGPs)"),
        }
    }
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
    pub(crate) fn from_facts(facts: &DeviceFacts) -> Self {
        Self { wave_size: facts.wave_size, lds_bytes: facts.lds_bytes }
    }
}
