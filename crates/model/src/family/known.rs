//! The families that this process knows, from files given by flags, the user's folder, and the program itself. Of
//! several families of one name, the first in this order counts; if it is broken, that name has no family
//! ([`usable`]).

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock, PoisonError, RwLock};

use super::{Family, FamilyError};

/// The longest file that is read; gpt-oss's has 9 kB.
const MAX_BYTES: u64 = 1 << 20;

/// What goes before the built-in families, and what was found to be all of them.
#[derive(Default)]
struct KnownFamilies {
    own: Vec<&'static Family>,
    broken: Vec<Broken>,
    all: OnceLock<Vec<&'static Family>>,
}

/// A file of the user's folder that is no family's.
#[derive(Debug)]
pub struct Broken {
    pub path: PathBuf,
    /// What it is called, which may be a family's name.
    pub name: String,
    pub error: FamilyError,
}

/// What is known stays where it is, so that families can be referred to: there are few of them.
static KNOWN: RwLock<Option<&'static KnownFamilies>> = RwLock::new(None);

/// The built-in files, each with the name of its family, read on first use: most commands need one of them.
static BUILT_IN: LazyLock<Vec<BuiltIn>> = LazyLock::new(|| {
    let files = data::MODELS.iter().filter_map(|(file, text)| Some((file.strip_suffix(".toml")?, *text)));
    files.map(|(name, text)| BuiltIn { name, text, family: OnceLock::new() }).collect()
});

struct BuiltIn {
    name: &'static str,
    text: &'static str,
    family: OnceLock<Family>,
}

impl BuiltIn {
    fn family(&'static self) -> &'static Family {
        // Tests read all of them.
        let read = || Family::read(&format!("<built in>/{}.toml", self.name), self.text);
        self.family.get_or_init(|| read().unwrap_or_else(|error| panic!("{error}")))
    }
}

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
    let mut known = KnownFamilies::default();
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
    set(known);
    Ok(())
}

/// Has a family go before all others, under its name.
pub fn put_first(family: Family) -> &'static Family {
    let family: &'static Family = Box::leak(Box::new(family));
    let others = found().own.iter().filter(|known| known.name != family.name).copied();
    set(KnownFamilies { own: std::iter::once(family).chain(others).collect(), ..KnownFamilies::default() });
    family
}

fn set(known: KnownFamilies) {
    *KNOWN.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::leak(Box::new(known)));
}

/// All families, those first that go before others.
pub fn known() -> &'static [&'static Family] {
    let KnownFamilies { own, all, .. } = found();
    all.get_or_init(|| {
        let is_own = |name: &str| own.iter().any(|own| own.name == name);
        let built_in = BUILT_IN.iter().filter(|file| !is_own(file.name)).map(BuiltIn::family);
        own.iter().copied().chain(built_in).collect()
    })
}

/// The files that could not be read.
pub fn broken() -> &'static [Broken] {
    &found().broken
}

/// The family of this name.
pub fn named(name: &str) -> Option<&'static Family> {
    let own = found().own.iter().find(|family| family.name == name).copied();
    own.or_else(|| BUILT_IN.iter().find(|file| file.name == name).map(BuiltIn::family))
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

fn found() -> &'static KnownFamilies {
    if let Some(known) = *KNOWN.read().unwrap_or_else(PoisonError::into_inner) {
        return known;
    }
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_with(|| Box::leak(Box::default()))
}

impl KnownFamilies {
    fn add(&mut self, family: Family) {
        if !self.own.iter().any(|known| known.name == family.name) {
            self.own.push(Box::leak(Box::new(family))); // as long-lived as the process, as what is built in
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_in_file_is_named_after_its_family() {
        assert!(!BUILT_IN.is_empty());
        for file in BUILT_IN.iter() {
            assert_eq!(file.family().name, file.name);
            assert!(std::ptr::eq(named(file.name).expect("it is built in"), file.family()), "it is read once");
        }
        assert!(named("nobody").is_none());
    }
}
