//! Requests through an engine, as slots get free, each answer recorded when it is finished.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::BatchError;
use super::plan::{Batch, Planned};
use super::records::{Outcome, Records};
use crate::engine::Engine;
use crate::scheduler::{Event, FinishReason, RequestId};

/// How far the work is, after each step.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Answers that are kept, those of earlier runs included.
    pub n_done: usize,
    /// Tokens that this run generated.
    pub n_tokens: usize,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Tokens generated, stop tokens included.
    pub n_tokens: usize,
    /// Tokens of prompts.
    pub n_prompt_tokens: usize,
    /// Of these, those whose keys and values were there already.
    pub n_cached_tokens: usize,
    /// Answers by the reason for which they ended; lines that were wrong are `error`.
    pub reasons: BTreeMap<String, usize>,
    /// Seconds from when a prompt got its slot to its first token, for each answer.
    pub first_token_s: Vec<f32>,
    /// Seconds from there to its last token.
    pub latency_s: Vec<f32>,
    /// Whether somebody wanted the run to end before it was done.
    pub is_interrupted: bool,
}

struct Active {
    index: usize,
    digest: u64,
    n_prompt: usize,
    cached_tokens: usize,
    begun: Instant,
    first_token: Option<Instant>,
    ids: Vec<u32>,
}

/// A run in the making.
pub struct Work<'a> {
    /// The prompts.
    pub batch: &'a Batch,
    /// Where answers go.
    pub records: &'a mut Records,
    /// A line that is wrong is answered with what is wrong with it.
    pub keeps_errors: bool,
}

impl Work<'_> {
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
        let mut active: HashMap<RequestId, Active> = HashMap::new();
        let mut waiting = order.iter();
        // As many wait as could get a slot in the next step: none stays free, and the rest stays on the disk.
        let most = 2 * engine.kv_layout().n_slots;
        loop {
            while active.len() < most
                && let Some(&index) = waiting.next()
            {
                self.submit(engine, index as usize, &mut active, &mut statistics)?;
            }
            if active.is_empty() {
                break;
            }
            let events = engine.step().map_err(|source| self.stopped(source))?;
            for event in events {
                self.take(event, &mut active, &mut statistics)?;
            }
            self.records.sync_if_due()?;
            if !go_on(Progress { n_done: self.records.n_done(), n_tokens: statistics.n_tokens }) {
                statistics.is_interrupted = true;
                break;
            }
        }
        self.records.sync()?;
        Ok(statistics)
    }

    fn stopped(&self, source: crate::engine::EngineError) -> BatchError {
        BatchError::Engine { n_done: self.records.n_done(), n: self.batch.len(), source }
    }

    fn submit(
        &mut self,
        engine: &mut Engine,
        index: usize,
        active: &mut HashMap<RequestId, Active>,
        statistics: &mut Statistics,
    ) -> Result<(), BatchError> {
        let Planned { request, n_prompt, digest, .. } = match self.batch.plan(index)? {
            Ok(planned) => planned,
            Err(error) if self.keeps_errors => {
                *statistics.reasons.entry("error".into()).or_default() += 1;
                return Ok(self.records.append(index, 0, Batch::refused(&error))?);
            }
            Err(source) => return Err(self.batch.line_error(index, source)),
        };
        statistics.n_prompt_tokens += n_prompt;
        let Some(request) = request else {
            *statistics.reasons.entry("length".into()).or_default() += 1;
            let finish_reason = "length".to_owned();
            let outcome =
                Outcome::Answered { prompt_tokens: n_prompt, cached_tokens: 0, finish_reason, ids: Vec::new() };
            return Ok(self.records.append(index, digest, outcome)?);
        };
        let id = engine.submit(request).map_err(|source| self.stopped(source))?;
        let begun = Instant::now();
        let new = Active { index, digest, n_prompt, cached_tokens: 0, begun, first_token: None, ids: Vec::new() };
        active.insert(id, new);
        Ok(())
    }

    fn take(
        &mut self,
        event: Event,
        active: &mut HashMap<RequestId, Active>,
        statistics: &mut Statistics,
    ) -> Result<(), BatchError> {
        match event {
            Event::Admitted { request, cached_tokens } => {
                if let Some(active) = active.get_mut(&request) {
                    (active.cached_tokens, active.begun) = (cached_tokens, Instant::now());
                }
            }
            Event::Token { request, token, .. } => {
                if let Some(active) = active.get_mut(&request) {
                    active.first_token.get_or_insert_with(Instant::now);
                    active.ids.push(token);
                    statistics.n_tokens += 1;
                }
            }
            Event::Finished { request, reason } => {
                let Some(active) = active.remove(&request) else { return Ok(()) };
                let finish_reason = if reason == FinishReason::Stop { "stop" } else { "length" }.to_owned();
                *statistics.reasons.entry(finish_reason.clone()).or_default() += 1;
                statistics.n_cached_tokens += active.cached_tokens;
                statistics.latency_s.push(active.begun.elapsed().as_secs_f32());
                statistics.first_token_s.extend(active.first_token.map(|at| (at - active.begun).as_secs_f32()));
                let Active { index, digest, n_prompt: prompt_tokens, cached_tokens, ids, .. } = active;
                let outcome = Outcome::Answered { prompt_tokens, cached_tokens, finish_reason, ids };
                self.records.append(index, digest, outcome)?;
            }
        }
        Ok(())
    }
}
