//! Tries which GPUs see each other's memory, and measures how fast one copies from another.

use std::sync::Arc;

use gpu::{GpuRuntime, Runtime};
use serde::Serialize;

use super::peers::no_flags;
use engine::device::driver;
use engine::exchange::{Exchange, ExchangeSizes};
use hint::chain;
use kernel::target::Target;

/// Elements that are copied, f32: what a step's sum of thousands of rows is.
const COPIED: usize = 8 << 20;

#[derive(Debug, Serialize)]
pub(super) struct Link {
    /// As `--device` names them.
    devices: [String; 2],
    /// Bytes per second over 10^9 that the first copies from the second one's memory; null with a problem.
    copy_gbps: Option<f64>,
    problem: Option<String>,
}

impl Link {
    pub(crate) fn line(&self) -> String {
        let [first, second] = &self.devices;
        match (&self.problem, self.copy_gbps) {
            (Some(problem), _) => format!("{problem}: `--tp` cannot use both"),
            (None, speed) => {
                let speed = speed.map_or_else(String::new, |speed| format!(", copies at {speed:.1} GB/s"));
                format!("{first} and {second} see each other's memory (tried by a write and a read of each){speed}")
            }
        }
    }
}

/// Every pair of a runtime's GPUs. Not to see each other is no fault: copies of a model need not.
///
/// # Errors
/// In words, if a GPU cannot be opened.
pub(super) fn list(runtime: Runtime, opened: &dyn GpuRuntime) -> Result<Vec<Link>, String> {
    let n_devices = opened.n_devices();
    if n_devices < 2 {
        return Ok(Vec::new());
    }
    let drivers = (0..n_devices).map(|ordinal| driver(runtime, ordinal)).collect::<Result<Vec<_>, _>>();
    let drivers = drivers.map_err(|error| chain(&error))?;
    let label = |i: usize| format!("{}:{i}", runtime.names().device);
    // An arch that nothing is known about is refused elsewhere.
    let waits_in_vain = |i: usize| {
        let arch = opened.facts(i).ok()?.arch;
        let (target, _) = Target::gpu_or_similar(&arch).ok()?;
        (!target.peer_flags).then(|| no_flags(&arch))
    };
    let pairs = (0..n_devices).flat_map(|i| (i + 1..n_devices).map(move |j| (i, j)));
    let tried = pairs.map(|(i, j)| {
        if let Some(problem) = waits_in_vain(i).or_else(|| waits_in_vain(j)) {
            return Link { devices: [label(i), label(j)], copy_gbps: None, problem: Some(problem) };
        }
        let sizes = ExchangeSizes { n_meetings: 1, rows: COPIED, row_len: 1, logits: 0, logit_rows: 0 };
        let exchange = Exchange::new(vec![Arc::clone(&drivers[i]), Arc::clone(&drivers[j])], sizes);
        let copied = exchange.and_then(|exchange| exchange.copy_bytes_per_s());
        let problem = copied.as_ref().err().map(|error| chain(error));
        let copy_gbps = copied.ok().map(|speed| (speed / 1e8).round() / 10.0);
        Link { devices: [label(i), label(j)], copy_gbps, problem }
    });
    Ok(tried.collect())
}
