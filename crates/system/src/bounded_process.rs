//! A process of this program with bounds on memory, stack and processor time, for work that a foreign file could make
//! endless. Its input and its output are bytes.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;

use crate::os::{ExitStatusExt, Resource, Rlimit, SIGXCPU, getrlimit, setrlimit};

/// Address space of the process, of which its program takes a part.
const MEMORY_BYTES: u64 = 512 << 20;

/// The stack of a bounded process, in bytes.
pub const STACK_BYTES: usize = 64 << 20;

/// Processor time that the process may take.
const SECONDS: u64 = 5;

const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Of what the process printed, this much is looked at.
const MAX_PRINTED_BYTES: u64 = 4 << 10;

/// The program to start, where this crate is a library in another process.
static STAND_IN: OnceLock<PathBuf> = OnceLock::new();

/// Has `program` do all work for which this program would start itself: a process of others, such as Python's, does not
/// know what it would be asked. The first one counts.
pub fn work_is_done_by(program: PathBuf) {
    STAND_IN.get_or_init(|| program);
}

/// This program as it runs, even if its file was replaced: another program may not know the job. The path has the
/// process's number: for a process started by something that loads it, `self` would be that process.
pub fn this_program() -> PathBuf {
    if let Some(program) = STAND_IN.get() {
        return program.clone();
    }
    let running = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}

/// Why a process with bounds gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum BoundedError {
    /// There is no such process.
    #[error("could not start `{}` as a process with bounds", program.display())]
    NotStarted {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It was to take more memory than it may.
    #[error("it takes more than {} MiB of memory", MEMORY_BYTES >> 20)]
    Memory,
    /// It was to take more stack than it may.
    #[error("it is too long or nested too deeply: it takes more stack than there is")]
    Stack,
    /// It was to take more time than it may.
    #[error("it takes longer than {SECONDS} s")]
    Time,
    /// It ended in another way.
    #[error("the process for it gave no answer ({status}): {printed}")]
    Ended {
        status: ExitStatus,
        /// The beginning of what it printed.
        printed: String,
    },
}

/// Starts `program` with the one argument `command`, tells it `job`, and gives what it answers. It is to call
/// [`answer`].
///
/// # Errors
/// [`BoundedError`].
pub fn run(program: &Path, command: &str, job: &[u8]) -> Result<Vec<u8>, BoundedError> {
    // In `/proc` it has no name.
    let named = || std::fs::read_link(program).unwrap_or_else(|_| program.to_owned());
    let not_started = |source| BoundedError::NotStarted { program: named(), source };
    let piped = Stdio::piped;
    let mut process = Command::new(program);
    process.arg(command).env_clear().stdin(piped()).stdout(piped()).stderr(piped());
    let mut child = process.spawn().map_err(not_started)?;
    let answered = talk(&mut child, job);
    if answered.is_err() {
        let _ = child.kill(); // it may be writing to nobody
    }
    let status = child.wait().map_err(not_started)?;
    let (answer, printed) = answered.map_err(not_started)?;
    let says = |words: &str| printed.contains(words);
    match status.signal() {
        _ if status.success() => Ok(answer),
        Some(SIGXCPU) => Err(BoundedError::Time),
        Some(_) if says("memory allocation of") => Err(BoundedError::Memory),
        Some(_) if says("overflowed its stack") => Err(BoundedError::Stack),
        _ => Err(BoundedError::Ended { status, printed: printed.trim().to_owned() }),
    }
}

/// The answer and what was printed. The process reads all of the job before it says anything.
fn talk(child: &mut Child, job: &[u8]) -> io::Result<(Vec<u8>, String)> {
    // One that ends early leaves a broken pipe, and its status says why.
    let _ = child.stdin.take().expect("piped").write_all(job);
    let stderr = child.stderr.take().expect("piped");
    let listener = thread::Builder::new().spawn(move || {
        let (mut printed, mut stderr) = (Vec::new(), stderr);
        let _ = stderr.by_ref().take(MAX_PRINTED_BYTES).read_to_end(&mut printed);
        let _ = io::copy(&mut stderr, &mut io::sink());
        String::from_utf8_lossy(&printed).into_owned()
    })?;
    let mut answer = Vec::new();
    child.stdout.take().expect("piped").take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok((answer, listener.join().unwrap_or_default()))
}

/// The process's side: reads the job from stdin, sets the bounds, and writes what `work` makes of it to stdout.
///
/// # Errors
/// The job cannot be read, the bounds not be set, or the answer not be written.
pub fn answer(work: impl FnOnce(&[u8]) -> Vec<u8> + Send) -> io::Result<()> {
    let mut job = Vec::new();
    io::stdin().read_to_end(&mut job)?;
    for (resource, bound) in [(Resource::Core, 0), (Resource::As, MEMORY_BYTES), (Resource::Cpu, SECONDS)] {
        let hard = getrlimit(resource).maximum;
        let bound = Some(hard.map_or(bound, |hard| hard.min(bound)));
        // A hard bound on time kills without saying what for.
        let maximum = if resource == Resource::Cpu { hard } else { bound };
        setrlimit(resource, Rlimit { current: bound, maximum })?;
    }
    let made = thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || work(&job))?;
        worker.join().map_err(|_| io::Error::other("the work panicked"))
    })?;
    io::stdout().write_all(&made)
}
