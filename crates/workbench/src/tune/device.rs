//! A judge that measures on a device: the parent's side. A separate process checks and times kernels, and announces
//! each launch. A kernel that ends that process, or does not end, is not used, and another process continues after it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::job::Piece;
use super::judge::{CandidateKernel, Judge, JudgeError, Reason, Verdict};
use super::objects::{Object, objects};
use super::worker::{WorkerMessage, WorkerOrder};
use crate::check::parent::{Death, Running};
use kernel::object::store::{Progress, Store};
use kernel::target::Target;
use kernel::tuning::table::ProvenanceKind;

/// A template that ended so many processes is not run again for those that were asked about together.
const MAX_DEATHS: usize = 3;

/// So many processes in a row may end before they run a kernel.
const MAX_FALSE_STARTS: usize = 3;

/// A device, used by a separate process.
pub struct Device<'a> {
    pub(crate) program: PathBuf,
    /// Its arguments: its side is [`super::worker::run`], for the same job.
    pub(crate) words: Vec<OsString>,
    /// How long a kernel may run.
    pub(crate) deadline: Duration,
    /// The device in words.
    pub(crate) name: String,
    /// The target of compilation.
    pub(crate) target: &'a Target,
    /// The cache and the compiler.
    pub(crate) store: &'a Store,
    process: Option<Running>,
    until: Option<Instant>,
}

/// The result of some of the kernels.
enum Came {
    Verdicts(Vec<Verdict>),
    /// A kernel ended the process.
    Died {
        at: usize,
        death: Death,
    },
    /// It ended, or could not begin, before a kernel ran.
    Not(String),
}

impl<'a> Device<'a> {
    /// A device whose process starts when there is something to measure.
    pub fn new(
        program: PathBuf,
        words: Vec<OsString>,
        deadline: Duration,
        name: String,
        target: &'a Target,
        store: &'a Store,
    ) -> Self {
        Self { program, words, deadline, name, target, store, process: None, until: None }
    }

    /// The same, until a time: then the process that measures is ended.
    #[must_use]
    pub fn until(self, until: Option<Instant>) -> Self {
        Self { until, ..self }
    }

    /// Ends the process, so that the device is free for others.
    pub fn rest(&mut self) {
        self.process = None;
    }

    /// Has some kernels measured.
    fn measure(&mut self, order: &WorkerOrder) -> Result<Came, JudgeError> {
        let gone = |error: std::io::Error| {
            JudgeError::Gone(format!("could not run kernels in a process of their own: {error}"))
        };
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Running::start(&self.program, &self.words).map_err(gone)?,
        };
        process.until = self.until;
        // One that has ended already says so below.
        let _ = process.tell(order);
        loop {
            match process.next::<WorkerMessage>(self.deadline) {
                Ok(WorkerMessage::Runs { at }) => process.runs = Some((at.to_string(), Instant::now())),
                Ok(WorkerMessage::Done { verdicts, is_lost }) => {
                    process.runs = None;
                    if verdicts.len() != order.kernels.len() {
                        return Ok(Came::Not("it said too little".into()));
                    }
                    if !is_lost {
                        self.process = Some(process);
                    }
                    return Ok(Came::Verdicts(verdicts));
                }
                Ok(WorkerMessage::CannotPrepare { why }) => {
                    self.process = Some(process);
                    return Err(JudgeError::Piece(why));
                }
                Err(_) if self.is_over() => return Err(JudgeError::TimeIsOver),
                Err(death) => {
                    let running = process.runs.take().and_then(|(at, _)| at.parse().ok());
                    return Ok(match running {
                        Some(at) => Came::Died { at, death },
                        None => Came::Not(death.to_string()),
                    });
                }
            }
        }
    }
}

impl Judge for Device<'_> {
    fn identity(&self) -> String {
        self.name.clone()
    }

    fn kind(&self) -> ProvenanceKind {
        ProvenanceKind::Measured
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn judge(
        &mut self,
        piece: &Piece,
        kernels: &[CandidateKernel],
        n_rounds: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Verdict>, JudgeError> {
        let compiled: Vec<Result<Object, Verdict>> = objects(self.store, self.target, kernels, progress);
        if self.is_over() {
            return Err(JudgeError::TimeIsOver);
        }
        let mut verdicts: Vec<Option<Verdict>> = compiled.into_iter().map(Result::err).collect();
        let mut deaths: BTreeMap<String, usize> = BTreeMap::new();
        let mut n_false_starts = 0;
        loop {
            let open: Vec<usize> = (0..kernels.len()).filter(|&i| verdicts[i].is_none()).collect();
            if open.is_empty() {
                return Ok(verdicts.into_iter().map(|verdict| verdict.expect("none is open")).collect());
            }
            let label = |i: usize| kernels[i].candidate.template.label();
            let named = open.iter().map(|&i| (label(i), kernels[i].candidate.params.clone())).collect();
            match self.measure(&WorkerOrder { piece: *piece, kernels: named, n_rounds })? {
                Came::Verdicts(said) => {
                    for (i, verdict) in open.into_iter().zip(said) {
                        verdicts[i] = Some(verdict);
                    }
                }
                Came::Died { at, death } => {
                    n_false_starts = 0;
                    let Some(&dead) = open.get(at) else { continue };
                    verdicts[dead] = Some(Verdict::refused(Reason::Died, death));
                    let n_deaths = deaths.entry(label(dead)).or_default();
                    *n_deaths += 1;
                    if *n_deaths >= MAX_DEATHS {
                        let why = format!("not run: others of the template ended {MAX_DEATHS} processes");
                        for i in open.into_iter().filter(|&i| label(i) == label(dead) && i != dead) {
                            verdicts[i] = Some(Verdict::refused(Reason::Died, &why));
                        }
                    }
                }
                Came::Not(why) => {
                    n_false_starts += 1;
                    if n_false_starts >= MAX_FALSE_STARTS {
                        return Err(JudgeError::Gone(format!(
                            "the process that measures on {} ended {n_false_starts} times before a kernel ran: {why}",
                            self.name
                        )));
                    }
                }
            }
        }
    }
}
