//! What `tune` decides, with a device whose times are made up: which rows it writes, what it never asks twice, and what
//! whole steps and measurements overrule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use engine::graph::Rows;
use kernel::choice::Chooser;
use kernel::object::cache::Cache;
use kernel::object::compile::CompilerOptions;
use kernel::object::store::{Progress, Store};
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::{Precision, Problem};
use kernel::tuning::TuningTables;
use kernel::tuning::edit::{NewRow, Proof, merged};
use kernel::tuning::table::{Fact, ProvenanceKind, Tokens};
use workbench::tune::job::{Counts, Piece, TuningJob, TuningProblem};
use workbench::tune::journal::Journal;
use workbench::tune::judge::{CandidateKernel, Judge, JudgeError, Reason, Time, Verdict};
use workbench::tune::rows::{Rules, behind_measured, rows_of};
use workbench::tune::step::{Decision, StepWork, Steps, decide};
use workbench::tune::tuner::{TuneEffort, Tuned, Tuner};

/// A device on which blocks of 16 outputs are the fastest up to 23 rows, those of 192 above; blocks of 96 are refused,
/// though they would be faster than all.
struct MadeUp {
    n_asked: usize,
    kind: ProvenanceKind,
}

impl Judge for MadeUp {
    fn identity(&self) -> String {
        "a device that is made up".into()
    }

    fn kind(&self) -> ProvenanceKind {
        self.kind
    }

    fn judge(
        &mut self,
        piece: &Piece,
        kernels: &[CandidateKernel],
        n_rounds: usize,
        _progress: &dyn Progress,
    ) -> Result<Vec<Verdict>, JudgeError> {
        self.n_asked += kernels.len();
        let verdict = |kernel: &CandidateKernel| {
            let params = &kernel.candidate.params;
            let is_small = piece.n_tokens <= 23;
            let us = match params.get("tile_out") {
                Some(96) => return Verdict::refused(Reason::Wrong, "it gives zeros, at once"),
                Some(16) if is_small => 10.0,
                Some(192) if !is_small => 10.0,
                _ => 20.0,
            };
            let others: u32 = params.iter().filter(|(name, _)| *name != "tile_out").map(|(_, value)| value).sum();
            let times_us = vec![us + f64::from(others) / 1000.0; n_rounds];
            let evidence = (self.kind == ProvenanceKind::Measured).then(|| "0".repeat(64));
            Verdict::Time(Time { times_us, evidence, source: "1".repeat(64), ..Time::default() })
        };
        Ok(kernels.iter().map(verdict).collect())
    }
}

/// A linear layer of a small model, on this machine's cores.
pub(super) struct World {
    pub(super) chooser: Chooser,
    pub(super) store: Store,
    pub(super) job: TuningJob,
}

impl World {
    pub(super) fn new(tables: TuningTables) -> Self {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let options = CompilerOptions::new(env!("CARGO_BIN_EXE_gptoss-jit").into());
        let problem = Problem {
            dims: [("in_features".to_owned(), 64), ("out_features".to_owned(), 192)].into(),
            flags: [("has_bias".to_owned(), false), ("has_residual".to_owned(), false)].into(),
            dtypes: [("weight".to_owned(), format::Dtype::F32)].into(),
            ..Problem::plain("linear", Precision::F32)
        };
        let (label, scalars, parts) = ("qkv".into(), [].into(), Vec::new());
        let problem_of_job = TuningProblem { label, problem, n_nodes: 1, rows: Rows::All, scalars, parts };
        Self {
            chooser: Chooser::new(library, tables, Target::host()).expect("they fit"),
            store: Store::new(Cache::in_memory(), options),
            job: TuningJob { problems: vec![problem_of_job], context: 64, cache_bytes: 1 << 20 },
        }
    }

    pub(super) fn tuner<'a>(
        &'a self,
        effort: &'a TuneEffort,
        judge: &'a mut dyn Judge,
        journal: &'a mut Journal,
    ) -> Tuner<'a> {
        let Self { chooser, store, job } = self;
        Tuner { chooser, store, job, effort, judge, journal, progress: &(), best_us: BTreeMap::new(), until: None }
    }

    fn tune(&self, judge: &mut MadeUp, journal: &mut Journal) -> Vec<Tuned> {
        self.tune_until(judge, journal, None)
    }

    /// What lies between the numbers of rows is not asked about after this time.
    fn tune_until(&self, judge: &mut MadeUp, journal: &mut Journal, until: Option<Instant>) -> Vec<Tuned> {
        let counts = Counts { decode: vec![1, 4, 16], prompt: vec![64, 128], searched: Vec::new() };
        let pieces = self.job.pieces(&BTreeSet::from([0]), &counts, self.chooser.library(), None);
        assert_eq!(pieces.iter().map(|piece| piece.n_tokens).collect::<Vec<_>>(), [1, 4, 16, 64, 128]);
        let fixed = [("tile_t", 32), ("tile_r", 4), ("tile_n", 8)].map(|(name, value)| (name.to_owned(), value)).into();
        let effort = effort(24, fixed);
        let mut tuner = self.tuner(&effort, judge, journal);
        let mut all = Vec::new();
        for piece in &pieces {
            all.push(tuner.tune(piece, &[]).expect("judged"));
        }
        tuner.refine(all, until).expect("judged")
    }

    fn rows(&self, tuned: &[Tuned], kind: ProvenanceKind) -> Vec<NewRow> {
        let facts = self.job.problems[0].problem.query().facts;
        rows_of(&self.job, tuned, &facts, Rules { kind, renews: false }, true, &|_| None)
    }
}

/// So many sets of parameters of `linear/dot`, with these as they are.
pub(super) fn effort(most: usize, params: Vec<(String, u32)>) -> TuneEffort {
    TuneEffort { most, shares: BTreeMap::new(), most_times: 1.0, variants: vec!["dot".into()], params }
}

fn no_tables() -> TuningTables {
    TuningTables::from_texts(&[]).expect("none")
}

fn measured() -> MadeUp {
    MadeUp { n_asked: 0, kind: ProvenanceKind::Measured }
}

#[test]
fn where_the_best_of_two_numbers_of_rows_differ_those_between_are_tried() {
    let world = World::new(no_tables());
    let tuned = world.tune(&mut measured(), &mut Journal::in_memory());
    let rows = world.rows(&tuned, ProvenanceKind::Measured);
    let told: Vec<(u32, Option<u32>, u32)> =
        rows.iter().map(|row| (row.tokens.first, row.tokens.last, row.params["tile_out"])).collect();
    assert_eq!(told.len(), 2, "what is refused is in no row, and neighbours that choose alike are one: {told:?}");
    assert_eq!((told[0].0, told[0].2, told[1].1, told[1].2), (1, 16, None, 192), "{told:?}");
    let edge = told[0].1.expect("it ends");
    assert!((19..=23).contains(&edge) && told[1].0 == edge + 1, "a switch at 23 is found to a fourth: {told:?}");
    assert!(rows.iter().all(|row| row.proof.evidence.is_some() && row.proof.problem.is_some()));
}

#[test]
fn what_a_search_that_was_cut_short_found_holds_only_near_where_it_was_judged() {
    let world = World::new(no_tables());
    let tuned = world.tune_until(&mut measured(), &mut Journal::in_memory(), Some(Instant::now()));
    assert_eq!(tuned.len(), 5, "nothing between");
    let rows = world.rows(&tuned, ProvenanceKind::Measured);
    let covered = |tile: u32| {
        let of_tile = rows.iter().filter(|row| row.params["tile_out"] == tile);
        of_tile.map(|row| row.tokens.to_string()).collect::<Vec<_>>()
    };
    // At 17 to 47 rows nobody knows, and at 23 the one is as wrong as the other at 24.
    assert_eq!((covered(16), covered(192)), (vec!["1-16".to_owned()], vec!["48+".to_owned()]));
}

#[test]
fn a_run_is_fused_only_where_its_ops_were_judged_beside_it() {
    let world = World::new(no_tables());
    let mut tuned = world.tune(&mut measured(), &mut Journal::in_memory());
    for one in &mut tuned {
        one.problem.ops = vec!["rmsnorm".into(), "linear".into()];
    }
    let facts = world.job.problems[0].problem.query().facts;
    let rules = Rules { kind: ProvenanceKind::Measured, renews: false };
    let covered = |apart_us: &dyn Fn(u32) -> Option<f64>, tuned: &[Tuned]| {
        let rows = rows_of(&world.job, tuned, &facts, rules, true, &|one| apart_us(one.piece.n_tokens));
        rows.iter().map(|row| format!("{} {}", row.tokens, row.template)).collect::<Vec<_>>()
    };
    // One kernel takes 10 us, and its ops 30 as far as anybody looked.
    let fused: Vec<String> = covered(&|n| (n <= 16).then_some(30.0), &tuned);
    assert_eq!(fused, ["1-16 linear/dot"]);
    assert_eq!(covered(&|_| Some(9.0), &tuned), Vec::<String>::new());
    assert_eq!(covered(&|_| None, &tuned), Vec::<String>::new());
    // What is fused today stays so, with better parameters.
    tuned.iter_mut().for_each(|one| one.is_fused = true);
    assert_eq!(covered(&|_| None, &tuned).len(), 2);
}

#[test]
fn a_run_comes_after_its_ops_though_it_takes_more_of_a_step() {
    let mut world = World::new(no_tables());
    let linear = world.job.problems.remove(0);
    let of = |ops: &[&str], parts: Vec<usize>| {
        let mut problem = linear.problem.clone();
        problem.ops = ops.iter().map(|op| (*op).to_owned()).collect();
        problem.dims.insert("hidden_size".into(), 64);
        problem.dtypes.insert("scale".into(), format::Dtype::F32);
        problem.constants.insert("eps".into(), 1e-5);
        TuningProblem { problem, parts, ..linear.clone() }
    };
    world.job.problems = vec![of(&["rmsnorm", "linear"], vec![1, 2]), of(&["rmsnorm"], Vec::new()), linear.clone()];
    let (which, counts) = (BTreeSet::from([0, 1, 2]), Counts::only(&[4]));
    let shares = world.job.shares(&which, &counts, world.chooser.library(), None);
    assert!(shares[&0] > shares[&1] && shares[&0] > shares[&2], "{shares:?}");
    let pieces = world.job.pieces(&which, &counts, world.chooser.library(), None);
    assert_eq!(pieces.iter().map(|piece| piece.problem).collect::<Vec<_>>(), [2, 1, 0]);
}

#[test]
fn what_is_in_the_journal_is_not_asked_again_and_what_was_cut_off_goes_on_to_the_same_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.jsonl");
    let world = World::new(no_tables());
    let mut first = measured();
    let whole = world.tune(&mut first, &mut Journal::open(&path).expect("made"));
    let rows = world.rows(&whole, ProvenanceKind::Measured);
    let text = std::fs::read_to_string(&path).expect("read");
    assert_eq!(text.lines().count(), first.n_asked, "each verdict is a line");

    let mut again = measured();
    let same = world.tune(&mut again, &mut Journal::open(&path).expect("read"));
    assert_eq!((again.n_asked, world.rows(&same, ProvenanceKind::Measured)), (0, rows.clone()));

    // Killed anywhere, also amid a line.
    for part in [1, 3, 7] {
        std::fs::write(&path, &text[..text.len() * part / 10]).expect("cut off");
        let mut rest = measured();
        let same = world.tune(&mut rest, &mut Journal::open(&path).expect("read"));
        assert!((1..first.n_asked).contains(&rest.n_asked), "{} of {}", rest.n_asked, first.n_asked);
        assert_eq!(world.rows(&same, ProvenanceKind::Measured), rows);
    }
}

const ROW: &str = r#"
    provenance.tuned = { kind = "KIND", date = "2026-11-22", method = "tune" }
    [[rows]]
    op = "linear"
    tokens = "3-8"
    use = "linear/dot"
    params = { tile_out = TILE_OUT }
    provenance = "tuned"
"#;

/// A table of one row, of this kind: from 3 to 8 rows, blocks have so many outputs.
pub(super) fn table(kind: &str, tile_out: u32) -> TuningTables {
    let text = ROW.replace("KIND", kind).replace("TILE_OUT", &tile_out.to_string());
    TuningTables::from_texts(&[("host", &text)]).expect("right")
}

#[test]
fn a_predicted_row_never_takes_the_place_of_a_measured_one() {
    let covered = |kind: &str| {
        let world = World::new(table(kind, 48));
        let mut judge = MadeUp { n_asked: 0, kind: ProvenanceKind::Predicted };
        let tuned = world.tune(&mut judge, &mut Journal::in_memory());
        let rows = world.rows(&tuned, ProvenanceKind::Predicted);
        let rows = behind_measured(rows, world.chooser.tables(), &Target::host());
        let covers = |n: u32| rows.iter().any(|row| row.tokens.contains(n));
        [1, 2, 3, 8, 9, 64].map(covers)
    };
    assert_eq!(covered("measured"), [true, true, false, false, true, true]);
    assert_eq!(covered("predicted"), [true; 6]);
}

/// Whole steps that take as long as the rows say.
struct MadeUpSteps {
    n_done: usize,
}

impl Steps for MadeUpSteps {
    type Error = String;

    /// Faster with the new rows, but for steps of 256 rows: there a kernel that was timed at 16 is slow.
    fn tok_per_s(&mut self, work: &StepWork, rows: Option<&[NewRow]>) -> Result<f64, String> {
        self.n_done += 1;
        let new = rows.is_some_and(|rows| rows.iter().any(|row| row.tokens.contains(work.rows)));
        let noise = 1.0 + f64::from(self.n_done as u32 % 3) / 1000.0;
        Ok(1000.0
            * noise
            * if !new {
                1.0
            } else if work.rows == 256 {
                0.85
            } else {
                1.05
            })
    }
}

pub(super) fn row(tokens: &str) -> NewRow {
    NewRow {
        op: "linear".into(),
        facts: [("weight".to_owned(), Fact::Text("f32".into()))].into(),
        tokens: tokens.parse().expect("a range"),
        step: None,
        template: "linear/dot".into(),
        params: [("tile_out".to_owned(), 16)].into(),
        time_us: 10.0,
        gbps: 1.0,
        timed_at: 16,
        proof: Proof::default(),
    }
}

fn decided(rows: Vec<NewRow>) -> Decision {
    let steps = [1, 8, 32, 256].map(|n| (format!("decode, batch {n}"), StepKind::Decode, n));
    decide(rows, &StepWork::all(&steps), 3, &mut MadeUpSteps { n_done: 0 }, &|| false).expect("measured")
}

#[test]
fn rows_that_make_a_step_slower_are_cut_there_and_kept_elsewhere() {
    let decision = decided(vec![row("1-16"), row("17+")]);
    let tokens: Vec<String> = decision.kept.iter().map(|row| row.tokens.to_string()).collect();
    // Halfway between 32 and 256 is 90.
    assert_eq!((tokens, decision.n_dropped), (vec!["1-16".to_owned(), "17-90".to_owned()], 1));
    let gains: Vec<f64> = decision.outcomes.iter().map(|outcome| (100.0 * outcome.gain()).round()).collect();
    assert_eq!(gains, [105.0, 105.0, 105.0, 100.0]);
    assert!(!decision.outcomes.iter().any(|outcome| outcome.is_slower()));
}

#[test]
fn a_table_that_makes_the_step_slower_is_refused_whole() {
    let decision = decided(vec![row("100+")]);
    assert_eq!((decision.kept, decision.n_dropped), (vec![], 1));
    let last = decision.outcomes.last().expect("four");
    assert_eq!(last.before, last.after);
}

#[test]
fn a_work_speaks_for_the_numbers_of_rows_next_to_its_own() {
    let steps = [(StepKind::Decode, 1), (StepKind::Decode, 8), (StepKind::Mixed, 512)];
    let works = StepWork::all(&steps.map(|(step, n)| (n.to_string(), step, n)));
    let spoken: Vec<String> = works.iter().map(|work| work.speaks_for.to_string()).collect();
    assert_eq!(spoken, ["1-2", "3-64", "65+"]);
}

#[test]
fn proof_is_written_and_read_back() {
    let proof = Proof {
        spread: Some(0.0125),
        problem: Some("a".repeat(64)),
        source: Some("b".repeat(64)),
        object: Some("c".repeat(64)),
        evidence: Some("d".repeat(64)),
    };
    let provenance = kernel::tuning::table::Provenance {
        kind: ProvenanceKind::Measured,
        date: "2026-11-22".into(),
        method: "gptoss-jit tune".into(),
        device: Some("a device".into()),
        compiler: Some("a compiler".into()),
        notes: None,
    };
    let text = merged("host", "", &[NewRow { proof, ..row("1+") }], &provenance).expect("right");
    let tables = TuningTables::load(&[]).expect("right").with_table(&[], Path::new("x"), "host", &text).expect("right");
    let query = World::new(no_tables()).job.problems[0].problem.query();
    let found = tables.lookup(&query, 5, StepKind::Decode, &Target::host()).expect("a row");
    let read = [&found.problem, &found.source, &found.object, &found.evidence].map(|one| one.clone().expect("there"));
    assert_eq!(read, ["a", "b", "c", "d"].map(|digit| digit.repeat(64)));
    assert_eq!((found.spread, found.tokens), (Some(0.013), Tokens { first: 1, last: None }));
}

/// A watcher that fails when compiling begins.
struct Fails;

impl Progress for Fails {
    fn started(&self, _n_kernels: usize) {
        panic!("nobody watches");
    }
}

#[test]
fn a_search_whose_compiler_thread_panics_ends_with_a_sentence() {
    let World { chooser, store, job } = &World::new(no_tables());
    let effort = effort(2, Vec::new());
    let (judge, journal) = (&mut measured(), &mut Journal::in_memory());
    let mut tuner = Tuner {
        chooser,
        store,
        job,
        effort: &effort,
        judge,
        journal,
        progress: &Fails,
        best_us: BTreeMap::new(),
        until: None,
    };
    let piece = Piece { problem: 0, step: StepKind::Decode, n_tokens: 1 };
    let error = tuner.tune(&piece, &[]).expect_err("nothing is compiled");
    assert_eq!(error.to_string(), "compiling the candidates ended: nobody watches");
}
