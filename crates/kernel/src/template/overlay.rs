//! The files of all template folders, one of each name, and the kind of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use super::library::{Layer, Library};
use super::library_error::LibraryError;
use super::stray;
use crate::target::Language;
use data::{Origin, SourceFile};

/// The longest file that is read; of templates less is compiled.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The kind of a file, by its name.
pub(super) enum Kind<'a> {
    Contract { op: &'a str },
    Tests,
    Template { folder: &'a str, language: Language },
    Lib,
    Stray(&'static str),
}

/// The kind of a file of this name.
pub(super) fn kind(name: &str) -> Kind<'_> {
    let Some((folder, file)) = name.split_once('/') else { return Kind::Stray("a folder for each op") };
    let is_name =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let language =
        Language::ALL.into_iter().find(|language| file.strip_suffix(language.extension()).is_some_and(is_name));
    match (folder, file, language) {
        ("lib", _, _) if file.ends_with(".j2") => Kind::Lib,
        ("lib", _, _) => Kind::Stray("`*.j2` in lib"),
        (_, "op.toml", _) if is_name(folder) => Kind::Contract { op: folder },
        (_, "tests.toml", _) if folder.contains('+') && folder.split('+').all(is_name) => Kind::Tests,
        (_, _, Some(language)) if folder.split('+').all(is_name) => Kind::Template { folder, language },
        _ => Kind::Stray(
            "`op.toml` (of a run `tests.toml`), `<variant>.c.j2` or `<variant>.hip.j2` in a folder named by its ops, of a-z, 0-9 and _",
        ),
    }
}

/// The first file of each name, with the places of those that it hides.
pub(super) fn overlay(
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

/// Reads the files of a folder, as `prefix/file`; below `lib`, those of all folders.
pub(super) fn read_into(layer: &mut Layer, prefix: &str, folder: &Path) -> Result<(), LibraryError> {
    for (name, path) in entries(folder)?.into_iter().filter(|(name, _)| !name.starts_with('.')) {
        let full = format!("{prefix}/{name}");
        if prefix.split('/').next() == Some("lib") && path.is_dir() {
            read_into(layer, &full, &path)?;
        } else if name.ends_with(".j2") || name.ends_with(".toml") {
            layer.files.insert(full, mapped_file::read_to_string(&path, MAX_FILE_BYTES).map_err(Arc::new));
        } else {
            layer.unread.extend(stray::of_another_name(&name, &path));
        }
    }
    Ok(())
}

/// Names and paths in a folder.
pub(super) fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, LibraryError> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())))
            .collect()
    };
    read().map_err(|source| LibraryError::Read { path: folder.to_path_buf(), source: Arc::new(source) })
}

impl Library {
    /// That there is no template of a label, and which may be meant.
    pub fn no_template(&self, label: &str) -> String {
        let labels: Vec<String> = self.templates().map(|template| template.label()).collect();
        let meant = hint::meant(label, labels.iter().map(String::as_str));
        let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
        format!("there is no template `{label}`{meant}")
    }
}
