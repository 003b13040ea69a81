//! Loading a device's part of a model: its memory, and the tensors that the graph calls external.

use bytemuck::cast_slice;

use super::blueprint::{Blueprint, ModelOptions};
use super::exchange::Exchange;
use super::{EngineError, changes, ranks};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::tensor_parallel::TpRank;
use crate::config::ModelConfig;
use crate::graph::StepLimits;
use crate::graph::kv_cache::KvLayout;
use crate::graph::memory::LoadProgress;
use crate::graph::options::ExecutorOptions;
use crate::graph::plan::Executor;
use crate::pipeline::Pipeline;

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
    let StepLimits { max_rows, max_logit_rows, .. } = limits;
    let (mut inputs, mut externals) = externals(config, &layout, max_rows, max_logit_rows);
    for (is_input, name, len_bytes) in ranks::externals(of, max_rows, config.hidden_size) {
        if is_input { &mut inputs } else { &mut externals }.push((name, len_bytes));
    }
    let executor_options = ExecutorOptions {
        limits,
        inputs,
        change_inputs: changes::inputs(max_logit_rows),
        externals,
        shared: exchange.map_or(Vec::new(), |exchange| exchange.views(of.rank)),
        kv_bytes: layout.total_bytes(),
        snapshot_bytes: layout.snapshot_bytes(),
    };
    let executor = Executor::new(graph, checkpoint, pipeline, executor_options, progress)?;
    executor.write("inv_freq", cast_slice(&config.rope_inv_freq()))?;
    if of.rank > 0 {
        executor.write("zeros", &vec![0; 4 * max_rows * config.hidden_size])?;
    }
    Ok(executor)
}

/// Names and lengths in bytes of tensors.
pub(super) type Lengths = Vec<(String, usize)>;

/// The tensors that the graph calls external: those that every step fills, and the others.
fn externals(config: &ModelConfig, kv: &KvLayout, max_rows: usize, max_logit_rows: usize) -> (Lengths, Lengths) {
    let mut inputs = Lengths::new();
    inputs.extend(["token", "slot", "position"].map(|name| (name.to_string(), 4 * max_rows)));
    let per_logit = ["logit_row", "temperature", "top_k", "top_p", "coin"];
    inputs.extend(per_logit.map(|name| (name.to_string(), 4 * max_logit_rows)));

    let mut externals = Lengths::new();
    externals.push(("sampled".into(), 4 * max_logit_rows));
    externals.push(("logits".into(), 4 * max_logit_rows * config.vocab_size));
    externals.push(("inv_freq".into(), 4 * (config.rope_dim() / 2)));
    externals.extend(changes::externals(config.vocab_size, max_logit_rows));
    for (g, group) in kv.groups().iter().enumerate() {
        externals.push((format!("block_table.{g}"), 4 * kv.n_slots * group.table_blocks));
    }
    for l in (0..config.num_hidden_layers).filter(|&l| kv.has_positions(l)) {
        externals.extend(["k", "v"].map(|which| (format!("{which}_cache.{l}"), kv.layer_bytes(l))));
    }
    (inputs, externals)
}
