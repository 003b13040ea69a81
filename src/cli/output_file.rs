//! A file that a command leaves: whole, or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::new_file::NewFile;

/// What is written has no name, or lies beside its place, until it is whole, and is gone if that never happens. Where a
/// pipe or a device is in that place, it is written to and stays.
pub(super) struct OutputFile {
    path: PathBuf,
    contents: &'static str,
    place: Place,
}

enum Place {
    Nameless(NewFile),
    /// It could be made: it is not there yet, so a program that is ended before leaves nothing.
    Beside,
    There(File),
}

impl OutputFile {
    /// Opens it before the work that gives its contents: whoever cannot write should not have to wait for that.
    ///
    /// - `contents`: what it will hold, for messages
    ///
    /// # Errors
    /// If there is no such folder, or nothing can be written there.
    pub fn create(path: &Path, contents: &'static str) -> anyhow::Result<Self> {
        // A link stays a link, and what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let place = open(&path).with_context(|| could_not_write(contents, &path))?;
        Ok(Self { path, contents, place })
    }

    /// Writes it and puts it in its place.
    ///
    /// # Errors
    /// What `write` gives, or the system.
    pub fn fill(self, write: impl FnOnce(&mut File) -> io::Result<()>) -> anyhow::Result<()> {
        let Self { path, contents, place } = self;
        let filled = match place {
            Place::There(mut file) => write(&mut file),
            Place::Nameless(file) => fill(file, write),
            Place::Beside => Postponed::new().and_then(|_signals| fill(NewFile::create(&path)?, write)),
        };
        filled.with_context(|| could_not_write(contents, &path))
    }
}

fn fill(mut file: NewFile, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    write(file.file())?;
    file.publish()
}

/// While it lives, signals that end the program wait; then the last one does what it would have done.
struct Postponed {
    seen: Arc<AtomicUsize>,
    handlers: Vec<SigId>,
}

impl Postponed {
    fn new() -> io::Result<Self> {
        let mut postponed = Self { seen: Arc::default(), handlers: Vec::new() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let seen = Arc::clone(&postponed.seen);
            postponed.handlers.push(signal_hook::flag::register_usize(signal, seen, signal as usize)?);
        }
        Ok(postponed)
    }
}

impl Drop for Postponed {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
        let signal = self.seen.load(Ordering::Relaxed) as i32;
        if signal != 0 {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}

fn could_not_write(contents: &str, path: &Path) -> String {
    format!("could not write {contents} to `{}`", path.display())
}

fn open(path: &Path) -> io::Result<Place> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => Ok(Place::There(File::options().write(true).open(path)?)),
        _ => {
            let file = NewFile::create(path)?;
            Ok(if file.is_nameless() { Place::Nameless(file) } else { Place::Beside })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
    fn where_files_have_names_none_is_there_before_it_is_filled() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out");
        let n_files = || fs::read_dir(folder.path()).expect("listed").count();
        let opened = OutputFile::create(&path, "words").expect("opened");
        assert_eq!(n_files(), 0);
        let beside = OutputFile { place: Place::Beside, ..opened };
        beside.fill(|file| file.write_all(b"new")).expect("in place");
        assert_eq!((fs::read_to_string(&path).expect("there").as_str(), n_files()), ("new", 1));
    }

    #[test]
    fn a_new_file_has_the_mode_that_new_files_have() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mode = |name: &str| fs::metadata(folder.path().join(name)).expect("there").permissions().mode();
        fs::write(folder.path().join("usual"), "").expect("written");
        written(&folder.path().join("ours"), "");
        assert_eq!(mode("ours"), mode("usual"));
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
