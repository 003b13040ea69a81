//! The on-disk cache of compiled kernels.
//!
//! ```text
//! <root>/                        $GPTOSS_JIT_CACHE, else the platform's cache folder
//!   CACHEDIR.TAG                 backup programs skip the folder
//!   v1/                          the key's schema
//!     <2 hex>/<64 hex>/          an entry, named by its key's SHA-256
//!       object                   the compiled code; absent where the failure to compile is remembered
//!       source                   the rendered text it came from
//!       log                      what the compiler said
//!       meta.toml                the rest of the key, and a digest of each file, this one included
//!       used                     empty; its mtime is the last use, a shared lock on it means "in use"
//!       pin                      empty; present while the entry is pinned
//!     lock/<2 hex>               locks around compilation, never deleted
//!     compilers/<64 hex>.toml      who the compilers are, and stamps of their files; not entries, may be deleted
//!     aside/…                    entries that were not to be trusted, each with a file `why`; a capped number
//!     staging-…                  entries in the making or in removal; swept when an hour old
//!     pruned                     its mtime is when the cache was last pruned
//! ```
//!
//! What always holds:
//! - An entry appears whole, by one rename, and vanishes by one rename. Its first four files never change.
//! - No byte is handed out before the whole entry was checked in this process: the files against their digests,
//!   the key against the directory's name, the owner and the permissions of everything on the way.
//! - A bad entry is moved aside and the lookup is a miss. Trouble with the disk is a warning: an object that
//!   cannot be stored lives in memory. Nothing here is ever fatal to a run.
//! - Entries that are pinned, or in use by a living process, are not removed, neither by pruning nor by clearing.
//! - There is no index: the tree is the truth.
//!
//! [`Cache`] is what a run uses. [`Folder`] is the tree on the disk, which the `cache` commands look at: see
//! `entry` for reading, `publish` for writing, `evict` for removing, `inventory` and `explain` for questions.

mod entry;
mod evict;
mod explain;
mod folder;
mod inventory;
mod limits;
mod lock;
mod publish;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::object::key::{Digest, KernelKey};
use entry::Stored;
pub use entry::{CacheEntry, Damage, KeyRecord, Meta, NewObject, ObjectRecord};
pub use evict::{PruneOptions, Removed};
pub use explain::{Difference, Explanation, Nearest};
pub use folder::{CacheError, Folder};
use hint::chain;
pub use inventory::{CacheFinding, Listed, Verified};
pub use limits::{CacheLimits, parse_size};
pub use lock::CompileLock;
use system::home;
pub use system::trust::Distrust;

/// Compiled kernels by key: in this process, and below it on the disk, where there is a usable one.
#[derive(Debug)]
pub struct Cache {
    folder: Option<Folder>,
    limits: CacheLimits,
    memory: Mutex<Memory>,
}

/// Entries that were checked or made in this process. Entries that are also on the disk are dropped when nothing else
/// holds their object: a long tuning run must not keep every candidate.
#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<Digest, CacheEntry>,
    failures: HashMap<Digest, String>, // the logs
}

/// What the cache knows about a key.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The object, checked.
    Hit(CacheEntry),
    /// Compiling it failed before, with the same compiler, and would again.
    Failed {
        /// The compiler's output.
        log: String,
    },
    Miss,
}

impl Cache {
    /// Where the cache is: `$GPTOSS_JIT_CACHE`, else `gptoss-jit` in the platform's cache folder.
    ///
    /// # Errors
    /// [`CacheError::NoHome`] when neither is known.
    pub fn default_root() -> Result<PathBuf, CacheError> {
        if let Some(root) = home::variable("GPTOSS_JIT_CACHE") {
            return std::path::absolute(&root).map_err(|source| CacheError::Read { path: root, source });
        }
        Ok(dirs::cache_dir().ok_or(CacheError::NoHome)?.join("gptoss-jit"))
    }

    /// Opens the cache at `root`, created with mode 0700 if need be. A folder that cannot be used, or that another
    /// user could write to, is a warning, and the cache then works in memory alone.
    pub fn open(root: &Path, limits: CacheLimits) -> Self {
        let folder = Folder::open(root)
            .inspect_err(|error| tracing::warn!("kernels will not be cached on disk: {}", chain(error)))
            .ok();
        Self { folder, limits, memory: Mutex::default() }
    }

    /// A cache in memory alone.
    pub fn in_memory() -> Self {
        Self { folder: None, limits: CacheLimits::default(), memory: Mutex::default() }
    }

    /// The folder on the disk, unless the cache works in memory alone.
    pub fn folder(&self) -> Option<&Folder> {
        self.folder.as_ref()
    }

    /// Looks a key up. An entry from the disk is checked whole the first time; a bad one is moved aside.
    pub fn get(&self, key: &KernelKey) -> Lookup {
        let digest = key.digest();
        {
            let memory = self.memory();
            if let Some(entry) = memory.entries.get(&digest) {
                return Lookup::Hit(entry.clone());
            }
            if let Some(log) = memory.failures.get(&digest) {
                return Lookup::Failed { log: log.clone() };
            }
        }
        match self.folder.as_ref().map_or(Stored::Absent, |folder| folder.read_or_put_away(&digest)) {
            Stored::Object(entry) => {
                entry.touch();
                Lookup::Hit(self.remember(entry))
            }
            Stored::Failed { log } => Lookup::Failed { log },
            Stored::Absent => Lookup::Miss,
        }
    }

    /// Stores a fresh object and gives it back as an entry; when another process was first, that one's. Disk
    /// trouble is a warning, and the entry then lives in memory.
    pub fn publish(&self, key: &KernelKey, made: &NewObject) -> CacheEntry {
        let meta = Meta::of_object(key, made);
        let stored = self.store(key, &meta, &made.log, Some(&made.object)).flatten();
        let entry = stored.unwrap_or_else(|| CacheEntry::in_memory(key.digest(), &made.object, meta));
        self.memory().failures.remove(&entry.digest);
        let entry = self.remember(entry);
        self.prune_hourly();
        entry
    }

    /// Removes a wrong entry, even if it is in use.
    pub fn forget(&self, digest: &Digest) {
        self.memory().entries.remove(digest);
        let Some(folder) = &self.folder else { return };
        match folder.discard(&folder.entry_path(digest)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("could not remove a kernel from the cache: {}", chain(&error));
            }
            _ => {}
        }
    }

    /// Remembers that compiling this key fails, and why. Only for failures that would come again: not for
    /// time-outs, and not for workers killed for their memory.
    pub fn remember_failure(&self, key: &KernelKey, label: &str, log: &str) {
        let meta = Meta::of_failure(key, label, log);
        if self.store(key, &meta, log, None).is_none() {
            self.memory().failures.insert(key.digest(), log.to_owned());
        }
    }

    /// Waits for the right to compile this key, so that one of several processes does. Look the key up again
    /// afterwards: the other process may have made it. Hold one at a time. The wait is bounded
    /// ([`CacheLimits::lock_wait`]), and the lock only saves work: without a disk, or after the wait, it is no lock.
    pub fn lock(&self, digest: &Digest) -> CompileLock {
        match &self.folder {
            Some(folder) => folder.lock(digest, self.limits.lock_wait),
            None => CompileLock::none(),
        }
    }

    /// Says why looking a key up gives what it gives: for a miss, how the key differs from the nearest entry's.
    pub fn explain(&self, key: &KernelKey) -> Explanation {
        let digest = key.digest();
        if let Some(entry) = self.memory().entries.get(&digest) {
            return Explanation::Hit { digest, meta: entry.meta.clone() };
        }
        self.folder.as_ref().map_or(Explanation::Empty, |folder| folder.explain(key))
    }

    /// Writes to the disk. None, after a warning, where that does not work.
    fn store(&self, key: &KernelKey, meta: &Meta, log: &str, object: Option<&[u8]>) -> Option<Option<CacheEntry>> {
        let warn = |error: &CacheError| {
            tracing::warn!("kernel `{}` is not stored in the cache: {}", meta.label, chain(error));
        };
        self.folder.as_ref()?.publish(key, meta, log, object).inspect_err(warn).ok()
    }

    /// Keeps a checked entry, and lets go of those that only the memory still holds.
    fn remember(&self, entry: CacheEntry) -> CacheEntry {
        let mut memory = self.memory();
        memory.entries.retain(|_, known| known.dir.is_none() || Arc::strong_count(&known.object) > 1);
        memory.entries.entry(entry.digest).or_insert(entry).clone()
    }

    fn prune_hourly(&self) {
        let Some(folder) = self.folder.as_ref().filter(|folder| folder.prune_is_due()) else { return };
        match folder.prune(&PruneOptions { max_bytes: self.limits.max_bytes, older_than: None }) {
            Ok(removed) if removed.entries > 0 => {
                tracing::info!("pruned {} kernels, {} bytes, from the cache", removed.entries, removed.bytes)
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("could not prune the kernel cache: {}", chain(&error)),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // The maps are consistent between any two statements that could panic.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
