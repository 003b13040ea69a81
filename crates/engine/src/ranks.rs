//! The devices that compute one model together. Each has a part of the model, and a thread that makes the same
//! launches as the engine asks for; shared results are in memory that all devices can access.
//!
//! All devices run the same launches on the same rows, and sum in the same order. So all have the same logits, to the
//! bit, and sample the same tokens; the engine reads those of the first device.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::exchange::Exchange;
use super::watchdog::Behind;
use crate::graph::StepShape;
use crate::plan::error::PlanError;
use crate::plan::executor::{Executor, Observer};
use crate::plan::memory::MemoryPlan;
use crate::plan::profile::{Profile, Profiled};

/// All devices of a model, one of which is the first, and often the only one.
pub(super) struct Ranks {
    first: Executor,
    others: Vec<Other>,
    exchange: Option<Exchange>,
    behind: Option<Arc<Behind>>,
}

/// What a thread does with its device.
type RankJob = Box<dyn FnOnce(&mut Executor) -> Result<(), PlanError> + Send>;

/// Names of tensors, and what they are filled with.
type Inputs<'a> = [(&'a str, &'a [u8])];

/// A device that is not the first.
struct Other {
    jobs: Sender<RankJob>,
    done: Receiver<Result<(), PlanError>>,
    /// Jobs whose end was not heard of yet.
    n_open: Cell<usize>,
    thread: Option<JoinHandle<()>>,
}

impl Ranks {
    /// Loads every device's part, all at a time.
    ///
    /// - `load`: loads that of one; its thread keeps it
    /// - `planned`: is told what the memory of each but the first was allocated for
    ///
    /// # Errors
    /// What the first of them says that failed.
    pub(crate) fn load<E: From<PlanError> + Send + 'static>(
        first: impl FnOnce() -> Result<Executor, E>,
        others: Vec<Box<dyn FnOnce() -> Result<Executor, E> + Send>>,
        exchange: Option<Exchange>,
        planned: impl Fn(&MemoryPlan),
    ) -> Result<Self, E> {
        let begun: Vec<_> = others.into_iter().map(|load| Other::begin(load, exchange.clone())).collect();
        let first = first()?;
        let mut others = Vec::with_capacity(begun.len());
        for (other, loaded) in begun {
            match loaded.recv() {
                Ok(result) => planned(&result?),
                Err(_) => return Err(PlanError::NoThread.into()),
            }
            others.push(other);
        }
        let behind = exchange.clone().map(|exchange| -> Arc<Behind> { Arc::new(move || exchange.behind()) });
        Ok(Self { first, others, exchange, behind })
    }

    /// The first device's plan.
    pub(crate) fn first(&self) -> &Executor {
        &self.first
    }

    /// The number of the next step; none if no devices exchange anything.
    pub(crate) fn next_step(&self) -> Option<u32> {
        self.exchange.as_ref().map(Exchange::next_step)
    }

    /// Finds the device that others wait for; none if no devices exchange anything.
    pub(crate) fn behind(&self) -> Option<&Arc<Behind>> {
        self.behind.as_ref()
    }

    /// From here on, takes the time of the first device's launches.
    pub(crate) fn start_profile(&mut self, which: Profiled) {
        self.first.start_profile(which, self.others.is_empty());
    }

    pub(crate) fn take_profile(&mut self) -> Option<Profile> {
        self.first.take_profile()
    }

    /// As [`Executor::write`], on all devices.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, bytes) = (name.to_owned(), bytes.to_vec());
            move |executor: &mut Executor| executor.write(&name, &bytes)
        });
        self.first.write(name, bytes)
    }

    /// As [`Executor::write_at`], on all devices.
    pub(crate) fn write_at(&self, name: &str, offset_bytes: usize, bytes: &[u8]) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, bytes) = (name.to_owned(), bytes.to_vec());
            move |executor: &mut Executor| executor.write_at(&name, offset_bytes, &bytes)
        });
        self.first.write_at(name, offset_bytes, bytes)
    }

    /// As [`Executor::copy_within`], on all devices.
    pub(crate) fn copy_within(&self, name: &str, from: Range<usize>, to_bytes: usize) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, from) = (name.to_owned(), from.clone());
            move |executor: &mut Executor| executor.copy_within(&name, from, to_bytes)
        });
        self.first.copy_within(name, from, to_bytes)
    }

    /// As [`Executor::write_inputs`], on all devices.
    pub(crate) fn write_inputs(&self, inputs: &Inputs<'_>) -> Result<(), PlanError> {
        self.tell_inputs(inputs, Executor::write_inputs);
        self.first.write_inputs(inputs)
    }

    /// As [`Executor::write_change_inputs`], on all devices.
    pub(crate) fn write_change_inputs(&self, inputs: &Inputs<'_>) -> Result<(), PlanError> {
        self.tell_inputs(inputs, Executor::write_change_inputs);
        self.first.write_change_inputs(inputs)
    }

    fn tell_inputs(&self, inputs: &Inputs<'_>, write: fn(&Executor, &Inputs<'_>) -> Result<(), PlanError>) {
        self.tell_others(|| {
            let inputs: Vec<_> = inputs.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
            move |executor: &mut Executor| {
                write(executor, &inputs.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect::<Vec<_>>())
            }
        });
    }

    /// As [`Executor::run`], on all devices; the observer sees the first one's.
    pub(crate) fn run(&mut self, shape: StepShape, observer: Option<Observer<'_>>) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.run(shape, None));
        let ran = self.first.run(shape, observer);
        self.settle(ran)
    }

    /// As [`Executor::run_to_logits`], on all devices.
    pub(crate) fn run_to_logits(&mut self, shape: StepShape) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.run_to_logits(shape));
        let ran = self.first.run_to_logits(shape);
        self.settle(ran)
    }

    /// As [`Executor::change_logits`], on all devices.
    pub(crate) fn change_logits(&mut self, shape: StepShape, n_changed: usize) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.change_logits(shape, n_changed));
        let ran = self.first.change_logits(shape, n_changed);
        self.settle(ran)
    }

    /// As [`Executor::sample`], on all devices.
    pub(crate) fn sample(&mut self, shape: StepShape) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.sample(shape));
        let ran = self.first.sample(shape);
        self.settle(ran)
    }

    /// As [`Executor::logprobs`], on all devices.
    pub(crate) fn logprobs(&mut self, shape: StepShape, n_logprobs: usize) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.logprobs(shape, n_logprobs));
        let ran = self.first.logprobs(shape, n_logprobs);
        self.settle(ran)
    }

    /// The start of an external tensor of every device, in their order.
    pub(crate) fn read_all(&self, name: &str, len_bytes: usize) -> Result<Vec<Vec<u8>>, PlanError> {
        let (sender, received) = mpsc::channel();
        for (i, other) in self.others.iter().enumerate() {
            let (name, sender) = (name.to_owned(), sender.clone());
            other.tell(Box::new(move |executor| {
                let mut bytes = vec![0; len_bytes];
                executor.read(&name, 0, &mut bytes)?;
                let _ = sender.send((i, bytes)); // whoever asked may be gone
                Ok(())
            }));
        }
        let mut all = vec![vec![0; len_bytes]; 1 + self.others.len()];
        let read = self.first.read(name, 0, &mut all[0]);
        self.settle(read)?;
        received.try_iter().for_each(|(i, bytes)| all[1 + i] = bytes);
        Ok(all)
    }

    /// Gives every other device a job of its own.
    fn tell_others<J>(&self, job: impl Fn() -> J)
    where
        J: FnOnce(&mut Executor) -> Result<(), PlanError> + Send + 'static,
    {
        self.others.iter().for_each(|other| other.tell(Box::new(job())));
    }

    /// Waits until the others have done what they were told; the first error counts. One that is lost keeps no other
    /// waiting.
    fn settle(&self, first: Result<(), PlanError>) -> Result<(), PlanError> {
        if first.is_err()
            && let Some(exchange) = &self.exchange
        {
            exchange.lose();
        }
        let others: Vec<_> = self.others.iter().map(Other::settle).collect();
        others.into_iter().fold(first, Result::and)
    }
}

/// Whatever it ends by, no device is left waiting for another: its memory could not be freed.
impl Drop for Ranks {
    fn drop(&mut self) {
        if let Some(exchange) = &self.exchange {
            exchange.lose();
        }
    }
}

impl Other {
    /// Starts its thread, which says when it has loaded.
    fn begin<E: From<PlanError> + Send + 'static>(
        load: Box<dyn FnOnce() -> Result<Executor, E> + Send>,
        exchange: Option<Exchange>,
    ) -> (Self, Receiver<Result<MemoryPlan, E>>) {
        let (jobs, received) = mpsc::channel::<RankJob>();
        let (ended, done) = mpsc::channel();
        let (said, loaded) = mpsc::channel();
        let work = move || {
            let mut executor = match load() {
                Ok(executor) => executor,
                Err(error) => return drop(said.send(Err(error))),
            };
            if said.send(Ok(executor.memory_plan().clone())).is_err() {
                return;
            }
            for job in received {
                // One that panics is lost, and must not keep the others waiting either.
                let ran = catch_unwind(AssertUnwindSafe(|| job(&mut executor)));
                let result = ran.unwrap_or(Err(PlanError::NoThread));
                if let (Err(_), Some(exchange)) = (&result, &exchange) {
                    exchange.lose();
                }
                if ended.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("rank".into()).spawn(work).ok();
        (Self { jobs, done, n_open: Cell::new(0), thread }, loaded)
    }

    fn tell(&self, job: RankJob) {
        self.n_open.set(self.n_open.get() + 1);
        let _ = self.jobs.send(job); // one that is gone is heard of
    }

    fn settle(&self) -> Result<(), PlanError> {
        let mut result = Ok(());
        for _ in 0..self.n_open.take() {
            let done = self.done.recv().unwrap_or(Err(PlanError::NoThread));
            result = result.and(done);
        }
        result
    }
}

/// Its thread ends before what it works with does.
impl Drop for Other {
    fn drop(&mut self) {
        let (closed, _) = mpsc::channel();
        self.jobs = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
