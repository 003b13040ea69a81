//! The program as people start it: its own process, a cache folder of the tests, nothing of the user's.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

/// What a run left: its exit code and its two streams.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// The repository: where these tests were built, or, on a machine that only got them, the folder they are started in.
pub fn repository() -> PathBuf {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"));
    match built_in.join("tests/fixtures").is_dir() {
        true => built_in.to_owned(),
        false => std::env::current_dir().expect("a folder"),
    }
}

/// The program: where cargo put it, or, on a machine that only got the tests, beside them.
fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_gptoss-jit"));
    match built.is_file() {
        true => built.to_owned(),
        false => std::env::current_exe().expect("this program").with_file_name("gptoss-jit"),
    }
}

/// A folder for what tests leave behind: of cargo's, or, where that is not, of the system's.
fn scratch() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if built.is_dir() { built.to_owned() } else { std::env::temp_dir() }
}

/// The cache that all tests share, and one run of them with the next: a kernel's key is all that its object depends on, so
/// what was compiled once need not be again. Tests of the cache itself, and of cold starts, have folders of their own.
pub fn shared_cache() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| scratch().join("kernels"));
    &FOLDER
}

/// The program with a cache of its own choosing, and without what the user has set.
pub fn command(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPTOSS_JIT_")) {
        command.env_remove(name);
    }
    // Nothing is there: no templates and no tables of the user's.
    command.env("XDG_CONFIG_HOME", scratch().join("no-config"));
    command.env("GPTOSS_JIT_CACHE", cache).env("NO_COLOR", "1").args(args).stdin(Stdio::null());
    command
}

/// Runs with the shared cache.
pub fn run(args: &[&str]) -> Ran {
    run_in(shared_cache(), args)
}

/// Runs with this cache.
pub fn run_in(cache: &Path, args: &[&str]) -> Ran {
    Ran::new(args, command(cache, args).output().expect("started"))
}

/// Runs with the shared cache and this on stdin.
pub fn run_with_stdin(args: &[&str], stdin: &[u8]) -> Ran {
    let mut command = command(shared_cache(), args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    // What is asked for fits the pipe; a program that ended without reading it is no error here.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    Ran::new(args, child.wait_with_output().expect("reaped"))
}

impl Ran {
    /// Whatever happens, the program ends by itself and never by a panic.
    pub fn new(args: &[&str], output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("stderr is text");
        let code = output.status.code().unwrap_or_else(|| panic!("{args:?}: {}\n{stderr}", output.status));
        assert!(!stderr.contains("panicked") && code != 101, "{args:?}: {stderr}");
        Self { code, stdout: output.stdout, stderr }
    }

    /// Expects success.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Expects one error, a hint, and nothing on stdout. Gives stderr.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}", self.stderr);
        assert_eq!(String::from_utf8_lossy(&self.stdout), "");
        assert_eq!(self.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{}", self.stderr);
        self.stderr
    }

    /// Expects what [`Self::fails`] does, and a hint.
    #[track_caller]
    pub fn fails_with_hint(self, code: i32) -> String {
        let stderr = self.fails(code);
        assert!(stderr.contains("\nhint: "), "{stderr}");
        stderr
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("stdout is text")
    }

    /// The one JSON object on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_str(self.text()).unwrap_or_else(|e| panic!("{e}: {}", self.text()));
        assert_eq!(value["schema"], 1);
        value
    }

    /// Lines of token ids on stdout.
    #[track_caller]
    pub fn ids(&self) -> Vec<Vec<u32>> {
        parse_ids(self.text())
    }
}

/// Lines of ids, separated by single blanks.
#[track_caller]
pub fn parse_ids(text: &str) -> Vec<Vec<u32>> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is not ended: {text:?}");
    let ids = |line: &str| match line {
        "" => Vec::new(),
        line => line.split(' ').map(|word| word.parse().unwrap_or_else(|_| panic!("`{line}`"))).collect(),
    };
    text.split_terminator('\n').map(ids).collect()
}

/// The keys of an object.
pub fn keys(object: &Value) -> HashSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Writes a file for the program to read. Gives its path as an argument.
pub fn file(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
    fs::write(&path, bytes).expect("written");
    argument(&path)
}

/// A path as an argument.
pub fn argument(path: &Path) -> String {
    path.to_str().expect("test paths are text").to_owned()
}
