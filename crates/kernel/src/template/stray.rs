//! Files in template folders that are never read, although they look like templates.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::library::Layer;
use super::overlay::{Kind, kind};
use crate::target::Language;
use data::Origin;
use hint::meant;

/// Warns of such files of folders, of each once.
pub(super) fn warn(layers: &[Layer]) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for line in layers.iter().flat_map(|layer| layer.unread.iter().cloned()).chain(of_no_op(layers)) {
        if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            tracing::warn!("{line}");
        }
    }
}

/// A file that lies beside the folders of ops.
pub(super) fn beside_folders(name: &str, path: &Path) -> Option<String> {
    let is_template = Language::ALL.iter().any(|language| name.ends_with(language.extension()));
    is_template.then(|| {
        format!("nothing reads `{}`: a template is in the folder of its op, as in `rmsnorm/{name}`", path.display())
    })
}

/// A file of an op's folder whose name nearly is a template's: `quick.hip.j`, `quick.hip`.
pub(super) fn of_another_name(name: &str, path: &Path) -> Option<String> {
    let (variant, extension) = name.split_once('.').filter(|_| path.is_file())?;
    let extensions = Language::ALL.map(|language| language.extension().trim_start_matches('.'));
    let is_begun = |one: &&&str| one.strip_suffix(".j2") == Some(extension);
    let meant = extensions.iter().find(is_begun).copied().or_else(|| meant(extension, extensions))?;
    Some(format!("nothing reads `{}`; did you mean `{variant}.{meant}`?", path.display()))
}

/// Templates in folders of ops that are none.
fn of_no_op(layers: &[Layer]) -> Vec<String> {
    let built_in = data::TEMPLATES.iter().map(|(name, _)| *name);
    let own = layers.iter().flat_map(|layer| layer.files.keys().map(String::as_str));
    let contracts = built_in.chain(own).filter_map(|name| match kind(name) {
        Kind::Contract { op } => Some(op),
        _ => None,
    });
    let known: BTreeSet<&str> = contracts.collect();
    let mut lines = Vec::new();
    for layer in layers {
        let Origin::Folder(folder) = &layer.origin else { continue };
        for name in layer.files.keys() {
            let Kind::Template { folder: ops, .. } = kind(name) else { continue };
            let Some(op) = ops.split('+').find(|op| !known.contains(op)) else { continue };
            let meant = meant(op, known.iter().copied());
            let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
            lines.push(format!("nothing reads `{}`: there is no op `{op}`{meant}", folder.join(name).display()));
        }
    }
    lines
}
