//! Makes a model from a GGUF file: dimensions from the keys, as llama.cpp's converter writes them, and the tokenizer.

use super::parts::Whole;
use super::value::{Array, Value};
use super::{ARCHITECTURE, Gguf, GgufError, OLLAMA};
use crate::checkpoint::assembly::{self, assemble};
use crate::checkpoint::inventory::{Mismatch, Mismatches};
use crate::checkpoint::stored::Number as StoredNumber;
use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointOrigin, TokenizerSource};
use crate::config::{ModelConfig, dimension};
use crate::family::check::EMBEDDING;
use crate::family::known::usable;
use crate::family::{self, Dim, Expected, Family, Number, RopeScaling, Spelled, known};

/// A tokenizer, as a GGUF file spells it.
#[derive(Clone, Debug)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: `gpt2` is byte-level BPE, `llama` SentencePiece's.
    pub(crate) model: String,
    /// `tokenizer.ggml.pre`: the name of a way of splitting text.
    pub(crate) pre: Option<String>,
    /// The tokens by id, their bytes spelled as GPT-2 does, or their text as SentencePiece does.
    pub(crate) tokens: Array,
    /// What kind of token each is: 3 is a control token, 4 one that a user defined.
    pub(crate) kinds: Option<Array>,
    /// Pairs that merge, in order of rank.
    pub(crate) merges: Option<Array>,
    /// Of each token: what makes the one of the highest merges first.
    pub(crate) scores: Option<Vec<f32>>,
    /// Whether a blank is put before text; without a word of it, it is where scores say what merges.
    pub(crate) adds_blank: bool,
    /// The token of what has none.
    pub(crate) unknown: Option<u32>,
}

/// Makes a model of a file, or of all its parts.
///
/// # Errors
/// What is wrong with it: [`CheckpointError::Gguf`], [`CheckpointError::Config`], [`CheckpointError::Tensors`].
pub(in crate::checkpoint) fn read(whole: Whole) -> Result<Checkpoint, CheckpointError> {
    let Whole { mut file, paths, total_bytes } = whole;
    let mut config = config(&file)?;
    if let Some(divisors) = rope_divisors(&mut file, &config)? {
        config = config.with_rope_divisors(divisors);
    }
    let tokenizer = tokenizer(&file)?.map(|tokenizer| TokenizerSource::Gguf(tokenizer.into()));
    let chat_template = file.text("tokenizer.chat_template")?.map(str::to_owned);
    let tool_template = file.text("tokenizer.chat_template.tool_use")?.map(str::to_owned);
    let tensors = assemble(file.tensors, &assembly::GGUF, &config)?;
    let origin = CheckpointOrigin { files: paths, total_bytes, tokenizer, chat_template, tool_template };
    Ok(Checkpoint { config, tensors, findings: Vec::new(), origin })
}

fn config(file: &Gguf) -> Result<ModelConfig, CheckpointError> {
    let Some(architecture) = file.text(ARCHITECTURE)? else {
        return Err(GgufError::MissingKey { key: ARCHITECTURE.into() }.into());
    };
    let is_of = |family: &&&'static Family| family.architectures.iter().any(|name| name == architecture);
    let Some(family) = known().iter().find(is_of) else {
        let names: Vec<&str> = known().iter().flat_map(|family| &family.architectures).map(String::as_str).collect();
        return Err(refused(ARCHITECTURE, &names.join(" or "), &Value::Text(architecture.into())).into());
    };
    usable(family)?;
    let own = Own { file, architecture, family };
    let scaling = own.rope_scaling()?;
    let dim = |dim: &'static Dim| match (&family.ropes[0].scaling, scaling) {
        (RopeScaling::Yarn { original, .. }, None) if dim.name == *original => own.dimension(max_seq_len(family)),
        _ => own.dimension(dim),
    };
    let number = |number: &'static Number| {
        if family.ropes[0].scaling.factor() == Some(&number.name) {
            return Ok(Some(scaling.unwrap_or(1.0)));
        }
        for key in &number.gguf {
            if let Some(value) = own.float(key)? {
                return Ok(Some(value as f32));
            }
        }
        Ok(None)
    };
    let missing = |name: &'static str| {
        let of_dim = family.dim(name).and_then(|dim| dim.gguf.last());
        let of_number = family.numbers.iter().find(|number| number.name == name).and_then(|number| number.gguf.last());
        own.missing(of_dim.or(of_number).map_or(name, String::as_str)).into()
    };
    let config = ModelConfig::from_values(family, dim, number, missing)?;
    config.check()?;
    check_constants(&own, &config)?;
    Ok(config)
}

/// What angles are divided by, if the family names a tensor for it and the file has it.
fn rope_divisors(file: &mut Gguf, config: &ModelConfig) -> Result<Option<Vec<f32>>, CheckpointError> {
    let Some(name) = config.family.ropes[0].divisors.as_ref().filter(|name| file.tensors.get(name).is_some()) else {
        return Ok(None);
    };
    // What is wrong with its shape is told with what is wrong with other tensors.
    let Some(stored) = file.tensors.take_plain(name.clone(), &[config.rope_dim() / 2]) else { return Ok(None) };
    let divisors: Vec<f32> = stored.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let found = match stored.number() {
        Some(StoredNumber::F32) if divisors.iter().all(|divisor| divisor.is_finite() && *divisor > 0.0) => {
            return Ok(Some(divisors));
        }
        Some(StoredNumber::F32) => "F32 of which some is not",
        _ => stored.stored.name,
    };
    Err(Mismatches(vec![Mismatch::Type { name: name.clone(), expected: "F32 above 0", found }]).into())
}

fn max_seq_len(family: &'static Family) -> &'static Dim {
    family.dim("max_seq_len").expect("every family has it")
}

/// What the program has constants for must not be something else in the file.
fn check_constants(own: &Own, config: &ModelConfig) -> Result<(), GgufError> {
    for (key, expected) in &config.family.expected_in_gguf {
        let expected = match expected {
            Expected::Number(number) => *number,
            Expected::Dims(dims) => dims.whole(&config.scope()).unwrap_or_else(|error| panic!("{error}")) as f64,
            Expected::Text(_) | Expected::Flag(_) => unreachable!("a family's file has none for GGUF"),
        };
        match own.float(key)? {
            // The file has f32, in which 1e-5 is something else.
            Some(found) if (found - expected).abs() <= 1e-6 * expected.abs() => {}
            Some(found) => return Err(refused(&own.key(key), &expected.to_string(), &Value::Float(found))),
            None => {}
        }
    }
    Ok(())
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
    // Ollama's converter names no way of splitting that it does not know; its program splits gpt-oss's text so.
    let is_ollama = file.text(ARCHITECTURE)? == Some(OLLAMA);
    let pre = if is_ollama { Some("gpt-4o") } else { file.text("tokenizer.ggml.pre")? };
    let (kinds, merges) = (array("token_type")?, array("merges")?);
    if let Some(kinds) = kinds.as_ref().filter(|kinds| !kind_is_right(kinds)) {
        let expected = format!("{} whole numbers of 32 bits, one for each token", tokens.len());
        return Err(refused("tokenizer.ggml.token_type", &expected, &Value::Array(kinds.clone())));
    }
    if let Some(merges) = merges.as_ref().filter(|merges| merges.texts().is_none()) {
        return Err(refused("tokenizer.ggml.merges", "an array of texts", &Value::Array(merges.clone())));
    }
    let scores = array("scores")?.map(|scores| match scores.floats() {
        Some(floats) if scores.len() == tokens.len() => Ok(floats.collect()),
        _ => {
            let expected = format!("{} numbers of 32 bits, one for each token", tokens.len());
            Err(refused("tokenizer.ggml.scores", &expected, &Value::Array(scores.clone())))
        }
    });
    let adds_blank = match file.metadata.get("tokenizer.ggml.add_space_prefix") {
        None => true,
        Some(Value::Bool(adds)) => *adds,
        Some(other) => return Err(refused("tokenizer.ggml.add_space_prefix", "true or false", other)),
    };
    let unknown = match file.metadata.get("tokenizer.ggml.unknown_token_id") {
        None => Some(0), // llama.cpp's
        Some(id) => id.unsigned().and_then(|id| u32::try_from(id).ok()),
    };
    let (model, pre, scores) = (model.to_owned(), pre.map(str::to_owned), scores.transpose()?);
    Ok(Some(GgufTokenizer { model, pre, tokens, kinds, merges, scores, adds_blank, unknown }))
}

/// The lists of a tokenizer, taken apart by what gives a token.
#[derive(Debug, Default)]
pub(crate) struct TokenLists<'a> {
    /// Tokens that text merges to, with their ids.
    pub(crate) ordinary: Vec<(&'a str, u32)>,
    /// Control tokens and the unknown one, which are names.
    pub(crate) names: Vec<(&'a str, u32)>,
    /// Tokens that a user defined: names, too, which prompts always have.
    pub(crate) in_prompts: Vec<(&'a str, u32)>,
    /// Tokens that nothing gives.
    pub(crate) unused: Vec<(&'a str, u32)>,
    /// Pairs that merge, each with a blank in between, in order of rank.
    pub(crate) merges: Vec<&'a str>,
}

/// The kinds of tokens in `tokenizer.ggml.token_type`; others are ordinary.
const UNKNOWN: u32 = 2;
const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;
const UNUSED: u32 = 5;

impl GgufTokenizer {
    /// A file's tokenizer, which must be there.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`] and [`GgufError::Key`].
    pub fn from_gguf(file: &Gguf) -> Result<Self, GgufError> {
        tokenizer(file)?.ok_or_else(|| GgufError::MissingKey { key: "tokenizer.ggml.tokens".into() })
    }

    pub(crate) fn lists(&self) -> TokenLists<'_> {
        let mut lists = TokenLists::default();
        let mut kinds = self.kinds.iter().flat_map(Array::words).flatten();
        for (id, text) in self.tokens.texts().into_iter().flatten().enumerate() {
            let list = match kinds.next() {
                Some(CONTROL | UNKNOWN) => &mut lists.names,
                Some(USER_DEFINED) => &mut lists.in_prompts,
                Some(UNUSED) => &mut lists.unused,
                _ => &mut lists.ordinary,
            };
            list.push((text, id as u32));
        }
        lists.merges = self.merges.iter().flat_map(Array::texts).flatten().collect();
        lists
    }
}

fn refused(key: &str, expected: &str, found: &Value) -> GgufError {
    GgufError::Key { key: key.to_owned(), expected: expected.to_owned(), found: found.to_string() }
}

/// The keys of a file that are its architecture's own.
struct Own<'a> {
    file: &'a Gguf,
    architecture: &'a str,
    family: &'static Family,
}

impl Own<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn missing(&self, name: &str) -> GgufError {
        GgufError::MissingKey { key: self.key(name) }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.file.metadata.get(&self.key(name))
    }

    /// The factor, where positions are scaled by one.
    fn rope_scaling(&self) -> Result<Option<f32>, GgufError> {
        let key = self.key("rope.scaling.type");
        let expected = match self.family.ropes[0].scaling {
            RopeScaling::None => "none",
            RopeScaling::Yarn { .. } => "yarn or none",
            RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => "linear or none",
        };
        // Ollama's converter names no type where it has a factor.
        let unnamed = self.architecture == OLLAMA && self.get("rope.scaling.factor").is_some();
        match self.file.text(&key)?.or(unnamed.then_some("yarn")) {
            Some("none") => Ok(None),
            // Linear is what llama.cpp takes where no type is named; older files have another key, and 0 is none.
            None | Some("linear") if expected.starts_with("linear") => {
                let older = self.float("rope.scale_linear")?;
                let factor = self.float("rope.scaling.factor")?.or(older);
                Ok(factor.filter(|factor| *factor != 0.0).map(|factor| factor as f32))
            }
            None => Ok(None),
            Some("yarn") if expected.starts_with("yarn") => {
                let factor = self.float("rope.scaling.factor")?;
                Ok(Some(factor.ok_or_else(|| self.missing("rope.scaling.factor"))? as f32))
            }
            Some(other) => Err(refused(&key, expected, &Value::Text(other.into()))),
        }
    }

    /// A dimension of the model, if the file says it: the vocabulary's size is also the embedding's.
    fn dimension(&self, dim: &'static Dim) -> Result<Option<usize>, CheckpointError> {
        if let Some(lacked) = &dim.gguf_lacks {
            return Ok(Some(usize::from(self.file.tensors.get(lacked).is_none())));
        }
        if !dim.gguf_has.is_empty() {
            return Ok(Some(usize::from(dim.gguf_has.iter().any(|had| self.file.tensors.get(had).is_some()))));
        }
        let Some((name, value)) = dim.gguf.iter().find_map(|name| Some((name, self.get(name)?))) else {
            let embedding = self.family.tensor(EMBEDDING).filter(|_| dim.name == "vocab_size");
            let embedding = embedding.and_then(|(embedding, _)| match embedding.spelled(family::NamingScheme::Gguf) {
                Spelled::Same(name) => self.file.tensors.get(name),
                Spelled::Stacked(_) | Spelled::Transposed(_) => None,
            });
            let rows = embedding.map(|embedding| i64::try_from(embedding.shape[0]).unwrap_or(i64::MAX));
            return Ok(rows.map(|rows| dimension(dim, rows)).transpose()?);
        };
        let value = match value {
            Value::Unsigned(value) => i64::try_from(*value).unwrap_or(i64::MAX),
            Value::Signed(value) => *value,
            other => return Err(refused(&self.key(name), "a whole number", other).into()),
        };
        Ok(Some(dimension(dim, value)?))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, GgufError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(Value::Unsigned(value)) => Ok(Some(*value as f64)),
            Some(Value::Signed(value)) => Ok(Some(*value as f64)),
            Some(other) => Err(refused(&self.key(name), "a number", other)),
        }
    }
}

impl Gguf {
    fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(refused(key, "text", other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// A file of such keys, as `Gguf` has it.
    fn file(numbers: &[(&str, u64)]) -> Gguf {
        let key = |(name, value): &(&str, u64)| (format!("gpt-oss.{name}"), Value::Unsigned(*value));
        let mut metadata: std::collections::BTreeMap<String, Value> = numbers.iter().map(key).collect();
        metadata.insert(ARCHITECTURE.into(), Value::Text("gpt-oss".into()));
        Gguf { metadata, ..Gguf::default() }
    }

    #[test]
    fn a_file_without_a_factor_has_the_context_that_it_was_trained_with() {
        let dims = [
            ("vocab_size", 100),
            ("embedding_length", 64),
            ("expert_count", 4),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", 64),
            ("block_count", 2),
            ("attention.key_length", 16),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("context_length", 4096),
            ("attention.sliding_window", 128),
            ("rope.freq_base", 150_000),
        ];
        let found = config(&file(&dims)).expect("all that a model has");
        assert_eq!((found.max_seq_len, found.dim("initial_context_length")), (4096, 4096));
    }

    #[test]
    fn tokens_are_listed_by_their_kinds() {
        let array = |kind: u32, elements: &[Vec<u8>]| {
            let head = [9_u32.to_le_bytes(), kind.to_le_bytes()].concat();
            let bytes = [head, (elements.len() as u64).to_le_bytes().to_vec(), elements.concat()].concat();
            match Value::read(&mut super::super::value::Cursor::new(&Bytes::from(bytes)), "key").expect("an array") {
                Value::Array(array) => array,
                other => panic!("{other}"),
            }
        };
        let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let tokens = array(8, &["a", "<s>", "<mine>", "[7]", "<unk>", "b"].map(text));
        let kinds =
            array(4, &[1_u32, CONTROL, USER_DEFINED, UNUSED, UNKNOWN, 1].map(|kind| kind.to_le_bytes().to_vec()));
        let mut file = file(&[]);
        file.metadata.insert("tokenizer.ggml.model".into(), Value::Text("gpt2".into()));
        file.metadata.insert("tokenizer.ggml.tokens".into(), Value::Array(tokens));
        file.metadata.insert("tokenizer.ggml.token_type".into(), Value::Array(kinds));
        let tokenizer = GgufTokenizer::from_gguf(&file).expect("it has tokens");
        let TokenLists { ordinary, names, in_prompts, unused, merges } = tokenizer.lists();
        assert_eq!((ordinary, names), (vec![("a", 0), ("b", 5)], vec![("<s>", 1), ("<unk>", 4)]));
        assert_eq!((in_prompts, unused, merges.len()), (vec![("<mine>", 2)], vec![("[7]", 3)], 0));
    }
}
