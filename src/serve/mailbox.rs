//! Between a backend and whoever waits for tokens: the backend appends and goes on, the other side takes all that came
//! since it last looked. Neither waits for the other.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::intake::Intake;
use super::request_log::Record;
use crate::scheduler::{FinishReason, LogitRowLogprobs};
use crate::tokenizer::Tokenizer;

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
    /// The program ends.
    ShuttingDown,
    /// It waited longer than this for a slot.
    QueueTimeout(Duration),
    /// It took longer than this.
    RequestTimeout(Duration),
}

/// What came since the last one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk {
    /// Token ids, the stop token included.
    pub tokens: Vec<u32>,
    /// For each of them how probable it was, if the request asked.
    pub logprobs: Vec<Option<Box<LogitRowLogprobs>>>,
    /// Tokens of the prompt that were computed before, in every chunk once it is known.
    pub cached_tokens: Option<usize>,
    /// If nothing comes after this.
    pub ending: Option<Ending>,
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
    /// Whether something came that nobody took.
    is_news: bool,
    /// Whether the reader is to be woken by the end alone.
    is_paused: bool,
    times: Times,
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
    pub submitted: Instant,
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    pub n_tokens: usize,
}

impl Mailbox {
    pub(super) fn new(intake: Arc<Intake>, n_prompt: usize) -> Self {
        let times =
            Times { submitted: Instant::now(), admitted: None, first_token: None, last_token: None, n_tokens: 0 };
        let state = State { phase: Phase::Waiting, new: Chunk::default(), is_news: false, is_paused: false, times };
        Self { state: Mutex::new(state), notify: Notify::new(), intake, n_prompt }
    }

    /// The request has a slot. Told again, for one that had to give its slot back, it changes nothing.
    pub fn admitted(&self, now: Instant, cached_tokens: usize) {
        let mut state = self.state();
        if state.phase == Phase::Waiting {
            state.phase = Phase::Running;
            state.times.admitted = Some(now);
            state.new.cached_tokens = Some(cached_tokens);
            self.intake.admitted(self.n_prompt);
            self.intake.metrics.admitted(&state.times, self.n_prompt, cached_tokens);
            self.tell(state);
        }
    }

    /// One more token.
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
        self.tell(state);
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
        self.tell(state);
    }

    /// The backend has forgotten the request, since nobody waits for it.
    pub fn cancelled(&self) {
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
        self.intake.ended(self.n_prompt, was_running);
    }

    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.is_news = true;
        let is_awaited = !state.is_paused || state.phase == Phase::Over;
        drop(state);
        if is_awaited {
            self.notify.notify_one();
        }
    }

    fn is_over(&self) -> bool {
        self.state().phase == Phase::Over
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on until something is taken tokens wake nobody. False if no more come.
    fn pause(&self) -> bool {
        let mut state = self.state();
        state.is_paused = state.phase != Phase::Over;
        state.is_paused
    }

    /// All that came, if something did.
    fn take(&self) -> Option<Chunk> {
        let mut state = self.state();
        state.is_paused = false;
        if !mem::take(&mut state.is_news) {
            return None;
        }
        // What is known stays known, and an end stays the end.
        let (cached_tokens, ending) = (state.new.cached_tokens, state.new.ending.clone());
        state.is_news = ending.is_some();
        Some(mem::replace(&mut state.new, Chunk { cached_tokens, ending, ..Chunk::default() }))
    }
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeouts {
    /// Until it has a slot.
    pub queue: Option<Duration>,
    /// Until it has ended.
    pub request: Option<Duration>,
}

/// A request that was queued: its tokens, as they come. Dropping it cancels the request, in whatever phase it is.
pub struct Generation {
    mailbox: Arc<Mailbox>,
    /// Tells the backend that nobody waits any more.
    cancel: Option<Box<dyn FnOnce() + Send>>,
    timeouts: Timeouts,
    /// From one chunk with tokens to the next, at least.
    interval: Duration,
    /// When the last one was taken.
    taken: Option<Instant>,
    timed_out: Option<Failed>,
    record: Option<Arc<Record>>,
    content: Option<Content>,
}

/// What came, to be logged.
struct Content {
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("mailbox", &self.mailbox).finish_non_exhaustive()
    }
}

impl Generation {
    /// The other end of a mailbox. `cancel` is called if this is dropped before the end; the backend then calls
    /// [`Mailbox::cancelled`].
    pub fn new(mailbox: Arc<Mailbox>, cancel: impl FnOnce() + Send + 'static) -> Self {
        let cancel: Box<dyn FnOnce() + Send> = Box::new(cancel);
        let timeouts = Timeouts::default();
        let (interval, taken) = (Duration::ZERO, None);
        Self { mailbox, cancel: Some(cancel), timeouts, interval, taken, timed_out: None, record: None, content: None }
    }

    /// With these bounds, and told of in the log of the HTTP request that it belongs to: with its text, if there is a
    /// tokenizer for that.
    pub(super) fn within(
        mut self,
        timeouts: Timeouts,
        record: Option<Arc<Record>>,
        content: Option<Tokenizer>,
    ) -> Self {
        let content = content.map(|tokenizer| Content { tokenizer, tokens: Vec::new() });
        (self.timeouts, self.record, self.content) = (timeouts, record, content);
        self
    }

    /// With so much time from one chunk with tokens to the next: those that come meanwhile wait for it, and wake
    /// nobody. The first and the end wait for nothing.
    pub(super) fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Ends a request that was answered before its model was done: by a stop string, for example. It counts as finished
    /// and not as cancelled.
    pub fn stop(mut self) {
        let is_over = self.mailbox.state().phase == Phase::Over;
        if let Some(cancel) = self.cancel.take().filter(|_| !is_over) {
            self.mailbox.end(Ending::Finished(FinishReason::Stop));
            cancel();
        }
    }

    /// Waits until something came, and takes all of it. After the end it gives the end again. Nothing is lost if the
    /// future is dropped.
    pub async fn next(&mut self) -> Chunk {
        loop {
            if let Some(failed) = &self.timed_out {
                return Chunk { ending: Some(Ending::Failed(failed.clone())), ..Chunk::default() };
            }
            let until = self.taken.map(|taken| taken + self.interval).filter(|until| *until > Instant::now());
            if let Some(until) = until.filter(|_| self.mailbox.pause()) {
                // The end wakes, and so does what was told before the pause.
                let _ = tokio::time::timeout_at(until.into(), self.mailbox.notify.notified()).await;
                if !self.mailbox.is_over() && Instant::now() < until {
                    continue;
                }
            }
            if let Some(chunk) = self.mailbox.take() {
                if !chunk.tokens.is_empty() && !self.interval.is_zero() {
                    self.taken = Some(Instant::now());
                }
                self.mailbox.intake.metrics.chunk(chunk.tokens.len());
                if let Some(content) = &mut self.content {
                    content.tokens.extend_from_slice(&chunk.tokens);
                }
                return chunk;
            }
            let mailbox = self.mailbox.clone();
            let told = mailbox.notify.notified();
            match self.deadline() {
                None => told.await,
                Some((deadline, failed)) => {
                    if tokio::time::timeout_at(deadline.into(), told).await.is_err() {
                        self.timed_out = Some(failed);
                        self.cancel_now();
                    }
                }
            }
        }
    }

    /// When patience ends, and with what.
    fn deadline(&self) -> Option<(Instant, Failed)> {
        let state = self.mailbox.state();
        let submitted = state.times.submitted;
        let queue = self.timeouts.queue.filter(|_| state.phase == Phase::Waiting);
        let queue = queue.map(|limit| (submitted + limit, Failed::QueueTimeout(limit)));
        let request = self.timeouts.request.map(|limit| (submitted + limit, Failed::RequestTimeout(limit)));
        [queue, request].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn cancel_now(&mut self) {
        let is_over = self.mailbox.state().phase == Phase::Over;
        if let Some(cancel) = self.cancel.take().filter(|_| !is_over) {
            cancel();
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel_now();
        if let (Some(Content { tokenizer, tokens }), Some(record)) = (&self.content, &self.record) {
            let text = tokenizer.decode_all(tokens).unwrap_or_default();
            tracing::info!(id = record.id, answer = %String::from_utf8_lossy(&text), "content");
        }
        if let Some(record) = &self.record {
            let state = self.mailbox.state();
            let ending = self.timed_out.clone().map(Ending::Failed).or_else(|| state.new.ending.clone());
            record.add(self.mailbox.n_prompt, state.new.cached_tokens, &state.times, ending.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::intake::Limits;
    use super::super::metrics::Metrics;
    use super::*;
    use crate::scheduler::{Request, Sampling};

    fn intake() -> Arc<Intake> {
        let limits = Limits { n_slots: 1, max_queue: 9, max_queued_tokens: 99, context_tokens: 99, vocab_size: 9 };
        Intake::new(limits, Metrics::default())
    }

    fn queued(intake: &Arc<Intake>) -> (Arc<Mailbox>, Generation, Arc<AtomicUsize>) {
        let mailbox = intake.take(&mut Request::new(vec![1, 2], 9, vec![], Sampling::GREEDY)).unwrap();
        let n_cancelled = Arc::new(AtomicUsize::new(0));
        let (at_cancel, count) = (mailbox.clone(), n_cancelled.clone());
        let generation = Generation::new(mailbox.clone(), move || {
            count.fetch_add(1, Ordering::Relaxed);
            at_cancel.cancelled();
        });
        (mailbox, generation, n_cancelled)
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_reader_gets_all_that_came_since_it_last_looked() {
        let (mailbox, mut generation, n_cancelled) = queued(&intake());
        let now = Instant::now();
        mailbox.admitted(now, 1);
        mailbox.token(now, 5, None);
        mailbox.token(now, 6, None);
        block_on(async {
            let chunk = generation.next().await;
            assert_eq!((chunk.tokens, chunk.cached_tokens, chunk.ending), (vec![5, 6], Some(1), None));
            let end = Ending::Finished(FinishReason::Length);
            mailbox.end(end.clone());
            for _ in 0..2 {
                let chunk = generation.next().await;
                assert_eq!((chunk.tokens, chunk.cached_tokens, chunk.ending), (vec![], Some(1), Some(end.clone())));
            }
        });
        drop(generation);
        assert_eq!(n_cancelled.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn tokens_wait_for_the_interval_and_the_end_does_not() {
        let (mailbox, generation, _) = queued(&intake());
        // So long that nobody waits for it.
        let mut generation = generation.every(Duration::from_secs(3600));
        mailbox.admitted(Instant::now(), 0);
        mailbox.token(Instant::now(), 1, None);
        block_on(async {
            assert_eq!(generation.next().await.tokens, [1]);
            mailbox.token(Instant::now(), 2, None);
            let told = tokio::time::timeout(Duration::from_millis(5), generation.next()).await;
            assert!(told.is_err(), "{told:?}");
            mailbox.token(Instant::now(), 3, None);
            mailbox.end(Ending::Finished(FinishReason::Stop));
            let chunk = generation.next().await;
            assert_eq!((chunk.tokens, chunk.ending), (vec![2, 3], Some(Ending::Finished(FinishReason::Stop))));
        });
        let (mailbox, generation, _) = queued(&intake());
        let mut generation = generation.every(Duration::from_millis(20));
        block_on(async {
            for n in 0..3 {
                let begun = Instant::now();
                mailbox.token(Instant::now(), n, None);
                assert_eq!(generation.next().await.tokens, [n]);
                assert!(n == 0 || begun.elapsed() >= Duration::from_millis(15), "{n}: {:?}", begun.elapsed());
            }
        });
    }

    #[test]
    fn who_leaves_cancels_once_and_the_counts_are_right() {
        for phase in 0..3 {
            let intake = intake();
            let (mailbox, generation, n_cancelled) = queued(&intake);
            if phase > 0 {
                mailbox.admitted(Instant::now(), 0);
            }
            if phase > 1 {
                mailbox.token(Instant::now(), 1, None);
            }
            drop(generation);
            mailbox.token(Instant::now(), 1, None);
            mailbox.end(Ending::Finished(FinishReason::Stop));
            assert_eq!(n_cancelled.load(Ordering::Relaxed), 1);
            let figures = intake.figures();
            assert_eq!((figures.running, figures.waiting), (0, 0));
            block_on(intake.empty());
        }
    }

    #[test]
    fn a_request_that_takes_too_long_is_cancelled_and_says_so() {
        let intake = intake();
        let (mailbox, generation, n_cancelled) = queued(&intake);
        let queue = Duration::from_millis(1);
        let mut generation = generation.within(Timeouts { queue: Some(queue), request: None }, None, None);
        let chunk = block_on(generation.next());
        assert_eq!(chunk.ending, Some(Ending::Failed(Failed::QueueTimeout(queue))));
        assert_eq!(n_cancelled.load(Ordering::Relaxed), 1);
        // One that has its slot in time does not wait for it any more.
        mailbox.admitted(Instant::now(), 0);
        let (mailbox, generation, _) = queued(&intake);
        mailbox.admitted(Instant::now(), 0);
        let request = Duration::from_millis(2);
        let mut generation = generation.within(Timeouts { queue: Some(queue), request: Some(request) }, None, None);
        let endings = block_on(async { [generation.next().await.ending, generation.next().await.ending] });
        assert_eq!(endings, [None, Some(Ending::Failed(Failed::RequestTimeout(request)))]);
    }
}
