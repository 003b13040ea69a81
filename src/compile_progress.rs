//! What a person sees while kernels compile and a model is loaded.

use super::output::Output;
use engine::plan::memory::{LoadProgress, MemoryPlan};
use kernel::object::store::{Loaded, Progress, StoreError};

/// A bar while kernels compile, where anyone would see it.
pub(crate) struct CompileProgress<'a> {
    bar: indicatif::ProgressBar,
    output: &'a Output,
}

impl<'a> CompileProgress<'a> {
    /// A bar that is not shown yet.
    pub(crate) fn new(output: &'a Output) -> Self {
        let bar = indicatif::ProgressBar::hidden();
        let style = indicatif::ProgressStyle::with_template("compiling {pos}/{len} {wide_msg}");
        bar.set_style(style.expect("a constant template"));
        Self { bar, output }
    }
}

impl LoadProgress for CompileProgress<'_> {
    fn planned(&self, memory: &MemoryPlan) {
        self.bar.finish_and_clear();
        self.output.detail(&format!("memory of {}: {memory}", memory.device));
        if let Some(gain) = &memory.gain {
            self.output.detail(&gain.to_string());
        }
    }
}

impl Progress for CompileProgress<'_> {
    fn started(&self, n_kernels: usize) {
        self.bar.set_length(n_kernels as u64);
    }

    fn finished(&self, label: &str, _result: &Result<Loaded, StoreError>, _elapsed_ms: u64) {
        // A warm start is over before anyone could read a bar.
        if self.output.shows_progress() && self.bar.elapsed().as_millis() > 500 && self.bar.is_hidden() {
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        self.bar.set_message(label.to_string());
        self.bar.inc(1);
    }
}

impl Drop for CompileProgress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
