//! A cache entry: its records, and how to read it without trusting it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::folder::Folder;
use crate::object::key::{Digest, KernelKey, SCHEMA, digest_of_fields};
use hint::chain;
use system::lock_file::LockFile;
use system::os::{FOLDER, MetadataExt, OpenOptionsExt, PASSING, open_in};
use system::trust::{Distrust, trust_file, trust_folder};

/// No file of an entry comes near this; a foreign one must not fill the memory.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Reading an entry sets its time of last use when that is older than this, to write little.
const USED_IS_STALE: Duration = Duration::from_secs(3600);
/// What the first line of `meta.toml` begins with; the digest is of all that follows that line.
const CHECKSUM: &str = "rest_sha256 = ";

/// A checked object. Cheap to clone; while a clone lives, no process removes the entry from the disk.
#[derive(Clone, Debug)]
pub struct CacheEntry {
    /// The digest of its key.
    pub digest: Digest,
    /// The compiled code: the bytes that were checked, to be loaded from memory.
    pub object: Arc<[u8]>,
    /// What its `meta.toml` holds.
    pub meta: Arc<Meta>,
    /// Its folder, unless it lives in memory alone.
    pub dir: Option<PathBuf>,
    /// The file `used`, under a shared lock.
    pub(super) used: Option<Arc<LockFile>>,
}

/// A compiled object to publish.
#[derive(Clone, Debug)]
pub struct NewObject {
    pub object: Vec<u8>,
    /// The compiler's output.
    pub log: String,
    /// What people call the kernel, `op/variant`.
    pub label: String,
    /// Dims, types and parameters that it was rendered for, for people; another problem may have the same text.
    pub about: String,
    /// How long compiling took.
    pub compile_ms: u64,
    /// The compiler, described for people.
    pub compiler: String,
}

impl CacheEntry {
    pub(super) fn in_memory(digest: Digest, object: &[u8], meta: Meta) -> Self {
        Self { digest, object: object.into(), meta: Arc::new(meta), dir: None, used: None }
    }

    /// Sets the time of last use, at most hourly. On a disk that is read-only it stays as it is.
    pub(super) fn touch(&self) {
        let Some(used) = &self.used else { return };
        let last = used.metadata().and_then(|metadata| metadata.modified()).unwrap_or(UNIX_EPOCH);
        if last.elapsed().is_ok_and(|age| age > USED_IS_STALE) {
            let _ = used.set_modified(SystemTime::now());
        }
    }
}

/// `meta.toml`: everything about an entry that is not in its other files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// The version of the key's encoding and of this file.
    pub(crate) schema: u32,
    /// What people call the kernel, `op/variant`.
    pub label: String,
    /// Dims, types and parameters that it was rendered for; empty if nobody said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// When it was made, in seconds since 1970.
    pub(crate) created_unix_s: u64,
    /// How long compiling took.
    pub compile_ms: u64,
    /// The compiler, described for people.
    pub compiler_description: String,
    /// The digest of the file `log`.
    pub(crate) log_sha256: Digest,
    /// The file `object`; none if the failure to compile is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRecord>,
    pub key: KeyRecord,
}

/// The file `object` of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRecord {
    pub len_bytes: u64,
    pub(crate) sha256: Digest,
}

/// A [`KernelKey`] without the source, which is in a file beside it. The backend is text, because another version of
/// the program may know others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// The digest of the file `source`.
    pub source_sha256: Digest,
    pub target: String,
    /// The name of the kernel in the object.
    pub entry: String,
    /// The name of the compiler backend.
    pub backend: String,
    /// Identity of the compiler.
    pub compiler: String,
    /// Compiler options, in order.
    pub options: Vec<String>,
}

impl KeyRecord {
    /// What an entry records of a key.
    pub(crate) fn from_key(key: &KernelKey) -> Self {
        Self {
            source_sha256: Digest::of(key.source.as_bytes()),
            target: key.target.clone(),
            entry: key.entry.clone(),
            backend: key.compiler_name.clone(),
            compiler: key.compiler.clone(),
            options: key.options.clone(),
        }
    }

    /// The digest of the key that this is the record of, given its source: as [`KernelKey::digest`].
    fn digest(&self, source: &[u8]) -> Digest {
        let fields = self.texts().into_iter().map(|(_, text)| text).chain(&self.options).map(String::as_bytes);
        digest_of_fields(std::iter::once(source).chain(fields))
    }

    /// The fields between the source and the options, in the order in which they are hashed.
    pub(super) fn texts(&self) -> [(&'static str, &String); 4] {
        [("target", &self.target), ("entry", &self.entry), ("backend", &self.backend), ("compiler", &self.compiler)]
    }
}

impl Meta {
    pub(super) fn of_object(key: &KernelKey, made: &NewObject) -> Self {
        let object = ObjectRecord { len_bytes: made.object.len() as u64, sha256: Digest::of(&made.object) };
        Self {
            about: made.about.clone(),
            compile_ms: made.compile_ms,
            compiler_description: made.compiler.clone(),
            object: Some(object),
            ..Self::of_failure(key, &made.label, &made.log)
        }
    }

    pub(super) fn of_failure(key: &KernelKey, label: &str, log: &str) -> Self {
        Self {
            schema: SCHEMA,
            label: label.into(),
            about: String::new(),
            created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            compile_ms: 0,
            compiler_description: String::new(),
            log_sha256: Digest::of(log.as_bytes()),
            object: None,
            key: KeyRecord::from_key(key),
        }
    }

    /// When it was made; the beginning of time if that is beyond the clock.
    pub fn created(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.created_unix_s)).unwrap_or(UNIX_EPOCH)
    }

    /// The text of `meta.toml`.
    pub(super) fn to_text(&self) -> Result<String, toml::ser::Error> {
        let rest = toml::to_string(self)?;
        Ok(format!("{CHECKSUM}\"{}\"\n{rest}", Digest::of(rest.as_bytes())))
    }

    fn from_text(text: &[u8]) -> Result<Self, Damage> {
        let text = std::str::from_utf8(text).map_err(|_| Damage::Checksum { file: "meta.toml" })?;
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        if first != format!("{CHECKSUM}\"{}\"", Digest::of(rest.as_bytes())) {
            return Err(Damage::Checksum { file: "meta.toml" });
        }
        toml::from_str(rest).map_err(Damage::Meta)
    }
}

/// Problems of an entry.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It, or a file of it, could have been written by another user, or is not a plain file.
    #[error("`{file}` cannot be trusted")]
    Distrusted {
        /// Which file; `.` is the entry, `..` the folder above it.
        file: &'static str,
        #[source]
        source: Distrust,
    },
    /// A file of it could not be read, or is not there.
    #[error("could not read `{file}`")]
    Unreadable {
        /// Which file; `.` is the entry, `..` the folder above it.
        file: &'static str,
        #[source]
        source: io::Error,
    },
    /// A file is larger than any file of an entry.
    #[error("`{file}` has {found} bytes; expected at most {MAX_FILE_BYTES}")]
    TooLarge { file: &'static str, found: u64 },
    /// A file is not what was written.
    #[error("`{file}` does not match its SHA-256")]
    Checksum { file: &'static str },
    /// The object is what was written, and what was written is no object.
    #[error("`object` cannot be loaded")]
    Object(#[source] gpu::elf::ElfError),
    /// `meta.toml` is whole, and not in the format of this version.
    #[error("could not understand `meta.toml`")]
    Meta(#[source] toml::de::Error),
    /// Another version's entry in this version's folder.
    #[error("`meta.toml` has schema {found}; expected {SCHEMA}")]
    Schema {
        /// The version it says.
        found: u32,
    },
    /// The entry is not the one that its name says.
    #[error("its key has the digest {found}, which does not match its name")]
    Key {
        /// The digest of the key in it.
        found: Digest,
    },
    /// A file that no entry has.
    #[error("it contains `{name}`, which does not belong in an entry")]
    Stranger { name: String },
}

impl Damage {
    /// Whether the fault may lie with this process or machine at this moment, and not with the entry.
    pub(super) fn is_passing(&self) -> bool {
        let Self::Unreadable { source, .. } = self else { return false };
        source.raw_os_error().is_some_and(|code| PASSING.contains(&code))
    }

    fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What the disk holds for a digest.
#[derive(Debug)]
pub(super) enum Stored {
    Object(CacheEntry),
    Failed { log: String },
    Absent,
}

impl Folder {
    /// Reads an entry and checks all of it. Of several problems the first is returned, with the path to put aside.
    pub(super) fn read(&self, digest: &Digest) -> Result<Stored, (PathBuf, Damage)> {
        let path = self.entry_path(digest);
        let shard = self.shard(digest);
        if let Some(found) = std::fs::symlink_metadata(&shard).ok().and_then(|shard| trust_folder(&shard).err()) {
            return Err((shard, Damage::Distrusted { file: "..", source: found }));
        }
        let Some(opened) = OpenedEntry::open(&path).map_err(|damage| (path.clone(), damage))? else {
            return Ok(Stored::Absent);
        };
        match opened.check(digest) {
            // The whole entry was removed under our eyes: nobody damaged it.
            Err(damage) if damage.is_missing() && !opened.is_in_place() => Ok(Stored::Absent),
            checked => checked.map_err(|damage| (path, damage)),
        }
    }

    /// Reads an entry; one that is damaged is moved aside with a warning, and is then absent.
    pub(super) fn read_or_put_away(&self, digest: &Digest) -> Stored {
        self.read(digest).unwrap_or_else(|(path, damage)| {
            if damage.is_passing() {
                tracing::warn!("could not read `{}` of the kernel cache: {}", path.display(), chain(&damage));
            } else if let Err(error) = self.put_away(&path, &damage) {
                tracing::warn!("it could not be moved aside and stays: {}", chain(&error));
            }
            Stored::Absent
        })
    }
}

/// The folder of an entry, held open: all files are read from this one, whatever happens to its name.
pub(super) struct OpenedEntry {
    path: PathBuf,
    folder: File,
}

impl OpenedEntry {
    /// Opens the folder, if there is one at this path, and checks that it is ours.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, Damage> {
        let unreadable = |source| Damage::Unreadable { file: ".", source };
        let distrusted = |source| Damage::Distrusted { file: ".", source };
        let folder = match OpenOptions::new().read(true).custom_flags(FOLDER).open(path) {
            Ok(folder) => folder,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => return Ok(None),
                io::ErrorKind::NotADirectory => return Err(distrusted(Distrust::NotAFolder)),
                _ => return Err(unreadable(error)),
            },
        };
        trust_folder(&folder.metadata().map_err(unreadable)?).map_err(distrusted)?;
        Ok(Some(Self { path: path.into(), folder }))
    }

    /// `meta.toml`, in which only its own digest and its version are checked.
    pub(super) fn meta(&self) -> Result<Meta, Damage> {
        let meta = Meta::from_text(&self.read("meta.toml")?)?;
        if meta.schema == SCHEMA { Ok(meta) } else { Err(Damage::Schema { found: meta.schema }) }
    }

    /// One file, whole. It is opened without following a link or waiting for a pipe, and must be ours.
    pub(super) fn read(&self, file: &'static str) -> Result<Vec<u8>, Damage> {
        let opened = self.open_file(file).map_err(|source| Damage::Unreadable { file, source })?;
        let metadata = opened.metadata().map_err(|source| Damage::Unreadable { file, source })?;
        trust_file(&metadata).map_err(|source| Damage::Distrusted { file, source })?;
        if metadata.len() > MAX_FILE_BYTES {
            return Err(Damage::TooLarge { file, found: metadata.len() });
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        opened.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|source| Damage::Unreadable { file, source })?;
        Ok(bytes)
    }

    fn check(&self, digest: &Digest) -> Result<Stored, Damage> {
        let Ok(used) = self.hold() else { return Ok(Stored::Absent) };
        let meta = self.meta()?;
        let source = self.read("source")?;
        let found = meta.key.digest(&source);
        if found != *digest {
            return Err(Damage::Key { found });
        }
        if meta.key.source_sha256 != Digest::of(&source) {
            return Err(Damage::Checksum { file: "source" });
        }
        let log = self.read_checked("log", meta.log_sha256)?;
        let Some(record) = meta.object else {
            return Ok(Stored::Failed { log: String::from_utf8_lossy(&log).into_owned() });
        };
        let object: Arc<[u8]> = self.read_checked("object", record.sha256)?.into();
        if object.starts_with(b"\x7fELF") {
            gpu::elf::check_whole(&object).map_err(Damage::Object)?;
        }
        let (meta, dir, used) = (Arc::new(meta), Some(self.path.clone()), used.map(Arc::new));
        Ok(Stored::Object(CacheEntry { digest: *digest, object, meta, dir, used }))
    }

    fn read_checked(&self, file: &'static str, expected: Digest) -> Result<Vec<u8>, Damage> {
        let bytes = self.read(file)?;
        if Digest::of(&bytes) == expected { Ok(bytes) } else { Err(Damage::Checksum { file }) }
    }

    /// A shared lock on `used`, where there is such a file and locks work.
    ///
    /// # Errors
    /// [`BeingRemoved`] when another process holds it alone.
    fn hold(&self) -> Result<Option<LockFile>, BeingRemoved> {
        let Some(used) = self.open_file("used").ok().filter(|used| used.metadata().is_ok_and(|used| used.is_file()))
        else {
            return Ok(None);
        };
        let used = LockFile::from(used);
        match used.try_lock_shared() {
            Ok(()) => Ok(Some(used)),
            Err(TryLockError::WouldBlock) => Err(BeingRemoved),
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }

    fn open_file(&self, file: &str) -> io::Result<File> {
        open_in(&self.folder, &self.path, file)
    }

    /// Whether the path still leads to the folder that was opened.
    fn is_in_place(&self) -> bool {
        let there = std::fs::symlink_metadata(&self.path).map(|there| (there.dev(), there.ino())).ok();
        there.is_some() && there == self.folder.metadata().map(|opened| (opened.dev(), opened.ino())).ok()
    }
}

/// Another process is about to remove the entry.
struct BeingRemoved;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_is_held_open_whatever_happens_to_its_name() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let [entry, link, other] = ["entry", "link", "other"].map(|name| root.path().join(name));
        fs::create_dir(&entry).expect("made");
        std::os::unix::fs::symlink(&entry, &link).expect("made");
        assert!(matches!(OpenedEntry::open(&link), Err(Damage::Distrusted { source: Distrust::NotAFolder, .. })));
        let opened = OpenedEntry::open(&entry).ok().flatten().expect("it is ours");
        assert!(opened.is_in_place());
        fs::rename(&entry, &other).expect("moved");
        assert!(!opened.is_in_place(), "nothing is there");
        fs::create_dir(&entry).expect("made");
        assert!(!opened.is_in_place(), "another one is there");
    }
}
