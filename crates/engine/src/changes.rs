//! The second part of a step whose rows need more than a token: changes logits, takes tokens, and looks up their
//! log-probabilities. Sends the results of [`super::extras`] to the device.

use bytemuck::cast_slice;

use super::extras::{ChangedRow, rounds};
use super::{Engine, EngineError};
use crate::scheduler::{Event, RequestId, Step};

/// The inputs of a row whose logits are changed.
const INPUTS: [&str; 5] = ["changed_row", "bias_begin", "bias_end", "mask_row", "min_p"];

/// A row without a mask.
const NO_MASK: u32 = u32::MAX;

impl Engine {
    /// The rest of a step that was launched as far as its logits, when all tokens before it are known. Gives whose rows
    /// have log-probabilities.
    pub(super) fn sample_extras(
        &mut self,
        step: &Step,
        events: &mut Vec<Event>,
    ) -> Result<Vec<(RequestId, usize)>, EngineError> {
        let rows = self.extras.rows(step, self.config.vocab_size);
        rows.stuck.iter().for_each(|&request| self.scheduler.end(request));
        let first = events.len();
        events.extend(rows.endings());
        self.extras.take(&events[first..]);
        for round in rounds(&rows.changed, self.config.vocab_size) {
            self.write_changes(round)?;
            self.executor.change_logits(step.shape(), round.len())?;
        }
        if !rows.logprob_rows.is_empty() {
            self.executor.write("logprob_row", cast_slice(&rows.logprob_rows))?;
        }
        self.executor.sample(step.shape())?;
        if !rows.logprob_rows.is_empty() {
            self.write_given(step)?;
            self.executor.logprobs(step.shape(), rows.logprob_rows.len())?;
        }
        Ok(rows.logprobs_of)
    }

    /// Puts the tokens of prompts where those are that were taken of their rows, so that it is they whose
    /// log-probabilities are looked up.
    fn write_given(&self, step: &Step) -> Result<(), EngineError> {
        let mut first = 0;
        for rows in step.logit_rows.chunk_by(|a, b| a.given.is_some() == b.given.is_some()) {
            let tokens: Vec<u32> = rows.iter().filter_map(|row| row.given).collect();
            if !tokens.is_empty() {
                self.executor.write_at("sampled", 4 * first, cast_slice(&tokens))?;
            }
            first += rows.len();
        }
        Ok(())
    }

    /// Fills what says how the logits of these rows are changed. Masks are brought only for rows that have one.
    fn write_changes(&self, rows: &[ChangedRow]) -> Result<(), EngineError> {
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        let (mut bias_id, mut bias, mut divisor) = (Vec::new(), Vec::new(), Vec::new());
        let (mut mask_row, mut masks, mut n_masks) = (Vec::new(), Vec::new(), 0);
        for row in rows {
            begin.push(bias_id.len() as u32);
            bias_id.extend(row.biases.iter().map(|one| one.id));
            bias.extend(row.biases.iter().map(|one| one.bias));
            divisor.extend(row.biases.iter().map(|one| one.divisor));
            end.push(bias_id.len() as u32);
            mask_row.push(if row.mask.is_some() { n_masks } else { NO_MASK });
            n_masks += u32::from(row.mask.is_some());
            masks.extend(row.mask.iter().flatten().copied());
        }
        let changed: Vec<u32> = rows.iter().map(|row| row.row).collect();
        let min_p: Vec<f32> = rows.iter().map(|row| row.min_p).collect();
        let words = [&changed, &begin, &end, &mask_row].map(|words| cast_slice(words));
        let inputs = INPUTS.into_iter().zip(words.into_iter().chain([cast_slice(&min_p)]));
        self.executor.write_change_inputs(&inputs.collect::<Vec<_>>())?;
        if !bias.is_empty() {
            self.executor.write("bias_id", cast_slice(&bias_id))?;
            self.executor.write("bias", cast_slice(&bias))?;
            self.executor.write("bias_divisor", cast_slice(&divisor))?;
        }
        if !masks.is_empty() {
            self.executor.write("mask", cast_slice(&masks))?;
        }
        Ok(())
    }
}
