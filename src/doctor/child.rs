//! Runs this program as a child process, for one part of a report or a verdict: its output, and how it ended. A kernel
//! or driver that crashes the child does not affect the report.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kernel::object::compile::signal_name;
use system::bounded_process::this_program;
use system::os::ExitStatusExt;

/// Of what a child prints on either stream, this much is read.
const MAX_PRINTED_BYTES: u64 = 4 << 20;

/// How often a child is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// The result of a child.
pub(super) struct Ended {
    pub(crate) result: String,
    /// Its stderr, line by line; without what progress bars leave.
    pub(crate) notes: Vec<String>,
    /// None if it did what it was to do; else how it ended.
    pub(crate) problem: Option<String>,
    /// Whether that is that its time was up.
    pub(crate) is_late: bool,
    pub(crate) took: Duration,
}

/// Runs this program with these words, for at most so long. Its children end with it: they follow their parents.
///
/// # Errors
/// If it cannot be started.
pub(super) fn run(words: &[String], limit: Duration) -> io::Result<Ended> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(this_program());
    command.args(words).stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let start = Instant::now();
    let mut child = command.spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(PAUSE);
    };
    let notes = read(&mut stderr)?;
    Ok(Ended {
        result: read(&mut stdout)?,
        problem: match status {
            Some(status) => problem(status, &notes),
            None => Some(format!("it was stopped after {:.0} s", limit.as_secs_f64())),
        },
        is_late: status.is_none(),
        notes: notes.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect(),
        took: start.elapsed(),
    })
}

fn read(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MAX_PRINTED_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The error that it told, below which there may be those of a compiler, or how it ended without one.
fn problem(status: ExitStatus, notes: &str) -> Option<String> {
    if status.success() {
        return None;
    }
    let told = notes.lines().find_map(|line| line.strip_prefix("error: "));
    Some(match (status.signal(), told) {
        (Some(signal), _) => format!("signal {signal}{} ended it", signal_name(signal)),
        (None, Some(told)) => told.to_owned(),
        (None, None) => format!("it ended with exit code {}", status.code().unwrap_or_default()),
    })
}
