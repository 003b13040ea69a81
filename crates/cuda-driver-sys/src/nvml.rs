//! NVIDIA's management library, which comes with the driver: the power that a device draws. It is opened with dlopen
//! on demand, and only for measurements.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;
use vendor_library::OpenError;

/// Like the driver, it is the system's.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// `nvmlDevice_t`.
type Handle = *mut c_void;

/// The library, started. It stays mapped when this is dropped.
struct Api {
    init: unsafe extern "C" fn() -> c_int,
    by_pci: unsafe extern "C" fn(address: *const c_char, device: *mut Handle) -> c_int,
    power: unsafe extern "C" fn(device: Handle, milliwatts: *mut c_uint) -> c_int,
    // Never closed: other libraries of the process may use it too.
    _library: ManuallyDrop<Library>,
}

/// A device whose power can be read.
pub struct PowerMeter {
    api: Api,
    device: Handle,
}

// SAFETY: NVML may be called from any thread, and the device is a handle that only it looks into.
unsafe impl Send for PowerMeter {}
// SAFETY: as above.
unsafe impl Sync for PowerMeter {}

impl Api {
    fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: opening a library runs its constructors; the caller chose the file to be NVIDIA's.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: the types are those of `nvml.h`, and the library stays loaded for the life of the process.
        unsafe {
            Ok(Self {
                init: *library.get(b"nvmlInit_v2\0")?,
                by_pci: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0")?,
                power: *library.get(b"nvmlDeviceGetPowerUsage\0")?,
                _library: ManuallyDrop::new(library),
            })
        }
    }
}

impl PowerMeter {
    /// The meter of the device at a place on the PCI bus, `0000:18:00.0`; none if the library does not know it or does
    /// not tell its power.
    ///
    /// - `explicit`: the library; else the loader's
    ///
    /// # Errors
    /// There is no such library.
    pub fn open(explicit: Option<&Path>, address: &str) -> Result<Option<Self>, OpenError> {
        let candidates = explicit.map_or_else(|| NAMES.map(PathBuf::from).to_vec(), |path| vec![path.to_path_buf()]);
        let (api, _) = vendor_library::open_first("NVML", &candidates, Api::load)?;
        let Ok(address) = CString::new(address) else { return Ok(None) };
        let mut device = ptr::null_mut();
        // SAFETY: starting it again does nothing; the address is terminated, and `device` valid for writes.
        let found = unsafe { (api.init)() == 0 && (api.by_pci)(address.as_ptr(), &mut device) == 0 };
        let meter = Self { api, device };
        Ok(Some(meter).filter(|meter| found && meter.watts().is_some()))
    }

    /// What the device takes now, in watts; none if it does not tell.
    pub fn watts(&self) -> Option<f64> {
        let mut milliwatts = 0;
        // SAFETY: the library gave the handle, and `milliwatts` is valid for writes.
        let status = unsafe { (self.api.power)(self.device, &mut milliwatts) };
        (status == 0).then(|| f64::from(milliwatts) / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A library that knows one device, which takes a watt more each time.
    const FAKE: &str = r#"
        #include <string.h>
        static unsigned taken = 250000, started;
        int nvmlInit_v2(void) { started = 1; return 0; }
        int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
            if (!started || strcmp(address, "0000:18:00.0")) return 6;
            *device = &taken;
            return 0;
        }
        int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
            if (device != &taken) return 2;
            *milliwatts = taken += 1000;
            return 0;
        }
    "#;

    #[test]
    fn a_device_is_found_by_its_place_and_tells_its_power() {
        let folder = std::env::temp_dir().join(format!("nvml-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, library) = (folder.join("nvml.c"), folder.join("libnvidia-ml.so.1"));
        std::fs::write(&source, FAKE).unwrap();
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(compiled.expect("a C compiler").success());
        let meter = PowerMeter::open(Some(&library), "0000:18:00.0").unwrap().expect("known");
        assert_eq!([meter.watts(), meter.watts()], [Some(252.0), Some(253.0)], "251 when it was opened");
        assert!(PowerMeter::open(Some(&library), "0000:19:00.0").unwrap().is_none());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(PowerMeter::open(Some(Path::new("/nonexistent/libnvidia-ml.so.1")), "0000:18:00.0").is_err());
        let lacking =
            PowerMeter::open(Some(Path::new("libc.so.6")), "0000:18:00.0").err().expect("no NVML").to_string();
        assert!(lacking.starts_with("could not open NVML") && lacking.contains("nvmlInit_v2"), "{lacking}");
    }
}
