//! Whole steps decide: new rows are kept only where whole steps are no slower with them, measured in pairs.
//!
//! A kernel that is faster alone may be slower in a step, where caches have other contents, other kernels lower the
//! clock, and rows are more than it was timed at.

use kernel::step::StepKind;
use kernel::tuning::edit::NewRow;
use kernel::tuning::table::Tokens;

/// A whole work that is measured: steps of one number of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct StepWork {
    /// `decode, batch 8`.
    pub name: String,
    /// What its rows are to each other.
    pub step: StepKind,
    /// Rows of a step.
    pub rows: u32,
    /// The numbers of rows that it speaks for: up to halfway to its neighbours.
    pub speaks_for: Tokens,
}

/// What measures whole works.
pub trait Steps {
    /// An error of measuring a step.
    type Error;

    /// Does a work with the tables as they are, or with new rows before them, and gives its tokens per second.
    ///
    /// # Errors
    /// If it cannot be done.
    fn tok_per_s(&mut self, work: &StepWork, rows: Option<&[NewRow]>) -> Result<f64, Self::Error>;
}

/// The result of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub work: StepWork,
    /// Tokens per second as the tables are, of each pair.
    pub before: Vec<f64>,
    /// With the rows that are kept, in the same order.
    pub after: Vec<f64>,
}

/// What is kept, and how fast it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The rows with which no work is slower.
    pub kept: Vec<NewRow>,
    /// How many of them, or parts of them, were dropped for that.
    pub n_dropped: usize,
    /// Each work that was measured.
    pub outcomes: Vec<Outcome>,
    /// Those for which there was no time.
    pub open: Vec<StepWork>,
}

/// A work is slower only if it is so by more than the first of these, as a fraction, and by more than its pairs differ;
/// pairs that differ by more than the second prove nothing, and what looks slower then is taken to be.
const NOISE: [f64; 2] = [0.005, 0.03];

impl StepWork {
    /// Works of these steps; each speaks for the numbers of rows that are nearest to its own.
    pub fn all(steps: &[(String, StepKind, u32)]) -> Vec<Self> {
        let mut rows: Vec<u32> = steps.iter().map(|(_, _, rows)| *rows).collect();
        rows.sort_unstable();
        rows.dedup();
        let halfway = |a: u32, b: u32| (f64::from(a) * f64::from(b)).sqrt() as u32;
        let of = |(name, step, own): &(String, StepKind, u32)| {
            let at = rows.binary_search(own).expect("it is one of them");
            let below = at.checked_sub(1).map_or(0, |below| halfway(rows[below], *own));
            let last = rows.get(at + 1).map(|above| halfway(*own, *above));
            Self { name: name.clone(), step: *step, rows: *own, speaks_for: Tokens { first: below + 1, last } }
        };
        steps.iter().map(of).collect()
    }
}

impl Outcome {
    /// The middle of the pairs' ratios, new to old; above 1 is faster.
    pub fn gain(&self) -> f64 {
        quantile(&self.ratios(), 0.5)
    }

    /// Whether it is slower than before by more than noise.
    pub fn is_slower(&self) -> bool {
        let ratios = self.ratios();
        let spread = quantile(&ratios, 0.75) - quantile(&ratios, 0.25);
        self.gain() < 1.0 - spread.clamp(NOISE[0], NOISE[1])
    }

    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.before.iter().zip(&self.after).map(|(before, after)| after / before).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }
}

fn quantile(rising: &[f64], q: f64) -> f64 {
    let at = q * rising.len().saturating_sub(1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    rising[low] + part * (rising[(low + 1).min(rising.len() - 1)] - rising[low])
}

/// Measures all works with the rows and without, in turn, so many times at most: fewer where the first pair is beyond
/// all noise. What is slower loses the rows at the numbers of rows that it speaks for, and so does what was not
/// measured when it `is_over`, which is asked before each measurement. What fails then was stopped.
///
/// # Errors
/// If a work cannot be done.
pub fn decide<S: Steps>(
    rows: Vec<NewRow>,
    works: &[StepWork],
    n_pairs: usize,
    steps: &mut S,
    is_over: &dyn Fn() -> bool,
) -> Result<Decision, S::Error> {
    let mut decision = Decision { kept: rows.clone(), n_dropped: 0, outcomes: Vec::new(), open: Vec::new() };
    for work in works {
        let measured = match pairs(work, &rows, n_pairs, steps, is_over) {
            Err(_) if is_over() => None,
            measured => measured?,
        };
        let Some(mut outcome) = measured else {
            decision.n_dropped += cut(&mut decision.kept, work);
            decision.open.push(work.clone());
            continue;
        };
        if outcome.is_slower() {
            decision.n_dropped += cut(&mut decision.kept, work);
            // Its steps are as they were.
            outcome.after.clone_from(&outcome.before);
        }
        decision.outcomes.push(outcome);
    }
    Ok(decision)
}

/// Old and new in turn, and the other way round each second time: a device that gets warmer is slower for both. None if
/// the time was over before the end.
fn pairs<S: Steps>(
    work: &StepWork,
    rows: &[NewRow],
    n_pairs: usize,
    steps: &mut S,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<Outcome>, S::Error> {
    let mut outcome = Outcome { work: work.clone(), before: Vec::new(), after: Vec::new() };
    for pair in 0..n_pairs.max(1) {
        let order = if pair % 2 == 0 { [false, true] } else { [true, false] };
        for is_new in order {
            if is_over() {
                return Ok(None);
            }
            let speed = steps.tok_per_s(work, is_new.then_some(rows))?;
            if is_new { &mut outcome.after } else { &mut outcome.before }.push(speed);
        }
        if (outcome.gain() - 1.0).abs() > NOISE[1] {
            break;
        }
    }
    Ok(Some(outcome))
}

/// Takes what a work speaks for out of the rows; gives how many rows that changed.
fn cut(rows: &mut Vec<NewRow>, work: &StepWork) -> usize {
    let mut n_cut = 0;
    let mut left = Vec::new();
    for row in rows.drain(..) {
        let is_for_it = row.step.is_none_or(|step| step == work.step);
        let parts = if is_for_it { row.tokens.without(work.speaks_for) } else { vec![row.tokens] };
        n_cut += usize::from(parts != [row.tokens]);
        left.extend(parts.into_iter().map(|tokens| NewRow { tokens, ..row.clone() }));
    }
    *rows = left;
    n_cut
}
