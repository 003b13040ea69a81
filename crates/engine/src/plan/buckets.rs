//! The buckets of all segments, with their kernels: covers plan the launches, and all kernels are loaded at once.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use super::cover::{Candidates, Cover};
use super::decisions::Decisions;
use super::error::PlanError;
use super::overruled::Overruled;
use super::segment::{Bucket, PlannedLaunch, Segment};
use super::streaming::LEAST_ROWS;
use crate::graph::placement::Place;
use crate::graph::{Graph, Rows, StepLimits, StepShape};
use hint::chain;
use kernel::choice::{Chooser, KernelRequest, NoKernel};
use kernel::object::store::{Progress, StoreError};
use kernel::pipeline::warn_once;
use kernel::pipeline::{LoadedKernel, Pipeline, PipelineError};
use kernel::step::StepKind;
use kernel::template::Problem;

/// A segment before its kernels are loaded.
pub(super) struct PlannedSegment {
    /// Its nodes in the graph.
    pub(crate) nodes: Range<usize>,
    pub(crate) place: Place,
    pub(crate) rows: Rows,
    pub(crate) buckets: Vec<PlannedBucket>,
}

/// What a bucket is to launch.
pub(super) struct PlannedBucket {
    pub(crate) step: StepKind,
    pub(crate) first_row_count: usize,
    pub(crate) last_row_count: usize,
    pub(crate) covers: Vec<Cover>,
}

/// Chooses and loads the kernels of all buckets of all segments of a place at once. Own templates that a tuning row
/// overrules are one warning.
pub(super) fn load_all(
    graph: &Graph,
    candidates: &[Candidates],
    pipeline: &Pipeline,
    limits: StepLimits,
    progress: &dyn Progress,
) -> Result<Vec<Segment>, PlanError> {
    let chooser = pipeline.chooser();
    let serve = |wanted: &[KernelRequest]| {
        let rankings = chooser.rank_all(wanted).map_err(NoKernel::<PipelineError>::from)?;
        let kernels = pipeline.load_ranked(&rankings, progress)?;
        Ok((rankings, kernels))
    };
    let (planned, (rankings, kernels)) = served(graph, candidates, chooser, limits, serve)?;
    if chooser.library().has_own_templates() {
        let overruled = Overruled::all(graph, chooser, &Decisions::from_planned(&planned, rankings));
        if let Some(warning) = Overruled::warning(&overruled, chooser.target()) {
            warn_once(&warning);
        }
    }
    Ok(segments(planned, kernels))
}

/// All segments as planned, with what `serve` gives for what they want. A run of nodes that it refuses is done node by
/// node, with a warning.
pub(super) fn served<T, E: Error + 'static>(
    graph: &Graph,
    candidates: &[Candidates],
    chooser: &Chooser,
    limits: StepLimits,
    serve: impl Fn(&[KernelRequest]) -> Result<T, NoKernel<E>>,
) -> Result<(Vec<PlannedSegment>, T), E> {
    let mut refused = Vec::new();
    loop {
        let planned: Vec<PlannedSegment> =
            candidates.iter().map(|segment| plan(graph, segment, chooser, limits, &refused)).collect();
        let wanted: Vec<KernelRequest> =
            planned.iter().flat_map(|segment| &segment.buckets).flat_map(PlannedBucket::requests).collect();
        match serve(&wanted) {
            Ok(served) => return Ok((planned, served)),
            Err(NoKernel { problem, source }) if problem.ops.len() > 1 && !is_missing(&source) => {
                tracing::warn!("`{}` are not fused: {}", problem.ops.join("+"), chain(&source));
                refused.push(*problem);
            }
            Err(NoKernel { source, .. }) => return Err(source),
        }
    }
}

/// Whether nothing is to be compiled, and something is missing: node by node there would be more.
fn is_missing(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(PipelineError::Store(StoreError::Missing(_))))
}

/// The buckets of both kinds of steps, each up to the next one's beginning; where weights are streamed, of steps that
/// take in prompts, and have enough rows.
fn plan(
    graph: &Graph,
    segment: &Candidates,
    chooser: &Chooser,
    limits: StepLimits,
    refused: &[Problem],
) -> PlannedSegment {
    let first = &graph.nodes[segment.range.start];
    let (nodes, place, rows) = (segment.range.clone(), segment.place, first.rows);
    let mut buckets = Vec::new();
    for step in StepKind::ALL {
        let (mut least, most) = (StepShape::smallest(step).most(rows), limits.largest(step).most(rows));
        if place == Place::Streamed {
            least = least.max(LEAST_ROWS);
            if step == StepKind::Decode || least > most {
                continue;
            }
        }
        let starts = segment.bucket_starts(chooser, step, &(least..=most));
        for (i, &first_row_count) in starts.iter().enumerate() {
            let last_row_count = starts.get(i + 1).map_or(most, |next| next - 1);
            let covers = segment.cover(chooser, first_row_count, step, refused);
            buckets.push(PlannedBucket { step, first_row_count, last_row_count, covers });
        }
    }
    PlannedSegment { nodes, place, rows, buckets }
}

impl PlannedBucket {
    /// What it needs, in the order of its covers.
    fn requests(&self) -> impl Iterator<Item = KernelRequest> {
        let (n_rows, step) = (self.first_row_count, self.step);
        self.covers.iter().map(move |cover| KernelRequest { problem: cover.problem.clone(), n_rows, step })
    }
}

/// Segments as planned and of the kernels that they wanted, in the same order.
fn segments(planned: Vec<PlannedSegment>, kernels: Vec<Arc<LoadedKernel>>) -> Vec<Segment> {
    let mut kernels = kernels.into_iter();
    let mut launch = |Cover { label, problem, args, scalars, .. }| {
        let kernel = kernels.next().expect("one for each");
        PlannedLaunch { label, problem, kernel, args, scalars }
    };
    let mut segments = Vec::new();
    for PlannedSegment { nodes, place, rows, buckets } in planned {
        let mut segment = Segment { nodes, place, rows, buckets: BTreeMap::new(), hand_over: None, streamed: None };
        for PlannedBucket { step, first_row_count, last_row_count, covers } in buckets {
            let launches = covers.into_iter().map(&mut launch).collect();
            let bucket = Bucket::new(first_row_count, last_row_count, launches);
            segment.buckets.entry(step).or_default().push(bucket);
        }
        segments.push(segment);
    }
    segments
}
