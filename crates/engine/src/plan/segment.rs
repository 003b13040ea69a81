//! Launches of a segment (consecutive nodes that are computed in one place and work on the same rows): a list of
//! kernels for each bucket of row counts, and their grids and arguments for each row count that occurred.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use gpu::{Argument, BufferView, Kernel, Launch};

use super::error::PlanError;
use super::hand_over::HandOver;
use super::site::Sites;
use super::streaming::Streamed;
use super::workspace::{Workspace, WorkspaceBytes};
use crate::graph::placement::Place;
use crate::graph::{Graph, Rows, StepShape, TensorId};
use expression::ExpressionError;
use kernel::pipeline::LoadedKernel;
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::template::launch::ArgSpec;

/// Prepared steps and where everything is, for those who only look.
pub(super) struct Steps<'a> {
    pub(crate) sites: &'a Sites,
    pub(crate) graph: &'a Graph,
    pub(crate) segments: &'a [Segment],
}

/// Launches for a part of every step.
pub(super) struct Segment {
    /// Its nodes in the graph.
    pub(crate) nodes: Range<usize>,
    pub(crate) place: Place,
    pub(crate) rows: Rows,
    /// For each kind of step in the order of their row counts; the first one begins at the fewest rows that occur.
    pub(crate) buckets: BTreeMap<StepKind, Vec<Bucket>>,
    /// What crosses before and after it, if it is the processor's.
    pub(crate) hand_over: Option<HandOver>,
    /// What the device does in its place in some steps, if it is the processor's.
    pub(crate) streamed: Option<Box<Streamed>>,
}

/// Launches for a range of row counts.
pub(super) struct Bucket {
    /// From here on; up to the next bucket's.
    pub(crate) first_row_count: usize,
    /// Most rows that it is asked for.
    pub(crate) last_row_count: usize,
    pub(crate) launches: Vec<PlannedLaunch>,
    /// Grids and arguments by row count, as they were needed.
    prepared: HashMap<usize, Vec<PreparedLaunch>>,
}

/// One kernel with its tensors, for any row count.
pub(super) struct PlannedLaunch {
    pub(crate) label: String,
    pub(crate) problem: Problem,
    pub(crate) kernel: Arc<LoadedKernel>,
    pub(crate) args: BTreeMap<String, TensorId>,
    pub(crate) scalars: BTreeMap<String, u32>,
}

/// One kernel with its grid and arguments, for one row count.
pub(super) struct PreparedLaunch {
    grid: [u32; 3],
    scratch_bytes: usize,
    pub(crate) args: Vec<Argument>,
}

/// Row counts for which prepared launches are kept, per bucket: decoding uses few, prefill any.
pub(super) const MAX_PREPARED: usize = 64;

impl Segment {
    /// What the device does of a step in the processor's place, if it does.
    pub(crate) fn streamed_in(&self, shape: StepShape) -> Option<&Streamed> {
        self.streamed.as_deref().filter(|streamed| streamed.is_for(shape.kind, shape.count(self.rows)))
    }

    /// The bucket of a step; none if it has no rows for this segment.
    pub(crate) fn bucket(&self, shape: StepShape) -> Option<&Bucket> {
        self.bucket_of(shape.kind, shape.count(self.rows))
    }

    /// The bucket of this many rows in a step of this kind; none for no rows.
    fn bucket_of(&self, kind: StepKind, n: usize) -> Option<&Bucket> {
        let buckets = self.buckets.get(&kind).filter(|_| n > 0)?;
        buckets.get(bucket_index(buckets, n))
    }

    /// Prepares the launches for this many rows in a step of this kind.
    pub(crate) fn prepare(&mut self, kind: StepKind, n: usize, sites: &Sites) -> Result<(), PlanError> {
        if let Some(streamed) = self.streamed.as_mut().filter(|streamed| streamed.is_for(kind, n)) {
            return streamed.segment.prepare(kind, n, sites);
        }
        let Some(buckets) = self.buckets.get_mut(&kind).filter(|_| n > 0) else { return Ok(()) };
        let index = bucket_index(buckets, n);
        let site = sites.of(self.place);
        buckets[index].prepare(n, &site.memory, &site.workspace)?;
        self.hand_over.as_mut().map_or(Ok(()), |hand_over| hand_over.prepare(n, sites))
    }

    /// The launches of a step that was prepared; none for no rows.
    pub(crate) fn prepared(&self, shape: StepShape) -> impl Iterator<Item = (&PlannedLaunch, &PreparedLaunch)> {
        self.prepared_of(shape.kind, shape.count(self.rows))
    }

    /// Those for this many rows in a step of this kind.
    pub(crate) fn prepared_of(
        &self,
        kind: StepKind,
        n: usize,
    ) -> impl Iterator<Item = (&PlannedLaunch, &PreparedLaunch)> {
        self.bucket_of(kind, n).into_iter().flat_map(move |bucket| bucket.prepared(n))
    }

    /// All buckets of all kinds of steps, wherever.
    pub(crate) fn all_buckets(&self) -> impl Iterator<Item = &Bucket> {
        let streamed = self.streamed.iter().flat_map(|streamed| streamed.segment.buckets.values().flatten());
        self.buckets.values().flatten().chain(streamed)
    }
}

fn bucket_index(buckets: &[Bucket], n: usize) -> usize {
    buckets.partition_point(|bucket| bucket.first_row_count <= n).saturating_sub(1)
}

impl Bucket {
    /// Launches of which none is prepared.
    pub(crate) fn new(first_row_count: usize, last_row_count: usize, launches: Vec<PlannedLaunch>) -> Self {
        Self { first_row_count, last_row_count, launches, prepared: HashMap::new() }
    }

    /// Bytes that the hungriest of its launches needs besides the graph's tensors.
    pub(crate) fn workspace_bytes(&self) -> Result<WorkspaceBytes, ExpressionError> {
        let of = |launch: &PlannedLaunch| {
            WorkspaceBytes::of_launch(&launch.kernel.rendered.workspace, &scalars(self.last_row_count, &launch.scalars))
        };
        self.launches.iter().try_fold(WorkspaceBytes::default(), |most, launch| Ok(most.max(of(launch)?)))
    }

    /// Works out grids and arguments for a row count that has not come up yet.
    pub(crate) fn prepare(&mut self, n: usize, memory: &[BufferView], workspace: &Workspace) -> Result<(), PlanError> {
        if self.prepared.contains_key(&n) {
            return Ok(());
        }
        let prepared = self.launches.iter().map(|launch| launch.prepare(n, memory, workspace));
        let prepared = prepared.collect::<Result<_, _>>()?;
        if self.prepared.len() >= MAX_PREPARED {
            self.prepared.clear();
        }
        self.prepared.insert(n, prepared);
        Ok(())
    }

    fn prepared(&self, n: usize) -> impl Iterator<Item = (&PlannedLaunch, &PreparedLaunch)> {
        self.launches.iter().zip(self.prepared.get(&n).map_or(&[][..], Vec::as_slice))
    }
}

impl PlannedLaunch {
    /// The device's kernel.
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel.kernel
    }

    /// Works out grid and arguments for this many rows.
    pub(crate) fn prepare(
        &self,
        n: usize,
        memory: &[BufferView],
        workspace: &Workspace,
    ) -> Result<PreparedLaunch, PlanError> {
        let (rendered, scalars) = (&self.kernel.rendered, scalars(n, &self.scalars));
        let mut workspace = workspace.for_launch();
        let argument = |spec: &ArgSpec| match (spec.is_scalar(), self.args.get(&spec.name)) {
            (true, _) => match scalars.get(&spec.name) {
                Some(&value) => Ok(Argument::U32(value as u32)),
                None => Err(PlanError::NoScalar { label: self.label.clone(), name: spec.name.clone() }),
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
}

impl PreparedLaunch {
    /// The launch for a driver.
    pub(crate) fn launch(&self) -> Launch<'_> {
        Launch { grid: self.grid, scratch_bytes: self.scratch_bytes, args: &self.args }
    }
}

/// The scalar arguments of a node for this many rows.
pub(super) fn scalars(n: usize, own: &BTreeMap<String, u32>) -> BTreeMap<String, u64> {
    let own = own.iter().map(|(name, &value)| (name.clone(), value.into()));
    own.chain([("n_tokens".to_string(), n as u64)]).collect()
}
