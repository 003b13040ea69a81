//! Hands tokens from a backend to a task: the backend appends and continues; the task takes everything since its last
//! look. Neither waits for the other.

mod generation;

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

pub use generation::{Generation, Pace, Timeouts};

use super::intake::Intake;
use engine::scheduler::{FinishReason, LogitRowLogprobs};

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model was done, or had all tokens that it might generate.
    Finished(FinishReason),
    /// Something came in between.
    Failed(Failed),
}

/// Why a request did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A step failed, or the device: why.
    Engine(String),
    /// The device had no memory for a step; others may do: why.
    NoMemory(String),
    /// The model, which had been unloaded, could not be loaded again: why.
    Load(String),
    ShuttingDown,
    /// It waited longer than this for a slot.
    QueueTimeout(Duration),
    /// It took longer than this.
    RequestTimeout(Duration),
}

/// The news since the last chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Chunk {
    /// Token ids, the stop token included.
    pub(crate) tokens: Vec<u32>,
    /// For each of them how probable it was, if the request asked.
    pub(crate) logprobs: Vec<Option<Box<LogitRowLogprobs>>>,
    /// How probable tokens of the prompt are, in their order; the first time, those from the second one on.
    pub(crate) prompt_logprobs: Vec<LogitRowLogprobs>,
    /// Tokens of the prompt that were computed before, in every chunk once it is known.
    pub(crate) cached_tokens: Option<usize>,
    /// If nothing comes after this.
    pub(crate) ending: Option<Ending>,
}

/// Where a backend puts a request's tokens.
#[derive(Debug)]
pub struct Mailbox {
    state: Mutex<State>,
    notify: Notify,
    intake: Arc<Intake>,
    n_prompt: usize,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    new: Chunk,
    /// Whether there is news that was not taken.
    is_news: bool,
    /// Whether a reader waits, and until when tokens do not wake it.
    awaited: Awaited,
    times: Times,
}

/// Who is not awaited is not woken: waking costs as much as making a token's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    /// Whatever comes wakes.
    Now,
    /// The end wakes the reader, and so does news from this time on.
    From(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Over,
}

/// When what happened to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(crate) submitted: Instant,
    pub(crate) admitted: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
    pub(crate) n_tokens: usize,
    /// Whether the request is in the background: its times do not count.
    pub(crate) is_background: bool,
}

impl Mailbox {
    pub(super) fn new(intake: Arc<Intake>, n_prompt: usize, is_background: bool) -> Self {
        let (submitted, admitted, first_token, last_token) = (Instant::now(), None, None, None);
        let times = Times { submitted, admitted, first_token, last_token, n_tokens: 0, is_background };
        let state = State { phase: Phase::Waiting, new: Chunk::default(), is_news: false, awaited: Awaited::No, times };
        Self { state: Mutex::new(state), notify: Notify::new(), intake, n_prompt }
    }

    /// The request has a slot. Repeated for a request that had to give its slot back; then it changes nothing.
    pub fn admitted(&self, now: Instant, cached_tokens: usize) {
        let mut state = self.state();
        if state.phase == Phase::Waiting {
            state.phase = Phase::Running;
            state.times.admitted = Some(now);
            state.new.cached_tokens = Some(cached_tokens);
            if !state.times.is_background {
                self.intake.admitted(self.n_prompt);
            }
            self.intake.metrics.admitted(&state.times, self.n_prompt, cached_tokens);
            self.tell(state, now);
        }
    }

    /// The log-probability of the prompt's next token, from the second token on. It comes with the first token or the
    /// end, and does not wake the reader.
    pub fn prompt_token(&self, logprobs: LogitRowLogprobs) {
        let mut state = self.state();
        if state.phase != Phase::Over {
            state.new.prompt_logprobs.push(logprobs);
        }
    }

    /// Appends a token, with its log-probabilities if they were requested.
    pub fn token(&self, now: Instant, token: u32, logprobs: Option<Box<LogitRowLogprobs>>) {
        let mut state = self.state();
        if state.phase == Phase::Over {
            return;
        }
        state.new.tokens.push(token);
        state.new.logprobs.push(logprobs);
        let before = state.times.last_token.replace(now);
        state.times.first_token.get_or_insert(now);
        state.times.n_tokens += 1;
        self.intake.metrics.token(&state.times, before);
        self.tell(state, now);
    }

    /// No more tokens come.
    pub fn end(&self, ending: Ending) {
        let mut state = self.state();
        if state.phase == Phase::Over {
            return;
        }
        self.leave(&mut state);
        self.intake.metrics.ended(&state.times, self.n_prompt, &ending);
        state.new.ending = Some(ending);
        self.tell(state, Instant::now());
    }

    /// The backend has dropped the cancelled request.
    pub(crate) fn cancelled(&self) {
        let mut state = self.state();
        if state.phase != Phase::Over {
            let had_tokens = state.times.n_tokens > 0;
            self.intake.metrics.cancelled(match state.phase {
                Phase::Waiting => "waiting",
                _ if had_tokens => "decode",
                _ => "prefill",
            });
            self.leave(&mut state);
        }
    }

    fn leave(&self, state: &mut State) {
        let was_running = mem::replace(&mut state.phase, Phase::Over) == Phase::Running;
        if state.times.is_background {
            self.intake.background_ended();
        } else {
            self.intake.ended(self.n_prompt, was_running);
        }
    }

    fn tell(&self, mut state: MutexGuard<'_, State>, now: Instant) {
        state.is_news = true;
        let wakes = match state.awaited {
            Awaited::No => false,
            Awaited::Now => true,
            Awaited::From(then) => then <= now || state.phase == Phase::Over,
        };
        if wakes {
            state.awaited = Awaited::No;
        }
        drop(state);
        if wakes {
            self.notify.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that came, if something did and it is time for it: tokens are taken from `from` on, the end at once. Else
    /// the reader is awaited.
    fn take(&self, from: Option<Instant>) -> Option<Chunk> {
        let mut state = self.state();
        let is_early = from.filter(|_| state.phase != Phase::Over);
        if is_early.is_some() || !state.is_news {
            state.awaited = is_early.map_or(Awaited::Now, Awaited::From);
            return None;
        }
        state.awaited = Awaited::No;
        state.is_news = false;
        // What is known stays known, and an end stays the end.
        let (cached_tokens, ending) = (state.new.cached_tokens, state.new.ending.clone());
        state.is_news = ending.is_some();
        Some(mem::replace(&mut state.new, Chunk { cached_tokens, ending, ..Chunk::default() }))
    }
}
