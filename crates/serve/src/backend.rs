//! The source of tokens, as endpoints see it: the engine's thread, or a script.

use std::time::Duration;

use super::error::ApiError;
use super::mailbox::{Failed, Generation};
use engine::PromptError;
use engine::scheduler::Request;

/// Takes requests and fills mailboxes.
pub trait Backend: Send + Sync {
    /// Queues a request. `max_new_tokens` is cut to what the context has room for.
    ///
    /// # Errors
    /// [`Refused`], at once: nothing was queued.
    fn submit(&self, request: Request) -> Result<Generation, Refused>;

    fn model(&self) -> &ModelFacts;

    /// How much there is to do.
    fn figures(&self) -> Figures;

    /// The same of each replica, where there are several.
    fn replicas(&self) -> Vec<ReplicaFigures> {
        Vec::new()
    }

    /// Whether requests can be answered.
    fn health(&self) -> Health;

    /// Takes no more requests; those that are there go on.
    fn drain(&self);

    /// Ends all requests with [`Failed::ShuttingDown`].
    fn end_all(&self);

    /// Returns when what is to be kept over a restart is. Called when no request is there any more.
    fn finish(&self) {}
}

/// What the endpoints know of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Longest sequence, prompt and answer, in tokens.
    pub(crate) context_tokens: usize,
    pub(crate) vocab_size: usize,
    /// Changes when the text of an answer could: `fp_` and hexadecimal digits.
    pub(crate) fingerprint: String,
    /// When the model was loaded, in seconds since 1970.
    pub(crate) created: u64,
    /// Answers that may run and wait at a time: no request may ask for more at once.
    pub(crate) most_answers: usize,
    /// Sequences at a time.
    pub(crate) n_slots: usize,
}

/// How much there is to do, and what was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Requests that have a slot, those in the background apart.
    pub running: usize,
    /// Requests that wait for one, those in the background apart.
    pub waiting: usize,
    /// Requests in the background, which wait or have a slot.
    pub background: usize,
    /// Blocks of the KV cache that sequences hold, of all: 0 to 1.
    pub(crate) kv_usage: f64,
}

/// What is known of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFigures {
    /// Whether it takes requests.
    pub is_up: bool,
    /// Requests that have a slot of it.
    pub running: usize,
    /// Requests that wait for one.
    pub waiting: usize,
    /// How often it was started again.
    pub restarts: u64,
}

/// Whether requests can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// Some replicas take requests, or none that is to be started again.
    Degraded {
        n_up: usize,
        n: usize,
    },
    /// The model was unloaded after a time without requests: the next request loads it.
    Unloaded,
    /// The model is being loaded for those who asked, who wait.
    Loading,
    /// The program is about to end.
    ShuttingDown,
    /// There is work and for so long nothing was done: the device hangs.
    Stalled(Duration),
    /// The engine failed: why.
    Failed(String),
}

/// Why a request was not queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Overloaded {
        /// By the rate at which requests ended lately, when it has room again.
        retry_after: Duration,
    },
    /// No more requests are taken.
    Closed(Failed),
    /// No replica is there, and they are being started again.
    Restarting,
    /// No sequence can begin with the prompt.
    Prompt(PromptError),
}

impl Refused {
    /// The error for a client; `param` is the field with the prompt.
    pub(crate) fn into_error(self, param: &str) -> ApiError {
        match self {
            Self::Overloaded { retry_after } => {
                ApiError::unavailable("overloaded", "too many requests are waiting", Some(retry_after))
            }
            Self::Closed(failed) => failed.into(),
            Self::Restarting => ApiError::restarting(),
            Self::Prompt(PromptError::Empty) => ApiError::invalid(param, format!("`{param}` has no tokens")),
            Self::Prompt(PromptError::TooLong { n_prompt, capacity_tokens }) => {
                ApiError::context_length(param, n_prompt, capacity_tokens)
            }
            Self::Prompt(PromptError::TokenId { id, position, vocab_size }) => ApiError::invalid(
                param,
                format!("token id {id} at position {position} of the prompt is not below {vocab_size}"),
            ),
        }
    }

    /// For `admission_rejections_total`.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Overloaded { .. } => "overloaded",
            Self::Closed(_) | Self::Restarting => "closed",
            Self::Prompt(PromptError::TooLong { .. }) => "too_long",
            Self::Prompt(_) => "invalid",
        }
    }
}
