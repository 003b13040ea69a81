//! Models whose dimensions are known by name, for weights made in memory.

use crate::config::ModelConfig;

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
    pub(in crate::cli) fn name(self) -> &'static str {
        match self {
            Self::GptOss20b => "gpt-oss-20b",
            Self::GptOss120b => "gpt-oss-120b",
        }
    }
}

/// The dimensions, from the models' `config.json`; with fewer layers if asked.
pub(in crate::cli) fn config(shape: NamedShape, layers: Option<usize>) -> ModelConfig {
    let (num_experts, num_hidden_layers) = match shape {
        NamedShape::GptOss20b => (32, 24),
        NamedShape::GptOss120b => (128, 36),
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
