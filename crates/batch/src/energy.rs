//! Energy of a run: the sum of the power that a device reports.

use std::time::{Duration, Instant};

/// How often power is asked for: drivers average over about as long, and a question takes up to a millisecond.
const EVERY: Duration = Duration::from_millis(100);

/// Adds up what a device takes from the first question on.
#[derive(Debug, Default)]
pub(crate) struct Energy {
    /// When it was asked last, and what it said.
    last: Option<(Instant, Option<f64>)>,
    joules: Option<f64>,
}

impl Energy {
    /// Asks for the power in watts, if the last time was a while ago. Between two answers it is taken as their mean;
    /// a device that once does not say has no energy.
    pub(crate) fn ask(&mut self, now: Instant, watts: impl FnOnce() -> Option<f64>) {
        match self.last {
            None => {
                let watts = watts();
                self.joules = watts.map(|_| 0.0);
                self.last = Some((now, watts));
            }
            Some((then, before)) if before.is_some() && now - then >= EVERY => {
                let watts = watts();
                let mean = before.zip(watts).map(|(before, watts)| (before + watts) / 2.0);
                self.joules = self.joules.zip(mean).map(|(sum, mean)| sum + mean * (now - then).as_secs_f64());
                self.last = Some((now, watts));
            }
            Some(_) => {}
        }
    }

    /// What it took until it was asked last.
    pub(crate) fn joules(&self) -> Option<f64> {
        self.joules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_added_up_between_answers() {
        let begun = Instant::now();
        let mut energy = Energy::default();
        let mut n_asked = 0;
        for (ms, watts) in [(0, 100.0), (50, 1e9), (200, 300.0), (250, 1e9), (1200, 300.0)] {
            energy.ask(begun + Duration::from_millis(ms), || {
                n_asked += 1;
                Some(watts)
            });
        }
        // 0.2 s at 200 W, 1 s at 300 W.
        assert!((energy.joules().unwrap() - 340.0).abs() < 1e-9, "{energy:?}");
        assert_eq!(n_asked, 3, "not at each step");
        energy.ask(begun + Duration::from_secs(9), || None);
        assert_eq!(energy.joules(), None);
        let mut silent = Energy::default();
        for s in 0..3 {
            silent.ask(begun + Duration::from_secs(s), || None);
        }
        assert_eq!(silent.joules(), None);
    }
}
