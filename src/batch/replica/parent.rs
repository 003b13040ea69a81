//! The side of replicas that hands out jobs and watches.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::{Did, Ready, Said, Sent};
use crate::batch::work::{Answered, InFlight, Job};
use crate::error::Hint;

/// A child that is silent for so long does nothing any more: it says each second that it is there, also while it
/// computes.
const SILENCE: Duration = Duration::from_secs(10);

/// Who has not listened for so long does not know who was silent meanwhile.
const AWAY: Duration = Duration::from_secs(1);

/// How long one wait for an answer is, so that signals and silence are noticed.
const WAIT: Duration = Duration::from_millis(100);

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
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It says that it cannot go on.
    #[error("the replica on {device} cannot go on: {message}")]
    Failed {
        /// Where it ran.
        device: String,
        /// Why.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// Its process is gone.
    #[error("the replica on {device} (process {pid}) {how}{last_words}")]
    Ended {
        /// Where it ran.
        device: String,
        /// Its number.
        pid: u32,
        /// How it ended.
        how: String,
        /// What it printed last, behind a colon; or nothing.
        last_words: String,
    },
    /// Its process is there, and says nothing.
    #[error("the replica on {device} (process {pid}) has said nothing for {seconds} s{state}")]
    Silent {
        /// Where it ran.
        device: String,
        /// Its number.
        pid: u32,
        /// For how long.
        seconds: u64,
        /// What the system says of it, behind a comma; or nothing.
        state: &'static str,
    },
}

impl Hint for ReplicaError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Failed { hint, .. } => hint.clone(),
            _ => Some("the same command goes on from the answers that are kept".into()),
        }
    }
}

/// Processes that have the model, and what they are at.
#[derive(Debug)]
pub struct Replicas {
    replicas: Vec<Replica>,
    heard: Receiver<(usize, Option<Said>)>,
    /// When this process listened last.
    listened: Instant,
}

#[derive(Debug)]
struct Replica {
    device: String,
    process: Child,
    /// To the thread that writes to it: a process that does not read must not keep the others waiting.
    jobs: Sender<Vec<u8>>,
    ready: Option<Ready>,
    did: Did,
    n_jobs: usize,
    heard: Instant,
    /// What those that may not print have printed.
    printed: Arc<Mutex<VecDeque<u8>>>,
}

impl Replicas {
    /// Starts a process for each of these devices.
    ///
    /// - `program`, `words`: what is started on each, with what arguments; it is to use [`super::child::Child`]
    ///
    /// # Errors
    /// [`ReplicaError::NotStarted`].
    pub fn start(program: &Path, devices: Vec<(String, Vec<OsString>)>) -> Result<Self, ReplicaError> {
        let (said, heard) = mpsc::channel();
        let mut started = Self { replicas: Vec::with_capacity(devices.len()), heard, listened: Instant::now() };
        for (i, (device, words)) in devices.into_iter().enumerate() {
            let replica = Replica::start(program, &words, device.clone(), i, &said);
            started.replicas.push(replica.map_err(|source| ReplicaError::NotStarted { device, source })?);
        }
        Ok(started)
    }

    /// Waits until all take jobs. False if `go_on`, which is asked now and then, is.
    ///
    /// # Errors
    /// One of them ended.
    pub fn wait_until_ready(&mut self, mut go_on: impl FnMut() -> bool) -> Result<bool, ReplicaError> {
        while self.replicas.iter().any(|replica| replica.ready.is_none()) {
            if !go_on() {
                return Ok(false);
            }
            self.answer()?;
        }
        Ok(true)
    }

    /// Those that take jobs.
    pub fn ready(&self) -> impl Iterator<Item = &Ready> {
        self.replicas.iter().filter_map(|replica| replica.ready.as_ref())
    }

    /// What all of them did until they gave their last answers.
    pub fn did(&self) -> Did {
        self.replicas.iter().map(|replica| replica.did).sum()
    }

    /// One that takes a job: that with the fewest for its slots.
    pub fn free(&self) -> Option<usize> {
        let load = |replica: &Replica| {
            let most = InFlight::most(replica.ready.as_ref()?.n_slots);
            (replica.n_jobs < most).then(|| replica.n_jobs as f64 / most as f64)
        };
        let loads = self.replicas.iter().enumerate().filter_map(|(i, replica)| Some((i, load(replica)?)));
        loads.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(i, _)| i)
    }

    /// Whether none has a job.
    pub fn is_idle(&self) -> bool {
        self.replicas.iter().all(|replica| replica.n_jobs == 0)
    }

    /// Gives a replica a job.
    pub fn submit(&mut self, i: usize, job: Job) {
        let mut line = serde_json::to_vec(&Sent::from(job)).expect("numbers");
        line.push(b'\n');
        let replica = &mut self.replicas[i];
        replica.n_jobs += 1;
        let _ = replica.jobs.send(line); // one that is gone is heard of
    }

    /// The next answer, if there is one soon.
    ///
    /// # Errors
    /// One of them ended, or is silent.
    pub fn answer(&mut self) -> Result<Option<Answered>, ReplicaError> {
        let now = Instant::now();
        if now - std::mem::replace(&mut self.listened, now) > AWAY {
            // This process was stopped, or waited for a disk: it has heard nobody.
            self.replicas.iter_mut().for_each(|replica| replica.heard = now);
        }
        if let Some(silent) = self.replicas.iter().find(|replica| replica.heard.elapsed() > SILENCE) {
            return Err(silent.silent());
        }
        match self.heard.recv_timeout(WAIT) {
            Ok((i, Some(said))) => self.take(i, said),
            Ok((i, None)) => Err(self.replicas[i].ended()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("each says when it ends"),
        }
    }

    fn take(&mut self, i: usize, said: Said) -> Result<Option<Answered>, ReplicaError> {
        let replica = &mut self.replicas[i];
        replica.heard = Instant::now();
        match said {
            Said::Alive => Ok(None),
            Said::Ready(ready) => {
                replica.ready = Some(ready);
                Ok(None)
            }
            Said::Did(did) => {
                replica.did = did;
                Ok(None)
            }
            Said::Answered(answered) => {
                replica.n_jobs -= 1;
                Ok(Some(answered))
            }
            Said::Failed { message, hint } => {
                Err(ReplicaError::Failed { device: replica.device.clone(), message, hint })
            }
        }
    }
}

/// None of them outlives what they are for.
impl Drop for Replicas {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            let _ = replica.process.kill();
        }
        for replica in &mut self.replicas {
            let _ = replica.process.wait();
        }
    }
}

impl Replica {
    fn start(
        program: &Path,
        words: &[OsString],
        device: String,
        i: usize,
        said: &Sender<(usize, Option<Said>)>,
    ) -> io::Result<Self> {
        // The first one speaks for all: what they have to say of themselves is the same.
        let stderr = if i == 0 { Stdio::inherit() } else { Stdio::piped() };
        let mut process = Command::new(program);
        let mut process = process.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).spawn()?;
        let (jobs, lines) = mpsc::channel::<Vec<u8>>();
        let mut stdin = process.stdin.take().expect("piped");
        thread::spawn(move || lines.into_iter().try_for_each(|line| stdin.write_all(&line)));
        let (stdout, said) = (process.stdout.take().expect("piped"), said.clone());
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let nonsense = |error| Said::Failed { message: format!("said `{line}`: {error}"), hint: None };
                let one = serde_json::from_str(&line).unwrap_or_else(nonsense);
                if said.send((i, Some(one))).is_err() {
                    return;
                }
            }
            let _ = said.send((i, None));
        });
        let printed = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = process.stderr.take() {
            let printed = Arc::clone(&printed);
            thread::spawn(move || keep_last(stderr, &printed));
        }
        Ok(Self { device, process, jobs, ready: None, did: Did::default(), n_jobs: 0, heard: Instant::now(), printed })
    }

    /// Its stdout is at its end, and so is it, or soon.
    fn ended(&mut self) -> ReplicaError {
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

    fn silent(&self) -> ReplicaError {
        let (device, pid) = (self.device.clone(), self.process.id());
        // The third field, behind a name in brackets.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_stopped = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
        let state = if is_stopped { ", since it is stopped" } else { "" };
        ReplicaError::Silent { device, pid, seconds: self.heard.elapsed().as_secs(), state }
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
