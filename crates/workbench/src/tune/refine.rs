//! Searches between two row counts with different best candidates.

use std::time::Instant;

use super::job::Piece;
use super::judge::JudgeError;
use super::rows::{chosen, is_closed};
use super::tuner::{TuneError, Tuned, Tuner, is_same};
use crate::timing::Candidate;

impl Tuner<'_> {
    /// Compares candidates between two row counts, if the choice at the lower one is not as good as the best at the
    /// higher one, or if another present row begins between them; it halves the gap until the two are close. `tuned` is
    /// of one problem and kind of step, the fewest rows first. Ends early at `until`.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn refine(&mut self, tuned: Vec<Tuned>, until: Option<Instant>) -> Result<Vec<Tuned>, TuneError> {
        let mut filled: Vec<Tuned> = Vec::new();
        let mut before: Option<Candidate> = None;
        for next in tuned {
            let n_before = filled.len();
            if let (Some(last), Some(before)) = (filled.last().cloned(), &before) {
                self.between((&last, before), &next, until, &mut filled)?;
            }
            filled.push(next);
            before = filled[n_before..].iter().fold(before, |before, one| held(one, before.as_ref()));
        }
        Ok(filled)
    }

    fn between(
        &mut self,
        (low, a): (&Tuned, &Candidate),
        high: &Tuned,
        until: Option<Instant>,
        filled: &mut Vec<Tuned>,
    ) -> Result<(), TuneError> {
        let (first, last) = (low.piece.n_tokens, high.piece.n_tokens);
        let Some(b) = held(high, Some(a)) else { return Ok(()) };
        let edges = self.chooser.bucket_starts(&low.problem, low.piece.step);
        let inside: Vec<u32> =
            edges.into_iter().map(|edge| edge as u32).filter(|n| (first + 1..last).contains(n)).collect();
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_over || is_closed(first, last, is_same(a, &b) && inside.is_empty()) {
            return Ok(());
        }
        let middle = (f64::from(first) * f64::from(last)).sqrt().round() as u32;
        let middle = middle.clamp(first + 1, last - 1);
        let n_tokens = inside.into_iter().min_by_key(|edge| edge.abs_diff(middle)).unwrap_or(middle);
        let piece = Piece { n_tokens, ..low.piece };
        let mut known = vec![a.clone()];
        if !is_same(a, &b) {
            known.push(b);
        }
        let between = match self.compare(&piece, known) {
            Err(TuneError::Judge(JudgeError::Piece(_)) | TuneError::TimeIsOver) => return Ok(()),
            result => Tuned { is_between: true, ..result? },
        };
        self.between((low, a), &between, until, filled)?;
        filled.push(between.clone());
        match held(&between, Some(a)) {
            Some(middle) => self.between((&between, &middle), high, until, filled),
            None => Ok(()),
        }
    }
}

/// What is chosen at a number of rows where this one is chosen before it.
fn held(tuned: &Tuned, before: Option<&Candidate>) -> Option<Candidate> {
    Some(chosen(tuned, before)?.0.candidate.clone())
}
