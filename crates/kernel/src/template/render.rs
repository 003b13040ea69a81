//! Rendering: from a template, a problem, parameters and a target to the source and everything needed to launch it.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu::{ArgumentSpec, KernelSpec};
use minijinja::Value;

use super::bounded::{self, Fault, MAX_SOURCE_BYTES};
use super::contract::{Arg, Tolerance};
use super::head::{Bounds, Head, abi};
use super::launch::{ArgSpec, LaunchSpec};
use super::library::Library;
use super::library_error::LibraryError;
use super::params::ParamsError;
use super::signature::ProblemError;
use super::{Launch, Misfit, Params, Precision, Problem, Resources, Template};
use crate::target::{Language, Target};
use data::{Place, SourceFile};
use expression::{Expression, ExpressionError, Reason, Scope};
use hint::Hint;
use system::bounded_process::BoundedError;

/// Threads that a block may have on any AMD GPU.
const MAX_BLOCK_SIZE: u32 = 1024;

/// What goes before a GPU's kernel when a CPU executes it.
const SIMULATOR: &str = "lib/hip/simulator.hip.j2";

/// Blocks that a cluster may have on any NVIDIA GPU that has clusters.
const MAX_CLUSTER: u32 = 8;

/// Blocks that a compute unit may have room for on any GPU.
const MAX_BLOCKS_OF_UNIT: u32 = 32;

/// A kernel, ready to be compiled and launched.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// `linear/dot`: for messages and tables.
    pub label: String,
    /// Dims, flags, types, precision and parameters, in a line: for people.
    pub about: String,
    /// Self-contained C or HIP C++.
    pub source: String,
    /// The kernel's name in the object.
    pub entry: String,
    /// The parameters it was rendered with, complete.
    pub params: Params,
    /// The contract's arguments, in order.
    pub args: Vec<ArgSpec>,
    /// The arguments after those: memory that the plan provides, contents undefined.
    pub workspace: Vec<ArgSpec>,
    pub launch: LaunchSpec,
    /// Precision of its sums.
    pub(crate) precision: Precision,
    /// Compiler options that the template asks for, in order.
    pub(crate) options: Vec<String>,
    /// Gates on the compiled object.
    pub resources: Resources,
    /// How far it may be from the reference.
    pub tolerance: Tolerance,
    /// Whether it may be launched before the kernel before it has ended.
    pub is_early: bool,
}

impl Rendered {
    /// The contract's arguments, then the workspace.
    pub fn all_args(&self) -> impl Iterator<Item = &ArgSpec> {
        self.args.iter().chain(&self.workspace)
    }

    /// Its description for a driver.
    pub fn spec(&self) -> KernelSpec {
        let workspace =
            self.workspace.iter().map(|arg| ArgumentSpec { is_undefined: !arg.is_zeroed, ..arg.argument() });
        KernelSpec {
            entry: self.entry.clone(),
            abi: self.abi(),
            args: self.args.iter().map(ArgSpec::argument).chain(workspace).collect(),
            block_size: self.launch.block_size(),
            lds_bytes: self.launch.lds_bytes(),
            is_early: self.is_early,
        }
    }

    /// The arguments in a line, as the object repeats them: `x:f32:read … n_tokens:u32`.
    pub fn abi(&self) -> String {
        abi(&self.args, &self.workspace)
    }
}

/// Why a kernel could not be rendered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenderError {
    /// A file of the library is wrong.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The template does not fit.
    #[error("`{label}` {misfit}")]
    Misfit {
        label: String,
        /// The requirement that does not hold.
        misfit: Misfit,
    },
    /// The problem does not give what the contract declares.
    #[error("the problem for `{label}` does not agree with op.toml: {problem}")]
    Problem { label: String, problem: ProblemError },
    /// The parameters are refused.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// A launch or shape expression does not evaluate.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The body could not be rendered.
    #[error("{place}: could not render `{label}`: {message}")]
    Body {
        label: String,
        /// The line, in the template or in what it includes.
        place: Place,
        /// The template engine's message.
        message: String,
    },
    /// The body takes more than it may.
    #[error("{place}: could not render `{label}`")]
    Bounds {
        label: String,
        place: Place,
        #[source]
        source: Arc<BoundedError>,
    },
    /// The body renders to more than any kernel needs.
    #[error("{place}: `{label}` renders to more than {} MiB", MAX_SOURCE_BYTES >> 20)]
    TooLong { label: String, place: Place },
}

impl Hint for RenderError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Library(error) => error.hint(),
            Self::Misfit { .. } => Some("`gptoss-jit kernels ls --why` shows what each template needs".into()),
            Self::Params(_) => {
                Some("parameters, their values and constraints are in the template's front matter".into())
            }
            Self::Expression(error) => error.hint(),
            Self::Body { .. } => Some("`templates/README.md` lists the names and filters that a body may use".into()),
            Self::Bounds { .. } => Some("templates and rendered kernels usually have some hundred lines".into()),
            Self::Problem { .. } | Self::TooLong { .. } => None,
        }
    }
}

/// Renders a template.
///
/// # Errors
/// If it does not fit, the parameters are refused, or the text cannot be rendered: see [`RenderError`].
pub fn render(
    library: &Library,
    template: &Template,
    problem: &Problem,
    params: &Params,
    target: &Target,
) -> Result<Rendered, RenderError> {
    let label = template.label();
    template.fits(problem, target).map_err(|misfit| RenderError::Misfit { label: label.clone(), misfit })?;
    let wrong = |error| RenderError::Problem { label: label.clone(), problem: error };
    template.signature.check(problem).map_err(wrong)?;
    let Parts { params, scope, args, workspace, launch, bounds } = Parts::of(template, problem, params, target)?;
    let head = Head { entry: template.entry(), args: &args, workspace: &workspace, bounds };
    let words = context(template, problem, &scope, target, &head);
    let body = text(library, &template.file, &words, &label)?;
    let source = match target.language() {
        Language::C => format!("{}\n{}", body.trim_end(), head.host_trailer()),
        Language::Hip if !target.is_simulated => format!("{}\n{body}", head.hip_constants(target)),
        Language::Hip => {
            let simulator = library.file(SIMULATOR).expect("it is built in");
            let simulator = text(library, simulator, &words, &label)?;
            let (constants, trailer) = (head.hip_constants(target), head.sim_trailer());
            format!("{constants}\n{}\n{}\n{trailer}", simulator.trim_end(), body.trim_end())
        }
    };
    Ok(Rendered {
        about: about(problem, &params),
        source,
        entry: head.entry,
        params,
        args,
        workspace,
        launch,
        precision: problem.precision,
        options: template.options.clone(),
        resources: template.resources,
        tolerance: template.tolerance(problem.precision),
        is_early: bounds.is_early,
        label,
    })
}

/// `hidden_size=2880 scale=f32 bf16 block_size=256`: what tells kernels of a template apart.
fn about(problem: &Problem, params: &Params) -> String {
    let Problem { dims, flags, dtypes, precision, .. } = problem;
    let mut words: Vec<String> = dims.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.extend(flags.iter().map(|(name, value)| format!("{name}={value}")));
    words.extend(dtypes.iter().map(|(name, value)| format!("{name}={value}")));
    words.push(precision.name().to_owned());
    words.extend(params.iter().map(|(name, value)| format!("{name}={value}")));
    words.join(" ")
}

/// The values that the body of a template sees.
///
/// # Errors
/// If parameters are refused, or an expression does not evaluate.
pub(super) fn words(
    template: &Template,
    problem: &Problem,
    params: &Params,
    target: &Target,
) -> Result<Value, RenderError> {
    let Parts { scope, args, workspace, bounds, .. } = Parts::of(template, problem, params, target)?;
    let head = Head { entry: template.entry(), args: &args, workspace: &workspace, bounds };
    Ok(Value::from_object(context(template, problem, &scope, target, &head)))
}

/// What follows from a template's front matter for a problem.
struct Parts {
    params: Params,
    scope: Arc<Scope>,
    args: Vec<ArgSpec>,
    workspace: Vec<ArgSpec>,
    launch: LaunchSpec,
    bounds: Bounds,
}

impl Parts {
    fn of(template: &Template, problem: &Problem, params: &Params, target: &Target) -> Result<Self, RenderError> {
        let params = template.resolve_params(params, problem, target)?;
        let scope = Arc::new(template.scope(problem, &params, target)?);
        let args = arg_specs(&template.signature.args, problem, &scope)?;
        let workspace = arg_specs(&template.workspace, problem, &scope)?;
        let bounds = bounds(template, &scope, target)?;
        let launch = launch_spec(template, &scope, &bounds)?;
        Ok(Self { params, scope, args, workspace, launch, bounds })
    }
}

fn arg_specs(args: &[Arg], problem: &Problem, scope: &Arc<Scope>) -> Result<Vec<ArgSpec>, ExpressionError> {
    let mut specs = Vec::new();
    for arg in args {
        let exists = arg.when.as_ref().map_or(Ok(true), |when| when.holds(scope))?;
        if exists {
            let dtype = arg.dtype.resolve(problem).expect("the problem was checked against the contract");
            specs.push(ArgSpec::new(arg, dtype, scope));
        }
    }
    // What is not there is nobody's alias.
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    for spec in &mut specs {
        spec.may_alias.take_if(|alias| !names.contains(alias));
    }
    Ok(specs)
}

/// A number from 1 to `limit`.
fn from_one(text: &Expression, scope: &Arc<Scope>, limit: u32) -> Result<u32, ExpressionError> {
    match text.whole(scope)? {
        0 => Err(text.error(Reason::Engine("it is 0, expected at least 1".into()))),
        value if value > limit.into() => Err(text.error(Reason::TooLarge { value, limit: limit.into() })),
        value => Ok(value as u32),
    }
}

fn bounds(template: &Template, scope: &Arc<Scope>, target: &Target) -> Result<Bounds, ExpressionError> {
    let Launch { block_size, min_blocks, cluster, early, .. } = &template.launch;
    let early = early.as_ref().filter(|_| target.launches_early());
    Ok(Bounds {
        block_size: block_size.as_ref().map_or(Ok(1), |text| from_one(text, scope, MAX_BLOCK_SIZE))?,
        min_blocks: min_blocks.as_ref().map(|text| from_one(text, scope, MAX_BLOCKS_OF_UNIT)).transpose()?,
        cluster: cluster.as_ref().map_or(Ok(1), |text| from_one(text, scope, MAX_CLUSTER))?,
        is_early: early.map_or(Ok(false), |text| text.holds(scope))?,
    })
}

fn launch_spec(template: &Template, scope: &Arc<Scope>, bounds: &Bounds) -> Result<LaunchSpec, ExpressionError> {
    let lds_bytes = template.launch.lds_bytes.as_ref().map_or(Ok(0), |text| text.whole_u32(scope))?;
    Ok(LaunchSpec {
        grid: template.launch.grid.clone(),
        block_size: bounds.block_size,
        cluster: bounds.cluster,
        lds_bytes,
        scratch_bytes: template.launch.scratch_bytes.clone(),
        padded: template.padded.clone(),
        scope: Arc::clone(scope),
    })
}

/// The values that a body sees.
fn context(template: &Template, problem: &Problem, scope: &Scope, target: &Target, head: &Head<'_>) -> Scope {
    let mut values: BTreeMap<String, Value> = crate::template::signature::Signature::scope(problem);
    values.extend(problem.constants.iter().map(|(name, &value)| (name.clone(), Value::from(value))));
    let tuned = template.params.keys().chain(template.facts.iter().map(|(name, _)| name));
    values.extend(tuned.filter_map(|name| scope.get(name).map(|value| (name.clone(), value))));
    let signature = match template.language {
        Language::C => head.host_signature(),
        Language::Hip => {
            values.insert("block_size".into(), head.bounds.block_size.into());
            head.hip_signature()
        }
    };
    let of_the_target: [(&str, Value); 6] = [
        ("signature", signature.into()),
        ("entry", head.entry.clone().into()),
        ("arch", target.arch.clone().into()),
        ("wave_size", target.wave_size.into()),
        ("precision", problem.precision.name().into()),
        ("features", target.features.iter().cloned().collect()),
    ];
    values.extend(of_the_target.map(|(name, value)| (name.to_owned(), value)));
    values.extend(template.signature.pointers().map(|(name, arg)| (name, head.pointers(&arg.name).into())));
    Scope::new(values)
}

fn text(library: &Library, file: &SourceFile, words: &Scope, label: &str) -> Result<String, RenderError> {
    let in_bounds = |source| RenderError::Bounds { label: label.to_owned(), place: file.place(0), source };
    let rendered = match library.bounds(file) {
        Some((program, files)) => {
            bounded::ask(program, file, &files, words).map_err(|error| in_bounds(error.into()))?
        }
        None => bounded::rendered(library.environment(), &file.name, words),
    };
    match rendered {
        Ok(text) => Ok(single_spaced(&text)),
        Err(Fault::TooLong) => Err(RenderError::TooLong { label: label.to_owned(), place: file.place(0) }),
        Err(Fault::At { file: name, line, message }) => {
            let file = name.and_then(|name| library.file(&name)).unwrap_or(file);
            Err(RenderError::Body { label: label.to_owned(), place: file.place(line), message })
        }
    }
}

/// The text with one empty line where several follow each other, as what includes leave behind does, and none at its
/// beginning.
fn single_spaced(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if !is_spare(&spaced, line) {
            spaced += line;
        }
    }
    spaced
}

/// Whether a line after a text is left out of what is rendered.
pub(super) fn is_spare(before: &str, line: &str) -> bool {
    line == "\n" && (before.is_empty() || before.ends_with("\n\n"))
}
