//! A statement of the family's file as a node of the graph.
//!
//! What a node is follows from the statement, the op's contract and the model's tensors:
//!
//! - arguments: those that the statement gives, in the contract's order or by name; a weight's name stands for all
//!   tensors whose names go on after it with an argument's name; what is not given is what the step or a statement
//!   before calls so
//! - flags: an argument that exists `when` a flag is set is there or is not
//! - dims: those that shapes of what is given tell; what the statement says; the model's dimensions of that name
//! - types: those of what is given
//! - of ops that have a cache's arguments, all that is the cache's

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::writing::{Writing, known, wrong};
use super::{Angles, Forward, ForwardError};
use crate::graph::{Node, TensorId};
use expression::Expression;
use format::Dtype;
use kernel::template::contract::{ArgDtype, Contract};
use kernel::template::library_error::LibraryError;
use model::checkpoint::kept::name_of_piece;
use model::family::in_layer;
use model::family::layer::{Argument, Operand, Statement};

/// What a statement gave.
#[derive(Clone)]
pub(super) struct Value {
    pub(crate) tensor: TensorId,
    /// Elements of each dimension in a step of [`PROBE`] rows.
    pub(crate) shape: Vec<u64>,
    /// The statement that gave it; `None` of what the layer is given.
    from: Option<usize>,
}

/// The op that puts rows together.
const CONCAT: &str = "concat";

/// Rows of the step for which shapes are compared: a number that no dimension is likely to be.
pub(super) const PROBE: u64 = 7919;

/// The names of a layer while it is written down.
pub(super) struct Values {
    named: BTreeMap<String, Value>,
    used: BTreeSet<usize>,
}

/// An argument of a node.
#[derive(Clone)]
pub(super) struct Bound {
    pub(crate) tensor: TensorId,
    pub(crate) shape: Option<Vec<u64>>,
}

impl Forward<'_> {
    /// What layer `l` makes of x.
    pub(super) fn layer(&mut self, l: usize, x: TensorId, angles: &Angles) -> Result<TensorId, ForwardError> {
        let dims = self.config.scope();
        let forward = &self.config.family.forward;
        self.statements(forward.statements(&dims, l), Some(l), x, angles)
    }

    /// What is made of x before the layers.
    pub(super) fn first(&mut self, x: TensorId) -> Result<TensorId, ForwardError> {
        self.statements(self.config.family.forward.first(), None, x, &Angles::new())
    }

    /// What is made of x after the layers.
    pub(super) fn last(&mut self, x: TensorId) -> Result<TensorId, ForwardError> {
        self.statements(self.config.family.forward.last(), None, x, &Angles::new())
    }

    fn statements(
        &mut self,
        statements: &[Statement],
        layer: Option<usize>,
        x: TensorId,
        angles: &Angles,
    ) -> Result<TensorId, ForwardError> {
        let row = |tensor| Value { tensor, shape: vec![PROBE], from: None };
        let stream = Value { tensor: x, shape: vec![PROBE, self.config.hidden_size as u64], from: None };
        let mut named = BTreeMap::from([("x".to_owned(), stream)]);
        named.insert("slot".to_owned(), row(self.rows.slot));
        named.insert("position".to_owned(), row(self.rows.position));
        for (&name, &tensor) in angles {
            let shape = vec![PROBE, self.config.head_width() as u64];
            named.insert(name.to_owned(), Value { tensor, shape, from: None });
        }
        let mut values = Values { named, used: BTreeSet::new() };
        for (i, statement) in statements.iter().enumerate() {
            for statement in self.apart(statement, layer) {
                let contract = Arc::clone(self.contract(&statement)?);
                let writing = Writing { statement: &statement, contract: &contract, layer };
                self.statement(i, &writing, &mut values)?;
            }
        }
        let x = values.named["x"].clone();
        values.used.extend(x.from);
        for (i, statement) in statements.iter().enumerate() {
            if !statement.targets.is_empty() && !values.used.contains(&i) {
                let names = statement.targets.join(", ");
                return Err(wrong(statement, &names, "a statement behind it that uses it", "none").into());
            }
        }
        Ok(x.tensor)
    }

    /// A statement as it is; or, where its matrix is stored in pieces of several types, one for each piece, and those
    /// that put together what these give.
    fn apart(&self, statement: &Statement, layer: Option<usize>) -> Vec<Statement> {
        let weights = |operand: &Operand| match operand {
            Operand::Weights(name) => Some(name.clone()),
            _ => None,
        };
        let whole = || vec![statement.clone()];
        let Some(name) = statement.args.iter().find_map(|arg| weights(&arg.operand)) else { return whole() };
        let is_piece = |number: &usize| {
            let weight = layer.map_or_else(|| format!("{name}.weight"), |l| format!("block.{l}.{name}.weight"));
            self.checkpoint.tensors.contains_key(&name_of_piece(&weight, *number))
        };
        let n_pieces = (0..).take_while(is_piece).count();
        let ([target], 1..) = (statement.targets.as_slice(), n_pieces) else { return whole() };
        let part = |number: usize| format!("{target}.{number}");
        let mut statements: Vec<Statement> = Vec::new();
        for number in 0..n_pieces {
            let mut piece = Statement { targets: vec![part(number)], ..statement.clone() };
            for arg in &mut piece.args {
                if weights(&arg.operand).is_some() {
                    arg.operand = Operand::Weights(format!("{name}.{number}"));
                }
            }
            statements.push(piece);
        }
        let argument = |name: String| Argument { name: None, operand: Operand::Value(name) };
        let mut joined = part(0);
        for number in 1..n_pieces {
            let target = if number + 1 == n_pieces { target.clone() } else { format!("{target}.to.{number}") };
            let args = vec![argument(joined), argument(part(number))];
            let (op, targets) = (CONCAT.to_owned(), vec![target.clone()]);
            statements.push(Statement { place: statement.place.clone(), targets, op, args, residual: None });
            joined = target;
        }
        statements
    }

    /// The contract of a statement's op.
    fn contract(&self, statement: &Statement) -> Result<&Arc<Contract>, ForwardError> {
        let op = &statement.op;
        let found = self.library.contract(op);
        if !matches!(found, Err(LibraryError::NoContract { .. })) {
            return Ok(found?);
        }
        let alike = |contract: &&Arc<Contract>| contract.op.bytes().zip(op.bytes()).take_while(|(a, b)| a == b).count();
        let near = self.library.contracts().max_by_key(alike).map_or("none", |contract| &contract.op);
        let expected = format!("an op, which has a contract `templates/<op>/op.toml`, such as `{near}`");
        Err(wrong(statement, op, &expected, "none of this name").into())
    }

    fn statement(&mut self, i: usize, writing: &Writing<'_>, values: &mut Values) -> Result<(), ForwardError> {
        let Writing { statement, contract, layer } = *writing;
        let label = self.label(writing);
        let mut args = writing.given(self, values)?;
        let parts = self.options.part.size > 1 && statement.is_summed(self.config.family);
        if let Some(residual) = &statement.residual {
            writing.arg("residual")?;
            let value = values.take(residual).expect("the file's reader saw it");
            let tensor = if parts { self.added_once(value.tensor) } else { value.tensor };
            args.insert("residual".into(), Bound { tensor, shape: Some(value.shape) });
        }
        writing.found_by_name(&mut args, values)?;
        let state = writing.state(self, &mut args)?;

        // What is known of the problem, one after the other.
        let mut flags = state.flags;
        for arg in &contract.args {
            if let Some(flag) =
                arg.when.as_ref().map(Expression::text).filter(|flag| contract.flags.contains_key(*flag))
            {
                flags.insert(flag.to_owned(), args.contains_key(&arg.name));
            }
        }
        let scope = self.config.scope();
        let scope = Arc::new(layer.map_or_else(|| (*scope).clone(), |l| in_layer(&scope, l)));
        let dims = writing.dims(&args, state.dims, &scope)?;
        writing.flags(&mut flags, &scope)?;
        let constants = writing.constants(self)?;
        let dtypes = writing.dtypes(self, &args)?;

        let written = writing.outputs(&args);
        if written.len() != statement.targets.len() {
            let found = format!("{} names before `=`", statement.targets.len());
            return Err(writing.wrong(&format!("{}, as many as the op gives", written.len()), &found).into());
        }
        let known = known(&dims, &flags, &dtypes);
        let mut outputs = Vec::new();
        for (arg, target) in written.into_iter().zip(&statement.targets) {
            let dtype = match &arg.dtype {
                ArgDtype::Fixed(dtype) => *dtype,
                ArgDtype::Named(name) => dtypes.get(name).copied().unwrap_or(Dtype::F32),
                ArgDtype::Activation => self.options.precision.activation(),
                ArgDtype::Parameter { .. } => unreachable!("what is written is in no blocks"),
            };
            let shape = writing.shape(arg, &known)?;
            let tensor = if parts {
                self.part_of_sum().0
            } else {
                self.graph.activation(format!("{label}.{}", arg.name), dtype)
            };
            args.insert(arg.name.clone(), Bound { tensor, shape: None });
            outputs.push((target.clone(), Value { tensor, shape, from: Some(i) }));
        }
        writing.check_shapes(self.graph, &args, &known)?;
        let node = Node {
            label: label.clone(),
            args: args.into_iter().map(|(name, bound)| (name, bound.tensor)).collect(),
            scalars: state.scalars,
            ..self.graph.empty_node(&statement.op)
        };
        self.graph.nodes.push(node);
        let problem = &mut self.graph.nodes.last_mut().expect("just added").problem;
        (problem.dims, problem.flags, problem.constants, problem.dtypes) = (dims, flags, constants, dtypes);
        if parts {
            let [(_, value)] = outputs.as_mut_slice() else {
                return Err(writing
                    .wrong("an op that gives one tensor, where devices share its weights", "more")
                    .into());
            };
            let (_, sum) = self.part_of_sum();
            value.tensor = self.summed(sum, &label, statement.residual.is_some());
        }
        values.named.extend(outputs);
        Ok(())
    }

    /// The node's name: its weights', or its op's after the part of the layer that the last weights are of; a second
    /// one of the same in a layer has a number.
    fn label(&mut self, writing: &Writing<'_>) -> String {
        let weights = writing.statement.args.iter().find_map(|arg| match (&arg.name, &arg.operand) {
            (None, Operand::Weights(name)) => Some(name.as_str()),
            _ => None,
        });
        if let Some((part, _)) = weights.and_then(|name| name.rsplit_once('.')) {
            self.part = part.to_owned();
        }
        let name = match weights {
            Some(name) => name.to_owned(),
            None if self.part.is_empty() => writing.statement.op.clone(),
            None => format!("{}.{}", self.part, writing.statement.op),
        };
        let label = writing.layer.map_or_else(|| name.clone(), |l| format!("block.{l}.{name}"));
        let is_taken = |label: &String| self.graph.nodes.iter().rev().take(100).any(|node| node.label == *label);
        let numbered = (2..).map(|n| format!("{label}.{n}"));
        std::iter::once(label.clone()).chain(numbered).find(|label| !is_taken(label)).expect("numbers have no end")
    }
}

impl Values {
    /// What a statement before gave.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.named.get(name)?.clone();
        self.used.extend(value.from);
        Some(value)
    }
}
