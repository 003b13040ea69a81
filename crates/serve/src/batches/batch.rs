//! The state of a batch, and the states that may follow.
//!
//! `validating` → `in_progress` → `finalizing` → `completed`; `failed` if its file is wrong; `expired` after
//! `finalizing` if its time is over; `cancelling` → `cancelled`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::list_json;
use super::room::{ENTRY_BYTES, NoRoom, Taken};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// Its file is being read.
    #[default]
    Validating,
    Failed,
    InProgress,
    /// All is answered that will be, and its files are being written.
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it stays so.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    /// Whether it can still be cancelled, or already is.
    pub(super) fn may_be_cancelled(self) -> bool {
        matches!(self, Self::Validating | Self::InProgress | Self::Cancelling)
    }
}

/// Why the requests of a batch are not asked any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BatchEnd {
    Answered,
    Expired,
    Cancelled,
    /// The program ended again and again before there was another answer.
    GivenUp,
}

impl BatchEnd {
    /// What it is called once its files are there.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Answered | Self::GivenUp => Status::Completed,
            Self::Expired => Status::Expired,
            Self::Cancelled => Status::Cancelled,
        }
    }

    /// The code and the words for a request that has no answer.
    pub(super) fn of_unanswered(self) -> (&'static str, &'static str) {
        match self {
            Self::Answered => ("server_error", "this request has no answer"),
            Self::Expired => ("batch_expired", "this request could not be answered before the completion window ended"),
            Self::Cancelled => ("batch_cancelled", "the batch was cancelled before this request was answered"),
            Self::GivenUp => ("server_error", "the server ended several times while it ran this request"),
        }
    }
}

/// Something that is wrong with a file of requests, or in the way of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Problem {
    pub(super) code: String,
    pub(super) message: String,
    /// The path of the field.
    pub(super) param: Option<String>,
    /// The line of the file, from 1.
    pub(super) line: Option<usize>,
}

impl Problem {
    /// A disk is in the way.
    pub(super) fn of_storage(message: String) -> Self {
        Self { code: "storage_error".to_owned(), message, param: None, line: None }
    }
}

impl Problem {
    fn json(&self) -> Value {
        json!({"code": self.code, "message": self.message, "param": self.param, "line": self.line})
    }
}

/// A batch as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BatchRecord {
    pub(super) id: String,
    /// The number of the key that made it.
    pub(super) caller: u64,
    /// Grows from one to the next.
    pub(super) order: u64,
    pub(super) endpoint: String,
    pub(super) input_file_id: String,
    pub(super) completion_window: String,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) status: Status,
    /// Once it is being finalized.
    pub(super) end: Option<BatchEnd>,
    /// Of its first request.
    pub(super) model: Option<String>,
    pub(super) problems: Vec<Problem>,
    /// Chosen before there is anything in them, so that writing them again writes the same.
    pub(super) output_file_id: Option<String>,
    /// Seconds that its files stay, if they do not until they are deleted.
    pub(super) output_expires_after: Option<u64>,
    pub(super) error_file_id: Option<String>,
    pub(super) total: usize,
    pub(super) completed: usize,
    pub(super) failed: usize,
    /// How often the program was started since there was an answer.
    pub(super) n_starts: u32,
    pub(super) created_at: u64,
    pub(super) expires_at: u64,
    pub(super) in_progress_at: Option<u64>,
    pub(super) finalizing_at: Option<u64>,
    pub(super) completed_at: Option<u64>,
    pub(super) failed_at: Option<u64>,
    pub(super) expired_at: Option<u64>,
    pub(super) cancelling_at: Option<u64>,
    pub(super) cancelled_at: Option<u64>,
}

impl BatchRecord {
    pub(super) fn finish(&mut self, status: Status, now: u64) {
        self.status = status;
        *match status {
            Status::Failed => &mut self.failed_at,
            Status::Expired => &mut self.expired_at,
            Status::Cancelled => &mut self.cancelled_at,
            _ => &mut self.completed_at,
        } = Some(now);
    }
}

#[derive(Debug)]
pub(crate) struct Batch {
    id: String,
    record: Mutex<BatchRecord>,
    /// Held while a change is kept, which may take a while; [`Self::record`] does not wait for that.
    turn: Mutex<()>,
    /// What its description and its answers take of the folder's room.
    taken: Mutex<Taken>,
    /// What keeps it from going on, as long as it does.
    trouble: Mutex<Option<Problem>>,
    woken: Notify,
}

impl Batch {
    /// - `taken`: what its description takes
    pub(super) fn new(record: BatchRecord, taken: Taken) -> Self {
        let (id, record, taken) = (record.id.clone(), Mutex::new(record), Mutex::new(taken));
        Self { id, record, turn: Mutex::default(), taken, trouble: Mutex::default(), woken: Notify::new() }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// What is known of it now.
    pub(super) fn record(&self) -> BatchRecord {
        self.lock().clone()
    }

    /// For what is not worth a file: counts.
    pub(super) fn lock(&self) -> MutexGuard<'_, BatchRecord> {
        lock(&self.record)
    }

    /// Changes its state, except the counts. Readers see the old state until `keep` has stored the new one; if that
    /// fails, nothing changes. Changes are made one after the other.
    pub(super) fn change<T, E>(
        &self,
        change: impl FnOnce(&mut BatchRecord) -> T,
        keep: impl FnOnce(&BatchRecord) -> Result<(), E>,
    ) -> Result<T, E> {
        let _turn = lock(&self.turn);
        let before = self.record();
        let mut changed = before.clone();
        let told = change(&mut changed);
        if changed != before {
            keep(&changed)?;
            let mut record = self.lock();
            (changed.completed, changed.failed) = (record.completed, record.failed); // somebody counted meanwhile
            *record = changed;
        }
        Ok(told)
    }

    /// Keeps it for the first time, before all changes.
    pub(super) fn keep<E>(&self, keep: impl FnOnce(&BatchRecord) -> Result<(), E>) -> Result<(), E> {
        let _turn = lock(&self.turn);
        keep(&self.record())
    }

    /// Takes room for answers.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take_room(&self, bytes: u64) -> Result<(), NoRoom> {
        lock(&self.taken).more(bytes)
    }

    /// There are answers of this many bytes.
    pub(super) fn found(&self, bytes: u64) {
        lock(&self.taken).found(bytes);
    }

    /// Its answers are files of their own.
    pub(super) fn has_files(&self) {
        lock(&self.taken).shrink(ENTRY_BYTES);
    }

    /// Tells clients what is in the way, or that nothing is any more.
    pub(super) fn tell(&self, trouble: Option<Problem>) {
        let mut told = lock(&self.trouble);
        if let Some(Problem { message, .. }) = trouble.as_ref().filter(|trouble| told.as_ref() != Some(*trouble)) {
            tracing::warn!(id = self.id, "a batch waits: {message}");
        }
        *told = trouble;
    }

    /// Wakes its worker to look at the status.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Until [`Self::wake`] was called since this returned last.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// The object for clients.
    pub(super) fn json(&self) -> Value {
        let of = self.record();
        let mut problems = of.problems.clone();
        problems.extend(lock(&self.trouble).clone());
        let errors = match problems.as_slice() {
            [] => Value::Null,
            problems => list_json(problems.iter().map(Problem::json).collect()),
        };
        let file = |id: &Option<String>| id.clone().filter(|_| of.status.is_final());
        json!({
            "id": of.id,
            "object": "batch",
            "endpoint": of.endpoint,
            "model": of.model,
            "errors": errors,
            "input_file_id": of.input_file_id,
            "completion_window": of.completion_window,
            "status": of.status,
            "output_file_id": file(&of.output_file_id),
            "error_file_id": file(&of.error_file_id),
            "created_at": of.created_at,
            "in_progress_at": of.in_progress_at,
            "expires_at": of.expires_at,
            "finalizing_at": of.finalizing_at,
            "completed_at": of.completed_at,
            "failed_at": of.failed_at,
            "expired_at": of.expired_at,
            "cancelling_at": of.cancelling_at,
            "cancelled_at": of.cancelled_at,
            "request_counts": {"total": of.total, "completed": of.completed, "failed": of.failed},
            "metadata": of.metadata,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::room::Room;

    fn batch(record: BatchRecord) -> Batch {
        Batch::new(record, Room::new(u64::MAX).part())
    }

    #[test]
    fn nobody_waits_for_a_change_that_is_being_kept() {
        let batch = batch(BatchRecord::default());
        let status = || batch.record.try_lock().expect("it is free").status;
        let failed: Result<(), &str> =
            batch.change(|record| record.status = Status::Failed, |kept| Err(kept.status.name()));
        assert_eq!((failed, status()), (Err("failed"), Status::Validating));
        let keep = |kept: &BatchRecord| {
            assert_eq!((kept.status, status()), (Status::InProgress, Status::Validating));
            assert!(batch.turn.try_lock().is_err(), "another change waits");
            batch.lock().completed += 1;
            Ok::<_, ()>(())
        };
        assert_eq!(batch.change(|record| record.status = Status::InProgress, keep), Ok(()));
        assert_eq!((status(), batch.record().completed), (Status::InProgress, 1), "what was counted meanwhile stays");
        let unchanged = batch.change(|record| record.total, |_| Err("nothing is to be kept"));
        assert_eq!(unchanged, Ok(0));
    }

    #[test]
    fn a_status_is_called_the_same_in_files_and_answers() {
        use Status::{Cancelled, Cancelling, Completed, Expired, Failed, Finalizing, InProgress, Validating};
        let all = [Validating, Failed, InProgress, Finalizing, Completed, Expired, Cancelling, Cancelled];
        let is_final = all.map(Status::is_final);
        assert_eq!(is_final, [false, true, false, false, true, true, false, true]);
        for status in all {
            assert_eq!(serde_json::to_value(status).expect("text"), status.name());
            assert!(!(status.is_final() && status.may_be_cancelled()), "{status:?}");
        }
    }

    #[test]
    fn files_are_told_when_they_are_there_and_trouble_as_long_as_it_is() {
        let record = BatchRecord {
            status: Status::Finalizing,
            output_file_id: Some("file-1".into()),
            total: 3,
            completed: 2,
            ..BatchRecord::default()
        };
        let batch = batch(record);
        assert_eq!((&batch.json()["output_file_id"], &batch.json()["errors"]), (&Value::Null, &Value::Null));
        let trouble = Problem { code: "storage_error".into(), message: "full".into(), param: None, line: None };
        batch.tell(Some(trouble));
        assert_eq!(batch.json()["errors"]["data"][0]["message"], "full");
        batch.tell(None);
        batch.lock().finish(BatchEnd::Expired.status(), 7);
        let json = batch.json();
        assert_eq!(
            (&json["status"], &json["expired_at"], &json["output_file_id"]),
            (&json!("expired"), &json!(7), &json!("file-1"))
        );
        assert_eq!(json["request_counts"], json!({"total": 3, "completed": 2, "failed": 0}));
    }
}
