//! Checks templates: renders, compiles and runs each on every test shape of its op's contract, and compares what comes
//! out with [`crate::reference`].
//!
//! [`trial`] says what is run, [`memory`] puts guards around what a kernel may touch, [`compare`] holds outputs against
//! the reference. What a GPU's object says of itself is held against the contract ([`uses`]); [`code`] disassembles
//! it and [`speed`] predicts how long its loops take; [`export`] writes it and its case to files for others to run. A template that only compiles here, because its device is elsewhere, is reported as such.
//!
//! What is compiled and what is run may be two: for a GPU that is not here, the object is examined, and the same problem
//! is rendered once more for a [`Runner`] that stands in for it.

pub mod code;
mod compare;
pub mod export;
mod memory;
mod rounding;
pub mod speed;
mod trial;
pub mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gpu::code_object::KernelFacts;
use gpu::{Driver, GpuError, Kernel};

use super::compile::Request;
use super::contract::{Access, Arg, ArgDtype};
use super::expression::ExpressionError;
use super::library::Library;
use super::render::{RenderError, Rendered, render};
use super::resources::{ObjectError, examine};
use super::store::{Loaded, Origin, Progress, Store, StoreError};
use super::template::{Resources, Template};
use super::{Params, Precision, Problem};
use crate::compute_unit::ComputeUnit;
use crate::reference::{Outputs, ReferenceError, Tensors};
use crate::target::{Backend, Target};
use memory::Setting;
use trial::Trial;
use uses::Uses;

pub use compare::Difference;
pub(in crate::kernel) use compare::output;
pub use memory::{Placement, Side};
pub use rounding::Rounding;
pub(in crate::kernel) use rounding::{examine as examine_rounding, rounded};
pub(super) use trial::whole;

/// What templates are checked with.
pub struct Checker<'a> {
    /// The templates and contracts.
    pub library: &'a Library,
    /// What they are rendered and compiled for.
    pub target: &'a Target,
    /// The compilers and the cache.
    pub store: &'a Store,
    /// What they run on; without it they are rendered and compiled only.
    pub runner: Option<Runner<'a>>,
    /// The target's compute unit, for the occupancy of a GPU's kernels.
    pub compute_unit: Option<ComputeUnit>,
}

/// What kernels run on: the target itself, or what stands in for it.
#[derive(Clone, Copy)]
pub struct Runner<'a> {
    /// What they are rendered and compiled for to be run.
    pub target: &'a Target,
    /// What runs them.
    pub driver: &'a dyn Driver,
}

/// Which templates, and how thoroughly.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only templates that cover this op.
    pub op: Option<String>,
    /// Only variants of this name.
    pub variant: Option<String>,
    /// Not the default parameters alone, but all legal ones; of more than [`trial::MAX_POINTS`] choices those that differ
    /// from the default in one parameter.
    pub all_params: bool,
}

/// What became of one template at one precision.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The ops it covers, joined by `+`.
    pub op: String,
    /// The template's name among those of the op.
    pub variant: String,
    /// At which precision.
    pub precision: Precision,
    /// Launches that were compared (each in one placement of its arguments), or kernels that were compiled where nothing
    /// could be run.
    pub n_cases: usize,
    /// The largest error, as a fraction of the tolerance; above 1 is wrong.
    pub worst: f64,
    /// In bf16 precision, the output that is worst against the rounding of its activations.
    pub rounding: Rounding,
    /// Distinct kernels that were compiled now; the others came from the cache.
    pub n_compiled: usize,
    /// Time that compiling took, all kernels together, in milliseconds.
    pub compile_ms: u64,
    /// Whether it ran.
    pub ran: bool,
    /// What the GPU's objects use, all kernels together.
    pub uses: Option<Uses>,
    /// Everything that went wrong.
    pub failures: Vec<Failure>,
}

/// A case that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The shape, types, parameters and placement.
    pub case: String,
    /// What went wrong.
    pub wrong: Wrong,
}

/// What can be wrong with a kernel in one case.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Wrong {
    /// No test of the contract fits the template.
    #[error("no test in op.toml fits the template, so nothing of it is checked")]
    NoTest,
    /// It cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// It cannot be compiled.
    #[error(transparent)]
    Compile(#[from] StoreError),
    /// The object is not what its contract says, or uses more than its template allows.
    #[error("the object for {target}: {error}")]
    Object {
        /// The GPU.
        target: String,
        /// What is wrong with it.
        error: Arc<ObjectError>,
    },
    /// A shape or a launch expression does not evaluate.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The device refuses it.
    #[error("the device refuses it: {0}")]
    Device(Arc<GpuError>),
    /// The case cannot be computed on the host.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Contract and reference disagree on what there is.
    #[error("`{argument}` has {contract} elements by the contract and {reference} by the reference")]
    Length {
        /// The argument.
        argument: String,
        /// By `op.toml`.
        contract: usize,
        /// By `src/reference`.
        reference: usize,
    },
    /// An output is too far from the reference.
    #[error(transparent)]
    Different(#[from] Difference),
    /// bf16 precision costs more than rounding the activations explains.
    #[error(
        "`{argument}` is {:.1e} of its norm off, {:.1} times what rounding the activations to bf16 does; allowed: 2^-7 and 3 times",
        rounding.relative, rounding.times()
    )]
    Rounding {
        /// The argument.
        argument: String,
        /// Its error.
        rounding: Rounding,
    },
    /// Memory next to an argument was written.
    #[error("it writes outside of `{argument}`: byte {offset_bytes} {side} it changed")]
    OutOfBounds {
        /// The argument.
        argument: String,
        /// On which side.
        side: Side,
        /// Bytes from the argument's nearest edge.
        offset_bytes: usize,
    },
    /// Workspace that is to be left zero was not.
    #[error(
        "it leaves the workspace `{argument}` other than zero, from byte {offset_bytes} on; `zeroed` asks every launch to leave it zero"
    )]
    NotZero {
        /// The workspace.
        argument: String,
        /// The first byte that is not zero.
        offset_bytes: usize,
    },
    /// An argument that is only read was written.
    #[error("it writes to `{argument}`, which its contract only reads")]
    ReadOnly {
        /// The argument.
        argument: String,
    },
}

impl From<GpuError> for Wrong {
    fn from(error: GpuError) -> Self {
        Self::Device(Arc::new(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.wrong)
    }
}

impl Checked {
    /// Whether nothing went wrong.
    pub fn is_right(&self) -> bool {
        self.failures.is_empty()
    }
}

impl Checker<'_> {
    /// Checks the selected templates that fit the target, each at every precision that it takes; `done` hears of each.
    pub fn check(&self, selection: &Selection, done: &mut dyn FnMut(&Checked)) -> Vec<Checked> {
        let mut all = Vec::new();
        for template in self.selected(selection) {
            for precision in template.precisions() {
                let checked = self.check_template(template, precision, selection.all_params);
                done(&checked);
                all.push(checked);
            }
        }
        all
    }

    /// The selected templates that fit the target.
    pub fn selected(&self, selection: &Selection) -> impl Iterator<Item = &Arc<Template>> {
        let matches = |template: &&Arc<Template>| {
            let joined = template.ops.join("+");
            selection.op.as_ref().is_none_or(|op| *op == joined || template.ops.contains(op))
                && selection.variant.as_ref().is_none_or(|variant| *variant == template.variant)
                && template.fits_target(self.target).is_ok()
        };
        self.library.templates().iter().filter(matches)
    }

    fn check_template(&self, template: &Arc<Template>, precision: Precision, all_params: bool) -> Checked {
        let mut checked = Checked {
            op: template.ops.join("+"),
            variant: template.variant.clone(),
            precision,
            n_cases: 0,
            worst: 0.0,
            rounding: Rounding::default(),
            n_compiled: 0,
            compile_ms: 0,
            ran: self.runner.is_some(),
            uses: None,
            failures: Vec::new(),
        };
        let trials = trial::trials(template, precision, self.target, all_params);
        if trials.is_empty() {
            checked.failures.push(Failure { case: "(none)".into(), wrong: Wrong::NoTest });
        }
        let kernels = self.rendered(template, trials, self.target, &mut checked);
        let stopwatch = Stopwatch::default();
        let objects = self.store.get_all(&requests(&kernels, self.target), &stopwatch);
        checked.n_compiled = stopwatch.n_compiled.into_inner();
        checked.compile_ms = stopwatch.compile_ms.into_inner();
        let mut good = Vec::new();
        for ((trial, kernel), object) in kernels.into_iter().zip(objects) {
            match object.map_err(Wrong::from).and_then(|object| {
                if let Some((facts, occupancy)) = self.examine(&kernel, &object.object)? {
                    checked.uses.get_or_insert_default().add(&facts, occupancy);
                }
                Ok(object)
            }) {
                Ok(object) => good.push((trial, kernel, object)),
                Err(wrong) => checked.fail(trial.to_string(), wrong),
            }
        }
        match self.runner {
            None => checked.n_cases += good.len(),
            Some(runner) if runner.target == self.target => {
                for (trial, kernel, object) in &good {
                    checked.run(runner.driver, template, trial, kernel, &object.object);
                }
            }
            Some(runner) => {
                let trials = good.into_iter().map(|(trial, ..)| trial).collect();
                self.run_elsewhere(template, trials, runner, &mut checked);
            }
        }
        checked
    }

    /// Renders the trials for a target; what cannot be rendered is a failure.
    fn rendered(
        &self,
        template: &Template,
        trials: Vec<Trial>,
        target: &Target,
        checked: &mut Checked,
    ) -> Vec<(Trial, Rendered)> {
        let mut kernels = Vec::new();
        for trial in trials {
            match render(self.library, template, &trial.problem, &trial.params, target) {
                Ok(kernel) => kernels.push((trial, kernel)),
                Err(error) => checked.fail(trial.to_string(), error.into()),
            }
        }
        kernels
    }

    /// Runs trials, whose objects for the target are right, on what stands in for it.
    fn run_elsewhere(&self, template: &Template, trials: Vec<Trial>, runner: Runner<'_>, checked: &mut Checked) {
        let kernels = self.rendered(template, trials, runner.target, checked);
        let objects = self.store.get_all(&requests(&kernels, runner.target), &());
        for ((trial, kernel), object) in kernels.iter().zip(objects) {
            match object {
                Ok(object) => checked.run(runner.driver, template, trial, kernel, &object.object),
                Err(error) => checked.fail(trial.to_string(), error.into()),
            }
        }
    }

    /// Holds a GPU's object against its contract and its template's limits; gives what it uses, and the waves that a SIMD
    /// has room for. Spilled registers are always an error here. Other objects say nothing of themselves.
    fn examine(&self, kernel: &Rendered, object: &[u8]) -> Result<Option<(KernelFacts, Option<u32>)>, Wrong> {
        if !matches!(self.target.backend, Backend::Hiprtc | Backend::Nvrtc) {
            return Ok(None);
        }
        let spec = kernel.spec();
        let wrong = |error| Wrong::Object { target: self.target.id(), error: Arc::new(error) };
        let resources = Resources { max_spills: Some(0) };
        let facts = examine(object, &spec, &resources, self.target).map_err(wrong)?;
        let (wave_size, block_size) = (self.target.wave_size, kernel.launch.block_size);
        let waves = |unit: ComputeUnit| unit.occupancy(wave_size, facts.vgprs, facts.lds_bytes, block_size);
        let occupancy = self.compute_unit.map(waves);
        Ok(Some((facts, occupancy)))
    }

    /// Runs one template on given inputs, and gives the tensors that it writes.
    ///
    /// # Errors
    /// Whatever keeps it from running, and writes outside of its arguments.
    ///
    /// # Panics
    /// If the checker has nothing to run it on.
    pub fn outputs(
        &self,
        template: &Template,
        problem: &Problem,
        params: &Params,
        scalars: &BTreeMap<String, f64>,
        inputs: &Tensors,
    ) -> Result<Tensors, Wrong> {
        let Runner { target, driver } = self.runner.expect("something to run on");
        let kernel = render(self.library, template, problem, params, target)?;
        let object = self.store.get_all(&[kernel.request(target)], &()).remove(0)?;
        let (kernel, weights, placement) = (&kernel, &BTreeSet::new(), Placement::Plain);
        let setting = Setting { driver, kernel, weights, scalars, placement };
        setting.launch(&setting.load(&object.object)?, inputs)
    }
}

impl Checked {
    fn fail(&mut self, case: String, wrong: Wrong) {
        self.failures.push(Failure { case, wrong });
    }

    /// Runs one kernel for each of its trial's scalars, in every placement.
    fn run(&mut self, driver: &dyn Driver, template: &Template, trial: &Trial, kernel: &Rendered, object: &[u8]) {
        let weights = &weights(template);
        for scalars in &trial.scalars {
            let prepared = trial.prepare(scalars).and_then(|(inputs, want)| {
                let of_rounded = of_rounded(trial, kernel, scalars, &inputs)?;
                Ok((inputs, want, of_rounded))
            });
            for &placement in Placement::of(kernel, weights, driver) {
                let setting = Setting { driver, kernel, weights, scalars, placement };
                let result = match &prepared {
                    Err(error) => Err(error.clone().into()),
                    Ok((inputs, want, of_rounded)) => setting.run_once(object, inputs, want, of_rounded.as_ref()),
                };
                match result {
                    Ok((worst, rounding)) => {
                        self.worst = self.worst.max(worst);
                        self.rounding = self.rounding.worse(rounding);
                    }
                    Err(wrong) => self.fail(format!("{trial}, {}{}", trial::list(scalars), placement.note()), wrong),
                }
                self.n_cases += 1;
            }
        }
    }
}

/// In bf16 precision, what the op gives of activations that were rounded to bf16.
fn of_rounded(
    trial: &Trial,
    kernel: &Rendered,
    scalars: &trial::Scalars,
    inputs: &Tensors,
) -> Result<Option<Outputs>, ReferenceError> {
    let is_bf16 = trial.problem.precision == Precision::Bf16;
    let names = kernel.args.iter().filter(|arg| !arg.is_scalar()).map(|arg| arg.name.as_str());
    let inputs = is_bf16.then(|| rounding::rounded(inputs, names)).flatten();
    inputs.map(|inputs| trial.reference(scalars, &inputs)).transpose()
}

fn requests(kernels: &[(Trial, Rendered)], target: &Target) -> Vec<Request> {
    kernels.iter().map(|(_, kernel)| kernel.request(target)).collect()
}

/// The arguments that come from a checkpoint: they are only read, and their type is not the op's choice.
fn weights(template: &Template) -> BTreeSet<String> {
    let is_weight = |arg: &&Arg| matches!(arg.dtype, ArgDtype::Named(_)) && arg.access == Access::Read;
    template.signature.args.iter().filter(is_weight).map(|arg| arg.name.clone()).collect()
}

impl Setting<'_> {
    /// Launches and compares; gives the largest error as a fraction of the tolerance, and what bf16 precision costs.
    fn run_once(
        &self,
        object: &[u8],
        inputs: &Tensors,
        want: &Outputs,
        of_rounded: Option<&Outputs>,
    ) -> Result<(f64, Rounding), Wrong> {
        let got = self.launch(&self.load(object)?, inputs)?;
        let worst = compare::outputs(self.kernel, &trial::whole(self.scalars), &got, want)?;
        let rounding = of_rounded.map(|of_rounded| rounding::examine(&got, want, of_rounded)).transpose()?;
        Ok((worst, rounding.unwrap_or_default()))
    }

    fn load(&self, object: &[u8]) -> Result<Kernel, Wrong> {
        let spec = self.kernel.spec();
        Ok(self.driver.load(object, spec)?)
    }
}

/// Adds up what compiling took.
#[derive(Default)]
struct Stopwatch {
    n_compiled: AtomicUsize,
    compile_ms: AtomicU64,
}

impl Progress for Stopwatch {
    fn finished(&self, _label: &str, result: &Result<Loaded, StoreError>, elapsed_ms: u64) {
        if result.as_ref().is_ok_and(|loaded| loaded.origin == Origin::Compiled) {
            self.n_compiled.fetch_add(1, Ordering::Relaxed);
            self.compile_ms.fetch_add(elapsed_ms, Ordering::Relaxed);
        }
    }
}
