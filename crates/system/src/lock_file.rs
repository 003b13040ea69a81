//! Locks on open files that end with their owner, not later.

use std::fs::File;
use std::ops::Deref;

/// A file to take locks on, which end when it is dropped. Were it only closed, a lock would stay for as long as anyone
/// has a copy: a process that another thread starts has one until it has become another program.
#[derive(Debug)]
pub struct LockFile(File);

impl From<File> for LockFile {
    fn from(file: File) -> Self {
        Self(file)
    }
}

impl Deref for LockFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = self.0.unlock(); // where locks do not work, there is none
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::TryLockError;

    #[test]
    fn a_lock_ends_though_a_process_that_is_being_started_has_a_copy() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        let open =
            || LockFile::from(File::options().write(true).create(true).truncate(false).open(&path).expect("open"));
        let held = open();
        held.try_lock().expect("nobody's");
        let copy = held.try_clone().expect("as a fork makes it");
        assert!(matches!(open().try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        open().try_lock().expect("given back");
        drop(copy);
    }
}
