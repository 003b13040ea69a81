//! The nodes of the driver's topology: a file `properties` with a name and a number on each line (Linux,
//! `kfd_topology.c`).

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::access::Access;
use system::units::human_bytes;

/// A GPU that the driver computes on.
#[derive(Debug)]
pub struct Gpu {
    /// The number of its node.
    pub(crate) node: u32,
    /// `gfx1100`; without the flags that a runtime appends.
    pub arch: String,
    /// Compute units; on RDNA halves of WGPs.
    pub(crate) compute_units: u32,
    /// Lanes of a wave.
    pub(crate) wave_size: u32,
    /// Its number on the PCI bus, and where it is there: `0x744c at 0000:03:00.0`.
    pub(crate) pci: String,
    /// What `ROCR_VISIBLE_DEVICES` may call it: `GPU-8e15aa0afc2c4e25`; none if it has no such number.
    pub(crate) uuid: Option<String>,
    /// The render node of it, below `/dev/dri`; none if the driver names none.
    pub(crate) render: Option<(PathBuf, Access)>,
    /// Memory of its own, in bytes.
    pub(crate) vram_bytes: Option<u64>,
    /// Memory of the host that it can use besides, in bytes.
    pub(crate) gtt_bytes: Option<u64>,
}

/// What the topology holds.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(crate) gpus: Vec<Gpu>,
    /// Nodes that cannot be read: in a container, those of GPUs that it was not given.
    pub(crate) n_hidden: usize,
}

/// The nodes of a folder, in the driver's order.
pub(super) fn read(folder: &Path) -> Nodes {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let mut nodes = Nodes::default();
    for node in numbers {
        match fs::read_to_string(folder.join(node.to_string()).join("properties")) {
            Ok(text) => nodes.gpus.extend(Gpu::parse(node, &text)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => nodes.n_hidden += 1,
        }
    }
    nodes
}

impl Gpu {
    /// None of a node that is no GPU, or states no arch.
    fn parse(node: u32, properties: &str) -> Option<Self> {
        let values: HashMap<&str, u64> = properties
            .lines()
            .filter_map(|line| {
                let (name, value) = line.split_once(' ')?;
                Some((name, value.trim().parse().ok()?))
            })
            .collect();
        let value = |name: &str| values.get(name).copied().unwrap_or(0);
        let small = |name: &str| u32::try_from(value(name)).unwrap_or(0);
        let (domain, location) = (value("domain"), value("location_id"));
        let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        let minor = Some(small("drm_render_minor")).filter(|minor| *minor > 0);
        Some(Self {
            node,
            arch: arch(small("gfx_target_version")).filter(|_| value("simd_count") > 0)?,
            compute_units: small("simd_count") / small("simd_per_cu").max(1),
            wave_size: small("wave_front_size"),
            pci: format!("{:#06x} at {domain:04x}:{bus:02x}:{device:02x}.{function}", value("device_id")),
            uuid: Some(value("unique_id")).filter(|id| *id > 0).map(|id| format!("GPU-{id:016x}")),
            render: minor.map(|minor| (PathBuf::from(format!("dev/dri/renderD{minor}")), Access::Missing)),
            vram_bytes: None,
            gtt_bytes: None,
        })
    }

    /// Its render node, and its memory.
    pub(super) fn look_around(&mut self, root: &Path, access: &dyn Fn(&str) -> Access) {
        let Some((path, found)) = &mut self.render else { return };
        *found = access(&path.to_string_lossy());
        let device = root.join("sys/class/drm").join(path.file_name().unwrap_or_default()).join("device");
        let bytes = |name: &str| fs::read_to_string(device.join(name)).ok()?.trim().parse().ok();
        (self.vram_bytes, self.gtt_bytes) = (bytes("mem_info_vram_total"), bytes("mem_info_gtt_total"));
    }

    /// `node 1, a gfx1151`.
    pub(crate) fn describe_briefly(&self) -> String {
        format!("node {}, a {}", self.node, self.arch)
    }

    /// `node 1: gfx1100, 0x744c at 0000:03:00.0, 96 CUs, waves of 32, 25.8 GB of memory, /dev/dri/renderD128`.
    pub fn describe(&self) -> String {
        let Self { node, arch, pci, compute_units, wave_size, .. } = self;
        let mut text = format!("node {node}: {arch}, {pci}, {compute_units} CUs, waves of {wave_size}");
        if let Some(bytes) = self.vram_bytes {
            text += &format!(", {} of memory", human_bytes(bytes));
        }
        if let Some(bytes) = self.gtt_bytes {
            text += &format!(", {} of the host's", human_bytes(bytes));
        }
        if let Some((path, _)) = &self.render {
            text += &format!(", /{}", path.display());
        }
        text
    }
}

/// `gfx90a` of 90010: two decimal digits each for minor version and stepping, which names have as one hex digit.
pub(super) fn arch(version: u32) -> Option<String> {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    (version > 0).then(|| format!("gfx{major}{minor:x}{stepping:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_compilers_do() {
        for (version, name) in [
            (90_006, Some("gfx906")),
            (90_010, Some("gfx90a")),
            (90_402, Some("gfx942")),
            (90_500, Some("gfx950")),
            (100_306, Some("gfx1036")),
            (110_501, Some("gfx1151")),
            (120_001, Some("gfx1201")),
            (0, None),
        ] {
            assert_eq!(arch(version).as_deref(), name);
        }
    }
}
