//! The template language: contracts, templates, the library of both, and rendering to self-contained source.
//!
//! - [`contract`]: what an op is (`op.toml`); [`signature`]: the arguments of a run of fused ops
//! - [`Template`]: what a template says of itself (its front matter), and whether it fits a [`Problem`]
//! - [`expression`]: the whole numbers and conditions in both
//! - [`library`]: where templates come from, what shadows what, which are candidates
//! - [`render`]: a template, a problem, parameters and a target in; source out, with its [`launch`]
//! - [`work`]: what a launch has to do at least, by the contract
//!
//! Nothing here knows compilers, devices or the forward pass.

pub(crate) mod bounded;
pub mod contract;
mod declaration;
mod environment;
mod formats;
mod front_matter;
mod head;
pub mod launch;
mod lib_header;
pub mod library;
pub mod library_error;
mod names;
pub mod origins;
mod overlay;
pub mod params;
pub(crate) mod problem;
pub mod render;
pub mod signature;
mod stray;
mod uses;
pub mod work;

pub use problem::{Params, Precision, Problem};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use contract::{Arg, TestShape, Tolerance};
use data::{Origin, Place, SourceFile};
use expression::{Expression, ExpressionError, Scope};
use serde::Deserialize;
use signature::Signature;
use work::PaddedSpec;

use crate::target::{Language, Target};
use format::Dtype;

/// One way to do an op, or a run of ops: a file, and what its front matter says.
#[derive(Clone, Debug)]
pub struct Template {
    /// The ops it covers, in order.
    pub ops: Vec<String>,
    /// The file's name without its extension.
    pub variant: String,
    pub language: Language,
    pub file: SourceFile,
    /// Where files of the same name lie that this one hides.
    pub shadows: Vec<Origin>,
    /// The arguments and names that the ops' contracts give it.
    pub signature: Arc<Signature>,
    /// Of a run, the tensors between its ops that it still writes.
    pub keeps: BTreeSet<String>,
    /// Its method, in a line.
    pub summary: String,
    /// Which template is taken where no tuning row decides: the higher.
    pub priority: i64,
    pub requires: Requires,
    pub params: BTreeMap<String, Param>,
    /// What follows from problem, parameters and target, by name; each may use those before it.
    pub(crate) facts: Vec<(String, Expression)>,
    /// What must hold of the parameters, by a name that says it.
    pub(crate) constraints: BTreeMap<String, Expression>,
    /// Blocks, threads, private memory.
    pub launch: Launch,
    /// What a launch goes through, for predictions.
    pub(crate) padded: PaddedSpec,
    /// Arguments after the contract's, whose memory the plan provides.
    pub workspace: Vec<Arg>,
    /// Compiler options after those of the target.
    pub(crate) options: Vec<String>,
    /// Gates on the compiled object.
    pub(crate) resources: Resources,
    /// Where looser than the op's.
    pub(crate) numerics: NumericsOverride,
    /// Shapes on which it is checked beside the op's: those around its tiles.
    pub tests: Vec<TestShape>,
}

/// What a template needs of the target and of the problem. Empty lists and `None` ask for nothing.
#[derive(Clone, Debug, Default)]
pub struct Requires {
    /// Globs over the target's arch; one must match.
    pub(crate) arch: Vec<String>,
    /// Features of the target; all of them.
    pub features: Vec<String>,
    /// Wave sizes; one of them.
    pub(crate) wave: Vec<u32>,
    /// Precisions; one of them.
    pub(crate) precision: Vec<Precision>,
    /// For named dtypes, what they may be here.
    pub dtypes: BTreeMap<String, Vec<Dtype>>,
    /// Conditions over dims, flags and dtypes; all of them.
    pub when: Vec<Expression>,
}

/// A tunable parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The values that `tune` and the tuning tables choose among.
    pub values: Vec<u32>,
    /// Which of them is taken where no tuning row decides.
    pub default: u32,
    pub doc: String,
    /// Whether its values differ in speed alone. One that changes what is computed is set by who asks for it, never
    /// chosen.
    pub is_tunable: bool,
    /// Where it is declared: in the template, or in a file that it uses.
    pub place: Place,
}

/// The launch geometry, as expressions.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks in x, y, z; missing ones are 1.
    pub grid: Vec<Expression>,
    /// GPU: threads per block.
    pub(crate) block_size: Option<Expression>,
    /// NVIDIA: bytes of LDS that the launch asks for, beside what the kernel declares.
    pub(crate) lds_bytes: Option<Expression>,
    /// Host: bytes of private memory per thread.
    pub scratch_bytes: Option<Expression>,
    /// GPU: whether it is launched before the kernel before it has ended, where the GPU can do so.
    pub early: Option<Expression>,
    /// GPU: blocks of a cluster, which are on the machine together.
    pub cluster: Option<Expression>,
    /// GPU: blocks that a compute unit is to have room for.
    pub min_blocks: Option<Expression>,
}

/// Gates on a compiled GPU object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Registers spilled to memory.
    pub max_spills: Option<u32>,
}

/// Tolerances that replace the op's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NumericsOverride {
    pub(crate) f32: Option<Tolerance>,
    pub(crate) bf16: Option<Tolerance>,
}

/// The requirement that keeps a template from fitting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The template is for another compiler.
    #[error("is for {needs}, the target takes {found}")]
    Language {
        /// The template's language.
        needs: Language,
        found: Language,
    },
    /// None of the arch globs matches.
    #[error("requires arch {}, the target is {found}", needs.join(" or "))]
    Arch { needs: Vec<String>, found: String },
    /// The target lacks a feature.
    #[error("requires the feature {0}, which the target lacks")]
    Feature(String),
    /// The wave has another size.
    #[error("requires a wave of {}, the target's is {found}", needs.iter().map(u32::to_string).collect::<Vec<_>>().join(" or "))]
    Wave { needs: Vec<u32>, found: u32 },
    /// It is not for this precision.
    #[error("requires precision {}, asked for {found}", needs.iter().map(|p| p.name()).collect::<Vec<_>>().join(" or "))]
    Precision { needs: Vec<Precision>, found: Precision },
    /// A named dtype is not one of those it takes.
    #[error("requires `{name}` in {}, found {}", needs.iter().map(|d| d.name()).collect::<Vec<_>>().join(" or "), found.map_or("none", Dtype::name))]
    Dtype {
        /// The name from `[dtypes]`.
        name: String,
        needs: Vec<Dtype>,
        found: Option<Dtype>,
    },
    /// Others need a tensor that it does not write.
    #[error("does not keep `{0}`, which others read")]
    Keeps(String),
    /// A condition does not hold.
    #[error("requires `{0}`")]
    When(String),
    /// A condition could not be evaluated.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// No values of its parameters satisfy its constraints here.
    #[error("has no legal parameters here: of the defaults: {constraint}")]
    NoLegalParams {
        /// What refused the default values.
        constraint: String,
    },
}

impl Template {
    /// `linear/dot`, `rmsnorm+linear/dot`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.ops.join("+"), self.variant)
    }

    /// Whether this is its [`Self::label`].
    pub(crate) fn is_labelled(&self, label: &str) -> bool {
        let is_own = |(ops, variant): (&str, &str)| variant == self.variant && ops.split('+').eq(&self.ops);
        label.rsplit_once('/').is_some_and(is_own)
    }

    /// The order in which templates are taken where no tuning row decides: the highest priority first, then by name.
    pub(crate) fn rank(&self) -> (Reverse<i64>, &str) {
        (Reverse(self.priority), &self.variant)
    }

    /// The name of the kernel: `linear_dot`, `rmsnorm_linear_dot`.
    pub fn entry(&self) -> String {
        format!("{}_{}", self.ops.join("_"), self.variant)
    }

    /// How far the kernel may be from the reference.
    pub fn tolerance(&self, precision: Precision) -> Tolerance {
        let own = match precision {
            Precision::F32 => self.numerics.f32,
            Precision::Bf16 => self.numerics.bf16,
        };
        own.unwrap_or(self.signature.numerics.at(precision))
    }

    /// Where it may be further from the reference than the contract lets other kernels be, in words.
    pub fn looser(&self, precision: Precision) -> Option<String> {
        let (own, of_op) = (self.tolerance(precision), self.signature.numerics.at(precision));
        let looser = |name: &str, own: f64, of_op: f64| (own > of_op).then(|| format!("{name} {own}, not {of_op}"));
        let parts: Vec<String> = [looser("rtol", own.rtol, of_op.rtol), looser("atol", own.atol, of_op.atol)]
            .into_iter()
            .flatten()
            .collect();
        (!parts.is_empty()).then(|| format!("its tolerance is looser than the op's: {}", parts.join(", ")))
    }

    /// Whether everything that it requires holds.
    ///
    /// # Errors
    /// The first requirement that does not.
    pub fn fits(&self, problem: &Problem, target: &Target) -> Result<(), Misfit> {
        self.fits_target(target)?;
        if let Some(lost) = problem.keeps.difference(&self.keeps).next() {
            return Err(Misfit::Keeps(lost.clone()));
        }
        self.requires.check_problem(problem, &self.signature)
    }

    /// Whether what it requires of the target holds.
    ///
    /// # Errors
    /// The first requirement that does not.
    pub fn fits_target(&self, target: &Target) -> Result<(), Misfit> {
        if target.language() != self.language {
            return Err(Misfit::Language { needs: self.language, found: target.language() });
        }
        self.requires.check_target(target)
    }

    /// The precisions that it takes.
    pub fn precisions(&self) -> impl Iterator<Item = Precision> {
        let needs = &self.requires.precision;
        [Precision::F32, Precision::Bf16].into_iter().filter(|one| needs.is_empty() || needs.contains(one))
    }

    /// The names that its expressions use.
    pub fn expression_names(&self) -> BTreeSet<String> {
        let Launch { grid, block_size, lds_bytes, scratch_bytes, early, cluster, min_blocks } = &self.launch;
        let launch = grid.iter().chain(block_size).chain(lds_bytes).chain(scratch_bytes);
        let launch = launch.chain(early).chain(cluster).chain(min_blocks);
        let workspace = self.workspace.iter().flat_map(|arg| arg.shape.iter().flatten());
        let facts = self.facts.iter().map(|(_, expression)| expression);
        let all = launch.chain(workspace).chain(self.constraints.values()).chain(facts);
        all.flat_map(Expression::names).chain(self.padded.names()).cloned().collect()
    }

    /// The values that expressions over parameters see, except the scalar arguments.
    pub(super) fn scope(
        &self,
        problem: &Problem,
        params: &BTreeMap<String, u32>,
        target: &Target,
    ) -> Result<Scope, ExpressionError> {
        let mut known = Signature::scope(problem);
        known.extend(params.iter().map(|(name, &value)| (name.clone(), value.into())));
        known.insert("wave_size".into(), target.wave_size.into());
        known.insert("lds_bytes".into(), target.lds_bytes.into());
        known.insert("early_launch".into(), target.launches_early().into());
        known.insert("precision".into(), problem.precision.name().into());
        for (name, expression) in &self.facts {
            let value = expression.fact(&Arc::new(Scope::new(known.clone())))?;
            known.insert(name.clone(), value);
        }
        Ok(Scope::new(known))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.label())
    }
}

impl Requires {
    fn check_target(&self, target: &Target) -> Result<(), Misfit> {
        let arch = target.arch.split(':').next().unwrap_or_default();
        if !self.arch.is_empty() && !self.arch.iter().any(|glob| glob_matches(glob, arch)) {
            return Err(Misfit::Arch { needs: self.arch.clone(), found: target.arch.clone() });
        }
        if let Some(feature) = self.features.iter().find(|feature| !target.features.contains(*feature)) {
            return Err(Misfit::Feature(feature.clone()));
        }
        if !self.wave.is_empty() && !self.wave.contains(&target.wave_size) {
            return Err(Misfit::Wave { needs: self.wave.clone(), found: target.wave_size });
        }
        Ok(())
    }

    fn check_problem(&self, problem: &Problem, signature: &Signature) -> Result<(), Misfit> {
        if !self.precision.is_empty() && !self.precision.contains(&problem.precision) {
            return Err(Misfit::Precision { needs: self.precision.clone(), found: problem.precision });
        }
        for (name, needs) in self.dtypes.iter().filter(|(name, _)| signature.has_dtype(name, problem)) {
            let found = problem.dtypes.get(name).copied();
            if !found.is_some_and(|found| needs.contains(&found)) {
                return Err(Misfit::Dtype { name: name.clone(), needs: needs.clone(), found });
            }
        }
        let scope = Arc::new(Scope::new(Signature::scope(problem)));
        for condition in &self.when {
            if !condition.holds(&scope)? {
                return Err(Misfit::When(condition.text().to_owned()));
            }
        }
        Ok(())
    }
}

/// Whether a glob, in which `*` stands for any characters, matches all of a text.
pub(crate) fn glob_matches(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((head, tail)) => text
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && glob_matches(tail, &rest[i..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, text, matches) in [
            ("gfx11*", "gfx1100", true),
            ("gfx11*", "gfx1201", false),
            ("gfx11", "gfx1100", false),
            ("gfx*1", "gfx1201", true),
            ("*", "x86-64-v4", true),
        ] {
            assert_eq!(glob_matches(glob, text), matches, "{glob} {text}");
        }
    }
}
