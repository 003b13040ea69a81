//! `tune lint`: rows of tables that deserve a look.

use std::collections::BTreeSet;

use clap::ValueEnum as _;

use super::known;
use crate::args::source::{SourceArgs, named_target};
use crate::model_problems::{self, InModel};
use crate::output::Output;
use format::Dtype;
use kernel::choice::{Chooser, misplaced};
use kernel::step::StepKind;
use kernel::target::{self, Target};
use kernel::template::library::Library;
use kernel::template::{Precision, Problem};
use kernel::tuning::lint::{FindingKind, LintFinding};
use kernel::tuning::table::{Fact, TuningRow};
use kernel::tuning::{Query, TuningTables};
use model::config::NamedShape;
use workbench::tune::alone::Alone;
use workbench::tune::stale;

/// List gaps, overlaps, and tuning rows that are unused, unreachable, beaten or stale
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Only the tables of this arch; also lists its rows that are stale or may be [default: all tables]
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
}

/// Tables that no command can use.
#[derive(Debug, thiserror::Error)]
#[error("tables that cannot be used: {n}")]
struct Broken {
    n: usize,
}

/// Runs the command: findings are its result, tables that cannot be read an error.
pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let tables = args.source.tables()?;
    let library = args.source.library()?;
    let known = target::built_in().into_iter().map(|(name, _)| named_target(&name, &tables));
    let mut all: Vec<Target> = known.chain([Ok(Target::host())]).collect::<Result<_, _>>()?;
    let targets: Vec<Target> = match &args.arch {
        Some(arch) => vec![named_target(arch, &tables)?],
        None => all.clone(),
    };
    if args.arch.is_some() {
        all.retain(|target| target.arch != targets[0].arch);
        all.push(targets[0].clone());
    }
    let mut findings: Vec<LintFinding> = tables.findings(&targets, &all);
    findings.extend(misplaced(&library, &tables, &targets));
    for target in &targets {
        findings.extend(of_no_model(&library, &tables, target)?);
        findings.extend(only_fused(&args.source, &tables, target)?);
    }
    findings.sort();
    findings.dedup();
    let n = findings.iter().filter(|one| one.kind == FindingKind::Broken).count();
    let verdict = if n > 0 { Err(Broken { n }.into()) } else { Ok(()) };
    let stale = args.arch.as_ref().map(|_| args.stale(&tables, &targets[0])).transpose()?.unwrap_or_default();
    let all = findings.into_iter().map(|one| (one.kind.name(), one.place, one.text));
    let findings: Vec<(&str, String, String)> = all.chain(stale).collect();
    if output.is_json() {
        let all = findings
            .iter()
            .map(|(kind, place, text)| serde_json::json!({ "kind": kind, "place": place, "text": text }));
        output.json(&serde_json::json!({ "schema": 1, "findings": all.collect::<Vec<_>>() }))?;
        return verdict;
    }
    if findings.is_empty() {
        let stale = if args.arch.is_some() { ", none is stale" } else { "" };
        output.note(&format!("nothing to find: no gaps, no overlaps, every row is reached, none is beaten{stale}"));
        return Ok(());
    }
    let row = |(kind, place, text): &(&str, String, String)| vec![(*kind).to_owned(), place.clone(), text.clone()];
    output.table(&["finding", "row", "why"], &findings.iter().map(row).collect::<Vec<_>>(), &[])?;
    verdict
}

impl Args {
    /// The rows whose templates render to something else now, and those of which nothing says whether they do, with
    /// what to do.
    fn stale(&self, tables: &TuningTables, target: &Target) -> anyhow::Result<Vec<(&'static str, String, String)>> {
        if tables.rows_for(target).all(|row| row.source.is_none()) {
            return Ok(Vec::new());
        }
        let chooser = Chooser::new(self.source.library()?, tables.clone(), target.clone())?;
        let library = chooser.library();
        let mut job = known::problems(library, target)?;
        let unknown = stale::add_measured(&mut job, &chooser);
        let mut told: Vec<(&str, String, String)> = Vec::new();
        for one in stale::rows(&job, &chooser) {
            if told.iter().any(|(_, place, _)| *place == one.row.place) {
                continue; // each of its problems is one
            }
            let what = match one.is_of_no_problem {
                false => "its template renders to something else now",
                true => {
                    "no problem that it decides renders to its `source`, and it has no `problem` that says which was \
                     measured"
                }
            };
            let cure = format!("`gptoss-jit tune --stale --arch {}` judges it anew", target.arch);
            told.push(("stale", one.row.place, format!("{what}: {cure}")));
        }
        let n_models = NamedShape::value_variants().len();
        let text = format!(
            "it was measured on a problem that none of the {n_models} models known by name has and that its `where` \
             does not describe: nothing says whether it is stale. After a new dim or flag of a contract, \
             `gptoss-jit tune rekey` renews its `problem`"
        );
        told.extend(unknown.into_iter().map(|place| ("unknown", place, text.clone())));
        Ok(told)
    }
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

/// Rows of folders for ops that the models have only as parts of longer runs, which one kernel does by other rows.
fn only_fused(source: &SourceArgs, tables: &TuningTables, target: &Target) -> anyhow::Result<Vec<LintFinding>> {
    let is_own = |row: &&TuningRow| !row.place.starts_with("<built in>") && !row.op.contains('+');
    let mut open: Vec<(&TuningRow, bool)> = tables.rows_for(target).filter(is_own).map(|row| (row, false)).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let chooser = Chooser::new(source.library()?, tables.clone(), target.clone())?;
    for graph in known::graphs(chooser.library(), target)? {
        let applies = |row: &TuningRow, problem: &Problem| {
            StepKind::ALL.into_iter().any(|step| row.applies(&problem.query(), step))
        };
        let is_asked_for = |row: &TuningRow| graph.nodes.iter().any(|node| applies(row, &node.problem));
        if !open.iter().any(|(row, _)| is_asked_for(row)) {
            continue;
        }
        let Ok(alone) = Alone::new(&graph, &chooser) else { continue };
        // Once a row runs somewhere, nothing is left to find out about it.
        open.retain_mut(|(row, is_fused)| {
            let last = row.tokens.last.map_or(usize::MAX, |last| last as usize);
            let first = row.tokens.first as usize;
            let runs = StepKind::ALL
                .into_iter()
                .any(|step| alone.has(|one| row.applies(&one.query(), step), Some(step), first, last));
            *is_fused |= is_asked_for(row);
            !runs
        });
    }
    let n_models = NamedShape::value_variants().len();
    let told = open.into_iter().filter(|(_, is_fused)| *is_fused).map(|(row, _)| LintFinding {
        kind: FindingKind::NotAskedFor,
        place: row.place.clone(),
        text: format!(
            "no step asks for `{}` at {} tokens: in each of the {n_models} models that are known by name it is done \
             there as a part of a longer run (`kernels plan --arch {} --op {}`)",
            row.op, row.tokens, target.arch, row.op
        ),
    });
    Ok(told.collect())
}

/// What is asked, with the types that a row wants, where there are such types.
fn with_types_of(query: &Query, row: &TuningRow) -> Query {
    let mut query = query.clone();
    for (name, want) in &row.facts {
        if let (Fact::Text(want), Some(Fact::Text(own))) = (want, query.facts.get_mut(name))
            && name != "precision"
            && Dtype::from_name(want).is_some()
        {
            own.clone_from(want);
        }
    }
    query
}
