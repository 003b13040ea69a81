//! A HIP runtime and the devices that it finds.

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs};

use hip_runtime_sys::Hip;
use hip_runtime_sys::sys::attribute;
use vendor_library::CallError;

use crate::power::PciAddress;
use crate::runtime::status;
use crate::{DeviceFacts, GpuError, GpuRuntime, Runtime};

/// Whether ROCm's runtime counts a WGP of RDNA as one multiprocessor, which it does without it (ROCclr,
/// `rocdevice.cpp`: `maxComputeUnits_` is halved from gfx10 on while `enableWgpMode_` holds).
const WGP_MODE: &str = "GPU_ENABLE_WGP_MODE";

/// An opened and initialised HIP runtime.
#[derive(Clone, Debug)]
pub struct HipRuntime {
    pub(super) hip: Arc<Hip>,
    n_devices: usize,
}

/// Whether a runtime was started in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Variables that have AMD's runtime load a profiler, which writes what it saw when the process ends.
const TOOLS: [&str; 2] = ["HSA_TOOLS_LIB", "ROCP_TOOL_LIBRARIES"];

/// Ends the process without running the exit code of the runtime's libraries: ROCr 7.2's complains about a signal that
/// it lost itself (`Resource leak detected by SharedSignalPool`), even in a program that only calls `hipMemset`. All
/// output must be written before.
pub fn end_process(code: u8) {
    if STARTED.load(Ordering::Relaxed) && TOOLS.iter().all(|tool| env::var_os(tool).is_none()) {
        // SAFETY: takes any number; nothing of this process is used after it.
        unsafe { libc::_exit(code.into()) }
    }
}

/// The file of a library that this process has opened, which the loader may have found by its bare name.
pub fn mapped_file(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut mapped = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let name = path.file_name()?.to_str()?;
    let is_it = |file: &&Path| file.file_name().and_then(|other| other.to_str()).is_some_and(|o| o.starts_with(name));
    mapped.find(is_it).map(Path::to_owned)
}

/// An opened HIP runtime without any call yet: starting one can end the process.
#[derive(Clone, Debug)]
pub struct HipLibrary {
    hip: Arc<Hip>,
}

impl HipLibrary {
    /// Opens the runtime's library, see [`HipRuntime::open`].
    ///
    /// # Errors
    /// [`GpuError::NoRuntime`] or [`GpuError::Unusable`].
    pub fn open(explicit: Option<&Path>, rocm_path: Option<&Path>) -> Result<Self, GpuError> {
        let hip = Hip::open(&hip_runtime_sys::candidates(explicit, rocm_path)).map_err(|source| {
            GpuError::not_opened(Runtime::Hip, hip_runtime_sys::searched(explicit, rocm_path), source)
        })?;
        Ok(Self { hip: Arc::new(hip) })
    }

    /// The file that the loader took, which it may have found by its bare name.
    pub fn file(&self) -> Option<PathBuf> {
        mapped_file(self.hip.path())
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        self.hip.path()
    }

    /// Starts the runtime. One that finds no device is started all the same.
    ///
    /// # Errors
    /// [`GpuError::Call`].
    pub fn start(self) -> Result<HipRuntime, GpuError> {
        let hip = self.hip;
        STARTED.store(true, Ordering::Relaxed);
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
        Ok(HipRuntime { hip, n_devices: usize::try_from(count).unwrap_or(0) })
    }
}

impl HipRuntime {
    /// Opens and initialises the runtime. A runtime that finds no device is opened all the same.
    ///
    /// - `explicit`: the library, or a folder with it; then no other is tried
    /// - `rocm_path`: where ROCm is installed, if given
    ///
    /// # Errors
    /// [`GpuError::NoRuntime`] or [`GpuError::Unusable`], or [`GpuError::Call`] when it does not start.
    pub fn open(explicit: Option<&Path>, rocm_path: Option<&Path>) -> Result<Self, GpuError> {
        HipLibrary::open(explicit, rocm_path)?.start()
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
        let (arch, multiprocessors) = (hip.arch_name(device)?, number(attribute::MULTIPROCESSOR_COUNT)? as usize);
        let cus_each = multiprocessor_cus(&arch, env::var(WGP_MODE).ok().as_deref());
        Ok(DeviceFacts {
            device: format!("hip:{ordinal}"),
            name: name(hip, device)?,
            arch,
            wave_size: number(attribute::WARP_SIZE)?,
            lds_bytes: number(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
            compute_units: multiprocessors * cus_each,
            multiprocessors,
            is_integrated: number(attribute::INTEGRATED)? != 0,
            free_bytes,
            total_bytes,
        })
    }
}

impl HipRuntime {
    /// Where a device is on the PCI bus, if it says.
    pub(super) fn pci_address(&self, ordinal: usize) -> Option<PciAddress> {
        let number = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: `value` is valid for writes.
            let code = unsafe { (self.hip.device_get_attribute)(&mut value, attribute, ordinal as c_int) };
            u32::try_from(value).ok().filter(|_| code == 0)
        };
        let (domain, bus) = (number(attribute::PCI_DOMAIN_ID)?, number(attribute::PCI_BUS_ID)?);
        Some(PciAddress { domain, bus, device: number(attribute::PCI_DEVICE_ID)? })
    }
}

impl GpuRuntime for HipRuntime {
    fn path(&self) -> PathBuf {
        self.hip.path().to_path_buf()
    }

    fn describe(&self) -> String {
        let (runtime, driver) = (self.hip.runtime_get_version, self.hip.driver_get_version);
        format!("{} {} (driver {})", Runtime::Hip, version_text(runtime), version_text(driver))
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        let (runtime, driver) = (self.hip.runtime_get_version, self.hip.driver_get_version);
        vec![("runtime_version", version_text(runtime)), ("driver_version", version_text(driver))]
    }

    fn release(&self) -> Option<(u32, u32)> {
        let [major, minor, _] = version(self.hip.runtime_get_version)?;
        Some((major, minor))
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

/// What one of the runtime's calls says; none if it fails.
fn version(call: unsafe extern "C" fn(*mut c_int) -> c_int) -> Option<[u32; 3]> {
    let mut number = 0;
    // SAFETY: `number` is valid for writes.
    let code = unsafe { call(&mut number) };
    let number = u32::try_from(number).ok().filter(|number| code == 0 && *number > 0)?;
    // HIP_VERSION: major * 10^7 + minor * 10^5 + patch.
    Some([number / 10_000_000, number / 100_000 % 100, number % 100_000])
}

/// The same for people, `6.4.43484`; `?` where there is none.
fn version_text(call: unsafe extern "C" fn(*mut c_int) -> c_int) -> String {
    version(call).map_or_else(|| "?".to_owned(), |[major, minor, patch]| format!("{major}.{minor}.{patch}"))
}

/// Compute units of what the runtime counts as one multiprocessor: 2 on RDNA, where that is a WGP unless `wgp_mode`,
/// the value of [`WGP_MODE`], turns it off.
fn multiprocessor_cus(arch: &str, wgp_mode: Option<&str>) -> usize {
    let is_on = |value: &str| value == "true" || value.trim().parse::<i32>().is_ok_and(|number| number != 0);
    let name = arch.split(':').next().unwrap_or_default();
    // `gfx`, the major version, and a digit each for minor version and stepping: RDNA begins with gfx10.
    let major = name.strip_prefix("gfx").and_then(|digits| digits.get(..digits.len().checked_sub(2)?));
    let is_rdna = major.and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 10);
    if is_rdna && wgp_mode.is_none_or(is_on) { 2 } else { 1 }
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
            multiprocessors: 110,
            is_integrated: false,
            free_bytes: 1,
            total_bytes: 2,
        }
    }

    #[test]
    fn two_compute_units_of_rdna_are_one_multiprocessor() {
        for (arch, wgp_mode, units) in [
            ("gfx1100", None, 2),
            ("gfx1030", Some("1"), 2),
            ("gfx1201", Some("true"), 2),
            ("gfx1201", Some("0"), 1),
            ("gfx90a:sramecc+:xnack-", None, 1),
            ("gfx942", None, 1),
            ("gfx", None, 1),
        ] {
            assert_eq!(multiprocessor_cus(arch, wgp_mode), units, "{arch}, {wgp_mode:?}");
        }
    }

    #[test]
    fn a_device_that_makes_no_sense_is_refused() {
        check(&facts()).unwrap();
        for (wrong, said) in [
            (DeviceFacts { arch: "AMD Radeon".into(), ..facts() }, "impossible arch: `AMD Radeon`"),
            (DeviceFacts { arch: String::new(), ..facts() }, "impossible arch: ``"),
            (DeviceFacts { wave_size: 0, ..facts() }, "impossible wave size: 0"),
            (DeviceFacts { compute_units: 0, ..facts() }, "compute units: 0"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.starts_with("hip:1: ") && error.contains(said), "{error}");
        }
    }
}
