//! The buckets of all segments, with their kernels: what is to be launched is drafted by the covers, and loaded at once.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use super::cover::{Candidates, Cover};
use super::decisions::Decisions;
use super::overruled::Overruled;
use super::plan::PlanError;
use super::segment::{Bucket, PlannedLaunch, Segment};
use super::{Graph, Rows, StepLimits, StepShape};
use crate::kernel::Problem;
use crate::kernel::choice::{Chooser, Unserved, Wanted};
use crate::kernel::pipeline::{LoadedKernel, Pipeline, PipelineError, with_causes};
use crate::kernel::store::Progress;
use crate::tuning::table::StepKind;

/// A segment before its kernels are loaded.
pub(super) struct Draft {
    pub rows: Rows,
    pub buckets: Vec<DraftBucket>,
}

/// What a bucket is to launch.
pub(super) struct DraftBucket {
    pub step: StepKind,
    pub first_row_count: usize,
    pub last_row_count: usize,
    pub covers: Vec<Cover>,
}

/// Chooses and loads the kernels of all buckets of all segments at once. Own templates that a tuning row overrules are
/// one warning.
pub(super) fn load_all(
    graph: &Graph,
    candidates: &[Candidates],
    pipeline: &Pipeline,
    limits: StepLimits,
    progress: &dyn Progress,
) -> Result<Vec<Segment>, PlanError> {
    let chooser = pipeline.chooser();
    let serve = |wanted: &[Wanted]| {
        let rankings = chooser.rank_all(wanted).map_err(Unserved::<PipelineError>::from)?;
        let kernels = pipeline.load_ranked(&rankings, progress)?;
        Ok((rankings, kernels))
    };
    let (drafts, (rankings, kernels)) = served(graph, candidates, chooser, limits, serve)?;
    if chooser.library().has_own_templates() {
        let overruled = Overruled::all(graph, chooser, &Decisions::of(&drafts, rankings));
        if let Some(warning) = Overruled::warning(&overruled, chooser.target()) {
            tracing::warn!("{warning}");
        }
    }
    Ok(segments(drafts, kernels))
}

/// Drafts of all segments, with what `serve` gives for what they want. A run of nodes that it refuses is done node by
/// node, with a warning.
pub(super) fn served<T, E: Error + 'static>(
    graph: &Graph,
    candidates: &[Candidates],
    chooser: &Chooser,
    limits: StepLimits,
    serve: impl Fn(&[Wanted]) -> Result<T, Unserved<E>>,
) -> Result<(Vec<Draft>, T), E> {
    let mut refused = Vec::new();
    loop {
        let drafts: Vec<Draft> =
            candidates.iter().map(|segment| draft(graph, segment, chooser, limits, &refused)).collect();
        let wanted: Vec<Wanted> =
            drafts.iter().flat_map(|draft| &draft.buckets).flat_map(DraftBucket::wanted).collect();
        match serve(&wanted) {
            Ok(served) => return Ok((drafts, served)),
            Err(Unserved { problem, source }) if problem.ops.len() > 1 => {
                tracing::warn!("`{}` are not fused: {}", problem.ops.join("+"), with_causes(&source));
                refused.push(*problem);
            }
            Err(Unserved { source, .. }) => return Err(source),
        }
    }
}

/// The buckets of both kinds of steps, each up to the next one's beginning.
fn draft(graph: &Graph, segment: &Candidates, chooser: &Chooser, limits: StepLimits, refused: &[Problem]) -> Draft {
    let rows = graph.nodes[segment.range.start].rows;
    let mut buckets = Vec::new();
    for step in StepKind::ALL {
        let (least, most) = (StepShape::smallest(step).count(rows), limits.largest(step).count(rows));
        let starts = segment.bucket_starts(chooser, step, &(least..=most));
        for (i, &first_row_count) in starts.iter().enumerate() {
            let last_row_count = starts.get(i + 1).map_or(most, |next| next - 1);
            let covers = segment.cover(chooser, first_row_count, step, refused);
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
