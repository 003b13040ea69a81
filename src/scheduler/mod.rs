//! Which rows go into the next step: continuous batching over slots.
//!
//! A sequence waits until a slot and enough cache blocks are free, then its prompt runs in chunks and its tokens one
//! by one; when it ends, the next one takes its slot in the same step. A step holds one row of every sequence that
//! is generating, and fills up with rows of prompts. Nothing here computes or knows a device.
//!
//! The next step may be made before the tokens of the last one are known: its rows then say which of these they take. A
//! sequence that turns out to have ended has one row too many in it, which nobody is told of.

mod random;
mod request;
mod step;

use std::collections::VecDeque;

use random::XorShift;
pub use request::{
    Event, FinishReason, LogitChanges, LogitRowLogprobs, Request, RequestId, Sampling, TokenLogprob, TokenMask,
};
pub use step::{LogitRow, Row, RowToken, Step};

use crate::graph::kv_cache::{BlockTables, KvLayout};

/// Slots, the queue before them, and the cache blocks they hold.
#[derive(Debug)]
pub struct Scheduler {
    waiting: VecDeque<Sequence>,
    slots: Vec<Option<Sequence>>,
    tables: BlockTables,
    max_rows: usize,
    n_submitted: usize,
    ended: Vec<Event>,
}

#[derive(Debug)]
struct Sequence {
    id: RequestId,
    request: Request,
    /// Tokens whose keys and values are in the cache, or are being put there by the current step.
    n_forwarded: usize,
    /// The token generated last, which the next step forwards.
    last_token: Option<RowToken>,
    /// Tokens that steps so far generate, known or not.
    n_generated: usize,
    /// Tokens that are known.
    n_told: usize,
    random: XorShift,
}

impl Scheduler {
    /// `max_rows` is at least the number of slots, so that every generating sequence gets its row.
    pub fn new(layout: &KvLayout, max_rows: usize) -> Self {
        assert!(max_rows >= layout.n_slots, "a step has room for a row of every slot");
        Self {
            waiting: VecDeque::new(),
            slots: (0..layout.n_slots).map(|_| None).collect(),
            tables: BlockTables::new(layout),
            max_rows,
            n_submitted: 0,
            ended: Vec::new(),
        }
    }

    /// Puts a request in the queue. The caller has checked that its prompt is not empty and that it fits the cache.
    pub fn submit(&mut self, request: Request) -> RequestId {
        assert!(!request.prompt.is_empty(), "an empty prompt has no row to sample from");
        let id = RequestId(self.n_submitted);
        self.n_submitted += 1;
        if request.max_new_tokens == 0 {
            self.ended.push(Event::Finished { request: id, reason: FinishReason::Length });
            return id;
        }
        let random = XorShift::new(request.sampling.seed);
        let sequence = Sequence { id, request, n_forwarded: 0, last_token: None, n_generated: 0, n_told: 0, random };
        self.waiting.push_back(sequence);
        id
    }

    /// Whether nothing is left to do or to tell.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ended.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// The tables that say where positions are in the cache.
    pub fn tables(&self) -> &BlockTables {
        &self.tables
    }

    /// Requests that ended without a step.
    pub fn take_ended(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.ended)
    }

    /// Admits what fits and chooses the rows of the next step; their positions count as forwarded from here on.
    pub fn next_step(&mut self) -> Step {
        self.admit();
        let mut step = Step::default();
        for slot in 0..self.slots.len() {
            self.add_generating_row(slot, &mut step);
        }
        for slot in 0..self.slots.len() {
            self.add_prompt_rows(slot, &mut step);
        }
        step
    }

    /// Takes the tokens that the step's logit rows gave, in their order, and says what happened. Steps are told in the
    /// order in which they were made; the one after `step` may have been made already, no other.
    pub fn advance(&mut self, step: &Step, tokens: &[u32]) -> Vec<Event> {
        assert_eq!(step.logit_rows.len(), tokens.len(), "one token for each logit row");
        let mut events = Vec::new();
        for (logit_row, &token) in step.logit_rows.iter().zip(tokens) {
            let request = logit_row.request;
            // A sequence that stopped in the step before, whose slot may be another's by now, had a row in this one.
            let Some(sequence) = self.slots[logit_row.slot].as_mut().filter(|sequence| sequence.id == request) else {
                continue;
            };
            sequence.n_told += 1;
            if sequence.n_told == sequence.n_generated {
                sequence.last_token = Some(RowToken::Id(token));
            }
            events.push(Event::Token { request, token, logprobs: None });
            let stopped = sequence.request.stop.contains(&token);
            if stopped || sequence.n_told == sequence.request.max_new_tokens {
                let reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
                events.push(Event::Finished { request, reason });
                self.slots[logit_row.slot] = None;
                self.tables.release(logit_row.slot);
            }
        }
        events
    }

    /// Ends a request whose row in the step that was made last is not to give a token.
    pub fn end(&mut self, request: RequestId) {
        let is_it = |sequence: &Option<Sequence>| sequence.as_ref().is_some_and(|sequence| sequence.id == request);
        if let Some(slot) = self.slots.iter().position(is_it) {
            self.slots[slot] = None;
            self.tables.release(slot);
        }
    }

    /// Forgets every request.
    pub fn abort(&mut self) {
        self.waiting.clear();
        self.ended.clear();
        for slot in 0..self.slots.len() {
            if self.slots[slot].take().is_some() {
                self.tables.release(slot);
            }
        }
    }

    /// First come, first served: a sequence that does not fit yet is not overtaken.
    fn admit(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let Some(next) = self.waiting.front() else { return };
            if !self.tables.reserve(slot, next.n_positions()) {
                return;
            }
            self.slots[slot] = self.waiting.pop_front();
        }
    }

    fn add_generating_row(&mut self, slot: usize, step: &mut Step) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let Some(token) = sequence.last_token else { return };
        if sequence.n_generated == sequence.request.max_new_tokens {
            return; // its last token is not known yet
        }
        sequence.add_logit_row(slot, step);
        step.rows.push(Row { slot: slot as u32, position: sequence.n_forwarded as u32, token });
        sequence.n_forwarded += 1;
    }

    fn add_prompt_rows(&mut self, slot: usize, step: &mut Step) {
        let Some(sequence) = &mut self.slots[slot] else { return };
        let left = sequence.request.prompt.len().saturating_sub(sequence.n_forwarded);
        for _ in 0..left.min(self.max_rows - step.rows.len()) {
            let position = sequence.n_forwarded;
            let token = sequence.request.prompt[position];
            if position + 1 == sequence.request.prompt.len() {
                sequence.add_logit_row(slot, step);
            }
            step.rows.push(Row { slot: slot as u32, position: position as u32, token: RowToken::Id(token) });
            sequence.n_forwarded += 1;
        }
    }
}

impl Sequence {
    /// Positions that will be in the cache: the last generated token is never forwarded.
    fn n_positions(&self) -> usize {
        self.request.prompt.len() + self.request.max_new_tokens - 1
    }

    /// The row that the step gets next gives a token.
    fn add_logit_row(&mut self, slot: usize, step: &mut Step) {
        let sampling = self.request.sampling;
        let coin = if sampling.temperature == 0.0 { 0.0 } else { self.random.coin() };
        self.last_token = Some(RowToken::Sampled(step.logit_rows.len() as u32));
        self.n_generated += 1;
        step.logit_rows.push(LogitRow { row: step.rows.len() as u32, sampling, coin, slot, request: self.id });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::dtype::Dtype;
    use crate::graph::StepShape;
    use crate::graph::kv_cache::KvRequest;
    use crate::tuning::table::StepKind;

    fn scheduler(n_slots: usize, max_rows: usize, capacity_tokens: usize, pool_blocks: usize) -> Scheduler {
        let config = ModelConfig {
            vocab_size: 10,
            hidden_size: 2,
            num_experts: 1,
            experts_per_token: 1,
            intermediate_size: 2,
            num_hidden_layers: 2,
            head_dim: 2,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            max_seq_len: 4096,
            initial_context_length: 4096,
            rope_theta: 1e4,
            rope_scaling_factor: 1.0,
            sliding_window: 0,
            swiglu_limit: 7.0,
        };
        let block_bytes = 2 * 64 * 2 * 4 * config.num_hidden_layers;
        let request = KvRequest {
            n_slots,
            capacity_tokens,
            max_rows,
            dtype: Dtype::F32,
            matrix_layout: false,
            odd_window: None,
            budget_bytes: pool_blocks * block_bytes,
        };
        Scheduler::new(&KvLayout::new(&config, &request).unwrap(), max_rows)
    }

    fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
        Request::new(prompt.to_vec(), max_new_tokens, vec![9], Sampling::GREEDY)
    }

    fn told(request: usize, token: u32) -> Event {
        Event::Token { request: RequestId(request), token, logprobs: None }
    }

    fn rows(step: &Step) -> Vec<(u32, u32, u32)> {
        let id = |token| match token {
            RowToken::Id(id) => id,
            RowToken::Sampled(i) => 100 + i,
        };
        step.rows.iter().map(|row| (row.slot, row.position, id(row.token))).collect()
    }

    #[test]
    fn prompts_run_in_chunks_and_mix_with_generation() {
        let mut scheduler = scheduler(2, 4, 64, 100);
        scheduler.submit(request(&[1, 2], 2));
        scheduler.submit(request(&[3, 4, 5, 6], 1));
        let first = scheduler.next_step();
        assert_eq!(rows(&first), [(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)]);
        assert_eq!(first.logit_rows.iter().map(|l| l.row).collect::<Vec<_>>(), [1]);
        assert_eq!(scheduler.advance(&first, &[7]), [told(0, 7)]);

        assert_eq!(first.shape(), StepShape { n_rows: 4, n_logit_rows: 1, kind: StepKind::Mixed });

        let second = scheduler.next_step();
        assert_eq!(rows(&second), [(0, 2, 7), (1, 2, 5), (1, 3, 6)]);
        assert_eq!(second.shape(), StepShape { n_rows: 3, n_logit_rows: 2, kind: StepKind::Mixed });
        let events = scheduler.advance(&second, &[8, 8]);
        assert_eq!(
            events,
            [
                told(0, 8),
                Event::Finished { request: RequestId(0), reason: FinishReason::Length },
                told(1, 8),
                Event::Finished { request: RequestId(1), reason: FinishReason::Length },
            ]
        );
        assert!(scheduler.is_idle());
    }

    #[test]
    fn a_freed_slot_is_filled_in_the_next_step() {
        let mut scheduler = scheduler(1, 8, 64, 100);
        scheduler.submit(request(&[1], 5));
        scheduler.submit(request(&[2], 5));
        let step = scheduler.next_step();
        assert_eq!(rows(&step), [(0, 0, 1)]);
        assert_eq!(step.shape(), StepShape { n_rows: 1, n_logit_rows: 1, kind: StepKind::Decode });
        let events = scheduler.advance(&step, &[9]);
        assert_eq!(events[1], Event::Finished { request: RequestId(0), reason: FinishReason::Stop });
        assert_eq!(rows(&scheduler.next_step()), [(0, 0, 2)]);
    }

    #[test]
    fn a_step_that_is_made_before_the_tokens_are_known_takes_them_from_the_one_before() {
        let mut scheduler = scheduler(2, 8, 64, 100);
        scheduler.submit(request(&[1, 2], 9));
        scheduler.submit(request(&[3], 2));
        scheduler.submit(request(&[4], 9));
        let first = scheduler.next_step();
        assert_eq!(rows(&first), [(0, 0, 1), (0, 1, 2), (1, 0, 3)]);
        let second = scheduler.next_step();
        assert_eq!(rows(&second), [(0, 2, 100), (1, 1, 101)]);
        let token = told;
        let finished = |request, reason| Event::Finished { request: RequestId(request), reason };
        // The first stops (9); its row in the second step comes to nothing, and the second has had all it may.
        let told = scheduler.advance(&first, &[9, 5]);
        assert_eq!(told, [token(0, 9), finished(0, FinishReason::Stop), token(1, 5)]);
        let third = scheduler.next_step();
        assert_eq!(rows(&third), [(0, 0, 4)]);
        assert_eq!(scheduler.advance(&second, &[7, 6]), [token(1, 6), finished(1, FinishReason::Length)]);
        assert_eq!(rows(&scheduler.next_step()), [(0, 1, 100)]);
        assert_eq!(scheduler.advance(&third, &[8]), [token(2, 8)]);
    }

    #[test]
    fn a_sequence_waits_for_cache_blocks_and_is_not_overtaken() {
        let mut scheduler = scheduler(3, 200, 128, 3);
        scheduler.submit(request(&[1; 100], 1));
        scheduler.submit(request(&[2; 100], 1));
        scheduler.submit(request(&[3], 1));
        let step = scheduler.next_step();
        assert!(step.rows.iter().all(|row| row.token == RowToken::Id(1)));
        scheduler.advance(&step, &[5]);
        let step = scheduler.next_step();
        assert_eq!(step.rows.iter().filter(|row| row.token == RowToken::Id(2)).count(), 100);
        assert_eq!(step.rows.iter().filter(|row| row.token == RowToken::Id(3)).count(), 1);
    }

    #[test]
    fn a_request_for_no_tokens_ends_without_a_step() {
        let mut scheduler = scheduler(1, 1, 64, 100);
        let id = scheduler.submit(request(&[1], 0));
        assert_eq!(scheduler.take_ended(), [Event::Finished { request: id, reason: FinishReason::Length }]);
        assert!(scheduler.is_idle());
    }

    #[test]
    fn coins_are_those_of_the_seeds() {
        // xorshift64* from state 1, worked out with Python's integers.
        let mut random = XorShift::new(1);
        let coins: Vec<u32> = (0..3).map(|_| (random.coin() * 16_777_216.0) as u32).collect();
        assert_eq!(coins, EXPECTED_COINS);
    }

    const EXPECTED_COINS: [u32; 3] = [4_711_630, 11_259_814, 12_177_677];
}
