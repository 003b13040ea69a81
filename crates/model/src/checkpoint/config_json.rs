//! Reads a model's dimensions from a `config.json`: Hugging Face's of transformers 4 (`rope_theta`, `rope_scaling`)
//! and 5 (`rope_parameters`), or OpenAI's own, which uses our names.
//!
//! Constants of the program must equal the file's values, if it has them: a model that would be computed differently
//! is refused.

use serde_json::{Map, Value};

use super::foreign::{self, ForeignQuantization};
use crate::config::{ConfigError, ModelConfig, dimension};
use crate::family::known::{gpt_oss, usable};
use crate::family::{Dim, Expected, Family, FamilyError, Number, Rope as FamilyRope, RopeScaling, known};
use hint::Hint;
use system::foreign_text::without_mark;

/// The longest file that is read; a real one has 2 kB.
const MAX_BYTES: usize = 1 << 20;

/// The longest list of numbers that is read: conditions look through it for every layer.
const MAX_LIST: usize = 4096;

/// Ways of quantising of which types and scales of tensors say the rest.
const QUANTIZED: [&str; 2] = ["fp8", "compressed-tensors"];

/// What is wrong with a `config.json`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("the file has {found} bytes, expected {MAX_BYTES} at most")]
    TooLong { found: usize },
    #[error("the file is not JSON")]
    Json(#[source] serde_json::Error),
    /// A key that a model needs is not there, under none of its names.
    #[error("`{}` is missing", keys.join("` or `"))]
    Missing {
        /// Its names, of which one is enough.
        keys: Vec<String>,
    },
    /// A value of another type, or one that the program does not compute.
    #[error("`{key}` is {found}, expected {expected}")]
    Value { key: String, expected: String, found: String },
    /// Dimensions that no model has.
    #[error(transparent)]
    Dimensions(#[from] ConfigError),
    /// The family's own file is broken.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The weights are quantised in a way that is not read.
    #[error(transparent)]
    Foreign(#[from] ForeignQuantization),
}

impl Hint for ConfigFileError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Dimensions(error) => error.hint(),
            Self::Family(error) => error.hint(),
            Self::Foreign(error) => error.hint(),
            Self::Missing { keys } if keys.iter().any(|key| key.ends_with("truncate")) => Some(
                "transformers rounds YaRN's range where `truncate` is not false; gpt-oss was trained without".into(),
            ),
            Self::TooLong { .. } | Self::Json(_) => Some("is this the config.json of a model?".into()),
            Self::Missing { .. } | Self::Value { .. } => Some(
                "`gptoss-jit models ls` lists the known families, `--model-def FILE` adds one: is this the config.json of one of them?"
                    .into(),
            ),
        }
    }
}

/// Reads a file.
///
/// # Errors
/// The first thing that is wrong with it.
pub(super) fn read(bytes: &[u8]) -> Result<ModelConfig, ConfigFileError> {
    if bytes.len() > MAX_BYTES {
        return Err(ConfigFileError::TooLong { found: bytes.len() });
    }
    let json: Map<String, Value> = serde_json::from_slice(without_mark(bytes)).map_err(ConfigFileError::Json)?;
    let file = Object { json: &json, path: "" };
    if let Some(Value::String(method)) = file.object("quantization_config")?.and_then(|of| of.get("quant_method")) {
        foreign::check_method(method)?;
    }
    let (scaling, path) = match ["rope_parameters", "rope_scaling"].map(|key| (file.object(key), key)) {
        [(Ok(Some(new)), path), _] => (Some(new), path),
        [(Err(error), _), _] | [_, (Err(error), _)] => return Err(error),
        [_, (Ok(old), path)] => (old, path),
    };
    let family = family(&file)?;
    check_constants(family, &file)?;
    let ropes = Rope::all(family, scaling.map(|json| Object { json, path }), &file)?;
    let ropes = || family.ropes.iter().zip(&ropes);
    let dim = |dim: &'static Dim| {
        if let Some((_, rope)) = ropes().find(|(of, _)| of.scaling.original() == Some(&dim.name)) {
            return Ok(rope.initial_context_length);
        }
        match file.dimension(dim, &keys(dim))? {
            // OpenAI's has none: what YaRN stretches the context to.
            None if dim.name == "max_seq_len" => Ok(ropes().find_map(|(of, rope)| match of.scaling {
                RopeScaling::Yarn { .. } => {
                    let length = rope.initial_context_length? as f64 * rope.factor.max(1.0);
                    Some(length.min(f64::from(1 << 30)) as usize)
                }
                _ => None,
            })),
            found => Ok(found),
        }
    };
    let number = |number: &'static Number| {
        for (of, rope) in ropes() {
            if number.name == of.theta {
                return Ok(rope.theta.map(|theta| theta as f32));
            }
            if of.scaling.factor() == Some(&number.name) {
                return Ok(Some(rope.factor as f32));
            }
            if let Some((_, turns)) = rope.turns.iter().find(|(name, _)| *name == number.name) {
                return Ok(Some(*turns as f32));
            }
        }
        for key in &number.json {
            if let Some(found) = file.number(key)? {
                return Ok(Some(found as f32));
            }
        }
        Ok(None)
    };
    let missing = |name: &'static str| {
        let dim = family.dim(name).map(keys).filter(|keys| !keys.is_empty());
        file.missing(&dim.unwrap_or_else(|| vec![name]))
    };
    let mut config = ModelConfig::from_values(family, dim, number, missing)?;
    for list in &family.lists {
        config = config.with_list(list, file.list(&list.json)?);
    }
    config.check()?;
    file.check_layers(&config)?;
    Ok(config)
}

/// The family whose model it is; without a `model_type` it is OpenAI's own file.
fn family(file: &Object) -> Result<&'static Family, ConfigFileError> {
    let Some(found) = file.any(&["model_type"])? else { return Ok(gpt_oss()) };
    let is_of = |family: &&&'static Family| family.model_types.iter().any(|name| found == name.as_str());
    let Some(family) = known().iter().find(is_of) else {
        let names: Vec<String> =
            known().iter().flat_map(|family| &family.model_types).map(|name| format!("\"{name}\"")).collect();
        return Err(file.refused("model_type", &names.join(" or "), found));
    };
    usable(family)?;
    Ok(family)
}

/// The keys of a dimension.
fn keys(dim: &'static Dim) -> Vec<&'static str> {
    dim.json.iter().map(String::as_str).collect()
}

/// What the program has constants for must not be something else in the file.
fn check_constants(family: &Family, file: &Object) -> Result<(), ConfigFileError> {
    for (path, expected) in &family.expected_in_json {
        let (outer, key) = path.rsplit_once('.').unwrap_or(("", path));
        let inner = if outer.is_empty() { Some(file.json) } else { file.object(outer)? };
        let Some(json) = inner else { continue };
        let object = Object { json, path: outer };
        let is_read = |found: &Value| QUANTIZED.iter().any(|method| found == method);
        if path == "quantization_config.quant_method" && object.any(&[key])?.is_some_and(is_read) {
            continue;
        }
        match expected {
            Expected::Text(text) => object.expect(key, &text.as_str().into())?,
            Expected::Flag(flag) => object.expect(key, &(*flag).into())?,
            Expected::Number(number) => object.expect_number(key, *number)?,
            Expected::Dims(_) => unreachable!("a family's file has none for JSON"),
        }
    }
    Ok(())
}

/// How positions are turned into angles.
struct Rope {
    theta: Option<f64>,
    factor: f64,
    /// By the family's names, how often pairs turn that slow down and that do not.
    turns: Vec<(&'static str, f64)>,
    initial_context_length: Option<usize>,
}

impl Rope {
    /// Those of a family; where `scaling` has an object for each kind of layers, each has its own.
    fn all(family: &'static Family, scaling: Option<Object>, file: &Object) -> Result<Vec<Self>, ConfigFileError> {
        let inner = |of: &FamilyRope| match (&scaling, &of.json) {
            (Some(scaling), Some(key)) => Ok(scaling.object(key)?.map(|json| (json, scaling.full(key)))),
            _ => Ok(None),
        };
        let inner: Vec<Option<(&Map<String, Value>, String)>> =
            family.ropes.iter().map(inner).collect::<Result<_, ConfigFileError>>()?;
        let is_nested = inner.iter().any(Option::is_some);
        let mut ropes = Vec::new();
        for (i, (of, inner)) in family.ropes.iter().zip(&inner).enumerate() {
            let scaling = match inner {
                Some((json, path)) => Some(Object { json, path }),
                None if is_nested || i > 0 => None,
                None => scaling,
            };
            ropes.push(Self::of(family, of, scaling, file)?);
        }
        Ok(ropes)
    }

    fn of(
        family: &'static Family,
        rope: &'static FamilyRope,
        scaling: Option<Object>,
        file: &Object,
    ) -> Result<Self, ConfigFileError> {
        match (&rope.scaling, scaling) {
            (RopeScaling::None, scaling) => Self::unscaled(family, rope, scaling, file),
            (RopeScaling::Yarn { original, .. }, Some(json)) => Self::of_transformers(family, original, &json, file),
            (RopeScaling::Yarn { factor, original }, None) => {
                Self::of_openai(family, &rope.theta, factor, original, file)
            }
            (RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. }, scaling) => {
                Self::slowed(family, rope, scaling, file)
            }
        }
    }

    /// The base, where it stands by itself.
    fn theta(family: &Family, rope: &FamilyRope, file: &Object) -> Result<Option<f64>, ConfigFileError> {
        let number = family.numbers.iter().find(|number| number.name == rope.theta);
        let keys = number.map(|number| &number.json[..]).filter(|keys| !keys.is_empty());
        for key in keys.unwrap_or(std::slice::from_ref(&rope.theta)) {
            if let Some(found) = file.number(key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Of angles that nothing stretches.
    fn unscaled(
        family: &Family,
        rope: &FamilyRope,
        scaling: Option<Object>,
        file: &Object,
    ) -> Result<Self, ConfigFileError> {
        let mut theta = Self::theta(family, rope, file)?;
        if let Some(scaling) = scaling {
            theta = scaling.number("rope_theta")?.or(theta);
            let kind = scaling.any(&["rope_type", "type"])?.ok_or_else(|| scaling.missing(&["rope_type"]))?;
            if kind != "default" {
                return Err(scaling.refused("rope_type", "\"default\"", kind));
            }
        }
        Ok(Self { theta, factor: 1.0, turns: vec![], initial_context_length: None })
    }

    /// Of pairs that may slow down: all of them, or those that turn seldom.
    fn slowed(
        family: &'static Family,
        of: &'static FamilyRope,
        scaling: Option<Object>,
        file: &Object,
    ) -> Result<Self, ConfigFileError> {
        let theta = Self::theta(family, of, file)?;
        let mut rope = Self { theta, factor: 1.0, turns: vec![], initial_context_length: None };
        let Some(scaling) = scaling else { return Ok(rope) };
        rope.theta = scaling.number("rope_theta")?.or(rope.theta);
        let kind = scaling.any(&["rope_type", "type"])?.ok_or_else(|| scaling.missing(&["rope_type"]))?;
        match kind.as_str() {
            Some("default") => return Ok(rope),
            Some("linear") => rope.factor = scaling.required_number("factor")?,
            Some("llama3") if matches!(of.scaling, RopeScaling::Llama3 { .. }) => {
                rope.factor = scaling.required_number("factor")?;
            }
            _ => {
                let llama3 =
                    if of.scaling.original().is_some() { ", \"linear\" or \"llama3\"" } else { " or \"linear\"" };
                return Err(scaling.refused("rope_type", &format!("\"default\"{llama3}"), kind));
            }
        }
        if let (RopeScaling::Llama3 { low, high, original, .. }, true) = (&of.scaling, kind == "llama3") {
            let least = scaling.required_number("low_freq_factor")?;
            let most = scaling.required_number("high_freq_factor")?;
            if most <= least {
                return Err(scaling.refused("high_freq_factor", &format!("more than {least}"), &most.into()));
            }
            rope.turns = vec![(low, least), (high, most)];
            let length = scaling.required_dimension(family, original, "original_max_position_embeddings")?;
            rope.initial_context_length = Some(length);
        }
        Ok(rope)
    }

    fn of_openai(
        family: &'static Family,
        theta: &str,
        factor: &str,
        original: &'static str,
        file: &Object,
    ) -> Result<Self, ConfigFileError> {
        Ok(Self {
            theta: Some(file.required_number(theta)?),
            factor: file.required_number(factor)?,
            turns: vec![],
            initial_context_length: Some(file.required_dimension(family, original, original)?),
        })
    }

    /// - `original`: our and OpenAI's name for the context length before YaRN
    fn of_transformers(
        family: &'static Family,
        original: &'static str,
        scaling: &Object,
        file: &Object,
    ) -> Result<Self, ConfigFileError> {
        let theta = match scaling.number("rope_theta")? {
            Some(theta) => theta,
            None => file.required_number("rope_theta")?,
        };
        let kind = scaling.any(&["rope_type", "type"])?.ok_or_else(|| scaling.missing(&["rope_type"]))?;
        if kind == "default" {
            let key = if file.any(&[original])?.is_some() { original } else { "max_position_embeddings" };
            let initial_context_length = Some(file.required_dimension(family, original, key)?);
            return Ok(Self { theta: Some(theta), factor: 1.0, turns: vec![], initial_context_length });
        }
        if kind != "yarn" {
            return Err(scaling.refused("rope_type", "\"yarn\" or \"default\"", kind));
        }
        if scaling.any(&["truncate"])?.is_none() {
            return Err(scaling.missing(&["truncate"]));
        }
        scaling.expect("truncate", &false.into())?;
        for (key, expected) in [("beta_fast", 32.0), ("beta_slow", 1.0)] {
            scaling.expect_number(key, expected)?;
        }
        let factor = scaling.required_number("factor")?;
        scaling.expect_number("attention_factor", 0.1 * factor.max(1.0).ln() + 1.0)?;
        for key in ["mscale", "mscale_all_dim"] {
            if let Some(found) = scaling.any(&[key])? {
                return Err(scaling.refused(key, "no such key", found));
            }
        }
        let length = scaling.required_dimension(family, original, "original_max_position_embeddings")?;
        Ok(Self { theta: Some(theta), factor, turns: vec![], initial_context_length: Some(length) })
    }
}

/// An object of the file, and where it stands.
#[derive(Clone, Copy)]
struct Object<'a> {
    json: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Object<'a> {
    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn missing(&self, keys: &[&str]) -> ConfigFileError {
        ConfigFileError::Missing { keys: keys.iter().map(|key| self.full(key)).collect() }
    }

    fn refused(&self, key: &str, expected: &str, found: &Value) -> ConfigFileError {
        let shown: String = found.to_string().chars().take(80).collect();
        ConfigFileError::Value { key: self.full(key), expected: expected.to_owned(), found: shown }
    }

    /// The value under any of these keys; where it stands under several, it must be the same. `null` is as good as
    /// nothing.
    fn any(&self, keys: &[&str]) -> Result<Option<&'a Value>, ConfigFileError> {
        let mut found: Option<(&str, &Value)> = None;
        for key in keys {
            match (self.json.get(*key).filter(|value| !value.is_null()), found) {
                (Some(value), Some((first, other))) if value != other => {
                    return Err(self.refused(key, &format!("{other}, as in `{first}`"), value));
                }
                (Some(value), None) => found = Some((key, value)),
                _ => {}
            }
        }
        Ok(found.map(|(_, value)| value))
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, ConfigFileError> {
        match self.any(&[key])? {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.refused(key, "an object", other)),
        }
    }

    /// A dimension of the model, if it is there; true and false are 1 and 0.
    fn dimension(&self, dim: &'static Dim, keys: &[&str]) -> Result<Option<usize>, ConfigFileError> {
        if let (Some(null), true) = (dim.null, keys.iter().any(|key| self.is_null(key))) {
            return Ok(Some(dimension(dim, null)?));
        }
        let Some(value) = self.any(keys)? else { return Ok(None) };
        let number = value.as_i64().or_else(|| value.as_bool().filter(|_| dim.max == 1).map(i64::from));
        let number = number.ok_or_else(|| self.refused(keys[0], "a whole number", value))?;
        Ok(Some(dimension(dim, number)?))
    }

    /// The dimension `name`, which must be there, under another key.
    fn required_dimension(&self, family: &'static Family, name: &str, key: &str) -> Result<usize, ConfigFileError> {
        let dim = family.dim(name).expect("the family's reader saw that it is there");
        self.dimension(dim, &[key])?.ok_or_else(|| self.missing(&[key]))
    }

    /// Whole numbers; none if no key is there.
    fn list(&self, keys: &'static [String]) -> Result<Vec<usize>, ConfigFileError> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let Some(found) = self.any(&keys)? else { return Ok(Vec::new()) };
        let whole = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
        let list =
            found.as_array().filter(|list| list.len() <= MAX_LIST).and_then(|list| list.iter().map(whole).collect());
        list.ok_or_else(|| self.refused(keys[0], &format!("a list of {MAX_LIST} whole numbers at most"), found))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigFileError> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.refused(key, "a number", value));
        self.any(&[key])?.map(number).transpose()
    }

    fn required_number(&self, key: &str) -> Result<f64, ConfigFileError> {
        self.number(key)?.ok_or_else(|| self.missing(&[key]))
    }

    /// If the key is there, it must be this.
    fn expect(&self, key: &str, expected: &Value) -> Result<(), ConfigFileError> {
        match self.any(&[key])? {
            Some(found) if found != expected => Err(self.refused(key, &expected.to_string(), found)),
            _ => Ok(()),
        }
    }

    fn expect_number(&self, key: &str, expected: f64) -> Result<(), ConfigFileError> {
        match self.number(key)? {
            Some(found) if (found - expected).abs() > 1e-6 * expected.abs() => {
                Err(self.refused(key, &expected.to_string(), &found.into()))
            }
            _ => Ok(()),
        }
    }

    fn is_null(&self, key: &str) -> bool {
        self.json.get(key).is_some_and(Value::is_null)
    }

    /// Layers have a window where the file says so.
    fn check_layers(&self, config: &ModelConfig) -> Result<(), ConfigFileError> {
        let Some(found) = self.any(&["layer_types"])? else { return Ok(()) };
        let of = |l: usize| match config.window(l) {
            Some(_) => "sliding_attention",
            None => "full_attention",
        };
        let expected: Value = (0..config.num_hidden_layers).map(of).collect();
        if *found == expected {
            return Ok(());
        }
        let shown: String = expected.to_string().chars().take(80).collect();
        Err(self.refused("layer_types", &format!("{shown}, {} layers", config.num_hidden_layers), found))
    }
}

#[cfg(test)]
mod tests;
