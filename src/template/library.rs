//! The template library: folders searched in order, what shadows what, which templates are candidates.
//!
//! A file that is broken is kept with its error. It is no obstacle as long as nobody needs it; but where it could
//! be chosen, asking for candidates is an error that names it: what it shadows is never used in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, io};

use minijinja::Environment;

use super::bounded;
use super::contract::{self, Contract};
use super::environment::environment;
use super::expression::describe;
use super::lib_header::LibHeader;
use super::library_error::LibraryError;
use super::names::{LookedUp, Walk, looked_up, reached};
use super::signature::Signature;
use super::source_file::{Origin, SourceFile};
use super::{Misfit, Problem, Template};
use crate::embedded;
use crate::target::{Language, Target};

/// The longest file that is read; of templates less is compiled.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Names that every body may use.
const GLOBALS: [&str; 6] = ["signature", "entry", "arch", "wave_size", "precision", "features"];

/// All contracts and templates, and the engine that renders them.
#[derive(Debug)]
pub struct Library {
    origins: Vec<Origin>,
    contracts: BTreeMap<String, Arc<Contract>>,
    templates: Vec<Arc<Template>>,
    broken: Vec<Broken>,
    files: BTreeMap<String, SourceFile>,
    /// What the files of `lib/` say of themselves.
    headers: BTreeMap<String, LibHeader>,
    environment: Environment<'static>,
    /// What renders templates of people's own; without it they are rendered in this process.
    program: Option<PathBuf>,
}

/// The templates of a problem's ops.
#[derive(Clone, Debug)]
pub struct Examined {
    /// Those that fit: the highest priority first, then by name.
    pub candidates: Vec<Arc<Template>>,
    /// The others, each with the first requirement that does not hold.
    pub misfits: Vec<(Arc<Template>, Misfit)>,
}

/// A file that cannot be used, and why.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its path below its folder: `linear/dot.c.j2`, `linear/op.toml`.
    pub name: String,
    /// Where it came from.
    pub origin: Origin,
    /// What is wrong.
    pub error: Arc<LibraryError>,
}

/// One place where templates come from, read.
#[derive(Debug)]
pub struct Layer {
    /// Which place.
    pub origin: Origin,
    /// Path below it → text, or why it could not be read.
    pub files: BTreeMap<String, Result<String, Arc<io::Error>>>,
}

impl Library {
    /// The folders that are searched before the built-in templates: `--templates`, `$GPTOSS_JIT_TEMPLATES`, and the
    /// user's config folder, which need not exist.
    pub fn default_search(cli_dir: Option<&Path>) -> Vec<PathBuf> {
        let from_environment = env::var_os("GPTOSS_JIT_TEMPLATES").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let from_config = dirs::config_dir().map(|dir| dir.join("gptoss-jit/templates")).filter(|dir| dir.is_dir());
        cli_dir.map(Path::to_path_buf).into_iter().chain(from_environment).chain(from_config).collect()
    }

    /// Reads these folders, then the built-in templates. Broken files are kept with their errors: see [`Self::broken`].
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn load(search: &[PathBuf]) -> Result<Self, LibraryError> {
        let mut layers: Vec<Layer> = search.iter().map(|folder| Layer::read(folder)).collect::<Result<_, _>>()?;
        let Some(first) = search.first().filter(|_| layers.iter().any(|layer| !layer.files.is_empty())) else {
            return Ok(Self::assembled(vec![Layer::built_in()], false)); // its names are right: the tests check them
        };
        layers.push(Layer::built_in());
        let no_thread = |source| LibraryError::Read { path: first.clone(), source: Arc::new(source) };
        bounded::with_large_stack(|| Self::from_layers(layers)).map_err(no_thread)
    }

    /// Has templates of people's own rendered by this program, which calls [`bounded::render_worker`] when its only
    /// argument is [`bounded::COMMAND`]: in a process with bounds.
    pub fn with_program(self, program: PathBuf) -> Self {
        Self { program: Some(program), ..self }
    }

    /// The library of these layers alone, the first one searched first.
    pub fn from_layers(layers: Vec<Layer>) -> Self {
        Self::assembled(layers, true)
    }

    fn assembled(layers: Vec<Layer>, checks_names: bool) -> Self {
        let origins = layers.iter().map(|layer| layer.origin.clone()).collect();
        let mut broken = BTreeMap::new();
        let (files, shadows) = overlay(layers, &mut broken);
        let environment = compile(&files, &mut broken);
        let headers = read_headers(&files, &mut broken);
        let (contracts, templates) = (BTreeMap::new(), Vec::new());
        let mut library =
            Self { origins, contracts, templates, broken: Vec::new(), files, headers, environment, program: None };
        library.read_contracts(&mut broken);
        library.read_templates(&shadows, &mut broken, checks_names);
        library.broken = broken
            .into_iter()
            .map(|(name, error)| Broken { origin: library.files[&name].origin.clone(), name, error: Arc::new(error) })
            .collect();
        library
    }

    /// Every usable template, by op and variant.
    pub fn templates(&self) -> &[Arc<Template>] {
        &self.templates
    }

    /// Every contract, by op.
    pub fn contracts(&self) -> impl Iterator<Item = &Arc<Contract>> {
        self.contracts.values()
    }

    /// The files that cannot be used.
    pub fn broken(&self) -> &[Broken] {
        &self.broken
    }

    /// Whether any template comes from a folder.
    pub fn has_own_templates(&self) -> bool {
        self.templates.iter().any(|template| template.file.origin != Origin::BuiltIn)
    }

    /// The contract of an op.
    ///
    /// # Errors
    /// If there is none, or it is broken.
    pub fn contract(&self, op: &str) -> Result<&Arc<Contract>, LibraryError> {
        if let Some(contract) = self.contracts.get(op) {
            return Ok(contract);
        }
        let name = format!("{op}/op.toml");
        match self.broken.iter().find(|broken| broken.name == name) {
            Some(broken) => Err(broken.to_error()),
            None => Err(self.no_contract(op)),
        }
    }

    /// A template by `op/variant` and language.
    ///
    /// # Errors
    /// If there is none, or it is broken.
    pub fn template(&self, label: &str, language: Language) -> Result<&Arc<Template>, LibraryError> {
        let extension = language.extension();
        let name = format!("{label}{extension}");
        if let Some(template) = self.templates.iter().find(|template| template.file.name == name) {
            return Ok(template);
        }
        match self.broken.iter().find(|broken| broken.name == name) {
            Some(broken) => Err(broken.to_error()),
            None => Err(LibraryError::NoTemplate { label: label.to_owned() }),
        }
    }

    /// The templates of a problem's ops that fit it and the target: the highest priority first, then by name.
    ///
    /// # Errors
    /// If a broken file could be one of them.
    pub fn candidates(&self, problem: &Problem, target: &Target) -> Result<Vec<Arc<Template>>, LibraryError> {
        Ok(self.examined(problem, target)?.candidates)
    }

    /// The templates of a problem's ops: those that fit it and the target, and why the others do not.
    ///
    /// # Errors
    /// If a broken file could be one of them.
    pub fn examined(&self, problem: &Problem, target: &Target) -> Result<Examined, LibraryError> {
        if let Some(broken) = self.broken.iter().find(|broken| broken.concerns(problem, target)) {
            return Err(broken.to_error());
        }
        let mut examined = Examined { candidates: Vec::new(), misfits: Vec::new() };
        for template in self.templates.iter().filter(|template| template.ops == problem.ops) {
            match template.fits(problem, target) {
                Ok(()) => examined.candidates.push(Arc::clone(template)),
                Err(misfit) => examined.misfits.push((Arc::clone(template), misfit)),
            }
        }
        examined.candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
        Ok(examined)
    }

    /// The runs of ops that templates for a target fuse, the longest first.
    pub fn fusions(&self, target: &Target) -> Vec<Arc<Signature>> {
        let mut runs: Vec<Arc<Signature>> = Vec::new();
        for template in &self.templates {
            let is_new = template.ops.len() > 1 && !runs.iter().any(|run| run.ops == template.ops);
            if is_new && template.fits_target(target).is_ok() {
                runs.push(Arc::clone(&template.signature));
            }
        }
        runs.sort_by_key(|run| std::cmp::Reverse(run.ops.len()));
        runs
    }

    /// The templates of a problem's ops that do not fit, each with the first requirement that does not hold.
    pub fn misfits(&self, problem: &Problem, target: &Target) -> Vec<(Arc<Template>, Misfit)> {
        let of_these_ops = self.templates.iter().filter(|template| template.ops == problem.ops);
        of_these_ops.filter_map(|t| t.fits(problem, target).err().map(|misfit| (Arc::clone(t), misfit))).collect()
    }

    /// The error for a problem that has no candidate, with every template's reason.
    pub fn none_fits(&self, problem: &Problem, target: &Target) -> LibraryError {
        LibraryError::none_fits(problem, target, &self.misfits(problem, target))
    }

    pub(super) fn environment(&self) -> &Environment<'static> {
        &self.environment
    }

    /// The program that is to render a file, and the files that it takes: where any of them is somebody's own.
    pub(super) fn bounds<'a>(&'a self, file: &'a SourceFile) -> Option<(&'a Path, Vec<&'a SourceFile>)> {
        let program = self.program.as_deref().filter(|_| self.origins.len() > 1)?;
        let files = reached(&self.files, file);
        files.iter().any(|file| file.origin != Origin::BuiltIn).then_some((program, files))
    }

    /// Every file's text.
    pub(super) fn texts(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.values()
    }

    pub(super) fn file(&self, name: &str) -> Option<&SourceFile> {
        self.files.get(name)
    }

    fn no_contract(&self, op: &str) -> LibraryError {
        LibraryError::NoContract { op: op.to_owned(), searched: self.origins.iter().map(ToString::to_string).collect() }
    }

    fn read_contracts(&mut self, broken: &mut BTreeMap<String, LibraryError>) {
        for (name, file) in &self.files {
            let Some(op) = name.strip_suffix("/op.toml") else { continue };
            if broken.contains_key(name) {
                continue;
            }
            match Contract::parse(op, file) {
                Ok(contract) => drop(self.contracts.insert(op.to_owned(), Arc::new(contract))),
                Err(error) => drop(broken.insert(name.clone(), error)),
            }
        }
    }

    fn read_templates(
        &mut self,
        shadows: &BTreeMap<String, Vec<Origin>>,
        broken: &mut BTreeMap<String, LibraryError>,
        checks_names: bool,
    ) {
        let (mut templates, mut failed) = (Vec::new(), BTreeMap::new());
        let looked_up = checks_names.then(|| looked_up(&self.environment, &self.files));
        for (name, file) in self.files.iter().filter(|(name, _)| !broken.contains_key(*name)) {
            let Kind::Template { folder, language } = kind(name) else { continue };
            let hidden = shadows.get(name).cloned().unwrap_or_default();
            match self.read_template(folder, file, language, hidden, broken, looked_up.as_ref()) {
                Ok(template) => templates.push(Arc::new(template)),
                Err(error) => drop(failed.insert(name.clone(), error)),
            }
        }
        self.templates = templates;
        broken.extend(failed);
    }

    fn read_template(
        &self,
        folder: &str,
        file: &SourceFile,
        language: Language,
        shadows: Vec<Origin>,
        broken: &BTreeMap<String, LibraryError>,
        looked_up: Option<&LookedUp>,
    ) -> Result<Template, LibraryError> {
        let contract = |op: &str| match (self.contracts.get(op), broken.get(&format!("{op}/op.toml"))) {
            (Some(contract), _) => Ok(Arc::clone(contract)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(self.no_contract(op)),
        };
        let contracts: Vec<Arc<Contract>> = folder.split('+').map(contract).collect::<Result<_, _>>()?;
        let mut signature = Signature::of(&contracts)?;
        if let Some(tests) = self.files.get(&format!("{folder}/tests.toml")) {
            signature.own_tests = Some(contract::run_tests(&signature, tests)?);
        }
        let template = Template::parse(file, shadows, language, signature)?;
        if let Some(looked_up) = looked_up {
            self.check_names(&template, broken, looked_up)?;
        }
        Ok(template)
    }

    /// Every name that the body uses is declared, and every parameter is used.
    fn check_names(
        &self,
        template: &Template,
        broken: &BTreeMap<String, LibraryError>,
        looked_up: &LookedUp,
    ) -> Result<(), LibraryError> {
        let signature = &template.signature;
        let mut known: BTreeSet<String> = signature.condition_names();
        known.extend(signature.constants.iter().chain(template.params.keys()).cloned());
        known.extend(template.facts.iter().map(|(name, _)| name.clone()));
        known.extend(GLOBALS.map(String::from));
        known.extend(template.launch.block_size.is_some().then(|| "block_size".to_owned()));
        let walk = Walk { looked_up, files: &self.files, headers: &self.headers, broken };
        let mut used = walk.check(&template.file, &known)?;
        used.extend(template.expression_names());
        let params = template.params.keys().map(|name| (name, "parameter", format!("params.{name}")));
        let facts = template.facts.iter().map(|(name, _)| (name, "fact", format!("\n{name}")));
        match params.chain(facts).find(|(name, ..)| !used.contains(*name)) {
            Some((name, what, text)) => {
                let offset = template.file.text.find(&text).map_or(0, |at| at + usize::from(text.starts_with('\n')));
                Err(LibraryError::Unused { place: template.file.place_at(offset), what, name: name.clone() })
            }
            None => Ok(()),
        }
    }
}

impl Broken {
    /// The error to give when this file is needed.
    pub fn to_error(&self) -> LibraryError {
        LibraryError::Broken { name: self.name.clone(), source: Arc::clone(&self.error) }
    }

    /// Whether the file could be a candidate, or is the contract that the candidates obey.
    fn concerns(&self, problem: &Problem, target: &Target) -> bool {
        let Some((folder, file)) = self.name.split_once('/') else { return false };
        let is_contract = file == "op.toml" && problem.ops.iter().any(|op| op == folder);
        is_contract
            || (folder == problem.ops.join("+")
                && Language::ALL
                    .iter()
                    .all(|language| *language == target.language() || !file.ends_with(language.extension())))
    }
}

impl Layer {
    /// The templates embedded in the program.
    pub fn built_in() -> Self {
        let files = embedded::TEMPLATES.iter().map(|(name, text)| ((*name).to_owned(), Ok((*text).to_owned())));
        Self { origin: Origin::BuiltIn, files: files.collect() }
    }

    /// Reads a folder: its folders, and the `.j2` and `.toml` files in them.
    ///
    /// # Errors
    /// If a folder cannot be listed. A file that cannot be read is kept with its error.
    pub fn read(folder: &Path) -> Result<Self, LibraryError> {
        let mut files = BTreeMap::new();
        for (name, path) in entries(folder)?.into_iter().filter(|(name, path)| path.is_dir() && !name.starts_with('.'))
        {
            read_into(&mut files, &name, &path)?;
        }
        Ok(Self { origin: Origin::Folder(folder.to_path_buf()), files })
    }
}

/// Reads the files of a folder, as `prefix/file`; of `lib`, those of its folders too.
fn read_into(
    files: &mut BTreeMap<String, Result<String, Arc<io::Error>>>,
    prefix: &str,
    folder: &Path,
) -> Result<(), LibraryError> {
    for (name, path) in entries(folder)?.into_iter().filter(|(name, _)| !name.starts_with('.')) {
        let full = format!("{prefix}/{name}");
        if prefix == "lib" && path.is_dir() {
            read_into(files, &full, &path)?;
        } else if name.ends_with(".j2") || name.ends_with(".toml") {
            files.insert(full, mapped_file::read_to_string(&path, MAX_FILE_BYTES).map_err(Arc::new));
        }
    }
    Ok(())
}

/// Names and paths in a folder.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, LibraryError> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())))
            .collect()
    };
    read().map_err(|source| LibraryError::Read { path: folder.to_path_buf(), source: Arc::new(source) })
}

/// What a file is, by its name.
enum Kind<'a> {
    Contract,
    Tests,
    Template { folder: &'a str, language: Language },
    Lib,
    Stray(&'static str),
}

fn kind(name: &str) -> Kind<'_> {
    let Some((folder, file)) = name.split_once('/') else { return Kind::Stray("a folder for each op") };
    let is_name =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let language =
        Language::ALL.into_iter().find(|language| file.strip_suffix(language.extension()).is_some_and(is_name));
    match (folder, file, language) {
        ("lib", _, _) if file.ends_with(".j2") => Kind::Lib,
        ("lib", _, _) => Kind::Stray("`*.j2` in lib"),
        (_, "op.toml", _) if is_name(folder) => Kind::Contract,
        (_, "tests.toml", _) if folder.contains('+') && folder.split('+').all(is_name) => Kind::Tests,
        (_, _, Some(language)) if folder.split('+').all(is_name) => Kind::Template { folder, language },
        _ => Kind::Stray(
            "`op.toml` (of a run `tests.toml`), `<variant>.c.j2` or `<variant>.hip.j2` in a folder named by its ops, of a-z, 0-9 and _",
        ),
    }
}

/// The first file of each name, with the places of those that it hides.
fn overlay(
    layers: Vec<Layer>,
    broken: &mut BTreeMap<String, LibraryError>,
) -> (BTreeMap<String, SourceFile>, BTreeMap<String, Vec<Origin>>) {
    let mut files: BTreeMap<String, SourceFile> = BTreeMap::new();
    let mut shadows: BTreeMap<String, Vec<Origin>> = BTreeMap::new();
    for layer in layers {
        for (name, text) in layer.files {
            if files.contains_key(&name) {
                shadows.entry(name).or_default().push(layer.origin.clone());
                continue;
            }
            let unreadable = text.as_ref().err().cloned();
            let file =
                SourceFile { origin: layer.origin.clone(), name: name.clone(), text: text.unwrap_or_default().into() };
            if let Some(source) = unreadable {
                let path = PathBuf::from(file.place(0).file);
                broken.insert(name.clone(), LibraryError::Read { path, source });
            } else if let Kind::Stray(expected) = kind(&name) {
                broken.insert(name.clone(), LibraryError::StrayFile { place: file.place(0), expected });
            }
            files.insert(name, file);
        }
    }
    (files, shadows)
}

/// Reads what the files of `lib/` say of themselves; those that say nothing, or what is not so, become broken.
fn read_headers(
    files: &BTreeMap<String, SourceFile>,
    broken: &mut BTreeMap<String, LibraryError>,
) -> BTreeMap<String, LibHeader> {
    let mut headers = BTreeMap::new();
    for (name, file) in files.iter().filter(|(name, _)| matches!(kind(name), Kind::Lib)) {
        if broken.contains_key(name) {
            continue;
        }
        match LibHeader::parse(file) {
            Ok(header) => drop(headers.insert(name.clone(), header)),
            Err(error) => drop(broken.insert(name.clone(), error)),
        }
    }
    headers
}

/// Compiles every body; those that are no templates become broken.
fn compile(files: &BTreeMap<String, SourceFile>, broken: &mut BTreeMap<String, LibraryError>) -> Environment<'static> {
    let mut environment = environment();
    for (name, file) in files {
        if !matches!(kind(name), Kind::Template { .. } | Kind::Lib) || broken.contains_key(name) {
            continue;
        }
        if file.text.len() > bounded::MAX_TEMPLATE_BYTES {
            let message = format!("{} bytes, expected {} at most", file.text.len(), bounded::MAX_TEMPLATE_BYTES);
            broken.insert(name.clone(), LibraryError::Syntax { place: file.place(0), message });
            continue;
        }
        if let Err(error) = environment.add_template_owned(name.clone(), bounded::compiled_text(name, &file.text)) {
            let place = file.place(error.line().unwrap_or(0));
            broken.insert(name.clone(), LibraryError::Syntax { place, message: describe(&error) });
        }
    }
    environment
}
