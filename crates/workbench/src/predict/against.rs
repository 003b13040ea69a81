//! Compares predictions with measured times: a journal of `tune`, of the same chip.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use kernel::step::StepKind;
use kernel::template::{Params, Problem};

/// A time that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The op, or the ops of a run joined by `+`.
    pub op: String,
    /// Dims of the problem; those left out may be any.
    pub dims: BTreeMap<String, u32>,
    /// Token rows of the launch.
    pub n_tokens: u32,
    /// What the rows are to each other.
    pub step: StepKind,
    /// Positions that the last row of a slot sees.
    pub context: Option<u32>,
    /// `linear/gemv`.
    pub template: String,
    /// Its parameters; those left out have their defaults.
    pub params: Params,
    /// The middle of the times of one launch, in microseconds.
    pub time_us: f64,
}

/// A line of a journal: what was asked, and what was said.
#[derive(Deserialize)]
struct JournalRecord {
    about: About,
    said: JournalOutcome,
}

#[derive(Deserialize)]
struct About {
    op: String,
    #[serde(default)]
    dims: BTreeMap<String, u32>,
    rows: u32,
    step: String,
    #[serde(default)]
    context: Option<u32>,
    template: String,
    #[serde(default)]
    params: Params,
    /// In how many rounds it was timed.
    #[serde(default)]
    rounds: usize,
    /// What said it, and whether that measured.
    #[serde(default)]
    device: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournalOutcome {
    Time {
        times_us: Vec<f64>,
    },
    #[serde(other)]
    Other,
}

/// Reads a journal. Lines that say no time (kernels that were refused, lines that were torn) are passed over; of
/// several times of one kernel the one of most rounds counts.
pub fn read(text: &str) -> Vec<Measured> {
    let mut all: BTreeMap<String, (usize, Measured)> = BTreeMap::new();
    for line in text.lines().filter_map(|line| serde_json::from_str::<JournalRecord>(line).ok()) {
        let JournalRecord { about, said: JournalOutcome::Time { mut times_us } } = line else { continue };
        let Some(step) = StepKind::ALL.into_iter().find(|step| step.name() == about.step) else { continue };
        times_us.sort_by(f64::total_cmp);
        let Some(&time_us) = times_us.get(times_us.len() / 2).filter(|time| **time > 0.0) else { continue };
        let About { op, dims, rows: n_tokens, context, template, params, rounds, device, kind, .. } = about;
        // A model's own words are no measurement.
        if kind == "predicted" {
            continue;
        }
        let key = format!("{device} {op} {dims:?} {n_tokens} {} {context:?} {template} {params:?}", step.name());
        let measured = Measured { op, dims, n_tokens, step, context, template, params, time_us };
        if all.get(&key).is_none_or(|(before, _)| *before <= rounds) {
            all.insert(key, (rounds, measured));
        }
    }
    all.into_values().map(|(_, measured)| measured).collect()
}

impl Measured {
    /// Whether it was of this problem.
    pub fn is_of(&self, problem: &Problem) -> bool {
        problem.ops.join("+") == self.op && self.dims.iter().all(|(name, value)| problem.dims.get(name) == Some(value))
    }

    /// What candidates that stand against each other have in common.
    fn group(&self) -> (&str, &BTreeMap<String, u32>, u32, &str, Option<u32>) {
        (&self.op, &self.dims, self.n_tokens, self.step.name(), self.context)
    }
}

/// How well predictions order what was measured, of one op.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    pub op: String,
    /// Times of both kinds.
    pub n: usize,
    /// Spearman's rank correlation over all of them, however many rows and whatever their shapes. None of fewer than
    /// three.
    pub correlation: Option<f64>,
    /// Predicted over measured time: the middle one, and those at a tenth and nine tenths of all.
    pub ratio: [f64; 3],
    /// Problems at a number of rows of which several candidates were measured.
    pub n_groups: usize,
    /// Candidates in those.
    pub n_in_groups: usize,
    /// Spearman's rank correlation within these, the mean of those with three candidates or more.
    pub within: Option<f64>,
    /// How much slower the candidate that is predicted to be the fastest is than the one that is: the mean over the
    /// groups, and the most; 0.05 is 5 %.
    pub regret: Option<[f64; 2]>,
    /// The mean regret of a random choice.
    pub regret_of_chance: Option<f64>,
}

/// Holds predictions, in seconds, against what was measured; an [`Agreement`] for each op, and one of all.
pub fn agreement(both: &[(Measured, f64)]) -> Vec<Agreement> {
    let ops: BTreeSet<&str> = both.iter().map(|(measured, _)| measured.op.as_str()).collect();
    let of = |op: &str| -> Vec<&(Measured, f64)> { both.iter().filter(|(measured, _)| measured.op == op).collect() };
    let mut all: Vec<Agreement> = ops.iter().map(|op| Agreement::new(op, &of(op))).collect();
    if ops.len() > 1 {
        all.push(Agreement::new("all", &both.iter().collect::<Vec<_>>()));
    }
    all
}

impl Agreement {
    fn new(op: &str, both: &[&(Measured, f64)]) -> Self {
        let pairs: Vec<(f64, f64)> = both.iter().map(|(measured, seconds)| (measured.time_us, 1e6 * seconds)).collect();
        let mut ratios: Vec<f64> = pairs.iter().map(|(measured, predicted)| predicted / measured).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |part: f64| ratios.get((part * (ratios.len().max(1) - 1) as f64).round() as usize).copied();
        let mut groups: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
        for ((measured, _), pair) in both.iter().zip(&pairs) {
            groups.entry(measured.group()).or_default().push(*pair);
        }
        groups.retain(|_, pairs| pairs.len() > 1);
        let regrets: Vec<[f64; 2]> = groups.values().map(|pairs| regret(pairs)).collect();
        let within: Vec<f64> = groups.values().filter_map(|pairs| spearman(pairs)).collect();
        let mean = |numbers: &mut dyn Iterator<Item = f64>| {
            let (sum, n) = numbers.fold((0.0, 0), |(sum, n), number| (sum + number, n + 1));
            (n > 0).then(|| sum / f64::from(n))
        };
        let most = regrets.iter().map(|regret| regret[0]).fold(0.0, f64::max);
        Self {
            op: op.to_owned(),
            n: pairs.len(),
            correlation: spearman(&pairs),
            ratio: [0.5, 0.1, 0.9].map(|part| at(part).unwrap_or(f64::NAN)),
            n_groups: groups.len(),
            n_in_groups: groups.values().map(Vec::len).sum(),
            within: mean(&mut within.into_iter()),
            regret: mean(&mut regrets.iter().map(|regret| regret[0])).map(|mean| [mean, most]),
            regret_of_chance: mean(&mut regrets.iter().map(|regret| regret[1])),
        }
    }
}

/// The loss from taking what is predicted to be the fastest, and the mean loss of taking any.
fn regret(pairs: &[(f64, f64)]) -> [f64; 2] {
    let best = pairs.iter().map(|(measured, _)| *measured).fold(f64::INFINITY, f64::min);
    let taken = pairs.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(best, |(measured, _)| *measured);
    let mean = pairs.iter().map(|(measured, _)| measured / best - 1.0).sum::<f64>() / pairs.len() as f64;
    [taken / best - 1.0, mean]
}

/// Spearman's rank correlation: that of ranks, those that are equal sharing theirs. None of fewer than three pairs, or
/// where one side is all alike.
pub(crate) fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    if pairs.len() < 3 {
        return None;
    }
    let (a, b) = (ranks(pairs.iter().map(|pair| pair.0)), ranks(pairs.iter().map(|pair| pair.1)));
    let mean = (pairs.len() + 1) as f64 / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let size = (product(&a, &a) * product(&b, &b)).sqrt();
    (size > 0.0).then(|| product(&a, &b) / size)
}

/// From 1; numbers that are equal share the mean of their ranks.
fn ranks(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let numbers: Vec<f64> = numbers.collect();
    let rank = |number: &f64| {
        let below = numbers.iter().filter(|other| *other < number).count();
        let equal = numbers.iter().filter(|other| *other == number).count();
        below as f64 + (equal + 1) as f64 / 2.0
    };
    numbers.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(template: &str, rows: u32, rounds: u32, times: &str) -> String {
        format!(
            "{{\"key\": \"k\", \"about\": {{\"op\": \"linear\", \"dims\": {{\"out_features\": 32}}, \"rows\": {rows}, \
             \"step\": \"decode\", \"template\": \"{template}\", \"params\": {{\"tile\": 4}}, \"rounds\": {rounds}}}, \
             \"said\": {{\"time\": {{\"times_us\": {times}}}}}}}\n"
        )
    }

    #[test]
    fn of_a_journal_the_times_count_that_were_taken_most_often() {
        let refused = line("linear/c", 1, 5, "[1]").replace("time\"", "refused\"");
        let torn = &line("linear/d", 1, 5, "[1]")[..40];
        let text = line("linear/a", 8, 15, "[4.0, 5.0, 9.0]") + &line("linear/a", 8, 5, "[7.0]") + &refused + torn;
        let read = read(&text);
        assert_eq!(read.len(), 1, "{read:?}");
        assert_eq!((read[0].time_us, read[0].n_tokens, read[0].params["tile"]), (5.0, 8, 4));
    }

    #[test]
    fn spearman_is_that_of_the_textbook() {
        // Wikipedia's example of IQ and hours of TV: -29/165.
        let iq = [106.0, 100.0, 86.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
        let tv = [7.0, 27.0, 2.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
        let pairs: Vec<(f64, f64)> = iq.into_iter().zip(tv).collect();
        let found = spearman(&pairs).expect("ten pairs");
        assert!((found + 29.0 / 165.0).abs() < 1e-12, "{found}");
        // Ties, by hand: ranks 1.5 1.5 3 4 and 1 2 3 4.
        let tied = spearman(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]).expect("four");
        assert!((tied - 4.5 / (4.5f64 * 5.0).sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(spearman(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]), None);
    }

    #[test]
    fn regret_is_what_the_predicted_best_loses() {
        let text = line("linear/a", 8, 5, "[10]") + &line("linear/b", 8, 5, "[12]") + &line("linear/a", 9, 5, "[11]");
        let predicted = |measured: &Measured| if measured.template == "linear/b" { 8e-6 } else { 9e-6 };
        let both: Vec<(Measured, f64)> = read(&text).into_iter().map(|one| (one.clone(), predicted(&one))).collect();
        let all = agreement(&both);
        assert_eq!((all.len(), all[0].n, all[0].n_groups, all[0].n_in_groups), (1, 3, 1, 2));
        let [mean, most] = all[0].regret.expect("a group");
        assert!((mean - 0.2).abs() < 1e-12 && (most - 0.2).abs() < 1e-12, "{mean} {most}");
        assert!((all[0].regret_of_chance.expect("a group") - 0.1).abs() < 1e-12);
    }
}
