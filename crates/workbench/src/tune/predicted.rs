//! A judge that predicts with a model of the chip: it reads a kernel's machine code, and runs nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;

use super::job::{Piece, TuningJob};
use super::judge::{CandidateKernel, Judge, JudgeError, Reason, Time, Verdict};
use super::objects::{Object, objects};
use crate::isa::speed::IssueModel;
use crate::predict::{Compiled, PredictError, Predictor};
use crate::timing;
use hint::chain;
use kernel::object::key::Digest;
use kernel::object::store::{Progress, Store};
use kernel::target::{Target, TargetFacts};
use kernel::template::library::Library;
use kernel::template::work::Work;
use kernel::tuning::table::ProvenanceKind;

/// The model's version: what another one said is not found in a journal.
const VERSION: u32 = 5;

/// A chip that is not here.
pub struct Predicted<'a> {
    job: &'a TuningJob,
    library: &'a Library,
    target: &'a Target,
    store: &'a Store,
    predictor: Predictor<'a>,
    /// Objects that were read, by the key of each: they are the same for any number of rows.
    read: HashMap<Digest, Result<Arc<Read>, Verdict>>,
    /// What there is to do for the piece that was asked about last.
    work: Option<(Piece, Work)>,
    until: Option<Instant>,
}

struct Read {
    compiled: Compiled,
    object: Object,
}

impl<'a> Predicted<'a> {
    /// Of a GPU of which the tables know units and product.
    ///
    /// # Errors
    /// If they do not.
    pub fn new(
        job: &'a TuningJob,
        library: &'a Library,
        target: &'a Target,
        store: &'a Store,
        facts: Option<&TargetFacts>,
    ) -> Result<Self, PredictError> {
        let predictor = Predictor::new(library, target, store, facts)?;
        Ok(Self { job, library, target, store, predictor, read: HashMap::new(), work: None, until: None })
    }

    /// The same, until a time: then it reads no more code, and stops what reads some.
    #[must_use]
    pub fn until(mut self, until: Option<Instant>) -> Self {
        self.predictor.until(until);
        Self { until, ..self }
    }

    /// A note about its predictions, to print once.
    pub fn notice(&self) -> Option<String> {
        self.predictor.model().and_then(IssueModel::notice)
    }

    /// Compiles and reads what was not yet. A tool that is missing is an error: it would be so for every kernel.
    fn read_all(&mut self, kernels: &[CandidateKernel], progress: &dyn Progress) -> Result<(), JudgeError> {
        // Whether one may spill is asked below: it may be known another time.
        let is_new = |kernel: &&CandidateKernel| !self.read.contains_key(&kernel.key);
        let new: Vec<CandidateKernel> =
            kernels.iter().filter(is_new).map(|kernel| CandidateKernel { is_known: true, ..kernel.clone() }).collect();
        let objects = objects(self.store, self.target, &new, progress);
        let read = new.par_iter().zip(objects).map(|(kernel, object)| {
            let read = object.map(|object| {
                let compiled = self.predictor.read(kernel.rendered.clone(), &object.bytes);
                compiled.map(|compiled| Arc::new(Read { compiled, object }))
            });
            // What ended then may have been stopped: it says nothing about the kernel.
            (!self.is_over()).then_some((kernel.key, read))
        });
        let read: Vec<_> = read.collect();
        let is_whole = read.iter().all(Option::is_some);
        for (key, read) in read.into_iter().flatten() {
            let read = match read {
                Err(verdict) => Err(verdict),
                Ok(Ok(read)) => Ok(read),
                Ok(Err(error @ (PredictError::Isa(_) | PredictError::Unknown { .. }))) => {
                    return Err(JudgeError::Gone(chain(&error)));
                }
                Ok(Err(error)) => Err(Verdict::refused(Reason::Exceeds, chain(&error))),
            };
            self.read.insert(key, read);
        }
        if is_whole { Ok(()) } else { Err(JudgeError::TimeIsOver) }
    }

    fn work(&mut self, piece: &Piece) -> Result<Work, JudgeError> {
        if let Some((known, work)) = &self.work
            && known == piece
        {
            return Ok(work.clone());
        }
        let problem = &self.job.problems[piece.problem].problem;
        let work = timing::work(self.library, problem, &self.job.setup(piece));
        let work = work.map_err(|error| JudgeError::Piece(chain(&error)))?;
        self.work = Some((*piece, work.clone()));
        Ok(work)
    }
}

impl Judge for Predicted<'_> {
    fn identity(&self) -> String {
        let model = self.predictor.model().filter(|model| matches!(model, IssueModel::Counted { .. }));
        let counted = model.map_or(String::new(), |model| format!(", {}", model.name()));
        format!("predicted, model {VERSION}{counted}, {:?}", self.predictor.chip())
    }

    fn kind(&self) -> ProvenanceKind {
        ProvenanceKind::Predicted
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn judge(
        &mut self,
        piece: &Piece,
        kernels: &[CandidateKernel],
        _n_rounds: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Verdict>, JudgeError> {
        self.read_all(kernels, progress)?;
        let work = self.work(piece)?;
        let scalars = self.job.setup(piece).scalars;
        let verdict = |kernel: &CandidateKernel| {
            let read = match &self.read[&kernel.key] {
                Ok(read) => read,
                Err(verdict) => return verdict.clone(),
            };
            if let Some(spills) = read.object.spills().filter(|_| !kernel.is_known) {
                return spills;
            }
            match read.compiled.predict(&scalars, &work) {
                Ok(predicted) if predicted.seconds().is_finite() => Verdict::Time(Time {
                    times_us: vec![predicted.seconds() * 1e6],
                    source: Digest::of(kernel.rendered.source.as_bytes()).to_string(),
                    object: Some(Digest::of(&read.object.bytes).to_string()),
                    uses: read.object.uses,
                    ..Time::default()
                }),
                Ok(_) => Verdict::refused(Reason::Exceeds, "no compute unit holds a block of it"),
                Err(error) => Verdict::refused(Reason::Exceeds, chain(&error)),
            }
        };
        Ok(kernels.iter().map(verdict).collect())
    }
}
