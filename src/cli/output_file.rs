//! A file that a command leaves: whole, or not at all.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::NamedTempFile;

/// What is written lies beside its place until it is whole, and is gone if that never happens. Where a pipe or a device
/// is in that place, it is written to and stays.
pub(super) struct OutputFile {
    path: PathBuf,
    contents: &'static str,
    place: Place,
}

enum Place {
    Beside(NamedTempFile),
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
            Place::Beside(mut file) => {
                write(file.as_file_mut()).and_then(|()| file.persist(&path).map(drop).map_err(io::Error::from))
            }
        };
        filled.with_context(|| could_not_write(contents, &path))
    }
}

fn could_not_write(contents: &str, path: &Path) -> String {
    format!("could not write {contents} to `{}`", path.display())
}

fn open(path: &Path) -> io::Result<Place> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => Ok(Place::There(File::options().write(true).open(path)?)),
        _ => Ok(Place::Beside(beside(path)?)),
    }
}

/// A file in the same folder, for those that the umask allows: others may read what a command writes.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

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
