//! The CUDA driver and its devices, as `--device` names them.

use std::sync::Arc;

use gpu::cuda::{CudaDriver, CudaRuntime};
use gpu::{GpuError, Runtime};

use super::{DeviceError, OpenedDevice, named_by, replays_graphs, target_of};
use kernel::tuning::TuningTables;

/// Opens the driver: `$GPTOSS_JIT_CUDA` (the library or its folder), else where the loader looks.
///
/// # Errors
/// [`GpuError::NoRuntime`], or [`GpuError::Call`] when it does not start.
pub(crate) fn runtime() -> Result<CudaRuntime, GpuError> {
    CudaRuntime::open(named_by(&Runtime::Cuda.variable()).as_deref())
}

/// A device, and the target that its kernels are compiled for.
///
/// # Errors
/// If there is no driver or no such device, or nothing is known about its arch.
pub(super) fn open(ordinal: usize, tables: &TuningTables) -> Result<OpenedDevice, DeviceError> {
    let driver = CudaDriver::new(&runtime()?, ordinal)?.with_graphs(replays_graphs()?);
    let facts = driver.facts();
    let (target, warnings) = target_of(facts, &facts.arch, tables)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok((target, Arc::new(driver)))
}
