//! Every kernel that steps can use, for any number of rows: for bundles, without a device.

use std::cell::RefCell;

use super::buckets::served;
use super::cover;
use super::error::PlanError;
use super::weights;
use crate::graph::placement::Place;
use crate::graph::{Graph, StepLimits};
use kernel::ahead::TargetKernels;
use kernel::choice::{Chooser, KernelRequest, NoKernel};
use kernel::object::store::{Progress, Store};
use kernel::pipeline::PipelineError;
use model::checkpoint::Checkpoint;

/// No flag asks for steps of more rows, or for more sequences at a time.
const MOST_ROWS: usize = 65_536;

/// Adds those of what a graph has computed in a place.
pub(crate) fn add(
    kernels: &mut TargetKernels,
    graph: &Graph,
    place: Place,
    chooser: &Chooser,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), PlanError> {
    let limits = StepLimits { max_rows: MOST_ROWS, max_logit_rows: MOST_ROWS, max_decode_rows: MOST_ROWS };
    let candidates = cover::segments(graph, place, &chooser.fusions());
    let kernels = RefCell::new(kernels);
    let serve = |wanted: &[KernelRequest]| {
        let rankings = chooser.rank_all(wanted).map_err(NoKernel::<PipelineError>::from)?;
        kernels.borrow_mut().add(chooser, store, &rankings, progress)
    };
    served(graph, &candidates, chooser, limits, serve)?;
    Ok(())
}

/// Adds those that make the random weights of a checkpoint.
pub(crate) fn add_random_weights(
    kernels: &mut TargetKernels,
    graph: &Graph,
    checkpoint: &Checkpoint,
    chooser: &Chooser,
    store: &Store,
    progress: &dyn Progress,
) -> Result<(), PlanError> {
    let wanted = weights::requests(&weights::random_dtypes(graph, Place::Device, checkpoint)?);
    let ranked = chooser.rank_all(&wanted).map_err(NoKernel::<PipelineError>::from);
    let added = ranked.and_then(|rankings| kernels.add(chooser, store, &rankings, progress));
    Ok(added.map_err(|none| none.source)?)
}
