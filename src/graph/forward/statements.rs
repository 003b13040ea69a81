//! A statement of the family's file as a node of the graph.
//!
//! What a node is follows from the statement, the op's contract and the model's tensors:
//!
//! - arguments: those that the statement gives, in the contract's order or by name; a weight's name stands for all
//!   tensors whose names go on behind it with an argument's name; what is not given is what the step or a statement
//!   before calls so
//! - flags: an argument that exists `when` a flag is set is there or is not
//! - dims: those that shapes of what is given tell; what the statement says; the model's dimensions of that name
//! - types: those of what is given
//! - of ops that have a cache's arguments, all that is the cache's

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Value as Known;

use super::{Forward, ForwardError};
use crate::dtype::Dtype;
use crate::family::layer::{Operand, Statement};
use crate::family::{FamilyError, in_layer};
use crate::graph::{Node, TensorId};
use crate::template::contract::{Access, Arg, ArgDtype, Contract};
use crate::template::expression::{Expression, Scope};

/// What a statement gave.
#[derive(Clone)]
struct Value {
    tensor: TensorId,
    /// Elements of each dimension in a step of [`PROBE`] rows.
    shape: Vec<u64>,
    /// The statement that gave it; `None` of what the layer is given.
    from: Option<usize>,
}

/// Rows of the step for which shapes are compared: a number that no dimension is likely to be.
const PROBE: u64 = 7919;

/// The names of a layer while it is written down.
struct Values {
    named: BTreeMap<String, Value>,
    used: BTreeSet<usize>,
}

/// An argument of a node.
#[derive(Clone)]
struct Bound {
    tensor: TensorId,
    shape: Option<Vec<u64>>,
}

impl Forward<'_> {
    /// What layer `l` makes of x.
    pub(super) fn layer(&mut self, l: usize, x: TensorId, cos_sin: TensorId) -> Result<TensorId, ForwardError> {
        let dims = self.config.scope();
        let forward = &self.config.family.forward;
        self.statements(forward.statements(&dims, l), Some(l), x, Some(cos_sin))
    }

    /// What is made of x behind the layers.
    pub(super) fn last(&mut self, x: TensorId) -> Result<TensorId, ForwardError> {
        self.statements(self.config.family.forward.last(), None, x, None)
    }

    fn statements(
        &mut self,
        statements: &[Statement],
        layer: Option<usize>,
        x: TensorId,
        cos_sin: Option<TensorId>,
    ) -> Result<TensorId, ForwardError> {
        let row = |tensor| Value { tensor, shape: vec![PROBE], from: None };
        let stream = Value { tensor: x, shape: vec![PROBE, self.config.hidden_size as u64], from: None };
        let mut named = BTreeMap::from([("x".to_owned(), stream)]);
        named.insert("slot".to_owned(), row(self.rows.slot));
        named.insert("position".to_owned(), row(self.rows.position));
        if let Some(tensor) = cos_sin {
            let shape = vec![PROBE, self.config.rope_dim() as u64];
            named.insert("cos_sin".to_owned(), Value { tensor, shape, from: None });
        }
        let mut values = Values { named, used: BTreeSet::new() };
        for (i, statement) in statements.iter().enumerate() {
            let contract = Arc::clone(self.library.contract(&statement.op)?);
            let writing = Writing { statement, contract: &contract, layer };
            self.statement(i, &writing, &mut values)?;
        }
        let x = values.named["x"].clone();
        values.used.extend(x.from);
        for (i, statement) in statements.iter().enumerate() {
            if !statement.targets.is_empty() && !values.used.contains(&i) {
                let found = "none".to_owned();
                let names = statement.targets.join(", ");
                return Err(wrong(statement, &names, "a statement behind it that uses it", &found).into());
            }
        }
        Ok(x.tensor)
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

        let (n_outputs, written) = writing.outputs(&args);
        if n_outputs != statement.targets.len() {
            let found = format!("{} names before `=`", statement.targets.len());
            return Err(writing.wrong(&format!("{n_outputs}, as many as the op gives"), &found).into());
        }
        let known = known(&dims, &flags, &dtypes);
        let mut outputs = Vec::new();
        for (arg, target) in written.into_iter().zip(&statement.targets) {
            let dtype = match &arg.dtype {
                ArgDtype::Fixed(dtype) => *dtype,
                ArgDtype::Named(name) => dtypes.get(name).copied().unwrap_or(Dtype::F32),
                ArgDtype::Activation => self.options.precision.activation(),
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
        writing.check_shapes(&args, &known)?;
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
            value.tensor = self.summed(sum, &label);
        }
        values.named.extend(outputs);
        Ok(())
    }

    /// The node's name: its weights', or its op's behind the part of the layer that the last weights are of; a second
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
    fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.named.get(name)?.clone();
        self.used.extend(value.from);
        Some(value)
    }
}

fn wrong(statement: &Statement, item: &str, expected: &str, found: &str) -> FamilyError {
    FamilyError::Declaration {
        place: statement.place.clone(),
        item: format!("`{item}`"),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

/// What expressions of a contract know.
fn known(dims: &BTreeMap<String, u32>, flags: &BTreeMap<String, bool>, dtypes: &BTreeMap<String, Dtype>) -> Arc<Scope> {
    let dims = dims.iter().map(|(name, &value)| (name.clone(), Known::from(value)));
    let flags = flags.iter().map(|(name, &value)| (name.clone(), Known::from(value)));
    let dtypes = dtypes.iter().map(|(name, dtype)| (name.clone(), Known::from(dtype.name())));
    let scope = Scope::new(dims.chain(flags).chain(dtypes).collect());
    Arc::new(scope.with_scalars(&BTreeMap::from([("n_tokens".to_owned(), PROBE)])))
}

/// What a node has of the layer's cache.
#[derive(Default)]
struct State {
    dims: BTreeMap<String, u32>,
    flags: BTreeMap<String, bool>,
    scalars: BTreeMap<String, u32>,
}

/// A statement that becomes a node.
#[derive(Clone, Copy)]
struct Writing<'a> {
    statement: &'a Statement,
    contract: &'a Contract,
    layer: Option<usize>,
}

impl Writing<'_> {
    fn wrong(&self, expected: &str, found: &str) -> FamilyError {
        wrong(self.statement, &self.statement.op, expected, found)
    }

    /// The argument of this name.
    fn arg(&self, name: &str) -> Result<&Arg, FamilyError> {
        let found = self.contract.args.iter().find(|arg| arg.name == name && !arg.is_scalar());
        found.ok_or_else(|| {
            let names: Vec<&str> = self.tensors().map(|arg| arg.name.as_str()).collect();
            self.wrong(&format!("one of its arguments {}", names.join(", ")), &format!("`{name}`"))
        })
    }

    /// What it takes tensors for.
    fn tensors(&self) -> impl Iterator<Item = &Arg> {
        self.contract.args.iter().filter(|arg| !arg.is_scalar())
    }

    /// What the statement gives.
    fn given(&self, pass: &mut Forward<'_>, values: &mut Values) -> Result<BTreeMap<String, Bound>, ForwardError> {
        let mut args = BTreeMap::new();
        for given in &self.statement.args {
            match (&given.operand, &given.name) {
                (Operand::Value(value), name) => {
                    let is_free =
                        |arg: &&Arg| arg.access != Access::Write && !arg.is_weights && !args.contains_key(&arg.name);
                    let arg = match name {
                        Some(name) => self.arg(name)?,
                        None => self.tensors().find(is_free).ok_or_else(|| self.wrong("fewer arguments", value))?,
                    };
                    let value = values.take(value).ok_or_else(|| self.wrong("a name that is given", value))?;
                    args.insert(arg.name.clone(), Bound { tensor: value.tensor, shape: Some(value.shape) });
                }
                (Operand::Weights(name), of) => self.weights(pass, name, of.as_deref(), &mut args)?,
                (_, Some(name)) => {
                    let Contract { dims, constants, flags, .. } = self.contract;
                    let is_known = dims.contains_key(name) || constants.contains_key(name) || flags.contains_key(name);
                    if !is_known {
                        let names = dims.keys().chain(constants.keys()).chain(flags.keys());
                        let names: Vec<&str> = names.map(String::as_str).collect();
                        let expected = format!("one of its dims, constants and flags {}", names.join(", "));
                        return Err(self.wrong(&expected, &format!("`{name}`")).into());
                    }
                }
                (_, None) => unreachable!("the file's reader saw that numbers have names"),
            }
        }
        Ok(args)
    }

    /// The tensors that a name of weights stands for; `of` is the argument's name where the statement says it.
    fn weights(
        &self,
        pass: &mut Forward<'_>,
        name: &str,
        of: Option<&str>,
        args: &mut BTreeMap<String, Bound>,
    ) -> Result<(), FamilyError> {
        let canonical = |name: &str| self.layer.map_or_else(|| name.to_owned(), |l| format!("block.{l}.{name}"));
        let mut bind = |pass: &mut Forward<'_>, arg: &Arg, canonical: &str| {
            let Some(tensor) = pass.checkpoint.tensors.get(canonical) else { return false };
            let shape = tensor.dtype.block_len().is_none().then(|| tensor.shape.iter().map(|&n| n as u64).collect());
            let bound = Bound { tensor: pass.graph.weight(canonical.to_owned(), tensor.dtype), shape };
            args.insert(arg.name.clone(), bound).is_none()
        };
        if let Some(of) = of {
            bind(pass, self.arg(of)?, &canonical(name)); // where the model has no such tensor, the node has none
            return Ok(());
        }
        let mut n_bound = 0;
        for arg in self.tensors().filter(|arg| arg.is_weights) {
            let names = [format!("{name}.{}", arg.name), format!("{name}_{}", arg.name)];
            n_bound += usize::from(names.iter().any(|name| bind(pass, arg, &canonical(name))));
        }
        if n_bound == 0 {
            let first = self.tensors().find(|arg| arg.is_weights && !args.contains_key(&arg.name));
            let first = first.ok_or_else(|| self.wrong("no weights", &format!("`{name}`")))?;
            let tensor = pass.checkpoint.tensors.get(&canonical(name));
            let tensor = tensor.ok_or_else(|| self.wrong("a tensor that the model has", &format!("`{name}`")))?;
            let shape = Some(tensor.shape.iter().map(|&n| n as u64).collect());
            args.insert(first.name.clone(), Bound { tensor: pass.graph.weight(canonical(name), tensor.dtype), shape });
        }
        // Nothing of the model is left out.
        let rest = pass.config.family.tensors_of(name).map(|tensor| tensor.name.as_str());
        for tensor in rest.filter(|tensor| pass.checkpoint.tensors.contains_key(&canonical(tensor))) {
            let is_taken = args.values().any(|bound| pass.graph.tensor_of(bound.tensor).name == canonical(tensor));
            if !is_taken {
                return Err(self.wrong("an argument for each of its tensors", &format!("none for `{tensor}`")));
            }
        }
        Ok(())
    }

    /// What is not given and is called as the argument is.
    fn found_by_name(&self, args: &mut BTreeMap<String, Bound>, values: &mut Values) -> Result<(), FamilyError> {
        for arg in self.tensors().filter(|arg| arg.access == Access::Read && !arg.is_weights) {
            if args.contains_key(&arg.name) || arg.name == "x" {
                continue;
            }
            if let Some(value) = values.take(&arg.name) {
                args.insert(arg.name.clone(), Bound { tensor: value.tensor, shape: Some(value.shape) });
            }
        }
        let of_cache = |arg: &&Arg| matches!(arg.name.as_str(), "block_table" | "k_cache" | "v_cache");
        let is_missing = |arg: &&Arg| {
            arg.access != Access::Write && arg.when.is_none() && !args.contains_key(&arg.name) && !of_cache(arg)
        };
        match self.tensors().find(is_missing) {
            Some(arg) => Err(self.wrong(&format!("an argument for `{}`", arg.name), "none")),
            None => Ok(()),
        }
    }

    /// What is the cache's, of an op that has its arguments.
    fn state(&self, pass: &mut Forward<'_>, args: &mut BTreeMap<String, Bound>) -> Result<State, FamilyError> {
        if !self.tensors().any(|arg| arg.name == "k_cache") {
            return Ok(State::default());
        }
        let kv = pass.kv;
        let Some(l) = self.layer.filter(|&l| kv.has_positions(l)) else {
            return Err(self.wrong("a layer with an `attention`, whose cache this uses", "none"));
        };
        let group = kv.group_of_layer(l);
        let names = [format!("block_table.{}", kv.group_index(l)), format!("k_cache.{l}"), format!("v_cache.{l}")];
        let dtypes = [Dtype::U32, kv.dtype, kv.dtype];
        for ((arg, name), dtype) in ["block_table", "k_cache", "v_cache"].into_iter().zip(names).zip(dtypes) {
            args.insert(arg.to_owned(), Bound { tensor: pass.graph.external(&name, dtype), shape: None });
        }
        let count = |n: usize| u32::try_from(n).expect("the cache's sizes were checked to fit 32 bits");
        let window = kv.window_of_layer(l).unwrap_or(0);
        let dims = [("block_tokens", kv.block_tokens), ("window", window)];
        let scalars = [("n_slots", kv.n_slots), ("table_blocks", group.table_blocks), ("n_blocks", group.n_blocks)];
        let numbers = |list: &[(&str, usize)]| list.iter().map(|&(name, n)| (name.to_owned(), count(n))).collect();
        Ok(State {
            dims: numbers(&dims),
            flags: BTreeMap::from([("matrix_layout".to_owned(), kv.matrix_layout)]),
            scalars: numbers(&scalars),
        })
    }

    /// The contract's dims.
    fn dims(
        &self,
        args: &BTreeMap<String, Bound>,
        state: BTreeMap<String, u32>,
        scope: &Arc<Scope>,
    ) -> Result<BTreeMap<String, u32>, ForwardError> {
        let mut dims = BTreeMap::new();
        for name in self.contract.dims.keys() {
            let told = self.tensors().find_map(|arg| {
                let (given, declared) = (args.get(&arg.name)?.shape.as_ref()?, arg.shape.as_ref()?);
                let axis = declared.iter().position(|expression| expression.text() == name)?;
                given.get(axis).copied()
            });
            let value = match (state.get(name), self.statement.operand(name)) {
                (Some(&value), _) => u64::from(value),
                (None, Some(Operand::Expression(expression))) => expression.whole(scope).map_err(FamilyError::from)?,
                (None, Some(_)) => return Err(self.wrong(&format!("a whole number for `{name}`"), "another").into()),
                (None, None) => {
                    let of_model = scope.get(name).and_then(|value| u64::try_from(value).ok());
                    told.or(of_model).ok_or_else(|| self.wrong(&format!("`{name} = …`"), "nothing that tells it"))?
                }
            };
            let value =
                u32::try_from(value).map_err(|_| self.wrong(&format!("`{name}` below 2^32"), &value.to_string()))?;
            dims.insert(name.clone(), value);
        }
        Ok(dims)
    }

    /// Those flags that neither an argument nor the cache tells.
    fn flags(&self, flags: &mut BTreeMap<String, bool>, scope: &Arc<Scope>) -> Result<(), ForwardError> {
        flags.retain(|name, _| self.contract.flags.contains_key(name));
        for name in self.contract.flags.keys() {
            if let Some(Operand::Expression(expression)) = self.statement.operand(name) {
                flags.insert(name.clone(), expression.holds(scope).map_err(FamilyError::from)?);
            }
            if !flags.contains_key(name) {
                return Err(self.wrong(&format!("`{name} = true` or `false`"), "neither").into());
            }
        }
        Ok(())
    }

    fn constants(&self, pass: &Forward<'_>) -> Result<BTreeMap<String, f32>, FamilyError> {
        let is_number = |name: &str| pass.config.family.numbers.iter().any(|number| number.name == name);
        let constant = |name: &String| {
            let value = match self.statement.operand(name) {
                Some(Operand::Number(number)) => *number,
                Some(Operand::NamedNumber(number)) => pass.config.number(number),
                None if is_number(name) => pass.config.number(name),
                _ => return Err(self.wrong(&format!("a number for `{name}`, such as `{name} = 1e-5`"), "none")),
            };
            Ok((name.clone(), value))
        };
        self.contract.constants.keys().map(constant).collect()
    }

    /// The types that the contract leaves open.
    fn dtypes(
        &self,
        pass: &Forward<'_>,
        args: &BTreeMap<String, Bound>,
    ) -> Result<BTreeMap<String, Dtype>, FamilyError> {
        let mut dtypes = BTreeMap::new();
        for arg in self.tensors() {
            let (ArgDtype::Named(name), Some(bound)) = (&arg.dtype, args.get(&arg.name)) else { continue };
            let dtype = pass.graph.tensor_of(bound.tensor).dtype;
            match dtypes.insert(name.clone(), dtype) {
                Some(other) if other != dtype => {
                    let expected = format!("tensors of one type for `{name}`");
                    return Err(self.wrong(&expected, &format!("{other} and {dtype}")));
                }
                _ => {}
            }
        }
        Ok(dtypes)
    }

    /// How many tensors it gives, and their arguments.
    fn outputs(&self, args: &BTreeMap<String, Bound>) -> (usize, Vec<&Arg>) {
        let is_output = |arg: &&Arg| arg.access == Access::Write && !args.contains_key(&arg.name);
        let outputs: Vec<&Arg> = self.tensors().filter(is_output).collect();
        (outputs.len(), outputs)
    }

    /// An argument's shape in a step of [`PROBE`] rows.
    fn shape(&self, arg: &Arg, known: &Arc<Scope>) -> Result<Vec<u64>, FamilyError> {
        let shape = arg.shape.iter().flatten().map(|expression| expression.whole(known));
        Ok(shape.collect::<Result<_, _>>()?)
    }

    /// What is given has the shapes that the contract wants.
    fn check_shapes(&self, args: &BTreeMap<String, Bound>, known: &Arc<Scope>) -> Result<(), FamilyError> {
        for arg in self.tensors() {
            let Some(found) = args.get(&arg.name).and_then(|bound| bound.shape.as_ref()) else { continue };
            let expected = self.shape(arg, known)?;
            if *found != expected {
                let text = |shape: &[u64]| {
                    let axis = |n: &u64| if *n == PROBE { "rows".to_owned() } else { n.to_string() };
                    format!("({})", shape.iter().map(axis).collect::<Vec<_>>().join(", "))
                };
                return Err(self.wrong(&format!("`{}` of shape {}", arg.name, text(&expected)), &text(found)));
            }
        }
        Ok(())
    }
}
