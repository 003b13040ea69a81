//! The template library: folders searched in order, what shadows what, which templates are candidates.
//!
//! A broken file is kept with its error. It does no harm as long as it is not needed. Where it could be chosen, asking
//! for candidates is an error that names it; the file that it shadows is never used in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{env, io};

use minijinja::Environment;

use super::bounded;
use super::contract::{self, Contract};
use super::environment::environment;
use super::front_matter::variant_of;
use super::lib_header::LibHeader;
use super::library_error::LibraryError;
use super::names::{LookedUp, Walk, looked_up, reached};
use super::overlay::{Kind, entries, kind, overlay, read_into};
use super::signature::Signature;
use super::{Misfit, Problem, Template, stray};
use crate::target::{Language, Target};
use data::{Origin, SourceFile};
use expression::describe;

/// Names that every body may use.
const GLOBALS: [&str; 6] = ["signature", "entry", "arch", "wave_size", "precision", "features"];

/// All contracts and templates, and the engine that renders them.
#[derive(Debug)]
pub struct Library {
    origins: Vec<Origin>,
    contracts: BTreeMap<String, Read<Contract>>,
    /// By name of the file.
    templates: BTreeMap<String, Entry>,
    /// What is wrong with files whatever they say of themselves.
    unusable: BTreeMap<String, LibraryError>,
    files: Arc<BTreeMap<String, SourceFile>>,
    /// What lies after the first file of a name.
    shadows: BTreeMap<String, Vec<Origin>>,
    /// The files whose names are checked as they are read.
    held: BTreeSet<String>,
    names: Names,
    environment: Environment<'static>,
    /// What renders templates of people's own; without it they are rendered in this process.
    program: Option<PathBuf>,
}

/// A file's contents, read on first use: most commands need few files, in one language.
type Read<T> = OnceLock<Result<Arc<T>, LibraryError>>;

/// A template, and what its file's name says.
#[derive(Debug)]
struct Entry {
    /// The ops: `linear`, `rmsnorm+linear`.
    folder: String,
    label: Arc<str>,
    language: Language,
    read: Read<Template>,
}

/// The names that bodies may use.
#[derive(Debug)]
struct Names {
    /// What the files of `lib/` say of themselves.
    headers: BTreeMap<String, LibHeader>,
    looked_up: LookedUp,
}

/// The templates of a problem's ops.
#[derive(Clone, Debug)]
pub(crate) struct Examined {
    /// Those that fit: the highest priority first, then by name.
    pub(crate) candidates: Vec<Arc<Template>>,
    /// The labels of the others, each with the first requirement that does not hold.
    pub(crate) misfits: Vec<(Arc<str>, Misfit)>,
}

/// A file that cannot be used, and why.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Its path below its folder: `linear/dot.c.j2`, `linear/op.toml`.
    pub name: String,
    pub origin: Origin,
    pub error: Arc<LibraryError>,
}

/// One place where templates come from, read.
#[derive(Debug)]
pub struct Layer {
    pub(crate) origin: Origin,
    /// Path below it → text, or why it could not be read.
    pub(crate) files: BTreeMap<String, Result<String, Arc<io::Error>>>,
    /// Files that are never read although they seem meant to be: a line for each.
    pub(crate) unread: Vec<String>,
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
        stray::warn(&layers);
        let Some(first) = search.first().filter(|_| layers.iter().any(|layer| !layer.files.is_empty())) else {
            return Ok(Self::from_layers(vec![Layer::built_in()]));
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

    /// The library of these layers alone, the first one searched first. Built-in files are assumed to be right; a test
    /// compares them with [`Self::checked`].
    pub fn from_layers(layers: Vec<Layer>) -> Self {
        Self::assembled(layers, false)
    }

    /// The same, with every file read and checked.
    pub fn checked(layers: Vec<Layer>) -> Self {
        Self::assembled(layers, true)
    }

    fn assembled(layers: Vec<Layer>, checks_all: bool) -> Self {
        let origins = layers.iter().map(|layer| layer.origin.clone()).collect();
        let mut unusable = BTreeMap::new();
        let (files, shadows) = overlay(layers, &mut unusable);
        let files = Arc::new(files);
        let held = if checks_all { files.values().collect() } else { depending_on_own(&files) };
        let environment = compile(&files, &held, &mut unusable);
        let headers = read_headers(&held, &mut unusable);
        let names = Names { headers, looked_up: looked_up(&environment, &held) };
        let held: BTreeSet<String> = held.into_iter().map(|file| file.name.clone()).collect();
        let (mut contracts, mut templates) = (BTreeMap::new(), BTreeMap::new());
        for name in files.keys().filter(|name| !unusable.contains_key(*name)) {
            match kind(name) {
                Kind::Contract { op } => drop(contracts.insert(op.to_owned(), OnceLock::new())),
                Kind::Template { folder, language } => {
                    let label = format!("{folder}/{}", variant_of(name)).into();
                    let entry = Entry { folder: folder.to_owned(), label, language, read: OnceLock::new() };
                    templates.insert(name.clone(), entry);
                }
                _ => {}
            }
        }
        let library =
            Self { origins, contracts, templates, unusable, files, shadows, held, names, environment, program: None };
        for name in &library.held {
            library.broken_file(name); // here, where there may be a stack for it
        }
        library
    }

    /// Every usable template, by op and variant.
    pub fn templates(&self) -> impl Iterator<Item = &Arc<Template>> {
        self.templates_where(|_, _| true)
    }

    /// The usable templates of those ops, or runs of ops (`rmsnorm+linear`), and languages that are wanted. Others are
    /// not read.
    pub fn templates_where(&self, is_wanted: impl Fn(&str, Language) -> bool) -> impl Iterator<Item = &Arc<Template>> {
        let wanted = self.templates.iter().filter(move |(_, entry)| is_wanted(&entry.folder, entry.language));
        wanted.filter_map(|(name, entry)| self.read(name, entry).ok())
    }

    /// Every contract, by op.
    pub fn contracts(&self) -> impl Iterator<Item = &Arc<Contract>> {
        self.contracts.iter().filter_map(|(op, read)| self.read_contract(op, read).ok())
    }

    /// The files that cannot be used.
    pub fn broken(&self) -> Vec<Broken> {
        self.files.keys().filter_map(|name| self.broken_file(name)).collect()
    }

    /// What is wrong with a file, if anything is.
    fn broken_file(&self, name: &str) -> Option<Broken> {
        let of_template = || self.read(name, self.templates.get(name)?).err();
        let of_contract = || {
            let op = name.strip_suffix("/op.toml")?;
            self.read_contract(op, self.contracts.get(op)?).err()
        };
        let error = self.unusable.get(name).or_else(of_template).or_else(of_contract)?.clone();
        Some(Broken { name: name.to_owned(), origin: self.files[name].origin.clone(), error: Arc::new(error) })
    }

    /// Whether any template comes from a folder.
    pub fn has_own_templates(&self) -> bool {
        let mut own = self.templates.iter().filter(|(name, _)| self.files[*name].origin != Origin::BuiltIn);
        own.any(|(name, entry)| self.read(name, entry).is_ok())
    }

    /// The contract of an op.
    ///
    /// # Errors
    /// If there is none, or it is broken.
    pub fn contract(&self, op: &str) -> Result<&Arc<Contract>, LibraryError> {
        match self.contracts.get(op).map(|read| self.read_contract(op, read)) {
            Some(Ok(contract)) => Ok(contract),
            _ => {
                Err(self.broken_file(&format!("{op}/op.toml")).map_or_else(|| self.no_contract(op), |it| it.to_error()))
            }
        }
    }

    /// A template by `op/variant` and language.
    ///
    /// # Errors
    /// If there is none, or it is broken.
    pub fn template(&self, label: &str, language: Language) -> Result<&Arc<Template>, LibraryError> {
        let name = format!("{label}{}", language.extension());
        match self.templates.get(&name).map(|entry| self.read(&name, entry)) {
            Some(Ok(template)) => Ok(template),
            _ => {
                let none = || LibraryError::NoTemplate { label: label.to_owned() };
                Err(self.broken_file(&name).map_or_else(none, |broken| broken.to_error()))
            }
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
    pub(crate) fn examined(&self, problem: &Problem, target: &Target) -> Result<Examined, LibraryError> {
        let folder = problem.ops.join("+");
        let contracts = problem.ops.iter().map(|op| format!("{op}/op.toml"));
        let of_folder = self.files_of(&folder).map(|(name, _)| name.clone()).filter(|name| {
            let is_of = |language: &Language| name.ends_with(language.extension());
            !Language::ALL.iter().any(|language| *language != target.language() && is_of(language))
        });
        if let Some(broken) = contracts.chain(of_folder).find_map(|name| self.broken_file(&name)) {
            return Err(broken.to_error());
        }
        let mut examined = Examined { candidates: Vec::new(), misfits: Vec::new() };
        for (name, _) in self.files_of(&folder) {
            let Some(entry) = self.templates.get(name) else { continue };
            if entry.language != target.language() {
                let misfit = Misfit::Language { needs: entry.language, found: target.language() };
                examined.misfits.push((Arc::clone(&entry.label), misfit));
                continue;
            }
            let Ok(template) = self.read(name, entry) else { continue };
            match template.fits(problem, target) {
                Ok(()) => examined.candidates.push(Arc::clone(template)),
                Err(misfit) => examined.misfits.push((Arc::clone(&entry.label), misfit)),
            }
        }
        examined.candidates.sort_by(|a, b| a.rank().cmp(&b.rank()));
        Ok(examined)
    }

    /// The files of an op's folder, or a run's.
    fn files_of<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a String, &'a SourceFile)> {
        let is_below = move |name: &str| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        self.files.range(format!("{folder}/")..).take_while(move |(name, _)| is_below(name))
    }

    /// The runs of ops that templates for a target fuse, the longest first.
    pub fn fusions(&self, target: &Target) -> Vec<Arc<Signature>> {
        let mut runs: Vec<Arc<Signature>> = Vec::new();
        for template in self.templates_where(|ops, language| ops.contains('+') && language == target.language()) {
            let is_new = !runs.iter().any(|run| run.ops == template.ops);
            if is_new && template.fits_target(target).is_ok() {
                runs.push(Arc::clone(&template.signature));
            }
        }
        runs.sort_by_key(|run| std::cmp::Reverse(run.ops.len()));
        runs
    }

    /// The error for a problem that has no candidate, with every template's reason.
    pub fn none_fits(&self, problem: &Problem, target: &Target) -> LibraryError {
        let misfits = self.examined(problem, target).map_or_else(|_| Vec::new(), |examined| examined.misfits);
        LibraryError::none_fits(problem, target, &misfits)
    }

    pub(super) fn environment(&self) -> &Environment<'static> {
        &self.environment
    }

    /// The bounded process that renders a file, and the files that it takes, if any of them is a user's.
    pub(super) fn bounds<'a>(&'a self, file: &'a SourceFile) -> Option<(&'a Path, Vec<&'a SourceFile>)> {
        let program = self.program.as_deref().filter(|_| self.origins.len() > 1)?;
        let files = reached(&self.files, file);
        files.iter().any(|file| file.origin != Origin::BuiltIn).then_some((program, files))
    }

    /// Every file that could be read, those of folders in the place of built-in ones.
    pub fn texts(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.values()
    }

    pub(super) fn file(&self, name: &str) -> Option<&SourceFile> {
        self.files.get(name)
    }

    fn no_contract(&self, op: &str) -> LibraryError {
        LibraryError::NoContract { op: op.to_owned(), searched: self.origins.iter().map(ToString::to_string).collect() }
    }

    fn read_contract<'a>(&'a self, op: &str, read: &'a Read<Contract>) -> Result<&'a Arc<Contract>, &'a LibraryError> {
        read.get_or_init(|| Contract::parse(op, &self.files[&format!("{op}/op.toml")]).map(Arc::new)).as_ref()
    }

    fn read<'a>(&'a self, name: &str, entry: &'a Entry) -> Result<&'a Arc<Template>, &'a LibraryError> {
        entry.read.get_or_init(|| self.parse(&self.files[name], entry).map(Arc::new)).as_ref()
    }

    fn parse(&self, file: &SourceFile, entry: &Entry) -> Result<Template, LibraryError> {
        let contract = |op: &str| match self.contracts.get(op).map(|read| self.read_contract(op, read)) {
            Some(contract) => contract.cloned().map_err(Clone::clone),
            None => Err(self.unusable.get(&format!("{op}/op.toml")).cloned().unwrap_or_else(|| self.no_contract(op))),
        };
        let contracts: Vec<Arc<Contract>> = entry.folder.split('+').map(contract).collect::<Result<_, _>>()?;
        let mut signature = Signature::join(&contracts)?;
        if let Some(tests) = self.files.get(&format!("{}/tests.toml", entry.folder)) {
            signature.own_tests = Some(contract::run_tests(&signature, tests)?);
        }
        let shadows = self.shadows.get(&file.name).cloned().unwrap_or_default();
        let lib = |name: &str| {
            let file = self.files.get(name).filter(|_| matches!(kind(name), Kind::Lib))?;
            Some(self.unusable.get(name).cloned().map_or(Ok(file), Err))
        };
        let template = Template::parse(file, shadows, entry.language, signature, lib)?;
        if self.held.contains(&file.name) {
            self.check_names(&template)?;
        }
        Ok(template)
    }

    /// Every name that the body uses is declared, and every parameter is used.
    fn check_names(&self, template: &Template) -> Result<(), LibraryError> {
        let signature = &template.signature;
        let mut known: BTreeSet<String> = signature.condition_names();
        known.extend(signature.constants.iter().chain(template.params.keys()).cloned());
        known.extend(template.facts.iter().map(|(name, _)| name.clone()));
        known.extend(signature.pointers().map(|(name, _)| name).chain(GLOBALS.map(String::from)));
        known.extend(template.launch.block_size.is_some().then(|| "block_size".to_owned()));
        let Names { headers, looked_up } = &self.names;
        let walk = Walk { looked_up, files: &self.files, headers, broken: &self.unusable };
        let mut used = walk.check(&template.file, &known)?;
        used.extend(template.expression_names());
        let params = template.params.iter().map(|(name, param)| (name, "parameter", &param.place));
        let facts = template.facts.iter().map(|(name, fact)| (name, "fact", fact.place()));
        let unused = params.chain(facts).find(|(name, ..)| !used.contains(*name));
        let Some((name, what, place)) = unused else { return Ok(()) };
        Err(LibraryError::Unused { place: place.clone(), what, name: name.clone() })
    }
}

impl Broken {
    /// The error to give when this file is needed.
    pub fn to_error(&self) -> LibraryError {
        LibraryError::Broken { name: self.name.clone(), source: Arc::clone(&self.error) }
    }
}

impl Layer {
    /// The templates embedded in the program.
    pub fn built_in() -> Self {
        let files = data::TEMPLATES.iter().map(|(name, text)| ((*name).to_owned(), Ok((*text).to_owned())));
        Self { origin: Origin::BuiltIn, files: files.collect(), unread: Vec::new() }
    }

    /// Reads a folder: its folders, and the `.j2` and `.toml` files in them.
    ///
    /// # Errors
    /// If a folder cannot be listed. A file that cannot be read is kept with its error.
    pub fn read(folder: &Path) -> Result<Self, LibraryError> {
        let origin = Origin::Folder(folder.to_path_buf());
        let mut layer = Self { origin, files: BTreeMap::new(), unread: Vec::new() };
        for (name, path) in entries(folder)?.into_iter().filter(|(name, _)| !name.starts_with('.')) {
            if path.is_dir() {
                read_into(&mut layer, &name, &path)?;
            } else {
                layer.unread.extend(stray::beside_folders(&name, &path));
            }
        }
        Ok(layer)
    }
}

/// The user's files, the templates that depend on one, and all files that these include. Any file may include one of
/// `lib/`.
fn depending_on_own(files: &BTreeMap<String, SourceFile>) -> Vec<&SourceFile> {
    let is_own = |name: &str| files.get(name).is_some_and(|file| file.origin != Origin::BuiltIn);
    let own: Vec<&str> = files.keys().map(String::as_str).filter(|name| is_own(name)).collect();
    if own.iter().any(|name| name.starts_with("lib/")) {
        return files.values().collect();
    }
    let folders: Vec<&str> =
        own.iter().filter_map(|name| name.strip_suffix(".toml")?.rsplit_once('/')).map(|(folder, _)| folder).collect();
    let has_own_contract = |name: &str| {
        let folder = name.split('/').next().unwrap_or_default();
        folders.iter().any(|own| *own == folder || folder.split('+').any(|op| op == *own))
    };
    let roots = files.values().filter(|file| is_own(&file.name) || !folders.is_empty() && has_own_contract(&file.name));
    let held: BTreeMap<&str, &SourceFile> =
        roots.flat_map(|root| reached(files, root)).map(|file| (&*file.name, file)).collect();
    held.into_values().collect()
}

/// Reads what files of `lib/` say of themselves; those that say nothing, or what is not so, become broken.
fn read_headers(held: &[&SourceFile], broken: &mut BTreeMap<String, LibraryError>) -> BTreeMap<String, LibHeader> {
    let mut headers = BTreeMap::new();
    for file in held.iter().filter(|file| matches!(kind(&file.name), Kind::Lib)) {
        if broken.contains_key(&file.name) {
            continue;
        }
        match LibHeader::parse(file) {
            Ok(header) => drop(headers.insert(file.name.clone(), header)),
            Err(error) => drop(broken.insert(file.name.clone(), error)),
        }
    }
    headers
}

/// Compiles these bodies; those that are no templates become broken. What is built in besides is compiled when it is
/// rendered or included first.
fn compile(
    files: &Arc<BTreeMap<String, SourceFile>>,
    held: &[&SourceFile],
    broken: &mut BTreeMap<String, LibraryError>,
) -> Environment<'static> {
    let mut environment = environment();
    for file in held {
        let name = &file.name;
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
    let files = Arc::clone(files);
    environment.set_loader(move |name| {
        let built_in = files.get(name).filter(|file| file.origin == Origin::BuiltIn);
        Ok(built_in.map(|file| bounded::compiled_text(name, &file.text)))
    });
    environment
}
