//! Folders and files that may hold a library.

use std::path::{Path, PathBuf};

/// Where a vendor's software is installed, as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installation {
    /// `/opt`.
    pub parent: &'static str,
    /// `rocm`: the folder below, and with `-` and a version after it.
    pub name: &'static str,
    /// `lib`.
    pub libraries: &'static str,
    /// Where pip puts its libraries, below `site-packages`.
    pub wheels: &'static [&'static str],
}

/// The variables that say which environment of Python or Conda is active.
pub const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

impl Installation {
    /// AMD's, in `/opt/rocm`.
    pub const ROCM: Self =
        Self { parent: "/opt", name: "rocm", libraries: "lib", wheels: &["_rocm_sdk_core/lib", "torch/lib"] };

    /// What to try, best first.
    ///
    /// - `names`: file names of the library, best first
    /// - `explicit`: a folder, or the library itself, that the user named; then nothing else is tried
    /// - `root`: the value of `$ROCM_PATH` or `$CUDA_PATH`; passed in, because a worker runs with a cleared environment
    ///
    /// Then the wheels of the active environment, `/opt/rocm/lib`, `/opt/rocm/core-*/lib` and `/opt/rocm-*/lib` (newest
    /// first) or another's, and the loader's own search path (bare names).
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
        let environments = ENVIRONMENTS.iter().filter_map(std::env::var_os).filter(|path| !path.is_empty());
        folders.extend(environments.flat_map(|path| self.in_environment(Path::new(&path))));
        let parent = Path::new(self.parent);
        let usual = parent.join(self.name);
        folders.push(usual.join(self.libraries));
        // ROCm from 7.13 on is in `/opt/rocm/core-7.13`.
        folders.extend(self.versioned(&usual, "core"));
        folders.extend(self.versioned(parent, self.name));
        folders
    }

    /// The folders of its wheels in an environment, the newest Python's first.
    pub fn in_environment(&self, environment: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
        let mut pythons: Vec<PathBuf> =
            entries.map(|entry| entry.path().join("site-packages")).filter(|folder| folder.is_dir()).collect();
        pythons.sort();
        let folders = pythons.iter().rev().flat_map(|python| self.wheels.iter().map(|wheel| python.join(wheel)));
        folders.filter(|folder| folder.is_dir()).collect()
    }

    /// `rocm-*/lib`, of the prefix `rocm`, below `parent`, the highest version first: 10 is above 9.
    fn versioned(&self, parent: &Path, prefix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let mut found: Vec<(Vec<u32>, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let version = name
                    .strip_prefix(prefix)?
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
    fn wheels_of_an_environment_are_found_below_its_python() {
        let root = std::env::temp_dir().join(format!("rocm-wheels-{}", std::process::id()));
        let folder = root.join("lib/python3.12/site-packages/_rocm_sdk_core/lib");
        std::fs::create_dir_all(&folder).unwrap();
        let found = Installation::ROCM.in_environment(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [folder]);
        assert_eq!(Installation::ROCM.in_environment(&root), Vec::<PathBuf>::new());
    }

    #[test]
    fn folders_of_core_below_rocm_come_before_those_beside_it() {
        let root = std::env::temp_dir().join(format!("rocm-core-{}", std::process::id()));
        for name in ["rocm/core-7.13", "rocm/core-7.9", "rocm/lib", "rocm-6.4.1"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let parent: &'static str = root.to_str().unwrap().to_owned().leak();
        let found = Installation { parent, ..Installation::ROCM }.searched(None, None);
        std::fs::remove_dir_all(&root).unwrap();
        let expected = ["rocm/lib", "rocm/core-7.13/lib", "rocm/core-7.9/lib", "rocm-6.4.1/lib"];
        assert_eq!(found, expected.map(|name| root.join(name)));
    }

    #[test]
    fn the_newest_version_comes_first() {
        let root = std::env::temp_dir().join(format!("rocm-candidates-{}", std::process::id()));
        for name in ["rocm-6.4.1", "rocm-10.0.0", "rocm-7.0.2", "other-8"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let found = Installation::ROCM.versioned(&root, "rocm");
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["rocm-10.0.0", "rocm-7.0.2", "rocm-6.4.1"].map(|name| root.join(name).join("lib")));
    }
}
