//! What a person sees while kernels compile and a model is loaded.

use super::output::Output;
use engine::plan::memory::{HostPlan, LoadProgress, MemoryPlan};
use kernel::object::store::{Loaded, Progress, StoreError};
use system::units::human_bytes;

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
        if memory.zero_copy > 0 && memory.missing_bytes() == 0 {
            let table = human_bytes(memory.zero_copy as u64);
            self.output.note(&format!(
                "the embedding ({table}) is in main memory, where {} reads a row for each token",
                memory.device
            ));
        }
        if let Some(host) = memory.host.as_ref().filter(|_| memory.missing_bytes() == 0) {
            self.output.note(&host_note(host, memory.streaming));
        }
        if let Some(gain) = &memory.gain {
            self.output.detail(&gain.to_string());
        }
    }
}

/// What the processor computes, and what that costs.
///
/// - `streaming`: room on the device for experts that it computes in its place, in bytes
fn host_note(host: &HostPlan, streaming: usize) -> String {
    let [n, all] = host.n_layers;
    let [here, in_all] = host.bytes_per_token.map(human_bytes);
    let weights = human_bytes(host.weights as u64);
    let mut text = format!(
        "the processor computes the experts of the last {n} of {all} layers: {weights} in main memory, which reads \
         {here} of the {in_all} of a token"
    );
    if streaming > 0 {
        let room = human_bytes(streaming as u64);
        text += &format!("; prompts of many tokens bring them to the device, which keeps {room} for that");
    }
    let n_nodes = gpu::numa::nodes().len();
    text += &match (n_nodes, gpu::numa::is_spread()) {
        (0 | 1, _) => String::new(),
        (n, true) => format!(", spread over {n} memory nodes"),
        (n, false) => format!(", wherever the system puts it on {n} memory nodes"),
    };
    // What is missing is no news where little is, or where it comes again and again.
    if host.not_in_memory > host.weights / 16 && !host.is_read_again() {
        let missing = human_bytes(host.not_in_memory as u64);
        text += &format!("; {missing} of it come from the disk first, so that the first tokens take longer");
    }
    if host.is_read_again() {
        text += "; it does not have that much free: the rest is read from the disk, again and again";
    }
    text
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
