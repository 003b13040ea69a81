//! The other devices of `--tp`, which compute a model together with the first one.

use crate::args::DeviceArgs;
use engine::device::{Device, open_runtime};
use hint::Hint;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::Target;

impl DeviceArgs {
    /// The other devices that compute a model together with the first, which is `first`.
    pub(crate) fn peers(&self, first: &Device, of_first: &Target) -> anyhow::Result<Vec<Pipeline>> {
        if self.tp == 1 {
            return Ok(Vec::new());
        }
        let tp = self.tp as usize;
        if !of_first.peer_flags {
            return Err(PeersError::NoFlags { first: first.clone(), arch: of_first.arch.clone() }.into());
        }
        if let Device::Gpu { runtime, ordinal, .. } = first {
            let n_devices = open_runtime(*runtime)?.n_devices();
            if ordinal + tp > n_devices {
                return Err(PeersError::TooFew { tp, first: first.clone(), n_devices }.into());
            }
        }
        let peer = |i: usize| {
            let tables = self.source.tables()?;
            let device = first.next(i);
            let (target, driver) = device.open(&tables, self.threads_of_one())?;
            if target.arch != of_first.arch {
                let [first, other] = [(first, of_first), (&device, &target)].map(|(d, t)| format!("{d}, {}", t.arch));
                return Err(PeersError::Unlike { first, other }.into());
            }
            Ok(Pipeline::new(self.source.library()?, tables, target, Store::from_env()?, driver)?)
        };
        (1..tp).map(peer).collect()
    }
}

/// Devices that cannot compute a model together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeersError {
    /// Their kernels cannot wait for each other, or simulated ones could where the chip cannot.
    #[error("could not compute a model on several devices from {first} on: {}", no_flags(arch))]
    NoFlags { first: Device, arch: String },
    /// There are not as many.
    #[error("could not compute a model on {tp} devices from {first} on: there {} {n_devices}", if *.n_devices == 1 { "is" } else { "are" })]
    TooFew {
        /// How many were asked for.
        tp: usize,
        first: Device,
        /// How many its runtime finds.
        n_devices: usize,
    },
    /// They are not of one kind: they would not compute the same bits.
    #[error("could not compute a model on devices that differ: {first}, and {other}")]
    Unlike {
        /// The first device and its arch.
        first: String,
        /// The one that differs.
        other: String,
    },
}

/// Why GPUs of an arch without [`Target::peer_flags`] cannot wait for each other.
pub(super) fn no_flags(arch: &str) -> String {
    format!(
        "on {arch} a flag that a kernel writes into another GPU's memory may never reach that GPU, which then waits for ever"
    )
}

impl Hint for PeersError {
    fn hint(&self) -> Option<String> {
        if let Self::NoFlags { .. } = self {
            let text = "`run -m getp -g N` and `serve -g N` run a copy of the model on each of several GPUs";
            return Some(text.into());
        }
        Some(
            "`--tp N` takes N devices of one kind, from `--device` on; `run -m getp -g N` runs a copy of the model on each of several GPUs of any kind"
                .into(),
        )
    }
}
