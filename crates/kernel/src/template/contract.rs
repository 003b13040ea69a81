//! What an op is: the contract in its `op.toml`.
//!
//! This file reads and checks one contract; [`super::signature`] joins the contracts of fused ops, and
//! [`crate::template`] reads a template's own declarations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::declaration::{ArgTable, Toml};
use super::formats;
use super::library_error::LibraryError;
use super::signature::Signature;
use super::work::{WorkSpec, WorkTable};
use super::{Precision, Problem};
use data::{Place, SourceFile};
use expression::{Expression, ExpressionError, Scope};
use format::Dtype;

/// An op: its arguments, what is known of it at render time, its numerics and the shapes that are tested.
#[derive(Clone, Debug)]
pub struct Contract {
    /// The op's name, which is its folder's.
    pub op: String,
    /// The `op.toml`.
    pub file: SourceFile,
    /// `u32` values known when a kernel is rendered, with their meaning.
    pub dims: BTreeMap<String, String>,
    /// `f32` values known when a kernel is rendered, with their meaning.
    pub constants: BTreeMap<String, String>,
    /// Booleans known when a kernel is rendered, with their meaning.
    pub flags: BTreeMap<String, String>,
    /// Element types that depend on the checkpoint or the precision, with what they may be.
    pub(crate) dtypes: BTreeMap<String, Vec<Dtype>>,
    /// In the order of the kernel's arguments: those that are declared, and the parameters of their formats.
    pub args: Vec<Arg>,
    /// How far a kernel may be from the f64 reference.
    pub(crate) numerics: Numerics,
    /// What a launch has to do at least.
    pub work: WorkSpec,
    /// The shapes that are tested.
    pub(crate) tests: Vec<TestShape>,
}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub struct Arg {
    /// Its name in the kernel's signature.
    pub name: String,
    /// The type of its elements, or of the scalar.
    pub dtype: ArgDtype,
    /// Elements per axis, row-major, outermost first; `None` for a scalar, which is passed by value.
    pub shape: Option<Vec<Expression>>,
    /// How the kernel accesses it.
    pub access: Access,
    /// The argument exists only where this holds.
    pub when: Option<Expression>,
    /// The argument that may be the same memory.
    pub(crate) may_alias: Option<String>,
    /// Workspace only: its memory is zero before every launch, and the kernel leaves it zero.
    pub(crate) is_zeroed: bool,
    /// Whether it is the model's: nothing writes it while the model runs.
    pub is_weights: bool,
    /// The argument whose blocks it holds a parameter of.
    pub(crate) part_of: Option<String>,
    /// Where it is declared.
    pub(crate) place: Place,
}

impl Arg {
    /// Whether it is passed by value.
    pub fn is_scalar(&self) -> bool {
        self.shape.is_none()
    }

    /// Whether a problem has it.
    ///
    /// # Errors
    /// If its `when` is neither true nor false.
    pub fn is_there(&self, problem: &Problem) -> Result<bool, ExpressionError> {
        let scope = Arc::new(Scope::new(Signature::scope(problem)));
        self.when.as_ref().map_or(Ok(true), |when| when.holds(&scope))
    }
}

/// The element type of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgDtype {
    Fixed(Dtype),
    /// A name from `[dtypes]`.
    Named(String),
    /// A parameter of the blocks of an argument, in the format that a name from `[dtypes]` stands for.
    Parameter {
        /// The name from `[dtypes]`.
        of: String,
        /// The parameter's name in the format.
        name: &'static str,
    },
    /// `activation`: what kernels hand to each other in the type that the precision gives them.
    Activation,
}

impl ArgDtype {
    /// The type in a problem; `None` if it is named and the problem does not tell it, or its format has no such
    /// parameter.
    pub fn resolve(&self, problem: &Problem) -> Option<Dtype> {
        match self {
            Self::Fixed(dtype) => Some(*dtype),
            Self::Named(name) => problem.dtypes.get(name).copied(),
            Self::Parameter { of, name } => Some(problem.dtypes.get(of)?.format()?.parameter(name)?.dtype),
            Self::Activation => Some(problem.precision.activation()),
        }
    }
}

/// What a kernel does to an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    #[default]
    Read,
    /// Writes every element and reads none that it has not written.
    Write,
    ReadWrite,
}

impl Access {
    /// The name in `op.toml` and in an ABI string.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read_write",
        }
    }
}

/// A bound on the difference from the reference: `|got - want| <= atol + rtol * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    pub rtol: f64,
    pub atol: f64,
}

impl Tolerance {
    /// The looser of two in each part.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { rtol: self.rtol.max(other.rtol), atol: self.atol.max(other.atol) }
    }
}

/// A tolerance for each precision.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Numerics {
    pub(crate) f32: Tolerance,
    pub(crate) bf16: Tolerance,
}

impl Numerics {
    /// The tolerance at a precision.
    pub(crate) const fn at(&self, precision: Precision) -> Tolerance {
        match precision {
            Precision::F32 => self.f32,
            Precision::Bf16 => self.bf16,
        }
    }
}

/// A shape that `kernels check` and the test suite run, at every dtype that the contract allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestShape {
    pub dims: BTreeMap<String, u32>,
    pub constants: BTreeMap<String, f32>,
    pub flags: BTreeMap<String, bool>,
    /// A kind of random inputs that the op's reference knows by this name; without one, its usual mixture.
    pub inputs: Option<String>,
    /// Every scalar argument, with the values to run. Whole numbers up to 2^53 are exact.
    pub scalars: BTreeMap<String, OneOrSeveral<f64>>,
}

/// A `[[tests]]` entry: a [`TestShape`] for every combination of the values of its flags.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestTable {
    #[serde(default)]
    dims: BTreeMap<String, u32>,
    #[serde(default)]
    constants: BTreeMap<String, f32>,
    #[serde(default)]
    flags: BTreeMap<String, OneOrSeveral<bool>>,
    inputs: Option<String>,
    #[serde(default)]
    scalars: BTreeMap<String, OneOrSeveral<f64>>,
}

impl TestTable {
    fn shapes(&self) -> Vec<TestShape> {
        let Self { dims, constants, inputs, scalars, .. } = self.clone();
        let mut shapes = vec![TestShape { dims, constants, flags: BTreeMap::new(), inputs, scalars }];
        for (name, values) in &self.flags {
            let with = |value: &bool| shapes.iter().map(|shape| shape.with_flag(name, *value)).collect::<Vec<_>>();
            shapes = values.values().iter().flat_map(with).collect();
        }
        shapes
    }
}

impl TestShape {
    fn with_flag(&self, name: &str, value: bool) -> Self {
        let mut shape = self.clone();
        shape.flags.insert(name.to_owned(), value);
        shape
    }
}

/// One value of a test's flag or scalar argument, or several to run one after the other.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrSeveral<T> {
    One(T),
    Several(Vec<T>),
}

impl<T> OneOrSeveral<T> {
    /// The values, in the order of the file.
    pub fn values(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContractTable {
    #[serde(rename = "summary")]
    _summary: String,
    #[serde(default)]
    dims: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    constants: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    flags: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    dtypes: BTreeMap<String, Spanned<Vec<Dtype>>>,
    args: Vec<ArgTable>,
    numerics: Numerics,
    #[serde(default)]
    work: WorkTable,
    #[serde(default)]
    tests: Vec<Spanned<TestTable>>,
}

impl Contract {
    /// Reads and checks an `op.toml`; `op` is its folder's name.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub(crate) fn parse(op: &str, file: &SourceFile) -> Result<Self, LibraryError> {
        let toml = Toml { file, base: 0, what: "contract" };
        let table: ContractTable = toml.parse(&file.text)?;
        check_names(&toml, &table)?;
        let dtypes = dtypes(&toml, &table)?;
        let conditions = names_of_conditions(&table);
        let mut known = conditions.clone();
        for arg in table.args.iter().filter(|arg| arg.shape.is_none() && arg.dtype.get_ref() != "f32") {
            known.insert(arg.name.get_ref().clone());
        }
        let args: Vec<Arg> =
            table.args.iter().map(|arg| toml.arg(arg, &dtypes, &conditions, &known)).collect::<Result<_, _>>()?;
        if let Some(arg) = args.iter().find(|arg| arg.is_zeroed) {
            let (place, item) = (arg.place.clone(), format!("`zeroed` of `{}`", arg.name));
            let (expected, found) = ("it in a template's [[workspace]] only".into(), "it in a contract".into());
            return Err(LibraryError::Declaration { place, item, expected, found });
        }
        check_aliases(&toml, &table, &args)?;
        let args = with_parameters(args, &dtypes)?;
        let tensors = args.iter().filter(|arg| !arg.is_scalar()).map(|arg| arg.name.clone()).collect();
        let axes = table.dims.keys().chain(known.difference(&conditions)).cloned().collect();
        let mut work = table.work.read(&toml, &tensors, &known, &axes)?;
        for arg in &args {
            // Of what is touched in part, the parameters are touched in the same part.
            let of_whole = arg.part_of.as_ref().and_then(|whole| work.touched.get(whole)).cloned();
            work.touched.extend(of_whole.map(|entries| (arg.name.clone(), entries)));
        }
        let contract = Self {
            op: op.to_owned(),
            file: file.clone(),
            dims: values(table.dims),
            constants: values(table.constants),
            flags: values(table.flags),
            dtypes,
            args,
            numerics: table.numerics,
            work,
            tests: table.tests.iter().flat_map(|test| test.get_ref().shapes()).collect(),
        };
        let signature = Signature::join(&[Arc::new(contract.clone())]).expect("one op has nothing to be joined with");
        table.tests.iter().try_for_each(|test| check_test(&signature, &toml, test))?;
        Ok(contract)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestsTable {
    tests: Vec<Spanned<TestTable>>,
}

/// Reads the tests of a run of ops: its `tests.toml`.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub(super) fn run_tests(run: &Signature, file: &SourceFile) -> Result<Vec<TestShape>, LibraryError> {
    let toml = Toml { file, base: 0, what: "tests" };
    let table: TestsTable = toml.parse(&file.text)?;
    test_shapes(run, &toml, &table.tests)
}

/// The shapes of tests, each of which fits the contract.
///
/// # Errors
/// The first that does not, with its line.
pub(super) fn test_shapes(
    of: &Signature,
    toml: &Toml<'_>,
    tests: &[Spanned<TestTable>],
) -> Result<Vec<TestShape>, LibraryError> {
    tests.iter().try_for_each(|test| check_test(of, toml, test))?;
    Ok(tests.iter().flat_map(|test| test.get_ref().shapes()).collect())
}

/// A test gives every dim, constant, flag and scalar, and no other.
fn check_test(of: &Signature, toml: &Toml<'_>, test: &Spanned<TestTable>) -> Result<(), LibraryError> {
    let shape = test.get_ref();
    let scalars = of.args.iter().filter(|arg| arg.is_scalar()).map(|arg| &arg.name).collect();
    let tables: [(&str, BTreeSet<&String>, BTreeSet<&String>); 4] = [
        ("dims", of.dims.iter().collect(), shape.dims.keys().collect()),
        ("constants", of.constants.iter().collect(), shape.constants.keys().collect()),
        ("flags", of.flags.iter().collect(), shape.flags.keys().collect()),
        ("scalars", scalars, shape.scalars.keys().collect()),
    ];
    for (table, declared, given) in tables {
        if declared != given {
            let list =
                |names: BTreeSet<&String>| format!("{{{}}}", names.into_iter().cloned().collect::<Vec<_>>().join(", "));
            return Err(toml.refuse(test.span(), format!("a test's {table}"), list(declared), list(given)));
        }
    }
    Ok(())
}

fn values(table: BTreeMap<String, Spanned<String>>) -> BTreeMap<String, String> {
    table.into_iter().map(|(name, meaning)| (name, meaning.into_inner())).collect()
}

fn dtypes(toml: &Toml<'_>, table: &ContractTable) -> Result<BTreeMap<String, Vec<Dtype>>, LibraryError> {
    for (name, allowed) in &table.dtypes {
        if allowed.get_ref().is_empty() {
            return Err(toml.refuse(allowed.span(), format!("the dtype `{name}`"), "at least one type", "none"));
        }
    }
    Ok(table.dtypes.iter().map(|(name, allowed)| (name.clone(), allowed.get_ref().clone())).collect())
}

/// What `when` and `requires.when` may use: dims, flags and dtypes.
fn names_of_conditions(table: &ContractTable) -> BTreeSet<String> {
    table.dims.keys().chain(table.flags.keys()).chain(table.dtypes.keys()).cloned().collect()
}

fn check_names(toml: &Toml<'_>, table: &ContractTable) -> Result<(), LibraryError> {
    let tables = [("dim", &table.dims), ("constant", &table.constants), ("flag", &table.flags)];
    let mut names: Vec<(&str, &str, Range<usize>)> = Vec::new();
    for (what, table) in tables {
        names.extend(table.iter().map(|(name, meaning)| (what, name.as_str(), meaning.span())));
    }
    names.extend(table.dtypes.iter().map(|(name, allowed)| ("dtype", name.as_str(), allowed.span())));
    for arg in table.args.iter().filter(|arg| arg.shape.is_none()) {
        names.push(("scalar argument", arg.name.get_ref(), arg.name.span()));
    }
    let mut seen = BTreeSet::new();
    for (what, name, span) in names {
        toml.name(what, name, span.clone())?;
        if !seen.insert(name) {
            return Err(toml.refuse(span, what, "a name of its own", format!("`{name}`, which is declared twice")));
        }
    }
    Ok(())
}

/// The arguments, with the parameters of those that may be in formats with blocks.
fn with_parameters(args: Vec<Arg>, dtypes: &BTreeMap<String, Vec<Dtype>>) -> Result<Vec<Arg>, LibraryError> {
    let mut all: Vec<Arg> = Vec::new();
    for arg in args {
        for arg in formats::expanded(arg, dtypes)? {
            if all.iter().any(|other| other.name == arg.name) {
                return Err(LibraryError::Declaration {
                    place: arg.place.clone(),
                    item: "argument".into(),
                    expected: "a name of its own".into(),
                    found: format!("`{}`, which a parameter of another argument's format has", arg.name),
                });
            }
            all.push(arg);
        }
    }
    Ok(all)
}

fn check_aliases(toml: &Toml<'_>, table: &ContractTable, args: &[Arg]) -> Result<(), LibraryError> {
    let mut seen = BTreeSet::new();
    for row in &table.args {
        let name = row.name.get_ref();
        if !seen.insert(name) {
            return Err(toml.refuse(
                row.name.span(),
                "argument",
                "a name of its own",
                format!("`{name}`, which is declared twice"),
            ));
        }
        let Some(alias) = &row.may_alias else { continue };
        if alias.get_ref() == name || !args.iter().any(|arg| &arg.name == alias.get_ref() && !arg.is_scalar()) {
            let item = format!("`may_alias` of `{name}`");
            return Err(toml.refuse(alias.span(), item, "another tensor argument", format!("`{}`", alias.get_ref())));
        }
    }
    Ok(())
}
