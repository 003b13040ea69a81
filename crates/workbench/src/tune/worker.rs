//! A judge that measures on a device: the process that runs the kernels, any of which may end it.

use std::io::{self, BufRead};
use std::process::exit;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use gpu::GpuError;
use serde::{Deserialize, Serialize};

use super::job::{Piece, TuningJob};
use super::judge::{Reason, Time, Uses, Verdict};
use crate::check::Wrong;
use crate::check::message;
use crate::timing::{Bench, Candidate, CandidateError, Timed, Weights};
use hint::chain;
use kernel::pipeline::Pipeline;
use kernel::template::Params;
use system::os::{Resource, Rlimit, Socket, end_own_group, setrlimit, socket_of_parent};

/// What the parent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerOrder {
    pub(crate) piece: Piece,
    /// Templates and their parameters.
    pub(crate) kernels: Vec<(String, Params)>,
    pub(crate) n_rounds: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerMessage {
    /// This kernel of the order runs now.
    Runs { at: usize },
    /// A verdict for each; whether the device is to be opened by another process.
    Done { verdicts: Vec<Verdict>, is_lost: bool },
    /// The piece's inputs cannot be had.
    CannotPrepare { why: String },
}

/// Measures what the parent asks for on standard input, which is a socket, and answers there, until it is closed.
///
/// # Errors
/// If standard input is not a socket, or a message is not an order.
pub fn run(job: &TuningJob, pipeline: &Pipeline) -> io::Result<()> {
    let mut to_parent = socket_of_parent()?;
    let orders = orders()?;
    // A kernel that dies leaves a message, not its memory.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let mut weights: (Option<usize>, Weights) = Default::default();
    let mut at: Option<(Piece, Bench<'_>)> = None;
    for line in orders {
        let WorkerOrder { piece, kernels, n_rounds } = message::read(line.as_bytes())?;
        if at.as_ref().is_none_or(|(known, _)| *known != piece) {
            at = None; // its memory is needed
            if weights.0 != Some(piece.problem) {
                weights = (Some(piece.problem), Weights::default());
            }
            let asked = job.problems.get(piece.problem).ok_or_else(|| io::Error::other("there is no such problem"))?;
            match Bench::new(pipeline, &asked.problem, &job.setup(&piece), &mut weights.1) {
                Ok(bench) => at = Some((piece, bench)),
                Err(error) => {
                    weights = Default::default();
                    say(&mut to_parent, &WorkerMessage::CannotPrepare { why: chain(&error) });
                    continue;
                }
            }
        }
        let (_, bench) = at.as_ref().expect("just made");
        let (verdicts, is_lost) = measured(bench, pipeline, kernels, n_rounds, &mut to_parent);
        say(&mut to_parent, &WorkerMessage::Done { verdicts, is_lost });
        if is_lost {
            exit(0);
        }
    }
    Ok(())
}

/// Lines of standard input. When it is closed, this process and all that it started end at once.
fn orders() -> io::Result<Receiver<String>> {
    let (sender, orders) = mpsc::channel();
    let listen = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        end_own_group();
        exit(1);
    };
    thread::Builder::new().spawn(listen)?;
    Ok(orders)
}

fn say(to_parent: &mut Socket, what: &WorkerMessage) {
    if message::write(to_parent, what).is_err() {
        exit(1); // the parent is gone
    }
}

/// Checks kernels and times those that are right; a verdict for each, and whether one of them cost the device.
fn measured(
    bench: &Bench<'_>,
    pipeline: &Pipeline,
    kernels: Vec<(String, Params)>,
    n_rounds: usize,
    to_parent: &mut Socket,
) -> (Vec<Verdict>, bool) {
    let language = pipeline.target().language();
    let mut places = Vec::new();
    let mut candidates = Vec::new();
    let mut verdicts: Vec<Option<Verdict>> = Vec::new();
    for (i, (label, params)) in kernels.into_iter().enumerate() {
        match pipeline.library().template(&label, language) {
            Ok(template) => {
                places.push(i);
                candidates.push(Candidate { template: template.clone(), params });
                verdicts.push(None);
            }
            Err(error) => verdicts.push(Some(Verdict::refused(Reason::NotCompiled, error))),
        }
    }
    let mut is_lost = false;
    let timed =
        bench.time(candidates, n_rounds, &(), &mut |at| say(to_parent, &WorkerMessage::Runs { at: places[at] }));
    for (place, (_, result)) in places.iter().zip(timed) {
        verdicts[*place] = Some(match result {
            Ok(timed) => Verdict::Time(time(&timed, bench)),
            Err(error) => {
                is_lost |= costs_the_device(&error);
                Verdict::refused(reason(&error), chain(&error))
            }
        });
    }
    (verdicts.into_iter().map(|verdict| verdict.expect("each has one")).collect(), is_lost)
}

fn time(timed: &Timed, bench: &Bench<'_>) -> Time {
    Time {
        times_us: timed.times_us.clone(),
        worst_error: Some(timed.worst),
        compared: Some((bench.compared().to_owned(), bench.n_copies())),
        evidence: Some(timed.evidence.clone()),
        object: Some(timed.object.clone()),
        source: timed.source.clone(),
        uses: timed.uses.as_ref().map(Uses::from_facts),
    }
}

fn reason(error: &CandidateError) -> Reason {
    match error {
        CandidateError::Render(_) | CandidateError::Compile(_) => Reason::NotCompiled,
        CandidateError::Load(_) => Reason::Exceeds,
        CandidateError::Wrong(Wrong::Device(_)) | CandidateError::Device(_) => Reason::Refused,
        CandidateError::Wrong(_) | CandidateError::Expression(_) => Reason::Wrong,
    }
}

/// Whether calls that follow may fail for this one's fault: a GPU that reports a fault of a kernel refuses all that
/// comes after.
fn costs_the_device(error: &CandidateError) -> bool {
    let of = |error: &GpuError| matches!(error, GpuError::Call { .. });
    match error {
        CandidateError::Device(error) => of(error),
        CandidateError::Wrong(Wrong::Device(error)) => of(error),
        _ => false,
    }
}
