//! The child's side of a replica: answers jobs.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::{BatchReplicaMessage, BatchReplicaReady, Did, Sent};
use crate::energy::Energy;
use crate::work::{BatchJob, InFlight};
use engine::{Engine, EngineError};
use replica::child::tell;

/// Answers jobs as they come, until the process ends.
///
/// # Errors
/// The engine's.
pub fn work(jobs: &Receiver<Sent>, engine: &mut Engine, ready: BatchReplicaReady) -> Result<(), EngineError> {
    tell(BatchReplicaMessage::Ready(ready));
    let (mut in_flight, mut answered) = (InFlight::default(), Vec::new());
    let mut energy = Energy::default();
    loop {
        if in_flight.is_empty() {
            // The thread that sends them ends with the process.
            let Ok(job) = jobs.recv() else { return Ok(()) };
            in_flight.submit(engine, BatchJob::from(job))?;
        }
        for job in jobs.try_iter() {
            in_flight.submit(engine, BatchJob::from(job))?;
        }
        in_flight.step(engine, &mut answered)?;
        energy.ask(Instant::now(), || engine.power_watts());
        if !answered.is_empty() {
            tell(BatchReplicaMessage::Did(Did::by(engine, energy.joules())));
        }
        answered.drain(..).for_each(|one| tell(BatchReplicaMessage::Answered(one)));
    }
}
