//! Runs requests through one engine, or several, as slots become free, and records each answer when it is finished.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::BatchError;
use super::energy::Energy;
use super::plan::{Batch, Planned};
use super::records::{Outcome, Records};
use super::replica::Replicas;
use engine::scheduler::{Event, FinishReason, Request, RequestId};
use engine::{Engine, EngineError};
use replica::ReplicaError;

/// How far the work is, after each step.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Answers that are kept, those of earlier runs included.
    pub n_done: usize,
    /// Tokens that this run generated.
    pub n_tokens: usize,
}

/// Tokens, steps and times of a run.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Tokens generated, stop tokens included.
    pub n_tokens: usize,
    /// Tokens of the prompts, cached ones included.
    pub n_prompt_tokens: usize,
    /// Of these, those whose keys and values were there already.
    pub n_cached_tokens: usize,
    /// Of each answer, tokens of its prompt, those of them that were there already, and new ones.
    pub lengths: Vec<[u32; 3]>,
    /// Answers by the reason for which they ended; lines that were wrong are `error`.
    pub reasons: BTreeMap<String, usize>,
    /// Seconds from when a prompt got its slot to its first token, for each answer.
    pub first_token_s: Vec<f32>,
    /// Seconds from there to its last token.
    pub latency_s: Vec<f32>,
    /// What the device of [`BatchRun::run`] took, in joules, where its driver says.
    pub joules: Option<f64>,
    /// Whether the run was interrupted before it was done.
    pub is_interrupted: bool,
}

/// A prompt that has something to generate.
#[derive(Debug)]
pub struct BatchJob {
    /// The prompt's index, from 0.
    pub index: usize,
    /// Of the prompt and all that its answer depends on.
    pub digest: u64,
    /// What the engine is asked.
    pub request: Request,
}

/// The outcome of a job, with its place among the prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The prompt's index, from 0.
    pub(crate) index: usize,
    pub(crate) digest: u64,
    pub(crate) outcome: Outcome,
    /// Seconds from when it got its slot to its first token, if there was one.
    pub first_token_s: Option<f32>,
    /// Seconds from there to its end.
    pub latency_s: f32,
}

/// Jobs that an engine is at.
#[derive(Debug, Default)]
pub struct InFlight(HashMap<RequestId, Active>);

#[derive(Debug)]
struct Active {
    index: usize,
    digest: u64,
    prompt_tokens: usize,
    cached_tokens: usize,
    begun: Instant,
    first_token: Option<Instant>,
    ids: Vec<u32>,
}

impl InFlight {
    /// Jobs that an engine is given at a time: as many wait as could get a slot in the next step, so that none stays
    /// free, and the rest stays where it is.
    pub(crate) fn most(n_slots: usize) -> usize {
        2 * n_slots
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives the engine a job.
    ///
    /// # Errors
    /// The engine's.
    pub fn submit(&mut self, engine: &mut Engine, job: BatchJob) -> Result<(), EngineError> {
        let BatchJob { index, digest, request } = job;
        let prompt_tokens = request.prompt.len();
        let id = engine.submit(request)?;
        let (begun, ids) = (Instant::now(), Vec::new());
        let active = Active { index, digest, prompt_tokens, cached_tokens: 0, begun, first_token: None, ids };
        self.0.insert(id, active);
        Ok(())
    }

    /// A step of the engine: gives the number of new tokens, and adds what was answered by it to `answered`.
    ///
    /// # Errors
    /// The engine's.
    pub fn step(&mut self, engine: &mut Engine, answered: &mut Vec<Answered>) -> Result<usize, EngineError> {
        let mut n_tokens = 0;
        // Who is admitted by a step is so at its beginning; it may give the first token too.
        let begun = Instant::now();
        for event in engine.step()? {
            match event {
                Event::Admitted { request, cached_tokens } => {
                    if let Some(active) = self.0.get_mut(&request) {
                        (active.cached_tokens, active.begun) = (cached_tokens, begun);
                    }
                }
                Event::Token { request, token, .. } => {
                    if let Some(active) = self.0.get_mut(&request) {
                        active.first_token.get_or_insert_with(Instant::now);
                        active.ids.push(token);
                        n_tokens += 1;
                    }
                }
                Event::PromptToken { .. } => {} // no line of prompts asks
                Event::Finished { request, reason } => {
                    answered.extend(self.0.remove(&request).map(|active| active.ended(reason)));
                }
            }
        }
        Ok(n_tokens)
    }
}

impl Active {
    fn ended(self, reason: FinishReason) -> Answered {
        let finish_reason = if reason == FinishReason::Stop { "stop" } else { "length" }.to_owned();
        let Self { index, digest, prompt_tokens, cached_tokens, begun, first_token, ids } = self;
        Answered {
            index,
            digest,
            outcome: Outcome::Answered { prompt_tokens, cached_tokens, finish_reason, ids },
            first_token_s: first_token.map(|at| (at - begun).as_secs_f32()),
            latency_s: begun.elapsed().as_secs_f32(),
        }
    }
}

/// A run in the making.
pub struct BatchRun<'a> {
    pub batch: &'a Batch,
    pub records: &'a mut Records,
    /// A line that is wrong is answered with what is wrong with it.
    pub keeps_errors: bool,
}

impl BatchRun<'_> {
    /// Runs the prompts of `order`.
    ///
    /// - `go_on`: asked after each step; false ends the run, and what was not finished is not kept
    ///
    /// # Errors
    /// [`BatchError`]: whatever it is, finished answers are kept.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        order: &[u32],
        mut go_on: impl FnMut(Progress) -> bool,
    ) -> Result<Statistics, BatchError> {
        let mut statistics = Statistics::default();
        let (mut in_flight, mut answered) = (InFlight::default(), Vec::new());
        let mut waiting = order.iter();
        let most = InFlight::most(engine.kv_layout().n_slots);
        let mut energy = Energy::default();
        loop {
            while in_flight.len() < most
                && let Some(&index) = waiting.next()
            {
                if let Some(job) = self.job(index as usize, &mut statistics)? {
                    in_flight.submit(engine, job).map_err(|source| self.stopped(source))?;
                }
            }
            if in_flight.is_empty() {
                break;
            }
            statistics.n_tokens += in_flight.step(engine, &mut answered).map_err(|source| self.stopped(source))?;
            energy.ask(Instant::now(), || engine.power_watts());
            for one in answered.drain(..) {
                self.keep(one, &mut statistics)?;
            }
            if !self.goes_on(&mut statistics, &mut go_on)? {
                break;
            }
        }
        statistics.joules = energy.joules();
        self.records.sync()?;
        Ok(statistics)
    }

    /// The same on several devices: each prompt goes where a slot is free, in the order in which they come.
    ///
    /// # Errors
    /// [`BatchError`]: whatever it is, finished answers are kept.
    pub fn run_on(
        &mut self,
        replicas: &mut Replicas,
        order: &[u32],
        mut go_on: impl FnMut(Progress) -> bool,
    ) -> Result<Statistics, BatchError> {
        let mut statistics = Statistics::default();
        let mut waiting = order.iter();
        loop {
            while let Some(free) = replicas.free() {
                let Some(&index) = waiting.next() else { break };
                if let Some(job) = self.job(index as usize, &mut statistics)? {
                    replicas.submit(free, job);
                }
            }
            if replicas.is_idle() {
                break;
            }
            if let Some(one) = replicas.answer().map_err(|source| self.replica_stopped(source))? {
                if let Outcome::Answered { ids, .. } = &one.outcome {
                    statistics.n_tokens += ids.len();
                }
                self.keep(one, &mut statistics)?;
            }
            if !self.goes_on(&mut statistics, &mut go_on)? {
                break;
            }
        }
        self.records.sync()?;
        Ok(statistics)
    }

    /// After each step: whether there is to be another.
    fn goes_on(
        &mut self,
        statistics: &mut Statistics,
        go_on: &mut impl FnMut(Progress) -> bool,
    ) -> Result<bool, BatchError> {
        self.records.sync_if_due()?;
        let goes_on = go_on(Progress { n_done: self.records.n_done(), n_tokens: statistics.n_tokens });
        statistics.is_interrupted = !goes_on;
        Ok(goes_on)
    }

    fn replica_stopped(&self, source: ReplicaError) -> BatchError {
        BatchError::Replica { n_done: self.records.n_done(), n: self.batch.len(), source }
    }

    fn stopped(&self, source: EngineError) -> BatchError {
        BatchError::Engine { n_done: self.records.n_done(), n: self.batch.len(), source }
    }

    /// The job of a prompt. None if there is nothing to generate, which is recorded.
    fn job(&mut self, index: usize, statistics: &mut Statistics) -> Result<Option<BatchJob>, BatchError> {
        let Planned { request, n_prompt, digest, .. } = match self.batch.plan(index)? {
            Ok(planned) => planned,
            Err(error) if self.keeps_errors => {
                *statistics.reasons.entry("error".into()).or_default() += 1;
                self.records.append(index, 0, Batch::refused(&error))?;
                return Ok(None);
            }
            Err(source) => return Err(self.batch.line_error(index, source)),
        };
        statistics.n_prompt_tokens += n_prompt;
        if let Some(request) = request {
            return Ok(Some(BatchJob { index, digest, request }));
        }
        *statistics.reasons.entry("length".into()).or_default() += 1;
        let finish_reason = "length".to_owned();
        let outcome = Outcome::Answered { prompt_tokens: n_prompt, cached_tokens: 0, finish_reason, ids: Vec::new() };
        self.records.append(index, digest, outcome)?;
        Ok(None)
    }

    fn keep(&mut self, answered: Answered, statistics: &mut Statistics) -> Result<(), BatchError> {
        let Answered { index, digest, outcome, first_token_s, latency_s } = answered;
        if let Outcome::Answered { prompt_tokens, cached_tokens, finish_reason, ids } = &outcome {
            statistics.lengths.push([*prompt_tokens, *cached_tokens, ids.len()].map(|n| n as u32));
            *statistics.reasons.entry(finish_reason.clone()).or_default() += 1;
            statistics.n_cached_tokens += cached_tokens;
        }
        statistics.latency_s.push(latency_s);
        statistics.first_token_s.extend(first_token_s);
        Ok(self.records.append(index, digest, outcome)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{batch, line, records};

    #[test]
    fn what_is_kept_adds_up_and_who_ends_a_run_has_interrupted_it() {
        let (batch, mut records) = (batch(&[line("a", &[1], 1), line("b", &[2], 1)]), records(2));
        let mut run = BatchRun { batch: &batch, records: &mut records, keeps_errors: false };
        let mut statistics = Statistics::default();
        for (index, cached_tokens) in [(0, 3), (1, 4)] {
            let ids = vec![5; index + 1];
            let outcome = Outcome::Answered { prompt_tokens: 9, cached_tokens, finish_reason: "stop".into(), ids };
            let answered = Answered { index, digest: 1, outcome, first_token_s: Some(0.5), latency_s: 2.0 };
            run.keep(answered, &mut statistics).expect("there is room");
        }
        assert_eq!((statistics.n_cached_tokens, &statistics.lengths[..]), (7, &[[9, 3, 1], [9, 4, 2]][..]));
        assert_eq!((statistics.reasons["stop"], &statistics.latency_s[..]), (2, &[2.0, 2.0][..]));
        for goes_on in [true, false] {
            let mut asked = None;
            let mut go_on = |progress: Progress| {
                asked = Some(progress.n_done);
                goes_on
            };
            assert_eq!(run.goes_on(&mut statistics, &mut go_on).expect("nothing is to be written"), goes_on);
            assert_eq!((asked, statistics.is_interrupted), (Some(2), !goes_on));
        }
    }

    #[test]
    fn as_many_jobs_wait_as_are_run() {
        assert_eq!([1, 5, 32].map(InFlight::most), [2, 10, 64]);
    }
}
