//! Repeated parts of steps: launched one by one the first time, captured the second time, and replayed from then on.
//!
//! A step's launches depend only on its shape; what changes from step to step is in memory. A device that gains
//! nothing by capturing captures nothing.

use std::collections::HashMap;
use std::ops::Range;

use gpu::{Driver, GpuError, Graph, Kernel, Launch};

use crate::graph::StepShape;

/// Steps that are kept: decoding uses few.
const MAX_STEPS: usize = 64;

/// A step, and the segments of it that are launched together.
type StepPart = (StepShape, Range<usize>);

#[derive(Default)]
pub(super) struct Replays {
    /// By step and part: none for a part that came once.
    steps: HashMap<StepShape, HashMap<Range<usize>, Option<Graph>>>,
    /// Whether the device cannot, or failed to.
    is_off: bool,
}

impl Replays {
    /// Replays a step. `false`, and nothing has happened, where it must be launched.
    ///
    /// # Errors
    /// The device's, of the replay; a capture that fails is a warning.
    pub(crate) fn replay<'a>(
        &mut self,
        driver: &dyn Driver,
        (shape, part): StepPart,
        launches: impl FnOnce() -> Vec<(&'a Kernel, Launch<'a>)>,
    ) -> Result<bool, GpuError> {
        if self.is_off {
            return Ok(false);
        }
        if self.steps.len() >= MAX_STEPS && !self.steps.contains_key(&shape) {
            self.steps.clear();
        }
        let known = self.steps.entry(shape).or_default().get(&part);
        if known.is_none() {
            self.keep(shape, part, None);
            return Ok(false);
        }
        if known.is_some_and(Option::is_none) {
            let launches = launches();
            if launches.is_empty() {
                return Ok(true); // the part has no rows in such steps
            }
            let graph = self.capture(driver, &launches);
            self.keep(shape, part.clone(), graph);
        }
        match &self.steps[&shape][&part] {
            Some(graph) => driver.replay(graph).map(|()| true),
            None => Ok(false),
        }
    }

    fn keep(&mut self, shape: StepShape, part: Range<usize>, graph: Option<Graph>) {
        self.steps.entry(shape).or_default().insert(part, graph);
    }

    fn capture(&mut self, driver: &dyn Driver, launches: &[(&Kernel, Launch<'_>)]) -> Option<Graph> {
        let captured = driver.capture(launches).unwrap_or_else(|error| {
            tracing::warn!("steps are launched kernel by kernel: {error}");
            None
        });
        self.is_off = captured.is_none();
        captured
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::step::StepKind;

    #[test]
    fn what_is_known_of_so_many_steps_is_forgotten_for_a_new_one_alone() {
        let driver = gpu::host::HostDriver::new(1).expect("a thread");
        let mut replays = Replays::default();
        // A part that has no rows in such a step is done when it comes for the second time.
        let mut is_done = |n_rows| {
            let shape = StepShape { n_rows, n_logit_rows: 1, kind: StepKind::Decode, compares: false };
            replays.replay(&driver, (shape, 0..1), Vec::new).expect("nothing is launched")
        };
        assert!((1..=MAX_STEPS).all(|n_rows| !is_done(n_rows)));
        assert!((1..=MAX_STEPS).all(&mut is_done));
        assert!(!is_done(MAX_STEPS + 1) && is_done(MAX_STEPS + 1) && !is_done(1));
    }
}
