//! What this machine can do at most, measured in the same run: bytes read per second, f32 multiply-adds per second.
//!
//! Both are kernels like any other (`templates/peak_*`), launched on the device that is being measured.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{Argument, Launch};

use crate::kernel::pipeline::{LoadedKernel, Pipeline, Wanted};
use crate::kernel::{Precision, Problem};
use crate::tuning::table::StepKind;

/// The machine's limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes read from memory per second, by all threads.
    pub read_bytes_per_s: f64,
    /// f32 operations per second, by all threads; a multiply-add counts as two.
    pub flop_per_s: f64,
}

/// Far more than any cache holds, in bytes.
const READ_BYTES: usize = 1 << 30;

/// What one block reads: 512 KiB, like a few dozen rows of weights.
const BLOCK_ELEMENTS: usize = 128 * 1024;

const CHAINS: usize = 256;
/// A run takes tens of milliseconds: in a few, the system may not have spread the threads over the cores yet.
const ROUNDS: u32 = 2_000_000;
const REPEATS: usize = 10;

/// Measures both; the best of a few runs each, since other work can only slow them down.
pub(super) fn measure(pipeline: &Pipeline) -> anyhow::Result<Limits> {
    Ok(Limits { read_bytes_per_s: read_bandwidth(pipeline)?, flop_per_s: multiply_add_peak(pipeline)? })
}

fn read_bandwidth(pipeline: &Pipeline) -> anyhow::Result<f64> {
    let n_blocks = READ_BYTES / (4 * BLOCK_ELEMENTS);
    let kernel = load(pipeline, "peak_read", "block_elements", BLOCK_ELEMENTS)?;
    let x = pipeline.driver().allocate(READ_BYTES)?.view();
    let page = vec![1_u8; 1 << 20]; // every page is written once: untouched ones would all be the same zero page
    for offset in (0..READ_BYTES).step_by(page.len()) {
        pipeline.driver().write(&x.slice(offset, page.len()).expect("inside"), &page)?;
    }
    let sum = pipeline.driver().allocate(4 * n_blocks)?.view();
    let args = [
        Argument::Memory { view: x, required_bytes: READ_BYTES },
        Argument::Memory { view: sum, required_bytes: 4 * n_blocks },
        Argument::U32(n_blocks as u32),
    ];
    let seconds = best_time(pipeline, &kernel, n_blocks as u32, &args)?;
    Ok(READ_BYTES as f64 / seconds)
}

fn multiply_add_peak(pipeline: &Pipeline) -> anyhow::Result<f64> {
    let n_blocks = 4 * pipeline.driver().parallelism();
    let kernel = load(pipeline, "peak_multiply_add", "chains", CHAINS)?;
    let y = pipeline.driver().allocate(4 * n_blocks * CHAINS)?.view();
    let args = [
        Argument::Memory { view: y, required_bytes: 4 * n_blocks * CHAINS },
        Argument::U32(ROUNDS),
        Argument::U32(n_blocks as u32),
    ];
    let seconds = best_time(pipeline, &kernel, n_blocks as u32, &args)?;
    Ok((2 * n_blocks * CHAINS * ROUNDS as usize) as f64 / seconds)
}

fn load(pipeline: &Pipeline, op: &str, dim: &str, value: usize) -> anyhow::Result<std::sync::Arc<LoadedKernel>> {
    let problem = Problem {
        ops: vec![op.to_string()],
        dims: BTreeMap::from([(dim.to_string(), value as u32)]),
        constants: BTreeMap::new(),
        flags: BTreeMap::new(),
        dtypes: BTreeMap::new(),
        precision: Precision::Bf16,
        keeps: BTreeSet::new(),
    };
    let wanted = [Wanted { problem, n_rows: 1, step: StepKind::Decode }];
    Ok(pipeline.load_all(&wanted, &()).map_err(|unserved| unserved.source)?.remove(0))
}

fn best_time(pipeline: &Pipeline, kernel: &LoadedKernel, n_blocks: u32, args: &[Argument]) -> anyhow::Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let launch = Launch { grid: [n_blocks, 1, 1], scratch_bytes: 0, args };
        let time = pipeline.driver().launch_timed(&kernel.kernel, &launch)?;
        best = best.min(time.as_secs_f64());
    }
    Ok(best)
}
