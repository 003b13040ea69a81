//! The dimensions of a gpt-oss model, under the names of OpenAI's reference `ModelConfig`.

use serde::Serialize;

use crate::error::Hint;

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

/// Ranges of the whole numbers. The upper ends are far above any model; they keep a hostile file from asking for
/// absurd work before its size is compared with what it promises.
const RANGES: [(&str, i64, i64); 12] = [
    ("vocab_size", 1, 1 << 24),
    ("hidden_size", 1, 1 << 20),
    ("num_experts", 1, 1 << 16),
    ("experts_per_token", 1, 1 << 16),
    ("intermediate_size", 1, 1 << 20),
    ("num_hidden_layers", 1, 1 << 12),
    ("head_dim", 2, 1 << 14),
    ("num_attention_heads", 1, 1 << 16),
    ("num_key_value_heads", 1, 1 << 16),
    ("max_seq_len", 1, 1 << 30),
    ("initial_context_length", 1, 1 << 24),
    ("sliding_window", 0, 1 << 24),
];

/// The whole numbers of a [`ModelConfig`] by name, in the order of their declaration.
pub const DIMENSIONS: [&str; RANGES.len()] = {
    let (mut names, mut i) = ([""; RANGES.len()], 0);
    while i < RANGES.len() {
        names[i] = RANGES[i].0;
        i += 1;
    }
    names
};

/// `value` as the dimension `field`, if it lies in that field's range.
///
/// # Errors
/// [`ConfigError::OutOfRange`].
pub fn dimension(field: &'static str, value: i64) -> Result<usize, ConfigError> {
    let (_, min, max) = *RANGES.iter().find(|(name, _, _)| *name == field).expect("a field of `ModelConfig`");
    if (min..=max).contains(&value) {
        Ok(value as usize)
    } else {
        Err(ConfigError::OutOfRange { field, found: value, min, max })
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

    /// Whether these are the dimensions of a model that can be run. Every reader of checkpoints calls this.
    ///
    /// # Errors
    /// The first field that is out of range, or the first two that do not fit each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (field, value) in self.dimensions() {
            dimension(field, i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        // A base of 1 would leave nothing to rotate by and a zero to divide by.
        for (field, found, above) in [
            ("rope_theta", self.rope_theta, 1.0),
            ("rope_scaling_factor", self.rope_scaling_factor, 0.0),
            ("swiglu_limit", self.swiglu_limit, 0.0),
        ] {
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

/// A model of OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NamedShape {
    /// 24 layers, 32 experts
    #[value(name = "gpt-oss-20b")]
    GptOss20b,
    /// 36 layers, 128 experts
    #[value(name = "gpt-oss-120b")]
    GptOss120b,
}

impl NamedShape {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::GptOss20b => "gpt-oss-20b",
            Self::GptOss120b => "gpt-oss-120b",
        }
    }

    /// The dimensions, from the models' `config.json`; with fewer layers if asked.
    pub fn config(self, layers: Option<usize>) -> ModelConfig {
        let (num_experts, num_hidden_layers) = match self {
            Self::GptOss20b => (32, 24),
            Self::GptOss120b => (128, 36),
        };
        ModelConfig {
            vocab_size: 201_088,
            hidden_size: 2880,
            num_experts,
            experts_per_token: 4,
            intermediate_size: 2880,
            num_hidden_layers: layers.unwrap_or(num_hidden_layers),
            head_dim: 64,
            num_attention_heads: 64,
            num_key_value_heads: 8,
            max_seq_len: 131_072,
            initial_context_length: 4096,
            rope_theta: 150_000.0,
            rope_scaling_factor: 32.0,
            sliding_window: 128,
            swiglu_limit: 7.0,
        }
    }
}
