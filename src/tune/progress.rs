//! Progress: a bar on a terminal, a line per piece in a log.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::report;
use crate::output::Output;
use kernel::object::store::{Loaded, Progress, StoreError};
use kernel::template::Problem;
use workbench::tune::job::Piece;
use workbench::tune::tuner::Tuned;

/// A bar of pieces: what is tried, what was found, how long it will take.
pub(super) struct Bar<'a> {
    bar: indicatif::ProgressBar,
    output: &'a Output,
    begun: Instant,
    n_better: AtomicUsize,
    n_tried: AtomicUsize,
}

impl<'a> Bar<'a> {
    pub(crate) fn new(output: &'a Output, n_pieces: usize) -> Self {
        let bar = indicatif::ProgressBar::hidden();
        let style = indicatif::ProgressStyle::with_template("{wide_bar} {pos}/{len} {prefix}\n{wide_msg}");
        bar.set_style(style.expect("a constant template"));
        bar.set_length(n_pieces as u64);
        if output.shows_progress() {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        Self { bar, output, begun: Instant::now(), n_better: AtomicUsize::new(0), n_tried: AtomicUsize::new(0) }
    }

    /// A piece is tuned now.
    pub(crate) fn begin(&self, problem: &Problem, piece: &Piece) {
        self.bar.set_message(report::short(problem, piece));
        self.tell();
    }

    pub(crate) fn done(&self, tuned: &Tuned) {
        self.n_tried.fetch_add(tuned.n_tried, Ordering::Relaxed);
        if report::gain(tuned).is_some_and(|gain| gain > 0.0) {
            self.n_better.fetch_add(1, Ordering::Relaxed);
        }
        self.bar.inc(1);
        self.tell();
        let line = format!("{}/{} {}", self.bar.position(), self.bar.length().unwrap_or(0), report::line(tuned));
        if self.output.shows_progress() { self.bar.println(line) } else { self.output.note(&line) }
    }

    /// It could not be judged.
    pub(crate) fn skip(&self) {
        self.bar.inc(1);
    }

    /// Something else is done now.
    pub(crate) fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        if !self.output.shows_progress() {
            self.output.note(what);
        }
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn tell(&self) {
        let done = self.bar.position();
        let left = self.bar.length().unwrap_or(0).saturating_sub(done);
        let elapsed = self.begun.elapsed().as_secs_f64();
        let minutes = if done == 0 { String::new() } else { minutes(elapsed / done as f64 * left as f64) };
        let [tried, better] = [&self.n_tried, &self.n_better].map(|count| count.load(Ordering::Relaxed));
        self.bar.set_prefix(format!("{tried} tried, {better} better{minutes}"));
    }
}

fn minutes(seconds: f64) -> String {
    match seconds {
        ..60.0 => ", a minute left".into(),
        _ => format!(", {:.0} minutes left", (seconds / 60.0).ceil()),
    }
}

impl Progress for Bar<'_> {
    fn finished(&self, _label: &str, _result: &Result<Loaded, StoreError>, _elapsed_ms: u64) {
        self.bar.tick();
    }
}
