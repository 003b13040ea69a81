//! Whether this process may open a device file; if not, who owns it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use system::os::MetadataExt;

/// A way to find out whether a file can be opened for reading and writing.
pub(super) type Open<'a> = &'a dyn Fn(&Path) -> io::Result<()>;

/// The result of opening a device file for reading and writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Granted,
    Missing,
    /// It belongs to a group that this process is not in; the group's name, or its number where it has none.
    Group(String),
    /// The system refuses it although the file's mode does not: a container that was not given the device.
    Container,
    /// Anything else, in the system's words.
    Failed(String),
}

pub(super) fn open(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path).map(drop)
}

impl Access {
    pub(super) fn probe(root: &Path, path: &Path, open: Open<'_>) -> Self {
        let file = root.join(path);
        match open(&file) {
            Ok(()) => Self::Granted,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            // EPERM is the word of cgroups and seccomp, EACCES that of modes.
            Err(error) if error.raw_os_error() == Some(1) => Self::Container,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match fs::metadata(&file) {
                Ok(metadata) => Self::Group(group(root, metadata.gid())),
                Err(_) => Self::Failed(error.to_string()),
            },
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    /// Whether the file is not there.
    pub(crate) fn is_missing(&self) -> bool {
        *self == Self::Missing
    }
}

/// The name of a group, or its number.
fn group(root: &Path, gid: u32) -> String {
    let groups = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| gid.to_string())
}
