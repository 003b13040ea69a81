//! Workers, compilers and the store, with the real program as the worker.

mod c_compiler;
pub mod processes;
mod store;
mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::{CompileError, Compiled, CompilerOptions, Compilers, How, Request, Toolchain};
use kernel::object::store::Store;

use crate::fixtures::program::named_pipe;

pub const HOST_TARGET: &str = if cfg!(target_arch = "x86_64") { "x86-64" } else { "armv8-a" };

/// hipRTC, whose library is `crates/fake-hip`'s in these tests: it does what the source says.
pub const FAKE: &str = "hiprtc";

pub fn options() -> CompilerOptions {
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    let library = std::env::current_exe().unwrap().with_file_name("libgptoss_jit_fake_hip.so");
    assert!(library.is_file(), "{} is not built", library.display());
    let hiprtc = Toolchain {
        name: FAKE.into(),
        compiler: Some(library),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        launcher: Vec::new(),
    };
    CompilerOptions { deadline: Duration::from_secs(60), hiprtc, ..CompilerOptions::new(worker) }
}

pub fn request(compiler: &'static str, source: &str) -> Request {
    let target = if compiler == "host" { HOST_TARGET } else { "gfx1100" };
    Request {
        label: "op/variant".into(),
        about: String::new(),
        source: source.into(),
        entry: "canary_of_tests".into(),
        options: Vec::new(),
        target: target.into(),
        compiler,
        params: Default::default(),
    }
}

fn compile(options: CompilerOptions, compiler: &'static str, source: &str) -> Result<Compiled, CompileError> {
    Compilers::new(options).compile(&request(compiler, source))
}

/// What happened, and what the compiler said.
fn failure(options: CompilerOptions, compiler: &'static str, source: &str) -> (How, String) {
    match compile(options, compiler, source).expect_err(source) {
        CompileError::Failed { how, log, .. } => (how, log),
        error => panic!("{error}"),
    }
}

fn fake_failure(directives: &str) -> (How, String) {
    failure(options(), FAKE, directives)
}

pub fn store(root: &Path) -> Store {
    Store::new(Cache::open(root, CacheLimits::default()), options())
}

/// How often the fake compiler ran, by the lines it left.
fn runs(counter: &Path) -> usize {
    fs::read_to_string(counter).map_or(0, |text| text.lines().count())
}

/// A pipe in a folder.
pub fn pipe_in(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    named_pipe(&pipe);
    pipe
}

/// Processes, and the folder that each works in.
fn current_folders() -> Vec<(PathBuf, PathBuf)> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter_map(|path| fs::read_link(path.join("cwd")).ok().map(|cwd| (path, cwd))).collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(600), "{what}");
        sleep(Duration::from_millis(5));
    }
}
