//! Real hipRTC, no GPU: the GPU templates compile for every arch, and nothing that hipRTC does ends the program.
//!
//! It is looked for in `$GPTOSS_JIT_HIPRTC`, in `target/hiprtc`, and where ROCm would be; without it these tests say
//! that they are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::fixtures::skipped;
use format::Dtype;
use hint::Hint;
use kernel::object::compile::{CompileError, CompilerOptions, Compilers, How, Request, Toolchain};
use kernel::target::{Language, Target};
use kernel::template::library::{Layer, Library};
use kernel::template::render::render;
use kernel::template::{Params, Precision, Problem};

const ARCHS: [&str; 12] = [
    "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151",
    "gfx1200", "gfx1201",
];

pub fn options() -> CompilerOptions {
    let mut options = CompilerOptions::new(PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit")));
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/hiprtc");
    if env::var_os("GPTOSS_JIT_HIPRTC").is_none() && fetched.join(".complete").exists() {
        options.hiprtc = Toolchain::hiprtc_in(&fetched).expect("the fetch was complete");
    }
    options
}

/// One compiler for all tests, so that the canaries are compiled once. None, said aloud, without hipRTC.
pub fn compiler() -> Option<&'static Compilers> {
    static COMPILER: OnceLock<Option<Compilers>> = OnceLock::new();
    let compiler = COMPILER.get_or_init(|| {
        let compiler = Compilers::new(options());
        match compiler.identity("hiprtc", "gfx1100") {
            Err(CompileError::Canary { how: How::Unavailable, .. }) => None,
            Err(error) => panic!("{error}"),
            Ok(_) => Some(compiler),
        }
    });
    if compiler.is_none() {
        skipped("no hipRTC (tests/fetch-hiprtc.sh target/hiprtc fetches one)");
    }
    compiler.as_ref()
}

pub fn request(source: &str, target: &str, options: &[&str]) -> Request {
    Request {
        label: "op/variant".into(),
        about: String::new(),
        source: source.into(),
        entry: "k".into(),
        options: options.iter().map(ToString::to_string).collect(),
        target: target.into(),
        compiler: "hiprtc",
        params: Default::default(),
    }
}

const SMALL: &str = "extern \"C\" __global__ void k(float* y) {\n  y[threadIdx.x] = 1.0f;\n}\n";

/// What happened to a request that must fail, and what the compiler said.
fn failure(compiler: &Compilers, request: &Request) -> (How, String) {
    match compiler.compile(request).expect_err("must fail") {
        CompileError::Failed { how, log, .. } | CompileError::Canary { how, log, .. } => (how, log),
        error => panic!("{error}"),
    }
}

/// gpt-oss's own shapes, and ones that no vector divides.
fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    for (dtype, precision) in [(Dtype::F32, Precision::F32), (Dtype::Bf16, Precision::Bf16)] {
        for (wide, flag) in [(2880, true), (45, false)] {
            problems.push(Problem {
                ops: vec!["linear".into()],
                dims: named(&[("in_features", wide), ("out_features", 131)]),
                constants: BTreeMap::new(),
                flags: named(&[("has_bias", flag), ("has_residual", !flag || precision == Precision::Bf16)]),
                // A type that nothing has is no part of a problem.
                dtypes: named(&[("weight", dtype), ("bias", dtype)][..1 + usize::from(flag)]),
                precision,
                keeps: BTreeSet::new(),
            });
        }
    }
    problems
}

fn named<T: Copy>(pairs: &[(&str, T)]) -> BTreeMap<String, T> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
}

#[test]
fn linear_gemv_compiles_for_every_arch() {
    let Some(compiler) = compiler() else { return };
    let library = Library::from_layers(vec![Layer::built_in()]);
    let template = library.template("linear/gemv", Language::Hip).expect("built in");
    for (i, arch) in ARCHS.into_iter().enumerate() {
        let target = Target::gpu(arch).expect(arch);
        // All of them on one; that the others are known, and give no warnings, one kernel tells.
        for problem in problems().into_iter().take(if i == 0 { usize::MAX } else { 1 }) {
            let kernel = render(&library, template, &problem, &Params::new(), &target).expect(arch);
            let compiled = compiler.compile(&Request::new(&kernel, &target)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.object[..4], *b"\x7fELF", "{arch}");
            assert_eq!(compiled.log, "", "{arch}: warnings");
        }
    }
}

#[test]
fn the_same_source_gives_the_same_object_in_another_process() {
    let Some(compiler) = compiler() else { return };
    let objects = [(); 2].map(|()| compiler.compile(&request(SMALL, "gfx1100", &["-O3"])).expect("compiles").object);
    assert_eq!(objects[0], objects[1]);
}

#[test]
fn the_identity_names_the_library_and_differs_between_archs() {
    let Some(compiler) = compiler() else { return };
    let identity = |arch| compiler.identity("hiprtc", arch).expect(arch);
    let (one, other) = (identity("gfx1100"), identity("gfx942"));
    assert!(one.facts.iter().any(|fact| fact.starts_with("libamd_comgr")), "{:?}", one.facts);
    assert_eq!(one.facts, other.facts);
    assert_ne!(one.id, other.id, "the canary is the arch's own");
}

#[test]
fn a_kernel_is_compiled_with_the_workers_header_if_it_can_be() {
    let Some(compiler) = compiler() else { return };
    // A mark that hipRTC's header leaves.
    let with_theirs = |word: &str| format!("#ifdef HIP_INCLUDE_HIP_HIP_RUNTIME_H\n#{word} theirs\n#endif\n{SMALL}");
    assert_eq!(compiler.compile(&request(&with_theirs("error"), "gfx1100", &[])).expect("ours").log, "");
    let source = with_theirs("warning").replace("threadIdx.x", "blockDim.x");
    let log = compiler.compile(&request(&source, "gfx1100", &[])).expect("theirs has more").log;
    assert!(log.contains("theirs") && !log.contains("error"), "{log}");
    let identity = compiler.identity("hiprtc", "gfx1100").expect("it compiles");
    assert!(identity.facts.iter().any(|fact| fact.starts_with("hiprtc_runtime.h ")), "{:?}", identity.facts);
}

#[test]
fn a_broken_source_is_refused_with_its_line() {
    let Some(compiler) = compiler() else { return };
    let broken = SMALL.replace("1.0f", "no_such_name");
    let (how, log) = failure(compiler, &request(&broken, "gfx1100", &[]));
    assert_eq!(how, How::Rejected);
    assert!(log.starts_with("kernel.hip:2:"), "{log}");
    assert!(log.contains("no_such_name"), "{log}");
}

#[test]
fn a_host_header_is_not_found() {
    let Some(compiler) = compiler() else { return };
    let source = format!("#include <type_traits>\n{SMALL}");
    let (how, log) = failure(compiler, &request(&source, "gfx1100", &["-nostdinc"]));
    assert_eq!(how, How::Failed, "a file that is not there may be there another time");
    assert!(log.contains("'type_traits' file not found"), "{log}");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let Some(compiler) = compiler() else { return };
    // The first is reported as a success by hipRTC itself; the second ends its process.
    for options in [&["-bogus"][..], &["-mllvm", "-bogus"], &["-fbogus"]] {
        let (how, log) = failure(compiler, &request(SMALL, "gfx1100", options));
        assert!(matches!(how, How::Failed | How::Exited { .. }), "{options:?}: {how}");
        assert!(log.contains("ogus"), "{options:?}: {log}");
    }
}

#[test]
fn an_arch_that_hiprtc_does_not_know_ends_the_worker_only() {
    let Some(compiler) = compiler() else { return };
    let error = compiler.compile(&request(SMALL, "gfx9999", &[])).expect_err("there is no such arch");
    let CompileError::Canary { how: How::Crashed { .. } | How::Failed, target, .. } = &error else { panic!("{error}") };
    assert_eq!(&**target, "gfx9999");
    assert!(error.hint().is_some_and(|hint| hint.contains("gfx9999")));
    // The next compile is not impressed.
    compiler.compile(&request(SMALL, "gfx1100", &[])).expect("compiles");
}

#[test]
fn a_folder_without_hiprtc_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = Toolchain::hiprtc_in(folder.path()).expect_err("it is empty");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
}

#[test]
fn a_library_that_is_not_hiprtc_is_told_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("libhiprtc.so"), "not a library").expect("writes");
    let mut options = options();
    options.hiprtc = Toolchain::hiprtc_in(folder.path()).expect("the file is there");
    let error = Compilers::new(options).compile(&request(SMALL, "gfx1100", &[])).expect_err("no library");
    let CompileError::Canary { how: How::Unavailable, log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("libhiprtc.so"), "{log}");
}
