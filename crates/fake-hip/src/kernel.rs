//! Code objects, and launches of their kernels.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use gpu::code_object::CodeObject;
use gpu::sim::SimDriver;
use gpu::{Argument, Driver, Kernel};

use crate::state::{Kind, State, status};

/// A loaded code object.
pub struct Module {
    pub device: c_int,
    pub object: CodeObject,
    /// The same kernel for the simulator; none if kernels do nothing.
    simulated: Option<Kernel>,
}

/// A launch, with its arguments as they were.
#[derive(Clone)]
pub struct Launch {
    module: Arc<Module>,
    kernel: usize,
    grid: [u32; 3],
    args: Vec<Value>,
}

#[derive(Clone, Copy, Debug)]
pub enum Value {
    Pointer(u64),
    Word(u32),
}

impl Module {
    /// Reads an image of unknown length, as the runtime has to: the ELF header says where the file ends.
    ///
    /// # Safety
    /// `image` points at a whole ELF file, or at least at 64 bytes of something else.
    pub unsafe fn read(image: *const c_void, device: c_int, arch: &str, state: &mut State) -> Result<Self, c_int> {
        // SAFETY: the caller's.
        let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 64) };
        if !header.starts_with(b"\x7fELF") {
            return Err(status::INVALID_IMAGE);
        }
        let word =
            |at: usize, len: usize| header[at..at + len].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        // e_shoff, e_shentsize, e_shnum: the linker puts the section headers last.
        let len_bytes = word(40, 8) + word(58, 2) * word(60, 2);
        // SAFETY: the caller's; the file is that long.
        let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len_bytes) };
        let object = CodeObject::parse(bytes).map_err(|_| status::INVALID_IMAGE)?;
        if object.version.is_some_and(|version| version > state.orders.newest_code_object()) {
            return Err(status::SHARED_OBJECT_INIT_FAILED);
        }
        // Flags that the object does not state may be either way.
        let mut wanted = object.target.split(':');
        let mut found = arch.split(':');
        if wanted.next() != found.next() || !wanted.all(|flag| arch.split(':').any(|other| other == flag)) {
            return Err(status::NO_BINARY_FOR_GPU);
        }
        let simulated = match state.orders.kernels.clone() {
            None => None,
            Some(cache) => match state.sim.load(device, &cache, bytes, &object) {
                Ok(kernel) => Some(kernel),
                Err(why) => {
                    state.orders.tell(&format!("not simulated: {why}"));
                    return Err(status::INVALID_IMAGE);
                }
            },
        };
        Ok(Self { device, object, simulated })
    }
}

impl Launch {
    /// Takes the values that `arguments` point at.
    ///
    /// # Safety
    /// There is a pointer for each explicit argument of the kernel, to a value of its size.
    pub unsafe fn new(module: Arc<Module>, kernel: usize, grid: [u32; 3], arguments: *const *const c_void) -> Self {
        let explicit = module.object.kernels[kernel].explicit_args().enumerate();
        let args = explicit.map(|(i, arg)| {
            // SAFETY: the caller's.
            unsafe {
                let value = *arguments.add(i);
                match arg.size {
                    8 => Value::Pointer(value.cast::<u64>().read_unaligned()),
                    _ => Value::Word(value.cast::<u32>().read_unaligned()),
                }
            }
        });
        let args = args.collect();
        Self { module, kernel, grid, args }
    }

    /// What there is to run; none if kernels do nothing.
    pub fn prepare(&self, state: &mut State) -> Result<Option<Execution>, c_int> {
        let device = self.module.device;
        let mut args = Vec::new();
        for arg in &self.args {
            match arg {
                Value::Word(word) => args.push(Argument::U32(*word)),
                Value::Pointer(address) => {
                    let view = state.view_from(*address);
                    let kind = state.kind_for(device, *address, 0);
                    // What `hipHostMalloc` gave has one address for every device.
                    let is_reached = kind == Some(Kind::Device(device)) || kind == Some(Kind::Pinned);
                    let view = view.filter(|_| is_reached).ok_or(status::LAUNCH_FAILURE)?;
                    args.push(Argument::Memory { required_bytes: view.len_bytes(), view });
                }
            }
        }
        let Some(kernel) = self.module.simulated.clone() else { return Ok(None) };
        let wave_size = self.module.object.kernels[self.kernel].wave_size;
        let driver = state.sim.driver(device, wave_size);
        Ok(Some(Execution { driver, kernel, grid: self.grid, args }))
    }
}

/// A launch that needs no more of the runtime.
pub struct Execution {
    driver: Arc<SimDriver>,
    kernel: Kernel,
    grid: [u32; 3],
    args: Vec<Argument>,
}

impl Execution {
    pub fn run(&self) -> Result<(), String> {
        let launch = gpu::Launch { grid: self.grid, scratch_bytes: 0, args: &self.args };
        self.driver.launch(&self.kernel, &launch).map_err(|error| error.to_string())
    }
}
