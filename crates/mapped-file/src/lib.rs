//! A file mapped read-only into memory, as reference-counted [`Bytes`]: slices of it keep the mapping alive.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;

/// Maps `path` into memory. An empty file gives empty bytes.
///
/// The file must not be truncated or rewritten in place while it is mapped: reading a page that is gone kills
/// the process (SIGBUS), and there is no portable way to forbid it.
///
/// # Errors
/// Whatever opening or mapping the file gives.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into()); // mapping one fails too, with a message about devices
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. That nobody truncates the file meanwhile is the caller's
    // part, stated above; it is what every program that maps its weights relies on.
    let mapping = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(mapping))
}
