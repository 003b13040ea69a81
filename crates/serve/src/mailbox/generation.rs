//! The receiving side of a request's tokens.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Chunk, Ending, Failed, Mailbox, Phase};
use crate::request_log::Record;
use engine::scheduler::FinishReason;
use model::tokenizer::Tokenizer;

/// How long a request may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeouts {
    /// Until it has a slot.
    pub queue: Option<Duration>,
    pub request: Option<Duration>,
}

/// How often a reader is woken for tokens: waking it, and sending its events, takes time from computing if both use the
/// same cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// From one chunk with tokens to the next, at least.
    pub interval: Duration,
    /// The same for each request that runs: the more there are, the more tokens come at a time.
    pub interval_each: Duration,
}

/// How often the reader of a whole answer looks whether it failed before its end.
const SELDOM: Duration = Duration::from_millis(250);

/// For so much longer than tokens are to wait at least they wait for the next one, which wakes the reader with those of
/// all others, and not each by a timer of its own.
const PATIENCE: Duration = Duration::from_millis(50);

/// A request that was queued: its tokens, as they come. Dropping it cancels the request, in whatever phase it is.
pub struct Generation {
    mailbox: Arc<Mailbox>,
    /// Cancels the request in the backend.
    cancel: Option<Box<dyn FnOnce() + Send>>,
    timeouts: Timeouts,
    pace: Pace,
    /// When tokens are taken next, at the earliest.
    next: Option<Instant>,
    timed_out: Option<Failed>,
    record: Option<Arc<Record>>,
    content: Option<Content>,
}

/// The generated content, for the log.
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
        let (pace, next) = (Pace::default(), None);
        Self { mailbox, cancel: Some(cancel), timeouts, pace, next, timed_out: None, record: None, content: None }
    }

    /// With these bounds, and with a line in the log of its HTTP request: including its text, if a tokenizer is given
    /// for that.
    pub(crate) fn within(
        mut self,
        timeouts: Timeouts,
        record: Option<Arc<Record>>,
        content: Option<Tokenizer>,
    ) -> Self {
        let content = content.map(|tokenizer| Content { tokenizer, tokens: Vec::new() });
        (self.timeouts, self.record, self.content) = (timeouts, record, content);
        self
    }

    /// At this pace: tokens wait meanwhile and do not wake the reader. The first token and the end do not wait.
    pub(crate) fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// As seldom as for an answer that is sent whole and that only the model ends.
    pub(crate) fn seldom(mut self) -> Self {
        self.pace.interval = self.pace.interval.max(SELDOM);
        self
    }

    /// When tokens are taken next, if some were taken now.
    fn pause(&self) -> Option<Instant> {
        let Pace { interval, interval_each } = self.pace;
        let n_running = if interval_each.is_zero() { 0 } else { self.mailbox.intake.figures().running };
        let least = interval.max(interval_each.saturating_mul(u32::try_from(n_running).unwrap_or(u32::MAX)));
        (!least.is_zero()).then(|| Instant::now() + least)
    }

    /// Ends a request that was answered before its model was done: by a stop string, for example. It counts as finished
    /// and not as cancelled.
    pub(crate) fn stop(mut self) {
        let is_over = self.mailbox.state().phase == Phase::Over;
        if let Some(cancel) = self.cancel.take().filter(|_| !is_over) {
            self.mailbox.end(Ending::Finished(FinishReason::Stop));
            cancel();
        }
    }

    /// Waits until something came, and takes all of it. After the end it gives the end again. Nothing is lost if the
    /// future is dropped.
    pub(crate) async fn next(&mut self) -> Chunk {
        loop {
            if let Some(failed) = &self.timed_out {
                return Chunk { ending: Some(Ending::Failed(failed.clone())), ..Chunk::default() };
            }
            let from = self.next.filter(|next| *next > Instant::now());
            if let Some(chunk) = self.mailbox.take(from) {
                if !chunk.tokens.is_empty() {
                    self.next = self.pause();
                }
                self.mailbox.intake.metrics.chunk(chunk.tokens.len());
                if let Some(content) = &mut self.content {
                    content.tokens.extend_from_slice(&chunk.tokens);
                }
                return chunk;
            }
            let mailbox = self.mailbox.clone();
            let told = mailbox.notify.notified();
            let deadline = self.deadline();
            let latest = from.map(|from| from + PATIENCE);
            let until = deadline.as_ref().map(|(deadline, _)| *deadline).into_iter().chain(latest).min();
            let was_told = match until {
                None => {
                    told.await;
                    true
                }
                Some(until) => tokio::time::timeout_at(until.into(), told).await.is_ok(),
            };
            let is_late = |(deadline, _): &(Instant, Failed)| !was_told && *deadline <= Instant::now();
            if let Some((_, failed)) = deadline.filter(is_late) {
                self.timed_out = Some(failed);
                self.cancel_now();
            }
        }
    }

    /// When patience ends, and with what.
    fn deadline(&self) -> Option<(Instant, Failed)> {
        if self.timeouts.queue.is_none() && self.timeouts.request.is_none() {
            return None;
        }
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

    use super::super::Awaited;
    use super::*;
    use crate::intake::{Intake, IntakeLimits};
    use crate::metrics::Metrics;
    use engine::scheduler::{Request, Sampling};

    fn intake() -> Arc<Intake> {
        let limits =
            IntakeLimits { n_slots: 1, max_queue: 9, max_queued_tokens: 99, context_tokens: 99, vocab_size: 9 };
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
        let pace = |interval| Pace { interval, ..Pace::default() };
        let mut generation = generation.at_pace(pace(Duration::from_secs(3600)));
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
        let mut generation = generation.at_pace(pace(Duration::from_millis(20)));
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
    fn the_more_run_the_more_tokens_come_at_a_time() {
        let intake = intake();
        let others: Vec<_> = (0..3).map(|_| queued(&intake)).collect();
        let (mailbox, generation, _) = queued(&intake);
        let pace = Pace { interval: Duration::ZERO, interval_each: Duration::from_secs(900) };
        let mut generation = generation.at_pace(pace);
        let now = Instant::now();
        others.iter().for_each(|(other, ..)| other.admitted(now, 0));
        mailbox.admitted(now, 0);
        mailbox.token(now, 1, None);
        let began = Instant::now();
        assert_eq!(block_on(generation.next()).tokens, [1]);
        let next = generation.next.expect("a pause") - began;
        assert!((3600..3700).contains(&next.as_secs()), "{next:?}");
        // What comes before wakes nobody, what comes then does.
        assert_eq!(mailbox.take(generation.next), None);
        let awaited = || mailbox.state().awaited;
        mailbox.token(now, 2, None);
        assert!(matches!(awaited(), Awaited::From(_)));
        mailbox.token(now + Duration::from_secs(3800), 3, None);
        assert_eq!(awaited(), Awaited::No);
        assert_eq!(mailbox.take(None).expect("something").tokens, [2, 3]);
    }

    #[test]
    fn who_tells_an_answer_whole_looks_seldom_and_sees_the_end_at_once() {
        let (mailbox, generation, _) = queued(&intake());
        let mut generation = generation.seldom();
        let now = Instant::now();
        mailbox.admitted(now, 0);
        mailbox.token(now, 1, None);
        assert_eq!(block_on(generation.next()).tokens, [1]);
        assert!(generation.next.is_some_and(|next| next >= now + SELDOM));
        mailbox.token(now, 2, None);
        assert_eq!(mailbox.take(generation.next), None);
        mailbox.end(Ending::Finished(FinishReason::Stop));
        assert_eq!(block_on(generation.next()).tokens, [2]);
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
