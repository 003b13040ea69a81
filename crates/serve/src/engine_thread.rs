//! The thread that owns the engine: takes commands, steps, and hands tokens to mailboxes.
//!
//! It waits for nobody but the device. While there is nothing to do it blocks on the commands.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::backend::{Backend, Figures, Health, ModelFacts, Refused};
use super::failing::{EngineFailure, Failing};
use super::intake::{Intake, IntakeLimits};
use super::mailbox::{Ending, Failed, Generation, Mailbox};
use super::metrics::Metrics;
use super::request_log::words_of;
use engine::scheduler::{Event, Figures as EngineFigures, FinishReason, Request, RequestId};
use engine::{Engine, EngineError};
use hint::{Hint, chain};

/// A loaded model, on a thread of its own.
pub struct EngineThread {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    facts: ModelFacts,
}

enum Command {
    Submit(Box<Request>, Arc<Mailbox>),
    Cancel(Arc<Mailbox>),
    EndAll,
}

struct Shared {
    intake: Arc<Intake>,
    born: Instant,
    /// When the loop turned last, in milliseconds since `born`.
    turned_ms: AtomicU64,
    is_working: AtomicBool,
    /// The bits of an `f64`.
    kv_usage: AtomicU64,
    failing: Arc<Failing>,
}

/// Work and no step for so long: the device hangs. A step is a second at most, but for prompts on a slow processor.
pub(super) const STALLED: Duration = Duration::from_secs(120);

impl EngineThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system has no thread to give.
    pub fn start(engine: Engine, facts: ModelFacts, limits: IntakeLimits, metrics: Metrics) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            intake: Intake::new(limits, metrics),
            born: Instant::now(),
            turned_ms: AtomicU64::new(0),
            is_working: AtomicBool::new(false),
            kv_usage: AtomicU64::new(0),
            failing: Arc::default(),
        });
        let (commands, received) = channel();
        let of_thread = shared.clone();
        thread::Builder::new().name("engine".into()).spawn(move || {
            let mut open = OpenGeneration {
                engine,
                mailboxes: HashMap::new(),
                shared: of_thread.clone(),
                counted: EngineFigures::default(),
            };
            let ran = catch_unwind(AssertUnwindSafe(|| open.run(&received)));
            let ran = ran.unwrap_or_else(|panic| Err(EngineFailure { why: words_of(&*panic), hint: None }));
            if let Err(failure) = ran {
                let why = failure.why.clone();
                of_thread.fail(failure);
                open.end(&Ending::Failed(Failed::Engine(why.clone())));
                // Requests that came meanwhile.
                for command in received.iter() {
                    if let Command::Submit(_, mailbox) = command {
                        mailbox.end(Ending::Failed(Failed::Engine(why.clone())));
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
        match self.shared.intake.closed() {
            Some(_) => Health::ShuttingDown,
            None if self.shared.is_working.load(Ordering::Relaxed) && since > STALLED => Health::Stalled(since),
            None => Health::Ok,
        }
    }

    fn drain(&self) {
        self.shared.intake.close(Failed::ShuttingDown);
    }

    fn end_all(&self) {
        self.drain();
        let _ = self.commands.send(Command::EndAll);
    }
}

impl Shared {
    fn fail(&self, failure: EngineFailure) {
        self.intake.close(Failed::Engine(failure.why.clone()));
        self.failing.fail(failure);
    }

    fn turn(&self, is_working: bool) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.turned_ms.store(ms, Ordering::Relaxed);
        self.is_working.store(is_working, Ordering::Relaxed);
    }
}

/// The engine and whom its tokens are for.
struct OpenGeneration {
    engine: Engine,
    mailboxes: HashMap<RequestId, Arc<Mailbox>>,
    shared: Arc<Shared>,
    /// The figures whose counters were told.
    counted: EngineFigures,
}

impl OpenGeneration {
    /// Until nobody is there to send commands.
    fn run(&mut self, commands: &Receiver<Command>) -> Result<(), EngineFailure> {
        loop {
            if self.engine.is_idle() {
                self.shared.turn(false);
                let Ok(command) = commands.recv() else { return Ok(()) };
                self.obey(command);
            }
            while let Ok(command) = commands.try_recv() {
                self.obey(command);
            }
            self.shared.turn(true);
            let began = Instant::now();
            let failed = |error: EngineError| EngineFailure { why: chain(&error), hint: error.hint() };
            let events = self.engine.step().map_err(failed)?;
            self.hand_out(events, began);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request, mailbox) => match self.engine.submit(*request) {
                Ok(id) => {
                    self.mailboxes.insert(id, mailbox);
                }
                Err(error) => mailbox.end(Ending::Failed(Failed::Engine(chain(&error)))),
            },
            Command::Cancel(cancelled) => {
                // The next step tells that it is over, if it is not over already.
                let is_this = |(_, mailbox): &(&RequestId, &Arc<Mailbox>)| Arc::ptr_eq(mailbox, &cancelled);
                if let Some((&id, _)) = self.mailboxes.iter().find(is_this) {
                    self.engine.cancel(id);
                }
            }
            Command::EndAll => {
                self.engine.abort();
                self.note_figures();
                self.end(&Ending::Failed(Failed::ShuttingDown));
            }
        }
    }

    /// Tells what a step came to. Whom it admitted it admitted when it `began`.
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

    /// Takes note of what the engine has: before anyone is told that his request is over, so that whoever sees none
    /// sees no block held by one.
    fn note_figures(&mut self) {
        let figures = self.engine.figures();
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
    }
}
