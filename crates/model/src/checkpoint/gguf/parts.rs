//! Models in several GGUF files. Each file's name and keys give its number and the number of files. All other keys
//! come from the first file; tensors may be in any.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::value::Value;
use super::{Gguf, GgufError, Header, is_ollama};
use crate::checkpoint::{CheckpointError, download};

/// How many files there are.
const COUNT: &str = "split.count";

/// Which of them a file is, from 0.
const NO: &str = "split.no";

/// Tensors of all of them.
const N_TENSORS: &str = "split.tensors.count";

/// All that there is of a model.
pub(in crate::checkpoint) struct Whole {
    /// The keys of the first file, the tensors of all.
    pub(super) file: Gguf,
    /// The files, in order.
    pub(super) paths: Vec<PathBuf>,
    /// Bytes of all of them.
    pub(super) total_bytes: u64,
}

/// Reads a file, of which the bytes are given, and those that it is a part with.
///
/// # Errors
/// [`CheckpointError::Gguf`] and [`CheckpointError::Download`], of a part inside [`CheckpointError::Part`].
pub(in crate::checkpoint) fn read(path: &Path, bytes: &Bytes) -> Result<Whole, CheckpointError> {
    let header = Header::read(bytes)?;
    let n_parts = match number(&header, COUNT)? {
        None | Some(0 | 1) => {
            let is_ollama = is_ollama(&header.metadata);
            let file = header.with_tensors(is_ollama)?;
            return Ok(Whole { file, paths: vec![path.to_owned()], total_bytes: bytes.len() as u64 });
        }
        Some(n_parts) => n_parts,
    };
    let names = names(path, n_parts)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    download::check_shards(folder, "parts of the model", names.iter())?;
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let mut whole = Whole { file: Gguf::default(), paths: Vec::new(), total_bytes: 0 };
    for (no, path) in (0..).zip(paths) {
        let added = download::map(&path).and_then(|bytes| {
            whole.total_bytes += bytes.len() as u64;
            Ok(whole.file.add(no, n_parts, &bytes)?)
        });
        added.map_err(|source| CheckpointError::Part { path: path.clone(), source: Box::new(source) })?;
        whole.paths.push(path);
    }
    let n_tensors = whole.file.tensors.names().count();
    match whole.file.metadata.get(N_TENSORS) {
        Some(found) if found.unsigned() != Some(n_tensors as u64) => {
            Err(differs(N_TENSORS, format!("{n_tensors}, as many as the parts have"), found).into())
        }
        _ => Ok(whole),
    }
}

/// The names of all parts, in order, by that of one of them.
fn names(path: &Path, n_parts: u64) -> Result<Vec<String>, GgufError> {
    let found = path.file_name().unwrap_or_default().to_string_lossy();
    let end = format!("-of-{n_parts:05}.gguf");
    let begin = found.strip_suffix(&end).and_then(|begin| begin.rsplit_once('-'));
    let names = begin.filter(|_| n_parts <= u64::from(u16::MAX)).map(|(name, _)| {
        let names = (1..=n_parts).map(|no| format!("{name}-{no:05}{end}"));
        names.collect::<Vec<_>>()
    });
    let names = names.filter(|names| names.iter().any(|name| *name == found));
    names.ok_or_else(|| GgufError::PartName { n_parts, found: found.into_owned() })
}

impl Gguf {
    /// Adds a part to those before it.
    fn add(&mut self, no: u64, n_parts: u64, bytes: &Bytes) -> Result<(), GgufError> {
        let header = Header::read(bytes)?;
        for (key, expected) in [(NO, no), (COUNT, n_parts)] {
            match number(&header, key)? {
                None => return Err(GgufError::MissingKey { key: key.into() }),
                Some(found) if found == expected => {}
                Some(found) => {
                    let expected = format!("{expected}, as the file's name says");
                    return Err(differs(key, expected, &Value::Unsigned(found)));
                }
            }
        }
        if no == 0 {
            let is_ollama = is_ollama(&header.metadata);
            *self = header.with_tensors(is_ollama)?;
            return Ok(());
        }
        let part = header.with_tensors(is_ollama(&self.metadata))?;
        for (key, found) in part.metadata.iter().filter(|(key, _)| *key != NO) {
            if let Some(first) = self.metadata.get(key).filter(|first| *first != found) {
                return Err(differs(key, format!("{first}, as in the first part"), found));
            }
        }
        let duplicate = |name| GgufError::Duplicate { part: "a tensor".into(), name };
        self.tensors.join(part.tensors).map_err(duplicate)
    }
}

/// The value of a key that is a number of things, if it is there.
fn number(header: &Header, key: &str) -> Result<Option<u64>, GgufError> {
    let value = |found: &Value| found.unsigned().ok_or_else(|| differs(key, "a whole number".into(), found));
    header.metadata.get(key).map(value).transpose()
}

fn differs(key: &str, expected: String, found: &Value) -> GgufError {
    GgufError::Key { key: key.to_owned(), expected, found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_the_one_that_is_there() {
        let names = |name: &str| names(&Path::new("/folder").join(name), 3).ok();
        let all = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"].map(str::to_owned);
        assert_eq!(names("m-00002-of-00003.gguf"), Some(all.to_vec()));
        for other in ["m-00004-of-00003.gguf", "m-2-of-00003.gguf", "m-00002-of-00004.gguf", "m.gguf"] {
            assert_eq!(names(other), None, "{other}");
        }
    }
}
