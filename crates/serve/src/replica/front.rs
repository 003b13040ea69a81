//! Chooses a replica for each request, and tracks the state of all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::held::{Held, Prefixes};
use super::watch::{self, Heard};
use super::{ServeReplicaOrder, ServeReplicaReady};
use crate::backend::{Backend, Figures, Health, ModelFacts, Refused, ReplicaFigures};
use crate::engine_thread::STALLED;
use crate::failing::Failing;
use crate::intake::{Intake, IntakeLimits};
use crate::mailbox::{Ending, Failed, Generation, Mailbox};
use crate::metrics::Metrics;
use engine::scheduler::{Figures as EngineFigures, Request};
use replica::{Replica, ReplicaError, Start, WireRequest};

/// What a request that a replica has already is worth, in tokens of a prompt: one more slows all of them, and a prefix
/// that is not there is computed once.
const REQUEST_TOKENS: usize = 64;

/// The model in several processes.
pub struct Replicas {
    front: Arc<Front>,
}

/// What the threads share that submit, cancel and watch.
pub(super) struct Front {
    pub(crate) intake: Arc<Intake>,
    pub(crate) failing: Arc<Failing>,
    facts: ModelFacts,
    block_tokens: usize,
    next_key: AtomicU64,
    state: Mutex<State>,
    /// Where replicas that are started again are heard.
    pub(crate) said: Sender<Heard>,
}

pub(super) struct State {
    pub(crate) places: Vec<Place>,
    /// Those that are not over, by their numbers.
    pub(crate) requests: BTreeMap<u64, Open>,
    pub(crate) is_over: bool,
}

/// Where a replica runs, also when it does not.
pub(super) struct Place {
    pub(crate) start: Start,
    pub(crate) life: Life,
    /// Which of the processes that were started here.
    pub(crate) birth: u64,
    pub(crate) ready: ServeReplicaReady,
    /// Since when it takes requests.
    pub(crate) since: Instant,
    /// When it was heard of a step last, or got something to do.
    pub(crate) stepped: Instant,
    /// Requests that it has.
    pub(crate) n_requests: usize,
    /// Of these, those in the background.
    pub(crate) n_background: usize,
    pub(crate) held: Held,
    pub(crate) figures: EngineFigures,
    /// Of the figures, those that were counted.
    pub(crate) counted: EngineFigures,
    pub(crate) n_restarts: u64,
    /// How often it ended in a row.
    pub(crate) n_deaths: u32,
}

pub(super) enum Life {
    Up(Replica),
    Starting(Replica),
    /// It is started again then.
    Down(Instant),
    /// It is not started again.
    LeftOut,
}

/// A request that is not over.
pub(super) struct Open {
    /// With the tokens that were told.
    pub(crate) asked: Box<WireRequest>,
    pub(crate) prefixes: Prefixes,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Which replica has it.
    pub(crate) at: Option<usize>,
    pub(crate) is_cancelled: bool,
    /// How often its replica ended.
    pub(crate) n_deaths: u32,
}

impl Place {
    pub(crate) fn new(start: Start, replica: Replica, ready: ServeReplicaReady) -> Self {
        let now = Instant::now();
        let (figures, counted) = (EngineFigures::default(), EngineFigures::default());
        let held = Held::new(ready.n_blocks);
        let (life, birth, n_requests, n_background, n_restarts, n_deaths) = (Life::Up(replica), 0, 0, 0, 0, 0);
        Self {
            start,
            life,
            birth,
            ready,
            since: now,
            stepped: now,
            n_requests,
            n_background,
            held,
            figures,
            counted,
            n_restarts,
            n_deaths,
        }
    }

    /// The process, if there is one.
    pub(crate) fn replica(&mut self) -> Option<&mut Replica> {
        match &mut self.life {
            Life::Up(replica) | Life::Starting(replica) => Some(replica),
            Life::Down(_) | Life::LeftOut => None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.life, Life::Up(_))
    }

    /// It has a request less.
    pub(crate) fn took_out(&mut self, open: &Open) {
        self.n_requests = self.n_requests.saturating_sub(1);
        self.n_background = self.n_background.saturating_sub(usize::from(open.asked.is_background()));
    }

    /// It has none any more.
    pub(crate) fn empty(&mut self) {
        (self.n_requests, self.n_background) = (0, 0);
    }

    /// It has work, and for so long did nothing: its device hangs.
    fn stalled(&self) -> Option<Duration> {
        let since = self.stepped.elapsed();
        (self.is_up() && self.n_requests > 0 && since > STALLED).then_some(since)
    }
}

impl State {
    /// Gives a request to a replica, if one takes requests, and whether one does. `line` is the order.
    pub(crate) fn place(&mut self, key: u64, line: Vec<u8>) -> bool {
        let Some(open) = self.requests.get_mut(&key) else { return false };
        let n_tokens = open.asked.prompt().len() + open.asked.generated.len();
        let is_background = open.asked.is_background();
        let Some(i) = choose(&self.places, &open.prefixes, n_tokens, is_background) else { return false };
        let place = &mut self.places[i];
        place.held.keep(&open.prefixes);
        place.n_requests += 1;
        place.n_background += usize::from(is_background);
        if place.n_requests == 1 {
            place.stepped = Instant::now();
        }
        open.at = Some(i);
        if let Life::Up(replica) = &place.life {
            replica.order(line);
        }
        true
    }

    pub(crate) fn end_all(&mut self, why: &Failed) {
        for open in std::mem::take(&mut self.requests).into_values() {
            open.mailbox.end(Ending::Failed(why.clone()));
        }
        self.places.iter_mut().for_each(Place::empty);
    }
}

/// The replica for a request: of those with a free slot, else of all, the one with the least to do for it, the
/// tokens that it has to compute and the requests that it has; of equal ones that which knows least. One that
/// hangs gets none, while there is another. Those in the background give up their slots to all others, so only
/// another one in the background counts them; for the others they decide between equal ones.
fn choose(places: &[Place], prefixes: &Prefixes, n_tokens: usize, is_background: bool) -> Option<usize> {
    let worth = |(i, place): (usize, &Place)| {
        let n_held = place.held.n_blocks(prefixes) * place.ready.block_tokens;
        let n_ahead = if is_background { place.n_requests } else { place.n_requests - place.n_background };
        let cost = n_tokens.saturating_sub(n_held) + REQUEST_TOKENS * n_ahead;
        let is_full = n_ahead >= place.ready.n_slots;
        ((place.stalled().is_some(), is_full, cost, place.n_background, place.held.len()), i)
    };
    let up = places.iter().enumerate().filter(|(_, place)| place.is_up());
    up.map(worth).min().map(|(_, i)| i)
}

impl Front {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the replica that runs the request cancel it. A request without a replica ends here.
    fn cancel(&self, key: u64) {
        let mut state = self.state();
        let State { places, requests, .. } = &mut *state;
        let Some(open) = requests.get_mut(&key) else { return };
        open.is_cancelled = true;
        match open.at.map(|i| &places[i].life) {
            Some(Life::Up(replica)) => replica.order(Replica::line(&ServeReplicaOrder::Cancel(key))),
            Some(_) => {}
            None => {
                open.mailbox.cancelled();
                requests.remove(&key);
            }
        }
    }
}

impl Replicas {
    /// Starts all of them, and waits until they take requests.
    ///
    /// - `limits`: of all together, if these are the replicas
    ///
    /// # Errors
    /// One ended, or could not be started.
    pub fn start(
        starts: Vec<Start>,
        created: u64,
        limits: impl FnOnce(&[ServeReplicaReady]) -> IntakeLimits,
        metrics: Metrics,
    ) -> Result<Self, ReplicaError> {
        let (said, heard) = channel();
        let places = watch::begin(starts, &said, &heard)?;
        let ready: Vec<ServeReplicaReady> = places.iter().map(|place| place.ready.clone()).collect();
        let limits = limits(&ready);
        let facts = limits.facts(fingerprint(&ready), created);
        let front = Arc::new(Front {
            intake: Intake::new(limits, metrics),
            failing: Arc::default(),
            facts,
            block_tokens: ready[0].block_tokens,
            next_key: AtomicU64::new(0),
            state: Mutex::new(State { places, requests: BTreeMap::new(), is_over: false }),
            said,
        });
        let watching = front.clone();
        thread::spawn(move || watch::watch(&watching, &heard));
        Ok(Self { front })
    }

    /// Whether all of them have failed for good.
    pub fn failing(&self) -> Arc<Failing> {
        self.front.failing.clone()
    }
}

/// Of all replicas: that of one where they are alike.
fn fingerprint(ready: &[ServeReplicaReady]) -> String {
    let first = &ready[0].fingerprint;
    if ready.iter().all(|one| one.fingerprint == *first) {
        return first.clone();
    }
    let mut hasher = Sha256::new();
    ready.iter().for_each(|one| hasher.update(&one.fingerprint));
    crate::fingerprint(&hasher.finalize())
}

impl Backend for Replicas {
    fn submit(&self, mut request: Request) -> Result<Generation, Refused> {
        let front = &self.front;
        if front.intake.closed().is_none() && !front.state().places.iter().any(Place::is_up) {
            front.intake.metrics.rejected(Refused::Restarting.reason());
            return Err(Refused::Restarting);
        }
        let mailbox = front.intake.take(&mut request)?;
        let prefixes = Prefixes::new(request.cache_salt, front.block_tokens, &request.prompt);
        let key = front.next_key.fetch_add(1, Ordering::Relaxed);
        let order = ServeReplicaOrder::Submit(key, Box::new(request.into()));
        let line = Replica::line(&order);
        let ServeReplicaOrder::Submit(_, asked) = order else { unreachable!("it is what it was made") };
        let (of_request, at) = (mailbox.clone(), None);
        let open = Open { asked, prefixes, mailbox: of_request, at, is_cancelled: false, n_deaths: 0 };
        let mut state = front.state();
        if state.is_over {
            mailbox.end(Ending::Failed(Failed::ShuttingDown));
        } else {
            state.requests.insert(key, open);
            state.place(key, line); // or the first that takes requests again gets it
        }
        drop(state);
        let cancelled = front.clone();
        Ok(Generation::new(mailbox, move || cancelled.cancel(key)))
    }

    fn model(&self) -> &ModelFacts {
        &self.front.facts
    }

    fn figures(&self) -> Figures {
        let state = self.front.state();
        let sum = |of: fn(&EngineFigures) -> usize| state.places.iter().map(|place| of(&place.figures)).sum::<usize>();
        let (held, blocks) = (sum(|figures| figures.blocks_held), sum(|figures| figures.blocks));
        Figures { kv_usage: held as f64 / blocks.max(1) as f64, ..self.front.intake.figures() }
    }

    fn replicas(&self) -> Vec<ReplicaFigures> {
        let of = |place: &Place| {
            let running = place.figures.running.min(place.n_requests);
            ReplicaFigures {
                is_up: place.is_up(),
                running,
                waiting: place.n_requests - running,
                restarts: place.n_restarts,
            }
        };
        self.front.state().places.iter().map(of).collect()
    }

    fn health(&self) -> Health {
        if let Some(failure) = self.front.failing.failure() {
            return Health::Failed(failure.why);
        }
        if self.front.intake.closed().is_some() {
            return Health::ShuttingDown;
        }
        let state = self.front.state();
        let n = state.places.len();
        let n_up = state.places.iter().filter(|place| place.is_up() && place.stalled().is_none()).count();
        let longest = state.places.iter().filter_map(Place::stalled).max();
        match (n_up, longest) {
            (0, Some(longest)) => Health::Stalled(longest),
            (n_up, _) if n_up < n => Health::Degraded { n_up, n },
            _ => Health::Ok,
        }
    }

    fn drain(&self) {
        self.front.intake.close(Failed::ShuttingDown);
    }

    fn end_all(&self) {
        self.drain();
        let mut state = self.front.state();
        state.is_over = true;
        state.end_all(&Failed::ShuttingDown);
        // All end at the same time, and not one after the other.
        state.places.iter_mut().filter_map(Place::replica).for_each(Replica::kill);
        state.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place with this many requests on two slots, whose replica is a process that says nothing.
    fn place(n_requests: usize) -> Place {
        let start = Start { program: "cat".into(), words: Vec::new(), device: "none".into(), speaks: false };
        let replica = Replica::start::<()>(&start, |_| true).expect("there is `cat`");
        let ready = ServeReplicaReady {
            n_slots: 2,
            context_tokens: 1 << 20,
            vocab_size: 100,
            block_tokens: 64,
            n_blocks: 1 << 10,
            kv_dtype: "bf16".into(),
            shares_cores: true,
            fingerprint: "fp_0".into(),
        };
        Place { n_requests, ..Place::new(start, replica, ready) }
    }

    #[test]
    fn a_request_goes_where_least_is_to_do_for_it() {
        let ids: Vec<u32> = (0..1000).collect();
        let prefixes = Prefixes::new(0, 64, &ids);
        let chosen = |places: &[Place]| choose(places, &prefixes, ids.len(), false);
        let mut places = [place(1), place(0), place(0)];
        assert_eq!(chosen(&places), Some(1));
        // What knows something else is left to that.
        places[1].held.keep(&Prefixes::new(0, 64, &ids[1..]));
        assert_eq!(chosen(&places), Some(2));
        // A long prefix is worth a request that is there, and no slot that is not free.
        places[0].held.keep(&prefixes);
        assert_eq!(chosen(&places), Some(0));
        places[0].n_requests = 2;
        assert_eq!(chosen(&places), Some(2));
        (places[1].n_requests, places[2].n_requests) = (2, 2);
        assert_eq!(chosen(&places), Some(0), "where all are full, whoever has it");
        places[0].n_requests = 20;
        assert_eq!(chosen(&places), Some(2), "unless it has much more to do");
        // A short one is worth none.
        let begun = Prefixes::new(0, 64, &ids[..64]);
        let mut places = [place(1), place(0)];
        places[0].held.keep(&begun);
        assert_eq!(choose(&places, &begun, 100, false), Some(1));
        // Who hangs gets nothing, and who is not there neither.
        let mut places = [place(1), place(1), place(1)];
        places[0].stepped = Instant::now().checked_sub(2 * STALLED).expect("a machine that runs for minutes");
        places[1].life = Life::LeftOut;
        assert_eq!(chosen(&places), Some(2));
        places[2].life = Life::Down(Instant::now());
        assert_eq!(chosen(&places), Some(0));
        places[0].life = Life::LeftOut;
        assert_eq!(chosen(&places), None);
    }

    #[test]
    fn requests_in_the_background_are_in_nobodys_way() {
        let ids: Vec<u32> = (0..100).collect();
        let prefixes = Prefixes::new(0, 64, &ids);
        let chosen = |places: &[Place], is_background| choose(places, &prefixes, ids.len(), is_background);
        // A replica full of them is free, and another that has somebody is not.
        let mut places = [place(1), place(5)];
        places[1].n_background = 5;
        assert_eq!((chosen(&places, false), chosen(&places, true)), (Some(1), Some(0)));
        // They do not take a prefix from anybody, and of two that are alike the one without them is faster.
        places[0].n_requests = 0;
        assert_eq!(chosen(&places, false), Some(0));
        places[1].held.keep(&prefixes);
        assert_eq!((chosen(&places, false), chosen(&places, true)), (Some(1), Some(0)));
        places[1].empty();
        assert_eq!((places[1].n_requests, places[1].n_background), (0, 0));
    }
}
