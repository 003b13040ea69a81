//! The images in this process, as the loader of ELF systems reports them.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::slice;

use super::{Image, gnu_build_id};

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
pub(super) fn images() -> Vec<Image> {
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
