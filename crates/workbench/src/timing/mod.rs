//! Times kernels: one problem at one number of rows, on a device, with fresh random inputs.
//!
//! A [`Bench`] puts the inputs on the device, checks each candidate on them ([`gate`]) and times it: launches over
//! copies of the weights that no cache holds together ([`memory`]), captured and replayed as one where the device can,
//! so that the gaps between launches are those of a real step. [`search`] says which parameters are tried.

mod gate;
mod gaussian_process;
mod memory;
mod run;
pub(crate) mod search;
mod setup;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::code_object::KernelFacts;
use gpu::{Driver, GpuError, Graph, Kernel, Launch};

use crate::check::{LdsFill, Wrong};
use expression::ExpressionError;
use gate::{Gate, Passed};
use kernel::object::key::Digest;
use kernel::object::store::{Progress, StoreError};
use kernel::pipeline::{LoadedKernel, Pipeline, PipelineError};
use kernel::template::launch::ArgSpec;
use kernel::template::library_error::LibraryError;
use kernel::template::render::{RenderError, Rendered, render};
use kernel::template::work::Work;
use kernel::template::{Params, Problem, Template};
pub use memory::Weights;
use memory::{Launches, Memory};
use reference::{self, Case, ReferenceError, Tensors};
pub use run::work;

/// Rounds in which every candidate is timed once: enough for a median to choose by.
pub const ROUNDS: usize = 5;

/// A replay takes at least so long, in microseconds: much longer than taking the time does.
const REPLAY_US: f64 = 400.0;

/// A candidate that is slower than the best by this factor in every round so far is not timed again.
const DROP_FACTOR: f64 = 1.5;

/// A candidate is not timed in rounds if a launch by itself takes longer than the best by this factor and this many
/// microseconds, which is what a launch by itself may take more.
const SLOW: (f64, f64) = (2.0, 50.0);

/// One problem at one number of rows.
pub struct Bench<'a> {
    pipeline: &'a Pipeline,
    problem: &'a Problem,
    scalars: BTreeMap<String, u64>,
    memory: Memory,
    gate: Gate,
    lds: Option<LdsFill>,
    work: Work,
    /// The least time of a launch of any candidate so far, in microseconds.
    best_us: Cell<f64>,
}

/// The problem and rows to time.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Every scalar argument, `n_tokens` above all.
    pub scalars: BTreeMap<String, u64>,
    /// The kind of inputs, by a name that the op's reference knows.
    pub inputs: Option<String>,
    /// What the device's last cache holds, in bytes: launches that follow each other touch more.
    pub cache_bytes: usize,
    /// Of the random inputs.
    pub seed: u64,
}

/// A template with complete, legal parameters.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub template: Arc<Template>,
    pub params: Params,
}

/// The result of a candidate that is right.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Time of one launch in each round, in microseconds, rising.
    pub(crate) times_us: Vec<f64>,
    /// The largest error of the gate, as a fraction of the tolerance.
    pub(crate) worst: f64,
    /// SHA-256 of what the gate looked at, in hex.
    pub(crate) evidence: String,
    /// SHA-256 of the object, in hex.
    pub(crate) object: String,
    /// What a GPU's object uses.
    pub(crate) uses: Option<KernelFacts>,
    /// SHA-256 of the rendered source, in hex.
    pub(crate) source: String,
}

/// Why nothing can be timed.
#[derive(Debug, thiserror::Error)]
pub enum TimingError {
    /// The op has no contract, or no template fits.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A shape does not come to a number.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The op has no reference, or the case does not fit it.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("could not put the inputs on the device")]
    Device(#[from] GpuError),
    /// A tensor that a run is to keep is none of its.
    #[error("the run keeps what it does not have: {0}")]
    Keep(String),
    /// The kernel that fills the device's LDS could not be had.
    #[error("could not fill the LDS of the device")]
    Lds(#[source] Wrong),
}

/// Why one candidate has no time.
#[derive(Debug, thiserror::Error)]
pub enum CandidateError {
    /// It cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// It cannot be compiled.
    #[error(transparent)]
    Compile(#[from] StoreError),
    /// Its object is not to be used, or the device refuses it.
    #[error(transparent)]
    Load(#[from] PipelineError),
    /// It gives something else than the reference.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// A launch expression does not come to a number.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The device refuses a launch.
    #[error(transparent)]
    Device(#[from] GpuError),
}

impl Timed {
    /// The middle of its times, in microseconds.
    pub fn median_us(&self) -> f64 {
        quantile(&self.times_us, 0.5)
    }

    /// How far apart the middle half of its times is, as a fraction of the middle.
    pub fn spread(&self) -> f64 {
        (quantile(&self.times_us, 0.75) - quantile(&self.times_us, 0.25)) / self.median_us()
    }
}

/// A quantile of rising numbers, between neighbours where it falls between them.
fn quantile(rising: &[f64], q: f64) -> f64 {
    let at = q * (rising.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    rising[low] + part * (rising[(low + 1).min(rising.len() - 1)] - rising[low])
}

/// A candidate on the device, right, with its launches.
struct ReadyCandidate {
    kernel: LoadedKernel,
    launches: Launches,
    graph: Option<Graph>,
    /// The time of one launch by itself, of a candidate that is too slow to be timed in rounds.
    slow_us: Option<f64>,
    object: String,
    passed: Passed,
}

impl<'a> Bench<'a> {
    /// Makes inputs, puts them on the device, and computes what should come out, of a sample where all of it would take
    /// long. `weights` are kept from one number of rows to the next.
    ///
    /// # Errors
    /// [`TimingError`].
    pub fn new(
        pipeline: &'a Pipeline,
        problem: &'a Problem,
        setup: &Setup,
        weights: &mut Weights,
    ) -> Result<Self, TimingError> {
        let begun = Instant::now();
        let library = pipeline.library();
        let case = case(problem, setup);
        let mut inputs: Tensors = reference::inputs(&problem.ops, &case, setup.seed)?;
        let declared = run::arguments(library, problem)?;
        let args: Vec<ArgSpec> = declared.iter().map(|arg| ArgSpec::of(arg, problem)).collect();
        weights.keep(&args, &setup.scalars, &mut inputs)?;
        let work = run::work_of(library, problem, &args, &setup.scalars, &inputs)?;
        let memory = Memory::new(pipeline.driver(), &args, setup, &inputs, &work, weights)?;
        let placed_s = begun.elapsed().as_secs_f64();
        let axes = run::sample_axes(library, problem)?;
        let gate = Gate::new(&declared, &axes, problem, &case, &inputs, &work)?;
        let target = pipeline.target();
        let lds = match target.is_real_gpu() {
            true => LdsFill::new(pipeline.library(), pipeline.store(), target, pipeline.driver()),
            false => Ok(None),
        };
        let lds = lds.map_err(TimingError::Lds)?;
        let (scalars, best_us) = (setup.scalars.clone(), Cell::new(f64::INFINITY));
        let reference_s = begun.elapsed().as_secs_f64() - placed_s;
        tracing::debug!(
            "{}: {placed_s:.3} s to put inputs there, {reference_s:.3} s for the reference",
            problem.ops.join("+")
        );
        Ok(Self { pipeline, problem, scalars, memory, gate, lds, work, best_us })
    }

    /// What a launch has to do at least.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// How much of the outputs is compared with the reference, in words.
    pub(crate) fn compared(&self) -> &str {
        self.gate.describe()
    }

    /// Copies of the weights that launches go round in.
    pub(crate) fn n_copies(&self) -> usize {
        self.memory.n_copies()
    }

    /// Compiles candidates, checks them and times those that are right, in rounds in which each takes its turn. Before
    /// each launch `runs` gets the candidate's index.
    pub fn time(
        &self,
        candidates: Vec<Candidate>,
        n_rounds: usize,
        progress: &dyn Progress,
        runs: &mut dyn FnMut(usize),
    ) -> Vec<(Candidate, Result<Timed, CandidateError>)> {
        let (begun, n_candidates) = (Instant::now(), candidates.len());
        let rendered: Vec<_> = candidates.iter().map(|candidate| self.render(candidate)).collect();
        let requests: Vec<_> = rendered.iter().flatten().map(|rendered| self.pipeline.request(rendered)).collect();
        let mut objects = self.pipeline.store().get_all(&requests, progress).into_iter();
        let compiled_s = begun.elapsed().as_secs_f64();
        let mut ready = Vec::new();
        for (i, (candidate, rendered)) in candidates.into_iter().zip(rendered).enumerate() {
            let object = rendered.as_ref().ok().and_then(|_| objects.next());
            let loaded = rendered.map_err(CandidateError::from).and_then(|rendered| {
                let object = object.expect("one for each request")?;
                let digest = Digest::of(&object.object).to_string();
                runs(i); // what loads may run already
                Ok((self.pipeline.load(rendered, &object.object, object.origin)?, digest))
            });
            let made = loaded.and_then(|(kernel, object)| self.ready(kernel, object));
            ready.push((candidate, made));
        }
        let checked_s = begun.elapsed().as_secs_f64();
        let timed = self.time_all(ready, n_rounds, runs);
        let (all_s, rows) = (begun.elapsed().as_secs_f64(), self.scalars.get("n_tokens").copied().unwrap_or_default());
        tracing::debug!(
            "{} at {rows} rows: {n_candidates} kernels, {compiled_s:.3} s to have them, {:.3} s to check them, {:.3} s \
             to time them",
            self.problem.ops.join("+"),
            checked_s - compiled_s,
            all_s - checked_s
        );
        timed
    }

    fn render(&self, candidate: &Candidate) -> Result<Rendered, RenderError> {
        let Candidate { template, params } = candidate;
        render(self.pipeline.library(), template, self.problem, params, self.pipeline.target())
    }

    /// Checks a kernel, and prepares its launches.
    fn ready(&self, kernel: LoadedKernel, object: String) -> Result<ReadyCandidate, CandidateError> {
        let driver = self.pipeline.driver();
        let mut launches = self.memory.launches(driver, &kernel.rendered, &self.scalars)?;
        self.memory.reset(driver, &self.gate)?;
        self.lds.as_ref().map(|lds| lds.launch(driver)).transpose()?;
        entered(driver, || driver.launch(&kernel.kernel, &launches.nth(0)))?;
        let passed = self.gate.check(driver, &self.memory, &kernel.rendered)?;
        let once = entered(driver, || driver.launch_timed(&kernel.kernel, &launches.nth(1)))?;
        let once_us = once.as_secs_f64() * 1e6;
        let best_us = self.best_us.get();
        if once_us > SLOW.0 * best_us + SLOW.1 {
            return Ok(ReadyCandidate { kernel, launches, graph: None, slow_us: Some(once_us), object, passed });
        }
        self.best_us.set(best_us.min(once_us));
        launches.repeat((REPLAY_US / once_us.max(0.1)).ceil() as usize);
        let graph = driver.capture(&launches.all(&kernel.kernel))?;
        Ok(ReadyCandidate { kernel, launches, graph, slow_us: None, object, passed })
    }

    fn time_all(
        &self,
        ready: Vec<(Candidate, Result<ReadyCandidate, CandidateError>)>,
        n_rounds: usize,
        runs: &mut dyn FnMut(usize),
    ) -> Vec<(Candidate, Result<Timed, CandidateError>)> {
        let slow_us = |ready: &Result<ReadyCandidate, _>| ready.as_ref().ok().and_then(|ready| ready.slow_us);
        let mut times: Vec<Vec<f64>> = ready.iter().map(|(_, ready)| slow_us(ready).into_iter().collect()).collect();
        let mut failed: Vec<Option<CandidateError>> = ready.iter().map(|_| None).collect();
        for round in 0..=n_rounds {
            let best = times.iter().flatten().copied().fold(self.best_us.get(), f64::min);
            for (i, (_, ready)) in ready.iter().enumerate() {
                let Some(ready) = ready.as_ref().ok().filter(|ready| ready.slow_us.is_none()) else { continue };
                let fastest = times[i].iter().copied().fold(f64::INFINITY, f64::min);
                if failed[i].is_some() || (round > 1 && fastest > DROP_FACTOR * best) {
                    continue;
                }
                runs(i);
                match ready.time_us(self.pipeline.driver()) {
                    Ok(time_us) if round > 0 => times[i].push(time_us), // the first round warms up
                    Ok(_) => {}
                    Err(error) => failed[i] = Some(error.into()),
                }
            }
        }
        let timed = ready.into_iter().zip(times).zip(failed);
        timed
            .map(|(((candidate, ready), times), failed)| {
                let result = ready.and_then(|ready| match failed {
                    Some(error) => Err(error),
                    None => Ok(ready.timed(times)),
                });
                (candidate, result)
            })
            .collect()
    }
}

impl ReadyCandidate {
    /// Time of one launch, of one replay of all.
    fn time_us(&self, driver: &dyn Driver) -> Result<f64, GpuError> {
        let kernel: &Kernel = &self.kernel.kernel;
        let total = match &self.graph {
            Some(graph) => driver.replay_timed(graph)?,
            None => entered(driver, || {
                self.launches.each().map(|launch| driver.launch_timed(kernel, &launch)).sum::<Result<Duration, _>>()
            })?,
        };
        Ok(total.as_secs_f64() * 1e6 / self.launches.len() as f64)
    }

    fn timed(self, mut times_us: Vec<f64>) -> Timed {
        times_us.sort_by(f64::total_cmp);
        let source = Digest::of(self.kernel.rendered.source.as_bytes()).to_string();
        let Passed { worst, evidence } = self.passed;
        let (uses, object) = (self.kernel.uses, self.object);
        Timed { times_us, worst, evidence, object, uses, source }
    }
}

/// Does something in the place from which launches are cheapest.
fn entered<T: Send>(driver: &dyn Driver, work: impl FnOnce() -> T + Send) -> T {
    let (mut work, mut done) = (Some(work), None);
    driver.enter(&mut || done = work.take().map(|work| work()));
    done.expect("a driver does the work")
}

pub(crate) fn case(problem: &Problem, setup: &Setup) -> Case {
    let Problem { dims, constants, flags, dtypes, .. } = problem.clone();
    let scalars = setup.scalars.iter().map(|(name, &value)| (name.clone(), value as f64)).collect();
    let activation = Some(problem.precision.activation());
    Case { dims, constants, flags, dtypes, activation, inputs: setup.inputs.clone(), scalars }
}

/// Launches of one kernel, as drivers take them.
type Captured<'k> = Vec<(&'k Kernel, Launch<'k>)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let rising = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.0, 0.5, 1.0].map(|q| quantile(&rising, q)), [1.0, 3.0, 8.0]);
        assert_eq!(quantile(&[5.0], 0.75), 5.0);
    }
}
