//! Which compiler libraries this process has really mapped. A path, a size or a time may describe another file
//! than the one in memory; the build id in the mapped image cannot.

use std::path::PathBuf;

#[cfg(target_os = "linux")]
mod loader;

/// A library that takes part in compiling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// Where the loader found it.
    pub path: PathBuf,
    /// The linker's hash of it in lower-case hex; none if it was linked without `--build-id`.
    pub build_id: Option<String>,
}

/// The mapped images of hipRTC, its builtins, comgr, HIP and LLVM, or of NVRTC and its builtins, sorted by path. The
/// builtins are opened by the first compile, so ask after one.
#[cfg(target_os = "linux")]
pub fn images() -> Vec<Image> {
    loader::images()
}

/// None: those libraries are there for Linux alone, and for Windows, where nothing is asked.
#[cfg(not(target_os = "linux"))]
pub fn images() -> Vec<Image> {
    Vec::new()
}

/// Finds the note `GNU`, type 3, among ELF notes: three words (name size, content size, type), then name and
/// content, each padded to four bytes.
#[cfg(any(target_os = "linux", test))]
fn gnu_build_id(mut notes: &[u8]) -> Option<String> {
    const NT_GNU_BUILD_ID: usize = 3;
    let word = |notes: &[u8], at: usize| {
        notes.get(4 * at..4 * at + 4).map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")) as usize)
    };
    loop {
        let (name_len, content_len, kind) = (word(notes, 0)?, word(notes, 1)?, word(notes, 2)?);
        let content_at = 12 + name_len.next_multiple_of(4);
        let name = notes.get(12..12 + name_len)?;
        let content = notes.get(content_at..content_at + content_len)?;
        if name == b"GNU\0" && kind == NT_GNU_BUILD_ID {
            return Some(content.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(content_at + content_len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, content.len() as u32, kind] {
            bytes.extend(word.to_ne_bytes());
        }
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let notes =
            [note(b"GNU\0", 1, &[0; 16]), note(b"stapsdt\0", 3, b"abc"), note(b"GNU\0", 3, &[0xab, 0x01])].concat();
        assert_eq!(gnu_build_id(&notes).as_deref(), Some("ab01"));
    }

    #[test]
    fn notes_cut_short_give_none() {
        let notes = note(b"GNU\0", 3, &[1, 2, 3, 4]);
        for len in 0..notes.len() {
            assert_eq!(gnu_build_id(&notes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_process_without_hiprtc_has_no_images() {
        assert_eq!(images(), []);
    }
}
