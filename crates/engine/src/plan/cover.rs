//! Which launches a bucket of row counts has: the nodes of a segment, or runs of nodes that one kernel covers.
//!
//! A template says which run of ops it fuses; runs are found node by node in launch order. The tuning tables decide,
//! through the chooser, whether a run is preferred to its nodes. [`super::executor`] makes launches of a cover.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::graph::placement::Place;
use crate::graph::{Graph, Node, Storage, TensorId};
use kernel::choice::{Chooser, NotFused};
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::template::contract::Access;
use kernel::template::signature::{Joint, Signature};

/// One launch to be: a node, or a run of nodes that one kernel covers.
#[derive(Clone, Debug)]
pub(super) struct Cover {
    /// The node's, or the nodes' joined by ` + `.
    pub(crate) label: String,
    pub(crate) problem: Problem,
    pub(crate) args: BTreeMap<String, TensorId>,
    pub(crate) scalars: BTreeMap<String, u32>,
    /// The nodes in the graph.
    pub(crate) nodes: Range<usize>,
    /// Longer runs that begin here and are not done by one kernel.
    pub(crate) unfused: Vec<Unfused>,
}

/// A run of nodes that one kernel could do, and why none does.
#[derive(Clone, Debug)]
pub struct Unfused {
    /// What the kernel would have to do.
    pub problem: Problem,
    pub why: NotFused,
}

/// What a segment can be covered with.
pub(super) struct Candidates {
    /// The segment's nodes in the graph.
    pub(crate) range: Range<usize>,
    pub(crate) place: Place,
    singles: Vec<Cover>,
    /// The runs that begin at each node, the longest first.
    runs: Vec<Vec<Cover>>,
}

/// Runs of nodes that are computed in a place and work on the same rows, and what each can be covered with. Those that
/// are streamed are the host's.
pub(super) fn segments(graph: &Graph, place: Place, fusions: &[Arc<Signature>]) -> Vec<Candidates> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let is_alike = |first: &Node| first.rows == node.rows && first.place == node.place;
        match ranges.last_mut() {
            Some(range) if is_alike(&graph.nodes[range.start]) => range.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    let of_nodes = if place == Place::Streamed { Place::Host } else { place };
    ranges.retain(|range| graph.nodes[range.start].place == of_nodes);
    ranges.into_iter().map(|range| Candidates::in_range(graph, place, fusions, range)).collect()
}

/// Every run of nodes that one kernel may do: its label and its problem.
pub fn runs(graph: &Graph, fusions: &[Arc<Signature>]) -> Vec<(String, Problem)> {
    let all = segments(graph, Place::Device, fusions).into_iter().flat_map(|segment| segment.runs).flatten();
    all.map(|run| (run.label, run.problem)).collect()
}

impl Candidates {
    fn in_range(graph: &Graph, place: Place, fusions: &[Arc<Signature>], range: Range<usize>) -> Self {
        let runs_at = |at: usize| fusions.iter().filter_map(|run| fused(graph, run, at..range.end)).collect();
        let singles = range.clone().map(|at| single(graph, at)).collect();
        Self { singles, runs: range.clone().map(runs_at).collect(), range, place }
    }

    /// The nodes of every run that one kernel may cover, whether it is preferred or not.
    pub(crate) fn run_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let at = self.range.clone().zip(&self.runs);
        at.flat_map(|(at, runs)| runs.iter().map(move |run| at..at + run.problem.ops.len()))
    }

    /// Row counts at which any choice may change in steps of a kind, rising from the first of those that occur.
    pub(crate) fn bucket_starts(
        &self,
        chooser: &Chooser,
        step: StepKind,
        occurring: &RangeInclusive<usize>,
    ) -> Vec<usize> {
        let mut starts = BTreeSet::from([*occurring.start()]);
        for cover in self.singles.iter().chain(self.runs.iter().flatten()) {
            starts.extend(chooser.bucket_starts(&cover.problem, step));
        }
        starts.into_iter().filter(|start| occurring.contains(start)).collect()
    }

    /// The launches of a bucket: from the first node on the longest run that the tuning tables prefer, else a kernel
    /// for the node alone. No run is taken that is among `refused`.
    pub(crate) fn cover(&self, chooser: &Chooser, n_rows: usize, step: StepKind, refused: &[Problem]) -> Vec<Cover> {
        let mut cover = Vec::new();
        let mut at = 0;
        while at < self.singles.len() {
            let mut unfused = Vec::new();
            let is_preferred = |run: &&Cover| {
                let problem = &run.problem;
                let is_refused = refused.contains(problem);
                let preferred =
                    if is_refused { Err(NotFused::Refused) } else { chooser.prefers(problem, n_rows, step) };
                preferred.map_err(|why| unfused.push(Unfused { problem: problem.clone(), why })).is_ok()
            };
            let next = self.runs[at].iter().find(is_preferred).unwrap_or(&self.singles[at]).clone();
            at += next.problem.ops.len();
            cover.push(Cover { unfused, ..next });
        }
        cover
    }
}

fn single(graph: &Graph, at: usize) -> Cover {
    let Node { label, problem, args, scalars, .. } = graph.nodes[at].clone();
    Cover { label, problem, args, scalars, nodes: at..at + 1, unfused: Vec::new() }
}

/// The first nodes of `within` as one, if they are the ops of a run, hand on what it expects, and no name means two
/// things. What is handed on and others need is to be kept.
fn fused(graph: &Graph, run: &Signature, within: Range<usize>) -> Option<Cover> {
    let range = within.start..within.start + run.ops.len();
    let nodes = graph.nodes.get(range.clone()).filter(|_| range.end <= within.end)?;
    if !nodes.iter().zip(&run.ops).all(|(node, op)| node.problem.ops == [op.as_str()]) {
        return None;
    }
    let mut problem =
        nodes[1..].iter().try_fold(nodes[0].problem.clone(), |first, node| merged(first, &node.problem))?;
    let mut args = BTreeMap::new();
    let mut scalars = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        let (before, after) = (i.checked_sub(1).map(|before| &run.joints[before]), run.joints.get(i));
        // A tensor that the later node changes in place is the run's under that node's name.
        let is_own = |name: &String| {
            before.is_none_or(|joint| joint.is_changed() || joint.taken.name != *name)
                && after.is_none_or(|joint| !joint.is_changed() || joint.written.name != *name)
        };
        let own = node.args.iter().filter(|(name, _)| is_own(name));
        let name_in_run = |name: &String| match after {
            Some(joint) if joint.written.name == *name => joint.kept_name(),
            _ => run.name_in_run(i, name),
        };
        let own = own.map(|(name, id)| (name_in_run(name), *id)).collect();
        if !add(&mut args, &own) || !add(&mut scalars, &node.scalars) {
            return None;
        }
    }
    for (i, joint) in run.joints.iter().enumerate() {
        if is_needed(graph, joint, &range, i)? {
            problem.keeps.insert(joint.path.clone());
        }
    }
    let label = nodes.iter().map(|node| node.label.as_str()).collect::<Vec<_>>().join(" + ");
    writes_are_apart(run, &args).then_some(Cover { label, problem, args, scalars, nodes: range, unfused: Vec::new() })
}

/// Whether others than the two nodes need the tensor between node `i` of the run and the next one; `None` if these do
/// not share it, or a node of the run needs it that does not get it handed.
fn is_needed(graph: &Graph, joint: &Joint, range: &Range<usize>, i: usize) -> Option<bool> {
    let (writer, taker) = (&graph.nodes[range.start + i], &graph.nodes[range.start + i + 1]);
    let between = writer.args.get(&joint.written.name)?;
    let reads = |node: &Node| node.args.values().filter(|id| *id == between).count();
    let in_run: usize = graph.nodes[range.clone()].iter().map(reads).sum();
    if taker.args.get(&joint.taken.name) != Some(between) || in_run != 2 {
        return None;
    }
    let everywhere: usize = graph.nodes.iter().map(reads).sum();
    let is_needed = everywhere > in_run || graph.tensor_of(*between).storage != Storage::Arena;
    Some(is_needed && !joint.is_changed())
}

/// Whether no tensor that the run writes is another of its arguments too: one node's result would be another one's
/// input, and the blocks of one kernel do not wait for each other.
fn writes_are_apart(run: &Signature, args: &BTreeMap<String, TensorId>) -> bool {
    let is_written = |name: &String| run.args.iter().any(|arg| arg.name == *name && arg.access != Access::Read);
    let written = args.iter().filter(|(name, _)| is_written(name));
    let mut others = written.map(|(name, id)| args.iter().filter(move |(other, same)| *other != name && *same == id));
    others.all(|mut others| others.next().is_none())
}

/// Both problems as one; `None` when they use a name for different things.
fn merged(mut first: Problem, second: &Problem) -> Option<Problem> {
    first.ops.extend(second.ops.iter().cloned());
    let agree = add(&mut first.dims, &second.dims)
        && add(&mut first.constants, &second.constants)
        && add(&mut first.flags, &second.flags)
        && add(&mut first.dtypes, &second.dtypes);
    agree.then_some(first)
}

/// Adds values under their names; false if one has another value already.
fn add<V: Clone + PartialEq>(to: &mut BTreeMap<String, V>, from: &BTreeMap<String, V>) -> bool {
    from.iter().all(|(name, value)| to.entry(name.clone()).or_insert_with(|| value.clone()) == value)
}

#[cfg(test)]
mod tests;
