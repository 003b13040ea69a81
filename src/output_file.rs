//! A command's output file, which appears whole or not at all, if the old file can be replaced.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use system::new_file::NewFile;

/// What is written appears when it is whole. Where a pipe or a device is in that place, it is written to and stays; and
/// so is a file that may be written but not replaced, because of its folder: if that writing fails, what the file held
/// is lost.
pub(super) struct OutputFile {
    path: PathBuf,
    contents: &'static str,
    place: Place,
}

enum Place {
    New(NewFile),
    There(File),
}

impl OutputFile {
    /// Opens it before the work that gives its contents, so that a user without the right to write learns this first.
    /// An existing file stays as it is until [`OutputFile::fill`].
    ///
    /// - `contents`: what it will hold, for messages
    ///
    /// # Errors
    /// If there is no such folder, or nothing can be written there.
    pub(crate) fn create(path: &Path, contents: &'static str) -> anyhow::Result<Self> {
        let place = open(path).with_context(|| could_not_write(contents, path))?;
        Ok(Self { path: path.to_path_buf(), contents, place })
    }

    /// Has signals that end the program take with them what lies beside its place until then, on file systems without
    /// nameless files. Not for who heeds signals otherwise.
    ///
    /// # Errors
    /// If the signals cannot be watched.
    pub(crate) fn remove_with_the_program(&self) -> io::Result<()> {
        let Place::New(new) = &self.place else { return Ok(()) };
        let Some(name) = new.name_until_then() else { return Ok(()) };
        remove_at_signals(name)
    }

    /// Writes it and puts it in its place.
    ///
    /// - `write`: called again where the system tells only in the end that the file there cannot be replaced
    ///
    /// # Errors
    /// What `write` gives, or the system.
    pub(crate) fn fill(self, write: impl Fn(&mut File) -> io::Result<()>) -> anyhow::Result<()> {
        let Self { path, contents, place } = self;
        let mut file = match place {
            Place::There(file) => file,
            Place::New(mut new) => {
                let error = match write(new.file()).and_then(|()| new.publish()) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                };
                instead_of_replacing(&path, error).with_context(|| could_not_write(contents, &path))?
            }
        };
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        emptied(&file).and_then(|()| write(&mut file)).with_context(|| {
            let lost = if is_file { ", and what it held is lost: its folder lets nobody replace it" } else { "" };
            could_not_write(contents, &path) + lost
        })
    }
}

/// Has signals that end the program remove a file first.
#[cfg(unix)]
fn remove_at_signals(name: &Path) -> io::Result<()> {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    for signal in crate::run::getp::signals::heeded() {
        let ((mut came, tells), name) = (UnixStream::pair()?, name.to_owned());
        signal_hook::low_level::pipe::register(signal, tells)?;
        std::thread::spawn(move || {
            if came.read_exact(&mut [0]).is_ok() {
                let _ = fs::remove_file(name); // it may be in its place by now
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
    }
    Ok(())
}

/// No thread waits for signals: the next [`NewFile`] in the folder removes what was left.
#[cfg(not(unix))]
fn remove_at_signals(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The same for contents that no memory holds: written piece by piece, then put in their place.
impl OutputFile {
    /// Writes the next piece. A file that may not be replaced is emptied before the first.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let file = match &mut self.place {
            Place::New(new) => new.file(),
            Place::There(file) => file,
        };
        let is_first = file.stream_position().is_ok_and(|at| at == 0);
        let begun = if is_first { emptied(file) } else { Ok(()) };
        begun.and_then(|()| file.write_all(bytes)).with_context(|| could_not_write(self.contents, &self.path))
    }

    /// Puts what was written in its place.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Self { path, contents, place: Place::New(mut new) } = self else { return Ok(()) };
        let copied = |mut written: File, error| {
            let mut there = instead_of_replacing(&path, error)?;
            written.rewind()?;
            emptied(&there)?;
            io::copy(&mut written, &mut there).map(drop)
        };
        let written = new.file().try_clone();
        new.publish().or_else(|error| copied(written?, error)).with_context(|| could_not_write(contents, &path))
    }
}

/// Empties what is a file.
fn emptied(file: &File) -> io::Result<()> {
    if file.metadata().is_ok_and(|found| found.is_file()) { file.set_len(0) } else { Ok(()) }
}

fn could_not_write(contents: &str, path: &Path) -> String {
    format!("could not write {contents} to `{}`", path.display())
}

fn open(path: &Path) -> io::Result<Place> {
    if fs::metadata(path).is_ok_and(|found| !found.is_dir() && !found.is_file()) {
        return Ok(Place::There(File::options().write(true).open(path)?));
    }
    NewFile::create(path).map(Place::New).or_else(|error| instead_of_replacing(path, error).map(Place::There))
}

/// An existing file to overwrite in place: its folder cannot be written, or is sticky and the file another user's, or
/// the file is mounted.
///
/// # Errors
/// `error`, if that says anything else, or the file cannot be written either.
fn instead_of_replacing(path: &Path, error: io::Error) -> io::Result<File> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    if !matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy) {
        return Err(error);
    }
    File::options().write(true).open(path).map_err(|_| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::getp::signals::heeded;

    fn written(path: &Path, text: &str) {
        let file = OutputFile::create(path, "words").expect("opened");
        file.fill(|file| file.write_all(text.as_bytes())).expect("in place");
    }

    #[test]
    fn a_file_is_replaced_when_it_is_whole_and_not_before() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        fs::write(&path, "old").expect("written");
        let file = OutputFile::create(&path, "words").expect("opened");
        let half = file.fill(|file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(half.expect_err("full").to_string(), format!("could not write words to `{}`", path.display()));
        assert_eq!(fs::read_to_string(&path).expect("there"), "old");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing is left of it");
        written(&path, "new");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new");
    }

    #[test]
    fn contents_in_pieces_appear_when_the_last_is_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        fs::write(&path, "longer than what comes").expect("written");
        let mut file = OutputFile::create(&path, "words").expect("opened");
        for piece in ["one", "two"] {
            file.append(piece.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("there"), "longer than what comes");
        }
        file.finish().expect("in place");
        assert_eq!(fs::read_to_string(&path).expect("there"), "onetwo");

        let there = instead_of_replacing(&path, io::ErrorKind::ReadOnlyFilesystem.into()).expect("opened");
        let mut file = OutputFile { path: path.clone(), contents: "words", place: Place::There(there) };
        for piece in ["3", "4"] {
            file.append(piece.as_bytes()).expect("written");
        }
        file.finish().expect("in place");
        assert_eq!(fs::read_to_string(&path).expect("there"), "34");

        let mut unfinished = OutputFile::create(&path, "words").expect("opened");
        unfinished.append(b"half").expect("written");
        drop(unfinished);
        assert_eq!(fs::read_to_string(&path).expect("there"), "34");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing is left of it");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_written_over() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        fs::write(&path, "longer than what comes").expect("written");
        let opened = || {
            let file = instead_of_replacing(&path, io::ErrorKind::ReadOnlyFilesystem.into()).expect("opened");
            OutputFile { path: path.clone(), contents: "words", place: Place::There(file) }
        };
        let unused = opened();
        assert_eq!(fs::read_to_string(&path).expect("there"), "longer than what comes", "as it was until it is filled");
        unused.fill(|file| file.write_all(b"new")).expect("in place");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new");

        let error = opened().fill(|_| Err(io::ErrorKind::StorageFull.into())).expect_err("full").to_string();
        assert!(error.ends_with("/out`, and what it held is lost: its folder lets nobody replace it"), "{error}");
        // A full disk is no reason to empty a file.
        assert!(instead_of_replacing(&path, io::ErrorKind::StorageFull.into()).is_err());
        fs::remove_file(&path).expect("removed");
        let error = instead_of_replacing(&path, io::ErrorKind::PermissionDenied.into()).expect_err("nothing is there");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "what was wrong first");
    }

    /// The folder in which a child of a test is ended over a file, and by which signal.
    const ENDED: &str = "OUTPUT_FILE_TEST_ENDED";

    #[test]
    fn what_has_a_name_already_goes_with_the_program_that_a_signal_ends() {
        if let Ok(task) = std::env::var(ENDED) {
            let (signal, folder) = task.split_once(' ').expect("two words");
            let new = NewFile::create_beside(&Path::new(folder).join("out")).expect("made");
            let file = OutputFile { path: "out".into(), contents: "words", place: Place::New(new) };
            file.remove_with_the_program().expect("watched");
            assert_eq!(fs::read_dir(folder).expect("listed").count(), 1);
            signal_hook::low_level::raise(signal.parse().expect("a number")).expect("sent");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        let own = format!("{}::what_has_a_name_already_goes_with_the_program_that_a_signal_ends", module_path!());
        let own = own.split_once("::").expect("a path").1;
        for signal in heeded() {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut child = std::process::Command::new(std::env::current_exe().expect("this"));
            child.args(["--exact", own, "--nocapture"]).env(ENDED, format!("{signal} {}", folder.path().display()));
            let output = child.output().expect("started");
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(signal), "{output:?}");
            assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
        }
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "old").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        written(&link, "new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&target).expect("there"), "new");

        // A socket stands for what is no file: it cannot even be opened, and it is not replaced.
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        assert!(OutputFile::create(&socket, "words").is_err());
        assert!(!fs::symlink_metadata(&socket).expect("there").is_file());
        assert!(OutputFile::create(folder.path(), "words").is_err(), "a folder");
    }
}
