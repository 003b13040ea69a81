//! The private folder of a compile, and the leftovers of killed processes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use system::os::{FOLDER, MetadataExt, OpenOptionsExt, user};
use tempfile::TempDir;

use super::worker::FOLDER_PREFIX;

/// Between making a folder and locking it goes no more than an instant.
const UNLOCKED_IS_LEFT: Duration = Duration::from_secs(60);
/// A start does not wait for a folder with more names than this.
const MAX_NAMES: usize = 10_000;

/// A temporary folder, removed on drop. It is locked as long as its process lives, so that others can tell.
#[derive(Debug)]
pub(super) struct PrivateFolder {
    folder: TempDir,
    _lock: Option<File>,
}

impl PrivateFolder {
    pub(super) fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir()?;
        // Where locks do not work, it is not swept either.
        let lock = open_folder(folder.path()).ok().filter(|opened| opened.try_lock().is_ok());
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What is left on its disk for this user, in bytes.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        system::os::free_bytes(self.path())
    }
}

/// Removes this user's folders whose processes are dead.
pub(super) fn sweep(temporary: &Path) {
    let Ok(names) = fs::read_dir(temporary) else { return };
    for path in names.take(MAX_NAMES).flatten().map(|name| name.path()) {
        let is_ours =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(FOLDER_PREFIX.as_bytes()));
        if is_ours && let Ok(true) = is_left(&path) {
            tracing::debug!("removing `{}`, the leftover of a killed process", path.display());
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_left(path: &Path) -> io::Result<bool> {
    let opened = open_folder(path)?;
    let metadata = opened.metadata()?;
    let is_old = metadata.modified()?.elapsed().is_ok_and(|age| age > UNLOCKED_IS_LEFT);
    Ok(is_old && metadata.uid() == user() && opened.try_lock().is_ok())
}

/// A folder itself, not what a link leads to.
fn open_folder(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FOLDER).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::time::SystemTime;

    fn folder(parent: &Path, name: &str, age: Duration) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("job.json"), "{}").unwrap();
        open_folder(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        path
    }

    #[test]
    fn what_a_dead_process_left_is_swept_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let left = folder(temporary.path(), "gptoss-jit-compile-dead", hour);
        let young = folder(temporary.path(), "gptoss-jit-compile-young", Duration::ZERO);
        let foreign = folder(temporary.path(), "thesis", hour);
        let alive = folder(temporary.path(), "gptoss-jit-compile-alive", hour);
        let _lock = open_folder(&alive).map(|opened| opened.try_lock().map(|()| opened)).unwrap().unwrap();
        let link = temporary.path().join("gptoss-jit-compile-link");
        symlink(&foreign, &link).unwrap();

        sweep(temporary.path());
        assert!(!left.exists());
        for kept in [young, foreign.join("job.json"), alive, link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn a_folder_in_use_is_locked() {
        let used = PrivateFolder::new().unwrap();
        open_folder(used.path()).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        assert!(!is_left(used.path()).unwrap());
    }
}
