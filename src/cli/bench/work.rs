//! How many bytes a step must read and how many operations it must do: counted from the model's dimensions.

use crate::config::ModelConfig;
use crate::dtype::Dtype;

/// Rows of a step, as far as its cost is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of the step.
    pub n_rows: usize,
    /// Rows that give logits.
    pub n_logit_rows: usize,
    /// Positions that a row sees in a layer without a window, on average.
    pub context_tokens: f64,
}

/// What a step takes at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Bytes of weights and of the KV cache that are read.
    pub bytes: f64,
    /// f32 operations; a multiply-add counts as two.
    pub flop: f64,
}

/// Counts a step. Each weight is read once; of the experts, as many as are expected to be chosen by anyone when
/// every choice is equally likely: E (1 - (1 - K/E)^rows). For one row that is K exactly.
pub(super) fn count(config: &ModelConfig, weight_dtype: Dtype, kv_dtype: Dtype, shape: Shape) -> Work {
    let size = weight_dtype.size_bits() as f64 / 8.0;
    let hidden = config.hidden_size as f64;
    let (experts, chosen) = (config.num_experts as f64, config.experts_per_token as f64);
    let rows = shape.n_rows as f64;

    let dense = hidden * (config.qkv_size() + config.attention_size()) as f64 + hidden * experts;
    let per_expert = 3.0 * hidden * config.intermediate_size as f64;
    let active = experts * (1.0 - (1.0 - chosen / experts).powf(rows));
    let unembedding = hidden * config.vocab_size as f64;

    let mut work = Work { bytes: 0.0, flop: 0.0 };
    for l in 0..config.num_hidden_layers {
        let seen = config.window(l).map_or(shape.context_tokens, |w| shape.context_tokens.min(w as f64));
        let kv = seen * kv_dtype.len_bytes(2 * config.num_key_value_heads * config.head_dim) as f64;
        work.bytes += size * (dense + active * per_expert) + rows * kv;
        // q . k and p * v: two products of head_dim for every head and position.
        let attention = 4.0 * seen * config.attention_size() as f64;
        work.flop += rows * (2.0 * (dense + chosen * per_expert) + attention);
    }
    if shape.n_logit_rows > 0 {
        work.bytes += size * unembedding;
        work.flop += 2.0 * shape.n_logit_rows as f64 * unembedding;
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shapes::{self, NamedShape};

    #[test]
    fn one_row_of_gpt_oss_20b_reads_its_active_parameters() {
        let config = shapes::config(NamedShape::GptOss20b, None);
        let shape = Shape { n_rows: 1, n_logit_rows: 1, context_tokens: 0.0 };
        let work = count(&config, Dtype::Bf16, Dtype::Bf16, shape);
        // OpenAI's model card: 3.61 B active parameters, without the embedding; norms and biases are not counted here.
        let active = work.bytes / 2.0;
        assert!((active / 3.61e9 - 1.0).abs() < 0.01, "{active}");
        assert_eq!(work.flop, work.bytes);
    }

    #[test]
    fn many_rows_read_every_expert_and_one_reads_its_own() {
        let config = shapes::config(NamedShape::GptOss20b, Some(1));
        let bytes = |n_rows| {
            let shape = Shape { n_rows, n_logit_rows: 0, context_tokens: 0.0 };
            count(&config, Dtype::Bf16, Dtype::Bf16, shape).bytes
        };
        let expert = 2.0 * 3.0 * 2880.0 * 2880.0;
        assert!((bytes(10_000) - bytes(1) - 28.0 * expert).abs() < 1e-6 * expert);
    }
}
