//! The tables of a family's file, as TOML has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::family::{Cut, Format};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FamilyTable {
    pub name: Spanned<String>,
    #[serde(default)]
    pub model_type: Keys,
    #[serde(default)]
    pub architecture: Keys,
    pub chat: Option<Spanned<String>>,
    pub dims: BTreeMap<String, Spanned<DimTable>>,
    #[serde(default)]
    pub numbers: BTreeMap<String, Spanned<NumberTable>>,
    #[serde(default, rename = "let")]
    pub facts: BTreeMap<String, Spanned<String>>,
    pub rope: Spanned<RopeTable>,
    #[serde(default)]
    pub expect: ExpectTable,
    #[serde(default)]
    pub shapes: BTreeMap<String, Spanned<BTreeMap<String, Spanned<f64>>>>,
    pub tensor: Vec<TensorTable>,
    pub forward: ForwardTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RopeTable {
    pub theta: String,
    pub dim: String,
    #[serde(default)]
    pub scaling: ScalingName,
    pub factor: Option<String>,
    pub original: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScalingName {
    #[default]
    None,
    Yarn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardTable {
    pub layer: Spanned<String>,
    #[serde(default)]
    pub other: Vec<OtherLayer>,
    pub last: Spanned<String>,
}

/// What some layers do instead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtherLayer {
    pub when: Spanned<String>,
    pub layer: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DimTable {
    #[serde(default = "one")]
    pub min: i64,
    pub max: i64,
    #[serde(default)]
    pub json: Keys,
    #[serde(default)]
    pub gguf: Keys,
    pub gguf_lacks: Option<String>,
    pub null: Option<i64>,
    pub default: Option<Spanned<Whole>>,
    pub at_most: Option<Spanned<Whole>>,
    pub multiple_of: Option<Spanned<Whole>>,
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
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(key) => vec![key.clone()],
            Self::Several(keys) => keys.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberTable {
    pub above: f32,
    #[serde(default)]
    pub json: Keys,
    #[serde(default)]
    pub gguf: Keys,
    pub default: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectTable {
    #[serde(default)]
    pub json: BTreeMap<String, Spanned<ExpectedTable>>,
    #[serde(default)]
    pub gguf: BTreeMap<String, Spanned<ExpectedTable>>,
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
    pub name: Spanned<String>,
    #[serde(default)]
    pub layer: bool,
    #[serde(default)]
    pub experts: bool,
    pub when: Option<Spanned<String>>,
    pub shape: Spanned<Vec<Spanned<String>>>,
    pub openai: Option<Spanned<SpelledTable>>,
    pub hf: Option<Spanned<SpelledTable>>,
    pub gguf: Option<Spanned<SpelledTable>>,
    pub stack: Option<Spanned<StackTable>>,
    pub pairs: Option<Spanned<PairsTable>>,
    #[serde(default)]
    pub cut: Cut,
    pub draw: Option<Spanned<DrawTable>>,
}

impl TensorTable {
    /// What the file says of its names in a format.
    pub fn spelled(&self, format: Format) -> Option<&Spanned<SpelledTable>> {
        match format {
            Format::OpenAi => self.openai.as_ref(),
            Format::HuggingFace => self.hf.as_ref(),
            Format::Gguf => self.gguf.as_ref(),
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
    pub transposed: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairsTable {
    pub gguf: Vec<String>,
    pub rows: String,
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
    pub centre: Option<f32>,
    pub reach: Option<f32>,
    pub deviation: Option<f32>,
}
