//! The runtimes of GPUs, the GPUs that they find, and the compilers for those.

use std::fs::OpenOptions;
use std::io::ErrorKind;

use gpu::{GpuError, GpuRuntime, Runtime};

use super::{Check, State};
use crate::device::open_runtime;
use crate::error::{Hint, chain};
use crate::object::compile::{Compilers, compiler_for};
use crate::target::Target;
use crate::units;

/// What programs talk to AMD's driver through.
const AMD_DRIVER: &str = "/dev/kfd";

/// The checks of a runtime and of its compiler, which is tried with the arch of the first device.
pub(super) fn checks(runtime: Runtime, compilers: &Compilers) -> [Check; 2] {
    let (check, arch) = match open_runtime(runtime) {
        Ok(opened) => opened_runtime(runtime, opened.as_ref()),
        Err(error) => (not_opened(runtime, &error), None),
    };
    let known = runtime.names().known_arch;
    let compiler = compiler_for(&Target::gpu(known).expect("an arch with a table"));
    let probed = probe(compilers, compiler.name(), arch.as_deref().unwrap_or(known));
    [check, Check::of(compiler.title(), false, probed)]
}

fn not_opened(runtime: Runtime, error: &GpuError) -> Check {
    let (state, details) = match error {
        // What was tried is a line for each name of the library: where it was looked for says enough.
        GpuError::NoRuntime { .. } => (State::Missing, error.to_string()),
        _ => (State::Failed, chain(error)),
    };
    Check { name: runtime.names().title, state, needed: false, details: vec![details], hint: error.hint() }
}

/// The check, and the arch of the first device.
fn opened_runtime(runtime: Runtime, opened: &dyn GpuRuntime) -> (Check, Option<String>) {
    let mut details = vec![format!("{}, {}", opened.describe(), opened.path().display())];
    let (mut state, mut hint, mut arch) = (State::Ok, None, None);
    for ordinal in 0..opened.n_devices() {
        match opened.facts(ordinal) {
            Ok(facts) => {
                details.push(format!(
                    "{}: {}, {}, {} CUs, waves of {}, {} of LDS, {} of {} free",
                    facts.device,
                    facts.name,
                    facts.arch,
                    facts.compute_units,
                    facts.wave_size,
                    units::human_bytes(u64::from(facts.lds_bytes)),
                    units::human_bytes(facts.free_bytes as u64),
                    units::human_bytes(facts.total_bytes as u64),
                ));
                arch.get_or_insert(facts.arch);
            }
            Err(error) => {
                (state, hint) = (State::Failed, error.hint());
                details.push(chain(&error));
            }
        }
    }
    if opened.n_devices() == 0 {
        details.push("it finds no device".into());
        (state, hint) = (State::Missing, (runtime == Runtime::Hip).then(no_amd_device));
    }
    (Check { name: runtime.names().title, state, needed: false, details, hint }, arch)
}

/// Why there may be no device.
fn no_amd_device() -> String {
    match OpenOptions::new().read(true).write(true).open(AMD_DRIVER) {
        Ok(_) => format!("`{AMD_DRIVER}` can be opened: this GPU may be one that this runtime does not support"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            format!("`{AMD_DRIVER}` may not be opened: add yourself to the groups `render` and `video`")
        }
        Err(_) => format!("there is no `{AMD_DRIVER}`: the amdgpu driver is not loaded, or there is no AMD GPU"),
    }
}

/// The libraries that a compiler consists of, each with its build id: version numbers do not tell hipRTCs apart.
fn probe(compilers: &Compilers, name: &str, arch: &str) -> anyhow::Result<Vec<String>> {
    let (identity, files) = compilers.probe(name, arch)?;
    let mut details = vec![format!("compiles for {arch}")];
    details.extend(files.iter().map(|file| file.display().to_string()));
    details.extend(identity.facts);
    Ok(details)
}
