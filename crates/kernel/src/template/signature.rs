//! The contracts of one op, or of a run of fused ops, as one: the arguments of a kernel, in order.
//!
//! Fused ops: a `write` argument and the next op's first argument are the same tensor and vanish; the remaining
//! arguments follow in order, scalars of the same name once. A dim, constant, flag or dtype of the same name in two
//! ops is one. Of two tensors of the same name, the later one gets its op's name in front: `rmsnorm_scale`. A kept
//! tensor, which other nodes need, comes last, named by its op and its own name. A tensor that the next op changes in
//! place does not vanish: the run's result in it is an output, under the next op's name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Value;

use super::Problem;
use super::contract::{Access, Arg, ArgDtype, Contract, Numerics, TestShape};
use super::library_error::LibraryError;
use expression::Scope;
use format::Dtype;

/// The merged contract that a template's kernel obeys.
#[derive(Clone, Debug)]
pub struct Signature {
    pub ops: Vec<String>,
    /// `u32` values known when the kernel is rendered.
    pub(crate) dims: BTreeSet<String>,
    /// `f32` values known when the kernel is rendered.
    pub(crate) constants: BTreeSet<String>,
    /// Booleans known when the kernel is rendered.
    pub(crate) flags: BTreeSet<String>,
    /// Named element types and what they may be.
    pub dtypes: BTreeMap<String, Vec<Dtype>>,
    /// The arguments, in order. Those with a `when` may be absent from a kernel.
    pub args: Vec<Arg>,
    /// The tensors between the ops, in order: one fewer than ops.
    pub joints: Vec<Joint>,
    /// The loosest tolerance of the ops.
    pub(crate) numerics: Numerics,
    /// The shapes of the run's own, instead of those of its ops.
    pub(crate) own_tests: Option<Vec<TestShape>>,
    contracts: Vec<Arc<Contract>>,
    /// The arguments that are not under their names, as an earlier op has one of the name: number of the op, and name.
    renamed: BTreeSet<(usize, String)>,
}

/// A tensor that an op of a run hands to the next.
#[derive(Clone, Debug)]
pub struct Joint {
    /// Op and argument that write it: `rmsnorm.y`.
    pub path: String,
    /// As the earlier op writes it.
    pub written: Arg,
    /// As the later op takes it.
    pub taken: Arg,
}

impl Joint {
    /// Its name as an argument, where it is kept: `rmsnorm_y`.
    pub fn kept_name(&self) -> String {
        self.path.replace('.', "_")
    }

    /// Whether the later op changes it in place: what it leaves there is the run's to write.
    pub fn is_changed(&self) -> bool {
        self.taken.access == Access::ReadWrite
    }
}

impl Signature {
    /// Joins contracts, in the order of the ops.
    ///
    /// # Errors
    /// If the ops cannot be fused: the earlier one writes no tensor or several, the next one does not begin with
    /// a tensor of that rank, a name is a tensor's and a scalar's or three tensors', or two dtypes of one name have
    /// nothing in common.
    ///
    /// # Panics
    /// If there is no contract.
    pub fn join(contracts: &[Arc<Contract>]) -> Result<Self, LibraryError> {
        let mut signature = Self::single(&contracts[0]);
        for next in &contracts[1..] {
            signature.append(next)?;
        }
        Ok(signature)
    }

    /// Makes the tensor between two ops an output that the kernel still writes.
    ///
    /// # Errors
    /// If there is no such tensor, or an argument has its name; says what was expected.
    pub fn keep(&mut self, path: &str) -> Result<(), String> {
        let vanished = || self.joints.iter().filter(|joint| !joint.is_changed());
        let Some(joint) = vanished().find(|joint| joint.path == path) else {
            let known: Vec<&str> = vanished().map(|joint| joint.path.as_str()).collect();
            return Err(format!("a tensor between its ops: {}", known.join(", ")));
        };
        let name = joint.kept_name();
        if self.args.iter().any(|arg| arg.name == name) {
            return Err(format!("no argument `{name}` beside it"));
        }
        self.args.push(Arg { name, may_alias: None, ..joint.written.clone() });
        Ok(())
    }

    /// What an argument of the i-th op is called in the run.
    pub fn name_in_run(&self, i: usize, arg: &str) -> String {
        let is_renamed = self.renamed.contains(&(i, arg.to_owned()));
        if is_renamed { format!("{}_{arg}", self.ops[i]) } else { arg.to_owned() }
    }

    /// The arguments that may be in a format with blocks, each with the name that stands for its pointers in the body
    /// of a template.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = (String, &Arg)> {
        let has_parts = |arg: &&Arg| self.args.iter().any(|other| other.part_of.as_ref() == Some(&arg.name));
        self.args.iter().filter(has_parts).map(|arg| (format!("{}_pointers", arg.name), arg))
    }

    /// The names that `when` conditions may use: dims, flags and dtypes.
    pub(crate) fn condition_names(&self) -> BTreeSet<String> {
        self.dims.iter().chain(&self.flags).chain(self.dtypes.keys()).cloned().collect()
    }

    /// Whether a name is a dim, flag, dtype or constant.
    pub(super) fn declares(&self, name: &str) -> bool {
        self.constants.contains(name) || self.condition_names().contains(name)
    }

    /// The scalar arguments that shapes and launch expressions may use.
    pub(crate) fn scalar_names(&self) -> impl Iterator<Item = &String> {
        let is_whole = |arg: &&Arg| arg.is_scalar() && arg.dtype != ArgDtype::Fixed(Dtype::F32);
        self.args.iter().filter(is_whole).map(|arg| &arg.name)
    }

    /// Whether a named type is part of a problem: one that absent arguments alone have is not.
    pub(crate) fn has_dtype(&self, name: &str, problem: &Problem) -> bool {
        let between = self.joints.iter().flat_map(|joint| [&joint.written, &joint.taken]);
        let is_its_type = |arg: &&Arg| matches!(&arg.dtype, ArgDtype::Named(own) if own == name);
        let mut of_type = self.args.iter().chain(between).filter(is_its_type).peekable();
        // A condition that cannot be evaluated is told where arguments are listed.
        of_type.peek().is_none() || of_type.any(|arg| arg.is_there(problem).unwrap_or(true))
    }

    /// Takes the named types out of a problem that absent arguments alone have.
    pub fn drop_absent_dtypes(&self, problem: &mut Problem) {
        let absent: Vec<&String> = self.dtypes.keys().filter(|name| !self.has_dtype(name, problem)).collect();
        for name in absent {
            problem.dtypes.remove(name);
        }
    }

    /// Whether a problem gives exactly what the contracts declare: every dim, constant and flag, and the named types of
    /// the arguments that are there. The error says what is expected and found.
    ///
    /// # Errors
    /// The first table or dtype that does not agree.
    pub fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        let dtypes = self.dtypes.keys().filter(|name| self.has_dtype(name, problem));
        let tables: [(&'static str, BTreeSet<&String>, BTreeSet<&String>); 4] = [
            ("dims", self.dims.iter().collect(), problem.dims.keys().collect()),
            ("constants", self.constants.iter().collect(), problem.constants.keys().collect()),
            ("flags", self.flags.iter().collect(), problem.flags.keys().collect()),
            ("dtypes", dtypes.collect(), problem.dtypes.keys().collect()),
        ];
        for (table, declared, given) in tables {
            if declared != given {
                let list = |names: BTreeSet<&String>| names.into_iter().cloned().collect::<Vec<_>>().join(", ");
                return Err(ProblemError { item: table.into(), expected: list(declared), found: list(given) });
            }
        }
        for (name, &found) in &problem.dtypes {
            let allowed = &self.dtypes[name];
            if !allowed.contains(&found) {
                let expected = allowed.iter().map(|d| d.name()).collect::<Vec<_>>().join(" or ");
                return Err(ProblemError { item: format!("dtype `{name}`"), expected, found: found.to_string() });
            }
        }
        self.check_joints(problem)
    }

    /// The run's own tests; without them those of the single ops, joined: the first shape of each op, and so on; a dim
    /// of a vanished tensor takes the earlier op's value. For one op: its tests.
    pub fn tests(&self) -> Vec<TestShape> {
        if let Some(own) = &self.own_tests {
            return own.clone();
        }
        let [_, _, ..] = self.contracts.as_slice() else { return self.contracts[0].tests.clone() };
        let count = self.contracts.iter().map(|contract| contract.tests.len()).min().unwrap_or(0);
        (0..count).map(|i| self.joined_test(i)).collect()
    }

    /// The values of a problem that expressions see: dims, flags and dtypes.
    pub(crate) fn scope(problem: &Problem) -> BTreeMap<String, Value> {
        let dims = problem.dims.iter().map(|(name, &value)| (name.clone(), Value::from(value)));
        let flags = problem.flags.iter().map(|(name, &value)| (name.clone(), Value::from(value)));
        let dtypes = problem.dtypes.iter().map(|(name, value)| (name.clone(), Value::from(value.name())));
        dims.chain(flags).chain(dtypes).collect()
    }

    fn single(contract: &Arc<Contract>) -> Self {
        Self {
            ops: vec![contract.op.clone()],
            dims: contract.dims.keys().cloned().collect(),
            constants: contract.constants.keys().cloned().collect(),
            flags: contract.flags.keys().cloned().collect(),
            dtypes: contract.dtypes.clone(),
            args: contract.args.clone(),
            joints: Vec::new(),
            numerics: contract.numerics,
            own_tests: None,
            contracts: vec![Arc::clone(contract)],
            renamed: BTreeSet::new(),
        }
    }

    fn append(&mut self, next: &Arc<Contract>) -> Result<(), LibraryError> {
        let refuse = |why: String| LibraryError::Fusion {
            place: next.file.place(0),
            first: self.ops.join("+"),
            second: next.op.clone(),
            why,
        };
        let joint = self.joint(next).map_err(refuse)?;
        let (written, mut args) = (joint.written.name.clone(), self.args.clone());
        args.retain(|arg| arg.name != written);
        let changed = joint.is_changed().then(|| Arg { access: Access::Write, ..joint.taken.clone() });
        let mut renamed = BTreeSet::new();
        for arg in changed.iter().chain(&next.args[1..]) {
            let of_name = |name: &str| args.iter().find(|other| other.name == name);
            let own_name = format!("{}_{}", next.op, arg.name);
            let is_renamed = |whole: &String| renamed.contains(&(self.ops.len(), whole.clone()));
            let renamed_whole =
                |whole: &String| if is_renamed(whole) { format!("{}_{whole}", next.op) } else { whole.clone() };
            let arg = &Arg { part_of: arg.part_of.as_ref().map(renamed_whole), ..arg.clone() };
            match of_name(&arg.name) {
                Some(other) if other.is_scalar() && arg.is_scalar() && other.dtype == arg.dtype => {}
                Some(other) if !other.is_scalar() && !arg.is_scalar() && of_name(&own_name).is_none() => {
                    renamed.insert((self.ops.len(), arg.name.clone()));
                    args.push(Arg { name: own_name, ..arg.clone() });
                }
                Some(_) => return Err(refuse(format!("both have an argument `{}`", arg.name))),
                None => args.push(arg.clone()),
            }
        }
        let mut dtypes = self.dtypes.clone();
        for (name, allowed) in &next.dtypes {
            let both = dtypes.entry(name.clone()).or_insert_with(|| allowed.clone());
            both.retain(|dtype| allowed.contains(dtype));
            if both.is_empty() {
                return Err(refuse(format!("the dtype `{name}` of one is never that of the other")));
            }
        }
        forget_alias(&mut args, &written, &next.args[0].name);
        self.ops.push(next.op.clone());
        self.dims.extend(next.dims.keys().cloned());
        self.constants.extend(next.constants.keys().cloned());
        self.flags.extend(next.flags.keys().cloned());
        self.numerics.f32 = self.numerics.f32.max(next.numerics.f32);
        self.numerics.bf16 = self.numerics.bf16.max(next.numerics.bf16);
        (self.args, self.dtypes) = (args, dtypes);
        self.renamed.append(&mut renamed);
        self.joints.push(joint);
        self.contracts.push(Arc::clone(next));
        Ok(())
    }

    /// The tensor that the ops so far write and the next one takes.
    fn joint(&self, next: &Contract) -> Result<Joint, String> {
        let last = self.contracts.last().expect("there is a first contract");
        let taken = next.args.first().filter(|arg| !arg.is_scalar() && arg.when.is_none());
        let Some(taken) = taken else { return Err(format!("`{}` does not begin with a tensor", next.op)) };
        let always_written = |arg: &&Arg| arg.access == Access::Write && arg.when.is_none();
        let all: Vec<&Arg> = last.args.iter().filter(always_written).collect();
        let only = if let [one] = all.as_slice() { Some(*one) } else { None };
        let Some(written) = all.iter().copied().find(|arg| arg.name == taken.name).or(only) else {
            return Err(format!(
                "`{}` has {} arguments with `access = \"write\"` and without `when`, expected one, or a `{}` among them",
                last.op,
                all.len(),
                taken.name
            ));
        };
        let rank = |arg: &Arg| arg.shape.as_ref().map_or(0, Vec::len);
        if rank(written) != rank(taken) {
            return Err(format!(
                "`{}` of {} has {} axes and `{}` of {} has {}",
                written.name,
                last.op,
                rank(written),
                taken.name,
                next.op,
                rank(taken)
            ));
        }
        match (&written.dtype, &taken.dtype) {
            (ArgDtype::Fixed(a), ArgDtype::Fixed(b)) if a != b => {
                Err(format!("`{}` of {} is {a} and `{}` of {} is {b}", written.name, last.op, taken.name, next.op))
            }
            _ => Ok(Joint {
                path: format!("{}.{}", last.op, written.name),
                written: written.clone(),
                taken: taken.clone(),
            }),
        }
    }

    /// The two sides of a tensor that vanished must agree, as far as is known before launch.
    fn check_joints(&self, problem: &Problem) -> Result<(), ProblemError> {
        let scope = Arc::new(Scope::new(Self::scope(problem)));
        for Joint { written, taken, .. } in &self.joints {
            let (a, b) = (written.dtype.resolve(problem), taken.dtype.resolve(problem));
            if a != b {
                let name = |dtype: Option<Dtype>| dtype.map_or("none".to_owned(), |dtype| dtype.to_string());
                return Err(ProblemError {
                    item: format!("dtype of `{}`", taken.name),
                    expected: name(a),
                    found: name(b),
                });
            }
            for (a, b) in written.shape.iter().flatten().zip(taken.shape.iter().flatten()) {
                let (Ok(expected), Ok(found)) = (a.whole(&scope), b.whole(&scope)) else { continue };
                if expected != found {
                    let item = format!("`{}`, which is `{}` of the op before", b.text(), a.text());
                    return Err(ProblemError { item, expected: expected.to_string(), found: found.to_string() });
                }
            }
        }
        Ok(())
    }

    fn joined_test(&self, i: usize) -> TestShape {
        let mut joined = TestShape::default();
        for contract in self.contracts.iter().rev() {
            let test = contract.tests[i].clone();
            joined.dims.extend(test.dims);
            joined.constants.extend(test.constants);
            joined.flags.extend(test.flags);
            joined.inputs = test.inputs.or(joined.inputs);
            joined.scalars.extend(test.scalars);
        }
        for Joint { written, taken, .. } in &self.joints {
            for (a, b) in written.shape.iter().flatten().zip(taken.shape.iter().flatten()) {
                if let (Some(&value), true) = (joined.dims.get(a.text()), joined.dims.contains_key(b.text())) {
                    joined.dims.insert(b.text().to_owned(), value);
                }
            }
        }
        joined
    }
}

/// A tensor that vanished can be no alias.
fn forget_alias(args: &mut [Arg], written: &str, taken: &str) {
    let names: BTreeSet<String> = args.iter().map(|arg| arg.name.clone()).collect();
    for arg in args {
        if arg.may_alias.as_ref().is_some_and(|alias| !names.contains(alias) || alias == written || alias == taken) {
            arg.may_alias = None;
        }
    }
}

/// A problem that does not give what the contracts declare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{item}: expected {expected}, found {found}")]
pub struct ProblemError {
    /// What does not agree: a table, a dtype, a dim.
    pub(crate) item: String,
    /// What the contract declares.
    pub(crate) expected: String,
    /// What the problem gives.
    pub(crate) found: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Precision;
    use crate::template::library::{Layer, Library};

    #[test]
    fn a_type_of_absent_arguments_alone_is_not_part_of_a_problem() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let contract = Arc::clone(library.contract("attention").expect("built in"));
        let signature = Signature::join(&[contract]).expect("one op");
        let problem = |has_sinks: bool, dtypes: &[&str]| Problem {
            dims: signature.dims.iter().map(|name| (name.clone(), 8)).collect(),
            flags: [("has_sinks", has_sinks), ("matrix_layout", true)].map(|(name, flag)| (name.into(), flag)).into(),
            dtypes: dtypes.iter().map(|name| ((*name).to_owned(), Dtype::F32)).collect(),
            ..Problem::plain("attention", Precision::F32)
        };
        assert_eq!(signature.check(&problem(true, &["kv", "sinks"])), Ok(()));
        assert_eq!(signature.check(&problem(false, &["kv"])), Ok(()));
        let refused = |problem: &Problem| signature.check(problem).expect_err("refused").to_string();
        assert_eq!(refused(&problem(true, &["kv"])), "dtypes: expected kv, sinks, found kv");
        assert_eq!(refused(&problem(false, &["kv", "sinks"])), "dtypes: expected kv, found kv, sinks");
        assert_eq!(refused(&problem(false, &[])), "dtypes: expected kv, found ");
        for (has_sinks, left) in [(true, &["kv", "sinks"][..]), (false, &["kv"])] {
            let mut given = problem(has_sinks, &["kv", "sinks"]);
            signature.drop_absent_dtypes(&mut given);
            assert_eq!(given, problem(has_sinks, left));
        }
    }

    #[test]
    fn what_the_next_op_changes_in_place_is_an_output_and_cannot_be_kept() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let contracts = ["rmsnorm", "linear", "rope_kv"].map(|op| Arc::clone(library.contract(op).expect("built in")));
        let mut signature = Signature::join(&contracts).expect("they can be fused");
        assert!(signature.args.iter().all(|arg| arg.name != "y"));
        let qkv = signature.args.iter().find(|arg| arg.name == "qkv").expect("an output");
        assert_eq!(qkv.access, Access::Write);
        assert_eq!(signature.joints.iter().map(Joint::is_changed).collect::<Vec<_>>(), [false, true]);
        assert_eq!(signature.keep("linear.y"), Err("a tensor between its ops: rmsnorm.y".to_owned()));
    }
}
