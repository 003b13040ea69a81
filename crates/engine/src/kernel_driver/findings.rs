//! What keeps GPUs that the machine has from being used, and what to do about it.

use super::visible::taken_away;
use super::{Access, Gpu, KernelDriver};
use kernel::target;

/// Makes the runtime take a chip for another one; with `_1` behind it, that of node 1 alone.
const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// ROCm's documentation says that it hides GPUs from HIP too; in the source (ROCclr, 2024) only OpenCL reads it.
const ORDINAL: &str = "GPU_DEVICE_ORDINAL";

const NEWER_KERNEL: &str =
    "a newer kernel, or AMD's `amdgpu-dkms`, may know this GPU; `sudo dmesg | grep amdgpu` says more";
const CONTAINER: &str = "in a container: start it with `--device=/dev/kfd --device=/dev/dri`";

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFinding {
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// What a HIP runtime says.
pub struct RuntimeSeen<'a> {
    pub release: Option<(u32, u32)>,
    /// How many GPUs it finds.
    pub n_devices: usize,
    /// Whether its library has the name of an arch in its list of chips; none where no list was found in it.
    pub knows: &'a dyn Fn(&str) -> Option<bool>,
}

impl DriverFinding {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl KernelDriver {
    /// What is wrong with the driver and its device files, the most important first. Nothing where there is no AMD GPU
    /// at all.
    pub fn findings(&self) -> Vec<DriverFinding> {
        if !self.is_there() {
            return Vec::new();
        }
        let mut found = Vec::new();
        if !self.is_loaded && self.gpus.is_empty() {
            let gpus = self.on_bus.join(", ");
            let what =
                if gpus.is_empty() { "amdgpu is not loaded".into() } else { format!("{gpus}: amdgpu is not loaded") };
            found.push(DriverFinding::new(what, format!("`sudo modprobe amdgpu`; {NEWER_KERNEL}")));
            return found;
        }
        found.extend(file_finding("dev/kfd", "the driver's door for computing", &self.kfd));
        if self.gpus.is_empty() {
            found.push(match self.n_hidden {
                0 => DriverFinding::new("amdgpu is loaded, and computes on no GPU", NEWER_KERNEL),
                n => DriverFinding::new(format!("{n} nodes of the driver may not be read"), CONTAINER),
            });
        }
        for gpu in &self.gpus {
            let whose = format!("the render node of node {}, a {}", gpu.node, gpu.arch);
            found.extend(
                gpu.render.as_ref().and_then(|(path, access)| file_finding(&path.to_string_lossy(), &whose, access)),
            );
        }
        found
    }

    /// The release of HIP that each GPU needs at least, where not all in use know it.
    pub fn needs(&self) -> Vec<String> {
        let need = |gpu: &Gpu| {
            let (major, minor) = since(gpu)?;
            Some(format!("HIP {major}.{minor} and newer know node {}, a {}", gpu.node, gpu.arch))
        };
        self.gpus.iter().filter_map(need).collect()
    }

    /// What keeps a runtime from finding GPUs that the driver has, or from taking them for what they are.
    pub fn findings_of(
        &self,
        runtime: &RuntimeSeen<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Vec<DriverFinding> {
        let renamed = self.gpus.iter().filter_map(|gpu| renamed(gpu, runtime, variable));
        let mut found: Vec<DriverFinding> = Vec::new();
        if runtime.n_devices < self.gpus.len() {
            let gpus: Vec<&Gpu> = self.gpus.iter().collect();
            for (gpu, name, list) in taken_away(&gpus, variable) {
                found.push(DriverFinding::new(
                    format!("`{name}={list}` leaves out node {}, a {}", gpu.node, gpu.arch),
                    format!("unset `{name}`, or let it name this GPU"),
                ));
            }
            found.extend(self.gpus.iter().filter_map(|gpu| unknown(gpu, runtime)));
        }
        found.extend(renamed);
        let ordinal = variable(ORDINAL).filter(|list| !list.is_empty() && runtime.n_devices < self.gpus.len());
        if let (Some(list), true) = (ordinal, found.is_empty()) {
            found.push(DriverFinding::new(
                format!("`{ORDINAL}={list}` may leave GPUs out"),
                format!("unset `{ORDINAL}`"),
            ));
        }
        if found.is_empty() && self.findings().is_empty() && runtime.n_devices < self.gpus.len() {
            found.push(DriverFinding::new(
                format!("the driver has {} GPUs, and this runtime finds {}", self.gpus.len(), runtime.n_devices),
                "`AMD_LOG_LEVEL=3 gptoss-jit devices` lets the runtime say why",
            ));
        }
        found
    }
}

/// What is wrong with a device file.
fn file_finding(path: &str, what: &str, access: &Access) -> Option<DriverFinding> {
    let (how, hint) = match access {
        Access::Granted => return None,
        Access::Missing => ("is not there".to_owned(), CONTAINER.to_owned()),
        Access::Container => ("may not be opened in this container".to_owned(), CONTAINER.to_owned()),
        Access::Group(group) => (
            format!("may not be opened: it belongs to the group `{group}`, in which you are not"),
            format!("`sudo usermod -a -G render,video $USER`, then log in again{}", of_unusual(group)),
        ),
        Access::Failed(error) => (format!("could not be opened: {error}"), CONTAINER.to_owned()),
    };
    Some(DriverFinding::new(format!("`/{path}`, {what}, {how}"), hint))
}

/// The group where it is neither of the two usual ones.
fn of_unusual(group: &str) -> String {
    if matches!(group, "render" | "video") { String::new() } else { format!("; here the group is `{group}`") }
}

/// The first release of HIP that knows a GPU, where the tables say one.
fn since(gpu: &Gpu) -> Option<(u32, u32)> {
    target::built_in().into_iter().find(|(name, _)| *name == gpu.arch)?.1.since_hip
}

/// That a runtime is too old for a GPU.
fn unknown(gpu: &Gpu, runtime: &RuntimeSeen<'_>) -> Option<DriverFinding> {
    let since = since(gpu);
    let is_too_old = since.zip(runtime.release).is_some_and(|(since, release)| release < since);
    if (runtime.knows)(&gpu.arch).unwrap_or(!is_too_old) {
        return None;
    }
    let release = runtime.release.map_or_else(|| "this HIP".into(), |(major, minor)| format!("HIP {major}.{minor}"));
    let hint = match since {
        Some((major, minor)) => format!("install ROCm {major}.{minor} or newer: it knows {}", gpu.arch),
        None => format!("a newer ROCm may know {}", gpu.arch),
    };
    Some(DriverFinding::new(format!("{release} does not know node {}, a {}", gpu.node, gpu.arch), hint))
}

/// That the environment makes the runtime take a GPU for another one.
fn renamed(gpu: &Gpu, runtime: &RuntimeSeen<'_>, variable: &dyn Fn(&str) -> Option<String>) -> Option<DriverFinding> {
    let own = format!("{OVERRIDE}_{}", gpu.node);
    let set = |name: &str| Some((name.to_owned(), variable(name).filter(|value| !value.is_empty())?));
    let (name, value) = set(&own).or_else(|| set(OVERRIDE))?;
    let hint = match unknown(gpu, runtime) {
        None => format!("unset `{name}`: this runtime needs no help with a {}", gpu.arch),
        Some(too_old) => format!("{}; then unset `{name}`", too_old.hint),
    };
    let what = format!(
        "`{name}={value}` hides what node {} is, a {}: kernels are compiled for another chip",
        gpu.node, gpu.arch
    );
    Some(DriverFinding::new(what, hint))
}
