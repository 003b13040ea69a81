//! The parent's side of a replica: gives orders and watches.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Line;
use hint::Hint;
use system::os::ExitStatusExt;

/// A child that is silent for so long does nothing any more: it says each second that it is there, also while it
/// computes.
const SILENCE: Duration = Duration::from_secs(10);

/// Who has not listened for so long does not know who was silent meanwhile.
const AWAY: Duration = Duration::from_secs(1);

/// How much of what a child printed last is kept.
const LAST_WORDS_BYTES: usize = 2048;

/// Why a replica gives no answers.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// There is no such process.
    #[error("could not start the replica on {device}")]
    NotStarted {
        /// Where it was to run.
        device: String,
        #[source]
        source: io::Error,
    },
    /// It says that it cannot go on.
    #[error("the replica on {device} cannot go on: {message}")]
    Failed {
        device: String,
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Its process is gone.
    #[error("the replica on {device} (process {pid}) {how}{last_words}")]
    Ended {
        device: String,
        pid: u32,
        how: String,
        /// What it printed last, after a colon; or nothing.
        last_words: String,
    },
    /// Its process is there, and says nothing.
    #[error("the replica on {device} (process {pid}) has said nothing for {seconds} s{state}")]
    Silent {
        device: String,
        pid: u32,
        seconds: u64,
        /// What the system says of it, after a comma; or nothing.
        state: &'static str,
    },
}

impl Hint for ReplicaError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Failed { hint, .. } => hint.clone(),
            _ => None,
        }
    }
}

/// How a replica is started, also again.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program; it is to use [`super::child`].
    pub program: PathBuf,
    pub words: Vec<OsString>,
    /// Where it runs, for people.
    pub device: String,
    /// Whether what it prints is printed: what several have to say of themselves is the same.
    pub speaks: bool,
}

/// A process that has the model. Dropped, it is ended.
#[derive(Debug)]
pub struct Replica {
    device: String,
    process: Child,
    /// To the thread that writes to it: a process that does not read must not keep the others waiting.
    orders: Sender<Vec<u8>>,
    heard: Instant,
    /// What one that may not print has printed.
    printed: Arc<Mutex<VecDeque<u8>>>,
}

impl Replica {
    /// Starts one. A thread passes each line of its output to `on`, and None at its end, until `on` returns false.
    ///
    /// # Errors
    /// [`ReplicaError::NotStarted`].
    pub fn start<T: DeserializeOwned>(
        start: &Start,
        on: impl Fn(Option<Line<T>>) -> bool + Send + 'static,
    ) -> Result<Self, ReplicaError> {
        let not_started = |source| ReplicaError::NotStarted { device: start.device.clone(), source };
        let stderr = if start.speaks { Stdio::inherit() } else { Stdio::piped() };
        let mut process = Command::new(&start.program);
        let process = process.args(&start.words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut process = process.spawn().map_err(not_started)?;
        let (orders, lines) = mpsc::channel::<Vec<u8>>();
        let mut stdin = process.stdin.take().expect("piped");
        thread::spawn(move || lines.into_iter().try_for_each(|line| stdin.write_all(&line)));
        let mut stdout = BufReader::new(process.stdout.take().expect("piped"));
        thread::spawn(move || {
            let mut line = Vec::new();
            // A line without an end is of one that was ended within it.
            while stdout.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let nonsense = |error| {
                    let message = format!("said `{}`: {error}", String::from_utf8_lossy(&line).trim());
                    Line::Failed { message, hint: None }
                };
                if !on(Some(serde_json::from_slice(&line).unwrap_or_else(nonsense))) {
                    return;
                }
                line.clear();
            }
            on(None);
        });
        let printed = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = process.stderr.take() {
            let printed = Arc::clone(&printed);
            thread::spawn(move || keep_last(stderr, &printed));
        }
        Ok(Self { device: start.device.clone(), process, orders, heard: Instant::now(), printed })
    }

    /// An order as it goes to a replica.
    pub fn line(what: &impl Serialize) -> Vec<u8> {
        let mut line = serde_json::to_vec(what).expect("numbers and texts");
        line.push(b'\n');
        line
    }

    /// Sends a line to the child.
    pub fn order(&self, line: Vec<u8>) {
        let _ = self.orders.send(line); // one that is gone is heard of
    }

    /// Something was heard of it, or could not have been.
    pub fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// If it has been silent for too long.
    pub fn silent(&self) -> Option<ReplicaError> {
        if self.heard.elapsed() <= SILENCE {
            return None;
        }
        let (device, pid) = (self.device.clone(), self.process.id());
        // The third field, after a name in brackets.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_stopped = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
        let state = if is_stopped { ", since it is stopped" } else { "" };
        Some(ReplicaError::Silent { device, pid, seconds: self.heard.elapsed().as_secs(), state })
    }

    /// The replica reported that it cannot continue.
    pub fn failed(&self, message: String, hint: Option<String>) -> ReplicaError {
        ReplicaError::Failed { device: self.device.clone(), message, hint }
    }

    /// Its stdout is at its end, and so is it, or soon.
    pub fn ended(&mut self) -> ReplicaError {
        let end = Instant::now() + Duration::from_secs(1);
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
                _ => break None,
            }
        };
        let printed = self.printed.lock().expect("no panic").iter().copied().collect::<Vec<u8>>();
        let printed = String::from_utf8_lossy(&printed).trim().to_owned();
        ReplicaError::Ended {
            device: self.device.clone(),
            pid: self.process.id(),
            how: status.map_or_else(|| "closed its stdout".to_owned(), how),
            last_words: if printed.is_empty() { String::new() } else { format!(": {printed}") },
        }
    }

    /// Has the system end it; dropping it waits for that.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
    }
}

/// None of them outlives what they are for.
impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// The time of the last look.
#[derive(Debug)]
pub struct Listening(Instant);

impl Default for Listening {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Listening {
    /// Listens again. Returns whether this process was stopped meanwhile, or waited for a disk: then it missed the
    /// replicas' messages, and cannot call them silent.
    pub fn was_away(&mut self) -> bool {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now) > AWAY
    }
}

/// How a process ended, in words.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, code) => format!("ended with exit code {}", code.unwrap_or_default()),
    }
}

fn keep_last(mut from: impl Read, last: &Mutex<VecDeque<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let mut last = last.lock().expect("no panic");
        last.extend(&bytes[..n]);
        let surplus = last.len().saturating_sub(LAST_WORDS_BYTES);
        last.drain(..surplus);
    }
}
