//! The families that this process knows: those of files that it was given, of the user's folder, and built in. Of two
//! of the same name the first of these is the family; where it is broken, none is ([`usable`]).

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use super::{Family, FamilyError};

/// The longest file that is read; gpt-oss's has 9 kB.
const MAX_BYTES: u64 = 1 << 20;

/// All that were found.
struct KnownFamilies {
    families: Vec<&'static Family>,
    broken: Vec<Broken>,
}

/// A file of the user's folder that is no family's.
#[derive(Debug)]
pub struct Broken {
    pub path: PathBuf,
    /// What it is called, which may be a family's name.
    pub name: String,
    /// What is wrong with it.
    pub error: FamilyError,
}

/// What is known stays where it is, so that families can be referred to: there are few of them.
static KNOWN: RwLock<Option<&'static KnownFamilies>> = RwLock::new(None);

/// The user's folder, which need not exist: `<config folder>/gptoss-jit/models`.
pub fn folder() -> Option<PathBuf> {
    dirs::config_dir().map(|dir| dir.join("gptoss-jit/models")).filter(|dir| dir.is_dir())
}

/// Reads these files and those of a folder, which go before what is built in.
///
/// # Errors
/// What is wrong with the first file that is broken, of `files`; those of the folder are kept with theirs, see
/// [`broken`].
pub fn read(files: &[PathBuf], folder: Option<&Path>) -> Result<(), FamilyError> {
    let mut known = KnownFamilies { families: Vec::new(), broken: Vec::new() };
    for file in files {
        let family = read_file(file)?;
        known.add(family);
    }
    for path in folder.into_iter().flat_map(toml_files) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match read_file(&path) {
            Ok(family) => known.add(family),
            Err(error) => known.broken.push(Broken { path, name, error }),
        }
    }
    known.add_built_in();
    set(known);
    Ok(())
}

/// Has a family go before all others, under its name.
pub fn put_first(family: Family) -> &'static Family {
    let family: &'static Family = Box::leak(Box::new(family));
    let others = known().iter().filter(|known| known.name != family.name).copied();
    set(KnownFamilies { families: std::iter::once(family).chain(others).collect(), broken: Vec::new() });
    family
}

fn set(known: KnownFamilies) {
    *KNOWN.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::leak(Box::new(known)));
}

/// All families, those first that go before others.
pub fn known() -> &'static [&'static Family] {
    &all().families
}

/// The files that could not be read.
pub fn broken() -> &'static [Broken] {
    &all().broken
}

/// The family of this name.
pub fn named(name: &str) -> Option<&'static Family> {
    known().iter().find(|family| family.name == name).copied()
}

/// OpenAI's gpt-oss, which `.bin` files are of.
pub fn gpt_oss() -> &'static Family {
    named("gpt-oss").expect("it is built in")
}

/// Whether a family may be used: it may not where a file that goes before it is broken.
///
/// # Errors
/// What is wrong with that file.
pub(crate) fn usable(family: &Family) -> Result<(), FamilyError> {
    match broken().iter().find(|broken| broken.name == family.name) {
        Some(broken) => Err(broken.error.clone()),
        None => Ok(()),
    }
}

fn all() -> &'static KnownFamilies {
    if let Some(known) = *KNOWN.read().unwrap_or_else(PoisonError::into_inner) {
        return known;
    }
    let mut known = KnownFamilies { families: Vec::new(), broken: Vec::new() };
    known.add_built_in();
    let mut all = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_with(|| Box::leak(Box::new(known)))
}

impl KnownFamilies {
    fn add(&mut self, family: Family) {
        if !self.families.iter().any(|known| known.name == family.name) {
            self.families.push(Box::leak(Box::new(family))); // as long-lived as the process, as what is built in
        }
    }

    fn add_built_in(&mut self) {
        for (name, text) in data::MODELS.iter().filter(|(name, _)| name.ends_with(".toml")) {
            // Tests read all of them.
            let family = Family::read(&format!("<built in>/{name}"), text).unwrap_or_else(|error| panic!("{error}"));
            self.add(family);
        }
    }
}

/// Reads a family's file.
///
/// # Errors
/// It cannot be read, or what is wrong with it.
pub fn read_file(path: &Path) -> Result<Family, FamilyError> {
    let name = path.display().to_string();
    let text = mapped_file::read_to_string(path, MAX_BYTES)
        .map_err(|error| FamilyError::Read { path: name.clone(), message: error.to_string() })?;
    Family::read(&name, &text)
}

fn toml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == "toml")).collect();
    files.sort();
    files
}
