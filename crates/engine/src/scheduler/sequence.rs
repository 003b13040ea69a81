//! A running request.

use super::Sampling;
use super::drafts::Drafts;
use super::prefix::{PrefixBlock, PrefixKey};
use super::random::XorShift;
use super::request::{FinishReason, Request, RequestId};
use super::step::{LogitRow, Row, RowToken, Step};

#[derive(Debug)]
pub(super) struct Sequence {
    pub(crate) id: RequestId,
    /// What was asked for. Its prompt went to `tokens`.
    pub(crate) request: Request,
    /// The prompt, and what was generated after it as far as it is known.
    pub(crate) tokens: Vec<u32>,
    pub(crate) n_prompt: usize,
    /// Tokens whose keys and values are in the cache, or are being put there by the current step.
    pub(crate) n_forwarded: usize,
    /// Positions of its slot that were written to, those of drafts that were wrong included.
    pub(crate) n_written: usize,
    /// Positions whose rows give the log-probability of the token after them, in steps so far; 0 unless requested.
    pub(crate) n_scored: usize,
    /// Tokens that steps so far generate, known or not.
    pub(crate) n_generated: usize,
    /// Whether tokens are reported. A request for the prompt alone generates one token that is not.
    pub(crate) tells_tokens: bool,
    /// Its last logit row in the step that had it last.
    logit_row: u32,
    random: XorShift,
    /// Its expected tokens.
    pub(crate) drafts: Drafts,
    /// Whether a step has, and its tokens are not known.
    is_drafted: bool,
    pub(crate) was_admitted: bool,
    /// Lost its blocks to another one, and waits for the front of the queue to move.
    pub(crate) is_preempted: bool,
    /// How often another one was admitted before it, though it came later.
    pub(crate) n_overtaken: usize,
    /// Of the empty prefix.
    root: PrefixKey,
    /// Of every block that is complete, as far as they were needed.
    pub(crate) keys: Vec<PrefixKey>,
    /// Whether what it computes is kept for others.
    pub(crate) is_kept: bool,
    /// Blocks that were told to the prefix cache.
    pub(crate) n_kept: usize,
    /// Where its last snapshot was made or found.
    pub(crate) last_snapshot: usize,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, mut request: Request) -> Self {
        let mut tokens = std::mem::take(&mut request.prompt);
        let (n_prompt, generated) = (tokens.len(), std::mem::take(&mut request.generated));
        tokens.extend_from_slice(&generated);
        let tells_tokens = request.max_new_tokens > 0;
        request.max_new_tokens = request.max_new_tokens.max(1);
        let mut sequence = Self {
            id,
            n_prompt,
            n_forwarded: 0,
            n_written: 0,
            n_scored: request.prompt_logprobs.map_or(0, |of| of.n_told),
            n_generated: generated.len(),
            tells_tokens,
            logit_row: 0,
            random: XorShift::new(request.sampling.seed),
            drafts: Drafts::default(),
            is_drafted: false,
            was_admitted: false,
            is_preempted: false,
            n_overtaken: 0,
            root: PrefixKey::root(request.cache_salt),
            keys: Vec::new(),
            is_kept: true,
            n_kept: 0,
            last_snapshot: 0,
            tokens,
            request,
        };
        for _ in generated {
            sequence.coin();
        }
        sequence
    }

    /// Whether it runs only where no other would.
    pub(crate) fn is_background(&self) -> bool {
        self.request.is_background
    }

    /// Whether all tokens that steps so far generate are known.
    pub(crate) fn is_known(&self) -> bool {
        self.tokens.len() == self.n_prompt + self.n_generated
    }

    /// Rows up to and including the next one that gives a token; none if all tokens are on their way.
    pub(crate) fn n_rows_left(&self) -> usize {
        if self.n_generated == self.request.max_new_tokens {
            return 0;
        }
        self.n_prompt + self.n_generated - self.n_forwarded
    }

    /// Whether its next row is that of the token generated last. Which one that is, is not known while there are
    /// drafts on their way.
    pub(crate) fn is_generating(&self) -> bool {
        self.n_generated > 0 && self.n_rows_left() == 1 && !self.is_drafted
    }

    /// Tokens that drafts may have rows for, beside the next row: its last token is never forwarded.
    pub(crate) fn n_draftable(&self) -> usize {
        (self.request.max_new_tokens - self.n_generated).saturating_sub(1)
    }

    /// Positions that will be in the cache at most: the last generated token is never forwarded.
    pub(crate) fn n_positions(&self) -> usize {
        self.n_prompt + self.request.max_new_tokens - 1
    }

    /// The token of the next row.
    pub(crate) fn next_token(&self) -> RowToken {
        let sampled = RowToken::Sampled(self.logit_row);
        self.tokens.get(self.n_forwarded).map_or(sampled, |&token| RowToken::Id(token))
    }

    /// Whether it has positions left whose rows tell how probable the token after them is.
    pub(crate) fn is_scored(&self) -> bool {
        self.request.prompt_logprobs.is_some() && self.n_scored + 1 < self.n_prompt
    }

    /// The row that the step gets next tells how probable the token after it is, if that is asked for and was not
    /// told.
    pub(crate) fn add_scored_row(&mut self, slot: usize, position: usize, step: &mut Step) {
        if self.is_scored() && position == self.n_scored {
            self.n_scored += 1;
            let (row, request, given) = (step.rows.len() as u32, self.id, Some(self.tokens[position + 1]));
            step.logit_rows.push(LogitRow { row, sampling: Sampling::GREEDY, coin: 0.0, given, slot, request });
        }
    }

    /// The row that the step gets next gives a token.
    pub(crate) fn add_logit_row(&mut self, slot: usize, step: &mut Step) {
        self.logit_row = step.logit_rows.len() as u32;
        self.n_generated += 1;
        let coin = self.coin();
        self.push_logit_row(slot, coin, step);
    }

    fn coin(&mut self) -> f32 {
        if self.request.sampling.temperature == 0.0 { 0.0 } else { self.random.coin() }
    }

    fn push_logit_row(&self, slot: usize, coin: f32, step: &mut Step) {
        let (row, sampling, request) = (step.rows.len() as u32, self.request.sampling, self.id);
        step.logit_rows.push(LogitRow { row, sampling, coin, given: None, slot, request });
    }

    /// Rows of drafts after its row. Their tokens are drawn by the random numbers that are next, which are used up
    /// when these tokens come.
    pub(crate) fn add_draft_rows(&mut self, slot: usize, drafts: &[u32], step: &mut Step) {
        let random = self.random;
        for (i, &draft) in drafts.iter().enumerate() {
            let coin = self.coin();
            self.push_logit_row(slot, coin, step);
            let position = (self.n_forwarded + i) as u32;
            step.rows.push(Row { slot: slot as u32, position, token: RowToken::Id(draft) });
        }
        self.random = random;
        self.is_drafted = !drafts.is_empty();
        self.n_written = self.n_written.max(self.n_forwarded + drafts.len());
    }

    /// Takes what its rows in a step gave, of which the first is its own and each of the others was made with a draft:
    /// how many tokens came, and why it ends, if it does.
    pub(crate) fn take_tokens(
        &mut self,
        step: &Step,
        rows: &[LogitRow],
        tokens: &[u32],
    ) -> (usize, Option<FinishReason>) {
        self.is_drafted = false;
        let mut n_taken = 0;
        loop {
            let token = tokens[n_taken];
            let reason = self.take_token(token);
            n_taken += 1;
            let made_with = |row: &LogitRow| step.rows[row.row as usize].token;
            if reason.is_some() || rows.get(n_taken).map(made_with) != Some(RowToken::Id(token)) {
                return (n_taken, reason);
            }
            self.n_generated += 1;
            self.coin();
        }
    }

    /// Takes a token that was sampled for it; why it ends, if it does.
    fn take_token(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.request.stop.contains(&token) && self.tells_tokens {
            Some(FinishReason::Stop)
        } else if self.tokens.len() == self.n_prompt + self.request.max_new_tokens {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Makes the keys of all blocks whose tokens are known.
    pub(crate) fn make_keys(&mut self, block_tokens: usize) {
        for ids in self.tokens.chunks_exact(block_tokens).skip(self.keys.len()) {
            let before = self.keys.last().unwrap_or(&self.root);
            self.keys.push(before.then(ids));
        }
    }

    /// The name of a block whose key was made.
    pub(crate) fn block(&self, index: usize) -> PrefixBlock {
        let before = index.checked_sub(1).map_or(self.root, |before| self.keys[before]);
        PrefixBlock { key: self.keys[index], before, index }
    }

    /// Goes back to the queue: everything in its cache will be computed again, and no reported token is taken back.
    pub(crate) fn start_over(&mut self) {
        (self.n_forwarded, self.n_written, self.n_kept, self.last_snapshot) = (0, 0, 0, 0);
        (self.is_preempted, self.is_kept) = (true, true);
    }
}
