//! Locks: if several processes miss the same kernel, one compiles it.

use std::fs::{OpenOptions, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::folder::Folder;
use crate::object::key::Digest;
use system::lock_file::LockFile;
use system::os::{NO_FOLLOW, OpenOptionsExt};
use system::trust::own_folder;

const POLL: Duration = Duration::from_millis(20);

/// The right to compile a kernel, given back on drop and by the system when the process dies.
#[derive(Debug)]
pub struct CompileLock {
    held: Option<LockFile>,
}

impl CompileLock {
    /// What stands for a lock where none can be had.
    pub(super) fn none() -> Self {
        Self { held: None }
    }

    /// Whether others are really kept out. Nothing depends on it but saved work.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

impl Folder {
    /// Takes the lock that this digest shares with one in 256 others, waiting at most `wait`.
    pub(super) fn lock(&self, digest: &Digest, wait: Duration) -> CompileLock {
        let folder = self.lock_folder();
        let path = folder.join(&digest.to_string()[..2]);
        let file = match own_folder(&folder).and_then(|()| open_lock(&path)) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!("compiling without the lock `{}`: {error}", path.display());
                return CompileLock::none();
            }
        };
        let deadline = Instant::now() + wait;
        loop {
            match file.try_lock() {
                Ok(()) => return CompileLock { held: Some(file) },
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(POLL),
                Err(error) => {
                    tracing::warn!("compiling without the lock `{}`: {error}", path.display());
                    return CompileLock::none();
                }
            }
        }
    }
}

/// Lock files are never deleted, so that two processes can never hold "the same" lock on two files.
fn open_lock(path: &Path) -> std::io::Result<LockFile> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(NO_FOLLOW)
        .open(path)?;
    Ok(file.into())
}
