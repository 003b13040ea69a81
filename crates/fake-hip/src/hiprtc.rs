//! hipRTC, as ROCm 5 has it in HIP's library: a compiler that does what comments in the source say, `// fake: <what>`,
//! one after the other: `crash`, `hang`, `oom`, `exit N`, `reject LOG`, `sleep-ms N`, `answer-garbage` (ends the
//! process with an answer that is none), `print TEXT` (on stderr), `environment` (the names of the environment go to
//! the log), `append-pid PATH` (a line per compile), `cut-short` (the object states more than it holds). Without a word
//! that ends it, the object is an ELF file of no sections, with the options and the source after its head.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{Write, stderr};
use std::time::Duration;
use std::{env, fs, process, thread};

/// `HIPRTC_ERROR_COMPILATION`.
const REJECTED: c_int = 6;
const SUCCESS: c_int = 0;

/// What the program leaves as the worker's answer. A name of the program that is tested, and no secret.
const ANSWER: &str = "answer";

struct Program {
    source: String,
    object: Vec<u8>,
    log: String,
    is_cut_short: bool,
}

/// The head of an ELF file: 64 bits, little-endian, one section at `sections`, none at 0.
fn head(sections: u64) -> Vec<u8> {
    let mut head = b"\x7fELF\x02\x01\x01".to_vec();
    head.resize(64, 0);
    head[0x28..0x30].copy_from_slice(&sections.to_le_bytes());
    head[0x3a..0x3e].copy_from_slice(&[64, 0, u8::from(sections > 0), 0]);
    head
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    _n_headers: c_int,
    _headers: *const *const c_char,
    _include_names: *const *const c_char,
) -> c_int {
    // SAFETY: the caller gives a terminated string, as hipRTC wants it.
    let source = unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned();
    let made = Box::new(Program { source, object: Vec::new(), log: String::new(), is_cut_short: false });
    // SAFETY: the caller gives a place for the pointer.
    unsafe { *program = Box::into_raw(made).cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCompileProgram(
    program: *mut c_void,
    n_options: c_int,
    options: *const *const c_char,
) -> c_int {
    // SAFETY: the pointer is of `hiprtcCreateProgram`, which the caller has not destroyed.
    let program = unsafe { &mut *program.cast::<Program>() };
    let option = |i| {
        // SAFETY: the caller gives so many terminated strings.
        unsafe { CStr::from_ptr(*options.add(i)) }.to_string_lossy().into_owned()
    };
    let options: Vec<String> = (0..usize::try_from(n_options).unwrap_or(0)).map(option).collect();
    let directives: Vec<String> =
        program.source.lines().filter_map(|line| Some(line.trim().strip_prefix("// fake: ")?.to_owned())).collect();
    for directive in directives {
        let (word, argument) = directive.split_once(' ').unwrap_or((&directive, ""));
        if word == "cut-short" {
            program.is_cut_short = true;
        } else if !obey(word, argument, &mut program.log) {
            return REJECTED;
        }
    }
    program.object = head(if program.is_cut_short { 1 << 20 } else { 0 });
    program.object.extend(format!("fake object\n{options:?}\n{}", program.source).into_bytes());
    SUCCESS
}

/// Does what a directive says; false if the source is refused.
fn obey(word: &str, argument: &str, log: &mut String) -> bool {
    match word {
        "crash" => process::abort(),
        "hang" => loop {
            thread::sleep(Duration::from_secs(1));
        },
        // Unobserved, the allocation would be optimised away.
        "oom" => drop(black_box(vec![1_u8; usize::MAX / 4])),
        "exit" => process::exit(argument.parse().unwrap_or(1)),
        "sleep-ms" => thread::sleep(Duration::from_millis(argument.parse().unwrap_or(0))),
        "answer-garbage" => process::exit(i32::from(fs::write(ANSWER, b"\0what a broken worker leaves").is_err())),
        "print" => drop(writeln!(stderr(), "{argument}")),
        "environment" => {
            let mut names: Vec<String> = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
            names.sort();
            *log = names.join(" ");
        }
        "append-pid" => {
            // One write, so that lines of concurrent workers do not mix.
            let file = OpenOptions::new().append(true).create(true).open(argument);
            let written = file.and_then(|mut file| file.write_all(format!("{}\n", process::id()).as_bytes()));
            if let Err(error) = written {
                *log = error.to_string();
                return false;
            }
        }
        "reject" => {
            *log = argument.to_owned();
            return false;
        }
        _ => {
            *log = format!("error: the fake compiler does not know `{word}`");
            return false;
        }
    }
    true
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcDestroyProgram(program: *mut *mut c_void) -> c_int {
    // SAFETY: the place holds a pointer of `hiprtcCreateProgram`, which nobody uses after this.
    drop(unsafe { Box::from_raw((*program).cast::<Program>()) });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(program: *mut c_void, len_bytes: *mut usize) -> c_int {
    // SAFETY: a live program and a place for the length.
    unsafe {
        let program = &*program.cast::<Program>();
        *len_bytes = program.log.len();
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLog(program: *mut c_void, log: *mut c_char) -> c_int {
    // SAFETY: a live program, and room for as many bytes as `hiprtcGetProgramLogSize` said.
    unsafe {
        let text = &(*program.cast::<Program>()).log;
        log.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCodeSize(program: *mut c_void, len_bytes: *mut usize) -> c_int {
    // SAFETY: a live program and a place for the length.
    unsafe {
        let program = &*program.cast::<Program>();
        *len_bytes = program.object.len();
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCode(program: *mut c_void, code: *mut c_char) -> c_int {
    // SAFETY: a live program, and room for as many bytes as `hiprtcGetCodeSize` said.
    unsafe {
        let object = &(*program.cast::<Program>()).object;
        code.copy_from_nonoverlapping(object.as_ptr().cast(), object.len());
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetErrorString(status: c_int) -> *const c_char {
    match status {
        REJECTED => c"HIPRTC_ERROR_COMPILATION".as_ptr(),
        _ => c"HIPRTC_ERROR".as_ptr(),
    }
}
