//! Whole steps with and without the new rows, compared with the machine's limits.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::progress::Bar;
use super::setup::{self, Setup};
use super::write;
use crate::output::Output;
use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::placement::EmbeddingPlace;
use engine::{Engine, EngineOptions, Sizes};
use format::Dtype;
use kernel::object::key::Digest;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::step::StepKind;
use kernel::template::Precision;
use kernel::tuning::edit::NewRow;
use kernel::tuning::{TuningError, TuningTables};
use workbench::bench::limits::{self, Care, MachineLimits};
use workbench::bench::measure::Bench;
use workbench::bench::roofline::Model;
use workbench::bench::suite::{self, BenchEffort, Suite, SuiteOptions};
use workbench::tune::job::MOST_SEQUENCES;
use workbench::tune::journal::{Journal, Key};
use workbench::tune::step::{Decision, Outcome, StepWork, Steps, decide as decide_by};

/// How often old and new are measured in turn.
const PAIRS: usize = 3;

/// Default batches whose steps decide, as far as steps have that many rows.
const BATCHES: [u32; 5] = [1, 2, 8, 32, 256];

/// What whole steps say.
pub(super) struct Decided {
    pub(crate) decision: Decision,
    /// At most so many tokens per second, of each work by name.
    limits: Map<String, Value>,
}

/// Engines with the tables as they are and with new rows, one at a time: two models seldom fit a device.
struct Engines<'a> {
    setup: &'a Setup,
    /// The tables as they are.
    tables: &'a TuningTables,
    journal: &'a mut Journal,
    bar: &'a Bar<'a>,
    suite: Suite,
    limits: Option<MachineLimits>,
    /// Of each work by name: at most so many tokens per second.
    found: Map<String, Value>,
    /// How often each was done, by its name and the rows.
    n_done: BTreeMap<(String, String), usize>,
    until: Option<Instant>,
    /// What the longest measurement took.
    longest: &'a Cell<Duration>,
}

/// A work that was done.
#[derive(serde::Serialize, serde::Deserialize)]
struct Done {
    tok_per_s: f64,
    limit: f64,
}

/// Measures works with these rows before the others of `tables`, and without.
pub(super) fn decide(
    rows: Vec<NewRow>,
    setup: &Setup,
    tables: &TuningTables,
    journal: &mut Journal,
    bar: &Bar<'_>,
    until: Option<Instant>,
    output: &Output,
) -> anyhow::Result<Decided> {
    let works = works(setup);
    let asked = SuiteOptions { repeats: Some(3), steps: Some(20), ..SuiteOptions::default() };
    let suite = Suite::new(&asked, setup.target());
    let (found, n_done) = (Map::new(), BTreeMap::new());
    let longest = Cell::new(Duration::ZERO);
    let mut engines =
        Engines { setup, tables, journal, bar, suite, limits: None, found, n_done, until, longest: &longest };
    // A measurement cannot be stopped: none is begun that would not be done by then.
    let is_over = || until.is_some_and(|until| Instant::now() + longest.get() >= until);
    let decision = decide_by(rows, &works, PAIRS, &mut engines, &is_over)?;
    if decision.n_dropped > 0 {
        let why = "whole steps are slower with them, or were not measured within the time";
        output.note(&format!("{} rows were cut or dropped: {why}", decision.n_dropped));
    }
    for work in &decision.open {
        output.warning(&format!("no time was left for whole steps of {}; run `tune` again to continue", work.name));
    }
    Ok(Decided { decision, limits: engines.found })
}

fn works(setup: &Setup) -> Vec<StepWork> {
    let counts = setup.counts();
    let is_asked = !setup.args().tokens.is_empty();
    let decides = |&batch: &u32| if is_asked { batch <= MOST_SEQUENCES } else { BATCHES.contains(&batch) };
    let batches: BTreeSet<u32> = counts.decode.iter().copied().filter(decides).collect();
    let step = |batch: u32| (format!("decode, batch {batch}"), StepKind::Decode, batch);
    let mut steps: Vec<(String, StepKind, u32)> = batches.into_iter().map(step).collect();
    if let Some(&rows) = counts.prompt.iter().max() {
        let rows = rows.min(setup.checkpoint.config.max_seq_len as u32 / 2).max(2);
        steps.push((format!("prefill {rows}"), StepKind::Mixed, rows));
    }
    StepWork::all(&steps)
}

impl Steps for Engines<'_> {
    type Error = anyhow::Error;

    fn tok_per_s(&mut self, work: &StepWork, rows: Option<&[NewRow]>) -> anyhow::Result<f64> {
        let (text, tables) = self.tables(rows)?;
        let key = self.key(work, &text);
        let done = match self.journal.find(&key) {
            Some(done) => done,
            None => {
                let which = if rows.is_some() { "new" } else { "old" };
                self.bar.say(&format!("whole steps, {which}: {}", work.name));
                let begun = Instant::now();
                let done = self.measure(work, tables)?;
                self.longest.set(self.longest.get().max(begun.elapsed()));
                self.journal.keep(&key, &done)?;
                done
            }
        };
        self.found.insert(work.name.clone(), done.limit.into());
        Ok(done.tok_per_s)
    }
}

impl Engines<'_> {
    /// The tables with these rows, and what says which they are.
    fn tables(&self, rows: Option<&[NewRow]>) -> anyhow::Result<(String, TuningTables)> {
        let tables = self.tables;
        let Some(rows) = rows else { return Ok((String::new(), tables.clone())) };
        let text = write::merged(rows, self.setup)?;
        let args = self.setup.args();
        let search = TuningTables::default_search(args.source.tuning.as_deref());
        let with: Result<TuningTables, TuningError> =
            tables.with_table(&search, &setup::folder(&args.source)?, &write::name(self.setup), &text);
        Ok((text, with?))
    }

    /// Of one measurement: the same work is done again for each pair.
    fn key(&mut self, work: &StepWork, text: &str) -> Key {
        let setup = self.setup;
        let rows = Digest::of(text.as_bytes()).to_string();
        let nth = self.n_done.entry((work.name.clone(), rows.clone())).or_default();
        *nth += 1;
        let device = setup.device().unwrap_or_default();
        // The tables after the new rows, and the templates, decide too.
        let behind = self.tables.rows_for(setup.target()).map(|row| format!("{row:?}"));
        let behind = Digest::of(behind.collect::<String>().as_bytes()).to_string();
        let library = setup.chooser.library().templates().map(|template| &*template.file.text);
        let library = Digest::of(library.collect::<String>().as_bytes()).to_string();
        let model = format!("{:?} {:?} {nth}", setup.checkpoint.config, setup.precision);
        let about = json!({ "device": device, "work": work.name, "rows": rows, "nth": nth });
        let about = about.as_object().expect("it is one").clone();
        Key::new([device, &work.name, &rows, &behind, &library, &model, env!("CARGO_PKG_VERSION")], about)
    }

    fn measure(&mut self, work: &StepWork, tables: TuningTables) -> anyhow::Result<Done> {
        let setup = self.setup;
        let (target, driver) = setup.open()?;
        let library = setup.args().source.library()?;
        let store = Store::from_env()?.without_bundles();
        store.compiler().compile_until(self.until);
        let pipeline = Pipeline::new(library, tables, target, store, driver)?;
        if self.limits.is_none() {
            self.limits = Some(limits::measure(&pipeline, Care::Little)?);
        }
        let (which, sizes, rows) = self.work(work);
        let effort = self.suite.effort;
        let is_bf16 = setup.precision == Precision::Bf16;
        let model = ModelOptions {
            drafts: None,
            embedding: EmbeddingPlace::Device,
            precision: setup.precision,
            kv_dtype: if is_bf16 { Dtype::Bf16 } else { Dtype::F32 },
            n_slots: sizes.n_slots,
            capacity_tokens: sizes.capacity_tokens,
            max_rows: rows,
            max_logit_rows: sizes.max_logit_rows,
            odd_window: None,
            kv_budget_bytes: usize::MAX,
            max_prompt_rows: None,
            prefix_cache: PrefixCache::OFF,
        };
        let mut engine = Engine::load(
            &setup.checkpoint,
            EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None },
            &(),
        )?;
        let model = Model::from_checkpoint(&setup.checkpoint, engine.kv_layout().dtypes);
        let mut bench = Bench { engine: &mut engine, model: &model, effort, profiles: false, load_s: 0.0 };
        let measured = bench.measure(which)?;
        let limits = self.limits.as_ref().expect("measured above");
        Ok(Done { tok_per_s: measured.tok_per_s(), limit: measured.limit_tok_per_s(limits, None) })
    }

    /// What is done, in which sizes, and the most rows of a step.
    fn work(&self, work: &StepWork) -> (suite::Workload, Sizes, usize) {
        let (rows, most) = (work.rows as usize, self.setup.checkpoint.config.max_seq_len);
        let BenchEffort { steps, .. } = self.suite.effort;
        match work.step {
            StepKind::Mixed => (suite::Workload::Prefill { tokens: rows }, Sizes::for_tokens(1, rows, 1), rows),
            StepKind::Decode => {
                let context = match self.setup.target().is_gpu() {
                    true => (16_384 / rows).clamp(16, 512),
                    false => 16,
                };
                let chunk = rows.max(512);
                let new = suite::decode_tokens(rows, context, self.suite.effort, chunk);
                let context = context.min(most.saturating_sub(new + steps)).max(1);
                let which = suite::Workload::Decode { batch: rows, context };
                (which, Sizes::for_tokens(rows, context + new, rows), chunk)
            }
        }
    }
}

impl Decided {
    /// Tokens per second before and after, beside the limit.
    pub(crate) fn print(&self, output: &Output) -> anyhow::Result<()> {
        output.line("\nwhole steps, tok/s:")?;
        let middle = |values: &[f64]| {
            let mut rising = values.to_vec();
            rising.sort_by(f64::total_cmp);
            rising[rising.len() / 2]
        };
        let row = |outcome: &Outcome| {
            let limit = self.limit(outcome);
            let (before, after) = (middle(&outcome.before), middle(&outcome.after));
            vec![
                outcome.work.name.clone(),
                format!("{before:.1}"),
                format!("{after:.1}"),
                format!("{:+.1}", 100.0 * (outcome.gain() - 1.0)),
                format!("{limit:.1}"),
                format!("{:.1}", 100.0 * after / limit),
            ]
        };
        let rows: Vec<Vec<String>> = self.decision.outcomes.iter().map(row).collect();
        let right = ["before", "after", "gain %", "limit", "% of it"];
        output.table(&["work", right[0], right[1], right[2], right[3], right[4]], &rows, &right)?;
        Ok(())
    }

    fn limit(&self, outcome: &Outcome) -> f64 {
        self.limits.get(&outcome.work.name).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    pub(crate) fn json(&self) -> Value {
        let outcomes = self.decision.outcomes.iter().map(|outcome| {
            let limit = self.limit(outcome);
            json!({
                "work": outcome.work.name, "before": outcome.before, "after": outcome.after, "gain": outcome.gain(),
                "limit": limit,
            })
        });
        json!({ "works": outcomes.collect::<Vec<_>>(), "dropped": self.decision.n_dropped })
    }
}
