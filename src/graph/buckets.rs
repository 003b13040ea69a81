//! The buckets of all segments, with their kernels: what is to be launched is drafted by the covers, and loaded at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cover::{Candidates, Cover};
use super::plan::{ExecutorOptions, PlanError};
use super::segment::{Bucket, PlannedLaunch, Segment};
use super::{Graph, Rows, StepShape};
use crate::object::store::Progress;
use crate::pipeline::{LoadedKernel, Pipeline, Unserved, Wanted, with_causes};
use crate::template::Problem;
use crate::tuning::table::StepKind;

/// A segment before its kernels are chosen.
struct Draft {
    rows: Rows,
    buckets: Vec<DraftBucket>,
}

/// What a bucket is to launch.
struct DraftBucket {
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
        let drafts: Vec<Draft> =
            candidates.iter().map(|segment| draft(graph, segment, pipeline, options, &refused)).collect();
        let wanted: Vec<Wanted> =
            drafts.iter().flat_map(|draft| &draft.buckets).flat_map(DraftBucket::wanted).collect();
        match pipeline.load_all(&wanted, progress) {
            Ok(kernels) => return Ok(segments(drafts, kernels)),
            Err(Unserved { problem, source }) if problem.ops.len() > 1 => {
                tracing::warn!("`{}` are not fused: {}", problem.ops.join("+"), with_causes(&source));
                refused.push(*problem);
            }
            Err(Unserved { source, .. }) => return Err(source.into()),
        }
    }
}

/// The buckets of both kinds of steps, each up to the next one's beginning.
fn draft(
    graph: &Graph,
    segment: &Candidates,
    pipeline: &Pipeline,
    options: &ExecutorOptions,
    refused: &[Problem],
) -> Draft {
    let rows = graph.nodes[segment.range.start].rows;
    let mut buckets = Vec::new();
    for step in StepKind::ALL {
        let (least, most) = (StepShape::smallest(step).count(rows), options.largest(step).count(rows));
        let starts = segment.bucket_starts(pipeline, step, &(least..=most));
        for (i, &first_row_count) in starts.iter().enumerate() {
            let last_row_count = starts.get(i + 1).map_or(most, |next| next - 1);
            let covers = segment.cover(pipeline, first_row_count, step, refused);
            buckets.push(DraftBucket { step, first_row_count, last_row_count, covers });
        }
    }
    Draft { rows, buckets }
}

impl DraftBucket {
    /// What it needs, in the order of its covers.
    fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let (n_rows, step) = (self.first_row_count, self.step);
        self.covers.iter().map(move |cover| Wanted { problem: cover.problem.clone(), n_rows, step })
    }
}

/// Segments of drafts and of the kernels that they wanted, in the same order.
fn segments(drafts: Vec<Draft>, kernels: Vec<Arc<LoadedKernel>>) -> Vec<Segment> {
    let mut kernels = kernels.into_iter();
    let mut planned = |Cover { label, problem, args, scalars, .. }| {
        let kernel = kernels.next().expect("one for each");
        PlannedLaunch { label, problem, kernel, args, scalars }
    };
    let mut segments = Vec::new();
    for Draft { rows, buckets } in drafts {
        let mut segment = Segment { rows, buckets: BTreeMap::new() };
        for DraftBucket { step, first_row_count, last_row_count, covers } in buckets {
            let launches = covers.into_iter().map(&mut planned).collect();
            let bucket = Bucket::new(first_row_count, last_row_count, launches);
            segment.buckets.entry(step).or_default().push(bucket);
        }
        segments.push(segment);
    }
    segments
}
