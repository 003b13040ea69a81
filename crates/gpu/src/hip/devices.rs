//! A HIP runtime and the devices that it finds.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hip_runtime_sys::Hip;
use hip_runtime_sys::sys::attribute;
use vendor_library::CallError;

use crate::runtime::status;
use crate::{DeviceFacts, GpuError, GpuRuntime, Runtime};

/// An opened and initialised HIP runtime.
#[derive(Clone, Debug)]
pub struct HipRuntime {
    pub(super) hip: Arc<Hip>,
    n_devices: usize,
}

impl HipRuntime {
    /// Opens and initialises the runtime. A runtime that finds no device is opened all the same.
    ///
    /// - `explicit`: the library, or a folder that holds it; then no other is tried
    /// - `rocm_path`: where ROCm is installed, if somebody said so
    ///
    /// # Errors
    /// [`GpuError::NoRuntime`], or [`GpuError::Call`] when it does not start.
    pub fn open(explicit: Option<&Path>, rocm_path: Option<&Path>) -> Result<Self, GpuError> {
        let hip =
            Hip::open(&hip_runtime_sys::candidates(explicit, rocm_path)).map_err(|source| GpuError::NoRuntime {
                runtime: Runtime::Hip,
                searched: hip_runtime_sys::searched(explicit, rocm_path),
                source,
            })?;
        let mut count: c_int = 0;
        // SAFETY: `count` is valid for writes; the flags must be zero.
        let found = unsafe {
            hip.check("hipInit", (hip.init)(0))
                .and_then(|()| hip.check("hipGetDeviceCount", (hip.get_device_count)(&mut count)))
        };
        match found {
            // HIP 5.2 on a machine without a GPU says `hipErrorInvalidDevice`.
            Err(error) if matches!(error.code, status::NO_DEVICE | status::INVALID_DEVICE) => count = 0,
            Err(source) => return Err(GpuError::Call { device: "hip".into(), what: "start the runtime", source }),
            Ok(()) => {}
        }
        Ok(Self { hip: Arc::new(hip), n_devices: usize::try_from(count).unwrap_or(0) })
    }

    /// What one of the runtime's calls says, `6.4.43484`; `?` where it does not.
    fn version(&self, call: unsafe extern "C" fn(*mut c_int) -> c_int) -> String {
        let mut number = 0;
        // SAFETY: `number` is valid for writes.
        let code = unsafe { call(&mut number) };
        // HIP_VERSION: major * 10^7 + minor * 10^5 + patch.
        let text = format!("{}.{}.{}", number / 10_000_000, number / 100_000 % 100, number % 100_000);
        if code == 0 { text } else { "?".to_owned() }
    }

    fn ask(&self, ordinal: usize) -> Result<DeviceFacts, CallError> {
        let hip = &*self.hip;
        let device = ordinal as c_int; // below a count that was one
        let number = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: `value` is valid for writes.
            let code = unsafe { (hip.device_get_attribute)(&mut value, attribute, device) };
            hip.check("hipDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
        };
        // SAFETY: takes any number. What is free is a question to the current device.
        hip.check("hipSetDevice", unsafe { (hip.set_device)(device) })?;
        let (free_bytes, total_bytes) = memory(hip)?;
        Ok(DeviceFacts {
            device: format!("hip:{ordinal}"),
            name: name(hip, device)?,
            arch: hip.arch_name(device)?,
            wave_size: number(attribute::WARP_SIZE)?,
            lds_bytes: number(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
            compute_units: number(attribute::MULTIPROCESSOR_COUNT)? as usize,
            is_integrated: number(attribute::INTEGRATED)? != 0,
            free_bytes,
            total_bytes,
        })
    }
}

impl GpuRuntime for HipRuntime {
    fn path(&self) -> PathBuf {
        self.hip.path().to_path_buf()
    }

    fn describe(&self) -> String {
        let (runtime, driver) = (self.hip.runtime_get_version, self.hip.driver_get_version);
        format!("{} {} (driver {})", Runtime::Hip, self.version(runtime), self.version(driver))
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        let (runtime, driver) = (self.hip.runtime_get_version, self.hip.driver_get_version);
        vec![("runtime_version", self.version(runtime)), ("driver_version", self.version(driver))]
    }

    fn n_devices(&self) -> usize {
        self.n_devices
    }

    fn facts(&self, ordinal: usize) -> Result<DeviceFacts, GpuError> {
        if ordinal >= self.n_devices {
            return Err(GpuError::NoDevice {
                runtime: Runtime::Hip,
                device: format!("hip:{ordinal}"),
                n_devices: self.n_devices,
            });
        }
        let facts = self.ask(ordinal).map_err(|source| GpuError::Call {
            device: format!("hip:{ordinal}"),
            what: "ask the device what it is",
            source,
        })?;
        check(&facts)?;
        Ok(facts)
    }
}

/// Refuses what no device is like.
fn check(facts: &DeviceFacts) -> Result<(), GpuError> {
    let nonsense = |what: &'static str, found: String| {
        Err(GpuError::Nonsense { runtime: Runtime::Hip, device: facts.device.clone(), what, found })
    };
    let target_id = facts.arch.strip_prefix("gfx").is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_digit())
            && rest.chars().all(|c| c.is_ascii_alphanumeric() || ":+-".contains(c))
    });
    if !target_id {
        return nonsense("arch", format!("`{}`", facts.arch.escape_debug()));
    }
    if !matches!(facts.wave_size, 32 | 64) {
        return nonsense("wave size", facts.wave_size.to_string());
    }
    if facts.compute_units == 0 {
        return nonsense("number of compute units", "0".to_owned());
    }
    Ok(())
}

/// Free and total memory of the current device, in bytes.
pub(super) fn memory(hip: &Hip) -> Result<(usize, usize), CallError> {
    let (mut free_bytes, mut total_bytes) = (0, 0);
    // SAFETY: both are valid for writes.
    let code = unsafe { (hip.mem_get_info)(&mut free_bytes, &mut total_bytes) };
    hip.check("hipMemGetInfo", code).map(|()| (free_bytes, total_bytes))
}

fn name(hip: &Hip, device: c_int) -> Result<String, CallError> {
    let mut bytes = [0_u8; 256];
    // SAFETY: the buffer is as long as stated.
    let code = unsafe { (hip.device_get_name)(bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as c_int, device) };
    hip.check("hipDeviceGetName", code)?;
    let name = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
    Ok(String::from_utf8_lossy(name).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> DeviceFacts {
        DeviceFacts {
            device: "hip:1".into(),
            name: "a GPU".into(),
            arch: "gfx90a:sramecc+:xnack-".into(),
            wave_size: 64,
            lds_bytes: 65_536,
            compute_units: 110,
            is_integrated: false,
            free_bytes: 1,
            total_bytes: 2,
        }
    }

    #[test]
    fn a_device_that_makes_no_sense_is_refused() {
        check(&facts()).unwrap();
        for (wrong, said) in [
            (DeviceFacts { arch: "AMD Radeon".into(), ..facts() }, "arch is `AMD Radeon`"),
            (DeviceFacts { arch: String::new(), ..facts() }, "arch is ``"),
            (DeviceFacts { wave_size: 0, ..facts() }, "wave size is 0"),
            (DeviceFacts { compute_units: 0, ..facts() }, "compute units is 0"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("hip:1: ") && error.contains(said), "{error}");
        }
    }
}
