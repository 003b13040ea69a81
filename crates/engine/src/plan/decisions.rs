//! Which kernel every launch uses, for every range of row counts, and why. It uses the planning and ranking of
//! loading, without a device.

use std::ops::Range;

use super::buckets::{self, PlannedSegment};
use super::cover::{self, Unfused};
use crate::graph::placement::Place;
use crate::graph::{Graph, Rows, StepLimits};
use kernel::choice::{Chooser, Ranking, Rankings};
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::template::library_error::LibraryError;

/// One launch of a bucket: a node, or a run of nodes that one kernel does.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The node's, or the nodes' joined by ` + `.
    pub label: String,
    /// The nodes in the graph.
    pub nodes: Range<usize>,
    /// Which rows of a step are counted.
    pub rows: Rows,
    pub place: Place,
    /// In steps of this kind.
    pub step: StepKind,
    /// From this many rows on.
    pub first_row_count: usize,
    pub last_row_count: usize,
    /// Longer runs that begin here and are not done by one kernel.
    pub unfused: Vec<Unfused>,
    /// Which of the rankings.
    ranking: usize,
}

/// All of them: the segments in order, of each the buckets, of each the launches.
#[derive(Clone, Debug)]
pub struct Decisions {
    pub all: Vec<Decision>,
    rankings: Rankings,
}

impl Decisions {
    /// Chooses for every launch of a graph that is made in a place. A run for which no template serves is done node by
    /// node, with a warning.
    ///
    /// # Errors
    /// If there is a node that no template fits, or a broken file could be the one.
    pub fn new(graph: &Graph, place: Place, chooser: &Chooser, limits: StepLimits) -> Result<Self, LibraryError> {
        let candidates = cover::segments(graph, place, &chooser.fusions());
        let (planned, rankings) =
            buckets::served(graph, &candidates, chooser, limits, |wanted| chooser.rank_all(wanted))?;
        Ok(Self::from_planned(&planned, rankings))
    }

    /// Of planned, and of the rankings for what they want.
    pub(super) fn from_planned(planned: &[PlannedSegment], rankings: Rankings) -> Self {
        let launches = planned.iter().flat_map(|segment| {
            let buckets = segment.buckets.iter();
            buckets.flat_map(move |bucket| bucket.covers.iter().map(move |cover| (segment, bucket, cover)))
        });
        let all = launches.zip(&rankings.indices).map(|((segment, bucket, cover), &ranking)| Decision {
            label: cover.label.clone(),
            nodes: cover.nodes.clone(),
            rows: segment.rows,
            place: segment.place,
            step: bucket.step,
            first_row_count: bucket.first_row_count,
            last_row_count: bucket.last_row_count,
            unfused: cover.unfused.clone(),
            ranking,
        });
        Self { all: all.collect(), rankings }
    }

    /// The problem of a launch.
    pub fn problem(&self, decision: &Decision) -> &Problem {
        &self.rankings.distinct[decision.ranking].0.problem
    }

    /// The candidates of a decision, with their reasons.
    pub fn ranking(&self, decision: &Decision) -> &Ranking {
        &self.rankings.distinct[decision.ranking].1
    }

    /// One launch for each ranking, with the same choices as the others of it.
    pub fn distinct(&self) -> impl Iterator<Item = &Decision> {
        let mut seen = vec![false; self.rankings.distinct.len()];
        self.all.iter().filter(move |decision| !std::mem::replace(&mut seen[decision.ranking], true))
    }
}
