//! Linux only: files without a name, and reserved space for them.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{PREFIX, Place, folder};

/// Whether the file system was asked to keep space for so much more, and has too little.
pub(super) fn cannot_keep(file: &File, len_bytes: u64) -> bool {
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len_bytes) == Err(Errno::NOSPC)
}

/// Fails where there are no nameless files, or nothing by which one could be given a name.
pub(super) fn nameless(folder: &Path, mode: u32) -> io::Result<Place> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(mode))?);
    rustix::fs::stat(own_link(&file).as_c_str())?;
    let _ = file.try_lock(); // it has a name of its own for a moment, where it takes the place of another
    Ok(Place::Nameless(file))
}

/// The link to an open file that `linkat` follows.
fn own_link(file: &File) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL")
}

/// A file that is there already is replaced by renaming: that takes a name of our own, for a moment.
pub(super) fn publish_nameless(file: &File, path: &Path) -> io::Result<()> {
    let link = |to: &Path| rustix::fs::linkat(CWD, own_link(file).as_c_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        Err(Errno::EXIST) => {
            let named = tempfile::Builder::new().prefix(PREFIX).make_in(folder(path), |name| Ok(link(name)?))?;
            Ok(named.persist(path).map(drop)?)
        }
        other => Ok(other?),
    }
}
