//! Runs the workloads and takes their times.

use std::time::Instant;

use super::limits::MachineLimits;
use super::machine::CpuTimes;
use super::roofline::{Cost, Model, Rows, Sequence};
use super::suite::{self, BenchEffort, OTHER_STEPS, Workload};
use engine::plan::profile::{Profile, Profiled};
use engine::scheduler::{Event, Request, Sampling};
use engine::times::HostTimes;
use engine::{Engine, EngineError};

/// What was found of one work.
pub struct Measured {
    pub work: Workload,
    /// Positions that a sequence has, on average.
    pub context: usize,
    /// Tokens of one repeat, all sequences together: of a prompt those taken in, else those generated.
    pub tokens: usize,
    /// Steps of one repeat.
    pub steps: usize,
    /// Time of every repeat, rising.
    pub seconds: Vec<f64>,
    /// What one repeat takes at least.
    pub cost: Cost,
    /// The host's part in steps that followed, or in the run itself.
    pub host: HostTimes,
    /// The share of the cores that others took meanwhile.
    pub others: Option<f64>,
    /// Kernel by kernel; of how many steps, [`Self::profiled_steps`] says.
    pub profile: Option<Profile>,
    /// What a figure of the profile's table is of: a step of decoding, a whole prompt, a whole run.
    pub profiled_steps: usize,
    /// Seconds that loading the engine took, up to its first step.
    pub load_s: f64,
}

/// Steps that come before decoding is measured: the first of a shape are launched and captured.
const WARM_STEPS: usize = 3;

/// Steps whose parts on the host are timed.
const HOST_STEPS: usize = 5;

/// Steps that are timed kernel by kernel.
const PROFILED_STEPS: usize = 2;

/// Decode steps are measured in this many groups, each of which is a repeat.
const GROUPS: usize = 5;

const _: () = assert!(WARM_STEPS + HOST_STEPS + PROFILED_STEPS < OTHER_STEPS);

impl Measured {
    /// The middle of the repeats' times, in seconds.
    pub fn median_s(&self) -> f64 {
        self.seconds[self.seconds.len() / 2]
    }

    /// Tokens per second, by the median.
    pub fn tok_per_s(&self) -> f64 {
        self.tokens as f64 / self.median_s()
    }

    /// How far apart the repeats are, as a fraction of the median; `None` of one.
    pub fn spread(&self) -> Option<f64> {
        let [first, .., last] = &self.seconds[..] else { return None };
        Some((last - first) / self.median_s())
    }

    /// What no machine of these limits can pass, in tokens per second; `host` are those of the processor beside the
    /// device, where it computes a part.
    pub fn limit_tok_per_s(&self, limits: &MachineLimits, host: Option<&MachineLimits>) -> f64 {
        self.tokens as f64 / self.cost.least_s(limits, host)
    }
}

/// Does the works, on one engine.
pub struct Bench<'a> {
    pub engine: &'a mut Engine,
    /// What it costs at least.
    pub model: &'a Model,
    /// How much is measured.
    pub effort: BenchEffort,
    /// Whether kernels are timed.
    pub profiles: bool,
    /// Seconds that loading took.
    pub load_s: f64,
}

/// A stretch of time, and what others did in it.
struct Clock {
    start: Instant,
    times: Option<CpuTimes>,
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), times: CpuTimes::now() }
    }

    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn others(&self) -> Option<f64> {
        self.times.zip(CpuTimes::now()).map(|(start, end)| end.others_since(start))
    }
}

impl Bench<'_> {
    /// Measures one workload.
    pub fn measure(&mut self, work: Workload) -> Result<Measured, EngineError> {
        let measured = match work {
            Workload::Prefill { tokens } => self.prefill(work, tokens),
            Workload::Decode { batch, context } => self.decode(work, batch, context),
            Workload::Getp { prompts, new_tokens, slots } => self.getp(work, prompts, new_tokens, slots),
        };
        self.engine.abort();
        measured
    }

    /// A prompt and its first token; once before the repeats that count, so that nothing is done for the first time.
    fn prefill(&mut self, work: Workload, tokens: usize) -> Result<Measured, EngineError> {
        self.prompt(tokens, 0)?;
        let (clock, before) = (Clock::start(), self.engine.host_times());
        let mut seconds = Vec::new();
        for repeat in 0..self.effort.repeats {
            let start = Instant::now();
            self.prompt(tokens, 1 + repeat)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let (others, host) = (clock.others(), self.engine.host_times() - before);
        let profile = self.profiled(Profiled::Every { rounds: self.effort.rounds }, |bench| bench.prompt(tokens, 0))?;
        let steps = host.steps / self.effort.repeats;
        let mut cost = self.model.cost(Rows::Prompt { tokens });
        if let Some(copied_s) = self.engine.executor().stream_plan().and_then(|plan| plan.copies_s(tokens)) {
            cost = cost.streamed(steps as f64 * copied_s);
        }
        Ok(self.measured(work, Found { tokens, steps, seconds, cost, host, others, profile, profiled_steps: 1 }))
    }

    fn prompt(&mut self, tokens: usize, salt: usize) -> Result<(), EngineError> {
        self.submit(tokens, salt, 1)?;
        while !self.engine.is_idle() {
            self.engine.step()?;
        }
        Ok(())
    }

    /// Steps of one token for every sequence, once all of them have their prompts behind them.
    fn decode(&mut self, work: Workload, batch: usize, context: usize) -> Result<Measured, EngineError> {
        let most = self.engine.kv_layout().capacity_tokens - context;
        for sequence in 0..batch {
            self.submit(context, sequence, most)?;
        }
        while self.step()? < batch {}
        self.steps(WARM_STEPS)?;

        let clock = Clock::start();
        let n_groups = GROUPS.min(self.effort.steps);
        let of_group = self.effort.steps / n_groups;
        let mut seconds = Vec::new();
        for _ in 0..n_groups {
            let start = Instant::now();
            self.steps(of_group)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        let others = clock.others();

        let before = self.engine.host_times();
        self.steps(HOST_STEPS)?;
        let host = self.engine.host_times() - before;
        let which = Profiled::Every { rounds: self.effort.rounds };
        let profile = self.profiled(which, |bench| bench.steps(PROFILED_STEPS))?;
        let mean = work.context(self.effort) as f64;
        let cost = self.model.cost(Rows::Decode { batch, context: mean }).times(of_group as f64);
        let (tokens, steps) = (batch * of_group, of_group);
        let profiled_steps = PROFILED_STEPS;
        Ok(self.measured(work, Found { tokens, steps, seconds, cost, host, others, profile, profiled_steps }))
    }

    /// All prompts from their first to their last token.
    fn getp(
        &mut self,
        work: Workload,
        prompts: usize,
        new_tokens: usize,
        slots: usize,
    ) -> Result<Measured, EngineError> {
        let (clock, before) = (Clock::start(), self.engine.host_times());
        self.run(prompts, new_tokens)?;
        let (seconds, others) = (vec![clock.seconds()], clock.others());
        let host = self.engine.host_times() - before;
        let profile = self.profiled(Profiled::Some, |bench| bench.run(prompts, new_tokens))?;
        let cost = self.run_cost(prompts, new_tokens, slots);
        let tokens = prompts * new_tokens;
        let steps = host.steps;
        Ok(self.measured(work, Found { tokens, steps, seconds, cost, host, others, profile, profiled_steps: 1 }))
    }

    fn run(&mut self, prompts: usize, new_tokens: usize) -> Result<(), EngineError> {
        for i in 0..prompts {
            self.submit(suite::prompt_tokens(i), i, new_tokens)?;
        }
        while !self.engine.is_idle() {
            self.engine.step()?;
        }
        Ok(())
    }

    /// What a run takes at least.
    fn run_cost(&self, prompts: usize, new: usize, slots: usize) -> Cost {
        let sequence = |i: usize| Sequence { prompt: suite::prompt_tokens(i), cached: 0, new };
        self.model.cost_of_run(&(0..prompts).map(sequence).collect::<Vec<_>>(), slots)
    }

    /// Times kernels while something runs, if that is wanted.
    fn profiled(
        &mut self,
        which: Profiled,
        run: impl FnOnce(&mut Self) -> Result<(), EngineError>,
    ) -> Result<Option<Profile>, EngineError> {
        if !self.profiles {
            return Ok(None);
        }
        self.engine.start_profile(which);
        run(self)?;
        Ok(self.engine.take_profile())
    }

    fn measured(&self, work: Workload, found: Found) -> Measured {
        let Found { tokens, steps, mut seconds, cost, host, others, profile, profiled_steps } = found;
        seconds.sort_by(f64::total_cmp);
        let (context, load_s) = (work.context(self.effort), self.load_s);
        Measured { work, context, tokens, steps, seconds, cost, host, others, profile, profiled_steps, load_s }
    }

    fn submit(&mut self, tokens: usize, salt: usize, max_new_tokens: usize) -> Result<(), EngineError> {
        let prompt = prompt(self.engine.config().vocab_size, tokens, salt);
        self.engine.submit(Request::new(prompt, max_new_tokens, Vec::new(), Sampling::GREEDY))?;
        Ok(())
    }

    fn steps(&mut self, n: usize) -> Result<(), EngineError> {
        (0..n).try_for_each(|_| self.step().map(drop))
    }

    /// Runs a step; gives how many tokens came out.
    fn step(&mut self) -> Result<usize, EngineError> {
        Ok(self.engine.step()?.iter().filter(|event| matches!(event, Event::Token { .. })).count())
    }
}

/// What one kind of work tells of itself.
struct Found {
    tokens: usize,
    steps: usize,
    seconds: Vec<f64>,
    cost: Cost,
    host: HostTimes,
    others: Option<f64>,
    profile: Option<Profile>,
    profiled_steps: usize,
}

/// Token ids that spread over the vocabulary: neighbours should not share experts by accident.
fn prompt(vocab_size: usize, len: usize, salt: usize) -> Vec<u32> {
    (0..len).map(|i| ((i + 31 * salt + 1).wrapping_mul(2_654_435_761) % vocab_size) as u32).collect()
}
