//! Libraries of GPU vendors: whether the files are there. Nothing is opened, since nothing of them is used yet.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Check, State};

/// Where the loader looks on common systems. Its cache is not read: this is a hint for people, not a lookup.
const SYSTEM: [&str; 6] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/lib"];

/// Looks for a file whose name begins with `prefix`.
pub(super) fn check(name: &'static str, prefix: &str) -> Check {
    let folders = folders();
    let (state, details) = match folders.iter().find_map(|folder| find(folder, prefix)) {
        Some(file) => (State::Ok, format!("{}, not used yet", file.display())),
        None => (State::Missing, format!("no `{prefix}*` in the usual folders; not used yet")),
    };
    Check { name, state, needed: false, details: vec![details], hint: None }
}

fn folders() -> Vec<PathBuf> {
    let search = env::var_os("LD_LIBRARY_PATH");
    let mut folders: Vec<PathBuf> = search.iter().flat_map(env::split_paths).collect();
    folders.extend(SYSTEM.map(PathBuf::from));
    folders
}

/// The first file of that name in a folder, by name; links to nowhere are not there.
fn find(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let matching = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    matching.map(|entry| entry.path()).filter(|path| path.is_file()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_the_beginning_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
        fs::create_dir(folder.path().join("libcuda.so")).unwrap();
        assert_eq!(find(folder.path(), "libcuda.so"), Some(folder.path().join("libcuda.so.1")));
        assert_eq!(find(folder.path(), "libamdhip64.so"), None);
        assert_eq!(find(&folder.path().join("none"), "libcuda.so"), None);
    }
}
