//! Which compiler libraries this process has really mapped. A path, a size or a time may describe another file
//! than the one in memory; the build id in the mapped image cannot.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::slice;

/// A library that takes part in compiling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// Where the loader found it.
    pub path: PathBuf,
    /// The linker's hash of it in lower-case hex; none if it was linked without `--build-id`.
    pub build_id: Option<String>,
}

const COMPILER_LIBRARIES: [&str; 7] = [
    "libhiprtc.",
    "libhiprtc-builtins.",
    "libamd_comgr.",
    "libamdhip64.",
    "libLLVM",
    "libnvrtc.",
    "libnvrtc-builtins.",
];

/// The mapped images of hipRTC, its builtins, comgr, HIP and LLVM, or of NVRTC and its builtins, sorted by path. The
/// builtins are opened by the first compile, so ask after one.
pub fn images() -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    // SAFETY: the callback matches the prototype and is given the vector, which outlives the call. The loader holds
    // its lock meanwhile, so no image is unmapped under the callback.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut images).cast()) };
    images.sort();
    images
}

/// Called by the loader once per image; keeps those with a compiler library's name.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, images: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid record, and back the pointer that `images` above gave it.
    let (info, images) = unsafe { (&*info, &mut *images.cast::<Vec<Image>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: not null, and the loader's names are terminated.
    let path = PathBuf::from(unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned());
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if COMPILER_LIBRARIES.iter().any(|prefix| file_name.starts_with(prefix)) {
        // SAFETY: the record of a mapped image.
        let build_id = unsafe { build_id(info) };
        images.push(Image { path, build_id });
    }
    0
}

/// The build id in an image's notes.
///
/// # Safety
/// `info` must be the loader's record of an image that is mapped now.
unsafe fn build_id(info: &libc::dl_phdr_info) -> Option<String> {
    // SAFETY: the loader's table of `dlpi_phnum` program headers.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().filter(|header| header.p_type == libc::PT_NOTE).find_map(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize) as *const u8;
        // SAFETY: note segments lie inside a loadable one, so the image's `p_memsz` bytes there are mapped.
        gnu_build_id(unsafe { slice::from_raw_parts(start, header.p_memsz as usize) })
    })
}

/// Finds the note `GNU`, type 3, among ELF notes: three words (name size, content size, type), then name and
/// content, each padded to four bytes.
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
