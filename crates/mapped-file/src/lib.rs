//! A file mapped read-only into memory, as reference-counted [`Bytes`]: slices of it keep the mapping alive. And memory
//! without a file, for what is made instead of read.

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

/// Zeroed memory of this process, to be filled and then shared as [`Bytes`]. It begins at a page, and the system is asked
/// for huge pages, which spare what reads all of it one page walk in 512.
pub struct Pages(memmap2::MmapMut);

impl Pages {
    /// Memory for `len_bytes` bytes.
    ///
    /// # Errors
    /// The system has none.
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        let pages = memmap2::MmapMut::map_anon(len_bytes.max(1))?;
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage); // a wish: small pages work too
        Ok(Self(pages))
    }

    /// All of it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// As bytes, which nobody can change any more.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self.0)
    }
}
