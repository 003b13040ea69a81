//! The thread that owns the engine: takes commands, runs steps, and puts tokens into mailboxes.
//!
//! It waits only for the device. With nothing to do it blocks on the commands. After some time without requests it
//! writes prefixes to the disk and lets go of the model ([`resting`]); the next request brings it back.

mod resting;

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub use self::resting::{Loaded, Unloading};
use self::resting::{Model, Presence, Rest};
use super::backend::{Backend, Figures, Health, ModelFacts, Refused};
use super::failing::{EngineFailure, Failing};
use super::intake::{Intake, IntakeLimits};
use super::mailbox::{Ending, Failed, Generation, Mailbox};
use super::metrics::Metrics;
use super::request_log::words_of;
use engine::scheduler::{Event, Figures as EngineFigures, FinishReason, Request, RequestId};
use engine::{Engine, EngineError};
use hint::{Hint, chain};

/// A model with its own thread.
pub struct EngineThread {
    commands: Arc<Sender<Command>>,
    shared: Arc<Shared>,
    facts: ModelFacts,
}

enum Command {
    Submit(Box<Request>, Arc<Mailbox>),
    Cancel(Arc<Mailbox>),
    EndAll,
    /// The result of loading the model again.
    Loaded(Box<Result<Loaded, EngineFailure>>),
    /// No more commands follow: the sender waits until the prefixes to keep are on the disk.
    Finish(Sender<()>),
}

struct Shared {
    intake: Arc<Intake>,
    born: Instant,
    /// When the loop turned last, in milliseconds since `born`.
    turned_ms: AtomicU64,
    is_working: AtomicBool,
    /// A [`Presence`].
    presence: AtomicU8,
    /// The bits of an `f64`.
    kv_usage: AtomicU64,
    failing: Arc<Failing>,
}

/// Work and no step for so long: the device hangs. A step is a second at most, but for prompts on a slow processor.
pub(super) const STALLED: Duration = Duration::from_secs(120);

impl EngineThread {
    /// Starts the thread.
    ///
    /// - `unloading`: when the model is let go of, and how it comes back; `None` keeps it
    ///
    /// # Errors
    /// Where the system has no thread to give.
    pub fn start(
        loaded: Loaded,
        unloading: Option<Unloading>,
        facts: ModelFacts,
        limits: IntakeLimits,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            intake: Intake::new(limits, metrics),
            born: Instant::now(),
            turned_ms: AtomicU64::new(0),
            is_working: AtomicBool::new(false),
            presence: AtomicU8::new(Presence::Loaded as u8),
            kv_usage: AtomicU64::new(0),
            failing: Arc::default(),
        });
        let (commands, received) = channel();
        let commands = Arc::new(commands);
        // The thread ends with the last of those who can ask: it is none of them.
        let (of_thread, told) = (shared.clone(), Arc::downgrade(&commands));
        thread::Builder::new().name("engine".into()).spawn(move || {
            let mut open = OpenGeneration {
                model: Model::There(Box::new(loaded)),
                rest: Rest::new(unloading, told),
                mailboxes: HashMap::new(),
                shared: of_thread.clone(),
                counted: EngineFigures::default(),
            };
            let ran = catch_unwind(AssertUnwindSafe(|| open.run(&received)));
            let ran = ran.unwrap_or_else(|panic| Err(EngineFailure::new(words_of(&*panic), None)));
            if let Err(failure) = ran {
                let why = failure.why.clone();
                of_thread.fail(failure);
                open.end(&Ending::Failed(Failed::Engine(why.clone())));
                // Requests that came meanwhile.
                for command in received.iter() {
                    match command {
                        Command::Submit(_, mailbox) => mailbox.end(Ending::Failed(Failed::Engine(why.clone()))),
                        Command::Finish(done) => drop(done),
                        Command::Cancel(_) | Command::EndAll | Command::Loaded(_) => {}
                    }
                }
            }
        })?;
        Ok(Self { commands, shared, facts })
    }

    /// Whether it has failed.
    pub fn failing(&self) -> Arc<Failing> {
        self.shared.failing.clone()
    }
}

impl Backend for EngineThread {
    fn submit(&self, mut request: Request) -> Result<Generation, Refused> {
        let mailbox = self.shared.intake.take(&mut request)?;
        let command = Command::Submit(Box::new(request), mailbox.clone());
        if self.commands.send(command).is_err() {
            let why =
                self.shared.failing.failure().map_or_else(|| "its thread has ended".into(), |failure| failure.why);
            mailbox.end(Ending::Failed(Failed::Engine(why)));
        }
        let (commands, cancelled) = (self.commands.clone(), mailbox.clone());
        Ok(Generation::new(mailbox, move || {
            // Without a thread there is nothing to cancel.
            let _ = commands.send(Command::Cancel(cancelled));
        }))
    }

    fn model(&self) -> &ModelFacts {
        &self.facts
    }

    fn figures(&self) -> Figures {
        let kv_usage = f64::from_bits(self.shared.kv_usage.load(Ordering::Relaxed));
        Figures { kv_usage, ..self.shared.intake.figures() }
    }

    fn health(&self) -> Health {
        if let Some(failure) = self.shared.failing.failure() {
            return Health::Failed(failure.why);
        }
        let turned = Duration::from_millis(self.shared.turned_ms.load(Ordering::Relaxed));
        let since = self.shared.born.elapsed().saturating_sub(turned);
        match (self.shared.intake.closed(), self.shared.presence()) {
            (Some(_), _) => Health::ShuttingDown,
            (None, Presence::Unloaded) => Health::Unloaded,
            (None, Presence::Loading) => Health::Loading,
            (None, Presence::Loaded) if self.shared.is_working.load(Ordering::Relaxed) && since > STALLED => {
                Health::Stalled(since)
            }
            (None, Presence::Loaded) => Health::Ok,
        }
    }

    fn drain(&self) {
        self.shared.intake.close(Failed::ShuttingDown);
    }

    fn end_all(&self) {
        self.drain();
        let _ = self.commands.send(Command::EndAll);
    }

    fn finish(&self) {
        let (done, is_done) = channel();
        if self.commands.send(Command::Finish(done)).is_ok() {
            let _ = is_done.recv(); // a thread that has failed drops it
        }
    }
}

impl Shared {
    fn fail(&self, failure: EngineFailure) {
        self.intake.close(Failed::Engine(failure.why.clone()));
        self.failing.fail(failure);
    }

    fn presence(&self) -> Presence {
        Presence::of(self.presence.load(Ordering::Relaxed))
    }

    fn turn(&self, is_working: bool) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.turned_ms.store(ms, Ordering::Relaxed);
        self.is_working.store(is_working, Ordering::Relaxed);
    }
}

/// A running generation, and the receiver of its tokens.
struct OpenGeneration {
    model: Model,
    rest: Rest,
    mailboxes: HashMap<RequestId, Arc<Mailbox>>,
    shared: Arc<Shared>,
    /// The figures whose counters were told.
    counted: EngineFigures,
}

fn failed(error: &EngineError) -> EngineFailure {
    EngineFailure::new(chain(error), error.hint())
}

impl OpenGeneration {
    /// Runs until all senders of commands are gone.
    fn run(&mut self, commands: &Receiver<Command>) -> Result<(), EngineFailure> {
        loop {
            if !self.has_work() {
                self.shared.turn(false);
                let Some(command) = self.next_while_idle(commands)? else { return Ok(()) };
                self.obey(command)?;
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command)?;
            }
            self.step()?;
        }
    }

    fn has_work(&self) -> bool {
        self.model.engine().is_some_and(|engine| !engine.is_idle())
    }

    /// Runs a step, if there is something to do. One for which the device had no memory ends all requests that are
    /// there, those that wait too, and nothing else: another program may need that memory for a while.
    fn step(&mut self) -> Result<(), EngineFailure> {
        let Some(engine) = self.model.engine_mut().filter(|engine| !engine.is_idle()) else { return Ok(()) };
        self.shared.turn(true);
        let began = Instant::now();
        match engine.step() {
            Ok(events) => self.hand_out(events, began),
            Err(error) if error.is_out_of_memory() => {
                if engine.recover().is_err() {
                    return Err(failed(&error)); // of several devices, which can do no more
                }
                let why = chain(&error);
                tracing::warn!("{} requests end, because the device has no memory: {why}", self.mailboxes.len());
                self.note_figures();
                self.end(&Ending::Failed(Failed::NoMemory(why)));
            }
            Err(error) => return Err(failed(&error)),
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), EngineFailure> {
        match command {
            Command::Submit(request, mailbox) => self.submit(request, mailbox),
            Command::Cancel(cancelled) => self.cancel(&cancelled),
            Command::EndAll => {
                if let Some(engine) = self.model.engine_mut() {
                    engine.abort();
                    self.note_figures();
                }
                self.end(&Ending::Failed(Failed::ShuttingDown));
            }
            Command::Loaded(loaded) => self.loaded(*loaded),
            Command::Finish(done) => {
                self.save_all()?;
                drop(done);
            }
        }
        Ok(())
    }

    fn submit(&mut self, request: Box<Request>, mailbox: Arc<Mailbox>) {
        self.rest.disturbed();
        match &mut self.model {
            Model::There(loaded) => match loaded.submit(*request) {
                Ok(id) => {
                    self.mailboxes.insert(id, mailbox);
                }
                Err(error) => mailbox.end(Ending::Failed(Failed::Engine(chain(&error)))),
            },
            Model::Coming(waiting) => waiting.push((request, mailbox)),
            Model::Away => self.load_for(request, mailbox),
        }
    }

    fn cancel(&mut self, cancelled: &Arc<Mailbox>) {
        match &mut self.model {
            Model::There(loaded) => {
                // The next step tells that it is over, if it is not over already.
                let is_this = |(_, mailbox): &(&RequestId, &Arc<Mailbox>)| Arc::ptr_eq(mailbox, cancelled);
                if let Some((&id, _)) = self.mailboxes.iter().find(is_this) {
                    loaded.engine.cancel(id);
                }
            }
            Model::Coming(waiting) => {
                waiting.retain(|(_, mailbox)| !Arc::ptr_eq(mailbox, cancelled));
                cancelled.cancelled();
            }
            Model::Away => cancelled.cancelled(),
        }
    }

    /// Hands out the events of a step. The requests that it admitted were admitted when it `began`.
    fn hand_out(&mut self, events: Vec<Event>, began: Instant) {
        self.note_figures();
        let now = Instant::now();
        let mut n_tokens = 0;
        for event in events {
            match event {
                Event::Admitted { request, cached_tokens } => {
                    self.mailbox(request, |mailbox| mailbox.admitted(began, cached_tokens));
                }
                Event::PromptToken { request, logprobs, .. } => {
                    let Some(logprobs) = logprobs else { continue };
                    self.mailbox(request, |mailbox| mailbox.prompt_token(*logprobs));
                }
                Event::Token { request, token, logprobs } => {
                    n_tokens += 1;
                    self.mailbox(request, |mailbox| mailbox.token(now, token, logprobs));
                }
                Event::Finished { request, reason } => {
                    let Some(mailbox) = self.mailboxes.remove(&request) else { continue };
                    match reason {
                        FinishReason::Cancelled => mailbox.cancelled(),
                        reason => mailbox.end(Ending::Finished(reason)),
                    }
                }
            }
        }
        self.shared.intake.metrics.step(n_tokens);
    }

    /// Records the engine's figures, before a client learns that its request is over: a client that sees no request
    /// must see no block held by one.
    fn note_figures(&mut self) {
        let Some(figures) = self.model.engine().map(Engine::figures) else { return };
        self.shared.intake.metrics.engine_did(&mut self.counted, figures);
        let kv_usage = figures.blocks_held as f64 / figures.blocks.max(1) as f64;
        self.shared.kv_usage.store(kv_usage.to_bits(), Ordering::Relaxed);
    }

    fn mailbox(&self, request: RequestId, tell: impl FnOnce(&Mailbox)) {
        if let Some(mailbox) = self.mailboxes.get(&request) {
            tell(mailbox);
        }
    }

    fn end(&mut self, ending: &Ending) {
        self.mailboxes.drain().for_each(|(_, mailbox)| mailbox.end(ending.clone()));
        if let Model::Coming(waiting) = &mut self.model {
            waiting.drain(..).for_each(|(_, mailbox)| mailbox.end(ending.clone()));
        }
    }
}
