//! Progress: one updating line on a terminal, one line per minute in a log.

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::output::Output;

/// How often a log gets a line.
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct ProgressLine<'a> {
    output: &'a Output,
    /// None if it would not be seen.
    bar: Option<ProgressBar>,
    start: Instant,
    told: Instant,
    n_windows: usize,
}

impl<'a> ProgressLine<'a> {
    pub(super) fn new(n_windows: usize, output: &'a Output) -> Self {
        let bar = output.shows_progress().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} windows{msg}");
            let bar = ProgressBar::new(n_windows as u64).with_style(style.expect("a constant template"));
            bar.tick();
            bar
        });
        let now = Instant::now();
        Self { output, bar, start: now, told: now, n_windows }
    }

    /// - `n_done`: windows, at least one
    pub(super) fn show(&mut self, n_done: usize, perplexity: impl FnOnce() -> f64) {
        let is_told = self.told.elapsed() >= INTERVAL;
        if self.bar.is_none() && !is_told {
            return;
        }
        let left = self.start.elapsed().mul_f64((self.n_windows - n_done) as f64 / n_done as f64);
        let words = format!(", perplexity {:.4}, {} left", perplexity(), HumanDuration(left));
        if let Some(bar) = &self.bar {
            bar.set_position(n_done as u64);
            bar.set_message(words);
        } else {
            self.told = Instant::now();
            self.output.note(&format!("{n_done} of {} windows{words}", self.n_windows));
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
