//! A file mapped read-only into memory, as reference-counted [`Bytes`]: slices of it keep the mapping alive. And memory
//! of its own for what is made of such slices.

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

/// Bytes made in memory of their own: whole pages, aligned to them, zero until `fill` writes them.
///
/// # Errors
/// There is no such memory.
pub fn filled(len_bytes: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<Bytes> {
    if len_bytes == 0 {
        fill(&mut []);
        return Ok(Bytes::new());
    }
    let mut pages = memmap2::MmapMut::map_anon(len_bytes)?;
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::HugePage); // fewer TLB misses where the kernel grants it
    fill(&mut pages);
    Ok(Bytes::from_owner(pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_its_own_is_filled_once_and_refused_where_there_is_none() {
        let bytes = filled(5000, |bytes| bytes[4999] = 7).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[4999]), (5000, 0, 7));
        assert!(filled(0, |bytes| assert!(bytes.is_empty())).unwrap().is_empty());
        assert!(filled(isize::MAX as usize, |_| panic!("never made")).is_err());
    }
}
