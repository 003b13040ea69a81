//! Special tokens of a checkpoint: those that end a sequence, and those that begin and end one in a chat template. No
//! other module decides this.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harmony::{Harmony, end_ids};
use hint::Hint;
use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::checkpoint::gguf::value::Value as GgufValue;
use model::checkpoint::{Checkpoint, CheckpointError, TokenizerSource};
use model::tokenizer::Tokenizer;
use system::foreign_text::without_mark;

/// Special tokens with a meaning that all models share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specials {
    /// The tokens after which a model is done; those of the vocabulary, which no format has to know.
    pub ends: Vec<u32>,
    /// The name of the token that a sequence begins with, as templates write it.
    pub bos: Option<String>,
    /// The name of the token that ends one, as templates write it.
    pub eos: Option<String>,
}

/// Errors of finding special tokens.
#[derive(Debug, thiserror::Error)]
pub enum SpecialsError {
    /// A file cannot be read.
    #[error("could not read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("could not read `{}`", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// A GGUF file that could be read before.
    #[error(transparent)]
    Gguf(#[from] CheckpointError),
    /// A value that names no token.
    #[error("`{}`: `{key}` is {found}, expected {expected}", path.display())]
    Value { path: PathBuf, key: &'static str, found: String, expected: &'static str },
}

impl Hint for SpecialsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Gguf(error) => error.hint(),
            Self::Read { .. } | Self::Json { .. } | Self::Value { .. } => None,
        }
    }
}

/// Longest of the JSON files that are looked into.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The keys of a GGUF file whose tokens end a sequence: a text's end, a turn's, and that of a message to a tool.
const GGUF_ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

const GGUF_BEGIN: &str = "tokenizer.ggml.bos_token_id";

/// Where a folder of Hugging Face's says it: the first that does.
const FOLDER_ENDS: [&str; 2] = ["generation_config.json", "config.json"];

/// The ways of splitting text (`tokenizer.ggml.pre`) whose texts llama.cpp begins with that token where a GGUF file
/// says nothing of it.
const GGUF_BEGINS: [&str; 4] = ["llama-bpe", "llama3", "llama-v3", "tekken"];

/// Texts of SentencePiece's begin with it, too; these are the ids where a file says none.
const SENTENCEPIECE_BEGIN: u32 = 1;
const SENTENCEPIECE_END: u32 = 2;

/// Names of tokens that end a turn or a text wherever a GGUF file has them, as in llama.cpp: many files say one alone.
const GGUF_END_NAMES: [&str; 6] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"];

/// The tokens that a checkpoint's own tokenizer puts before every text: one, mostly, or none.
///
/// # Errors
/// A file cannot be read, or says what cannot be.
pub fn begin_of_texts(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Vec<u32>, SpecialsError> {
    let mut begin = match (&checkpoint.origin.tokenizer, checkpoint.origin.files.first()) {
        (Some(TokenizerSource::Gguf(kind)), Some(file)) => gguf_begin(file, kind)?.into_iter().collect(),
        (Some(TokenizerSource::File(file)), _) => folder_begin(file, tokenizer)?,
        _ => Vec::new(),
    };
    begin.retain(|&id| (id as usize) < tokenizer.vocab_size());
    Ok(begin)
}

fn gguf_begin(path: &Path, kind: &GgufTokenizer) -> Result<Option<u32>, SpecialsError> {
    let Some(file) = Gguf::open(path)? else { return Ok(None) };
    let begins = match (file.metadata.get("tokenizer.ggml.add_bos_token"), file.metadata.get("tokenizer.ggml.pre")) {
        (Some(GgufValue::Bool(begins)), _) => *begins,
        _ if kind.is_sentencepiece() => true,
        (_, Some(GgufValue::Text(pre))) => GGUF_BEGINS.contains(&pre.as_str()),
        _ => false,
    };
    let usual = kind.is_sentencepiece().then_some(SENTENCEPIECE_BEGIN);
    if begins { Ok(gguf_id(&file, path, GGUF_BEGIN)?.or(usual)) } else { Ok(None) }
}

/// Of a folder with a `tokenizer.json`: `tokenizer_config.json` decides, then what is done after encoding.
fn folder_begin(tokenizer_json: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>, SpecialsError> {
    let path = tokenizer_json.with_file_name("tokenizer_config.json");
    let object = json(&path)?.unwrap_or_default();
    if object["add_bos_token"] == true {
        let named = name(&path, "bos_token", &object["bos_token"])?;
        let ids = named.and_then(|name| tokenizer.encode_with_specials(name.as_bytes()).ok());
        return Ok(ids.filter(|ids| ids.len() == 1).unwrap_or_default());
    }
    let is_json = tokenizer_json.extension().is_some_and(|extension| extension == "json");
    if object["add_bos_token"] == false || !is_json {
        return Ok(Vec::new());
    }
    let file = json(tokenizer_json)?.unwrap_or_default();
    let of_sequence = file["post_processor"]["processors"].as_array().into_iter().flatten();
    let template = of_sequence.chain([&file["post_processor"]]).find(|step| step["type"] == "TemplateProcessing");
    let Some(template) = template else { return Ok(Vec::new()) };
    let mut begin = Vec::new();
    let before = template["single"].as_array().into_iter().flatten();
    for name in before.map_while(|step| step["SpecialToken"]["id"].as_str()) {
        let of_name = &template["special_tokens"][name]["ids"];
        begin.extend(ids(tokenizer_json, "post_processor.special_tokens.ids", of_name)?);
    }
    Ok(begin)
}

impl Specials {
    /// Of a vocabulary alone: by the names of tokens.
    pub fn of_names(tokenizer: &Tokenizer) -> Self {
        Self { ends: end_ids(tokenizer), ..Self::default() }
    }

    /// Of a checkpoint and the vocabulary that it is used with. What has the tokens of harmony is ended by their names;
    /// else by what the checkpoint's files say, if they say anything. Ids that the vocabulary lacks end nothing: no
    /// model writes them.
    ///
    /// # Errors
    /// A file cannot be read, or says what cannot be.
    pub fn read(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, SpecialsError> {
        let by_name = Self::of_names(tokenizer);
        let Some(file) = checkpoint.origin.files.first() else { return Ok(by_name) };
        if Harmony::new(tokenizer.clone()).is_ok() {
            return Ok(by_name);
        }
        let is_in_folder = file.extension().is_some_and(|extension| extension == "safetensors");
        let mut specials = match &checkpoint.origin.tokenizer {
            Some(TokenizerSource::Gguf(kind)) => Self::of_gguf(file, kind, tokenizer)?,
            _ if is_in_folder => Self::of_folder(file.parent().unwrap_or(Path::new(".")))?,
            _ => return Ok(by_name),
        };
        let n_tokens = tokenizer.vocab_size();
        specials.ends.retain(|&id| (id as usize) < n_tokens);
        if specials.ends.is_empty() {
            specials.ends = by_name.ends;
        }
        Ok(specials)
    }

    fn of_gguf(path: &Path, kind: &GgufTokenizer, tokenizer: &Tokenizer) -> Result<Self, SpecialsError> {
        let Some(file) = Gguf::open(path)? else { return Ok(Self::of_names(tokenizer)) };
        let id = |key: &'static str| gguf_id(&file, path, key);
        let mut ends = Vec::new();
        for key in GGUF_ENDS {
            ends.extend(id(key)?.filter(|id| !ends.contains(id)));
        }
        let (mut bos, mut eos) = (id(GGUF_BEGIN)?, id(GGUF_ENDS[0])?);
        if kind.is_sentencepiece() {
            (bos, eos) = (bos.or(Some(SENTENCEPIECE_BEGIN)), eos.or(Some(SENTENCEPIECE_END)));
        }
        let named = GGUF_END_NAMES.into_iter().filter_map(|name| tokenizer.special(name));
        for id in eos.into_iter().chain(named) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        let name = |id: Option<u32>| {
            let name = id.and_then(|id| tokenizer.decode(id).ok());
            name.map(|name| String::from_utf8_lossy(name).into_owned())
        };
        Ok(Self { ends, bos: name(bos), eos: name(eos) })
    }

    fn of_folder(folder: &Path) -> Result<Self, SpecialsError> {
        let mut specials = Self::default();
        for name in FOLDER_ENDS {
            let path = folder.join(name);
            let Some(object) = json(&path)? else { continue };
            specials.ends = ids(&path, "eos_token_id", &object["eos_token_id"])?;
            if !specials.ends.is_empty() {
                break;
            }
        }
        let path = folder.join("tokenizer_config.json");
        if let Some(object) = json(&path)? {
            specials.bos = name(&path, "bos_token", &object["bos_token"])?;
            specials.eos = name(&path, "eos_token", &object["eos_token"])?;
        }
        Ok(specials)
    }
}

/// The token that a GGUF file has under a key.
fn gguf_id(file: &Gguf, path: &Path, key: &'static str) -> Result<Option<u32>, SpecialsError> {
    match file.metadata.get(key) {
        None => Ok(None),
        Some(GgufValue::Unsigned(id)) => Ok(u32::try_from(*id).ok()),
        Some(GgufValue::Signed(id)) => Ok(u32::try_from(*id).ok()), // -1 is none
        Some(other) => Err(SpecialsError::Value {
            path: path.to_owned(),
            key,
            found: other.to_string(),
            expected: "the id of a token",
        }),
    }
}

/// A file, if it is there.
fn json(path: &Path) -> Result<Option<Value>, SpecialsError> {
    let read = |source| SpecialsError::Read { path: path.to_owned(), source };
    match mapped_file::read(path, MAX_FILE_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(read(error)),
        Ok(bytes) => serde_json::from_slice(without_mark(&bytes))
            .map(Some)
            .map_err(|source| SpecialsError::Json { path: path.to_owned(), source }),
    }
}

/// An id, or a list of ids.
fn ids(path: &Path, key: &'static str, value: &Value) -> Result<Vec<u32>, SpecialsError> {
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    ids.ok_or_else(|| wrong(path, key, value, "the id of a token, or a list of ids"))
}

/// A token's name, as a text or an object that has it.
fn name(path: &Path, key: &'static str, value: &Value) -> Result<Option<String>, SpecialsError> {
    match value {
        Value::Null => Ok(None),
        Value::String(name) => Ok(Some(name.clone())),
        Value::Object(token) if token.get("content").is_some_and(Value::is_string) => {
            Ok(token["content"].as_str().map(str::to_owned))
        }
        other => Err(wrong(path, key, other, "the name of a token")),
    }
}

fn wrong(path: &Path, key: &'static str, found: &Value, expected: &'static str) -> SpecialsError {
    let found = found.to_string().chars().take(200).collect();
    SpecialsError::Value { path: path.to_owned(), key, found, expected }
}
