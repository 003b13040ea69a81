//! `tune`: times the kernels of an op on a device, over rows and parameters.
//!
//! [`problems`] says what is timed: the problems of an op in a model's forward pass, or the ones that are named. How a
//! kernel is checked and timed is [`crate::workbench::timing`]'s; [`report`] prints what came of it.

mod problems;
mod report;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use gpu::Driver;

use super::model::CompileProgress;
use super::output::Output;
use super::source::SourceArgs;
use super::usage::UsageError;
use crate::choice::{Choice, Why};
use crate::config::NamedShape;
use crate::device::{self, Device};
use crate::dtype::Dtype;
use crate::object::store::Store;
use crate::pipeline::Pipeline;
use crate::target::Target;
use crate::template::{Params, Precision, Problem, Template};
use crate::tuning::TuningTables;
use crate::workbench::timing::search::{Limits, search};
use crate::workbench::timing::{Bench, Candidate, CandidateError, ROUNDS, Setup, Timed, Weights};
use problems::Workload;
use report::{Entry, Tuned};

/// Rounds in which the best are held against each other.
const FINAL_ROUNDS: usize = 15;

/// How many of the best that is done with.
const FINALISTS: usize = 4;

/// A template is left alone when a look around finds nothing that is at most so many times slower than another's best.
const HOPELESS: f64 = 2.0;

/// What a last cache holds where no table says it, in bytes: as much as any has.
const CACHE_BYTES: usize = 256 << 20;

/// Time the kernels of an op on a device, and say which template and parameters are best for how many rows
#[derive(clap::Args)]
pub struct Args {
    /// The ops: `linear`, `moe_mlp1`, …, and runs of them: `rmsnorm+linear`
    #[arg(long, value_delimiter = ',', value_name = "OP,…", required = true)]
    op: Vec<String>,

    /// Only the variants of these names
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    variant: Vec<String>,

    /// The model whose forward pass says which problems there are
    #[arg(long, value_enum, default_value = "gpt-oss-20b")]
    model: NamedShape,

    /// Only the problems with these dims; if there is none, the first one with these
    #[arg(long, value_delimiter = ',', value_name = "NAME=N,…", value_parser = assignment::<u32>)]
    dims: Vec<(String, u32)>,

    /// The same for flags
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL,…", value_parser = assignment::<bool>)]
    flag: Vec<(String, bool)>,

    /// Element types other than the model's
    #[arg(long, value_delimiter = ',', value_name = "NAME=TYPE,…", value_parser = dtype)]
    dtype: Vec<(String, Dtype)>,

    /// How exactly sums are done
    #[arg(long, value_enum, default_value = "bf16")]
    precision: Precision,

    /// Numbers of rows
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: Vec<u32>,

    /// Which rows ops that look at positions have: each alone in its slot, or a run of one slot
    #[arg(long, value_enum, default_value = "decode")]
    rows: problems::Rows,

    /// Positions that the last row of a slot sees; a prompt's are at least its rows
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    context: u32,

    /// Parameters that stay as given
    #[arg(long, value_delimiter = ',', value_name = "NAME=N,…", value_parser = assignment::<u32>)]
    params: Vec<(String, u32)>,

    /// Most parameter sets of a template that are tried for a number of rows; of more, a walk downhill from the present
    /// ones
    #[arg(long, default_value_t = 48, value_name = "N")]
    most: usize,

    /// How many of the best are shown
    #[arg(long, default_value_t = 5, value_name = "N")]
    show: usize,

    /// Write the best into the target's table in `--tuning`, else in the user's config folder: rows that are there keep
    /// the numbers of rows that these do not cover
    #[arg(long)]
    write: bool,

    /// Dims, flags and dtypes that the written rows want [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", requires = "write")]
    r#where: Vec<String>,

    /// The device: `cuda`, `hip:1`, `cpu` [default: the first that there is]
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<Device>,

    /// The device of this arch
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    #[command(flatten)]
    source: SourceArgs,
}

fn assignment<T: std::str::FromStr>(text: &str) -> Result<(String, T), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    let value = value.trim().parse().map_err(|_| format!("`{value}` is no value for it"))?;
    Ok((name.trim().to_owned(), value))
}

fn dtype(text: &str) -> Result<(String, Dtype), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=type")?;
    Dtype::from_name(value).map(|dtype| (name.to_owned(), dtype)).ok_or_else(|| format!("there is no type `{value}`"))
}

/// Runs the command.
///
/// # Errors
/// If there is no such device or op, or nothing of it can be timed.
pub fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let (library, tables) = (args.source.library()?, args.source.tables()?);
    let (target, driver) = args.open(&tables)?;
    if target.is_simulated {
        return Err(UsageError("the simulator says nothing of speed: `--device` names a GPU, or `cpu`".into()).into());
    }
    let product = tables.facts(&target.arch).and_then(|facts| facts.product.as_ref());
    let cache_bytes = product.and_then(|product| product.cache_bytes).unwrap_or(CACHE_BYTES);
    let pipeline = Pipeline::new(library, tables, target, Store::from_env()?, driver)?;
    let mut problems = Vec::new();
    for op in &args.op {
        problems.extend(problems::of(op, args, &pipeline)?);
    }
    problems.iter().try_for_each(|problem| write::facts(problem, args).map(drop))?; // a typing error costs no minutes
    let tuner = Tuner { args, pipeline: &pipeline, cache_bytes, output };
    let mut all = Vec::new();
    for problem in &problems {
        tuner.tune_problem(problem, &mut all)?;
    }
    report::finish(&all, &pipeline, output)?;
    if args.write { write::write(&all, args, &pipeline, output) } else { Ok(()) }
}

impl Args {
    fn open(&self, tables: &TuningTables) -> anyhow::Result<(Target, Arc<dyn Driver>)> {
        match (&self.device, &self.arch) {
            (Some(device), _) => Ok(device.open(tables, 0)?),
            (None, Some(arch)) => Ok(device::of_arch(arch, tables)?),
            (None, None) => Ok(Device::Auto.open(tables, 0)?),
        }
    }
}

/// Tunes one problem at one number of rows after the other.
struct Tuner<'a> {
    args: &'a Args,
    pipeline: &'a Pipeline,
    cache_bytes: usize,
    output: &'a Output,
}

/// Everything that was timed, by template and parameters.
type Entries = BTreeMap<(String, Params), Entry>;

impl Tuner<'_> {
    /// Tunes a problem at all numbers of rows, the fewest first.
    fn tune_problem(&self, problem: &Problem, all: &mut Vec<Tuned>) -> anyhow::Result<()> {
        let mut weights = Weights::default();
        let mut tokens = self.args.tokens.clone();
        tokens.sort_unstable();
        tokens.dedup();
        let mut before = None;
        for n_tokens in tokens {
            let workload = problems::workload(self.args, problem, n_tokens)?;
            let tuned = self.tune(problem, n_tokens, &workload, &mut weights, before.as_ref())?;
            report::print(&tuned, self.args.show, self.output)?;
            before = tuned.ranked().first().map(|(entry, _)| entry.candidate.clone());
            all.push(tuned);
        }
        Ok(())
    }

    /// Tunes a problem at one number of rows; `before` is the best of the number before.
    fn tune(
        &self,
        problem: &Problem,
        n_tokens: u32,
        workload: &Workload,
        weights: &mut Weights,
        before: Option<&Candidate>,
    ) -> anyhow::Result<Tuned> {
        let ranking = self.pipeline.chooser().ranking(problem, n_tokens as usize, self.args.rows.step())?;
        for warning in &ranking.warnings {
            self.output.warning(warning);
        }
        let setup = Setup {
            scalars: workload.scalars.clone(),
            inputs: workload.inputs.clone(),
            cache_bytes: self.cache_bytes,
            seed: u64::from(n_tokens),
        };
        let begun = Instant::now();
        let bench = Bench::new(self.pipeline, problem, &setup, weights)?;
        let prepared = begun.elapsed();
        let present = (ranking.choices[0].template.label(), ranking.choices[0].params.clone());
        let wanted =
            |choice: &&Choice| self.args.variant.is_empty() || self.args.variant.contains(&choice.template.variant);
        let mut entries = Entries::new();
        let mut n_tried = 0;
        for choice in ranking.choices.iter().filter(wanted) {
            n_tried += self.walk(&bench, problem, choice, &mut entries);
        }
        if n_tried == 0 {
            return Err(UsageError("no template has legal parameters as `--variant` and `--params` say".into()).into());
        }
        let first = &ranking.choices[0];
        let known = [Some(candidate(&first.template, &first.params)), before.cloned()];
        self.finals(&bench, known.into_iter().flatten(), &mut entries);
        let kernels = begun.elapsed() - prepared;
        self.output.detail(&format!(
            "{:.1} s for inputs and reference, {:.1} s for {n_tried} kernels",
            prepared.as_secs_f64(),
            kernels.as_secs_f64()
        ));
        Ok(Tuned {
            problem: problem.clone(),
            n_tokens,
            step: workload.step,
            work: bench.work().clone(),
            compared: bench.compared().to_owned(),
            n_copies: bench.n_copies(),
            n_tried,
            present,
            present_row: match &first.why {
                Why::Row(row) => Some(row.tokens),
                Why::Priority(_) => None,
            },
            entries: entries.into_values().collect(),
        })
    }

    /// Tries parameters of one template; gives how many.
    fn walk(&self, bench: &Bench<'_>, problem: &Problem, choice: &Choice, entries: &mut Entries) -> usize {
        let template = &choice.template;
        let fixed = &self.args.params;
        let keeps = |params: &Params| fixed.iter().all(|(name, value)| params.get(name) == Some(value));
        let all = template.legal_params(problem, self.pipeline.target());
        let legal: Vec<Params> = all.filter(keeps).collect();
        let Some(first) = legal.first() else { return 0 };
        let start = if keeps(&choice.params) { &choice.params } else { first };
        let best_of_others = entries.values().filter_map(Entry::time_us).fold(f64::INFINITY, f64::min);
        let limits = Limits { most: self.args.most.max(1), hopeless_us: HOPELESS * best_of_others };
        let tried = search(&legal, start, limits, &mut |params| {
            let candidates = params.iter().map(|params| candidate(template, params)).collect();
            self.time(bench, candidates, ROUNDS, entries)
        });
        tried.len()
    }

    /// Holds the best, and some that are known, against each other.
    fn finals(&self, bench: &Bench<'_>, known: impl Iterator<Item = Candidate>, entries: &mut Entries) {
        let mut best: Vec<&Entry> = entries.values().filter(|entry| entry.time_us().is_some()).collect();
        best.sort_by(|a, b| a.time_us().partial_cmp(&b.time_us()).expect("times are numbers"));
        let mut candidates: Vec<Candidate> = best.into_iter().take(FINALISTS).map(|e| e.candidate.clone()).collect();
        for known in known {
            let is_known = |c: &Candidate| c.template.label() == known.template.label() && c.params == known.params;
            if !candidates.iter().any(is_known) {
                candidates.push(known);
            }
        }
        self.time(bench, candidates, FINAL_ROUNDS, entries);
    }

    fn time(
        &self,
        bench: &Bench<'_>,
        candidates: Vec<Candidate>,
        n_rounds: usize,
        entries: &mut Entries,
    ) -> Vec<Option<f64>> {
        let timed = bench.time(candidates, n_rounds, &CompileProgress::new(self.output));
        let mut times = Vec::new();
        for (candidate, result) in timed {
            let entry = Entry::new(candidate, result);
            times.push(entry.time_us());
            entries.insert((entry.candidate.template.label(), entry.candidate.params.clone()), entry);
        }
        times
    }
}

fn candidate(template: &Arc<Template>, params: &Params) -> Candidate {
    Candidate { template: Arc::clone(template), params: params.clone() }
}

impl Entry {
    fn new(candidate: Candidate, result: Result<Timed, CandidateError>) -> Self {
        Self { candidate, result }
    }

    /// The median, in microseconds, of a candidate that is right.
    fn time_us(&self) -> Option<f64> {
        self.result.as_ref().ok().map(Timed::median_us)
    }
}
