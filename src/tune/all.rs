//! All pieces in their order: first the row counts at which parameters are searched, for every problem, then
//! comparisons and the counts between. If the job ends early, the most important row counts have been searched.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::progress::Bar;
use super::setup::Setup;
use super::{Args, report};
use crate::output::Output;
use hint::chain;
use kernel::object::store::Progress;
use kernel::tuning::table::ProvenanceKind;
use workbench::tune::job::Piece;
use workbench::tune::judge::JudgeError;
use workbench::tune::tuner::{TuneError, Tuned, Tuner};
use workbench::tune::walk::first_requests;

/// The requested job, and its observer.
pub(super) struct All<'a> {
    pub(crate) args: &'a Args,
    pub(crate) setup: &'a Setup,
    pub(crate) bar: &'a Bar<'a>,
    pub(crate) output: &'a Output,
    /// Pieces that are searched, besides the usual numbers of rows.
    pub(crate) searched: BTreeSet<Piece>,
    /// When nothing new is begun any more.
    pub(crate) until: Option<Instant>,
}

/// Compiles kernels ahead, with low priority.
struct Ahead;

impl Progress for Ahead {
    fn is_urgent(&self) -> bool {
        false
    }
}

impl All<'_> {
    /// Tunes all pieces; the results are problem by problem, the fewest rows first. Also returns whether the time was
    /// over before the end.
    pub(crate) fn tune(&self, tuner: &mut Tuner<'_>, pieces: &[Piece]) -> anyhow::Result<(Vec<Tuned>, bool)> {
        let of_no_launch = |piece: &&Piece| !self.args.stale && self.setup.is_only_fused(piece);
        let (n_fused, all) = (pieces.iter().filter(of_no_launch).count(), pieces.len());
        if n_fused > 0 {
            let what = match self.is_named() {
                true => "no step asks for their rows (`kernels plan --why`)",
                false => "they are timed as they are, not searched (`--op` searches them)",
            };
            self.output.note(&format!(
                "{n_fused} of {all} are of ops that only fused kernels compute at these token counts: {what}"
            ));
        }
        let problems: Vec<&[Piece]> = pieces.chunk_by(|a, b| (a.problem, a.step) == (b.problem, b.step)).collect();
        // Which of them is tuned now; those before it are done.
        let at = AtomicUsize::new(0);
        let (tuned, n_done) = thread::scope(|scope| {
            let ahead = thread::Builder::new().spawn_scoped(scope, || self.compile_ahead(&problems, &at));
            drop(ahead); // without it kernels are compiled when they are asked for
            let result = self.tune_problems(tuner, &problems, pieces.len(), &at);
            at.store(problems.len(), Ordering::Relaxed);
            result
        })?;
        let n_left = pieces.len() - n_done;
        if n_left > 0 {
            let all = pieces.len();
            self.output.note(&format!("{n_left} of {all} were not done in time; run `tune` again to continue"));
        }
        Ok((tuned, n_left > 0 || self.is_over()))
    }

    /// Gives what was tuned, and how many pieces were done.
    fn tune_problems(
        &self,
        tuner: &mut Tuner<'_>,
        problems: &[&[Piece]],
        n_pieces: usize,
        at: &AtomicUsize,
    ) -> anyhow::Result<(Vec<Tuned>, usize)> {
        let counts = self.setup.counts();
        let mut n_done = 0;
        let mut tuned: Vec<Vec<Tuned>> = vec![Vec::new(); problems.len()];
        for is_search in [true, false] {
            for (nth, (of_problem, tuned)) in problems.iter().zip(&mut tuned).enumerate() {
                at.store(if is_search { nth } else { problems.len() }, Ordering::Relaxed);
                let ends = [of_problem.first(), of_problem.last()];
                let is_searched = |piece: &Piece| {
                    let is_usual = ends.contains(&Some(piece)) || counts.searched.contains(&piece.n_tokens);
                    is_usual || self.searched.contains(piece)
                };
                let is_idle = of_problem.iter().all(|piece| self.is_only_fused(piece));
                for piece in of_problem.iter().filter(|piece| is_searched(piece) == is_search) {
                    if self.is_over() {
                        break;
                    }
                    n_done += usize::from(self.tune_one(tuner, piece, tuned, n_pieces > 1)?);
                }
                if !is_search && !self.args.stale && !is_idle {
                    *tuned = tuner.refine(std::mem::take(tuned), self.until)?;
                }
            }
        }
        Ok((tuned.into_iter().flatten().collect(), n_done))
    }

    /// Tunes one piece and puts it among the others of its problem: searches, or compares what is good at both of its
    /// neighbours. False if the time was over.
    fn tune_one(
        &self,
        tuner: &mut Tuner<'_>,
        piece: &Piece,
        tuned: &mut Vec<Tuned>,
        has_others: bool,
    ) -> anyhow::Result<bool> {
        self.bar.begin(&tuner.job.problems[piece.problem].problem, piece);
        let at = tuned.partition_point(|one| one.piece.n_tokens < piece.n_tokens);
        let below = at.checked_sub(1).map(|below| &tuned[below]);
        let result = match tuned.get(at) {
            // What a run has to be better than is what its ops are now.
            _ if self.is_only_fused(piece) => tuner.compare(piece, Vec::new()),
            None => tuner.tune(piece, &below.map(|below| tuner.seeds(below)).unwrap_or_default()),
            Some(above) => {
                let below = below.map(|below| tuner.good(below)).unwrap_or_default();
                tuner.compare(piece, [tuner.good(above), below].concat())
            }
        };
        let skip = |why: &str| {
            self.output.warning(&format!("{}: {why}", report::title(&self.setup.job, piece)));
            self.bar.skip();
        };
        match result {
            Ok(one) => {
                report::piece(&one, self.args, self.output)?;
                self.bar.done(&one);
                if !one.ranked().is_empty() {
                    tuned.insert(at, one);
                }
            }
            // What does not fit the device is no obstacle to the rest.
            Err(TuneError::Judge(JudgeError::Piece(why))) if has_others => skip(&why),
            Err(TuneError::Work(why)) if has_others => skip(&chain(&why)),
            Err(TuneError::TimeIsOver) => return Ok(false),
            Err(TuneError::NothingToTry { op }) => return Err(report::nothing_to_try(&op)),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Whether it is timed as it is: an op that is named is searched all the same.
    fn is_only_fused(&self, piece: &Piece) -> bool {
        !self.args.stale && !self.is_named() && self.setup.is_only_fused(piece)
    }

    fn is_named(&self) -> bool {
        !self.args.job.op.is_empty()
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Compiles what will be asked about first of each problem, while a GPU measures others: the compilers would have
    /// nothing to do. A host's cores measure themselves, and predictions keep the compilers busy.
    fn compile_ahead(&self, problems: &[&[Piece]], at: &AtomicUsize) {
        let Setup { chooser, store, job, .. } = self.setup;
        if self.setup.kind() != ProvenanceKind::Measured || !self.setup.target().is_real_gpu() {
            return;
        }
        let effort = self.setup.effort();
        let first = problems.iter().enumerate().filter_map(|(nth, of_problem)| Some((nth, of_problem.first()?)));
        for (nth, piece) in first {
            if nth <= at.load(Ordering::Relaxed) {
                continue;
            }
            // Whoever asks for one that does not compile is told then.
            drop(store.get_all(&first_requests(chooser, job, &effort, piece), &Ahead));
        }
    }
}
