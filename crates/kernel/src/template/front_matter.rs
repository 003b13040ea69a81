//! The front matter of a template: TOML in the file's first comment, read and checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::contract::{Access, Arg, ArgDtype, TestTable, Tolerance, test_shapes};
use super::declaration::{ArgTable, Toml};
use super::library_error::LibraryError;
use super::params::MAX_CHOICES;
use super::signature::Signature;
use super::uses::{Declared, LaunchTable, NumericsTable, ParamTable, Part, Parts, RequiresTable, Tables, twice};
use super::work::{PaddedSpec, PaddedTable, padded};
use super::{Launch, NumericsOverride, Param, Requires, Resources, Template};
use crate::target::Language;
use data::{Origin, SourceFile};
use expression::{Expression, Scope};
use format::Dtype;

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
    uses: Vec<Spanned<String>>,
    #[serde(default)]
    requires: RequiresTable,
    #[serde(default)]
    params: BTreeMap<String, Spanned<ParamTable>>,
    #[serde(default, rename = "let")]
    facts: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    constraints: BTreeMap<String, Spanned<String>>,
    launch: Option<Spanned<LaunchTable>>,
    #[serde(default)]
    padded: PaddedTable,
    #[serde(default)]
    workspace: Vec<ArgTable>,
    #[serde(default)]
    compile: CompileTable,
    resources: Option<Spanned<Resources>>,
    #[serde(default)]
    numerics: NumericsTable,
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
struct CompileTable {
    options: Vec<String>,
}

impl Template {
    /// Reads and checks the front matter, and what it uses: `lib` gives a file of `lib/` by its name. The names that
    /// the body uses are checked by the library, which knows what it includes.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse<'a>(
        file: &'a SourceFile,
        shadows: Vec<Origin>,
        language: Language,
        mut signature: Signature,
        lib: impl Fn(&str) -> Option<Result<&'a SourceFile, LibraryError>>,
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
        let head = table.launch.as_ref().map_or(table.op.span(), Spanned::span);
        let FrontMatter { uses, requires, params, facts, constraints, launch, padded, workspace, numerics, .. } = table;
        let tables = Tables { uses, requires, params, facts, constraints, launch, padded, workspace, numerics };
        let parts = Parts::of(Part { toml, tables }, lib)?;
        let reader = Reader {
            params: parts.params()?,
            facts: parts.named("the fact", |tables| &tables.facts)?,
            parts: &parts,
            signature: &signature,
            language,
            head,
        };
        let params = reader.params()?;
        Ok(Self {
            ops: signature.ops.clone(),
            variant: variant_of(&file.name).to_owned(),
            language,
            file: file.clone(),
            shadows,
            keeps: table.keeps.into_iter().map(Spanned::into_inner).collect(),
            summary: table.summary,
            priority: table.priority,
            requires: reader.requires()?,
            params: params.clone(),
            facts: reader.facts()?,
            constraints: reader.constraints(&params)?,
            launch: reader.launch()?,
            padded: reader.padded()?,
            workspace: reader.workspace()?,
            options: table.compile.options,
            resources: reader.resources(table.resources)?,
            numerics: reader.numerics()?,
            tests: test_shapes(&signature, &parts.own().toml, &table.tests)?,
            signature: Arc::new(signature),
        })
    }
}

/// Turns the tables of the front matter, and of what it uses, into checked values.
struct Reader<'a> {
    parts: &'a Parts<'a>,
    signature: &'a Signature,
    language: Language,
    params: BTreeMap<&'a str, Vec<Declared<'a, ParamTable>>>,
    facts: BTreeMap<&'a str, Declared<'a, String>>,
    /// Where the template says how it is launched.
    head: Range<usize>,
}

impl Reader<'_> {
    fn requires(&self) -> Result<Requires, LibraryError> {
        let conditions = self.signature.condition_names();
        let mut dtypes = BTreeMap::new();
        for (name, needs) in self.parts.named("the types of", |tables| &tables.requires.dtypes)? {
            let Some(allowed) = self.signature.dtypes.get(name) else {
                let known: Vec<&str> = self.signature.dtypes.keys().map(String::as_str).collect();
                let expected = format!("a name from [dtypes] of op.toml: {}", known.join(", "));
                return Err(needs.refuse("requires.dtypes", expected, format!("`{name}`")));
            };
            if let Some(other) = needs.value.get_ref().iter().find(|dtype| !allowed.contains(dtype)) {
                let expected = allowed.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
                return Err(needs.refuse(format!("requires.dtypes.{name}"), expected, other.name()));
            }
            dtypes.insert(name.to_owned(), needs.value.get_ref().clone());
        }
        dtypes.extend(self.plain_dtypes().filter(|(name, _)| !dtypes.contains_key(name)).collect::<Vec<_>>());
        let (mut features, mut when) = (Vec::new(), Vec::new());
        for part in self.parts.iter() {
            features.extend(part.tables.requires.features.iter().cloned());
            for condition in &part.tables.requires.when {
                when.push(part.toml.expression(condition, &conditions)?);
            }
        }
        let arch = self.parts.one("requires.arch", |tables| tables.requires.arch.as_ref())?;
        let wave = self.parts.one("requires.wave", |tables| tables.requires.wave.as_ref())?;
        let precision = self.parts.one("requires.precision", |tables| tables.requires.precision.as_ref())?;
        Ok(Requires { arch: listed(arch), features, wave: listed(wave), precision: listed(precision), dtypes, when })
    }

    /// The types that kernels read as they are, for those named types that may be formats: a template that does not
    /// take an argument's pointers takes neither a format nor f16, unless it says so.
    fn plain_dtypes(&self) -> impl Iterator<Item = (String, Vec<Dtype>)> {
        let body = &self.parts.own().toml.file.text;
        let untaken = self.signature.pointers().filter(move |(pointers, _)| !body.contains(pointers.as_str()));
        untaken.filter_map(|(_, arg)| {
            let ArgDtype::Named(name) = &arg.dtype else { return None };
            let allowed = self.signature.dtypes[name].iter().copied();
            Some((name.clone(), allowed.filter(|dtype| dtype.format().is_none() && *dtype != Dtype::F16).collect()))
        })
    }

    fn params(&self) -> Result<BTreeMap<String, Param>, LibraryError> {
        let mut params = BTreeMap::new();
        let mut n_choices = 1usize;
        for (name, said) in &self.params {
            let (first, last) = (&said[0], &said[said.len() - 1]);
            let Some(param) = param(said) else {
                let expected = "`values`, `default` and `doc`, as no file that is used declares it";
                return Err(first.refuse(format!("params.{name}"), expected, "fewer"));
            };
            n_choices = n_choices.saturating_mul(param.values.len());
            if n_choices > MAX_CHOICES {
                let expected = format!("at most {MAX_CHOICES} choices of all parameters together");
                let found = format!("{} values times those of the parameters before", param.values.len());
                return Err(last.refuse(format!("params.{name}.values"), expected, found));
            }
            // `block_size` is the one name that a parameter may share with the renderer: it then is the launch's.
            if *name != "block_size" {
                first.toml.name("parameter", name, first.value.span())?;
            }
            if self.signature.declares(name) {
                let expected = "a name that op.toml does not declare";
                return Err(first.refuse("parameter", expected, format!("`{name}`")));
            }
            if !param.values.contains(&param.default) {
                let list = param.values.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let (item, expected) = (format!("params.{name}.default"), format!("one of its values: {list}"));
                return Err(last.refuse(item, expected, param.default.to_string()));
            }
            params.insert((*name).to_owned(), param);
        }
        Ok(params)
    }

    /// What constraints may use: dims, flags, dtypes, parameters, named facts, `precision`, `wave_size`, `lds_bytes`
    /// and `early_launch`.
    fn tuning_names(&self) -> BTreeSet<String> {
        let mut names = self.signature.condition_names();
        names.extend(self.params.keys().chain(self.facts.keys()).map(ToString::to_string));
        names.extend(["precision", "wave_size", "lds_bytes", "early_launch"].map(String::from));
        names
    }

    /// The facts, each after those that it uses.
    fn facts(&self) -> Result<Vec<(String, Expression)>, LibraryError> {
        let known = self.tuning_names();
        let mut open = BTreeMap::new();
        for (&name, fact) in &self.facts {
            fact.toml.name("let", name, fact.value.span())?;
            if let Some(param) = self.params.get(name) {
                return Err(twice(fact.place(), format!("`{name}`"), param[0].place()));
            }
            if self.signature.declares(name) {
                return Err(fact.refuse("let", "a name that op.toml does not declare", format!("`{name}`")));
            }
            open.insert(name, fact.expression(&known)?);
        }
        let mut facts = Vec::new();
        while !open.is_empty() {
            let is_ready = |fact: &&&str| open[**fact].names().iter().all(|name| !open.contains_key(name.as_str()));
            let Some(&name) = open.keys().find(is_ready) else {
                let names = open.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let first = open.keys().next().expect("not empty");
                return Err(self.facts[first].refuse("let", "facts that end", format!("a circle of {names}")));
            };
            let expression = open.remove(name).expect("it was found there");
            facts.push((name.to_owned(), expression));
        }
        Ok(facts)
    }

    /// What shapes and the launch may use: the scalar arguments too.
    fn launch_names(&self) -> BTreeSet<String> {
        self.tuning_names().into_iter().chain(self.signature.scalar_names().cloned()).collect()
    }

    /// One that the defaults break whatever the problem is a mistake: others would run in their place.
    fn constraints(&self, params: &BTreeMap<String, Param>) -> Result<BTreeMap<String, Expression>, LibraryError> {
        let known = self.tuning_names();
        let defaults = params.iter().map(|(name, param)| (name.clone(), param.default.into()));
        let defaults = Arc::new(Scope::new(defaults.collect()));
        let mut constraints = BTreeMap::new();
        for (name, text) in self.parts.named("the constraint", |tables| &tables.constraints)? {
            let constraint = text.expression(&known)?;
            let is_of_params = constraint.names().iter().all(|name| params.contains_key(name));
            // One that cannot be computed is told of when it is needed.
            if is_of_params && matches!(constraint.holds(&defaults), Ok(false)) {
                let of = |name: &String| Some(format!("{name} = {}", params.get(name)?.default));
                let found: Vec<String> = constraint.names().iter().filter_map(of).collect();
                let expected = "a constraint that the defaults of the parameters satisfy";
                return Err(text.refuse(format!("constraints.{name}"), expected, found.join(", ")));
            }
            constraints.insert(name.to_owned(), constraint);
        }
        Ok(constraints)
    }

    fn launch(&self) -> Result<Launch, LibraryError> {
        let (known, fixed) = (self.launch_names(), self.tuning_names());
        let refuse = |expected: &str, found: &str| {
            Err(self.parts.own().toml.refuse(self.head.clone(), "[launch]", expected, found))
        };
        let key = |name: &str, of: fn(&LaunchTable) -> Option<&Spanned<String>>| {
            self.parts.one(&format!("launch.{name}"), |tables| of(tables.launch.as_ref()?.get_ref()))
        };
        let block_size = key("block_size", |launch| launch.block_size.as_ref())?;
        let scratch_bytes = key("scratch_bytes", |launch| launch.scratch_bytes.as_ref())?;
        let lds_bytes = key("lds_bytes", |launch| launch.lds_bytes.as_ref())?;
        let early = key("early", |launch| launch.early.as_ref())?;
        let cluster = key("cluster", |launch| launch.cluster.as_ref())?;
        let min_blocks = key("min_blocks", |launch| launch.min_blocks.as_ref())?;
        let grid = self.parts.one("launch.grid", |tables| tables.launch.as_ref()?.get_ref().grid.as_ref())?;
        let axes = grid.as_ref().map_or(&[][..], |grid| grid.value.get_ref());
        if axes.is_empty() || axes.len() > 3 {
            return refuse("a grid of one to three axes", &axes.len().to_string());
        }
        match (self.language, &block_size, &scratch_bytes) {
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
        let of_gpus =
            [("lds_bytes", &lds_bytes), ("early", &early), ("cluster", &cluster), ("min_blocks", &min_blocks)];
        let first_of_gpus = of_gpus.into_iter().find_map(|(key, text)| Some((key, text.as_ref()?)));
        if let (Language::C, Some((key, text))) = (self.language, first_of_gpus) {
            return Err(text.refuse(format!("launch.{key}"), "none on the host", "one"));
        }
        if let (true, Some(text)) = (self.params.contains_key("block_size"), &block_size)
            && text.value.get_ref() != "block_size"
        {
            let found = format!("`{}`", text.value.get_ref());
            return Err(text.refuse("launch.block_size", "the parameter of that name", found));
        }
        let read = |text: Option<Declared<'_, String>>, known| text.map(|text| text.expression(known)).transpose();
        let axis = |axis: &Spanned<String>| grid.as_ref().expect("it has axes").toml.expression(axis, &known);
        Ok(Launch {
            grid: axes.iter().map(axis).collect::<Result<_, _>>()?,
            block_size: read(block_size, &fixed)?,
            lds_bytes: read(lds_bytes, &fixed)?,
            early: read(early, &fixed)?,
            cluster: read(cluster, &fixed)?,
            min_blocks: read(min_blocks, &fixed)?,
            scratch_bytes: read(scratch_bytes, &known)?,
        })
    }

    fn padded(&self) -> Result<PaddedSpec, LibraryError> {
        let tensors = self.signature.args.iter().filter(|arg| !arg.is_scalar()).map(|arg| arg.name.clone());
        padded(self.parts, &tensors.collect(), &self.launch_names())
    }

    fn workspace(&self) -> Result<Vec<Arg>, LibraryError> {
        let (conditions, known) = (self.signature.condition_names(), self.launch_names());
        let mut workspace: Vec<Arg> = Vec::new();
        for (toml, table) in
            self.parts.iter().flat_map(|part| part.tables.workspace.iter().map(|arg| (&part.toml, arg)))
        {
            let mut arg = toml.arg(table, &self.signature.dtypes, &conditions, &known)?;
            if arg.is_scalar() {
                return Err(toml.refuse(table.name.span(), format!("workspace `{}`", arg.name), "a shape", "none"));
            }
            let mut others = self.signature.args.iter().chain(&workspace);
            if let Some(other) = others.find(|other| other.name == arg.name) {
                return Err(twice(arg.place, format!("the argument `{}`", arg.name), other.place.clone()));
            }
            arg.access = Access::ReadWrite;
            workspace.push(arg);
        }
        Ok(workspace)
    }

    fn resources(&self, table: Option<Spanned<Resources>>) -> Result<Resources, LibraryError> {
        match table {
            Some(table) if self.language == Language::C => {
                Err(self.parts.own().toml.refuse(table.span(), "[resources]", "none on the host", "one"))
            }
            None if self.language == Language::C => Ok(Resources::default()),
            table => {
                let max_spills = table.and_then(|table| table.into_inner().max_spills).unwrap_or(0);
                Ok(Resources { max_spills: Some(max_spills) })
            }
        }
    }

    fn numerics(&self) -> Result<NumericsOverride, LibraryError> {
        let f32 = self.parts.one("numerics.f32", |tables| tables.numerics.f32.as_ref())?;
        let bf16 = self.parts.one("numerics.bf16", |tables| tables.numerics.bf16.as_ref())?;
        let tolerance = |said: Option<Declared<'_, Tolerance>>| said.map(|said| *said.value.get_ref());
        Ok(NumericsOverride { f32: tolerance(f32), bf16: tolerance(bf16) })
    }
}

/// A list; empty if it is declared nowhere.
fn listed<T: Clone>(said: Option<Declared<'_, Vec<T>>>) -> Vec<T> {
    said.map_or(Vec::new(), |said| said.value.get_ref().clone())
}

/// A parameter made from all its declarations, later ones first; `None` if they are not enough.
fn param(said: &[Declared<'_, ParamTable>]) -> Option<Param> {
    let tables = || said.iter().rev().map(|said| said.value.get_ref());
    Some(Param {
        values: tables().find_map(|table| table.values.clone())?,
        default: tables().find_map(|table| table.default)?,
        doc: tables().find_map(|table| table.doc.clone())?,
        is_tunable: tables().find_map(|table| table.tunable).unwrap_or(true),
        place: said[0].place(),
    })
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
