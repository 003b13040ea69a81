//! Continuous batching over slots: which rows go into the next step.
//!
//! A sequence waits until a slot is free and there are cache blocks for its tokens. Then its prompt runs in chunks and
//! its tokens one by one; when it ends, the next sequence takes its slot in the same step. A step has one row of every
//! generating sequence, and rows of prompts (`rows`). Blocks are given out as sequences grow; if none are left, the
//! youngest sequence gives up its blocks and is computed again later (`admission`). Common beginnings of sequences are
//! computed once (`prefix`, `blocks`). The scheduler computes nothing and knows no device.
//!
//! While few sequences run, a step may have rows for expected tokens (`drafts`). If these are right, the step gives
//! several tokens of a sequence.
//!
//! The next step may be made before the tokens of the last one are known: its rows then say which of these tokens they
//! take. If a sequence turns out to have ended, its row in the next step was superfluous, and its token is dropped. A
//! sequence with drafts in flight has no row, because it is unknown how far it will be. A sequence that could draft
//! has none until its last token is known.

mod admission;
mod blocks;
mod drafts;
mod elsewhere;
mod figures;
mod lru;
mod prefix;
mod random;
mod request;
mod rows;
mod sampling;
mod sequence;
mod step;

use std::collections::VecDeque;

pub use blocks::BlockTables;
pub use drafts::DraftOptions;
pub(crate) use elsewhere::PrefixPart;
pub use figures::Figures;
pub(crate) use prefix::BlockRange;
pub use prefix::{PrefixBlock, PrefixKey};
pub use request::{
    Event, FinishReason, LogitChanges, LogitRowLogprobs, PromptLogprobs, Request, RequestId, TokenLogprob, TokenMask,
};
pub use sampling::{Sampling, SamplingWishes, Wish};
pub use step::{BlockCopy, LogitRow, Row, RowToken, Step};

use crate::graph::kv_cache::KvLayout;
use prefix::Snapshots;
use sequence::Sequence;

/// How a scheduler fills its steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerOptions {
    /// Most rows of a step; at least the number of slots, so that every generating sequence gets its row.
    pub(crate) max_rows: usize,
    /// Most rows of a step that give logits; at least the number of slots.
    pub(crate) max_logit_rows: usize,
    /// Most rows of prompts in a step in which others generate.
    pub(crate) max_prompt_rows: usize,
    /// Tokens from one snapshot of a prompt's or an answer's windows to the next; what is left of a block does not
    /// count.
    pub(crate) snapshot_tokens: usize,
    /// How tokens are drafted, if they are. A step then has up to [`DraftOptions::most_rows`] more rows that give
    /// logits.
    pub(crate) drafts: Option<DraftOptions>,
}

/// Slots, the queue before them, and the cache blocks they hold.
#[derive(Debug)]
pub(crate) struct Scheduler {
    waiting: VecDeque<Sequence>,
    slots: Vec<Option<Sequence>>,
    tables: BlockTables,
    snapshots: Snapshots,
    /// Copies that are to be made before the next step.
    copies: Vec<BlockCopy>,
    block_tokens: usize,
    /// Whether anything is kept for sequences that begin alike.
    keeps_prefixes: bool,
    options: SchedulerOptions,
    n_submitted: usize,
    events: Vec<Event>,
    figures: Figures,
}

impl Scheduler {
    /// Slots and blocks of a cache. Prefixes are kept if the layout has snapshots.
    pub(crate) fn new(layout: &KvLayout, options: SchedulerOptions) -> Self {
        assert!(options.max_rows >= layout.n_slots, "a step has room for a row of every slot");
        let tables = BlockTables::new(layout);
        Self {
            waiting: VecDeque::new(),
            slots: (0..layout.n_slots).map(|_| None).collect(),
            snapshots: Snapshots::new(layout),
            copies: Vec::new(),
            block_tokens: layout.block_tokens,
            keeps_prefixes: layout.n_snapshots > 0 && tables.have_pool(),
            tables,
            options,
            n_submitted: 0,
            events: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// Puts a request in the queue. The caller has checked that its prompt is not empty and that it fits the cache with
    /// as many tokens as it may generate. One that has them all, and asks for nothing of its prompt, has ended.
    pub(crate) fn submit(&mut self, request: Request) -> RequestId {
        assert!(!request.prompt.is_empty(), "an empty prompt has no row to sample from");
        let id = RequestId(self.n_submitted);
        self.n_submitted += 1;
        let asks_of_prompt = |of: PromptLogprobs| request.generated.is_empty() && of.n_told + 1 < request.prompt.len();
        let is_scored = request.prompt_logprobs.is_some_and(asks_of_prompt);
        if request.max_new_tokens <= request.generated.len() && !is_scored {
            self.events.push(Event::Finished { request: id, reason: FinishReason::Length });
            return id;
        }
        let sequence = Sequence::new(id, request);
        let place = if sequence.is_background() { self.waiting.len() } else { self.n_foreground() };
        self.waiting.insert(place, sequence);
        id
    }

    /// Ends a request, wherever it is; `Finished` tells so with the next step. A row of it in a step that is in flight
    /// comes to nothing, and slot and blocks are free at once. Whether there was such a request: one that has ended is
    /// left as it is.
    pub(crate) fn cancel(&mut self, request: RequestId) -> bool {
        let is_it = |sequence: &Sequence| sequence.id == request;
        if let Some(index) = self.waiting.iter().position(is_it) {
            self.waiting.remove(index);
        } else if let Some(slot) = self.slots.iter().position(|slot| slot.as_ref().is_some_and(is_it)) {
            self.vacate(slot);
        } else {
            return false;
        }
        self.events.push(Event::Finished { request, reason: FinishReason::Cancelled });
        true
    }

    /// Whether nothing is left to do or to tell.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.events.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// The tables that say where positions are in the cache.
    #[cfg(test)]
    pub(crate) fn tables(&self) -> &BlockTables {
        &self.tables
    }

    /// The same, to be asked what changed.
    pub(crate) fn tables_mut(&mut self) -> &mut BlockTables {
        &mut self.tables
    }

    pub(crate) fn figures(&self) -> Figures {
        let [blocks_held, blocks_cached, blocks] = self.tables.counts();
        let running = self.slots.iter().flatten().count();
        Figures { running, waiting: self.waiting.len(), blocks_held, blocks_cached, blocks, ..self.figures }
    }

    /// What happened besides tokens: requests that were admitted, were cancelled, or ended without a step.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Admits what fits and chooses the rows of the next step; their positions count as forwarded from here on. If it
    /// has no rows, there is nothing to run. `n_allowed` says how many of a request's drafts may come, one after the
    /// other, after all of its tokens that were told; the others get no rows.
    pub(crate) fn next_step(&mut self, mut n_allowed: impl FnMut(RequestId, &[u32]) -> usize) -> Step {
        self.make_room();
        self.admit();
        let mut step = Step { copies: std::mem::take(&mut self.copies), ..Step::default() };
        for slot in 0..self.slots.len() {
            self.add_generating_row(slot, &mut step, &mut n_allowed);
        }
        self.add_rows_of_prompts(&mut step);
        if step.rows.is_empty() {
            self.copies = std::mem::take(&mut step.copies);
        }
        step
    }

    /// Takes the tokens of the step's logit rows, in their order, and returns the events. Steps are reported in the
    /// order in which they were made; only the one after `step` may have been made already.
    pub(crate) fn advance(&mut self, step: &Step, tokens: &[u32]) -> Vec<Event> {
        assert_eq!(step.logit_rows.len(), tokens.len(), "one token for each logit row");
        let (mut events, mut n_before) = (Vec::new(), 0);
        for rows in step.logit_rows.chunk_by(|a, b| a.request == b.request) {
            let (request, slot) = (rows[0].request, rows[0].slot);
            let (given, rows) = rows.split_at(rows.iter().take_while(|row| row.given.is_some()).count());
            n_before += given.len();
            if self.has(request) {
                let told = |token| Event::PromptToken { request, token, logprobs: None };
                events.extend(given.iter().filter_map(|row| row.given).map(told));
            }
            if rows.is_empty() {
                continue;
            }
            let tokens = &tokens[n_before..n_before + rows.len()];
            n_before += rows.len();
            // A sequence that ended in the step before, whose slot may be another's by now, had a row in this one; and
            // one that was preempted since is back in the queue, where its token reaches it.
            let in_slot = self.slots[slot].as_mut().filter(|sequence| sequence.id == request);
            let (n_told, n_taken, reason) = if let Some(sequence) = in_slot {
                let (n_taken, reason) = sequence.take_tokens(step, rows, tokens);
                let n_told = if sequence.tells_tokens { n_taken } else { 0 };
                sequence.n_forwarded += n_taken - 1;
                if reason.is_some() {
                    self.vacate(slot);
                } else {
                    self.keep_prefix(slot);
                    self.keep_snapshot_of_answer(slot);
                }
                (n_told, n_taken, reason)
            } else if let Some(index) = self.preempted(request) {
                let sequence = &mut self.waiting[index];
                let (n_taken, reason) = sequence.take_tokens(step, rows, tokens);
                let n_told = if sequence.tells_tokens { n_taken } else { 0 };
                if reason.is_some() {
                    self.waiting.remove(index);
                }
                (n_told, n_taken, reason)
            } else {
                continue;
            };
            self.figures.accepted_tokens += n_taken as u64 - 1;
            events.extend(tokens[..n_told].iter().map(|&token| Event::Token { request, token, logprobs: None }));
            events.extend(reason.map(|reason| Event::Finished { request, reason }));
        }
        events
    }

    /// Whether a request has not ended.
    fn has(&self, request: RequestId) -> bool {
        self.slots.iter().flatten().chain(&self.waiting).any(|sequence| sequence.id == request)
    }

    /// Ends a request whose row in the step that was made last is not to give a token.
    pub(crate) fn end(&mut self, request: RequestId) {
        let is_it = |sequence: &Option<Sequence>| sequence.as_ref().is_some_and(|sequence| sequence.id == request);
        if let Some(slot) = self.slots.iter().position(is_it) {
            self.vacate(slot);
        }
    }

    /// Forgets every request.
    pub(crate) fn abort(&mut self) {
        self.waiting.clear();
        self.events.clear();
        for slot in 0..self.slots.len() {
            self.vacate(slot);
        }
    }

    /// Forgets the prefix cache, because the cache was overwritten or a step failed. Results of the running sequences
    /// are not kept either.
    pub(crate) fn forget_prefixes(&mut self) {
        self.tables.forget_keys();
        self.snapshots.forget();
        self.slots.iter_mut().flatten().for_each(|sequence| sequence.is_kept = false);
    }

    /// Takes a sequence out of its slot, and keeps what others may begin with.
    fn vacate(&mut self, slot: usize) -> Option<Sequence> {
        self.keep_prefix(slot);
        if let Some(sequence) = &self.slots[slot] {
            let complete = sequence.n_forwarded.min(sequence.tokens.len()) / self.block_tokens;
            self.keep_snapshot(slot, complete * self.block_tokens);
        }
        let sequence = self.slots[slot].take()?;
        self.tables.release(slot);
        Some(sequence)
    }

    /// Requests in the queue that are not in the background: they are before those that are.
    fn n_foreground(&self) -> usize {
        self.waiting.partition_point(|sequence| !sequence.is_background())
    }

    /// Where in the queue a preempted request is: before all others that are in the background, or are not, as it.
    fn preempted(&self, request: RequestId) -> Option<usize> {
        let of = |begin: usize| {
            let preempted = self.waiting.iter().enumerate().skip(begin).take_while(|(_, of)| of.is_preempted);
            preempted.into_iter().find(|(_, sequence)| sequence.id == request).map(|(index, _)| index)
        };
        of(0).or_else(|| of(self.n_foreground()))
    }

    /// Adds the complete blocks of a slot, whose tokens are known, to the prefix cache. Later launches may read them:
    /// the rows that write them are in a step that was launched, or that is next and admits no more requests.
    fn keep_prefix(&mut self, slot: usize) {
        if !self.keeps_prefixes {
            return;
        }
        let Some(sequence) = self.slots[slot].as_mut().filter(|sequence| sequence.is_kept) else { return };
        let complete = sequence.n_forwarded.min(sequence.tokens.len()) / self.block_tokens;
        if sequence.n_kept == complete {
            return;
        }
        sequence.make_keys(self.block_tokens);
        for index in sequence.n_kept..complete {
            self.tables.keep(slot, sequence.block(index));
        }
        sequence.n_kept = complete;
    }

    /// The same of a long answer as of a long prompt: who cuts it off, or asks for another end of it, finds what is
    /// before.
    fn keep_snapshot_of_answer(&mut self, slot: usize) {
        let Some(sequence) = &self.slots[slot] else { return };
        let complete = sequence.n_kept * self.block_tokens;
        if complete >= sequence.last_snapshot + self.options.snapshot_tokens {
            self.keep_snapshot(slot, complete);
        }
    }

    /// Has the rings of a slot copied before the next step, as they were at `position`, the end of a block that was
    /// kept.
    fn keep_snapshot(&mut self, slot: usize, position: usize) {
        let Some(sequence) = self.slots[slot].as_mut().filter(|sequence| sequence.is_kept) else { return };
        if !self.keeps_prefixes || position <= sequence.last_snapshot {
            return;
        }
        for key in self.tables.take_evicted() {
            self.snapshots.give_up(&key);
        }
        let (key, newest) = (sequence.keys[position / self.block_tokens - 1], sequence.n_written - 1);
        if self.snapshots.keep(key, slot, position, newest, &mut self.copies) {
            sequence.last_snapshot = position;
        }
    }
}

#[cfg(test)]
mod tests;
