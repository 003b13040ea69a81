//! `tune`: finds the fastest kernels of a model's forward pass on a device, or predicts them with a model of the chip,
//! and writes them into a tuning table.
//!
//! [`setup`] lists what is tuned, [`all`] gives the order, [`progress`] shows the progress, [`report`] prints the
//! results, [`plot`] draws them, [`write`] makes rows of them, for kernels that [`gate`] lets through, and [`steps`]
//! measures whole steps with these rows. [`workbench::tune`] judges kernels.

mod all;
mod diff;
mod gate;
mod lint;
mod plot;
mod progress;
mod rekey;
mod report;
mod setup;
mod steps;
mod write;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::output::Output;
use super::output_file::OutputFile;
use super::usage::UsageError;
use crate::args::source::SourceArgs;
use crate::args::{QuantizeArgs, StoredWeightsArgs};
use all::All;
use engine::device::Device;
use format::Dtype;
use kernel::step::StepKind;
use kernel::template::Precision;
use kernel::tuning::table::ProvenanceKind;
use model::config::NamedShape;
use progress::Bar;
use setup::Setup;
use system::units::parse_duration;

/// Find the fastest kernels of a model's forward pass on a device, and write them into its tuning table; for a GPU that
/// is not here, by prediction
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// A checkpoint, whose forward pass is tuned [default: the shape of --model]
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    checkpoint: Option<PathBuf>,

    #[command(flatten)]
    job: JobArgs,

    /// With --op: how many of the best are shown
    #[arg(long, default_value_t = 5, value_name = "N")]
    show: usize,

    /// Write the best into the target's table in `--tuning`, else in the user's config folder; present rows keep the
    /// token counts that the new ones do not cover [default without --op]
    #[arg(long)]
    write: bool,

    /// For predicted times: accept kernels of your templates without running them in the simulator
    #[arg(long)]
    unchecked: bool,

    /// Write nothing
    #[arg(long, conflicts_with = "write")]
    dry_run: bool,

    /// Only tuning rows whose templates now render differently from what was measured
    #[arg(long)]
    stale: bool,

    /// Dims, flags and dtypes in the `where` of the written rows [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    r#where: Vec<String>,

    /// Also draw into this file, for every problem: time by rows, the limit, and the choice
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// File that keeps each measurement at once, so that the next `tune` continues [default: a file in the cache]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Command {
    Lint(lint::Args),
    Diff(Box<diff::Args>),
    Rekey(rekey::Args),
}

/// What is tuned, and on what.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct JobArgs {
    /// Only these ops, such as `linear`, and runs of ops, such as `rmsnorm+linear`
    #[arg(long, value_delimiter = ',', value_name = "OP,…")]
    op: Vec<String>,

    /// Only variants with these names
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    variant: Vec<String>,

    /// The model whose forward pass is tuned [default: gpt-oss-20b; with --stale the rows of all these models]
    #[arg(long, value_enum, visible_alias = "shape")]
    model: Option<NamedShape>,

    /// Only the first N layers in whole steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    layers: Option<u32>,

    /// Only the model's problems with these dims; if it has none, one new problem with these dims
    #[arg(long, value_delimiter = ',', value_name = "NAME=N,…", value_parser = assignment::<u32>)]
    dims: Vec<(String, u32)>,

    /// Only the model's problems with these flags; if it has none, one new problem with these flags
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL,…", value_parser = assignment::<bool>)]
    flag: Vec<(String, bool)>,

    /// Dtypes other than the model's
    #[arg(long, value_delimiter = ',', value_name = "NAME=TYPE,…", value_parser = dtype)]
    dtype: Vec<(String, Dtype)>,

    #[command(flatten)]
    quantize: QuantizeArgs,

    #[command(flatten)]
    stored: StoredWeightsArgs,

    /// Precision of activations and sums [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum)]
    precision: Option<Precision>,

    /// Row counts, also of the whole steps that decide [default: usual ones, up to 256 sequences and prompts of up to
    /// 4096 rows]
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: Vec<u32>,

    /// Rows for ops that depend on positions: each alone in its slot, or all of one slot [default: both]
    #[arg(long, value_enum)]
    rows: Option<Rows>,

    /// Positions that the last row of a slot sees; a prompt's are at least its rows
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    context: u32,

    /// Ignore tuning rows of the arch and its family; begin with those for all GPUs or all hosts
    #[arg(long)]
    generic: bool,

    /// Parameters with a fixed value
    #[arg(long, value_delimiter = ',', value_name = "NAME=N,…", value_parser = assignment::<u32>)]
    params: Vec<(String, u32)>,

    /// Most parameter sets to try per template and row count, most promising first [default: 48 with --op, else 40, and
    /// up to 96 for problems that take much of a step; for predictions 8, and up to 24]
    #[arg(long, value_name = "N")]
    most: Option<usize>,

    /// Time limit: `90s`, `20min`, `2h`; a third of it, at most 90 seconds, is reserved for whole steps if these decide
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    within: Option<Duration>,

    /// Seconds after which a kernel is considered hung
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    deadline: u32,

    /// The device: `cuda`, `hip:1`, `cpu` [default: the first available]
    #[arg(long, value_name = "DEVICE", conflicts_with = "arch")]
    device: Option<Device>,

    /// The device with this arch; if none is here, times are predicted
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,

    #[command(flatten)]
    source: SourceArgs,
}

/// What is left of `--within` for whole steps at most.
const FOR_STEPS: Duration = Duration::from_secs(90);

/// Rows of a step, for ops that look at positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Rows {
    /// Every row is alone in its slot.
    Decode,
    /// All rows are of one slot.
    Prompt,
}

impl Rows {
    /// What steps of such rows are.
    fn step(self) -> StepKind {
        match self {
            Self::Decode => StepKind::Decode,
            Self::Prompt => StepKind::Mixed,
        }
    }
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
/// If there is no such device or op, or nothing of it can be judged.
pub(crate) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    match &args.command {
        Some(Command::Lint(args)) => return lint::run(args, output),
        Some(Command::Diff(args)) => return diff::run(args, output),
        Some(Command::Rekey(args)) => return rekey::run(args, output),
        None => {}
    }
    let begun = Instant::now();
    let writes = args.writes();
    if let Some(folder) = args.job.source.tuning.as_ref().filter(|folder| writes && !folder.exists()) {
        std::fs::create_dir_all(folder)?;
    }
    let plot = args.svg.as_deref().map(|path| OutputFile::create(path, "a plot")).transpose()?;
    let setup = Setup::from_args(&args.job, args.checkpoint.as_deref(), args.stale, output)?;
    if args.stale && setup.stale().is_empty() {
        output.note(&format!("no row for {} is stale", setup.target().id()));
        return Ok(());
    }
    // A typing error costs no minutes.
    setup.problems().try_for_each(|problem| write::facts(problem, &args.r#where).map(drop))?;
    let (pieces, searched) = setup.pieces(args);
    let mut journal = setup.journal(args.journal.as_deref())?;
    let bar = Bar::new(output, pieces.len());
    let effort = setup.effort();
    let decides_by_steps = setup.kind() == ProvenanceKind::Measured && setup.decides_by_steps();
    let until = args.job.within.map(|within| begun + within);
    let part = |has_part: bool, of: u32, most: Duration| {
        args.job.within.filter(|_| has_part).map_or(Duration::ZERO, |all| (all / of).min(most))
    };
    let for_steps = part(decides_by_steps, 3, FOR_STEPS);
    let for_checks = part(!args.unchecked && gate::may_have_work(&setup), 4, gate::FOR_CHECKS);
    let until_found = until.map(|until| until - for_steps - for_checks);
    let mut judge = setup.judge(until_found)?;
    if let Some(notice) = judge.notice() {
        output.note(&notice);
    }
    let mut tuner = setup.tuner(&effort, &mut judge, &mut journal, (&bar, until_found));
    setup.store.compiler().compile_until(until_found);
    let (mut all, is_cut) =
        All { args, setup: &setup, bar: &bar, output, searched, until: until_found }.tune(&mut tuner, &pieces)?;
    setup.store.compiler().compile_until(until);
    let found = journal.n_found();
    if found > 0 {
        output.note(&format!("{found} verdicts were in the journal"));
    }
    judge.rest();
    if let Some(plot) = plot {
        let text = plot::svg(&all, &setup);
        plot.fill(|file| file.write_all(text.as_bytes()))?;
    }
    let rows = gate::rows(&mut all, args, &setup, &mut journal, (&bar, output), until)?;
    setup.store.compiler().compile_until(None);
    let against = setup.held_against(is_cut);
    if is_cut && args.job.generic && decides_by_steps {
        output.note("the search was cut short: whole steps are compared with those of the arch's own rows");
    }
    let decided = match decides_by_steps && !rows.is_empty() {
        true => Some(steps::decide(rows.clone(), &setup, against, &mut journal, &bar, until, output)?),
        false => None,
    };
    bar.clear();
    report::finish(&all, decided.as_ref(), &setup, output)?;
    let kept = decided.map_or(rows, |decided| decided.decision.kept);
    if !writes {
        return Ok(());
    }
    report::written(&kept, output)?;
    write::write(&kept, &setup, output)
}

/// The side of the process that runs the kernels.
pub(super) fn work(args: &Args) -> anyhow::Result<()> {
    let (job, checkpoint) = match &args.command {
        None => (&args.job, args.checkpoint.as_deref()),
        Some(Command::Diff(diff)) => (&diff.job, None),
        Some(Command::Lint(_) | Command::Rekey(_)) => {
            return Err(UsageError("no kernels run for `lint` and `rekey`".into()).into());
        }
    };
    setup::work(job, checkpoint, args.stale)
}

impl Args {
    /// Whether what is found is written: as typed, the command is for that.
    fn writes(&self) -> bool {
        self.write || (!self.dry_run && self.job.op.is_empty())
    }
}
