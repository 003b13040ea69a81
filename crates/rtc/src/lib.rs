//! Run-time compilers, opened with dlopen; nothing is linked at build time. hipRTC and NVRTC have the same functions by
//! other names: a [`Compiler`] says which, where its library may be, and what else differs.
//!
//! Three layers: `sys` (function pointers), `check` (status to `Result`) and [`Rtc`], which owns what it
//! creates. [`images()`] says which compiler was really mapped.
//!
//! hipRTC takes the process with it on an unknown architecture or a bad `-mllvm` option, and prints part of its
//! diagnostics to stderr: use it only in a process that may die, with a cleared environment.

#![allow(unsafe_code)]

mod check;
mod images;
mod sys;

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::{fmt, ptr};

pub use check::Status;
pub use images::{Image, images};
use sys::{Api, Program};
pub use vendor_library::{ENVIRONMENTS, Installation, OpenError};

/// A vendor's compiler as facts.
#[derive(Debug)]
pub struct Compiler {
    /// `hipRTC` or `NVRTC`.
    pub name: &'static str,
    /// The option that says what to compile for, up to the target's name.
    pub target_option: &'static str,
    /// The environment variable that says where the vendor's software is.
    pub root_variable: &'static str,
    /// Where that is, as a rule.
    pub installation: Installation,
    /// The names that its library may have, best first.
    pub libraries: &'static [&'static str],
    /// How its functions' names begin: `hiprtc`.
    pub prefix: &'static str,
    /// How they call what was made, in `hiprtcGetCode`.
    pub code: &'static str,
    /// What has to be there before the library of that path is opened.
    pub prepare: fn(&Path),
}

impl Compiler {
    /// Files that may be the compiler, best first; see [`Installation::candidates`].
    pub fn candidates(&self, explicit: Option<&Path>, root: Option<&Path>) -> Vec<PathBuf> {
        self.installation.candidates(self.libraries, explicit, root)
    }

    /// The folders in which they would be.
    pub fn searched(&self, explicit: Option<&Path>, root: Option<&Path>) -> Vec<PathBuf> {
        self.installation.searched(explicit, root)
    }

    /// The C function: `hiprtcCreateProgram` of `CreateProgram`.
    pub(crate) fn function(&self, name: &str) -> String {
        format!("{}{}", self.prefix, name.replace("GetCode", self.code))
    }
}

/// Why a source gave no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// C strings end at the first zero byte, so the compiler would see less than was meant.
    #[error("the {what} holds a zero byte at offset {offset}")]
    ZeroByte {
        /// `source`, `name` or `option 3`.
        what: String,
        /// Bytes before it in that text.
        offset: usize,
    },
    /// The compiler looked at the source and refused it.
    #[error("{compiler} rejected the source: {status}\n{log}")]
    Rejected {
        /// `hipRTC` or `NVRTC`.
        compiler: &'static str,
        /// `HIPRTC_ERROR_COMPILATION`, as a rule.
        status: Status,
        /// The compiler's messages; may be empty, since some of them go to stderr.
        log: String,
    },
    /// Another call than the compilation itself failed.
    #[error("`{call}` failed: {status}")]
    Call { call: String, status: Status },
}

/// What the compiler made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// An ELF file that `hipModuleLoadData` or `cuModuleLoadData` takes.
    pub object: Vec<u8>,
    /// Warnings and remarks, usually empty.
    pub log: String,
}

/// An opened compiler. The library stays mapped when this is dropped.
pub struct Rtc {
    compiler: &'static Compiler,
    api: Api,
    path: PathBuf,
}

impl fmt::Debug for Rtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rtc").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Rtc {
    /// Opens the first of the candidates (files, or bare names for the loader's search path) that is the vendor's
    /// compiler.
    ///
    /// # Errors
    /// Every candidate with the reason why it was not taken.
    pub fn open(compiler: &'static Compiler, candidates: &[PathBuf]) -> Result<Self, OpenError> {
        let (api, path) = vendor_library::open_first(compiler.name, candidates, |path| {
            (compiler.prepare)(path);
            Api::load(compiler, path)
        })?;
        Ok(Self { compiler, api, path })
    }

    /// Compiles `source` with `options`, in order; `name` stands for the file's name in messages.
    ///
    /// One call at a time: hipRTC holds a lock over all of it.
    ///
    /// # Errors
    /// A zero byte in an argument, the compiler's refusal with its log, or a call that failed. An architecture that
    /// the library does not know may end the process instead.
    pub fn compile(&self, source: &str, name: &str, options: &[String]) -> Result<Compiled, CompileError> {
        let source = c_string("source", source)?;
        let name = c_string("name", name)?;
        let options = options
            .iter()
            .enumerate()
            .map(|(i, option)| c_string(&format!("option {i}"), option))
            .collect::<Result<Vec<_>, _>>()?;

        let program = OwnedProgram::new(self, &source, &name)?;
        match program.compile(&options) {
            Ok(()) => Ok(Compiled { object: program.code()?, log: program.log()? }),
            // The refusal is the news; a log that cannot be had must not hide it.
            Err(status) => Err(CompileError::Rejected {
                compiler: self.compiler.name,
                status,
                log: program.log().unwrap_or_default(),
            }),
        }
    }
}

fn c_string(what: &str, text: &str) -> Result<CString, CompileError> {
    CString::new(text).map_err(|error| CompileError::ZeroByte { what: what.to_owned(), offset: error.nul_position() })
}

/// A program that is destroyed when dropped.
struct OwnedProgram<'a> {
    compiler: &'static Compiler,
    api: &'a Api,
    program: Program,
}

impl<'a> OwnedProgram<'a> {
    fn new(Rtc { compiler, api, .. }: &'a Rtc, source: &CString, name: &CString) -> Result<Self, CompileError> {
        let mut program = ptr::null_mut();
        // SAFETY: `program` is valid for writes, both strings are terminated and copied by the call, and with
        // zero headers the two arrays are not read.
        let code =
            unsafe { (api.create_program)(&mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        api.check(code).map_err(|status| CompileError::Call { call: compiler.function("CreateProgram"), status })?;
        Ok(Self { compiler, api, program })
    }

    fn compile(&self, options: &[CString]) -> Result<(), Status> {
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let n_options = pointers.len().try_into().expect("fewer than 2^31 options");
        // SAFETY: the program is alive, and the array holds `n_options` terminated strings for the whole call.
        let code = unsafe { (self.api.compile_program)(self.program, n_options, pointers.as_ptr()) };
        self.api.check(code)
    }

    fn code(&self) -> Result<Vec<u8>, CompileError> {
        self.bytes(("GetCodeSize", self.api.get_code_size), ("GetCode", self.api.get_code))
    }

    /// The compiler's messages, without the terminator that the size counts.
    fn log(&self) -> Result<String, CompileError> {
        let bytes = self.bytes(("GetProgramLogSize", self.api.get_log_size), ("GetProgramLog", self.api.get_log))?;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned())
    }

    fn bytes(
        &self,
        (size_call, get_size): (&'static str, sys::GetSize),
        (call, get): (&'static str, sys::GetBytes),
    ) -> Result<Vec<u8>, CompileError> {
        let mut len_bytes = 0;
        // SAFETY: the program is alive and `len_bytes` is valid for writes.
        let code = unsafe { get_size(self.program, &mut len_bytes) };
        self.api
            .check(code)
            .map_err(|status| CompileError::Call { call: self.compiler.function(size_call), status })?;
        // One byte to spare: versions differ in whether a log's size counts its terminator.
        let mut bytes = vec![0_u8; len_bytes + 1];
        // SAFETY: the buffer holds the bytes that the library just asked for, and one more.
        let code = unsafe { get(self.program, bytes.as_mut_ptr().cast()) };
        self.api.check(code).map_err(|status| CompileError::Call { call: self.compiler.function(call), status })?;
        bytes.truncate(len_bytes);
        Ok(bytes)
    }
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed nowhere else. A failure leaks one program in a process that is
        // about to end, and there is nothing to do about it.
        let _ = unsafe { (self.api.destroy_program)(&mut self.program) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_byte_is_named_with_its_place() {
        assert_eq!(
            c_string("option 2", "-D\0x").unwrap_err().to_string(),
            "the option 2 holds a zero byte at offset 2"
        );
    }
}
