//! The result of a template's check, and how its kernels run: every case, and where that is cheap again from the last
//! to the first, in other places of memory if there are some. So a kernel that keeps something between launches is
//! noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpu::sim::{Space, lines_that_ran, take_traffic};
use gpu::{GpuError, Kernel};
use serde::{Deserialize, Serialize};

use super::compare::Clue;
use super::coverage::{Lines, Marked};
use super::memory::{Edge, Placement, Setting, Written, tensors};
use super::rounding::{self, Rounding};
use super::trial::{self, Scalars, Trial};
use super::unknown::Unknown;
use super::unseen::Unseen;
use super::uses::Uses;
use super::{Failure, Running, Wrong, compare, coverage, known, weights};
use kernel::object::compile::Request;
use kernel::target::{Language, Target};
use kernel::template::origins::Origins;
use kernel::template::render::Rendered;
use kernel::template::{Params, Precision, Problem, Template};
use reference::{Outputs, Tensors};

/// The C++ compiler's option for that, where several say something of it the last.
const LOCALS_ARE_ZERO: &str = "-ftrivial-auto-var-init=zero";

/// The result of one template at one precision.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The ops it covers, joined by `+`.
    pub op: String,
    /// The template's name among those of the op.
    pub variant: String,
    pub precision: Precision,
    /// Launches that were compared (each in one placement of its arguments), or kernels that were compiled where
    /// nothing could be run.
    pub n_cases: usize,
    /// The largest error, as a fraction of the tolerance; above 1 is wrong.
    pub worst: f64,
    /// In bf16 precision, the output that is worst against the rounding of its activations; none if no output of f32
    /// was compared.
    pub rounding: Option<Rounding>,
    /// Distinct kernels that were compiled now; the others came from the cache.
    pub n_compiled: usize,
    /// Time that compiling took, all kernels together, in milliseconds.
    pub compile_ms: u64,
    pub ran: bool,
    /// What the GPU's objects use, all kernels together.
    pub uses: Option<Uses>,
    /// What running each kernel took, references included.
    pub costs: Vec<Cost>,
    /// Kernels that there was no time for.
    pub n_untried: usize,
    /// Everything that went wrong.
    pub failures: Vec<Failure>,
    /// Whether each of the template's lines with statements ran; empty if not requested.
    pub lines: Lines,
    /// Lines that a GPU's compiler may see, but that the stand-in for the GPU does not compile.
    pub unseen: Unseen,
    /// How waves accessed memory, by the template's lines; empty if not requested.
    pub traffic: BTreeMap<AtLine, [u64; 3]>,
    /// Why kernels did not run although they may be right: a word that the stand-in for the device does not know.
    pub unknown: Option<Unknown>,
    /// What else has to be known of the template, whatever came out.
    pub notes: Vec<String>,
}

/// How long one kernel of a check ran.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The shape, types and parameters.
    pub case: String,
    /// Wall time of all its launches and of what they were compared with, in milliseconds.
    pub ms: f64,
}

/// Observes a running check; `()` observes nothing.
pub trait Watch {
    /// A kernel is about to run. `so_far` is the template's result so far; an implementation that takes it leaves
    /// nothing there.
    fn before(&mut self, _so_far: &mut Checked, _case: &str) -> Go {
        Go::Run
    }

    /// A case that is not run, because its kernel was wrong on the same inputs.
    fn passed_over(&mut self) {}

    /// Launches it. `tells` says of a fault where in its template that is.
    fn launch(&mut self, _tells: &(dyn Fn(GpuError) -> Wrong + Sync), launch: &mut dyn FnMut()) {
        launch();
    }

    /// It ran; whether the device is of no use from here on.
    fn after(&mut self, _is_lost: bool) {}
}

impl Watch for () {}

/// What to do with a case.
pub enum Go {
    Run,
    /// It ran in another process.
    Known {
        /// Whether nothing was wrong.
        is_right: bool,
    },
}

/// One launch: with which scalars, and where its tensors lie.
struct Case<'a> {
    /// Which of the trial's.
    i: usize,
    scalars: &'a Scalars,
    placement: Placement,
    fence: Option<Edge>,
    /// Whether the same inputs were there before.
    is_again: bool,
    /// Whether a kernel with workspace is launched over what it left there, too.
    is_twice: bool,
}

impl Checked {
    pub(super) fn new(op: String, variant: String, precision: Precision) -> Self {
        Self {
            op,
            variant,
            precision,
            n_cases: 0,
            worst: 0.0,
            rounding: None,
            n_compiled: 0,
            compile_ms: 0,
            ran: false,
            uses: None,
            costs: Vec::new(),
            n_untried: 0,
            failures: Vec::new(),
            lines: Lines::new(),
            unseen: Unseen::default(),
            traffic: BTreeMap::new(),
            unknown: None,
            notes: Vec::new(),
        }
    }

    /// Takes what there is so far, and leaves nothing.
    pub(super) fn take(&mut self) -> Self {
        let nothing = Self::new(self.op.clone(), self.variant.clone(), self.precision);
        std::mem::replace(self, Self { ran: self.ran, ..nothing })
    }

    /// Takes more of the same template in.
    pub(super) fn add(&mut self, more: Self) {
        self.n_cases += more.n_cases;
        self.worst = self.worst.max(more.worst);
        self.rounding = rounding::worse(self.rounding, more.rounding);
        self.n_compiled += more.n_compiled;
        self.compile_ms += more.compile_ms;
        self.ran |= more.ran;
        if let Some(uses) = more.uses {
            self.uses = Some(self.uses.map_or(uses, |before| before.with(uses)));
        }
        self.costs.extend(more.costs);
        self.n_untried += more.n_untried;
        coverage::add_all(more.lines, &mut self.lines);
        self.unseen.extend(more.unseen);
        for (at, found) in more.traffic {
            let all = self.traffic.entry(at).or_default();
            all.iter_mut().zip(found).for_each(|(all, found)| *all += found);
        }
        self.unknown = self.unknown.take().or(more.unknown);
        let new = more.notes.into_iter().filter(|note| !self.notes.contains(note)).collect::<Vec<_>>();
        self.notes.extend(new);
        for failure in more.failures {
            self.fail_times(failure);
        }
    }

    /// What of it was not run, though nothing is known to be wrong with that; none if all was.
    pub fn not_run(&self) -> Option<String> {
        let unknown = self.unknown.as_ref().map(|unknown| unknown.text.clone());
        let all: Vec<String> = unknown.into_iter().chain(self.unseen.told()).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether nothing went wrong.
    pub fn is_right(&self) -> bool {
        self.failures.is_empty()
    }

    pub(super) fn fail(&mut self, case: String, wrong: Wrong) {
        self.fail_times(Failure { case, wrong, n_more: 0 });
    }

    /// A failure; one in a compiler's words that were heard before is counted only.
    fn fail_times(&mut self, failure: Failure) {
        let words = failure.wrong.compilers_words();
        let same = self.failures.iter_mut().find(|other| words.is_some() && other.wrong.compilers_words() == words);
        match same {
            Some(told) => told.n_more += 1 + failure.n_more,
            None => self.failures.push(failure),
        }
    }

    fn has_difference(&self) -> bool {
        self.failures.iter().any(|failure| failure.wrong.is_different())
    }

    /// Runs one kernel for each of its trial's scalars.
    pub(super) fn run(
        &mut self,
        on: &Running<'_>,
        template: &Template,
        trial: &Trial,
        (kernel, object, marked): (&Rendered, &[u8], Option<&Marked>),
        watch: &mut dyn Watch,
    ) {
        let (driver, lds, weights) = (on.driver, on.lds.as_ref(), &weights(template));
        let start = Instant::now();
        // Loaded once: what a kernel keeps between launches, it keeps in its object.
        let mut loaded: Option<Result<Kernel, Wrong>> = None;
        let mut right: BTreeMap<usize, Vec<Written>> = BTreeMap::new();
        // Wrong in another process, perhaps so that it ended.
        let mut told: BTreeSet<usize> = BTreeSet::new();
        for case in cases(on, trial, kernel, weights) {
            if self.n_cases > 0 && on.is_late() {
                break;
            }
            let is_told = told.contains(&case.i) || case.is_again && !right.contains_key(&case.i);
            if is_told {
                watch.passed_over(); // it was wrong on these inputs
                continue;
            }
            let text = format!("{trial}, {}{}", trial::list(case.scalars), case.note());
            let prepared = known::prepared(trial, case.scalars).and_then(|prepared| {
                let of_rounded = known::of_rounded(trial, kernel, case.scalars, &prepared.0)?;
                Ok((prepared, of_rounded))
            });
            if let Go::Known { is_right } = watch.before(self, &text) {
                if is_right {
                    right.entry(case.i).or_default();
                } else {
                    told.insert(case.i);
                }
                continue;
            }
            let Case { i, scalars, placement, fence, is_twice, .. } = case;
            let setting = Setting { driver, kernel, weights, scalars, placement, fence, is_twice, lds };
            let launch = || {
                let (prepared, of_rounded) = prepared.map_err(Wrong::from)?;
                let load = || driver.load(object, kernel.spec()).map_err(Wrong::from);
                let kernel = loaded.get_or_insert_with(load).as_ref().map_err(Clone::clone)?;
                Ok((setting.launch(kernel, &prepared.0)?, prepared, of_rounded))
            };
            let tells = |fault: GpuError| on.told(template, trial, kernel, Wrong::from(fault));
            let (mut launch, mut launched) = (Some(launch), None);
            watch.launch(&tells, &mut || launched = launch.take().map(|launch| launch()));
            let launched: Result<_, Wrong> = launched.expect("it was launched");
            watch.after(on.target.is_real_gpu() && matches!(launched, Err(Wrong::Device(_))));
            let result = launched.and_then(|(written, prepared, of_rounded)| {
                let known = right.get(&i).map_or(&[][..], Vec::as_slice);
                match setting.compare(&written, known, &prepared, (*of_rounded).as_ref()) {
                    Ok(found) => Ok((written, found)),
                    Err(Wrong::Different(mut difference)) if !self.has_difference() && difference.is_far() => {
                        if on.reads_unwritten_locals(&setting, &prepared.0, &written) {
                            difference.clue = Clue::Local;
                        }
                        Err(difference.into())
                    }
                    Err(wrong) => Err(wrong),
                }
            });
            match result {
                Ok((written, (worst, rounding))) => {
                    right.entry(i).or_default().extend(written);
                    self.worst = self.worst.max(worst);
                    self.rounding = rounding::worse(self.rounding, rounding);
                }
                Err(wrong) => {
                    let wrong = on.told(template, trial, kernel, wrong);
                    if let Wrong::Different(difference) = &wrong {
                        self.worst = self.worst.max(difference.fraction);
                    }
                    self.fail(text, wrong);
                }
            }
            if let (Some(marked), Some(Ok(loaded))) = (marked, &loaded) {
                marked.add(&lines_that_ran(loaded).unwrap_or_default(), &mut self.lines);
            }
            self.n_cases += 1;
        }
        if on.counts {
            self.count(on, template, trial, kernel);
        }
        self.costs.push(Cost { case: trial.to_string(), ms: 1e3 * start.elapsed().as_secs_f64() });
    }
}

/// A line of a template, and whether LDS is meant: what waves do there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AtLine {
    /// `file:line`.
    pub place: String,
    pub is_lds: bool,
}

impl Checked {
    /// Takes in how the waves of a kernel went to memory: how often, what it took, and what it would at best.
    fn count(&mut self, on: &Running<'_>, template: &Template, trial: &Trial, kernel: &Rendered) {
        let Trial { problem, params, .. } = trial;
        let Some(origins) = Origins::trace(on.library, template, problem, params, on.target, kernel) else { return };
        for ((line, space), found) in take_traffic() {
            let Some(place) = origins.of_line(line as usize) else { continue };
            let at = AtLine { place: place.to_string(), is_lds: space == Space::Lds };
            let all = self.traffic.entry(at).or_default();
            all.iter_mut().zip([found.n, found.taken, found.least]).for_each(|(all, found)| *all += found);
        }
    }
}

impl Running<'_> {
    /// A fault with the line of the template, and the command that prints what was rendered.
    fn told(&self, template: &Template, trial: &Trial, kernel: &Rendered, wrong: Wrong) -> Wrong {
        let error = match wrong {
            Wrong::Device(error) => error,
            wrong => return wrong,
        };
        let GpuError::Fault { lines, .. } = &*error else { return Wrong::Device(error) };
        if lines.is_empty() {
            return Wrong::Device(error);
        }
        let Trial { problem, params, .. } = trial;
        let origins = Origins::trace(self.library, template, problem, params, self.target, kernel);
        let place = |line: &u32| Some((*line, origins.as_ref()?.of_line(*line as usize)?.clone()));
        let places = lines.iter().filter_map(place).collect();
        let show = show_command(&template.label(), problem, params, self.target, "--line-numbers");
        Wrong::Fault { error, places, show }
    }

    /// Whether a kernel writes something else where local variables hold 0 in the place of what no kernel writes there.
    fn reads_unwritten_locals(&self, setting: &Setting<'_>, inputs: &Tensors, written: &[Written]) -> bool {
        if !self.target.is_simulated {
            return false;
        }
        let mut request = Request::new(setting.kernel, self.target);
        request.options.push(LOCALS_ARE_ZERO.into());
        let Ok(object) = self.store.get_all(&[request], &()).remove(0) else { return false };
        let Ok(loaded) = self.driver.load(&object.object, setting.kernel.spec()) else { return false };
        setting.launch(&loaded, inputs).is_ok_and(|again| again != written)
    }
}

/// The command that prints what a template renders to.
pub fn show_command(label: &str, problem: &Problem, params: &Params, target: &Target, flags: &str) -> String {
    let arch = target.arch.split(':').next().unwrap_or_default();
    let mut show = format!("gptoss-jit kernels show {label} --arch {arch} {flags}");
    show.truncate(show.trim_end().len());
    show += &format!(" --precision {}", problem.precision.name());
    for (name, value) in values(problem) {
        show += &format!(" --with {name}={value}");
    }
    for (name, value) in params {
        show += &format!(" --set {name}={value}");
    }
    show
}

/// Dims, constants, flags and types.
fn values(problem: &Problem) -> Vec<(&str, String)> {
    let Problem { dims, constants, flags, dtypes, .. } = problem;
    let dims = dims.iter().map(|(name, value)| (name.as_str(), value.to_string()));
    let constants = constants.iter().map(|(name, value)| (name.as_str(), value.to_string()));
    let flags = flags.iter().map(|(name, value)| (name.as_str(), value.to_string()));
    let dtypes = dtypes.iter().map(|(name, value)| (name.as_str(), value.to_string()));
    dims.chain(constants).chain(flags).chain(dtypes).collect()
}

/// All cases in order, then again from the last to the first, where that is cheap: on a GPU and in the simulator those
/// whose tensors then lie otherwise, and the first. Of a thin trial only the first and the last are launched twice over
/// the same workspace, and lie otherwise, then once: where a workspace lies does not change what may be in it. At
/// shapes after the first one that is so with the first types and parameters alone, and others are run once.
fn cases<'a>(
    on: &Running<'_>,
    trial: &'a Trial,
    kernel: &Rendered,
    weights: &BTreeSet<String>,
) -> impl Iterator<Item = Case<'a>> {
    let is_awkward = Placement::is_awkward(kernel, weights, on.driver);
    let is_host = on.target.language() == Language::C;
    let fence = |edge| Some(edge).filter(|_| on.is_fenced);
    let (begin, end) = (fence(Edge::Begin), fence(Edge::End));
    let last = trial.scalars.len().saturating_sub(1);
    let is_whole = move |i: usize| !trial.is_once && (!trial.is_thin || i == 0 || i == last);
    let all = trial.scalars.iter().enumerate();
    let first = all.clone().map(move |(i, scalars)| {
        let placement = Placement::Plain;
        Case { i, scalars, placement, fence: begin, is_again: false, is_twice: is_whole(i) }
    });
    let lies_otherwise = move |i: usize| is_awkward && is_whole(i);
    let is_again = move |i: usize| !trial.is_once && (lies_otherwise(i) || is_host || i == 0);
    let again = all.rev().filter(move |(i, _)| is_again(*i)).map(move |(i, scalars)| {
        let placement = if is_awkward { Placement::Awkward } else { Placement::Plain };
        Case { i, scalars, placement, fence: end, is_again: !is_awkward, is_twice: !trial.is_thin }
    });
    first.chain(again)
}

impl Case<'_> {
    fn note(&self) -> String {
        let again = if self.is_again { ", launched again after the others" } else { "" };
        let fence = match self.fence {
            Some(Edge::Begin) => ", no memory before its tensors",
            Some(Edge::End) => ", no memory after its tensors",
            None => "",
        };
        format!("{}{again}{fence}", self.placement.note())
    }
}

impl Setting<'_> {
    /// Compares what several launches wrote; gives the largest error as a fraction of the tolerance, and what bf16
    /// precision costs. What is the same bytes as outputs that are `known` to be right is not looked at again.
    fn compare(
        &self,
        written: &[Written],
        known: &[Written],
        (inputs, want): &(Tensors, Outputs),
        of_rounded: Option<&Outputs>,
    ) -> Result<(f64, Option<Rounding>), Wrong> {
        let (mut worst, mut rounding): (f64, _) = (0.0, None);
        for (i, one) in written.iter().enumerate() {
            if written[..i].contains(one) || known.contains(one) {
                continue;
            }
            let got: Tensors = tensors(one);
            worst = worst.max(compare::outputs(self.kernel, &trial::whole(self.scalars), &got, (inputs, want))?);
            if let Some(of_rounded) = of_rounded {
                rounding = rounding::worse(rounding, rounding::examine(&got, want, of_rounded)?);
            }
        }
        Ok((worst, rounding))
    }
}
