//! The buckets of all segments, with their kernels: what is to be launched is planned by the covers, and loaded at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cover::{Candidates, Cover};
use super::error::PlanError;
use super::options::ExecutorOptions;
use super::segment::{Bucket, PlannedLaunch, Segment};
use super::{Graph, Rows, StepShape};
use crate::object::store::Progress;
use crate::pipeline::{KernelRequest, LoadedKernel, NoKernel, Pipeline, with_causes};
use crate::template::Problem;
use crate::tuning::table::StepKind;

/// A segment before its kernels are chosen.
struct PlannedSegment {
    rows: Rows,
    buckets: Vec<PlannedBucket>,
}

/// What a bucket is to launch.
struct PlannedBucket {
    step: StepKind,
    first_row_count: usize,
    last_row_count: usize,
    covers: Vec<Cover>,
}

/// Chooses and loads the kernels of all buckets of all segments at once. A run of nodes for which no kernel can be had is done
/// node by node, with a warning.
pub(super) fn load_all(
    graph: &Graph,
    candidates: &[Candidates],
    pipeline: &Pipeline,
    options: &ExecutorOptions,
    progress: &dyn Progress,
) -> Result<Vec<Segment>, PlanError> {
    let mut refused = Vec::new();
    loop {
        let planned: Vec<PlannedSegment> =
            candidates.iter().map(|segment| plan(graph, segment, pipeline, options, &refused)).collect();
        let requests: Vec<KernelRequest> =
            planned.iter().flat_map(|segment| &segment.buckets).flat_map(PlannedBucket::requests).collect();
        match pipeline.load_all(&requests, progress) {
            Ok(kernels) => return Ok(segments(planned, kernels)),
            Err(NoKernel { problem, source }) if problem.ops.len() > 1 => {
                tracing::warn!("`{}` are not fused: {}", problem.ops.join("+"), with_causes(&source));
                refused.push(*problem);
            }
            Err(NoKernel { source, .. }) => return Err(source.into()),
        }
    }
}

/// The buckets of both kinds of steps, each up to the next one's beginning.
fn plan(
    graph: &Graph,
    segment: &Candidates,
    pipeline: &Pipeline,
    options: &ExecutorOptions,
    refused: &[Problem],
) -> PlannedSegment {
    let rows = graph.nodes[segment.range.start].rows;
    let mut buckets = Vec::new();
    for step in StepKind::ALL {
        let (least, most) = (StepShape::smallest(step).count(rows), options.largest(step).count(rows));
        let starts = segment.bucket_starts(pipeline, step, &(least..=most));
        for (i, &first_row_count) in starts.iter().enumerate() {
            let last_row_count = starts.get(i + 1).map_or(most, |next| next - 1);
            let covers = segment.cover(pipeline, first_row_count, step, refused);
            buckets.push(PlannedBucket { step, first_row_count, last_row_count, covers });
        }
    }
    PlannedSegment { rows, buckets }
}

impl PlannedBucket {
    /// What it needs, in the order of its covers.
    fn requests(&self) -> impl Iterator<Item = KernelRequest> {
        let (n_rows, step) = (self.first_row_count, self.step);
        self.covers.iter().map(move |cover| KernelRequest { problem: cover.problem.clone(), n_rows, step })
    }
}

/// Segments of planned and of the kernels that they wanted, in the same order.
fn segments(planned: Vec<PlannedSegment>, kernels: Vec<Arc<LoadedKernel>>) -> Vec<Segment> {
    let mut kernels = kernels.into_iter();
    let mut launch = |Cover { label, problem, args, scalars, .. }| {
        let kernel = kernels.next().expect("one for each");
        PlannedLaunch { label, problem, kernel, args, scalars }
    };
    let mut segments = Vec::new();
    for PlannedSegment { rows, buckets } in planned {
        let mut segment = Segment { rows, buckets: BTreeMap::new() };
        for PlannedBucket { step, first_row_count, last_row_count, covers } in buckets {
            let launches = covers.into_iter().map(&mut launch).collect();
            let bucket = Bucket::new(first_row_count, last_row_count, launches);
            segment.buckets.entry(step).or_default().push(bucket);
        }
        segments.push(segment);
    }
    segments
}
