//! The CUDA driver and its devices, as `--device` names them.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use gpu::GpuError;
use gpu::cuda::{CudaDriver, CudaRuntime};

use super::{DeviceError, Ready, target_of};
use crate::tuning::TuningTables;

/// Opens the driver: `$GPTOSS_JIT_CUDA` (the library or its folder), else where the loader looks.
///
/// # Errors
/// [`GpuError::NoRuntime`], or [`GpuError::Call`] when it does not start.
pub fn runtime() -> Result<CudaRuntime, GpuError> {
    let path = env::var_os("GPTOSS_JIT_CUDA").filter(|value| !value.is_empty()).map(PathBuf::from);
    CudaRuntime::open(path.as_deref())
}

/// A device, and the target that its kernels are compiled for.
///
/// # Errors
/// If there is no driver or no such device, or nothing is known about its arch.
pub(super) fn open(ordinal: usize, tables: &TuningTables) -> Result<Ready, DeviceError> {
    let driver = CudaDriver::new(&runtime()?, ordinal)?;
    let facts = driver.facts();
    let (target, warnings) = target_of(facts, &facts.arch, tables)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok((target, Arc::new(driver)))
}
