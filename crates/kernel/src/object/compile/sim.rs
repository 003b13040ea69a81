//! Compiles a GPU's kernel for the simulator: its text after `templates/lib/hip/simulator.hip.j2`, by the system's C++
//! compiler, to a shared object.

use std::sync::LazyLock;
use std::{fs, io};

use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{LittleEndian, elf, pod};
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

/// Words that few kernels use, and where they go: after the simulator's own text.
const WORDS_NAME: &str = "simulator_words.h";
pub(super) const WORDS: &str = include_str!("simulator_words.h");

/// A vector as clang declares it: the type, the name, the number.
static VECTORS: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    let attribute = r"__attribute__\s*\(\(\s*ext_vector_type\s*\(([^()]+)\)\s*\)\)";
    let typedef = format!(r"typedef\s+([^;{{}}]+?)\s+(\w+)\s+{attribute}\s*;");
    let using = format!(r"using\s+(\w+)\s*=\s*([^;{{}}]+?)\s+{attribute}\s*;");
    [typedef, using].map(|pattern| Regex::new(&pattern).expect("a pattern"))
});

/// Unused bytes after each variable in LDS, so that a kernel that steps past a variable does not find the next one. As
/// many as a block may have on most chips; not a multiple of a page, or the beginnings of all variables would share a
/// line of the processor's cache.
const GAP_BYTES: u64 = (64 << 10) + 320;

/// LDS that has its size from the launch, which a static variable has not.
const EXTERN_SHARED: &str = "extern __shared__";

/// The user's word on which C++ compiler to use.
const VARIABLE: &str = "CXX";

/// Compiled to this, and linked from it.
const COMPILED: &str = "compiled.o";

/// Linked in a step of its own: the compiler would add its own race detector to what is instrumented for one. A kernel
/// is C: it needs neither the C++ library nor what runs before `main`, and looking into those took most of the linker's
/// time; what of libc the compiler calls is there when it is loaded.
const LINK: [&str; 7] = ["-shared", "-nostdlib", "-Wl,--no-as-needed", COMPILED, "-lm", "-lgcc", "-o"];

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
        "-fdata-sections",          // room between variables in LDS: see `part_variables`
        "-fstack-clash-protection", // a large array of a thread touches the page that ends its stack, and skips no page
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
    let compile = || run(command(job)?.args(["-c", SOURCE, "-o", COMPILED]).args(&job.options));
    match compile() {
        Err(Failure { how: How::Rejected, .. }) if job.source.contains(BEHIND_SIMULATOR) => {
            fs::write(SOURCE, with_words(&job.source)).and_then(|()| fs::write(WORDS_NAME, WORDS)).map_err(cannot)?;
            forget_printed().map_err(cannot)?;
            compile()?;
        }
        made => made?,
    }
    part_variables().map_err(|error| unavailable(&format!("could not make room between variables in LDS: {error}")))?;
    run(command(job)?.args(LINK).arg("object"))?;
    made(job, format!("-c {LINK:?} {GAP_BYTES} {}", Digest::of(WORDS.as_bytes())), "cc1plus")
}

/// Makes the section of each variable in LDS larger than the variable. Nothing of it is in the file: it is memory that
/// begins as 0, and the symbol keeps the variable's size.
fn part_variables() -> io::Result<()> {
    let mut bytes = fs::read(COMPILED)?;
    widen(&mut bytes, GAP_BYTES).map_err(io::Error::other)?;
    fs::write(COMPILED, bytes)
}

/// Adds bytes to every section of an object that is one variable of memory that begins as 0.
fn widen(bytes: &mut [u8], by: u64) -> Result<(), object::Error> {
    type Header = elf::FileHeader64<LittleEndian>;
    let endian = LittleEndian;
    let header = Header::parse(&*bytes)?;
    let first = usize::try_from(header.e_shoff(endian)).unwrap_or(usize::MAX);
    let sections = header.sections(endian, &*bytes)?;
    let is_variable = |section: &elf::SectionHeader64<LittleEndian>| {
        let name = sections.section_name(endian, section).unwrap_or_default();
        section.sh_type(endian) == elf::SHT_NOBITS && name.starts_with(b".bss.")
    };
    let places: Vec<usize> = sections.enumerate().filter(|(_, one)| is_variable(one)).map(|(i, _)| i.0).collect();
    for i in places {
        let at = first + i * size_of::<elf::SectionHeader64<LittleEndian>>();
        if let Ok((section, _)) = pod::from_bytes_mut::<elf::SectionHeader64<LittleEndian>>(&mut bytes[at..]) {
            section.sh_size.set(endian, section.sh_size.get(endian) + by);
        }
    }
    Ok(())
}

/// The source with the further words, and with clang's vectors as these have them.
fn with_words(source: &str) -> String {
    let [typedef, using] = &*VECTORS;
    let source = typedef.replace_all(source, "typedef sim::Vector<$1, ($3)> $2;");
    let source = using.replace_all(&source, "using $1 = sim::Vector<$2, ($3)>;");
    source.replacen(BEHIND_SIMULATOR, &format!("\n#include \"{WORDS_NAME}\"{BEHIND_SIMULATOR}"), 1)
}

/// Whether a log refuses `extern __shared__`, which is `extern static` to the compiler: the variable, which clang does
/// not name.
fn extern_shared(log: &str) -> Option<Option<&str>> {
    static REFUSED: LazyLock<Regex> = LazyLock::new(|| {
        let gcc = r"error: conflicting specifiers in declaration of ['‘](\w+)['’]";
        let clang = "error: cannot combine with previous 'extern' declaration specifier";
        Regex::new(&format!("{gcc}|{clang}")).expect("a pattern")
    });
    REFUSED.captures(log).map(|found| found.get(1).map(|name| name.as_str()))
}

/// What to write in the place of a word that the simulator does not know.
pub fn instead_of(log: &str) -> Option<String> {
    let name = extern_shared(log)?.map_or_else(|| "it".to_owned(), |name| format!("`{name}`"));
    Some(format!(
        "declare {name} with its size, as in `__shared__ f32 x[64];`, or with `BLOCK_LDS` of `lib/hip/block_lds.hip.j2`"
    ))
}

/// Whether a word looks like one of HIP, whatever it is.
pub fn is_of_hip(word: &str) -> bool {
    word.starts_with("__") || word == EXTERN_SHARED
}

/// What a log says that the simulator does not know: a word that is not declared there.
pub fn unknown_word(log: &str) -> Option<&str> {
    if extern_shared(log).is_some() {
        return Some(EXTERN_SHARED);
    }
    static UNKNOWN: LazyLock<Regex> = LazyLock::new(|| {
        let words = [
            r"error: ['‘](\w+)['’] was not declared in this scope",
            r"error: ['‘](\w+)['’] does not name a type",
            r"error: ['‘](\w+)['’] has not been declared",
            r"error: there are no arguments to ['‘](\w+)['’] that depend on a template parameter",
            r"error: use of undeclared identifier '(\w+)'",
            r"error: unknown type name '(\w+)'",
            // An instruction of a GPU in an `asm`, and an option of its compiler.
            r"Error: no such instruction: [`'](\w[^'\n]*)'",
            r"error: invalid instruction mnemonic '([^'\n]+)'",
            r"error: unrecognized command[- ]line option ['‘](-[^'’\n]+)['’]",
            r"error: unknown argument:? '(-[^'\n]+)'",
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
        let log = "kernel.hip: Assembler messages:\nkernel.hip:231: Error: no such instruction: `s_waitcnt vmcnt(0)'";
        assert_eq!(unknown_word(log), Some("s_waitcnt vmcnt(0)"));
        let log = "<inline asm>:1:2: error: invalid instruction mnemonic 's_waitcnt'";
        assert_eq!(unknown_word(log), Some("s_waitcnt"));
        let log = "c++: error: unrecognized command-line option '-fgpu-flush-denormals-to-zero'";
        assert_eq!(unknown_word(log), Some("-fgpu-flush-denormals-to-zero"));
    }

    #[test]
    fn lds_of_the_launch_is_named_with_what_to_write() {
        let log = "kernel.hip:28:3: error: conflicting specifiers in declaration of 'normed'\n\
                   kernel.hip:30:5: error: 'normed' was not declared in this scope";
        assert_eq!(unknown_word(log), Some(EXTERN_SHARED));
        assert!(is_of_hip(EXTERN_SHARED) && is_of_hip("__clock64") && !is_of_hip("normed"));
        let instead = instead_of(log).expect("known");
        assert!(instead.starts_with("declare `normed` with its size") && instead.contains("`BLOCK_LDS`"), "{instead}");
        let log = "kernel.hip:28:10: error: cannot combine with previous 'extern' declaration specifier";
        assert_eq!(unknown_word(log), Some(EXTERN_SHARED));
        assert!(instead_of(log).is_some_and(|instead| instead.starts_with("declare it with")));
        assert_eq!(instead_of("kernel.hip:3:1: error: 'x' was not declared in this scope"), None);
    }

    /// Two variables of an object of the C++ compiler have the room between them, and their own sizes.
    #[test]
    fn what_is_behind_a_variable_is_nobodys() {
        use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
        use std::process::Command;
        let folder = tempfile::tempdir().expect("a folder");
        let text = "extern \"C\" int f(int i) { static int one[4], other[8]; static int begun = 3; \
                    return one[i]++ + other[i]++ + begun++; }";
        fs::write(folder.path().join("x.cpp"), text).expect("written");
        let args = ["-c", "x.cpp", "-O1", "-fPIC", "-fdata-sections", "-o", "x.o"];
        assert!(Command::new("c++").args(args).current_dir(folder.path()).status().expect("it runs").success());
        let mut bytes = fs::read(folder.path().join("x.o")).expect("read");
        let sizes = |bytes: &[u8]| {
            let file = object::File::parse(bytes).expect("an object");
            let named = |name: &str| {
                let mut symbols = file.symbols();
                let one = symbols.find(|one| one.name().is_ok_and(|own| own.contains(name))).expect("a symbol");
                let section = file.section_by_index(one.section_index().expect("a section")).expect("a section");
                (one.size(), section.size())
            };
            ["one", "other", "begun"].map(named)
        };
        assert_eq!(sizes(&bytes), [(16, 16), (32, 32), (4, 4)]);
        widen(&mut bytes, GAP_BYTES).expect("an object");
        assert_eq!(sizes(&bytes), [(16, 16 + GAP_BYTES), (32, 32 + GAP_BYTES), (4, 4)]);
        assert!(widen(&mut bytes[..40], 1).is_err());
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
