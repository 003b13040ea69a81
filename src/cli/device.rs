//! Where kernels run: `--device`, as a target to compile for and a driver to launch on.

use std::sync::Arc;

use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;

use super::report::UsageError;
use crate::target::{Backend, Target};
use crate::tuning::TuningTables;

/// A device that was asked for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The best that there is.
    Auto,
    /// This machine's cores.
    Cpu,
    /// A GPU of this arch, executed by this machine's cores.
    Sim(String),
}

/// The devices that `--device` names, for help and messages.
pub const NAMES: &str = "auto, cpu, sim:ARCH";

impl std::str::FromStr for Device {
    type Err = UsageError;

    fn from_str(name: &str) -> Result<Self, UsageError> {
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::Auto),
            None if name == "cpu" => Ok(Self::Cpu),
            Some(("sim", arch)) if !arch.is_empty() => Ok(Self::Sim(arch.to_owned())),
            _ => Err(UsageError(format!("there is no device `{name}`: expected one of {NAMES}"))),
        }
    }
}

impl Device {
    /// Opens the device, with `n_threads` threads where it is made of this machine's cores (0: one for each).
    ///
    /// # Errors
    /// If there is no such device, or nothing is known about it.
    pub fn open(&self, tables: &TuningTables, n_threads: usize) -> anyhow::Result<(Target, Arc<dyn Driver>)> {
        match self {
            Self::Auto | Self::Cpu => Ok((Target::host(), Arc::new(HostDriver::new(n_threads)?))),
            Self::Sim(arch) => {
                let target = tables.gpu(arch)?.simulated();
                let driver = SimDriver::new(arch, target.wave_size, n_threads)?;
                Ok((target, Arc::new(driver)))
            }
        }
    }
}

/// What runs kernels for a target here, and what it needs them compiled for: a GPU's run in the simulator.
///
/// # Errors
/// If the device cannot be set up.
pub fn stand_in(target: &Target) -> anyhow::Result<Option<(Target, Box<dyn Driver>)>> {
    match target.backend {
        Backend::Host if target.features.is_subset(&Target::host().features) => {
            Ok(Some((target.clone(), Box::new(HostDriver::new(0)?))))
        }
        Backend::Hiprtc | Backend::Sim => {
            let driver = SimDriver::new(&target.arch, target.wave_size, 0)?;
            Ok(Some((target.clone().simulated(), Box::new(driver))))
        }
        Backend::Host | Backend::Mock => Ok(None),
    }
}
