//! What a model's steps are, before anything is loaded: needs a target and no device.

use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::graph::forward::{ForwardOptions, forward};
use crate::graph::kv_cache::{KvLayout, KvRequest, KvTooLarge};
use crate::graph::{Graph, StepLimits};
use crate::target::Target;
use crate::template::Precision;

/// How a model is run, whatever runs it.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// How exactly sums are done.
    pub precision: Precision,
    /// Element type of the KV cache.
    pub kv_dtype: Dtype,
    /// Sequences at a time.
    pub n_slots: usize,
    /// Longest sequence, in tokens.
    pub capacity_tokens: usize,
    /// Most rows of one step: how long a chunk of a prompt is.
    pub max_rows: usize,
    /// Most rows of one step that give logits; at least `n_slots`.
    pub max_logit_rows: usize,
    /// Window of the odd layers; `None` is all.
    pub odd_window: Option<usize>,
    /// Memory for keys and values, in bytes.
    pub kv_budget_bytes: usize,
}

/// The forward pass of a model, and the sizes of its steps.
pub struct Blueprint {
    /// The forward pass.
    pub graph: Graph,
    /// Where keys and values lie.
    pub layout: KvLayout,
    /// How large steps are.
    pub limits: StepLimits,
}

impl Blueprint {
    /// Writes the forward pass down for a target.
    ///
    /// # Errors
    /// If the KV cache does not fit its budget.
    pub fn new(checkpoint: &Checkpoint, options: &ModelOptions, target: &Target) -> Result<Self, KvTooLarge> {
        let max_rows = options.max_rows.max(options.n_slots);
        let max_logit_rows = options.max_logit_rows.max(options.n_slots).min(max_rows);
        let request = KvRequest {
            n_slots: options.n_slots,
            capacity_tokens: options.capacity_tokens,
            max_rows,
            dtype: options.kv_dtype,
            matrix_layout: target.has_matrix_layout(),
            odd_window: options.odd_window,
            budget_bytes: options.kv_budget_bytes,
        };
        let layout = KvLayout::new(&checkpoint.config, &request)?;
        let forward_options = ForwardOptions {
            precision: options.precision,
            weight_dtype: checkpoint.dense_dtype(),
            expert_dtype: checkpoint.expert_dtype(),
            max_rows,
            max_logit_rows,
            takes_tokens: target.is_gpu(),
        };
        let graph = forward(&checkpoint.config, &layout, &forward_options);
        let limits = StepLimits { max_rows, max_logit_rows, max_decode_rows: options.n_slots };
        Ok(Self { graph, layout, limits })
    }
}
