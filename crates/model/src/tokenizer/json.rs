//! Hugging Face's `tokenizer.json`, of which byte-level BPE is read.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;

use system::json_entries::JsonEntries;

use super::bpe::{BpeError, SpelledBpe, pair};
use super::split::{GPT2, Split};
use system::foreign_text::without_mark;

/// The longest file that is read; gpt-oss' has 28 MB.
const MAX_BYTES: usize = 256 << 20;

/// Reads a file: its lists, its way of splitting unless another was chosen, and whether it composes characters before.
pub(super) fn read(bytes: &[u8], split: Option<Split>) -> Result<(SpelledBpe, Split, bool), BpeError> {
    if bytes.len() > MAX_BYTES {
        return Err(BpeError::TooLong { found: bytes.len(), max: MAX_BYTES });
    }
    let file: File = serde_json::from_slice(without_mark(bytes)).map_err(BpeError::Json)?;
    file.model.check()?;
    let composes = match &file.normalizer {
        Some(normalizer) if normalizer["type"] == "NFC" => true,
        Some(normalizer) if !is_empty(normalizer) => {
            return Err(unsupported("normalizer", "null or NFC", normalizer));
        }
        _ => false,
    };
    let split = match split {
        Some(split) => split,
        None => split_of_pre_tokenizer(&file.pre_tokenizer)?,
    };
    for token in &file.added_tokens {
        if token.lstrip || token.rstrip || token.single_word {
            let expected = "tokens without `lstrip`, `rstrip` and `single_word`";
            return Err(unsupported("added_tokens", expected, &Value::from(token.content.as_str())));
        }
    }
    let merges = file.model.merges.into_iter().enumerate().map(|(index, merge)| match merge {
        Merge::Pair(left, right) => Ok((left, right)),
        Merge::Text(text) => pair(index, &text),
    });
    let (special, others): (Vec<Added>, _) = file.added_tokens.into_iter().partition(|token| token.special);
    let added = |list: Vec<Added>| list.into_iter().map(|token| (token.content, token.id)).collect();
    let spelled = SpelledBpe {
        tokens: file.model.vocab.0,
        added: added(special),
        in_prompts: added(others),
        unused: Vec::new(),
        merges: merges.collect::<Result<_, _>>()?,
        ignore_merges: file.model.ignore_merges,
    };
    match file.model.unk_token {
        Some(unknown) if spelled.lacks_a_byte() => {
            Err(unsupported("model.unk_token", "null where a byte has no token", &Value::from(unknown)))
        }
        _ => Ok((spelled, split, composes)),
    }
}

fn unsupported(key: &'static str, expected: &'static str, found: &Value) -> BpeError {
    BpeError::Unsupported { key, expected, found: found.to_string().chars().take(200).collect() }
}

/// A sequence of nothing.
fn is_empty(step: &Value) -> bool {
    step["type"] == "Sequence"
        && step.as_object().is_some_and(|step| step.values().any(|list| *list == Value::from([(); 0])))
}

/// A known pattern, then bytes as characters; or these with GPT-2's pattern, behind digits that are alone or not.
fn split_of_pre_tokenizer(pre_tokenizer: &Value) -> Result<Split, BpeError> {
    let steps = match pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) if pre_tokenizer["type"] == "Sequence" => steps.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    let known = match steps {
        [split, bytes] if has_bytes(bytes, false) => pattern(split).and_then(|of| Split::of_pattern(of, false)),
        [digits, bytes] if has_bytes(bytes, true) && are_alone(digits) => Split::of_pattern(GPT2, true),
        [bytes] if has_bytes(bytes, true) => Split::of_pattern(GPT2, false),
        _ => None,
    };
    known.ok_or_else(|| unsupported("pre_tokenizer", "a known pattern, and `ByteLevel`", pre_tokenizer))
}

/// Whether this step writes bytes as characters, and splits by GPT-2's pattern or not. Both it does unless it says
/// otherwise, and so it adds a blank.
fn has_bytes(step: &Value, splits: bool) -> bool {
    step["type"] == "ByteLevel"
        && step["add_prefix_space"] == false
        && step["use_regex"].as_bool().unwrap_or(true) == splits
}

fn are_alone(step: &Value) -> bool {
    step["type"] == "Digits" && step["individual_digits"] == true
}

/// The regular expression whose matches a step makes pieces of.
fn pattern(step: &Value) -> Option<&str> {
    match (step["behavior"].as_str(), step["invert"].as_bool().unwrap_or(false)) {
        (Some("Isolated"), false) | (Some("Removed"), true) if step["type"] == "Split" => {
            step["pattern"]["Regex"].as_str()
        }
        _ => None,
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Option<Value>,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    vocab: JsonEntries<u32>,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

impl Model {
    /// Refuses what would be tokenised otherwise.
    fn check(&self) -> Result<(), BpeError> {
        let is_affix = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
        let refused = |key, expected, found| Err(BpeError::Unsupported { key, expected, found });
        match self {
            Self { kind: Some(kind), .. } if kind != "BPE" => refused("model.type", "\"BPE\"", format!("{kind:?}")),
            Self { byte_fallback: true, .. } => refused("model.byte_fallback", "false", "true".into()),
            Self { dropout: Some(dropout), .. } if *dropout > 0.0 => {
                refused("model.dropout", "null", dropout.to_string())
            }
            Self { continuing_subword_prefix: affix, .. } if is_affix(affix) => {
                refused("model.continuing_subword_prefix", "null", format!("{affix:?}"))
            }
            Self { end_of_word_suffix: affix, .. } if is_affix(affix) => {
                refused("model.end_of_word_suffix", "null", format!("{affix:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// `"a b"`, or `["a", "b"]` as newer files have it.
enum Merge {
    Text(String),
    Pair(String, String),
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair of tokens")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
                Ok(Merge::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                let mut next = || list.next_element::<String>();
                match (next()?, next()?, next()?) {
                    (Some(left), Some(right), None) => Ok(Merge::Pair(left, right)),
                    _ => Err(A::Error::custom("a merge is of two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}
