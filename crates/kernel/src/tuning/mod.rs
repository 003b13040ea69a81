//! Tuning tables: which template, with which parameters, for which shapes. `tuning/README.md` describes the format.
//!
//! This knows ops and templates by their names only: [`crate::choice`] joins them with the library.
//! [`table`] reads one file and [`edit`] puts rows into it; here files are put in order and looked up.

pub mod edit;
mod index;
pub mod lint;
mod lists;
pub mod table;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};
use std::{fs, io};

use crate::step::StepKind;
use crate::target::{self, Target, TargetError, TargetFacts};
use hint::{Hint, meant};
use table::{Facts, Provenance, Table, TuningRow};

/// Every table, in the order of the lookup.
#[derive(Clone, Debug, Default)]
pub struct TuningTables {
    /// One for each folder, the first one searched first; the built-in ones last.
    layers: Vec<Vec<HeldTable>>,
    /// Files of folders that are no tables, by their names without `.toml`: no obstacle where their chip is not.
    broken: Vec<(String, TuningError)>,
    /// Files of folders that seem meant as tables and are not called so.
    others: Vec<PathBuf>,
}

/// A table; one that is built in is read when it is asked for first: most commands need two of them.
#[derive(Clone, Debug)]
struct HeldTable {
    name: String,
    read: OnceLock<Table>,
    /// The built-in file that is used instead.
    built_in: &'static str,
}

impl From<Table> for HeldTable {
    fn from(table: Table) -> Self {
        Self { name: table.name.clone(), read: OnceLock::from(table), built_in: "" }
    }
}

impl Deref for HeldTable {
    type Target = Table;

    fn deref(&self) -> &Table {
        let file = || format!("<built in>/{}.toml", self.name);
        let parsed = || Table::parse(&self.name, &file(), self.built_in).expect("a test reads every built-in table");
        self.read.get_or_init(parsed)
    }
}

/// A query of the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The op, or the ops of a fused run joined by `+`.
    pub op: String,
    /// The problem's dims, flags, dtypes and precision, by name.
    pub facts: Facts,
}

/// Errors of tuning tables.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TuningError {
    /// A folder or file could not be read.
    #[error("could not read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// A file could not be written.
    #[error("could not write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    /// The TOML is wrong, has an unknown key, or lacks one.
    #[error("{file}:{line}: could not read the tuning table: {message}")]
    Toml {
        file: String,
        /// The line, from 1.
        line: usize,
        /// The TOML parser's message.
        message: String,
    },
    /// A row names a provenance that the file does not have.
    #[error("{file}:{line}: the row's provenance `{name}` is not in this file{}", provenances(known))]
    NoProvenance { file: String, line: usize, name: String, known: Vec<String> },
    /// Two rows apply at once.
    #[error("{file}:{line}: this row for `{op}` and the one in line {other} both apply at {tokens} tokens")]
    Overlap {
        file: String,
        /// The later row's line.
        line: usize,
        /// The earlier row's line.
        other: usize,
        op: String,
        /// The fewest tokens at which both apply.
        tokens: u32,
    },
}

/// How the places of rows that are built in begin.
const BUILT_IN: &str = "<built in>/";

fn provenances(known: &[String]) -> String {
    match known {
        [] => ", which has none: a row needs a `[provenance.NAME]`".to_owned(),
        _ => format!(", expected one of: {}", known.join(", ")),
    }
}

/// One line for all stale rows that are the user's own, by their files; `None` where there is none.
pub(crate) fn stale_warning<'a>(rows: impl Iterator<Item = &'a TuningRow>, target: &Target) -> Option<String> {
    // Of those that are built in nobody but who makes the program can do anything about it: `tune lint` tells.
    let own = rows.filter(|row| !row.place.starts_with(BUILT_IN));
    let places: BTreeSet<&str> = own.map(|row| row.place.as_str()).collect();
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for place in places {
        *files.entry(place.rsplit_once(':').map_or(place, |(file, _)| file)).or_default() += 1;
    }
    let count = |(file, n): (&&str, &usize)| format!("{n} {} of {file}", if *n == 1 { "row" } else { "rows" });
    let counts = files.iter().map(count).collect::<Vec<_>>().join(", ");
    let n: usize = files.values().sum();
    let (is, device) = (if n == 1 { "is" } else { "are" }, target.device_name());
    (n > 0).then(|| format!("{counts} {is} stale: gptoss-jit tune --stale --device {device}"))
}

impl Hint for TuningError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("`tune --write --tuning DIR` makes the folder".into())
            }
            Self::Read { .. } | Self::Write { .. } => None,
            Self::Overlap { .. } => Some("narrow `tokens` or `where` of one of the rows".into()),
            Self::Toml { .. } | Self::NoProvenance { .. } => Some("`tuning/README.md` describes the format".into()),
        }
    }
}

impl TuningTables {
    /// The folders that are searched before the built-in tables: `--tuning`, and the user's config folder, which need
    /// not exist.
    pub fn default_search(cli_dir: Option<&Path>) -> Vec<PathBuf> {
        let from_config = Self::user_folder().filter(|dir| dir.is_dir());
        cli_dir.map(Path::to_path_buf).into_iter().chain(from_config).collect()
    }

    /// Reads the `.toml` files of these folders, then the built-in ones. [`Self::check_for`] reports problems of a
    /// folder's files.
    ///
    /// # Errors
    /// The first folder that cannot be read.
    pub fn load(search: &[PathBuf]) -> Result<Self, TuningError> {
        let mut broken = Vec::new();
        let mut others = Vec::new();
        let read = |folder: &PathBuf| read_folder(folder, &mut broken, &mut others);
        let mut layers: Vec<Vec<HeldTable>> = search.iter().map(read).collect::<Result<_, _>>()?;
        let built_in = data::TUNING.iter().filter_map(|(name, text)| Some((name.strip_suffix(".toml")?, text)));
        let unread = |name: &str, built_in| HeldTable { name: name.to_owned(), read: OnceLock::new(), built_in };
        layers.push(built_in.map(|(name, text)| unread(name, *text)).collect());
        Ok(Self { layers, broken, others })
    }

    /// Whether the tables that concern a target could be read; of others that could not, warns.
    ///
    /// # Errors
    /// What is wrong with the first of them.
    pub fn check_for(&self, target: &Target) -> Result<(), TuningError> {
        let families = target.families();
        for (name, error) in &self.broken {
            if families.contains(name) {
                return Err(error.clone());
            }
            tracing::warn!("{error}; {} does without this table", target.arch);
        }
        static TOLD: Once = Once::new();
        TOLD.call_once(|| self.of_nobody().iter().for_each(|warning| tracing::warn!("{warning}")));
        Ok(())
    }

    /// Tables of folders that are for no chip that is known, and say of none what it is: nothing reads them.
    pub(super) fn of_nobody(&self) -> Vec<String> {
        let gpus = target::built_in().into_iter().map(|(arch, facts)| Target::from_facts(&arch, &facts));
        let hosts = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+amx_bf16"];
        let hosts = hosts.iter().filter_map(|name| Target::named(name).ok()).chain([Target::host()]);
        let of_chips = gpus.chain(hosts).flat_map(|target| target.families());
        let built_in = data::TUNING.iter().filter_map(|(name, _)| name.strip_suffix(".toml")).map(str::to_owned);
        let described = self.layers.iter().flatten().filter(|table| table.target.is_some());
        let described = described.flat_map(|table| {
            Target::from_facts(&table.name, table.target.as_ref().expect("just looked at")).families()
        });
        let known: BTreeSet<String> = of_chips.chain(built_in).chain(described).collect();
        let own = self.layers.iter().flatten().filter(|table| table.built_in.is_empty());
        let meant = |name: &str| {
            let meant = meant(name, known.iter().map(String::as_str));
            meant.map_or(String::new(), |meant| format!("; did you mean `{meant}.toml`?"))
        };
        let of_nobody = own
            .filter(|table| !known.contains(&table.name))
            .map(|table| format!("nothing reads `{}.toml`: no chip has this name{}", table.name, meant(&table.name)));
        let of_others = self.others.iter().map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            format!("nothing reads `{}`: tables are called `<arch>.toml`{}", path.display(), meant(&name))
        });
        of_nobody.chain(of_others).collect()
    }

    /// What is wrong with files of folders, whatever chip they are for.
    pub fn broken(&self) -> impl Iterator<Item = &TuningError> {
        self.broken.iter().map(|(_, error)| error)
    }

    /// The rows of the tables that concern a target.
    pub fn rows_for<'a>(&'a self, target: &Target) -> impl Iterator<Item = &'a TuningRow> + use<'a> {
        let families = target.families();
        let tables = self.layers.iter().flatten().filter(move |table| families.contains(&table.name));
        tables.flat_map(|table| table.rows())
    }

    /// Tables from texts, one layer: name without `.toml`, and text.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn from_texts(texts: &[(&str, &str)]) -> Result<Self, TuningError> {
        let parsed = |(name, text): &(&str, &str)| Table::parse(name, &format!("{name}.toml"), text);
        let tables = texts.iter().map(|table| parsed(table).map(HeldTable::from));
        Ok(Self { layers: vec![tables.collect::<Result<_, _>>()?], broken: Vec::new(), others: Vec::new() })
    }

    /// The same tables without the rows for this target's own arch or family: only those for all GPUs, or all hosts,
    /// are left. Facts about the chip stay.
    pub fn generic(&self, target: &Target) -> Self {
        let mut tables = self.clone();
        let mut families = target.families();
        families.pop();
        for table in tables.layers.iter_mut().flatten().filter(|table| families.contains(&table.name)) {
            let mut without = Table::clone(table);
            without.remove_rows();
            *table = without.into();
        }
        tables
    }

    /// The same tables with the table of this name in one of the folders that were searched replaced by a text; a
    /// folder that was not goes before all others.
    ///
    /// # Errors
    /// If the text is no table.
    pub fn with_table(&self, search: &[PathBuf], folder: &Path, name: &str, text: &str) -> Result<Self, TuningError> {
        let table = Table::parse(name, &folder.join(format!("{name}.toml")).display().to_string(), text)?;
        let mut tables = self.clone();
        let layer = search.iter().position(|one| one == folder).unwrap_or_else(|| {
            tables.layers.insert(0, Vec::new());
            0
        });
        tables.layers[layer].retain(|other| other.name != table.name);
        tables.layers[layer].push(table.into());
        Ok(tables)
    }

    /// The row that applies in a step of this kind, or none: then the templates' priorities and defaults decide.
    pub fn lookup(&self, query: &Query, n_tokens: u32, step: StepKind, target: &Target) -> Option<&TuningRow> {
        self.applying(query, n_tokens, step, target).next()
    }

    /// All rows that apply in a step of this kind: the one that the lookup gives, then those that follow it.
    pub(crate) fn applying<'a, 'q>(
        &'a self,
        query: &'q Query,
        n_tokens: u32,
        step: StepKind,
        target: &Target,
    ) -> impl Iterator<Item = &'a TuningRow> + use<'a, 'q> {
        self.rows(query, step, target, Some(n_tokens))
    }

    /// Where a row's numbers come from.
    pub fn provenance(&self, row: &TuningRow) -> Option<&Provenance> {
        let mut tables = self.layers.iter().flatten();
        tables.find(|table| table.rows().iter().any(|own| own.place == row.place))?.provenance.get(&row.provenance)
    }

    /// Whether any row that concerns a target uses this template.
    pub fn use_template(&self, template: &str, target: &Target) -> bool {
        self.rows_for(target).any(|row| row.template == template)
    }

    /// The user's own folder of tables, which need not exist.
    pub fn user_folder() -> Option<PathBuf> {
        dirs::config_dir().map(|dir| dir.join("gptoss-jit/tuning"))
    }

    /// The numbers of tokens at which another row may begin to apply in steps of this kind, in rising order; the first
    /// is 1. Between two of them the lookup gives the same row.
    pub(crate) fn token_edges(&self, query: &Query, step: StepKind, target: &Target) -> Vec<u32> {
        let mut edges = BTreeSet::from([1]);
        for row in self.rows(query, step, target, None) {
            edges.insert(row.tokens.first);
            edges.extend(row.tokens.last.and_then(|last| last.checked_add(1)));
        }
        edges.into_iter().collect()
    }

    /// A GPU by its target id, with facts from the first table that has them; what is assumed about an arch without
    /// one is a warning.
    ///
    /// # Errors
    /// If it is of a family that nothing is known about.
    pub fn gpu(&self, arch: &str) -> Result<Target, TargetError> {
        if let Some(facts) = self.facts(arch) {
            return Ok(Target::from_facts(arch, facts));
        }
        let built_in = target::built_in();
        let known = self.layers.iter().flatten().filter_map(|table| Some((&*table.name, table.target.as_ref()?)));
        let known: Vec<_> = known.chain(built_in.iter().map(|(name, facts)| (&**name, facts))).collect();
        let (target, assumed) = Target::gpu_among(arch, &known)?;
        if let Some(text) = assumed {
            tracing::warn!("{text}");
        }
        Ok(target)
    }

    /// The parameters that rows give a template (`linear/dot`) on a target, at any number of tokens, in any step and
    /// with any dims: only the types must match the query.
    pub fn params_of<'a>(
        &'a self,
        template: &str,
        query: &Query,
        target: &Target,
    ) -> impl Iterator<Item = &'a BTreeMap<String, u32>> + use<'a> {
        let rows = self.rows_for(target).filter(|row| row.template == template);
        let is_of_types = |row: &&TuningRow| row.op == query.op && row.asks_for_types_of(&query.facts);
        rows.filter(is_of_types).map(|row| &row.params).collect::<Vec<_>>().into_iter()
    }

    /// The facts about a GPU by its target id, of the first table that has some.
    pub fn facts(&self, arch: &str) -> Option<&TargetFacts> {
        let name = arch.split(':').next().unwrap_or_default();
        self.layers.iter().flatten().filter(|table| table.name == name).find_map(|table| table.target.as_ref())
    }

    /// The rows of an op that apply at this many tokens, or at some number of them, the first to be taken first: of a
    /// file those that want more.
    fn rows<'a, 'q>(
        &'a self,
        query: &'q Query,
        step: StepKind,
        target: &Target,
        n_tokens: Option<u32>,
    ) -> impl Iterator<Item = &'a TuningRow> + use<'a, 'q> {
        let families = target.families();
        self.layers
            .iter()
            .flat_map(move |layer| {
                let named = |name: &String| layer.iter().find(|table| table.name == *name);
                families.iter().filter_map(named).collect::<Vec<_>>()
            })
            .flat_map(move |table| table.applying(query, step, n_tokens))
    }
}

/// The longest table; the longest in the tree has some thousand lines.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;

/// The tables of a folder; those that are wrong go to `broken`.
/// Whether a file that is no table by its name seems meant as one: `gfx1100.tml`, `GFX1100.TOML`, `gfx1100`.
fn looks_like_a_table(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let (_, extension) = name.rsplit_once('.').unwrap_or((&name, ""));
    path.is_file() && !name.starts_with('.') && meant(extension, ["toml"]).is_some()
}

fn read_folder(
    folder: &Path,
    broken: &mut Vec<(String, TuningError)>,
    others: &mut Vec<PathBuf>,
) -> Result<Vec<HeldTable>, TuningError> {
    let wrong = |path: &Path| {
        let path = path.to_path_buf();
        move |source| TuningError::Read { path, source: Arc::new(source) }
    };
    let mut tables = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong(folder))? {
        let path = entry.map_err(wrong(folder))?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            if looks_like_a_table(&path) {
                others.push(path);
            }
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = mapped_file::read_to_string(&path, MAX_TABLE_BYTES).map_err(wrong(&path));
        match text.and_then(|text| Table::parse(&name, &path.display().to_string(), &text)) {
            Ok(table) => tables.push(table.into()),
            Err(error) => broken.push((name, error)),
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests;
