//! A caller's request, and the events that it receives.

use serde::{Deserialize, Serialize};

use super::Sampling;

/// A request, by the order in which it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub usize);

/// What a caller asks for.
#[derive(Debug)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, fewer where the context leaves fewer; with 0 the request ends at once, or when all
    /// was told that [`Self::prompt_logprobs`] asks for.
    pub max_new_tokens: usize,
    /// Generation ends after one of these.
    pub stop: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What is done to logits before that.
    pub changes: LogitChanges,
    /// With `Some(k)`, every token comes with its log-probability and those of the k most probable ones; k is at most
    /// [`Self::MAX_LOGPROBS`].
    pub n_logprobs: Option<usize>,
    /// Whether the tokens of the prompt are told with their log-probabilities, before all others.
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Requests find the cached prefixes of those alone that have the same salt.
    pub cache_salt: u64,
    /// What was generated before, for a request that began elsewhere: it goes on behind these tokens as if they had
    /// been generated here. They count among `max_new_tokens`, and are not told.
    pub generated: Vec<u32>,
    /// Runs only where no other request would: it waits behind all that are not in the background, and gives up its
    /// slot, its blocks and its rows of a step to them. What it computed stays in the prefix cache as long as there is
    /// room, and its tokens stay.
    pub is_background: bool,
}

impl Request {
    /// Most tokens that log-probabilities can be had of, beside the drawn one's.
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

/// What is told of the tokens of a prompt: how probable each is behind those before it, nothing of the first. All of
/// the prompt is computed for that, also what the prefix cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// The log-probabilities of so many most probable tokens are told beside the prompt's own; at most
    /// [`Request::MAX_LOGPROBS`].
    pub n_top: usize,
    /// How many tokens were told before, for a request that began elsewhere.
    pub n_told: usize,
}

/// What is done to a row's logits before a token is chosen, greedily or not: the repetition penalty divides, bias and
/// the other penalties are added, then what the mask forbids is left out; what it allows stays above that, however
/// large a negative bias it has. The default changes nothing, and costs nothing.
#[derive(Debug)]
pub struct LogitChanges {
    /// Added to the logits of these ids; finite.
    pub bias: Vec<(u32, f32)>,
    /// The logit of a token of the prompt or the answer is divided by it where it is above 0, else multiplied; 1
    /// changes nothing.
    pub repetition_penalty: f32,
    /// Taken from a token's logit for each time that it was generated.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was generated at all.
    pub presence_penalty: f32,
    /// Which tokens may come next. One that allows none ends the request ([`FinishReason::Length`]).
    pub mask: Option<Box<dyn TokenMask>>,
}

impl Default for LogitChanges {
    fn default() -> Self {
        let (bias, frequency_penalty, presence_penalty) = (Vec::new(), 0.0, 0.0);
        Self { bias, repetition_penalty: 1.0, frequency_penalty, presence_penalty, mask: None }
    }
}

/// Which tokens may come next, by what came before: a grammar.
pub trait TokenMask: Send + std::fmt::Debug {
    /// The tokens that may come next: a bit for each id, the lowest of a word first; ids beyond its end may not. None
    /// if all may.
    fn allowed(&mut self) -> Option<&[u32]>;

    /// Takes the token that came.
    fn push(&mut self, token: u32);

    /// The same mask as it is now, to look ahead with: what this one is told, that one is not.
    fn ahead(&self) -> Box<dyn TokenMask>;

    /// The text of its grammar, if it is of one: whoever makes a mask of it elsewhere begins at the beginning.
    fn text(&self) -> Option<&str> {
        None
    }
}

/// A token and how probable it was.
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
    /// Of the most probable ones, the most probable first; of equal ones the lowest id. Those that cannot come, because
    /// a mask forbids them, are left out.
    pub top: Vec<TokenLogprob>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It generated one of its stop tokens, which was its last.
    Stop,
    /// It generated as many tokens as it may: as many as it asked for, or its mask allows none to come next.
    Length,
    /// Somebody cancelled it.
    Cancelled,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It got a slot for the first time, and its prompt is being computed.
    Admitted {
        request: RequestId,
        /// Tokens of the prompt whose keys and values were there already.
        cached_tokens: usize,
    },
    /// The next token of the prompt, the second one first, for requests that ask.
    PromptToken {
        request: RequestId,
        token: u32,
        /// How probable it was: of the logits as they come, which nothing changes.
        logprobs: Option<Box<LogitRowLogprobs>>,
    },
    /// One more token, the stop token included.
    Token {
        request: RequestId,
        token: u32,
        /// How probable it was, for requests that ask.
        logprobs: Option<Box<LogitRowLogprobs>>,
    },
    /// No more tokens will come.
    Finished { request: RequestId, reason: FinishReason },
}
