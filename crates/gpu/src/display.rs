//! Whether a card drives a display.

use std::fs;
use std::path::Path;

use crate::power::PciAddress;

/// Whether something is connected to an output of a device, as the kernel says below `root`: `connected` in the
/// `status` of one of the connectors (`card1-DP-1`) of the device's card.
pub(crate) fn is_connected(root: &Path, address: PciAddress) -> bool {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let cards = folders(&root.join(format!("sys/bus/pci/devices/{address}/drm")));
    let mut connectors = cards.flat_map(|card| folders(&card).collect::<Vec<_>>());
    connectors.any(|connector| fs::read_to_string(connector.join("status")).is_ok_and(|s| s.trim() == "connected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_with_a_connected_output_has_a_display() {
        let root = tempfile::tempdir().unwrap();
        let address = |bus: u32| PciAddress { domain: 0, bus, device: 0 };
        let write = |bus: u32, connector: &str, status: &str| {
            let folder = root.path().join(format!("sys/bus/pci/devices/{}/drm/{connector}", address(bus)));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("status"), status).unwrap();
        };
        write(3, "card1/card1-DP-1", "disconnected\n");
        write(3, "card1/card1-HDMI-A-1", "connected\n");
        write(4, "card2/card2-DP-1", "disconnected\n");
        fs::create_dir_all(root.path().join(format!("sys/bus/pci/devices/{}/drm/renderD130", address(5)))).unwrap();
        assert_eq!([3, 4, 5, 6].map(|bus| is_connected(root.path(), address(bus))), [true, false, false, false]);
    }
}
