//! The devices that compute a model together. Each has a part of it, and a thread that launches what the engine
//! launches; what they compute in common lies in memory that all of them see.
//!
//! They run the same launches on the same rows, and sum up in the same order: all have the same logits, to the bit, and
//! sample the same tokens, of which those of the first are looked at.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use gpu::{BufferView, Driver, GpuError};

use crate::checkpoint::tensor_parallel::TpRank;
use crate::graph::StepShape;
use crate::graph::error::PlanError;
use crate::graph::forward::Strides;
use crate::graph::plan::{Executor, Observer};
use crate::graph::profile::{Profile, Profiled};

/// All devices of a model, one of which is the first, and often the only one.
pub(super) struct Ranks {
    first: Executor,
    others: Vec<Other>,
    exchange: Option<Exchange>,
}

/// What a thread does with its device.
type Job = Box<dyn FnOnce(&mut Executor) -> Result<(), PlanError> + Send>;

/// Names of tensors, and what they are filled with.
type Inputs<'a> = [(&'a str, &'a [u8])];

/// A device that is not the first.
struct Other {
    jobs: Sender<Job>,
    done: Receiver<Result<(), PlanError>>,
    /// Jobs whose end was not heard of yet.
    n_open: Cell<usize>,
    thread: Option<JoinHandle<()>>,
}

/// Memory that all devices see, a piece of it on each: which of them have come how far, and their parts of the sums.
#[derive(Clone)]
pub(super) struct Exchange {
    drivers: Vec<Arc<dyn Driver>>,
    /// For each device, as it sees it.
    arrived: Vec<BufferView>,
    /// After attention, and after the experts.
    sums: [Vec<BufferView>; 2],
    /// How often the devices met, as they count it themselves.
    step: Arc<AtomicU32>,
}

/// The sums of a layer.
const SUMS: [&str; 2] = ["attn", "mlp"];

/// How far ahead of all others `arrived` says that everybody is when a device is lost, so that none waits for it.
const LOST_AHEAD: u32 = 1 << 30;

impl Exchange {
    /// Memory of these devices, which was tried: every device sees what every other one writes.
    ///
    /// - `n_flags`: sums of a step
    /// - `len_elements`: of the largest part
    ///
    /// # Errors
    /// [`GpuError::Unreachable`], or a driver's.
    pub fn new(drivers: Vec<Arc<dyn Driver>>, n_flags: usize, len_elements: usize) -> Result<Self, GpuError> {
        let (first, others) = drivers.split_first().expect("there is a device");
        let others: Vec<&dyn Driver> = others.iter().map(|other| &**other).collect();
        let shared = |len_elements| first.shared(&others, 4 * len_elements);
        let arrived = shared(drivers.len() * n_flags)?;
        let sums = [shared(len_elements)?, shared(len_elements)?];
        let exchange = Self { drivers, arrived, sums, step: Arc::default() };
        exchange.try_out()?;
        Ok(exchange)
    }

    /// Has every device write to the memory of all, and read what the others wrote.
    fn try_out(&self) -> Result<(), GpuError> {
        let n_devices = self.drivers.len();
        let mark = |of: usize, at: usize| (0x5eed_0000 + of * n_devices + at) as u32;
        let piece = |view: &BufferView, at| {
            let len_bytes = view.len_bytes() / n_devices;
            view.slice(at * len_bytes, 4 * n_devices).expect("a piece has a word for every device")
        };
        for (of, (driver, view)) in self.drivers.iter().zip(&self.arrived).enumerate() {
            for at in 0..n_devices {
                let word = piece(view, at).slice(4 * of, 4).expect("one of those words");
                driver.write(&word, &mark(of, at).to_ne_bytes())?;
            }
            driver.wait()?;
        }
        for (reader, (driver, view)) in self.drivers.iter().zip(&self.arrived).enumerate() {
            for at in 0..n_devices {
                let mut found = vec![0_u32; n_devices];
                driver.read(&piece(view, at), bytemuck::cast_slice_mut(&mut found))?;
                if let Some(of) = (0..n_devices).find(|&of| found[of] != mark(of, at)) {
                    let other = if of == reader { at } else { of };
                    let [device, other] = [reader, other].map(|i| self.drivers[i].describe());
                    return Err(GpuError::Unreachable { device, other });
                }
            }
        }
        self.drivers[0].write(&self.arrived[0], &vec![0; self.arrived[0].len_bytes()])?;
        self.drivers[0].wait() // before another device says that it has arrived
    }

    /// How that memory is laid out.
    pub fn strides(&self) -> Strides {
        let stride = |views: &[BufferView]| views[0].len_bytes() / 4 / self.drivers.len();
        Strides { part: stride(&self.sums[0]), arrived: stride(&self.arrived) }
    }

    /// The tensors of a device that lie there, as it sees them.
    pub fn views(&self, rank: usize) -> Vec<(String, BufferView)> {
        let mut views = vec![("arrived".to_owned(), self.arrived[rank].clone())];
        for (name, sum) in SUMS.iter().zip(&self.sums) {
            let (sum, part_bytes) = (sum[rank].clone(), 4 * self.strides().part);
            let part = sum.slice(rank * part_bytes, part_bytes).expect("each has a part");
            views.push((format!("part.{name}"), part));
            views.push((format!("parts.{name}"), sum));
        }
        views
    }

    /// Has nobody wait for anybody any more: what is summed from here on is nonsense, and an error is on its way. One
    /// device that still works is enough.
    fn lose(&self) {
        let ahead = self.step.load(Ordering::Relaxed).wrapping_add(LOST_AHEAD);
        let mut devices = self.drivers.iter().zip(&self.arrived);
        if !devices.any(|(driver, view)| driver.fill_now(view, ahead).is_ok()) {
            tracing::debug!("no device could tell the others that one is lost");
        }
    }
}

impl Ranks {
    /// Loads every device's part, all at a time.
    ///
    /// - `load`: loads that of one; its thread keeps it
    ///
    /// # Errors
    /// What the first of them says that failed.
    pub fn load<E: From<PlanError> + Send + 'static>(
        first: impl FnOnce() -> Result<Executor, E>,
        others: Vec<Box<dyn FnOnce() -> Result<Executor, E> + Send>>,
        exchange: Option<Exchange>,
    ) -> Result<Self, E> {
        let begun: Vec<_> = others.into_iter().map(|load| Other::begin(load, exchange.clone())).collect();
        let first = first()?;
        let mut others = Vec::with_capacity(begun.len());
        for (other, loaded) in begun {
            match loaded.recv() {
                Ok(result) => result?,
                Err(_) => return Err(PlanError::NoThread.into()),
            }
            others.push(other);
        }
        Ok(Self { first, others, exchange })
    }

    /// The first device's plan.
    pub fn first(&self) -> &Executor {
        &self.first
    }

    /// The number of the step that is told next; none where the devices meet nobody.
    pub fn next_step(&self) -> Option<u32> {
        let exchange = self.exchange.as_ref()?;
        Some(exchange.step.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    /// From here on, takes the time of the first device's launches.
    pub fn start_profile(&mut self, which: Profiled) {
        self.first.start_profile(which);
    }

    /// Where that went.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.first.take_profile()
    }

    /// As [`Executor::write`], on all devices.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, bytes) = (name.to_owned(), bytes.to_vec());
            move |executor: &mut Executor| executor.write(&name, &bytes)
        });
        self.first.write(name, bytes)
    }

    /// As [`Executor::write_at`], on all devices.
    pub fn write_at(&self, name: &str, offset_bytes: usize, bytes: &[u8]) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, bytes) = (name.to_owned(), bytes.to_vec());
            move |executor: &mut Executor| executor.write_at(&name, offset_bytes, &bytes)
        });
        self.first.write_at(name, offset_bytes, bytes)
    }

    /// As [`Executor::copy_within`], on all devices.
    pub fn copy_within(&self, name: &str, from: Range<usize>, to_bytes: usize) -> Result<(), PlanError> {
        self.tell_others(|| {
            let (name, from) = (name.to_owned(), from.clone());
            move |executor: &mut Executor| executor.copy_within(&name, from, to_bytes)
        });
        self.first.copy_within(name, from, to_bytes)
    }

    /// As [`Executor::write_inputs`], on all devices.
    pub fn write_inputs(&self, inputs: &Inputs<'_>) -> Result<(), PlanError> {
        self.tell_inputs(inputs, Executor::write_inputs);
        self.first.write_inputs(inputs)
    }

    /// As [`Executor::write_change_inputs`], on all devices.
    pub fn write_change_inputs(&self, inputs: &Inputs<'_>) -> Result<(), PlanError> {
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
    pub fn run(&mut self, shape: StepShape, observer: Option<Observer<'_>>) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.run(shape, None));
        let ran = self.first.run(shape, observer);
        self.settle(ran)
    }

    /// As [`Executor::run_to_logits`], on all devices.
    pub fn run_to_logits(&mut self, shape: StepShape) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.run_to_logits(shape));
        let ran = self.first.run_to_logits(shape);
        self.settle(ran)
    }

    /// As [`Executor::change_logits`], on all devices.
    pub fn change_logits(&mut self, shape: StepShape, n_changed: usize) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.change_logits(shape, n_changed));
        let ran = self.first.change_logits(shape, n_changed);
        self.settle(ran)
    }

    /// As [`Executor::sample`], on all devices.
    pub fn sample(&mut self, shape: StepShape, n_logprobs: usize) -> Result<(), PlanError> {
        self.tell_others(|| move |executor: &mut Executor| executor.sample(shape, n_logprobs));
        let ran = self.first.sample(shape, n_logprobs);
        self.settle(ran)
    }

    /// The start of an external tensor of every device, in their order.
    pub fn read_all(&self, name: &str, len_bytes: usize) -> Result<Vec<Vec<u8>>, PlanError> {
        let (sender, received) = mpsc::channel();
        for (i, other) in self.others.iter().enumerate() {
            let (name, sender) = (name.to_owned(), sender.clone());
            other.tell(Box::new(move |executor| {
                let mut bytes = vec![0; len_bytes];
                executor.read(&name, &mut bytes)?;
                let _ = sender.send((i, bytes)); // whoever asked may be gone
                Ok(())
            }));
        }
        let mut all = vec![vec![0; len_bytes]; 1 + self.others.len()];
        let read = self.first.read(name, &mut all[0]);
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
    ) -> (Self, Receiver<Result<(), E>>) {
        let (jobs, received) = mpsc::channel::<Job>();
        let (ended, done) = mpsc::channel();
        let (said, loaded) = mpsc::channel();
        let work = move || {
            let mut executor = match load() {
                Ok(executor) => executor,
                Err(error) => return drop(said.send(Err(error))),
            };
            if said.send(Ok(())).is_err() {
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

    fn tell(&self, job: Job) {
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

/// What the forward pass calls external of these, beside [`Exchange::views`]: whether every step fills it, its name,
/// and its length in bytes.
pub(super) fn externals(of: TpRank, max_rows: usize, hidden_size: usize) -> Vec<(bool, String, usize)> {
    let mut externals = Vec::new();
    if of.size > 1 {
        externals.push((true, "step".to_owned(), 4));
    }
    if of.rank > 0 {
        externals.push((false, "zeros".to_owned(), 4 * max_rows * hidden_size));
    }
    externals
}
