//! A large file that appears whole or not at all, whatever ends the program.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// A file without a name, where the file system has such files: not even a killed program leaves one behind. Elsewhere
/// it lies beside its place until it is whole, and stays there if the program is killed in a way that it cannot notice.
pub(super) struct NewFile {
    path: PathBuf,
    place: Place,
}

enum Place {
    Nameless(File),
    Beside(NamedTempFile),
}

impl NewFile {
    /// Opens it.
    ///
    /// # Errors
    /// There is no such folder, or nothing can be written there.
    pub fn create(path: &Path) -> io::Result<Self> {
        // A link stays a link, and what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let place = match nameless(folder(&path)) {
            Ok(file) => Place::Nameless(file),
            Err(_) => Place::Beside(beside(&path)?),
        };
        Ok(Self { path, place })
    }

    /// Whether nothing is left of it however the program ends.
    pub fn is_nameless(&self) -> bool {
        matches!(self.place, Place::Nameless(_))
    }

    /// Has this much of the disk kept for it, so that a disk that is too small is known of before there is anything to
    /// write.
    ///
    /// # Errors
    /// [`NoSpace`]. Where a file system cannot tell or cannot keep space, writing will.
    pub fn reserve(&mut self, len_bytes: u64) -> Result<(), NoSpace> {
        let folder = folder(&self.path).to_owned();
        let free = rustix::fs::statvfs(&folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let is_too_small = free.is_some_and(|free| free < len_bytes)
            || rustix::fs::fallocate(&*self.file(), FallocateFlags::KEEP_SIZE, 0, len_bytes) == Err(Errno::NOSPC);
        if is_too_small {
            return Err(NoSpace { folder, needed_bytes: len_bytes, free_bytes: free.unwrap_or(0) });
        }
        Ok(())
    }

    /// What has been written so far can be read from it too.
    pub fn file(&mut self) -> &mut File {
        match &mut self.place {
            Place::Nameless(file) => file,
            Place::Beside(file) => file.as_file_mut(),
        }
    }

    /// Puts it in its place, in that of another file if there is one. Its contents should be on the disk before.
    ///
    /// # Errors
    /// What the system says.
    pub fn publish(self) -> io::Result<()> {
        let folder = folder(&self.path).to_owned();
        match self.place {
            Place::Nameless(file) => publish_nameless(&file, &self.path)?,
            Place::Beside(file) => drop(file.persist(&self.path)?),
        }
        File::open(folder)?.sync_all() // the name is on the disk too
    }
}

/// A disk without room for a file.
#[derive(Debug, thiserror::Error)]
#[error("it takes {needed_bytes} bytes, and the disk of `{}` has {free_bytes} free", folder.display())]
pub(super) struct NoSpace {
    folder: PathBuf,
    needed_bytes: u64,
    free_bytes: u64,
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fails where there are no nameless files, or nothing by which one could be given a name.
fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666))?);
    rustix::fs::stat(own_link(&file).as_c_str())?;
    Ok(file)
}

/// The link to an open file that `linkat` follows.
fn own_link(file: &File) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL")
}

/// A file that is there already is replaced by renaming: that takes a name of our own, for a moment.
fn publish_nameless(file: &File, path: &Path) -> io::Result<()> {
    let link = |to: &Path| rustix::fs::linkat(CWD, own_link(file).as_c_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        Err(Errno::EXIST) => {
            let beside = tempfile::TempDir::new_in(folder(path))?;
            let staged = beside.path().join("file");
            link(&staged)?;
            fs::rename(&staged, path)
        }
        other => Ok(other?),
    }
}

/// A file in the same folder, for those that the umask allows.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder(path))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The kinds of places, each made when its turn comes.
    fn both(path: &Path) -> impl Iterator<Item = NewFile> {
        let place = |kind: usize| match kind {
            0 => NewFile::create(path).expect("made"),
            _ => NewFile { path: path.to_owned(), place: Place::Beside(beside(path).expect("made")) },
        };
        (0..2).map(place)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("listed");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }

    #[test]
    fn a_new_file_appears_when_it_is_published_and_replaces_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        for mut new in both(&path) {
            new.file().write_all(b"first").expect("written");
            assert!(!path.exists());
            new.publish().expect("published");
            assert_eq!(fs::read_to_string(&path).expect("there"), "first");
            fs::remove_file(&path).expect("removed");
        }
        fs::write(&path, "old").expect("written");
        for mut new in both(&path) {
            new.file().write_all(b"again").expect("written");
            assert_ne!(fs::read_to_string(&path).expect("there"), "again");
            new.publish().expect("published");
            assert_eq!(fs::read_to_string(&path).expect("there"), "again");
            fs::write(&path, "old").expect("written");
            assert_eq!(names(folder.path()), ["out"]);
        }
        let mode = |name: &str| fs::metadata(folder.path().join(name)).expect("there").permissions().mode();
        fs::write(folder.path().join("usual"), "").expect("written");
        assert_eq!(mode("out"), mode("usual"));
    }

    #[test]
    fn one_that_is_not_published_is_gone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for mut new in both(&folder.path().join("out")) {
            new.file().write_all(b"half").expect("written");
            drop(new);
            assert!(names(folder.path()).is_empty());
        }
    }

    #[test]
    fn a_disk_that_is_too_small_is_known_before_anything_is_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for mut new in both(&folder.path().join("out")) {
            let error = new.reserve(1 << 62).expect_err("no disk is so large").to_string();
            assert!(error.starts_with("it takes 4611686018427387904 bytes, and the disk of `/"), "{error}");
            new.reserve(1 << 10).expect("a kB is there");
        }
        assert!(NewFile::create(folder.path()).is_err(), "a folder");
    }
}
