//! A gpt-oss model out of a GGUF file: its dimensions from the keys, as llama.cpp's converter writes them, and its
//! tokenizer.

use bytes::Bytes;

use super::value::{Array, Value};
use super::{Gguf, GgufError};
use crate::checkpoint::assembly::{self, assemble};
use crate::checkpoint::{Checkpoint, CheckpointError, Origin, TokenizerSource};
use crate::config::{ModelConfig, dimension};
use crate::family::{Expected, Family};

/// The architecture, which is also what the model's own keys begin with.
const ARCHITECTURE: &str = "gpt-oss";

/// A tokenizer, as a GGUF file spells it.
#[derive(Clone, Debug)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` is byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of a way of splitting text.
    pub pre: Option<String>,
    /// The tokens by id, their bytes spelled as GPT-2 does.
    pub tokens: Array,
    /// What kind of token each is: 3 is a control token, 4 one that a user defined.
    pub kinds: Option<Array>,
    /// Pairs that merge, in order of rank.
    pub merges: Option<Array>,
    /// The ids after which an answer is complete: of the end of a sequence, of a turn, of a message.
    pub ends: Vec<u32>,
}

/// Reads a whole file.
///
/// # Errors
/// What is wrong with it: [`CheckpointError::Gguf`], [`CheckpointError::Config`], [`CheckpointError::Tensors`].
pub(in crate::checkpoint) fn read(bytes: &Bytes) -> Result<Checkpoint, CheckpointError> {
    let file = Gguf::read(bytes)?;
    let config = config(&file)?;
    let tokenizer = tokenizer(&file)?.map(TokenizerSource::Gguf);
    let chat_template = file.text("tokenizer.chat_template")?.map(str::to_owned);
    let tensors = assemble(file.tensors, &assembly::GGUF, &config)?;
    Ok(Checkpoint {
        config,
        tensors,
        findings: Vec::new(),
        origin: Origin { tokenizer, chat_template, ..Origin::default() },
    })
}

fn config(file: &Gguf) -> Result<ModelConfig, CheckpointError> {
    match file.text("general.architecture")? {
        Some(ARCHITECTURE) => {}
        Some(other) => return Err(refused("general.architecture", ARCHITECTURE, &Value::Text(other.into())).into()),
        None => return Err(GgufError::MissingKey { key: "general.architecture".into() }.into()),
    }
    let (rope_scaling_factor, initial_context_length) = rope_scaling(file)?;
    let dim = |name| match name {
        "initial_context_length" => Ok(initial_context_length),
        "vocab_size" => vocab_size(file),
        name => file.dimension(name),
    };
    let number = |name| match name {
        "rope_theta" => Ok(file.float("rope.freq_base")?.ok_or_else(|| missing("rope.freq_base"))? as f32),
        "rope_scaling_factor" => Ok(rope_scaling_factor),
        // GGUF has no key for the clamp of SwiGLU: llama.cpp computes gpt-oss with a constant (`build_moe_ffn`,
        // LLM_FFN_SWIGLU_OAI_MOE).
        name => {
            let default = Family::gpt_oss().number(name).default;
            Ok::<_, CheckpointError>(default.ok_or_else(|| missing(name))? as f32)
        }
    };
    let config = ModelConfig::of(dim, number)?;
    config.check()?;
    check_constants(file, &config)?;
    Ok(config)
}

/// From its own key, else from the shape of the embedding.
fn vocab_size(file: &Gguf) -> Result<usize, CheckpointError> {
    if file.own("vocab_size").is_some() {
        return file.dimension("vocab_size");
    }
    let Some(embedding) = file.tensors.get("token_embd.weight") else { return Err(missing("vocab_size").into()) };
    let rows = i64::try_from(embedding.shape[0]).unwrap_or(i64::MAX);
    Ok(dimension("vocab_size", rows)?)
}

/// YaRN's factor and the context length before it.
fn rope_scaling(file: &Gguf) -> Result<(f32, usize), CheckpointError> {
    match file.text(&own_key("rope.scaling.type"))? {
        None | Some("none") => Ok((1.0, file.dimension("max_seq_len")?)),
        Some("yarn") => {
            let factor = file.float("rope.scaling.factor")?.ok_or_else(|| missing("rope.scaling.factor"))?;
            Ok((factor as f32, file.dimension("initial_context_length")?))
        }
        Some(other) => Err(refused(&own_key("rope.scaling.type"), "yarn or none", &Value::Text(other.into())).into()),
    }
}

/// What the program has constants for must not be something else in the file.
fn check_constants(file: &Gguf, config: &ModelConfig) -> Result<(), GgufError> {
    for (key, expected) in &Family::gpt_oss().expected_in_gguf {
        let expected = match expected {
            Expected::Number(number) => *number,
            Expected::Dims(dims) => dims.whole(&config.scope()).unwrap_or_else(|error| panic!("{error}")) as f64,
            Expected::Text(_) | Expected::Flag(_) => unreachable!("a family's file has none for GGUF"),
        };
        match file.float(key)? {
            // The file has f32, in which 1e-5 is something else.
            Some(found) if (found - expected).abs() <= 1e-6 * expected.abs() => {}
            Some(found) => return Err(refused(&own_key(key), &expected.to_string(), &Value::Float(found))),
            None => {}
        }
    }
    match file.metadata.get("split.count") {
        Some(Value::Unsigned(..=1)) | None => Ok(()),
        Some(parts) => Err(refused("split.count", "a file that is whole", parts)),
    }
}

fn tokenizer(file: &Gguf) -> Result<Option<GgufTokenizer>, GgufError> {
    let array = |name: &str| match file.metadata.get(&format!("tokenizer.ggml.{name}")) {
        None => Ok(None),
        Some(Value::Array(array)) => Ok(Some(array.clone())),
        Some(other) => Err(refused(&format!("tokenizer.ggml.{name}"), "an array", other)),
    };
    let (Some(model), Some(tokens)) = (file.text("tokenizer.ggml.model")?, array("tokens")?) else { return Ok(None) };
    let kind_is_right = |array: &Array| array.words().is_some() && array.len() == tokens.len();
    if tokens.texts().is_none() {
        return Err(refused("tokenizer.ggml.tokens", "an array of texts", &Value::Array(tokens)));
    }
    let (kinds, merges) = (array("token_type")?, array("merges")?);
    if let Some(kinds) = kinds.as_ref().filter(|kinds| !kind_is_right(kinds)) {
        let expected = format!("{} whole numbers of 32 bits, one for each token", tokens.len());
        return Err(refused("tokenizer.ggml.token_type", &expected, &Value::Array(kinds.clone())));
    }
    if let Some(merges) = merges.as_ref().filter(|merges| merges.texts().is_none()) {
        return Err(refused("tokenizer.ggml.merges", "an array of texts", &Value::Array(merges.clone())));
    }
    let ends = ["eos", "eot", "eom"].map(|name| end(file, name, tokens.len()));
    Ok(Some(GgufTokenizer {
        model: model.to_owned(),
        pre: file.text("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens,
        kinds,
        merges,
        ends: ends.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?,
    }))
}

/// A token that ends something. What is no id of a token means that there is none, as 2^32 - 1 does.
fn end(file: &Gguf, name: &str, n_tokens: u64) -> Result<Option<u32>, GgufError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    match file.metadata.get(&key) {
        None | Some(Value::Signed(..0)) => Ok(None),
        Some(Value::Unsigned(id)) => Ok(u32::try_from(*id).ok().filter(|_| *id < n_tokens)),
        Some(other) => Err(refused(&key, "the id of a token", other)),
    }
}

/// The lists of a tokenizer, taken apart by what gives a token.
#[derive(Debug, Default)]
pub struct TokenLists<'a> {
    /// Tokens that text merges to, with their ids.
    pub ordinary: Vec<(&'a str, u32)>,
    /// Tokens that are names: control tokens, and those that a user defined.
    pub names: Vec<(&'a str, u32)>,
    /// Tokens that nothing gives.
    pub unused: Vec<(&'a str, u32)>,
    /// Pairs that merge, each with a blank in between, in order of rank.
    pub merges: Vec<&'a str>,
}

/// The kinds of tokens in `tokenizer.ggml.token_type`; others are ordinary.
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;

impl GgufTokenizer {
    /// A file's tokenizer, which must be there.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] and [`GgufError::Key`].
    pub fn of(file: &Gguf) -> Result<Self, GgufError> {
        tokenizer(file)?.ok_or_else(|| GgufError::MissingKey { key: "tokenizer.ggml.tokens".into() })
    }

    /// Its lists.
    pub fn lists(&self) -> TokenLists<'_> {
        let mut lists = TokenLists::default();
        let mut kinds = self.kinds.iter().flat_map(Array::words).flatten();
        for (id, text) in self.tokens.texts().into_iter().flatten().enumerate() {
            let list = match kinds.next() {
                Some(CONTROL | USER_DEFINED) => &mut lists.names,
                Some(UNUSED) => &mut lists.unused,
                _ => &mut lists.ordinary,
            };
            list.push((text, id as u32));
        }
        lists.merges = self.merges.iter().flat_map(Array::texts).flatten().collect();
        lists
    }
}

fn own_key(name: &str) -> String {
    format!("{ARCHITECTURE}.{name}")
}

fn missing(name: &str) -> GgufError {
    GgufError::MissingKey { key: own_key(name) }
}

fn refused(key: &str, expected: &str, found: &Value) -> GgufError {
    GgufError::Key { key: key.to_owned(), expected: expected.to_owned(), found: found.to_string() }
}

impl Gguf {
    /// The value of one of the architecture's own keys.
    fn own(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&own_key(name))
    }

    /// A dimension of the model, which must be there.
    fn dimension(&self, field: &'static str) -> Result<usize, CheckpointError> {
        let names = &Family::gpt_oss().dim(field).gguf;
        let is_there = |name: &&String| self.own(name).is_some();
        let name = names.iter().find(is_there).or(names.last()).map_or(field, String::as_str);
        let value = match self.own(name).ok_or_else(|| missing(name))? {
            Value::Unsigned(value) => i64::try_from(*value).unwrap_or(i64::MAX),
            Value::Signed(value) => *value,
            other => return Err(refused(&own_key(name), "a whole number", other).into()),
        };
        Ok(dimension(field, value)?)
    }

    /// A number.
    fn float(&self, name: &str) -> Result<Option<f64>, GgufError> {
        match self.own(name) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(Value::Unsigned(value)) => Ok(Some(*value as f64)),
            Some(Value::Signed(value)) => Ok(Some(*value as f64)),
            Some(other) => Err(refused(&own_key(name), "a number", other)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(refused(key, "text", other)),
        }
    }
}
