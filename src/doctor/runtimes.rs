//! The runtimes of GPUs, the GPUs that they find, and the compilers for those.

use gpu::{GpuError, GpuRuntime, Runtime};

use super::super::gpu_links::{self, Link};
use super::{Check, State};
use engine::device::open_runtime;
use engine::kernel_driver::{DriverFinding, Gpu, KernelDriver};
use hint::{Hint, chain};
use kernel::object::compile::{Compilers, compiler_for};
use kernel::target::Target;
use system::units;

/// AMD's driver, its GPUs, and whether this process may use them.
pub(super) fn amd_driver(driver: &KernelDriver) -> Check {
    let name = "AMD driver";
    if !driver.is_there() {
        let none = "there is no AMD GPU: no `/dev/kfd`, no amdgpu, and none on the PCI bus".to_owned();
        let windows = driver.windows();
        let details = std::iter::once(none).chain(windows.iter().map(|found| found.what.clone())).collect();
        return Check { name, state: State::Missing, needed: false, details, hint: windows.map(|found| found.hint) };
    }
    let findings = driver.findings();
    let gpus = driver.gpus.iter().map(Gpu::describe);
    let details = std::iter::once(driver.describe()).chain(gpus).chain(findings.iter().map(|f| f.what.clone()));
    let details = details.chain(driver.ignored());
    let state = if findings.is_empty() { State::Ok } else { State::Failed };
    Check { name, state, needed: false, details: details.collect(), hint: hints(&findings) }
}

/// What to do about all of them.
fn hints(findings: &[DriverFinding]) -> Option<String> {
    let mut hints: Vec<&str> = Vec::new();
    for finding in findings {
        if !hints.contains(&finding.hint.as_str()) {
            hints.push(&finding.hint);
        }
    }
    (!hints.is_empty()).then(|| hints.join("; "))
}

/// The checks of a runtime and of its compiler, which is tried with the arch of the first device.
pub(super) fn checks(runtime: Runtime, driver: &KernelDriver, compilers: &Compilers) -> [Check; 2] {
    let (check, arch) = match open_runtime(runtime) {
        Ok(opened) => opened_runtime(runtime, opened.as_ref(), driver),
        Err(error) => (not_opened(runtime, &error, driver), None),
    };
    let known = runtime.names().known_arch;
    // A GPU that the runtime does not find is one to compile for all the same.
    let arch = arch.or_else(|| Some(driver.gpus.first().filter(|_| runtime == Runtime::Hip)?.arch.clone()));
    let compiler = compiler_for(&Target::gpu(known).expect("an arch with a table"));
    let probed = probe(compilers, compiler.name(), arch.as_deref().unwrap_or(known));
    [check, Check::from_result(compiler.title(), false, probed)]
}

fn not_opened(runtime: Runtime, error: &GpuError, driver: &KernelDriver) -> Check {
    let (state, details) = match error {
        // What was tried is a line for each name of the library: where it was looked for says enough.
        GpuError::NoRuntime { .. } => (State::Missing, error.to_string()),
        _ => (State::Failed, chain(error)),
    };
    let needs = if runtime == Runtime::Hip { driver.needs() } else { Vec::new() };
    let details = std::iter::once(details).chain(needs).collect();
    Check { name: runtime.names().title, state, needed: false, details, hint: error.hint() }
}

/// The check, and the arch of the first device.
fn opened_runtime(runtime: Runtime, opened: &dyn GpuRuntime, driver: &KernelDriver) -> (Check, Option<String>) {
    let mut details = vec![format!("{}, {}", opened.describe(), opened.path().display())];
    let (mut state, mut hint, mut arch) = (State::Ok, None, None);
    for ordinal in 0..opened.n_devices() {
        match opened.facts(ordinal) {
            Ok(facts) => {
                details.push(format!(
                    "{}: {}, {}, {}, waves of {}, {} of LDS, {} of {} free",
                    facts.device,
                    facts.name,
                    facts.arch,
                    facts.size(),
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
    if opened.n_devices() > 1 && state == State::Ok {
        match gpu_links::list(runtime, opened) {
            Ok(links) => details.extend(links.iter().map(Link::line)),
            Err(problem) => details.push(problem),
        }
    }
    if opened.n_devices() == 0 {
        details.push("it finds no device".into());
        state = State::Missing;
    }
    if runtime == Runtime::Hip {
        let findings = driver.findings_with(opened);
        details.extend(findings.iter().map(|finding| finding.what.clone()));
        let unseen = (state == State::Missing).then(|| hints(&driver.findings())).flatten();
        let windows = driver.windows().filter(|_| state == State::Missing).map(|found| found.hint);
        let none = "there is no `/dev/kfd`: amdgpu is not loaded, or there is no AMD GPU";
        let absent = (state == State::Missing && !driver.is_there()).then(|| none.to_owned());
        hint = hint.or(unseen).or_else(|| hints(&findings)).or(windows).or(absent);
    }
    (Check { name: runtime.names().title, state, needed: false, details, hint }, arch)
}

/// The libraries that a compiler consists of, each with its build id: version numbers do not tell hipRTCs apart.
fn probe(compilers: &Compilers, name: &str, arch: &str) -> anyhow::Result<Vec<String>> {
    let (identity, files) = compilers.probe(name, arch)?;
    let mut details = vec![format!("compiles for {arch}")];
    details.extend(files.iter().map(|file| file.display().to_string()));
    details.extend(identity.facts);
    Ok(details)
}
