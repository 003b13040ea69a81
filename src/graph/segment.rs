//! Consecutive nodes that work on the same rows, as launches: for each bucket of row counts a list of kernels, and for each row
//! count that came up their grids and arguments.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpu::{Argument, BufferView, Kernel, Launch};

use super::plan::PlanError;
use super::workspace::{Workspace, WorkspaceBytes};
use super::{Rows, TensorId};
use crate::kernel::expression::ExpressionError;
use crate::kernel::launch::ArgSpec;
use crate::kernel::pipeline::LoadedKernel;

/// Launches for a part of every step.
pub(super) struct Segment {
    pub rows: Rows,
    /// In the order of their row counts; the first one begins at 1.
    pub buckets: Vec<Bucket>,
}

/// Launches for a range of row counts.
pub(super) struct Bucket {
    /// From here on; up to the next bucket's.
    pub first_row_count: usize,
    pub launches: Vec<PlannedLaunch>,
    /// Grids and arguments by row count, as they were needed.
    prepared: HashMap<usize, Vec<PreparedLaunch>>,
}

/// One kernel with its tensors, for any row count.
pub(super) struct PlannedLaunch {
    pub label: String,
    pub kernel: Arc<LoadedKernel>,
    pub args: BTreeMap<String, TensorId>,
    pub scalars: BTreeMap<String, u32>,
}

/// One kernel with its grid and arguments, for one row count.
pub(super) struct PreparedLaunch {
    grid: [u32; 3],
    scratch_bytes: usize,
    pub args: Vec<Argument>,
}

/// Row counts for which prepared launches are kept, per bucket: decoding uses few, prefill any.
const MAX_PREPARED: usize = 64;

impl Segment {
    /// The bucket of a row count.
    pub fn bucket(&self, n: usize) -> &Bucket {
        &self.buckets[self.bucket_index(n)]
    }

    /// The same, to prepare launches.
    pub fn bucket_mut(&mut self, n: usize) -> &mut Bucket {
        let index = self.bucket_index(n);
        &mut self.buckets[index]
    }

    fn bucket_index(&self, n: usize) -> usize {
        self.buckets.partition_point(|bucket| bucket.first_row_count <= n).saturating_sub(1)
    }
}

impl Bucket {
    /// Launches of which none is prepared.
    pub fn new(first_row_count: usize, launches: Vec<PlannedLaunch>) -> Self {
        Self { first_row_count, launches, prepared: HashMap::new() }
    }

    /// Works out grids and arguments for a row count that has not come up yet.
    pub fn prepare(&mut self, n: usize, memory: &[BufferView], workspace: &Workspace) -> Result<(), PlanError> {
        if n == 0 || self.prepared.contains_key(&n) {
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

    /// Launches for a row count that was prepared; none for no rows.
    pub fn prepared(&self, n: usize) -> impl Iterator<Item = (&PlannedLaunch, &PreparedLaunch)> {
        self.launches.iter().zip(self.prepared.get(&n).map_or(&[][..], Vec::as_slice))
    }
}

impl PlannedLaunch {
    /// The device's kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel.kernel
    }

    /// Bytes that it needs for `n` rows besides the graph's tensors.
    pub fn workspace_bytes(&self, n: usize) -> Result<WorkspaceBytes, ExpressionError> {
        WorkspaceBytes::of(&self.kernel.rendered.workspace, &scalars(n, &self.scalars))
    }

    fn prepare(&self, n: usize, memory: &[BufferView], workspace: &Workspace) -> Result<PreparedLaunch, PlanError> {
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
    /// What a driver is told.
    pub fn launch(&self) -> Launch<'_> {
        Launch { grid: self.grid, scratch_bytes: self.scratch_bytes, args: &self.args }
    }
}

/// The scalar arguments of a node for so many rows.
pub(super) fn scalars(n: usize, own: &BTreeMap<String, u32>) -> BTreeMap<String, u64> {
    let own = own.iter().map(|(name, &value)| (name.clone(), value.into()));
    own.chain([("n_tokens".to_string(), n as u64)]).collect()
}
