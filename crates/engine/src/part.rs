//! Loading a device's part of a model: its memory, and the tensors that the graph calls external.

use bytemuck::cast_slice;

use super::EngineError;
use super::blueprint::{Blueprint, ModelOptions};
use super::exchange::Exchange;
use crate::graph::forward::of_rope;
use crate::plan::Executor;
use crate::plan::memory::LoadProgress;
use crate::plan::options::ExecutorOptions;
use kernel::pipeline::Pipeline;
use model::checkpoint::Checkpoint;
use model::config::tensor_parallel::TpRank;

/// Plans a device's part of a model, and allocates everything that a step needs there.
pub(super) fn load(
    checkpoint: &Checkpoint,
    of: TpRank,
    pipeline: Pipeline,
    model: &ModelOptions,
    exchange: Option<&Exchange>,
    progress: &dyn LoadProgress,
) -> Result<Executor, EngineError> {
    let config = &checkpoint.config;
    let strides = exchange.map(Exchange::strides).unwrap_or_default();
    let Blueprint { graph, layout, limits } =
        Blueprint::of_part(checkpoint, of, strides, model, pipeline.target(), pipeline.library())?;
    let max_rows = limits.max_rows;
    let executor_options = ExecutorOptions {
        limits,
        shared: exchange.map_or(Vec::new(), |exchange| exchange.views(of.rank)),
        kv_bytes: layout.total_bytes(),
        snapshot_bytes: layout.snapshot_bytes(),
    };
    let executor = Executor::new(graph, checkpoint, pipeline, executor_options, progress)?;
    for rotation in config.rotations() {
        executor.write(&of_rope("inv_freq", rotation.name), cast_slice(&rotation.inv_freq))?;
    }
    if executor.has("zeros") {
        executor.write("zeros", &vec![0; 4 * max_rows * config.hidden_size])?;
    }
    Ok(executor)
}
