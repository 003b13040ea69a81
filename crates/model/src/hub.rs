//! Models by their id, such as `openai/gpt-oss-20b`, in this machine's copy of Hugging Face's cache. Nothing is
//! downloaded.

use std::path::{Component, Path, PathBuf};

use crate::checkpoint::download::fetches;
use crate::config::NamedShape;
use clap::ValueEnum;
use hint::Hint;
use system::home::variable;

/// What files of models end in: such a name is a path and no id.
const FILES: [&str; 5] = ["bin", "gguf", "safetensors", "json", "incomplete"];

/// A model that was named by its id and is not in the cache.
#[derive(Debug, thiserror::Error)]
pub enum NotInHub {
    /// There is nothing of it.
    #[error("there is no file or folder `{id}`, and no model of this id in Hugging Face's cache: looked for `{}`", looked_for.display())]
    Model { id: String, looked_for: PathBuf },
    /// There is no telling which revision it is.
    #[error("Hugging Face's cache has a folder for `{id}`, but no `{}`, which names its revision", reference.display())]
    Reference { id: String, reference: PathBuf },
    /// The revision has no files.
    #[error("Hugging Face's cache has a folder for `{id}`, but not its revision: there is no `{}`", snapshot.display())]
    Snapshot { id: String, snapshot: PathBuf },
    /// A name without its owner.
    #[error("there is no file or folder `{name}`; a model's id is OWNER/NAME")]
    NoOwner { name: String },
    /// A folder of the cache that is not there.
    #[error("there is no folder `{name}`, which is the name of `{id}` in Hugging Face's cache")]
    NoFolder { name: String, id: String },
    /// A folder of what is added to a model.
    #[error("`{}` is a LoRA adapter, not a model", folder.display())]
    Adapter { folder: PathBuf },
    /// There is no telling where the cache is.
    #[error(
        "there is no file or folder `{id}`, and Hugging Face's cache is unknown: there is no `HF_HUB_CACHE`, no `HF_HOME` and no home folder"
    )]
    Cache { id: String },
}

impl Hint for NotInHub {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoOwner { name } => format!("give the owner too, as in `openai/{name}`, or a path"),
            Self::NoFolder { id, .. } => format!("give the id, `{id}`: the cache is searched for it"),
            Self::Adapter { .. } => "merge it into its base model first, with peft's `merge_and_unload`".to_owned(),
            Self::Model { id, .. } | Self::Cache { id } => {
                format!("{} downloads it; this program never does", fetches(id))
            }
            Self::Reference { id, .. } => {
                format!("name a folder of its `snapshots`, or let {} fetch the newest", fetches(id))
            }
            Self::Snapshot { id, .. } => format!("{} fetches what is missing", fetches(id)),
        })
    }
}

/// The path of a model: what was named, if it is there or cannot be an id; else the snapshot that the cache has of it.
///
/// # Errors
/// [`NotInHub`] for an id that the cache does not have.
pub fn locate(model: &Path) -> Result<PathBuf, NotInHub> {
    if model.symlink_metadata().is_ok() {
        return of_folder(model);
    }
    let Some(name) = model.to_str() else { return Ok(model.to_owned()) };
    let name = ["hf://", "https://huggingface.co/", "https://hf.co/"]
        .iter()
        .find_map(|at| name.strip_prefix(at))
        .unwrap_or(name);
    let name = name.trim_end_matches('/');
    // A folder of the cache, named where there is none.
    let folder = name.rsplit('/').next().and_then(|folder| folder.strip_prefix("models--")?.split_once("--"));
    if let Some((owner, model)) = folder.filter(|(owner, model)| is_id(&format!("{owner}/{model}"))) {
        return Err(NotInHub::NoFolder { name: name.to_owned(), id: format!("{owner}/{model}") });
    }
    let (id, revision) = name.split_once('@').unwrap_or((name, "main"));
    if is_id(id) {
        return snapshot(cache().as_deref(), id, revision);
    }
    // Names of published models are values of `--shape`, and no files.
    if NamedShape::from_str(name, false).is_ok() {
        Err(NotInHub::NoOwner { name: name.to_owned() })
    } else {
        Ok(model.to_owned())
    }
}

/// A folder of Hugging Face's cache is the snapshot in it; one of an adapter is no model.
fn of_folder(folder: &Path) -> Result<PathBuf, NotInHub> {
    let has = |name: &str| folder.join(name).exists();
    let id =
        folder.file_name().and_then(|name| name.to_str()?.strip_prefix("models--")).map(|id| id.replace("--", "/"));
    match (id, folder.parent()) {
        (Some(id), Some(cache)) if has("snapshots") => snapshot(Some(cache), &id, "main"),
        _ if has("adapter_config.json") && !has("config.json") => Err(NotInHub::Adapter { folder: folder.to_owned() }),
        _ => Ok(folder.to_owned()),
    }
}

/// Whether a name is `ORGANISATION/MODEL`, in the letters that Hugging Face allows.
fn is_id(name: &str) -> bool {
    let is_word = |word: &str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        word.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_') && word.chars().all(is_letter)
    };
    let is_file = || Path::new(name).extension().is_some_and(|found| FILES.iter().any(|extension| found == *extension));
    name.split_once('/').is_some_and(|(organisation, model)| is_word(organisation) && is_word(model)) && !is_file()
}

/// Hugging Face's cache, as its own tools find it.
fn cache() -> Option<PathBuf> {
    let user = || variable("XDG_CACHE_HOME").or_else(|| Some(dirs::home_dir()?.join(".cache")));
    let home = || variable("HF_HOME").or_else(|| Some(user()?.join("huggingface")));
    let old = || variable("HUGGINGFACE_HUB_CACHE");
    variable("HF_HUB_CACHE").or_else(old).or_else(|| Some(home()?.join("hub")))
}

/// The snapshot of a branch, a tag or a commit.
fn snapshot(cache: Option<&Path>, id: &str, revision: &str) -> Result<PathBuf, NotInHub> {
    let Some(cache) = cache else { return Err(NotInHub::Cache { id: id.into() }) };
    let root = cache.join(format!("models--{}", id.replace('/', "--")));
    if !root.is_dir() {
        return Err(NotInHub::Model { id: id.into(), looked_for: root });
    }
    let of_commit = root.join("snapshots").join(revision);
    if is_name(revision) && of_commit.is_dir() {
        return Ok(of_commit);
    }
    let reference = root.join("refs").join(revision);
    let revision = mapped_file::read_to_string(&reference, 1 << 10)
        .ok()
        .map(|text| text.trim().to_owned())
        .filter(|text| is_name(text));
    let Some(revision) = revision else { return Err(NotInHub::Reference { id: id.into(), reference }) };
    let snapshot = root.join("snapshots").join(revision);
    if snapshot.is_dir() { Ok(snapshot) } else { Err(NotInHub::Snapshot { id: id.into(), snapshot }) }
}

/// Whether it is the name of a folder and not a path.
fn is_name(text: &str) -> bool {
    let mut components = Path::new(text).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)) && !text.ends_with('/')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_id_is_an_organisation_and_a_model() {
        for id in ["openai/gpt-oss-20b", "unsloth/gpt-oss-20b-BF16", "a/b.c_d", "_x/y"] {
            assert!(is_id(id), "{id}");
        }
        let paths =
            ["gpt-oss-20b", "models/a.bin", "models/a.gguf", "/a/b", "./a", "../a", "a/b/c", "a/", "a b/c", "a/..", ""];
        for path in paths {
            assert!(!is_id(path), "{path}");
        }
    }

    #[test]
    fn what_others_call_a_model_is_told() {
        let folder = locate(Path::new("hub/models--openai--gpt-oss-20b")).unwrap_err();
        assert!(matches!(&folder, NotInHub::NoFolder { id, .. } if id == "openai/gpt-oss-20b"), "{folder}");
        for name in
            ["hf://nobody/has-this/", "https://huggingface.co/nobody/has-this", "https://hf.co/nobody/has-this/"]
        {
            let error = locate(Path::new(name)).unwrap_err();
            let is_such =
                matches!(&error, NotInHub::Model { id, .. } | NotInHub::Cache { id } if id == "nobody/has-this");
            assert!(is_such, "{name}: {error}");
        }
    }

    #[test]
    fn the_snapshot_is_the_one_that_main_names() {
        let cache = tempfile::tempdir().unwrap();
        let root = cache.path().join("models--openai--gpt-oss-20b");
        let found = || snapshot(Some(cache.path()), "openai/gpt-oss-20b", "main");
        assert!(matches!(found(), Err(NotInHub::Model { looked_for, .. }) if looked_for == root));
        fs::create_dir_all(root.join("snapshots/abc")).unwrap();
        fs::create_dir_all(root.join("refs")).unwrap();
        assert!(matches!(found(), Err(NotInHub::Reference { .. })));
        for wrong in ["", "..", "../../x", "/", "a/b"] {
            fs::write(root.join("refs/main"), wrong).unwrap();
            assert!(matches!(found(), Err(NotInHub::Reference { .. })), "{wrong}");
        }
        fs::write(root.join("refs/main"), "def").unwrap();
        assert!(matches!(found(), Err(NotInHub::Snapshot { .. })));
        fs::write(root.join("refs/main"), "abc\n").unwrap();
        assert_eq!(found().unwrap(), root.join("snapshots/abc"));
        assert_eq!(snapshot(Some(cache.path()), "openai/gpt-oss-20b", "abc").unwrap(), root.join("snapshots/abc"));
        assert_eq!(locate(&root).unwrap(), root.join("snapshots/abc"));
        let adapter = cache.path().join("adapter");
        fs::create_dir_all(&adapter).unwrap();
        fs::write(adapter.join("adapter_config.json"), "{}").unwrap();
        assert!(matches!(locate(&adapter), Err(NotInHub::Adapter { .. })));
        assert!(matches!(locate(Path::new("gpt-oss-20b")), Err(NotInHub::NoOwner { .. })));
        assert_eq!(locate(Path::new("no/such/model.gguf")).unwrap(), Path::new("no/such/model.gguf"));
    }
}
