//! The HIP runtime and the GPUs that it finds.

use std::fs::OpenOptions;
use std::io::ErrorKind;

use gpu::GpuError;
use gpu::hip::HipRuntime;

use super::super::output;
use super::{Check, State};
use crate::device::{chain, hip};
use crate::error::Hint;

/// What programs talk to the driver through.
const DRIVER: &str = "/dev/kfd";

/// The check, and the arch of the first device.
pub(super) fn check() -> (Check, Option<String>) {
    const NAME: &str = "HIP runtime";
    match hip::runtime() {
        Ok(runtime) => of_runtime(NAME, &runtime),
        Err(error) => {
            let state = if matches!(error, GpuError::NoRuntime { .. }) { State::Missing } else { State::Failed };
            let details = match &error {
                // What was tried is a line for each name of the library: where it was looked for says enough.
                GpuError::NoRuntime { .. } => vec![error.to_string()],
                _ => vec![chain(&error)],
            };
            (Check { name: NAME, state, needed: false, details, hint: error.hint() }, None)
        }
    }
}

fn of_runtime(name: &'static str, runtime: &HipRuntime) -> (Check, Option<String>) {
    let (version, driver) = runtime.versions();
    let mut details = vec![format!("{version} (driver {driver}), {}", runtime.path().display())];
    let (mut state, mut hint, mut arch) = (State::Ok, None, None);
    for ordinal in 0..runtime.n_devices() {
        match runtime.facts(ordinal) {
            Ok(facts) => {
                details.push(format!(
                    "hip:{ordinal}: {}, {}, {} CUs, waves of {}, {} of LDS, {} of {} free",
                    facts.name,
                    facts.arch,
                    facts.compute_units,
                    facts.wave_size,
                    output::human_bytes(u64::from(facts.lds_bytes)),
                    output::human_bytes(facts.free_bytes as u64),
                    output::human_bytes(facts.total_bytes as u64),
                ));
                arch.get_or_insert(facts.arch);
            }
            Err(error) => {
                (state, hint) = (State::Failed, error.hint());
                details.push(chain(&error));
            }
        }
    }
    if runtime.n_devices() == 0 {
        details.push("it finds no device".into());
        (state, hint) = (State::Missing, Some(no_device()));
    }
    (Check { name, state, needed: false, details, hint }, arch)
}

/// Why there may be no device.
fn no_device() -> String {
    match OpenOptions::new().read(true).write(true).open(DRIVER) {
        Ok(_) => format!("`{DRIVER}` can be opened: this GPU may be one that this runtime does not support"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            format!("`{DRIVER}` may not be opened: add yourself to the groups `render` and `video`")
        }
        Err(_) => format!("there is no `{DRIVER}`: the amdgpu driver is not loaded, or there is no AMD GPU"),
    }
}
