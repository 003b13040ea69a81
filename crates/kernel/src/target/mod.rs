//! A target: the facts of the chip to compile for, which need not be here.

pub(crate) mod assumption;
pub mod code_object;
pub mod compute_unit;
mod error;
mod x86;

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;

use compute_unit::{ComputeUnit, Product};
pub use error::TargetError;
use x86::{ASKED_X86_EXTENSIONS, X86_EXTENSIONS, X86_LEVELS};

/// The language of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    /// C for this machine's cores: `.c.j2`.
    C,
    /// HIP C++ for GPUs, also those that only look like one: `.hip.j2`.
    Hip,
}

impl Language {
    /// The languages that templates can be written in.
    pub const ALL: [Self; 2] = [Self::C, Self::Hip];

    /// The name used in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Hip => "HIP",
        }
    }

    /// What a template's file name ends in.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::C => ".c.j2",
            Self::Hip => ".hip.j2",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The maker of a chip: this machine's processor, AMD or NVIDIA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// This machine's cores.
    Host,
    Amd,
    Nvidia,
}

/// A chip, as the facts that templates and compilers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub platform: Platform,
    /// Whether this machine's cores execute a GPU's kernels in its place.
    pub is_simulated: bool,
    /// `gfx1100`, `sm_90`, `x86-64-v4`, …
    pub arch: String,
    /// Lanes that run in step: 32 or 64 on an AMD GPU, 32 on an NVIDIA GPU, 1 on the host.
    pub wave_size: u32,
    /// What the chip can do beyond its arch: `avx512bf16`, `wmma_gfx11`, `mfma`, …
    pub features: BTreeSet<String>,
    /// LDS that one block may use, in bytes; 0 on the host.
    pub lds_bytes: u32,
    /// Version of the format of an AMD GPU's objects, as [`code_object::version`] chooses it; 0 of others.
    pub code_object_version: u32,
    /// Whether several such devices can compute a model together, as [`TargetFacts::peer_flags`] says of GPUs.
    pub peer_flags: bool,
    /// Whether models in block formats are slower as they are stored than widened, as [`TargetFacts`] says of GPUs.
    pub widen_blocks: bool,
    /// The known arch that this one is assumed to be like, where nothing is known about it.
    pub like: Option<String>,
}

/// Shared memory that a block of an NVIDIA GPU gets at most, if its launch asks, in bytes: compute capability 9.0.
const NVIDIA_LDS_BYTES: u32 = 227 << 10;

/// The host's matrix unit, by its feature: Intel's AMX.
const HOST_MATRIX_UNIT: &str = "amx_bf16";

/// The tuning table of all AMD GPUs that have a matrix unit.
const MATRIX_TABLE: &str = "matrix";

/// The facts about a GPU in `[target]` of `tuning/<arch>.toml`.
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
    /// The first release of AMD's HIP runtime that knows it, major and minor, where that is not all of those in use.
    #[serde(default, deserialize_with = "release")]
    pub since_hip: Option<(u32, u32)>,
    /// Whether a flag that a kernel stores in another GPU's memory reaches a kernel that waits for it there.
    #[serde(default = "usually")]
    pub(crate) peer_flags: bool,
    /// Whether models in block formats are slower as they are stored than widened to bf16.
    #[serde(default)]
    pub(crate) widen_blocks: bool,
    /// For people: products of this arch, what is special about it.
    #[serde(default)]
    pub(crate) notes: String,
    /// How many waves fit; without it, occupancy is not reported.
    pub compute_unit: Option<ComputeUnit>,
    /// The peaks of the product; without them, limits are not reported.
    pub product: Option<Product>,
}

/// What holds of GPUs whose table does not say otherwise.
fn usually() -> bool {
    true
}

/// `"6.1"` as two numbers.
fn release<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<(u32, u32)>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parts = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.map(Some).ok_or_else(|| serde::de::Error::custom(format!("`{text}`: expected a release, such as \"6.1\"")))
}

/// The archs that the built-in tables of `tuning/` have facts about, with their `[target]`.
pub fn built_in() -> Vec<(String, TargetFacts)> {
    #[derive(Deserialize)]
    struct OnlyTarget {
        target: Option<TargetFacts>,
    }
    let facts = |(name, text): &(&str, &str)| {
        let table: OnlyTarget = toml::from_str(text).expect("a test reads every built-in table");
        Some((name.strip_suffix(".toml")?.to_owned(), table.target?))
    };
    data::TUNING.iter().filter_map(facts).collect()
}

/// What the names of NVIDIA's archs begin with; their compute capability follows, without its point.
const NVIDIA: &str = "sm_";

impl Target {
    /// LDS that a launch may ask for, in bytes: on NVIDIA more than a kernel may declare.
    pub fn lds_bytes_at_launch(&self) -> u32 {
        match self.platform {
            Platform::Nvidia => NVIDIA_LDS_BYTES.max(self.lds_bytes),
            Platform::Amd | Platform::Host => self.lds_bytes,
        }
    }

    /// This machine's cores.
    pub fn host() -> Self {
        #[cfg(target_arch = "x86_64")]
        let target = {
            let mut target = Self::x86_64(x86::detected_level());
            target.features.extend(x86::detected_extensions().into_iter().map(String::from));
            target
        };
        #[cfg(not(target_arch = "x86_64"))]
        let target = Self::host_of(std::env::consts::ARCH.to_owned(), BTreeSet::new());
        target
    }

    /// A target by its arch: a GPU, this machine's own arch, or an x86-64 level to render and compile for, with what
    /// there is beyond it, as [`Self::id`] says it: `x86-64-v4+avx512bf16`.
    ///
    /// # Errors
    /// If nothing is known about it.
    pub fn named(arch: &str) -> Result<Self, TargetError> {
        let host = Self::host();
        if arch == host.arch || arch == "host" {
            return Ok(host);
        }
        Self::level(arch)?.map_or_else(|| Self::gpu(arch), Ok)
    }

    /// An x86-64 level and what there is beyond it, by its id, whatever this machine has; none if it is no such id.
    pub(crate) fn named_level(id: &str) -> Option<Self> {
        Self::level(id).ok().flatten()
    }

    fn level(name: &str) -> Result<Option<Self>, TargetError> {
        let mut names = name.split('+');
        let level = names.next().and_then(|level| X86_LEVELS.iter().position(|(name, _)| *name == level));
        let Some(level) = level else { return Ok(None) };
        let mut target = Self::x86_64(level);
        for extension in names {
            if !X86_EXTENSIONS.iter().any(|(name, _)| *name == extension) {
                return Err(TargetError::UnknownExtension { extension: extension.to_owned() });
            }
            target.features.insert(extension.to_owned());
        }
        Ok(Some(target))
    }

    /// Whether it has all that templates ask for of what another processor has.
    pub(crate) fn has_what_templates_ask_of(&self, other: &Self) -> bool {
        let is_asked = |name: &str| {
            let is_extension = X86_EXTENSIONS.iter().any(|(extension, _)| *extension == name);
            !is_extension || ASKED_X86_EXTENSIONS.contains(&name)
        };
        other.features.iter().filter(|name| is_asked(name)).all(|name| self.features.contains(name))
    }

    /// A GPU by its target id: `gfx1100`, `gfx90a:sramecc+:xnack-`, `sm_90`. Facts come from the built-in tuning
    /// tables; an arch that they do not have is assumed to be like its relatives, with a warning that says so.
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
        let built_in = built_in();
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
            let known = built_in().into_iter().map(|(name, _)| name).collect();
            return Err(TargetError::UnknownArch { arch: arch.to_owned(), known });
        };
        let target = Self { like: assumed.like, ..Self::from_facts(arch, &assumed.facts) };
        Ok((target, Some(assumed.text)))
    }

    /// A GPU by its target id and the facts about it.
    pub(crate) fn from_facts(arch: &str, facts: &TargetFacts) -> Self {
        let platform = if arch.starts_with(NVIDIA) { Platform::Nvidia } else { Platform::Amd };
        Self {
            platform,
            code_object_version: if platform == Platform::Amd { code_object::version(arch, None) } else { 0 },
            is_simulated: false,
            arch: arch.to_owned(),
            wave_size: facts.wave_size,
            features: facts.features.clone(),
            lds_bytes: facts.lds_bytes,
            peer_flags: facts.peer_flags,
            widen_blocks: facts.widen_blocks,
            like: None,
        }
    }

    /// The same chip, executed by the simulator.
    pub fn simulated(self) -> Self {
        Self { is_simulated: true, ..self }
    }

    /// Whether it is a GPU's kernels that run there.
    pub fn is_gpu(&self) -> bool {
        self.platform != Platform::Host
    }

    /// What `--device` calls a device of its kind.
    pub(crate) fn device_name(&self) -> &'static str {
        match self.platform {
            Platform::Host => "cpu",
            Platform::Amd => "hip",
            Platform::Nvidia => "cuda",
        }
    }

    /// Whether it is a real GPU, not a simulated one.
    pub fn is_real_gpu(&self) -> bool {
        self.is_gpu() && !self.is_simulated
    }

    /// What its templates are written in.
    pub fn language(&self) -> Language {
        if self.is_gpu() { Language::Hip } else { Language::C }
    }

    /// Whether the KV cache is laid out for matrix units, which read whole rows: on every GPU.
    pub fn has_matrix_layout(&self) -> bool {
        self.is_gpu()
    }

    /// The string in a kernel's key: a GPU's target id; on the host the arch and what it has beyond that. In the
    /// simulator the text says all: chips that render the same one share the object.
    pub fn id(&self) -> String {
        match self.platform {
            _ if self.is_simulated => "sim".to_owned(),
            Platform::Amd | Platform::Nvidia => self.arch.clone(),
            Platform::Host => {
                let extensions = X86_EXTENSIONS.iter().filter(|(name, _)| self.features.contains(*name));
                std::iter::once(self.arch.clone()).chain(extensions.map(|(name, _)| format!("+{name}"))).collect()
            }
        }
    }

    /// The names of tuning tables that concern it, the closest first: `gfx1100`, `gfx11`, `wmma_gfx11`, `matrix`,
    /// `generic`, or `x86-64-v4`, `x86-64`, `amx_bf16`, `host`. Features of AMD's GPUs are those of their matrix units,
    /// the newest of which is the closest; of the host's one is a matrix unit.
    pub fn families(&self) -> Vec<String> {
        let arch = self.arch.split(':').next().unwrap_or_default();
        let (family, last) = match self.platform {
            Platform::Host => (X86_LEVELS.iter().find(|(name, _)| *name == arch).map(|_| "x86-64"), "host"),
            Platform::Nvidia => (None, "generic"),
            // The last two characters of a gfx name are its minor version and stepping.
            Platform::Amd => (arch.len().checked_sub(2).and_then(|end| arch.get(..end)), "generic"),
        };
        let is_unit = |feature: &&String| match self.platform {
            Platform::Host => *feature == HOST_MATRIX_UNIT,
            Platform::Amd => true,
            Platform::Nvidia => false,
        };
        let units: Vec<&str> = self.features.iter().rev().filter(is_unit).map(String::as_str).collect();
        let matrix = units.first().filter(|_| self.platform == Platform::Amd).map(|_| MATRIX_TABLE);
        let closest = [Some(arch), self.like.as_deref(), family].into_iter().flatten();
        let names = closest.chain(units).chain(matrix).chain([last]);
        let mut names: Vec<String> = names.map(String::from).collect();
        names.dedup();
        names
    }

    /// The options of C compilers that say what to compile for. Nothing is `native`, so a kernel's key says all.
    pub(crate) fn c_options(&self) -> Vec<String> {
        if self.is_gpu() || !self.arch.starts_with("x86-64") {
            return Vec::new();
        }
        let extensions = X86_EXTENSIONS.iter().filter(|(name, _)| self.features.contains(*name));
        let options = extensions.map(|(_, option)| (*option).to_owned());
        std::iter::once(format!("-march={}", self.arch)).chain(options).collect()
    }

    /// Whether a kernel that waits for the one before it by itself can be launched before that has ended: NVIDIA's
    /// programmatic dependent launch.
    pub(crate) fn launches_early(&self) -> bool {
        self.features.contains("early_launch_sm90")
    }

    /// The compute capability of an NVIDIA GPU, without its point: 90 of `sm_90`. 0 of others.
    pub(crate) fn capability(&self) -> u32 {
        assumption::capability(&self.arch).unwrap_or_default()
    }

    /// Whether this machine's processor has all instructions that kernels for a processor may have.
    pub fn runs_on_host(&self) -> bool {
        self.platform == Platform::Host && self.features.is_subset(&Self::host().features)
    }

    /// An x86-64 of a level, without extensions.
    fn x86_64(level: usize) -> Self {
        let features = X86_LEVELS[..=level].iter().flat_map(|(_, adds)| adds.iter().map(|name| (*name).to_owned()));
        Self::host_of(X86_LEVELS[level].0.to_owned(), features.collect())
    }

    fn host_of(arch: String, features: BTreeSet<String>) -> Self {
        Self {
            platform: Platform::Host,
            is_simulated: false,
            arch,
            wave_size: 1,
            features,
            lds_bytes: 0,
            code_object_version: 0,
            peer_flags: true,
            widen_blocks: false,
            like: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_go_from_the_chip_to_any() {
        let families = |arch: &str| Target::named(arch).expect(arch).families().join(" ");
        assert_eq!(families("gfx1100"), "gfx1100 gfx11 wmma_gfx11 matrix generic");
        assert_eq!(families("gfx90a:sramecc+:xnack-"), "gfx90a gfx9 mfma_gfx90a matrix generic");
        assert_eq!(families("gfx942"), "gfx942 gfx9 mfma_gfx942 mfma_gfx90a matrix generic");
        assert_eq!(families("gfx906"), "gfx906 gfx9 generic");
        assert_eq!(families("sm_90"), "sm_90 generic");
        assert_eq!(families("sm_103"), "sm_103 sm_90 generic");
        assert_eq!(families("x86-64-v3"), "x86-64-v3 x86-64 host");
        assert_eq!(families("x86-64"), "x86-64 host");
        assert_eq!(families("x86-64-v4+amx_bf16+avx512bf16"), "x86-64-v4 x86-64 amx_bf16 host");
    }

    #[test]
    fn the_host_says_all_in_its_id_and_options() {
        let host = Target::host();
        assert_eq!((host.platform, host.wave_size, host.lds_bytes), (Platform::Host, 1, 0));
        for (extension, option) in X86_EXTENSIONS {
            assert_eq!(host.features.contains(extension), host.id().contains(&format!("+{extension}")));
            assert_eq!(host.features.contains(extension), host.c_options().contains(&option.to_owned()));
        }
        assert!(!host.c_options().iter().any(|option| option.contains("native")));
    }

    #[test]
    fn a_level_includes_the_ones_below() {
        let v4 = Target::x86_64(3);
        assert_eq!(v4.id(), "x86-64-v4");
        assert!(["sse4_2", "avx2", "avx512"].iter().all(|level| v4.features.contains(*level)));
        assert_eq!(v4.c_options(), ["-march=x86-64-v4"]);
        let more = Target::named("x86-64-v4+amx_bf16+avx512bf16").expect("known");
        assert_eq!(more.id(), "x86-64-v4+amx_bf16+avx512bf16");
        assert_eq!(more.c_options(), ["-march=x86-64-v4", "-mamx-bf16", "-mavx512bf16"]);
        let error = Target::named("x86-64-v4+avx10").expect_err("unknown").to_string();
        assert!(error.starts_with("nothing is known about the instruction set `avx10`, expected one of: amx_bf16, "));
    }

    #[test]
    fn extensions_that_templates_ask_for_are_listed() {
        let quoted = |name: &str| data::TEMPLATES.iter().any(|(_, text)| text.contains(&format!("\"{name}\"")));
        let asked: Vec<&str> = X86_EXTENSIONS.iter().map(|(name, _)| *name).filter(|name| quoted(name)).collect();
        assert_eq!(asked, ASKED_X86_EXTENSIONS);
        let target = |id: &str| Target::named_level(id).expect("a level");
        let host = target("x86-64-v4+avx512bf16+avx512vnni+avxvnni");
        assert!(target("x86-64-v4+avx512bf16").has_what_templates_ask_of(&host));
        assert!(!target("x86-64-v4").has_what_templates_ask_of(&host));
        assert!(!target("x86-64-v3+avx512bf16").has_what_templates_ask_of(&host));
        assert_eq!(Target::named_level("gfx1100"), None);
    }

    #[test]
    fn nvidia_gpus_are_told_by_their_names() {
        let target = Target::gpu("sm_90").expect("known");
        assert_eq!((target.platform, target.wave_size, target.lds_bytes), (Platform::Nvidia, 32, 49_152));
        assert!(target.features.contains("mma_sm80"));
        assert_eq!((target.capability(), Target::gpu("sm_86").expect("assumed").capability()), (90, 86));
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
            assert_eq!((target.platform, target.language()), (Platform::Amd, Language::Hip), "{arch}");
        }
        let error = Target::gpu("gfx9999").expect_err("unknown").to_string();
        assert!(error.contains("`gfx9999`") && error.contains("gfx1201"), "{error}");
    }
}
