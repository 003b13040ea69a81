//! Decides which requests a backend takes, and counts those that it has.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::backend::{Figures, ModelFacts, Refused};
use super::mailbox::{Failed, Mailbox};
use super::metrics::Metrics;
use engine::PromptError;
use engine::scheduler::Request;

/// What a backend has room for.
#[derive(Clone, Copy, Debug)]
pub struct IntakeLimits {
    /// Sequences at a time.
    pub n_slots: usize,
    /// Requests that may wait, beside those that find a free slot.
    pub max_queue: usize,
    /// Tokens that the prompts of waiting requests may have, all together; a request that waits alone may have more.
    pub max_queued_tokens: usize,
    /// Longest sequence, in tokens.
    pub context_tokens: usize,
    pub vocab_size: usize,
}

impl IntakeLimits {
    /// What a backend with such limits says of itself.
    pub fn facts(&self, fingerprint: String, created: u64) -> ModelFacts {
        let Self { n_slots, max_queue, context_tokens, vocab_size, .. } = *self;
        let most_answers = max_queue.saturating_add(n_slots);
        ModelFacts { context_tokens, vocab_size, fingerprint, created, most_answers, n_slots }
    }
}

/// The door in front of a backend.
#[derive(Debug)]
pub struct Intake {
    limits: IntakeLimits,
    counts: Mutex<Counts>,
    pub(super) metrics: Metrics,
    /// Told when the last request has ended.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: usize,
    running: usize,
    waiting_tokens: usize,
    /// Background requests, which are in no other count: they neither refuse nor delay others.
    background: usize,
    closed: Option<Failed>,
    /// When requests ended, the latest last.
    ended: VecDeque<Instant>,
}

/// Ends of requests that the rate is measured over.
const MEASURED: usize = 64;

/// The longest time in `Retry-After`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Intake {
    /// A door that is open.
    pub fn new(limits: IntakeLimits, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default(), metrics, emptied: Notify::new() })
    }

    /// Lets a request in, with room for its tokens cut to what the context has, or refuses it.
    pub fn take(self: &Arc<Self>, request: &mut Request) -> Result<Arc<Mailbox>, Refused> {
        let IntakeLimits { context_tokens, vocab_size, .. } = self.limits;
        let room = PromptError::room_behind(&request.prompt, context_tokens, vocab_size)
            .map_err(Refused::Prompt)
            .and_then(|room| self.count(request).map(|()| room))
            .inspect_err(|refused| self.metrics.rejected(refused.reason()))?;
        request.max_new_tokens = request.max_new_tokens.min(room);
        Ok(Arc::new(Mailbox::new(self.clone(), request.prompt.len(), request.is_background)))
    }

    fn count(&self, request: &Request) -> Result<(), Refused> {
        let mut counts = self.counts();
        if let Some(closed) = &counts.closed {
            return Err(Refused::Closed(closed.clone()));
        }
        if request.is_background {
            counts.background += 1;
            return Ok(());
        }
        let n_free = self.limits.n_slots.saturating_sub(counts.running);
        let tokens = counts.waiting_tokens + request.prompt.len();
        let is_full = counts.waiting >= self.limits.max_queue + n_free
            || (counts.waiting > 0 && tokens > self.limits.max_queued_tokens);
        if is_full {
            return Err(Refused::Overloaded { retry_after: counts.retry_after(Instant::now()) });
        }
        counts.waiting += 1;
        counts.waiting_tokens = tokens;
        Ok(())
    }

    /// Refuses all further requests, with this reason.
    pub(crate) fn close(&self, why: Failed) {
        self.counts().closed = Some(why);
    }

    /// Whether no more are taken, and why.
    pub(crate) fn closed(&self) -> Option<Failed> {
        self.counts().closed.clone()
    }

    /// Requests that wait and run.
    pub(crate) fn figures(&self) -> Figures {
        let counts = self.counts();
        let Counts { running, waiting, background, .. } = *counts;
        Figures { running, waiting, background, kv_usage: 0.0 }
    }

    /// Waits until there is no request.
    #[cfg(test)]
    pub(crate) async fn empty(&self) {
        loop {
            let told = self.emptied.notified();
            let Figures { running, waiting, .. } = self.figures();
            if running + waiting == 0 {
                return;
            }
            told.await;
        }
    }

    /// A request in the background is over.
    pub(super) fn background_ended(&self) {
        self.counts().background -= 1;
    }

    /// A request got a slot that is not in the background.
    pub(super) fn admitted(&self, n_prompt: usize) {
        let mut counts = self.counts();
        counts.waiting -= 1;
        counts.waiting_tokens -= n_prompt;
        counts.running += 1;
    }

    /// A request that is not in the background is over, which had a slot or not.
    pub(super) fn ended(&self, n_prompt: usize, was_running: bool) {
        let mut counts = self.counts();
        if was_running {
            counts.running -= 1;
        } else {
            counts.waiting -= 1;
            counts.waiting_tokens -= n_prompt;
        }
        if counts.ended.len() == MEASURED {
            counts.ended.pop_front();
        }
        counts.ended.push_back(Instant::now());
        if counts.waiting + counts.running == 0 {
            self.emptied.notify_waiters();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// When those who wait now have ended, if requests go on to end as they did.
    fn retry_after(&self, now: Instant) -> Duration {
        let Some(first) = self.ended.front() else { return Duration::from_secs(1) };
        let each = (now - *first).div_f64(self.ended.len() as f64);
        each.saturating_mul(u32::try_from(self.waiting).unwrap_or(u32::MAX)).clamp(Duration::from_secs(1), LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::scheduler::Sampling;

    const LIMITS: IntakeLimits =
        IntakeLimits { n_slots: 2, max_queue: 1, max_queued_tokens: 10, context_tokens: 8, vocab_size: 5 };

    fn request(n_prompt: usize) -> Request {
        Request::new(vec![1; n_prompt], 100, vec![], Sampling::GREEDY)
    }

    #[test]
    fn as_many_as_slots_and_queue_hold_are_taken() {
        let intake = Intake::new(LIMITS, Metrics::default());
        let mut taken: Vec<_> = (0..3).map(|_| intake.take(&mut request(1)).unwrap()).collect();
        assert!(matches!(intake.take(&mut request(1)), Err(Refused::Overloaded { .. })));
        taken[0].admitted(Instant::now(), 0);
        assert!(matches!(intake.take(&mut request(1)), Err(Refused::Overloaded { .. })));
        taken.pop().unwrap().cancelled();
        assert!(intake.take(&mut request(1)).is_ok());
        let figures = intake.figures();
        assert_eq!((figures.running, figures.waiting), (1, 2));
    }

    #[test]
    fn requests_in_the_background_keep_nobody_out() {
        let intake = Intake::new(LIMITS, Metrics::default());
        let mut background = Request { is_background: true, ..request(8) };
        let taken: Vec<_> = (0..50).map(|_| intake.take(&mut background).unwrap()).collect();
        taken[..2].iter().for_each(|mailbox| mailbox.admitted(Instant::now(), 0));
        let others: Vec<_> = (0..3).map(|_| intake.take(&mut request(1)).unwrap()).collect();
        let Figures { running, waiting, background, .. } = intake.figures();
        assert_eq!((running, waiting, background), (0, 3, 50));
        taken.iter().for_each(|mailbox| mailbox.cancelled());
        others.iter().for_each(|mailbox| mailbox.cancelled());
        assert_eq!(intake.figures(), Figures::default());
    }

    #[test]
    fn waiting_prompts_have_a_limit_together_and_none_alone() {
        let limits = IntakeLimits { max_queue: 100, max_queued_tokens: 4, ..LIMITS };
        let intake = Intake::new(limits, Metrics::default());
        intake.take(&mut request(6)).unwrap();
        assert!(matches!(intake.take(&mut request(1)), Err(Refused::Overloaded { .. })));
    }

    #[test]
    fn a_prompt_has_to_fit_and_its_answer_is_cut() {
        let intake = Intake::new(LIMITS, Metrics::default());
        let mut fits = request(8);
        intake.take(&mut fits).unwrap();
        assert_eq!(fits.max_new_tokens, 1);
        let refused = intake.take(&mut request(9)).unwrap_err();
        assert_eq!(refused, Refused::Prompt(PromptError::TooLong { n_prompt: 9, capacity_tokens: 8 }));
        assert_eq!(intake.take(&mut request(0)).unwrap_err(), Refused::Prompt(PromptError::Empty));
        let mut foreign = Request::new(vec![1, 5], 1, vec![], Sampling::GREEDY);
        let refused = intake.take(&mut foreign).unwrap_err();
        assert_eq!(refused, Refused::Prompt(PromptError::TokenId { id: 5, position: 1, vocab_size: 5 }));
    }

    #[test]
    fn the_wait_is_that_of_the_rate_so_far() {
        let now = Instant::now();
        let ended = (0..10).map(|i| now - Duration::from_secs(20 - 2 * i)).collect();
        let counts = Counts { waiting: 6, ended, ..Counts::default() };
        assert_eq!(counts.retry_after(now), Duration::from_secs(12));
        assert_eq!(Counts::default().retry_after(now), Duration::from_secs(1));
        let counts = Counts { waiting: 1000, ..counts };
        assert_eq!(counts.retry_after(now), LONGEST_WAIT);
    }
}
