//! `tune lint`: rows of tables that deserve a look.

use crate::args::source::{SourceArgs, named_target};
use crate::output::Output;
use kernel::choice::misplaced;
use kernel::target::{self, Target};
use kernel::tuning::lint::LintFinding;

/// List gaps, overlaps, rows that nothing asks for or reaches, and rows that others beat
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Only the tables of this arch [default: of all]
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
}

/// Runs the command: findings are its result, tables that cannot be read an error.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let tables = args.source.tables()?;
    let library = args.source.library()?;
    let targets: Vec<Target> = match &args.arch {
        Some(arch) => vec![named_target(arch, &tables)?],
        None => {
            let known = target::built_in().into_iter().map(|(name, _)| named_target(&name, &tables));
            known.chain([Ok(Target::host())]).collect::<Result<_, _>>()?
        }
    };
    let mut findings: Vec<LintFinding> = tables.findings(&targets);
    findings.extend(misplaced(&library, &tables, &targets));
    findings.sort();
    findings.dedup();
    if output.is_json() {
        let all = findings
            .iter()
            .map(|one| serde_json::json!({ "kind": one.kind.name(), "place": one.place, "text": one.text }));
        return Ok(output.json(&serde_json::json!({ "schema": 1, "findings": all.collect::<Vec<_>>() }))?);
    }
    if findings.is_empty() {
        output.note("nothing to find: no gaps, no overlaps, every row is reached and none is beaten");
        return Ok(());
    }
    let row = |one: &LintFinding| vec![one.kind.name().to_owned(), one.place.clone(), one.text.clone()];
    output.table(&["finding", "row", "why"], &findings.iter().map(row).collect::<Vec<_>>(), &[])?;
    Ok(())
}
