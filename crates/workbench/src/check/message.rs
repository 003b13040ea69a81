//! The protocol between a check's child and its parent: lines of JSON over a separate socket, the child's standard
//! input, so that nothing a kernel prints can be mistaken for them.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::coverage::Lines;
use super::rounding::Rounding;
use super::unknown::Unknown;
use super::unseen::Unseen;
use super::uses::Uses;
use super::{AtLine, Checked, Cost, Failure, Wrong};
use kernel::template::Precision;

/// One template at one precision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckStep {
    pub(crate) op: String,
    pub(crate) variant: String,
    pub(crate) precision: Precision,
}

/// What a child is to do.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CheckJob {
    pub(crate) steps: Vec<CheckStep>,
    /// Cases of the first step that ran before, by number from 1: this one and those before it.
    pub(crate) n_known: usize,
    /// Cases after which an error was reported.
    pub(crate) wrong: BTreeSet<usize>,
    /// After so many milliseconds a case is taken to hang.
    pub(crate) deadline_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// A case runs now; this came out before it.
    Runs {
        number: usize,
        case: String,
        since: CaseResults,
    },
    Ran,
    /// It does not end, and where it is; the child is of no more use.
    Hangs {
        text: String,
    },
    /// The step is done, and this came out last; whether another child is to do the next one.
    Done {
        since: CaseResults,
        is_lost: bool,
    },
    /// The device is lost; another child is to go on.
    Lost {
        since: CaseResults,
    },
}

/// The results of some cases of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CaseResults {
    n_cases: usize,
    /// Bits, because JSON has no infinity.
    worst: u64,
    /// [`Rounding`]'s two, as bits.
    rounding: Option<[u64; 2]>,
    n_compiled: usize,
    compile_ms: u64,
    ran: bool,
    uses: Option<Uses>,
    costs: Vec<(String, f64)>,
    n_untried: usize,
    failures: Vec<FailureMessage>,
    lines: Lines,
    unseen: Unseen,
    traffic: Vec<(AtLine, [u64; 3])>,
    unknown: Option<Unknown>,
    notes: Vec<String>,
}

/// A [`Failure`] in words.
#[derive(Debug, Serialize, Deserialize)]
struct FailureMessage {
    case: String,
    text: String,
    is_different: bool,
    words: Option<String>,
    n_more: usize,
}

impl CaseResults {
    pub(crate) fn from_checked(checked: Checked) -> Self {
        let told = |Failure { case, wrong, n_more }| FailureMessage {
            case,
            text: wrong.to_string(),
            is_different: wrong.is_different(),
            words: wrong.compilers_words().map(str::to_owned),
            n_more,
        };
        Self {
            n_cases: checked.n_cases,
            worst: checked.worst.to_bits(),
            rounding: checked.rounding.map(|one| [one.relative, one.of_activations].map(f64::to_bits)),
            n_compiled: checked.n_compiled,
            compile_ms: checked.compile_ms,
            ran: checked.ran,
            uses: checked.uses,
            costs: checked.costs.into_iter().map(|cost| (cost.case, cost.ms)).collect(),
            n_untried: checked.n_untried,
            failures: checked.failures.into_iter().map(told).collect(),
            lines: checked.lines,
            unseen: checked.unseen,
            traffic: checked.traffic.into_iter().collect(),
            unknown: checked.unknown,
            notes: checked.notes,
        }
    }

    pub(crate) fn is_right(&self) -> bool {
        self.failures.is_empty()
    }

    /// The same as it was in the child, of this step.
    pub(crate) fn of_step(self, step: &CheckStep) -> Checked {
        let failure = |FailureMessage { case, text, is_different, words, n_more }| Failure {
            case,
            wrong: Wrong::Told { text, is_different, words },
            n_more,
        };
        let rounding = |[relative, of_activations]: [f64; 2]| Rounding { relative, of_activations };
        Checked {
            n_cases: self.n_cases,
            worst: f64::from_bits(self.worst),
            rounding: self.rounding.map(|bits| rounding(bits.map(f64::from_bits))),
            n_compiled: self.n_compiled,
            compile_ms: self.compile_ms,
            ran: self.ran,
            uses: self.uses,
            costs: self.costs.into_iter().map(|(case, ms)| Cost { case, ms }).collect(),
            n_untried: self.n_untried,
            failures: self.failures.into_iter().map(failure).collect(),
            lines: self.lines,
            unseen: self.unseen,
            traffic: self.traffic.into_iter().collect(),
            unknown: self.unknown,
            notes: self.notes,
            ..Checked::new(step.op.clone(), step.variant.clone(), step.precision)
        }
    }
}

pub(crate) fn write(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

pub(crate) fn read<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_out_travels_as_it_was() {
        let step = CheckStep { op: "linear".into(), variant: "dot".into(), precision: Precision::Bf16 };
        let mut checked = Checked::new(step.op.clone(), step.variant.clone(), step.precision);
        (checked.n_cases, checked.worst, checked.ran, checked.n_untried) = (3, f64::INFINITY, true, 4);
        checked.uses = Some(Uses { vgprs: 7, occupancy: Some(2), ..Uses::default() });
        checked.costs.push(Cost { case: "a".into(), ms: 1.5 });
        checked.rounding = Some(Rounding { relative: 0.1, of_activations: f64::INFINITY });
        checked.notes.push("a note".into());
        checked.lines.insert(3, [(0, true), (1, false)].into());
        checked.unseen.extend(Unseen::of("", 7));
        checked.fail("n 1".into(), Wrong::NoTest);
        let since = CaseResults::from_checked(checked.clone());
        let mut line = Vec::new();
        write(&mut line, &Message::Done { since, is_lost: false }).expect("written");
        let Message::Done { since, .. } = read(&line).expect("read") else { panic!("another message") };
        let mut back = since.of_step(&step);
        assert_eq!(back.failures[0].to_string(), checked.failures[0].to_string());
        back.failures = checked.failures.clone();
        assert_eq!(format!("{back:?}"), format!("{checked:?}"));
    }
}
