//! Folders and files that may hold a library.

use std::path::{Path, PathBuf};

/// Where a vendor's software is installed, as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installation {
    /// `/opt`.
    pub parent: &'static str,
    /// `rocm`: the folder below, and with `-` and a version behind it.
    pub name: &'static str,
    /// `lib`.
    pub libraries: &'static str,
}

impl Installation {
    /// AMD's, in `/opt/rocm`.
    pub const ROCM: Self = Self { parent: "/opt", name: "rocm", libraries: "lib" };

    /// What to try, best first.
    ///
    /// - `names`: file names of the library, best first
    /// - `explicit`: a folder, or the library itself, that the user named; then nothing else is tried
    /// - `root`: the value of `$ROCM_PATH` or `$CUDA_PATH`; passed in, because a worker runs with a cleared environment
    ///
    /// Then `/opt/rocm/lib`, `/opt/rocm-*/lib` (newest first) or another's, and the loader's own search path (bare
    /// names).
    /// Files that do not exist are left out, or an error would be a page long; [`Self::searched`] says where they would
    /// have been.
    pub fn candidates(&self, names: &[&str], explicit: Option<&Path>, root: Option<&Path>) -> Vec<PathBuf> {
        if let Some(file) = explicit.filter(|path| path.is_file()) {
            return vec![file.to_path_buf()];
        }
        let mut files: Vec<PathBuf> = self
            .searched(explicit, root)
            .iter()
            .flat_map(|folder| names.iter().map(|name| folder.join(name)))
            .filter(|file| file.exists())
            .collect();
        if explicit.is_none() {
            files.extend(names.iter().map(PathBuf::from));
        }
        files
    }

    /// The folders that [`Self::candidates`] looks into, best first.
    pub fn searched(&self, explicit: Option<&Path>, root: Option<&Path>) -> Vec<PathBuf> {
        if let Some(folder) = explicit {
            return vec![folder.to_path_buf()];
        }
        let mut folders: Vec<PathBuf> = root.map(|root| root.join(self.libraries)).into_iter().collect();
        let parent = Path::new(self.parent);
        folders.push(parent.join(self.name).join(self.libraries));
        folders.extend(self.versioned(parent));
        folders
    }

    /// `rocm-*/lib` below `parent`, the highest version first: 10 is above 9.
    fn versioned(&self, parent: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let mut found: Vec<(Vec<u32>, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let version = name
                    .strip_prefix(self.name)?
                    .strip_prefix('-')?
                    .split(['.', '-'])
                    .map(|part| part.parse().unwrap_or(0));
                Some((version.collect(), entry.path().join(self.libraries)))
            })
            .collect();
        found.sort();
        found.into_iter().rev().map(|(_, folder)| folder).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["libone.so", "libone.so.5"];

    #[test]
    fn a_named_folder_or_file_is_the_only_one() {
        let folder = Path::new("/nonexistent");
        assert_eq!(Installation::ROCM.searched(Some(folder), Some(Path::new("/also"))), [folder]);
        assert_eq!(Installation::ROCM.candidates(&NAMES, Some(folder), None), Vec::<PathBuf>::new());
        let file = std::env::current_exe().unwrap();
        assert_eq!(Installation::ROCM.candidates(&NAMES, Some(&file), Some(Path::new("/also"))), [file]);
    }

    #[test]
    fn rocm_path_comes_before_opt_and_the_loader_last() {
        assert_eq!(
            Installation::ROCM.searched(None, Some(Path::new("/r")))[..2],
            [PathBuf::from("/r/lib"), "/opt/rocm/lib".into()]
        );
        assert_eq!(Installation::ROCM.candidates(&NAMES, None, None).last(), Some(&PathBuf::from("libone.so.5")));
    }

    #[test]
    fn the_newest_version_comes_first() {
        let root = std::env::temp_dir().join(format!("rocm-candidates-{}", std::process::id()));
        for name in ["rocm-6.4.1", "rocm-10.0.0", "rocm-7.0.2", "other-8"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let found = Installation::ROCM.versioned(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["rocm-10.0.0", "rocm-7.0.2", "rocm-6.4.1"].map(|name| root.join(name).join("lib")));
    }
}
