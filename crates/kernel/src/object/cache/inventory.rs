//! Questions about the whole tree: its contents, and whether they are intact.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::entry::{Damage, Meta, OpenedEntry};
use super::folder::{CacheError, Folder, children, disk_bytes, modified};
use crate::object::key::Digest;
use hint::chain;
use system::os::{NO_FOLLOW, OpenOptionsExt};
use system::trust::{trust_file, trust_folder};

/// The files that an entry may have.
const FILES: [&str; 6] = ["object", "source", "log", "meta.toml", "used", "pin"];

/// An entry, as listing sees it: recorded, not checked.
#[derive(Debug)]
pub struct Listed {
    /// The digest of its key, from its name.
    pub digest: Digest,
    pub path: PathBuf,
    /// What it records of itself, or why that cannot be read.
    pub meta: Result<Meta, Damage>,
    /// Its size on the disk.
    pub size_bytes: u64,
    /// When it was last read by a process, to the hour.
    pub last_used: SystemTime,
    /// Whether it is pinned.
    pub is_pinned: bool,
}

impl Listed {
    /// Whether it remembers a failure.
    pub fn is_failure(&self) -> bool {
        self.meta.as_ref().is_ok_and(|meta| meta.object.is_none())
    }
}

/// Something in the tree that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFinding {
    pub path: PathBuf,
    pub problem: String,
}

/// The result of checking the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many entries were looked at.
    pub entries: usize,
    /// The problems, by path.
    pub findings: Vec<CacheFinding>,
}

impl Folder {
    /// Every entry, by digest. What is not named like one is passed over: see [`Self::verify`].
    ///
    /// # Errors
    /// [`CacheError::Read`] when the tree cannot be listed.
    pub fn list(&self) -> Result<Vec<Listed>, CacheError> {
        let mut listed = Vec::new();
        for shard in list_children(self.versioned())?.iter().filter(|path| is_shard(path)) {
            let Ok(entries) = children(shard) else { continue }; // verifying says why
            listed.extend(entries.iter().filter_map(|path| list_entry(path)));
        }
        Ok(listed)
    }

    /// The entry whose digest begins with these digits.
    ///
    /// # Errors
    /// [`CacheError::NoSuchEntry`], [`CacheError::Ambiguous`], or as [`Self::list`].
    pub fn find(&self, prefix: &str) -> Result<Listed, CacheError> {
        let mut found = self.list()?;
        found.retain(|entry| !prefix.is_empty() && entry.digest.to_string().starts_with(prefix));
        match found.len() {
            0 => Err(CacheError::NoSuchEntry { prefix: prefix.into() }),
            1 => Ok(found.remove(0)),
            _ => {
                let matches = found.iter().take(8).map(|entry| entry.digest.to_string()[..16].into()).collect();
                Err(CacheError::Ambiguous { prefix: prefix.into(), matches })
            }
        }
    }

    /// The text of a file of an entry, `source` or `log`.
    ///
    /// # Errors
    /// [`CacheError::Damaged`] when the entry is not to be trusted or the file cannot be read.
    pub fn text(&self, digest: &Digest, file: &'static str) -> Result<String, CacheError> {
        let path = self.entry_path(digest);
        let missing = || Damage::Unreadable { file: ".", source: io::ErrorKind::NotFound.into() };
        let bytes = OpenedEntry::open(&path).and_then(|entry| entry.ok_or_else(missing)?.read(file));
        let bytes = bytes.map_err(|source| CacheError::Damaged { path, source })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Keeps an entry from being removed, or no longer.
    ///
    /// # Errors
    /// [`CacheError::Write`].
    pub fn pin(&self, digest: &Digest, pinned: bool) -> Result<(), CacheError> {
        let path = self.entry_path(digest).join("pin");
        let done = if pinned {
            // Not where a link leads, and no pipe is waited for.
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW).open(&path).map(|_| ())
        } else {
            fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        };
        done.map_err(|source| CacheError::Write { path, source })
    }

    /// Checks every entry as a first load would, and that nothing else is in the tree. With `repair`, what is
    /// wrong is moved aside, and the findings are what was found before that.
    ///
    /// # Errors
    /// [`CacheError::Read`] when the tree cannot be listed, [`CacheError::Write`] when a repair fails.
    pub fn verify(&self, repair: bool) -> Result<Verified, CacheError> {
        let mut verified = Verified { entries: 0, findings: Vec::new() };
        for path in list_children(self.versioned())? {
            if is_shard(&path) {
                self.verify_shard(&path, &mut verified);
            } else if let Some(problem) = stranger(&path) {
                verified.findings.push(CacheFinding { path, problem });
            } else if path == self.identities_folder() {
                let untrusted = |path: PathBuf| Some(CacheFinding { problem: untrusted_file(&path)?, path });
                verified.findings.extend(list_children(&path)?.into_iter().filter_map(untrusted));
            }
        }
        if repair {
            for finding in &verified.findings {
                self.set_aside(&finding.path, &finding.problem)?;
            }
        }
        Ok(verified)
    }

    fn verify_shard(&self, shard: &Path, verified: &mut Verified) {
        let mut found =
            |path: &Path, problem: String| verified.findings.push(CacheFinding { path: path.into(), problem });
        if let Some(distrust) = fs::symlink_metadata(shard).ok().and_then(|shard| trust_folder(&shard).err()) {
            return found(shard, distrust.to_string());
        }
        let entries = match children(shard) {
            Ok(entries) => entries,
            Err(error) => return found(shard, format!("could not list it: {error}")),
        };
        for path in entries {
            let Some(digest) = entry_digest(&path) else {
                found(&path, "no part of the cache has this name".into());
                continue;
            };
            verified.entries += 1;
            if let Err((path, damage)) = self.read(&digest).and_then(|_| strange_file(&path)) {
                found(&path, chain(&damage));
            }
        }
    }
}

fn list_children(folder: &Path) -> Result<Vec<PathBuf>, CacheError> {
    children(folder).map_err(|source| CacheError::Read { path: folder.into(), source })
}

fn list_entry(path: &Path) -> Option<Listed> {
    let missing = || Damage::Unreadable { file: ".", source: io::ErrorKind::NotFound.into() };
    let digest = entry_digest(path)?;
    let used = path.join("used");
    Some(Listed {
        digest,
        path: path.into(),
        meta: OpenedEntry::open(path).and_then(|entry| entry.ok_or_else(missing)?.meta()),
        size_bytes: disk_bytes(path),
        last_used: modified(if used.exists() { &used } else { path }),
        is_pinned: path.join("pin").exists(),
    })
}

/// The digest that a path names, if it lies where an entry of that digest lies.
fn entry_digest(path: &Path) -> Option<Digest> {
    let name = path.file_name()?.to_str()?;
    let digest = name.parse().ok()?;
    (path.parent()?.file_name()?.to_str()? == &name[..2]).then_some(digest)
}

fn is_shard(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == 2 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Why something beside the shards should not be there.
fn stranger(path: &Path) -> Option<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_folder = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    match &*name {
        "lock" | "aside" | "compilers" if !is_folder => Some("it should be a folder".into()),
        "pruned" if is_folder => Some("it should be a file".into()),
        "lock" | "aside" | "compilers" | "pruned" => None,
        _ if name.starts_with("staging-") => None,
        _ => Some("no part of the cache has this name".into()),
    }
}

/// Why something among the compilers' identities is not used.
fn untrusted_file(path: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(path).ok()?;
    trust_file(&metadata).err().map(|distrust| distrust.to_string())
}

/// A file in an entry that no entry has.
fn strange_file(entry: &Path) -> Result<(), (PathBuf, Damage)> {
    for path in children(entry).unwrap_or_default() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !FILES.contains(&name.as_str()) {
            return Err((path, Damage::Stranger { name }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_named_by_two_digits() {
        for (name, is_one) in [("ab", true), ("07", true), ("abc", false), ("a", false), ("zz", false), ("AB", false)] {
            assert_eq!(is_shard(&Path::new("/v1").join(name)), is_one, "{name}");
        }
    }
}
