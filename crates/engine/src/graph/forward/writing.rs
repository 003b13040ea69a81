//! Builds a node from a statement, its op's contract, and the given arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value as Known;

use super::statements::{Bound, PROBE, Values};
use super::{Forward, ForwardError};
use crate::graph::{Graph, Role};
use expression::Scope;
use format::Dtype;
use kernel::template::contract::{Access, Arg, ArgDtype, Contract};
use model::family::FamilyError;
use model::family::layer::{Operand, Statement};

pub(super) fn wrong(statement: &Statement, item: &str, expected: &str, found: &str) -> FamilyError {
    FamilyError::at(&statement.place, item, expected, found)
}

/// What expressions of a contract know.
pub(super) fn known(
    dims: &BTreeMap<String, u32>,
    flags: &BTreeMap<String, bool>,
    dtypes: &BTreeMap<String, Dtype>,
) -> Arc<Scope> {
    let dims = dims.iter().map(|(name, &value)| (name.clone(), Known::from(value)));
    let flags = flags.iter().map(|(name, &value)| (name.clone(), Known::from(value)));
    let dtypes = dtypes.iter().map(|(name, dtype)| (name.clone(), Known::from(dtype.name())));
    let scope = Scope::new(dims.chain(flags).chain(dtypes).collect());
    Arc::new(scope.with_scalars(&BTreeMap::from([("n_tokens".to_owned(), PROBE)])))
}

/// What a node has of the layer's cache.
#[derive(Default)]
pub(super) struct State {
    pub(crate) dims: BTreeMap<String, u32>,
    pub(crate) flags: BTreeMap<String, bool>,
    pub(crate) scalars: BTreeMap<String, u32>,
}

/// A statement that becomes a node.
#[derive(Clone, Copy)]
pub(super) struct Writing<'a> {
    pub(crate) statement: &'a Statement,
    pub(crate) contract: &'a Contract,
    pub(crate) layer: Option<usize>,
}

impl Writing<'_> {
    /// What is wrong with the statement, as an error.
    pub(crate) fn wrong(&self, expected: &str, found: &str) -> FamilyError {
        wrong(self.statement, &self.statement.op, expected, found)
    }

    /// The argument of this name.
    pub(crate) fn arg(&self, name: &str) -> Result<&Arg, FamilyError> {
        let found = self.contract.args.iter().find(|arg| arg.name == name && !arg.is_scalar());
        found.ok_or_else(|| {
            let names: Vec<&str> = self.tensors().map(|arg| arg.name.as_str()).collect();
            self.wrong(&format!("one of its arguments {}", names.join(", ")), &format!("`{name}`"))
        })
    }

    /// The arguments that take tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Arg> {
        self.contract.args.iter().filter(|arg| !arg.is_scalar())
    }

    /// What the statement gives.
    pub(crate) fn given(
        &self,
        pass: &mut Forward<'_>,
        values: &mut Values,
    ) -> Result<BTreeMap<String, Bound>, ForwardError> {
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

    /// The tensors for a name of weights; `of` is the argument's name, if the statement gives it.
    pub fn weights(
        &self,
        pass: &mut Forward<'_>,
        name: &str,
        of: Option<&str>,
        args: &mut BTreeMap<String, Bound>,
    ) -> Result<(), FamilyError> {
        let canonical = |name: &str| self.layer.map_or_else(|| name.to_owned(), |l| format!("block.{l}.{name}"));
        let mut bind = |pass: &mut Forward<'_>, arg: &Arg, canonical: &str| {
            let Some(tensor) = pass.checkpoint.tensors.get(canonical) else { return false };
            // Rows of blocks are padded to whole ones; the family says what they are without.
            let of_family = pass.config.family.tensor_or_whole(canonical);
            let of_family = of_family.map(|(tensor, _)| tensor.shape(&pass.config.scope()));
            let mut shape = tensor.shape.clone();
            if let (Some(_), Some(last), Some(of_family)) = (tensor.dtype.format(), shape.last_mut(), of_family) {
                *last = *of_family.last().expect("every tensor has a dimension");
            }
            let shape: Vec<u64> = shape.into_iter().map(|n| n as u64).collect();
            let names = tensor.dtype.named_parts(&arg.name).into_iter().map(|(name, _)| name);
            for (name, (part, dtype)) in names.zip(tensor.dtype.named_parts(canonical)) {
                let shape = (name == arg.name).then(|| shape.clone());
                args.insert(name, Bound { tensor: pass.graph.weight(part, dtype), shape });
            }
            true
        };
        if let Some(of) = of {
            bind(pass, self.arg(of)?, &canonical(name)); // where the model has no such tensor, the node has none
            return Ok(());
        }
        let mut n_bound = 0;
        // Parameters of blocks come with what they are of.
        let is_own = |arg: &&Arg| arg.is_weights && !matches!(arg.dtype, ArgDtype::Parameter { .. });
        for arg in self.tensors().filter(is_own) {
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
    pub(crate) fn found_by_name(
        &self,
        args: &mut BTreeMap<String, Bound>,
        values: &mut Values,
    ) -> Result<(), FamilyError> {
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
    pub(crate) fn state(
        &self,
        pass: &mut Forward<'_>,
        args: &mut BTreeMap<String, Bound>,
    ) -> Result<State, FamilyError> {
        if !self.tensors().any(|arg| arg.name == "k_cache") {
            return Ok(State::default());
        }
        let kv = pass.kv;
        let Some(l) = self.layer.filter(|&l| kv.has_positions(l)) else {
            return Err(self.wrong("a layer with an `attention`, whose cache this uses", "none"));
        };
        let group = kv.group_of_layer(l);
        let mut bind = |arg: &str, name: &str, dtype, n_elements| {
            let tensor = pass.graph.external(name, dtype, Role::Kept, n_elements);
            args.insert(arg.to_owned(), Bound { tensor, shape: None });
        };
        let table = format!("block_table.{}", kv.group_index(l));
        bind("block_table", &table, Dtype::U32, kv.n_slots * group.table_blocks);
        for tensor in kv.tensors(l) {
            bind(tensor.arg, &tensor.name, tensor.dtype, group.n_blocks * tensor.block_elements);
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
    pub(crate) fn dims(
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
    pub(crate) fn flags(&self, flags: &mut BTreeMap<String, bool>, scope: &Arc<Scope>) -> Result<(), ForwardError> {
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

    pub(crate) fn constants(&self, pass: &Forward<'_>) -> Result<BTreeMap<String, f32>, FamilyError> {
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
    pub(crate) fn dtypes(
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

    /// The arguments of the tensors that it gives.
    pub(crate) fn outputs(&self, args: &BTreeMap<String, Bound>) -> Vec<&Arg> {
        let is_output = |arg: &&Arg| arg.access == Access::Write && !args.contains_key(&arg.name);
        self.tensors().filter(is_output).collect()
    }

    /// An argument's shape in a step of [`PROBE`] rows.
    pub(crate) fn shape(&self, arg: &Arg, known: &Arc<Scope>) -> Result<Vec<u64>, FamilyError> {
        let shape = arg.shape.iter().flatten().map(|expression| expression.whole(known));
        Ok(shape.collect::<Result<_, _>>()?)
    }

    /// What is given has the shapes that the contract wants, which are of whole blocks, and its types.
    pub(crate) fn check_shapes(
        &self,
        graph: &Graph,
        args: &BTreeMap<String, Bound>,
        known: &Arc<Scope>,
    ) -> Result<(), FamilyError> {
        for arg in self.tensors() {
            let Some(Bound { tensor, shape: Some(found) }) = args.get(&arg.name) else { continue };
            let (expected, mut filled) = (self.shape(arg, known)?, found.clone());
            if let (Some(format), Some(last)) = (graph.tensor_of(*tensor).dtype.format(), filled.last_mut()) {
                *last = last.next_multiple_of(format.block[1] as u64);
            }
            if filled != expected {
                let text = |shape: &[u64]| {
                    let axis = |n: &u64| if *n == PROBE { "rows".to_owned() } else { n.to_string() };
                    format!("({})", shape.iter().map(axis).collect::<Vec<_>>().join(", "))
                };
                return Err(self.wrong(&format!("`{}` of shape {}", arg.name, text(&expected)), &text(found)));
            }
            let (dtype, way) = match arg.dtype {
                ArgDtype::Fixed(dtype) => (dtype, ""),
                ArgDtype::Activation => (graph.precision.activation(), ", which `narrow` makes of f32"),
                ArgDtype::Named(_) | ArgDtype::Parameter { .. } => continue,
            };
            let is = graph.tensor_of(*tensor).dtype;
            if is != dtype {
                return Err(self.wrong(&format!("`{}` of {dtype}{way}", arg.name), is.name()));
            }
        }
        Ok(())
    }
}
