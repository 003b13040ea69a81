//! The C functions of hipRTC and NVRTC: types, and pointers looked up once.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

use crate::Compiler;

/// `hiprtcResult`, `nvrtcResult`. An integer and not an enum: a newer library may return what we do not know.
pub type Status = c_int;

/// `HIPRTC_SUCCESS`, `NVRTC_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;

/// `hiprtcProgram`, `nvrtcProgram`: an opaque pointer.
pub(crate) type Program = *mut c_void;

type CreateProgram = unsafe extern "C" fn(
    program: *mut Program,
    source: *const c_char,
    name: *const c_char,
    n_headers: c_int,
    headers: *const *const c_char,
    include_names: *const *const c_char,
) -> Status;
type CompileProgram = unsafe extern "C" fn(program: Program, n_options: c_int, options: *const *const c_char) -> Status;
type DestroyProgram = unsafe extern "C" fn(program: *mut Program) -> Status;
pub(crate) type GetSize = unsafe extern "C" fn(program: Program, len_bytes: *mut usize) -> Status;
pub(crate) type GetBytes = unsafe extern "C" fn(program: Program, bytes: *mut c_char) -> Status;
type GetErrorString = unsafe extern "C" fn(status: Status) -> *const c_char;

/// The function pointers, valid as long as this lives.
pub(crate) struct Api {
    pub(crate) create_program: CreateProgram,
    pub(crate) compile_program: CompileProgram,
    pub(crate) destroy_program: DestroyProgram,
    pub(crate) get_log_size: GetSize,
    pub(crate) get_log: GetBytes,
    pub(crate) get_code_size: GetSize,
    pub(crate) get_code: GetBytes,
    pub(crate) get_error_string: GetErrorString,
    // Never closed: that would run the destructors of all of LLVM in a process that is about to end anyway.
    _library: ManuallyDrop<Library>,
}

impl Api {
    /// Opens `path` and looks every function up.
    ///
    /// # Errors
    /// The loader's own words: no such file, a missing dependency, a missing symbol.
    pub(crate) fn load(compiler: &Compiler, path: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: opening a library runs its constructors. The caller chose the file to be his compiler; that one
        // and LLVM's only register tables and options.
        let library = unsafe { Library::new(path) }?;
        let symbol = |name: &str| compiler.function(name);
        // SAFETY: the types above are those of `hip/hiprtc.h`, the same from ROCm 5 to 7, and of `nvrtc.h`, the same in
        // CUDA 12 and 13; and the library stays loaded for the life of the process, so the pointers stay valid.
        unsafe {
            Ok(Self {
                create_program: *library.get(symbol("CreateProgram"))?,
                compile_program: *library.get(symbol("CompileProgram"))?,
                destroy_program: *library.get(symbol("DestroyProgram"))?,
                get_log_size: *library.get(symbol("GetProgramLogSize"))?,
                get_log: *library.get(symbol("GetProgramLog"))?,
                get_code_size: *library.get(symbol("GetCodeSize"))?,
                get_code: *library.get(symbol("GetCode"))?,
                get_error_string: *library.get(symbol("GetErrorString"))?,
                _library: ManuallyDrop::new(library),
            })
        }
    }
}
