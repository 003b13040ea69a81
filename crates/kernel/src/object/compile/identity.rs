//! The identity of a compiler. Version numbers do not determine it (`hiprtcVersion()` is 9.0 in every release), so the
//! identity is a digest of what the compiler reports and of the object that it makes from a fixed kernel.
//!
//! Compiling that canary takes 0.05 to 0.3 s, more than a whole warm start should. So identities are remembered on
//! disk, with stamps of the compiler's files. The record only saves time and never vouches for an object: every
//! compile states its facts again, and they are compared.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use super::job::{CompileJob, CompileOutput, How, Toolchain};
use super::stamp::Stamp;
use super::{CompileError, CompilerOptions, named, process};
use crate::object::key::Digest;
use system::new_file::NewFile;
use system::trust;

/// A record takes a few kilobytes.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// The identity of a compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// What goes into a kernel's key: 64 hex digits.
    pub id: String,
    /// What the compiler states of itself: versions, build ids, paths. The first is for people.
    pub facts: Vec<String>,
    /// SHA-256 of the canary's object.
    pub(crate) canary: String,
}

/// An identity and the files it holds for.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The compiler's name, and the target that it was asked for.
    way: Option<(String, String)>,
    identity: Identity,
    files: Vec<Stamp>,
}

/// The identity of the compiler, from the record or from the canary; and stamps of the files for which it holds, none
/// if they are too young to be told from others.
pub(super) fn find(
    options: &CompilerOptions,
    toolchain: &Toolchain,
    target: &str,
) -> Result<(Identity, Vec<Stamp>), CompileError> {
    let path = record_path(options, toolchain, target);
    if let Some(record) = path.as_deref().and_then(recall) {
        return Ok((record.identity, record.files));
    }
    let start = SystemTime::now();
    let made = compile_canary(options, toolchain, target)?;
    let identity = Identity::new(&toolchain.name, &made);
    let files = stamps(&made.files, start);
    if let Some(path) = path.filter(|_| !files.is_empty()) {
        let way = Some((toolchain.name.clone(), target.to_owned()));
        remember(&path, &Record { way, identity: identity.clone(), files: files.clone() });
    }
    Ok((identity, files))
}

/// The identity of the compiler, if a record has it and holds: nothing is compiled for it.
pub(super) fn recalled(options: &CompilerOptions, toolchain: &Toolchain, target: &str) -> Option<Identity> {
    record_path(options, toolchain, target).as_deref().and_then(recall).map(|record| record.identity)
}

/// Who compiled for a target when there was such a compiler last: what it made is in the cache by that identity.
pub(super) fn last_known(options: &CompilerOptions, compiler: &str, target: &str) -> Option<Identity> {
    let entries = fs::read_dir(options.identities.as_ref()?).ok()?.flatten().map(|entry| entry.path());
    let record = |path: PathBuf| {
        let written = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
        let record: Record = toml::from_str(str::from_utf8(&trust::read(&path, MAX_RECORD_BYTES).ok()?).ok()?).ok()?;
        let is_its = record.way.is_some_and(|(name, of)| name == compiler && of == target);
        is_its.then_some((written, record.identity))
    };
    entries.filter_map(record).max_by_key(|(written, _)| *written).map(|(_, identity)| identity)
}

/// The identity, and the files of the compiler, from the canary alone: for who wants to know whether it works now.
pub(super) fn probe(
    options: &CompilerOptions,
    toolchain: &Toolchain,
    target: &str,
) -> Result<(Identity, Vec<PathBuf>), CompileError> {
    let made = compile_canary(options, toolchain, target)?;
    Ok((Identity::new(&toolchain.name, &made), made.files))
}

/// Forgets what was recorded: the compiler is another one now.
pub(super) fn forget(options: &CompilerOptions, toolchain: &Toolchain, target: &str) {
    if let Some(path) = record_path(options, toolchain, target) {
        let _ = fs::remove_file(path);
    }
}

impl Identity {
    /// The compiler in a line, for people.
    pub fn description(&self) -> String {
        self.facts.first().cloned().unwrap_or_default()
    }

    fn new(compiler: &str, made: &CompileOutput) -> Self {
        let canary = Digest::of(&made.object).to_string();
        // Debug output of strings is quoted and escaped, so no two lists read the same.
        let id = Digest::of(format!("{:?}", (compiler, &made.facts, &canary)).as_bytes()).to_string();
        Self { id, facts: made.facts.clone(), canary }
    }
}

fn compile_canary(
    options: &CompilerOptions,
    toolchain: &Toolchain,
    target: &str,
) -> Result<CompileOutput, CompileError> {
    let compiler = named(&toolchain.name).expect("one of COMPILERS");
    let canary = compiler.canary();
    let job = CompileJob {
        toolchain: toolchain.clone(),
        source: canary.source.into(),
        entry: canary.entry.into(),
        target: target.into(),
        options: canary.options.iter().map(ToString::to_string).collect(),
        memory_bytes: options.memory_bytes,
        stated: None,
        reads: None,
    };
    process::compile(options, "a small kernel", &job)?.map_err(|failure| CompileError::Canary {
        compiler: compiler.title(),
        hint: match failure.how {
            How::OutOfMemory | How::NoRoom { .. } => failure.how.cure(compiler.variable()),
            How::TimedOut { .. } | How::Chatter { .. } => {
                Some(format!("`{}` names another compiler", compiler.variable()))
            }
            _ => None,
        }
        .unwrap_or_else(|| compiler.hint(&failure.how, target, &failure.log)),
        target: target.into(),
        how: failure.how,
        log: failure.log,
    })
}

/// A file per way of reaching a compiler: its place, and what the search for its parts depends on.
fn record_path(options: &CompilerOptions, toolchain: &Toolchain, target: &str) -> Option<PathBuf> {
    let way = format!("{:?}", (toolchain, target, env::var_os("PATH"), &options.worker));
    Some(options.identities.as_ref()?.join(format!("{}.toml", Digest::of(way.as_bytes()))))
}

fn recall(path: &Path) -> Option<Record> {
    let bytes = match trust::read(path, MAX_RECORD_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!("not using `{}` of the kernel cache: {error}", path.display());
            return None;
        }
    };
    let record: Record = toml::from_str(str::from_utf8(&bytes).ok()?).ok()?;
    // No files, no way of noticing a change; and what does not say whose it is was written by an older program.
    (record.way.is_some() && !record.files.is_empty() && record.files.iter().all(Stamp::holds)).then_some(record)
}

/// Stamps of the compiler's files. None at all if one changed since the canary began: it may not be the one that
/// compiled it.
fn stamps(files: &[PathBuf], start: SystemTime) -> Vec<Stamp> {
    let stamps = files.iter().map(|file| Stamp::of_file(file)).collect::<io::Result<Vec<_>>>();
    stamps.ok().filter(|stamps| stamps.iter().all(|stamp| stamp.is_older_than(start))).unwrap_or_default()
}

/// Failing to remember costs the next start a canary, so it is not an error.
fn remember(path: &Path, record: &Record) {
    if let Err(error) = write(path, record) {
        tracing::debug!("could not remember the compiler's identity in `{}`: {error}", path.display());
    }
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    trust::own_folder(folder)?;
    let mut file = NewFile::create_private(path)?;
    file.file().write_all(toml::to_string(record).map_err(io::Error::other)?.as_bytes())?;
    file.publish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_while_its_files_do_and_until_it_is_forgotten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let compiler = folder.path().join("compiler");
        fs::write(&compiler, "one").expect("written");
        let options = CompilerOptions { identities: Some(folder.path().join("who")), ..CompilerOptions::default() };
        fs::create_dir(folder.path().join("who")).expect("made");
        let toolchain = Toolchain::new("hiprtc", None);
        let identity = Identity { id: "1".into(), facts: vec!["a compiler".into()], canary: "2".into() };
        let path = record_path(&options, &toolchain, "gfx942").expect("there is a folder");
        let recalled_of = |way: Option<(String, String)>, files: Vec<Stamp>| {
            remember(&path, &Record { way, identity: identity.clone(), files });
            recalled(&options, &toolchain, "gfx942")
        };
        let way = || Some(("hiprtc".to_owned(), "gfx942".to_owned()));
        let stamp = Stamp::of_file(&compiler).expect("there");
        assert_eq!(recalled_of(way(), vec![stamp.clone()]).as_ref(), Some(&identity));
        assert_eq!(last_known(&options, "hiprtc", "gfx942").as_ref(), Some(&identity));
        assert_eq!(recalled_of(None, vec![stamp.clone()]), None, "an older program wrote it");
        assert_eq!(recalled_of(way(), Vec::new()), None, "no change would be noticed");
        assert!(recalled_of(way(), vec![stamp.clone()]).is_some());
        forget(&options, &toolchain, "gfx942");
        assert!(!path.exists() && recalled(&options, &toolchain, "gfx942").is_none());
        fs::write(&compiler, "another").expect("written");
        assert_eq!(recalled_of(way(), vec![stamp]), None, "it is another compiler now");
    }
}
