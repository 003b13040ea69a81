//! The parent's side of a check: starts a child for the templates of each op, which share their references; if a case
//! ends the child, the next one continues after it. A child owns its device, so what a kernel does to the device ends
//! with the child.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{self, CheckJob, CheckStep, Message};
use super::{Checked, Checker, Selection, Wrong};
use kernel::object::compile::signal_name;
use kernel::template::Template;
use system::os::{
    CommandExt, ExitStatusExt, Socket, has_ended, kill_group, socket_for_child, stderr_file, wait_at_most,
};

/// A template that ended so many children at a precision is not run on.
const MAX_DEATHS: usize = 3;

/// How often who may be stopped looks whether he is.
const LOOK: Duration = Duration::from_millis(50);

/// How long after the deadline a child may take to say where its kernel hangs.
const LOOKING: Duration = Duration::from_secs(2);

/// How long a child may take to end when it has said all, or has closed its socket.
const ENDING: Duration = Duration::from_secs(10);

/// How children are started.
#[derive(Clone, Debug)]
pub struct Children {
    pub program: PathBuf,
    /// Its arguments: its side is [`super::child::run`], for the same selection.
    pub words: Vec<OsString>,
    /// How long a kernel may run in one case.
    pub deadline: Duration,
    /// Whether a template is not run on at a precision after a case that hangs, for who waits for the verdict; else
    /// hanging counts as any other end of a child.
    pub stops_at_hang: bool,
    /// Set when the result is not wanted any more: running kernels are ended, and unchecked ones are left out.
    pub stop: Arc<AtomicBool>,
    /// The same from this time on.
    pub until: Option<Instant>,
}

/// A child could not be started, or its socket broke.
#[derive(Clone, Debug, thiserror::Error)]
#[error("could not run kernels in a process of their own, `{}`", program.display())]
pub struct ChildError {
    program: PathBuf,
    #[source]
    source: Arc<io::Error>,
}

/// How a process that ran a kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    Signal(i32),
    /// By itself, with this exit code.
    Exit(i32),
    TimedOut {
        deadline: Duration,
    },
    /// What it said is no report; it was killed.
    Garbage,
    /// The result is not wanted any more.
    Stopped,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => {
                write!(f, "its process ended: signal {signal}{}", signal_name(*signal))
            }
            Self::Exit(code) => write!(f, "its process ended: exit code {code}"),
            Self::TimedOut { deadline } => {
                write!(f, "it was still running after {} s and was killed", deadline.as_secs_f64())
            }
            Self::Stopped => f.write_str("it was stopped"),
            Self::Garbage => f.write_str("it damaged the report of its process, which was killed"),
        }
    }
}

impl Death {
    fn from_status(status: ExitStatus) -> Self {
        status.signal().map_or_else(|| Self::Exit(status.code().unwrap_or_default()), Self::Signal)
    }
}

impl Checker<'_> {
    /// As [`Checker::check`], in children: a kernel that ends its process or does not end is a failure of that case.
    ///
    /// # Errors
    /// If no child can be started.
    pub fn check_in_children(
        &self,
        selection: &Selection,
        children: &Children,
        done: &mut dyn FnMut(&Checked),
    ) -> Result<Vec<Checked>, ChildError> {
        let step = |(template, precision): (&Arc<Template>, _)| CheckStep {
            op: template.ops.join("+"),
            variant: template.variant.clone(),
            precision,
        };
        let steps: Vec<CheckStep> = self.steps(selection).map(step).collect();
        let mut all = Vec::new();
        for of_op in steps.chunk_by(|one, other| one.op == other.op) {
            children.check(of_op, &mut |checked| {
                done(&checked);
                all.push(checked);
            })?;
        }
        Ok(all)
    }
}

/// A step, as far as it is known.
struct Progress {
    checked: Checked,
    /// The last case that began, and those that were wrong.
    number: usize,
    wrong: BTreeSet<usize>,
    n_deaths: usize,
}

impl Progress {
    fn new(step: &CheckStep) -> Self {
        let checked = Checked::new(step.op.clone(), step.variant.clone(), step.precision);
        Self { checked, number: 0, wrong: BTreeSet::new(), n_deaths: 0 }
    }

    fn add(&mut self, since: message::CaseResults, step: &CheckStep) {
        if !since.is_right() {
            self.wrong.insert(self.number);
        }
        self.checked.add(since.of_step(step));
    }

    /// A kernel ended the child, in this case if it was running one; gives whether the step is to go on.
    fn died(&mut self, running: Option<String>, death: Death) -> bool {
        self.ended(running, Wrong::Died(death), MAX_DEATHS)
    }

    /// The same of a child that ends for what is wrong with the kernel.
    ///
    /// - `most`: after so many ends it does not go on
    fn ended(&mut self, running: Option<String>, wrong: Wrong, most: usize) -> bool {
        self.n_deaths += 1;
        let goes_on = running.is_some() && self.n_deaths < most;
        match running {
            Some(case) => {
                self.wrong.insert(self.number);
                self.checked.n_cases += 1;
                self.checked.fail(case, wrong);
            }
            None => {
                let wrong = if let Wrong::Died(death) = wrong { Wrong::Unstarted(death) } else { wrong };
                self.checked.fail("while no kernel ran".into(), wrong);
            }
        }
        if !goes_on {
            self.checked.fail("the other cases".into(), Wrong::NotRun { n_deaths: self.n_deaths });
        }
        goes_on
    }
}

impl Children {
    /// Checks these, with as many children as it takes.
    fn check(&self, mut steps: &[CheckStep], done: &mut dyn FnMut(Checked)) -> Result<(), ChildError> {
        let error = |source| ChildError { program: self.program.clone(), source: Arc::new(source) };
        let most_hangs = if self.stops_at_hang { 1 } else { MAX_DEATHS };
        let mut known: Option<Progress> = None;
        let mut running: Option<Running> = None;
        while let Some((step, rest)) = steps.split_first() {
            let progress = known.get_or_insert_with(|| Progress::new(step));
            let child = match &mut running {
                Some(child) => child,
                None => {
                    let (n_known, wrong) = (progress.number, progress.wrong.clone());
                    let deadline_ms = self.deadline.as_millis() as u64;
                    let job = CheckJob { steps: steps.to_vec(), n_known, wrong, deadline_ms };
                    running.insert(self.start(&job).map_err(error)?)
                }
            };
            let (is_lost, is_done) = match child.next(self.deadline + LOOKING) {
                Ok(Message::Runs { number, case, since }) => {
                    progress.add(since, step);
                    progress.number = number;
                    child.runs = Some((case, Instant::now()));
                    (false, false)
                }
                Ok(Message::Ran) => {
                    child.runs = None;
                    (false, false)
                }
                Ok(Message::Hangs { text }) => {
                    let case = child.runs.take().map(|(case, _)| case);
                    (true, !progress.ended(case, Wrong::Hangs { text }, most_hangs))
                }
                Ok(Message::Lost { since }) => {
                    progress.add(since, step);
                    (true, false)
                }
                Ok(Message::Done { since, is_lost }) => {
                    progress.add(since, step);
                    (is_lost, true)
                }
                Err(Death::Stopped) => return Ok(()),
                Err(Death::TimedOut { .. }) => {
                    let wrong = Wrong::Died(Death::TimedOut { deadline: self.deadline });
                    (true, !progress.ended(child.runs.take().map(|(case, _)| case), wrong, most_hangs))
                }
                Err(death) => (true, !progress.died(child.runs.take().map(|(case, _)| case), death)),
            };
            if is_lost {
                running = None;
            }
            if is_done {
                done(known.take().expect("inserted above").checked);
                steps = rest;
            }
        }
        if let Some(child) = running {
            child.end();
        }
        Ok(())
    }

    fn start(&self, job: &CheckJob) -> io::Result<Running> {
        let mut running = Running::start(&self.program, &self.words)?;
        running.stop = Some(Arc::clone(&self.stop));
        running.until = self.until;
        match running.tell(job) {
            // It ended already: the first look will tell how.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(running),
        }
    }
}

/// A child. It is killed, with all that it started, when this is dropped.
pub(crate) struct Running {
    process: Child,
    from_child: BufReader<Socket>,
    /// What was read of a message.
    line: Vec<u8>,
    /// The case that runs, and since when.
    pub(crate) runs: Option<(String, Instant)>,
    /// How it ended, once it is waited for.
    status: Option<ExitStatus>,
    /// Set when the result is not wanted any more.
    stop: Option<Arc<AtomicBool>>,
    /// The time from which the result is not wanted.
    pub(crate) until: Option<Instant>,
}

impl Running {
    /// A process that reads its job from a socket, and has nothing else of ours: what its kernels print goes where our
    /// own messages go, since the result is ours alone.
    pub(crate) fn start(program: &Path, words: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) = socket_for_child()?;
        let process =
            Command::new(program).args(words).stdin(theirs).stdout(stderr_file()?).process_group(0).spawn()?;
        let from_child = BufReader::new(ours);
        Ok(Self { process, from_child, line: Vec::new(), runs: None, status: None, stop: None, until: None })
    }

    pub(crate) fn tell(&mut self, what: &impl Serialize) -> io::Result<()> {
        message::write(self.from_child.get_mut(), what)
    }

    /// What it says next, or how it ended.
    pub(crate) fn next<M: DeserializeOwned>(&mut self, deadline: Duration) -> Result<M, Death> {
        loop {
            let left = self.runs.as_ref().map(|(_, since)| deadline.saturating_sub(since.elapsed()));
            let till = self.until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) || till == Some(Duration::ZERO) {
                return Err(Death::Stopped);
            }
            // Who may be stopped looks up from time to time.
            let looks = self.stop.as_ref().map(|_| LOOK);
            let soonest = left.into_iter().chain(looks).chain(till).min();
            let timeout = soonest.map(|timeout| timeout.max(Duration::from_millis(1)));
            wait_at_most(self.from_child.get_ref(), timeout).expect("not zero");
            match self.from_child.read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.ends_with(b"\n") => {
                    let message = message::read(&self.line).map_err(|_| Death::Garbage);
                    self.line.clear();
                    return message;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if left.is_none_or(|left| Some(left) > soonest) && soonest.is_some() {
                        continue;
                    }
                    // What a kernel started may hold the socket when its process is gone.
                    let ended = self.ended();
                    return Err(ended.map_or(Death::TimedOut { deadline }, Death::from_status));
                }
                Ok(_) | Err(_) => {
                    let ended = self.wait(ENDING);
                    return Err(ended.map_or(Death::TimedOut { deadline: ENDING }, Death::from_status));
                }
            }
        }
    }

    /// Lets a child end that has said all.
    pub(crate) fn end(mut self) {
        self.wait(ENDING);
    }

    fn wait(&mut self, most: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.ended() {
                None if start.elapsed() < most => thread::sleep(Duration::from_millis(1)),
                status => return status,
            }
        }
    }

    /// How it ended, if it did. Processes that it started are killed before it is waited for: until then its group's
    /// number is not reused.
    fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            has_ended(&mut self.process).ok().filter(|ended| *ended)?;
            kill_group(&mut self.process);
            self.status = self.process.wait().ok();
        }
        self.status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            kill_group(&mut self.process);
            let _ = self.process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::template::Precision;

    #[test]
    fn a_template_is_not_run_on_behind_so_many_ends() {
        let step = CheckStep { op: "rmsnorm".into(), variant: "mine".into(), precision: Precision::F32 };
        let hang = || Wrong::Hangs { text: "line 3".into() };
        let told = |most: usize| {
            let mut progress = Progress::new(&step);
            let n_run = (1..).find(|_| !progress.ended(Some("a case".into()), hang(), most)).expect("it ends");
            let last = progress.checked.failures.last().expect("it failed").to_string();
            (n_run, progress.checked.n_cases, last)
        };
        let other = "the other cases: they were not run: ";
        assert_eq!(told(1), (1, 1, format!("{other}a kernel of the template ended the process that ran it")));
        assert_eq!(told(3), (3, 3, format!("{other}3 kernels of the template ended the process that ran them")));
    }
}
