//! Why GPUs of this machine cannot be used, and what to do about it.

use std::{env, fs};

use super::visible::taken_away;
use super::{Access, Gpu, KernelDriver, chips};
use gpu::hip::mapped_file;
use gpu::{GpuError, GpuRuntime};
use hint::Hint;
use kernel::target::{self, Target};
use system::units::counted;

/// ROCm's documentation says that it hides GPUs from HIP too; in the source (ROCclr, 2024) only OpenCL reads it.
const ORDINAL: &str = "GPU_DEVICE_ORDINAL";

const NEWER_KERNEL: &str =
    "a newer kernel, or AMD's `amdgpu-dkms`, may know this GPU; `sudo dmesg | grep amdgpu` says more";
const CONTAINER: &str = "in a container: start it with `--device=/dev/kfd --device=/dev/dri`";

/// Something that keeps this process from using an AMD GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFinding {
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// A HIP runtime's report.
pub(super) struct RuntimeSeen<'a> {
    pub release: Option<(u32, u32)>,
    /// How many GPUs it finds.
    pub n_devices: usize,
    /// Whether its library has the name of an arch in its list of chips; none if no list was found in it.
    pub knows: &'a dyn Fn(&str) -> Option<bool>,
}

impl DriverFinding {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl KernelDriver {
    /// What is wrong with the driver and its device files, the most important first. Nothing if there is no AMD GPU
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
        found.extend(self.file_finding("dev/kfd", "the driver's compute device", &self.kfd));
        if self.gpus.is_empty() {
            found.push(match self.n_hidden {
                0 => DriverFinding::new("amdgpu is loaded, and computes on no GPU", NEWER_KERNEL),
                n => DriverFinding::new(format!("{} of the driver may not be read", counted(n, "node")), CONTAINER),
            });
        }
        for gpu in &self.gpus {
            let whose = format!("the render node of node {}, a {}", gpu.node, gpu.arch);
            let render = gpu.render.as_ref();
            found.extend(render.and_then(|(path, access)| self.file_finding(&path.to_string_lossy(), &whose, access)));
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

    /// Of Linux below Windows, which has no driver of AMD's.
    pub fn windows(&self) -> Option<DriverFinding> {
        let what =
            "this is WSL2: `/dev/dxg` is here instead of `/dev/kfd`, which HIP reaches through `librocdxg` alone";
        let hint = "for a Radeon of Windows: ROCm 7.2 or newer, AMD's `librocdxg`, a driver of Windows from 2026 on, and \
                    `HSA_ENABLE_DXG_DETECTION=1`";
        (self.has_dxg && self.kfd.is_missing()).then(|| DriverFinding::new(what, hint))
    }

    /// Why AMD's GPUs cannot be used, the most important reason first. Empty if there is no GPU that kernels could be
    /// compiled for; reasons that the runtime's own error states are left out.
    pub fn obstacles(&self, hip: &Result<Box<dyn GpuRuntime>, GpuError>) -> Vec<DriverFinding> {
        let is_known = |gpu: &Gpu| Target::gpu_or_similar(&gpu.arch).is_ok();
        if !self.gpus.is_empty() && !self.gpus.iter().any(is_known) {
            return Vec::new();
        }
        match hip {
            Ok(opened) if opened.n_devices() == 0 => {
                let found = self.findings().into_iter().chain(self.findings_with(opened.as_ref()));
                found.chain(self.windows()).collect()
            }
            Ok(opened) => self.findings_with(opened.as_ref()),
            Err(error @ GpuError::NoRuntime { .. }) if !self.gpus.is_empty() => {
                let gpus: Vec<&str> = self.gpus.iter().map(|gpu| gpu.arch.as_str()).collect();
                let hint = [self.needs(), error.hint().into_iter().collect()].concat().join("; ");
                vec![DriverFinding::new(format!("the driver has a {}, and {error}", gpus.join(" and a ")), hint)]
            }
            Err(_) => Vec::new(),
        }
    }

    /// What keeps an opened runtime from GPUs that the driver has, as the environment and the library's own list of
    /// chips say.
    pub fn findings_with(&self, opened: &dyn GpuRuntime) -> Vec<DriverFinding> {
        if opened.n_devices() >= self.gpus.len() {
            return Vec::new();
        }
        let library = mapped_file(&opened.path()).and_then(|library| fs::read(library).ok());
        let knows = |arch: &str| chips::lists(library.as_ref()?, arch);
        let seen = RuntimeSeen { release: opened.release(), n_devices: opened.n_devices(), knows: &knows };
        self.findings_of(&seen, &|name| env::var(name).ok())
    }

    /// What to do about a runtime that does not survive some of the GPUs.
    pub(crate) fn without(&self, deadly: &[&Gpu]) -> String {
        let newer = |gpu: &&Gpu| Some(format!("install ROCm {} or newer: it knows {}", release(since(gpu)?), gpu.arch));
        let mut cures: Vec<String> = deadly.iter().filter_map(newer).collect();
        let is_other = |gpu: &Gpu| !deadly.iter().any(|one| one.node == gpu.node);
        let others: Vec<String> =
            (0..).zip(&self.gpus).filter(|(_, g)| is_other(g)).map(|(i, _)| i.to_string()).collect();
        if !others.is_empty() && !deadly.is_empty() {
            cures.push(format!("`ROCR_VISIBLE_DEVICES={}` leaves it out", others.join(",")));
        }
        cures.push("`--device cpu` does without it".into());
        cures.join("; ")
    }

    /// What keeps a runtime from finding GPUs that the driver has.
    pub(super) fn findings_of(
        &self,
        runtime: &RuntimeSeen<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Vec<DriverFinding> {
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
        let ordinal = variable(ORDINAL).filter(|list| !list.is_empty() && runtime.n_devices < self.gpus.len());
        if let (Some(list), true) = (ordinal, found.is_empty()) {
            found.push(DriverFinding::new(
                format!("`{ORDINAL}={list}` may leave GPUs out"),
                format!("unset `{ORDINAL}`"),
            ));
        }
        if found.is_empty() && self.findings().is_empty() && runtime.n_devices < self.gpus.len() {
            found.push(DriverFinding::new(
                format!(
                    "the driver has {}, and this runtime finds {}",
                    counted(self.gpus.len(), "GPU"),
                    n(runtime.n_devices)
                ),
                "`AMD_LOG_LEVEL=3 gptoss-jit devices` lets the runtime say why; without `libamd_comgr` HIP 6.4 finds none",
            ));
        }
        found
    }
}

/// `none`, `3`.
fn n(n: usize) -> String {
    if n == 0 { "none".into() } else { n.to_string() }
}

impl KernelDriver {
    /// What is wrong with a device file.
    fn file_finding(&self, path: &str, what: &str, access: &Access) -> Option<DriverFinding> {
        let (how, hint) = match access {
            Access::Granted => return None,
            Access::Missing => ("is not there".to_owned(), CONTAINER.to_owned()),
            Access::Container => ("may not be opened in this container".to_owned(), CONTAINER.to_owned()),
            Access::Group(group) => (
                format!("cannot be opened: it belongs to the group `{group}`, but you do not"),
                if self.is_container {
                    format!("start the container with `--group-add {group}` (a number, where it has no such name)")
                } else {
                    format!("`sudo usermod -a -G render,video $USER`, then log in again{}", of_unusual(group))
                },
            ),
            Access::Failed(error) => (format!("could not be opened: {error}"), CONTAINER.to_owned()),
        };
        Some(DriverFinding::new(format!("`/{path}`, {what}, {how}"), hint))
    }
}

/// The group where it is neither of the two usual ones.
fn of_unusual(group: &str) -> String {
    if matches!(group, "render" | "video") { String::new() } else { format!("; here the group is `{group}`") }
}

/// The first release of HIP that knows a GPU, where the tables say one.
pub(super) fn since(gpu: &Gpu) -> Option<(u32, u32)> {
    target::built_in().into_iter().find(|(name, _)| *name == gpu.arch)?.1.since_hip
}

/// `6.1`.
fn release((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
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
