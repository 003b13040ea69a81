//! Steps in flight: launched, with tokens that are not known yet. An asynchronous device has one step in flight while
//! the next is launched; on other devices a step is done when its launches return.

use std::collections::VecDeque;

use bytemuck::cast_slice_mut;
use gpu::Mailbox;

use super::EngineError;
use super::extras::Logprobs;
use crate::graph::forward::N_TOP;
use crate::plan::Executor;
use crate::scheduler::{RequestId, Step};

/// The steps in flight, the oldest first, and where what they give arrives.
pub(super) struct Ahead {
    in_flight: VecDeque<Launched>,
    /// In turns: the tokens of a step are looked at when those of the next one are on their way already. None for a
    /// device whose launches are done when they return.
    mailboxes: Option<[Mailboxes; 2]>,
    /// Of the step that was launched last.
    turn: usize,
    max_logit_rows: usize,
}

/// Where what a step gives arrives.
struct Mailboxes {
    tokens: Mailbox,
    /// On request: log-probabilities, and the tokens that they belong to.
    logprobs: Option<[Mailbox; 2]>,
}

/// A step that was launched.
struct Launched {
    step: Step,
    /// Whose rows give log-probabilities, and of how many tokens.
    logprobs_of: Vec<(RequestId, usize)>,
    turn: usize,
}

/// A step that is done.
pub(super) struct Done {
    pub(crate) step: Step,
    pub(crate) tokens: Vec<u32>,
    /// Whose rows give log-probabilities, and of how many tokens.
    pub(crate) logprobs_of: Vec<(RequestId, usize)>,
    pub(crate) logprobs: Logprobs,
}

impl Ahead {
    pub(crate) fn new(executor: &Executor, max_logit_rows: usize) -> Result<Self, EngineError> {
        let (first, second) = (executor.mailbox(4 * max_logit_rows)?, executor.mailbox(4 * max_logit_rows)?);
        let mailboxes =
            first.zip(second).map(|(first, second)| [first, second].map(|tokens| Mailboxes { tokens, logprobs: None }));
        Ok(Self { in_flight: VecDeque::new(), mailboxes, turn: 0, max_logit_rows })
    }

    /// Steps that may be in flight when the engine has nothing left to launch for now.
    pub(crate) fn most(&self) -> usize {
        usize::from(self.mailboxes.is_some())
    }

    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes note of the step that was just launched, and has what it gives brought here. At most one other is in
    /// flight.
    pub(crate) fn launched(
        &mut self,
        executor: &Executor,
        step: Step,
        logprobs_of: Vec<(RequestId, usize)>,
    ) -> Result<(), EngineError> {
        self.turn = 1 - self.turn;
        if let Some(mailboxes) = &mut self.mailboxes {
            let Mailboxes { tokens, logprobs } = &mut mailboxes[self.turn];
            executor.post("sampled", 4 * step.logit_rows.len(), tokens)?;
            if !logprobs_of.is_empty() {
                if logprobs.is_none() {
                    let mailbox = |width: usize| executor.mailbox(4 * width * self.max_logit_rows);
                    *logprobs = mailbox(N_TOP + 1)?.zip(mailbox(N_TOP)?).map(|(logprob, top)| [logprob, top]);
                }
                if let Some([logprob, top]) = logprobs {
                    executor.post("logprob", 4 * (N_TOP + 1) * logprobs_of.len(), logprob)?;
                    executor.post("top_token", 4 * N_TOP * logprobs_of.len(), top)?;
                }
            }
        }
        self.in_flight.push_back(Launched { step, logprobs_of, turn: self.turn });
        Ok(())
    }

    /// Forgets the steps in flight, which the device has been waited for.
    pub(crate) fn forget(&mut self) {
        self.in_flight.clear();
    }

    /// Waits for the oldest step in flight.
    pub(crate) fn next(&mut self, executor: &Executor) -> Result<Option<Done>, EngineError> {
        let Some(Launched { step, logprobs_of, turn }) = self.in_flight.pop_front() else { return Ok(None) };
        let mut tokens = vec![0_u32; step.logit_rows.len()];
        let n = logprobs_of.len();
        let mut logprobs = Logprobs { logprob: vec![0.0; n * (N_TOP + 1)], top_token: vec![0; n * N_TOP] };
        match &mut self.mailboxes {
            None => {
                executor.read("sampled", 0, cast_slice_mut(&mut tokens))?;
                if n > 0 {
                    executor.read("logprob", 0, cast_slice_mut(&mut logprobs.logprob))?;
                    executor.read("top_token", 0, cast_slice_mut(&mut logprobs.top_token))?;
                }
            }
            Some(mailboxes) => {
                let mailboxes = &mut mailboxes[turn];
                arrived(&mut mailboxes.tokens, cast_slice_mut(&mut tokens))?;
                if let Some([logprob, top]) = mailboxes.logprobs.as_mut().filter(|_| n > 0) {
                    arrived(logprob, cast_slice_mut(&mut logprobs.logprob))?;
                    arrived(top, cast_slice_mut(&mut logprobs.top_token))?;
                }
            }
        }
        Ok(Some(Done { step, tokens, logprobs_of, logprobs }))
    }
}

/// Waits for what was posted last.
fn arrived(mailbox: &mut Mailbox, to: &mut [u8]) -> Result<(), EngineError> {
    to.copy_from_slice(mailbox.wait().map_err(EngineError::Step)?);
    Ok(())
}
