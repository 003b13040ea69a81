//! What can go wrong on a device.

/// An error of a device or of what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The device has no room.
    #[error("could not allocate {len_bytes} bytes on {device}")]
    OutOfMemory {
        /// Which device.
        device: String,
        /// What was asked for.
        len_bytes: usize,
    },
    /// The device could not be set up.
    #[error("could not start the threads of the cpu device")]
    Threads(#[source] rayon::ThreadPoolBuildError),
    /// The loader refuses the object.
    #[error("could not load the object of kernel `{entry}`: {reason}")]
    NotLoadable {
        /// The kernel.
        entry: String,
        /// The loader's own words.
        reason: String,
    },
    /// The object does not have the kernel.
    #[error("the object has no symbol `{symbol}`")]
    NoEntry {
        /// What was looked up.
        symbol: String,
    },
    /// The object was compiled for other arguments than its contract states.
    #[error("kernel `{entry}` was compiled for other arguments\n  expected: {expected}\n  found:    {found}")]
    Abi {
        /// The kernel.
        entry: String,
        /// What the contract states.
        expected: String,
        /// What the object states.
        found: String,
    },
    /// A launch with arguments that do not fit.
    #[error("kernel `{entry}`, argument `{argument}`: expected {expected}, found {found}")]
    Argument {
        /// The kernel.
        entry: String,
        /// The argument's name.
        argument: String,
        /// What the kernel takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// The simulator saw a kernel do what it must not.
    #[error(
        "kernel `{entry}`{}, block ({}, {}, {}), thread {thread}: {what}",
        line.map(|line| format!(" line {line}")).unwrap_or_default(), block[0], block[1], block[2]
    )]
    Fault {
        /// The kernel.
        entry: String,
        /// What it did.
        what: String,
        /// Line of the rendered text, where it is known.
        line: Option<u32>,
        /// Which block.
        block: [u32; 3],
        /// Which thread of it.
        thread: u32,
    },
    /// Memory of one device was given to another.
    #[error("the memory belongs to another device")]
    ForeignMemory,
    /// A kernel of one device was given to another.
    #[error("kernel `{entry}` was loaded by another device")]
    ForeignKernel {
        /// The kernel.
        entry: String,
    },
    /// A copy past the end of a buffer, or into read-only memory.
    #[error("could not {what} {len_bytes} bytes: the view has {available_bytes}")]
    Range {
        /// `read` or `write`.
        what: &'static str,
        /// What was asked for.
        len_bytes: usize,
        /// What there is.
        available_bytes: usize,
    },
}
