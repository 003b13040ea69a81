//! Sizes that the graph does not know, such as the number of slots.

use gpu::BufferView;

use crate::graph::StepLimits;
use crate::graph::placement::Streaming;

/// Step sizes, and the graph's memory besides weights and activations.
pub(crate) struct ExecutorOptions {
    pub(crate) limits: StepLimits,
    /// External tensors that lie in memory of others: those of the role [`crate::graph::Role::Shared`].
    pub(crate) shared: Vec<(String, BufferView)>,
    /// Bytes of the others that are keys and values.
    pub(crate) kv_bytes: usize,
    /// Bytes of those that are there for prefixes alone.
    pub(crate) snapshot_bytes: usize,
    /// Whether weights that are only looked up in stay in main memory.
    pub(crate) zero_copy: bool,
    /// Which steps bring weights of the processor to the device.
    pub(crate) streaming: Streaming,
}
