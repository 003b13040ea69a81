//! Sizes that the graph does not know.

use gpu::BufferView;

use super::StepLimits;

/// How large steps may be, and what memory the graph is given besides its weights and activations.
pub struct ExecutorOptions {
    /// How large steps are.
    pub limits: StepLimits,
    /// Names and lengths in bytes of the external tensors that every step fills anew: they lie side by side.
    pub inputs: Vec<(String, usize)>,
    /// The same of those that say how logits are changed, in the steps that have such rows.
    pub change_inputs: Vec<(String, usize)>,
    /// Names and lengths in bytes of the other external tensors.
    pub externals: Vec<(String, usize)>,
    /// External tensors that lie in memory of others.
    pub shared: Vec<(String, BufferView)>,
    /// Bytes of them that are keys and values.
    pub kv_bytes: usize,
    /// Bytes of those that are there for prefixes alone.
    pub snapshot_bytes: usize,
}
