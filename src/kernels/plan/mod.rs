//! `kernels plan`: which template runs for each node of a model and each number of rows, and what decided that.
//!
//! It asks what loading a model asks ([`Decisions`]) and prints it: [`crate::spans`] puts equal layers and equal
//! ranges of rows together, [`report`] has the words and the JSON.

mod report;
mod rows;

use crate::args::source::{SourceArgs, named_target};
use crate::args::{KvArgs, ModelArgs, StoredWeightsArgs};
use crate::output::Output;
use crate::spans::{self, SpanLine};
use crate::usage::UsageError;
use engine::Sizes;
use engine::blueprint::{Blueprint, precision_for};
use engine::device::Device;
use engine::graph::placement::Place;
use engine::plan::decisions::Decisions;
use engine::plan::overruled::Overruled;
use kernel::choice::Chooser;
use kernel::object::bundle::host_target;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::tuning::TuningTables;
use report::Report;

/// Longest sequence, in tokens: as `run` has it.
const CAPACITY_TOKENS: usize = 1024;

/// What the table says.
pub(super) const COLUMNS: &str = "\
Columns:
  nodes      What one launch computes, in which layers: `block.0-23.attn.norm + qkv`
  step       decode: one token for each sequence; mixed: several tokens of a sequence, as
             of its prompt; any: both
  rows       Token rows of the step. With `logits` only those for which a next token is
             computed, with `changed` those whose logits a request changes, with
             `logprobs` those whose log-probabilities it asks for
  template   The kernel that runs, with its parameters in the next column
  chosen by  The tuning row (file:line) and its kind: measured, predicted or hand;
             `before` is a tuning row that applies too and lost. Or the priority
  next       The template that would run if that one did not exist, and how many more fit
  by         With --n-cpu-moe: who computes it";

#[derive(clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The device that would run the model [default: as `run`]
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<Device>,

    /// A target, here or not: `gfx1100`, `sm_90`, `sim:gfx1100`, `x86-64-v3`
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    #[command(flatten)]
    source: SourceArgs,

    /// Precision of activations and sums [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum)]
    precision: Option<Precision>,

    #[command(flatten)]
    stored: StoredWeightsArgs,

    /// Last N layers whose experts this machine's processor computes from main memory
    #[arg(long, default_value_t = 0, value_name = "N")]
    n_cpu_moe: usize,

    #[command(flatten)]
    cache: KvArgs,

    /// Sequences at a time
    #[arg(short, long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,

    /// Only kernels of these ops
    #[arg(long, value_delimiter = ',', value_name = "OP,…")]
    op: Vec<String>,

    /// Only these row counts
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Vec<u32>,

    /// All reasons: every candidate, every tuning row that applies, every run that is not fused
    #[arg(long)]
    why: bool,
}

pub(super) fn run(args: &PlanArgs, output: &Output) -> anyhow::Result<()> {
    let (library, tables) = (args.source.library()?, args.source.tables()?);
    let target = args.target(&tables)?;
    let (precision, checkpoint) = precision_for(&args.model.open(output)?, args.precision, args.stored.on(&target));
    let n_slots = args.batch as usize;
    let sizes = Sizes::for_tokens(n_slots, CAPACITY_TOKENS.min(checkpoint.config.max_seq_len), n_slots);
    let kv_budget_bytes = args.cache.kv_memory.map_or(usize::MAX, |mib| mib.saturating_mul(1 << 20));
    let model = args.cache.model_options(precision, sizes, kv_budget_bytes);
    let Blueprint { mut graph, limits, .. } = Blueprint::new(&checkpoint, &model, &target, &library)?;
    if args.n_cpu_moe > 0 && (!target.is_gpu() || checkpoint.expert_bytes().is_empty()) {
        let why = "`--n-cpu-moe` is for models with experts on a GPU";
        return Err(UsageError(why.into()).into());
    }
    graph.place_experts(checkpoint.config.family, args.n_cpu_moe);
    let chooser = Chooser::new(library, tables, target)?;
    let decisions = Decisions::new(&graph, Place::Device, &chooser, limits)?;
    rows::warnings(&chooser, &graph)?.iter().for_each(|warning| output.warning(warning));
    let mut overruled = Overruled::all(&graph, &chooser, &decisions);
    overruled.retain(|one| args.op.is_empty() || one.template.ops.iter().any(|op| args.op.contains(op)));
    let host = Chooser::new(args.source.library()?, args.source.tables()?, host_target())?;
    let of_host = Decisions::new(&graph, Place::Host, &host, limits)?;
    let streamed = Decisions::new(&graph, Place::Streamed, &chooser, limits)?;
    let all = [&decisions, &of_host, &streamed];
    args.check_ops(&all)?;
    let mut lines = spans::lines(&all, args.why || output.is_json());
    lines.retain(|line| args.asks_for(line));
    let host = (!of_host.all.is_empty()).then(|| checkpoint.bytes_per_token_of_last_experts(args.n_cpu_moe));
    let bytes_per_token = [checkpoint.bytes_per_token(), host.unwrap_or(0)];
    let (model, chooser) = (args.model.name(), &chooser);
    let report = Report { model, precision, limits, chooser, lines: &lines, overruled, bytes_per_token };
    if output.is_json() {
        return Ok(output.json(&report.json())?);
    }
    report.print(args.why, output)
}

impl PlanArgs {
    fn target(&self, tables: &TuningTables) -> anyhow::Result<Target> {
        match (&self.device, &self.arch) {
            (None, Some(arch)) => named_target(arch, tables),
            (device, _) => Ok(device.clone().unwrap_or(Device::Auto).open(tables, 1)?.0),
        }
    }

    /// Every op that is asked for is in the model.
    fn check_ops(&self, all: &[&Decisions]) -> Result<(), UsageError> {
        let mut known: Vec<&String> = Vec::new();
        for op in all.iter().flat_map(|of| of.distinct().flat_map(|decision| &of.problem(decision).ops)) {
            if !known.contains(&op) {
                known.push(op);
            }
        }
        match self.op.iter().find(|op| !known.contains(op)) {
            Some(op) => {
                let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
                Err(UsageError(format!("--op {op}: not in the forward pass, expected one of: {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn asks_for(&self, line: &SpanLine<'_>) -> bool {
        let has_op = self.op.is_empty() || line.problem.ops.iter().any(|op| self.op.contains(op));
        let is_counted = |&n: &u32| (line.first_row_count..=line.last_row_count).contains(&(n as usize));
        has_op && (self.tokens.is_empty() || self.tokens.iter().any(is_counted))
    }
}
