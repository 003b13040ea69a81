//! Makes rows of a tuning table from the results.

use super::job::TuningJob;
use super::judge::Time;
use super::tuner::{CandidateResult, Tuned, is_same};
use crate::timing::Candidate;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::tuning::edit::{NewRow, Proof};
use kernel::tuning::table::{APART, Facts, ProvenanceKind, Tokens, TuningRow};
use kernel::tuning::{Query, TuningTables};

/// Measured times that are no further apart than this are the same, as a fraction.
pub const NOISE: f64 = 0.02;

/// The same of predicted ones; a guess: of the experts the model's choice was no better than chance's.
pub const DOUBT: f64 = 0.10;

/// What holds at a number of rows is taken to hold at such a part of it more or less.
const NEARBY: u32 = 4;

/// How measurements become tuning rows: their kind, and which rows they replace.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Where the times come from.
    pub kind: ProvenanceKind,
    /// Each takes the place of the row that decided, as far as that went, though nothing else be better: what is
    /// measured anew takes the place of what is stale.
    pub renews: bool,
}

impl Rules {
    fn noise(self) -> f64 {
        if self.kind == ProvenanceKind::Measured { NOISE } else { DOUBT }
    }
}

/// The rows of one problem, of steps of one kind, at rising numbers of tokens: where something is better than what the
/// tables say now, or they say nothing.
///
/// A choice holds at the row count where it was judged and, if nothing else can be chosen between ([`is_closed`]), down
/// to the next smaller judged count, within the range of the row that it replaces. Where a search was cut short, and
/// below the first count, a choice holds only nearby; so it does above the last one, unless `is_last` says that steps
/// hardly have more rows. Neighbours with the same choice are one row.
pub fn rows_of(
    job: &TuningJob,
    of_problem: &[Tuned],
    facts: &Facts,
    rules: Rules,
    is_last: bool,
    apart: &Apart,
) -> Vec<NewRow> {
    let mut rows: Vec<NewRow> = Vec::new();
    let mut judged = 0;
    let mut before: Option<&Candidate> = None;
    for (i, tuned) in of_problem.iter().enumerate() {
        let n_tokens = tuned.piece.n_tokens;
        let Some((entry, time)) = chosen_by(tuned, before, rules) else { continue };
        let old = tuned.present_tokens();
        let is_same = before.is_some_and(|before| is_same(before, &entry.candidate));
        let is_closed = before.is_some() && is_closed(judged, n_tokens, is_same);
        before = Some(&entry.candidate);
        let least = if is_closed { judged + 1 } else { n_tokens - n_tokens / NEARBY };
        let most = match i + 1 == of_problem.len() {
            true if is_last => old.last,
            true => Some(old.last.unwrap_or(u32::MAX).min(n_tokens + n_tokens / NEARBY)),
            false => Some(n_tokens),
        };
        let tokens = match rules.renews {
            // All of its range, but for what others of its numbers of rows say.
            true => {
                let is_of_it = |other: Option<&Tuned>| other.is_some_and(|other| other.is_by_the_row_of(tuned));
                let before = i.checked_sub(1).map(|before| &of_problem[before]);
                let first = if is_of_it(before) { judged + 1 } else { old.first };
                Tokens { first, last: if is_of_it(of_problem.get(i + 1)) { Some(n_tokens) } else { old.last } }
            }
            false => Tokens { first: old.first.max(least), last: most },
        };
        let last_judged = std::mem::replace(&mut judged, n_tokens);
        let Some(row) = row(job, tuned, entry, time, facts, tokens, rules, apart) else { continue };
        // A row of the tables begins between the two: if both choose alike, so does what lies before it.
        if let Some(last) = rows.last_mut().filter(|last| last.tokens.last == Some(last_judged))
            && last.is_same_choice(&row)
        {
            last.tokens.last = Some(last_judged.max(tokens.first - 1));
        }
        match rows.last_mut() {
            Some(last)
                if last.tokens.last.and_then(|n| n.checked_add(1)) == Some(tokens.first)
                    && last.is_same_choice(&row) =>
            {
                *last = NewRow { tokens: Tokens { first: last.tokens.first, ..tokens }, ..row };
            }
            _ => rows.push(row),
        }
    }
    rows
}

/// Whether nothing but the two choices of neighbouring numbers of rows can be best between them: they are the same, or
/// the numbers are close.
pub(super) fn is_closed(first: u32, last: u32, is_same: bool) -> bool {
    is_same || last - first <= (first / NEARBY).max(1)
}

/// What the ops of a run take one by one, in microseconds, where it is known.
pub(crate) type Apart<'a> = dyn Fn(&Tuned) -> Option<f64> + 'a;

/// The row for one number of rows; `None` where the tables say it already.
#[expect(clippy::too_many_arguments, reason = "what a row is made of")]
fn row(
    job: &TuningJob,
    tuned: &Tuned,
    entry: &CandidateResult,
    time: &Time,
    facts: &Facts,
    tokens: Tokens,
    rules: Rules,
    apart: &Apart,
) -> Option<NewRow> {
    let is_decided = tuned.present_row.is_some();
    let time_us = time.median_us();
    let is_run = tuned.problem.ops.len() > 1;
    // What is fused now stays so unless it is clearly slower, and the other way round.
    let apart_us = apart(tuned).filter(|_| is_run);
    let is_apart = apart_us.is_some_and(|apart_us| match tuned.is_fused {
        true => time_us > apart_us * (1.0 + rules.noise()),
        false => time_us * (1.0 + rules.noise()) >= apart_us,
    });
    // One whose ops were not judged beside it, as in a search that was cut short, may be slower than these.
    if is_run && !tuned.is_fused && (is_apart || apart_us.is_none()) {
        return None;
    }
    if !is_apart && is_decided && tuned.is_present(entry) && (!is_run || tuned.is_fused) && !rules.renews {
        return None;
    }
    let proof = Proof {
        spread: (rules.kind == ProvenanceKind::Measured).then(|| time.spread()),
        problem: Some(tuned.problem.identity()),
        source: Some(time.source.clone()),
        object: time.object.clone(),
        evidence: time.evidence.clone(),
    };
    let fused = NewRow {
        op: tuned.problem.ops.join("+"),
        facts: facts.clone(),
        tokens,
        step: job.step_of_rows(&tuned.piece),
        template: entry.candidate.template.label(),
        params: entry.candidate.params.clone(),
        time_us,
        gbps: tuned.gbps(time_us),
        timed_at: tuned.piece.n_tokens,
        proof,
    };
    Some(match apart_us.filter(|_| is_apart) {
        None => fused,
        Some(time_us) => NewRow {
            template: APART.to_owned(),
            params: Default::default(),
            time_us,
            gbps: tuned.gbps(time_us),
            proof: Proof::default(),
            ..fused
        },
    })
}

/// The best of what was judged; of equally good ones that of fewer rows if it is no slower than the present one, else
/// the present one.
pub fn chosen<'t>(tuned: &'t Tuned, before: Option<&Candidate>) -> Option<(&'t CandidateResult, &'t Time)> {
    let is_measured = tuned.entries.iter().filter_map(|entry| entry.verdict.time()).any(|time| time.evidence.is_some());
    let kind = if is_measured { ProvenanceKind::Measured } else { ProvenanceKind::Predicted };
    chosen_by(tuned, before, Rules { kind, renews: false })
}

fn chosen_by<'t>(
    tuned: &'t Tuned,
    before: Option<&Candidate>,
    rules: Rules,
) -> Option<(&'t CandidateResult, &'t Time)> {
    let ranked = tuned.ranked();
    let (best_entry, best) = *ranked.first()?;
    let limit = best.median_us() * (1.0 + rules.noise().max(best.spread()));
    let n_rounds = best.times_us.len();
    let is_good = |time: &Time| time.times_us.len() == n_rounds && time.median_us() <= limit;
    let is_before = |entry: &CandidateResult| before.is_some_and(|before| is_same(before, &entry.candidate));
    let good = || ranked.iter().filter(|(_, time)| is_good(time));
    let present = good().find(|(entry, _)| tuned.is_present(entry));
    let is_no_slower = |time: &Time| present.is_none_or(|(_, present)| time.median_us() <= present.median_us());
    let kept = good().find(|(entry, time)| is_before(entry) && is_no_slower(time)).or(present);
    Some(kept.copied().unwrap_or((best_entry, best)))
}

/// New rows without the numbers of tokens at which measured ones of the tables apply: a prediction never takes the
/// place of a measurement.
pub fn behind_measured(rows: Vec<NewRow>, tables: &TuningTables, target: &Target) -> Vec<NewRow> {
    let cut = |row: NewRow| {
        let query = Query { op: row.op.clone(), facts: row.facts.clone() };
        let meets = |found: &&TuningRow| {
            let mut steps = StepKind::ALL.into_iter().filter(|step| row.step.is_none_or(|own| own == *step));
            steps.any(|step| found.applies(&query, step))
        };
        let is_measured = |found: &&TuningRow| {
            tables.provenance(found).is_some_and(|provenance| provenance.kind == ProvenanceKind::Measured)
        };
        let mut left = vec![row.tokens];
        for measured in tables.rows_for(target).filter(meets).filter(is_measured) {
            left = left.into_iter().flat_map(|one| one.without(measured.tokens)).collect();
        }
        left.into_iter().map(|tokens| NewRow { tokens, ..row.clone() }).collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(cut).collect()
}
