//! Removing entries: the least recently used first, never one that is pinned or in use.

use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::folder::{CacheError, Folder, children, modified, remove};
use super::inventory::Listed;
use hint::chain;
use system::lock_file::LockFile;
use system::os::{NO_FOLLOW, OpenOptionsExt};
use tempfile::TempDir;

/// Failures are forgotten after a week: a template or a machine may have been mended in a way no key shows.
const FAILURES_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// Threads that delete: they wait for the disk.
const DELETERS: usize = 16;

/// Size and age down to which entries are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    /// Remove the least recently used until the rest takes at most this.
    pub max_bytes: u64,
    /// Also remove what was last used longer ago than this.
    pub older_than: Option<Duration>,
}

/// What was removed, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Entries removed, remembered failures included.
    pub entries: usize,
    /// Their size on the disk.
    pub bytes: u64,
    /// Entries that would have been removed, were they not pinned.
    pub kept_pinned: usize,
    /// Entries that would have been removed, did no process use them.
    pub kept_in_use: usize,
    pub left_bytes: u64,
}

/// Entries that are out of the tree, by a rename each. Deleting them takes the disk milliseconds a file, which several
/// threads wait for at once.
struct Gone<'a> {
    folder: &'a Folder,
    staging: Option<TempDir>,
    n: usize,
}

impl<'a> Gone<'a> {
    const fn new(folder: &'a Folder) -> Self {
        Self { folder, staging: None, n: 0 }
    }

    fn take(&mut self, path: &Path) -> io::Result<()> {
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => self.folder.staging()?,
        };
        let staging = self.staging.insert(staging);
        fs::rename(path, staging.path().join(self.n.to_string()))?;
        self.n += 1;
        Ok(())
    }

    /// What cannot be deleted now is swept as stale later.
    fn delete(self) {
        let Some(staging) = self.staging else { return };
        let entries: Vec<PathBuf> = (0..self.n).map(|i| staging.path().join(i.to_string())).collect();
        let next = AtomicUsize::new(0);
        let delete = || {
            while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                remove(entry);
            }
        };
        thread::scope(|scope| {
            for _ in 1..DELETERS.min(entries.len()) {
                // With fewer threads it takes longer.
                let _ = thread::Builder::new().spawn_scoped(scope, delete);
            }
            delete();
        });
    }
}

impl Folder {
    /// Forgets old failures, then removes what was not used for long, then the least recently used.
    ///
    /// # Errors
    /// [`CacheError::Read`] when the tree cannot be listed. What cannot be removed is a warning and stays.
    pub fn prune(&self, options: &PruneOptions) -> Result<Removed, CacheError> {
        self.sweep_staging();
        let mut entries = self.list()?;
        entries.sort_by_key(|entry| (entry.last_used, entry.digest));
        let mut removed =
            Removed { left_bytes: entries.iter().map(|entry| entry.size_bytes).sum(), ..Removed::default() };
        let now = SystemTime::now();
        let unused_for = |entry: &Listed| now.duration_since(entry.last_used).unwrap_or_default();
        // Failures and old entries go first, whatever the size is: they are not what the cap is for.
        let is_expired = |entry: &Listed| {
            options.older_than.is_some_and(|limit| unused_for(entry) > limit)
                || (entry.is_failure() && age(entry, now) > FAILURES_KEPT)
        };
        let (expired, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| is_expired(entry));
        let mut gone = Gone::new(self);
        for entry in expired {
            self.remove_entry(entry, false, &mut removed, &mut gone);
        }
        for entry in rest {
            if removed.left_bytes <= options.max_bytes {
                break;
            }
            self.remove_entry(entry, false, &mut removed, &mut gone);
        }
        gone.delete();
        Ok(removed)
    }

    /// Removes every entry, and what was set aside. Entries in use stay; pinned ones stay unless `even_pinned`.
    ///
    /// # Errors
    /// As [`Self::prune`].
    pub fn clear(&self, even_pinned: bool) -> Result<Removed, CacheError> {
        self.sweep_staging();
        let entries = self.list()?;
        let mut removed =
            Removed { left_bytes: entries.iter().map(|entry| entry.size_bytes).sum(), ..Removed::default() };
        let mut gone = Gone::new(self);
        for entry in &entries {
            self.remove_entry(entry, even_pinned, &mut removed, &mut gone);
        }
        gone.delete();
        match children(&self.aside_folder()) {
            Ok(aside) => aside.iter().for_each(|path| remove(path)),
            Err(_) => remove(&self.aside_folder()), // a link, and not what it leads to
        }
        Ok(removed)
    }

    /// Whether the last pruning is an hour ago; if so, this one is noted at once, so that of several processes one does
    /// it.
    pub(super) fn prune_is_due(&self) -> bool {
        let stamp = self.prune_stamp();
        let is_recent = modified(&stamp).elapsed().is_ok_and(|age| age <= PRUNE_EVERY);
        let open = || OpenOptions::new().write(true).create(true).truncate(true).custom_flags(NO_FOLLOW).open(&stamp);
        !is_recent && open().and_then(|mut stamp| stamp.write_all(b"pruned\n")).is_ok()
    }

    fn remove_entry(&self, entry: &Listed, even_pinned: bool, removed: &mut Removed, gone: &mut Gone<'_>) {
        if entry.is_pinned && !even_pinned {
            removed.kept_pinned += 1;
            return;
        }
        match try_remove(entry, gone) {
            Ok(true) => {
                removed.entries += 1;
                removed.bytes += entry.size_bytes;
                removed.left_bytes = removed.left_bytes.saturating_sub(entry.size_bytes);
            }
            Ok(false) => removed.kept_in_use += 1,
            Err(error) => tracing::warn!("could not remove `{}`: {}", entry.path.display(), chain(&error)),
        }
    }
}

/// Takes an entry out of the tree unless a process holds the shared lock on its file `used`.
fn try_remove(entry: &Listed, gone: &mut Gone<'_>) -> io::Result<bool> {
    // Without such a file, nobody can hold it. Opened for writing, as some network file systems ask.
    let used = OpenOptions::new().read(true).write(true).custom_flags(NO_FOLLOW).open(entry.path.join("used"));
    let used = used.map(LockFile::from).ok();
    match used.as_ref().map_or(Ok(()), |used| used.try_lock()) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match gone.take(&entry.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true), // not found: another process removed it
    }
}

fn age(entry: &Listed, now: SystemTime) -> Duration {
    let created = entry.meta.as_ref().map_or(UNIX_EPOCH, |meta| meta.created());
    now.duration_since(created).unwrap_or_default()
}
