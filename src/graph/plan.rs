//! A graph, chosen kernels and memory, ready to run step after step.
//!
//! The nodes fall into segments that work on the same rows. For each segment there is one list of launches per
//! bucket of row counts: the tuning tables may prefer other templates, and other fusions, for one row than for
//! many. All buckets share the memory, which is allocated once. A step picks a bucket per segment and launches.

use std::collections::{BTreeMap, HashMap};

use gpu::{Argument, BufferView, GpuError, Kernel, Launch};

use super::arena::{self, Lifetime};
use super::cover::{self, Cover};
use super::profile::Profile;
use super::replay::Replays;
use super::segment::{Bucket, PlannedLaunch, PreparedLaunch, Segment, scalars};
use super::workspace::{Workspace, WorkspaceBytes};
use super::{Graph, Rows, Storage};
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
    arena_bytes: usize,
    profile: Option<Profile>,
    replays: Replays,
}

impl Executor {
    /// Chooses and loads every kernel of every bucket, and allocates all memory.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        graph: Graph,
        checkpoint: &Checkpoint,
        pipeline: Pipeline,
        options: ExecutorOptions,
        progress: &dyn Progress,
    ) -> Result<Self, PlanError> {
        let externals = allocate_externals(&pipeline, &options.externals)?;
        let (memory, arena_bytes) = place_tensors(&graph, checkpoint, &pipeline, &externals, &options)?;
        let segments = plan_segments(&graph, &pipeline, &options, progress)?;
        let workspace_bytes = workspace_bytes(&segments, &options)?;
        let workspace = Workspace::new(pipeline.driver(), workspace_bytes)
            .map_err(|source| PlanError::Device { label: "workspace".into(), source })?;
        Ok(Self {
            pipeline,
            graph,
            memory,
            externals,
            workspace,
            segments,
            arena_bytes: arena_bytes + workspace_bytes.total(),
            profile: None,
            replays: Replays::default(),
        })
    }

    /// Where kernels came from.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Memory for activations and workspaces, in bytes.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
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
            let n = row_count(self.segments[i].rows, n_rows, n_logit_rows);
            self.segments[i].bucket_mut(n).prepare(n, &self.memory, &self.workspace)?;
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
        let counted = self.segments.iter().map(|segment| (segment, row_count(segment.rows, n_rows, n_logit_rows)));
        let all = counted.flat_map(|(segment, n)| segment.bucket(n).prepared(n));
        all.map(|(planned, prepared)| (planned.kernel(), prepared.launch())).collect()
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
            for (planned, prepared) in segment.bucket(n).prepared(n) {
                let (driver, kernel, launch) = (self.pipeline.driver(), planned.kernel(), prepared.launch());
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
}

fn row_count(rows: Rows, n_rows: usize, n_logit_rows: usize) -> usize {
    match rows {
        Rows::All => n_rows,
        Rows::Logits => n_logit_rows,
    }
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

/// Finds a place for every tensor. Gives the arena's length too.
fn place_tensors(
    graph: &Graph,
    checkpoint: &Checkpoint,
    pipeline: &Pipeline,
    externals: &HashMap<String, BufferView>,
    options: &ExecutorOptions,
) -> Result<(Vec<BufferView>, usize), PlanError> {
    let lifetimes = lifetimes(graph, pipeline, options)?;
    let ids: Vec<usize> = lifetimes.keys().copied().collect();
    let (offsets, arena_bytes) = arena::place(&lifetimes.values().copied().collect::<Vec<_>>());
    let arena = allocate(pipeline, "arena", arena_bytes)?;
    let in_arena = |i: usize| {
        let at = ids.binary_search(&i).expect("every activation is written by a node");
        arena.slice(offsets[at], lifetimes[&i].len_bytes).expect("the planner stays inside the arena")
    };
    let upload = |name: &String| {
        let tensor = checkpoint.tensors.get(name).ok_or_else(|| PlanError::NoTensor { name: name.clone() })?;
        let buffer = pipeline.driver().upload(tensor.bytes.clone());
        buffer.map(|buffer| buffer.view()).map_err(|source| PlanError::Device { label: name.clone(), source })
    };
    let memory = graph.tensors.iter().enumerate().map(|(i, tensor)| match &tensor.storage {
        Storage::Weight(name) => upload(name),
        Storage::External(name) => Ok(externals[name].clone()),
        Storage::Arena => Ok(in_arena(i)),
    });
    Ok((memory.collect::<Result<_, _>>()?, arena_bytes))
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
    for range in cover::segments(graph) {
        let rows = graph.nodes[range.start].rows;
        let most = row_count(rows, options.max_rows, options.max_logit_rows);
        for first in cover::bucket_starts(graph, pipeline, range.clone(), most) {
            drafts.push((rows, first, cover::cover(graph, pipeline, range.clone(), first)));
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
        let bucket = Bucket::new(first_row_count, launches);
        // The smallest bucket of a segment comes first and opens it.
        if first_row_count == 1 {
            segments.push(Segment { rows, buckets: vec![bucket] });
        } else {
            segments.last_mut().expect("opened by its first bucket").buckets.push(bucket);
        }
    }
    Ok(segments)
}

/// Bytes that the hungriest launch needs besides the graph's tensors.
fn workspace_bytes(segments: &[Segment], options: &ExecutorOptions) -> Result<WorkspaceBytes, PlanError> {
    let mut most = WorkspaceBytes::default();
    for segment in segments {
        let n = row_count(segment.rows, options.max_rows, options.max_logit_rows);
        for launch in segment.buckets.iter().flat_map(|bucket| &bucket.launches) {
            most = most.max(launch.workspace_bytes(n)?);
        }
    }
    Ok(most)
}
