//! `tune` and its limits: what is not asked any more when the time is over, and what little searching still looks at.

use std::cell::Cell;

use kernel::object::store::Progress;
use kernel::step::StepKind;
use kernel::template::Params;
use kernel::tuning::edit::NewRow;
use kernel::tuning::table::ProvenanceKind;
use workbench::tune::job::Piece;
use workbench::tune::journal::Journal;
use workbench::tune::judge::{CandidateKernel, Judge, JudgeError, Time, Verdict};
use workbench::tune::rows::{Rules, rows_of};
use workbench::tune::step::{Decision, StepWork, Steps, decide};
use workbench::tune::tuner::{TuneError, Tuned};

use super::tuner::{World, effort, row, table};

/// A device with a clock of its own, on which a kernel takes a second to judge, and times that are made up.
struct Clocked<'a> {
    seconds: Cell<usize>,
    limit: usize,
    us: &'a dyn Fn(&Params, u32) -> f64,
}

impl Judge for Clocked<'_> {
    fn identity(&self) -> String {
        "a device with a clock".into()
    }

    fn kind(&self) -> ProvenanceKind {
        ProvenanceKind::Measured
    }

    fn is_over(&self) -> bool {
        self.seconds.get() >= self.limit
    }

    fn judge(
        &mut self,
        piece: &Piece,
        kernels: &[CandidateKernel],
        n_rounds: usize,
        _progress: &dyn Progress,
    ) -> Result<Vec<Verdict>, JudgeError> {
        assert!(!self.is_over(), "asked after its time");
        self.seconds.set((self.seconds.get() + kernels.len()).min(self.limit));
        if self.is_over() {
            return Err(JudgeError::TimeIsOver);
        }
        let verdict = |kernel: &CandidateKernel| {
            let times_us = vec![(self.us)(&kernel.candidate.params, piece.n_tokens); n_rounds];
            let evidence = Some("0".repeat(64));
            Verdict::Time(Time { times_us, evidence, source: "1".repeat(64), ..Time::default() })
        };
        Ok(kernels.iter().map(verdict).collect())
    }
}

fn at(n_tokens: u32) -> Piece {
    Piece { problem: 0, step: StepKind::Decode, n_tokens }
}

#[test]
fn nothing_is_asked_when_the_judges_time_is_over_and_what_it_said_by_then_counts() {
    let world = World::new(table("measured", 16));
    // What the row says and the defaults, each alone and then against each other.
    let effort = effort(2, Vec::new());
    for (limit, is_first_told) in [(1, false), (2, false), (3, true), (5, true)] {
        let us = |_: &Params, _| 10.0;
        let mut judge = Clocked { seconds: Cell::new(0), limit, us: &us };
        let mut journal = Journal::in_memory();
        let (first, second) = {
            let mut tuner = world.tuner(&effort, &mut judge, &mut journal);
            (tuner.tune(&at(4), &[]), tuner.tune(&at(8), &[]))
        };
        match first {
            Ok(first) if is_first_told => assert_eq!((first.n_tried, first.present_us()), (2, Some(10.0)), "{limit}"),
            Err(TuneError::TimeIsOver) if !is_first_told => {}
            other => panic!("{limit}: {other:?}"),
        }
        assert!(matches!(second, Err(TuneError::TimeIsOver)), "{limit}");
        assert_eq!(judge.seconds.get(), limit);
    }
}

/// Whole steps that take ten seconds each, by a clock that is theirs.
struct ClockedSteps<'a>(&'a Cell<u32>);

impl Steps for ClockedSteps<'_> {
    type Error = String;

    fn tok_per_s(&mut self, _work: &StepWork, rows: Option<&[NewRow]>) -> Result<f64, String> {
        self.0.set(self.0.get() + 10);
        if self.0.get() > 75 {
            return Err("the compiler was stopped".into());
        }
        Ok(if rows.is_some() { 1010.0 } else { 1000.0 })
    }
}

#[test]
fn whole_steps_end_in_time_and_rows_that_were_not_compared_to_the_end_are_dropped() {
    let works = StepWork::all(&[1, 8, 32].map(|n| (format!("decode, batch {n}"), StepKind::Decode, n)));
    let decided = |until: u32| -> (Decision, u32) {
        let clock = Cell::new(0);
        let is_over = || clock.get() + 10 > until;
        let decision = decide(vec![row("1+")], &works, 3, &mut ClockedSteps(&clock), &is_over).expect("decided");
        (decision, clock.get())
    };
    let kept = |decision: &Decision| decision.kept.iter().map(|row| row.tokens.to_string()).collect::<Vec<_>>();
    // Three pairs of a work take a minute; each speaks for the rows next to its own.
    let (decision, seconds) = decided(65);
    assert_eq!((seconds, decision.outcomes.len(), decision.open.len()), (60, 1, 2));
    assert_eq!(kept(&decision), ["1-2"]);
    let (decision, seconds) = decided(45);
    assert_eq!((seconds, decision.outcomes.len(), kept(&decision).len()), (40, 0, 0), "half of a comparison is none");
    // What fails when the time is over was stopped, and what fails before is an error.
    let (decision, _) = decided(79);
    assert_eq!((decision.outcomes.len(), decision.open.len()), (1, 2));
    let clock = Cell::new(0);
    let failed = decide(vec![row("1+")], &works, 3, &mut ClockedSteps(&clock), &|| false);
    assert_eq!(failed.expect_err("it goes on to the end"), "the compiler was stopped");
}

/// The rows that are to be in the place of the table's, and their `tile_out`.
fn renewed(world: &World, tuned: &[Tuned]) -> Vec<(String, u32)> {
    let facts = world.job.problems[0].problem.query().facts;
    let rules = Rules { kind: ProvenanceKind::Measured, renews: true };
    let rows = rows_of(&world.job, tuned, &facts, rules, false, &|_| None);
    rows.iter().map(|row| (row.tokens.to_string(), row.params["tile_out"])).collect()
}

/// What the template of the table's row has without it.
fn default(world: &World) -> u32 {
    let (problem, library) = (&world.job.problems[0].problem, world.chooser.library());
    let template = library.template("linear/dot", world.chooser.target().language()).expect("it is there");
    let params = template.legal_params(problem, world.chooser.target()).next().expect("one is legal");
    assert_ne!(params["tile_out"], 16, "the row says something else");
    params["tile_out"]
}

#[test]
fn however_little_is_searched_a_new_row_is_no_slower_than_its_templates_defaults() {
    let world = World::new(table("measured", 16));
    let default = default(&world);
    let us = |params: &Params, _| if params["tile_out"] == default { 10.0 } else { 12.4 };
    let mut judge = Clocked { seconds: Cell::new(0), limit: 1000, us: &us };
    let (effort, mut journal) = (effort(1, Vec::new()), Journal::in_memory());
    let mut tuner = world.tuner(&effort, &mut judge, &mut journal);
    let tuned = [tuner.tune(&at(4), &[]).expect("judged")];
    assert_eq!(tuned[0].present_us(), Some(12.4));
    assert_eq!(renewed(&world, &tuned), [("3-8".to_owned(), default)]);
    let compared = [tuner.compare(&at(4), Vec::new()).expect("judged")];
    assert_eq!(renewed(&world, &compared), [("3-8".to_owned(), default)]);
}

#[test]
fn a_row_that_is_judged_anew_at_both_ends_becomes_two_where_they_differ() {
    let world = World::new(table("measured", 16));
    let default = default(&world);
    let at_ends = |us: &dyn Fn(&Params, u32) -> f64| {
        let mut judge = Clocked { seconds: Cell::new(0), limit: 1000, us };
        let (effort, mut journal) = (effort(2, Vec::new()), Journal::in_memory());
        let mut tuner = world.tuner(&effort, &mut judge, &mut journal);
        [3, 8].map(|n| tuner.tune(&at(n), &[]).expect("judged"))
    };
    let best = |tile: u32| move |params: &Params| if params["tile_out"] == tile { 10.0 } else { 20.0 };
    let differ = at_ends(&|params, n| if n == 3 { best(default)(params) } else { best(16)(params) });
    assert_eq!(renewed(&world, &differ), [("3".to_owned(), default), ("4-8".to_owned(), 16)]);
    let same = at_ends(&|params, _| best(default)(params));
    assert_eq!(renewed(&world, &same), [("3-8".to_owned(), default)]);
}
