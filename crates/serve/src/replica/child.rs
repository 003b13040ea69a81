//! The child's side of a replica: requests in, results of steps out.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::masks::{self, Times, Wanted};
use super::{ServeReplicaMessage, ServeReplicaOrder, ServeReplicaReady, Stepped};
use chat::grammar::Grammars;
use engine::scheduler::{Event, FinishReason, Request, RequestId};
use engine::{Engine, EngineError};
use hint::chain;
use replica::child::{begin, tell};

/// What the thread that steps hears.
enum Heard {
    Order(ServeReplicaOrder),
    /// A request has its mask, or cannot have one.
    Masked(u64, Result<Box<Request>, String>),
}

/// What is heard from the one that started this process.
pub struct Orders {
    heard: Receiver<Heard>,
    tell: Sender<Heard>,
}

impl Orders {
    /// Listens from here on. When its parent is gone, the process ends.
    ///
    /// # Errors
    /// The system has no threads for it.
    pub fn begin() -> io::Result<Self> {
        let (tell, heard) = channel();
        let of_orders = tell.clone();
        begin(move |order| drop(of_orders.send(Heard::Order(order))))?;
        Ok(Self { heard, tell })
    }

    /// Answers requests as they come, until the process ends. Without grammars none can have a form.
    ///
    /// # Errors
    /// The engine's.
    pub fn work(
        self,
        engine: &mut Engine,
        grammars: Option<Grammars>,
        ready: ServeReplicaReady,
    ) -> Result<(), EngineError> {
        let times = Times::default();
        let masked = self.tell;
        let made = move |key, made: Result<Request, String>| {
            drop(masked.send(Heard::Masked(key, made.map(Box::new))));
        };
        let masks = masks::start(grammars, times.clone(), made).expect("a thread as others before it");
        let mut open = Open { engine, masks, states: HashMap::new(), keys: HashMap::new() };
        tell(ServeReplicaMessage::Ready(ready));
        loop {
            if open.engine.is_idle() {
                // The threads that send to it end with the process.
                let Ok(heard) = self.heard.recv() else { return Ok(()) };
                open.obey(heard);
            }
            for heard in self.heard.try_iter() {
                open.obey(heard);
            }
            if open.engine.is_idle() {
                continue; // the request waits for its mask, or was refused
            }
            let began = Instant::now();
            let events = open.engine.step()?;
            let mut stepped = open.stepped(events);
            stepped.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            stepped.masks_ns = masks::taken(&times);
            tell(ServeReplicaMessage::Stepped(stepped));
        }
    }
}

/// Requests that are not over.
struct Open<'a> {
    engine: &'a mut Engine,
    masks: Wanted,
    states: HashMap<u64, State>,
    /// Of those that the engine has.
    keys: HashMap<RequestId, u64>,
}

#[derive(Clone, Copy)]
enum State {
    /// Its mask is being made.
    Masking {
        is_cancelled: bool,
    },
    There(RequestId),
}

impl Open<'_> {
    fn obey(&mut self, heard: Heard) {
        match heard {
            Heard::Order(ServeReplicaOrder::Submit(key, asked)) if asked.grammar.is_some() => {
                self.states.insert(key, State::Masking { is_cancelled: false });
                let _ = self.masks.send((key, asked)); // the thread is there as long as this one
            }
            Heard::Order(ServeReplicaOrder::Submit(key, asked)) => self.submit(key, (*asked).into()),
            Heard::Order(ServeReplicaOrder::Cancel(key)) => match self.states.get_mut(&key) {
                Some(State::Masking { is_cancelled }) => *is_cancelled = true,
                // The next step tells that it is over, if it is not over already.
                Some(State::There(id)) => drop(self.engine.cancel(*id)),
                None => {}
            },
            Heard::Masked(key, made) => match (self.states.remove(&key), made) {
                (Some(State::Masking { is_cancelled: true }), _) => {
                    let finished = vec![(key, FinishReason::Cancelled.into())];
                    let figures = self.engine.figures();
                    tell(ServeReplicaMessage::Stepped(Stepped { figures, finished, ..Stepped::default() }));
                }
                (_, Ok(request)) => self.submit(key, *request),
                (_, Err(why)) => tell(ServeReplicaMessage::Refused(key, why)),
            },
        }
    }

    fn submit(&mut self, key: u64, request: Request) {
        match self.engine.submit(request) {
            Ok(id) => {
                self.keys.insert(id, key);
                self.states.insert(key, State::There(id));
            }
            Err(error) => tell(ServeReplicaMessage::Refused(key, chain(&error))),
        }
    }

    /// What a step came to.
    fn stepped(&mut self, events: Vec<Event>) -> Stepped {
        let mut stepped = Stepped { figures: self.engine.figures(), ..Stepped::default() };
        for event in events {
            let of = |request| self.keys.get(request).copied();
            match event {
                Event::Admitted { request, cached_tokens } => {
                    stepped.admitted.extend(of(&request).map(|key| (key, cached_tokens)));
                }
                Event::PromptToken { request, logprobs, .. } => {
                    let told = of(&request).zip(logprobs);
                    stepped.prompt_logprobs.extend(told.map(|(key, logprobs)| (key, (*logprobs).into())));
                }
                Event::Token { request, token, logprobs } => {
                    let Some(key) = of(&request) else { continue };
                    stepped.logprobs.extend(logprobs.map(|logprobs| (stepped.tokens.len(), (*logprobs).into())));
                    stepped.tokens.push((key, token));
                }
                Event::Finished { request, reason } => {
                    let Some(key) = self.keys.remove(&request) else { continue };
                    self.states.remove(&key);
                    stepped.finished.push((key, reason.into()));
                }
            }
        }
        stepped
    }
}
