//! `gptoss-jit devices`: what `--device` can name on this machine.
//!
//! With `--json`, one object: `schema` (1), `devices`, a list of `device`, `name`, `arch`, `cores` (compute units of a
//! GPU), `multiprocessors` (what its runtime counts: on RDNA WGPs, of two compute units each; null on the host),
//! `wave_size` (1 on the host), `free_bytes`, `total_bytes` (null where unknown) and `problem` (null, or why the device
//! cannot be used); `links`, a list of all pairs of GPUs of a kind, which are tried: `devices` (two), `copy_gbps` (from
//! the second one's memory to the first's; null where it is not seen) and `problem` (null, or why it is not); `hip`:
//! `library`, `runtime_version`, `driver_version`, or `problem` why there is none; and `cuda`: the same with one
//! `version`. Versions are told of what was opened.

use std::collections::BTreeMap;
use std::thread;

use gpu::{DeviceFacts, GpuError, GpuRuntime, Runtime};
use serde::Serialize;

use super::gpu_links::{self, Link};
use super::output::Output;
use engine::device::open_runtime;
use hint::chain;
use kernel::target::Target;
use system::units::human_bytes;

/// List the devices that `--device` can name here
#[derive(clap::Args)]
pub(crate) struct Args {}

/// A line, and an object of the JSON.
#[derive(Debug, Default, Serialize)]
struct Listed {
    device: String,
    name: String,
    arch: String,
    cores: usize,
    multiprocessors: Option<usize>,
    wave_size: u32,
    free_bytes: Option<usize>,
    total_bytes: Option<usize>,
    problem: Option<String>,
}

/// A runtime, or why there is none.
#[derive(Debug, Default, Serialize)]
struct Opened {
    library: Option<String>,
    /// What it is, for people.
    #[serde(skip)]
    description: Option<String>,
    #[serde(flatten)]
    versions: BTreeMap<&'static str, String>,
    problem: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// What printing gives.
pub(crate) fn run(_: Args, output: &Output) -> anyhow::Result<()> {
    let opened = Runtime::ALL.map(|runtime| (runtime.names().device, open_runtime(runtime)));
    let gpus = opened.iter().filter_map(|(name, runtime)| Some((name, runtime.as_ref().ok()?)));
    let gpus = gpus.flat_map(|(name, runtime)| {
        (0..runtime.n_devices()).map(move |i| Listed::gpu(format!("{name}:{i}"), runtime.facts(i)))
    });
    let devices: Vec<Listed> = gpus.chain([Listed::cpu()]).collect();
    let found = Runtime::ALL.into_iter().zip(&opened).filter_map(|(kind, (_, it))| Some((kind, it.as_ref().ok()?)));
    // A GPU that cannot be opened has said so.
    let links: Vec<Link> =
        found.flat_map(|(kind, runtime)| gpu_links::list(kind, &**runtime).unwrap_or_default()).collect();
    let runtimes: Vec<(&str, Opened)> =
        opened.iter().map(|(name, runtime)| (*name, Opened::from_result(runtime))).collect();
    if output.is_json() {
        #[derive(Serialize)]
        struct Report {
            schema: u32,
            devices: Vec<Listed>,
            links: Vec<Link>,
            #[serde(flatten)]
            runtimes: BTreeMap<&'static str, Opened>,
        }
        return Ok(output.json(&Report { schema: 1, devices, links, runtimes: runtimes.into_iter().collect() })?);
    }
    let rows: Vec<Vec<String>> = devices.iter().map(Listed::cells).collect();
    let headers = ["device", "arch", "cores", "wave", "memory free", "memory", "name"];
    output.table(&headers, &rows, &["cores", "wave", "memory free", "memory"])?;
    for listed in &devices {
        if let Some(problem) = &listed.problem {
            output.note(&format!("{}: {problem}", listed.device));
        }
    }
    links.iter().for_each(|link| output.note(&link.line()));
    runtimes.iter().for_each(|(_, runtime)| output.note(&runtime.text()));
    Ok(())
}

impl Listed {
    fn cpu() -> Self {
        Self {
            device: "cpu".into(),
            name: "this machine's cores".into(),
            arch: Target::host().id(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            multiprocessors: None,
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
                multiprocessors: Some(facts.multiprocessors),
                wave_size: facts.wave_size,
                free_bytes: Some(facts.free_bytes),
                total_bytes: Some(facts.total_bytes),
            },
            Err(error) => Self { device, problem: Some(chain(&error)), ..Self::default() },
        }
    }

    fn cells(&self) -> Vec<String> {
        let size = |bytes: Option<usize>| bytes.map_or_else(|| "?".into(), |bytes| human_bytes(bytes as u64));
        let wgps = self.multiprocessors.filter(|counted| *counted != self.cores);
        let cores = wgps.map_or_else(|| self.cores.to_string(), |wgps| format!("{} ({wgps} WGPs)", self.cores));
        let Self { device, name, arch, wave_size, free_bytes, total_bytes, .. } = self;
        vec![
            device.clone(),
            arch.clone(),
            cores,
            wave_size.to_string(),
            size(*free_bytes),
            size(*total_bytes),
            name.clone(),
        ]
    }
}

impl Opened {
    fn from_result(runtime: &Result<Box<dyn GpuRuntime>, GpuError>) -> Self {
        match runtime {
            Ok(runtime) => Self {
                library: Some(runtime.path().display().to_string()),
                description: Some(runtime.describe()),
                versions: runtime.versions().into_iter().collect(),
                problem: (runtime.n_devices() == 0).then(|| "it finds no device".to_owned()),
            },
            // Its cause lists every name that the loader does not know.
            Err(error @ GpuError::NoRuntime { .. }) => Self { problem: Some(error.to_string()), ..Self::default() },
            Err(error) => Self { problem: Some(chain(error)), ..Self::default() },
        }
    }

    fn text(&self) -> String {
        let library = self.description.iter().zip(&self.library);
        let library = library.map(|(description, library)| format!("{description}: {library}"));
        library.chain(self.problem.clone()).collect::<Vec<_>>().join(", ")
    }
}
