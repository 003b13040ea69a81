//! The child's side of a check: announces each kernel and then runs it, because any kernel may end this process.

use std::collections::BTreeSet;
use std::io;
use std::process::exit;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use gpu::GpuError;
use gpu::sim::{catch_signals, stop_and_look};

use super::message::{self, CaseResults, CheckJob, Message};
use super::{Checked, Checker, Go, Selection, Watch, Wrong};
use kernel::object::compile::follow_parent;
use system::os::{Resource, Rlimit, Socket, setrlimit, socket_of_parent};

/// Does what the parent asks for on standard input, which is a socket, and answers there.
///
/// # Errors
/// If standard input is none, or the parent asks for a template that is not there.
pub fn run(checker: &Checker<'_>, selection: &Selection) -> io::Result<()> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let job: CheckJob = message::read(line.as_bytes())?;
    let to_parent = socket_of_parent()?;
    follow_parent(|| ())?;
    // A kernel that dies leaves a message, not its memory.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if checker.runner.is_some_and(|runner| runner.target.is_simulated) {
        catch_signals();
    }
    let (n_known, wrong, deadline) = (job.n_known, job.wrong, Duration::from_millis(job.deadline_ms));
    let mut reporter = Reporter { to_parent, number: 0, n_known, wrong, is_lost: false, deadline };
    for step in &job.steps {
        let found = checker.steps(selection).find(|(template, precision)| {
            step.precision == *precision && step.variant == template.variant && step.op == template.ops.join("+")
        });
        let (template, precision) = found.ok_or_else(|| {
            let what = format!("`{}/{}` is not there any more", step.op, step.variant);
            io::Error::new(io::ErrorKind::NotFound, what)
        })?;
        let checked = checker.check_template(template, precision, selection, &mut reporter);
        reporter.say(&Message::Done { since: CaseResults::from_checked(checked), is_lost: reporter.is_lost });
        if reporter.is_lost {
            break;
        }
        (reporter.number, reporter.n_known) = (0, 0);
    }
    Ok(())
}

/// Tells the parent which case runs, and passes over those that ran before.
struct Reporter {
    to_parent: Socket,
    number: usize,
    n_known: usize,
    wrong: BTreeSet<usize>,
    is_lost: bool,
    /// How long a case may take.
    deadline: Duration,
}

impl Reporter {
    fn say(&mut self, what: &Message) {
        if message::write(&mut self.to_parent, what).is_err() {
            exit(1); // the parent is gone
        }
    }
}

impl Watch for Reporter {
    fn before(&mut self, so_far: &mut Checked, case: &str) -> Go {
        self.number += 1;
        if self.number <= self.n_known {
            if self.number == self.n_known {
                so_far.take(); // another child told it
            }
            return Go::Known { is_right: !self.wrong.contains(&self.number) };
        }
        let since = CaseResults::from_checked(so_far.take());
        if self.is_lost {
            self.say(&Message::Lost { since });
            exit(0);
        }
        self.say(&Message::Runs { number: self.number, case: case.to_owned(), since });
        Go::Run
    }

    fn passed_over(&mut self) {
        self.number += 1;
    }

    /// A second thread measures the time, and reports where the kernel is if it does not end. The parent then ends this
    /// process, or a little later if nothing is known about the kernel.
    fn launch(&mut self, tells: &(dyn Fn(GpuError) -> Wrong + Sync), launch: &mut dyn FnMut()) {
        let deadline = self.deadline;
        let Ok(mut to_parent) = self.to_parent.try_clone() else { return launch() };
        thread::scope(|scope| {
            let (ends, is_over) = mpsc::channel::<()>();
            let look = move || {
                if is_over.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout)
                    && let Some(fault) = stop_and_look(&format!("still runs after {} s", deadline.as_secs_f64()))
                {
                    let text = tells(fault).to_string();
                    let _ = message::write(&mut to_parent, &Message::Hangs { text }); // a parent that is gone ends us
                }
            };
            let looks = thread::Builder::new().spawn_scoped(scope, look);
            launch();
            drop((ends, looks));
        });
    }

    fn after(&mut self, is_lost: bool) {
        self.is_lost |= is_lost;
        self.say(&Message::Ran);
    }
}
