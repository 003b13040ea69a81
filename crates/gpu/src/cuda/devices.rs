//! A CUDA driver and the devices that it finds.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cuda_driver_sys::sys::attribute;
use cuda_driver_sys::{CallError, Cuda};

use super::context::Context;
use crate::power::PciAddress;
use crate::runtime::status;
use crate::{DeviceFacts, GpuError, GpuRuntime, Runtime};

/// An opened and initialised CUDA driver.
#[derive(Clone, Debug)]
pub struct CudaRuntime {
    pub(super) cuda: Arc<Cuda>,
    n_devices: usize,
}

impl CudaRuntime {
    /// Opens and initialises the driver. One that finds no device is opened all the same.
    ///
    /// - `explicit`: the library, or a folder that holds it; then no other is tried
    ///
    /// # Errors
    /// [`GpuError::NoRuntime`], or [`GpuError::Call`] when it does not start.
    pub fn open(explicit: Option<&Path>) -> Result<Self, GpuError> {
        let searched = explicit.iter().map(|path| path.to_path_buf()).collect();
        let cuda = Cuda::open(&cuda_driver_sys::candidates(explicit));
        let cuda = cuda.map_err(|source| GpuError::not_opened(Runtime::Cuda, searched, source))?;
        let mut count: c_int = 0;
        // SAFETY: `count` is valid for writes; the flags must be zero.
        let found = unsafe {
            cuda.check("cuInit", (cuda.init)(0))
                .and_then(|()| cuda.check("cuDeviceGetCount", (cuda.device_get_count)(&mut count)))
        };
        match found {
            Err(error) if matches!(error.code, status::NO_DEVICE | status::INVALID_DEVICE) => count = 0,
            Err(source) => return Err(GpuError::Call { device: "cuda".into(), what: "start the driver", source }),
            Ok(()) => {}
        }
        Ok(Self { cuda: Arc::new(cuda), n_devices: usize::try_from(count).unwrap_or(0) })
    }

    /// The version of CUDA that the driver is for, `13.0`; `?` where it does not say.
    fn version(&self) -> String {
        self.release().map_or_else(|| "?".to_owned(), |(major, minor)| format!("{major}.{minor}"))
    }

    /// A device's context, and what it says of itself.
    pub(super) fn open_device(&self, ordinal: usize) -> Result<(Context, DeviceFacts), GpuError> {
        let device = format!("cuda:{ordinal}");
        if ordinal >= self.n_devices {
            return Err(GpuError::NoDevice { runtime: Runtime::Cuda, device, n_devices: self.n_devices });
        }
        let asked = Context::retain(&self.cuda, ordinal).and_then(|context| {
            let facts = ask(&context, ordinal)?;
            Ok((context, facts))
        });
        let (context, facts) =
            asked.map_err(|source| GpuError::Call { device, what: "ask the device what it is", source })?;
        check(&facts)?;
        Ok((context, facts))
    }
}

impl GpuRuntime for CudaRuntime {
    fn path(&self) -> PathBuf {
        self.cuda.path().to_path_buf()
    }

    fn describe(&self) -> String {
        format!("{} for {}", Runtime::Cuda, self.version())
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        vec![("version", self.version())]
    }

    fn release(&self) -> Option<(u32, u32)> {
        let mut number = 0;
        // SAFETY: `number` is valid for writes.
        let code = unsafe { (self.cuda.driver_get_version)(&mut number) };
        let number = u32::try_from(number).ok().filter(|_| code == 0)?;
        Some((number / 1000, number % 1000 / 10))
    }

    fn n_devices(&self) -> usize {
        self.n_devices
    }

    fn facts(&self, ordinal: usize) -> Result<DeviceFacts, GpuError> {
        self.open_device(ordinal).map(|(_, facts)| facts)
    }
}

fn ask(context: &Context, ordinal: usize) -> Result<DeviceFacts, CallError> {
    let cuda = &context.cuda;
    let number = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` is valid for writes.
        let code = unsafe { (cuda.device_get_attribute)(&mut value, attribute, context.device) };
        cuda.check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
    };
    let (major, minor) = (number(attribute::COMPUTE_CAPABILITY_MAJOR)?, number(attribute::COMPUTE_CAPABILITY_MINOR)?);
    context.enter()?; // what is free is a question to the current device
    let (free_bytes, total_bytes) = context.memory()?;
    let multiprocessors = number(attribute::MULTIPROCESSOR_COUNT)? as usize;
    Ok(DeviceFacts {
        device: format!("cuda:{ordinal}"),
        name: name(context)?,
        arch: format!("sm_{major}{minor}"),
        wave_size: number(attribute::WARP_SIZE)?,
        lds_bytes: number(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
        compute_units: multiprocessors,
        multiprocessors,
        is_integrated: number(attribute::INTEGRATED)? != 0,
        free_bytes,
        total_bytes,
    })
}

/// Where a device is on the PCI bus, if it says.
pub(super) fn pci_address(context: &Context) -> Option<PciAddress> {
    let number = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` is valid for writes.
        let code = unsafe { (context.cuda.device_get_attribute)(&mut value, attribute, context.device) };
        u32::try_from(value).ok().filter(|_| code == 0)
    };
    let (domain, bus) = (number(attribute::PCI_DOMAIN_ID)?, number(attribute::PCI_BUS_ID)?);
    Some(PciAddress { domain, bus, device: number(attribute::PCI_DEVICE_ID)? })
}

/// Refuses what no device is like.
fn check(facts: &DeviceFacts) -> Result<(), GpuError> {
    let wrong = match (facts.arch.as_str(), facts.wave_size, facts.compute_units) {
        ("sm_00", ..) => Some(("compute capability", "0.0".to_owned())),
        (_, wave_size, _) if wave_size != 32 => Some(("warp size", wave_size.to_string())),
        (.., 0) => Some(("number of multiprocessors", "0".to_owned())),
        _ => None,
    };
    wrong.map_or(Ok(()), |(what, found)| {
        Err(GpuError::Nonsense { runtime: Runtime::Cuda, device: facts.device.clone(), what, found })
    })
}

fn name(context: &Context) -> Result<String, CallError> {
    let mut bytes = [0_u8; 256];
    let (buffer, len) = (bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as c_int);
    // SAFETY: the buffer is as long as stated.
    let code = unsafe { (context.cuda.device_get_name)(buffer, len, context.device) };
    context.cuda.check("cuDeviceGetName", code)?;
    let name = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
    Ok(String::from_utf8_lossy(name).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_makes_no_sense_is_refused() {
        let facts = DeviceFacts {
            device: "cuda:1".into(),
            name: "a GPU".into(),
            arch: "sm_90".into(),
            wave_size: 32,
            lds_bytes: 49_152,
            compute_units: 132,
            multiprocessors: 132,
            is_integrated: false,
            free_bytes: 1,
            total_bytes: 2,
        };
        check(&facts).unwrap();
        for (wrong, said) in [
            (DeviceFacts { arch: "sm_00".into(), ..facts.clone() }, "impossible compute capability: 0.0"),
            (DeviceFacts { wave_size: 64, ..facts.clone() }, "impossible warp size: 64"),
            (DeviceFacts { compute_units: 0, ..facts.clone() }, "multiprocessors: 0"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("cuda:1: ") && error.contains(said), "{error}");
        }
    }
}
