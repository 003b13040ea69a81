//! Progress of a run: one updating line on a terminal, one line per minute in a log.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;
use batch::work::Progress;

/// How often a log gets a line.
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct ProgressLine<'a> {
    output: &'a Output,
    /// None if it would not be seen.
    bar: Option<ProgressBar>,
    start: Instant,
    told: Instant,
    n_before: usize,
    n: usize,
}

impl<'a> ProgressLine<'a> {
    /// - `n_before`: answers that are there already
    /// - `n`: prompts
    pub(super) fn new(n_before: usize, n: usize, output: &'a Output) -> Self {
        let bar = output.shows_progress().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts, {msg}");
            ProgressBar::new(n as u64).with_style(style.expect("a constant template"))
        });
        let now = Instant::now();
        Self { output, bar, start: now, told: now, n_before, n }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        let rate = progress.n_tokens as f64 / self.start.elapsed().as_secs_f64();
        let left = self.left(progress).map_or_else(String::new, |left| format!(", {left} left"));
        if let Some(bar) = &self.bar {
            bar.set_position(progress.n_done as u64);
            bar.set_message(format!("{rate:.1} tok/s{left}"));
        } else if self.told.elapsed() >= INTERVAL {
            self.told = Instant::now();
            self.output.note(&format!("{} of {} prompts, {rate:.1} tok/s{left}", progress.n_done, self.n));
        }
    }

    /// As long as for those of this run that are done, each.
    fn left(&self, progress: Progress) -> Option<indicatif::HumanDuration> {
        let done = progress.n_done.checked_sub(self.n_before).filter(|done| *done > 0)?;
        let left = self.n.saturating_sub(progress.n_done);
        Some(indicatif::HumanDuration(self.start.elapsed().mul_f64(left as f64 / done as f64)))
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
