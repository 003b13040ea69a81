//! Hugging Face's `tokenizer.json`. Only BPE is read: of bytes, as in GPT-2, and SentencePiece's.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;

use system::json_entries::JsonEntries;

use super::bpe::{BpeError, SpelledBpe, Spelling, UnknownToken, pair};
use super::pieces::{Pieces, Prefix};
use super::split::{GPT2, Split};
use super::{TokenizerError, Way};
use system::foreign_text::without_mark;

/// The longest file that is read; gpt-oss' has 28 MB.
const MAX_BYTES: usize = 256 << 20;

/// Reads a file: its lists, its way of splitting unless another was chosen, and whether it composes characters before.
pub(super) fn read(bytes: &[u8], split: Option<Split>) -> Result<(SpelledBpe, Way, bool), TokenizerError> {
    if bytes.len() > MAX_BYTES {
        return Err(BpeError::TooLong { found: bytes.len(), max: MAX_BYTES }.into());
    }
    let file: File = serde_json::from_slice(without_mark(bytes)).map_err(BpeError::Json)?;
    file.model.check()?;
    let normalizer = Normalizer::read(&file.normalizer)?;
    let way = match (pieces(&normalizer, &file)?, split) {
        (Some(_), Some(_)) => return Err(BpeError::NoWords.into()),
        (Some(pieces), None) => Way::Pieces(pieces),
        // A way that is not known is the caller's to choose.
        (None, Some(split)) if split_of_pre_tokenizer(&file.pre_tokenizer).is_err() => Way::Words(split),
        (None, split) => Way::Words(Split::chosen(split_of_pre_tokenizer(&file.pre_tokenizer)?, split)?),
    };
    let is_text = matches!(way, Way::Pieces(_));
    if file.model.byte_fallback && !is_text {
        return Err(unsupported("model.byte_fallback", "false where bytes are characters", &Value::from(true)).into());
    }
    for token in &file.added_tokens {
        if token.lstrip || token.rstrip || token.single_word {
            let expected = "tokens without `lstrip`, `rstrip` and `single_word`";
            return Err(unsupported("added_tokens", expected, &Value::from(token.content.as_str())).into());
        }
    }
    let merges = file.model.merges.into_iter().enumerate().map(|(index, merge)| match merge {
        Merge::Pair(left, right) => Ok((left, right)),
        Merge::Text(text) => pair(index, &text),
    });
    let (special, others): (Vec<Added>, _) = file.added_tokens.into_iter().partition(|token| token.special);
    let added = |list: Vec<Added>| list.into_iter().map(|token| (token.content, token.id)).collect();
    let unknown = file.model.unk_token.and_then(|name| {
        let id = file.model.vocab.0.iter().find(|(text, _)| *text == name)?.1;
        Some(UnknownToken { id, fuses: file.model.fuse_unk })
    });
    let spelled = SpelledBpe {
        tokens: file.model.vocab.0,
        added: added(special),
        in_prompts: added(others),
        unused: Vec::new(),
        merges: merges.collect::<Result<_, _>>()?,
        ignore_merges: file.model.ignore_merges,
        spelling: if is_text { Spelling::Text } else { Spelling::Bytes },
        scores: None,
        unknown,
        leaves_out_first: true,
    };
    Ok((spelled, way, normalizer.composes))
}

fn unsupported(key: &'static str, expected: &'static str, found: &Value) -> BpeError {
    BpeError::Unsupported { key, expected, found: found.to_string().chars().take(200).collect() }
}

/// The steps of a part that may be one step, or a sequence of them under this name.
fn steps<'a>(part: &'a Value, name: &str) -> &'a [Value] {
    match part[name].as_array() {
        Some(steps) if part["type"] == "Sequence" => steps,
        _ if part.is_null() => &[],
        _ => std::slice::from_ref(part),
    }
}

/// What is done to text before it is split.
#[derive(Default)]
struct Normalizer {
    composes: bool,
    /// Whether a blank is put before it, as SentencePiece writes blanks.
    puts_blank: bool,
    /// Whether blanks are written so.
    writes_blanks: bool,
}

impl Normalizer {
    fn read(part: &Option<Value>) -> Result<Self, BpeError> {
        let mut read = Self::default();
        for step in part.iter().flat_map(|part| steps(part, "normalizers")) {
            let is_blank = |key: &str| step[key] == "\u{2581}";
            match step["type"].as_str() {
                Some("NFC") => read.composes = true,
                Some("Prepend") if is_blank("prepend") => read.puts_blank = true,
                Some("Replace") if step["pattern"]["String"] == " " && is_blank("content") => read.writes_blanks = true,
                _ => return Err(unsupported("normalizer", "null, NFC, or what writes blanks as U+2581", step)),
            }
        }
        Ok(read)
    }
}

/// How a file splits that writes blanks as SentencePiece does; none for others.
fn pieces(normalizer: &Normalizer, file: &File) -> Result<Option<Pieces>, BpeError> {
    let mut pieces = Pieces::default();
    if normalizer.puts_blank {
        pieces.prefix = Prefix::Each;
    }
    let mut writes_blanks = normalizer.writes_blanks;
    for step in steps(&file.pre_tokenizer, "pretokenizers") {
        match step["type"].as_str() {
            Some("Metaspace") if step["replacement"] == "\u{2581}" && !normalizer.puts_blank => {
                pieces.prefix = match (step["prepend_scheme"].as_str(), step["add_prefix_space"].as_bool()) {
                    (Some("first"), _) => Prefix::First,
                    (Some("never"), _) | (None, Some(false)) => Prefix::Never,
                    _ => Prefix::Each,
                };
                pieces.only_where_none_is = true;
                pieces.splits = step["split"].as_bool().unwrap_or(true);
                writes_blanks = true;
            }
            // No blank is left by then.
            Some("Split") if normalizer.writes_blanks && step["pattern"]["String"] == " " => {}
            _ if writes_blanks => return Err(unsupported("pre_tokenizer", "null or `Metaspace`", &file.pre_tokenizer)),
            _ => return Ok(None),
        }
    }
    if !writes_blanks {
        return Ok(None);
    }
    let is_stripping = |step: &Value| match step["type"].as_str() {
        Some("Strip") => step["content"] == " " && step["start"].as_u64().is_some_and(|n| n > 0),
        Some("Metaspace") => step["prepend_scheme"] != "never" && step["add_prefix_space"] != false,
        _ => false,
    };
    pieces.strips = steps(&file.decoder, "decoders").iter().any(is_stripping);
    Ok(Some(pieces))
}

/// A known pattern, then bytes as characters; or these with GPT-2's pattern, after digits that are alone or not.
fn split_of_pre_tokenizer(pre_tokenizer: &Value) -> Result<Split, BpeError> {
    let known = match steps(pre_tokenizer, "pretokenizers") {
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
    #[serde(default)]
    decoder: Value,
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
    fuse_unk: bool,
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
