//! Times every launch of a step as it is made. Where a launch is done when the call returns, this costs next to
//! nothing.

use std::time::Instant;

use gpu::GpuError;

use super::{Profile, ProfileEntry, without_layer, work};
use crate::graph::StepShape;
use crate::plan::error::PlanError;
use crate::plan::segment::{Segment, Steps};

/// Runs a prepared step.
pub(super) fn profile(steps: &Steps<'_>, shape: StepShape) -> Result<Profile, PlanError> {
    let mut result = Ok(Profile::default());
    steps.sites.enter(&mut || result = launch_all(steps, shape));
    result
}

fn launch_all(steps: &Steps<'_>, shape: StepShape) -> Result<Profile, PlanError> {
    let mut profile = Profile { steps: 1, ..Profile::default() };
    for segment in steps.segments {
        let (n_rows, driver) = (shape.count(segment.rows), steps.sites.device.driver());
        if let Some(streamed) = segment.streamed_in(shape) {
            let begin = Instant::now();
            streamed.fetch(steps.sites)?;
            streamed.begin(steps.sites)?;
            driver.wait().map_err(|source| failed("experts of main memory", source))?;
            let (time, bytes) = (begin.elapsed(), streamed.len_bytes() as f64);
            profile.step_time += time;
            profile.add("experts from main memory", "copies", ProfileEntry { calls: 1, time, bytes, flop: 0.0 });
            time_all(steps, &streamed.segment, shape, &mut profile)?;
            streamed.end(steps.sites)?;
            continue;
        }
        let hand_over = segment.hand_over.as_ref().filter(|_| n_rows > 0);
        if let Some(hand_over) = hand_over {
            driver.wait().map_err(|source| failed("the device's part", source))?;
            let begin = Instant::now();
            hand_over.bring(n_rows, steps.sites)?;
            let (time, bytes) = (begin.elapsed(), hand_over.len_bytes(n_rows) as f64);
            profile.step_time += time;
            profile.add("hand-over", "copies", ProfileEntry { calls: 1, time, bytes, flop: 0.0 });
        }
        time_all(steps, segment, shape, &mut profile)?;
        if let Some(hand_over) = hand_over {
            let begin = Instant::now();
            hand_over.send(n_rows, steps.sites)?;
            driver.wait().map_err(|source| failed("the hand-over", source))?;
            let time = begin.elapsed();
            profile.step_time += time;
            profile.add("hand-over", "copies", ProfileEntry { calls: 0, time, bytes: 0.0, flop: 0.0 });
        }
    }
    Ok(profile)
}

/// Launches a segment, each kernel alone.
fn time_all(steps: &Steps<'_>, segment: &Segment, shape: StepShape, profile: &mut Profile) -> Result<(), PlanError> {
    let (n_rows, driver) = (shape.count(segment.rows), steps.sites.of(segment.place).driver());
    for (planned, prepared) in segment.prepared(shape) {
        let mut entry = work::count(steps, driver, planned, &prepared.args, n_rows)?;
        let begin = Instant::now();
        let timed = driver.launch_timed(planned.kernel(), &prepared.launch());
        entry.time = timed.map_err(|source| failed(&planned.label, source))?;
        profile.step_time += begin.elapsed();
        profile.add(&without_layer(&planned.label), &planned.kernel.rendered.label, entry);
    }
    Ok(())
}

fn failed(label: &str, source: GpuError) -> PlanError {
    PlanError::Device { label: label.to_owned(), source }
}
