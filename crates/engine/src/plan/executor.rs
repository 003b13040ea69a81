//! A graph, chosen kernels and memory, ready to run step after step.
//!
//! The nodes fall into segments that are computed in one place and work on the same rows. For each segment there is
//! one list of launches per bucket of row counts and kind of step: the tuning tables may prefer other templates, and
//! other fusions, for one row than for many. All buckets share the memory, which is allocated once. A step picks a
//! bucket per segment and launches.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{Argument, BufferView, Driver, GpuError, Kernel, Launch, Mailbox};
use half::bf16;

use super::error::PlanError;
use super::hand_over::{HandOver, staging};
use super::inputs::Inputs;
use super::loading::Work;
use super::memory::{LoadProgress, MemoryPlan};
use super::options::ExecutorOptions;
use super::profile::{Profile, Profiled, Profiler};
use super::replay::Replays;
use super::segment::{PlannedLaunch, PreparedLaunch, Segment, Steps};
use super::site::Sites;
use crate::graph::placement::Place;
use crate::graph::{Graph, Role, Rows, StepShape, Storage};
use format::Dtype;
use kernel::pipeline::{LoadedKernel, Pipeline};
use kernel::template::contract::Access;
use model::checkpoint::Checkpoint;

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
    /// What the rows are told whose logits are changed.
    change_inputs: Inputs,
    externals: HashMap<String, BufferView>,
    segments: Vec<Segment>,
    memory_plan: MemoryPlan,
    /// How long the weights took to copy or make.
    weights_time: Duration,
    profiler: Option<Profiler>,
    replays: Replays,
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
        let work = Work { graph: &graph, checkpoint, options: &options };
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
        let (mut segments, device_site) = at_device.placed(&work, &arena, &externals)?;
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
        Ok(Self {
            sites: Sites { device: device_site, host: host_site },
            graph,
            inputs,
            change_inputs,
            externals,
            segments,
            memory_plan,
            weights_time,
            profiler: None,
            replays: Replays::default(),
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

    /// What memory was allocated for.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// How long the weights took to copy, or to make.
    pub fn weights_time(&self) -> Duration {
        self.weights_time
    }

    /// Launches of a step.
    pub fn n_launches(&self, shape: StepShape) -> usize {
        let of = |segment: &Segment| segment.bucket(shape).map_or(0, |bucket| bucket.launches.len());
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

    /// From here on, takes the time of the launches.
    ///
    /// - `is_alone`: whether no other device takes part in the steps
    pub(crate) fn start_profile(&mut self, which: Profiled, is_alone: bool) {
        self.profiler = Some(Profiler::new(which, is_alone));
    }

    /// Where the time went since [`Self::start_profile`], which this ends.
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

    /// The same for the tensors that rows are told by whose logits are changed.
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

    /// Changes the logits of so many rows of a step, as the external tensors say.
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

    /// Looks up the log-probabilities of so many rows of a step whose tokens are there.
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

    /// Launches the first segments of a step: what comes again and again.
    fn run_first(
        &mut self,
        n_segments: usize,
        shape: StepShape,
        mut observer: Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for segment in &mut self.segments[..n_segments] {
            segment.prepare(shape.kind, shape.count(segment.rows), &self.sites)?;
        }
        if let Some(mut profiler) = self.profiler.take() {
            let timed = profiler.step(&self.view(n_segments), shape);
            self.profiler = Some(profiler);
            if timed? {
                return Ok(());
            }
        }
        if self.sites.host.is_none() && observer.is_none() && self.replay(0..n_segments, shape)? {
            return Ok(());
        }
        let mut replays = std::mem::take(&mut self.replays);
        let mut result = Ok(());
        let mut work = || result = self.run_parts(n_segments, shape, &mut replays, &mut observer);
        self.sites.enter(&mut work);
        self.replays = replays;
        result
    }

    /// Launches the first segments of a step, from one hand-over to the next.
    fn run_parts(
        &self,
        n_segments: usize,
        shape: StepShape,
        replays: &mut Replays,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        let count = |rows: Rows| shape.count(rows);
        let mut at = 0;
        for part in self.segments[..n_segments].chunk_by(|a, b| a.place == b.place) {
            let (first, end) = (at, at + part.len());
            at = end;
            if part[0].place == Place::Host {
                self.run_on_host(first..end, shape, observer)?;
            } else if self.sites.host.is_none() || observer.is_some() || !self.replayed(replays, first..end, shape)? {
                self.launch_all(first..end, shape, count, observer)?;
            }
        }
        Ok(())
    }

    /// Has the processor compute segments: each with what it needs brought before, and what it made sent behind it.
    fn run_on_host(
        &self,
        which: Range<usize>,
        shape: StepShape,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for at in which {
            let segment = &self.segments[at];
            let n = shape.count(segment.rows);
            let Some(hand_over) = segment.hand_over.as_ref().filter(|_| n > 0) else { continue };
            hand_over.bring(n, &self.sites)?;
            self.launch_all(at..at + 1, shape, |rows| shape.count(rows), observer)?;
            hand_over.send(n, &self.sites)?;
        }
        Ok(())
    }

    /// Launches segments of a step in which so many rows ask for them; no profiler sees it.
    fn run_asked_for(&mut self, which: Range<usize>, shape: StepShape, n: usize) -> Result<(), PlanError> {
        let count = |rows: Rows| if rows.are_asked_for() { n } else { shape.count(rows) };
        for segment in &mut self.segments[which.clone()] {
            segment.prepare(shape.kind, count(segment.rows), &self.sites)?;
        }
        let mut result = Ok(());
        self.sites.device.driver().enter(&mut || result = self.launch_all(which.clone(), shape, count, &mut None));
        result
    }

    /// What a profiler needs.
    fn view(&self, n_segments: usize) -> Steps<'_> {
        Steps { sites: &self.sites, graph: &self.graph, segments: &self.segments[..n_segments] }
    }

    /// Replays segments of a step that are all the device's, if they were or can be captured; whether it did.
    fn replay(&mut self, which: Range<usize>, shape: StepShape) -> Result<bool, PlanError> {
        let mut replays = std::mem::take(&mut self.replays);
        let replayed = self.replayed(&mut replays, which, shape);
        self.replays = replays;
        replayed
    }

    fn replayed(&self, replays: &mut Replays, which: Range<usize>, shape: StepShape) -> Result<bool, PlanError> {
        let launches = || self.launches(which.clone(), shape);
        let replayed = replays.replay(self.sites.device.driver(), (shape, which.clone()), launches);
        replayed.map_err(|source| PlanError::Device { label: "a part of a step".into(), source })
    }

    /// The launches of segments of a step that was prepared.
    fn launches(&self, which: Range<usize>, shape: StepShape) -> Vec<(&Kernel, Launch<'_>)> {
        let all = self.segments[which].iter().flat_map(|segment| segment.prepared(shape));
        all.map(|(planned, prepared)| (planned.kernel(), prepared.launch())).collect()
    }

    fn launch_all(
        &self,
        which: Range<usize>,
        shape: StepShape,
        count: impl Fn(Rows) -> usize,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for segment in &self.segments[which] {
            let driver = self.sites.of(segment.place).driver();
            for (planned, prepared) in segment.prepared_of(shape.kind, count(segment.rows)) {
                let failed = |source| PlanError::Device { label: planned.label.clone(), source };
                driver.launch(planned.kernel(), &prepared.launch()).map_err(failed)?;
                if let Some(observer) = observer {
                    self.show(driver, planned, prepared, *observer)?;
                }
            }
        }
        Ok(())
    }

    /// Reads back what a launch wrote, for the observer.
    fn show(
        &self,
        driver: &dyn Driver,
        planned: &PlannedLaunch,
        prepared: &PreparedLaunch,
        observer: &mut (dyn FnMut(&Written<'_>) + Send),
    ) -> Result<(), PlanError> {
        for (spec, arg) in planned.kernel.rendered.all_args().zip(&prepared.args) {
            let Argument::Memory { view, required_bytes } = arg else { continue };
            let Some(id) = planned.args.get(&spec.name) else { continue }; // a workspace
            if spec.access == Access::Read || !matches!(spec.dtype, Dtype::F32 | Dtype::Bf16) {
                continue;
            }
            let mut bytes = vec![0; *required_bytes];
            let failed = |source| PlanError::Device { label: planned.label.clone(), source };
            driver.read(view, &mut bytes).map_err(failed)?;
            let values = f32s(&bytes, spec.dtype);
            let tensor = self.graph.tensor_of(*id);
            let is_kept = spec.access == Access::ReadWrite && matches!(tensor.storage, Storage::External(_));
            let template = &planned.kernel.rendered.label;
            observer(&Written { label: &planned.label, template, tensor: &tensor.name, values: &values, is_kept });
        }
        Ok(())
    }
}

/// Elements of f32 or bf16, as they lie in memory.
fn f32s(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|&two| bf16::from_le_bytes(two).to_f32()).collect(),
        _ => bytemuck::pod_collect_to_vec(bytes),
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

/// Waits until everything launched so far is done: what went wrong is told here.
fn wait(pipeline: &Pipeline, memory: &[BufferView]) -> Result<(), PlanError> {
    let Some(view) = memory.iter().find(|view| view.len_bytes() > 0) else { return Ok(()) };
    let waited = pipeline.driver().read(view, &mut [0]);
    waited.map_err(|source| PlanError::Device { label: "the weights".into(), source })
}
