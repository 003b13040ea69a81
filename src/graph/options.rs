//! Sizes that the graph does not know.

use super::StepShape;
use crate::tuning::table::StepKind;

/// How large steps may be, and what memory the graph is given besides its weights and activations.
pub struct ExecutorOptions {
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows of a step that give logits.
    pub max_logit_rows: usize,
    /// Most rows of a step in which every row is alone in its slot: the slots.
    pub max_decode_rows: usize,
    /// Names and lengths in bytes of the external tensors that every step fills anew: they lie side by side.
    pub inputs: Vec<(String, usize)>,
    /// Names and lengths in bytes of the other external tensors.
    pub externals: Vec<(String, usize)>,
    /// Bytes of them that are keys and values.
    pub kv_bytes: usize,
}

impl ExecutorOptions {
    /// The largest step of a kind.
    pub(super) fn largest(&self, kind: StepKind) -> StepShape {
        let most = match kind {
            StepKind::Decode => self.max_decode_rows,
            StepKind::Mixed => self.max_rows,
        };
        StepShape { n_rows: self.max_rows.min(most), n_logit_rows: self.max_logit_rows.min(most), kind }
    }
}
