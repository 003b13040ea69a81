//! The simulator's backend: a GPU's kernel behind `templates/lib/hip/simulator.hip.j2`, through the system's C++ compiler, to a
//! shared object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use super::CompileError;
use super::host::{facts, files, how_it_ended, on_path, unavailable};
use super::identity::Canary;
use super::job::{Failure, Job, Made, Toolchain, source_name};
use crate::target::Backend;

/// Linked in a step of its own: the compiler would add its own race detector to what is instrumented for one.
const LINK: [&str; 5] = ["-shared", "-Wl,--no-as-needed", "compiled.o", "-lm", "-o"];

/// Finds the C++ compiler: `$CXX`, or the first of `c++`, `g++` and `clang++`.
pub(super) fn find() -> Result<Toolchain, CompileError> {
    let named = env::var_os("CXX").filter(|cxx| !cxx.is_empty()).map(PathBuf::from);
    // A compiler that was asked for by name is not silently replaced by another.
    let names = named.map_or_else(|| ["c++", "g++", "clang++"].map(PathBuf::from).to_vec(), |cxx| vec![cxx]);
    let compiler = names.iter().find_map(|name| on_path(name));
    let Some(compiler) = compiler else {
        let looked_for = names.iter().map(|name| format!("`{}`", name.display())).collect();
        return Err(CompileError::NoHostCompiler { looked_for });
    };
    Ok(Toolchain {
        backend: Backend::Sim,
        compiler: Some(compiler),
        environment: BTreeMap::new(),
        launcher: Vec::new(),
    })
}

pub(super) fn canary() -> Canary {
    const SOURCE: &str = "extern \"C\" float expf(float);\n\
        extern \"C\" void canary(const float* x, float* y, unsigned n) {\n\
        \x20 float sum = 0.0f;\n\
        \x20 for (unsigned i = 0; i < n; i++) sum += expf(x[i]);\n\
        \x20 for (unsigned i = 0; i < n; i++) y[i] = x[i] * sum + 1.0f;\n\
        }\n";
    Canary { source: SOURCE, entry: "canary", options: &["-O2", "-fPIC"] }
}

pub(super) fn compile(job: &Job) -> Result<Made, Failure> {
    let cxx = job.toolchain.compiler.as_deref().ok_or_else(|| unavailable("no compiler was named"))?;
    let source = source_name(Backend::Sim);
    fs::write(source, &job.source).map_err(|error| unavailable(&format!("could not write {source}: {error}")))?;
    run(cxx, Command::new(cxx).args(["-c", source, "-o", "compiled.o"]).args(&job.options))?;
    run(cxx, Command::new(cxx).args(LINK).arg("object"))?;
    let facts = facts(cxx, format!("-c {LINK:?}"));
    let facts = facts.map_err(|error| unavailable(&format!("`{}` -v: {error}", cxx.display())))?;
    let object = fs::read("object").map_err(|error| unavailable(&format!("it left no object: {error}")))?;
    Ok(Made { object, log: String::new(), facts, files: files(cxx, "cc1plus") })
}

/// Runs the compiler. What it says goes to stderr, which the parent captures.
fn run(cxx: &Path, command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|error| unavailable(&format!("`{}`: {error}", cxx.display())))?;
    if status.success() { Ok(()) } else { Err(Failure { how: how_it_ended(status), log: String::new() }) }
}
