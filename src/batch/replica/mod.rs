//! Copies of the model on several devices of this machine, each in a process of its own.
//!
//! [`Replicas`] starts them and hands out jobs, [`child`] is their side. They talk in lines of JSON: [`Sent`] jobs over
//! the child's stdin, [`Said`] over its stdout. A child ends when its stdin does, whatever ended the parent.

pub mod child;
mod parent;

use std::iter::Sum;

use serde::{Deserialize, Serialize};

pub use parent::{ReplicaError, Replicas};

use super::work::{Answered, Job};
use crate::engine::Engine;
use crate::scheduler::{Figures, LogitChanges, Request, Sampling};

/// A job, in a line. Numbers that are no integers go as their bits, so that they come as they went.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    index: usize,
    digest: u64,
    prompt: Vec<u32>,
    max_new_tokens: usize,
    stop: Vec<u32>,
    temperature: u32,
    top_k: u32,
    top_p: u32,
    min_p: u32,
    seed: u64,
    bias: Vec<(u32, u32)>,
    frequency_penalty: u32,
    presence_penalty: u32,
}

impl From<Job> for Sent {
    fn from(job: Job) -> Self {
        let Job { index, digest, request } = job;
        let Request { prompt, max_new_tokens, stop, sampling, changes, .. } = request;
        let Sampling { temperature, top_k, top_p, min_p, seed } = sampling;
        Self {
            index,
            digest,
            prompt,
            max_new_tokens,
            stop,
            temperature: temperature.to_bits(),
            top_k,
            top_p: top_p.to_bits(),
            min_p: min_p.to_bits(),
            seed,
            bias: changes.bias.into_iter().map(|(id, bias)| (id, bias.to_bits())).collect(),
            frequency_penalty: changes.frequency_penalty.to_bits(),
            presence_penalty: changes.presence_penalty.to_bits(),
        }
    }
}

impl From<Sent> for Job {
    fn from(sent: Sent) -> Self {
        let sampling = Sampling {
            temperature: f32::from_bits(sent.temperature),
            top_k: sent.top_k,
            top_p: f32::from_bits(sent.top_p),
            min_p: f32::from_bits(sent.min_p),
            seed: sent.seed,
        };
        let changes = LogitChanges {
            bias: sent.bias.into_iter().map(|(id, bias)| (id, f32::from_bits(bias))).collect(),
            frequency_penalty: f32::from_bits(sent.frequency_penalty),
            presence_penalty: f32::from_bits(sent.presence_penalty),
            mask: None,
        };
        let request = Request { changes, ..Request::new(sent.prompt, sent.max_new_tokens, sent.stop, sampling) };
        Self { index: sent.index, digest: sent.digest, request }
    }
}

/// What a child says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Said {
    /// It is there, every second, whatever it does.
    Alive,
    /// It takes jobs.
    Ready(Ready),
    /// What it did so far: before every answer.
    Did(Did),
    /// A job is done.
    Answered(Answered),
    /// It cannot go on, and why.
    Failed { message: String, hint: Option<String> },
}

/// A replica that takes jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Sequences that it runs at a time.
    pub n_slots: usize,
    /// Positions of the longest of them.
    pub capacity_tokens: usize,
    /// Its device, for people.
    pub device: String,
    /// Kernels that it found in the cache, and that it compiled.
    pub kernels: (usize, usize),
}

/// What an engine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Did {
    /// Steps.
    pub steps: usize,
    /// Tokens that steps had draft rows for.
    pub drafted_tokens: u64,
    /// Drafts that were what came.
    pub accepted_tokens: u64,
    /// What the device took, in joules, where its driver says.
    pub joules: Option<f64>,
}

impl Did {
    /// By this engine, which took so many joules.
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
    fn a_job_comes_as_it_went() {
        let sampling = Sampling { temperature: 0.1, top_k: 3, top_p: 0.3, min_p: 1e-30, seed: u64::MAX };
        let mut request = Request::new(vec![1, 200_000], 7, vec![9], sampling);
        request.changes.bias = vec![(5, -0.1), (6, 100.0)];
        request.changes.frequency_penalty = 0.7;
        request.changes.presence_penalty = -0.0;
        let asked = format!("{request:?}");
        let sent = Sent::from(Job { index: 3, digest: u64::MAX - 1, request });
        let line = serde_json::to_string(&sent).expect("numbers");
        assert!(!line.contains('\n'));
        let job = Job::from(serde_json::from_str::<Sent>(&line).expect("what went"));
        assert_eq!((job.index, job.digest, format!("{:?}", job.request)), (3, u64::MAX - 1, asked));
    }
}
