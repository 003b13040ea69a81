//! The folder: `files/ID.json` and `files/ID.data` for each file, `batches/ID.json` for each batch, and
//! `batches/ID.records` for the answers of an unfinished one. One server at a time uses it.
//!
//! Everything small is also in memory, read when the folder is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::batch::{Batch, BatchRecord, Problem};
use super::orphans;
use super::room::{ENTRY_BYTES, NoRoom, Room, Taken};
use crate::error::ApiError;
use crate::ids::Ids;
use crate::keys::Caller;
use hint::Hint;
use system::lock_file::LockFile;
use system::new_file::NewFile;

/// Largest file, and most requests of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Longest file of requests, in bytes.
    pub max_file_bytes: u64,
    /// Most requests of a batch.
    pub max_requests: usize,
    /// Of all files and answers together.
    pub max_bytes: u64,
}

/// Why a folder is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("could not keep files of batches in `{}`", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("could not keep files of batches in `{}`: another server uses it", path.display())]
    Busy { path: PathBuf },
}

impl Hint for StoreError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Io { .. } => "name a writable folder with `--batch-dir`",
            Self::Busy { .. } => "give each server its own `--batch-dir`, or stop the other one",
        };
        Some(hint.to_owned())
    }
}

/// Why something could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("could not write `{}`: {source}", path.display())]
pub(super) struct NotKept {
    path: PathBuf,
    source: io::Error,
}

impl NotKept {
    pub(super) fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }

    /// For a client: the folder is none of its business.
    pub(super) fn words(&self) -> String {
        let full = if self.source.kind() == io::ErrorKind::StorageFull { "the disk is full" } else { "" };
        let why = if full.is_empty() { self.source.to_string() } else { full.to_owned() };
        format!("the server could not keep it: {why}")
    }

    pub(super) fn problem(&self) -> Problem {
        Problem { code: "storage_error".to_owned(), message: self.words(), param: None, line: None }
    }
}

impl From<NotKept> for ApiError {
    fn from(error: NotKept) -> Self {
        tracing::warn!("{error}");
        Self::storage(error.words())
    }
}

/// A file as its description has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredFile {
    pub(super) id: String,
    /// The number of the key that it is of.
    pub(super) caller: u64,
    /// Grows from one to the next.
    pub(super) order: u64,
    pub(super) bytes: u64,
    pub(super) created_at: u64,
    #[serde(default)]
    pub(super) expires_at: Option<u64>,
    pub(super) filename: String,
    pub(super) purpose: String,
}

impl StoredFile {
    /// Whether it is to be there no more.
    fn is_over(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= crate::now())
    }

    /// The object for clients.
    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": null,
        })
    }
}

/// A file and its part of the room.
#[derive(Debug)]
struct HeldFile {
    file: Arc<StoredFile>,
    _taken: Taken,
}

/// The folder of files and batches, held by one server at a time.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    pub(super) limits: BatchLimits,
    ids: Ids,
    /// Of what was made last.
    order: AtomicU64,
    room: Arc<Room>,
    files: Mutex<BTreeMap<String, HeldFile>>,
    batches: Mutex<BTreeMap<String, Arc<Batch>>>,
    _lock: LockFile,
}

impl Store {
    /// Reads what is there, and removes what nothing refers to and what is over.
    pub(super) fn open(folder: &Path, limits: BatchLimits) -> Result<Self, StoreError> {
        let (files, batches) = (folder.join("files"), folder.join("batches"));
        for path in [&files, &batches] {
            fs::create_dir_all(path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
        }
        let path = folder.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = LockFile::from(lock.map_err(|source| StoreError::Io { path, source })?);
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(StoreError::Busy { path: folder.to_owned() });
        }
        for path in [&files, &batches] {
            // Nothing comes of it but whether it can be made.
            NewFile::create(&path.join("probe")).map_err(|source| StoreError::Io { path: path.clone(), source })?;
        }
        let (path_of_files, path_of_batches) = (files, batches);
        let files: Vec<StoredFile> = read_all(&path_of_files)?;
        let batches: Vec<BatchRecord> = read_all(&path_of_batches)?;
        let over = batches.iter().filter(|of| of.status.is_final()).map(|of| of.id.as_str()).collect();
        for (path, prefix, ending, over) in
            [(path_of_files, "file-", "data", BTreeSet::new()), (path_of_batches, "batch_", "records", over)]
        {
            orphans::remove(&path, prefix, ending, &over).map_err(|source| StoreError::Io { path, source })?;
        }
        let room = Room::new(limits.max_bytes);
        let taken = |bytes| {
            let mut taken = room.part();
            taken.found(bytes);
            taken
        };
        let order = files.iter().map(|of| of.order).chain(batches.iter().map(|of| of.order)).max();
        let store = Self {
            folder: folder.to_owned(),
            limits,
            ids: Ids::default(),
            order: AtomicU64::new(order.unwrap_or(0)),
            files: Mutex::new(files.into_iter().map(|of| held(of, taken)).collect()),
            batches: Mutex::new(
                batches.into_iter().map(|of| (of.id.clone(), Arc::new(Batch::new(of, taken(ENTRY_BYTES))))).collect(),
            ),
            room,
            _lock: lock,
        };
        store.remove_expired();
        Ok(store)
    }

    /// A part of the room for something new.
    ///
    /// # Errors
    /// There is none for its description.
    pub(super) fn room(&self) -> Result<Taken, NoRoom> {
        let mut taken = self.room.part();
        taken.more(ENTRY_BYTES)?;
        Ok(taken)
    }

    /// Removes the files whose time is over, if no batch needs them.
    pub(super) fn remove_expired(&self) {
        let over: Vec<Arc<StoredFile>> =
            lock(&self.files).values().map(|held| &held.file).filter(|file| file.is_over()).cloned().collect();
        for file in over.iter().filter(|file| self.user_of(&file.id).is_none()) {
            match self.delete_file(&file.id) {
                Ok(()) => tracing::info!(id = file.id, "a file is over, and removed"),
                Err(error) => tracing::warn!("could not remove an expired file: {error}"),
            }
        }
    }

    pub(super) fn new_id(&self, prefix: &str) -> String {
        self.ids.next(prefix)
    }

    /// Larger than all before: the time, in nanoseconds, where clocks go on.
    pub(super) fn next_order(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(0);
        let next = |last: u64| Some(now.max(last + 1));
        self.order.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(now, |last| now.max(last + 1))
    }

    fn path(&self, folder: &str, id: &str, ending: &str) -> PathBuf {
        self.folder.join(folder).join(format!("{id}.{ending}"))
    }

    /// Where the bytes of a file are.
    pub(super) fn data_path(&self, id: &str) -> PathBuf {
        self.path("files", id, "data")
    }

    /// Where the answers of a batch are.
    pub(super) fn records_path(&self, id: &str) -> PathBuf {
        self.path("batches", id, "records")
    }

    /// All files of a caller, those that came first at the beginning.
    pub(super) fn files(&self, caller: Caller) -> Vec<Arc<StoredFile>> {
        let mut files: Vec<_> = lock(&self.files).values().map(|held| held.file.clone()).collect();
        files.retain(|file| file.caller == caller.0 && !file.is_over());
        files.sort_by_key(|file| file.order);
        files
    }

    /// # Errors
    /// 404: the caller has no such file.
    pub(super) fn file(&self, caller: Caller, id: &str) -> Result<Arc<StoredFile>, ApiError> {
        let file = lock(&self.files).get(id).map(|held| held.file.clone());
        file.filter(|file| file.caller == caller.0 && !file.is_over())
            .ok_or_else(|| ApiError::not_found(format!("there is no file `{id}`")))
    }

    /// Adds a file whose bytes are written; it is there when its description is.
    pub(super) fn add_file(&self, file: StoredFile, taken: Taken) -> Result<Arc<StoredFile>, NotKept> {
        write_json(&self.path("files", &file.id, "json"), &file)?;
        let file = Arc::new(file);
        lock(&self.files).insert(file.id.clone(), HeldFile { file: file.clone(), _taken: taken });
        Ok(file)
    }

    /// Adds a file of answers, for which room was taken as they came.
    pub(super) fn add_answers(&self, file: StoredFile) -> Result<Arc<StoredFile>, NotKept> {
        let mut taken = self.room.part();
        taken.found(file.bytes + ENTRY_BYTES);
        self.add_file(file, taken)
    }

    /// Removes a file, its description first.
    pub(super) fn delete_file(&self, id: &str) -> Result<(), NotKept> {
        for path in [self.path("files", id, "json"), self.data_path(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(NotKept::new(&path, error)),
                _ => {}
            }
        }
        lock(&self.files).remove(id);
        Ok(())
    }

    /// The batch that still needs a file.
    pub(super) fn user_of(&self, file_id: &str) -> Option<Arc<Batch>> {
        let needs = |batch: &&Arc<Batch>| {
            let record = batch.lock();
            record.input_file_id == file_id && !record.status.is_final()
        };
        lock(&self.batches).values().find(needs).cloned()
    }

    pub(super) fn batches(&self) -> Vec<Arc<Batch>> {
        lock(&self.batches).values().cloned().collect()
    }

    /// # Errors
    /// 404: the caller has no such batch.
    pub(super) fn batch(&self, caller: Caller, id: &str) -> Result<Arc<Batch>, ApiError> {
        let batch = lock(&self.batches).get(id).cloned().filter(|batch| batch.lock().caller == caller.0);
        batch.ok_or_else(|| ApiError::not_found(format!("there is no batch `{id}`")))
    }

    pub(super) fn add_batch(&self, batch: &Arc<Batch>) -> Result<(), NotKept> {
        // There before it is kept, so that nobody deletes its file meanwhile.
        lock(&self.batches).insert(batch.id().to_owned(), batch.clone());
        let path = self.path("batches", batch.id(), "json");
        let kept = batch.keep(|record| write_json(&path, record));
        if kept.is_err() {
            lock(&self.batches).remove(batch.id());
        }
        kept
    }

    /// Changes what is known of a batch, on the disk first.
    pub(super) fn change<T>(&self, batch: &Batch, change: impl FnOnce(&mut BatchRecord) -> T) -> Result<T, NotKept> {
        let path = self.path("batches", batch.id(), "json");
        batch.change(change, |record| write_json(&path, record))
    }
}

fn held(file: StoredFile, taken: impl Fn(u64) -> Taken) -> (String, HeldFile) {
    let taken = taken(file.bytes + ENTRY_BYTES);
    (file.id.clone(), HeldFile { file: Arc::new(file), _taken: taken })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), NotKept> {
    let write = || {
        let mut file = NewFile::create(path)?;
        serde_json::to_writer(&*file.file(), value)?;
        file.file().write_all(b"\n")?;
        file.publish()
    };
    write().map_err(|source| NotKept::new(path, source))
}

/// What the `.json` files of a folder hold. One that holds something else is none of ours, and stays.
fn read_all<T: DeserializeOwned>(folder: &Path) -> Result<Vec<T>, StoreError> {
    let io = |source| StoreError::Io { path: folder.to_owned(), source };
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_none_or(|ending| ending != "json") || !path.is_file() {
            continue; // a pipe would wait for a writer
        }
        let read = File::open(&path).and_then(|file| Ok(serde_json::from_reader(io::BufReader::new(file))?));
        match read {
            Ok(value) => all.push(value),
            Err(error) => tracing::warn!("could not read `{}`, which is left out: {error}", path.display()),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::batch::Status;

    const LIMITS: BatchLimits = BatchLimits { max_file_bytes: 100, max_requests: 3, max_bytes: 1 << 20 };

    fn file(store: &Store, caller: u64) -> (StoredFile, Taken) {
        let (id, order) = (store.new_id("file-"), store.next_order());
        fs::write(store.data_path(&id), "x").expect("written");
        let (filename, purpose) = ("a.jsonl".to_owned(), "batch".to_owned());
        let file = StoredFile { id, caller, order, bytes: 1, created_at: 5, expires_at: None, filename, purpose };
        (file, store.room().expect("there is room"))
    }

    fn add(store: &Store, caller: u64) -> Arc<StoredFile> {
        let (file, taken) = file(store, caller);
        store.add_file(file, taken).expect("kept")
    }

    fn batch(store: &Store, input: &str) -> Arc<Batch> {
        let (id, order) = (store.new_id("batch_"), store.next_order());
        let input_file_id = input.to_owned();
        let record = BatchRecord { id, order, input_file_id, ..BatchRecord::default() };
        Arc::new(Batch::new(record, store.room().expect("there is room")))
    }

    #[test]
    fn what_is_in_the_folder_is_there_again_for_whom_it_is_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), LIMITS).expect("opened");
        assert!(matches!(Store::open(folder.path(), LIMITS), Err(StoreError::Busy { .. })));
        let (one, other, last) = (add(&store, 1), add(&store, 2), add(&store, 1));
        let batch = batch(&store, &one.id);
        store.add_batch(&batch).expect("kept");
        store.change(&batch, |record| record.status = Status::InProgress).expect("kept");
        store.delete_file(&last.id).expect("removed");
        fs::write(folder.path().join("files/foreign.json"), "[3]").expect("written");
        drop(store);
        let store = Store::open(folder.path(), LIMITS).expect("opened again");
        assert_eq!(store.files(Caller(1)), std::slice::from_ref(&one));
        assert_eq!(store.files(Caller(2)), [other]);
        assert!(store.file(Caller(2), &one.id).is_err() && store.file(Caller(1), &one.id).is_ok());
        assert_eq!(store.user_of(&one.id).expect("it is needed").record(), batch.record());
        assert!(store.batch(Caller(1), batch.id()).is_err() && store.batch(Caller(0), batch.id()).is_ok());
        assert!(store.next_order() > batch.record().order);
        assert!(folder.path().join("files/foreign.json").exists());
    }

    #[test]
    fn what_nothing_refers_to_is_removed_at_the_start_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), LIMITS).expect("opened");
        let one = add(&store, 1);
        let (running, over) = (batch(&store, &one.id), batch(&store, &one.id));
        for batch in [&running, &over] {
            store.add_batch(batch).expect("kept");
            fs::write(store.records_path(batch.id()), "x").expect("written");
        }
        store.change(&over, |record| record.finish(Status::Completed, 7)).expect("kept");
        let (stays, goes) = (store.data_path(&store.new_id("file-")), store.data_path(&store.new_id("file-")));
        fs::write(stays.with_extension("json"), "what a disk damaged").expect("written");
        let lost = store.records_path(&store.new_id("batch_"));
        let foreign = folder.path().join("files/notes.data");
        let pipe = std::process::Command::new("mkfifo").arg(folder.path().join("files/pipe.json")).status();
        assert!(pipe.expect("there is `mkfifo`").success());
        [&stays, &goes, &lost, &foreign].iter().for_each(|path| fs::write(path, "x").expect("written"));
        let (data, records) = (store.data_path(&one.id), [&running, &over].map(|batch| store.records_path(batch.id())));
        drop(store);
        drop(Store::open(folder.path(), LIMITS).expect("opened again"));
        assert!([&stays, &foreign, &data, &records[0]].iter().all(|path| path.exists()));
        assert!(![&goes, &lost, &records[1]].iter().any(|path| path.exists()));
    }

    #[test]
    fn a_file_goes_when_its_time_is_over_and_no_batch_needs_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), LIMITS).expect("opened");
        let [needed, unneeded, later] = [0, 0, u64::MAX].map(|at| {
            let (mut file, taken) = file(&store, 1);
            file.expires_at = Some(at);
            store.add_file(file, taken).expect("kept")
        });
        let batch = batch(&store, &needed.id);
        store.add_batch(&batch).expect("kept");
        assert_eq!(store.files(Caller(1)), std::slice::from_ref(&later), "nobody sees one that is over");
        store.remove_expired();
        let are_there = || [&needed, &unneeded, &later].map(|file| store.data_path(&file.id).exists());
        assert_eq!(are_there(), [true, false, true]);
        store.change(&batch, |record| record.finish(Status::Completed, 7)).expect("kept");
        store.remove_expired();
        assert_eq!(are_there(), [false, false, true]);
    }

    #[test]
    fn room_is_that_of_all_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let limits = BatchLimits { max_bytes: 3 * ENTRY_BYTES + 1, ..LIMITS };
        let store = Store::open(folder.path(), limits).expect("opened");
        let one = add(&store, 1);
        store.add_batch(&batch(&store, &one.id)).expect("kept");
        assert!(store.room().is_ok() && store.room().is_ok(), "what is not kept takes nothing");
        drop(store);
        let store = Store::open(folder.path(), limits).expect("opened again");
        let (last, full) = (store.room(), store.room());
        assert!(last.is_ok() && full.expect_err("nothing is left").to_string().contains("12.3 kB"));
        store.delete_file(&one.id).expect("removed");
        assert!(store.room().is_ok());
    }

    #[test]
    fn a_change_that_cannot_be_kept_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), LIMITS).expect("opened");
        let batch = batch(&store, "file-1");
        store.add_batch(&batch).expect("kept");
        fs::remove_dir_all(folder.path().join("batches")).expect("removed");
        let error = store.change(&batch, |record| record.status = Status::InProgress).expect_err("no folder");
        assert!(error.words().starts_with("the server could not keep it: "), "{}", error.words());
        assert_eq!(batch.record().status, Status::Validating);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "x").expect("written");
        let error = Store::open(&path.join("below"), LIMITS).expect_err("a file is no folder");
        assert!(error.hint().expect("a hint").contains("--batch-dir"));
    }
}
