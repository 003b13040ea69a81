//! How the rows of a step are shared.
//!
//! Every generating sequence has one row, and some have rows for drafts. Half of the remaining rows go to the prompt
//! that came first, so that a long prompt makes progress; the other half goes to the prompts that are nearest to their
//! ends, so that short ones need not wait for it. Prompts of the same length follow each other. Background prompts get
//! what is left.

use super::Scheduler;
use super::request::RequestId;
use super::sequence::Sequence;
use super::step::{Row, RowToken, Step};

/// A prompt's part of a step.
struct Share {
    slot: usize,
    request: RequestId,
    is_background: bool,
    n_left: usize,
    n_rows: usize,
}

/// How many of a request's drafts may come.
type NAllowed<'a> = &'a mut dyn FnMut(RequestId, &[u32]) -> usize;

impl Scheduler {
    pub(super) fn add_generating_row(&mut self, slot: usize, step: &mut Step, n_allowed: NAllowed<'_>) {
        if !self.slots[slot].as_ref().is_some_and(Sequence::is_generating) {
            return;
        }
        let drafts = self.drafts_of(slot, step, n_allowed);
        let Some(sequence) = &mut self.slots[slot] else { return };
        if !sequence.is_known() && !drafts.is_empty() {
            return; // its last token is on its way, and worth waiting for
        }
        let token = sequence.next_token();
        sequence.add_logit_row(slot, step);
        step.rows.push(Row { slot: slot as u32, position: sequence.n_forwarded as u32, token });
        sequence.n_forwarded += 1;
        sequence.add_draft_rows(slot, &drafts, step);
        self.figures.drafted_tokens += drafts.len() as u64;
    }

    /// Expected tokens for the rows after a slot's next one, as far as the step and the slot's blocks have room: half
    /// of a step's free rows is for prompts, and a block is taken only if no sequence will need it sooner.
    fn drafts_of(&mut self, slot: usize, step: &Step, n_allowed: NAllowed<'_>) -> Vec<u32> {
        let Some(options) = self.options.drafts else { return Vec::new() };
        let n_running = self.slots.iter().flatten().count();
        let n_background = self.slots.iter().flatten().filter(|sequence| sequence.is_background()).count();
        let left_in_step = (self.options.max_rows - self.slots.len()) / 2;
        // Background sequences do not keep others from drafting.
        let may_draft = |of: &Sequence| {
            let n_counted = if of.is_background() { n_running } else { n_running - n_background };
            n_counted <= options.max_sequences
        };
        let Some(sequence) = self.slots[slot].as_mut().filter(|of| may_draft(of)) else { return Vec::new() };
        sequence.drafts.follow(&sequence.tokens, sequence.n_prompt);
        let most = options.max_rows.min(left_in_step.saturating_sub(step.n_drafts())).min(sequence.n_draftable());
        let mut drafts = sequence.drafts.draft(&sequence.tokens, most, options.min_probability);
        let is_stop = |draft: &u32| sequence.request.stop.contains(draft);
        drafts.truncate(drafts.iter().position(is_stop).unwrap_or(drafts.len()));
        if !drafts.is_empty() {
            drafts.truncate(n_allowed(sequence.id, &drafts));
        }
        let room = |drafts: &[u32]| sequence.n_forwarded + 1 + drafts.len();
        if !self.tables.has_room(slot, room(&drafts)) && self.tables.n_available() > n_running {
            self.tables.grow(slot, room(&drafts));
        }
        while !drafts.is_empty() && !self.tables.has_room(slot, room(&drafts)) {
            drafts.pop();
        }
        drafts
    }

    pub(super) fn add_rows_of_prompts(&mut self, step: &mut Step) {
        let share = |(slot, sequence): (usize, &Option<Sequence>)| {
            let sequence = sequence.as_ref()?;
            // Those that generate have had their row.
            let n_left = sequence.tokens.len().checked_sub(sequence.n_forwarded).filter(|&n_left| n_left > 0)?;
            Some(Share { slot, request: sequence.id, is_background: sequence.is_background(), n_left, n_rows: 0 })
        };
        let mut shares: Vec<Share> = self.slots.iter().enumerate().filter_map(share).collect();
        // Foreground sequences wait for at most `max_prompt_rows` rows of prompts; background ones may wait longer.
        let in_foreground = |row: &Row| self.slots[row.slot as usize].as_ref().is_some_and(|of| !of.is_background());
        let is_waited_for = step.rows.iter().any(in_foreground);
        let most = if is_waited_for { self.options.max_prompt_rows } else { usize::MAX };
        shares.sort_unstable_by_key(|share| (share.is_background, share.slot));
        let n_foreground = shares.partition_point(|share| !share.is_background);
        let (foreground, background) = shares.split_at_mut(n_foreground);
        let n_left = share_rows(foreground, most.min(self.options.max_rows - step.rows.len()));
        share_rows(background, n_left);
        shares.sort_unstable_by_key(|share| share.slot);
        self.cut_to_logit_rows(&mut shares, step);
        for share in shares {
            self.add_prompt_rows(share.slot, share.n_rows, step);
        }
    }

    /// Leaves prompts whose every row gives logits as many rows as a step has logits for: at least one to that which
    /// came first.
    fn cut_to_logit_rows(&self, shares: &mut [Share], step: &Step) {
        let scored = |share: &Share| self.slots[share.slot].as_ref().filter(|sequence| sequence.is_scored());
        if !shares.iter().any(|share| scored(share).is_some()) {
            return;
        }
        let n_ends = shares.iter().filter(|share| scored(share).is_none() && share.n_rows == share.n_left).count();
        let mut room = self.options.max_logit_rows.saturating_sub(step.logit_rows.len() + n_ends);
        let mut in_turn: Vec<&mut Share> = shares.iter_mut().collect();
        in_turn.sort_unstable_by_key(|share| (share.is_background, share.request));
        for share in in_turn {
            let Some(sequence) = scored(share) else { continue };
            let n_told = sequence.n_scored.saturating_sub(sequence.n_forwarded);
            share.n_rows = share.n_rows.min(n_told + room);
            room -= share.n_rows.saturating_sub(n_told);
        }
    }

    fn add_prompt_rows(&mut self, slot: usize, n_rows: usize, step: &mut Step) {
        let Some(sequence) = self.slots[slot].as_mut().filter(|_| n_rows > 0) else { return };
        let (first, end) = (sequence.n_forwarded, sequence.n_forwarded + n_rows);
        for position in first..end {
            if position + 1 == sequence.tokens.len() {
                sequence.add_logit_row(slot, step);
            } else {
                sequence.add_scored_row(slot, position, step);
            }
            let token = RowToken::Id(sequence.tokens[position]);
            step.rows.push(Row { slot: slot as u32, position: position as u32, token });
        }
        sequence.n_forwarded = end;
        sequence.n_written = sequence.n_written.max(end);
        let (n_tokens, every) = (sequence.tokens.len(), self.options.snapshot_tokens.max(1));
        self.keep_prefix(slot);
        // The last token is computed in any case, so what is before its block is what the same prompt finds.
        if end == n_tokens {
            self.keep_snapshot(slot, (n_tokens - 1) / self.block_tokens * self.block_tokens);
        } else if end / every > first / every {
            self.keep_snapshot(slot, end / self.block_tokens * self.block_tokens);
        }
    }
}

/// Shares `room` rows; what is left of them.
fn share_rows(shares: &mut [Share], mut room: usize) -> usize {
    if let Some(first) = shares.iter_mut().min_by_key(|share| share.request) {
        first.n_rows = first.n_left.min(room.div_ceil(2));
        room -= first.n_rows;
    }
    shares.sort_unstable_by_key(|share| (share.n_left - share.n_rows, share.request));
    for share in &mut *shares {
        let more = room.min(share.n_left - share.n_rows);
        share.n_rows += more;
        room -= more;
    }
    room
}
