//! Progress: a bar on a terminal, a line per piece in a log, and one every ten seconds of a piece that takes longer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::report;
use crate::output::Output;
use kernel::object::store::{Loaded, Progress, StoreError};
use kernel::template::Problem;
use workbench::tune::job::Piece;
use workbench::tune::tuner::Tuned;

/// How long nothing is heard in a log, at most.
const SILENCE: Duration = Duration::from_secs(10);

/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What goes on, for who waits.
struct UnderWay {
    what: String,
    since: Instant,
    /// The time of the last line.
    told: Instant,
    n_compiled: usize,
}

/// A bar of pieces: what is tried, what was found, how long it will take.
pub(super) struct Bar<'a> {
    bar: indicatif::ProgressBar,
    output: &'a Output,
    begun: Instant,
    n_better: AtomicUsize,
    n_tried: AtomicUsize,
    under_way: Arc<Mutex<UnderWay>>,
    /// Ends the thread that reports long pieces.
    _teller: mpsc::Sender<()>,
}

impl UnderWay {
    fn new(what: String) -> Self {
        let now = Instant::now();
        Self { what, since: now, told: now, n_compiled: 0 }
    }

    /// What there is to tell if nothing was for long.
    fn line(&mut self, now: Instant) -> Option<String> {
        if self.what.is_empty() || now.saturating_duration_since(self.told) < SILENCE {
            return None;
        }
        self.told = now;
        let (seconds, n) = (now.saturating_duration_since(self.since).as_secs(), self.n_compiled);
        Some(format!("{}: {seconds} s, {n} kernels compiled", self.what))
    }
}

fn locked(under_way: &Mutex<UnderWay>) -> MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells of what takes long, in a log, until the bar is gone. Returns what ends that.
fn tell_of_long_ones(under_way: &Arc<Mutex<UnderWay>>, output: &Output) -> mpsc::Sender<()> {
    let (teller, is_gone) = mpsc::channel();
    let (under_way, output) = (Arc::clone(under_way), output.clone());
    let tell = move || {
        while is_gone.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
            if let Some(line) = locked(&under_way).line(Instant::now()) {
                output.note(&line);
            }
        }
    };
    // Without a thread nobody is told, and all else is as it was.
    drop(thread::Builder::new().spawn(tell));
    teller
}

impl<'a> Bar<'a> {
    pub(crate) fn new(output: &'a Output, n_pieces: usize) -> Self {
        let bar = indicatif::ProgressBar::hidden();
        let style = indicatif::ProgressStyle::with_template("{wide_bar} {pos}/{len} {prefix}\n{wide_msg}");
        bar.set_style(style.expect("a constant template"));
        bar.set_length(n_pieces as u64);
        let under_way = Arc::new(Mutex::new(UnderWay::new(String::new())));
        let teller = match output.shows_progress() {
            true => {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
                mpsc::channel().0
            }
            false => tell_of_long_ones(&under_way, output),
        };
        let [n_better, n_tried] = [0, 0].map(AtomicUsize::new);
        Self { bar, output, begun: Instant::now(), n_better, n_tried, under_way, _teller: teller }
    }

    /// A piece is tuned now.
    pub(crate) fn begin(&self, problem: &Problem, piece: &Piece) {
        let what = report::short(problem, piece);
        *locked(&self.under_way) = UnderWay::new(what.clone());
        self.bar.set_message(what);
        self.tell();
    }

    pub(crate) fn done(&self, tuned: &Tuned) {
        self.n_tried.fetch_add(tuned.n_tried, Ordering::Relaxed);
        if report::gain(tuned).is_some_and(|gain| gain > 0.0) {
            self.n_better.fetch_add(1, Ordering::Relaxed);
        }
        self.bar.inc(1);
        self.tell();
        locked(&self.under_way).told = Instant::now();
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
        *locked(&self.under_way) = UnderWay::new(what.to_owned());
        if !self.output.shows_progress() {
            self.output.note(what);
        }
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
        *locked(&self.under_way) = UnderWay::new(String::new());
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
        locked(&self.under_way).n_compiled += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_told_every_ten_seconds_with_how_far_it_is() {
        let mut under_way = UnderWay::new("linear 64x32, 1 row".into());
        let begun = under_way.since;
        let mut told = Vec::new();
        for second in 0..=25 {
            under_way.n_compiled = second;
            told.extend(under_way.line(begun + Duration::from_secs(second as u64)));
        }
        let line = |n: usize| format!("linear 64x32, 1 row: {n} s, {n} kernels compiled");
        assert_eq!(told, [line(10), line(20)]);
        assert_eq!(UnderWay::new(String::new()).line(begun + Duration::from_secs(60)), None, "nothing is under way");
    }
}
