//! Loads a device's part of a model: its memory, the graph's external tensors, and the number of layers whose experts
//! the processor computes.

use std::sync::Arc;

use bytemuck::cast_slice;

use super::EngineError;
use super::blueprint::{Blueprint, ModelOptions};
use super::exchange::Exchange;
use crate::graph::forward::of_rope;
use crate::graph::placement::{EmbeddingPlace, HostLayers, Streaming};
use crate::plan::Executor;
use crate::plan::error::PlanError;
use crate::plan::memory::LoadProgress;
use crate::plan::options::ExecutorOptions;
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;
use model::config::tensor_parallel::TpRank;

/// The processor beside a device, and how much of the model it computes.
pub struct HostShare {
    /// Where the processor's kernels come from and run.
    pub pipeline: Pipeline,
    pub layers: HostLayers,
    /// Which steps have the device compute that part.
    pub streaming: Streaming,
}

/// Layers whose experts the processor has to have before it gives up as much of the device's memory as two more take,
/// so that prompts go through the device: with fewer, these two would be most of what it computes.
const LEAST_STREAMED_LAYERS: usize = 4;

/// Plans a device's part of a model, and allocates everything that a step needs there. Where the processor may take as
/// much as it must, that is tried until the rest fits; a table that may stay in main memory does so before.
pub(super) fn load(
    checkpoint: &Checkpoint,
    of: TpRank,
    pipeline: Pipeline,
    host: Option<HostShare>,
    model: &ModelOptions,
    exchange: Option<&Exchange>,
    progress: &dyn LoadProgress,
) -> Result<Executor, EngineError> {
    let config = &checkpoint.config;
    let strides = exchange.map(Exchange::strides).unwrap_or_default();
    let pipeline = Arc::new(pipeline);
    let mut streaming = host.as_ref().map_or(Streaming::Never, |share| share.streaming);
    let (host, layers) = host.map(|share| (Arc::new(share.pipeline), share.layers)).unzip();
    let mut n_layers = match layers {
        Some(HostLayers::Last(n)) => n,
        Some(HostLayers::AsNeeded) | None => 0,
    };
    // By now: whether the table is in main memory, and whether it may get there.
    let (mut zero_copy, mut may_move) = match model.embedding {
        EmbeddingPlace::Device => (false, false),
        EmbeddingPlace::Host => (true, false),
        EmbeddingPlace::AsNeeded => (false, true),
    };
    loop {
        let Blueprint { mut graph, layout, limits } =
            Blueprint::of_part(checkpoint, of, strides, model, pipeline.target(), pipeline.library())?;
        graph.place_experts(config.family, n_layers);
        may_move &= graph.looked_up().contains(&true);
        let is_worth_it = layers != Some(HostLayers::AsNeeded) || n_layers >= LEAST_STREAMED_LAYERS;
        let options = ExecutorOptions {
            streaming: if is_worth_it { streaming } else { Streaming::Never },
            limits,
            shared: exchange.map_or(Vec::new(), |exchange| exchange.views(of.rank)),
            kv_bytes: layout.total_bytes(),
            snapshot_bytes: layout.snapshot_bytes(),
            zero_copy,
        };
        match Executor::new(graph, checkpoint, &pipeline, host.as_ref(), options, progress) {
            Ok(executor) => {
                for rotation in config.rotations() {
                    executor.write(&of_rope("inv_freq", rotation.name), cast_slice(&rotation.inv_freq))?;
                }
                if executor.has("zeros") {
                    executor.write("zeros", &vec![0; 4 * limits.max_rows * config.hidden_size])?;
                }
                return Ok(executor);
            }
            Err(PlanError::Memory(error)) if may_move && error.plan.missing_bytes() > 0 => {
                (zero_copy, may_move) = (true, false);
            }
            Err(error @ PlanError::NotPinned { .. }) if model.embedding == EmbeddingPlace::AsNeeded && zero_copy => {
                tracing::warn!("{error}");
                zero_copy = false;
            }
            Err(PlanError::Memory(error)) => {
                let (missing, buffers) = (error.plan.missing_bytes(), error.plan.streaming);
                let more = more_layers(checkpoint, n_layers, missing).filter(|_| layers == Some(HostLayers::AsNeeded));
                match more {
                    Some(more) => n_layers = more,
                    None if buffers > 0 && missing > 0 => {
                        tracing::warn!(
                            "the processor computes its experts for prompts, too: the device has no room for {:.3} GB \
                             to stream them",
                            buffers as f64 / 1e9
                        );
                        streaming = Streaming::Never;
                        if layers == Some(HostLayers::AsNeeded) {
                            n_layers = 0; // as few as will do without that room
                        }
                    }
                    None => return Err(PlanError::Memory(error).into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// How many layers' experts the processor has to take, where with `n_layers` so many bytes are missing; `None` where
/// not even all of them would do.
fn more_layers(checkpoint: &Checkpoint, n_layers: usize, missing_bytes: usize) -> Option<usize> {
    let layers = checkpoint.expert_bytes();
    let mut freed = 0;
    let further = layers.values().rev().skip(n_layers).take_while(|&&bytes| {
        let is_needed = freed < missing_bytes;
        freed += if is_needed { bytes } else { 0 };
        is_needed
    });
    let n = n_layers + further.count();
    (missing_bytes > 0 && freed >= missing_bytes).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::checkpoint::encoding::Encoding;
    use model::config::NamedShape;

    #[test]
    fn as_many_layers_are_taken_as_bytes_are_missing() {
        let config = NamedShape::gpt_oss_20b().config(Some(5));
        let checkpoint = Checkpoint::random(config, Encoding::Mxfp4, 1).expect("a model");
        let bytes = checkpoint.expert_bytes();
        assert_eq!(bytes.len(), 5);
        // 32 experts of three matrices of 2880 x 2880 in 4.25 bits, and their biases.
        let each = 32 * 3 * 2880 * (2880 * 17 / 32 + 2);
        assert!(bytes.values().all(|&layer| layer == each), "{bytes:?}");
        for (n_layers, missing, expected) in [
            (0, 1, Some(1)),
            (0, each, Some(1)),
            (0, each + 1, Some(2)),
            (3, each + 1, Some(5)),
            (0, 5 * each, Some(5)),
            (0, 5 * each + 1, None),
            (5, 1, None),
            (2, 0, None),
        ] {
            assert_eq!(more_layers(&checkpoint, n_layers, missing), expected, "{n_layers}, {missing}");
        }
        let of_two = checkpoint.bytes_per_token_of_last_experts(2);
        assert_eq!(of_two, 2 * each as u64 / 8); // 4 of 32 experts
        assert_eq!(checkpoint.bytes_per_token_of_last_experts(0), 0);
    }
}
