//! Errors of devices.

use hint::Hint;
use std::path::PathBuf;

use vendor_library::{Attempt, CallError, OpenError};

use crate::Runtime;
use crate::runtime::status;

/// An error of a device or of what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The device has no room.
    #[error("could not allocate {len_bytes} bytes on {device}{}", of_free(*.free_bytes))]
    OutOfMemory {
        device: String,
        len_bytes: usize,
        /// Free memory, if the device reports it.
        free_bytes: Option<usize>,
    },
    /// There is no runtime for GPUs of this kind.
    #[error("there is no {runtime}{}", list(searched))]
    NoRuntime {
        runtime: Runtime,
        /// Folders that were looked into, besides the loader's own.
        searched: Vec<PathBuf>,
        #[source]
        source: OpenError,
    },
    /// A runtime is there and cannot be opened: it lacks another library, or is none.
    #[error("could not open the {runtime}:{}", refused(tried))]
    Unusable { runtime: Runtime, tried: OpenError },
    /// A runtime that ends whatever process starts it.
    #[error("the {runtime} `{}` ends the process that starts it ({ending}){}", library.display(), unknown_chips(unknown))]
    Deadly {
        runtime: Runtime,
        library: PathBuf,
        /// How a process ended that tried, and what was printed last.
        ending: String,
        /// The GPUs of the driver that are not in the library's list of chips, each as `node 1, a gfx1151`.
        unknown: Vec<String>,
        /// What to do about it.
        cure: String,
    },
    /// There is no such device.
    #[error("there is no device {device}: the {runtime} finds {n_devices}")]
    NoDevice { runtime: Runtime, device: String, n_devices: usize },
    /// What a device says of itself cannot be.
    #[error("{device}: the runtime reports an impossible {what}: {found}")]
    Nonsense {
        /// The runtime of the call.
        runtime: Runtime,
        device: String,
        what: &'static str,
        found: String,
    },
    /// A call of the runtime failed.
    #[error("{device}: could not {what}")]
    Call {
        device: String,
        /// What failed, to follow "could not": `copy to the device`.
        what: &'static str,
        /// The call, and the runtime's words.
        #[source]
        source: CallError,
    },
    /// The object is not for the device.
    #[error(
        "kernel `{entry}` was compiled for {object_arch}{}, and {device}, a {device_arch}, does not take it",
        object_version.map(|version| format!(" (code object v{version})")).unwrap_or_default()
    )]
    NoBinary {
        entry: String,
        device: String,
        /// The arch that the device reports.
        device_arch: String,
        /// What the object says it is for.
        object_arch: String,
        /// The version of its format, where it has one.
        object_version: Option<u32>,
        /// The call, and the runtime's words, if it was asked.
        #[source]
        source: Option<CallError>,
    },
    /// The device could not be set up.
    #[error("could not start the threads of the cpu device")]
    Threads(#[source] std::io::Error),
    /// The loader refuses the object.
    #[error("could not load the object of kernel `{entry}`: {reason}")]
    NotLoadable {
        entry: String,
        /// The loader's message.
        reason: String,
    },
    /// The object does not have the kernel.
    #[error("the object has no symbol `{symbol}`")]
    NoEntry { symbol: String },
    /// The object was compiled for other arguments than its contract states.
    #[error("kernel `{entry}` was compiled for other arguments\n  expected: {expected}\n  found:    {found}")]
    Abi {
        entry: String,
        /// What the contract states.
        expected: String,
        /// What the object states.
        found: String,
    },
    /// A launch with arguments that do not fit.
    #[error("kernel `{entry}`, argument `{argument}`: expected {expected}, found {found}")]
    Argument {
        entry: String,
        /// The argument's name.
        argument: String,
        /// What the kernel takes.
        expected: String,
        found: String,
    },
    /// More blocks than can be counted.
    #[error("kernel `{entry}`: a grid of {} x {} x {} blocks is more than 2^64", grid[0], grid[1], grid[2])]
    Blocks {
        entry: String,
        /// Blocks in x, y and z.
        grid: [u32; 3],
    },
    /// The simulator saw a kernel do what it must not.
    #[error(
        "kernel `{entry}`{}, block ({}, {}, {}), thread {thread}: {what}",
        of_lines(lines), block[0], block[1], block[2]
    )]
    Fault {
        entry: String,
        what: String,
        /// Lines of the rendered text, where they are known: the one that it is about, then those that called it.
        lines: Vec<u32>,
        block: [u32; 3],
        thread: u32,
    },
    /// A kernel asks for more than a block of the chip, or a launch, may have.
    #[error("kernel `{entry}` asks for {wanted} {what}, and {arch} has {most}")]
    TooMuch {
        entry: String,
        arch: String,
        /// What it asks for, and its unit.
        what: &'static str,
        wanted: u64,
        /// The limit, in the same unit.
        most: u64,
    },
    /// Memory of one device was given to another.
    #[error("the memory belongs to another device")]
    ForeignMemory,
    /// A device cannot use another one's memory.
    #[error("{device} does not reach the memory of {other}")]
    Unreachable { device: String, other: String },
    /// A kernel of one device was given to another.
    #[error("kernel `{entry}` was loaded by another device")]
    ForeignKernel { entry: String },
    /// Recorded launches of one device were given to another.
    #[error("the launches were recorded by another device")]
    ForeignGraph,
    /// A mailbox of another device, or of one that has none.
    #[error("the mailbox belongs to another device")]
    ForeignMailbox,
    /// A copy past the end of a buffer, or into read-only memory.
    #[error("could not {what} {len_bytes} bytes: the view has {available_bytes}")]
    Range {
        /// `read`, `write` or `post`.
        what: &'static str,
        len_bytes: usize,
        available_bytes: usize,
    },
}

impl GpuError {
    /// Whether there was no memory for what was asked: nothing else is wrong, and it may be there later.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Call { source, .. } => source.code == status::OUT_OF_MEMORY,
            _ => false,
        }
    }

    /// Why a runtime could not be opened: it is not there, or it is and does not work.
    pub(crate) fn not_opened(runtime: Runtime, searched: Vec<PathBuf>, source: OpenError) -> Self {
        if source.attempts.iter().any(Attempt::is_of_a_library_that_is_there) {
            return Self::Unusable { runtime, tried: source };
        }
        Self::NoRuntime { runtime, searched, source }
    }
}

/// `: it does not know node 1, a gfx1151`; nothing if there is none.
fn unknown_chips(unknown: &[String]) -> String {
    if unknown.is_empty() { String::new() } else { format!(": it does not know {}", unknown.join(" and ")) }
}

/// `, which has 12 bytes free`.
fn of_free(free_bytes: Option<usize>) -> String {
    free_bytes.map(|free_bytes| format!(", which has {free_bytes} bytes free")).unwrap_or_default()
}

/// Libraries that are there and were not taken, each with its reason; names that the loader does not find are no news.
fn refused(error: &OpenError) -> String {
    error.attempts.iter().filter(|attempt| attempt.is_of_a_library_that_is_there()).map(ToString::to_string).collect()
}

/// ` line 3, called in line 7`; nothing if none is known.
fn of_lines(lines: &[u32]) -> String {
    let callers = || lines[1..].iter().map(|line| format!(", called in line {line}"));
    lines.first().map_or_else(String::new, |line| format!(" line {line}") + &callers().collect::<String>())
}

fn list(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
    if folders.is_empty() { String::new() } else { format!(": looked in {}", folders.join(", ")) }
}

impl Hint for GpuError {
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
            Self::Unusable { runtime, tried } => match tried.attempts.iter().find_map(Attempt::missing_library) {
                Some(missing) => format!(
                    "install the package that has `{missing}`, of the same release; `ldd` shows what else the library lacks"
                ),
                None => format!("`{}` names another `{}` or its folder", runtime.variable(), runtime.names().library),
            },
            Self::Deadly { cure, .. } => cure.clone(),
            Self::NoDevice { n_devices: 0, .. } => "`gptoss-jit doctor` says why".into(),
            Self::NoDevice { .. } => "`gptoss-jit devices` lists what there is".into(),
            Self::TooMuch { .. } => "the `[target]` table of `tuning/<arch>.toml` has the limits of a block".into(),
            Self::Nonsense { runtime, .. } => format!(
                "this version of the runtime may be untested; name another with `{}`",
                runtime.variable()
            ),
            Self::NoBinary { device, object_arch, device_arch, .. }
                if device.starts_with("hip") && object_arch == device_arch =>
            {
                "this HIP runtime may be older than what hipRTC makes: `gptoss-jit doctor` shows which were found; set `GPTOSS_JIT_HIPRTC` and `GPTOSS_JIT_HIP` to those of one release"
                    .into()
            }
            Self::NoBinary { device, object_arch, .. } if device.starts_with("hip") => format!(
                "`--device {device}@ARCH` sets the arch to compile for; for an older driver, `HSA_OVERRIDE_GFX_VERSION` makes it treat the chip as a {object_arch}"
            ),
            Self::Unreachable { .. } => {
                "`nvidia-smi topo -p2p rw` or `rocm-smi --showtopoaccess` shows which devices see each other; `run -m \
                 getp -g N` runs a copy of the model on each of several GPUs, without this"
                    .into()
            }
            Self::Call { .. } if self.is_out_of_memory() => {
                "another program may have taken the memory; `--memory` reserves some for it".into()
            }
            Self::Call { source, .. } if matches!(source.call, "hipStreamSynchronize" | "cuStreamSynchronize") => {
                "a kernel failed before, or the GPU was lost (for AMD, see `sudo dmesg | grep amdgpu`); `run --profile` waits for each kernel, so that the error names it"
                    .into()
            }
            _ => return None,
        };
        Some(hint)
    }
}
