//! A model's step on a chip that is not here: the time of every launch of its plan, and of the whole step.

use super::{Code, Compiled, PredictError, Prediction, Predictor};
use crate::timing::{self, Candidate, Setup, TimingError};
use expression::ExpressionError;
use kernel::object::store::Progress;
use kernel::template::Problem;
use kernel::template::library::Library;
use kernel::template::work::Work;

/// Predicted over measured tokens per second of gpt-oss-20b's shape on an H200, at a microsecond a launch and contexts
/// of 542 positions (of 64 rows 286): rows, with dense weights in bf16, with these in blocks of 8 bits.
/// `docs/performance.md` has both numbers. They hold for this model's present constants; a change of a constant needs
/// new ones. They are from the kernels of 2026-11-26: several rows of block formats used `linear/matrix`, as on AMD.
const ERROR_ON_H200: [(usize, f64, f64); 6] = [
    (1, 1.005, 1.089),
    (2, 1.057, 1.091),
    (4, 1.139, 1.118),
    (8, 1.137, 1.203),
    (32, 1.191, 1.279),
    (64, 1.254, 1.337),
];

/// By how much this model was too fast on an H200: predicted over measured tokens per second of steps of the next
/// larger number of rows that was measured, or of the most.
pub fn error_on_h200(n_rows: usize, has_blocks: bool) -> f64 {
    let last = ERROR_ON_H200.len() - 1;
    let at = ERROR_ON_H200.partition_point(|(rows, ..)| *rows < n_rows).min(last);
    let (_, plain, in_blocks) = ERROR_ON_H200[at];
    if has_blocks { in_blocks } else { plain }
}

/// A launch of a plan, as often as a step has it.
#[derive(Clone, Debug)]
pub struct StepLaunch {
    /// The nodes: `block.0-23.attn.out`.
    pub label: String,
    /// Launches of it in a step: as many as there are layers that have it.
    pub n_launches: usize,
    pub problem: Problem,
    /// What was chosen for it.
    pub candidate: Candidate,
    /// Its rows and inputs.
    pub setup: Setup,
}

/// What one of these launches takes.
#[derive(Debug)]
pub struct LaunchTime {
    /// What it has to do at least.
    pub work: Work,
    /// What the compiler made of it, and the time of one launch; or why there is none.
    pub prediction: Result<(Code, Prediction), PredictError>,
}

/// A step, launch by launch. Nothing of it is measured.
#[derive(Debug)]
pub struct StepTime {
    /// In the order of the plan.
    pub launches: Vec<(StepLaunch, LaunchTime)>,
}

/// Why a step has no prediction.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// What a launch has to do cannot be counted.
    #[error("could not count the work of `{label}`")]
    Work {
        label: String,
        #[source]
        source: TimingError,
    },
    /// A launch expression does not come to a number.
    #[error("could not work out the grid of `{label}`")]
    Grid {
        label: String,
        #[source]
        source: ExpressionError,
    },
}

impl StepTime {
    /// Predicts all launches of a step.
    ///
    /// # Errors
    /// [`StepError`]. A launch that cannot be compiled or read is none: [`LaunchTime::prediction`] says so.
    pub fn new(
        launches: Vec<StepLaunch>,
        predictor: &Predictor<'_>,
        library: &Library,
        progress: &dyn Progress,
    ) -> Result<Self, StepError> {
        let candidates: Vec<_> = launches.iter().map(|one| (&one.problem, &one.candidate)).collect();
        let compiled = predictor.compile_each(&candidates, progress);
        let time = |(launch, compiled): (StepLaunch, Result<Compiled, PredictError>)| {
            let label = || launch.label.clone();
            let work = timing::work(library, &launch.problem, &launch.setup)
                .map_err(|source| StepError::Work { label: label(), source })?;
            let prediction = match compiled {
                Ok(compiled) => {
                    let prediction = compiled.predict(&launch.setup.scalars, &work);
                    let prediction = prediction.map_err(|source| StepError::Grid { label: label(), source })?;
                    Ok((compiled.code, prediction))
                }
                Err(error) => Err(error),
            };
            Ok((launch, LaunchTime { work, prediction }))
        };
        Ok(Self { launches: launches.into_iter().zip(compiled).map(time).collect::<Result<_, _>>()? })
    }

    /// Launches of the whole step.
    pub fn n_launches(&self) -> usize {
        self.launches.iter().map(|(launch, _)| launch.n_launches).sum()
    }

    /// Launches without a prediction: they count as nothing.
    pub fn n_unknown(&self) -> usize {
        let unknown = self.launches.iter().filter(|(_, time)| time.prediction.is_err());
        unknown.map(|(launch, _)| launch.n_launches).sum()
    }

    /// Seconds of all kernels, without what it takes to launch them.
    pub fn kernels_s(&self) -> f64 {
        self.launches.iter().map(|(launch, time)| launch.n_launches as f64 * time.kernel_s().unwrap_or(0.0)).sum()
    }

    /// Seconds of the step, if each launch costs this many seconds in addition.
    pub fn seconds(&self, launch_s: f64) -> f64 {
        self.kernels_s() + self.n_launches() as f64 * launch_s
    }
}

impl LaunchTime {
    /// Seconds of one launch, without the launch itself.
    pub fn kernel_s(&self) -> Option<f64> {
        self.prediction.as_ref().ok().map(|(_, prediction)| prediction.kernel_s())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_of_as_many_rows_or_more() {
        assert_eq!(error_on_h200(1, false), 1.005);
        assert_eq!(error_on_h200(3, true), 1.118);
        assert_eq!(error_on_h200(1000, true), error_on_h200(64, true));
    }
}
