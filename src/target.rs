//! A target: the chip as facts. What is compiled for, not what is running.

pub mod assumption;

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::compute_unit::{ComputeUnit, Product};
use crate::error::Hint;

/// Which compiler turns a rendered template into an object, and which templates fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// C for this machine's cores, compiled by the system's `cc`; `.c.j2` templates.
    Host,
    /// HIP C++ for an AMD GPU, compiled by hipRTC; `.hip.j2` templates.
    Hiprtc,
    /// HIP C++ for an NVIDIA GPU, compiled by NVRTC; `.hip.j2` templates.
    Nvrtc,
    /// HIP C++ for a GPU, compiled for this machine's cores by the system's C++ compiler behind
    /// `templates/lib/hip/simulator.hip.j2`; `.hip.j2` templates.
    Sim,
    /// A pretended compiler for tests: it can crash, hang and emit garbage on request.
    Mock,
}

impl Backend {
    /// The name used in keys, tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Hiprtc => "hiprtc",
            Self::Nvrtc => "nvrtc",
            Self::Sim => "sim",
            Self::Mock => "mock",
        }
    }

    /// What a template's file name ends in for this backend.
    pub const fn template_extension(self) -> &'static str {
        match self {
            Self::Host => ".c.j2",
            Self::Hiprtc | Self::Nvrtc | Self::Sim | Self::Mock => ".hip.j2",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A chip, as the facts that templates and compilers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Who compiles for it.
    pub backend: Backend,
    /// `gfx1100`, `sm_90`, `x86-64-v4`, …
    pub arch: String,
    /// Lanes that run in step: 32 or 64 on an AMD GPU, 32 on an NVIDIA GPU, 1 on the host.
    pub wave_size: u32,
    /// What the chip can do beyond its arch: `avx512bf16`, `wmma_gfx11`, `mfma`, …
    pub features: BTreeSet<String>,
    /// LDS that one block may use, in bytes; 0 on the host.
    pub lds_bytes: u32,
    /// The known arch that this one is assumed to be like, where nothing is known about it.
    pub like: Option<String>,
}

/// What `[target]` in `tuning/<arch>.toml` tells of a GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFacts {
    /// 32 or 64.
    pub wave_size: u32,
    /// LDS that one block may use, in bytes.
    pub lds_bytes: u32,
    /// What templates may ask for in `requires.features`.
    #[serde(default)]
    pub features: BTreeSet<String>,
    /// For people: products of this arch, what is special about it.
    #[serde(default)]
    pub notes: String,
    /// How many waves fit; without it nothing is said of occupancy.
    pub compute_unit: Option<ComputeUnit>,
    /// What it can do at most; without it nothing is said of limits.
    pub product: Option<Product>,
}

/// A chip that nothing is known about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No table has facts about it.
    #[error("nothing is known about the arch `{arch}`, expected one of: {}", known.join(", "))]
    UnknownArch {
        /// What was asked for.
        arch: String,
        /// What is known.
        known: Vec<String>,
    },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        Some("a file `tuning/<arch>.toml` with a [target] table teaches it: see `tuning/README.md`".into())
    }
}

/// What the names of NVIDIA's archs begin with; their compute capability follows, without its point.
const NVIDIA: &str = "sm_";

/// Instruction sets of the x86-64 levels, each with what it adds, under the names that templates use.
const X86_LEVELS: [(&str, &[&str]); 4] =
    [("x86-64", &[]), ("x86-64-v2", &["sse4_2"]), ("x86-64-v3", &["avx2", "fma", "f16c"]), ("x86-64-v4", &["avx512"])];

/// Instruction sets beyond the levels that templates may ask for, with the compiler option that allows each.
const X86_EXTENSIONS: [(&str, &str); 4] = [
    ("avx512bf16", "-mavx512bf16"),
    ("avx512fp16", "-mavx512fp16"),
    ("avx512vnni", "-mavx512vnni"),
    ("avxvnni", "-mavxvnni"),
];

impl Target {
    /// This machine's cores.
    pub fn host() -> Self {
        #[cfg(target_arch = "x86_64")]
        let target = {
            let mut target = Self::x86_64(detected_level());
            target.features.extend(detected_extensions().into_iter().map(String::from));
            target
        };
        #[cfg(not(target_arch = "x86_64"))]
        let target = Self::host_of(std::env::consts::ARCH.to_owned(), BTreeSet::new());
        target
    }

    /// A target by its arch: a GPU, this machine's own arch, or an x86-64 level to render and compile for.
    ///
    /// # Errors
    /// If nothing is known about it.
    pub fn named(arch: &str) -> Result<Self, TargetError> {
        let host = Self::host();
        if arch == host.arch || arch == "host" {
            return Ok(host);
        }
        match X86_LEVELS.iter().position(|(name, _)| *name == arch) {
            Some(level) => Ok(Self::x86_64(level)),
            None => Self::gpu(arch),
        }
    }

    /// A GPU by its target id: `gfx1100`, `gfx90a:sramecc+:xnack-`, `sm_90`. Facts come from the built-in tuning tables; an
    /// arch that they do not have is assumed to be like its relatives, with a warning that says so.
    ///
    /// # Errors
    /// If it is of a family that nothing is known about.
    pub fn gpu(arch: &str) -> Result<Self, TargetError> {
        let (target, assumed) = Self::gpu_or_similar(arch)?;
        if let Some(text) = assumed {
            tracing::warn!("{text}");
        }
        Ok(target)
    }

    /// The same, with what was assumed instead of a warning.
    ///
    /// # Errors
    /// As [`Self::gpu`].
    pub fn gpu_or_similar(arch: &str) -> Result<(Self, Option<String>), TargetError> {
        let built_in = crate::tuning::built_in_targets();
        let known: Vec<_> = built_in.iter().map(|(name, facts)| (name.as_str(), facts)).collect();
        Self::gpu_among(arch, &known)
    }

    /// A GPU by its target id and what is known of others, the first of a name taken first; and what was assumed.
    pub(crate) fn gpu_among(arch: &str, known: &[(&str, &TargetFacts)]) -> Result<(Self, Option<String>), TargetError> {
        let name = arch.split(':').next().unwrap_or_default();
        if let Some((_, facts)) = known.iter().find(|(known, _)| *known == name) {
            return Ok((Self::from_facts(arch, facts), None));
        }
        let Some(assumed) = assumption::assume(name, known) else {
            let known = crate::tuning::built_in_archs();
            return Err(TargetError::UnknownArch { arch: arch.to_owned(), known });
        };
        let target = Self { like: assumed.like, ..Self::from_facts(arch, &assumed.facts) };
        Ok((target, Some(assumed.text)))
    }

    /// A GPU by its target id and the facts about it.
    pub fn from_facts(arch: &str, facts: &TargetFacts) -> Self {
        Self {
            backend: if arch.starts_with(NVIDIA) { Backend::Nvrtc } else { Backend::Hiprtc },
            arch: arch.to_owned(),
            wave_size: facts.wave_size,
            features: facts.features.clone(),
            lds_bytes: facts.lds_bytes,
            like: None,
        }
    }

    /// The same chip, executed by the simulator.
    pub fn simulated(self) -> Self {
        Self { backend: Backend::Sim, ..self }
    }

    /// Whether it is a GPU's kernels that run there.
    pub fn is_gpu(&self) -> bool {
        self.backend != Backend::Host
    }

    /// The string in a kernel's key: a GPU's target id; on the host the arch and what it has beyond that. In the simulator
    /// the text says all: chips that render the same one share the object.
    pub fn id(&self) -> String {
        match self.backend {
            Backend::Hiprtc | Backend::Nvrtc | Backend::Mock => self.arch.clone(),
            Backend::Sim => "sim".to_owned(),
            Backend::Host => {
                let extensions = X86_EXTENSIONS.iter().filter(|(name, _)| self.features.contains(*name));
                std::iter::once(self.arch.clone()).chain(extensions.map(|(name, _)| format!("+{name}"))).collect()
            }
        }
    }

    /// The names of tuning tables that concern it, the closest first: `gfx1100`, `gfx11`, `generic`, or
    /// `x86-64-v4`, `x86-64`, `host`.
    pub fn families(&self) -> Vec<String> {
        let arch = self.arch.split(':').next().unwrap_or_default();
        let (family, last) = match self.backend {
            Backend::Host => (X86_LEVELS.iter().find(|(name, _)| *name == arch).map(|_| "x86-64"), "host"),
            _ if arch.starts_with(NVIDIA) => (None, "generic"),
            // The last two characters of a gfx name are its minor version and stepping.
            Backend::Hiprtc | Backend::Nvrtc | Backend::Sim | Backend::Mock => {
                (arch.len().checked_sub(2).and_then(|end| arch.get(..end)), "generic")
            }
        };
        let names = [Some(arch), self.like.as_deref(), family, Some(last)];
        let mut names: Vec<String> = names.into_iter().flatten().map(String::from).collect();
        names.dedup();
        names
    }

    /// The compiler options that say what to compile for. Nothing is `native`, so a kernel's key says all.
    pub fn compile_options(&self) -> Vec<String> {
        match self.backend {
            Backend::Hiprtc | Backend::Mock => vec![format!("--offload-arch={}", self.arch)],
            // From Hopper on, `a` allows what only chips of this number have; such an object runs on no other anyway.
            Backend::Nvrtc => {
                let number = assumption::capability(&self.arch).unwrap_or_default();
                vec![format!("--gpu-architecture={}{}", self.arch, if number >= 90 { "a" } else { "" })]
            }
            Backend::Host if self.arch.starts_with("x86-64") => {
                let extensions = X86_EXTENSIONS.iter().filter(|(name, _)| self.features.contains(*name));
                let options = extensions.map(|(_, option)| (*option).to_owned());
                std::iter::once(format!("-march={}", self.arch)).chain(options).collect()
            }
            Backend::Host | Backend::Sim => Vec::new(),
        }
    }

    /// An x86-64 of a level, without extensions.
    fn x86_64(level: usize) -> Self {
        let features = X86_LEVELS[..=level].iter().flat_map(|(_, adds)| adds.iter().map(|name| (*name).to_owned()));
        Self::host_of(X86_LEVELS[level].0.to_owned(), features.collect())
    }

    fn host_of(arch: String, features: BTreeSet<String>) -> Self {
        Self { backend: Backend::Host, arch, wave_size: 1, features, lds_bytes: 0, like: None }
    }
}

/// The highest level whose instruction sets this machine has, as an index into [`X86_LEVELS`].
#[cfg(target_arch = "x86_64")]
fn detected_level() -> usize {
    use std::is_x86_feature_detected as has;
    let v2 = has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2") && has!("popcnt") && has!("cmpxchg16b");
    let v3 = v2
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("fma")
        && has!("f16c")
        && has!("lzcnt")
        && has!("movbe");
    let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    usize::from(v2) + usize::from(v3) + usize::from(v4)
}

/// Those of [`X86_EXTENSIONS`] that this machine has.
#[cfg(target_arch = "x86_64")]
fn detected_extensions() -> Vec<&'static str> {
    use std::is_x86_feature_detected as has;
    let detected = [
        ("avx512bf16", has!("avx512bf16")),
        ("avx512fp16", has!("avx512fp16")),
        ("avx512vnni", has!("avx512vnni")),
        ("avxvnni", has!("avxvnni")),
    ];
    detected.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_go_from_the_chip_to_any() {
        let families = |arch: &str| Target::named(arch).expect(arch).families().join(" ");
        assert_eq!(families("gfx1100"), "gfx1100 gfx11 generic");
        assert_eq!(families("gfx90a:sramecc+:xnack-"), "gfx90a gfx9 generic");
        assert_eq!(families("sm_90"), "sm_90 generic");
        assert_eq!(families("sm_103"), "sm_103 sm_90 generic");
        assert_eq!(families("x86-64-v3"), "x86-64-v3 x86-64 host");
        assert_eq!(families("x86-64"), "x86-64 host");
    }

    #[test]
    fn the_host_says_all_in_its_id_and_options() {
        let host = Target::host();
        assert_eq!((host.backend, host.wave_size, host.lds_bytes), (Backend::Host, 1, 0));
        for (extension, option) in X86_EXTENSIONS {
            assert_eq!(host.features.contains(extension), host.id().contains(&format!("+{extension}")));
            assert_eq!(host.features.contains(extension), host.compile_options().contains(&option.to_owned()));
        }
        assert!(!host.compile_options().iter().any(|option| option.contains("native")));
    }

    #[test]
    fn a_level_includes_the_ones_below() {
        let v4 = Target::x86_64(3);
        assert_eq!(v4.id(), "x86-64-v4");
        assert!(["sse4_2", "avx2", "avx512"].iter().all(|level| v4.features.contains(*level)));
        assert_eq!(v4.compile_options(), ["-march=x86-64-v4"]);
    }

    #[test]
    fn nvidia_gpus_are_compiled_for_by_nvrtc() {
        let target = Target::gpu("sm_90").expect("known");
        assert_eq!((target.backend, target.wave_size, target.lds_bytes), (Backend::Nvrtc, 32, 49_152));
        assert!(target.features.contains("mma_sm80"));
        assert_eq!(target.compile_options(), ["--gpu-architecture=sm_90a"]);
        assert_eq!(Target::gpu("sm_86").expect("assumed").compile_options(), ["--gpu-architecture=sm_86"]);
    }

    #[test]
    fn facts_of_amd_gpus_are_data() {
        for (arch, wave, feature, lds) in [
            ("gfx90a", 64, "mfma_gfx90a", 65_536),
            ("gfx942", 64, "mfma_gfx942", 65_536),
            ("gfx950", 64, "mfma_gfx950", 163_840),
            ("gfx1100", 32, "wmma_gfx11", 65_536),
            ("gfx1151", 32, "wmma_gfx11", 65_536),
            ("gfx1201", 32, "wmma_gfx12", 65_536),
        ] {
            let target = Target::gpu(arch).expect(arch);
            assert_eq!((target.wave_size, target.lds_bytes), (wave, lds), "{arch}");
            assert!(target.features.contains(feature), "{arch}");
            assert_eq!(target.compile_options(), [format!("--offload-arch={arch}")]);
        }
        let error = Target::gpu("gfx9999").expect_err("unknown").to_string();
        assert!(error.contains("`gfx9999`") && error.contains("gfx1201"), "{error}");
    }
}
