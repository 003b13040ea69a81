//! A judge: says how long a kernel takes.

use gpu::code_object::KernelFacts;
use serde::{Deserialize, Serialize};

use super::job::Piece;
use crate::timing::Candidate;
use kernel::object::compile::Request;
use kernel::object::key::Digest;
use kernel::object::store::Progress;
use kernel::template::render::Rendered;
use kernel::tuning::table::ProvenanceKind;

/// A device that measures, or a model of one.
pub trait Judge {
    /// All that its verdicts depend on besides the kernel, the inputs and the rounds: the device, by name.
    fn identity(&self) -> String;

    /// How it comes by its numbers.
    fn kind(&self) -> ProvenanceKind;

    /// Whether its time is over: it judges nothing any more.
    fn is_over(&self) -> bool {
        false
    }

    /// Judges kernels of one piece, each against the others in this many rounds; a verdict for each, in their order.
    ///
    /// # Errors
    /// [`JudgeError`].
    fn judge(
        &mut self,
        piece: &Piece,
        kernels: &[CandidateKernel],
        n_rounds: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Verdict>, JudgeError>;
}

/// Why nothing could be said of a piece.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// Its inputs cannot be had, or do not fit the device.
    #[error("{0}")]
    Piece(String),
    /// It can judge no kernel any more; the text says why.
    #[error("{0}")]
    Gone(String),
    /// Its time was over before it had judged all of them.
    #[error("the time limit was reached")]
    TimeIsOver,
}

/// A kernel to be judged.
#[derive(Clone, Debug)]
pub struct CandidateKernel {
    pub candidate: Candidate,
    /// Its source and launch.
    pub(crate) rendered: Rendered,
    /// What the compiler is asked.
    pub(crate) request: Request,
    /// Of the key of its object: source, options, compiler.
    pub(crate) key: Digest,
    /// Whether it is judged though it spills: what runs today, or would be the best at another number of rows.
    pub(crate) is_known: bool,
}

/// The judgement of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is right, or taken to be, and takes so long.
    Time(Time),
    /// It is not to be used.
    Refused { reason: Reason, text: String },
}

/// How long a kernel takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Of one launch in each round, in microseconds, rising.
    pub times_us: Vec<f64>,
    /// The largest error of the gate, as a fraction of the tolerance; of a prediction none.
    pub worst_error: Option<f64>,
    /// How much of the outputs was compared, and copies of the weights that launches went round in.
    pub compared: Option<(String, usize)>,
    /// SHA-256 of what the gate looked at, in hex.
    pub evidence: Option<String>,
    /// SHA-256 of the object, in hex.
    pub object: Option<String>,
    /// SHA-256 of the rendered source, in hex.
    pub source: String,
    /// What a GPU's object uses.
    pub uses: Option<Uses>,
}

/// What a GPU's object uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// Registers of a lane.
    pub vgprs: u32,
    /// Registers that are spilled.
    pub spills: u32,
    /// Bytes of LDS.
    pub lds_bytes: u32,
}

/// Why a kernel is not to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It cannot be rendered or compiled.
    NotCompiled,
    /// It uses more than the chip has or its template allows.
    Exceeds,
    /// It spills registers.
    Spills,
    /// It gives something else than the reference.
    Wrong,
    /// It ended the process that ran it, or did not end.
    Died,
    /// The device refuses it.
    Refused,
    /// Its correctness was not checked.
    Unchecked,
}

impl Reason {
    /// The name in messages, which say how many did this.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotCompiled => "do not compile",
            Self::Exceeds => "exceed the chip",
            Self::Spills => "spill",
            Self::Wrong => "are wrong",
            Self::Died => "ended their process",
            Self::Refused => "are refused by the device",
            Self::Unchecked => "were not checked",
        }
    }
}

impl Verdict {
    /// Of a kernel that is not to be used.
    pub fn refused(reason: Reason, text: impl ToString) -> Self {
        Self::Refused { reason, text: text.to_string() }
    }

    /// The time, if there is one.
    pub fn time(&self) -> Option<&Time> {
        match self {
            Self::Time(time) => Some(time),
            Self::Refused { .. } => None,
        }
    }
}

impl Time {
    /// The middle of its times, in microseconds.
    pub fn median_us(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The interquartile range of its times, as a fraction of the median.
    pub fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median_us()
    }

    /// Between neighbours where it falls between them.
    fn quantile(&self, q: f64) -> f64 {
        let Some(last) = self.times_us.len().checked_sub(1) else { return f64::INFINITY };
        let at = q * last as f64;
        let (low, part) = (at.floor() as usize, at.fract());
        self.times_us[low] + part * (self.times_us[(low + 1).min(last)] - self.times_us[low])
    }
}

impl Uses {
    pub(crate) fn from_facts(facts: &KernelFacts) -> Self {
        Self { vgprs: facts.vgprs, spills: facts.spills(), lds_bytes: facts.lds_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let time = |times_us: &[f64]| Time { times_us: times_us.to_vec(), ..Time::default() };
        let rising = time(&[1.0, 2.0, 4.0, 8.0]);
        assert_eq!([0.0, 0.5, 1.0].map(|q| rising.quantile(q)), [1.0, 3.0, 8.0]);
        assert_eq!(time(&[5.0]).quantile(0.75), 5.0);
        assert_eq!(rising.spread(), (5.0 - 1.75) / 3.0);
    }
}
