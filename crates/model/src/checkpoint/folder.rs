//! Checkpoints of several files: a folder with a `config.json` and safetensors files, and an index that says which
//! file has which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use bytes::Bytes;
use serde::Deserialize;

use super::assembly::{self, assemble};
use super::inventory::Inventory;
use super::{
    Checkpoint, CheckpointError, CheckpointOrigin, TokenizerSource, config_json, download, foreign, safetensors,
};
use hint::Hint;
use system::foreign_text::without_mark;
use system::json_entries::JsonEntries;

const CONFIG: &str = "config.json";
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Where OpenAI has the same weights in its own layout.
const ORIGINAL: &str = "original";
const TOKENIZER: &str = "tokenizer.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// Where Hugging Face's libraries write the one for conversations with tools.
const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// Where older snapshots have the template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The longest chat template, and file with one, that is read; gpt-oss' has 17 kB.
const MAX_TEMPLATE_BYTES: usize = 4 << 20;

/// The longest index that is read; gpt-oss-120b's has 60 kB.
const MAX_INDEX_BYTES: usize = 16 << 20;

/// What is wrong with the files of a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is nothing that a model could be in.
    #[error("the folder has none of `{WHOLE}`, `{INDEX}` or another file `*.safetensors`{}", download::of_begun(begun))]
    NoWeights {
        /// Files whose download has begun.
        begun: Vec<PathBuf>,
        completion: String,
    },
    /// There are several, and no index.
    #[error("the folder has {} files `*.safetensors` and no `{INDEX}`", files.len())]
    NoIndex { files: Vec<String> },
    /// A file with a chat template is longer than any.
    #[error("the file has {found} bytes, expected {MAX_TEMPLATE_BYTES} at most")]
    TemplateTooLong { found: usize },
    /// A chat template is no text.
    #[error("the chat template is not UTF-8")]
    TemplateNotText,
    /// The file that may have a chat template is not what it should be.
    #[error("could not read the chat template")]
    TokenizerConfig(#[source] serde_json::Error),
    /// The index is too long.
    #[error("the index has {found} bytes, expected {MAX_INDEX_BYTES} at most")]
    IndexTooLong { found: usize },
    /// The index is not what it should be.
    #[error("could not read the index")]
    Index(#[source] serde_json::Error),
    /// A tensor is in the index twice.
    #[error("the index has two entries `{tensor}`")]
    DuplicateEntry { tensor: String },
    /// A file that is not in the folder.
    #[error("the index says that `{tensor}` is in `{file}`, expected the name of a file beside it")]
    Outside {
        tensor: String,
        /// What the index says.
        file: String,
    },
    /// Index and files do not agree.
    #[error("the index and the files do not agree on {} tensors:{}", .0.len(), .0.concat())]
    Disagreement(Vec<String>),
}

impl Hint for FolderError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoWeights { begun, completion } if !begun.is_empty() => completion.clone(),
            Self::NoWeights { .. } => {
                "name the `.gguf` or `.bin` file itself, or a folder in Hugging Face's format".into()
            }
            Self::NoIndex { .. } => format!("download `{INDEX}` too: it says which tensor lies in which file"),
            Self::Outside { .. } => "do not trust this checkpoint: a valid index names only files in its folder".into(),
            _ => "download the checkpoint's files again, all of the same revision".into(),
        })
    }
}

/// Whether a file is an index: its folder is then the checkpoint.
pub(super) fn is_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == INDEX)
}

/// Reads a folder.
///
/// # Errors
/// What is wrong with any of its files.
pub(super) fn read(folder: &Path) -> Result<Checkpoint, CheckpointError> {
    let folder = &with_weights(folder);
    let config = map(&folder.join(CONFIG))?;
    let config = in_file(&folder.join(CONFIG), config_json::read(&config))?;
    let mut files = Files::default();
    if folder.join(INDEX).exists() {
        files.read_shards(folder)?;
    } else {
        files.read(&folder.join(only_file(folder)?))?;
    }
    files.into_checkpoint(folder, config)
}

/// Reads a file that is the whole model, with its `config.json` beside it.
///
/// # Errors
/// What is wrong with either.
pub(super) fn read_file(path: &Path, bytes: &Bytes) -> Result<Checkpoint, CheckpointError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files = Files { total_bytes: bytes.len() as u64, ..Files::default() };
    files.paths.push(path.to_owned());
    safetensors::read(bytes, &mut files.inventory)?;
    let config = map(&folder.join(CONFIG))?;
    let config = in_file(&folder.join(CONFIG), config_json::read(&config))?;
    files.into_checkpoint(folder, config)
}

/// The files of a model as they are read.
#[derive(Default)]
struct Files {
    inventory: Inventory,
    paths: Vec<PathBuf>,
    total_bytes: u64,
}

impl Files {
    /// Adds a file's tensors; gives their names.
    fn read(&mut self, path: &Path) -> Result<Vec<String>, CheckpointError> {
        let bytes = map(path)?;
        self.total_bytes += bytes.len() as u64;
        self.paths.push(path.to_owned());
        in_file(path, safetensors::read(&bytes, &mut self.inventory))
    }

    /// Adds the tensors of all files that the index names.
    fn read_shards(&mut self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(INDEX);
        let index = map(&path)?;
        let mut index = in_file(&path, read_index(&index))?;
        let shards: BTreeSet<String> = index.values().cloned().collect();
        in_file(&path, download::check_shards(folder, "files that the index names", shards.iter()))?;
        let mut wrong = Vec::new();
        for shard in shards {
            for name in self.read(&folder.join(&shard))? {
                match index.remove(&name) {
                    Some(said) if said == shard => {}
                    Some(said) => wrong.push(format!("\n    `{name}` lies in `{shard}`, the index says `{said}`")),
                    None => wrong.push(format!("\n    `{name}` lies in `{shard}`, the index does not have it")),
                }
            }
        }
        let absent = |(name, shard)| format!("\n    `{name}` is not in `{shard}`, where the index says it is");
        wrong.extend(index.into_iter().map(absent));
        let result = if wrong.is_empty() { Ok(()) } else { Err(FolderError::Disagreement(wrong)) };
        in_file(&path, result)
    }

    fn into_checkpoint(self, folder: &Path, config: crate::config::ModelConfig) -> Result<Checkpoint, CheckpointError> {
        foreign::check_names(self.inventory.names())?;
        let is_openai = self.inventory.get("embedding.weight").is_some();
        let format = if is_openai { &assembly::OPENAI } else { &assembly::HUGGING_FACE };
        let tensors = assemble(self.inventory, format, &config)?;
        let tokenizer = Some(folder.join(TOKENIZER)).filter(|path| download::is_named(path));
        if let Some(path) = &tokenizer {
            map(path)?; // what is named and not there is not to be replaced by the built-in one
        }
        let tokenizer = tokenizer.map(TokenizerSource::File);
        let (chat_template, tool_template) = chat_templates(folder)?;
        let (files, total_bytes) = (self.paths, self.total_bytes);
        let origin = CheckpointOrigin { files, total_bytes, tokenizer, chat_template, tool_template };
        Ok(Checkpoint { config, tensors, findings: Vec::new(), origin })
    }
}

/// The folder that the weights are in: OpenAI's models have them in Hugging Face's layout, and once more in
/// `original/`, in their own. A folder that has but the latter stands for it.
fn with_weights(folder: &Path) -> PathBuf {
    let original = folder.join(ORIGINAL);
    let has_weights =
        |folder: &Path| folder.join(INDEX).exists() || safetensors_in(folder).is_ok_and(|files| !files.is_empty());
    if !has_weights(folder) && has_weights(&original) { original } else { folder.to_owned() }
}

/// The names of a folder's safetensors files, sorted.
fn safetensors_in(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut files: Vec<String> = names.filter(|name| name.ends_with(".safetensors")).collect();
    files.sort_unstable();
    Ok(files)
}

/// Whether a file's name says that it is one of several: `model-00001-of-00003.safetensors`.
fn is_shard(name: &str) -> bool {
    let count = name.trim_end_matches(".safetensors").rsplit_once("-of-").map(|(_, count)| count.parse::<u32>());
    matches!(count, Some(Ok(2..)))
}

/// The name of a folder's only safetensors file.
fn only_file(folder: &Path) -> Result<String, CheckpointError> {
    if folder.join(WHOLE).exists() {
        return Ok(WHOLE.into());
    }
    let files = safetensors_in(folder).map_err(CheckpointError::Map)?;
    match files.as_slice() {
        [only] if !is_shard(only) => Ok(only.clone()),
        [_, ..] => Err(FolderError::NoIndex { files }.into()),
        [] => {
            let (begun, completion) = (download::begun(folder), download::completion(folder));
            Err(FolderError::NoWeights { begun, completion }.into())
        }
    }
}

/// Which file every tensor lies in.
fn read_index(bytes: &[u8]) -> Result<BTreeMap<String, String>, FolderError> {
    if bytes.len() > MAX_INDEX_BYTES {
        return Err(FolderError::IndexTooLong { found: bytes.len() });
    }
    let Index { weight_map: JsonEntries(entries) } =
        serde_json::from_slice(without_mark(bytes)).map_err(FolderError::Index)?;
    let mut index = BTreeMap::new();
    for (tensor, file) in entries {
        if !is_name(&file) {
            return Err(FolderError::Outside { tensor, file });
        }
        if index.contains_key(&tensor) {
            return Err(FolderError::DuplicateEntry { tensor });
        }
        index.insert(tensor, file);
    }
    Ok(index)
}

/// Whether a path is a file's name alone, on any system.
fn is_name(path: &str) -> bool {
    let mut components = Path::new(path).components();
    let is_normal = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    is_normal && !path.contains(['/', '\\', ':', '\0'])
}

#[derive(Deserialize)]
struct Index {
    weight_map: JsonEntries<String>,
}

/// The folder's chat template, and that for conversations with tools, if it has any.
fn chat_templates(folder: &Path) -> Result<(Option<String>, Option<String>), CheckpointError> {
    let read = |name| {
        let path = folder.join(name);
        let there = download::is_named(&path).then(|| map(&path)).transpose()?;
        let too_long = |bytes: &Bytes| bytes.len() > MAX_TEMPLATE_BYTES;
        match there {
            Some(bytes) if too_long(&bytes) => in_file(&path, Err(FolderError::TemplateTooLong { found: bytes.len() })),
            there => Ok(there.map(|bytes| (path, bytes))),
        }
    };
    let text = |(path, bytes): (PathBuf, Bytes)| {
        let text = String::from_utf8(bytes.to_vec()).map_err(|_| FolderError::TemplateNotText);
        in_file(&path, text)
    };
    if let Some(usual) = read(CHAT_TEMPLATE)? {
        return Ok((Some(text(usual)?), read(TOOL_TEMPLATE)?.map(text).transpose()?));
    }
    let Some((path, bytes)) = read(TOKENIZER_CONFIG)? else { return Ok((None, None)) };
    let config: TokenizerConfig =
        in_file(&path, serde_json::from_slice(without_mark(&bytes)).map_err(FolderError::TokenizerConfig))?;
    Ok(match config.chat_template {
        None => (None, None),
        Some(ChatTemplates::One(template)) => (Some(template), None),
        Some(ChatTemplates::Named(all)) => {
            let named = |name: &str| all.iter().find(|one| one.name == name).map(|one| one.template.clone());
            (named("default"), named("tool_use"))
        }
    })
}

/// What is looked for in a `tokenizer_config.json`.
#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Option<ChatTemplates>,
}

/// One template, or several by their names.
#[derive(Deserialize)]
#[serde(untagged)]
enum ChatTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

fn map(path: &Path) -> Result<Bytes, CheckpointError> {
    in_file(path, download::map(path))
}

/// Says which of several files an error is about.
fn in_file<T, E: Into<CheckpointError>>(path: &Path, result: Result<T, E>) -> Result<T, CheckpointError> {
    result.map_err(|error| CheckpointError::Part { path: path.to_owned(), source: Box::new(error.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_files_beside_the_index_are_taken() {
        assert!(is_name("model-00001-of-00003.safetensors") && is_name("..a"));
        for path in ["", ".", "..", "../model", "/model", "a/b", "./a", "a/", "..\\a", "C:a", "a\0b"] {
            assert!(!is_name(path), "{path:?}");
        }
    }

    #[test]
    fn an_index_is_read_whole_or_not_at_all() {
        let read = |text: &str| read_index(text.as_bytes());
        let index = read(r#"{"metadata": {"total_size": 3}, "weight_map": {"b": "2", "a": "1"}}"#).unwrap();
        assert_eq!(index.into_iter().collect::<Vec<_>>(), [("a".into(), "1".into()), ("b".into(), "2".into())]);
        for (text, message) in [
            (r#"{"weight_map": {"a": "1", "a": "1"}}"#, "the index has two entries `a`"),
            (r#"{"weight_map": {"a": "../1"}}"#, "the index says that `a` is in `../1`"),
            (r#"{"weight_map": {"a": 1}}"#, "could not read the index"),
            (r#"{"weight_map": ["a"]}"#, "could not read the index"),
            (r"{}", "could not read the index"),
            (&"{\"weight_map\":".repeat(1000), "could not read the index"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn a_chat_template_is_a_file_or_in_the_tokenizers_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        let both = || chat_templates(folder.path());
        let found = || both().map(|(usual, _)| usual);
        assert_eq!(found().unwrap(), None);
        write(TOKENIZER_CONFIG, br#"{ "eos_token": "x" }"#);
        assert_eq!(found().unwrap(), None);
        write(
            TOKENIZER_CONFIG,
            br#"{ "chat_template": [{ "name": "tools", "template": "a" }, { "name": "default", "template": "b" }] }"#,
        );
        assert_eq!(found().unwrap().as_deref(), Some("b"));
        let list = br#"{ "chat_template": [{ "name": "default", "template": "b" }, { "name": "tool_use", "template": "t" }] }"#;
        write(TOKENIZER_CONFIG, list);
        assert_eq!(both().unwrap(), (Some("b".into()), Some("t".into())));
        write(TOKENIZER_CONFIG, br#"{ "chat_template": "c" }"#);
        assert_eq!(found().unwrap().as_deref(), Some("c"));
        write(CHAT_TEMPLATE, b"d");
        assert_eq!(found().unwrap().as_deref(), Some("d"));
        fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        write(TOOL_TEMPLATE, b"e");
        assert_eq!(both().unwrap(), (Some("d".into()), Some("e".into())));
        write(CHAT_TEMPLATE, b"\xff");
        assert!(found().unwrap_err().to_string().contains(CHAT_TEMPLATE));
        write(CHAT_TEMPLATE, &vec![b' '; MAX_TEMPLATE_BYTES + 1]);
        assert!(found().is_err());
    }
}
