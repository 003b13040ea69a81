//! Asks a judge about the templates of a piece, some parameters of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, json};

use super::job::{Piece, TuningJob};
use super::journal::{Journal, JournalError, Key};
use super::judge::{CandidateKernel, Judge, JudgeError, Reason, Time, Verdict};
use super::walk::walks;
use crate::timing::{self, Candidate, ROUNDS, TimingError};
use kernel::choice::{Choice, Chooser, Why};
use kernel::object::compile::{CompileError, Request};
use kernel::object::key::Digest;
use kernel::object::store::{Progress, Store, StoreError};
use kernel::template::library_error::LibraryError;
use kernel::template::render::render;
use kernel::template::work::Work;
use kernel::template::{Params, Problem, Template};
use kernel::tuning::table::{APART, ProvenanceKind, Tokens, TuningRow};

/// Rounds in which the best are compared.
const FINAL_ROUNDS: usize = 15;

/// How many of the best that is done with.
const FINALISTS: usize = 4;

/// Of a problem that were all of a step so many times as many parameters would be tried, beside the usual number.
const SHARE_TIMES: f64 = 16.0;

/// A kernel and its judgement.
#[derive(Clone, Debug)]
pub struct CandidateResult {
    pub candidate: Candidate,
    pub verdict: Verdict,
}

/// The results of a piece.
#[derive(Clone, Debug)]
pub struct Tuned {
    pub piece: Piece,
    pub problem: Problem,
    /// What a launch has to do.
    pub work: Work,
    /// How many parameter sets of templates were asked about.
    pub n_tried: usize,
    /// What the tables say now; of a run that is not fused now, what they would say.
    pub(crate) present: (String, Params),
    /// The row that says it; `None` where none does.
    pub(crate) present_row: Option<TuningRow>,
    /// Of a run of ops, whether one kernel does it now.
    pub is_fused: bool,
    /// Whether it was only asked because the best of its neighbours differ.
    pub is_between: bool,
    pub entries: Vec<CandidateResult>,
}

/// Errors that end a job.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The op has no contract, or no template fits.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The work of a problem cannot be counted.
    #[error(transparent)]
    Work(#[from] TimingError),
    /// There is no compiler, and so no kernel.
    #[error(transparent)]
    Compiler(#[from] CompileError),
    /// The cache cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The judge cannot judge a piece, or cannot go on.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// What was said cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A thread that had kernels compiled ended in a panic.
    #[error("compiling the candidates ended: {said}")]
    Compiling { said: String },
    /// The time was over before it was known how what the tables say compares.
    #[error("the time limit was reached")]
    TimeIsOver,
    /// No template has parameters that were asked for.
    #[error("no template of `{op}` has legal parameters as `--variant` and `--params` say")]
    NothingToTry { op: String },
}

/// How many candidates and rounds a search may take.
#[derive(Clone, Debug)]
pub struct TuneEffort {
    /// Most parameter sets of a template that are tried for a number of rows.
    pub most: usize,
    /// Of problems, by their indices, the part that they take of a step: the more, the more are tried.
    pub shares: BTreeMap<usize, f64>,
    /// At most so many times as many.
    pub most_times: f64,
    /// Only variants of these names, if any are named.
    pub variants: Vec<String>,
    /// Parameters that stay as given.
    pub params: Vec<(String, u32)>,
}

/// Tunes one piece after the other.
pub struct Tuner<'a> {
    pub chooser: &'a Chooser,
    /// The cache and the compiler.
    pub store: &'a Store,
    /// What there is to tune.
    pub job: &'a TuningJob,
    pub effort: &'a TuneEffort,
    /// Who says how long kernels take.
    pub judge: &'a mut dyn Judge,
    /// What was said already.
    pub journal: &'a mut Journal,
    /// Told while kernels compile.
    pub progress: &'a dyn Progress,
    /// The best time of what was tuned so far, in microseconds: a run of ops has to be faster than its ops one by one.
    pub best_us: BTreeMap<Piece, f64>,
    /// When nothing more is asked.
    pub until: Option<Instant>,
}

impl TuneEffort {
    /// Most parameter sets of a template that are tried for a number of rows of a problem.
    pub(crate) fn most(&self, problem: usize) -> usize {
        let share = self.shares.get(&problem).copied().unwrap_or(0.0);
        (self.most.max(1) as f64 * (1.0 + SHARE_TIMES * share).min(self.most_times)) as usize
    }
}

pub(super) type CandidateResults = BTreeMap<(String, Params), CandidateResult>;

/// Candidates that are asked about.
pub(super) struct CandidateKernels {
    pub(crate) all: Vec<(String, Params)>,
    /// Of those that have no entry yet the kernel, or why there is none.
    pub(crate) kernels: Vec<Result<CandidateKernel, CandidateResult>>,
}

impl Tuned {
    /// The candidates that have a time, the fastest first.
    pub fn ranked(&self) -> Vec<(&CandidateResult, &Time)> {
        let timed = self.entries.iter().filter_map(|entry| Some((entry, entry.verdict.time()?)));
        let mut ranked: Vec<_> = timed.collect();
        // What went into the finals has more rounds: of others only the final's loser's time counts.
        let n_rounds = ranked.iter().map(|(_, time)| time.times_us.len()).max().unwrap_or(0);
        ranked.sort_by(|(_, a), (_, b)| {
            let is_behind = |time: &Time| time.times_us.len() < n_rounds;
            is_behind(a).cmp(&is_behind(b)).then(a.median_us().total_cmp(&b.median_us()))
        });
        ranked
    }

    /// Whether it is what the tables say now.
    pub fn is_present(&self, entry: &CandidateResult) -> bool {
        let Candidate { template, params } = &entry.candidate;
        (template.label(), params) == (self.present.0.clone(), &self.present.1)
    }

    /// The time of what the tables say now, in microseconds.
    pub fn present_us(&self) -> Option<f64> {
        let entry = self.entries.iter().find(|entry| self.is_present(entry))?;
        entry.verdict.time().map(Time::median_us)
    }

    /// How many kernels are not to be used, by the reason.
    pub fn refused(&self) -> BTreeMap<Reason, usize> {
        let mut counts = BTreeMap::new();
        for entry in &self.entries {
            if let Verdict::Refused { reason, .. } = entry.verdict {
                *counts.entry(reason).or_default() += 1;
            }
        }
        counts
    }

    /// 10^9 bytes per second, for a launch that takes so long.
    pub fn gbps(&self, time_us: f64) -> f64 {
        self.work.total_bytes() / time_us / 1e3
    }

    /// Whether the same row decides for both.
    pub(crate) fn is_by_the_row_of(&self, other: &Self) -> bool {
        let place = |one: &Self| one.present_row.as_ref().map(|row| row.place.clone());
        place(self).is_some() && place(self) == place(other)
    }

    /// For how many rows what the tables say now holds.
    pub(crate) fn present_tokens(&self) -> Tokens {
        self.present_row.as_ref().map_or(Tokens { first: 1, last: None }, |row| row.tokens)
    }
}

impl Tuner<'_> {
    /// Tunes a piece; `before` are good at the number of rows before.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn tune(&mut self, piece: &Piece, before: &[Candidate]) -> Result<Tuned, TuneError> {
        let (mut tuned, choices) = self.begin(piece)?;
        let mut entries = CandidateResults::new();
        let walks = walks(self.chooser, self.job, self.effort, piece, &choices);
        tuned.n_tried = self.walk(piece, &walks, before, &mut entries)?;
        if tuned.n_tried == 0 && self.is_over() {
            return Err(TuneError::TimeIsOver);
        }
        if tuned.n_tried == 0 {
            return Err(TuneError::NothingToTry { op: tuned.problem.ops.join("+") });
        }
        let known = self.without_search(piece, &choices);
        self.finals(piece, known.into_iter().chain(before.iter().take(FINALISTS).cloned()), &mut entries)?;
        self.done_in_time(tuned, entries)
    }

    fn done(&mut self, mut tuned: Tuned, entries: CandidateResults) -> Tuned {
        tuned.entries = entries.into_values().collect();
        if let Some((_, time)) = tuned.ranked().first() {
            self.best_us.insert(tuned.piece, time.median_us());
        }
        tuned
    }

    /// What is worth a comparison at the numbers of rows beside: the best of what was measured, all of what was
    /// predicted, since its objects are there.
    pub fn good(&self, tuned: &Tuned) -> Vec<Candidate> {
        let most = if self.judge.kind() == ProvenanceKind::Measured { FINALISTS } else { usize::MAX };
        tuned.ranked().into_iter().take(most).map(|(entry, _)| entry.candidate.clone()).collect()
    }

    /// Where walks at more rows begin: what is good here, and the best of each template.
    pub fn seeds(&self, tuned: &Tuned) -> Vec<Candidate> {
        let mut seeds: Vec<Candidate> = Vec::new();
        for (place, (CandidateResult { candidate, .. }, _)) in tuned.ranked().into_iter().enumerate() {
            if place < FINALISTS || !seeds.iter().any(|one| one.template.label() == candidate.template.label()) {
                seeds.push(candidate.clone());
            }
        }
        seeds
    }

    /// Holds some kernels and the present one against each other.
    ///
    /// # Errors
    /// [`TuneError`].
    pub fn compare(&mut self, piece: &Piece, known: Vec<Candidate>) -> Result<Tuned, TuneError> {
        let (mut tuned, choices) = self.begin(piece)?;
        let mut entries = CandidateResults::new();
        tuned.n_tried = known.len();
        let without_search = self.without_search(piece, &choices);
        self.finals(piece, known.into_iter().chain(without_search), &mut entries)?;
        self.done_in_time(tuned, entries)
    }

    /// What runs now, and what its template would do if there were no row: a new row is to be better than both, however
    /// little is searched.
    fn without_search(&self, piece: &Piece, choices: &[Choice]) -> Vec<Candidate> {
        let Choice { template, params, why } = &choices[0];
        let with = |params: Params| Candidate { template: Arc::clone(template), params };
        let is_asked_for = |params: &Params| {
            let TuneEffort { params: fixed, variants, .. } = self.effort;
            (variants.is_empty() || variants.contains(&template.variant))
                && fixed.iter().all(|(name, value)| params.get(name) == Some(value))
        };
        let problem = &self.job.problems[piece.problem].problem;
        let defaults = template.legal_params(problem, self.chooser.target()).next();
        let defaults = defaults.filter(|defaults| matches!(why, Why::Row(_)) && is_asked_for(defaults));
        [params.clone()].into_iter().chain(defaults).map(with).collect()
    }

    /// The results, unless the time is over and the present choice is not among them: then nothing is known to be
    /// better than it.
    fn done_in_time(&mut self, tuned: Tuned, entries: CandidateResults) -> Result<Tuned, TuneError> {
        let is_present = |entry: &CandidateResult| tuned.is_present(entry) && entry.verdict.time().is_some();
        if self.is_over() && !entries.values().any(is_present) {
            return Err(TuneError::TimeIsOver);
        }
        Ok(self.done(tuned, entries))
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until) || self.judge.is_over()
    }

    /// What is known of a piece before anything is tried.
    fn begin(&self, piece: &Piece) -> Result<(Tuned, Vec<Choice>), TuneError> {
        let problem = &self.job.problems[piece.problem].problem;
        let n_rows = piece.n_tokens as usize;
        let ranking = self.chooser.ranking(problem, n_rows, piece.step)?;
        let first = &ranking.choices[0];
        let row = match &first.why {
            Why::Row(row) => {
                let mut row = row.as_ref().clone();
                row.tokens = self.decided_by(&row, piece);
                Some(row)
            }
            Why::Priority(_) => ranking.rows.first().filter(|row| row.template == APART).cloned(),
        };
        let tuned = Tuned {
            piece: *piece,
            problem: problem.clone(),
            work: timing::work(self.chooser.library(), problem, &self.job.setup(piece))?,
            n_tried: 0,
            present: (first.template.label(), first.params.clone()),
            is_fused: problem.ops.len() > 1 && self.chooser.prefers(problem, n_rows, piece.step).is_ok(),
            present_row: row,
            is_between: false,
            entries: Vec::new(),
        };
        Ok((tuned, ranking.choices))
    }

    /// The numbers of rows around a piece's own at which a row decides: of its range without what other rows decide.
    fn decided_by(&self, row: &TuningRow, piece: &Piece) -> Tokens {
        let problem = &self.job.problems[piece.problem].problem;
        let is_others = |n_rows: &u32| {
            let ranking = self.chooser.ranking(problem, *n_rows as usize, piece.step);
            ranking.is_ok_and(|ranking| ranking.row().is_none_or(|other| other.place != row.place))
        };
        let starts = self.chooser.bucket_starts(problem, piece.step);
        let starts = starts.into_iter().filter_map(|start| u32::try_from(start).ok());
        let (before, behind): (Vec<u32>, Vec<u32>) = starts.partition(|start| *start <= piece.n_tokens);
        // What lies before a start is of one row.
        let first = before.into_iter().rev().find(|start| *start == row.tokens.first || is_others(&(start - 1)));
        let last = behind.into_iter().find(is_others).map(|start| start - 1);
        Tokens { first: first.unwrap_or(row.tokens.first), last: last.or(row.tokens.last) }
    }

    /// Holds the best, and some that are known, against each other.
    fn finals(
        &mut self,
        piece: &Piece,
        known: impl Iterator<Item = Candidate>,
        entries: &mut CandidateResults,
    ) -> Result<(), TuneError> {
        let mut best: Vec<(f64, &CandidateResult)> =
            entries.values().filter_map(|entry| Some((entry.verdict.time()?.median_us(), entry))).collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut candidates: Vec<Candidate> =
            best.into_iter().take(FINALISTS).map(|(_, entry)| entry.candidate.clone()).collect();
        let known: Vec<Candidate> = known.collect();
        for known in &known {
            if !candidates.iter().any(|other| is_same(other, known)) {
                candidates.push(known.clone());
            }
        }
        // A model says the same each time.
        let is_measured = self.judge.kind() == ProvenanceKind::Measured;
        self.ask(piece, candidates, &known, if is_measured { FINAL_ROUNDS } else { ROUNDS }, entries)
    }

    /// Asks about candidates, the journal first.
    fn ask(
        &mut self,
        piece: &Piece,
        candidates: Vec<Candidate>,
        known: &[Candidate],
        n_rounds: usize,
        entries: &mut CandidateResults,
    ) -> Result<(), TuneError> {
        let asked = self.asked(candidates, piece, known, n_rounds, entries)?;
        match self.judged(asked, piece, n_rounds, entries) {
            Err(TuneError::Judge(JudgeError::TimeIsOver)) => Ok(()), // what was said before counts
            judged => judged.map(drop),
        }
    }

    /// The kernels of candidates that were not asked about in as many rounds. Those that are `known` may spill.
    pub(super) fn asked(
        &self,
        candidates: Vec<Candidate>,
        piece: &Piece,
        known: &[Candidate],
        n_rounds: usize,
        entries: &CandidateResults,
    ) -> Result<CandidateKernels, TuneError> {
        let problem = &self.job.problems[piece.problem].problem;
        let (library, target) = (self.chooser.library(), self.chooser.target());
        let mut asked = CandidateKernels { all: candidates.iter().map(identity).collect(), kernels: Vec::new() };
        let mut is_asked = BTreeSet::new();
        for candidate in candidates {
            let is_there = n_rounds == ROUNDS && entries.contains_key(&identity(&candidate));
            if is_there || !is_asked.insert(identity(&candidate)) {
                continue;
            }
            let Candidate { template, params } = &candidate;
            asked.kernels.push(match render(library, template, problem, params, target) {
                Ok(rendered) => {
                    let request = Request::new(&rendered, target);
                    let key = self.store.key(&request)?.digest();
                    let is_known = known.iter().any(|known| is_same(known, &candidate));
                    Ok(CandidateKernel { candidate, rendered, request, key, is_known })
                }
                Err(error) => Err(CandidateResult { candidate, verdict: Verdict::refused(Reason::NotCompiled, error) }),
            });
        }
        Ok(asked)
    }

    /// Judges candidates: adds the results to the entries, and returns the times of all candidates, in their order.
    pub(super) fn judged(
        &mut self,
        asked: CandidateKernels,
        piece: &Piece,
        n_rounds: usize,
        entries: &mut CandidateResults,
    ) -> Result<Vec<Option<f64>>, TuneError> {
        let kernels: Vec<CandidateKernel> = asked.kernels.iter().flatten().cloned().collect();
        let mut verdicts = self.verdicts(piece, kernels, n_rounds)?.into_iter();
        for one in asked.kernels {
            let entry = match one {
                Ok(kernel) => {
                    let verdict = verdicts.next().expect("one for each kernel");
                    CandidateResult { candidate: kernel.candidate, verdict }
                }
                Err(entry) => entry,
            };
            entries.insert(identity(&entry.candidate), entry);
        }
        Ok(asked.all.iter().map(|one| entries[one].verdict.time().map(Time::median_us)).collect())
    }

    /// What the journal says, else what the judge says, which the journal then keeps. Kernels of finals are compared
    /// with each other: it takes all of them or none from the journal.
    fn verdicts(
        &mut self,
        piece: &Piece,
        kernels: Vec<CandidateKernel>,
        n_rounds: usize,
    ) -> Result<Vec<Verdict>, TuneError> {
        let group = (n_rounds == FINAL_ROUNDS).then(|| {
            let all: BTreeSet<String> = kernels.iter().map(|kernel| kernel.key.to_string()).collect();
            Digest::of(format!("{all:?}").as_bytes()).to_string()
        });
        let keys: Vec<Key> = kernels.iter().map(|kernel| self.key(piece, kernel, n_rounds, group.as_deref())).collect();
        let mut found: Vec<Option<Verdict>> = keys.iter().map(|key| self.journal.find(key)).collect();
        if group.is_some() && found.iter().any(Option::is_none) {
            found.fill(None);
        }
        let open: Vec<usize> = (0..kernels.len()).filter(|&i| found[i].is_none()).collect();
        if !open.is_empty() {
            if self.is_over() {
                return Err(JudgeError::TimeIsOver.into());
            }
            let asked: Vec<CandidateKernel> = open.iter().map(|&i| kernels[i].clone()).collect();
            let said = self.judge.judge(piece, &asked, n_rounds, self.progress)?;
            for (i, verdict) in open.into_iter().zip(said) {
                // What does not compile is the cache's to remember, and may be this machine's fault. A device that
                // failed refuses whatever comes after the kernel that it failed of.
                let is_others = |reason| matches!(reason, Reason::NotCompiled | Reason::Refused);
                if !matches!(verdict, Verdict::Refused { reason, .. } if is_others(reason)) {
                    self.journal.keep(&keys[i], &verdict)?;
                }
                found[i] = Some(verdict);
            }
        }
        Ok(found.into_iter().map(|verdict| verdict.expect("each was found or asked")).collect())
    }

    pub(super) fn key(&self, piece: &Piece, kernel: &CandidateKernel, n_rounds: usize, group: Option<&str>) -> Key {
        let asked = &self.job.problems[piece.problem];
        let Candidate { template, params } = &kernel.candidate;
        let setup = self.job.setup(piece);
        let (key, inputs) = (kernel.key.to_string(), format!("{setup:?}"));
        let (problem, judge, rounds) = (asked.problem.identity(), self.judge.identity(), n_rounds.to_string());
        let is_known = if kernel.is_known { "known" } else { "" };
        let about = json!({
            "device": judge, "kind": self.judge.kind().name(), "context": self.job.context, "op": asked.problem.ops.join("+"), "dims": asked.problem.dims, "rows": piece.n_tokens,
            "step": piece.step.name(), "template": template.label(), "params": params, "rounds": n_rounds,
        });
        let about: Map<_, _> = about.as_object().expect("it is one").clone();
        Key::new([&*key, &problem, &inputs, &judge, &rounds, is_known, group.unwrap_or_default()], about)
    }
}

/// The label of its template, and its parameters.
fn identity(one: &Candidate) -> (String, Params) {
    (one.template.label(), one.params.clone())
}

/// Whether two are the same kernel of a problem.
pub fn is_same(one: &Candidate, other: &Candidate) -> bool {
    one.template.label() == other.template.label() && one.params == other.params
}

/// A template with parameters, as tables and messages name it.
pub fn name(template: &Template, params: &Params) -> String {
    let params: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{} {}", template.label(), params.join(" ")).trim_end().to_owned()
}
