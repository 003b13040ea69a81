//! What the engine's thread does when idle: writes the cached prefixes to the disk, and lets go of the model, which
//! the next request brings back.
//!
//! Another thread loads the model, so that this one can still take and end requests.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Command, OpenGeneration, failed};
use crate::failing::EngineFailure;
use crate::mailbox::{Ending, Failed, Mailbox};
use crate::request_log::words_of;
use engine::prefix_store::PrefixStore;
use engine::scheduler::{Figures, Request, RequestId};
use engine::{Engine, EngineError};

/// A model that is loaded.
pub struct Loaded {
    pub engine: Engine,
    /// Where prefixes are kept over a restart, if they are.
    pub prefixes: Option<PrefixStore>,
}

/// When a model is let go of, and how it comes back.
#[derive(Clone)]
pub struct Unloading {
    /// The idle time before this happens.
    pub after: Duration,
    /// Loads the same model in the same sizes.
    pub load: Arc<dyn Fn() -> Result<Loaded, EngineFailure> + Send + Sync>,
}

/// The model, as far as it is there.
pub(super) enum Model {
    There(Box<Loaded>),
    Away,
    /// It is being loaded, for these.
    Coming(Vec<(Box<Request>, Arc<Mailbox>)>),
}

/// The same for those who ask how it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Loaded = 0,
    Unloaded,
    Loading,
}

/// The tasks of an idle engine.
pub(super) struct Rest {
    unloading: Option<Unloading>,
    /// To this thread, while anybody else has it.
    commands: Weak<Sender<Command>>,
    /// The beginning of the idle time, once noticed.
    since: Option<Instant>,
}

/// The idle time before prefixes are written: turns of a chat follow each other.
const SAVE_AFTER: Duration = Duration::from_secs(1);

impl Loaded {
    pub(super) fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.changed();
        }
        self.engine.submit(request)
    }

    fn is_saved(&self) -> bool {
        self.prefixes.as_ref().is_none_or(PrefixStore::is_saved)
    }
}

impl Model {
    pub(super) fn engine(&self) -> Option<&Engine> {
        if let Self::There(loaded) = self { Some(&loaded.engine) } else { None }
    }

    pub(super) fn engine_mut(&mut self) -> Option<&mut Engine> {
        if let Self::There(loaded) = self { Some(&mut loaded.engine) } else { None }
    }
}

impl Presence {
    pub(super) fn of(number: u8) -> Self {
        [Self::Loaded, Self::Unloaded, Self::Loading][number as usize]
    }
}

impl Rest {
    pub(super) fn new(unloading: Option<Unloading>, commands: Weak<Sender<Command>>) -> Self {
        Self { unloading, commands, since: None }
    }

    pub(super) fn disturbed(&mut self) {
        self.since = None;
    }
}

impl OpenGeneration {
    /// The next command; idle tasks run meanwhile. `None` if all senders are gone.
    pub(super) fn next_while_idle(&mut self, commands: &Receiver<Command>) -> Result<Option<Command>, EngineFailure> {
        let since = *self.rest.since.get_or_insert_with(Instant::now);
        loop {
            let (save, unload) = match &self.model {
                Model::There(loaded) => (
                    (!loaded.is_saved()).then_some(since + SAVE_AFTER),
                    self.rest.unloading.as_ref().and_then(|unloading| since.checked_add(unloading.after)),
                ),
                Model::Away | Model::Coming(_) => (None, None),
            };
            let Some(due) = save.into_iter().chain(unload).min() else { return Ok(commands.recv().ok()) };
            match commands.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(command) => return Ok(Some(command)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if save == Some(due) => self.save_one()?,
                Err(RecvTimeoutError::Timeout) => self.unload()?,
            }
        }
    }

    /// Writes one more part of a prefix: a new request waits no longer than that.
    fn save_one(&mut self) -> Result<(), EngineFailure> {
        let Model::There(loaded) = &mut self.model else { return Ok(()) };
        let Loaded { engine, prefixes: Some(prefixes) } = &mut **loaded else { return Ok(()) };
        prefixes.save_next(engine).map_err(|error| failed(&error))
    }

    /// Writes all that is kept over a restart.
    pub(super) fn save_all(&mut self) -> Result<(), EngineFailure> {
        let Model::There(loaded) = &mut self.model else { return Ok(()) };
        let Loaded { engine, prefixes: Some(prefixes) } = &mut **loaded else { return Ok(()) };
        prefixes.finish(engine).map_err(|error| failed(&error))
    }

    /// Gives back all memory that the model takes.
    fn unload(&mut self) -> Result<(), EngineFailure> {
        self.save_all()?;
        self.model = Model::Away;
        self.counted = Figures::default(); // the next engine counts from nothing
        self.shared.kv_usage.store(0, Ordering::Relaxed);
        self.set_presence(Presence::Unloaded);
        tracing::info!("the idle model is unloaded; the next request loads it again");
        Ok(())
    }

    /// Has the model loaded for a request.
    pub(super) fn load_for(&mut self, request: Box<Request>, mailbox: Arc<Mailbox>) {
        let Some(Unloading { load, .. }) = self.rest.unloading.clone() else { return };
        let commands = self.rest.commands.clone();
        let load = move || {
            let loaded = catch_unwind(AssertUnwindSafe(|| load()));
            let loaded = loaded.unwrap_or_else(|panic| Err(EngineFailure::new(words_of(&*panic), None)));
            if let Some(commands) = commands.upgrade() {
                let _ = commands.send(Command::Loaded(Box::new(loaded))); // the program may be ending
            }
        };
        match thread::Builder::new().name("load".into()).spawn(load) {
            Ok(_) => {
                self.model = Model::Coming(vec![(request, mailbox)]);
                self.set_presence(Presence::Loading);
            }
            Err(error) => mailbox.end(Ending::Failed(Failed::Load(error.to_string()))),
        }
    }

    /// The model is loaded, or failed to load: then waiting requests get the reason, and the next request tries again.
    pub(super) fn loaded(&mut self, loaded: Result<Loaded, EngineFailure>) {
        let (model, presence) = match loaded {
            Ok(loaded) => (Model::There(Box::new(loaded)), Presence::Loaded),
            Err(failure) => {
                tracing::warn!("the model could not be loaded again: {}", failure.why);
                self.end(&Ending::Failed(Failed::Load(failure.why)));
                (Model::Away, Presence::Unloaded)
            }
        };
        self.set_presence(presence);
        self.rest.disturbed(); // even if nobody waits for it any more
        if let Model::Coming(waiting) = mem::replace(&mut self.model, model) {
            waiting.into_iter().for_each(|(request, mailbox)| self.submit(request, mailbox));
        }
    }

    fn set_presence(&self, presence: Presence) {
        self.shared.presence.store(presence as u8, Ordering::Relaxed);
    }
}
