//! Where the host's time of a step goes: scheduling, writing, launching, waiting.

use std::ops::Sub;
use std::time::{Duration, Instant};

/// Time of the host in steps, all of them added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostTimes {
    pub steps: usize,
    /// Choosing the rows of a step, and telling what its tokens mean.
    pub(crate) scheduling: Duration,
    /// Block tables, tokens, positions and what sampling needs, on their way to the device.
    pub(crate) writing: Duration,
    /// Launching: of a device that does it at once, the work itself.
    pub launching: Duration,
    /// Waiting for tokens: on a GPU for those of the step before.
    pub(crate) waiting: Duration,
}

impl HostTimes {
    /// Name and time of every part.
    pub fn parts(&self) -> [(&'static str, Duration); 4] {
        [
            ("scheduling", self.scheduling),
            ("writing", self.writing),
            ("launching", self.launching),
            ("waiting", self.waiting),
        ]
    }
}

/// The time added since another reading.
impl Sub for HostTimes {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            steps: self.steps - earlier.steps,
            scheduling: self.scheduling - earlier.scheduling,
            writing: self.writing - earlier.writing,
            launching: self.launching - earlier.launching,
            waiting: self.waiting - earlier.waiting,
        }
    }
}

/// Adds the time since `clock` to a part, and sets the clock.
pub(super) fn lap(clock: &mut Instant, part: &mut Duration) {
    let now = Instant::now();
    *part += now - *clock;
    *clock = now;
}
