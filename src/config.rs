//! The dimensions of a gpt-oss model, under the names of OpenAI's reference `ModelConfig`. What they may be, and those
//! of the published models, is in `models/gpt-oss.toml`.

use std::sync::{Arc, LazyLock};

use serde::Serialize;

use crate::error::Hint;
use crate::family::{self, Family, Number, Shape};
use crate::template::expression::Scope;

/// Everything about a model that is not a weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Rows of the embedding and of the unembedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Experts of one MoE block.
    pub num_experts: usize,
    /// Experts that one token is sent to.
    pub experts_per_token: usize,
    /// Width inside an expert, after SwiGLU.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_hidden_layers: usize,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Longest sequence the checkpoint's author allowed, in tokens.
    pub max_seq_len: usize,
    /// Context length before YaRN scaling, in tokens.
    pub initial_context_length: usize,
    /// RoPE base.
    pub rope_theta: f32,
    /// YaRN factor; 1 or less means plain RoPE.
    pub rope_scaling_factor: f32,
    /// Tokens visible in even layers, the current one included; 0 means all.
    pub sliding_window: usize,
    /// Clamp of the SwiGLU inputs.
    pub swiglu_limit: f32,
}

impl ModelConfig {
    /// Rows of the fused q|k|v projection: `head_dim * (num_attention_heads + 2 * num_key_value_heads)`.
    pub fn qkv_size(&self) -> usize {
        self.head_dim * (self.num_attention_heads + 2 * self.num_key_value_heads)
    }

    /// Width of the attention output before its projection: `head_dim * num_attention_heads`.
    pub fn attention_size(&self) -> usize {
        self.head_dim * self.num_attention_heads
    }

    /// Tokens that layer `l` sees, the current one included; `None` means all. Even layers slide.
    pub fn window(&self, l: usize) -> Option<usize> {
        (l.is_multiple_of(2) && self.sliding_window > 0).then_some(self.sliding_window)
    }

    /// YaRN's factor on cos and sin: `0.1 ln(rope_scaling_factor) + 1`, or 1 without scaling (OpenAI's
    /// `RotaryEmbedding._compute_concentration_and_inv_freq`).
    pub fn rope_concentration(&self) -> f32 {
        if self.rope_scaling_factor > 1.0 { 0.1 * self.rope_scaling_factor.ln() + 1.0 } else { 1.0 }
    }

    /// The angle that position 1 turns pair i by, (head_dim / 2): `rope_theta^(-2i / head_dim)`, and with YaRN a mix of
    /// that and of the same divided by the scaling factor. Same reference; all in f32, in the seeds' order.
    pub fn rope_inv_freq(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        let freq = |i: usize| self.rope_theta.powf((2 * i) as f32 / self.head_dim as f32);
        if self.rope_scaling_factor <= 1.0 {
            return (0..half).map(|i| 1.0 / freq(i)).collect();
        }
        // The pair that turns `rotations` times within the initial context.
        let pair = |rotations: f64| {
            let turns = f64::from(self.initial_context_length as f32) / (rotations * 2.0 * std::f64::consts::PI);
            half as f32 * (turns as f32).ln() / self.rope_theta.ln()
        };
        const BETA: f64 = 32.0;
        const ALPHA: f64 = 1.0;
        // OpenAI's program refuses a range that leaves [0, head_dim / 2 - 1]; Hugging Face's clamps it, and so do we.
        let low = pair(BETA).max(0.0);
        let high = pair(ALPHA).min(self.head_dim as f32 - 1.0).max(low + 0.001);
        let mix = |i: usize| {
            let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            let (interpolation, extrapolation) = (1.0 / (self.rope_scaling_factor * freq(i)), 1.0 / freq(i));
            let mask = 1.0 - ramp;
            interpolation * (1.0 - mask) + extrapolation * mask
        };
        (0..half).map(mix).collect()
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
        /// What it is.
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
        /// What it is.
        found: f32,
        /// It must be greater than this.
        above: f32,
    },
    /// More experts chosen than there are.
    #[error("`experts_per_token` is {experts_per_token}, more than `num_experts`, which is {num_experts}")]
    TooFewExperts {
        /// Experts that one token is sent to.
        experts_per_token: usize,
        /// Experts there are.
        num_experts: usize,
    },
    /// Query heads cannot be shared out among the key and value heads.
    #[error("`num_attention_heads` is {heads}, not a multiple of `num_key_value_heads`, which is {kv_heads}")]
    HeadsDoNotDivide {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
    },
    /// RoPE rotates pairs of channels.
    #[error("`head_dim` is {head_dim}, expected an even number")]
    OddHeadDim {
        /// Width of one attention head.
        head_dim: usize,
    },
}

impl Hint for ConfigError {
    fn hint(&self) -> Option<String> {
        Some(
            "is this a checkpoint of the gpt-oss architecture? Another kind of file read as one gives such values"
                .into(),
        )
    }
}

/// `value` as the dimension `field`, if it lies in that field's range.
///
/// # Errors
/// [`ConfigError::OutOfRange`].
pub fn dimension(field: &'static str, value: i64) -> Result<usize, ConfigError> {
    let dim = Family::gpt_oss().dim(field);
    if (dim.min..=dim.max).contains(&value) {
        Ok(value as usize)
    } else {
        Err(ConfigError::OutOfRange { field, found: value, min: dim.min, max: dim.max })
    }
}

impl ModelConfig {
    /// The whole numbers by name, in the order of their declaration.
    pub fn dimensions(&self) -> [(&'static str, usize); 12] {
        [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_experts", self.num_experts),
            ("experts_per_token", self.experts_per_token),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("head_dim", self.head_dim),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("max_seq_len", self.max_seq_len),
            ("initial_context_length", self.initial_context_length),
            ("sliding_window", self.sliding_window),
        ]
    }

    /// The same, for expressions.
    pub fn scope(&self) -> Arc<Scope> {
        family::scope(self.dimensions())
    }

    /// The numbers that need not be whole.
    fn numbers(&self) -> [(&'static str, f32); 3] {
        [
            ("rope_theta", self.rope_theta),
            ("rope_scaling_factor", self.rope_scaling_factor),
            ("swiglu_limit", self.swiglu_limit),
        ]
    }

    /// Dimensions and numbers, each asked for by its name.
    ///
    /// # Errors
    /// The first that `dim` or `number` gives.
    pub fn of<E>(
        mut dim: impl FnMut(&'static str) -> Result<usize, E>,
        mut number: impl FnMut(&'static str) -> Result<f32, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            vocab_size: dim("vocab_size")?,
            hidden_size: dim("hidden_size")?,
            num_experts: dim("num_experts")?,
            experts_per_token: dim("experts_per_token")?,
            intermediate_size: dim("intermediate_size")?,
            num_hidden_layers: dim("num_hidden_layers")?,
            head_dim: dim("head_dim")?,
            num_attention_heads: dim("num_attention_heads")?,
            num_key_value_heads: dim("num_key_value_heads")?,
            max_seq_len: dim("max_seq_len")?,
            initial_context_length: dim("initial_context_length")?,
            rope_theta: number("rope_theta")?,
            rope_scaling_factor: number("rope_scaling_factor")?,
            sliding_window: dim("sliding_window")?,
            swiglu_limit: number("swiglu_limit")?,
        })
    }

    /// Whether these are the dimensions of a model that can be run. Every reader of checkpoints calls this.
    ///
    /// # Errors
    /// The first field that is out of range, or the first two that do not fit each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (field, value) in self.dimensions() {
            dimension(field, i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        for (field, found) in self.numbers() {
            let &Number { above, .. } = Family::gpt_oss().number(field);
            if !found.is_finite() || found <= above {
                return Err(ConfigError::BadFloat { field, found, above });
            }
        }
        let Self { experts_per_token, num_experts, head_dim, .. } = *self;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if experts_per_token > num_experts {
            return Err(ConfigError::TooFewExperts { experts_per_token, num_experts });
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::HeadsDoNotDivide { heads, kv_heads });
        }
        if !head_dim.is_multiple_of(2) {
            return Err(ConfigError::OddHeadDim { head_dim });
        }
        Ok(())
    }
}

/// A published model, of which there need not be a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedShape(&'static Shape);

impl NamedShape {
    /// gpt-oss-20b.
    pub fn gpt_oss_20b() -> Self {
        let is_it = |shape: &&Self| shape.name() == "gpt-oss-20b";
        *Self::all().iter().find(is_it).expect("models/gpt-oss.toml has it")
    }

    /// All of them, the smallest first.
    fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<NamedShape>> = LazyLock::new(|| {
            let mut all: Vec<NamedShape> = Family::gpt_oss().shapes.iter().map(NamedShape).collect();
            all.sort_by_key(|shape| shape.config(None).num_hidden_layers);
            all
        });
        &ALL
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// The dimensions; with fewer layers if asked.
    pub fn config(self, layers: Option<usize>) -> ModelConfig {
        let value = |name: &str| self.0.values[name]; // all are there: `Family::read` looked
        let config = ModelConfig::of(|dim| Ok(value(dim) as usize), |number| Ok(value(number) as f32));
        let Ok(config): Result<_, std::convert::Infallible> = config;
        ModelConfig { num_hidden_layers: layers.unwrap_or(config.num_hidden_layers), ..config }
    }
}

impl clap::ValueEnum for NamedShape {
    fn value_variants<'a>() -> &'a [Self] {
        Self::all()
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let ModelConfig { num_hidden_layers, num_experts, .. } = self.config(None);
        Some(
            clap::builder::PossibleValue::new(self.name())
                .help(format!("{num_hidden_layers} layers, {num_experts} experts")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_models_are_models_and_the_file_has_the_names_of_the_struct() {
        let family = Family::gpt_oss();
        for shape in NamedShape::all() {
            let config = shape.config(None);
            config.check().unwrap();
            let names = |mut names: Vec<&str>| {
                names.sort_unstable();
                names.join(" ")
            };
            let dims = config.dimensions().iter().map(|(name, _)| *name).collect();
            assert_eq!(names(family.dims.iter().map(|dim| dim.name.as_str()).collect()), names(dims));
            let numbers = config.numbers().iter().map(|(name, _)| *name).collect();
            assert_eq!(names(family.numbers.iter().map(|number| number.name.as_str()).collect()), names(numbers));
        }
        let names: Vec<&str> = NamedShape::all().iter().map(|shape| shape.name()).collect();
        assert_eq!(names, ["gpt-oss-20b", "gpt-oss-120b"]);
        assert_eq!(NamedShape::gpt_oss_20b().config(Some(2)).num_hidden_layers, 2);
    }
}
