//! What errors have in common: causes, and a hint.

use std::error::Error;

/// An error and its causes, in a line.
pub fn chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a person can do about an error. Printed once, at the edge, after the message.
pub trait Hint {
    /// One sentence without a full stop; commands and paths in backticks.
    fn hint(&self) -> Option<String>;
}

impl Hint for gpu::GpuError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::OutOfMemory { .. } => {
                "a smaller KV cache (`--kv-memory`), fewer sequences (`-b`) or shorter chunks (`--chunk`) need less"
                    .into()
            }
            Self::NoRuntime { runtime, .. } => format!(
                "install {}, or name `{}` or its folder with `{}`; `--device cpu` needs none",
                runtime.names().package,
                runtime.names().library,
                runtime.variable()
            ),
            Self::NoDevice { .. } => "`gptoss-jit devices` lists what there is".into(),
            Self::TooMuch { .. } => "what a block may have is in the `[target]` table of `tuning/<arch>.toml`".into(),
            Self::Nonsense { runtime, .. } => format!(
                "this runtime may be of a version that nobody tried; name another with `{}`",
                runtime.variable()
            ),
            Self::NoBinary { device, object_arch, device_arch, .. }
                if device.starts_with("hip") && object_arch == device_arch =>
            {
                "this HIP runtime may be older than what hipRTC makes: `gptoss-jit doctor` says which of each was found; \
                 `GPTOSS_JIT_HIPRTC` and `GPTOSS_JIT_HIP` name those of one release"
                    .into()
            }
            Self::NoBinary { device, object_arch, .. } if device.starts_with("hip") => format!(
                "`--device {device}@ARCH` says what to compile for; where a driver knows no better, `HSA_OVERRIDE_GFX_VERSION` \
                 makes it treat the chip as a {object_arch}"
            ),
            Self::Unreachable { .. } => {
                "`nvidia-smi topo -p2p rw` or `rocm-smi --showtopoaccess` shows which devices see each other; `run -m \
                 getp -g N` has a copy of the model on each of several GPUs, which need not"
                    .into()
            }
            Self::Call { source, .. } if matches!(source.call, "hipStreamSynchronize" | "cuStreamSynchronize") => {
                "a kernel failed before; `--profile` waits for each, so that the error names it".into()
            }
            _ => return None,
        };
        Some(hint)
    }
}
