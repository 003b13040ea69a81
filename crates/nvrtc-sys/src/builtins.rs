//! NVRTC opens its builtins by their bare name, which the loader searches in its usual places and not beside NVRTC. If
//! a library of that name is already loaded, NVRTC finds it wherever it is.

use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use libloading::Library;

/// `libnvrtc-builtins.so.13.0`; the file of another version beside it does no harm.
const PREFIX: &str = "libnvrtc-builtins.so";

/// Opens the builtins that lie beside `library`, for good. What cannot be opened is left to NVRTC, which says so.
pub(crate) fn open_beside(library: &Path) {
    for builtins in beside(library) {
        // SAFETY: opening a library runs its constructors. It lies beside the compiler that the caller chose, which
        // would open it itself.
        if let Ok(opened) = unsafe { Library::new(&builtins) } {
            mem::forget(opened);
        }
    }
}

/// The builtins in the library's folder; none for a bare name, for which the loader knows where to look.
fn beside(library: &Path) -> Vec<PathBuf> {
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty());
    let names = folder.into_iter().flat_map(fs::read_dir).flatten().flatten();
    let mut found: Vec<PathBuf> = names.map(|name| name.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())));
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{self, Command};

    #[test]
    fn builtins_in_a_folder_that_the_loader_does_not_search_are_found_by_their_bare_name() {
        let folder = std::env::temp_dir().join(format!("nvrtc-builtins-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let name = "libnvrtc-builtins.so.99.9";
        let cc = |arguments: &[&str]| Command::new("cc").args(arguments).current_dir(&folder).status().unwrap();
        fs::write(folder.join("empty.c"), "").unwrap();
        assert!(cc(&["-shared", "-fPIC", "empty.c", &format!("-Wl,-soname,{name}"), "-o", name]).success());

        // SAFETY: a library without a line of code.
        let by_name = || unsafe { Library::new(name) }.is_ok();
        assert!(!by_name());
        open_beside(Path::new("libnvrtc.so.99")); // nothing is beside a bare name
        assert!(!by_name());
        open_beside(&folder.join("libnvrtc.so.99"));
        let found = by_name();
        fs::remove_dir_all(&folder).unwrap();
        assert!(found);
    }
}
