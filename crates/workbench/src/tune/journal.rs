//! All judgements, one self-contained line each, written at once: whatever ends the program costs no more than the
//! current judgement, and the next program continues from the others.
//!
//! A line is written by one call of the system, so that two programs may write to one journal. A torn line, of a
//! program that was killed while it wrote, is passed over.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use kernel::object::key::Digest;

/// Part of every key: what another version measured in another way is not found.
const VERSION: &str = "1";

/// What was said, by keys.
#[derive(Debug, Default)]
pub struct Journal {
    known: HashMap<String, Value>,
    /// None: nothing outlives the process.
    file: Option<(PathBuf, File)>,
    n_found: usize,
}

/// A journal that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("could not use the journal `{}`", path.display())]
pub struct JournalError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

#[derive(Serialize, Deserialize)]
struct JournalLine {
    key: String,
    /// For people: what the key is made of, as far as it has names.
    about: Map<String, Value>,
    said: Value,
}

/// All that something depends on, and what it is called.
#[derive(Clone, Debug)]
pub struct Key {
    digest: String,
    about: Map<String, Value>,
}

impl Key {
    /// Of parts in an order; `about` is for people.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>, about: Map<String, Value>) -> Self {
        // Debug output of strings is quoted and escaped, so no two lists read the same.
        let parts: Vec<&str> = std::iter::once(VERSION).chain(parts).collect();
        Self { digest: Digest::of(format!("{parts:?}").as_bytes()).to_string(), about }
    }
}

impl Journal {
    /// One that forgets when the process ends.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Reads a journal, or begins one.
    ///
    /// # Errors
    /// If its file cannot be opened or read.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let wrong = |source| JournalError { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(wrong)?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(wrong)?;
        if !file.metadata().map_err(wrong)?.is_file() {
            return Err(wrong(io::Error::other("it is no file")));
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(wrong)?;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").map_err(wrong)?; // what was torn stays a line of its own
        }
        let lines =
            bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<JournalLine>(line).ok());
        let known = lines.map(|line| (line.key, line.said)).collect();
        Ok(Self { known, file: Some((path.to_owned(), file)), n_found: 0 })
    }

    /// What was said once, if it was.
    pub fn find<T: for<'de> Deserialize<'de>>(&mut self, key: &Key) -> Option<T> {
        let said = self.known.get(&key.digest)?;
        let found = T::deserialize(said).ok()?;
        self.n_found += 1;
        Some(found)
    }

    /// Whether something was said, without counting.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.known.contains_key(&key.digest)
    }

    /// How often something was found.
    pub fn n_found(&self) -> usize {
        self.n_found
    }

    /// Keeps what was said.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&mut self, key: &Key, said: &impl Serialize) -> Result<(), JournalError> {
        let path = || self.file.as_ref().map(|(path, _)| path.clone()).unwrap_or_default();
        let said = serde_json::to_value(said).map_err(|error| JournalError { path: path(), source: error.into() })?;
        let line = JournalLine { key: key.digest.clone(), about: key.about.clone(), said };
        if let Some((path, file)) = &mut self.file {
            let wrong = |source| JournalError { path: path.clone(), source };
            let mut text = serde_json::to_vec(&line).map_err(|error| wrong(error.into()))?;
            text.push(b'\n');
            file.write_all(&text).map_err(wrong)?;
        }
        self.known.insert(line.key, line.said);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key(part: &str) -> Key {
        Key::new(["a device", part], Map::new())
    }

    #[test]
    fn what_was_kept_is_found_by_the_next_one_though_the_last_line_is_torn() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/journal.jsonl");
        let mut first = Journal::open(&path).expect("made");
        first.keep(&key("one"), &1.5).expect("kept");
        first.keep(&key("two"), &2.5).expect("kept");
        drop(first);
        let text = fs::read_to_string(&path).expect("read");
        fs::write(&path, &text[..text.len() - 3]).expect("torn");

        let mut second = Journal::open(&path).expect("read");
        assert_eq!(second.find(&key("one")), Some(1.5));
        assert_eq!(second.find::<f64>(&key("two")), None);
        second.keep(&key("two"), &3.5).expect("kept");
        let mut third = Journal::open(&path).expect("read");
        assert_eq!((third.find(&key("one")), third.find(&key("two"))), (Some(1.5), Some(3.5)));
        assert_eq!(third.n_found(), 2);
        assert_eq!(third.find::<f64>(&Key::new(["another device", "one"], Map::new())), None);
    }
}
