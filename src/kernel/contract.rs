//! What an op is: the contract in its `op.toml`.
//!
//! This file reads and checks one contract; [`super::signature`] joins the contracts of fused ops, and
//! [`super::template`] reads what a template says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::Precision;
use super::expression::Expression;
use super::library_error::LibraryError;
use super::source_file::{Place, SourceFile};
use crate::dtype::Dtype;

/// Names that the renderer defines; nothing else may have them.
pub const RESERVED: [&str; 20] = [
    "signature",
    "entry",
    "arch",
    "wave_size",
    "precision",
    "features",
    "block_size",
    "range",
    "ceil_div",
    "min",
    "max",
    "kernel",
    "scratch",
    "block_x",
    "block_y",
    "block_z",
    "args",
    "true",
    "false",
    "loop",
];

/// An op: its arguments, what is known of it at render time, its numerics and the shapes that are tested.
#[derive(Clone, Debug)]
pub struct Contract {
    /// The op's name, which is its folder's.
    pub op: String,
    /// The `op.toml`.
    pub file: SourceFile,
    /// The formula, in a line.
    pub summary: String,
    /// `u32` values known when a kernel is rendered, with their meaning.
    pub dims: BTreeMap<String, String>,
    /// `f32` values known when a kernel is rendered, with their meaning.
    pub constants: BTreeMap<String, String>,
    /// Booleans known when a kernel is rendered, with their meaning.
    pub flags: BTreeMap<String, String>,
    /// Element types that depend on the checkpoint or the precision, with what they may be.
    pub dtypes: BTreeMap<String, Vec<Dtype>>,
    /// In the order of the kernel's arguments.
    pub args: Vec<Arg>,
    /// How far a kernel may be from the f64 reference.
    pub numerics: Numerics,
    /// The shapes that are tested.
    pub tests: Vec<TestShape>,
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
    /// What the kernel does to it.
    pub access: Access,
    /// The argument exists only where this holds.
    pub when: Option<Expression>,
    /// The argument that may be the same memory.
    pub may_alias: Option<String>,
    /// Where it is declared.
    pub place: Place,
}

impl Arg {
    /// Whether it is passed by value.
    pub fn is_scalar(&self) -> bool {
        self.shape.is_none()
    }
}

/// The element type of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgDtype {
    /// Always the same.
    Fixed(Dtype),
    /// A name from `[dtypes]`.
    Named(String),
}

impl ArgDtype {
    /// The type, given the types of a problem; `None` if it is named and they do not tell it.
    pub fn resolve(&self, dtypes: &BTreeMap<String, Dtype>) -> Option<Dtype> {
        match self {
            Self::Fixed(dtype) => Some(*dtype),
            Self::Named(name) => dtypes.get(name).copied(),
        }
    }
}

/// What a kernel does to an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Only reads it.
    #[default]
    Read,
    /// Writes every element and reads none that it has not written.
    Write,
    /// Reads and writes.
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
    /// Relative part.
    pub rtol: f64,
    /// Absolute part.
    pub atol: f64,
}

impl Tolerance {
    /// The looser of two in each part.
    pub fn max(self, other: Self) -> Self {
        Self { rtol: self.rtol.max(other.rtol), atol: self.atol.max(other.atol) }
    }
}

/// A tolerance for each precision.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numerics {
    /// At precision `f32`.
    pub f32: Tolerance,
    /// At precision `bf16`.
    pub bf16: Tolerance,
}

impl Numerics {
    /// The tolerance at a precision.
    pub const fn at(&self, precision: Precision) -> Tolerance {
        match precision {
            Precision::F32 => self.f32,
            Precision::Bf16 => self.bf16,
        }
    }
}

/// A shape that `kernels check` and the test suite run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestShape {
    /// Every dim.
    #[serde(default)]
    pub dims: BTreeMap<String, u32>,
    /// Every constant.
    #[serde(default)]
    pub constants: BTreeMap<String, f32>,
    /// Every flag.
    #[serde(default)]
    pub flags: BTreeMap<String, bool>,
    /// Dtypes that are fixed in this test; the others run at all that the contract allows.
    #[serde(default)]
    pub dtypes: BTreeMap<String, Dtype>,
    /// Every scalar argument, with the values to run.
    #[serde(default)]
    pub scalars: BTreeMap<String, ScalarValues>,
}

/// One value of a scalar argument, or several to run one after the other.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum ScalarValues {
    /// One.
    One(f64),
    /// Several.
    Several(Vec<f64>),
}

impl ScalarValues {
    /// All of them. Whole numbers up to 2^53 are exact.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContractTable {
    summary: String,
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
    tests: Vec<Spanned<TestShape>>,
}

/// An entry of `[[args]]` or of `[[workspace]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgTable {
    name: Spanned<String>,
    dtype: Spanned<String>,
    shape: Option<Vec<Spanned<String>>>,
    access: Option<Access>,
    when: Option<Spanned<String>>,
    may_alias: Option<Spanned<String>>,
}

impl ArgTable {
    /// Where its name stands.
    pub(super) fn name_span(&self) -> Range<usize> {
        self.name.span()
    }
}

/// TOML inside a file: it finds the lines that spans lie in, and makes the errors.
pub(super) struct Toml<'a> {
    pub file: &'a SourceFile,
    /// Where in the file the TOML begins, in bytes.
    pub base: usize,
    /// `contract` or `front matter`.
    pub what: &'static str,
}

impl Toml<'_> {
    pub fn parse<T: serde::de::DeserializeOwned>(&self, text: &str) -> Result<T, LibraryError> {
        toml::from_str(text).map_err(|error| LibraryError::Toml {
            place: self.file.place_of(self.base, error.span()),
            what: self.what,
            message: error.message().trim().to_owned(),
        })
    }

    pub fn place(&self, span: Range<usize>) -> Place {
        self.file.place_of(self.base, Some(span))
    }

    pub fn refuse(
        &self,
        span: Range<usize>,
        item: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LibraryError {
        LibraryError::Declaration {
            place: self.place(span),
            item: item.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// An expression that may use only these names.
    pub fn expression(&self, text: &Spanned<String>, known: &BTreeSet<String>) -> Result<Expression, LibraryError> {
        let expression = Expression::parse(text.get_ref(), self.place(text.span()))?;
        match expression.names().difference(known).next() {
            Some(name) => Err(LibraryError::UnknownName {
                place: expression.place().clone(),
                name: name.clone(),
                known: known.iter().cloned().collect(),
            }),
            None => Ok(expression),
        }
    }

    /// A name that C and the template language both take, and that the renderer does not need.
    pub fn name(&self, what: &str, name: &str, span: Range<usize>) -> Result<(), LibraryError> {
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_name {
            return Err(self.refuse(span, what, "a name of a-z, 0-9 and _", format!("`{name}`")));
        }
        if RESERVED.contains(&name) || Dtype::from_name(name).is_some() {
            return Err(self.refuse(span, what, "a name that the renderer does not define", format!("`{name}`")));
        }
        Ok(())
    }

    /// An argument; `dtypes` are the named types, `known` what its expressions may use.
    pub fn arg(
        &self,
        table: &ArgTable,
        dtypes: &BTreeMap<String, Vec<Dtype>>,
        conditions: &BTreeSet<String>,
        known: &BTreeSet<String>,
    ) -> Result<Arg, LibraryError> {
        let name = table.name.get_ref();
        if RESERVED.contains(&name.as_str()) && name != "block_size" {
            return Err(self.refuse(
                table.name.span(),
                "argument",
                "a name that the renderer does not define",
                format!("`{name}`"),
            ));
        }
        let shape = table.shape.as_ref().map(|axes| axes.iter().map(|axis| self.expression(axis, known)).collect());
        let arg = Arg {
            name: name.clone(),
            dtype: self.arg_dtype(&table.dtype, dtypes)?,
            shape: shape.transpose()?,
            access: table.access.unwrap_or_default(),
            when: table.when.as_ref().map(|when| self.expression(when, conditions)).transpose()?,
            may_alias: table.may_alias.as_ref().map(|name| name.get_ref().clone()),
            place: self.place(table.name.span()),
        };
        self.check_scalar(&arg, table)?;
        Ok(arg)
    }

    fn arg_dtype(
        &self,
        dtype: &Spanned<String>,
        dtypes: &BTreeMap<String, Vec<Dtype>>,
    ) -> Result<ArgDtype, LibraryError> {
        let name = dtype.get_ref();
        if let Some(fixed) = Dtype::from_name(name) {
            return Ok(ArgDtype::Fixed(fixed));
        }
        if dtypes.contains_key(name) {
            return Ok(ArgDtype::Named(name.clone()));
        }
        let known: Vec<&str> = Dtype::ALL.iter().map(|d| d.name()).chain(dtypes.keys().map(String::as_str)).collect();
        let expected = format!("a type or a name from [dtypes]: {}", known.join(", "));
        Err(self.refuse(dtype.span(), "dtype", expected, format!("`{name}`")))
    }

    fn check_scalar(&self, arg: &Arg, table: &ArgTable) -> Result<(), LibraryError> {
        let by_value = [Dtype::U32, Dtype::I32, Dtype::F32].map(ArgDtype::Fixed);
        if arg.is_scalar() && !by_value.contains(&arg.dtype) {
            let item = format!("the scalar `{}`", arg.name);
            return Err(self.refuse(
                table.dtype.span(),
                item,
                "dtype u32, i32 or f32, or a shape",
                table.dtype.get_ref(),
            ));
        }
        if arg.is_scalar() && (arg.access != Access::Read || arg.may_alias.is_some() || arg.when.is_some()) {
            let item = format!("the scalar `{}`", arg.name);
            return Err(self.refuse(table.name.span(), item, "no `access`, `may_alias` or `when`", "one of them"));
        }
        Ok(())
    }
}

impl Contract {
    /// Reads and checks an `op.toml`; `op` is its folder's name.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(op: &str, file: &SourceFile) -> Result<Self, LibraryError> {
        let toml = Toml { file, base: 0, what: "contract" };
        let table: ContractTable = toml.parse(&file.text)?;
        let dtypes = dtypes(&toml, &table)?;
        let conditions = names_of_conditions(&table);
        let mut known = conditions.clone();
        for arg in table.args.iter().filter(|arg| arg.shape.is_none() && arg.dtype.get_ref() != "f32") {
            known.insert(arg.name.get_ref().clone());
        }
        let args: Vec<Arg> =
            table.args.iter().map(|arg| toml.arg(arg, &dtypes, &conditions, &known)).collect::<Result<_, _>>()?;
        check_names(&toml, &table)?;
        check_aliases(&toml, &table, &args)?;
        let contract = Self {
            op: op.to_owned(),
            file: file.clone(),
            summary: table.summary,
            dims: values(table.dims),
            constants: values(table.constants),
            flags: values(table.flags),
            dtypes,
            args,
            numerics: table.numerics,
            tests: table.tests.iter().map(|test| test.get_ref().clone()).collect(),
        };
        table.tests.iter().try_for_each(|test| contract.check_test(&toml, test))?;
        Ok(contract)
    }

    fn check_test(&self, toml: &Toml<'_>, test: &Spanned<TestShape>) -> Result<(), LibraryError> {
        let shape = test.get_ref();
        let scalars: BTreeSet<&String> = self.args.iter().filter(|arg| arg.is_scalar()).map(|arg| &arg.name).collect();
        let tables: [(&str, BTreeSet<&String>, BTreeSet<&String>); 4] = [
            ("dims", self.dims.keys().collect(), shape.dims.keys().collect()),
            ("constants", self.constants.keys().collect(), shape.constants.keys().collect()),
            ("flags", self.flags.keys().collect(), shape.flags.keys().collect()),
            ("scalars", scalars, shape.scalars.keys().collect()),
        ];
        for (table, declared, given) in tables {
            if declared != given {
                let list = |names: BTreeSet<&String>| {
                    format!("{{{}}}", names.into_iter().cloned().collect::<Vec<_>>().join(", "))
                };
                return Err(toml.refuse(test.span(), format!("a test's {table}"), list(declared), list(given)));
            }
        }
        for (name, dtype) in &shape.dtypes {
            let allowed = self.dtypes.get(name).map_or(&[][..], Vec::as_slice);
            if !allowed.contains(dtype) {
                let expected = allowed.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
                let expected = if allowed.is_empty() { "a name from [dtypes]".into() } else { expected };
                return Err(toml.refuse(test.span(), "a test's dtypes", expected, format!("{name} = {dtype}")));
            }
        }
        Ok(())
    }
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
