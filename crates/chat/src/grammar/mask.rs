//! The mask of one generation.

use std::sync::Arc;

use llguidance::Matcher;
use toktrie::SimpleVob;

use engine::scheduler::TokenMask;

/// A compiled grammar on its way through one generation.
#[derive(Clone)]
pub(super) struct GrammarMask {
    state: State,
    vocab_size: usize,
    /// The token that ends an answer, alone.
    end: Arc<[u32]>,
    text: Arc<str>,
}

#[derive(Clone)]
enum State {
    /// With the mask of the next token, once it was asked for.
    Running { matcher: Box<Matcher>, bits: Option<SimpleVob> },
    /// The grammar is at its end: after it, any token is allowed.
    Done,
    /// A token came that may not, or the grammar asks too much: the generation ends, rather than go on without it.
    Failed,
}

impl GrammarMask {
    pub(crate) fn new(matcher: Matcher, vocab_size: usize, end_of_answer: u32, text: Arc<str>) -> Self {
        let mut end = vec![0; vocab_size.div_ceil(32)];
        end[end_of_answer as usize / 32] |= 1 << (end_of_answer % 32);
        Self { state: State::Running { matcher: Box::new(matcher), bits: None }, vocab_size, end: end.into(), text }
    }
}

impl TokenMask for GrammarMask {
    fn allowed(&mut self) -> Option<&[u32]> {
        if let State::Running { matcher, bits: bits @ None } = &mut self.state {
            match matcher.compute_mask() {
                Ok(mut mask) => {
                    // The grammar's own end, which is no token of the model's.
                    mask.disallow_token(self.vocab_size as u32);
                    *bits = Some(mask);
                }
                Err(error) => {
                    tracing::warn!("a grammar ends its generation: {error}");
                    self.state = State::Failed;
                }
            }
        }
        match &self.state {
            State::Running { bits, .. } => bits.as_ref().map(|bits| &bits.as_slice()[..self.end.len()]),
            State::Done => None,
            State::Failed => Some(&self.end),
        }
    }

    fn push(&mut self, token: u32) {
        let State::Running { matcher, bits } = &mut self.state else { return };
        *bits = None;
        if let Err(error) = matcher.consume_token(token) {
            tracing::warn!("a grammar ends its generation after token {token}: {error}");
            self.state = State::Failed;
        } else if matcher.is_stopped() {
            self.state = State::Done;
        }
    }

    fn ahead(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }

    fn text(&self) -> Option<&str> {
        Some(&self.text)
    }
}

impl std::fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Running { .. } => "running",
            State::Done => "done",
            State::Failed => "failed",
        };
        f.debug_struct("GrammarMask").field("state", &state).finish_non_exhaustive()
    }
}
