//! `gptoss-jit devices`: what `--device` can name on this machine.
//!
//! With `--json`, one object: `schema` (1), `devices`, a list of `device`, `name`, `arch`, `cores` (compute units of a
//! GPU), `wave_size` (1 on the host), `free_bytes`, `total_bytes` (null where unknown) and `problem` (null, or why the
//! device cannot be used); `hip`: `library`, `runtime_version`, `driver_version`, or `problem` why there is none; and
//! `cuda`: the same with one `version`.

use std::thread;

use gpu::cuda::CudaRuntime;
use gpu::hip::HipRuntime;
use gpu::{DeviceFacts, GpuError};
use serde::Serialize;

use super::output::{Output, human_bytes};
use crate::device::{chain, cuda, hip};
use crate::target::Target;

/// List the devices that `--device` can name here
#[derive(clap::Args)]
pub struct Args {}

/// A line, and an object of the JSON.
#[derive(Debug, Default, Serialize)]
struct Listed {
    device: String,
    name: String,
    arch: String,
    cores: usize,
    wave_size: u32,
    free_bytes: Option<usize>,
    total_bytes: Option<usize>,
    problem: Option<String>,
}

/// The HIP runtime, or why there is none.
#[derive(Debug, Default, Serialize)]
struct Hip {
    library: Option<String>,
    runtime_version: Option<String>,
    driver_version: Option<String>,
    problem: Option<String>,
}

/// The CUDA driver, or why there is none.
#[derive(Debug, Default, Serialize)]
struct Cuda {
    library: Option<String>,
    version: Option<String>,
    problem: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// What printing gives.
pub fn run(_: Args, output: &Output) -> anyhow::Result<()> {
    let runtime = hip::runtime();
    let gpus = runtime
        .iter()
        .flat_map(|runtime| (0..runtime.n_devices()).map(|i| Listed::gpu(format!("hip:{i}"), runtime.facts(i))));
    let driver = cuda::runtime();
    let more = driver
        .iter()
        .flat_map(|driver| (0..driver.n_devices()).map(|i| Listed::gpu(format!("cuda:{i}"), driver.facts(i))));
    let devices: Vec<Listed> = gpus.chain(more).chain([Listed::cpu()]).collect();
    let (hip, cuda) = (Hip::of(&runtime), Cuda::of(&driver));
    if output.is_json() {
        #[derive(Serialize)]
        struct Report {
            schema: u32,
            devices: Vec<Listed>,
            hip: Hip,
            cuda: Cuda,
        }
        return Ok(output.json(&Report { schema: 1, devices, hip, cuda })?);
    }
    let rows: Vec<Vec<String>> = devices.iter().map(Listed::cells).collect();
    let headers = ["device", "arch", "cores", "wave", "memory free", "memory", "name"];
    output.table(&headers, &rows, &["cores", "wave", "memory free", "memory"])?;
    for listed in &devices {
        if let Some(problem) = &listed.problem {
            output.note(&format!("{}: {problem}", listed.device));
        }
    }
    output.note(&hip.text());
    output.note(&cuda.text());
    Ok(())
}

impl Listed {
    fn cpu() -> Self {
        Self {
            device: "cpu".into(),
            name: "this machine's cores".into(),
            arch: Target::host().id(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            wave_size: 1,
            free_bytes: gpu::host::memory().map(|memory| memory.free_bytes),
            total_bytes: gpu::host::memory().map(|memory| memory.total_bytes),
            problem: None,
        }
    }

    fn gpu(device: String, facts: Result<DeviceFacts, GpuError>) -> Self {
        match facts {
            Ok(facts) => Self {
                device,
                problem: Target::gpu_or_similar(&facts.arch)
                    .map_or_else(|error| Some(error.to_string()), |(_, said)| said),
                name: facts.name,
                arch: facts.arch,
                cores: facts.compute_units,
                wave_size: facts.wave_size,
                free_bytes: Some(facts.free_bytes),
                total_bytes: Some(facts.total_bytes),
            },
            Err(error) => Self { device, problem: Some(chain(&error)), ..Self::default() },
        }
    }

    fn cells(&self) -> Vec<String> {
        let size = |bytes: Option<usize>| bytes.map_or_else(|| "?".into(), |bytes| human_bytes(bytes as u64));
        let Self { device, name, arch, cores, wave_size, free_bytes, total_bytes, .. } = self;
        vec![
            device.clone(),
            arch.clone(),
            cores.to_string(),
            wave_size.to_string(),
            size(*free_bytes),
            size(*total_bytes),
            name.clone(),
        ]
    }
}

impl Hip {
    fn of(runtime: &Result<HipRuntime, GpuError>) -> Self {
        match runtime {
            Ok(runtime) => {
                let (runtime_version, driver_version) = runtime.versions();
                Self {
                    library: Some(runtime.path().display().to_string()),
                    runtime_version: Some(runtime_version),
                    driver_version: Some(driver_version),
                    problem: (runtime.n_devices() == 0).then(|| "it finds no device".to_owned()),
                }
            }
            // Its cause lists every name that the loader does not know.
            Err(error @ GpuError::NoRuntime { .. }) => Self { problem: Some(error.to_string()), ..Self::default() },
            Err(error) => Self { problem: Some(chain(error)), ..Self::default() },
        }
    }

    fn text(&self) -> String {
        let library = self
            .library
            .iter()
            .map(|library| format!("HIP runtime {}: {library}", self.runtime_version.as_deref().unwrap_or("?")));
        library.chain(self.problem.clone()).collect::<Vec<_>>().join(", ")
    }
}

impl Cuda {
    fn of(driver: &Result<CudaRuntime, GpuError>) -> Self {
        match driver {
            Ok(driver) => Self {
                library: Some(driver.path().display().to_string()),
                version: Some(driver.version()),
                problem: (driver.n_devices() == 0).then(|| "it finds no device".to_owned()),
            },
            Err(error @ GpuError::NoRuntime { .. }) => Self { problem: Some(error.to_string()), ..Self::default() },
            Err(error) => Self { problem: Some(chain(error)), ..Self::default() },
        }
    }

    fn text(&self) -> String {
        let library = self.library.iter().zip(&self.version);
        let library = library.map(|(library, version)| format!("CUDA driver for {version}: {library}"));
        library.chain(self.problem.clone()).collect::<Vec<_>>().join(", ")
    }
}
