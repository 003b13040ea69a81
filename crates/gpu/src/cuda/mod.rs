//! The `cuda` device: an NVIDIA GPU through the CUDA driver, which is opened when it is asked for.
//!
//! As [`crate::hip`], above `cuda-driver-sys`: [`devices`] finds devices, `context` is what a thread enters to use one,
//! `calls` is the driver as [`crate::runtime`] calls it. An object says nothing of itself that could be read without the
//! driver, so here it is loaded first and asked then.

mod calls;
mod context;
mod devices;

use std::sync::Arc;

use cuda_driver_sys::sys::function_attribute;

use crate::GpuError;
use crate::launch::{ArgumentKind, KernelSpec};
use crate::runtime::{Chip, Device, Function, Gpu, LoadError};
use calls::CudaCalls;
use context::Context;
pub use devices::{CudaDeviceFacts, CudaRuntime};

/// An NVIDIA GPU.
pub type CudaDriver = Gpu<CudaChip>;

/// What is known of an NVIDIA GPU.
pub struct CudaChip {
    facts: CudaDeviceFacts,
    context: Arc<Context>,
}

/// What the driver says of a kernel.
struct Uses {
    max_threads: u32,
    shared_bytes: u32,
    local_bytes: u32,
    registers: u32,
    /// Of as many as the contract has; none from a driver that does not tell.
    argument_bytes: Option<Vec<usize>>,
}

impl CudaDriver {
    /// One of the driver's devices.
    ///
    /// # Errors
    /// As [`CudaRuntime::facts`]; [`GpuError::Call`] when the device cannot be used.
    pub fn new(runtime: &CudaRuntime, ordinal: usize) -> Result<Self, GpuError> {
        let (context, facts) = runtime.open_device(ordinal)?;
        let context = Arc::new(context);
        let calls = CudaCalls { context: Arc::clone(&context) };
        Self::open(Box::new(calls), format!("cuda:{ordinal}"), CudaChip { facts, context })
    }

    /// What the device says of itself.
    pub fn facts(&self) -> &CudaDeviceFacts {
        &self.chip().facts
    }
}

impl Chip for CudaChip {
    fn describe(&self) -> String {
        let CudaDeviceFacts { name, arch, compute_units, .. } = &self.facts;
        format!("{name}, {arch}, {compute_units} SMs")
    }

    fn parallelism(&self) -> usize {
        self.facts.compute_units
    }

    fn load(&self, device: &Arc<Device>, object: &[u8], spec: &KernelSpec) -> Result<Function, GpuError> {
        // The driver reads as far as the headers lead it.
        if let Err(reason) = is_whole(object) {
            return Err(GpuError::NotLoadable { entry: spec.entry.clone(), reason });
        }
        let function = Function::load(device, object, spec).map_err(|failed| match failed {
            LoadError::NoBinary(source) => GpuError::NoBinary {
                entry: spec.entry.clone(),
                device: device.label.clone(),
                device_arch: self.facts.arch.clone(),
                object_arch: "another chip".to_owned(),
                source: Some(source),
            },
            LoadError::Other(error) => error,
        })?;
        self.uses(device, &function, spec)?.check(spec, self.facts.lds_bytes)?;
        if spec.lds_bytes > 0 {
            // SAFETY: the function was just loaded on this device.
            unsafe { self.context.allow_shared_bytes(function.handle(), spec.lds_bytes) }
                .map_err(|source| device.error("ask for a block's shared memory", source))?;
        }
        Ok(function)
    }
}

impl CudaChip {
    fn uses(&self, device: &Arc<Device>, function: &Function, spec: &KernelSpec) -> Result<Uses, GpuError> {
        device.enter()?;
        let number = |attribute| {
            // SAFETY: the function was just loaded on this device.
            let value = unsafe { self.context.function_attribute(function.handle(), attribute) };
            value.map_err(|source| device.error("ask what a kernel uses", source))
        };
        Ok(Uses {
            max_threads: number(function_attribute::MAX_THREADS_PER_BLOCK)?,
            shared_bytes: number(function_attribute::SHARED_BYTES)?,
            local_bytes: number(function_attribute::LOCAL_BYTES)?,
            registers: number(function_attribute::REGISTERS)?,
            // SAFETY: as above.
            argument_bytes: unsafe { self.context.argument_bytes(function.handle(), spec.args.len()) },
        })
    }
}

impl Uses {
    /// Holds the kernel against its contract and what a block may use. Memory of a thread is slow and not wrong.
    fn check(&self, spec: &KernelSpec, lds_bytes: u32) -> Result<(), GpuError> {
        let Self { max_threads, shared_bytes, local_bytes, registers, argument_bytes } = self;
        let refuse = |expected: String, found: String| GpuError::Abi { entry: spec.entry.clone(), expected, found };
        if *max_threads < spec.block_size {
            let found = format!("at most {max_threads}, with {registers} registers each");
            return Err(refuse(format!("blocks of {} threads", spec.block_size), found));
        }
        if *shared_bytes > lds_bytes {
            return Err(refuse(format!("at most {lds_bytes} bytes of shared memory"), format!("{shared_bytes}")));
        }
        let expected: Vec<usize> = spec.args.iter().map(|arg| len_bytes(arg.kind)).collect();
        if let Some(found) = argument_bytes.as_ref().filter(|found| **found != expected) {
            return Err(refuse(format!("arguments of {expected:?} bytes"), format!("{found:?}")));
        }
        let entry = &spec.entry;
        tracing::debug!("kernel `{entry}`: {registers} registers, {shared_bytes} bytes of shared memory");
        if *local_bytes > 0 {
            tracing::info!("kernel `{entry}` keeps {local_bytes} bytes of each thread in memory");
        }
        Ok(())
    }
}

const fn len_bytes(kind: ArgumentKind) -> usize {
    match kind {
        ArgumentKind::Read | ArgumentKind::Write => 8,
        ArgumentKind::U32 | ArgumentKind::I32 | ArgumentKind::F32 => 4,
    }
}

/// Whether the bytes are an ELF file with all of its sections.
fn is_whole(object: &[u8]) -> Result<(), String> {
    use object::elf::{FileHeader64, SHT_NOBITS};
    use object::endian::LittleEndian;
    use object::read::elf::{FileHeader, SectionHeader};

    let header = FileHeader64::<LittleEndian>::parse(object).map_err(|error| error.to_string())?;
    let sections = header.sections(LittleEndian, object).map_err(|error| error.to_string())?;
    for section in sections.iter().filter(|section| section.sh_type(LittleEndian) != SHT_NOBITS) {
        section.data(LittleEndian, object).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ArgumentSpec;

    fn uses() -> Uses {
        Uses {
            max_threads: 256,
            shared_bytes: 1024,
            local_bytes: 0,
            registers: 40,
            argument_bytes: Some(vec![8, 8, 4]),
        }
    }

    #[test]
    fn a_kernel_must_be_what_its_contract_says() {
        let kinds = [ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32];
        let args = kinds.map(|kind| ArgumentSpec { name: "a".into(), kind }).to_vec();
        let spec = KernelSpec { entry: "k".into(), abi: String::new(), args, block_size: 256, lds_bytes: 0 };
        uses().check(&spec, 1024).unwrap();
        Uses { argument_bytes: None, ..uses() }.check(&spec, 1024).unwrap();
        for (wrong, said) in [
            (Uses { max_threads: 128, ..uses() }, "blocks of 256 threads"),
            (Uses { shared_bytes: 1025, ..uses() }, "at most 1024 bytes"),
            (Uses { argument_bytes: Some(vec![8, 8]), ..uses() }, "[8, 8, 4]"),
            (Uses { argument_bytes: Some(vec![8, 8, 8]), ..uses() }, "[8, 8, 8]"),
        ] {
            let error = wrong.check(&spec, 1024).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn half_an_object_is_refused() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        is_whole(&whole).unwrap();
        is_whole(&whole[..whole.len() / 2]).unwrap_err();
        is_whole(b"no ELF file").unwrap_err();
    }
}
