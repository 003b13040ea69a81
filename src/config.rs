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
