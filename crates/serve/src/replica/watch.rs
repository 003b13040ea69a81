//! The thread that listens to the replicas: puts their tokens into mailboxes, and restarts ended replicas.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::front::{Front, Life, Open, Place, State};
use super::held::Held;
use super::{ServeReplicaMessage, ServeReplicaOrder, ServeReplicaReady, Stepped};
use crate::failing::EngineFailure;
use crate::mailbox::{Ending, Failed};
use engine::scheduler::{Figures as EngineFigures, FinishReason};
use hint::{Hint, chain};
use replica::{Line, Listening, Replica, ReplicaError, Start};

/// What a process of a place said: None is its end.
pub(super) type Heard = (usize, u64, Option<Line<ServeReplicaMessage>>);

/// How long one wait is, so that silence is noticed.
const WAIT: Duration = Duration::from_millis(100);

/// One that ends after it took requests for so long has not ended in a row.
const CALM: Duration = Duration::from_secs(60);

/// The first time a replica is started again at once, then after a second, after two, and so on.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// One that ends so often in a row is left out.
const MOST_DEATHS: u32 = 6;

/// A request during which this many replicas ended is not run again: it may be the cause.
const MOST_DEATHS_OF_REQUEST: u32 = 3;

fn begin_one(i: usize, birth: u64, start: &Start, said: &Sender<Heard>) -> Result<Replica, ReplicaError> {
    let said = said.clone();
    Replica::start(start, move |line| said.send((i, birth, line)).is_ok())
}

/// Starts all of them, and waits until they take requests.
pub(super) fn begin(
    starts: Vec<Start>,
    said: &Sender<Heard>,
    heard: &Receiver<Heard>,
) -> Result<Vec<Place>, ReplicaError> {
    let all: Vec<(usize, Start)> = starts.into_iter().enumerate().collect();
    let begun = all.into_iter().map(|(i, start)| Ok((begin_one(i, 0, &start, said)?, start, None)));
    let mut begun = begun.collect::<Result<Vec<(Replica, Start, Option<ServeReplicaReady>)>, ReplicaError>>()?;
    let mut listening = Listening::default();
    while begun.iter().any(|(.., ready)| ready.is_none()) {
        let line = heard.recv_timeout(WAIT);
        if listening.was_away() {
            begun.iter_mut().for_each(|(replica, ..)| replica.heard());
        }
        if let Some(silent) = begun.iter().find_map(|(replica, ..)| replica.silent()) {
            return Err(silent);
        }
        let Ok((i, _, line)) = line else { continue };
        let (replica, _, ready) = &mut begun[i];
        replica.heard();
        match line {
            Some(Line::Told(ServeReplicaMessage::Ready(said))) => *ready = Some(said),
            Some(Line::Failed { message, hint }) => return Err(replica.failed(message, hint)),
            Some(_) => {}
            None => return Err(replica.ended()),
        }
    }
    Ok(begun.into_iter().filter_map(|(replica, start, ready)| Some(Place::new(start, replica, ready?))).collect())
}

/// Hears them until the program ends.
pub(super) fn watch(front: &Arc<Front>, heard: &Receiver<Heard>) {
    let mut listening = Listening::default();
    let mut looked = Instant::now();
    loop {
        let news = heard.recv_timeout(WAIT);
        let mut state = front.state();
        if state.is_over {
            return;
        }
        if listening.was_away() {
            state.places.iter_mut().filter_map(Place::replica).for_each(Replica::heard);
        }
        match news {
            // What a process said before it was given up is nobody's.
            Ok((i, birth, line)) if state.places[i].birth == birth => front.hear(&mut state, i, line),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if looked.elapsed() >= WAIT {
            looked = Instant::now();
            front.look(&mut state);
        }
    }
}

impl Front {
    fn hear(&self, state: &mut State, i: usize, line: Option<Line<ServeReplicaMessage>>) {
        let place = &mut state.places[i];
        let Some(replica) = place.replica() else { return };
        replica.heard();
        match line {
            Some(Line::Alive) => {}
            Some(Line::Told(ServeReplicaMessage::Ready(ready))) => self.ready(state, i, &ready),
            Some(Line::Told(ServeReplicaMessage::Stepped(stepped))) => self.stepped(state, i, stepped),
            Some(Line::Told(ServeReplicaMessage::Refused(key, why))) => {
                if let Some(open) = take(state, i, key) {
                    open.mailbox.end(Ending::Failed(Failed::Engine(why)));
                }
            }
            Some(Line::Failed { message, hint }) => {
                let error = replica.failed(message, hint);
                self.died(state, i, &error);
            }
            None => {
                let error = replica.ended();
                self.died(state, i, &error);
            }
        }
    }

    /// A replica that was started again takes requests.
    fn ready(&self, state: &mut State, i: usize, ready: &ServeReplicaReady) {
        let place = &mut state.places[i];
        if place.ready != *ready {
            let why = "the model or its device changed since the server was started".to_owned();
            let failed = place.replica().map(|replica| replica.failed(why, None));
            place.n_deaths = MOST_DEATHS; // trying again changes nothing
            return failed.into_iter().for_each(|error| self.died(state, i, &error));
        }
        place.life = match std::mem::replace(&mut place.life, Life::LeftOut) {
            Life::Starting(replica) => Life::Up(replica),
            other => other,
        };
        place.since = Instant::now();
        tracing::info!("the replica on {} is running again", place.start.device);
        self.place_all(state);
    }

    /// Hands out what a step came to.
    fn stepped(&self, state: &mut State, i: usize, stepped: Stepped) {
        let Stepped { took_us, figures, admitted, prompt_logprobs, tokens, logprobs, finished, masks_ns } = stepped;
        let now = Instant::now();
        let metrics = &self.intake.metrics;
        let place = &mut state.places[i];
        place.stepped = now;
        // Before anyone is told that his request is over, so that whoever sees none sees no block held by one.
        place.figures = figures;
        metrics.engine_did(&mut place.counted, figures);
        masks_ns.iter().for_each(|&ns| metrics.grammar_mask.observe(Duration::from_nanos(ns).as_secs_f64()));
        let began = now.checked_sub(Duration::from_micros(took_us)).unwrap_or(now);
        for (key, cached_tokens) in admitted {
            if let Some(open) = state.requests.get(&key) {
                open.mailbox.admitted(began, cached_tokens);
            }
        }
        for (key, probable) in prompt_logprobs {
            if let Some(open) = state.requests.get_mut(&key) {
                open.asked.prompt_logprobs.iter_mut().for_each(|of| of.n_told += 1);
                open.mailbox.prompt_token(probable.into());
            }
        }
        let n_tokens = tokens.len();
        let mut logprobs = logprobs.into_iter().peekable();
        for (place, (key, token)) in tokens.into_iter().enumerate() {
            let probable = logprobs.next_if(|(of, _)| *of == place).map(|(_, probable)| Box::new(probable.into()));
            if let Some(open) = state.requests.get_mut(&key) {
                open.asked.generated.push(token);
                open.mailbox.token(now, token, probable);
            }
        }
        for (key, reason) in finished {
            let Some(mut open) = take(state, i, key) else { continue };
            open.prefixes.follow(open.asked.prompt(), &open.asked.generated);
            state.places[i].held.keep(&open.prefixes);
            match FinishReason::from(reason) {
                FinishReason::Cancelled => open.mailbox.cancelled(),
                reason => open.mailbox.end(Ending::Finished(reason)),
            }
        }
        if n_tokens > 0 || took_us > 0 {
            metrics.step(n_tokens);
        }
    }

    /// Who is silent is given up, and whose time has come is started again.
    fn look(&self, state: &mut State) {
        for i in 0..state.places.len() {
            let place = &mut state.places[i];
            if let Some(error) = place.replica().and_then(|replica| replica.silent()) {
                self.died(state, i, &error);
            } else if matches!(place.life, Life::Down(then) if then <= Instant::now()) {
                place.birth += 1;
                place.n_restarts += 1;
                match begin_one(i, place.birth, &place.start, &self.said) {
                    Ok(replica) => place.life = Life::Starting(replica),
                    Err(error) => self.died(state, i, &error),
                }
            }
        }
    }

    /// A replica has ended, or is given up: its requests go on elsewhere.
    fn died(&self, state: &mut State, i: usize, error: &ReplicaError) {
        let place = &mut state.places[i];
        place.n_deaths = if place.is_up() && place.since.elapsed() > CALM { 1 } else { place.n_deaths + 1 };
        let is_left_out = place.n_deaths >= MOST_DEATHS;
        let wait = FIRST_WAIT * (1 << place.n_deaths.min(MOST_DEATHS)) / 4;
        let wait = if place.n_deaths <= 1 { Duration::ZERO } else { wait };
        let life = if is_left_out { Life::LeftOut } else { Life::Down(Instant::now() + wait) };
        let dead = std::mem::replace(&mut place.life, life);
        place.birth += 1; // what it said and nobody heard yet is nobody's
        // One that hangs in a driver is waited for as long as it takes.
        thread::spawn(move || drop(dead));
        place.held = Held::new(place.ready.n_blocks);
        (place.figures, place.counted) = (EngineFigures::default(), EngineFigures::default());
        place.empty();
        let (why, hint) = (chain(error), error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default());
        match is_left_out {
            true => tracing::warn!("{why}{hint}; it is not started again"),
            false => tracing::warn!("{why}{hint}; it is started again in {} s", wait.as_secs()),
        }
        let homeless: Vec<u64> =
            state.requests.iter().filter(|(_, open)| open.at == Some(i)).map(|(key, _)| *key).collect();
        for key in homeless {
            let Some(open) = state.requests.get_mut(&key) else { continue };
            (open.at, open.n_deaths) = (None, open.n_deaths + 1);
            if open.is_cancelled {
                open.mailbox.cancelled();
            } else if open.n_deaths >= MOST_DEATHS_OF_REQUEST {
                let n = open.n_deaths;
                open.mailbox
                    .end(Ending::Failed(Failed::Engine(format!("{n} replicas ended while they had it: {why}"))));
            } else {
                continue;
            }
            state.requests.remove(&key);
        }
        if state.places.iter().all(|place| matches!(place.life, Life::LeftOut)) {
            let failed = Failed::Engine(why.clone());
            // First: whoever is told of an end below looks for this.
            self.failing.fail(EngineFailure { why, hint: error.hint() });
            self.intake.close(failed.clone());
            state.end_all(&failed);
        }
        self.place_all(state);
    }

    /// Those that no replica has go to one, if there is one.
    fn place_all(&self, state: &mut State) {
        let homeless: Vec<u64> =
            state.requests.iter().filter(|(_, open)| open.at.is_none()).map(|(key, _)| *key).collect();
        for key in homeless {
            let Some(open) = state.requests.get(&key) else { continue };
            let line = Replica::line(&ServeReplicaOrder::Submit(key, open.asked.clone()));
            if state.place(key, line) {
                self.intake.metrics.moved();
            }
        }
    }
}

/// A request that this replica had, and has no more.
fn take(state: &mut State, i: usize, key: u64) -> Option<Open> {
    let open = state.requests.remove(&key)?;
    state.places[i].took_out(&open);
    Some(open)
}
