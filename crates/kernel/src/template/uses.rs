//! Tables that templates and files of `lib/` may both declare: a used file's declarations become the template's own.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::Spanned;

use super::Precision;
use super::contract::Tolerance;
use super::declaration::{ArgTable, Toml};
use super::front_matter::front_matter;
use super::lib_header::HeaderTable;
use super::library_error::LibraryError;
use super::names::MAX_DEPTH;
use super::work::PaddedTable;
use data::{Place, SourceFile};
use expression::Expression;
use format::Dtype;

/// The tables that both may declare.
#[derive(Default)]
pub(super) struct Tables {
    pub uses: Vec<Spanned<String>>,
    pub requires: RequiresTable,
    pub params: BTreeMap<String, Spanned<ParamTable>>,
    pub facts: BTreeMap<String, Spanned<String>>,
    pub constraints: BTreeMap<String, Spanned<String>>,
    pub launch: Option<Spanned<LaunchTable>>,
    pub padded: PaddedTable,
    pub workspace: Vec<ArgTable>,
    pub numerics: NumericsTable,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RequiresTable {
    pub arch: Option<Spanned<Vec<String>>>,
    pub features: Vec<String>,
    pub wave: Option<Spanned<Vec<u32>>>,
    pub precision: Option<Spanned<Vec<Precision>>>,
    pub dtypes: BTreeMap<String, Spanned<Vec<Dtype>>>,
    pub when: Vec<Spanned<String>>,
}

/// A parameter or, where a file that the template uses declares it, what differs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParamTable {
    pub values: Option<Vec<u32>>,
    pub default: Option<u32>,
    pub doc: Option<String>,
    pub tunable: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LaunchTable {
    pub grid: Option<Spanned<Vec<Spanned<String>>>>,
    pub block_size: Option<Spanned<String>>,
    pub lds_bytes: Option<Spanned<String>>,
    pub scratch_bytes: Option<Spanned<String>>,
    pub early: Option<Spanned<String>>,
    pub cluster: Option<Spanned<String>>,
    pub min_blocks: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NumericsTable {
    pub f32: Option<Spanned<Tolerance>>,
    pub bf16: Option<Spanned<Tolerance>>,
}

impl Tables {
    fn is_empty(&self) -> bool {
        let Self { uses, requires, params, facts, constraints, launch, padded, workspace, numerics } = self;
        let has_lists = !uses.is_empty() || !workspace.is_empty() || launch.is_some();
        let has_names = !params.is_empty() || !facts.is_empty() || !constraints.is_empty();
        !has_lists && !has_names && requires.is_empty() && padded.is_empty() && numerics.is_empty()
    }
}

impl RequiresTable {
    fn is_empty(&self) -> bool {
        let Self { arch, features, wave, precision, dtypes, when } = self;
        let has_lists = !features.is_empty() || !dtypes.is_empty() || !when.is_empty();
        !has_lists && arch.is_none() && wave.is_none() && precision.is_none()
    }
}

impl ParamTable {
    /// Whether it says all that a parameter needs.
    fn is_whole(&self) -> bool {
        self.values.is_some() && self.default.is_some() && self.doc.is_some()
    }
}

impl NumericsTable {
    fn is_empty(&self) -> bool {
        self.f32.is_none() && self.bf16.is_none()
    }
}

/// The tables of one file.
pub(super) struct Part<'a> {
    pub toml: Toml<'a>,
    pub tables: Tables,
}

impl<'a> Part<'a> {
    fn of_lib(file: &'a SourceFile) -> Result<Self, LibraryError> {
        let (base, text) = front_matter(file)?;
        let toml = Toml { file, base, what: "header" };
        let tables = toml.parse::<HeaderTable>(text)?.into_tables();
        Ok(Self { toml, tables })
    }
}

/// A table's value and its place.
pub(super) struct Declared<'p, T> {
    pub toml: &'p Toml<'p>,
    pub value: &'p Spanned<T>,
}

impl<T> Declared<'_, T> {
    pub(crate) fn place(&self) -> Place {
        self.toml.place(self.value.span())
    }

    pub(crate) fn refuse(
        &self,
        item: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LibraryError {
        self.toml.refuse(self.value.span(), item, expected, found)
    }
}

impl Declared<'_, String> {
    /// An expression that may use only these names.
    pub fn expression(&self, known: &BTreeSet<String>) -> Result<Expression, LibraryError> {
        self.toml.expression(self.value, known)
    }
}

/// The tables of a template and of the files that it uses: each after those that it uses itself, in the order in which
/// they are named, and the template last.
pub(super) struct Parts<'a>(Vec<Part<'a>>);

impl<'a> Parts<'a> {
    /// Reads the files that a template uses; `file` gives one of `lib/` by its name.
    ///
    /// # Errors
    /// If one is nowhere, is wrong or has nothing to be used, or files use each other in a circle.
    pub fn of(
        template: Part<'a>,
        file: impl Fn(&str) -> Option<Result<&'a SourceFile, LibraryError>>,
    ) -> Result<Self, LibraryError> {
        let mut walk = Walk { file, open: Vec::new(), known: BTreeSet::new(), parts: Vec::new() };
        walk.add_used(&template)?;
        walk.parts.push(template);
        Ok(Self(walk.parts))
    }

    /// The template's own front matter.
    pub fn own(&self) -> &Part<'a> {
        self.0.last().expect("the template is one")
    }

    /// The headers that it uses, then the template's own front matter.
    pub fn iter(&self) -> impl Iterator<Item = &Part<'a>> {
        self.0.iter()
    }

    /// What they say in a table of names; `what` is the kind, for errors.
    ///
    /// # Errors
    /// If a name is there twice.
    pub fn named<T>(
        &self,
        what: &str,
        table: impl Fn(&Tables) -> &BTreeMap<String, Spanned<T>>,
    ) -> Result<BTreeMap<&str, Declared<'_, T>>, LibraryError> {
        let mut all: BTreeMap<&str, Declared<'_, T>> = BTreeMap::new();
        for part in &self.0 {
            for (name, value) in table(&part.tables) {
                let declared = Declared { toml: &part.toml, value };
                if let Some(first) = all.get(name.as_str()) {
                    return Err(twice(declared.place(), format!("{what} `{name}`"), first.place()));
                }
                all.insert(name, declared);
            }
        }
        Ok(all)
    }

    /// The parameters, each once or, where the template says what differs of one that it uses, twice.
    ///
    /// # Errors
    /// If one is declared twice.
    pub fn params(&self) -> Result<BTreeMap<&str, Vec<Declared<'_, ParamTable>>>, LibraryError> {
        let mut all: BTreeMap<&str, Vec<Declared<'_, ParamTable>>> = BTreeMap::new();
        for (i, part) in self.0.iter().enumerate() {
            let is_own = i + 1 == self.0.len();
            for (name, value) in &part.tables.params {
                let declared = Declared { toml: &part.toml, value };
                let said = all.entry(name).or_default();
                if let Some(first) = said.first().filter(|_| !is_own || value.get_ref().is_whole()) {
                    return Err(twice(declared.place(), format!("the parameter `{name}`"), first.place()));
                }
                said.push(declared);
            }
        }
        Ok(all)
    }

    /// The value of a key that one of them may have.
    ///
    /// # Errors
    /// If two have it.
    pub fn one<T>(
        &self,
        key: &str,
        of: impl Fn(&Tables) -> Option<&Spanned<T>>,
    ) -> Result<Option<Declared<'_, T>>, LibraryError> {
        let mut all = self.0.iter().filter_map(|part| Some(Declared { toml: &part.toml, value: of(&part.tables)? }));
        let first = all.next();
        match (&first, all.next()) {
            (Some(first), Some(second)) => Err(twice(second.place(), format!("`{key}`"), first.place())),
            _ => Ok(first),
        }
    }
}

/// A name or a key that is there at two places.
pub(super) fn twice(place: Place, item: String, first: Place) -> LibraryError {
    LibraryError::Twice { place, item, first }
}

/// The way from a template to the files that it uses.
struct Walk<'a, F> {
    file: F,
    /// Files that are being read, each used by the one before.
    open: Vec<String>,
    /// Files that have been met.
    known: BTreeSet<String>,
    parts: Vec<Part<'a>>,
}

impl<'a, F: Fn(&str) -> Option<Result<&'a SourceFile, LibraryError>>> Walk<'a, F> {
    fn add_used(&mut self, user: &Part<'a>) -> Result<(), LibraryError> {
        for used in &user.tables.uses {
            let name = used.get_ref();
            let refuse = |expected: &str, found: &str| {
                Err(user.toml.refuse(used.span(), format!("uses `{name}`"), expected, found))
            };
            if self.open.contains(name) {
                return refuse("no circle", &format!("one: {} use each other", self.open.join(", ")));
            }
            if !self.known.insert(name.clone()) {
                continue;
            }
            let Some(file) = (self.file)(name) else {
                let place = user.toml.place(used.span());
                return Err(LibraryError::NoUse { place, name: name.clone() });
            };
            let part = Part::of_lib(file?)?;
            if part.tables.is_empty() {
                return refuse("a file whose header declares something to be used", "none");
            }
            if self.open.len() == MAX_DEPTH {
                return refuse(&format!("files that use each other {MAX_DEPTH} deep at most"), "one more");
            }
            self.open.push(name.clone());
            self.add_used(&part)?;
            self.open.pop();
            self.parts.push(part);
        }
        Ok(())
    }
}
