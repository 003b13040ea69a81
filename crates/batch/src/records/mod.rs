//! A file of finished answers, one self-contained line each, written as soon as they are finished.
//!
//! One system call writes a line. So a killed program leaves whole lines, and at most a torn last one, which is dropped
//! when the file is opened again. Only a power failure can lose lines that were not synced to the disk yet; damaged
//! lines are not read as answers.

mod error;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(super) use error::RESTART_HINT;
pub use error::RecordsError;

use system::lock_file::LockFile;
use system::os::FileExt;

/// The first line: what the answers were made with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Identifies the format.
    pub gptoss_jit_records: u32,
    /// When the first of its runs began, in seconds since 1970.
    pub started: u64,
    /// The date in prompts of conversations.
    pub current_date: String,
    /// The seed of the first prompt.
    pub seed: u64,
    /// All that answers depend on and that is the same for all prompts, by name.
    pub settings: Map<String, Value>,
}

/// The beginning of every header.
const BEGINNING: &[u8] = b"{\"gptoss_jit_records\":";

/// The version of this format.
pub const VERSION: u32 = 1;

/// A finished answer, as one line of the file of records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record<T = Outcome> {
    /// The prompt's index, from 0.
    pub(crate) index: u32,
    /// Of the prompt and its settings, 16 hexadecimal digits; 0 for a line that is wrong.
    pub(crate) digest: String,
    #[serde(flatten)]
    pub outcome: T,
}

/// The result for a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    Answered {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Of these, those whose keys and values were there already.
        cached_tokens: usize,
        /// `stop` or `length`.
        finish_reason: String,
        /// What was generated, a stop token included.
        ids: Vec<u32>,
    },
    Refused {
        /// What was wrong with it.
        message: String,
        /// The field, if it was one.
        param: Option<String>,
        /// OpenAI's error code.
        code: Option<String>,
    },
}

/// The place of a record in the file.
#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    len_bytes: u32,
    digest: u64,
}

/// The answers so far, of whatever type.
#[derive(Debug)]
pub struct Records<T = Outcome> {
    place: Kept,
    header: Header,
    spans: Vec<Option<Span>>,
    n_done: usize,
    len_bytes: u64,
    /// Since when there is something that the disk may not hold.
    unsynced: Option<Instant>,
    of: PhantomData<fn() -> T>,
}

#[derive(Debug)]
enum Kept {
    /// Made when there is a first answer.
    File { path: PathBuf, file: Option<LockFile> },
    /// Where there is no place for a file.
    Memory(Vec<u8>),
}

/// How long answers may lie in the system's memory alone. A program that is killed does not lose those; a machine
/// that loses its power does.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

impl<T: Serialize + DeserializeOwned> Records<T> {
    /// Records in memory, for `n` prompts.
    pub fn in_memory(header: Header, n: usize) -> Self {
        Self::empty(Kept::Memory(Vec::new()), header, n)
    }

    /// Those of a file, if it is there; else it is made when there is a first answer. The header of a file that is
    /// there is kept, if its settings are those of `header`.
    ///
    /// - `n`: number of prompts
    /// - `restart`: answers that are there are forgotten
    ///
    /// # Errors
    /// All of [`RecordsError`].
    pub fn open(path: &Path, header: Header, n: usize, restart: bool) -> Result<Self, RecordsError> {
        let path = path.to_owned();
        let io = |source| RecordsError::Io { path: path.clone(), source };
        let file = match OpenOptions::new().read(true).append(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::empty(Kept::File { path, file: None }, header, n));
            }
            Err(error) => return Err(io(error)),
        };
        if !file.metadata().map_err(io)?.is_file() {
            return Err(RecordsError::NoRecords { path });
        }
        let file = lock(file, &path)?;
        let mut reader = BufReader::new(&*file);
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).map_err(io)?;
        let is_whole = line.ends_with(b"\n");
        let found: Header = match serde_json::from_slice(&line) {
            Ok(found) if is_whole => found,
            // A first line that was torn has no answers after it.
            _ if !is_whole && (BEGINNING.starts_with(&line) || line.starts_with(BEGINNING)) => {
                file.set_len(0).map_err(io)?;
                return Ok(Self::empty(Kept::File { path, file: Some(file) }, header, n));
            }
            _ => return Err(RecordsError::NoRecords { path }),
        };
        if restart {
            file.set_len(0).map_err(io)?;
            return Ok(Self::empty(Kept::File { path, file: Some(file) }, header, n));
        }
        let mut records = Self::empty(Kept::Memory(Vec::new()), found, n);
        records.len_bytes = line.len() as u64;
        records.find(&mut reader, &path)?;
        let differences = differences(&records.header.settings, &header.settings);
        if !differences.is_empty() {
            return Err(RecordsError::OtherSettings { path, n_done: records.n_done, differences });
        }
        file.set_len(records.len_bytes).map_err(io)?; // a torn last line
        records.place = Kept::File { path, file: Some(file) };
        Ok(records)
    }

    fn empty(place: Kept, header: Header, n: usize) -> Self {
        let spans = vec![None; n];
        Self { place, header, spans, n_done: 0, len_bytes: 0, unsynced: None, of: PhantomData }
    }

    /// Finds the records after the header. A damaged line is no record: its prompt is run again.
    fn find(&mut self, reader: &mut impl BufRead, path: &Path) -> Result<(), RecordsError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            let n_read = read.map_err(|source| RecordsError::Io { path: path.to_owned(), source })?;
            if !line.ends_with(b"\n") {
                return Ok(());
            }
            if let Ok(record) = serde_json::from_slice::<Record<T>>(&line) {
                let n = self.spans.len();
                if record.index as usize >= n {
                    return Err(RecordsError::TooMany { path: path.to_owned(), index: record.index + 1, n });
                }
                self.note(&record, self.len_bytes, n_read as u32);
            }
            self.len_bytes += n_read as u64;
        }
    }

    fn note(&mut self, record: &Record<T>, offset: u64, len_bytes: u32) {
        let digest = u64::from_str_radix(&record.digest, 16).unwrap_or(0);
        let span = Span { offset, len_bytes, digest };
        if self.spans[record.index as usize].replace(span).is_none() {
            self.n_done += 1;
        }
    }

    /// What the answers were made with: of the first of the runs that they are of.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Prompts that have an answer here, those of earlier runs included.
    pub fn n_done(&self) -> usize {
        self.n_done
    }

    /// Number of prompts.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no prompts.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The file that keeps them, if one does and it is there.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Kept::File { path, file: Some(_) } => Some(path),
            _ => None,
        }
    }

    /// The digest of prompt `i`, if it has an answer.
    pub fn digest(&self, i: usize) -> Option<u64> {
        self.spans[i].map(|span| span.digest)
    }

    /// Keeps an answer.
    ///
    /// # Errors
    /// The system does not take it; those before it stay.
    pub fn append(&mut self, index: usize, digest: u64, outcome: T) -> Result<(), RecordsError> {
        let record = Record { index: index as u32, digest: format!("{digest:016x}"), outcome };
        if self.len_bytes == 0 {
            let line = line(&self.header);
            self.write(&line)?;
        }
        let line = line(&record);
        let offset = self.len_bytes;
        self.write(&line)?;
        self.note(&record, offset, line.len() as u32);
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> Result<(), RecordsError> {
        match &mut self.place {
            Kept::Memory(bytes) => bytes.extend_from_slice(line),
            Kept::File { path, file } => {
                let io = |source| RecordsError::Io { path: path.clone(), source };
                let file = match file {
                    Some(file) => file,
                    None => {
                        let options = OpenOptions::new().read(true).append(true).create_new(true).open(&*path);
                        let new = options.map_err(|error| match error.kind() {
                            io::ErrorKind::AlreadyExists => RecordsError::Busy { path: path.clone() },
                            _ => io(error),
                        })?;
                        file.insert(lock(new, path)?)
                    }
                };
                if let Err(error) = (&**file).write_all(line) {
                    let _ = file.set_len(self.len_bytes); // what came of it is no line
                    return Err(io(error));
                }
            }
        }
        self.len_bytes += line.len() as u64;
        if let Kept::File { .. } = self.place {
            self.unsynced.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// When the disk is to hold what there is, if it does not yet.
    pub fn sync_due(&self) -> Option<Duration> {
        self.unsynced.map(|since| SYNC_INTERVAL.saturating_sub(since.elapsed()))
    }

    /// Has the disk hold what there is, if that is due.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync_if_due(&mut self) -> Result<(), RecordsError> {
        if self.sync_due() == Some(Duration::ZERO) { self.sync() } else { Ok(()) }
    }

    /// Has the disk hold what there is.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&mut self) -> Result<(), RecordsError> {
        if let Kept::File { path, file: Some(file) } = &self.place {
            file.sync_data().map_err(|source| RecordsError::Io { path: path.clone(), source })?;
        }
        self.unsynced = None;
        Ok(())
    }

    /// The answer to prompt `i`, if it is there.
    ///
    /// # Errors
    /// It cannot be read again.
    pub fn read(&self, i: usize) -> Result<Option<Record<T>>, RecordsError> {
        let Some(Span { offset, len_bytes, .. }) = self.spans[i] else { return Ok(None) };
        let mut bytes = vec![0; len_bytes as usize];
        match &self.place {
            Kept::Memory(kept) => bytes.copy_from_slice(&kept[offset as usize..][..len_bytes as usize]),
            Kept::File { path, file } => {
                let io = |source| RecordsError::Io { path: path.clone(), source };
                let file = file.as_ref().expect("an answer is there");
                file.read_exact_at(&mut bytes, offset).map_err(io)?;
            }
        }
        let record = serde_json::from_slice(&bytes);
        let damaged = |error| match &self.place {
            Kept::File { path, .. } => RecordsError::Io { path: path.clone(), source: io::Error::other(error) },
            Kept::Memory(_) => unreachable!("nobody else writes there"),
        };
        record.map(Some).map_err(damaged)
    }

    /// Removes the file: the answers are in their place.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(self) -> Result<(), RecordsError> {
        match &self.place {
            Kept::File { path, file: Some(_) } => {
                std::fs::remove_file(path).map_err(|source| RecordsError::Io { path: path.clone(), source })
            }
            _ => Ok(()),
        }
    }
}

fn lock(file: File, path: &Path) -> Result<LockFile, RecordsError> {
    let file = LockFile::from(file);
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(RecordsError::Busy { path: path.to_owned() }),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file), // some file systems have no locks
    }
}

fn line(of: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(of).expect("numbers and texts");
    line.push(b'\n');
    line
}

fn differences(then: &Map<String, Value>, now: &Map<String, Value>) -> Vec<String> {
    let names = then.keys().chain(now.keys().filter(|name| !then.contains_key(*name)));
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    let difference = |name: &String| {
        let (then, now) = (then.get(name), now.get(name));
        (then != now).then(|| format!("`{name}` was {}, is {}", shown(then), shown(now)))
    };
    names.filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hint::Hint;

    type Records = super::Records<Outcome>;

    fn header(seed: u64) -> Header {
        let settings = serde_json::json!({ "weights": "a", "precision": "f32" }).as_object().expect("one").clone();
        Header { gptoss_jit_records: VERSION, started: 7, current_date: "2026-11-22".into(), seed, settings }
    }

    fn answer(ids: &[u32]) -> Outcome {
        Outcome::Answered { prompt_tokens: 3, cached_tokens: 1, finish_reason: "stop".into(), ids: ids.to_vec() }
    }

    fn refused() -> Outcome {
        Outcome::Refused { message: "no".into(), param: None, code: None }
    }

    fn ids(records: &Records) -> Vec<Option<Vec<u32>>> {
        let ids = |i| match records.read(i).expect("read")?.outcome {
            Outcome::Answered { ids, .. } => Some(ids),
            Outcome::Refused { .. } => Some(Vec::new()),
        };
        (0..records.len()).map(ids).collect()
    }

    #[test]
    fn a_prompt_that_is_answered_again_is_one_prompt_with_its_last_answer() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.records");
        let mut records = Records::open(&path, header(5), 3, false).expect("none yet");
        for ids in [[1], [2]] {
            records.append(1, 0, answer(&ids)).expect("kept");
        }
        assert_eq!((records.n_done(), ids(&records)), (1, vec![None, Some(vec![2]), None]));
        assert!(
            !records.is_empty()
                && Records::open(&folder.path().join("none"), header(5), 0, false).expect("none").is_empty()
        );
        drop(records);
        let mut records = Records::open(&path, header(5), 3, false).expect("there");
        assert_eq!((records.n_done(), ids(&records)), (1, vec![None, Some(vec![2]), None]));
        records.append(1, 0, answer(&[3])).expect("kept");
        records.append(0, 0, answer(&[4])).expect("kept");
        assert_eq!((records.n_done(), ids(&records)), (2, vec![Some(vec![4]), Some(vec![3]), None]));
    }

    #[test]
    fn cut_anywhere_a_file_keeps_the_answers_before_the_cut_and_takes_more() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.records");
        let mut records = Records::open(&path, header(5), 4, false).expect("none yet");
        assert!(!path.exists(), "nothing is there before there is an answer");
        for (i, ids) in [(2, &[1, 2][..]), (0, &[]), (3, &[7])] {
            records.append(i, 10 + i as u64, answer(ids)).expect("kept");
        }
        records.append(1, 0, refused()).expect("kept");
        assert_eq!(ids(&records), [Some(vec![]), Some(vec![]), Some(vec![1, 2]), Some(vec![7])]);
        drop(records);
        let whole = std::fs::read(&path).expect("there");
        let ends: Vec<usize> = (0..whole.len()).filter(|&i| whole[i] == b'\n').map(|i| i + 1).collect();
        assert_eq!(ends.len(), 5, "a header and four answers");
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("written");
            let n_lines = ends.iter().filter(|&&end| end <= cut).count();
            let mut records = Records::open(&path, header(9), 4, false).expect("what is torn is dropped");
            assert_eq!(records.n_done(), n_lines.saturating_sub(1), "cut at {cut}");
            assert_eq!(records.header().seed, if n_lines > 0 { 5 } else { 9 }, "cut at {cut}");
            let kept: Vec<usize> = [2, 0, 3, 1].into_iter().take(records.n_done()).collect();
            assert!((0..4).all(|i| records.digest(i).is_some() == kept.contains(&i)));
            // What comes after a cut is a whole line.
            records.append(0, 10, answer(&[4])).expect("kept");
            drop(records);
            let records = Records::open(&path, header(9), 4, false).expect("whole");
            assert_eq!(ids(&records)[0], Some(vec![4]), "cut at {cut}");
            assert_eq!(ids(&records)[2].is_some(), kept.contains(&2));
        }
    }

    #[test]
    fn a_damaged_line_is_no_answer_and_costs_no_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.records");
        let mut records = Records::open(&path, header(5), 3, false).expect("none yet");
        (0..3).for_each(|i| records.append(i, 1, answer(&[i as u32])).expect("kept"));
        drop(records);
        let mut bytes = std::fs::read(&path).expect("there");
        let second = bytes.windows(10).position(|part| part == b"\"index\":1,").expect("there");
        bytes[second..second + 8].fill(0); // as a page that never came to the disk
        std::fs::write(&path, bytes).expect("written");
        let records = Records::open(&path, header(5), 3, false).expect("read");
        assert_eq!(ids(&records), [Some(vec![0]), None, Some(vec![2])]);
    }

    #[test]
    fn records_of_another_run_are_refused_and_forgotten_on_demand() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.records");
        let mut records = Records::open(&path, header(5), 3, false).expect("none yet");
        records.append(2, 1, answer(&[1])).expect("kept");
        assert!(matches!(Records::open(&path, header(5), 3, false), Err(RecordsError::Busy { .. })));
        drop(records);
        let mut other = header(5);
        other.settings.insert("precision".into(), "bf16".into());
        let error = Records::open(&path, other.clone(), 3, false).expect_err("another precision");
        assert!(error.to_string().ends_with("its 1 answers have other settings: `precision` was \"f32\", is \"bf16\""));
        assert!(error.hint().expect("a hint").contains("--restart"));
        assert!(matches!(Records::open(&path, header(5), 2, false), Err(RecordsError::TooMany { index: 3, n: 2, .. })));
        assert_eq!(Records::open(&path, other, 3, true).expect("forgotten").n_done(), 0);
        for others in ["1 2 3\n", "1 2 3"] {
            std::fs::write(&path, others).expect("written");
            assert!(matches!(Records::open(&path, header(5), 3, true), Err(RecordsError::NoRecords { .. })));
            assert_eq!(std::fs::read_to_string(&path).expect("there"), others, "somebody else's file stays");
        }
    }

    #[test]
    fn the_disk_is_due_to_hold_what_was_added_since_it_did() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut records = Records::open(&folder.path().join("r"), header(1), 2, false).expect("opened");
        assert_eq!(records.sync_due(), None);
        records.append(0, 7, answer(&[1])).expect("kept");
        assert!(records.sync_due().is_some_and(|due| !due.is_zero() && due <= SYNC_INTERVAL));
        records.unsynced = Instant::now().checked_sub(SYNC_INTERVAL);
        assert_eq!(records.sync_due(), Some(Duration::ZERO));
        records.sync_if_due().expect("synced");
        assert_eq!(records.sync_due(), None);
    }
}
