//! Where a node is computed: on the model's device, or on the processor from main memory. Also where the embedding
//! table is.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Graph, Node, Storage};
use model::family::Family;

/// Where a node is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    #[default]
    Device,
    /// This machine's cores.
    Host,
    /// The device, with weights that come from main memory in the step: what launches of the host's nodes are in steps
    /// that take in many tokens. No node has it.
    Streamed,
}

/// How many layers' experts the processor computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLayers {
    /// Those of this many of the last layers, or of all that have any.
    Last(usize),
    /// As few as leave room for the rest on the device: none, where everything fits.
    AsNeeded,
}

/// Which steps have the device compute the experts that are in main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// Those that take in prompts of this many tokens that it is faster, as measured when the model is loaded.
    Measured,
    /// Those that take in prompts and have so many tokens or more.
    From(usize),
    Never,
}

/// Where the table is that tokens are looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingPlace {
    /// On the device, like everything else.
    Device,
    /// In main memory, where the device reads a row of it for each token.
    Host,
    /// There if the rest would not fit on the device otherwise.
    AsNeeded,
}

impl Graph {
    /// The weights that are only looked up in, for each tensor: a step reads a row of them for each token. What logits
    /// are computed with as well, as in models whose embedding is tied to that, is read whole.
    pub(crate) fn looked_up(&self) -> Vec<bool> {
        let used_by = |looks_up: bool| {
            let of = self.nodes.iter().filter(move |node| (node.problem.ops == ["embedding"]) == looks_up);
            of.flat_map(|node| node.args.values())
        };
        let mut looked_up = vec![false; self.tensors.len()];
        for id in used_by(true) {
            looked_up[id.0] = matches!(self.tensor_of(*id).storage, Storage::Weight(_));
        }
        used_by(false).for_each(|id| looked_up[id.0] = false);
        looked_up
    }

    /// Gives the experts of the last `n_layers` with experts to the processor: the nodes that use their weights, and
    /// the nodes between these in the layer, if they need nothing else from the device.
    pub fn place_experts(&mut self, family: &Family, n_layers: usize) {
        let layers = self.expert_layers(family);
        for nodes in layers.values().rev().take(n_layers) {
            for at in nodes.clone() {
                if !self.uses_externals(&self.nodes[at]) {
                    self.nodes[at].place = Place::Host;
                }
            }
        }
    }

    /// The nodes of each layer that use weights of experts, from the first to the last of them.
    fn expert_layers(&self, family: &Family) -> BTreeMap<usize, Range<usize>> {
        let mut layers: BTreeMap<usize, Range<usize>> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(layer) = self.expert_layer(family, node) {
                layers.entry(layer).or_insert(at..at).end = at + 1;
            }
        }
        layers
    }

    /// The layer whose experts' weights a node uses.
    pub(crate) fn expert_layer(&self, family: &Family, node: &Node) -> Option<usize> {
        node.args.values().find_map(|id| match &self.tensor_of(*id).storage {
            Storage::Weight(name) => family.expert_layer(name),
            Storage::External(_) | Storage::Arena => None,
        })
    }

    fn uses_externals(&self, node: &Node) -> bool {
        node.args.values().any(|id| matches!(self.tensor_of(*id).storage, Storage::External(_)))
    }

    /// Whether a node of this place uses a tensor, for each tensor.
    pub(crate) fn used_at(&self, place: Place) -> Vec<bool> {
        let mut used = vec![false; self.tensors.len()];
        let nodes = self.nodes.iter().filter(|node| node.place == place);
        nodes.flat_map(|node| node.args.values()).for_each(|id| used[id.0] = true);
        used
    }
}
