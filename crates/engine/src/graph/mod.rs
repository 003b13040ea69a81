//! The forward pass as a graph. Start with [`forward`], which makes it from a family's layers; [`kv_cache`] says where
//! keys and values are.
//!
//! A graph is a list of nodes in launch order. It knows ops, dims and tensors, but no templates, no devices, and not
//! how many tokens a step has. [`crate::plan`] launches it.

pub mod forward;
pub mod kv_cache;
pub mod placement;

use std::collections::BTreeMap;

use format::Dtype;
use kernel::step::StepKind;
use kernel::template::{Precision, Problem};
use placement::Place;

/// A tensor of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Where a tensor's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the checkpoint, under this canonical name.
    Weight(String),
    /// In memory that the engine fills before a step (token ids, positions, block tables) or that outlives it
    /// (caches), under this name.
    External(String),
    /// In the arena: written by one node, read by later ones, gone after the last of them.
    Arena,
}

/// What an external tensor is for, which says when it is filled and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every step fills it; all of these lie side by side, and are filled in one copy.
    Input,
    /// Steps fill it in which logits are changed; all of these lie side by side, too.
    ChangeInput,
    Kept,
    /// It lies in memory that several devices see, which is not the graph's to size.
    Shared,
}

/// A tensor's properties.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// For messages and traces.
    pub name: String,
    /// Type of one element.
    pub dtype: Dtype,
    pub storage: Storage,
    /// Of an external one what it is for, and its elements.
    pub(crate) external: Option<(Role, usize)>,
}

/// Which rows of a step a node works on: what its `n_tokens` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Every row of the step.
    All,
    /// Rows whose logits are needed.
    Logits,
    /// The same, of steps in which devices that share the vocabulary have all logits everywhere.
    Gathered,
    /// The same, of steps in which they compare their best tokens instead.
    Compared,
    /// Those of them whose logits are changed before a token is chosen: in most steps none.
    Changed,
    /// Those of them that want log-probabilities: in most steps none.
    Logprobs,
}

impl Rows {
    /// Whether a step has such rows only if a request asks for them: their nodes are launched separately.
    pub fn are_asked_for(self) -> bool {
        matches!(self, Self::Changed | Self::Logprobs)
    }
}

/// What of a step decides its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    pub n_rows: usize,
    /// Rows whose logits are needed.
    pub n_logit_rows: usize,
    /// What the rows are to each other.
    pub kind: StepKind,
    /// Whether all that want logits take the best token, and devices that share the vocabulary compare theirs.
    pub compares: bool,
}

impl StepShape {
    /// The smallest step of a kind that gives a token.
    pub(crate) fn smallest(kind: StepKind) -> Self {
        Self { n_rows: kind.fewest_rows() as usize, n_logit_rows: 1, kind, compares: false }
    }

    /// How many rows a node works on, where no request asks for more.
    pub fn count(&self, rows: Rows) -> usize {
        match rows {
            Rows::All => self.n_rows,
            Rows::Logits => self.n_logit_rows,
            Rows::Gathered if !self.compares => self.n_logit_rows,
            Rows::Compared if self.compares => self.n_logit_rows,
            Rows::Gathered | Rows::Compared | Rows::Changed | Rows::Logprobs => 0,
        }
    }

    /// How many rows a node works on at most: any row that wants logits may ask for more.
    pub(crate) fn most(&self, rows: Rows) -> usize {
        self.count(if rows == Rows::All { rows } else { Rows::Logits })
    }
}

/// The largest sizes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that give logits.
    pub max_logit_rows: usize,
    /// Most rows of a step in which every row is alone in its slot: the slots.
    pub max_decode_rows: usize,
}

impl StepLimits {
    /// The largest step of a kind.
    pub(crate) fn largest(self, kind: StepKind) -> StepShape {
        let most = match kind {
            StepKind::Decode => self.max_decode_rows,
            StepKind::Mixed => self.max_rows,
        };
        let (n_rows, n_logit_rows) = (self.max_rows.min(most), self.max_logit_rows.min(most));
        StepShape { n_rows, n_logit_rows, kind, compares: false }
    }
}

/// One op with its tensors.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where in the model: `block.3.attn.qkv`.
    pub label: String,
    /// The op, and everything a rendered kernel may depend on.
    pub problem: Problem,
    /// Tensors by the contract's argument names.
    pub args: BTreeMap<String, TensorId>,
    /// Scalar arguments other than `n_tokens`, by the contract's names.
    pub scalars: BTreeMap<String, u32>,
    /// The rows that `n_tokens` counts.
    pub rows: Rows,
    pub place: Place,
}

/// Nodes in launch order, and their tensors.
#[derive(Clone, Debug)]
pub struct Graph {
    precision: Precision,
    /// All tensors; a [`TensorId`] is an index into it.
    pub(crate) tensors: Vec<Tensor>,
    pub nodes: Vec<Node>,
}

impl Graph {
    /// A graph without nodes.
    pub(crate) fn new(precision: Precision) -> Self {
        Self { precision, tensors: Vec::new(), nodes: Vec::new() }
    }

    /// A tensor of the checkpoint.
    pub(crate) fn weight(&mut self, name: String, dtype: Dtype) -> TensorId {
        let storage = Storage::Weight(name.clone());
        self.known(&storage).unwrap_or_else(|| self.tensor(name, dtype, storage))
    }

    /// A tensor whose bytes are there.
    fn known(&self, storage: &Storage) -> Option<TensorId> {
        self.tensors.iter().position(|tensor| tensor.storage == *storage).map(TensorId)
    }

    /// A tensor of so many elements that the engine keeps: one, however often it is asked for, so that an id tells who
    /// reads what another node writes.
    pub(crate) fn external(&mut self, name: &str, dtype: Dtype, role: Role, n_elements: usize) -> TensorId {
        let storage = Storage::External(name.to_string());
        if let Some(known) = self.known(&storage) {
            return known;
        }
        let id = self.tensor(name.to_string(), dtype, storage);
        self.tensors[id.0].external = Some((role, n_elements));
        id
    }

    /// Names and lengths in bytes of the external tensors of a role.
    pub(crate) fn externals(&self, role: Role) -> Vec<(String, usize)> {
        let of_role = |tensor: &&Tensor| tensor.external.is_some_and(|(of, _)| of == role);
        let len_bytes = |tensor: &Tensor| tensor.external.map_or(0, |(_, n)| tensor.dtype.len_bytes(n));
        self.tensors.iter().filter(of_role).map(|tensor| (tensor.name.clone(), len_bytes(tensor))).collect()
    }

    /// A tensor in the arena.
    pub(crate) fn activation(&mut self, name: String, dtype: Dtype) -> TensorId {
        self.tensor(name, dtype, Storage::Arena)
    }

    /// Adds a node; the builder that comes back says the rest.
    pub(crate) fn node(&mut self, label: impl Into<String>, op: &str) -> NodeBuilder<'_> {
        let node = Node { label: label.into(), ..self.empty_node(op) };
        self.nodes.push(node);
        NodeBuilder { graph: self }
    }

    /// A node of an op, on all rows, without any other property.
    fn empty_node(&self, op: &str) -> Node {
        let (args, scalars) = (BTreeMap::new(), BTreeMap::new());
        let (problem, place) = (Problem::plain(op, self.precision), Place::Device);
        Node { label: String::new(), problem, args, scalars, rows: Rows::All, place }
    }

    /// The tensor behind an id.
    pub fn tensor_of(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    fn tensor(&mut self, name: String, dtype: Dtype, storage: Storage) -> TensorId {
        self.tensors.push(Tensor { name, dtype, storage, external: None });
        TensorId(self.tensors.len() - 1)
    }
}

/// The rest of the node that was added last.
pub(crate) struct NodeBuilder<'g> {
    graph: &'g mut Graph,
}

impl NodeBuilder<'_> {
    /// A dim of the contract.
    pub(crate) fn dim(mut self, name: &str, value: usize) -> Self {
        let value = u32::try_from(value).expect("the checkpoint's dimensions were checked to fit 32 bits");
        self.last().problem.dims.insert(name.to_string(), value);
        self
    }

    /// A scalar argument of the contract, the same in every step.
    pub(crate) fn scalar(mut self, name: &str, value: usize) -> Self {
        let value = u32::try_from(value).expect("the cache's sizes were checked to fit 32 bits");
        self.last().scalars.insert(name.to_string(), value);
        self
    }

    /// A constant of the contract.
    pub(crate) fn constant(mut self, name: &str, value: f32) -> Self {
        self.last().problem.constants.insert(name.to_string(), value);
        self
    }

    /// A flag of the contract.
    pub(crate) fn flag(mut self, name: &str, value: bool) -> Self {
        self.last().problem.flags.insert(name.to_string(), value);
        self
    }

    /// A variable dtype of the contract.
    pub(crate) fn dtype(mut self, name: &str, value: Dtype) -> Self {
        self.last().problem.dtypes.insert(name.to_string(), value);
        self
    }

    /// An argument of the contract.
    pub(crate) fn arg(mut self, name: &str, tensor: TensorId) -> Self {
        self.last().args.insert(name.to_string(), tensor);
        self
    }

    /// An argument of the contract that is a tensor of the checkpoint: itself or, in a format with blocks, its codes
    /// and their parameters.
    pub(crate) fn weight(mut self, name: &str, tensor: &str, dtype: Dtype) -> Self {
        for ((name, _), (tensor, dtype)) in dtype.named_parts(name).iter().zip(dtype.named_parts(tensor)) {
            let tensor = self.graph.weight(tensor, dtype);
            self = self.arg(name, tensor);
        }
        self
    }

    /// Arguments of the contract that only some problems have.
    pub(crate) fn args<'a>(self, args: impl IntoIterator<Item = (&'a str, TensorId)>) -> Self {
        args.into_iter().fold(self, |node, (name, tensor)| node.arg(name, tensor))
    }

    /// The node works on these rows, not on all.
    pub(crate) fn rows(mut self, rows: Rows) -> Self {
        self.last().rows = rows;
        self
    }

    fn last(&mut self) -> &mut Node {
        self.graph.nodes.last_mut().expect("a builder exists only behind a node")
    }
}
