//! The HIP runtime and its devices, as `--device` names them.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::hip::{HipDriver, HipLibrary, HipRuntime};
use gpu::{DeviceFacts, GpuError, GpuRuntime, Runtime};

use super::{DeviceError, OpenedDevice, named_by, replays_graphs, target_of};
use crate::kernel_driver::KernelDriver;
use kernel::object::compile::signal_name;
use kernel::target::{Target, TargetError, code_object};
use kernel::tuning::TuningTables;
use system::bounded_process::this_program;
use system::os::ExitStatusExt;

/// What this program is started with to find out whether a HIP runtime ends its process: see [`probe`].
pub const PROBE: &str = "__hip-probe";

/// Opens the runtime: `$GPTOSS_JIT_HIP` (the library or its folder), else in `$ROCM_PATH`, pip's wheels in the active
/// environment, `/opt/rocm` and its versions, and where the loader looks.
///
/// # Errors
/// [`GpuError::NoRuntime`] or [`GpuError::Unusable`], [`GpuError::Deadly`] where it would end this process, or
/// [`GpuError::Call`] when it does not start.
pub(crate) fn runtime() -> Result<HipRuntime, GpuError> {
    let library = library()?;
    survives(&library)?;
    library.start()
}

fn library() -> Result<HipLibrary, GpuError> {
    HipLibrary::open(named_by(&Runtime::Hip.variable()).as_deref(), named_by("ROCM_PATH").as_deref())
}

/// Starts the runtime, in a process that it may end.
///
/// # Errors
/// As of [`runtime`].
pub fn probe() -> Result<(), GpuError> {
    library()?.start().map(drop)
}

/// Has another process start a runtime first where the driver has a chip that the library does not list: HIP 5.7 frees
/// what it never had where it finds a gfx1151.
fn survives(library: &HipLibrary) -> Result<(), GpuError> {
    static SURVIVED: AtomicBool = AtomicBool::new(false);
    if SURVIVED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let driver = KernelDriver::here();
    let unlisted = library.file().and_then(|file| driver.unlisted(&file));
    let is_sure = driver.gpus.is_empty() || unlisted.as_ref().is_some_and(Vec::is_empty);
    if let Some(ending) = (!is_sure).then(ending_of_probe).flatten() {
        let unlisted = unlisted.unwrap_or_default();
        return Err(GpuError::Deadly {
            runtime: Runtime::Hip,
            library: library.path().to_owned(),
            ending,
            unknown: unlisted.iter().map(|gpu| gpu.describe_briefly()).collect(),
            cure: driver.without(&unlisted),
        });
    }
    SURVIVED.store(true, Ordering::Relaxed);
    Ok(())
}

/// How a process ended that started the runtime, if it did not do so itself.
fn ending_of_probe() -> Option<String> {
    let mut command = Command::new(this_program());
    let ended = command.arg(PROBE).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().ok()?;
    let signal = ended.status.signal()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).map(|line| format!(", {line}"));
    Some(format!("signal {signal}{}{}", signal_name(signal), last.unwrap_or_default()))
}

/// A device, and the target that its kernels are compiled for: what the device says it is, or `arch` where the user
/// says so.
///
/// # Errors
/// If there is no runtime or no such device, or nothing is known about the arch.
pub(super) fn open(ordinal: usize, arch: Option<&str>, tables: &TuningTables) -> Result<OpenedDevice, DeviceError> {
    let runtime = runtime()?;
    let driver = HipDriver::new(&runtime, ordinal)?.with_graphs(replays_graphs()?);
    let overridden = KernelDriver::here().told_of_overrides(&driver.facts().device, &driver.facts().arch);
    for warning in overridden.into_iter().chain(renamed(driver.facts(), arch)) {
        tracing::warn!("{warning}");
    }
    let (mut target, warnings) = target(driver.facts(), arch, tables)?;
    target.code_object_version = code_object::version(&target.arch, runtime.release());
    for warning in warnings.into_iter().chain(code_object::problem(&target.arch, runtime.release())) {
        tracing::warn!("{warning}");
    }
    Ok((target, Arc::new(driver)))
}

/// What the user said of the arch, where the device says something else.
fn renamed(facts: &DeviceFacts, arch: Option<&str>) -> Option<String> {
    let arch = arch.filter(|arch| **arch != *facts.arch)?;
    let DeviceFacts { device, arch: own, .. } = facts;
    Some(format!("{device} says that it is a {own}: kernels are compiled for {arch}, as you asked"))
}

/// The tables' facts, corrected by the device's own.
fn target(
    facts: &DeviceFacts,
    arch: Option<&str>,
    tables: &TuningTables,
) -> Result<(Target, Vec<String>), TargetError> {
    target_of(facts, arch.unwrap_or(&facts.arch), tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> DeviceFacts {
        DeviceFacts {
            device: "hip:0".into(),
            name: "a GPU".into(),
            arch: "gfx90a:sramecc+:xnack-".into(),
            wave_size: 64,
            lds_bytes: 65_536,
            compute_units: 110,
            multiprocessors: 110,
            is_integrated: false,
            free_bytes: 1,
            total_bytes: 2,
        }
    }

    #[test]
    fn the_devices_own_numbers_are_used_and_a_difference_is_said() {
        let tables = TuningTables::load(&[]).unwrap();
        let (same, warnings) = target(&facts(), None, &tables).unwrap();
        assert_eq!((same.id().as_str(), same.wave_size, warnings.len()), ("gfx90a:sramecc+:xnack-", 64, 0));
        let other = DeviceFacts { wave_size: 32, lds_bytes: 32_768, ..facts() };
        let (target, warnings) = target(&other, None, &tables).unwrap();
        assert_eq!((target.wave_size, target.lds_bytes), (32, 32_768));
        let expected = "gfx90a:sramecc+:xnack-: the tables say waves of 64, hip:0 says 32, which is used";
        assert_eq!((warnings.len(), warnings[0].as_str()), (2, expected));
        assert!(warnings[1].contains("65536, hip:0 says 32768"), "{}", warnings[1]);
    }

    #[test]
    fn an_arch_that_the_user_names_is_compiled_for_and_said() {
        let tables = TuningTables::load(&[]).unwrap();
        let (target, _) = target(&facts(), Some("gfx90a"), &tables).unwrap();
        assert_eq!(target.id(), "gfx90a");
        let warning = renamed(&facts(), Some("gfx90a"));
        assert!(warning.is_some_and(|said| said.contains("says that it is a gfx90a:sramecc+:xnack-")));
        assert!(super::target(&facts(), Some("gfx803"), &tables).is_err());
    }
}
