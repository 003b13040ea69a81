//! The C functions of comgr: types, and pointers looked up once.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

/// `amd_comgr_status_t`. An integer and not an enum: a newer library may return what we do not know.
pub type Status = c_int;

/// `AMD_COMGR_STATUS_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;
/// No status of comgr's: the function is not there.
pub(crate) const NOT_THERE: Status = -1;
/// `AMD_COMGR_DATA_KIND_EXECUTABLE`.
pub(crate) const EXECUTABLE: c_int = 8;

/// `amd_comgr_data_t`, `amd_comgr_disassembly_info_t` and their kin: structs of one number, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Handle(pub(crate) u64);

type ReadMemory = unsafe extern "C" fn(from: u64, to: *mut c_char, len_bytes: u64, context: *mut c_void) -> u64;
type TakeText = unsafe extern "C" fn(text: *const c_char, context: *mut c_void);
type TakeAddress = unsafe extern "C" fn(address: u64, context: *mut c_void);

type CreateDisassemblyInfo = unsafe extern "C" fn(
    isa: *const c_char,
    read_memory: ReadMemory,
    take_text: TakeText,
    take_target: TakeAddress,
    info: *mut Handle,
) -> Status;
type DisassembleInstruction =
    unsafe extern "C" fn(info: Handle, address: u64, context: *mut c_void, len_bytes: *mut u64) -> Status;
type Destroy = unsafe extern "C" fn(info: Handle) -> Status;
type CreateData = unsafe extern "C" fn(kind: c_int, data: *mut Handle) -> Status;
type SetData = unsafe extern "C" fn(data: Handle, len_bytes: usize, bytes: *const c_char) -> Status;
type CreateSymbolizerInfo = unsafe extern "C" fn(object: Handle, take: TakeText, info: *mut Handle) -> Status;
type Symbolize = unsafe extern "C" fn(info: Handle, address: u64, is_code: bool, context: *mut c_void) -> Status;

/// The function pointers, valid as long as this lives.
pub(crate) struct Api {
    pub(crate) create_disassembly_info: CreateDisassemblyInfo,
    pub(crate) disassemble_instruction: DisassembleInstruction,
    pub(crate) destroy_disassembly_info: Destroy,
    /// `None` before comgr 2.4, which lacks these functions.
    pub(crate) symbolizer: Option<Symbolizer>,
    // Never closed: that would run the destructors of all of LLVM in a process that is about to end anyway.
    _library: ManuallyDrop<Library>,
}

/// The functions that find the source line of a code address.
pub(crate) struct Symbolizer {
    pub(crate) create_data: CreateData,
    pub(crate) set_data: SetData,
    pub(crate) release_data: Destroy,
    pub(crate) create_info: CreateSymbolizerInfo,
    pub(crate) symbolize: Symbolize,
    pub(crate) destroy_info: Destroy,
}

impl Api {
    /// Opens `path` and looks every function up.
    ///
    /// # Errors
    /// The loader's own words: no such file, a missing dependency, a missing symbol.
    pub(crate) fn load(path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: opening a library runs its constructors. The caller chose the file to be comgr; LLVM's only register
        // tables and options.
        let library = unsafe { Library::new(path) }?;
        // SAFETY: the types above are those of `amd_comgr.h`, the same from comgr 2.0 to 3.0, and the library stays
        // loaded for the life of the process, so the pointers stay valid.
        unsafe {
            Ok(Self {
                create_disassembly_info: *library.get("amd_comgr_create_disassembly_info")?,
                disassemble_instruction: *library.get("amd_comgr_disassemble_instruction")?,
                destroy_disassembly_info: *library.get("amd_comgr_destroy_disassembly_info")?,
                symbolizer: Symbolizer::load(&library).ok(),
                _library: ManuallyDrop::new(library),
            })
        }
    }
}

impl Symbolizer {
    /// # Safety
    /// `library` must be comgr, and stay loaded.
    unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: as in `Api::load`.
        unsafe {
            Ok(Self {
                create_data: *library.get("amd_comgr_create_data")?,
                set_data: *library.get("amd_comgr_set_data")?,
                release_data: *library.get("amd_comgr_release_data")?,
                create_info: *library.get("amd_comgr_create_symbolizer_info")?,
                symbolize: *library.get("amd_comgr_symbolize")?,
                destroy_info: *library.get("amd_comgr_destroy_symbolizer_info")?,
            })
        }
    }
}
