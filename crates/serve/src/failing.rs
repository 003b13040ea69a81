//! The failure of a backend, which tasks wait for.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use hint::Hint;

/// Why the engine gives no more tokens.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the engine failed: {why}")]
pub struct EngineFailure {
    pub(super) why: String,
    pub(super) hint: Option<String>,
}

impl EngineFailure {
    /// - `why`: the error and its causes
    /// - `hint`: what a person can do
    pub fn new(why: String, hint: Option<String>) -> Self {
        Self { why, hint }
    }
}

impl Hint for EngineFailure {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

/// Whether a backend has failed.
#[derive(Debug, Default)]
pub struct Failing {
    failed: Mutex<Option<EngineFailure>>,
    told: Notify,
}

impl Failing {
    pub(super) fn fail(&self, failure: EngineFailure) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.told.notify_waiters();
    }

    /// Why it has, if it has.
    pub(super) fn failure(&self) -> Option<EngineFailure> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it fails, which it had better not: why it did.
    pub async fn wait(&self) -> EngineFailure {
        loop {
            let told = self.told.notified();
            if let Some(failure) = self.failure() {
                return failure;
            }
            told.await;
        }
    }
}
