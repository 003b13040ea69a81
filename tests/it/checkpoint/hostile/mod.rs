//! Checkpoints that lie: an error each, with a hint, and no more memory than the file could need.

pub mod gguf;
mod safetensors;
mod tokenizer;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::fixtures::program::{Ran, command, shared_cache};

/// Address space of a process that looks at a file here: several times what the program itself takes, and far below
/// what a lying header asks for.
const LIMIT_KIB: &str = "1048576";

/// Runs the program with little memory.
pub fn run_limited(args: &[&str]) -> Ran {
    let plain = command(shared_cache(), args);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", LIMIT_KIB]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    Ran::new(args, limited.output().expect("started"))
}

/// Expects that a model is refused, with this in its message.
#[track_caller]
pub fn refused(path: &Path, message: &str) {
    let path = path.to_str().expect("text");
    let stderr = run_limited(&["inspect", path]).fails_with_hint(1);
    assert!(stderr.starts_with(&format!("error: could not read checkpoint `{path}`\n")), "{stderr}");
    assert!(stderr.contains(message), "expected `{message}` in: {stderr}");
}

/// A copy of a checkpoint's folder, to be damaged.
pub fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(crate::checkpoint::kinds::path(name)).expect("a fixture") {
        let entry = entry.expect("listed");
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
    }
    copy
}
