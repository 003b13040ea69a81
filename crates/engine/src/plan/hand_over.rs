//! Transfers from the device to the processor before a segment of the processor, and back after it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gpu::{BufferView, GpuError};

use super::error::PlanError;
use super::segment::{MAX_PREPARED, scalars};
use super::site::Sites;
use crate::graph::placement::Place;
use crate::graph::{Graph, Node, Storage, TensorId};
use kernel::pipeline::Pipeline;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::library::Library;

/// The tensors that cross, and for row counts that came up which memory that is.
pub(super) struct HandOver {
    label: String,
    inputs: Vec<Crossing>,
    outputs: Vec<Crossing>,
    prepared: HashMap<usize, Copies>,
}

/// A tensor that crosses.
struct Crossing {
    tensor: TensorId,
    spec: ArgSpec,
    scalars: BTreeMap<String, u32>,
}

/// Pairs of memory, from and to.
type Pairs = Vec<(BufferView, BufferView)>;

/// The copies for a number of rows.
#[derive(Default)]
struct Copies {
    inputs: Pairs,
    outputs: Pairs,
}

impl HandOver {
    /// What crosses around these nodes of the graph, which the processor computes.
    pub(crate) fn new(graph: &Graph, nodes: &Range<usize>, library: &Library) -> Result<Self, PlanError> {
        let (mut inputs, mut outputs): (BTreeMap<TensorId, Crossing>, BTreeMap<TensorId, Crossing>) =
            Default::default();
        let is_needed = |id: TensorId| {
            let behind = graph.nodes[nodes.end..].iter().filter(|node| node.place == Place::Device);
            behind.into_iter().any(|node| node.args.values().any(|other| *other == id))
        };
        // What the processor wrote last lies where it computes.
        let is_here = |id: TensorId| {
            let writes = |node: &&Node| {
                let contract = library.contract(&node.problem.ops[0]);
                let args = contract.map(|contract| contract.args.iter().filter(|arg| arg.access != Access::Read));
                args.is_ok_and(|mut args| args.any(|arg| node.args.get(&arg.name) == Some(&id)))
            };
            graph.nodes[..nodes.start].iter().rev().find(writes).is_some_and(|node| node.place == Place::Host)
        };
        for node in &graph.nodes[nodes.clone()] {
            let contract = library.contract(&node.problem.ops[0])?;
            let tensors = contract.args.iter().filter_map(|arg| Some((arg, *node.args.get(&arg.name)?)));
            let own = tensors.filter(|(_, id)| graph.tensor_of(*id).storage == Storage::Arena);
            let crossing =
                |arg, tensor| Crossing { tensor, spec: ArgSpec::of(arg, &node.problem), scalars: node.scalars.clone() };
            let own: Vec<_> = own.collect();
            for (arg, id) in own.iter().filter(|(arg, _)| arg.access != Access::Write) {
                if !outputs.contains_key(id) && !is_here(*id) {
                    inputs.entry(*id).or_insert_with(|| crossing(arg, *id));
                }
            }
            for (arg, id) in own.iter().filter(|(arg, _)| arg.access != Access::Read) {
                outputs.insert(*id, crossing(arg, *id));
            }
        }
        outputs.retain(|id, _| is_needed(*id));
        Ok(Self {
            label: format!("the hand-over around {}", graph.nodes[nodes.start].label),
            inputs: inputs.into_values().collect(),
            outputs: outputs.into_values().collect(),
            prepared: HashMap::new(),
        })
    }

    /// Works out what is copied for this many rows.
    pub(crate) fn prepare(&mut self, n: usize, sites: &Sites) -> Result<(), PlanError> {
        if self.prepared.contains_key(&n) {
            return Ok(());
        }
        let pairs = |crossings: &[Crossing], from: Place, to: Place| {
            let pair = |crossing: &Crossing| {
                let len_bytes = crossing.spec.len_bytes(&scalars(n, &crossing.scalars))?;
                let at = |place| {
                    let view = &sites.of(place).memory[crossing.tensor.0];
                    view.slice(0, len_bytes).expect("every tensor has room for the most rows")
                };
                Ok((at(from), at(to)))
            };
            crossings.iter().map(pair).collect::<Result<Pairs, PlanError>>()
        };
        let inputs = pairs(&self.inputs, Place::Device, Place::Host)?;
        let outputs = pairs(&self.outputs, Place::Host, Place::Device)?;
        if self.prepared.len() >= MAX_PREPARED {
            self.prepared.clear();
        }
        self.prepared.insert(n, Copies { inputs, outputs });
        Ok(())
    }

    /// Brings what the processor needs, and waits for it.
    pub(crate) fn bring(&self, n: usize, sites: &Sites) -> Result<(), PlanError> {
        let brought = self.prepared.get(&n).map_or(Ok(()), |copies| sites.device.driver().bring(&copies.inputs));
        brought.map_err(|source| self.failed(source))
    }

    /// Sends the processor's results.
    pub(crate) fn send(&self, n: usize, sites: &Sites) -> Result<(), PlanError> {
        let sent = self.prepared.get(&n).map_or(Ok(()), |copies| sites.device.driver().send(&copies.outputs));
        sent.map_err(|source| self.failed(source))
    }

    /// Bytes that cross for this many rows, both ways.
    pub(crate) fn len_bytes(&self, n: usize) -> usize {
        let of = |copies: &Copies| copies.inputs.iter().chain(&copies.outputs).map(|(from, _)| from.len_bytes()).sum();
        self.prepared.get(&n).map_or(0, of)
    }

    fn failed(&self, source: GpuError) -> PlanError {
        PlanError::Device { label: self.label.clone(), source }
    }
}

/// Memory of this process for what crosses between the device and the processor.
pub(super) fn staging(pipeline: &Pipeline, len_bytes: usize) -> Result<BufferView, PlanError> {
    let buffer = pipeline.driver().staging(len_bytes);
    buffer.map(|buffer| buffer.view()).map_err(|source| PlanError::Device { label: "hand-overs".into(), source })
}
