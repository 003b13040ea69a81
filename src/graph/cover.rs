//! Which launches a bucket of row counts has: the nodes of a segment, or runs of them that one kernel covers.
//!
//! What a cover chooses among and prefers is the tuning tables' affair, through the pipeline; how launches are made of it is
//! [`super::plan`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Graph, Node, Storage, TensorId};
use crate::kernel::Problem;
use crate::kernel::pipeline::Pipeline;
use crate::tuning::table::StepKind;

/// One launch to be: a node, or a run of nodes that one kernel covers.
pub(super) struct Cover {
    /// The node's, or the nodes' joined by ` + `.
    pub label: String,
    pub problem: Problem,
    pub args: BTreeMap<String, TensorId>,
    pub scalars: BTreeMap<String, u32>,
}

/// Runs of nodes that work on the same rows.
pub(super) fn segments(graph: &Graph) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if graph.nodes[range.start].rows == node.rows => range.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// Row counts at which any choice may change in steps of a kind, rising from the fewest that such a step has; none where it has none.
pub(super) fn bucket_starts(
    graph: &Graph,
    pipeline: &Pipeline,
    range: Range<usize>,
    step: StepKind,
    most: usize,
) -> Vec<usize> {
    let least = step.fewest_rows() as usize;
    let mut starts = BTreeSet::from([least]);
    for at in range.clone() {
        starts.extend(pipeline.bucket_starts(&graph.nodes[at].problem, step));
        if let Some(fused) = fused(graph, pipeline, at, range.end) {
            starts.extend(pipeline.bucket_starts(&fused.problem, step));
        }
    }
    starts.into_iter().filter(|&start| (least..=most).contains(&start)).collect()
}

/// The launches of a bucket: a fused kernel where the tuning tables prefer one, else a kernel for each node.
pub(super) fn cover(
    graph: &Graph,
    pipeline: &Pipeline,
    range: Range<usize>,
    first: usize,
    step: StepKind,
) -> Vec<Cover> {
    let mut cover = Vec::new();
    let mut at = range.start;
    while at < range.end {
        match fused(graph, pipeline, at, range.end).filter(|c| pipeline.prefers(&c.problem, first, step)) {
            Some(fused) => {
                at += fused.problem.ops.len();
                cover.push(fused);
            }
            None => {
                cover.push(single(&graph.nodes[at]));
                at += 1;
            }
        }
    }
    cover
}

fn single(node: &Node) -> Cover {
    let Node { label, problem, args, scalars, .. } = node.clone();
    Cover { label, problem, args, scalars }
}

/// The node at `at` and the one behind it as one, if a template does that and nobody else reads what is between them.
fn fused(graph: &Graph, pipeline: &Pipeline, at: usize, end: usize) -> Option<Cover> {
    let [first, second] = graph.nodes.get(at..at + 2).filter(|_| at + 2 <= end)? else { return None };
    let (a, b) = (&first.problem.ops[0], &second.problem.ops[0]);
    let (written, taken) = pipeline.joint(a, b)?;
    let between = first.args.get(&written)?;
    let readers = graph.nodes.iter().flat_map(|node| node.args.values()).filter(|id| *id == between).count();
    let joins =
        second.args.get(&taken) == Some(between) && readers == 2 && graph.tensor_of(*between).storage == Storage::Arena;
    let problem = joins.then(|| merged(&first.problem, &second.problem)).flatten()?;
    let mut scalars = first.scalars.clone();
    if !add(&mut scalars, &second.scalars) {
        return None;
    }
    let args = first.args.iter().filter(|(name, _)| **name != written);
    let args = args.chain(second.args.iter().filter(|(name, _)| **name != taken));
    let label = format!("{} + {}", first.label, second.label);
    Some(Cover { label, problem, args: args.map(|(name, id)| (name.clone(), *id)).collect(), scalars })
}

/// Both problems as one; `None` when they use a name for different things.
fn merged(first: &Problem, second: &Problem) -> Option<Problem> {
    let mut problem = first.clone();
    problem.ops.extend(second.ops.iter().cloned());
    let agree = add(&mut problem.dims, &second.dims)
        && add(&mut problem.constants, &second.constants)
        && add(&mut problem.flags, &second.flags)
        && add(&mut problem.dtypes, &second.dtypes);
    agree.then_some(problem)
}

/// Adds values under their names; false where one has another value already.
fn add<V: Clone + PartialEq>(to: &mut BTreeMap<String, V>, from: &BTreeMap<String, V>) -> bool {
    from.iter().all(|(name, value)| to.entry(name.clone()).or_insert_with(|| value.clone()) == value)
}
