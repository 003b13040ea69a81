//! A GPU's kernel for the simulator, behind `templates/lib/hip/simulator.hip.j2`, through the system's C++ compiler, to
//! a shared object.

use std::fs;

use super::host::{command, contraction, first_on_path, made, run, unavailable, words_of};
use super::job::{CompileJob, CompileOutput, Failure, Toolchain};
use super::{Canary, CompileError, Compiler, CompilerOptions};
use crate::target::Target;
use crate::template::Precision;

const SOURCE: &str = "simulated.cpp";
/// The user's word on which C++ compiler to use.
const VARIABLE: &str = "CXX";

/// Linked in a step of its own: the compiler would add its own race detector to what is instrumented for one. A kernel
/// is C: it needs neither the C++ library nor what runs before `main`, and looking into those took most of the linker's
/// time; what of libc the compiler calls is there when it is loaded.
const LINK: [&str; 7] = ["-shared", "-nostdlib", "-Wl,--no-as-needed", "compiled.o", "-lm", "-lgcc", "-o"];

/// `c++`, `g++` or `clang++`.
#[derive(Debug)]
pub(super) struct Simulator;

impl Compiler for Simulator {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn title(&self) -> &'static str {
        "the C++ compiler"
    }

    fn source_name(&self) -> &'static str {
        SOURCE
    }

    fn names_in_diagnostics(&self) -> Vec<&'static str> {
        vec![SOURCE, "kernel.hip"] // the second begins where the simulator's text ends
    }

    fn variable(&self) -> &'static str {
        VARIABLE
    }

    fn compiles_for(&self, target: &Target) -> bool {
        target.is_simulated
    }

    fn options(&self, _: &Target, precision: Precision) -> Vec<String> {
        let mut options = options();
        options.push(contraction(precision).into());
        options
    }

    fn find(&self, _: &CompilerOptions) -> Result<Toolchain, CompileError> {
        first_on_path(self, words_of(VARIABLE), &["c++", "g++", "clang++"])
    }

    fn canary(&self) -> Canary {
        const SOURCE: &str = "extern \"C\" float expf(float);\n\
            extern \"C\" void canary(const float* x, float* y, unsigned n) {\n\
            \x20 float sum = 0.0f;\n\
            \x20 for (unsigned i = 0; i < n; i++) sum += expf(x[i]);\n\
            \x20 for (unsigned i = 0; i < n; i++) y[i] = x[i] * sum + 1.0f;\n\
            }\n";
        Canary { source: SOURCE, entry: "canary", options: &["-O2", "-fPIC"] }
    }

    fn compile(&self, job: &CompileJob) -> Result<CompileOutput, Failure> {
        compile(job)
    }
}

/// The options of every kernel.
fn options() -> Vec<String> {
    let options = [
        "-std=gnu++17",
        "-O1", // half the compile time of -O2, and hardly slower: what takes time is watching
        "-g1", // lines, for messages
        "-fPIC",
        "-fsanitize=thread", // calls before every access to memory; the functions are the simulator's
        "-foptimize-sibling-calls", // those are jumps to the program
        "-fno-tree-loop-distribute-patterns", // memset and memcpy would hide accesses
        // Without it LDS of inline functions would be one variable for all copies of an object in the process.
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-math-errno",
        "-ftrivial-auto-var-init=pattern", // what a thread did not write of its own is far from all numbers
        "-fno-strict-aliasing", // as hipRTC's clang has it in effect: kernels read vectors through pointers to elements
        "-Wno-attributes",
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
    ];
    options.map(String::from).to_vec()
}

fn compile(job: &CompileJob) -> Result<CompileOutput, Failure> {
    fs::write(SOURCE, &job.source).map_err(|error| unavailable(&format!("could not write {SOURCE}: {error}")))?;
    run(command(job)?.args(["-c", SOURCE, "-o", "compiled.o"]).args(&job.options))?;
    run(command(job)?.args(LINK).arg("object"))?;
    made(job, format!("-c {LINK:?}"), "cc1plus")
}
