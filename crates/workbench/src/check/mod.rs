//! Checks templates: renders, compiles and runs each on every test shape of its op's contract, and compares the
//! outputs with [`reference`].
//!
//! [`trial`] selects the cases, [`checked`] runs them and adds up the results, [`memory`] puts guards around a
//! kernel's memory, [`compare`] compares outputs with the reference. A kernel can end the process that runs it:
//! [`parent`] then continues with another [`child`] after that case. A GPU object's own description is compared with
//! the contract ([`uses`]); [`code`] disassembles it and [`speed`] predicts how long its loops take; [`export`] writes
//! it and its case to files. A template whose device is not here is only compiled, and reported so.
//!
//! The compiled and the executed kernel may be two: for a GPU that is not here, its object is examined, and the same
//! problem is rendered once more for a [`Runner`] that stands in for the GPU. [`unknown`] and [`unseen`] are about
//! words that the runner does not know, and lines that it never gets.

mod checked;
pub mod child;
pub mod code;
mod compare;
pub mod coverage;
pub(crate) mod export;
mod known;
mod lds;
mod memory;
pub(super) mod message;
pub mod parent;
mod rounding;
pub mod speed;
mod trial;
mod unknown;
mod unseen;
pub mod uses;
mod wrong;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coverage::Marked;
use gpu::Driver;
use gpu::code_object::KernelFacts;
use gpu::sim::count_traffic;
use memory::Setting;
use trial::Trial;

use kernel::object::compile::Request;
use kernel::object::resources::examine;
use kernel::object::store::{Loaded, ObjectOrigin, Progress, Store, StoreError};
use kernel::target::Target;
use kernel::target::compute_unit::ComputeUnit;
use kernel::template::contract::{Access, Arg, ArgDtype};
use kernel::template::library::Library;
use kernel::template::origins::Origins;
use kernel::template::render::{Rendered, render};
use kernel::template::{Params, Precision, Problem, Resources, Template};
use kernel::tuning::TuningTables;
use reference::Tensors;

pub use checked::{AtLine, Checked, Cost, Go, Watch, show_command};
pub use compare::Difference;
pub(crate) use compare::output;
pub(super) use lds::LdsFill;
pub use memory::{Placement, Side};
pub use rounding::Rounding;
pub(crate) use rounding::{examine as examine_rounding, rounded};
pub(super) use trial::whole;
pub use unknown::Unknown;
pub use unseen::Unseen;
pub use wrong::{Failure, Wrong};

/// Kernels of a check in a hurry that are compiled beside each other before any of them runs.
const AT_ONCE: usize = 2;

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

/// Runs kernels: the target itself, or a stand-in for it.
#[derive(Clone, Copy)]
pub struct Runner<'a> {
    /// What they are rendered and compiled for to be run.
    pub target: &'a Target,
    pub driver: &'a dyn Driver,
}

/// What runs kernels, with what goes before each.
struct Running<'a> {
    library: &'a Library,
    target: &'a Target,
    store: &'a Store,
    driver: &'a dyn Driver,
    lds: Option<LdsFill>,
    is_fenced: bool,
    /// Whether the lines of templates are marked.
    covers: bool,
    /// Whether accesses are counted.
    counts: bool,
    /// When no other case begins.
    until: Option<Instant>,
}

impl Running<'_> {
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Which templates, and how thoroughly.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only templates that cover one of these ops; all, if there is none.
    pub op: Vec<String>,
    /// Of those only what is a template of nothing besides.
    pub op_alone: bool,
    /// Only variants of these names, likewise; `linear/gemv` is one alone.
    pub variant: Vec<String>,
    /// Not the default parameters alone, but all legal ones; of more than [`trial::MAX_POINTS`] choices those that
    /// differ from the default in one parameter.
    pub all_params: bool,
    /// Not the default parameters but these, where they are legal; what is not named has its default.
    pub params: Params,
    /// Only at this precision.
    pub precision: Option<Precision>,
    /// Beside the default parameters those that these tables can choose for the target, at whatever shape they are
    /// meant for.
    pub tables: Option<Arc<TuningTables>>,
    /// Only the shapes of templates' own front matter. With half of the cases every other of the tables' parameters is
    /// run at a shape, and the rest at the next one.
    pub own_tests: bool,
    /// Only the first shape that fits a template, in all of its types.
    pub first_shape: bool,
    /// At a template's first test one more number of rows, above those that it has.
    pub more_rows: bool,
    /// Half of the cases: a shape's numbers of rows go in turn to its types and precisions, so that any two of rows,
    /// types and precision still meet; where a shape is run with every combination of types, every other combination is
    /// run, at all rows, as the other ones are at the other precision. An even and an odd number give halves that are
    /// all cases together.
    pub half: Option<usize>,
    /// Of each kernel's numbers of rows only the first and the last are run with tensors in the memory of others, and
    /// over workspace that was used before, too; and not both at once. At shapes after the first one, only with the
    /// first types and parameters: of shape, types and such a launch any two meet, but not all three. With half of the
    /// cases, of two precisions each has some of the types at such a shape, at all of their rows, and the other the
    /// rest; of one precision each half has some, and at the next shape the rest. Types beyond the first four of a
    /// name, which are read by the same text as others but for their decoder, are run at the first shape and at one of
    /// the others, half of the rows, at one precision.
    pub is_thin: bool,
    /// Of a thin check: none of those types.
    pub common_types: bool,
    /// About so long for each template at each precision: the cases that are most likely to fail, and cheap, go first,
    /// and when the time is up the others are left. At least one runs.
    pub within: Option<Duration>,
    /// If the device has such memory, tensors are right beside inaccessible pages. A kernel that steps outside then
    /// ends the process that runs it.
    pub is_fenced: bool,
    /// Only kernels whose text is not what they are with these templates.
    pub unlike: Option<Arc<Library>>,
    /// Report which lines of the templates ran in the simulator.
    pub covers: bool,
    /// Report how waves access memory there.
    pub memory: bool,
    /// A template's kernels are compiled and run one after the other, up to the first that is wrong.
    pub until_wrong: bool,
}

impl Checker<'_> {
    /// Checks the selected templates that fit the target, each at every precision that it takes; `done` hears of each.
    pub fn check(&self, selection: &Selection, done: &mut dyn FnMut(&Checked)) -> Vec<Checked> {
        let mut all = Vec::new();
        for (template, precision) in self.steps(selection) {
            let checked = self.check_template(template, precision, selection, &mut ());
            done(&checked);
            all.push(checked);
        }
        all
    }

    /// The selected templates at each of their precisions.
    fn steps(&self, selection: &Selection) -> impl Iterator<Item = (&Arc<Template>, Precision)> {
        let of = selection.precision;
        let with_precisions = move |template: &'_ Arc<Template>| {
            template.precisions().filter(|one| of.is_none_or(|of| of == *one)).collect::<Vec<_>>()
        };
        self.selected(selection)
            .flat_map(move |template| with_precisions(template).into_iter().map(move |one| (template, one)))
    }

    /// The selected templates that fit the target.
    pub fn selected(&self, selection: &Selection) -> impl Iterator<Item = &Arc<Template>> {
        let is_selected =
            |ops: &str, op: &String| ops == op || !selection.op_alone && ops.split('+').any(|one| one == op);
        let of_op = self.library.templates_where(move |ops, language| {
            language == self.target.language()
                && (selection.op.is_empty() || selection.op.iter().any(|op| is_selected(ops, op)))
        });
        of_op.filter(|template| {
            let is_named = |one: &String| *one == template.variant || *one == template.label();
            (selection.variant.is_empty() || selection.variant.iter().any(is_named))
                && template.fits_target(self.target).is_ok()
        })
    }

    fn check_template(
        &self,
        template: &Arc<Template>,
        precision: Precision,
        which: &Selection,
        watch: &mut dyn Watch,
    ) -> Checked {
        let mut checked = Checked::new(template.ops.join("+"), template.variant.clone(), precision);
        checked.ran = self.runner.is_some();
        let until = which.within.map(|within| Instant::now() + within);
        let mut trials = trial::trials(template, precision, self.target, which);
        if trials.is_empty() {
            checked.fail("(none)".into(), Wrong::NoTest);
        }
        checked.notes.extend(trial::passed_over(template, &trials, self.target, which));
        checked.notes.extend(template.looser(precision));
        let on = match self.runner.map(|runner| self.running(runner, which, until)).transpose() {
            Ok(on) => on,
            Err(wrong) => {
                checked.fail("filling LDS".into(), wrong);
                return checked;
            }
        };
        let mut at_once = if which.until_wrong { 1 } else { trials.len() };
        if until.is_some() {
            trial::most_likely_to_fail_first(&mut trials);
            at_once = at_once.min(AT_ONCE);
        }
        while !trials.is_empty() {
            let rest = trials.split_off(at_once.min(trials.len()));
            self.check_trials(template, trials, on.as_ref(), which, &mut checked, watch);
            trials = rest;
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_late {
                checked.n_untried = trials.len();
            }
            if is_late || which.until_wrong && !checked.is_right() {
                break;
            }
        }
        checked
    }

    /// Whether a kernel is the same text with the templates of another library.
    fn is_like(&self, library: &Library, template: &Template, trial: &Trial, kernel: &Rendered) -> bool {
        let (ops, label) = (template.ops.join("+"), template.label());
        let mut others = library.templates_where(|others, _| others == ops);
        let Some(other) = others.find(|other| other.label() == label) else { return false };
        let other = render(library, other, &trial.problem, &trial.params, self.target);
        other.is_ok_and(|other| other.source == kernel.source)
    }

    /// Compiles trials, examines the objects, and runs them if there is something to run them on.
    fn check_trials(
        &self,
        template: &Arc<Template>,
        trials: Vec<Trial>,
        on: Option<&Running<'_>>,
        which: &Selection,
        checked: &mut Checked,
        watch: &mut dyn Watch,
    ) {
        // In the simulator of the target itself texts are marked, and there is nothing to examine.
        if let Some(on) = on.filter(|on| on.covers && *on.target == *self.target) {
            return self.run_elsewhere(template, trials, on.target, on, checked, watch);
        }
        let mut kernels = self.rendered(template, trials, self.target, checked);
        if let Some(library) = &which.unlike {
            kernels.retain(|(trial, kernel)| !self.is_like(library, template, trial, kernel));
        }
        let stopwatch = Stopwatch::default();
        let objects = self.store.get_all(&requests(&kernels, self.target), &stopwatch);
        checked.n_compiled += stopwatch.n_compiled.into_inner();
        checked.compile_ms += stopwatch.compile_ms.into_inner();
        let mut good = Vec::new();
        for ((trial, kernel), object) in kernels.into_iter().zip(objects) {
            match object.map_err(|error| self.not_compiled(template, &trial, &kernel, self.target, error)).and_then(
                |object| {
                    if let Some((facts, occupancy)) = self.examine(&kernel, &object.object)? {
                        checked.uses.get_or_insert_default().add(&facts, occupancy);
                    }
                    Ok(object)
                },
            ) {
                Ok(object) => good.push((trial, kernel, object)),
                Err(wrong) => checked.fail(trial.to_string(), wrong),
            }
        }
        let Some(on) = on else {
            checked.n_cases += good.len();
            return;
        };
        if *on.target == *self.target {
            for (trial, kernel, object) in &good {
                checked.run(on, template, trial, (kernel, &object.object, None), watch);
            }
        } else {
            let trials = good.into_iter().map(|(trial, ..)| trial).collect();
            self.run_elsewhere(template, trials, on.target, on, checked, watch);
        }
    }

    /// A GPU's LDS is filled by a kernel; the simulator fills its own, and the host has none.
    fn running<'r>(
        &'r self,
        runner: Runner<'r>,
        which: &Selection,
        until: Option<Instant>,
    ) -> Result<Running<'r>, Wrong> {
        let is_gpu = runner.target.is_real_gpu();
        let lds = if is_gpu { LdsFill::new(self.library, self.store, runner.target, runner.driver)? } else { None };
        let (is_fenced, covers) = (which.is_fenced, which.covers && runner.target.is_simulated);
        let counts = which.memory && runner.target.is_simulated;
        count_traffic(counts);
        Ok(Running {
            library: self.library,
            target: runner.target,
            store: self.store,
            driver: runner.driver,
            lds,
            is_fenced,
            covers,
            counts,
            until,
        })
    }

    /// What the compiler said, and which lines of the templates it said it of.
    fn not_compiled(
        &self,
        template: &Template,
        trial: &Trial,
        kernel: &Rendered,
        target: &Target,
        error: StoreError,
    ) -> Wrong {
        let origins = || Origins::trace(self.library, template, &trial.problem, &trial.params, target, kernel);
        let places = match error.log() {
            "" => Vec::new(),
            log => origins().map_or_else(Vec::new, |origins| origins.of_errors(log)),
        };
        Wrong::Compile { error, places }
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

    /// Runs trials, whose objects for the target are right, on its stand-in.
    fn run_elsewhere(
        &self,
        template: &Template,
        trials: Vec<Trial>,
        target: &Target,
        on: &Running<'_>,
        checked: &mut Checked,
        watch: &mut dyn Watch,
    ) {
        let kernels = self.rendered(template, trials, target, checked);
        let marked = |(trial, kernel): &(Trial, Rendered)| {
            on.covers.then(|| Marked::new(self.library, template, trial, kernel, target)).flatten()
        };
        if target.is_simulated && unseen::may_be(self.library, template) {
            for (trial, kernel) in &kernels {
                checked.unseen.extend(Unseen::find(self.library, template, trial, kernel, target));
            }
        }
        let mut marked: Vec<Option<Marked>> = kernels.iter().map(marked).collect();
        let text = |(marked, (_, kernel)): (&Option<Marked>, &(Trial, Rendered))| {
            Request::new(marked.as_ref().map_or(kernel, |marked| &marked.kernel), target)
        };
        let texts: Vec<Request> = marked.iter().zip(&kernels).map(text).collect();
        let stopwatch = Stopwatch::default();
        let objects = self.store.get_all(&texts, &stopwatch);
        if *target == *self.target {
            checked.n_compiled += stopwatch.n_compiled.into_inner();
            checked.compile_ms += stopwatch.compile_ms.into_inner();
        }
        for (((trial, kernel), marked), object) in kernels.iter().zip(&mut marked).zip(objects) {
            // A text that marks spoil is run without.
            let object = match (object, marked.is_some()) {
                (Err(_), true) => {
                    *marked = None;
                    self.store.get_all(&[Request::new(kernel, target)], &()).remove(0)
                }
                (object, _) => object,
            };
            match object {
                Ok(object) => checked.run(on, template, trial, (kernel, &object.object, marked.as_ref()), watch),
                // Why is asked once for all of them.
                Err(error) if checked.unknown.is_some() && unknown::is_of_a_word(&error) => (),
                Err(error) => match self.not_simulated(template, trial, kernel, target, error) {
                    Ok(unknown) => checked.unknown = Some(unknown),
                    Err(wrong) => checked.fail(trial.to_string(), wrong),
                },
            }
        }
    }

    /// Holds a GPU's object against its contract and its template's limits; gives what it uses, and the waves that a
    /// SIMD has room for. Spilled registers are always an error here. Other objects say nothing of themselves.
    fn examine(&self, kernel: &Rendered, object: &[u8]) -> Result<Option<(KernelFacts, Option<u32>)>, Wrong> {
        if !self.target.is_real_gpu() {
            return Ok(None);
        }
        let spec = kernel.spec();
        let wrong = |error| Wrong::Object { target: self.target.id(), error: Arc::new(error) };
        let resources = Resources { max_spills: Some(0) };
        let facts = examine(object, &spec, &resources, self.target).map_err(wrong)?;
        let (wave_size, block_size) = (self.target.wave_size, kernel.launch.block_size());
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
        let object = self.store.get_all(&[Request::new(&kernel, target)], &()).remove(0).map_err(Wrong::compile)?;
        let (kernel, weights, placement) = (&kernel, &BTreeSet::new(), Placement::Plain);
        let setting = Setting { driver, kernel, weights, scalars, placement, fence: None, is_twice: false, lds: None };
        let loaded = driver.load(&object.object, kernel.spec())?;
        let written = setting.launch(&loaded, inputs)?.remove(0);
        Ok(memory::tensors(&written))
    }
}

fn requests(kernels: &[(Trial, Rendered)], target: &Target) -> Vec<Request> {
    kernels.iter().map(|(_, kernel)| Request::new(kernel, target)).collect()
}

/// The arguments that come from a checkpoint: they are only read, and their type is not the op's choice.
fn weights(template: &Template) -> BTreeSet<String> {
    let is_given = |dtype: &ArgDtype| matches!(dtype, ArgDtype::Named(_) | ArgDtype::Parameter { .. });
    let is_weight = |arg: &&Arg| is_given(&arg.dtype) && arg.access == Access::Read;
    template.signature.args.iter().filter(is_weight).map(|arg| arg.name.clone()).collect()
}

/// Adds up what compiling took.
#[derive(Default)]
struct Stopwatch {
    n_compiled: AtomicUsize,
    compile_ms: AtomicU64,
}

impl Progress for Stopwatch {
    fn finished(&self, _label: &str, result: &Result<Loaded, StoreError>, elapsed_ms: u64) {
        if result.as_ref().is_ok_and(|loaded| loaded.origin == ObjectOrigin::Compiled) {
            self.n_compiled.fetch_add(1, Ordering::Relaxed);
            self.compile_ms.fetch_add(elapsed_ms, Ordering::Relaxed);
        }
    }
}
