//! Walks through the parameters of all templates of a piece.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, mpsc};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use super::job::{Piece, TuningJob};
use super::judge::{CandidateKernel, JudgeError, Time};
use super::tuner::{CandidateKernels, CandidateResults, TuneEffort, TuneError, Tuner};
use crate::timing::search::{Search, initial_design};
use crate::timing::{Candidate, ROUNDS};
use kernel::choice::{Choice, Chooser, Why};
use kernel::object::compile::Request;
use kernel::template::render::render;
use kernel::template::{Params, Template};
use kernel::tuning::table::ProvenanceKind;

/// A template whose parameters are tried.
pub(super) struct Walk {
    pub(crate) template: Arc<Template>,
    /// Its parameters that the problem and the chip allow.
    pub(crate) legal: Vec<Params>,
    pub(crate) start: Params,
    /// Whether the tables say that: then it may spill.
    pub(crate) is_of_a_row: bool,
}

impl Walk {
    pub(crate) fn with(&self, params: Params) -> Candidate {
        Candidate { template: Arc::clone(&self.template), params }
    }

    pub(crate) fn start(&self) -> Candidate {
        self.with(self.start.clone())
    }

    /// What is tried before anything is known.
    ///
    /// - `before`: what is good at the number of rows before
    pub(crate) fn initial_design(&self, most: usize, before: &[Candidate]) -> Vec<Params> {
        let mut first = initial_design(&self.legal, &self.start, most.max(1));
        let own = before.iter().filter(|one| one.template.label() == self.template.label());
        let own = own.filter(|one| self.legal.contains(&one.params) && !first.contains(&one.params));
        let own: Vec<Params> = own.map(|one| one.params.clone()).collect();
        first.extend(own);
        first
    }
}

/// Reports that a walk's candidates are compiled, or that its thread ended, so that no one waits for an ended thread.
struct TellsOfItsEnd(mpsc::Sender<usize>, usize);

impl Drop for TellsOfItsEnd {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

/// What a thread said that panicked.
fn in_words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it did not say why".to_owned())
}

impl Tuner<'_> {
    /// Tries parameters of all templates side by side; returns how many. While some are judged others are compiled, so
    /// that a slow compile delays no one.
    pub(super) fn walk(
        &mut self,
        piece: &Piece,
        walks: &[Walk],
        before: &[Candidate],
        entries: &mut CandidateResults,
    ) -> Result<usize, TuneError> {
        let most = self.effort.most(piece.problem);
        let known: Vec<Candidate> = walks.iter().filter(|walk| walk.is_of_a_row).map(Walk::start).collect();
        let mut searches: Vec<Search<'_>> =
            walks.iter().map(|walk| Search::new(&walk.legal, walk.initial_design(most, before), most)).collect();
        let apart_us = self.apart_us(piece);
        // A model says the same whoever is asked about first, but who is left early depends on it.
        let in_order = self.judge.kind() == ProvenanceKind::Predicted;
        let (store, progress) = (self.store, self.progress);
        thread::scope(|scope| {
            let (sender, compiled) = mpsc::channel();
            let mut open: VecDeque<(usize, Vec<Params>, CandidateKernels)> = VecDeque::new();
            let mut is_compiled = BTreeSet::new();
            let mut compilers: BTreeMap<usize, ScopedJoinHandle<'_, ()>> = BTreeMap::new();
            let mut turns: Vec<usize> = (0..walks.len()).collect();
            loop {
                if self.is_over() {
                    break;
                }
                for i in turns.drain(..) {
                    let times = entries.values().filter_map(|entry| entry.verdict.time().map(Time::median_us));
                    let params = searches[i].next(times.fold(apart_us, f64::min));
                    if params.is_empty() {
                        continue;
                    }
                    let candidates = params.iter().map(|params| walks[i].with(params.clone())).collect();
                    let asked = self.asked(candidates, piece, &known, ROUNDS, entries)?;
                    let requests = self.not_in_the_journal(piece, &asked);
                    open.push_back((i, params, asked));
                    let ended = TellsOfItsEnd(sender.clone(), i);
                    let compile = move || {
                        let _ended = ended;
                        drop(store.get_all(&requests, progress)); // who asks for one is told if there is none
                    };
                    // Where no thread can be had they are compiled when they are judged, and the end is told at once.
                    if let Ok(compiler) = thread::Builder::new().spawn_scoped(scope, compile) {
                        compilers.insert(i, compiler);
                    }
                }
                let Some((first, ..)) = open.front() else { break };
                let at = loop {
                    let is_ready = |(i, ..): &(usize, _, _)| is_compiled.contains(i) && (!in_order || i == first);
                    match open.iter().position(is_ready) {
                        Some(at) => break at,
                        None => {
                            let waits = Instant::now();
                            let i = compiled.recv().expect("this side holds a sender");
                            if let Some(Err(panic)) = compilers.remove(&i).map(ScopedJoinHandle::join) {
                                return Err(TuneError::Compiling { said: in_words(&*panic) });
                            }
                            is_compiled.insert(i);
                            tracing::debug!("waited {:.3} s for a compiler", waits.elapsed().as_secs_f64());
                        }
                    };
                };
                if self.is_over() {
                    break;
                }
                let (i, params, asked) = open.remove(at).expect("it was just found");
                is_compiled.remove(&i);
                let times = match self.judged(asked, piece, ROUNDS, entries) {
                    Err(TuneError::Judge(JudgeError::TimeIsOver)) => break,
                    judged => judged?,
                };
                searches[i].tell(params, times);
                turns.push(i);
            }
            Ok(searches.iter().map(Search::n_tried).sum())
        })
    }

    /// The time of a run's ops one by one, as far as they were tuned at its number of rows.
    fn apart_us(&self, piece: &Piece) -> f64 {
        let of_part = |&problem: &usize| {
            let same = self.best_us.get(&Piece { problem, ..*piece });
            let mut others =
                self.best_us.iter().filter(|(one, _)| (one.problem, one.n_tokens) == (problem, piece.n_tokens));
            same.or_else(|| others.next().map(|(_, time)| time))
        };
        let parts = &self.job.problems[piece.problem].parts;
        let sum: Option<f64> = parts.iter().map(of_part).sum();
        sum.filter(|_| !parts.is_empty()).unwrap_or(f64::INFINITY)
    }

    /// What of them has to be compiled to be judged.
    fn not_in_the_journal(&self, piece: &Piece, asked: &CandidateKernels) -> Vec<Request> {
        let is_open = |kernel: &&CandidateKernel| !self.journal.has(&self.key(piece, kernel, ROUNDS, None));
        asked.kernels.iter().flatten().filter(is_open).map(|kernel| kernel.request.clone()).collect()
    }
}

/// The templates that are tried, each with its legal parameters.
pub(super) fn walks(
    chooser: &Chooser,
    job: &TuningJob,
    effort: &TuneEffort,
    piece: &Piece,
    choices: &[Choice],
) -> Vec<Walk> {
    let TuneEffort { variants, params: fixed, .. } = effort;
    let keeps = |params: &Params| fixed.iter().all(|(name, value)| params.get(name) == Some(value));
    let problem = &job.problems[piece.problem].problem;
    let wanted = choices.iter().filter(|choice| variants.is_empty() || variants.contains(&choice.template.variant));
    let of = |choice: &Choice| {
        let template = Arc::clone(&choice.template);
        let legal: Vec<Params> = template.legal_params(problem, chooser.target()).filter(keeps).collect();
        let first = legal.first()?;
        let start = if keeps(&choice.params) { choice.params.clone() } else { first.clone() };
        Some(Walk { template, legal, start, is_of_a_row: matches!(choice.why, Why::Row(_)) })
    };
    wanted.filter_map(of).collect()
}

/// The first compiles of a piece.
pub fn first_requests(chooser: &Chooser, job: &TuningJob, effort: &TuneEffort, piece: &Piece) -> Vec<Request> {
    let problem = &job.problems[piece.problem].problem;
    let ranking = chooser.ranking(problem, piece.n_tokens as usize, piece.step);
    let choices = ranking.map(|ranking| ranking.choices).unwrap_or_default();
    let first = walks(chooser, job, effort, piece, &choices).into_iter().flat_map(|walk| {
        let first = walk.initial_design(effort.most(piece.problem), &[]);
        first.into_iter().map(|params| walk.with(params)).collect::<Vec<_>>()
    });
    let (library, target) = (chooser.library(), chooser.target());
    let rendered = first.filter_map(|one| render(library, &one.template, problem, &one.params, target).ok());
    rendered.map(|rendered| Request::new(&rendered, target)).collect()
}
