//! On which of this machine's devices several runs go.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::cli::model::DeviceArgs;
use crate::device::{Device, auto, open_runtime};

/// Where copies of a model can run, if the flags say `device`: each of the GPUs from that one on; of all that the
/// model fits on the one with the most compute first; or the cores, which are one device however many use them. At
/// least one.
pub(super) fn here(args: &DeviceArgs, checkpoint: &Checkpoint) -> anyhow::Result<Vec<Device>> {
    let devices = match &args.device {
        Device::Auto => {
            let weights = checkpoint.tensors.values().map(Tensor::len_bytes).sum();
            auto::choose(&args.source.tables()?, weights).devices()
        }
        Device::Gpu { runtime, ordinal, arch } => {
            let n = open_runtime(*runtime)?.n_devices();
            let gpu = |ordinal| Device::Gpu { runtime: *runtime, ordinal, arch: arch.clone() };
            // One that is not there says so when it is opened.
            (*ordinal..n.max(ordinal + 1)).map(gpu).collect()
        }
        Device::Cpu | Device::Sim(_) => vec![args.device.clone()],
    };
    Ok(if devices.is_empty() { vec![Device::Cpu] } else { devices })
}
