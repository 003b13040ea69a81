//! The front matter of a template: TOML in the file's first comment, read and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::contract::{Access, Arg, ArgDtype, TestTable, test_shapes};
use super::declaration::{ArgTable, Toml};
use super::expression::Expression;
use super::library_error::LibraryError;
use super::params::MAX_CHOICES;
use super::signature::Signature;
use super::source_file::{Origin, SourceFile};
use super::work::{PaddedSpec, PaddedTable};
use super::{Launch, NumericsOverride, Param, Precision, Requires, Resources, Template};
use crate::dtype::Dtype;
use crate::target::Language;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrontMatter {
    op: Spanned<OneOrMore>,
    #[serde(default)]
    keeps: Vec<Spanned<String>>,
    summary: String,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    requires: RequiresTable,
    #[serde(default)]
    params: BTreeMap<String, Spanned<ParamTable>>,
    #[serde(default, rename = "let")]
    facts: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    constraints: BTreeMap<String, Spanned<String>>,
    launch: Spanned<LaunchTable>,
    #[serde(default)]
    padded: PaddedTable,
    #[serde(default)]
    workspace: Vec<ArgTable>,
    #[serde(default)]
    compile: CompileTable,
    resources: Option<Spanned<Resources>>,
    #[serde(default)]
    numerics: NumericsOverride,
    #[serde(default)]
    tests: Vec<Spanned<TestTable>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RequiresTable {
    arch: Vec<String>,
    features: Vec<String>,
    wave: Vec<u32>,
    precision: Vec<Precision>,
    dtypes: BTreeMap<String, Spanned<Vec<Dtype>>>,
    when: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamTable {
    values: Vec<u32>,
    default: u32,
    doc: String,
    #[serde(default = "yes")]
    tunable: bool,
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchTable {
    grid: Vec<Spanned<String>>,
    block_size: Option<Spanned<String>>,
    lds_bytes: Option<Spanned<String>>,
    scratch_bytes: Option<Spanned<String>>,
    early: Option<Spanned<String>>,
    cluster: Option<Spanned<String>>,
    min_blocks: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CompileTable {
    options: Vec<String>,
}

impl Template {
    /// Reads and checks the front matter. The names that the body uses are checked by the library, which knows what it
    /// includes.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(
        file: &SourceFile,
        shadows: Vec<Origin>,
        language: Language,
        mut signature: Signature,
    ) -> Result<Self, LibraryError> {
        let (base, text) = front_matter(file)?;
        let toml = Toml { file, base, what: "front matter" };
        let table: FrontMatter = toml.parse(text)?;
        let folder = signature.ops.join("+");
        let ops = match table.op.get_ref() {
            OneOrMore::One(op) => op.clone(),
            OneOrMore::More(ops) => ops.join("+"),
        };
        if ops != folder {
            return Err(toml.refuse(table.op.span(), "op", format!("the folder's: {folder}"), ops));
        }
        for path in &table.keeps {
            let refused = |expected| toml.refuse(path.span(), "keeps", expected, format!("`{}`", path.get_ref()));
            signature.keep(path.get_ref()).map_err(refused)?;
        }
        let names = |keys: Vec<&String>| keys.into_iter().cloned().collect();
        let (params, facts) = (names(table.params.keys().collect()), names(table.facts.keys().collect()));
        let reader = Reader { toml: &toml, signature: &signature, language, params, facts };
        Ok(Self {
            ops: signature.ops.clone(),
            variant: variant_of(&file.name).to_owned(),
            language,
            file: file.clone(),
            shadows,
            keeps: table.keeps.into_iter().map(Spanned::into_inner).collect(),
            summary: table.summary,
            priority: table.priority,
            requires: reader.requires(table.requires)?,
            params: reader.params(&table.params)?,
            facts: reader.facts(&table.facts)?,
            constraints: reader.constraints(&table.constraints)?,
            launch: reader.launch(&table.launch)?,
            padded: reader.padded(&table.padded)?,
            workspace: reader.workspace(&table.workspace)?,
            options: table.compile.options,
            resources: reader.resources(table.resources)?,
            numerics: table.numerics,
            tests: test_shapes(&signature, &toml, &table.tests)?,
            signature: Arc::new(signature),
        })
    }
}

/// Turns the tables of the front matter into checked values.
struct Reader<'a> {
    toml: &'a Toml<'a>,
    signature: &'a Signature,
    language: Language,
    params: BTreeSet<String>,
    facts: BTreeSet<String>,
}

impl Reader<'_> {
    fn requires(&self, table: RequiresTable) -> Result<Requires, LibraryError> {
        let conditions = self.signature.condition_names();
        for (name, needs) in &table.dtypes {
            let Some(allowed) = self.signature.dtypes.get(name) else {
                let known: Vec<&str> = self.signature.dtypes.keys().map(String::as_str).collect();
                let expected = format!("a name from [dtypes] of op.toml: {}", known.join(", "));
                return Err(self.toml.refuse(needs.span(), "requires.dtypes", expected, format!("`{name}`")));
            };
            if let Some(other) = needs.get_ref().iter().find(|dtype| !allowed.contains(dtype)) {
                let expected = allowed.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
                return Err(self.toml.refuse(needs.span(), format!("requires.dtypes.{name}"), expected, other.name()));
            }
        }
        let mut dtypes: BTreeMap<String, Vec<Dtype>> =
            table.dtypes.into_iter().map(|(name, needs)| (name, needs.into_inner())).collect();
        dtypes.extend(self.plain_dtypes().filter(|(name, _)| !dtypes.contains_key(name)).collect::<Vec<_>>());
        Ok(Requires {
            arch: table.arch,
            features: table.features,
            wave: table.wave,
            precision: table.precision,
            dtypes,
            when: table.when.iter().map(|text| self.toml.expression(text, &conditions)).collect::<Result<_, _>>()?,
        })
    }

    /// The types without blocks, for those named types that may be formats: a template that does not take an argument's
    /// pointers takes no format, unless it says so.
    fn plain_dtypes(&self) -> impl Iterator<Item = (String, Vec<Dtype>)> {
        let body = &self.toml.file.text;
        let untaken = self.signature.pointers().filter(move |(pointers, _)| !body.contains(pointers.as_str()));
        untaken.filter_map(|(_, arg)| {
            let ArgDtype::Named(name) = &arg.dtype else { return None };
            let allowed = self.signature.dtypes[name].iter().copied();
            Some((name.clone(), allowed.filter(|dtype| dtype.format().is_none()).collect()))
        })
    }

    fn params(&self, tables: &BTreeMap<String, Spanned<ParamTable>>) -> Result<BTreeMap<String, Param>, LibraryError> {
        let mut params = BTreeMap::new();
        let mut n_choices = 1usize;
        for (name, table) in tables {
            n_choices = n_choices.saturating_mul(table.get_ref().values.len());
            if n_choices > MAX_CHOICES {
                let expected = format!("at most {MAX_CHOICES} choices of all parameters together");
                let found = format!("{} values times those of the parameters before", table.get_ref().values.len());
                return Err(self.toml.refuse(table.span(), format!("params.{name}.values"), expected, found));
            }
            // `block_size` is the one name that a parameter may share with the renderer: it then is the launch's.
            if name != "block_size" {
                self.toml.name("parameter", name, table.span())?;
            }
            if self.signature.declares(name) {
                let expected = "a name that op.toml does not declare";
                return Err(self.toml.refuse(table.span(), "parameter", expected, format!("`{name}`")));
            }
            let ParamTable { values, default, doc, tunable } = table.get_ref();
            if !values.contains(default) {
                let list = values.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let expected = format!("one of its values: {list}");
                return Err(self.toml.refuse(
                    table.span(),
                    format!("params.{name}.default"),
                    expected,
                    default.to_string(),
                ));
            }
            let (values, doc) = (values.clone(), doc.clone());
            params.insert(name.clone(), Param { values, default: *default, doc, is_tunable: *tunable });
        }
        Ok(params)
    }

    /// What constraints may use: dims, flags, dtypes, parameters, named facts, `precision`, `wave_size`, `lds_bytes`
    /// and `early_launch`.
    fn tuning_names(&self) -> BTreeSet<String> {
        let mut names = self.signature.condition_names();
        names.extend(self.params.union(&self.facts).cloned());
        names.extend(["precision", "wave_size", "lds_bytes", "early_launch"].map(String::from));
        names
    }

    /// The facts, each behind those that it uses.
    fn facts(&self, table: &BTreeMap<String, Spanned<String>>) -> Result<Vec<(String, Expression)>, LibraryError> {
        let known = self.tuning_names();
        let mut open = BTreeMap::new();
        for (name, text) in table {
            self.toml.name("let", name, text.span())?;
            if self.signature.declares(name) || self.params.contains(name) {
                let expected = "a name that neither op.toml nor [params] declares";
                return Err(self.toml.refuse(text.span(), "let", expected, format!("`{name}`")));
            }
            open.insert(name.clone(), self.toml.expression(text, &known)?);
        }
        let mut facts = Vec::new();
        while !open.is_empty() {
            let is_ready = |fact: &&String| open[*fact].names().iter().all(|name| !open.contains_key(name));
            let Some(name) = open.keys().find(is_ready).cloned() else {
                let names = open.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let first = open.keys().next().expect("not empty");
                return Err(self.toml.refuse(
                    table[first].span(),
                    "let",
                    "facts that end",
                    format!("a circle of {names}"),
                ));
            };
            let expression = open.remove(&name).expect("it was found there");
            facts.push((name, expression));
        }
        Ok(facts)
    }

    /// What shapes and the launch may use: the scalar arguments too.
    fn launch_names(&self) -> BTreeSet<String> {
        self.tuning_names().into_iter().chain(self.signature.scalar_names().cloned()).collect()
    }

    fn constraints(
        &self,
        table: &BTreeMap<String, Spanned<String>>,
    ) -> Result<BTreeMap<String, Expression>, LibraryError> {
        let known = self.tuning_names();
        table.iter().map(|(name, text)| Ok((name.clone(), self.toml.expression(text, &known)?))).collect()
    }

    fn launch(&self, table: &Spanned<LaunchTable>) -> Result<Launch, LibraryError> {
        let LaunchTable { grid, block_size, lds_bytes, scratch_bytes, early, cluster, min_blocks } = table.get_ref();
        let (known, fixed) = (self.launch_names(), self.tuning_names());
        let refuse = |expected: &str, found: &str| Err(self.toml.refuse(table.span(), "[launch]", expected, found));
        if grid.is_empty() || grid.len() > 3 {
            return refuse("a grid of one to three axes", &grid.len().to_string());
        }
        match (self.language, block_size, scratch_bytes) {
            (Language::C, Some(_), _) => {
                return refuse("no `block_size` on the host, which has no threads in a block", "one");
            }
            (Language::Hip, None, _) => {
                return refuse("a `block_size`", "none");
            }
            (Language::Hip, _, Some(_)) => {
                return refuse("no `scratch_bytes` on a GPU", "one");
            }
            _ => {}
        }
        let of_gpus = [("lds_bytes", lds_bytes), ("early", early), ("cluster", cluster), ("min_blocks", min_blocks)];
        if let (Language::C, Some((key, text))) =
            (self.language, of_gpus.into_iter().find_map(|(key, text)| Some((key, text.as_ref()?))))
        {
            return Err(self.toml.refuse(text.span(), format!("launch.{key}"), "none on the host", "one"));
        }
        if let (true, Some(text)) = (self.params.contains("block_size"), block_size)
            && text.get_ref() != "block_size"
        {
            return Err(self.toml.refuse(
                text.span(),
                "launch.block_size",
                "the parameter of that name",
                format!("`{}`", text.get_ref()),
            ));
        }
        Ok(Launch {
            grid: grid.iter().map(|axis| self.toml.expression(axis, &known)).collect::<Result<_, _>>()?,
            block_size: block_size.as_ref().map(|text| self.toml.expression(text, &fixed)).transpose()?,
            lds_bytes: lds_bytes.as_ref().map(|text| self.toml.expression(text, &fixed)).transpose()?,
            early: early.as_ref().map(|text| self.toml.expression(text, &fixed)).transpose()?,
            cluster: cluster.as_ref().map(|text| self.toml.expression(text, &fixed)).transpose()?,
            min_blocks: min_blocks.as_ref().map(|text| self.toml.expression(text, &fixed)).transpose()?,
            scratch_bytes: scratch_bytes.as_ref().map(|text| self.toml.expression(text, &known)).transpose()?,
        })
    }

    fn padded(&self, table: &PaddedTable) -> Result<PaddedSpec, LibraryError> {
        let tensors = self.signature.args.iter().filter(|arg| !arg.is_scalar()).map(|arg| arg.name.clone());
        table.read(self.toml, &tensors.collect(), &self.launch_names())
    }

    fn workspace(&self, tables: &[ArgTable]) -> Result<Vec<Arg>, LibraryError> {
        let (conditions, known) = (self.signature.condition_names(), self.launch_names());
        let mut workspace: Vec<Arg> = Vec::new();
        for table in tables {
            let mut arg = self.toml.arg(table, &self.signature.dtypes, &conditions, &known)?;
            if arg.is_scalar() {
                return Err(self.toml.refuse(
                    table.name.span(),
                    format!("workspace `{}`", arg.name),
                    "a shape",
                    "none",
                ));
            }
            let mut others = self.signature.args.iter().chain(&workspace);
            if others.any(|other| other.name == arg.name) {
                let found = format!("`{}`, which is declared twice", arg.name);
                return Err(self.toml.refuse(table.name.span(), "workspace", "a name of its own", found));
            }
            arg.access = Access::ReadWrite;
            workspace.push(arg);
        }
        Ok(workspace)
    }

    fn resources(&self, table: Option<Spanned<Resources>>) -> Result<Resources, LibraryError> {
        match table {
            Some(table) if self.language == Language::C => {
                Err(self.toml.refuse(table.span(), "[resources]", "none on the host", "one"))
            }
            Some(table) => Ok(table.into_inner()),
            None => Ok(Resources::default()),
        }
    }
}

/// The TOML in the file's first comment, and where it begins.
pub(super) fn front_matter(file: &SourceFile) -> Result<(usize, &str), LibraryError> {
    let missing = || LibraryError::NoFrontMatter { place: file.place(1) };
    let inside = file.text.strip_prefix("{#").ok_or_else(missing)?;
    let end = inside.find("#}").ok_or_else(missing)?;
    Ok((2, &inside[..end]))
}

/// `dot` of `linear/dot.c.j2`.
pub(super) fn variant_of(name: &str) -> &str {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.split('.').next().unwrap_or(file)
}
