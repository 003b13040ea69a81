//! The power that a device draws, as its driver reports it.

use std::fmt;
use std::fs;
use std::path::Path;

/// A device's place on the PCI bus, as Linux and NVML write it: `0000:18:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.0")
    }
}

/// What amdgpu says of a device below `root`, in watts: an average over some milliseconds, or what it takes now where
/// the chip has no average. None if it says neither.
pub(crate) fn amdgpu_watts(root: &Path, address: PciAddress) -> Option<f64> {
    let monitors = root.join(format!("sys/bus/pci/devices/{address}/hwmon"));
    let monitors = fs::read_dir(monitors).ok()?.flatten().map(|entry| entry.path());
    let microwatts = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let of = |folder: &Path| ["power1_average", "power1_input"].into_iter().find_map(|name| microwatts(folder, name));
    monitors.filter_map(|folder| of(&folder)).next().map(|microwatts| microwatts as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_power_of_its_own_monitor() {
        let root = tempfile::tempdir().unwrap();
        let address = |bus: u32| PciAddress { domain: 0, bus, device: 0 };
        let write = |bus: u32, name: &str, text: &str| {
            let folder = root.path().join(format!("sys/bus/pci/devices/{}/hwmon/hwmon{bus}", address(bus)));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), text).unwrap();
        };
        write(3, "power1_average", "215000000\n");
        write(3, "power1_input", "7\n");
        write(0xc3, "power1_input", "61500000\n");
        write(4, "temp1_input", "40000\n");
        let watts = [3, 0xc3, 4, 5].map(|bus| amdgpu_watts(root.path(), address(bus)));
        assert_eq!(watts, [Some(215.0), Some(61.5), None, None]);
        assert_eq!(PciAddress { domain: 1, bus: 0xc3, device: 0x1f }.to_string(), "0001:c3:1f.0");
    }
}
