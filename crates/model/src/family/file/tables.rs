//! The tables of a family's file, in the form that TOML gives them.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::family::{NamingScheme, Sharding};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FamilyTable {
    pub(crate) name: Spanned<String>,
    #[serde(default)]
    pub(crate) model_type: Keys,
    #[serde(default)]
    pub(crate) architecture: Keys,
    pub(crate) chat: Option<Spanned<String>>,
    pub(crate) dims: BTreeMap<String, Spanned<DimTable>>,
    #[serde(default)]
    pub(crate) numbers: BTreeMap<String, Spanned<NumberTable>>,
    #[serde(default)]
    pub(crate) lists: BTreeMap<String, ListTable>,
    #[serde(default, rename = "let")]
    pub(crate) facts: BTreeMap<String, Spanned<String>>,
    pub(crate) rope: Spanned<RopeTable>,
    #[serde(default)]
    pub(crate) ropes: BTreeMap<String, Spanned<RopeTable>>,
    #[serde(default)]
    pub(crate) expect: ExpectTable,
    #[serde(default)]
    pub(crate) shapes: BTreeMap<String, Spanned<BTreeMap<String, Spanned<f64>>>>,
    pub(crate) tensor: Vec<TensorTable>,
    pub(crate) forward: ForwardTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RopeTable {
    pub(crate) theta: String,
    pub(crate) dim: Spanned<String>,
    #[serde(default)]
    pub(crate) scaling: ScalingName,
    pub(crate) factor: Option<String>,
    pub(crate) low: Option<String>,
    pub(crate) high: Option<String>,
    pub(crate) original: Option<String>,
    pub(crate) divisors: Option<String>,
    pub(crate) json: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScalingName {
    #[default]
    None,
    Linear,
    Yarn,
    Llama3,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardTable {
    pub(crate) layer: Spanned<String>,
    #[serde(default)]
    pub(crate) other: Vec<OtherLayer>,
    pub(crate) first: Option<Spanned<String>>,
    pub(crate) last: Spanned<String>,
}

/// What some layers do instead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtherLayer {
    pub(crate) when: Spanned<String>,
    pub(crate) layer: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DimTable {
    #[serde(default = "one")]
    pub(crate) min: i64,
    pub(crate) max: i64,
    #[serde(default)]
    pub(crate) json: Keys,
    #[serde(default)]
    pub(crate) gguf: Keys,
    pub(crate) gguf_lacks: Option<String>,
    #[serde(default)]
    pub(crate) gguf_has: Keys,
    pub(crate) null: Option<i64>,
    pub(crate) default: Option<Spanned<Whole>>,
    pub(crate) at_most: Option<Spanned<Whole>>,
    pub(crate) multiple_of: Option<Spanned<Whole>>,
}

/// A whole number, or an expression that gives one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number, or an expression in quotes")]
pub(super) enum Whole {
    Number(i64),
    Text(String),
}

fn one() -> i64 {
    1
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a key, or a list of keys")]
pub(super) enum Keys {
    One(String),
    Several(Vec<String>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl Keys {
    pub(crate) fn list(&self) -> Vec<String> {
        match self {
            Self::One(key) => vec![key.clone()],
            Self::Several(keys) => keys.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberTable {
    #[serde(default)]
    pub(crate) above: f32,
    #[serde(default)]
    pub(crate) json: Keys,
    #[serde(default)]
    pub(crate) gguf: Keys,
    pub(crate) default: Option<f64>,
    pub(crate) root: Option<Spanned<Whole>>,
    pub(crate) over: Option<Spanned<Whole>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListTable {
    pub(crate) json: Keys,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectTable {
    #[serde(default)]
    pub(crate) json: BTreeMap<String, Spanned<ExpectedTable>>,
    #[serde(default)]
    pub(crate) gguf: BTreeMap<String, Spanned<ExpectedTable>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a number, true or false")]
pub(super) enum ExpectedTable {
    Text(String),
    Flag(bool),
    Number(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorTable {
    pub(crate) name: Spanned<String>,
    #[serde(default)]
    pub(crate) layer: bool,
    #[serde(default)]
    pub(crate) experts: bool,
    #[serde(default)]
    pub(crate) exact: bool,
    pub(crate) when: Option<Spanned<String>>,
    pub(crate) shape: Spanned<Vec<Spanned<String>>>,
    pub(crate) openai: Option<Spanned<SpelledTable>>,
    pub(crate) hf: Option<Spanned<SpelledTable>>,
    pub(crate) gguf: Option<Spanned<SpelledTable>>,
    pub(crate) fused: Option<Spanned<SpelledTable>>,
    pub(crate) stack: Option<Spanned<StackTable>>,
    pub(crate) pairs: Option<Spanned<PairsTable>>,
    pub(crate) offset: Option<Spanned<OffsetTable>>,
    #[serde(default)]
    pub(crate) cut: Sharding,
    pub(crate) draw: Option<Spanned<DrawTable>>,
}

impl TensorTable {
    /// What the file says of its names in a format.
    pub(crate) fn spelled(&self, format: NamingScheme) -> Option<&Spanned<SpelledTable>> {
        match format {
            NamingScheme::OpenAi => self.openai.as_ref(),
            NamingScheme::HuggingFace => self.hf.as_ref(),
            NamingScheme::Gguf => self.gguf.as_ref(),
            NamingScheme::Fused => self.fused.as_ref().or(self.gguf.as_ref()),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a name, a list of names, or `{ transposed = NAME }`")]
pub(super) enum SpelledTable {
    Same(String),
    Stacked(Vec<String>),
    Transposed(Transposed),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transposed {
    pub(crate) transposed: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairsTable {
    #[serde(default)]
    pub(crate) hf: Vec<String>,
    #[serde(default)]
    pub(crate) gguf: Vec<String>,
    pub(crate) rows: String,
    pub(crate) rotated: Option<String>,
}

/// What is added to the numbers that a format stores.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OffsetTable {
    pub(crate) hf: Option<f32>,
    pub(crate) gguf: Option<f32>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of numbers of rows, or \"in turn\"")]
pub(super) enum StackTable {
    Rows(Vec<String>),
    Word(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrawTable {
    pub(crate) centre: Option<f32>,
    pub(crate) reach: Option<f32>,
    pub(crate) deviation: Option<f32>,
}
