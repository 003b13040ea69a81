//! Files of other programs: only regular files are opened. They are mapped read-only, as reference-counted [`Bytes`]
//! whose slices keep the mapping alive, or read whole up to a bound. Also: memory for converted tensors, and the
//! heap's settings.

#![allow(unsafe_code)]

mod heap;
#[cfg(unix)]
mod shrunk;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;

pub use heap::return_large_memory;

/// Opens a regular file to be read. A pipe without a writer or a terminal would wait for ever, and a device has no end:
/// they are refused by what the open file is, whatever its name becomes meanwhile.
///
/// # Errors
/// What opening it gives, and [`io::ErrorKind::InvalidInput`] or [`io::ErrorKind::IsADirectory`] if it is none.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into()); // mapping one fails too, with a message about devices
    }
    if !kind.is_file() {
        let what = format!("it is {}, expected a regular file", name_of(kind));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(file)
}

/// Opening a pipe would wait for a writer.
#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// What something is called that is no file.
#[cfg(unix)]
fn name_of(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "no file",
    }
}

#[cfg(not(unix))]
fn name_of(_: std::fs::FileType) -> &'static str {
    "no file"
}

/// Reads a regular file of this many bytes at most.
///
/// # Errors
/// As [`open`], whatever reading gives, and [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_large = |found: u64| {
        let what = format!("the file has {found} bytes, expected {max_bytes} at most");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
    };
    let len = file.metadata()?.len();
    if len > max_bytes {
        return too_large(len);
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(max_bytes + 1).read_to_end(&mut bytes)?; // those of /proc say that they are empty, and others grow
    if bytes.len() as u64 > max_bytes { too_large(bytes.len() as u64) } else { Ok(bytes) }
}

/// Reads a text as [`read`] reads bytes.
///
/// # Errors
/// As [`read`], and [`io::ErrorKind::InvalidData`] where it is not UTF-8.
pub fn read_to_string(path: &Path, max_bytes: u64) -> io::Result<String> {
    let not_text = |error: std::string::FromUtf8Error| {
        let what = format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    String::from_utf8(read(path, max_bytes)?).map_err(not_text)
}

/// Maps a regular file into memory. An empty file gives empty bytes.
///
/// The file must not be truncated or rewritten in place while it is mapped, and there is no portable way to forbid it.
/// Reading a page that is gone ends the process with exit code 1 and a message that names the file.
///
/// # Errors
/// As [`open`], or whatever mapping the file gives.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only. That nobody truncates the file meanwhile is the caller's
    // part, stated above; it is what every program that maps its weights relies on.
    let mapping = unsafe { memmap2::Mmap::map(&file) }?;
    #[cfg(unix)]
    let mapping = shrunk::Watched::new(mapping, path);
    Ok(Bytes::from_owner(mapping))
}

/// About how many of these bytes are not in memory, so that reading them waits for the disk.
#[cfg(target_os = "linux")]
pub fn not_in_memory(bytes: &[u8]) -> usize {
    /// Pages that are sampled.
    const SAMPLES: usize = 64;
    // SAFETY: asks for a number.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    let n_pages = bytes.len() / page_bytes;
    let n_samples = n_pages.min(SAMPLES);
    let is_missing = |i: &usize| {
        let at = bytes.as_ptr().wrapping_add(i * n_pages / n_samples * page_bytes);
        let page = at.wrapping_sub(at.addr() % page_bytes);
        let mut state = 0_u8;
        // SAFETY: the page holds a byte of the slice, and one byte is written for it.
        let asked = unsafe { libc::mincore(page.cast_mut().cast(), page_bytes, &mut state) };
        asked == 0 && state & 1 == 0
    };
    let n_missing = (0..n_samples).filter(is_missing).count();
    if n_missing == 0 { 0 } else { bytes.len() / n_samples * n_missing }
}

/// The same where the system does not say.
#[cfg(not(target_os = "linux"))]
pub fn not_in_memory(_bytes: &[u8]) -> usize {
    0
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
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = std::env::temp_dir().join(format!("mapped-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends in a NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for (path, why) in [(pipe.as_path(), "a pipe"), (Path::new("/dev/zero"), "a device")] {
            for error in [map(path).err(), read(path, 10).err(), open(path).err()] {
                assert_eq!(error.unwrap().to_string(), format!("it is {why}, expected a regular file"));
            }
        }
        assert_eq!(map(&folder).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let file = folder.join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read(&file, 10).unwrap(), b"0123456789");
        assert_eq!(read(&file, 9).unwrap_err().to_string(), "the file has 10 bytes, expected 9 at most");
        assert_eq!(read(Path::new("/proc/self/maps"), 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&file, b"ab\xff").unwrap();
        assert_eq!(read_to_string(&file, 10).unwrap_err().to_string(), "it is not UTF-8 at byte 2");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_that_nobody_has_read_are_not_in_memory() {
        // Of pages of the program itself, whatever a file system does: those that nobody touched are nowhere.
        let mut pages = memmap2::MmapMut::map_anon(1 << 20).unwrap();
        assert_eq!(not_in_memory(&pages), 1 << 20);
        pages[..1 << 19].fill(1);
        let left = not_in_memory(&pages);
        assert!(left <= 1 << 19, "{left}"); // huge pages are there whole
        pages.fill(1);
        assert_eq!((not_in_memory(&pages), not_in_memory(&[])), (0, 0));
    }

    #[test]
    fn memory_of_its_own_is_filled_once_and_refused_where_there_is_none() {
        let bytes = filled(5000, |bytes| bytes[4999] = 7).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[4999]), (5000, 0, 7));
        assert!(filled(0, |bytes| assert!(bytes.is_empty())).unwrap().is_empty());
        assert!(filled(isize::MAX as usize, |_| panic!("never made")).is_err());
    }
}
