//! A caller's request, and the events that it receives.

use serde::{Deserialize, Serialize};

use super::Sampling;

/// A request, by the order in which it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub usize);

/// A request: prompt, limits, sampling, and what to return.
#[derive(Debug)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; the context may allow fewer. With 0 the request ends at once, or after the
    /// log-probabilities of [`Self::prompt_logprobs`].
    pub max_new_tokens: usize,
    /// Generation ends after one of these.
    pub stop: Vec<u32>,
    pub sampling: Sampling,
    /// Changes of logits before sampling.
    pub changes: LogitChanges,
    /// With `Some(k)`, every token has its log-probability and those of the k most probable tokens; k is at most
    /// [`Self::MAX_LOGPROBS`].
    pub n_logprobs: Option<usize>,
    /// Whether to return the prompt's tokens with their log-probabilities, before all others.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Requests share cached prefixes only if their salts are equal.
    pub cache_salt: u64,
    /// Tokens generated elsewhere, for a request that moves here: it continues after them as if they had been generated
    /// here. They count towards `max_new_tokens`, and are not returned.
    pub generated: Vec<u32>,
    /// A background request: it waits for all others, and gives up its slot, its blocks and its rows of a step to them.
    /// Its computed prefix stays in the prefix cache while there is room, and its tokens stay.
    pub is_background: bool,
}

impl Request {
    /// Most alternatives with log-probabilities, besides the chosen token.
    pub const MAX_LOGPROBS: usize = 20;

    /// A request for tokens and nothing special.
    pub fn new(prompt: Vec<u32>, max_new_tokens: usize, stop: Vec<u32>, sampling: Sampling) -> Self {
        let changes = LogitChanges::default();
        Self {
            prompt,
            max_new_tokens,
            stop,
            sampling,
            changes,
            n_logprobs: None,
            prompt_logprobs: None,
            cache_salt: 0,
            generated: Vec::new(),
            is_background: false,
        }
    }
}

/// Log-probabilities of a prompt's tokens, each given the tokens before it; none for the first. The whole prompt is
/// computed for that, even if the prefix cache has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// Number of most probable tokens per position, besides the prompt's own; at most [`Request::MAX_LOGPROBS`].
    pub n_top: usize,
    /// Tokens already returned, for a request that moves here.
    pub n_told: usize,
}

/// Changes of a row's logits before a token is chosen, greedily or not. The repetition penalty divides, bias and the
/// other penalties are added, then the mask removes forbidden tokens; allowed ones stay above those, even with a large
/// negative bias. The default changes nothing and costs nothing.
#[derive(Debug)]
pub struct LogitChanges {
    /// Added to the logits of these ids; finite.
    pub bias: Vec<(u32, f32)>,
    /// Divides positive logits of tokens in the prompt or the answer, and multiplies the others; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it was generated at all.
    pub presence_penalty: f32,
    /// Which tokens may come next. A mask that allows none ends the request ([`FinishReason::Length`]).
    pub mask: Option<Box<dyn TokenMask>>,
}

impl Default for LogitChanges {
    fn default() -> Self {
        let (bias, frequency_penalty, presence_penalty) = (Vec::new(), 0.0, 0.0);
        Self { bias, repetition_penalty: 1.0, frequency_penalty, presence_penalty, mask: None }
    }
}

/// A grammar's state: which tokens may come next.
pub trait TokenMask: Send + std::fmt::Debug {
    /// The allowed tokens: a bit per id, lowest bit of a word first; ids beyond its end are forbidden. None if all are
    /// allowed.
    fn allowed(&mut self) -> Option<&[u32]>;

    /// Advances by the chosen token.
    fn push(&mut self, token: u32);

    /// An independent copy of the present state, to look ahead with.
    fn ahead(&self) -> Box<dyn TokenMask>;

    /// The text of its grammar, if it has one, from which another process makes a mask in its initial state.
    fn text(&self) -> Option<&str> {
        None
    }
}

/// A token with its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: u32,
    /// Natural logarithm of its probability in softmax(logit), changes included, before temperature and cuts.
    pub logprob: f32,
}

/// The log-probabilities of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitRowLogprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The most probable tokens, most probable first; of equal ones the lowest id. Masked tokens are omitted.
    pub top: Vec<TokenLogprob>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It generated one of its stop tokens, which was its last.
    Stop,
    /// It reached its token limit, or its mask allows no next token.
    Length,
    /// The caller cancelled it.
    Cancelled,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It got a slot for the first time, and its prompt is being computed.
    Admitted {
        request: RequestId,
        /// Prompt tokens whose keys and values were cached.
        cached_tokens: usize,
    },
    /// The next token of the prompt, the second one first, for requests that ask.
    PromptToken {
        request: RequestId,
        token: u32,
        /// Its log-probability, from unchanged logits.
        logprobs: Option<Box<LogitRowLogprobs>>,
    },
    /// One more token, the stop token included.
    Token {
        request: RequestId,
        token: u32,
        /// Its log-probability, if requested.
        logprobs: Option<Box<LogitRowLogprobs>>,
    },
    /// No more tokens will come.
    Finished { request: RequestId, reason: FinishReason },
}
