//! Where kernels run: `--device`, as a target to compile for and a driver to launch on.

pub mod auto;
pub(crate) mod cuda;
pub mod hip;

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use gpu::cuda::CudaDriver;
use gpu::hip::HipDriver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use gpu::{DeviceFacts, Driver, GpuError, GpuRuntime, Runtime};
use hint::{Hint, chain};
use kernel::object::bundle::host_target;
use kernel::target::{Platform, Target, TargetError};
use kernel::tuning::TuningTables;

/// A device that was asked for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The GPU with the most compute, else this machine's cores: see [`auto`].
    Auto,
    /// This machine's cores.
    Cpu,
    /// A GPU, by its runtime's number.
    Gpu {
        runtime: Runtime,
        /// Counted from 0.
        ordinal: usize,
        /// What to compile for, if not for what the device says it is; of AMD's alone.
        arch: Option<String>,
    },
    /// A GPU of this arch, executed by this machine's cores.
    Sim(String),
}

/// What kernels are compiled for, and what runs them.
pub type OpenedDevice = (Target, Arc<dyn Driver>);

/// Errors of opening a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The runtime is not there or refuses, or there is no device of that number.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Nothing is known about its arch.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// No device of an arch that was asked for is here.
    #[error("no device of the arch `{arch}` is here, found {found}")]
    NoneOfArch {
        arch: String,
        /// The archs that are here, in a line.
        found: String,
    },
    /// The environment names no seed.
    #[error("{SEED_VARIABLE} is `{found}`, expected a whole number below 2^64")]
    Seed { found: String },
    /// The environment does not say whether GPUs replay graphs.
    #[error("{GRAPHS_VARIABLE} is `{found}`, expected 0 or 1")]
    Graphs { found: String },
}

impl Hint for DeviceError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Gpu(error) => error.hint(),
            Self::Target(error) => error.hint(),
            Self::Seed { .. } => Some("unset it to run blocks, waves and lanes in order".into()),
            Self::Graphs { .. } => Some("unset it to replay repeated steps as graphs".into()),
            Self::NoneOfArch { arch, .. } => {
                Some(format!("`gptoss-jit kernels check --arch {arch} --speed` predicts kernel times there"))
            }
        }
    }
}

/// A name that is no device's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no device `{name}`: expected one of {NAMES}")]
pub struct UnknownName {
    pub(crate) name: String,
}

/// The devices that `--device` names, for help and messages.
pub(crate) const NAMES: &str = "auto, cpu, hip, hip:N, hip:N@ARCH, cuda, cuda:N, sim:ARCH";

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu { runtime, ordinal, arch } => {
                write!(f, "{}:{ordinal}", runtime.names().device)?;
                arch.iter().try_for_each(|arch| write!(f, "@{arch}"))
            }
            Self::Sim(arch) => write!(f, "sim:{arch}"),
        }
    }
}

impl std::str::FromStr for Device {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::Auto),
            None if name == "cpu" => Ok(Self::Cpu),
            Some(("sim", arch)) if !arch.is_empty() => Ok(Self::Sim(arch.to_owned())),
            _ => Self::gpu(name).ok_or_else(|| UnknownName { name: name.to_owned() }),
        }
    }
}

impl Device {
    /// `cuda`, `hip:1`, `hip:0@gfx11-generic`.
    fn gpu(name: &str) -> Option<Self> {
        let (device, arch) = name.split_once('@').map_or((name, None), |(device, arch)| (device, Some(arch)));
        let (runtime, number) = device.split_once(':').unwrap_or((device, "0"));
        let runtime = Runtime::ALL.into_iter().find(|known| known.names().device == runtime)?;
        let takes_arch = runtime == Runtime::Hip;
        if arch.is_some_and(|arch| arch.is_empty() || !takes_arch) {
            return None;
        }
        Some(Self::Gpu { runtime, ordinal: number.parse().ok()?, arch: arch.map(str::to_owned) })
    }

    /// The device `n` numbers after it; another one of its kind if devices have no numbers.
    pub fn next(&self, n: usize) -> Self {
        match self {
            Self::Gpu { runtime, ordinal, arch } => {
                Self::Gpu { runtime: *runtime, ordinal: ordinal + n, arch: arch.clone() }
            }
            other => other.clone(),
        }
    }

    /// Opens the device, with `n_threads` threads where it is made of this machine's cores (0: one for each).
    ///
    /// # Errors
    /// If there is no such device, or nothing is known about it.
    pub fn open(&self, tables: &TuningTables, n_threads: usize) -> Result<OpenedDevice, DeviceError> {
        match self {
            Self::Auto => {
                let auto::Opened { target, driver, .. } =
                    auto::choose(tables, auto::Wanted::default()).open(tables, n_threads)?;
                Ok((target, driver))
            }
            Self::Cpu => Ok((host_target(), Arc::new(HostDriver::new(n_threads)?))),
            Self::Gpu { runtime: Runtime::Hip, ordinal, arch } => hip::open(*ordinal, arch.as_deref(), tables),
            Self::Gpu { runtime: Runtime::Cuda, ordinal, .. } => cuda::open(*ordinal, tables),
            Self::Sim(arch) => {
                let target = tables.gpu(arch)?.simulated();
                let driver = simulator(&target, n_threads)?;
                Ok((target, Arc::new(driver)))
            }
        }
    }
}

/// Opens a runtime, as the environment says where it is.
///
/// # Errors
/// [`GpuError::NoRuntime`], [`GpuError::Unusable`] or [`GpuError::Deadly`]; [`GpuError::Call`] when it does not start.
pub fn open_runtime(runtime: Runtime) -> Result<Box<dyn GpuRuntime>, GpuError> {
    Ok(match runtime {
        Runtime::Hip => Box::new(hip::runtime()?),
        Runtime::Cuda => Box::new(cuda::runtime()?),
    })
}

/// A device of a runtime, whatever its arch is.
///
/// # Errors
/// As [`open_runtime`], or the device cannot be used.
pub fn driver(runtime: Runtime, ordinal: usize) -> Result<Arc<dyn Driver>, GpuError> {
    Ok(match runtime {
        Runtime::Hip => Arc::new(HipDriver::new(&hip::runtime()?, ordinal)?),
        Runtime::Cuda => Arc::new(CudaDriver::new(&cuda::runtime()?, ordinal)?),
    })
}

/// The path in an environment variable, if there is any.
fn named_by(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The first GPU of this arch.
///
/// # Errors
/// If there is none, or nothing is known about the arch.
pub fn of_arch(arch: &str, tables: &TuningTables) -> Result<OpenedDevice, DeviceError> {
    tables.gpu(arch)?;
    let of_runtime = |runtime| {
        let n_devices = match open_runtime(runtime) {
            Ok(opened) => opened.n_devices(),
            Err(GpuError::NoRuntime { .. }) => 0,
            Err(error) => {
                tracing::warn!("{} is not used: {}", runtime.names().device, chain(&error));
                0
            }
        };
        (0..n_devices).map(move |ordinal| Device::Gpu { runtime, ordinal, arch: None })
    };
    let devices = Runtime::ALL.into_iter().flat_map(of_runtime);
    let mut found = Vec::new();
    for device in devices {
        let (target, driver) = match device.open(tables, 0) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!("{device} is not used: {}", chain(&error));
                continue;
            }
        };
        if target.arch.split(':').next() == arch.split(':').next() {
            return Ok((target, driver));
        }
        found.push(target.arch);
    }
    let found = if found.is_empty() { "no GPU".into() } else { found.join(", ") };
    Err(DeviceError::NoneOfArch { arch: arch.to_owned(), found })
}

/// The tables' facts about an arch; where the device's own numbers differ, the device's, with a warning that names
/// both.
fn target_of(facts: &DeviceFacts, arch: &str, tables: &TuningTables) -> Result<(Target, Vec<String>), TargetError> {
    let mut target = tables.gpu(arch)?;
    let differs = |what: &str, table: u32, found: u32| {
        format!("{}: the tables say {what} {table}, {} says {found}, which is used", target.arch, facts.device)
    };
    let mut warnings = Vec::new();
    if target.wave_size != facts.wave_size {
        warnings.push(differs("waves of", target.wave_size, facts.wave_size));
    }
    if facts.lds_bytes < target.lds_bytes {
        warnings.push(differs("bytes of LDS for a block:", target.lds_bytes, facts.lds_bytes));
    }
    target.wave_size = facts.wave_size;
    target.lds_bytes = target.lds_bytes.min(facts.lds_bytes);
    Ok((target, warnings))
}

/// Names the seed of the simulator's order of blocks, waves and lanes; without it they run one after the other.
pub const SEED_VARIABLE: &str = "GPTOSS_JIT_SIM_SEED";

/// The seed that the environment names; 0 without one.
///
/// # Errors
/// [`DeviceError::Seed`].
pub fn simulator_seed() -> Result<u64, DeviceError> {
    let Some(text) = env::var_os(SEED_VARIABLE).filter(|text| !text.is_empty()) else { return Ok(0) };
    let text = text.to_string_lossy();
    text.parse().map_err(|_| DeviceError::Seed { found: text.into_owned() })
}

/// Says whether GPUs capture launches that come again and replay them as graphs: 1, as without it, or 0.
pub(crate) const GRAPHS_VARIABLE: &str = "GPTOSS_JIT_GRAPHS";

/// Whether they do.
///
/// # Errors
/// [`DeviceError::Graphs`].
fn replays_graphs() -> Result<bool, DeviceError> {
    match env::var_os(GRAPHS_VARIABLE).unwrap_or_default().to_string_lossy().as_ref() {
        "" | "1" => Ok(true),
        "0" => Ok(false),
        other => Err(DeviceError::Graphs { found: other.to_owned() }),
    }
}

/// What executes a GPU's kernels on this machine's cores.
fn simulator(target: &Target, n_threads: usize) -> Result<SimDriver, DeviceError> {
    let driver = SimDriver::new(&target.arch, target.wave_size, n_threads)?;
    Ok(driver.with_lds([target.lds_bytes, target.lds_bytes_at_launch()]).with_seed(simulator_seed()?))
}

/// What runs kernels for a target here, and what it needs them compiled for: a GPU's run in the simulator.
///
/// # Errors
/// If the device cannot be set up.
pub fn stand_in(target: &Target) -> Result<Option<OpenedDevice>, DeviceError> {
    match target.platform {
        Platform::Host if target.runs_on_host() => Ok(Some((target.clone(), Arc::new(HostDriver::new(0)?)))),
        Platform::Amd | Platform::Nvidia => {
            let driver = simulator(target, 0)?;
            Ok(Some((target.clone().simulated(), Arc::new(driver))))
        }
        Platform::Host => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_with_a_number_and_an_arch() {
        let gpu = |runtime, ordinal, arch: Option<&str>| {
            let arch = arch.map(str::to_owned);
            Device::Gpu { runtime, ordinal, arch }
        };
        let hip = |ordinal, arch| gpu(Runtime::Hip, ordinal, arch);
        for (name, expected) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("sim:gfx942", Device::Sim("gfx942".into())),
            ("cuda", gpu(Runtime::Cuda, 0, None)),
            ("cuda:3", gpu(Runtime::Cuda, 3, None)),
            ("hip", hip(0, None)),
            ("hip:2", hip(2, None)),
            ("hip@gfx1100", hip(0, Some("gfx1100"))),
            ("hip:1@gfx90a:xnack-", hip(1, Some("gfx90a:xnack-"))),
        ] {
            assert_eq!(name.parse::<Device>().unwrap(), expected, "{name}");
            assert_eq!(expected.to_string().parse::<Device>().unwrap(), expected, "{name}");
        }
        for name in
            ["", "gpu", "cuda:", "cuda:x", "cuda@sm_90", "sim", "sim:", "hip:", "hip:x", "hip:0@", "hip:-1", "hipster"]
        {
            let error = name.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains("expected one of auto, cpu, hip"), "{name}: {error}");
        }
    }
}
