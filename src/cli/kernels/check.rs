//! `kernels check`: every template on every test shape, against its reference.

use serde::Serialize;

use super::SourceArgs;
use crate::cli::device::driver_for;
use crate::cli::output::Output;
use crate::cli::report::UsageError;
use crate::kernel::check::{Checked, Checker, Selection};
use crate::kernel::library::{Broken, Library};
use crate::kernel::store::Store;
use crate::target::Target;

/// Failures of one template that are told in full; `--json` has all.
const MAX_TOLD: usize = 3;

#[derive(clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Only the templates that cover this op
    #[arg(long)]
    op: Option<String>,

    /// Only the variants of this name
    #[arg(long)]
    variant: Option<String>,

    /// Not the default parameters alone but all legal ones, or of a large grid those one step from the default
    #[arg(long)]
    all_params: bool,
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
    templates: Vec<Row>,
    broken: Vec<String>,
}

/// One template at one precision.
#[derive(Serialize)]
struct Row {
    op: String,
    variant: String,
    precision: &'static str,
    cases: usize,
    /// As a fraction of the tolerance; null if nothing ran, or an error has no size.
    worst_error: Option<f64>,
    compiled: usize,
    compile_ms: u64,
    status: &'static str,
    failures: Vec<String>,
}

pub(super) fn run(args: &CheckArgs, output: &Output) -> anyhow::Result<()> {
    let (library, target, store) = (args.source.library()?, args.source.target()?, Store::from_env()?);
    let driver = driver_for(&target)?;
    let checker = Checker { library: &library, target: &target, store: &store, driver: driver.as_deref() };
    let selection = Selection { op: args.op.clone(), variant: args.variant.clone(), all_params: args.all_params };
    let broken: Vec<&Broken> = broken(&library, args).collect();
    if broken.is_empty() && checker.selected(&selection).next().is_none() {
        let message = format!("no template for {} matches; `gptoss-jit kernels ls --why` lists them", target.id());
        return Err(UsageError(message).into());
    }
    store.compiler().identity(target.backend, &target.id())?; // no compiler is one error, not one for each kernel
    let mut done = |checked: &Checked| {
        output.detail(&format!("checked {}/{} {}", checked.op, checked.variant, checked.precision));
    };
    let rows: Vec<Row> = checker.check(&selection, &mut done).into_iter().map(Row::from).collect();
    let n_wrong = broken.len() + rows.iter().filter(|row| !row.failures.is_empty()).count();
    let n_checked = broken.len() + rows.len();
    if output.is_json() {
        let broken = broken.iter().map(|broken| broken.error.to_string()).collect();
        output.json(&Report { schema: 1, target: target.id(), templates: rows, broken })?;
    } else {
        print(&rows, &broken, &target, output)?;
    }
    if n_wrong > 0 { Err(CheckFailed { n_wrong, n_checked }.into()) } else { Ok(()) }
}

/// The files that cannot be used and that the selection does not exclude.
fn broken<'a>(library: &'a Library, args: &'a CheckArgs) -> impl Iterator<Item = &'a Broken> {
    library.broken().iter().filter(|broken| {
        let folder = broken.name.split('/').next().unwrap_or_default();
        args.op.as_ref().is_none_or(|op| folder == op || folder.split('+').any(|part| part == op) || folder == "lib")
    })
}

impl From<Checked> for Row {
    fn from(checked: Checked) -> Self {
        let status = match (checked.is_right(), checked.ran) {
            (false, _) => "wrong",
            (true, true) => "ok",
            (true, false) => "compiled, not run",
        };
        Self {
            precision: checked.precision.name(),
            cases: checked.n_cases,
            worst_error: Some(checked.worst).filter(|worst| checked.ran && worst.is_finite()),
            compiled: checked.n_compiled,
            compile_ms: checked.compile_ms,
            status,
            failures: checked.failures.iter().map(ToString::to_string).collect(),
            op: checked.op,
            variant: checked.variant,
        }
    }
}

fn print(rows: &[Row], broken: &[&Broken], target: &Target, output: &Output) -> anyhow::Result<()> {
    let cells = |row: &Row| {
        let worst = row.worst_error.map_or("-".to_owned(), |worst| format!("{:.0}", 100.0 * worst));
        let compile_ms = if row.compiled == 0 { "cached".to_owned() } else { row.compile_ms.to_string() };
        let names = [row.op.clone(), row.variant.clone(), row.precision.to_owned()];
        let results = [row.cases.to_string(), worst, compile_ms, row.status.to_owned()];
        [&names[..], &results].concat()
    };
    let header = ["op", "variant", "precision", "cases", "worst error, % of tolerance", "compile ms", "status"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    output.table(&header, &cells, &["cases", "worst error, % of tolerance", "compile ms"])?;
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
    output.note(&format!("for {}", target.id()));
    Ok(())
}
