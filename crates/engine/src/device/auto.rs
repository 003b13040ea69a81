//! `--device auto`: the GPU with the most compute that the model fits on. If there is none: the GPU with the most
//! compute that everything except experts fits on, with the experts on the processor; else this machine's cores.
//!
//! Compute is the speed of all matrix units if the tables have it for every GPU here; otherwise it is the number of
//! compute units.

use std::sync::Arc;

use gpu::{DeviceFacts, Driver, GpuError, GpuRuntime, Runtime};

use super::{Device, DeviceError, open_runtime};
use crate::kernel_driver::{DriverFinding, KernelDriver};
use hint::{Hint, chain};
use kernel::target::Target;
use kernel::tuning::TuningTables;
use system::units::human_bytes;

/// A GPU that is here, in the order in which runtimes list them.
#[derive(Clone, Debug)]
struct Gpu {
    device: Device,
    /// `hip:1 (AMD Radeon RX 7900 XTX, gfx1100, 96 CUs (48 WGPs), 24.0 GB free)`.
    description: String,
    compute_units: usize,
    /// The rate of one compute unit's matrix units, in 10^6 operations per second, if a table has it.
    rate: Option<f64>,
    free_bytes: usize,
}

/// What was chosen, and what there is to say about it.
pub struct DeviceChoice {
    /// The GPUs that the model fits on, most compute first; without one that can be opened it is the cpu.
    fitting: Vec<Gpu>,
    /// Those that all but its experts fit on.
    with_help: Vec<Gpu>,
    /// Those that not even that fits on.
    too_small: Vec<Gpu>,
    /// Why the others cannot be used.
    problems: Vec<String>,
    /// What keeps AMD's runtime from GPUs that the driver has.
    obstacles: Vec<DriverFinding>,
    model_bytes: usize,
}

/// What a model wants of a device, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub model_bytes: usize,
    /// Those that only the device can have.
    pub least_bytes: usize,
    /// Of a device's memory, what may be used.
    pub most_bytes: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { model_bytes: 0, least_bytes: 0, most_bytes: usize::MAX }
    }
}

/// Weights may fill so much of a device that the processor helps; the rest is for keys, values and activations.
const MOST_FILLED: f64 = 0.8;

/// Examines the GPUs of every runtime and sorts them: most compute first, of equal ones most free memory first.
pub fn choose(tables: &TuningTables, wanted: Wanted) -> DeviceChoice {
    let Wanted { model_bytes, least_bytes, most_bytes } = wanted;
    let (mut gpus, mut problems, mut obstacles) = (Vec::new(), Vec::new(), Vec::new());
    let of_runtime = |runtime| {
        let opened = open_runtime(runtime);
        if runtime == Runtime::Hip {
            let driver = KernelDriver::here();
            // What is left of a ROCm without a GPU of AMD's is nobody's obstacle.
            if matches!(opened, Err(GpuError::Unusable { .. })) && !driver.is_there() && driver.windows().is_none() {
                return Vec::new();
            }
            obstacles = driver.obstacles(&opened);
        }
        gpus_of(runtime, opened, tables, most_bytes)
    };
    for found in Runtime::ALL.into_iter().flat_map(of_runtime) {
        match found {
            Ok(gpu) => gpus.push(gpu),
            Err(problem) => problems.push(problem),
        }
    }
    let is_known = gpus.iter().all(|gpu| gpu.rate.is_some());
    let compute = |gpu: &Gpu| gpu.compute_units as f64 * gpu.rate.filter(|_| is_known).unwrap_or(1.0);
    // Stable: of equal ones the first of those with the most memory.
    gpus.sort_by(|a, b| compute(b).total_cmp(&compute(a)).then(b.free_bytes.cmp(&a.free_bytes)));
    let (fitting, others): (Vec<Gpu>, Vec<Gpu>) = gpus.into_iter().partition(|gpu| gpu.free_bytes >= model_bytes);
    let is_helped = |gpu: &Gpu| least_bytes < model_bytes && gpu.free_bytes as f64 * MOST_FILLED >= least_bytes as f64;
    let (with_help, too_small) = others.into_iter().partition(is_helped);
    DeviceChoice { fitting, with_help, too_small, problems, obstacles, model_bytes }
}

/// A device that is ready, and why it is this one.
pub struct Opened {
    /// Its name, for those who open it again.
    pub device: Device,
    /// What kernels are compiled for.
    pub target: Target,
    pub driver: Arc<dyn Driver>,
    /// For people; none if the device was named.
    pub reason: Option<Reason>,
}

/// Why a device was chosen.
pub struct Reason {
    pub text: String,
    /// Whether there were others.
    pub is_of_several: bool,
}

impl DeviceChoice {
    /// The GPUs that the model fits on, the one with the most compute first.
    pub fn devices(&self) -> Vec<Device> {
        self.fitting.iter().map(|gpu| gpu.device.clone()).collect()
    }

    /// What can be tried, the best first: the last is the cpu.
    pub fn candidates(&self) -> Vec<Device> {
        let gpus = self.fitting.iter().chain(&self.with_help).map(|gpu| gpu.device.clone());
        gpus.chain([Device::Cpu]).collect()
    }

    /// Opens the best that can be opened. What cannot is a warning.
    ///
    /// # Errors
    /// If not even the cpu can be set up.
    pub fn open(&self, tables: &TuningTables, n_threads: usize) -> Result<Opened, DeviceError> {
        for gpu in self.fitting.iter().chain(&self.with_help) {
            match gpu.device.open(tables, n_threads) {
                Ok((target, driver)) => {
                    return Ok(Opened { device: gpu.device.clone(), target, driver, reason: Some(self.reason(gpu)) });
                }
                Err(error) => tracing::warn!("{} is not used: {}", gpu.description, chain(&error)),
            }
        }
        for problem in &self.problems {
            tracing::warn!("{problem}");
        }
        if let Some(largest) = self.too_small.iter().max_by_key(|gpu| gpu.free_bytes) {
            let weights = human_bytes(self.model_bytes as u64);
            tracing::warn!("the cpu is used: the weights take {weights}, more than {} has", largest.description);
        }
        for obstacle in &self.obstacles {
            tracing::warn!("the cpu is used: {}; {}", obstacle.what, obstacle.hint);
        }
        let (target, driver) = Device::Cpu.open(tables, n_threads)?;
        let text = format!("device: {}: no GPU was found that can be used", driver.describe());
        Ok(Opened { device: Device::Cpu, target, driver, reason: Some(Reason { text, is_of_several: false }) })
    }

    /// Which it is, and why, where there was a choice.
    fn reason(&self, chosen: &Gpu) -> Reason {
        let n_gpus = self.fitting.len() + self.with_help.len() + self.too_small.len() + self.problems.len();
        if n_gpus < 2 {
            return Reason { text: format!("device: {}", chosen.description), is_of_several: false };
        }
        let mut text = format!("device: {}: of {n_gpus} GPUs the one with the most compute", chosen.description);
        let small: Vec<&str> =
            self.with_help.iter().chain(&self.too_small).map(|gpu| gpu.description.as_str()).collect();
        let weights = human_bytes(self.model_bytes as u64);
        if chosen.free_bytes < self.model_bytes {
            text += &format!(" that all but the experts fits on; the weights take {weights}");
        } else if !small.is_empty() {
            text += &format!(" that the weights fit on; they take {weights}, too much for {}", small.join(", "));
        }
        for problem in &self.problems {
            text += &format!("; {problem}");
        }
        Reason { text, is_of_several: true }
    }
}

/// The GPUs of a runtime, of whose memory so much may be used, or what is wrong with them. No runtime is no problem.
fn gpus_of(
    runtime: Runtime,
    opened: Result<Box<dyn GpuRuntime>, GpuError>,
    tables: &TuningTables,
    most_bytes: usize,
) -> Vec<Result<Gpu, String>> {
    let name = runtime.names().device;
    let opened = match opened {
        Ok(opened) => opened,
        Err(GpuError::NoRuntime { .. }) => return Vec::new(),
        Err(error) => {
            let cure = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            return vec![Err(format!("{name} is not used: {}{cure}", chain(&error)))];
        }
    };
    let gpu = |ordinal| {
        let facts = opened.facts(ordinal).map_err(|error| chain(&error))?;
        let facts = DeviceFacts { free_bytes: facts.free_bytes.min(most_bytes), ..facts };
        Gpu::new(Device::Gpu { runtime, ordinal, arch: None }, &facts, tables)
    };
    (0..opened.n_devices()).map(|i| gpu(i).map_err(|why| format!("{name}:{i} is not used: {why}"))).collect()
}

impl Gpu {
    /// What the tables know about it, if they know enough to run on it.
    fn new(device: Device, found: &DeviceFacts, tables: &TuningTables) -> Result<Self, String> {
        let DeviceFacts { name, arch, compute_units, free_bytes, .. } = found;
        let known = match tables.facts(arch) {
            Some(known) => Some(known),
            None => {
                let (target, _) = Target::gpu_or_similar(arch).map_err(|error| error.to_string())?;
                target.like.as_deref().and_then(|like| tables.facts(like))
            }
        };
        let product = known.and_then(|known| known.product.as_ref());
        let rate = product.map(|product| f64::from(product.matrix_flop_per_cycle) * f64::from(product.clock_mhz));
        let free = human_bytes(*free_bytes as u64);
        Ok(Self {
            description: format!("{device} ({name}, {arch}, {}, {free} free)", found.size()),
            device,
            compute_units: *compute_units,
            rate: rate.filter(|rate| *rate > 0.0),
            free_bytes: *free_bytes,
        })
    }
}
