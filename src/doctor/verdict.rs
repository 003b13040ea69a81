//! Tries whether `run` works, device by device, with the tiny model in a child process: a crash there does not affect
//! this process, and the outcome is that of `run`.

use std::time::Duration;

use gpu::Runtime;
use serde::Serialize;
use serde_json::Value;

use super::{Check, State, child};
use engine::device::auto::{self, Wanted};
use engine::device::{Device, open_runtime};
use kernel::object::bundle::Bundles;
use kernel::tuning::TuningTables;

/// How long the tiny model may take, most of which is for compiling.
const LIMIT: Duration = Duration::from_secs(180);

/// The result of `run` on a device.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    /// As `--device` names it.
    pub(super) device: String,
    pub(super) works: bool,
    /// On what it ran, in words, or why it did not.
    pub(super) said: String,
    /// Why it is this device, if none was named and it works.
    pub(super) why: Option<String>,
    pub(super) hint: Option<String>,
}

/// The verdict of the device that `run --device D` takes, and, if none is named, then those of all others.
///
/// # Errors
/// If no process can be started.
pub(super) fn all(device: &Device, checks: &[Check]) -> anyhow::Result<Vec<Verdict>> {
    let taken = Verdict::of_run(device)?;
    if *device != Device::Auto {
        return Ok(vec![taken]);
    }
    let gpus = Runtime::ALL.into_iter().flat_map(|runtime| {
        let n_devices = open_runtime(runtime).map_or(0, |opened| opened.n_devices());
        (0..n_devices).map(move |ordinal| Device::Gpu { runtime, ordinal, arch: None })
    });
    let others: Vec<Device> = gpus.chain([Device::Cpu]).filter(|one| one.to_string() != taken.device).collect();
    let of_others = others.iter().map(|one| match one {
        Device::Cpu => Ok(Verdict::of_cpu(checks)),
        gpu => Verdict::of_run(gpu),
    });
    std::iter::once(Ok(taken)).chain(of_others).collect()
}

/// The devices that need what a check is about, as their names begin; none if it is not about devices.
pub(super) fn devices_of(check: &str) -> Option<&'static str> {
    match check {
        "C compiler" | "self-check" => Some("cpu"),
        "HIP runtime" | "hipRTC" => Some("hip"),
        "CUDA driver" | "NVRTC" => Some("cuda"),
        _ => None,
    }
}

impl Verdict {
    fn of_run(device: &Device) -> anyhow::Result<Self> {
        let named = device.to_string();
        let words =
            ["run", "--json", "--verbose", "--device", &named, "-i", "Once upon a time", "--max-new-tokens", "4"];
        let ended = child::run(&words.map(str::to_owned), LIMIT)?;
        let line = |begin: &str| ended.notes.iter().rev().find_map(|line| line.strip_prefix(begin)).map(str::to_owned);
        if let Some(problem) = ended.problem {
            let hint = line("hint: ");
            return Ok(Self { device: taken_of(device), works: false, said: problem, why: None, hint });
        }
        let told: Value = serde_json::from_str(&ended.result).unwrap_or_default();
        let said = told["device"].as_str().unwrap_or(&named).to_owned();
        let device = said.split(' ').next().unwrap_or_default().to_owned();
        Ok(Self { device, works: true, said, why: line("device: "), hint: None })
    }

    /// Of the processor where a GPU is taken: as its own checks say.
    fn of_cpu(checks: &[Check]) -> Self {
        let is_its = |check: &Check| devices_of(check.name).map_or(check.needed, |devices| devices == "cpu");
        // Where bundles have kernels for the processor, nothing need be compiled.
        let is_bundled = Bundles::here().serve_host();
        let is_spared = |check: &Check| is_bundled && ["C compiler", "self-check", "temporary"].contains(&check.name);
        let is_broken = |check: &&Check| check.state != State::Ok && is_its(check) && !is_spared(check);
        let broken: Vec<&str> = checks.iter().filter(is_broken).map(|check| check.name).collect();
        let works = broken.is_empty();
        let said = if works { "cpu".into() } else { format!("the checks above: {}", broken.join(", ")) };
        Self { device: "cpu".into(), works, said, why: None, hint: None }
    }

    /// All of them as the last of the checks.
    pub(super) fn check(verdicts: &[Self]) -> Check {
        let taken = &verdicts[0];
        let first = match taken.works {
            true => format!("`run` takes {}; it works", taken.why.as_ref().unwrap_or(&taken.said)),
            false => format!("`run` takes {}; it does not work: {}", taken.device, taken.said),
        };
        let other = |one: &Self| match one.works {
            true => format!("{}: works", one.said),
            false => format!("{}: does not work: {}", one.device, one.said),
        };
        let state = if taken.works { State::Ok } else { State::Failed };
        let details = std::iter::once(first).chain(verdicts[1..].iter().map(other)).collect();
        Check { name: "run", state, needed: true, details, hint: taken.hint.clone() }
    }
}

/// What `auto` takes, by its name: of a `run` that did not get so far as to say it.
fn taken_of(device: &Device) -> String {
    let best = |tables: TuningTables| auto::choose(&tables, Wanted::default()).candidates().into_iter().next();
    match device {
        Device::Auto => {
            let tables = TuningTables::load(&TuningTables::default_search(None)).ok();
            tables.and_then(best).map_or_else(|| "auto".into(), |device| device.to_string())
        }
        named => named.to_string(),
    }
}
