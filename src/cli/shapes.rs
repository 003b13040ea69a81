//! Models whose dimensions are known by name, with random weights.

use crate::checkpoint::encoding::Encoding;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::config::ModelConfig;

/// A model that is not there: the dimensions of one, and random weights.
#[derive(clap::Args, Debug)]
pub struct ShapeArgs {
    /// Random weights of these dimensions, made where they are used, instead of a checkpoint
    #[arg(long, value_enum, conflicts_with = "model")]
    pub shape: Option<NamedShape>,

    /// Only so many layers of the shape
    #[arg(long, requires = "shape", value_parser = clap::value_parser!(u32).range(1..=1000))]
    layers: Option<u32>,

    /// How the random weights are encoded
    #[arg(long, requires = "shape", value_enum, default_value_t = Encoding::Mxfp4)]
    weights: Encoding,
}

/// The seed of all random weights: figures and tokens of two machines are to be of the same model.
const SEED: u64 = 1;

impl ShapeArgs {
    /// The checkpoint that was asked for, if one was.
    pub fn checkpoint(&self) -> Option<Result<Checkpoint, CheckpointError>> {
        let config = config(self.shape?, self.layers.map(|layers| layers as usize));
        Some(Checkpoint::random(config, self.weights, SEED))
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
}

/// The dimensions, from the models' `config.json`; with fewer layers if asked.
pub fn config(shape: NamedShape, layers: Option<usize>) -> ModelConfig {
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
