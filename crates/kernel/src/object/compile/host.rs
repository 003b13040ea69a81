//! Compiles C for this machine's cores, by the system's C compiler, to a shared object.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

use super::job::{CompileJob, CompileOutput, Failure, How, Stated, Toolchain};
use super::worker::ASKED;
use super::{Canary, CompileError, Compiler, CompilerOptions};
use crate::target::{Platform, Target};
use crate::template::Precision;

const SOURCE: &str = "kernel.c";
/// The user's word on which C compiler to use.
const VARIABLE: &str = "CC";
/// Of what a compiler says of itself, this much of the beginning is looked at.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Before and after the job's options. Part of the identity, so that changing them changes every key. A kernel needs
/// none of what a program starts with, and what of libc the compiler calls (memcpy) is there when it is loaded: to look
/// into libc took the linker as long as all else.
pub(super) const BEFORE: [&str; 3] = ["-shared", "-nostdlib", "-fPIC"];
pub(super) const AFTER: [&str; 2] = ["-lm", "-lgcc"];

/// `cc`, `gcc` or `clang`.
#[derive(Debug)]
pub(super) struct Host;

impl Compiler for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn title(&self) -> &'static str {
        "the C compiler"
    }

    fn source_name(&self) -> &'static str {
        SOURCE
    }

    fn variable(&self) -> &'static str {
        VARIABLE
    }

    fn compiles_for(&self, target: &Target) -> bool {
        target.platform == Platform::Host
    }

    fn options(&self, target: &Target, precision: Precision) -> Vec<String> {
        let mut options = options();
        options.push(contraction(precision).into());
        options.extend(target.c_options());
        options
    }

    fn find(&self, options: &CompilerOptions) -> Result<Toolchain, CompileError> {
        let named = options.cc.clone().map(|cc| vec![cc.into_os_string()]).or_else(|| words_of(VARIABLE));
        first_on_path(self, named, &["cc", "gcc", "clang"])
    }

    /// Loads, stores, a libm call, a loop that vectorises: what kernels are made of.
    fn canary(&self) -> Canary {
        const SOURCE: &str = "float expf(float);\n\
            void canary(const float* x, float* y, unsigned n) {\n\
            \x20 float sum = 0.0f;\n\
            \x20 for (unsigned i = 0; i < n; i++) sum += expf(x[i]);\n\
            \x20 for (unsigned i = 0; i < n; i++) y[i] = x[i] * sum + 1.0f;\n\
            }\n";
        Canary { source: SOURCE, entry: "canary", options: &["-O3", "-ffast-math"] }
    }

    fn compile(&self, job: &CompileJob) -> Result<CompileOutput, Failure> {
        compile(job)
    }
}

/// The options of every kernel.
fn options() -> Vec<String> {
    let options = [
        "-x",
        "c",
        "-std=gnu11",
        "-O3",
        "-fPIC",
        "-shared",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wall",
        "-Werror=implicit-function-declaration",
        // Options may come before the source, where a linker that drops unneeded libraries would drop libm.
        "-Wl,--no-as-needed",
        "-lm",
    ];
    options.map(String::from).to_vec()
}

/// Contraction rounds once where two operations round twice: never at the parity precision.
pub(super) fn contraction(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "-ffp-contract=off",
        Precision::Bf16 => "-ffp-contract=fast",
    }
}

/// A compiler as a variable names it: `gcc`, or in words, as make and its kin have it, `ccache gcc`. A path with blanks
/// in it is one word.
pub(super) fn words_of(variable: &str) -> Option<Vec<OsString>> {
    let value = env::var_os(variable)?;
    match value.to_str() {
        Some(text) if !Path::new(text).is_file() => {
            Some(text.split_whitespace().map(OsString::from).collect()).filter(|words: &Vec<_>| !words.is_empty())
        }
        _ => Some(vec![value]),
    }
}

/// The compiler that was asked for by name, with its first arguments, or the first of the usual ones. Its path is not
/// resolved: some compilers look at the name by which they are called.
pub(super) fn first_on_path(
    compiler: &dyn Compiler,
    named: Option<Vec<OsString>>,
    usual: &[&str],
) -> Result<Toolchain, CompileError> {
    // A compiler that was asked for by name is not silently replaced by another.
    let commands = named.map_or_else(|| usual.iter().map(|name| vec![name.into()]).collect(), |words| vec![words]);
    let found = commands.iter().find_map(|words| Some((on_path(Path::new(&words[0]))?, &words[1..])));
    match found {
        Some((program, rest)) => {
            let arguments = rest.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            Ok(Toolchain { arguments, ..Toolchain::new(compiler.name(), Some(program)) })
        }
        None => {
            let looked_for = commands.iter().map(|words| format!("`{}`", Path::new(&words[0]).display())).collect();
            Err(CompileError::NoHostCompiler { looked_for })
        }
    }
}

/// The absolute path of a program, searched for as a shell would.
pub(super) fn on_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| std::path::absolute(name).ok())?;
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file))
}

fn is_program(path: &Path) -> bool {
    use system::os::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Compiles the job. What the compiler prints goes where the worker's own output goes.
fn compile(job: &CompileJob) -> Result<CompileOutput, Failure> {
    let mut command = command(job)?;
    fs::write(SOURCE, &job.source).map_err(|error| unavailable(&format!("could not write {SOURCE}: {error}")))?;
    run(command.args(BEFORE).arg(SOURCE).args(&job.options).args(AFTER).args(["-o", "object"]))?;
    made(job, format!("{BEFORE:?} {AFTER:?}"), "cc1")
}

/// The compiler, to be given its arguments.
pub(super) fn command(job: &CompileJob) -> Result<Command, Failure> {
    job.toolchain.command().ok_or_else(|| unavailable("no compiler was named"))
}

/// Runs the compiler. What it says goes to stderr, which the parent captures.
pub(super) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status();
    let status = status.map_err(|error| unavailable(&format!("`{}`: {error}", command.get_program().display())))?;
    if status.success() { Ok(()) } else { Err(Failure { how: how_it_ended(status), log: String::new() }) }
}

/// The object that was left, and who made it: the compiler is asked, unless its files are as they were when it was
/// asked last. The object is opened here, where it may take the process with it: one for another processor may have
/// instructions in its constructors that this one does not have, and is not opened.
pub(super) fn made(job: &CompileJob, how: String, front_end: &str) -> Result<CompileOutput, Failure> {
    let (facts, files) = match job.stated.as_ref().and_then(Stated::facts_if_it_holds) {
        Some(facts) => (facts, Vec::new()),
        None => {
            let asked = facts(&job.toolchain, how).map_err(|error| unavailable(&format!("asked with -v: {error}")))?;
            let files = files(&job.toolchain, &asked, front_end);
            (asked, files)
        }
    };
    let object = fs::read("object").map_err(|error| unavailable(&format!("it left no object: {error}")))?;
    let bad = |what| Failure { how: How::BadObject { what }, log: String::new() };
    let is_for_others = |target: Target| target.platform == Platform::Host && !target.runs_on_host();
    if !Target::named(&job.target).is_ok_and(is_for_others) {
        gpu::host::try_to_open(&object).map_err(bad)?;
    }
    Ok(CompileOutput { object, log: String::new(), facts, files })
}

pub(super) fn unavailable(log: &str) -> Failure {
    Failure { how: How::Unavailable, log: log.into() }
}

/// Compilers end with 1 when they refuse; anything else is an accident. That a child of the driver was killed is only
/// in what it printed, which the parent looks at.
pub(super) fn how_it_ended(status: std::process::ExitStatus) -> How {
    use system::os::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(9), _) => How::OutOfMemory,
        (Some(signal), _) => How::Crashed { signal },
        (None, Some(1) | None) => How::Rejected,
        (None, Some(code)) => How::Exited { code },
    }
}

/// The version line, the resolved path, all that it says of its version, and how we call it.
fn facts(toolchain: &Toolchain, how: String) -> io::Result<Vec<String>> {
    let text = ask(toolchain, "-v", true)?;
    let line = text.lines().find(|line| line.contains(" version ")).unwrap_or("unknown version").to_owned();
    let path = fs::canonicalize(toolchain.compiler.as_deref().unwrap_or(Path::new("")))?.display().to_string();
    Ok([vec![line, path, text, how], toolchain.arguments.clone()].concat())
}

/// The driver and the programs it calls. A compiler without a separate `cc1` (clang) answers with the bare name.
fn files(toolchain: &Toolchain, facts: &[String], front_end: &str) -> Vec<PathBuf> {
    let part = |name: &str| {
        let answer = ask(toolchain, &format!("-print-prog-name={name}"), false).ok()?;
        on_path(Path::new(answer.trim()))
    };
    let behind = facts.iter().flat_map(|fact| fact.lines()).filter_map(driver_behind);
    let mut files: Vec<PathBuf> = toolchain.compiler.iter().cloned().chain(behind).collect();
    files.extend([part(front_end), part("as"), part("ld")].into_iter().flatten());
    files.dedup();
    files
}

/// The driver that really runs, behind a script or `ccache`, by a line of what it says with `-v`.
fn driver_behind(line: &str) -> Option<PathBuf> {
    let gcc = line.strip_prefix("COLLECT_GCC=").and_then(|name| on_path(Path::new(name)));
    gcc.or_else(|| on_path(&Path::new(line.strip_prefix("InstalledDir: ")?).join("clang")))
}

/// What the compiler answers. By way of a file, at whose length the parent looks: a pipe is at its end only when all
/// that the compiler left behind are, too.
fn ask(toolchain: &Toolchain, what: &str, with_stderr: bool) -> io::Result<String> {
    let answer = File::create(ASKED)?;
    let stderr = if with_stderr { answer.try_clone()?.into() } else { Stdio::null() };
    toolchain.command().ok_or(io::ErrorKind::NotFound)?.arg(what).stdout(answer).stderr(stderr).status()?;
    let mut bytes = Vec::new();
    File::open(ASKED)?.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
