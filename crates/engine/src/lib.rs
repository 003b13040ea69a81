//! The engine as a library: load a model, submit requests, step, take tokens. See `examples/generate.rs` and
//! `examples/batch.rs`.
//!
//! [`graph`] is the forward pass, [`plan`] launches it on a [`device`], and [`scheduler`] decides which rows go into
//! the next step.

mod ahead;
pub mod blueprint;
mod changes;
pub mod device;
mod error;
pub mod everything;
pub mod exchange;
pub(crate) mod extras;
mod forced;
pub mod graph;
mod kept;
pub mod kernel_driver;
mod part;
pub mod plan;
pub mod prefix_store;
mod prompt_error;
mod ranks;
pub mod scheduler;
pub mod times;
pub mod watchdog;

pub use kernel::worker;

use std::time::Instant;

use bytemuck::cast_slice;

use crate::graph::forward::n_meetings;
use crate::graph::kv_cache::{BLOCK_TOKENS, KvLayout};
use crate::graph::{StepLimits, StepShape};
use crate::plan::error::PlanError;
use crate::plan::executor::{Executor, Written};
use crate::plan::memory::LoadProgress;
use crate::plan::profile::{Profile, Profiled};
use crate::scheduler::{BlockCopy, Event, Figures, Request, RequestId, Row, Scheduler, SchedulerOptions, Step};
use ahead::{Ahead, Done};
use blueprint::ModelOptions;
pub use error::EngineError;
use exchange::{Exchange, ExchangeSizes};
use extras::{Extra, Extras};
pub use forced::Forced;
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;
use model::config::ModelConfig;
use model::config::tensor_parallel::TpRank;
pub use part::HostShare;
pub use prompt_error::PromptError;
use ranks::Ranks;
use times::HostTimes;
use watchdog::{Waiting, Watchdog};

/// Sizes, precision and features that a model is loaded with.
pub struct EngineOptions {
    /// Where kernels come from and run.
    pub pipeline: Pipeline,
    /// Pipelines of the other devices of `--tp`; usually none.
    pub peers: Vec<Pipeline>,
    /// This machine's cores, if they compute a part of the model; none with `peers`.
    pub host: Option<HostShare>,
    /// Sizes and precision of the model.
    pub model: ModelOptions,
    /// The watchdog for hanging devices; synchronous devices need none.
    pub watchdog: Option<Watchdog>,
}

/// Sequences that an engine is sized for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences at a time.
    pub n_slots: usize,
    /// Longest sequence, in tokens.
    pub capacity_tokens: usize,
    /// Most rows of one step that give logits.
    pub max_logit_rows: usize,
}

impl Sizes {
    /// Sizes for sequences of this many tokens, rounded up to whole blocks of the cache.
    pub fn for_tokens(n_slots: usize, n_tokens: usize, max_logit_rows: usize) -> Self {
        Self { n_slots, capacity_tokens: n_tokens.max(1).next_multiple_of(BLOCK_TOKENS), max_logit_rows }
    }
}

/// A loaded model with its scheduler: submit requests, run steps, take tokens.
pub struct Engine {
    config: ModelConfig,
    /// That compute the model together.
    n_devices: usize,
    layout: KvLayout,
    scheduler: Scheduler,
    executor: Ranks,
    ahead: Ahead,
    extras: Extras,
    /// Whether the device's block tables are the scheduler's, up to what changed since they were written.
    tables_written: bool,
    max_logit_rows: usize,
    /// The shape of the step whose rows were last sent to the device.
    shape: Option<StepShape>,
    times: HostTimes,
    watchdog: Option<Watchdog>,
    /// What devices are called.
    devices: Vec<String>,
}

/// Writes into the tables in a step; where more entries changed, all from the first to the last are written as one.
const MAX_TABLE_WRITES: usize = 32;

/// What the sampler gives for a row with a logit that is a NaN or infinity.
const NO_TOKEN: u32 = u32::MAX;

impl Engine {
    /// Builds the graph, compiles missing kernels, and allocates everything a step needs.
    ///
    /// # Errors
    /// [`EngineError::Kv`], [`EngineError::Plan`] and [`EngineError::Part`].
    pub fn load(
        checkpoint: &Checkpoint,
        options: EngineOptions,
        progress: &dyn LoadProgress,
    ) -> Result<Self, EngineError> {
        let EngineOptions { pipeline, peers, host, model, watchdog } = options;
        if host.is_some() && !peers.is_empty() {
            return Err(EngineError::HostWithPeers);
        }
        let size = 1 + peers.len();
        let part = |rank| checkpoint.part(TpRank { rank, size });
        let first = part(0)?;
        // What all have in common: the first one's dimensions are those of each.
        let config = first.config.clone();
        let (layout, limits) = blueprint::sizes(&config, &model, pipeline.target())?;
        let StepLimits { max_rows, max_logit_rows, .. } = limits;
        let devices: Vec<String> =
            std::iter::once(&pipeline).chain(&peers).map(|pipeline| pipeline.driver().describe()).collect();
        let exchange = match size {
            1 => None,
            _ => {
                let drivers = std::iter::once(&pipeline).chain(&peers).map(Pipeline::shared_driver).collect();
                let n_ids = TpRank { rank: 0, size }.ids(config.vocab_size).len();
                let sizes = ExchangeSizes {
                    n_meetings: n_meetings(&config),
                    rows: max_rows,
                    row_len: config.hidden_size,
                    logits: if n_ids < config.vocab_size { max_logit_rows * n_ids } else { 0 },
                    logit_rows: max_logit_rows,
                };
                let _waiting =
                    watchdog.as_ref().map(|dog| dog.begin("a try of each other's memory", 0, &devices, None));
                let exchange = Exchange::new(drivers, sizes);
                Some(exchange.map_err(|source| PlanError::Device { label: "memory of all devices".into(), source })?)
            }
        };
        let load = |rank, part: Checkpoint, pipeline: Pipeline, host: Option<HostShare>| {
            let (of, exchange) = (TpRank { rank, size }, exchange.clone());
            move |progress: &dyn LoadProgress| {
                part::load(&part, of, pipeline, host, &model, exchange.as_ref(), progress)
            }
        };
        let mut others: Vec<Box<dyn FnOnce() -> Result<Executor, EngineError> + Send>> = Vec::new();
        for (i, peer) in peers.into_iter().enumerate() {
            let load = load(1 + i, part(1 + i)?, peer, None);
            others.push(Box::new(move || load(&())));
        }
        let load = load(0, first, pipeline, host);
        let executor = Ranks::load(|| load(progress), others, exchange, |plan| progress.planned(plan))?;
        let ahead = Ahead::new(executor.first(), max_logit_rows)?;
        let scheduler_options = SchedulerOptions {
            max_rows,
            max_logit_rows,
            max_prompt_rows: model.max_prompt_rows.unwrap_or(max_rows).max(1),
            snapshot_tokens: model.prefix_cache.snapshot_tokens,
            drafts: model.drafts,
        };
        let mut engine = Self {
            scheduler: Scheduler::new(&layout, scheduler_options),
            config,
            n_devices: size,
            layout,
            executor,
            ahead,
            extras: Extras::default(),
            tables_written: false,
            max_logit_rows,
            shape: None,
            times: HostTimes::default(),
            watchdog,
            devices,
        };
        engine.write_tables()?;
        Ok(engine)
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Devices that compute the model together.
    pub fn n_devices(&self) -> usize {
        self.n_devices
    }

    /// How the KV cache is laid out.
    pub fn kv_layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The plan, for reports.
    pub fn executor(&self) -> &Executor {
        self.executor.first()
    }

    /// The device's power in watts, if its driver reports it; none with several devices.
    pub fn power_watts(&self) -> Option<f64> {
        self.executor().pipeline().driver().power_watts().filter(|_| self.n_devices == 1)
    }

    /// Starts timing launches; [`Self::take_profile`] returns the times.
    pub fn start_profile(&mut self, which: Profiled) {
        self.executor.start_profile(which);
    }

    /// The times since [`Self::start_profile`]; ends the timing.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.executor.take_profile()
    }

    /// The host's time of all steps so far, by purpose.
    pub fn host_times(&self) -> HostTimes {
        self.times
    }

    /// Queues a request. The context limits its tokens, whatever it requests.
    ///
    /// # Errors
    /// [`EngineError::Prompt`], [`EngineError::Extras`].
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        let room = match self.room_behind(&request.prompt) {
            Err(PromptError::TooLong { .. }) if request.max_new_tokens == 0 && request.prompt_logprobs.is_none() => 0, // it ends at once
            room => room?,
        };
        PromptError::check_ids(&request.generated, self.config.vocab_size)?;
        request.max_new_tokens = request.max_new_tokens.min(room);
        let extra = Extra::take(&mut request, self.config.vocab_size)?;
        let id = self.scheduler.submit(request);
        if let Some(extra) = extra {
            self.extras.add(id, extra);
        }
        Ok(id)
    }

    /// Cancels a request in any phase. The next step reports it ([`crate::scheduler::FinishReason::Cancelled`]) and may
    /// give its slot and blocks to another one. Returns whether it existed: to cancel a request that has ended is no
    /// error.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.scheduler.cancel(request)
    }

    /// Numbers of running and waiting requests, and the cache's contents.
    pub fn figures(&self) -> Figures {
        self.scheduler.figures()
    }

    /// Whether every request has ended and was reported.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Drops all unfinished requests.
    pub fn abort(&mut self) {
        self.scheduler.abort();
        self.extras.clear();
    }

    /// Recovers from a step for which the device had no memory ([`EngineError::is_out_of_memory`]): drops all
    /// unfinished requests, and resets the state to that after loading.
    ///
    /// # Errors
    /// [`EngineError::Step`] where something else is wrong, too; [`PlanError::NoThread`] where several devices compute
    /// the model, which cannot go on.
    pub fn recover(&mut self) -> Result<(), EngineError> {
        self.abort();
        self.scheduler.take_copies();
        self.ahead.forget();
        self.executor().pipeline().driver().wait().map_err(EngineError::Step)?;
        if self.n_devices > 1 {
            return Err(PlanError::NoThread.into());
        }
        // Who knows which writes of the step came to be made.
        self.tables_written = false;
        self.write_tables()
    }

    /// Runs one step: rows of prompts, and one row of every generating sequence, with its drafts. An asynchronous
    /// device is one step ahead, so that it is never idle: the returned tokens are those of the previous step. If a row
    /// needs more than a token, the device computes its logits meanwhile, and its sampler waits for these tokens. A
    /// sequence with drafts is never ahead; a step may then launch nothing and only report.
    ///
    /// # Errors
    /// [`EngineError::Plan`], [`EngineError::Step`], [`EngineError::NotANumber`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let events = self.run_step();
        if events.is_err() {
            self.scheduler.forget_prefixes(); // who knows what the cache holds
        }
        events
    }

    /// Starts the watchdog for a step of this many rows, and for the previous one.
    fn waits_for(&self, n_rows: usize) -> Option<Waiting> {
        let n_before = self.shape.map_or(0, |shape| shape.n_rows);
        let what = || match n_rows.max(n_before) {
            1 => "a step of one row".to_owned(),
            n => format!("a step of {n} rows"),
        };
        let begin = |dog: &Watchdog| dog.begin(what(), n_rows + n_before, &self.devices, self.executor.behind());
        self.watchdog.as_ref().map(begin)
    }

    fn run_step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut clock = Instant::now();
        let (extras, vocab_size) = (&mut self.extras, self.config.vocab_size);
        let step = self.scheduler.next_step(|request, drafts| extras.n_allowed(request, drafts, vocab_size));
        let step = Some(step).filter(|step| !step.rows.is_empty());
        let _waiting = self.waits_for(step.as_ref().map_or(0, |step| step.rows.len()));
        let mut events = self.scheduler.take_events();
        times::lap(&mut clock, &mut self.times.scheduling);
        self.extras.take(&events);
        let mut most_in_flight = 0;
        if let Some(step) = step {
            self.copy_blocks(&step.copies)?;
            self.write_tables()?;
            self.write_rows(&step)?;
            times::lap(&mut clock, &mut self.times.writing);
            let is_asked = self.extras.are_in(&step);
            let compares = self.n_devices > 1 && !is_asked && step.is_greedy();
            let shape = StepShape { compares, ..step.shape() };
            self.shape = Some(shape);
            let mut logprobs_of = Vec::new();
            if is_asked {
                self.executor.run_to_logits(shape)?;
                times::lap(&mut clock, &mut self.times.launching);
                self.tell(0, &mut clock, &mut events)?;
                logprobs_of = self.sample_extras(&step, &mut events)?;
            } else {
                self.executor.run(shape, None)?;
            }
            self.ahead.launched(self.executor.first(), step, logprobs_of)?;
            times::lap(&mut clock, &mut self.times.launching);
            self.times.steps += 1;
            most_in_flight = self.ahead.most();
        }
        self.tell(most_in_flight, &mut clock, &mut events)?;
        Ok(events)
    }

    /// Waits until at most this many steps are in flight, and returns the events of the others.
    fn tell(&mut self, n_left: usize, clock: &mut Instant, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.ahead.len() > n_left
            && let Some(Done { step, tokens, logprobs_of, logprobs }) = self.ahead.next(self.executor.first())?
        {
            times::lap(clock, &mut self.times.waiting);
            if tokens.contains(&NO_TOKEN) || logprobs.have_none() {
                return Err(self.not_a_number());
            }
            let mut told = self.scheduler.advance(&step, &tokens);
            logprobs.attach(&logprobs_of, &mut told);
            self.extras.take(&told);
            events.extend(told);
            times::lap(clock, &mut self.times.scheduling);
        }
        Ok(())
    }

    /// Runs the last step again, node by node, to find the first NaN or infinity; -infinity is a logit that is not
    /// allowed. If one step is ahead of the known tokens, the next step runs, whose rows see what the last one left in
    /// the cache. The cache itself is not checked, because unwritten parts may hold anything.
    fn not_a_number(&mut self) -> EngineError {
        let mut where_ = None;
        let mut look = |written: &Written<'_>| {
            let is_none = |&value: &f32| value.is_nan() || value == f32::INFINITY;
            if where_.is_none() && !written.is_kept && written.values.iter().any(is_none) {
                let Written { label, template, tensor, .. } = written;
                where_ = Some(format!("the first is in `{tensor}`, which `{label}` writes ({template})"));
            }
        };
        self.executor.take_profile(); // a profiler would run the step its own way
        if let Some(Err(error)) = self.executor.next_step().map(|met| self.executor.write("step", &met.to_le_bytes())) {
            return error.into();
        }
        match self.shape.map(|shape| self.executor.run(shape, Some(&mut look))) {
            Some(Err(error)) => error.into(),
            _ => EngineError::NotANumber { where_ },
        }
    }

    fn room_behind(&self, prompt: &[u32]) -> Result<usize, PromptError> {
        PromptError::room_behind(prompt, self.layout.capacity_tokens, self.config.vocab_size)
    }

    /// Brings the device's tables up to date: all of them the first time, then what changed.
    fn write_tables(&mut self) -> Result<(), EngineError> {
        let tables = self.scheduler.tables_mut();
        let changes = tables.take_changes();
        let name = |group: usize| format!("block_table.{group}");
        if !std::mem::replace(&mut self.tables_written, true) {
            for group in 0..self.layout.groups().len() {
                self.executor.write(&name(group), cast_slice(tables.table(group)))?;
            }
        } else if let Some((group, mut ranges)) = changes {
            if ranges.len() > MAX_TABLE_WRITES {
                let first = ranges.iter().map(|range| range.start).min().unwrap_or(0);
                let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                ranges.clear();
                ranges.push(first..end);
            }
            for range in ranges {
                let offset_bytes = 4 * range.start;
                self.executor.write_at(&name(group), offset_bytes, cast_slice(&tables.table(group)[range]))?;
            }
        }
        Ok(())
    }

    /// Makes the copies that come before a step. What is launched after them sees them, and what was launched before
    /// does not.
    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), EngineError> {
        for copy in copies {
            for tensor in self.layout.tensors_of_group(copy.group) {
                let len_bytes = tensor.dtype.len_bytes(tensor.block_elements);
                let from = copy.from * len_bytes..(copy.from + copy.n_blocks) * len_bytes;
                self.executor.copy_within(&tensor.name, from, copy.to * len_bytes)?;
            }
        }
        Ok(())
    }

    /// Fills the inputs of a step.
    fn write_rows(&self, step: &Step) -> Result<(), EngineError> {
        let rows = |of: fn(&Row) -> u32| step.rows.iter().map(of).collect::<Vec<u32>>();
        let (token, slot, position) = (rows(|row| row.token.encoded()), rows(|row| row.slot), rows(|row| row.position));
        let logit_row: Vec<u32> = step.logit_rows.iter().map(|logit| logit.row).collect();
        let top_k: Vec<u32> = step.logit_rows.iter().map(|logit| logit.sampling.top_k).collect();
        let temperature: Vec<f32> = step.logit_rows.iter().map(|logit| logit.sampling.temperature).collect();
        let top_p: Vec<f32> = step.logit_rows.iter().map(|logit| logit.sampling.top_p).collect();
        let coin: Vec<f32> = step.logit_rows.iter().map(|logit| logit.coin).collect();
        let met = self.executor.next_step();
        let mut inputs: Vec<(&str, &[u8])> = vec![
            ("token", cast_slice(&token)),
            ("slot", cast_slice(&slot)),
            ("position", cast_slice(&position)),
            ("logit_row", cast_slice(&logit_row)),
            ("top_k", cast_slice(&top_k)),
            ("temperature", cast_slice(&temperature)),
            ("top_p", cast_slice(&top_p)),
            ("coin", cast_slice(&coin)),
        ];
        inputs.extend(met.as_ref().map(|met| ("step", bytemuck::bytes_of(met))));
        Ok(self.executor.write_inputs(&inputs)?)
    }
}
