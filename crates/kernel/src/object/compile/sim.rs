//! A GPU's kernel for the simulator, behind `templates/lib/hip/simulator.hip.j2`, through the system's C++ compiler, to
//! a shared object.

use std::fs;
use std::sync::LazyLock;

use regex::Regex;

use super::hiprtc::forget_printed;
use super::host::{command, contraction, first_on_path, made, run, unavailable, words_of};
use super::job::{CompileJob, CompileOutput, Failure, How, Toolchain};
use super::{Canary, CompileError, Compiler, CompilerOptions};
use crate::object::key::Digest;
use crate::target::Target;
use crate::template::Precision;
use crate::template::origins::BEHIND_SIMULATOR;

const SOURCE: &str = "simulated.cpp";

/// The template that defines most words of HIP.
const SIMULATOR: &str = "lib/hip/simulator.hip.j2";

/// Words that few kernels use, and where they go: behind the simulator's own text.
const WORDS_NAME: &str = "simulator_words.h";
pub(super) const WORDS: &str = include_str!("simulator_words.h");

/// A vector as clang declares it: the type, the name, the number.
static VECTORS: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    let attribute = r"__attribute__\s*\(\(\s*ext_vector_type\s*\(([^()]+)\)\s*\)\)";
    let typedef = format!(r"typedef\s+([^;{{}}]+?)\s+(\w+)\s+{attribute}\s*;");
    let using = format!(r"using\s+(\w+)\s*=\s*([^;{{}}]+?)\s+{attribute}\s*;");
    [typedef, using].map(|pattern| Regex::new(&pattern).expect("a pattern"))
});
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
        let mut found = first_on_path(self, words_of(VARIABLE), &["c++", "g++", "clang++"])?;
        // Who it is, is remembered by where it was found: with other words it is another.
        found.environment.insert("SIMULATOR_WORDS".into(), Digest::of(WORDS.as_bytes()).to_string());
        Ok(found)
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
        "-fsanitize=alignment", // and where a pointer is not aligned as its type is
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
    let cannot = |error| unavailable(&format!("could not write into its folder: {error}"));
    fs::write(SOURCE, &job.source).map_err(cannot)?;
    let compile = || run(command(job)?.args(["-c", SOURCE, "-o", "compiled.o"]).args(&job.options));
    match compile() {
        Err(Failure { how: How::Rejected, .. }) if job.source.contains(BEHIND_SIMULATOR) => {
            fs::write(SOURCE, with_words(&job.source)).and_then(|()| fs::write(WORDS_NAME, WORDS)).map_err(cannot)?;
            forget_printed().map_err(cannot)?;
            compile()?;
        }
        made => made?,
    }
    run(command(job)?.args(LINK).arg("object"))?;
    made(job, format!("-c {LINK:?} {}", Digest::of(WORDS.as_bytes())), "cc1plus")
}

/// The source with the further words, and with clang's vectors as these have them.
fn with_words(source: &str) -> String {
    let [typedef, using] = &*VECTORS;
    let source = typedef.replace_all(source, "typedef sim::Vector<$1, ($3)> $2;");
    let source = using.replace_all(&source, "using $1 = sim::Vector<$2, ($3)>;");
    source.replacen(BEHIND_SIMULATOR, &format!("\n#include \"{WORDS_NAME}\"{BEHIND_SIMULATOR}"), 1)
}

/// What a log says that the simulator does not know: a word that is not declared there.
pub fn unknown_word(log: &str) -> Option<&str> {
    static UNKNOWN: LazyLock<Regex> = LazyLock::new(|| {
        let words = [
            r"error: ['‘](\w+)['’] was not declared in this scope",
            r"error: ['‘](\w+)['’] does not name a type",
            r"error: ['‘](\w+)['’] has not been declared",
            r"error: there are no arguments to ['‘](\w+)['’] that depend on a template parameter",
            r"error: use of undeclared identifier '(\w+)'",
            r"error: unknown type name '(\w+)'",
        ];
        Regex::new(&words.join("|")).expect("a pattern")
    });
    let found = UNKNOWN.captures(log)?;
    found.iter().skip(1).flatten().next().map(|word| word.as_str())
}

/// Words of HIP that the simulator knows, to tell what a word that it does not know may be meant for.
pub fn known_words() -> Vec<String> {
    static DEFINED: LazyLock<Regex> = LazyLock::new(|| {
        let patterns = [r"^#define (\w+)", r"^typedef [^;]* (\w+);", r"\b(?:float|double|int) (__\w+|\w+f)\("];
        Regex::new(&format!("(?m){}", patterns.join("|"))).expect("a pattern")
    });
    let own = data::TEMPLATES.iter().find(|(name, _)| *name == SIMULATOR).map_or("", |(_, text)| text);
    let texts = [own, WORDS].into_iter();
    let found =
        texts.flat_map(|text| DEFINED.captures_iter(text).filter_map(|found| found.iter().skip(1).flatten().next()));
    let is_hips = |word: &&str| !word.to_ascii_lowercase().starts_with("sim_") && !word.starts_with("GPTOSS_");
    found.map(|word| word.as_str()).filter(is_hips).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_clang_become_the_simulators() {
        let source = "a\n#line 2 \"kernel.hip\"\ntypedef unsigned short Row __attribute__((ext_vector_type(8)));\n\
             using Sum = float __attribute__((ext_vector_type(N / 2)));\ntypedef float Four __attribute__((vector_size(16)));";
        let expected = "a\n#include \"simulator_words.h\"\n#line 2 \"kernel.hip\"\ntypedef sim::Vector<unsigned short, (8)> Row;\n\
             using Sum = sim::Vector<float, (N / 2)>;\ntypedef float Four __attribute__((vector_size(16)));";
        assert_eq!(with_words(source), expected);
    }

    #[test]
    fn an_unknown_word_is_named() {
        let log = "kernel.hip:3:1: error: '__builtin_amdgcn_x' was not declared in this scope; did you mean y?";
        assert_eq!(unknown_word(log), Some("__builtin_amdgcn_x"));
        assert_eq!(unknown_word("kernel.hip:3: error: ‘half3’ does not name a type"), Some("half3"));
        assert_eq!(unknown_word("kernel.hip:3: error: expected ';'"), None);
    }

    #[test]
    fn words_of_both_texts_are_known() {
        let known = known_words();
        let words = ["__syncthreads", "atomicAdd", "expf", "__popc", "__builtin_amdgcn_permlanex16", "float4"];
        for word in words {
            assert!(known.iter().any(|one| one == word), "{word}");
        }
        assert!(!known.iter().any(|one| one.starts_with("SIM") || one.starts_with("sim")), "{known:?}");
    }

    #[test]
    fn errors_of_a_kernels_own_lines_are_the_kernels() {
        let names = Simulator.names_in_diagnostics();
        assert!(names.contains(&"kernel.hip") && names.contains(&Simulator.source_name()), "{names:?}");
    }
}
