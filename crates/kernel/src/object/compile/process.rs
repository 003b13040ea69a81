//! The parent's side of a worker: start it, wait, kill it, read what it left.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, thread};

use super::folder::PrivateFolder;
use super::job::{CompileJob, CompileOutput, Failure, How, Outcome, Toolchain};
use super::worker::{ASKED, PRINTED};
use super::{CompileError, CompilerOptions, answer, evidence, title};
use system::bounded_process::this_program;
use system::os::{CommandExt, ExitStatusExt, has_ended, kill_group};

/// The hidden command of the program: [`super::run_worker`] with the folder that follows.
pub const COMMAND: &str = "__compile-worker";
/// Of what a compiler printed, this much of the end is kept.
const MAX_KEPT_BYTES: u64 = 64 << 10;
/// A compiler that prints more is stopped.
const MAX_PRINTED_BYTES: u64 = 16 << 20;
/// With less room than this for temporary files, the lack of it is why a compiler failed.
const LITTLE_ROOM_BYTES: u64 = 16 << 20;
/// A wait this long is reported, or one of half the deadline.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// Compiles in a process of its own. `label` is what people call the kernel.
///
/// # Errors
/// The outer ones are about the worker (it could not be started), the inner ones about the compile.
pub(super) fn compile(options: &CompilerOptions, label: &str, job: &CompileJob) -> Result<Outcome, CompileError> {
    compile_until(options, label, job, None)
}

/// The same, stopped at that time if that is before the deadline.
///
/// # Errors
/// As [`compile`].
pub(super) fn compile_until(
    options: &CompilerOptions,
    label: &str,
    job: &CompileJob,
    until: Option<Instant>,
) -> Result<Outcome, CompileError> {
    let folder = PrivateFolder::new().map_err(|source| folder_error(env::temp_dir(), source))?;
    let in_folder = |source| folder_error(folder.path().to_owned(), source);
    job.write(folder.path()).map_err(in_folder)?;
    let printed = File::create(folder.path().join(PRINTED)).map_err(in_folder)?;

    let child = start(options, &job.toolchain, &folder, printed)?;
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let deadline = left.map_or(options.deadline, |left| left.min(options.deadline));
    let wait = Wait { folder: folder.path(), deadline, label, job };
    let end = wait.end_of(child).map_err(in_folder)?;
    let printed = clean(&read_printed(folder.path()).map_err(in_folder)?, folder.path(), job);
    let answer = answer::read(folder.path()).map_err(in_folder)?;
    Ok(match judge(end, answer) {
        Ok(made) => Ok(CompileOutput { log: join(&clean(&made.log, folder.path(), job), &printed), ..made }),
        Err(Failure { how, log }) => {
            let log = join(&clean(&log, folder.path(), job), &printed);
            Err(Failure { how: whose_fault(how, &log, job, folder.free_bytes()), log })
        }
    })
}

/// The folder where compilers put their temporary files, and what is left there, in bytes, if the system tells.
///
/// # Errors
/// [`CompileError::Folder`] if nothing can be made there, or hardly anything has room.
pub fn temporary_room() -> Result<(PathBuf, Option<u64>), CompileError> {
    let temporary = std::env::temp_dir();
    let free_bytes = match PrivateFolder::new() {
        Ok(folder) => folder.free_bytes(),
        Err(source) => return Err(folder_error(temporary, source)),
    };
    match free_bytes {
        Some(free) if free < LITTLE_ROOM_BYTES => Err(folder_error(temporary, too_little(free))),
        _ => Ok((temporary, free_bytes)),
    }
}

fn too_little(free_bytes: u64) -> io::Error {
    let what = format!("{free_bytes} bytes are left there, and compilers may need {LITTLE_ROOM_BYTES}");
    io::Error::new(io::ErrorKind::StorageFull, what)
}

fn folder_error(folder: PathBuf, source: io::Error) -> CompileError {
    CompileError::Folder { folder, source: Arc::new(source) }
}

fn start(
    options: &CompilerOptions,
    toolchain: &Toolchain,
    folder: &PrivateFolder,
    printed: File,
) -> Result<Child, CompileError> {
    let worker = options.worker.clone().unwrap_or_else(this_program);
    let mut words = toolchain.launcher.iter().map(PathBuf::from).chain([worker]);
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
    spawn().map_err(|source| {
        let program = fs::read_link(&program).unwrap_or(program); // in `/proc` it has no name
        CompileError::NotStarted { program, source: Arc::new(source) }
    })
}

enum End {
    Itself(ExitStatus),
    Killed(How),
}

/// A wait for a worker.
struct Wait<'a> {
    folder: &'a Path,
    deadline: Duration,
    label: &'a str,
    job: &'a CompileJob,
}

impl Wait<'_> {
    /// Waits for the worker, no longer than the deadline, and kills whatever is left of its process group.
    fn end_of(&self, mut child: Child) -> io::Result<End> {
        let start = Instant::now();
        let mut is_told = false;
        let why_killed = loop {
            if has_ended(&mut child)? {
                break None;
            }
            let elapsed = start.elapsed();
            if elapsed >= self.deadline {
                break Some(How::TimedOut { after_ms: self.deadline.as_millis() as u64 });
            }
            if [PRINTED, ASKED].iter().any(|file| self.len_bytes(file) > MAX_PRINTED_BYTES) {
                break Some(How::Chatter { max_bytes: MAX_PRINTED_BYTES });
            }
            if elapsed > LONG_WAIT.min(self.deadline / 2) && !is_told {
                is_told = true;
                tracing::warn!("{}", self.told());
            }
            let pause = (elapsed / 32).clamp(Duration::from_millis(1), Duration::from_millis(20));
            thread::sleep(pause.min(self.deadline - elapsed));
        };
        kill_group(&mut child);
        let status = child.wait()?;
        Ok(why_killed.map_or(End::Itself(status), End::Killed))
    }

    fn len_bytes(&self, file: &str) -> u64 {
        fs::symlink_metadata(self.folder.join(file)).map_or(0, |file| file.len())
    }

    /// What is waited for, and how long at most.
    fn told(&self) -> String {
        let Toolchain { name, compiler, .. } = &self.job.toolchain;
        let path = compiler.iter().map(|path| format!(" `{}`", path.display())).collect::<String>();
        let limit = self.deadline.as_secs();
        format!("waiting for {}{path} to compile {}; it is stopped after {limit} s", title(name), self.label)
    }
}

fn judge(end: End, answer: Option<Vec<u8>>) -> Result<CompileOutput, Failure> {
    let failed = |how| Err(Failure { how, log: String::new() });
    let status = match end {
        End::Killed(how) => return failed(how),
        End::Itself(status) => status,
    };
    match (status.signal(), status.code(), answer.as_deref().map(answer::decode)) {
        // Nobody but the system kills a worker before its deadline, and it does so for memory.
        (Some(9), ..) => failed(How::OutOfMemory),
        (Some(signal), ..) => failed(How::Crashed { signal }),
        (None, Some(0), Some(Ok(outcome))) => outcome,
        (None, Some(0), Some(Err(what))) => failed(How::Garbage { what }),
        (None, code, _) => failed(How::Exited { code: code.unwrap_or_default() }),
    }
}

/// A refusal stays one if the compiler names a line of the source. Whatever else happened may be the machine's fault,
/// and is if it shows.
fn whose_fault(how: How, log: &str, job: &CompileJob, free_bytes: Option<u64>) -> How {
    let how = match how {
        How::Rejected if evidence::blames_the_source(log, &job.toolchain.names_in_diagnostics()) => return how,
        How::TimedOut { .. } | How::Chatter { .. } => return how,
        How::Rejected => How::Failed,
        how => how,
    };
    let little = free_bytes.filter(|free| *free < LITTLE_ROOM_BYTES).map(|free_bytes| How::NoRoom { free_bytes });
    evidence::passing_cause(log, free_bytes.unwrap_or_default()).or(little).unwrap_or(how)
}

fn read_printed(folder: &Path) -> io::Result<String> {
    let mut file = File::open(folder.join(PRINTED))?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MAX_KEPT_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_KEPT_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Names files as we do: without the private folder, and without comgr's in it, `comgr-1a2b/input/CompileSource`.
fn clean(log: &str, folder: &Path, job: &CompileJob) -> String {
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
        let log = "In file /tmp/p/comgr-1a/input/CompileSource:74:84: error: no\n/tmp/p/x.c:1: '/tmp/comgr-2/include/a.h' /data/input/b";
        assert_eq!(
            clean(log, Path::new("/tmp/p"), &job()),
            "In file kernel.hip:74:84: error: no\nx.c:1: 'a.h' /data/input/b"
        );
    }

    fn job() -> CompileJob {
        CompileJob {
            toolchain: Toolchain::new("hiprtc", None),
            source: String::new(),
            entry: "k".into(),
            target: "gfx1100".into(),
            options: Vec::new(),
            memory_bytes: 0,
            stated: None,
            reads: None,
        }
    }

    #[test]
    fn a_compiler_that_crashed_had_no_room_if_less_than_it_may_need_was_left() {
        let fault = |free_bytes| whose_fault(How::Crashed { signal: 11 }, "", &job(), free_bytes);
        assert!(
            matches!(fault(Some(LITTLE_ROOM_BYTES - 1)), How::NoRoom { free_bytes } if free_bytes == LITTLE_ROOM_BYTES - 1)
        );
        assert!(matches!(fault(Some(LITTLE_ROOM_BYTES)), How::Crashed { signal: 11 }));
        assert!(matches!(fault(None), How::Crashed { signal: 11 }));
    }

    #[test]
    fn there_is_room_where_there_is_more_than_little() {
        let free = PrivateFolder::new().expect("a folder").free_bytes();
        let has_room = free.is_none_or(|free| free >= LITTLE_ROOM_BYTES);
        assert_eq!(temporary_room().is_ok(), has_room, "{free:?}");
    }
}
