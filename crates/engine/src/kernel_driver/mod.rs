//! What AMD's kernel driver, amdgpu, reports in sysfs: which chips the machine has, whether or not a HIP runtime finds
//! them, and whether this process may use them. Only reads files; opens no library. [`findings`] lists problems.
//!
//! Every path is below a root folder, `/` on a real machine.

mod access;
mod chips;
mod findings;
mod node;
mod overrides;
mod visible;

use std::path::{Path, PathBuf};
use std::{env, fs};

pub use access::Access;
pub use findings::DriverFinding;
#[cfg(test)]
use findings::RuntimeSeen;
pub use node::Gpu;
pub use overrides::{IGNORED, OVERRIDE};

/// Another folder than `/` to look for the driver in: for tests.
const ROOT: &str = "GPTOSS_JIT_TEST_SYSTEM_ROOT";

/// What programs talk to the driver through.
const KFD: &str = "dev/kfd";
/// What Linux below Windows has instead, for GPUs of anybody.
const DXG: &str = "dev/dxg";
/// The GPUs and processors that the driver computes on, a folder for each.
const NODES: &str = "sys/class/kfd/kfd/topology/nodes";
/// There as soon as the driver is, as a module or built in.
const MODULE: &str = "sys/module/amdgpu";
const PCI: &str = "sys/bus/pci/devices";
/// What Docker and Podman leave in a container.
const CONTAINER_MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// AMD's number on the PCI bus.
const AMD: u32 = 0x1002;

/// The driver, or what there is instead of it.
#[derive(Debug)]
pub struct KernelDriver {
    /// The kernel's release: `6.8.0-60-generic`.
    pub(crate) kernel: Option<String>,
    /// Whether amdgpu is loaded.
    pub(crate) is_loaded: bool,
    /// The version of an amdgpu that does not come with the kernel (`amdgpu-dkms`): only those state one.
    pub(crate) version: Option<String>,
    /// Whether this process can open `/dev/kfd`.
    pub(crate) kfd: Access,
    /// The GPUs that the driver computes on, in its order.
    pub gpus: Vec<Gpu>,
    /// Nodes of which this process may not know what they are.
    pub(crate) n_hidden: usize,
    /// AMD's GPUs on the PCI bus: `0000:03:00.0 (1002:744c)`.
    pub(crate) on_bus: Vec<String>,
    /// Whether this is Linux below Windows, with a door to its GPUs.
    pub(crate) has_dxg: bool,
    /// Whether this is a container of Docker or Podman.
    pub(crate) is_container: bool,
}

impl KernelDriver {
    /// The driver of this machine.
    pub fn here() -> Self {
        Self::read(&env::var_os(ROOT).filter(|root| !root.is_empty()).map_or_else(|| "/".into(), PathBuf::from))
    }

    /// Reads `dev`, `proc` and `sys` below `root`, which is `/` on a real machine.
    pub fn read(root: &Path) -> Self {
        Self::read_with(root, &access::open)
    }

    /// The same, with another way to find out whether a device file can be opened.
    fn read_with(root: &Path, open: access::Open<'_>) -> Self {
        let nodes = node::read(&root.join(NODES));
        let text = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        let access = |path: &str| Access::probe(root, Path::new(path), open);
        let mut gpus = nodes.gpus;
        for gpu in &mut gpus {
            gpu.look_around(root, &access);
        }
        Self {
            kernel: text("proc/sys/kernel/osrelease").filter(|text| !text.is_empty()),
            is_loaded: root.join(MODULE).is_dir(),
            version: text(&format!("{MODULE}/version")).filter(|text| !text.is_empty()),
            kfd: access(KFD),
            gpus,
            n_hidden: nodes.n_hidden,
            on_bus: gpus_on_bus(&root.join(PCI)),
            has_dxg: root.join(DXG).exists(),
            is_container: CONTAINER_MARKS.iter().any(|mark| root.join(mark).exists()),
        }
    }

    /// `amdgpu 6.12.12 on Linux 6.8.0-60-generic`.
    pub fn describe(&self) -> String {
        let version = self.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let module = if self.is_loaded { format!("amdgpu{version}") } else { "no amdgpu".into() };
        format!("{module} on Linux {}", self.kernel.as_deref().unwrap_or("?"))
    }

    /// Whether there is anything of AMD's here.
    pub fn is_there(&self) -> bool {
        self.is_loaded || !self.gpus.is_empty() || !self.on_bus.is_empty() || !self.kfd.is_missing()
    }
}

/// Display controllers and processing accelerators of AMD's.
fn gpus_on_bus(devices: &Path) -> Vec<String> {
    let number = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let gpu = |folder: PathBuf| {
        let class = number(folder.join("class"))? >> 16;
        let is_gpu = number(folder.join("vendor"))? == AMD && matches!(class, 0x03 | 0x12);
        let device = number(folder.join("device"))?;
        is_gpu.then(|| format!("{} ({AMD:04x}:{device:04x})", folder.file_name().unwrap_or_default().display()))
    };
    let folders = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<String> = folders.filter_map(gpu).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests;
