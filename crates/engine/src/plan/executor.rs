//! A graph, chosen kernels and memory, ready to run step after step.
//!
//! The nodes form segments: nodes that are computed in one place and work on the same rows. Each segment has one list
//! of launches per bucket of row counts and kind of step, because the tuning tables may prefer other templates and
//! other fusions for one row than for many. All buckets share the memory, which is allocated once. A step picks a
//! bucket per segment and launches.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpu::{BufferView, GpuError, Mailbox};

use super::capture::Capture;
use super::error::PlanError;
use super::hand_over::{HandOver, staging};
use super::inputs::Inputs;
use super::loading::Work;
use super::memory::{LoadProgress, MemoryPlan};
use super::options::ExecutorOptions;
use super::profile::{Profile, Profiled, Profiler};
use super::replay::Replays;
use super::segment::Segment;
use super::site::Sites;
use super::streaming::{self, Slots, StreamPlan};
use crate::graph::placement::Place;
use crate::graph::{Graph, Role, Rows, StepShape};
use kernel::pipeline::{LoadedKernel, Pipeline};
use model::checkpoint::Checkpoint;

mod steps;

/// What an [`Observer`] is shown after a launch: one tensor that it wrote.
pub struct Written<'a> {
    /// The node, or the fused nodes joined by ` + `.
    pub label: &'a str,
    pub template: &'a str,
    pub tensor: &'a str,
    /// Its elements that this step's rows fill, as f32; all of them, if it is kept.
    pub values: &'a [f32],
    /// Whether other steps write elements of it as well, as in the cache, of which some may never have been written.
    pub(crate) is_kept: bool,
}

/// Called after every launch with every tensor of f32 or bf16 that it wrote.
pub type Observer<'a> = &'a mut (dyn FnMut(&Written<'_>) + Send);

/// Kernels, memory, and launches in order.
pub struct Executor {
    sites: Sites,
    graph: Graph,
    inputs: Inputs,
    /// Inputs of the rows whose logits are changed.
    change_inputs: Inputs,
    externals: HashMap<String, BufferView>,
    segments: Vec<Segment>,
    memory_plan: MemoryPlan,
    /// How long the weights took to copy or make.
    weights_time: Duration,
    stream_plan: Option<StreamPlan>,
    profiler: Option<Profiler>,
    replays: Replays,
    /// A launch to capture.
    capture: Mutex<Option<Capture>>,
}

impl Executor {
    /// Chooses and loads every kernel of every bucket, adds up what memory all will take, and allocates it if it fits.
    /// `host` is for the nodes that the graph places there.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn new(
        graph: Graph,
        checkpoint: &Checkpoint,
        device: &Arc<Pipeline>,
        host: Option<&Arc<Pipeline>>,
        options: ExecutorOptions,
        progress: &dyn LoadProgress,
    ) -> Result<Self, PlanError> {
        let host = host.filter(|_| graph.nodes.iter().any(|node| node.place == Place::Host));
        let slots = host.and_then(|_| Slots::new(&graph, checkpoint, &options));
        let work = Work { graph: &graph, checkpoint, options: &options, slots };
        let mut at_device = work.at(Place::Device, device)?;
        let mut at_host = host.map(|host| work.at(Place::Host, host)).transpose()?;
        work.memory_plan(&at_device, at_host.as_ref())?.check()?; // before anything is compiled
        at_device.load(&work, progress)?;
        at_host.as_mut().map_or(Ok(()), |host| host.load(&work, progress))?;
        let memory_plan = work.memory_plan(&at_device, at_host.as_ref())?;
        progress.planned(&memory_plan);
        memory_plan.check()?;

        let inputs = Inputs::new(device, &graph.externals(Role::Input))?;
        let mut externals = allocate_externals(device, &graph.externals(Role::Kept))?;
        let change_inputs = Inputs::new(device, &graph.externals(Role::ChangeInput))?;
        externals.extend(inputs.views().chain(change_inputs.views()).chain(options.shared.iter().cloned()));
        let start = Instant::now();
        let arena = allocate(device, "arena", at_device.arena.len_bytes)?;
        let (segments, device_site) = at_device.placed(&work, &arena, &externals)?;
        let (streamed, mut segments): (Vec<_>, Vec<_>) =
            segments.into_iter().partition(|segment| segment.place == Place::Streamed);
        let host_site = match at_host {
            Some(at_host) => {
                let arena = staging(device, at_host.arena.len_bytes)?;
                let (of_host, site) = at_host.placed(&work, &arena, &externals)?;
                segments.extend(of_host);
                Some(site)
            }
            None => None,
        };
        segments.sort_by_key(|segment| segment.nodes.start);
        for segment in segments.iter_mut().filter(|segment| segment.place == Place::Host) {
            segment.hand_over = Some(HandOver::new(&graph, &segment.nodes, device.library())?);
        }
        wait(device, &device_site.memory)?;
        let weights_time = start.elapsed();
        let mut sites = Sites { device: device_site, host: host_site };
        let how = (options.streaming, options.limits);
        let attach = |slots: &Slots| streaming::attach(&mut segments, streamed, slots, &mut sites, &graph, how);
        let stream_plan = work.slots.as_ref().map(attach).transpose()?;
        Ok(Self {
            sites,
            graph,
            inputs,
            change_inputs,
            externals,
            segments,
            memory_plan,
            weights_time,
            stream_plan,
            profiler: None,
            replays: Replays::default(),
            capture: Mutex::default(),
        })
    }

    /// Where the device's kernels came from.
    pub fn pipeline(&self) -> &Pipeline {
        &self.sites.device.pipeline
    }

    /// The same of the processor, where it computes a part.
    pub fn host_pipeline(&self) -> Option<&Pipeline> {
        self.sites.host.as_ref().map(|host| &*host.pipeline)
    }

    /// What the weights, the KV cache and the workspaces take on the device, in bytes.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// Which steps bring experts of main memory to the device; `None` where none can.
    pub fn stream_plan(&self) -> Option<&StreamPlan> {
        self.stream_plan.as_ref()
    }

    /// How long the weights took to copy, or to make.
    pub fn weights_time(&self) -> Duration {
        self.weights_time
    }

    /// Kernel launches of one step of this shape, summed over the graph's segments.
    pub fn n_launches(&self, shape: StepShape) -> usize {
        let of = |segment: &Segment| {
            let streamed = segment.streamed_in(shape).map(|streamed| &streamed.segment);
            streamed.unwrap_or(segment).bucket(shape).map_or(0, |bucket| bucket.launches.len())
        };
        self.segments.iter().map(of).sum()
    }

    /// Every distinct kernel: the first node that uses it, and its template.
    pub fn kernels(&self) -> Vec<(&str, &LoadedKernel)> {
        let mut kernels: Vec<(&str, &LoadedKernel)> = Vec::new();
        for launch in self.segments.iter().flat_map(Segment::all_buckets).flat_map(|bucket| &bucket.launches) {
            if !kernels.iter().any(|(_, kernel)| std::ptr::eq(*kernel, &*launch.kernel)) {
                kernels.push((&launch.label, &launch.kernel));
            }
        }
        kernels
    }

    /// Has a launch taken down when it comes. Until then steps are launched kernel by kernel, and not timed.
    pub fn capture(&self, capture: Capture) {
        *self.capture.lock().unwrap_or_else(PoisonError::into_inner) = Some(capture);
    }

    /// The labels of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.graph.nodes.iter().map(|node| node.label.as_str())
    }

    /// From here on, takes the time of the launches.
    ///
    /// - `is_alone`: whether no other device takes part in the steps
    pub(crate) fn start_profile(&mut self, which: Profiled, is_alone: bool) {
        self.profiler = Some(Profiler::new(which, is_alone));
    }

    /// The times since [`Self::start_profile`]; ends the timing.
    pub(crate) fn take_profile(&mut self) -> Option<Profile> {
        self.profiler.take().map(Profiler::finish)
    }

    /// Fills the start of an external tensor.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// If the graph has no external tensor of that name.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PlanError> {
        self.write_at(name, 0, bytes)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.externals.contains_key(name)
    }

    /// Fills a part of an external tensor, from `offset_bytes` on.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub(crate) fn write_at(&self, name: &str, offset_bytes: usize, bytes: &[u8]) -> Result<(), PlanError> {
        let failed = |source| PlanError::Device { label: name.into(), source };
        let view = part(&self.externals[name], offset_bytes, bytes.len()).map_err(failed)?;
        self.sites.device.driver().write(&view, bytes).map_err(failed)
    }

    /// Copies a part of an external tensor to another part of it, which begins at `to_bytes` and shares nothing with
    /// it: after everything launched so far and before what is launched next.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub(crate) fn copy_within(&self, name: &str, from: Range<usize>, to_bytes: usize) -> Result<(), PlanError> {
        let failed = |source| PlanError::Device { label: name.into(), source };
        let part = |offset_bytes| part(&self.externals[name], offset_bytes, from.len()).map_err(failed);
        self.sites.device.driver().copy(&part(from.start)?, &part(to_bytes)?).map_err(failed)
    }

    /// Fills the starts of the tensors that every step fills, in one copy.
    ///
    /// # Errors
    /// [`PlanError::Device`].
    ///
    /// # Panics
    /// If there is no input of a name, or it is shorter.
    pub(crate) fn write_inputs(&self, inputs: &[(&str, &[u8])]) -> Result<(), PlanError> {
        self.inputs.write(self.pipeline(), inputs)
    }

    /// The same for the inputs of rows whose logits are changed.
    ///
    /// # Errors
    /// As [`Self::write_inputs`].
    pub(crate) fn write_change_inputs(&self, inputs: &[(&str, &[u8])]) -> Result<(), PlanError> {
        self.change_inputs.write(self.pipeline(), inputs)
    }

    /// Room for the start of an external tensor that [`Self::post`] has copied there; none from a device whose launches
    /// are done when they return.
    ///
    /// # Errors
    /// [`PlanError::Device`].
    pub(crate) fn mailbox(&self, len_bytes: usize) -> Result<Option<Mailbox>, PlanError> {
        let mailbox = self.sites.device.driver().mailbox(len_bytes);
        mailbox.map_err(|source| PlanError::Device { label: "mailbox".into(), source })
    }

    /// Has the device copy the start of an external tensor to a mailbox, after everything launched so far.
    ///
    /// # Errors
    /// [`PlanError::Device`].
    ///
    /// # Panics
    /// If the graph has no external tensor of that name.
    pub(crate) fn post(&self, name: &str, len_bytes: usize, mailbox: &mut Mailbox) -> Result<(), PlanError> {
        let posted = self.sites.device.driver().post(mailbox, &self.externals[name], len_bytes);
        posted.map_err(|source| PlanError::Device { label: name.into(), source })
    }

    /// Reads a part of an external tensor, from `offset_bytes` on, after everything launched so far.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// As [`Self::write`].
    pub(crate) fn read(&self, name: &str, offset_bytes: usize, bytes: &mut [u8]) -> Result<(), PlanError> {
        let failed = |source| PlanError::Device { label: name.into(), source };
        let view = part(&self.externals[name], offset_bytes, bytes.len()).map_err(failed)?;
        self.sites.device.driver().read(&view, bytes).map_err(failed)
    }

    /// Launches a step on the rows that the external tensors hold, none of which asks for more than a token.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn run(&mut self, shape: StepShape, observer: Option<Observer<'_>>) -> Result<(), PlanError> {
        self.run_first(self.segments.len(), shape, observer)
    }

    /// Launches a step as far as its logits; [`Self::change_logits`], [`Self::sample`] and [`Self::logprobs`] do
    /// the rest.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn run_to_logits(&mut self, shape: StepShape) -> Result<(), PlanError> {
        self.run_first(self.first_asked_for(), shape, None)
    }

    /// Changes the logits of this many rows of a step, as the external tensors say.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn change_logits(&mut self, shape: StepShape, n_changed: usize) -> Result<(), PlanError> {
        let at = self.first_asked_for();
        self.run_asked_for(at..at + 1, shape, n_changed)
    }

    /// Takes the tokens of a step.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn sample(&mut self, shape: StepShape) -> Result<(), PlanError> {
        self.run_asked_for(self.first_asked_for() + 1..self.segments.len(), shape, 0)
    }

    /// Looks up the log-probabilities of this many rows of a step whose tokens are there.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(crate) fn logprobs(&mut self, shape: StepShape, n_logprobs: usize) -> Result<(), PlanError> {
        let is_it = |segment: &Segment| segment.rows == Rows::Logprobs;
        let first = self.segments.iter().position(is_it).unwrap_or(self.segments.len());
        self.run_asked_for(first..self.segments.len(), shape, n_logprobs)
    }

    /// The first segment that a step has only if a request asks for it.
    fn first_asked_for(&self) -> usize {
        self.segments.iter().position(|segment| segment.rows.are_asked_for()).unwrap_or(self.segments.len())
    }
}

fn part(view: &BufferView, offset_bytes: usize, len_bytes: usize) -> Result<BufferView, GpuError> {
    let too_short = || GpuError::Range { what: "use a part", len_bytes, available_bytes: view.len_bytes() };
    view.slice(offset_bytes, len_bytes).ok_or_else(too_short)
}

fn allocate(pipeline: &Pipeline, label: &str, len_bytes: usize) -> Result<BufferView, PlanError> {
    let buffer = pipeline.driver().allocate(len_bytes);
    buffer.map(|buffer| buffer.view()).map_err(|source| PlanError::Device { label: label.into(), source })
}

fn allocate_externals(
    pipeline: &Pipeline,
    externals: &[(String, usize)],
) -> Result<HashMap<String, BufferView>, PlanError> {
    externals.iter().map(|(name, len_bytes)| Ok((name.clone(), allocate(pipeline, name, *len_bytes)?))).collect()
}

/// Waits until everything launched so far is done, and returns its error.
fn wait(pipeline: &Pipeline, memory: &[BufferView]) -> Result<(), PlanError> {
    let Some(view) = memory.iter().find(|view| view.len_bytes() > 0) else { return Ok(()) };
    let waited = pipeline.driver().read(view, &mut [0]);
    waited.map_err(|source| PlanError::Device { label: "the weights".into(), source })
}
