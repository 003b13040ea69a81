//! `kernels check`: every template on every test shape, against its reference; for a GPU its objects against their
//! contracts too. With `--speed` it goes to [`super::speed`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::beside::ShapeArgs;
use super::memory::MemoryRow;
use super::slowest::{Slowest, print_slowest};
use super::watch::{self, Watch};
use super::{memory, none, speed};
use crate::CHECK_WORKER;
use crate::args::source::TargetArgs;
use crate::output::Output;
use crate::usage::UsageError;
use engine::device::{Device, OpenedDevice, SEED_VARIABLE, simulator_seed, stand_in};
use kernel::object::store::Store;
use kernel::target::compute_unit::ComputeUnit;
use kernel::target::{Platform, Target};
use kernel::template::Precision;
use kernel::template::library::{Broken, Library};
use kernel::tuning::TuningTables;
use system::bounded_process::this_program;
use system::units::parse_duration;
use workbench::check::coverage;
use workbench::check::parent::Children;
use workbench::check::uses::Uses;
use workbench::check::{Checked, Checker, Runner, Selection, child};

/// Failures of one template that are printed in full; `--json` has all.
const MAX_TOLD: usize = 3;

/// Seconds that a case may take, and one of a file that is watched.
const DEADLINE: u32 = 120;
const WATCHED_DEADLINE: u32 = 5;

/// How often a long check reports its progress.
const TELLS_EVERY: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Only the templates that cover one of these ops
    #[arg(long, value_delimiter = ',', value_name = "OP,…")]
    op: Vec<String>,

    /// Only variants with these names; `linear/gemv` or `rmsnorm+linear/gemv` is a single one
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    variant: Vec<String>,

    /// Check all legal parameters, not only the defaults; of a large grid those one step from the defaults
    #[arg(long)]
    all_params: bool,

    /// Check this value of a parameter; others have their defaults
    #[arg(long = "set", value_name = "PARAM=VALUE", value_parser = super::show::assignment_of_number, conflicts_with_all = ["all_params", "watch"])]
    set: Vec<(String, u32)>,

    /// In the simulator, also print bank conflicts in LDS and uncoalesced memory accesses
    #[arg(long, conflicts_with_all = ["watch", "speed", "device"])]
    memory: bool,

    /// Only the first test shape of each template, with all of its dtypes
    #[arg(long)]
    first_shape: bool,

    /// Also check parameters that the target's tuning tables can choose; `--tuned=false` checks only the defaults
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    tuned: bool,

    /// Compile for this device and run there: `cuda`, `hip:1` [default: GPU kernels run in the simulator]
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["arch", "speed"])]
    device: Option<Device>,

    /// Try this template at every save (`mine/attention/quick.hip.j2`): is it right, and how fast compared with what
    /// runs today? On a GPU of `--arch` if there is one, else simulated and predicted
    #[arg(long, value_name = "FILE", conflicts_with_all = ["op", "variant", "all_params", "speed", "timings", "export"])]
    watch: Option<PathBuf>,

    #[command(flatten)]
    shape: ShapeArgs,

    /// Most seconds for a kernel in one case; a slower one is wrong [default: 120; with --watch 5]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    deadline: Option<u32>,

    /// A quick check: about this long per template and precision, likeliest failures first
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| parse_duration(text).map(|time| time.as_secs_f64()), conflicts_with = "speed")]
    within: Option<f64>,

    /// Also print the twenty kernels that took longest to run
    #[arg(long, conflicts_with = "speed")]
    timings: bool,

    /// Run nothing: predict each kernel's time on a GPU at a model's shapes, compared with what runs today; for AMD
    /// also the cycles of hot loops, by llvm-mca or counted
    #[arg(long, requires = "arch", conflicts_with = "all_params")]
    speed: bool,

    /// Also write to folders below DIR, before anything runs: each kernel's object for a GPU, with the smallest
    /// realistic case, its inputs and expected outputs
    #[arg(long, value_name = "DIR", requires = "arch", conflicts_with = "speed")]
    export: Option<PathBuf>,
}

impl CheckArgs {
    fn deadline(&self, usual: u32) -> Duration {
        Duration::from_secs(self.deadline.unwrap_or(usual).into())
    }
}

/// Templates that are not right.
#[derive(Debug, thiserror::Error)]
#[error("{n_wrong} of {n_checked} checks failed")]
struct CheckFailed {
    n_wrong: usize,
    n_checked: usize,
}

/// The JSON of `kernels check`.
#[derive(Serialize)]
struct Report {
    schema: u32,
    target: String,
    templates: Vec<CheckRow>,
    broken: Vec<String>,
    /// With `--timings`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slowest: Vec<Slowest>,
}

/// One template at one precision.
#[derive(Serialize)]
struct CheckRow {
    op: String,
    variant: String,
    precision: &'static str,
    cases: usize,
    /// As a fraction of the tolerance; null if nothing was compared, or an error has no size.
    worst_error: Option<f64>,
    /// Whether an error has no size: a NaN, or a whole number that is another.
    #[serde(skip)]
    is_without_size: bool,
    /// In bf16 precision: the error as a multiple of what rounding the activations to bf16 does; 0 below f32's own,
    /// null if no output of f32 was compared.
    times_rounding: Option<f64>,
    /// What the objects use; null where they are not a GPU's.
    uses: Option<UsesRow>,
    compiled: usize,
    compile_ms: u64,
    /// Of all launches, and of what they were compared with.
    run_ms: f64,
    status: &'static str,
    failures: Vec<String>,
    /// Lines of the template with statements, those that ran in no case, and these in words.
    lines: usize,
    lines_not_run: Vec<usize>,
    /// Kernels that there was no time for.
    not_tried: usize,
    #[serde(skip)]
    idle: Option<String>,
    /// Why kernels, or lines of them, were not run that were to be run.
    not_run: Option<String>,
    /// Defaults that were passed over, a tolerance that is looser than the op's.
    notes: Vec<String>,
    /// With `--memory`, the lines that cost most first.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Vec<MemoryRow>>,
}

/// The most that any of a template's kernels uses.
#[derive(Serialize)]
struct UsesRow {
    vgprs: u32,
    sgprs: u32,
    lds_bytes: u32,
    spills: u32,
    private_bytes: u32,
    /// Waves that a SIMD has room for, of the kernel with the fewest; null without facts about the compute unit.
    occupancy: Option<u32>,
    /// Waves that a SIMD keeps at most.
    max_waves: Option<u32>,
}

/// What a check and its children have in common.
struct Setup {
    library: Library,
    tables: TuningTables,
    store: Store,
    target: Target,
    /// What was opened for `--device`.
    opened: Option<OpenedDevice>,
}

impl Setup {
    fn from_args(args: &CheckArgs) -> anyhow::Result<Self> {
        let source = &args.target.source;
        let (library, tables, store) = (source.library()?, source.tables()?, Store::from_env()?.without_bundles());
        let opened = args.device.as_ref().map(|device| device.open(&tables, 0)).transpose()?;
        let target = opened.as_ref().map_or_else(|| args.target.target(&tables), |(target, _)| Ok(target.clone()))?;
        tables.check_for(&target)?;
        Ok(Self { library, tables, store, target, opened })
    }

    fn compute_unit(&self) -> Option<ComputeUnit> {
        self.tables.facts(&self.target.arch).and_then(|facts| facts.compute_unit)
    }

    fn checker<'a>(&'a self, runner: Option<Runner<'a>>) -> Checker<'a> {
        let Self { library, target, store, .. } = self;
        Checker { library, target, store, runner, compute_unit: self.compute_unit() }
    }

    fn selection(&self, args: &CheckArgs) -> Selection {
        let tables = args.tuned.then(|| Arc::new(self.tables.clone()));
        let (op, variant) = (args.op.clone(), args.variant.clone());
        let (all_params, first_shape) = (args.all_params, args.first_shape);
        let within = args.within.map(Duration::from_secs_f64);
        let (more_rows, is_fenced) = (!first_shape, true);
        let params = args.set.iter().cloned().collect();
        let (covers, memory) = (true, args.memory);
        Selection {
            op,
            variant,
            params,
            covers,
            memory,
            all_params,
            tables,
            first_shape,
            more_rows,
            is_fenced,
            within,
            ..Selection::default()
        }
    }
}

/// Runs kernels for a check, in a process that they may end.
///
/// # Errors
/// If the check cannot be set up.
pub(super) fn work(args: &CheckArgs) -> anyhow::Result<()> {
    let mut setup = Setup::from_args(args)?;
    let runs_on = match setup.opened.take() {
        Some(opened) => Some(opened),
        None => stand_in(&setup.target)?,
    };
    let runner = runs_on.as_ref().map(|(target, driver)| Runner { target, driver: &**driver });
    Ok(child::run(&setup.checker(runner), &setup.selection(args))?)
}

/// Child processes of this program, with the same arguments.
fn children(args: &CheckArgs) -> Children {
    let words = std::iter::once(CHECK_WORKER.into()).chain(std::env::args_os().skip(1)).collect();
    let (stop, until) = (Default::default(), None);
    Children { program: this_program(), words, deadline: args.deadline(DEADLINE), stops_at_hang: false, stop, until }
}

pub(super) fn run(args: &CheckArgs, output: &Output) -> anyhow::Result<()> {
    if let Some(file) = &args.watch {
        let (within, deadline) = (args.within.map(Duration::from_secs_f64), args.deadline(WATCHED_DEADLINE));
        let (target, device, shape) = (&args.target, args.device.as_ref(), &args.shape);
        return watch::run(&Watch { file, target, device, shape, within, deadline }, output);
    }
    let mut setup = Setup::from_args(args)?;
    let is_simulated = setup.opened.take().is_none() && setup.target.is_real_gpu();
    let Setup { library, tables, store, target, .. } = &setup;
    let for_gpus = if args.speed { Some("--speed") } else { args.export.as_ref().map(|_| "--export") };
    let is_taken = if args.speed { target.is_gpu() } else { target.platform == Platform::Amd };
    if let Some(flag) = for_gpus.filter(|_| !is_taken || target.is_simulated) {
        let of_whom = if args.speed { "GPUs" } else { "AMD GPUs" };
        let message = format!("{flag} is for {of_whom}, not {}: for example --arch gfx1100", target.id());
        return Err(UsageError(message).into());
    }
    let (compute_unit, checker, selection) = (setup.compute_unit(), setup.checker(None), setup.selection(args));
    let broken: Vec<Broken> = broken(library, args).collect();
    // Each name that was typed is to be of some use: else one that is misspelled is taken for one that is right.
    let of_op = |op: &String| (format!(" `{op}`"), Selection { op: vec![op.clone()], ..selection.clone() });
    let of_variant =
        |one: &String| (format!(" `{one}`"), Selection { variant: vec![one.clone()], ..selection.clone() });
    let mut asked = args.op.iter().map(of_op).chain(args.variant.iter().map(of_variant)).collect::<Vec<_>>();
    asked.push((String::new(), selection.clone()));
    let no_use = asked.iter().find(|(_, one)| checker.selected(one).next().is_none());
    if let Some((name, asked)) = no_use.filter(|_| broken.is_empty()) {
        let id = target.id();
        let why = none::why_none(library, target, asked);
        let why = why.unwrap_or_else(|| "`gptoss-jit kernels ls --why` lists them".into());
        return Err(UsageError(format!("no template for {id} matches{name}: {why}")).into());
    }
    none::refuse_params(checker.selected(&selection), &selection.params)?;
    // No compiler is one error, not one for each kernel.
    store.try_compiler(target)?;
    if is_simulated && !args.speed {
        store.try_compiler(&target.clone().simulated())?;
    }
    if args.speed {
        let (source, facts) = (&args.target.source, tables.facts(&target.arch));
        return speed::run(&checker, &selection, facts, (source, &args.shape), output);
    }
    if let Some(dir) = &args.export {
        let n_cases = checker.export(&selection, dir)?;
        output.note(&format!("{n_cases} cases for {} are in `{}`", target.id(), dir.join(&target.arch).display()));
    }
    let n_steps: usize = checker.selected(&selection).map(|template| template.precisions().count()).sum();
    let (mut n_done, begun, mut told) = (0, Instant::now(), Instant::now());
    let mut done = |checked: &Checked| {
        n_done += 1;
        let what = format!("checked {}/{} {}", checked.op, checked.variant, checked.precision);
        // Who waits for long hears how far it is.
        if told.elapsed() > TELLS_EVERY && n_done < n_steps {
            told = Instant::now();
            output.note(&format!("{n_done} of {n_steps} after {:.0} s: {what}", begun.elapsed().as_secs_f64()));
        } else {
            output.detail(&what);
        }
    };
    let checked = checker.check_in_children(&selection, &children(args), &mut done)?;
    let slowest = if args.timings { Slowest::among(&checked) } else { Vec::new() };
    if args.memory && !output.is_json() {
        memory::print(&checked, output)?;
        output.line("")?;
    }
    let rows: Vec<CheckRow> =
        checked.into_iter().map(|checked| CheckRow::new(checked, is_simulated, compute_unit, args.memory)).collect();
    let n_wrong = broken.len() + rows.iter().filter(|row| !row.failures.is_empty()).count();
    let n_checked = broken.len() + rows.len();
    if output.is_json() {
        let broken = broken.iter().map(|broken| broken.error.to_string()).collect();
        output.json(&Report { schema: 1, target: target.id(), templates: rows, broken, slowest })?;
    } else {
        print(&rows, &broken, target, output)?;
        print_slowest(&slowest, output)?;
    }
    if n_wrong > 0 && (is_simulated || target.is_simulated) {
        let seed = simulator_seed()?;
        output.note(&format!("the order of blocks, waves and lanes was that of {SEED_VARIABLE}={seed}"));
    }
    if n_wrong > 0 { Err(CheckFailed { n_wrong, n_checked }.into()) } else { Ok(()) }
}

/// The files that cannot be used and that the selection does not exclude.
fn broken(library: &Library, args: &CheckArgs) -> impl Iterator<Item = Broken> {
    library.broken().into_iter().filter(|broken| {
        let folder = broken.name.split('/').next().unwrap_or_default();
        let is_of = |op: &String| folder == op || folder.split('+').any(|part| part == op) || folder == "lib";
        let name = broken.name.split('.').next().unwrap_or_default();
        let is_named = |one: &String| folder == "lib" || name == one || name.rsplit('/').next() == Some(one.as_str());
        (args.op.is_empty() || args.op.iter().any(is_of))
            && (args.variant.is_empty() || args.variant.iter().any(is_named))
    })
}

impl CheckRow {
    fn new(checked: Checked, is_simulated: bool, compute_unit: Option<ComputeUnit>, memory: bool) -> Self {
        let is_whole = checked.ran && checked.unknown.is_none() && checked.unseen.is_empty();
        // Whether a compiler for the GPU took what was not run.
        let is_compiled = match &checked.unknown {
            Some(unknown) => unknown.is_compiled,
            None => is_simulated || !checked.ran,
        };
        let status = match (checked.is_right(), is_whole) {
            (false, _) => "wrong",
            (true, true) if is_simulated => "ok, simulated",
            (true, true) => "ok",
            (true, false) if is_compiled => "compiled, not run",
            (true, false) => "not run",
        };
        let not_run = checked.not_run();
        let mut lines = checked.lines;
        lines.retain(|line, _| !checked.unseen.has(*line)); // nobody could have seen them run
        let n_wrong = checked.failures.iter().filter(|failure| !failure.wrong.is_different()).count();
        // Of kernels that were never compared there is no error to tell.
        let worst = Some(checked.worst).filter(|worst| checked.ran && (checked.n_cases > n_wrong || *worst > 0.0));
        Self {
            precision: checked.precision.name(),
            cases: checked.n_cases,
            times_rounding: checked.rounding.map(|one| one.times()).filter(|_| checked.precision == Precision::Bf16),
            worst_error: worst.filter(|worst| worst.is_finite()),
            is_without_size: worst.is_some_and(|worst| !worst.is_finite()),
            uses: checked.uses.map(|uses| UsesRow::new(uses, compute_unit)),
            compiled: checked.n_compiled,
            compile_ms: checked.compile_ms,
            run_ms: checked.costs.iter().map(|cost| cost.ms).sum(),
            status,
            failures: checked.failures.iter().map(ToString::to_string).collect(),
            not_tried: checked.n_untried,
            lines: lines.len(),
            lines_not_run: coverage::idle(&lines),
            idle: coverage::told(&lines),
            not_run,
            notes: checked.notes,
            memory: memory.then(|| MemoryRow::all(&checked.traffic)),
            op: checked.op,
            variant: checked.variant,
        }
    }

    fn cells(&self, of_gpu: bool) -> Vec<String> {
        let worst = match self.worst_error {
            Some(worst) => format!("{:.0}", 100.0 * worst),
            None if self.is_without_size => "without end".to_owned(),
            None => "-".to_owned(),
        };
        let compile_ms = if self.compiled == 0 { "cached".to_owned() } else { self.compile_ms.to_string() };
        let mut cells = vec![self.op.clone(), self.variant.clone(), self.precision.to_owned()];
        let times = self.times_rounding.map_or("-".to_owned(), |times| format!("{times:.1}"));
        cells.extend([self.cases.to_string(), worst, times]);
        if of_gpu {
            cells.extend(self.uses.as_ref().map_or_else(|| vec!["-".into(); 4], UsesRow::cells));
        }
        let idle = self.idle.as_ref().filter(|_| self.failures.is_empty());
        let mut why: String = self.not_run.iter().chain(idle).map(|why| format!("; {why}")).collect();
        if self.not_tried > 0 {
            why += &format!("; no time for {} more kernels", self.not_tried);
        }
        why.extend(self.notes.iter().map(|note| format!("; {note}")));
        cells.extend([compile_ms, format!("{}{why}", self.status)]);
        cells
    }
}

impl UsesRow {
    fn new(uses: Uses, compute_unit: Option<ComputeUnit>) -> Self {
        let Uses { vgprs, sgprs, lds_bytes, spills, private_bytes, occupancy } = uses;
        let max_waves = compute_unit.map(|unit| unit.waves_per_simd);
        Self { vgprs, sgprs, lds_bytes, spills, private_bytes, occupancy, max_waves }
    }

    /// VGPRs, LDS, spills, and the occupancy beside its limit.
    fn cells(&self) -> Vec<String> {
        let occupancy = match (self.occupancy, self.max_waves) {
            (Some(waves), Some(most)) => format!("{waves} / {most}"),
            _ => "-".into(),
        };
        vec![self.vgprs.to_string(), self.lds_bytes.to_string(), self.spills.to_string(), occupancy]
    }
}

fn print(rows: &[CheckRow], broken: &[Broken], target: &Target, output: &Output) -> anyhow::Result<()> {
    const WORST: &str = "worst error, % of tolerance";
    let of_gpu = target.is_real_gpu();
    const TIMES: &str = "x rounding";
    let mut header = vec!["op", "variant", "precision", "cases", WORST, TIMES];
    if of_gpu {
        header.extend(["VGPRs", "LDS bytes", "spills", "waves / SIMD"]);
    }
    header.extend(["compile ms", "status"]);
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(of_gpu)).collect();
    let right = ["cases", WORST, TIMES, "VGPRs", "LDS bytes", "spills", "waves / SIMD", "compile ms"];
    output.table(&header, &cells, &right)?;
    for row in rows {
        for failure in row.failures.iter().take(MAX_TOLD) {
            output.line(&format!("\n{}/{} {}: {failure}", row.op, row.variant, row.precision))?;
        }
        if row.failures.len() > MAX_TOLD {
            output.line(&format!("  and {} more cases", row.failures.len() - MAX_TOLD))?;
        }
    }
    for broken in broken {
        output.line(&format!("\n{}: {}", broken.name, broken.error))?;
    }
    let id = if target.is_simulated { format!("sim:{}", target.arch) } else { target.id() };
    output.note(&format!("for {id}"));
    Ok(())
}
