//! A file that appears whole or not at all, whatever ends the program: readers see all of it, or what was there
//! before. The cache's entries are folders, which a file cannot replace, so the cache has its own way.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

#[cfg(target_os = "linux")]
use linux::{cannot_keep, nameless, publish_nameless};

use crate::os::{MetadataExt, NO_FOLLOW, OpenOptionsExt, free_bytes, sync_folder, user, with_mode};

#[cfg(target_os = "linux")]
mod linux;

/// What the names of files begin with that are not whole yet.
const PREFIX: &str = ".gptoss-jit-new-";
/// The most tries to make a file, in case others take it for a leftover.
const MAX_TRIES: usize = 8;
/// Folders with more names than this are not searched.
const MAX_NAMES: usize = 10_000;

/// A file without a name, if the file system has such files: even a killed program leaves nothing. Otherwise it is
/// beside its place, locked, until it is whole; the next program removes what a killed one left.
pub struct NewFile {
    path: PathBuf,
    place: Place,
}

enum Place {
    #[cfg(target_os = "linux")]
    Nameless(File),
    Beside(NamedTempFile),
}

impl NewFile {
    /// Opens it. A file that is there already is replaced and keeps its mode; a new one is for those that the umask
    /// allows.
    ///
    /// # Errors
    /// There is no such folder, nothing can be made there, or what has the name is no file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::open(path, 0o666, &[nameless, beside])
    }

    /// Opens one for its owner alone, in the place of whatever has the name: a link, a pipe, a file of another mode.
    ///
    /// # Errors
    /// There is no such folder, or nothing can be made there.
    pub fn create_private(path: &Path) -> io::Result<Self> {
        Self::open_in(path.to_path_buf(), 0o600, &[nameless, beside])
    }

    /// As [`NewFile::create`] on a file system without nameless files.
    ///
    /// # Errors
    /// Those of [`NewFile::create`].
    pub fn create_beside(path: &Path) -> io::Result<Self> {
        Self::open(path, 0o666, &[beside])
    }

    /// - `mode`: of a file that is not there yet, before the umask
    /// - `places`: ways to open it, of which the first that works is taken
    fn open(path: &Path, mode: u32, places: &[Open]) -> io::Result<Self> {
        // A link stays a link, and what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let before = fs::metadata(&path).ok();
        match &before {
            Some(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Some(found) if !found.is_file() => return Err(io::Error::other("what is there is no file")),
            _ => {}
        }
        let mut new = Self::open_in(path, mode, places)?;
        if let Some(before) = before {
            new.file().set_permissions(before.permissions())?; // before there is anything in it to read
        }
        Ok(new)
    }

    fn open_in(path: PathBuf, mode: u32, places: &[Open]) -> io::Result<Self> {
        sweep(folder(&path));
        let mut opened = Err(io::ErrorKind::Unsupported.into());
        for open in places {
            opened = opened.or_else(|_| open(folder(&path), mode));
        }
        Ok(Self { place: opened?, path })
    }

    /// Has this much of the disk kept for it, so that a disk that is too small is known of before there is anything to
    /// write.
    ///
    /// # Errors
    /// [`NoSpace`]. Where a file system cannot tell or cannot keep space, writing will.
    pub fn reserve(&mut self, len_bytes: u64) -> Result<(), NoSpace> {
        let folder = folder(&self.path).to_owned();
        let free = free_bytes(&folder);
        let is_too_small = free.is_some_and(|free| free < len_bytes) || cannot_keep(self.file(), len_bytes);
        if is_too_small {
            return Err(NoSpace { folder, needed_bytes: len_bytes, free_bytes: free.unwrap_or(0) });
        }
        Ok(())
    }

    /// The temporary name beside its place, if it has one until it is whole.
    pub fn name_until_then(&self) -> Option<&Path> {
        match &self.place {
            #[cfg(target_os = "linux")]
            Place::Nameless(_) => None,
            Place::Beside(file) => Some(file.path()),
        }
    }

    /// What has been written so far can be read from it too.
    pub fn file(&mut self) -> &mut File {
        match &mut self.place {
            #[cfg(target_os = "linux")]
            Place::Nameless(file) => file,
            Place::Beside(file) => file.as_file_mut(),
        }
    }

    /// Puts it in its place, in that of another file if there is one. Its contents are on the disk before its name is.
    ///
    /// # Errors
    /// What the system says.
    pub fn publish(mut self) -> io::Result<()> {
        self.file().sync_all()?;
        let folder = folder(&self.path).to_owned();
        match self.place {
            #[cfg(target_os = "linux")]
            Place::Nameless(file) => publish_nameless(&file, &self.path)?,
            Place::Beside(file) => drop(file.persist(&self.path)?),
        }
        // A folder that cannot be read, or not be synced, is no reason to say that the file is not there.
        let _ = sync_folder(&folder);
        Ok(())
    }
}

/// A disk without room for a file.
#[derive(Debug, thiserror::Error)]
#[error("it takes {needed_bytes} bytes, and the disk of `{}` has {free_bytes} free", folder.display())]
pub struct NoSpace {
    folder: PathBuf,
    needed_bytes: u64,
    free_bytes: u64,
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The system keeps no space.
#[cfg(not(target_os = "linux"))]
fn cannot_keep(_: &File, _: u64) -> bool {
    false
}

/// A way to open a file of that mode in a folder.
type Open = fn(&Path, u32) -> io::Result<Place>;

/// There are no nameless files.
#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path, _: u32) -> io::Result<Place> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Until it is locked others may take it for one that was left, lock it and remove it: then there is another one.
fn beside(folder: &Path, mode: u32) -> io::Result<Place> {
    for _ in 0..MAX_TRIES {
        let file = with_mode(tempfile::Builder::new().prefix(PREFIX), mode).tempfile_in(folder)?;
        let locked = file.as_file().try_lock(); // where locks do not work, it is not swept either
        if !matches!(locked, Err(TryLockError::WouldBlock)) && file.as_file().metadata()?.nlink() > 0 {
            return Ok(Place::Beside(file));
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process removes new files there"))
}

/// Removes this user's files that killed programs left in a folder before they were whole.
fn sweep(folder: &Path) {
    let Ok(names) = fs::read_dir(folder) else { return };
    let is_ours = |name: &fs::DirEntry| name.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for path in names.take(MAX_NAMES).flatten().filter(is_ours).map(|name| name.path()) {
        if let Ok(_held) = left(&path) {
            tracing::debug!("removing `{}`, the leftover of a killed process", path.display());
            let _ = fs::remove_file(&path);
        }
    }
}

/// A file without a writer, locked.
fn left(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != user() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    file.try_lock()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;

    use super::*;
    use crate::os::PermissionsExt;

    /// The kinds of places, each made when its turn comes. Where there are no nameless files, one of them twice.
    fn both(path: &Path) -> impl Iterator<Item = NewFile> {
        let ways: [&[Open]; 2] = [&[nameless, beside], &[beside]];
        ways.into_iter().map(|places| NewFile::open(path, 0o666, places).expect("made"))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
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
    }

    #[test]
    fn a_new_file_has_the_usual_mode_and_one_that_was_there_keeps_its_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, usual) = (folder.path().join("out"), folder.path().join("usual"));
        fs::write(&usual, "").expect("written");
        for new in both(&path) {
            new.publish().expect("published");
            assert_eq!(mode(&path), mode(&usual));
            fs::remove_file(&path).expect("removed");
        }
        fs::write(&path, "").expect("written");
        for kept in [0o600, 0o640, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).expect("ours");
            for mut new in both(&path) {
                assert_eq!(
                    new.file().metadata().expect("open").permissions().mode() & 0o7777,
                    kept,
                    "while it is written"
                );
                new.publish().expect("published");
                assert_eq!(mode(&path), kept);
            }
        }
        let private = folder.path().join("private");
        NewFile::create_private(&private).expect("made").publish().expect("published");
        assert_eq!(mode(&private), 0o600);
    }

    #[test]
    fn a_link_stays_and_what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "old").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        for mut new in both(&link) {
            new.file().write_all(b"new").expect("written");
            new.publish().expect("published");
            assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
            assert_eq!(fs::read_to_string(&target).expect("there"), "new");
        }
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        assert!(NewFile::create(&socket).is_err());
        assert!(NewFile::create(folder.path()).is_err(), "a folder");
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

    /// The folder in which a child of a test is to be killed over a file.
    const FOLDER: &str = "NEW_FILE_TEST_FOLDER";

    #[test]
    fn what_a_killed_program_left_is_removed_and_nothing_else() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            let mut new = NewFile::open(&Path::new(&folder).join("out"), 0o666, &[beside]).expect("made");
            new.file().write_all(b"half").expect("written");
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("ours");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let own = format!("{}::what_a_killed_program_left_is_removed_and_nothing_else", module_path!());
        let own = own.split_once("::").expect("a path").1;
        let [alive, foreign] = [".gptoss-jit-new-alive", "thesis"].map(|name| folder.path().join(name));
        for path in [&alive, &foreign] {
            fs::write(path, "kept").expect("written");
        }
        let held = File::open(&alive).expect("there");
        held.try_lock().expect("nobody's");
        let link = folder.path().join(".gptoss-jit-new-link");
        std::os::unix::fs::symlink(&foreign, &link).expect("linked");
        let n_others = 3;
        // Each removes what the one before it left.
        for _ in 0..2 {
            let mut child = std::process::Command::new(std::env::current_exe().expect("this"));
            child.args(["--exact", own, "--nocapture"]).env(FOLDER, folder.path());
            let status = child.output().expect("started").status;
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
            assert_eq!(names(folder.path()).len(), n_others + 1, "{:?}", names(folder.path()));
        }
        // One that is being written is no such thing, however long that takes.
        let mut new = NewFile::open(&folder.path().join("out"), 0o666, &[beside]).expect("made");
        new.file().set_modified(std::time::SystemTime::UNIX_EPOCH).expect("ours");
        sweep(folder.path());
        assert_eq!(names(folder.path()).len(), n_others + 1);
        new.publish().expect("it is still there");
        assert_eq!(names(folder.path()).len(), n_others + 1, "`out`");
        for kept in [alive, foreign, link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn those_who_make_files_and_those_who_sweep_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let path = folder.path().join(format!("out{writer}"));
                scope.spawn(move || {
                    for _ in 0..200 {
                        NewFile::open(&path, 0o666, &[beside]).expect("made").publish().expect("it is still there");
                        fs::remove_file(&path).expect("there");
                    }
                });
            }
        });
        assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
    }

    #[test]
    fn a_disk_that_is_too_small_is_known_before_anything_is_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for mut new in both(&folder.path().join("out")) {
            let error = new.reserve(1 << 62).expect_err("no disk is so large").to_string();
            assert!(error.starts_with("it takes 4611686018427387904 bytes, and the disk of `/"), "{error}");
            new.reserve(1 << 10).expect("a kB is there");
        }
    }
}
