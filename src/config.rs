//! The dimensions of a gpt-oss model, under the names of OpenAI's reference `ModelConfig`.

use serde::Serialize;

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
        (l % 2 == 0 && self.sliding_window > 0).then_some(self.sliding_window)
    }
}
