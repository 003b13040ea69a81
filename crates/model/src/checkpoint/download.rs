//! Incomplete downloads: what Hugging Face's tools and Git leave in place of a file, and the command that completes
//! it.
//!
//! Hugging Face's cache has a folder `models--ORG--NAME` for a model: `blobs/` with the files, named by their digests,
//! and `snapshots/REVISION/` with links to them. A file that is being downloaded is `blobs/DIGEST.incomplete`, and its
//! link is made when it is whole. Downloads to a folder of the user's choice are begun in its
//! `.cache/huggingface/download/`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::CheckpointError;
use hint::Hint;
use system::git_lfs::{self, Pointer};

/// What a file that is being downloaded is named.
const INCOMPLETE: &str = "incomplete";

/// Where downloads to a folder are begun.
const LOCAL: &str = ".cache/huggingface/download";

/// A file that is not whole, or not there.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Pointer(#[from] Pointer),
    /// It has the name of a file that is being downloaded.
    #[error("the file is an incomplete download")]
    Incomplete { completion: String },
    #[error("the file is a link to `{}`, which is not there", target.display())]
    Dangling { target: PathBuf, completion: String },
    /// It is not in a folder that was downloaded.
    #[error("the file is not there{}", of_begun(begun))]
    Absent {
        /// Files whose download has begun.
        begun: Vec<PathBuf>,
        completion: String,
    },
    /// Some of several files are not there.
    #[error("{} of the {n_named} {named} are not there: {}{}", files.len(), listed(files), of_begun(begun))]
    AbsentShards {
        files: Vec<String>,
        /// How many there should be.
        n_named: usize,
        /// `files that the index names` or `parts of the model`.
        named: &'static str,
        /// Files whose download has begun.
        begun: Vec<PathBuf>,
        completion: String,
    },
}

impl Hint for DownloadError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Pointer(pointer) => pointer.hint(),
            Self::Incomplete { completion }
            | Self::Dangling { completion, .. }
            | Self::Absent { completion, .. }
            | Self::AbsentShards { completion, .. } => Some(completion.clone()),
        }
    }
}

fn listed(files: &[String]) -> String {
    files.iter().map(|file| format!("`{file}`")).collect::<Vec<_>>().join(", ")
}

/// Says which downloads have begun, after what is missing.
pub(super) fn of_begun(begun: &[PathBuf]) -> String {
    match begun {
        [] => String::new(),
        [one] => format!("; the download `{}` is not complete", one.display()),
        [first, ..] => format!("; {} downloads such as `{}` are not complete", begun.len(), first.display()),
    }
}

/// Maps a file. Says more than that it cannot be opened where it is known how it came to be missing.
///
/// # Errors
/// [`CheckpointError::Download`], or [`CheckpointError::Map`].
pub(super) fn map(path: &Path) -> Result<Bytes, CheckpointError> {
    let bytes = match mapped_file::map(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(absent(path).map_or(CheckpointError::Map(error), CheckpointError::Download));
        }
        Err(error) => return Err(CheckpointError::Map(error)),
    };
    if let Some(pointer) = git_lfs::pointer(&bytes) {
        return Err(DownloadError::Pointer(pointer).into());
    }
    if path.extension().is_some_and(|extension| extension == INCOMPLETE) {
        return Err(DownloadError::Incomplete { completion: completion(folder_of(path)) }.into());
    }
    Ok(bytes)
}

/// Whether there is a file of this name, or a link that should lead to one.
pub(super) fn is_named(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Why a file may not be there, if there are signs of a download.
fn absent(path: &Path) -> Option<DownloadError> {
    let folder = folder_of(path);
    if let Ok(target) = fs::read_link(path) {
        return Some(DownloadError::Dangling { target, completion: completion(folder) });
    }
    let begun = begun(folder);
    let is_download = !begun.is_empty() || repository(folder).is_some();
    is_download.then(|| DownloadError::Absent { begun, completion: completion(folder) })
}

/// Refuses an index, or a model in parts, of which not all files are in the folder; `named` says what they are.
///
/// # Errors
/// [`DownloadError::AbsentShards`].
pub(super) fn check_shards<'a>(
    folder: &Path,
    named: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), DownloadError> {
    let (mut n_named, mut files) = (0, Vec::new());
    for name in names {
        n_named += 1;
        if !folder.join(name).exists() {
            files.push(name.clone());
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    Err(DownloadError::AbsentShards { files, n_named, named, begun: begun(folder), completion: completion(folder) })
}

/// What completes the download of a folder.
pub(super) fn completion(folder: &Path) -> String {
    match repository(folder) {
        Some(Repository { id, inside }) => match inside.to_str().filter(|inside| !inside.is_empty()) {
            Some(inside) => format!("`hf download {id} --include \"{inside}/*\"` fetches what is missing"),
            None => format!("{} fetches what is missing", fetches(&id)),
        },
        None if local_folder(folder).is_some() => {
            "`hf download ID --local-dir DIR`, as it was begun, fetches what is missing".to_owned()
        }
        None => format!("download what is missing into `{}`, of the same revision as the rest", folder.display()),
    }
}

/// The command that fetches a model into Hugging Face's cache: the files of its folder, and not those of folders in it,
/// which are the same weights in other formats.
pub fn fetches(id: &str) -> String {
    format!("`hf download {id} --exclude \"*/*\"`")
}

/// What to do about a file that is cut short.
pub(super) fn again(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    match repository(folder_of(path)) {
        Some(Repository { id, inside }) => {
            let file = inside.join(name);
            format!("the file is cut short: `hf download {id} {} --force-download` fetches it again", file.display())
        }
        None => "the file is cut short: download or copy it again".to_owned(),
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

/// A model in Hugging Face's cache.
struct Repository {
    /// `openai/gpt-oss-20b`.
    id: String,
    /// The folder below the snapshot's own; empty for that one and for the blobs.
    inside: PathBuf,
}

/// The model that a folder in Hugging Face's cache belongs to.
fn repository(folder: &Path) -> Option<Repository> {
    let folder = folder.canonicalize().ok()?;
    let above = folder.ancestors().find_map(|above| Some((above, id_of(above.file_name()?.to_str()?)?)));
    let (root, id) = above?;
    let below = folder.strip_prefix(root).ok()?;
    let inside = below.iter().skip(2).collect(); // behind `snapshots/REVISION`
    Some(Repository { id, inside })
}

/// `models--openai--gpt-oss-20b` is `openai/gpt-oss-20b`.
fn id_of(name: &str) -> Option<String> {
    name.strip_prefix("models--").map(|id| id.replacen("--", "/", 1))
}

/// The files whose download to a folder has begun.
pub(super) fn begun(folder: &Path) -> Vec<PathBuf> {
    let blobs = folder.canonicalize().ok().and_then(|folder| {
        let root = folder.ancestors().find(|above| above.file_name().and_then(|name| id_of(name.to_str()?)).is_some());
        root.map(|root| root.join("blobs"))
    });
    let mut files: Vec<PathBuf> =
        blobs.iter().chain(&local_folder(folder)).flat_map(|folder| incomplete(folder)).collect();
    files.sort_unstable();
    files
}

/// Where downloads to a folder, or to the one that it is in, are begun.
fn local_folder(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    folder.ancestors().take(2).map(|above| above.join(LOCAL)).find(|local| local.is_dir())
}

/// The files of a folder, and of folders in it, that are named as incomplete.
fn incomplete(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let is_named = |path: &PathBuf| path.extension().is_some_and(|extension| extension == INCOMPLETE);
    folders.iter().flat_map(|folder| incomplete(folder)).chain(files.into_iter().filter(is_named)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_and_no_file_is_not_missing_though_a_download_began() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [begun, model] = [".cache/huggingface/download", "model.gguf"].map(|name| folder.path().join(name));
        fs::create_dir_all(&begun).expect("made");
        fs::write(begun.join("x.incomplete"), "").expect("written");
        let error = map(&folder.path().join("none.gguf")).expect_err("it is missing");
        assert!(matches!(error, CheckpointError::Download(DownloadError::Absent { .. })), "{error}");
        fs::create_dir(&model).expect("made");
        let error = map(&model).expect_err("a folder");
        assert!(matches!(error, CheckpointError::Map(_)), "{error}");
    }
}
