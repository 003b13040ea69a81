//! The upper bound of a run's tokens per second on its device.

use super::super::limits_of;
use crate::output::Output;
use batch::work::Statistics;
use engine::Engine;
use model::checkpoint::Checkpoint;
use workbench::bench::roofline::{Model, Sequence};

/// Of a run like that, by the limits of the device, which are measured for it. None of a simulator, of nothing that was
/// generated, and where they cannot be measured.
pub(super) fn tok_per_s(
    engine: &Engine,
    checkpoint: &Checkpoint,
    statistics: &Statistics,
    output: &Output,
) -> Option<f64> {
    let lengths = statistics.lengths.iter().map(|lengths| lengths.map(|n| n as usize));
    let sequences: Vec<Sequence> = lengths.map(|[prompt, cached, new]| Sequence { prompt, cached, new }).collect();
    let layout = engine.kv_layout();
    let (executor, model) = (engine.executor(), Model::from_checkpoint(checkpoint, layout.dtypes));
    let n_on_host = executor.memory_plan().host.as_ref().map_or(0, |host| host.n_layers[0]);
    let cost = model.with_experts_on_host(n_on_host).cost_of_run(&sequences, layout.n_slots);
    let limits = limits_of(executor.pipeline(), output);
    let host = executor.host_pipeline().map(|host| limits_of(host, output));
    let least_s = cost.least_s(&limits, host.as_ref());
    let n_devices = engine.n_devices() as f64;
    (limits.are_known() && least_s > 0.0).then(|| n_devices * statistics.n_tokens as f64 / least_s)
}
