//! The parent's side of replicas: hands out jobs and watches.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{BatchReplicaMessage, BatchReplicaReady, Did, Sent};
use crate::work::{Answered, BatchJob, InFlight};
use replica::{Line, Listening, Replica, ReplicaError, Start};

/// How long one wait for an answer is, so that signals and silence are noticed.
const WAIT: Duration = Duration::from_millis(100);

/// Processes that have the model, and what they are at.
#[derive(Debug)]
pub struct Replicas {
    replicas: Vec<Answering>,
    heard: Receiver<(usize, Option<Line<BatchReplicaMessage>>)>,
    listening: Listening,
}

#[derive(Debug)]
struct Answering {
    replica: Replica,
    ready: Option<BatchReplicaReady>,
    did: Did,
    n_jobs: usize,
}

impl Replicas {
    /// Starts all of them.
    ///
    /// # Errors
    /// [`ReplicaError::NotStarted`].
    pub fn start(starts: &[Start]) -> Result<Self, ReplicaError> {
        let (said, heard) = mpsc::channel();
        let start = |(i, start): (usize, &Start)| {
            let said = said.clone();
            let replica = Replica::start(start, move |line| said.send((i, line)).is_ok())?;
            Ok(Answering { replica, ready: None, did: Did::default(), n_jobs: 0 })
        };
        let replicas = starts.iter().enumerate().map(start).collect::<Result<_, _>>()?;
        Ok(Self { replicas, heard, listening: Listening::default() })
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
    pub fn ready(&self) -> impl Iterator<Item = &BatchReplicaReady> {
        self.replicas.iter().filter_map(|replica| replica.ready.as_ref())
    }

    /// What all of them did until they gave their last answers.
    pub fn did(&self) -> Did {
        self.replicas.iter().map(|replica| replica.did).sum()
    }

    /// One that takes a job: that with the fewest for its slots.
    pub(crate) fn free(&self) -> Option<usize> {
        let load = |replica: &Answering| {
            let most = InFlight::most(replica.ready.as_ref()?.n_slots);
            (replica.n_jobs < most).then(|| replica.n_jobs as f64 / most as f64)
        };
        let loads = self.replicas.iter().enumerate().filter_map(|(i, replica)| Some((i, load(replica)?)));
        loads.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(i, _)| i)
    }

    /// Whether none has a job.
    pub(crate) fn is_idle(&self) -> bool {
        self.replicas.iter().all(|replica| replica.n_jobs == 0)
    }

    /// Gives a replica a job.
    pub(crate) fn submit(&mut self, i: usize, job: BatchJob) {
        self.replicas[i].n_jobs += 1;
        self.replicas[i].replica.order(Replica::line(&Sent::from(job)));
    }

    /// The next answer, if there is one soon.
    ///
    /// # Errors
    /// One of them ended, or is silent.
    pub(crate) fn answer(&mut self) -> Result<Option<Answered>, ReplicaError> {
        if self.listening.was_away() {
            self.replicas.iter_mut().for_each(|of| of.replica.heard());
        }
        if let Some(silent) = self.replicas.iter().find_map(|of| of.replica.silent()) {
            return Err(silent);
        }
        match self.heard.recv_timeout(WAIT) {
            Ok((i, Some(line))) => self.take(i, line),
            Ok((i, None)) => Err(self.replicas[i].replica.ended()),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("each says when it ends"),
        }
    }

    fn take(&mut self, i: usize, line: Line<BatchReplicaMessage>) -> Result<Option<Answered>, ReplicaError> {
        let of = &mut self.replicas[i];
        of.replica.heard();
        match line {
            Line::Alive => {}
            Line::Told(BatchReplicaMessage::Ready(ready)) => of.ready = Some(ready),
            Line::Told(BatchReplicaMessage::Did(did)) => of.did = did,
            Line::Told(BatchReplicaMessage::Answered(answered)) => {
                of.n_jobs -= 1;
                return Ok(Some(answered));
            }
            Line::Failed { message, hint } => return Err(of.replica.failed(message, hint)),
        }
        Ok(None)
    }
}

/// All end at the same time, and not one after the other.
impl Drop for Replicas {
    fn drop(&mut self) {
        self.replicas.iter_mut().for_each(|of| of.replica.kill());
    }
}
