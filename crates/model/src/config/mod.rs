//! The dimensions of one model, by the names in its family's file (`models/*.toml`), which are Hugging Face's.
//! [`tensor_parallel`] has those of a device's part, [`rope`] the numbers for angles.

mod rope;
pub mod tensor_parallel;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use minijinja::Value;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::family::check::{self, ATTENTION};
use crate::family::{self, Dim, Family, FamilyError, List, Number, Shape};
use expression::{Expression, Scope};
use hint::Hint;

/// Everything about a model that is not a weight. What the program computes with itself has fields; the rest is what
/// the family's file works with.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    pub family: &'static Family,
    /// Rows of the embedding and of the unembedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    /// Longest sequence the checkpoint's author allowed, in tokens.
    pub max_seq_len: usize,
    /// The family's other dimensions.
    others: BTreeMap<&'static str, usize>,
    /// Its numbers that need not be whole.
    numbers: BTreeMap<&'static str, f32>,
    /// Its lists of whole numbers.
    lists: BTreeMap<&'static str, Vec<usize>>,
    /// What a file divides each pair's angle by, one by one; empty if none does.
    rope_divisors: Vec<f32>,
}

/// Equal dimensions and numbers, in the same family.
impl PartialEq for ModelConfig {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.family, other.family)
            && self.dimensions().eq(other.dimensions())
            && self.numbers == other.numbers
            && self.lists == other.lists
            && self.rope_divisors == other.rope_divisors
    }
}

/// A map of all dimensions and numbers.
impl Serialize for ModelConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.dimensions() {
            map.serialize_entry(name, &value)?;
        }
        for (name, value) in &self.numbers {
            map.serialize_entry(name, value)?;
        }
        for (name, list) in &self.lists {
            map.serialize_entry(name, list)?;
        }
        if !self.rope_divisors.is_empty() {
            map.serialize_entry("rope_divisors", &self.rope_divisors)?;
        }
        map.end()
    }
}

/// What a layer keeps of the tokens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values of this many positions, the current one included; `None` is of all.
    Positions { window: Option<usize> },
}

impl ModelConfig {
    /// A dimension of the family's.
    ///
    /// # Panics
    /// The family has none of this name.
    pub fn dim(&self, name: &str) -> usize {
        self.get(name).unwrap_or_else(|| panic!("{} has no `{name}`", self.family.name))
    }

    /// The same, if there is one of this name.
    pub fn get(&self, name: &str) -> Option<usize> {
        match name {
            "vocab_size" => Some(self.vocab_size),
            "hidden_size" => Some(self.hidden_size),
            "num_hidden_layers" => Some(self.num_hidden_layers),
            "max_seq_len" => Some(self.max_seq_len),
            name => self.others.get(name).copied(),
        }
    }

    /// A number of the family's that need not be whole.
    ///
    /// # Panics
    /// The family has none of this name.
    pub fn number(&self, name: &str) -> f32 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("{} has no `{name}`", self.family.name))
    }

    /// The same model with another value of a dimension.
    ///
    /// # Panics
    /// The family has none of this name.
    pub fn with(mut self, name: &str, value: usize) -> Self {
        *self.slot(name).unwrap_or_else(|| panic!("no dimension is `{name}`")) = value;
        self
    }

    fn slot(&mut self, name: &str) -> Option<&mut usize> {
        match name {
            "vocab_size" => Some(&mut self.vocab_size),
            "hidden_size" => Some(&mut self.hidden_size),
            "num_hidden_layers" => Some(&mut self.num_hidden_layers),
            "max_seq_len" => Some(&mut self.max_seq_len),
            name => self.others.get_mut(name),
        }
    }

    /// The whole numbers by name, in the order of the family's file.
    pub(crate) fn dimensions(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.family.dims.iter().map(|dim| (dim.name.as_str(), self.dim(&dim.name)))
    }

    /// The same and what the family's file computes of them, for expressions.
    pub fn scope(&self) -> Arc<Scope> {
        let dims = family::scope(self.dimensions());
        if self.family.facts.is_empty() && self.lists.is_empty() {
            return dims;
        }
        let mut known = dims.known().clone();
        for (name, fact) in &self.family.facts {
            // The file's reader saw that it uses dimensions alone; `check` evaluates it first.
            let value = fact.whole(&dims).unwrap_or_default();
            known.insert(name.clone(), Value::from(value));
        }
        known.extend(self.lists.iter().map(|(&name, list)| (name.to_owned(), Value::from(list.clone()))));
        Arc::new(Scope::new(known))
    }

    /// Positions that layer `l` sees, the current one included; `None` is all.
    ///
    /// # Panics
    /// The layer keeps none.
    pub(crate) fn window(&self, l: usize) -> Option<usize> {
        match self.layer_state(l) {
            Some(LayerState::Positions { window }) => window,
            None => panic!("layer {l} keeps no positions"),
        }
    }

    /// What layer `l` keeps of the tokens before, which follows from its ops; `None` is nothing.
    pub fn layer_state(&self, l: usize) -> Option<LayerState> {
        let dims = self.scope();
        let statements = self.family.forward.statements(&dims, l);
        let attention = statements.iter().find(|statement| statement.op == ATTENTION)?;
        let window = check::window(attention, &Arc::new(family::in_layer(&dims, l)));
        Some(LayerState::Positions { window: (window > 0).then_some(window) })
    }
}

/// Why dimensions cannot be those of a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A whole number outside of its range.
    #[error("`{field}` is {found}, expected {min} to {max}")]
    OutOfRange {
        /// The field, under our name.
        field: &'static str,
        found: i64,
        /// Least value allowed.
        min: i64,
        /// Greatest value allowed.
        max: i64,
    },
    /// A float that is not finite or too small.
    #[error("`{field}` is {found}, expected a finite number above {above}")]
    BadFloat {
        /// The field, under our name.
        field: &'static str,
        found: f32,
        /// It must be greater than this.
        above: f32,
    },
    /// More of something than there is: experts chosen, of those that there are.
    #[error("`{field}` is {found}, more than `{limit}`, which is {most}")]
    TooMany {
        /// The field, under our name.
        field: &'static str,
        found: usize,
        /// What it may not exceed.
        limit: String,
        most: usize,
    },
    /// Something cannot be shared out: query heads among the key and value heads, the values of a head among pairs.
    #[error("`{field}` is {found}, not a multiple of {}", multiple_of(of, *divisor))]
    NotAMultiple {
        /// The field, under our name.
        field: &'static str,
        found: usize,
        /// What must divide it.
        of: String,
        divisor: usize,
    },
    /// The family's file is wrong for these dimensions.
    #[error("{0}")]
    Family(Box<FamilyError>),
    /// What the family's file computes of the dimensions is none.
    #[error("`{fact}` has no value: {reason}")]
    Fact { fact: String, reason: String },
}

impl From<FamilyError> for ConfigError {
    fn from(error: FamilyError) -> Self {
        Self::Family(Box::new(error))
    }
}

fn multiple_of(of: &str, divisor: usize) -> String {
    if of == divisor.to_string() { of.to_owned() } else { format!("`{of}`, which is {divisor}") }
}

impl Hint for ConfigError {
    fn hint(&self) -> Option<String> {
        if let Self::Family(error) = self {
            return error.hint();
        }
        Some("is this a checkpoint of that architecture? Files of another kind give such values".into())
    }
}

/// `value` as a dimension of a family, if it lies in its range.
///
/// # Errors
/// [`ConfigError::OutOfRange`].
pub(crate) fn dimension(dim: &'static Dim, value: i64) -> Result<usize, ConfigError> {
    if (dim.min..=dim.max).contains(&value) {
        Ok(value as usize)
    } else {
        Err(ConfigError::OutOfRange { field: &dim.name, found: value, min: dim.min, max: dim.max })
    }
}

impl ModelConfig {
    /// Dimensions and numbers of a family, each asked for; what is not given has its default.
    ///
    /// # Errors
    /// The first that `dim` or `number` gives, or `missing` of a name that has no default.
    pub(crate) fn from_values<E>(
        family: &'static Family,
        mut dim: impl FnMut(&'static Dim) -> Result<Option<usize>, E>,
        mut number: impl FnMut(&'static Number) -> Result<Option<f32>, E>,
        missing: impl Fn(&'static str) -> E,
    ) -> Result<Self, E> {
        let mut dims: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut defaults: Vec<(&'static Dim, &Expression)> = Vec::new();
        for of in &family.dims {
            match (dim(of)?, &of.default) {
                (Some(value), _) => {
                    dims.insert(&of.name, value);
                }
                (None, Some(default)) => defaults.push((of, default)),
                (None, None) => return Err(missing(&of.name)),
            }
        }
        // A default uses only dimensions that have none, as the file's reader saw.
        let known = family::scope(dims.iter().map(|(name, value)| (*name, *value)));
        for (of, default) in defaults {
            let value = default.whole(&known).unwrap_or_default(); // 0 where it divides by 0: `check` refuses that
            dims.insert(&of.name, usize::try_from(value).unwrap_or(usize::MAX));
        }
        let known = family::scope(dims.iter().map(|(name, value)| (*name, *value)));
        let mut numbers = BTreeMap::new();
        for of in &family.numbers {
            let default = of.default.map(|default| default as f32);
            let value = match &of.root {
                Some((root, over)) => Some(square_root(root, over.as_ref(), &known)),
                None => number(of)?.or(default),
            };
            numbers.insert(of.name.as_str(), value.ok_or_else(|| missing(&of.name))?);
        }
        let mut take = |name| dims.remove(name).expect("the file's reader saw that every family has it");
        Ok(Self {
            family,
            vocab_size: take("vocab_size"),
            hidden_size: take("hidden_size"),
            num_hidden_layers: take("num_hidden_layers"),
            max_seq_len: take("max_seq_len"),
            others: dims,
            numbers,
            lists: family.lists.iter().map(|list| (list.name.as_str(), Vec::new())).collect(),
            rope_divisors: Vec::new(),
        })
    }

    /// The same model with another list.
    pub(crate) fn with_list(mut self, list: &'static List, values: Vec<usize>) -> Self {
        self.lists.insert(&list.name, values);
        self
    }

    /// The model of a family with these dimensions and numbers; those left out have their defaults.
    ///
    /// # Panics
    /// One that has no default is left out, or one is not the family's.
    pub fn with_values(family: &'static Family, values: &[(&str, f64)]) -> Self {
        let value = |name: &str| values.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        let is_known = |name: &str| {
            family.dims.iter().any(|dim| dim.name == name) || family.numbers.iter().any(|number| number.name == name)
        };
        assert!(values.iter().all(|(name, _)| is_known(name)), "{} has other names", family.name);
        let config = Self::from_values(
            family,
            |dim| Ok(value(&dim.name).map(|value| value as usize)),
            |number| Ok(value(&number.name).map(|value| value as f32)),
            |name| name,
        );
        config.unwrap_or_else(|name| panic!("`{name}` is not given"))
    }

    /// A published model of a family.
    pub fn of_shape(family: &'static Family, shape: &Shape) -> Self {
        let values: Vec<(&str, f64)> = shape.values.iter().map(|(name, &value)| (name.as_str(), value)).collect();
        Self::with_values(family, &values)
    }

    /// Whether these are the dimensions of a model that can be run. Every reader of checkpoints calls this.
    ///
    /// # Errors
    /// The first field that is out of range, or the first two that do not fit each other.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (dim, (_, value)) in self.family.dims.iter().zip(self.dimensions()) {
            dimension(dim, i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        for number in &self.family.numbers {
            let found = self.number(&number.name);
            if !found.is_finite() || found <= number.above {
                return Err(ConfigError::BadFloat { field: &number.name, found, above: number.above });
            }
        }
        let dims = family::scope(self.dimensions());
        let value = |expression: &Expression| -> Result<usize, ConfigError> {
            let value = expression.whole(&dims).map_err(|error| ConfigError::Fact {
                fact: expression.text().to_owned(),
                reason: error.reason.to_string(),
            })?;
            Ok(usize::try_from(value).unwrap_or(usize::MAX))
        };
        self.family.facts.values().try_for_each(|fact| value(fact).map(|_| ()))?;
        for (dim, (_, found)) in self.family.dims.iter().zip(self.dimensions()) {
            let field = dim.name.as_str();
            if let Some(limit) = &dim.at_most {
                let most = value(limit)?;
                if found > most {
                    return Err(ConfigError::TooMany { field, found, limit: limit.text().to_owned(), most });
                }
            }
            if let Some(of) = &dim.multiple_of {
                let divisor = value(of)?;
                if !found.is_multiple_of(divisor) {
                    return Err(ConfigError::NotAMultiple { field, found, of: of.text().to_owned(), divisor });
                }
            }
        }
        Ok(self.family.check(&self.scope(), self.num_hidden_layers)?)
    }
}

/// The root of a quotient; 0 where it has none, which is refused where numbers are checked.
fn square_root(root: &Expression, over: Option<&Expression>, dims: &Arc<Scope>) -> f32 {
    let value = |of: &Expression| of.whole(dims).unwrap_or_default() as f64;
    let root = (value(root) / over.map_or(1.0, value)).sqrt();
    if root.is_finite() { root as f32 } else { 0.0 }
}

/// A published model; a checkpoint of it need not exist.
#[derive(Clone, Copy, Debug)]
pub struct NamedShape {
    family: &'static Family,
    shape: &'static Shape,
}

/// [`NamedShape::gpt_oss_20b`].
impl Default for NamedShape {
    fn default() -> Self {
        Self::gpt_oss_20b()
    }
}

impl NamedShape {
    /// gpt-oss-20b; where a file of one's own stands before the built-in one and has no such model, the first that is
    /// known.
    ///
    /// # Panics
    /// No model is known.
    pub fn gpt_oss_20b() -> Self {
        let is_it = |shape: &&Self| shape.name() == "gpt-oss-20b";
        *Self::all().iter().find(is_it).or(Self::all().first()).expect("families that are built in have models")
    }

    /// All of those of the families that are known, a family's smallest first.
    fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<NamedShape>> = LazyLock::new(|| {
            let of = |family: &'static Family| {
                let mut all: Vec<NamedShape> = family.shapes.iter().map(|shape| NamedShape { family, shape }).collect();
                all.sort_by_key(|shape| shape.config(None).num_hidden_layers);
                all
            };
            family::known().iter().flat_map(|family| of(family)).collect()
        });
        &ALL
    }

    /// Those of a family, the smallest first.
    pub fn all_of_family(family: &Family) -> impl Iterator<Item = Self> + '_ {
        Self::all().iter().filter(|shape| std::ptr::eq(shape.family, family)).copied()
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        &self.shape.name
    }

    /// The family that it is of.
    pub fn family(self) -> &'static Family {
        self.family
    }

    /// The dimensions; with fewer layers if asked.
    pub fn config(self, layers: Option<usize>) -> ModelConfig {
        let config = ModelConfig::of_shape(self.family, self.shape);
        ModelConfig { num_hidden_layers: layers.unwrap_or(config.num_hidden_layers), ..config }
    }

    /// The same model with these values for some of its dimensions and numbers.
    pub fn config_with(self, values: &[(&str, f64)]) -> ModelConfig {
        let own = self.shape.values.iter().map(|(name, &value)| (name.as_str(), value));
        let mut all: Vec<(&str, f64)> = own.filter(|(name, _)| values.iter().all(|(given, _)| given != name)).collect();
        all.extend(values);
        ModelConfig::with_values(self.family, &all)
    }
}

impl clap::ValueEnum for NamedShape {
    fn value_variants<'a>() -> &'a [Self] {
        Self::all()
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let config = self.config(None);
        let layers = config.num_hidden_layers;
        let help = match config.get("num_experts") {
            Some(experts) => format!("{layers} layers, {experts} experts"),
            None => format!("{layers} layers"),
        };
        Some(clap::builder::PossibleValue::new(self.name()).help(help))
    }
}

#[cfg(test)]
mod tests;
