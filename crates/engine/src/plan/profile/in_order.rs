//! Every launch of a step timed as it is made: where a launch is done when the call returns, this costs next to
//! nothing.

use std::time::Instant;

use super::{Profile, without_layer, work};
use crate::graph::StepShape;
use crate::plan::error::PlanError;
use crate::plan::segment::Steps;

/// Runs a step that was prepared.
pub(super) fn profile(steps: &Steps<'_>, shape: StepShape) -> Result<Profile, PlanError> {
    let mut result = Ok(Profile::default());
    steps.pipeline.driver().enter(&mut || result = launch_all(steps, shape));
    result
}

fn launch_all(steps: &Steps<'_>, shape: StepShape) -> Result<Profile, PlanError> {
    let mut profile = Profile { steps: 1, ..Profile::default() };
    for segment in steps.segments {
        for (planned, prepared) in segment.prepared(shape) {
            let mut entry = work::count(steps, planned, &prepared.args, shape.count(segment.rows))?;
            let failed = |source| PlanError::Device { label: planned.label.clone(), source };
            let begin = Instant::now();
            entry.time = steps.pipeline.driver().launch_timed(planned.kernel(), &prepared.launch()).map_err(failed)?;
            profile.step_time += begin.elapsed();
            profile.add(&without_layer(&planned.label), &planned.kernel.rendered.label, entry);
        }
    }
    Ok(profile)
}
