//! Copies of the model on several devices of this machine, each in its own process.
//!
//! [`Replicas`] starts them and hands out jobs as [`Sent`]; [`child`] is their side and answers with
//! [`BatchReplicaMessage`]s.

pub mod child;
mod parent;

use std::iter::Sum;

use serde::{Deserialize, Serialize};

pub use parent::Replicas;

use super::work::{Answered, BatchJob};
use engine::Engine;
use engine::scheduler::Figures;
use replica::WireRequest;

/// A job for a replica, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sent {
    index: usize,
    digest: u64,
    asked: WireRequest,
}

impl From<BatchJob> for Sent {
    fn from(job: BatchJob) -> Self {
        let BatchJob { index, digest, request } = job;
        Self { index, digest, asked: request.into() }
    }
}

impl From<Sent> for BatchJob {
    fn from(sent: Sent) -> Self {
        let Sent { index, digest, asked } = sent;
        Self { index, digest, request: asked.into() }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum BatchReplicaMessage {
    Ready(BatchReplicaReady),
    /// What it did so far: before every answer.
    Did(Did),
    Answered(Answered),
}

/// A replica that takes jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchReplicaReady {
    /// Sequences that it runs at a time.
    pub n_slots: usize,
    /// Positions of the longest of them.
    pub capacity_tokens: usize,
    /// Its device, for people.
    pub device: String,
    /// Kernels that it found in the cache, and that it compiled.
    pub kernels: [usize; 3],
}

/// The tokens, steps and times of one engine's share of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Did {
    pub steps: usize,
    /// Tokens that steps had draft rows for.
    pub drafted_tokens: u64,
    /// Drafts that were right.
    pub accepted_tokens: u64,
    /// What the device took, in joules, where its driver says.
    pub joules: Option<f64>,
}

impl Did {
    /// The result of this engine, which used this energy.
    pub fn by(engine: &Engine, joules: Option<f64>) -> Self {
        let Figures { drafted_tokens, accepted_tokens, .. } = engine.figures();
        Self { steps: engine.host_times().steps, drafted_tokens, accepted_tokens, joules }
    }
}

impl Sum for Did {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let sum = |a: Self, b: Self| Self {
            steps: a.steps + b.steps,
            drafted_tokens: a.drafted_tokens + b.drafted_tokens,
            accepted_tokens: a.accepted_tokens + b.accepted_tokens,
            joules: a.joules.zip(b.joules).map(|(a, b)| a + b),
        };
        all.reduce(sum).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replicas_did_adds_up_and_joules_only_where_each_says_them() {
        let did =
            |steps, drafted_tokens, accepted_tokens, joules| Did { steps, drafted_tokens, accepted_tokens, joules };
        let both = [did(3, 50, 7, Some(1.5)), did(40, 600, 90, Some(20.0))];
        assert_eq!(both.into_iter().sum::<Did>(), did(43, 650, 97, Some(21.5)));
        let silent = [both[0], did(1, 1, 1, None)];
        assert_eq!(silent.into_iter().sum::<Did>(), did(4, 51, 8, None));
        assert_eq!(std::iter::empty::<Did>().sum::<Did>(), Did::default());
    }
}
