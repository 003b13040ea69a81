//! A graph, chosen kernels and memory, ready to run step after step.
//!
//! The nodes fall into segments that work on the same rows. For each segment there is one list of launches per
//! bucket of row counts: the tuning tables may prefer other templates, and other fusions, for one row than for
//! many. All buckets share the memory, which is allocated once. A step picks a bucket per segment and launches.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{Argument, BufferView, GpuError, Kernel, Launch};

use super::arena::{self, Lifetime};
use super::memory::{DoesNotFit, LoadProgress, MemoryPlan};
use super::profile::Profile;
use super::replay::Replays;
use super::weights::Weights;
use super::workspace::{Workspace, WorkspaceBytes};
use super::{Graph, Node, Rows, Storage, TensorId};
use crate::checkpoint::Checkpoint;
use crate::error::Hint;
use crate::kernel::Problem;
use crate::kernel::contract::Access;
use crate::kernel::expression::ExpressionError;
use crate::kernel::launch::ArgSpec;
use crate::kernel::library_error::LibraryError;
use crate::kernel::pipeline::{LoadedKernel, Pipeline, PipelineError};
use crate::kernel::render::RenderError;
use crate::kernel::store::Progress;

/// What can go wrong between a graph and its launches.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A kernel could not be had.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// An op has no contract, or a broken one.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A launch or a shape did not come to a number.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// A shape or a grid did not come to a number.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The device has no room for all of it.
    #[error(transparent)]
    Memory(#[from] Box<DoesNotFit>),
    /// The device refuses.
    #[error("could not run `{label}`")]
    Device {
        /// The node, or what was being done.
        label: String,
        /// The device's words.
        #[source]
        source: GpuError,
    },
    /// A kernel takes a scalar that the graph does not give.
    #[error("`{label}`: the kernel takes the scalar `{name}`, which the graph does not give")]
    NoScalar {
        /// The node.
        label: String,
        /// The scalar argument.
        name: String,
    },
    /// The checkpoint lacks a tensor.
    #[error("the checkpoint has no tensor `{name}`")]
    NoTensor {
        /// Canonical name.
        name: String,
    },
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Pipeline(error) => error.hint(),
            Self::Library(error) => error.hint(),
            Self::Render(error) => error.hint(),
            Self::Expression(error) => error.hint(),
            Self::Memory(error) => error.hint(),
            Self::Device { .. } | Self::NoScalar { .. } | Self::NoTensor { .. } => None,
        }
    }
}

/// Sizes that the graph does not know.
pub struct ExecutorOptions {
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that give logits.
    pub max_logit_rows: usize,
    /// Names and lengths in bytes of the external tensors.
    pub externals: Vec<(String, usize)>,
    /// Bytes of them that are keys and values.
    pub kv_bytes: usize,
}

/// What an [`Observer`] is shown after a launch: one tensor that it wrote.
pub struct Written<'a> {
    /// The node, or the fused nodes joined by ` + `.
    pub label: &'a str,
    /// The template.
    pub template: &'a str,
    /// The tensor's name.
    pub tensor: &'a str,
    /// Its elements that this step's rows fill, f32.
    pub values: &'a [f32],
}

/// Called after every launch with every f32 tensor that it wrote.
pub type Observer<'a> = &'a mut (dyn FnMut(&Written<'_>) + Send);

/// Kernels, memory, and launches in order.
pub struct Executor {
    pipeline: Pipeline,
    graph: Graph,
    /// Where every tensor of the graph is.
    memory: Vec<BufferView>,
    externals: HashMap<String, BufferView>,
    workspace: Workspace,
    segments: Vec<Segment>,
    memory_plan: MemoryPlan,
    /// How long the weights took to copy or make.
    weights_time: Duration,
    profile: Option<Profile>,
    replays: Replays,
}

/// Consecutive nodes that work on the same rows.
struct Segment {
    rows: Rows,
    buckets: Vec<Bucket>,
}

/// Launches for a range of row counts.
struct Bucket {
    /// From here on; up to the next bucket's.
    first_row_count: usize,
    launches: Vec<PlannedLaunch>,
    /// Grids and arguments by row count, as they were needed.
    prepared: HashMap<usize, Vec<PreparedLaunch>>,
}

/// One kernel with its tensors, for any row count.
struct PlannedLaunch {
    label: String,
    kernel: Arc<LoadedKernel>,
    args: BTreeMap<String, TensorId>,
    scalars: BTreeMap<String, u32>,
}

/// One kernel with its grid and arguments, for one row count.
struct PreparedLaunch {
    grid: [u32; 3],
    scratch_bytes: usize,
    args: Vec<Argument>,
}

/// Row counts for which prepared launches are kept, per bucket: decoding uses few, prefill any.
const MAX_PREPARED: usize = 64;

impl Executor {
    /// Chooses and loads every kernel of every bucket, adds up what memory all will take, and allocates it if it fits.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        graph: Graph,
        checkpoint: &Checkpoint,
        pipeline: Pipeline,
        options: ExecutorOptions,
        progress: &dyn LoadProgress,
    ) -> Result<Self, PlanError> {
        let segments = plan_segments(&graph, &pipeline, &options, progress)?;
        let weights = Weights::new(&graph, checkpoint, &pipeline, progress)?;
        let arena = ArenaLayout::new(&graph, &pipeline, &options)?;
        let workspace_bytes = workspace_bytes(&segments, &options)?;
        let memory_plan = memory_plan(&graph, checkpoint, &pipeline, &options, &arena, workspace_bytes)?;
        progress.planned(&memory_plan);
        memory_plan.check()?;

        let externals = allocate_externals(&pipeline, &options.externals)?;
        let start = Instant::now();
        let memory = place_tensors(&graph, checkpoint, &pipeline, &externals, &arena, &weights)?;
        let workspace = Workspace::new(pipeline.driver(), workspace_bytes)
            .map_err(|source| PlanError::Device { label: "workspace".into(), source })?;
        wait(&pipeline, &memory)?;
        let (weights_time, profile, replays) = (start.elapsed(), None, Replays::default());
        Ok(Self {
            pipeline,
            graph,
            memory,
            externals,
            workspace,
            segments,
            memory_plan,
            weights_time,
            profile,
            replays,
        })
    }

    /// Where kernels came from.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// What memory was allocated for.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// How long the weights took to copy, or to make.
    pub fn weights_time(&self) -> Duration {
        self.weights_time
    }

    /// Launches of a step with so many rows and logit rows.
    pub fn n_launches(&self, n_rows: usize, n_logit_rows: usize) -> usize {
        let counts = |segment: &Segment| segment.bucket(row_count(segment.rows, n_rows, n_logit_rows)).launches.len();
        self.segments.iter().filter(|s| row_count(s.rows, n_rows, n_logit_rows) > 0).map(counts).sum()
    }

    /// Every distinct kernel: the first node that uses it, and its template.
    pub fn kernels(&self) -> Vec<(&str, &LoadedKernel)> {
        let mut kernels: Vec<(&str, &LoadedKernel)> = Vec::new();
        for launch in self.segments.iter().flat_map(|s| &s.buckets).flat_map(|b| &b.launches) {
            if !kernels.iter().any(|(_, kernel)| std::ptr::eq(*kernel, &*launch.kernel)) {
                kernels.push((&launch.label, &launch.kernel));
            }
        }
        kernels
    }

    /// From here on, takes the time of every launch.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// The times taken since [`Self::start_profile`].
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Fills the start of an external tensor.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// If the graph has no external tensor of that name.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PlanError> {
        let view = &self.externals[name];
        self.pipeline.driver().write(view, bytes).map_err(|source| PlanError::Device { label: name.into(), source })
    }

    /// Reads the start of an external tensor, after everything launched so far.
    ///
    /// # Errors
    /// [`PlanError::Device`] when it is shorter.
    ///
    /// # Panics
    /// If the graph has no external tensor of that name.
    pub fn read(&self, name: &str, bytes: &mut [u8]) -> Result<(), PlanError> {
        let view = &self.externals[name];
        self.pipeline.driver().read(view, bytes).map_err(|source| PlanError::Device { label: name.into(), source })
    }

    /// Launches a step on the rows that the external tensors hold.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn run(
        &mut self,
        n_rows: usize,
        n_logit_rows: usize,
        mut observer: Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for i in 0..self.segments.len() {
            self.prepare(i, row_count(self.segments[i].rows, n_rows, n_logit_rows))?;
        }
        if observer.is_none() && self.profile.is_none() && self.replay(n_rows, n_logit_rows)? {
            return Ok(());
        }
        let mut profile = self.profile.take();
        let mut result = Ok(());
        self.pipeline.driver().enter(&mut || {
            result = self.launch_all(n_rows, n_logit_rows, &mut observer, &mut profile);
        });
        self.profile = profile;
        result
    }

    /// Replays a step, if it was or can be captured; whether it did.
    fn replay(&mut self, n_rows: usize, n_logit_rows: usize) -> Result<bool, PlanError> {
        let mut replays = std::mem::take(&mut self.replays);
        let launches = || self.launches(n_rows, n_logit_rows);
        let replayed = replays.replay(self.pipeline.driver(), (n_rows, n_logit_rows), launches);
        self.replays = replays;
        replayed.map_err(|source| PlanError::Device { label: "all of a step".into(), source })
    }

    /// All launches of a step that was prepared.
    fn launches(&self, n_rows: usize, n_logit_rows: usize) -> Vec<(&Kernel, Launch<'_>)> {
        self.segments.iter().flat_map(|s| s.launches(row_count(s.rows, n_rows, n_logit_rows))).collect()
    }

    fn launch_all(
        &self,
        n_rows: usize,
        n_logit_rows: usize,
        observer: &mut Option<Observer<'_>>,
        profile: &mut Option<Profile>,
    ) -> Result<(), PlanError> {
        for segment in &self.segments {
            let n = row_count(segment.rows, n_rows, n_logit_rows);
            if n == 0 {
                continue;
            }
            let bucket = segment.bucket(n);
            for (planned, prepared) in bucket.launches.iter().zip(&bucket.prepared[&n]) {
                let PreparedLaunch { grid, scratch_bytes, args } = prepared;
                let launch = Launch { grid: *grid, scratch_bytes: *scratch_bytes, args };
                let (driver, kernel) = (self.pipeline.driver(), &planned.kernel.kernel);
                let failed = |source| PlanError::Device { label: planned.label.clone(), source };
                match profile {
                    Some(profile) => {
                        let time = driver.launch_timed(kernel, &launch).map_err(failed)?;
                        profile.add(&planned.label, &planned.kernel.rendered.label, time);
                    }
                    None => driver.launch(kernel, &launch).map_err(failed)?,
                }
                if let Some(observer) = observer {
                    self.show(planned, prepared, *observer)?;
                }
            }
        }
        Ok(())
    }

    /// Reads back what a launch wrote, for the observer.
    fn show(
        &self,
        planned: &PlannedLaunch,
        prepared: &PreparedLaunch,
        observer: &mut (dyn FnMut(&Written<'_>) + Send),
    ) -> Result<(), PlanError> {
        for (spec, arg) in planned.kernel.rendered.all_args().zip(&prepared.args) {
            let Argument::Memory { view, required_bytes } = arg else { continue };
            let Some(id) = planned.args.get(&spec.name) else { continue }; // a workspace
            if spec.access == Access::Read || spec.dtype != crate::dtype::Dtype::F32 {
                continue;
            }
            let mut values = vec![0.0_f32; required_bytes / 4];
            self.pipeline
                .driver()
                .read(view, bytemuck::cast_slice_mut(&mut values))
                .map_err(|source| PlanError::Device { label: planned.label.clone(), source })?;
            let tensor = &self.graph.tensor_of(*id).name;
            let template = &planned.kernel.rendered.label;
            observer(&Written { label: &planned.label, template, tensor, values: &values });
        }
        Ok(())
    }

    /// Works out grids and arguments for a row count that has not come up yet.
    fn prepare(&mut self, segment: usize, n: usize) -> Result<(), PlanError> {
        let bucket = self.segments[segment].bucket_mut(n);
        if n == 0 || bucket.prepared.contains_key(&n) {
            return Ok(());
        }
        let prepare = |launch| prepared(launch, n, &self.memory, &self.workspace);
        let prepared = bucket.launches.iter().map(prepare).collect::<Result<_, _>>()?;
        if bucket.prepared.len() >= MAX_PREPARED {
            bucket.prepared.clear();
        }
        bucket.prepared.insert(n, prepared);
        Ok(())
    }
}

impl Segment {
    fn bucket(&self, n: usize) -> &Bucket {
        &self.buckets[self.bucket_index(n)]
    }

    fn bucket_mut(&mut self, n: usize) -> &mut Bucket {
        let index = self.bucket_index(n);
        &mut self.buckets[index]
    }

    /// Launches for a row count that was prepared; none for no rows.
    fn launches(&self, n: usize) -> impl Iterator<Item = (&Kernel, Launch<'_>)> {
        let bucket = self.bucket(n);
        let prepared = bucket.prepared.get(&n).map_or(&[][..], Vec::as_slice);
        let launches = bucket.launches.iter().zip(prepared);
        launches.map(|(planned, p)| {
            (&planned.kernel.kernel, Launch { grid: p.grid, scratch_bytes: p.scratch_bytes, args: &p.args })
        })
    }

    fn bucket_index(&self, n: usize) -> usize {
        self.buckets.partition_point(|bucket| bucket.first_row_count <= n).saturating_sub(1)
    }
}

fn row_count(rows: Rows, n_rows: usize, n_logit_rows: usize) -> usize {
    match rows {
        Rows::All => n_rows,
        Rows::Logits => n_logit_rows,
    }
}

/// The scalar arguments of a node for so many rows.
fn scalars(n: usize, own: &BTreeMap<String, u32>) -> BTreeMap<String, u64> {
    let own = own.iter().map(|(name, &value)| (name.clone(), value.into()));
    own.chain([("n_tokens".to_string(), n as u64)]).collect()
}

/// Works out a launch for `n` rows.
fn prepared(
    launch: &PlannedLaunch,
    n: usize,
    memory: &[BufferView],
    workspace: &Workspace,
) -> Result<PreparedLaunch, PlanError> {
    let (rendered, scalars) = (&launch.kernel.rendered, scalars(n, &launch.scalars));
    let mut workspace = workspace.for_launch();
    let argument = |spec: &ArgSpec| match (spec.is_scalar(), launch.args.get(&spec.name)) {
        (true, _) => match scalars.get(&spec.name) {
            Some(&value) => Ok(Argument::U32(value as u32)),
            None => Err(PlanError::NoScalar { label: launch.label.clone(), name: spec.name.clone() }),
        },
        (false, Some(id)) => {
            Ok(Argument::Memory { view: memory[id.0].clone(), required_bytes: spec.len_bytes(&scalars)? })
        }
        (false, None) => Ok(workspace.take(spec, &scalars)?),
    };
    Ok(PreparedLaunch {
        args: rendered.all_args().map(argument).collect::<Result<_, _>>()?,
        grid: rendered.launch.grid(&scalars)?,
        scratch_bytes: rendered.launch.scratch_bytes(&scalars)? as usize,
    })
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

/// Where in the arena every activation is.
struct ArenaLayout {
    /// First byte and length, by tensor index.
    ranges: BTreeMap<usize, (usize, usize)>,
    len_bytes: usize,
}

impl ArenaLayout {
    fn new(graph: &Graph, pipeline: &Pipeline, options: &ExecutorOptions) -> Result<Self, PlanError> {
        let lifetimes = lifetimes(graph, pipeline, options)?;
        let (offsets, len_bytes) = arena::place(&lifetimes.values().copied().collect::<Vec<_>>());
        let ranges = lifetimes.iter().zip(offsets).map(|((&i, life), offset)| (i, (offset, life.len_bytes)));
        Ok(Self { ranges: ranges.collect(), len_bytes })
    }
}

/// What everything takes.
fn memory_plan(
    graph: &Graph,
    checkpoint: &Checkpoint,
    pipeline: &Pipeline,
    options: &ExecutorOptions,
    arena: &ArenaLayout,
    workspace: WorkspaceBytes,
) -> Result<MemoryPlan, PlanError> {
    let plan = MemoryPlan::new(graph, checkpoint, pipeline.driver());
    let plan = plan.map_err(|source| PlanError::Device { label: "memory plan".into(), source })?;
    let externals: usize = options.externals.iter().map(|(_, len_bytes)| len_bytes).sum();
    Ok(MemoryPlan {
        kv_cache: options.kv_bytes,
        activations: arena.len_bytes + externals - options.kv_bytes,
        workspace: workspace.total(),
        ..plan
    })
}

/// Finds a place for every tensor.
fn place_tensors(
    graph: &Graph,
    checkpoint: &Checkpoint,
    pipeline: &Pipeline,
    externals: &HashMap<String, BufferView>,
    layout: &ArenaLayout,
    weights: &Weights,
) -> Result<Vec<BufferView>, PlanError> {
    let arena = allocate(pipeline, "arena", layout.len_bytes)?;
    let in_arena = |i: usize| {
        let (offset, len_bytes) = layout.ranges[&i];
        arena.slice(offset, len_bytes).expect("the planner stays inside the arena")
    };
    let place = |(i, tensor): (usize, &super::Tensor)| match &tensor.storage {
        Storage::Weight(name) => weights.place(checkpoint, name, pipeline.driver()),
        Storage::External(name) => Ok(externals[name].clone()),
        Storage::Arena => Ok(in_arena(i)),
    };
    graph.tensors.iter().enumerate().map(place).collect()
}

/// Waits until everything launched so far is done: what went wrong is told here.
fn wait(pipeline: &Pipeline, memory: &[BufferView]) -> Result<(), PlanError> {
    let Some(view) = memory.iter().find(|view| view.len_bytes() > 0) else { return Ok(()) };
    let waited = pipeline.driver().read(view, &mut [0]);
    waited.map_err(|source| PlanError::Device { label: "the weights".into(), source })
}

/// Size and life of every activation, by tensor index.
fn lifetimes(
    graph: &Graph,
    pipeline: &Pipeline,
    options: &ExecutorOptions,
) -> Result<BTreeMap<usize, Lifetime>, PlanError> {
    let mut lifetimes: BTreeMap<usize, Lifetime> = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let contract = pipeline.library().contract(&node.problem.ops[0])?;
        let scalars = scalars(row_count(node.rows, options.max_rows, options.max_logit_rows), &node.scalars);
        for arg in &contract.args {
            let Some(id) = node.args.get(&arg.name) else { continue };
            if graph.tensor_of(*id).storage != Storage::Arena {
                continue;
            }
            let spec = ArgSpec::of(arg, &node.problem);
            let len_bytes = spec.len_bytes(&scalars)?;
            let life = lifetimes.entry(id.0).or_insert(Lifetime { len_bytes, first_node: at, last_node: at });
            life.last_node = at;
            life.len_bytes = life.len_bytes.max(len_bytes);
        }
    }
    Ok(lifetimes)
}

/// Cuts the graph into segments, and loads the kernels of all their buckets at once.
fn plan_segments(
    graph: &Graph,
    pipeline: &Pipeline,
    options: &ExecutorOptions,
    progress: &dyn Progress,
) -> Result<Vec<Segment>, PlanError> {
    let mut drafts: Vec<(Rows, usize, Vec<Cover>)> = Vec::new(); // rows, first row count, cover of the bucket
    for range in segment_ranges(graph) {
        let rows = graph.nodes[range.start].rows;
        let most = row_count(rows, options.max_rows, options.max_logit_rows);
        for first in bucket_starts(graph, pipeline, range.clone(), most)? {
            drafts.push((rows, first, cover(graph, pipeline, range.clone(), first)?));
        }
    }
    let wanted: Vec<(Problem, usize)> =
        drafts.iter().flat_map(|(_, first, cover)| cover.iter().map(|c| (c.problem.clone(), *first))).collect();
    let mut kernels = pipeline.load_all(&wanted, progress)?.into_iter();

    let mut segments: Vec<Segment> = Vec::new();
    for (rows, first_row_count, cover) in drafts {
        let launches = cover
            .into_iter()
            .map(|Cover { label, args, scalars, .. }| {
                let kernel = kernels.next().expect("one for each");
                PlannedLaunch { label, kernel, args, scalars }
            })
            .collect();
        let bucket = Bucket { first_row_count, launches, prepared: HashMap::new() };
        // The smallest bucket of a segment comes first and opens it.
        if first_row_count == 1 {
            segments.push(Segment { rows, buckets: vec![bucket] });
        } else {
            segments.last_mut().expect("opened by its first bucket").buckets.push(bucket);
        }
    }
    Ok(segments)
}

/// One launch to be: a node, or a run of nodes that one kernel covers.
struct Cover {
    label: String,
    problem: Problem,
    args: BTreeMap<String, TensorId>,
    scalars: BTreeMap<String, u32>,
}

fn segment_ranges(graph: &Graph) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if graph.nodes[range.start].rows == node.rows => range.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// Row counts at which any choice may change, rising from 1.
fn bucket_starts(
    graph: &Graph,
    pipeline: &Pipeline,
    range: Range<usize>,
    most: usize,
) -> Result<Vec<usize>, PlanError> {
    let mut starts = std::collections::BTreeSet::from([1]);
    for at in range.clone() {
        starts.extend(pipeline.bucket_starts(&graph.nodes[at].problem));
        if let Some(fused) = fused(graph, pipeline, at, range.end) {
            starts.extend(pipeline.bucket_starts(&fused.problem));
        }
    }
    Ok(starts.into_iter().filter(|&start| start <= most.max(1)).collect())
}

/// The launches of a bucket: a fused kernel where the tuning tables prefer one, else a kernel for each node.
fn cover(graph: &Graph, pipeline: &Pipeline, range: Range<usize>, first: usize) -> Result<Vec<Cover>, PlanError> {
    let mut cover = Vec::new();
    let mut at = range.start;
    while at < range.end {
        match fused(graph, pipeline, at, range.end).filter(|c| pipeline.prefers(&c.problem, first)) {
            Some(fused) => {
                at += fused.problem.ops.len();
                cover.push(fused);
            }
            None => {
                cover.push(single(&graph.nodes[at]));
                at += 1;
            }
        }
    }
    Ok(cover)
}

fn single(node: &Node) -> Cover {
    let Node { label, problem, args, scalars, .. } = node.clone();
    Cover { label, problem, args, scalars }
}

/// The node at `at` and the one behind it as one, if a template does that and nobody else reads what is between them.
fn fused(graph: &Graph, pipeline: &Pipeline, at: usize, end: usize) -> Option<Cover> {
    let [first, second] = graph.nodes.get(at..at + 2).filter(|_| at + 2 <= end)? else { return None };
    let (a, b) = (&first.problem.ops[0], &second.problem.ops[0]);
    let (written, taken) = pipeline.joint(a, b)?;
    let between = first.args.get(&written)?;
    let readers = graph.nodes.iter().flat_map(|node| node.args.values()).filter(|id| *id == between).count();
    let joins =
        second.args.get(&taken) == Some(between) && readers == 2 && graph.tensor_of(*between).storage == Storage::Arena;
    let problem = joins.then(|| merged(&first.problem, &second.problem)).flatten()?;
    let mut scalars = first.scalars.clone();
    if !add(&mut scalars, &second.scalars) {
        return None;
    }
    let args = first.args.iter().filter(|(name, _)| **name != written);
    let args = args.chain(second.args.iter().filter(|(name, _)| **name != taken));
    let label = format!("{} + {}", first.label, second.label);
    Some(Cover { label, problem, args: args.map(|(name, id)| (name.clone(), *id)).collect(), scalars })
}

/// Both problems as one; `None` when they use a name for different things.
fn merged(first: &Problem, second: &Problem) -> Option<Problem> {
    let mut problem = first.clone();
    problem.ops.extend(second.ops.iter().cloned());
    let agree = add(&mut problem.dims, &second.dims)
        && add(&mut problem.constants, &second.constants)
        && add(&mut problem.flags, &second.flags)
        && add(&mut problem.dtypes, &second.dtypes);
    agree.then_some(problem)
}

/// Adds values under their names; false where one has another value already.
fn add<V: Clone + PartialEq>(to: &mut BTreeMap<String, V>, from: &BTreeMap<String, V>) -> bool {
    from.iter().all(|(name, value)| to.entry(name.clone()).or_insert_with(|| value.clone()) == value)
}

/// Bytes that the hungriest launch needs besides the graph's tensors.
fn workspace_bytes(segments: &[Segment], options: &ExecutorOptions) -> Result<WorkspaceBytes, PlanError> {
    let mut most = WorkspaceBytes::default();
    for segment in segments {
        let n = row_count(segment.rows, options.max_rows, options.max_logit_rows);
        for launch in segment.buckets.iter().flat_map(|bucket| &bucket.launches) {
            most = most.max(WorkspaceBytes::of(&launch.kernel.rendered.workspace, &scalars(n, &launch.scalars))?);
        }
    }
    Ok(most)
}
