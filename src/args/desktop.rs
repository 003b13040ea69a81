//! Consideration for the desktop on a card with a display: memory, and short launches.

use std::time::Duration;

use engine::EngineError;
use engine::blueprint::{Blueprint, ModelOptions, longest_flop_of_row};
use gpu::Driver;
use kernel::pipeline::Pipeline;
use kernel::target::compute_unit::Product;
use model::checkpoint::Checkpoint;
use system::units::human_bytes;

/// Memory that a desktop may come to need besides what it has: windows, a browser, a video.
const RESERVE_BYTES: usize = 512 << 20;

/// A screen that stands still for longer is noticed.
const LONGEST_LAUNCH: Duration = Duration::from_millis(50);

/// The part of a maker's figure for the matrix units that kernels reach at least. A guess: nothing was measured.
const REACHED: f64 = 0.25;

/// For chips without figures in a table: bf16 operations of a compute unit in a second. A guess, too.
const ASSUMED_FLOP_PER_S: f64 = 512.0 * 1.5e9;

/// Fewer rows than these would read weights for next to nothing.
const LEAST_ROWS: usize = 16;

/// Bytes of a device's memory that may be used, unless set.
///
/// # Errors
/// The device's words.
pub(super) fn most_bytes(driver: &dyn Driver) -> anyhow::Result<usize> {
    if !driver.has_display() {
        return Ok(usize::MAX);
    }
    Ok(driver.memory()?.map_or(usize::MAX, |memory| memory.free_bytes.saturating_sub(RESERVE_BYTES)))
}

/// Shortens steps on a device with a display, so that none of its launches takes too long; what is done, in words.
///
/// # Errors
/// If the model has no steps, or a template's contract cannot be read.
pub(super) fn spare(
    model: &mut ModelOptions,
    checkpoint: &Checkpoint,
    pipeline: &Pipeline,
    is_memory_asked: bool,
    is_chunk_asked: bool,
) -> anyhow::Result<Option<String>> {
    if !pipeline.driver().has_display() {
        return Ok(None);
    }
    let mut done = Vec::new();
    if !is_memory_asked {
        done.push(format!("{} are left to it unless `--memory` is set", human_bytes(RESERVE_BYTES as u64)));
    }
    if !is_chunk_asked {
        let (target, library) = (pipeline.target(), pipeline.library());
        let Blueprint { graph, .. } = Blueprint::new(checkpoint, model, target, library).map_err(EngineError::from)?;
        let flop = longest_flop_of_row(&graph, model.capacity_tokens, library)?;
        let product = pipeline.chooser().tables().facts(&target.arch).and_then(|facts| facts.product.as_ref());
        let n_rows = most_rows(flop, flop_per_s(product, pipeline.driver().parallelism()));
        model.max_rows = model.max_rows.min(n_rows);
        done.push(format!("steps take {} tokens of prompts at most unless `--chunk` is set", model.max_rows));
    }
    let has_display = || format!("{} has a display: {}", pipeline.driver().describe(), done.join(", and "));
    Ok((!done.is_empty()).then(has_display))
}

/// What so many compute units of a chip are sure to do in a second.
fn flop_per_s(product: Option<&Product>, compute_units: usize) -> f64 {
    let stated = product.filter(|product| product.matrix_flop_per_cycle > 0);
    let of_one = stated
        .map_or(ASSUMED_FLOP_PER_S, |product| 1e12 * product.matrix_tflops() / f64::from(product.compute_units.max(1)));
    REACHED * of_one * compute_units as f64
}

/// Most rows of a step, where a row of the longest launch takes so many operations.
fn most_rows(flop_of_row: f64, flop_per_s: f64) -> usize {
    let rows = LONGEST_LAUNCH.as_secs_f64() * flop_per_s / flop_of_row.max(1.0);
    (rows as usize / LEAST_ROWS * LEAST_ROWS).max(LEAST_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_launch_takes_longer_than_a_screen_may_stand_still() {
        let product = Product {
            name: "a card".into(),
            compute_units: 32,
            clock_mhz: 2655,
            matrix_flop_per_cycle: 512,
            memory_gbps: 288.0,
            cache_bytes: None,
            cache_gbps: None,
            latency_ns: None,
            instruction_cache_bytes: None,
            launch_us: None,
        };
        // 43.5 TFLOPS, a quarter of it for a chip with all units, less for one with fewer.
        let speed = flop_per_s(Some(&product), 32);
        assert!((speed / 1e12 - 10.87).abs() < 0.01, "{speed}");
        assert!((flop_per_s(Some(&product), 8) / speed - 0.25).abs() < 1e-12);
        // mlp1 of gpt-oss: 4 experts of a row, 2 x 2880 outputs of 2880 inputs: 133 MFLOP, 12.2 us.
        let flop = 4.0 * 4.0 * 2880.0 * 2880.0;
        let n_rows = most_rows(flop, speed);
        assert_eq!(n_rows, 4096);
        assert!(n_rows as f64 * flop / speed < 0.05);
        assert_eq!(most_rows(1e12, speed), LEAST_ROWS);
    }
}
