//! Which activations a step has, how long each is needed, and where it is in the arena during that time.

use std::collections::BTreeMap;

use super::arena::{self, Lifetime};
use super::cover::Candidates;
use super::error::PlanError;
use super::options::ExecutorOptions;
use super::segment::scalars;
use crate::graph::{Graph, Storage};
use kernel::pipeline::Pipeline;
use kernel::step::StepKind;
use kernel::template::launch::ArgSpec;

/// Where in the arena every activation is.
pub(super) struct ArenaLayout {
    /// First byte and length, by tensor index.
    pub(crate) ranges: BTreeMap<usize, (usize, usize)>,
    pub(crate) len_bytes: usize,
}

impl ArenaLayout {
    /// Places for tensors, by their index.
    pub(crate) fn new(lifetimes: &BTreeMap<usize, Lifetime>) -> Self {
        let (offsets, len_bytes) = arena::place(&lifetimes.values().copied().collect::<Vec<_>>());
        let ranges = lifetimes.iter().zip(offsets).map(|((&i, life), offset)| (i, (offset, life.len_bytes)));
        Self { ranges: ranges.collect(), len_bytes }
    }
}

/// Size and life of every activation, by tensor index. Where one kernel may do several nodes, its blocks read and write
/// what they please at any time: whatever one of these nodes needs lives for all of them.
pub(super) fn lifetimes(
    graph: &Graph,
    candidates: &[Candidates],
    pipeline: &Pipeline,
    options: &ExecutorOptions,
) -> Result<BTreeMap<usize, Lifetime>, PlanError> {
    let mut lifetimes: BTreeMap<usize, Lifetime> = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let contract = pipeline.library().contract(&node.problem.ops[0])?;
        let scalars = scalars(options.limits.largest(StepKind::Mixed).most(node.rows), &node.scalars);
        for arg in &contract.args {
            let Some(id) = node.args.get(&arg.name) else { continue };
            if graph.tensor_of(*id).storage != Storage::Arena {
                continue;
            }
            let spec = ArgSpec::of(arg, &node.problem);
            let len_bytes = spec.len_bytes(&scalars)?;
            let life = lifetimes.entry(id.0).or_insert(Lifetime { len_bytes, first_node: at, last_node: at });
            life.last_node = at;
            life.len_bytes = life.len_bytes.max(len_bytes);
        }
    }
    for range in candidates.iter().flat_map(Candidates::run_ranges) {
        for id in graph.nodes[range.clone()].iter().flat_map(|node| node.args.values()) {
            if let Some(life) = lifetimes.get_mut(&id.0) {
                life.first_node = life.first_node.min(range.start);
                life.last_node = life.last_node.max(range.end - 1);
            }
        }
    }
    Ok(lifetimes)
}
