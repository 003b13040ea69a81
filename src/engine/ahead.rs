//! One step ahead of what is known: while the device works at a step, its tokens are unknown and the next one is
//! launched.

use gpu::Mailbox;

use super::EngineError;
use crate::graph::plan::Executor;
use crate::scheduler::Step;

/// The step in flight, and where its tokens arrive.
pub(super) struct Ahead {
    /// In turns: the tokens of a step are looked at when those of the next one are on their way already.
    mailboxes: [Mailbox; 2],
    /// Of the step in flight; that of the next one is the other.
    turn: usize,
    in_flight: Option<Step>,
}

impl Ahead {
    /// None for a device whose launches are done when they return.
    pub fn new(executor: &Executor, max_logit_rows: usize) -> Result<Option<Self>, EngineError> {
        let mailbox = || executor.mailbox(4 * max_logit_rows);
        let (Some(first), Some(second)) = (mailbox()?, mailbox()?) else { return Ok(None) };
        Ok(Some(Self { mailboxes: [first, second], turn: 0, in_flight: None }))
    }

    /// Takes note of the step that was just launched, if one was, and waits for the one before it: that step and its
    /// tokens.
    pub fn turn(
        &mut self,
        executor: &Executor,
        launched: Option<Step>,
    ) -> Result<Option<(Step, Vec<u32>)>, EngineError> {
        let (before, next) = (self.turn, 1 - self.turn);
        if let Some(step) = &launched {
            executor.post("sampled", 4 * step.logit_rows.len(), &mut self.mailboxes[next])?;
        }
        self.turn = next;
        let Some(step) = std::mem::replace(&mut self.in_flight, launched) else { return Ok(None) };
        let bytes = self.mailboxes[before].wait().map_err(EngineError::Step)?;
        let tokens = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Some((step, tokens)))
    }
}
