//! A place of an executor during loading: what is computed there, by which kernels, in which memory.

use std::collections::HashMap;
use std::sync::Arc;

use gpu::BufferView;

use super::buckets;
use super::cover::{self, Candidates};
use super::error::PlanError;
use super::lifetimes::{ArenaLayout, lifetimes};
use super::memory::{HostPlan, MemoryPlan};
use super::options::ExecutorOptions;
use super::segment::Segment;
use super::site::Site;
use super::streaming::Slots;
use super::weights::Weights;
use super::workspace::{Workspace, WorkspaceBytes};
use crate::graph::placement::Place;
use crate::graph::{Graph, Role, Storage};
use kernel::object::store::Progress;
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;

/// The inputs of loading, for all places.
pub(super) struct Work<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) options: &'a ExecutorOptions,
    /// Where on the device the processor's weights go, if they go there.
    pub(crate) slots: Option<Slots>,
}

/// The state of loading in a place.
pub(super) struct Loading<'a> {
    place: Place,
    pipeline: &'a Arc<Pipeline>,
    candidates: Vec<Candidates>,
    /// Where activations are.
    pub(crate) arena: ArenaLayout,
    /// What is there once kernels are.
    workspace: WorkspaceBytes,
    segments: Vec<Segment>,
    weights: Option<Weights>,
}

impl<'a> Work<'a> {
    /// Looks at what is to be done in a place; nothing is loaded yet.
    pub(crate) fn at(&self, place: Place, pipeline: &'a Arc<Pipeline>) -> Result<Loading<'a>, PlanError> {
        let fusions = pipeline.chooser().fusions();
        let mut candidates = cover::segments(self.graph, place, &fusions);
        if self.slots.is_some() && place == Place::Device {
            candidates.extend(cover::segments(self.graph, Place::Streamed, &fusions));
        }
        let mut lifetimes = lifetimes(self.graph, &candidates, pipeline, self.options)?;
        let is_used = self.used_at(place);
        lifetimes.retain(|&id, _| is_used[id]);
        Ok(Loading {
            place,
            pipeline,
            candidates,
            arena: ArenaLayout::new(&lifetimes),
            workspace: WorkspaceBytes::default(),
            segments: Vec::new(),
            weights: None,
        })
    }

    /// Whether a launch in a place uses a tensor, for each tensor.
    fn used_at(&self, place: Place) -> Vec<bool> {
        let own = self.graph.used_at(place);
        if self.slots.is_none() || place != Place::Device {
            return own;
        }
        own.into_iter().zip(self.graph.used_at(Place::Host)).map(|(own, host)| own || host).collect()
    }

    /// Whether a weight stays in main memory, where the device reads it, for each tensor.
    fn zero_copies(&self) -> Vec<bool> {
        if self.options.zero_copy { self.graph.looked_up() } else { vec![false; self.graph.tensors.len()] }
    }

    /// What everything takes, as far as it is known.
    pub(crate) fn memory_plan(
        &self,
        device: &Loading<'_>,
        host: Option<&Loading<'_>>,
    ) -> Result<MemoryPlan, PlanError> {
        let failed = |source| PlanError::Device { label: "memory plan".into(), source };
        let plan =
            MemoryPlan::new(self.graph, &self.zero_copies(), self.checkpoint, device.pipeline).map_err(failed)?;
        let own = [Role::Input, Role::ChangeInput, Role::Kept].into_iter().flat_map(|role| self.graph.externals(role));
        let externals: usize = own.map(|(_, len_bytes)| len_bytes).sum();
        let of_host = |host: &Loading<'_>| -> Result<HostPlan, PlanError> {
            let plan = HostPlan::new(self.graph, self.checkpoint, host.pipeline.driver()).map_err(failed)?;
            Ok(HostPlan { activations: host.arena.len_bytes + host.workspace.total(), ..plan })
        };
        Ok(MemoryPlan {
            kv_cache: self.options.kv_bytes,
            snapshots: self.options.snapshot_bytes,
            activations: device.arena.len_bytes + externals - self.options.kv_bytes,
            workspace: device.workspace.total(),
            streaming: self.slots.as_ref().map_or(0, Slots::total_bytes),
            host: host.map(of_host).transpose()?,
            ..plan
        })
    }
}

impl Loading<'_> {
    /// Chooses and loads kernels.
    pub(crate) fn load(&mut self, work: &Work<'_>, progress: &dyn Progress) -> Result<(), PlanError> {
        let limits = work.options.limits;
        self.segments = buckets::load_all(work.graph, &self.candidates, self.pipeline, limits, progress)?;
        self.weights = Some(Weights::new(work.graph, self.place, work.checkpoint, self.pipeline, progress)?);
        self.workspace = workspace_bytes(&self.segments)?;
        Ok(())
    }

    /// Finds a place for every tensor that is used here, activations in `arena`, and has the weights made or copied.
    pub(crate) fn placed(
        self,
        work: &Work<'_>,
        arena: &BufferView,
        externals: &HashMap<String, BufferView>,
    ) -> Result<(Vec<Segment>, Site), PlanError> {
        let driver = self.pipeline.driver();
        let failed = |label: &str| {
            let label = label.to_owned();
            |source| PlanError::Device { label, source }
        };
        let nothing = driver.allocate(0).map_err(failed("nothing"))?.view();
        let in_arena = |i: usize| {
            let (offset, len_bytes) = self.arena.ranges[&i];
            arena.slice(offset, len_bytes).expect("the planner stays inside the arena")
        };
        let weights = self.weights.as_ref().expect("kernels were loaded");
        let (is_used, zero_copies) = (work.used_at(self.place), work.zero_copies());
        let slots = work.slots.as_ref().filter(|_| self.place == Place::Device);
        let slot_memory =
            slots.map(|slots| slots.allocate(driver)).transpose().map_err(failed("experts of a layer"))?;
        let place = |(i, tensor): (usize, &crate::graph::Tensor)| match &tensor.storage {
            _ if !is_used[i] => Ok(nothing.clone()),
            Storage::Weight(_) if slots.is_some_and(|slots| slots.has(i)) => {
                let view = slots.zip(slot_memory.as_ref()).and_then(|(slots, memory)| slots.view(i, memory));
                Ok(view.expect("it has"))
            }
            Storage::Weight(name) => weights.place(work.checkpoint, name, zero_copies[i], driver),
            Storage::External(name) => Ok(externals[name].clone()),
            Storage::Arena => Ok(in_arena(i)),
        };
        let memory = work.graph.tensors.iter().enumerate().map(place).collect::<Result<_, _>>()?;
        let workspace = Workspace::new(driver, self.workspace).map_err(failed("workspace"))?;
        Ok((self.segments, Site { pipeline: Arc::clone(self.pipeline), memory, workspace }))
    }
}

/// Bytes that the hungriest launch needs besides the graph's tensors.
fn workspace_bytes(segments: &[Segment]) -> Result<WorkspaceBytes, PlanError> {
    let mut buckets = segments.iter().flat_map(Segment::all_buckets);
    buckets.try_fold(WorkspaceBytes::default(), |most, bucket| Ok(most.max(bucket.workspace_bytes()?)))
}
