//! Copies of the model on several devices of this machine, each in its own process of this program.
//!
//! [`Replica`] is such a process as its parent sees it, [`child`] is the process's own side. They exchange lines of
//! JSON: orders of the user's type over the child's stdin, [`Line`]s over its stdout. A child ends when its stdin
//! does, whatever ended the parent. [`WireRequest`] is a request in such a line.

pub mod child;
mod parent;

use serde::{Deserialize, Serialize};

pub use parent::{Listening, Replica, ReplicaError, Start};

use engine::scheduler::{LogitChanges, PromptLogprobs, Request, Sampling};

/// A message from a child process, one line of JSON.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Line<T> {
    /// It is there, every second, whatever it does.
    Alive,
    /// What it has to tell.
    Told(T),
    Failed {
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

/// A request, in a line. Floats go as their bits, so that they arrive unchanged. A mask goes as the text of its
/// grammar, from which the receiver makes a mask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireRequest {
    prompt: Vec<u32>,
    /// What was generated before.
    pub generated: Vec<u32>,
    max_new_tokens: usize,
    stop: Vec<u32>,
    sampling: Sampling,
    bias: Vec<(u32, u32)>,
    repetition_penalty: u32,
    frequency_penalty: u32,
    presence_penalty: u32,
    /// The text of the mask's grammar.
    pub grammar: Option<String>,
    n_logprobs: Option<usize>,
    pub prompt_logprobs: Option<PromptLogprobs>,
    cache_salt: u64,
    is_background: bool,
}

impl WireRequest {
    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Whether it runs only where no other request would.
    pub fn is_background(&self) -> bool {
        self.is_background
    }
}

impl From<Request> for WireRequest {
    fn from(request: Request) -> Self {
        let Request { prompt, max_new_tokens, stop, sampling, changes, n_logprobs, .. } = request;
        let Request { prompt_logprobs, cache_salt, generated, is_background, .. } = request;
        Self {
            prompt,
            generated,
            max_new_tokens,
            stop,
            sampling,
            bias: changes.bias.into_iter().map(|(id, bias)| (id, bias.to_bits())).collect(),
            repetition_penalty: changes.repetition_penalty.to_bits(),
            frequency_penalty: changes.frequency_penalty.to_bits(),
            presence_penalty: changes.presence_penalty.to_bits(),
            grammar: changes.mask.and_then(|mask| mask.text().map(str::to_owned)),
            n_logprobs,
            prompt_logprobs,
            cache_salt,
            is_background,
        }
    }
}

impl From<WireRequest> for Request {
    fn from(asked: WireRequest) -> Self {
        let changes = LogitChanges {
            bias: asked.bias.into_iter().map(|(id, bias)| (id, f32::from_bits(bias))).collect(),
            repetition_penalty: f32::from_bits(asked.repetition_penalty),
            frequency_penalty: f32::from_bits(asked.frequency_penalty),
            presence_penalty: f32::from_bits(asked.presence_penalty),
            mask: None,
        };
        let WireRequest { prompt, max_new_tokens, stop, sampling, n_logprobs, prompt_logprobs, .. } = asked;
        let WireRequest { cache_salt, generated, is_background, .. } = asked;
        Self {
            prompt,
            max_new_tokens,
            stop,
            sampling,
            changes,
            n_logprobs,
            prompt_logprobs,
            cache_salt,
            generated,
            is_background,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_as_it_went() {
        let sampling = Sampling { temperature: 0.1, top_k: 3, top_p: 0.3, min_p: 1e-30, seed: u64::MAX };
        let mut request = Request::new(vec![1, 200_000], 7, vec![9], sampling);
        request.changes.bias = vec![(5, -0.1), (6, 100.0)];
        (request.changes.repetition_penalty, request.changes.frequency_penalty) = (1.1, 0.7);
        request.changes.presence_penalty = -0.0;
        (request.n_logprobs, request.cache_salt, request.generated) = (Some(3), u64::MAX - 1, vec![4, 4]);
        request.prompt_logprobs = Some(PromptLogprobs { n_top: 5, n_told: 1 });
        request.is_background = true;
        let asked = format!("{request:?}");
        let line = serde_json::to_string(&WireRequest::from(request)).expect("numbers");
        assert!(!line.contains('\n'));
        let request = Request::from(serde_json::from_str::<WireRequest>(&line).expect("what went"));
        assert_eq!(format!("{request:?}"), asked);
    }
}
