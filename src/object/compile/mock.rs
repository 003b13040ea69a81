//! A pretended compiler for tests. It does what comments in the source say, `// mock: <what>`, one after the other:
//!
//! `crash`, `hang`, `oom`, `exit N`, `reject LOG`, `sleep-ms N`, `garbage`, `truncate`, `print TEXT` (on stderr),
//! `environment` (the names of the environment go to the log), `append-pid PATH` (a line per compile). Without a word
//! that ends it, the object is a digest of source, options, target and entry.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{Write, stderr};
use std::path::Path;
use std::time::Duration;
use std::{env, process, thread};

use super::answer;
use super::identity::Canary;
use super::job::{Failure, How, Job, Made, Toolchain};
use crate::object::key::Digest;
use crate::target::Backend;

pub(super) fn toolchain() -> Toolchain {
    Toolchain { backend: Backend::Mock, compiler: None, environment: BTreeMap::new(), launcher: Vec::new() }
}

pub(super) fn canary() -> Canary {
    Canary { source: "canary", entry: "canary", options: &[] }
}

pub(super) fn compile(job: &Job, folder: &Path) -> Result<Made, Failure> {
    let mut made = Made { object: object(job), log: String::new(), facts: vec!["mock 1".into()], files: Vec::new() };
    for line in job.source.lines() {
        let Some(directive) = line.trim().strip_prefix("// mock: ") else { continue };
        let (word, argument) = directive.split_once(' ').unwrap_or((directive, ""));
        obey(word, argument, &mut made, folder)?;
    }
    Ok(made)
}

fn object(job: &Job) -> Vec<u8> {
    let text = format!("{:?}", (&job.source, &job.options, &job.target, &job.entry));
    format!("mock object {}\n", Digest::of(text.as_bytes())).into_bytes()
}

fn obey(word: &str, argument: &str, made: &mut Made, folder: &Path) -> Result<(), Failure> {
    let rejected = |log: String| Err(Failure { how: How::Rejected, log });
    match word {
        "crash" => process::abort(),
        "hang" => loop {
            thread::sleep(Duration::from_secs(1));
        },
        // Unobserved, the allocation would be optimised away.
        "oom" => drop(black_box(vec![1_u8; usize::MAX / 4])),
        "exit" => process::exit(argument.parse().unwrap_or(1)),
        "reject" => return rejected(argument.into()),
        "sleep-ms" => thread::sleep(Duration::from_millis(argument.parse().unwrap_or(0))),
        "garbage" => leave(folder, b"\x00what a broken compiler leaves".to_vec()),
        "truncate" => leave(folder, truncated(made)),
        "print" => drop(writeln!(stderr(), "{argument}")),
        "environment" => made.log = environment(),
        "append-pid" => append_pid(Path::new(argument)).or_else(|error| rejected(error.to_string()))?,
        _ => return rejected(format!("error: the mock compiler does not know `{word}`")),
    }
    Ok(())
}

/// Ends the worker with an answer that is none.
fn leave(folder: &Path, bytes: Vec<u8>) {
    let written = answer::write(folder, &bytes);
    process::exit(i32::from(written.is_err()));
}

fn truncated(made: &Made) -> Vec<u8> {
    let mut bytes = answer::encode(&Ok(made.clone())).unwrap_or_default();
    bytes.truncate(bytes.len() / 2);
    bytes
}

fn environment() -> String {
    let mut names: Vec<String> = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names.join(" ")
}

fn append_pid(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    // One write, so that lines of concurrent workers do not mix.
    file.write_all(format!("{}\n", process::id()).as_bytes())
}
