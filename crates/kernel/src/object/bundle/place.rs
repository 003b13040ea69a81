//! The folders in which bundles are looked for, and the check of who may have written them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use system::bounded_process::this_program;

/// Names files and folders, as `$PATH` names folders.
pub const VARIABLE: &str = "GPTOSS_JIT_BUNDLES";

/// What the names of bundles end in.
const ENDING: &str = ".tar.zst";

/// Below the folders where systems keep what programs share.
const SHARED: &str = "gptoss-jit/bundles";

/// The files that may be bundles, in the order in which they are asked: those that the user names, those beside the
/// program, the user's, the system's.
pub(super) fn candidates() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let named = env::var_os(VARIABLE).unwrap_or_default();
    for path in env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
        let found = files_at(&path);
        // What is named and not there is told, by the error of opening it.
        let is_missing = found.is_empty() && !path.is_dir();
        files.extend(if is_missing { vec![path] } else { found });
    }
    let program = fs::canonicalize(this_program()).ok();
    if let Some(folder) = program.as_deref().and_then(Path::parent) {
        files.extend(files_at(&folder.join("bundles")));
        files.extend(folder.parent().map(|parent| files_at(&parent.join("share").join(SHARED))).unwrap_or_default());
    }
    let shares = dirs::data_dir().into_iter().chain(of_system(env::var_os("XDG_DATA_DIRS")));
    shares.for_each(|share| files.extend(files_at(&share.join(SHARED))));
    let mut distinct: Vec<PathBuf> = Vec::new();
    for file in files {
        if !distinct.contains(&file) {
            distinct.push(file);
        }
    }
    distinct
}

/// The folders that `$XDG_DATA_DIRS` names; where it is empty, those that its specification names.
fn of_system(variable: Option<OsString>) -> Vec<PathBuf> {
    let named = variable.filter(|folders| !folders.is_empty());
    env::split_paths(&named.unwrap_or_else(|| OsString::from("/usr/local/share:/usr/share"))).collect()
}

/// A file itself, or the bundles in a folder, by their names; nothing if there is neither.
pub(super) fn files_at(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(names) = fs::read_dir(path) else { return Vec::new() };
    let is_bundle = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ENDING));
    let mut files: Vec<PathBuf> = names.flatten().map(|name| name.path()).filter(is_bundle).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_shares_where_it_says_or_where_all_do() {
        let usual = ["/usr/local/share", "/usr/share"].map(PathBuf::from);
        assert_eq!([of_system(None), of_system(Some(OsString::new()))], [&usual, &usual]);
        assert_eq!(of_system(Some("/a:/b/c".into())), ["/a", "/b/c"].map(PathBuf::from));
    }
}
