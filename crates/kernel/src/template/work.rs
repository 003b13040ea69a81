//! What a launch has to do: operations and bytes, counted from the contract's shapes and its `[work]`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Value;
use serde::Deserialize;
use toml::Spanned;

use super::Problem;
use super::declaration::Toml;
use super::launch::ArgSpec;
use super::library_error::LibraryError;
use super::signature::Signature;
use super::uses::{Declared, Parts};
use expression::{Expression, ExpressionError, Reason, Scope};

/// The `[work]` of a contract.
#[derive(Clone, Debug, Default)]
pub struct WorkSpec {
    /// Operations of a launch, a multiply-add being two.
    pub(crate) flop: Option<Expression>,
    /// Of arguments that a launch touches in part: entries of the outermost axis.
    pub(crate) touched: BTreeMap<String, Expression>,
    /// Numbers that the inputs decide, by name.
    pub(crate) counts: BTreeMap<String, Count>,
    /// Dims and scalars along which an op's outputs know nothing of each other: some of them can be computed alone.
    pub sample: Vec<String>,
}

/// A sum over the elements of an input.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) of: String,
    /// What an element adds; the input's name stands for its value, [`PREVIOUS`] for that of the element before it, 0
    /// for the first.
    pub(crate) sum: Expression,
}

/// The name in a count of the value before.
const PREVIOUS: &str = "previous";

/// The `[padded]` of a template: what a launch goes through, with what is done for nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaddedSpec {
    /// Operations, those of rows and columns beyond the end of a tile among them.
    pub(crate) flop: Option<Expression>,
    /// Blocks that have anything to do.
    pub(crate) blocks: Option<Expression>,
    /// Numbers that the inputs decide, by name.
    pub(crate) counts: BTreeMap<String, Count>,
}

/// What a launch goes through; `None` where its template does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Padded {
    /// Operations, a multiply-add being two.
    pub flop: Option<f64>,
    /// Blocks that have anything to do.
    pub blocks: Option<u64>,
}

/// Elements of inputs that hold whole numbers, by argument.
pub type Elements = BTreeMap<String, Vec<i64>>;

/// What a launch has to do at least.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations, a multiply-add being two; `None` where the contract does not say.
    pub flop: Option<f64>,
    /// Bytes of each argument that are read or written once.
    pub bytes: BTreeMap<String, f64>,
    /// The whole numbers among its inputs, where these decide how much there is to do.
    pub inputs: Arc<Elements>,
}

impl Work {
    /// Bytes of all arguments.
    pub fn total_bytes(&self) -> f64 {
        self.bytes.values().sum()
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkTable {
    flop: Option<Spanned<String>>,
    #[serde(default)]
    touched: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    counts: BTreeMap<String, Spanned<CountTable>>,
    #[serde(default)]
    sample: Vec<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaddedTable {
    pub flop: Option<Spanned<String>>,
    pub blocks: Option<Spanned<String>>,
    #[serde(default)]
    pub counts: BTreeMap<String, Spanned<CountTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CountTable {
    of: Spanned<String>,
    sum: Spanned<String>,
}

impl WorkTable {
    /// Checks the table: `tensors` are the contract's arguments in memory, `known` what shapes may use, `axes` the dims
    /// and scalars among those.
    pub(super) fn read(
        &self,
        toml: &Toml<'_>,
        tensors: &BTreeSet<String>,
        known: &BTreeSet<String>,
        axes: &BTreeSet<String>,
    ) -> Result<WorkSpec, LibraryError> {
        let tables = self.counts.iter().map(|(name, table)| (name.as_str(), Declared { toml, value: table }));
        let (counts, with_counts) = counts(tables, tensors, known)?;
        let mut touched = BTreeMap::new();
        for (name, entries) in &self.touched {
            tensor(&Spanned::new(entries.span(), name.clone()), "`touched`", toml, tensors)?;
            touched.insert(name.clone(), toml.expression(entries, &with_counts)?);
        }
        if let Some(axis) = self.sample.iter().find(|axis| !axes.contains(axis.get_ref())) {
            let expected = "a dim or a whole-number scalar argument";
            return Err(toml.refuse(axis.span(), "`sample`", expected, format!("`{}`", axis.get_ref())));
        }
        let flop = self.flop.as_ref().map(|flop| toml.expression(flop, &with_counts)).transpose()?;
        Ok(WorkSpec { flop, touched, counts, sample: self.sample.iter().map(|axis| axis.get_ref().clone()).collect() })
    }
}

impl PaddedTable {
    pub(super) fn is_empty(&self) -> bool {
        self.flop.is_none() && self.blocks.is_none() && self.counts.is_empty()
    }
}

/// The `[padded]` of a template and of what it uses: `tensors` are its arguments in memory, `known` what shapes may
/// use.
pub(super) fn padded(
    parts: &Parts<'_>,
    tensors: &BTreeSet<String>,
    known: &BTreeSet<String>,
) -> Result<PaddedSpec, LibraryError> {
    let tables = parts.named("the count", |tables| &tables.padded.counts)?;
    let (counts, with_counts) = counts(tables.into_iter(), tensors, known)?;
    let read = |text: Option<Declared<'_, String>>| text.map(|text| text.expression(&with_counts)).transpose();
    Ok(PaddedSpec {
        flop: read(parts.one("padded.flop", |tables| tables.padded.flop.as_ref())?)?,
        blocks: read(parts.one("padded.blocks", |tables| tables.padded.blocks.as_ref())?)?,
        counts,
    })
}

/// Counts by name, and the names that expressions over them may use.
fn counts<'t>(
    tables: impl Iterator<Item = (&'t str, Declared<'t, CountTable>)>,
    tensors: &BTreeSet<String>,
    known: &BTreeSet<String>,
) -> Result<(BTreeMap<String, Count>, BTreeSet<String>), LibraryError> {
    let mut counts = BTreeMap::new();
    let mut with_counts = known.clone();
    for (name, Declared { toml, value }) in tables {
        let table = value.get_ref();
        toml.name("count", name, table.of.span())?;
        let of = tensor(&table.of, "`of` of a count", toml, tensors)?;
        let mut names = known.clone();
        names.extend([of.clone(), PREVIOUS.to_owned()]);
        counts.insert(name.to_owned(), Count { of, sum: toml.expression(&table.sum, &names)? });
        with_counts.insert(name.to_owned());
    }
    Ok((counts, with_counts))
}

fn tensor(
    name: &Spanned<String>,
    what: &str,
    toml: &Toml<'_>,
    tensors: &BTreeSet<String>,
) -> Result<String, LibraryError> {
    match tensors.contains(name.get_ref()) {
        true => Ok(name.get_ref().clone()),
        false => Err(toml.refuse(name.span(), what, "a tensor argument", format!("`{}`", name.get_ref()))),
    }
}

impl PaddedSpec {
    /// The names that its expressions use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        let counts = self.counts.values().map(|count| &count.sum);
        self.flop.iter().chain(&self.blocks).chain(counts).flat_map(Expression::names)
    }

    /// What a launch on these inputs goes through.
    ///
    /// - `scope`: the template's names
    ///
    /// # Errors
    /// If an expression gives no whole number.
    pub(crate) fn count(
        &self,
        scope: &Scope,
        scalars: &BTreeMap<String, u64>,
        inputs: &Elements,
    ) -> Result<Padded, ExpressionError> {
        let mut names = scalars.clone();
        for (name, count) in &self.counts {
            names.insert(name.clone(), count.total(scope.known(), scalars, inputs)?);
        }
        let scope = Arc::new(scope.with_scalars(&names));
        let flop = self.flop.as_ref().map(|flop| flop.whole(&scope)).transpose()?;
        let blocks = self.blocks.as_ref().map(|blocks| blocks.whole(&scope)).transpose()?;
        Ok(Padded { flop: flop.map(|flop| flop as f64), blocks })
    }
}

impl WorkSpec {
    /// The inputs that decide how much there is to do: [`Self::count`] wants their elements.
    pub fn counted(&self) -> impl Iterator<Item = &str> {
        self.counts.values().map(|count| count.of.as_str())
    }

    /// What a launch on these inputs has to do.
    ///
    /// # Errors
    /// If an expression gives no whole number.
    pub fn count(
        &self,
        problem: &Problem,
        args: &[ArgSpec],
        scalars: &BTreeMap<String, u64>,
        inputs: &Elements,
    ) -> Result<Work, ExpressionError> {
        let mut names = scalars.clone();
        for (name, count) in &self.counts {
            names.insert(name.clone(), count.total(&Signature::scope(problem), scalars, inputs)?);
        }
        let scope = Arc::new(Scope::new(Signature::scope(problem)).with_scalars(&names));
        let flop = self.flop.as_ref().map(|flop| flop.whole(&scope)).transpose()?.map(|flop| flop as f64);
        let mut work = Work { flop, ..Work::default() };
        for arg in args.iter().filter(|arg| !arg.is_scalar()) {
            let bytes = arg.len_bytes(scalars)? as f64;
            let axis = arg.shape(scalars)?.first().copied().unwrap_or(1).max(1);
            let entries = self.touched.get(&arg.name).map(|entries| entries.whole(&scope)).transpose()?;
            let part = entries.map_or(1.0, |entries| entries.min(axis) as f64 / axis as f64);
            work.bytes.insert(arg.name.clone(), bytes * part);
        }
        Ok(work)
    }
}

impl Count {
    fn total(
        &self,
        known: &BTreeMap<String, Value>,
        scalars: &BTreeMap<String, u64>,
        inputs: &Elements,
    ) -> Result<u64, ExpressionError> {
        let mut known = known.clone();
        let (mut total, mut previous) = (0, 0);
        for &value in inputs.get(&self.of).into_iter().flatten() {
            known.insert(self.of.clone(), Value::from(value));
            known.insert(PREVIOUS.to_owned(), Value::from(previous));
            previous = value;
            let summand = self.sum.whole(&Arc::new(Scope::new(known.clone()).with_scalars(scalars)))?;
            let too_many = || {
                let what = format!("the sums over `{}`: {total} + {summand}", self.of);
                self.sum.error(Reason::TooMany { what, limit: u64::MAX })
            };
            total = u64::checked_add(total, summand).ok_or_else(too_many)?;
        }
        Ok(total)
    }
}
