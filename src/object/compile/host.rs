//! C for this machine's cores, through the system's C compiler, to a shared object.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

use super::job::{Failure, How, Job, Made, Stated, Toolchain};
use super::{Canary, CompileError, Compiler, CompilerOptions};
use crate::target::{Platform, Target};
use crate::template::Precision;

const SOURCE: &str = "kernel.c";

/// Before and after the job's options. Part of the identity, so that changing them changes every key.
const BEFORE: [&str; 2] = ["-shared", "-fPIC"];
const AFTER: [&str; 1] = ["-lm"];

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
        let named = options.cc.clone().or_else(|| env::var_os("CC").filter(|cc| !cc.is_empty()).map(PathBuf::from));
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

    fn compile(&self, job: &Job) -> Result<Made, Failure> {
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

/// The compiler that was asked for by name, or the first of the usual ones. Its path is not resolved: some compilers
/// look at the name by which they are called.
pub(super) fn first_on_path(
    compiler: &dyn Compiler,
    named: Option<PathBuf>,
    usual: &[&str],
) -> Result<Toolchain, CompileError> {
    // A compiler that was asked for by name is not silently replaced by another.
    let names = named.map_or_else(|| usual.iter().map(PathBuf::from).collect(), |name| vec![name]);
    match names.iter().find_map(|name| on_path(name)) {
        Some(found) => Ok(Toolchain::of(compiler.name(), Some(found))),
        None => {
            let looked_for = names.iter().map(|name| format!("`{}`", name.display())).collect();
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
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Compiles the job. What the compiler prints goes where the worker's own output goes.
fn compile(job: &Job) -> Result<Made, Failure> {
    let cc = job.toolchain.compiler.as_deref().ok_or_else(|| unavailable("no compiler was named"))?;
    fs::write(SOURCE, &job.source).map_err(|error| unavailable(&format!("could not write {SOURCE}: {error}")))?;
    let mut command = Command::new(cc);
    command.args(BEFORE).arg(SOURCE).args(&job.options).args(AFTER);
    let status = command.args(["-o", "object"]).stdin(Stdio::null()).status();
    let status = status.map_err(|error| unavailable(&format!("`{}`: {error}", cc.display())))?;
    if !status.success() {
        return Err(Failure { how: how_it_ended(status), log: String::new() });
    }
    made(job, cc, format!("{BEFORE:?} {AFTER:?}"), "cc1")
}

/// The object that was left, and who made it: the compiler is asked, unless its files are as they were when it was
/// asked last.
pub(super) fn made(job: &Job, cc: &Path, how: String, front_end: &str) -> Result<Made, Failure> {
    let (facts, files) = match job.stated.as_ref().and_then(Stated::facts_if_it_holds) {
        Some(facts) => (facts, Vec::new()),
        None => {
            let asked = facts(cc, how).map_err(|error| unavailable(&format!("`{}` -v: {error}", cc.display())))?;
            (asked, files(cc, front_end))
        }
    };
    let object = fs::read("object").map_err(|error| unavailable(&format!("it left no object: {error}")))?;
    Ok(Made { object, log: String::new(), facts, files })
}

pub(super) fn unavailable(log: &str) -> Failure {
    Failure { how: How::Unavailable, log: log.into() }
}

/// Compilers end with 1 when they refuse; anything else is an accident. That a child of the driver was killed is only
/// in what it printed, which the parent looks at.
pub(super) fn how_it_ended(status: std::process::ExitStatus) -> How {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(9), _) => How::OutOfMemory,
        (Some(signal), _) => How::Crashed { signal },
        (None, Some(1) | None) => How::Rejected,
        (None, Some(code)) => How::Exited { code },
    }
}

/// The version line, the resolved path, all that it says of its version, and how we call it.
fn facts(cc: &Path, how: String) -> io::Result<Vec<String>> {
    let version = Command::new(cc).arg("-v").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&[version.stdout, version.stderr].concat()).into_owned();
    let line = text.lines().find(|line| line.contains(" version ")).unwrap_or("unknown version").to_owned();
    Ok(vec![line, fs::canonicalize(cc)?.display().to_string(), text, how])
}

/// The driver and the programs it calls. A compiler without a separate `cc1` (clang) answers with the bare name.
fn files(cc: &Path, front_end: &str) -> Vec<PathBuf> {
    let part = |name: &str| {
        let output = Command::new(cc).arg(format!("-print-prog-name={name}")).stdin(Stdio::null()).output().ok()?;
        on_path(Path::new(String::from_utf8(output.stdout).ok()?.trim()))
    };
    [Some(cc.to_owned()), part(front_end), part("as"), part("ld")].into_iter().flatten().collect()
}
