//! The side of a replica that computes.

use std::io::{self, BufRead, Write};
use std::process;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::{Did, Ready, Said, Sent};
use crate::batch::energy::Energy;
use crate::batch::work::{InFlight, Job};
use crate::engine::{Engine, EngineError};

/// How often a child says that it is there.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// What a child hears and says. Nothing else may be written to stdout.
#[derive(Debug)]
pub struct Child(Receiver<Job>);

impl Child {
    /// Listens from here on, and says that it is there. When nobody is left to listen to, the process ends.
    ///
    /// # Errors
    /// The system has no threads for it.
    pub fn begin() -> io::Result<Self> {
        let (jobs, received) = mpsc::channel();
        let listen = move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                match serde_json::from_str::<Sent>(&line) {
                    Ok(sent) => drop(jobs.send(sent.into())),
                    Err(error) => say(&Said::Failed { message: format!("heard no job: {error}"), hint: None }),
                }
            }
            process::exit(0);
        };
        thread::Builder::new().name("jobs".into()).spawn(listen)?;
        let beat = || {
            loop {
                say(&Said::Alive);
                thread::sleep(BEAT);
            }
        };
        thread::Builder::new().name("beat".into()).spawn(beat)?;
        Ok(Self(received))
    }

    /// Answers jobs as they come, until the process ends.
    ///
    /// # Errors
    /// The engine's.
    pub fn work(&self, engine: &mut Engine, ready: Ready) -> Result<(), EngineError> {
        say(&Said::Ready(ready));
        let (mut in_flight, mut answered) = (InFlight::default(), Vec::new());
        let mut energy = Energy::default();
        loop {
            if in_flight.is_empty() {
                // The thread that sends them ends with the process.
                let Ok(job) = self.0.recv() else { return Ok(()) };
                in_flight.submit(engine, job)?;
            }
            for job in self.0.try_iter() {
                in_flight.submit(engine, job)?;
            }
            in_flight.step(engine, &mut answered)?;
            energy.ask(Instant::now(), || engine.power_watts());
            if !answered.is_empty() {
                say(&Said::Did(Did::by(engine, energy.joules())));
            }
            answered.drain(..).for_each(|one| say(&Said::Answered(one)));
        }
    }

    /// Says why there will be no more answers.
    pub fn fail(message: String, hint: Option<String>) {
        say(&Said::Failed { message, hint });
    }
}

/// Says something, in a line of its own.
fn say(said: &Said) {
    let mut line = serde_json::to_vec(said).expect("numbers and texts");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        process::exit(1); // nobody is left to say it to
    }
}
