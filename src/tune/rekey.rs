//! `tune rekey`: rows keep matching their problem after its contract gets a name.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum as _;

use crate::args::source::{SourceArgs, named_target};
use crate::model_problems::{self, InModel};
use crate::output::Output;
use kernel::target::{self, Target};
use kernel::template::{Precision, Problem};
use kernel::tuning::table::Table;
use kernel::tuning::{MAX_TABLE_BYTES, edit};
use model::config::NamedShape;
use workbench::tune::rekey::{Added, digests, rekeyed};

/// Update the problem digests of tuning rows after contracts got new dims or flags
#[derive(clap::Args)]
pub(super) struct Args {
    /// The new names, each with the value that means "as before": `has_sinks=true`
    #[arg(long, required = true, value_delimiter = ',', value_name = "NAME=VALUE,…",
          value_parser = super::assignment::<String>)]
    added: Vec<Added>,

    #[command(flatten)]
    source: SourceArgs,
}

/// Runs the command, on all tables of `--tuning`, else of the user's config folder.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let folder = super::setup::folder(&args.source)?;
    let mut n_all = 0;
    for path in tables_in(&folder)? {
        let read = || format!("could not read `{}`", path.display());
        let text = mapped_file::read_to_string(&path, MAX_TABLE_BYTES).with_context(read)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let table = Table::parse(&name, &path.display().to_string(), &text)?;
        let with_problem = table.rows().iter().filter(|row| row.problem.is_some());
        let ops: BTreeSet<&str> = with_problem.map(|row| row.op.as_str()).collect();
        let problems = args.problems(&name, &ops)?;
        let (new, n) = rekeyed(&text, &digests(&problems, &args.added));
        if n > 0 {
            edit::write(&path, &new)?;
            output.note(&format!("`{}`: new digests of problems in {n} places", path.display()));
        }
        n_all += n;
    }
    if n_all == 0 {
        output.note(&format!("no row in `{}` has a problem with these new names", folder.display()));
    }
    Ok(())
}

/// The tables of a folder, by name.
fn tables_in(folder: &PathBuf) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("could not read `{}`", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    Ok(paths)
}

impl Args {
    /// The problems that models have of these ops on the targets that a table is for.
    fn problems(&self, table: &str, ops: &BTreeSet<&str>) -> anyhow::Result<Vec<Problem>> {
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let (tables, library) = (self.source.tables()?, self.source.library()?);
        let gpus = target::built_in().into_iter().map(|(arch, _)| named_target(&arch, &tables));
        let mut targets = gpus.collect::<anyhow::Result<Vec<Target>>>()?;
        targets.retain(|target| target.families().iter().any(|family| family == table));
        if targets.is_empty() {
            targets.push(Target::host()); // all hosts have the same problems
        }
        let mut problems = Vec::new();
        for target in &targets {
            let fusions = library.fusions(target);
            for (op, shape) in ops.iter().flat_map(|op| NamedShape::value_variants().iter().map(move |one| (op, *one)))
            {
                for precision in [Precision::F32, Precision::Bf16] {
                    let all = model_problems::list(op, shape, precision, target, &library, &fusions)?;
                    problems.extend(all.into_iter().map(|InModel { problem, .. }| problem));
                }
            }
        }
        Ok(problems)
    }
}
