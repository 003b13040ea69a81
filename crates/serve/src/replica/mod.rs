//! `serve -g N`: the model on several devices, each in its own process.
//!
//! This process has everything but the engines: HTTP, texts, mailboxes, counts. [`Replicas`] is its [`Backend`]: it
//! chooses a replica for each request, by the prefixes that are [`held`] there, and puts results into mailboxes.
//! `watch` restarts ended replicas, and continues their requests elsewhere. [`child`] is a replica's side.
//!
//! A request that continues elsewhere takes its tokens along, and its random numbers continue after them, as for a
//! sequence that lost its blocks: nothing that was sent is taken back.
//!
//! [`Backend`]: super::backend::Backend

pub mod child;
mod front;
mod held;
mod masks;
mod watch;

use serde::{Deserialize, Serialize};

pub use front::Replicas;

use engine::scheduler::{Figures, FinishReason, LogitRowLogprobs, TokenLogprob};
use replica::WireRequest;

/// An order for a replica. Requests have numbers that are never used again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ServeReplicaOrder {
    Submit(u64, Box<WireRequest>),
    /// The request is cancelled.
    Cancel(u64),
}

/// What a replica tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ServeReplicaMessage {
    Ready(ServeReplicaReady),
    Stepped(Stepped),
    /// This request cannot be run, and why.
    Refused(u64, String),
}

/// A replica that takes requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeReplicaReady {
    /// Sequences that it runs at a time.
    pub n_slots: usize,
    /// Longest sequence, in tokens.
    pub context_tokens: usize,
    pub vocab_size: usize,
    /// Tokens of a block of its KV cache: what begins with the same blocks is computed once.
    pub block_tokens: usize,
    /// Blocks of its KV cache.
    pub n_blocks: usize,
    /// Element type of keys and values there.
    pub kv_dtype: String,
    /// Whether it computes on the cores of this machine.
    pub shares_cores: bool,
    /// Changes when the text of an answer could.
    pub fingerprint: String,
}

/// The results of a step. For one request, events in earlier fields happened earlier.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stepped {
    /// Since it began, in microseconds.
    took_us: u64,
    /// What the engine is doing, and did.
    figures: Figures,
    /// Requests that got a slot, and the tokens of their prompts that were there.
    admitted: Vec<(u64, usize)>,
    /// How probable the next tokens of prompts are, and whose they are.
    prompt_logprobs: Vec<(u64, Probable)>,
    /// New tokens, and whose they are.
    tokens: Vec<(u64, u32)>,
    /// How probable some of these are, by their places.
    logprobs: Vec<(usize, Probable)>,
    /// Requests that are over.
    finished: Vec<(u64, Finished)>,
    /// What it took to compute masks, in nanoseconds.
    masks_ns: Vec<u64>,
}

/// Log-probabilities as their bits, so that they come as they went: of the token, and of others.
#[derive(Debug, Serialize, Deserialize)]
struct Probable(u32, Vec<(u32, u32)>);

impl From<LogitRowLogprobs> for Probable {
    fn from(of: LogitRowLogprobs) -> Self {
        Self(of.chosen.to_bits(), of.top.iter().map(|one| (one.token, one.logprob.to_bits())).collect())
    }
}

impl From<Probable> for LogitRowLogprobs {
    fn from(Probable(chosen, top): Probable) -> Self {
        let one = |(token, bits)| TokenLogprob { token, logprob: f32::from_bits(bits) };
        Self { chosen: f32::from_bits(chosen), top: top.into_iter().map(one).collect() }
    }
}

/// Why a request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Finished {
    Stop,
    Length,
    Cancelled,
}

impl From<FinishReason> for Finished {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => Self::Length,
            FinishReason::Cancelled => Self::Cancelled,
        }
    }
}

impl From<Finished> for FinishReason {
    fn from(finished: Finished) -> Self {
        match finished {
            Finished::Stop => Self::Stop,
            Finished::Length => Self::Length,
            Finished::Cancelled => Self::Cancelled,
        }
    }
}
