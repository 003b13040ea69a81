//! comgr, AMD's code object manager, opened with dlopen: disassembles an object and finds the source line of each
//! instruction. hipRTC needs comgr, so it is available wherever AMD objects are compiled.
//!
//! It is an LLVM in a library: use it only in a process that may die. [`sys`] has the functions.

#![allow(unsafe_code)]

mod sys;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::{fmt, ptr};

use sys::{Api, Handle, Status};
pub use vendor_library::OpenError;
use vendor_library::{Installation, open_first};

/// The names that the library may have, best first; they differ in what nothing here uses.
const LIBRARIES: [&str; 4] = ["libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so", "libamd_comgr.so.1"];

/// An opened library, which stays mapped when this is dropped.
pub struct Comgr {
    api: Api,
    path: PathBuf,
}

/// Machine code, and where it is when it runs.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    pub address: u64,
    pub bytes: &'a [u8],
}

/// A disassembled instruction with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub address: u64,
    /// As an assembler takes it; `.long 0x…` of bytes that are none.
    pub text: String,
    /// Where it branches to.
    pub target: Option<u64>,
}

/// The name and the status of a comgr call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{call}` failed with status {status}")]
pub struct ComgrError {
    pub call: &'static str,
    /// As in `amd_comgr_status_t`.
    pub status: Status,
}

impl fmt::Debug for Comgr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comgr").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What the callbacks of a disassembly are given.
struct Reading<'a> {
    code: Code<'a>,
    text: String,
    target: Option<u64>,
}

impl Comgr {
    /// Files that may be it, best first.
    ///
    /// - `beside`: hipRTC's library: what it uses lies beside it
    /// - `root`: the value of `$ROCM_PATH`
    pub fn candidates(beside: Option<&Path>, root: Option<&Path>) -> Vec<PathBuf> {
        let folder = beside.and_then(Path::parent).filter(|folder| folder.is_dir());
        let near = folder.map(|folder| Installation::ROCM.candidates(&LIBRARIES, Some(folder), None));
        near.into_iter().flatten().chain(Installation::ROCM.candidates(&LIBRARIES, None, root)).collect()
    }

    /// Opens the first of the candidates that has its functions.
    ///
    /// # Errors
    /// Every candidate with the reason why it was not taken.
    pub fn open(candidates: &[PathBuf]) -> Result<Self, OpenError> {
        let (api, path) = open_first("comgr", candidates, Api::load)?;
        Ok(Self { api, path })
    }

    /// The instructions of `code`, by rising address, up to its end.
    ///
    /// - `arch`: `gfx1100`
    ///
    /// # Errors
    /// If comgr does not know the arch.
    pub fn disassemble(&self, arch: &str, code: Code<'_>) -> Result<Vec<Instruction>, ComgrError> {
        let isa = CString::new(format!("amdgcn-amd-amdhsa--{arch}")).unwrap_or_default();
        let mut handle = Handle(0);
        // SAFETY: `isa` is terminated and copied, `handle` is valid for writes, and the callbacks below have the types
        // that are asked for.
        let status = unsafe {
            (self.api.create_disassembly_info)(isa.as_ptr(), read_memory, take_text, take_target, &mut handle)
        };
        check("amd_comgr_create_disassembly_info", status)?;
        let mut all = Vec::new();
        let mut reading = Reading { code, text: String::new(), target: None };
        let end = code.address.saturating_add(code.bytes.len() as u64);
        let mut address = code.address;
        while address < end {
            (reading.text, reading.target) = (String::new(), None);
            let mut len_bytes = 0;
            let context = (&raw mut reading).cast::<c_void>();
            // SAFETY: the handle was just made and is destroyed below; `context` is the `Reading` that the callbacks
            // expect, which nobody else uses meanwhile; `len_bytes` is valid for writes.
            let status = unsafe { (self.api.disassemble_instruction)(handle, address, context, &mut len_bytes) };
            if status != sys::SUCCESS || len_bytes == 0 {
                let at = (address - code.address) as usize;
                let word = code.bytes[at..].iter().take(4).rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
                all.push(Instruction { address, text: format!(".long {word:#010x}"), target: None });
                address += 4;
                continue;
            }
            let (text, target) = (reading.text.trim().to_owned(), reading.target);
            all.push(Instruction { address, text, target });
            address += len_bytes;
        }
        // SAFETY: made above, and not used after this.
        let status = unsafe { (self.api.destroy_disassembly_info)(handle) };
        check("amd_comgr_destroy_disassembly_info", status)?;
        Ok(all)
    }

    /// The line of the source for each address, `kernel.hip:41`, with the lines that it was called from after it where
    /// functions were inlined, innermost first; none if the object does not say it.
    ///
    /// - `object`: the whole ELF file
    ///
    /// # Errors
    /// If comgr has no such function (before 2.4), or cannot read the object.
    pub fn lines(&self, object: &[u8], addresses: &[u64]) -> Result<Vec<Vec<String>>, ComgrError> {
        let missing = |call| ComgrError { call, status: sys::NOT_THERE };
        let symbolizer = self.api.symbolizer.as_ref().ok_or_else(|| missing("amd_comgr_create_symbolizer_info"))?;
        let (mut file, mut handle) = (Handle(0), Handle(0));
        // SAFETY: `file` is valid for writes.
        check("amd_comgr_create_data", unsafe { (symbolizer.create_data)(sys::EXECUTABLE, &mut file) })?;
        // SAFETY: the data were just made, and the bytes are copied.
        let set = unsafe { (symbolizer.set_data)(file, object.len(), object.as_ptr().cast()) };
        check("amd_comgr_set_data", set)?;
        // SAFETY: `file` lives until the end, `handle` is valid for writes, and the callback has the type that is asked
        // for.
        let made = unsafe { (symbolizer.create_info)(file, take_symbol, &mut handle) };
        check("amd_comgr_create_symbolizer_info", made)?;
        let mut all = Vec::new();
        for &address in addresses {
            let mut said = String::new();
            // SAFETY: the handle was just made; the context is the `String` that the callback expects, which nobody
            // else uses meanwhile.
            let status = unsafe { (symbolizer.symbolize)(handle, address, true, (&raw mut said).cast()) };
            check("amd_comgr_symbolize", status)?;
            all.push(said.lines().filter_map(line_of).collect());
        }
        // SAFETY: both were made above, and are not used after this.
        unsafe {
            check("amd_comgr_destroy_symbolizer_info", (symbolizer.destroy_info)(handle))?;
            check("amd_comgr_release_data", (symbolizer.release_data)(file))?;
        }
        Ok(all)
    }
}

/// `kernel.hip:41` of `add at /tmp/kernel.hip:41:7`, and of ` (inlined by) …`; none of `k at ??:0:0`.
fn line_of(said: &str) -> Option<String> {
    let (_, place) = said.rsplit_once(" at ").or_else(|| said.rsplit_once("(inlined by) "))?;
    let (place, _column) = place.trim().rsplit_once(':')?;
    let (file, line) = place.rsplit_once(':')?;
    let is_known = line.parse::<u32>().is_ok_and(|line| line > 0);
    is_known.then(|| format!("{}:{line}", file.rsplit('/').next().unwrap_or(file)))
}

fn check(call: &'static str, status: Status) -> Result<(), ComgrError> {
    if status == sys::SUCCESS { Ok(()) } else { Err(ComgrError { call, status }) }
}

/// Gives comgr up to `len_bytes` of the code; how many there were.
unsafe extern "C" fn read_memory(from: u64, to: *mut c_char, len_bytes: u64, context: *mut c_void) -> u64 {
    // SAFETY: `disassemble` passed a `Reading`, and nobody holds a reference to it during the call.
    let code = unsafe { (*context.cast::<Reading<'_>>()).code };
    let start = from.checked_sub(code.address).and_then(|at| usize::try_from(at).ok());
    let Some(bytes) = start.and_then(|start| code.bytes.get(start..)) else { return 0 };
    let n = bytes.len().min(usize::try_from(len_bytes).unwrap_or(usize::MAX));
    // SAFETY: comgr's buffer has `len_bytes`, and `n` is no more than these and than what the code has.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, n) };
    n as u64
}

unsafe extern "C" fn take_text(text: *const c_char, context: *mut c_void) {
    // SAFETY: comgr's string is terminated; the context is `disassemble`'s, to which nobody holds a reference.
    unsafe { (*context.cast::<Reading<'_>>()).text = CStr::from_ptr(text).to_string_lossy().into_owned() };
}

unsafe extern "C" fn take_target(address: u64, context: *mut c_void) {
    // SAFETY: the context is `disassemble`'s, to which nobody holds a reference.
    unsafe { (*context.cast::<Reading<'_>>()).target = Some(address) };
}

unsafe extern "C" fn take_symbol(text: *const c_char, context: *mut c_void) {
    // SAFETY: comgr's string is terminated; the context is the `String` of `lines`, to which nobody holds a reference.
    unsafe { (*context.cast::<String>()).push_str(&CStr::from_ptr(text).to_string_lossy()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_the_symbolizer_knows() {
        assert_eq!(line_of("add at /tmp/comgr-1/input/kernel.hip:41:7").as_deref(), Some("kernel.hip:41"));
        assert_eq!(line_of(" (inlined by) k at kernel.hip:9:0").as_deref(), Some("kernel.hip:9"));
        for nothing in ["k at ??:0:0", "", "k", "k at x"] {
            assert_eq!(line_of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn what_is_beside_hiprtc_goes_first_and_the_error_says_what_was_tried() {
        let folder = std::env::temp_dir().join(format!("comgr-candidates-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libamd_comgr.so.2"), "no library").unwrap();
        let all = Comgr::candidates(Some(&folder.join("libhiprtc.so")), None);
        assert_eq!(all[0], folder.join("libamd_comgr.so.2"));
        let error = Comgr::open(&all[..1]).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.to_string().starts_with("could not open comgr; tried"), "{error}");
    }
}
