//! `tune lint`: rows of tables that deserve a look.

use std::collections::BTreeSet;

use clap::ValueEnum as _;

use crate::args::source::{SourceArgs, named_target};
use crate::model_problems::{self, InModel};
use crate::output::Output;
use kernel::choice::misplaced;
use kernel::step::StepKind;
use kernel::target::{self, Target};
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::lint::{FindingKind, LintFinding};
use kernel::tuning::table::{Fact, TuningRow};
use kernel::tuning::{Query, TuningTables};
use model::config::NamedShape;

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
    for target in &targets {
        findings.extend(of_no_model(&library, &tables, target)?);
    }
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

/// Rows of folders for problems that no model has which is known by name. Those that are built in are of others too.
fn of_no_model(library: &Library, tables: &TuningTables, target: &Target) -> anyhow::Result<Vec<LintFinding>> {
    let own = tables.rows_for(target).filter(|row| !row.place.starts_with("<built in>"));
    let own: Vec<_> = own.filter(|row| !row.facts.is_empty()).collect();
    let mut asked: Vec<Query> = Vec::new();
    let ops: BTreeSet<&str> = own.iter().map(|row| row.op.as_str()).collect();
    let fusions = library.fusions(target);
    for op in ops {
        for &shape in NamedShape::value_variants() {
            for precision in [Precision::F32, Precision::Bf16] {
                // An op that no contract describes is told elsewhere.
                let Ok(all) = model_problems::list(op, shape, precision, target, library, &fusions) else { continue };
                asked.extend(all.into_iter().map(|InModel { problem, .. }| problem.query()));
            }
        }
    }
    let is_asked_for = |row: &&TuningRow| {
        StepKind::ALL.into_iter().any(|step| {
            // Types are what a checkpoint has: the sizes are the model's.
            asked.iter().any(|query| row.applies(&with_types_of(query, row), step))
        })
    };
    let n_models = NamedShape::value_variants().len();
    let told = own.into_iter().filter(|row| !is_asked_for(row)).map(|row| LintFinding {
        kind: FindingKind::NotAskedFor,
        place: row.place.clone(),
        text: format!("none of the {n_models} models that are known by name has a problem of `{}` like this", row.op),
    });
    Ok(told.collect())
}

/// What is asked, with the types that a row wants.
fn with_types_of(query: &Query, row: &TuningRow) -> Query {
    let mut query = query.clone();
    for (name, want) in &row.facts {
        if let (Fact::Text(_), Some(fact)) = (want, query.facts.get_mut(name)) {
            *fact = want.clone();
        }
    }
    query
}
