//! A loaded kernel, and the check of every launch against it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::GpuError;
use crate::memory::BufferView;

/// The required arguments of a kernel, made from the op's contract at rendering.
#[derive(Clone, Debug, Default)]
pub struct KernelSpec {
    /// Name of the kernel in the object.
    pub entry: String,
    /// What the object must say of its own arguments.
    pub abi: String,
    /// The arguments in order.
    pub args: Vec<ArgumentSpec>,
    /// Threads per block; 1 on the host.
    pub block_size: u32,
    /// NVIDIA: shared memory of a block that a launch asks for, beside what the object declares, in bytes. Elsewhere
    /// kernels declare all.
    pub lds_bytes: u32,
    /// NVIDIA: whether the kernel waits for the one before it by itself, so that it may be launched before that has
    /// ended.
    pub is_early: bool,
}

/// One argument of a kernel.
#[derive(Clone, Debug)]
pub struct ArgumentSpec {
    /// Name in the contract.
    pub name: String,
    pub kind: ArgumentKind,
    /// Bytes of an element of memory; 0 if unknown, and then writes are not watched.
    pub element_bytes: u32,
    /// Whether what lies there before a launch means nothing to it.
    pub is_undefined: bool,
}

impl ArgumentSpec {
    /// An argument without further facts.
    pub fn new(name: impl Into<String>, kind: ArgumentKind) -> Self {
        Self { name: name.into(), kind, element_bytes: 0, is_undefined: false }
    }
}

/// The kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Device memory that the kernel only reads.
    Read,
    /// Device memory that the kernel writes.
    Write,
    /// A 32-bit unsigned integer by value.
    U32,
    /// A 32-bit signed integer by value.
    I32,
    /// A 32-bit float by value.
    F32,
}

/// One argument of a launch.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Device memory, and how many bytes of it the contract's shape says the kernel may touch.
    Memory {
        view: BufferView,
        /// The contract's shape, in bytes.
        required_bytes: usize,
    },
    U32(u32),
    I32(i32),
    F32(f32),
}

/// A kernel's arguments and how many blocks of it run.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Private memory for each thread that runs blocks (host), in bytes; 0 on a GPU.
    pub scratch_bytes: usize,
    /// In the order of the kernel's.
    pub args: &'a [Argument],
}

/// A kernel on a device, ready to be launched.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) spec: Arc<KernelSpec>,
    /// What the driver that loaded it launches.
    function: Arc<dyn Any + Send + Sync>,
}

impl Kernel {
    /// What a driver makes of an object.
    pub(crate) fn new(spec: KernelSpec, function: impl Any + Send + Sync) -> Self {
        Self { spec: Arc::new(spec), function: Arc::new(function) }
    }

    /// What the driver that asks made of the object, if it was this kind of driver.
    pub(crate) fn function<F: Any>(&self) -> Result<&F, GpuError> {
        self.function.downcast_ref().ok_or_else(|| GpuError::ForeignKernel { entry: self.spec.entry.clone() })
    }

    pub(crate) fn entry(&self) -> &str {
        &self.spec.entry
    }

    /// Checks a launch against the kernel: count, kind, length and access of every argument.
    pub(crate) fn check(&self, args: &[Argument]) -> Result<(), GpuError> {
        let mismatch = |argument: &str, expected: String, found: String| GpuError::Argument {
            entry: self.spec.entry.clone(),
            argument: argument.to_string(),
            expected,
            found,
        };
        if args.len() != self.spec.args.len() {
            return Err(mismatch("(count)", self.spec.args.len().to_string(), args.len().to_string()));
        }
        for (spec, arg) in self.spec.args.iter().zip(args) {
            match (spec.kind, arg) {
                (ArgumentKind::Read | ArgumentKind::Write, Argument::Memory { view, required_bytes }) => {
                    if view.len_bytes() < *required_bytes {
                        let found = format!("{} bytes", view.len_bytes());
                        return Err(mismatch(&spec.name, format!("{required_bytes} bytes"), found));
                    }
                    if spec.kind == ArgumentKind::Write && !view.is_writable() {
                        return Err(mismatch(&spec.name, "writable memory".into(), "read-only memory".into()));
                    }
                }
                (ArgumentKind::U32, Argument::U32(_))
                | (ArgumentKind::I32, Argument::I32(_))
                | (ArgumentKind::F32, Argument::F32(_)) => {}
                (kind, arg) => return Err(mismatch(&spec.name, format!("{kind:?}"), format!("{arg:?}"))),
            }
        }
        Ok(())
    }
}

/// Launches that a device recorded, to be made again as one.
#[derive(Clone)]
pub struct Graph {
    /// What the driver that recorded it replays.
    recorded: Arc<dyn Any + Send + Sync>,
}

impl Graph {
    /// What a driver recorded.
    pub(crate) fn new(recorded: impl Any + Send + Sync) -> Self {
        Self { recorded: Arc::new(recorded) }
    }

    /// What the driver that asks recorded, if it was this kind of driver.
    pub(crate) fn recorded<R: Any>(&self) -> Result<&R, GpuError> {
        self.recorded.downcast_ref().ok_or(GpuError::ForeignGraph)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.spec.entry)
    }
}
