//! The time after which a GPU that does not finish a step is given up.

use std::env;
use std::time::Duration;

use anyhow::Context;

use super::output::Output;
use super::stderr;
use engine::device::Device;
use engine::watchdog::{Hang, Watchdog};
use hint::Hint;

/// The variable with the limit in seconds; 0 is no limit.
pub(super) const VARIABLE: &str = "GPTOSS_JIT_STEP_TIMEOUT";

const DEFAULT: Duration = Duration::from_secs(15);

/// Who looks at the clock while a GPU works. Cores and simulated GPUs are this process, and take the time they take.
pub(super) fn watchdog(device: &Device, output: &Output) -> anyhow::Result<Option<Watchdog>> {
    let patience = patience()?;
    if !matches!(device, Device::Gpu { .. }) || patience.is_zero() {
        return Ok(None);
    }
    let output = output.clone();
    let watchdog = Watchdog::new(patience, move |hang| end(hang, &output));
    Ok(Some(watchdog.context("could not start the watchdog")?))
}

fn patience() -> anyhow::Result<Duration> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(DEFAULT) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let patience = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    patience.with_context(|| format!("{VARIABLE} is {}, which is no number of seconds", text.display()))
}

/// Says what hangs, and ends the process with nothing else: whatever ran at its end would wait for the device.
fn end(hang: &Hang, output: &Output) {
    output.error(&hang.to_string());
    hang.hint().iter().for_each(|hint| output.hint(hint));
    stderr::finish();
    signal_hook::low_level::exit(1);
}
