//! The HIP runtime and its devices, as `--device` names them.

use std::env;
use std::sync::Arc;

use gpu::hip::{HipDriver, HipRuntime};
use gpu::{DeviceFacts, GpuError, GpuRuntime, Runtime};

use super::{DeviceError, OpenedDevice, named_by, replays_graphs, target_of};
use kernel::target::{Target, TargetError, code_object};
use kernel::tuning::TuningTables;

/// Makes the driver treat a chip as another one. Not ours, and never needed; it is said when it is set.
const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// Opens the runtime: `$GPTOSS_JIT_HIP` (the library or its folder), else in `$ROCM_PATH`, `/opt/rocm` and where the
/// loader looks.
///
/// # Errors
/// [`GpuError::NoRuntime`], or [`GpuError::Call`] when it does not start.
pub(crate) fn runtime() -> Result<HipRuntime, GpuError> {
    HipRuntime::open(named_by(&Runtime::Hip.variable()).as_deref(), named_by("ROCM_PATH").as_deref())
}

/// A device, and the target that its kernels are compiled for: what the device says it is, or `arch` where the user
/// says so.
///
/// # Errors
/// If there is no runtime or no such device, or nothing is known about the arch.
pub(super) fn open(ordinal: usize, arch: Option<&str>, tables: &TuningTables) -> Result<OpenedDevice, DeviceError> {
    let runtime = runtime()?;
    let driver = HipDriver::new(&runtime, ordinal)?.with_graphs(replays_graphs()?);
    for warning in overrides(driver.facts(), arch) {
        tracing::warn!("{warning}");
    }
    let (mut target, warnings) = target(driver.facts(), arch, tables)?;
    target.code_object_version = code_object::version(&target.arch, runtime.release());
    for warning in warnings.into_iter().chain(code_object::problem(&target.arch, runtime.release())) {
        tracing::warn!("{warning}");
    }
    Ok((target, Arc::new(driver)))
}

/// What was said of the arch, and by whom.
fn overrides(facts: &DeviceFacts, arch: Option<&str>) -> Vec<String> {
    let device = &facts.device;
    let set = env::var(OVERRIDE).ok().filter(|value| !value.is_empty());
    let by_driver = set.map(|value| {
        format!(
            "{OVERRIDE}={value} is set: {device} says that it is a {}, and kernels are compiled for that",
            facts.arch
        )
    });
    let by_user = arch.filter(|arch| **arch != *facts.arch).map(|arch| {
        format!("{device} says that it is a {}: kernels are compiled for {arch}, as you asked", facts.arch)
    });
    by_driver.into_iter().chain(by_user).collect()
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
        let warnings = overrides(&facts(), Some("gfx90a"));
        assert!(warnings.iter().any(|w| w.contains("says that it is a gfx90a:sramecc+:xnack-")), "{warnings:?}");
        assert!(super::target(&facts(), Some("gfx803"), &tables).is_err());
    }
}
