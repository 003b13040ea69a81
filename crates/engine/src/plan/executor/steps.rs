//! The steps of an executor: which launches run in which place, and in which order.

use std::ops::Range;
use std::sync::PoisonError;

use gpu::{Argument, Driver, Kernel, Launch};
use half::bf16;

use super::{Executor, Observer, Written};
use crate::graph::placement::Place;
use crate::graph::{Rows, StepShape, Storage};
use crate::plan::capture::{Capture, captured};
use crate::plan::error::PlanError;
use crate::plan::replay::Replays;
use crate::plan::segment::{PlannedLaunch, PreparedLaunch, Segment, Steps};
use crate::plan::streaming::Ahead;
use format::Dtype;
use kernel::template::contract::Access;

impl Executor {
    /// Launches the first segments of a step: what comes again and again.
    pub(super) fn run_first(
        &mut self,
        n_segments: usize,
        shape: StepShape,
        mut observer: Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for segment in &mut self.segments[..n_segments] {
            segment.prepare(shape.kind, shape.count(segment.rows), &self.sites)?;
        }
        let is_capturing = self.is_capturing();
        if !is_capturing && let Some(mut profiler) = self.profiler.take() {
            let timed = profiler.step(&self.view(n_segments), shape);
            self.profiler = Some(profiler);
            if timed? {
                return Ok(());
            }
        }
        if self.sites.host.is_none() && observer.is_none() && !is_capturing && self.replay(0..n_segments, shape)? {
            return Ok(());
        }
        let mut replays = std::mem::take(&mut self.replays);
        let mut result = Ok(());
        let mut work = || result = self.run_parts(n_segments, shape, &mut replays, &mut observer);
        self.sites.enter(&mut work);
        self.replays = replays;
        result
    }

    /// Launches the first segments of a step, from one hand-over to the next.
    fn run_parts(
        &self,
        n_segments: usize,
        shape: StepShape,
        replays: &mut Replays,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        let count = |rows: Rows| shape.count(rows);
        let is_replayed = self.sites.host.is_some() && observer.is_none() && !self.is_capturing();
        let mut ahead = Ahead::begin(&self.segments[..n_segments], shape, &self.sites)?;
        let mut at = 0;
        for part in self.segments[..n_segments].chunk_by(|a, b| a.place == b.place) {
            let (first, end) = (at, at + part.len());
            at = end;
            if part[0].place == Place::Host {
                self.run_of_host(part, shape, &mut ahead, observer)?;
            } else if !is_replayed || !self.replayed(replays, first..end, shape)? {
                self.launch_all(part, shape, count, observer)?;
            }
        }
        Ok(())
    }

    /// Has the processor compute its segments: each with what it needs brought before, and what it made sent after it.
    /// Or the device, where that is faster: each with its weights brought before.
    fn run_of_host(
        &self,
        segments: &[Segment],
        shape: StepShape,
        ahead: &mut Ahead<'_>,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for segment in segments {
            if let Some(streamed) = segment.streamed_in(shape) {
                streamed.begin(&self.sites)?;
                self.launch_all(std::slice::from_ref(&streamed.segment), shape, |rows| shape.count(rows), observer)?;
                streamed.end(&self.sites)?;
                ahead.fetch(&self.sites)?;
                continue;
            }
            let n = shape.count(segment.rows);
            let Some(hand_over) = segment.hand_over.as_ref().filter(|_| n > 0) else { continue };
            hand_over.bring(n, &self.sites)?;
            self.launch_all(std::slice::from_ref(segment), shape, |rows| shape.count(rows), observer)?;
            hand_over.send(n, &self.sites)?;
        }
        Ok(())
    }

    /// Launches segments of a step in which so many rows ask for them; no profiler sees it.
    pub(super) fn run_asked_for(&mut self, which: Range<usize>, shape: StepShape, n: usize) -> Result<(), PlanError> {
        let count = |rows: Rows| if rows.are_asked_for() { n } else { shape.count(rows) };
        for segment in &mut self.segments[which.clone()] {
            segment.prepare(shape.kind, count(segment.rows), &self.sites)?;
        }
        let (mut result, segments) = (Ok(()), &self.segments[which]);
        self.sites.device.driver().enter(&mut || result = self.launch_all(segments, shape, count, &mut None));
        result
    }

    /// The data for a profiler.
    fn view(&self, n_segments: usize) -> Steps<'_> {
        Steps { sites: &self.sites, graph: &self.graph, segments: &self.segments[..n_segments] }
    }

    /// Replays segments of a step that are all the device's, if they were or can be captured; whether it did.
    fn replay(&mut self, which: Range<usize>, shape: StepShape) -> Result<bool, PlanError> {
        let mut replays = std::mem::take(&mut self.replays);
        let replayed = self.replayed(&mut replays, which, shape);
        self.replays = replays;
        replayed
    }

    fn replayed(&self, replays: &mut Replays, which: Range<usize>, shape: StepShape) -> Result<bool, PlanError> {
        let launches = || self.launches(which.clone(), shape);
        let replayed = replays.replay(self.sites.device.driver(), (shape, which.clone()), launches);
        replayed.map_err(|source| PlanError::Device { label: "a part of a step".into(), source })
    }

    /// The launches of segments of a step that was prepared.
    fn launches(&self, which: Range<usize>, shape: StepShape) -> Vec<(&Kernel, Launch<'_>)> {
        let all = self.segments[which].iter().flat_map(|segment| segment.prepared(shape));
        all.map(|(planned, prepared)| (planned.kernel(), prepared.launch())).collect()
    }

    fn launch_all(
        &self,
        segments: &[Segment],
        shape: StepShape,
        count: impl Fn(Rows) -> usize,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<(), PlanError> {
        for segment in segments {
            let site = self.sites.of(segment.place);
            let (driver, n) = (site.driver(), count(segment.rows));
            for (planned, prepared) in segment.prepared_of(shape.kind, n) {
                let failed = |source| PlanError::Device { label: planned.label.clone(), source };
                if let Some(capture) = self.capture_of(&planned.label) {
                    let of_whom = (n, site.pipeline.target().id());
                    capture.take(captured(driver, planned, prepared, shape.kind, of_whom).map_err(failed)?);
                } else {
                    driver.launch(planned.kernel(), &prepared.launch()).map_err(failed)?;
                }
                if let Some(observer) = observer {
                    self.show(driver, planned, prepared, *observer)?;
                }
            }
        }
        Ok(())
    }

    fn is_capturing(&self) -> bool {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The capture that waits for the next launch of this label, if any.
    fn capture_of(&self, label: &str) -> Option<Capture> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take_if(|capture| capture.is_it(label))
    }

    /// Reads back what a launch wrote, for the observer.
    fn show(
        &self,
        driver: &dyn Driver,
        planned: &PlannedLaunch,
        prepared: &PreparedLaunch,
        observer: &mut (dyn FnMut(&Written<'_>) + Send),
    ) -> Result<(), PlanError> {
        for (spec, arg) in planned.kernel.rendered.all_args().zip(&prepared.args) {
            let Argument::Memory { view, required_bytes } = arg else { continue };
            let Some(id) = planned.args.get(&spec.name) else { continue }; // a workspace
            if spec.access == Access::Read || !matches!(spec.dtype, Dtype::F32 | Dtype::Bf16) {
                continue;
            }
            let mut bytes = vec![0; *required_bytes];
            let failed = |source| PlanError::Device { label: planned.label.clone(), source };
            driver.read(view, &mut bytes).map_err(failed)?;
            let values = f32s(&bytes, spec.dtype);
            let tensor = self.graph.tensor_of(*id);
            let is_kept = spec.access == Access::ReadWrite && matches!(tensor.storage, Storage::External(_));
            let template = &planned.kernel.rendered.label;
            observer(&Written { label: &planned.label, template, tensor: &tensor.name, values: &values, is_kept });
        }
        Ok(())
    }
}

/// Elements of f32 or bf16, as they lie in memory.
fn f32s(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|&two| bf16::from_le_bytes(two).to_f32()).collect(),
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}
