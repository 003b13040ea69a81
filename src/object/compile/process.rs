//! The parent's side of a worker: start it, wait, kill it, read what it left.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tempfile::TempDir;

use super::job::{Failure, How, Job, Made, Outcome, Toolchain};
use super::worker::FOLDER_PREFIX;
use super::{CompileError, CompilerOptions, answer};

/// The hidden command of the program.
const COMMAND: &str = "__compile-worker";
const PRINTED: &str = "printed";
/// Of what a compiler printed, this much of the end is kept.
const MAX_PRINTED_BYTES: u64 = 64 << 10;

/// Compiles in a process of its own.
///
/// # Errors
/// The outer ones are about the worker (it could not be started), the inner ones about the compile.
pub(super) fn compile(options: &CompilerOptions, job: &Job) -> Result<Outcome, CompileError> {
    let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir();
    let folder = folder.map_err(|source| folder_error(env::temp_dir(), source))?;
    let in_folder = |source| folder_error(folder.path().to_owned(), source);
    job.write(folder.path()).map_err(in_folder)?;
    let printed = File::create(folder.path().join(PRINTED)).map_err(in_folder)?;

    let child = start(options, &job.toolchain, &folder, printed)?;
    let end = wait(child, options.deadline).map_err(in_folder)?;
    let printed = clean(&read_printed(folder.path()).map_err(in_folder)?, folder.path(), job);
    let answer = answer::read(folder.path()).map_err(in_folder)?;
    Ok(match judge(end, answer, &printed) {
        Ok(made) => Ok(Made { log: join(&clean(&made.log, folder.path(), job), &printed), ..made }),
        Err(failure) => Err(Failure { log: join(&clean(&failure.log, folder.path(), job), &printed), ..failure }),
    })
}

fn folder_error(folder: PathBuf, source: io::Error) -> CompileError {
    CompileError::Folder { folder, source: Arc::new(source) }
}

fn start(
    options: &CompilerOptions,
    toolchain: &Toolchain,
    folder: &TempDir,
    printed: File,
) -> Result<Child, CompileError> {
    let mut words = toolchain.launcher.iter().map(PathBuf::from).chain([options.worker.clone()]);
    let program = words.next().expect("the worker is the last word at least");
    let spawn = || {
        Command::new(&program)
            .args(words)
            .arg(COMMAND)
            .arg(folder.path())
            .env_clear()
            .envs(env::var_os("PATH").map(|path| ("PATH", path)))
            .env("LANG", "C")
            .env("TMPDIR", folder.path())
            .env("HOME", folder.path())
            .env("AMD_COMGR_CACHE", "0")
            .envs(&toolchain.environment)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stderr(printed.try_clone()?)
            .stdout(printed)
            .process_group(0)
            .spawn()
    };
    spawn().map_err(|source| CompileError::NotStarted { program: program.clone(), source: Arc::new(source) })
}

/// How a worker ended.
enum End {
    Itself(ExitStatus),
    Killed { after: Duration },
}

/// Waits for the worker, no longer than the deadline, and kills whatever is left of its process group.
fn wait(mut child: Child, deadline: Duration) -> io::Result<End> {
    let pid = Pid::from_child(&child);
    let start = Instant::now();
    let ended = loop {
        // NOWAIT leaves the worker a zombie: until `child.wait()` nobody else can get its process group's number.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(pid), options)?.is_some() {
            break true;
        }
        let elapsed = start.elapsed();
        if elapsed >= deadline {
            break false;
        }
        let pause = (elapsed / 32).clamp(Duration::from_millis(1), Duration::from_millis(20));
        thread::sleep(pause.min(deadline - elapsed));
    };
    // An error means that the group is empty.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    Ok(if ended { End::Itself(status) } else { End::Killed { after: deadline } })
}

fn judge(end: End, answer: Option<Vec<u8>>, printed: &str) -> Result<Made, Failure> {
    let failed = |how| Err(Failure { how, log: String::new() });
    let status = match end {
        End::Killed { after } => return failed(How::TimedOut { after_ms: after.as_millis() as u64 }),
        End::Itself(status) => status,
    };
    let outcome = match (status.signal(), status.code(), answer.as_deref().map(answer::decode)) {
        // Nobody but the system kills a worker before its deadline, and it does so for memory.
        (Some(9), ..) => failed(How::OutOfMemory),
        (Some(signal), ..) => failed(How::Crashed { signal }),
        (None, Some(0), Some(Ok(outcome))) => outcome,
        (None, Some(0), Some(Err(what))) => failed(How::Garbage { what }),
        (None, code, _) => failed(How::Exited { code: code.unwrap_or_default() }),
    };
    outcome.map_err(|Failure { how, log }| {
        let how = passing_cause(printed).or_else(|| passing_cause(&log)).unwrap_or(how);
        Failure { how, log }
    })
}

/// Why a compiler gave up, if the reason is not in the source: what it says when it lacks memory or disk.
fn passing_cause(printed: &str) -> Option<How> {
    let says = |words: &[&str]| words.iter().any(|words| printed.contains(words));
    if says(&["bad_alloc", "ut of memory", "memory exhausted", "annot allocate memory", "memory allocation of"])
        || says(&["Killed signal terminated program"])
    {
        Some(How::OutOfMemory)
    } else {
        says(&["No space left on device", "Disk quota exceeded"]).then_some(How::Unavailable)
    }
}

fn read_printed(folder: &Path) -> io::Result<String> {
    let mut file = File::open(folder.join(PRINTED))?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MAX_PRINTED_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_PRINTED_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Names files as we do: without the private folder, and without comgr's in it, `comgr-1a2b/input/CompileSource`.
fn clean(log: &str, folder: &Path, job: &Job) -> String {
    let mut log = log.replace(&format!("{}/", folder.display()), "");
    for inner in ["/input/", "/include/"] {
        let mut from = 0;
        while let Some(end) = log[from..].find(inner).map(|at| from + at) {
            let start = log[..end].rfind(|c: char| c.is_whitespace() || "'\"`(<".contains(c)).map_or(0, |at| at + 1);
            let is_comgr = log[start..end].rsplit('/').next().is_some_and(|name| name.starts_with("comgr-"));
            from = if is_comgr { start } else { end + inner.len() };
            if is_comgr {
                log.replace_range(start..end + inner.len(), "");
            }
        }
    }
    log.replace("CompileSource:", &format!("{}:", job.toolchain.source_name()))
}

fn join(log: &str, printed: &str) -> String {
    match (log.trim_end(), printed.trim_end()) {
        ("", text) | (text, "") => text.to_owned(),
        (log, printed) => format!("{log}\n{printed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_names_the_source_as_we_do() {
        let job = Job {
            toolchain: Toolchain::of("hiprtc", None),
            source: String::new(),
            entry: "k".into(),
            target: "gfx1100".into(),
            options: Vec::new(),
            memory_bytes: 0,
            stated: None,
        };
        let log = "In file /tmp/p/comgr-1a/input/CompileSource:74:84: error: no\n/tmp/p/x.c:1: '/tmp/comgr-2/include/a.h' /data/input/b";
        assert_eq!(
            clean(log, Path::new("/tmp/p"), &job),
            "In file kernel.hip:74:84: error: no\nx.c:1: 'a.h' /data/input/b"
        );
    }
}
