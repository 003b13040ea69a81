//! `tune lint`: finds tuning rows that deserve a look.

use std::fmt;

use crate::args::source::{SourceArgs, named_target};
use crate::known_models::{self, Asked, KnownModels};
use crate::output::Output;
use kernel::choice::{Chooser, useless};
use kernel::step::StepKind;
use kernel::target::{self, Target};
use kernel::tuning::lint::{FindingKind, LintFinding};
use kernel::tuning::table::TuningRow;
use workbench::tune::alone::Alone;
use workbench::tune::stale;

/// List gaps, overlaps, and tuning rows that are unusable, not asked for, unreachable, dominated or stale
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Only the tables of this arch; also lists its stale rows, and those that may be stale [default: all tables]
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
}

/// Tables and rows that no command can use.
#[derive(Debug, thiserror::Error)]
struct Unusable {
    n_tables: usize,
    n_rows: usize,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.n_tables, self.n_rows) {
            (tables, 0) => write!(f, "tables that cannot be used: {tables}"),
            (0, rows) => write!(f, "tuning rows that cannot be used: {rows}"),
            (tables, rows) => write!(f, "tables that cannot be used: {tables}; tuning rows: {rows}"),
        }
    }
}

impl Unusable {
    /// The verdict on findings.
    fn of(findings: &[LintFinding]) -> anyhow::Result<()> {
        let count = |kind: FindingKind| findings.iter().filter(|one| one.kind == kind).count();
        let all = Self { n_tables: count(FindingKind::Broken), n_rows: count(FindingKind::Unusable) };
        if all.n_tables + all.n_rows > 0 { Err(all.into()) } else { Ok(()) }
    }
}

/// A target with the data that its rows are compared with.
struct Judged {
    chooser: Chooser,
    models: KnownModels,
}

/// Runs the command: findings are its result; tables and rows that cannot be used are an error, too.
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
    findings.extend(useless::unusable(&library, &tables, &targets, &all));
    let mut stale = Vec::new();
    for target in &targets {
        let own = known_models::own(tables.rows_for(target));
        let asks_for_stale = args.arch.is_some() && tables.rows_for(target).any(|row| row.source.is_some());
        if own.is_empty() && !asks_for_stale {
            continue;
        }
        let chooser = Chooser::unchecked(args.source.library()?, tables.clone(), target.clone());
        let judged = Judged { models: KnownModels::new(chooser.library(), target)?, chooser };
        let known: Vec<String> =
            findings.iter().filter(|one| one.kind.is_error()).map(|one| one.place.clone()).collect();
        let own: Vec<&TuningRow> = own.into_iter().filter(|row| !known.contains(&row.place)).collect();
        findings.extend(judged.of_no_model(&own));
        findings.extend(judged.only_fused(&own));
        findings.extend(judged.refused(&own));
        if asks_for_stale {
            stale = judged.stale();
        }
    }
    findings.sort();
    findings.dedup();
    let verdict = Unusable::of(&findings);
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

impl Judged {
    /// The rows whose templates render to something else now, and those of which nothing says whether they do, with
    /// what to do.
    fn stale(&self) -> Vec<(&'static str, String, String)> {
        let Self { chooser, models } = self;
        let mut job = models.job();
        let unknown = stale::add_measured(&mut job, chooser);
        let mut told: Vec<(&str, String, String)> = Vec::new();
        for one in stale::rows(&job, chooser) {
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
            let cure = format!("`gptoss-jit tune --stale --arch {}` judges it anew", chooser.target().arch);
            told.push(("stale", one.row.place, format!("{what}: {cure}")));
        }
        let n_models = KnownModels::count();
        let text = format!(
            "it was measured on a problem that none of the {n_models} models known by name has and that its `where` \
             does not describe: nothing says whether it is stale. After a new dim or flag of a contract, \
             `gptoss-jit tune rekey` renews its `problem`"
        );
        told.extend(unknown.into_iter().map(|place| ("unknown", place, text.clone())));
        told
    }

    /// Rows for problems that no model has which is known by name. Those that are built in are of others too.
    fn of_no_model(&self, own: &[&TuningRow]) -> Vec<LintFinding> {
        let own = own.iter().filter(|row| !row.facts.is_empty() || row.op.contains('+'));
        let told = own.filter_map(|row| Some((row, self.models.unasked(row)?)));
        told.map(|(row, text)| finding(FindingKind::NotAskedFor, row, text)).collect()
    }

    /// Rows that apply to problems of models, and that none of these follows.
    fn refused(&self, own: &[&TuningRow]) -> Vec<LintFinding> {
        let refused = own.iter().filter_map(|row| {
            let mut why = None;
            for problem in self.models.asking(row) {
                let passed_over = self.chooser.passes_over(row, &problem)?;
                why.get_or_insert(passed_over);
            }
            Some(finding(FindingKind::Unusable, row, format!("the row is passed over wherever it applies: {}", why?)))
        });
        refused.collect()
    }

    /// Rows for ops that the models have only as parts of longer runs, which one kernel does by other rows.
    fn only_fused(&self, own: &[&TuningRow]) -> Vec<LintFinding> {
        let of_one_op = own.iter().filter(|row| !row.op.contains('+'));
        let mut open: Vec<(&TuningRow, bool)> = of_one_op.map(|row| (*row, false)).collect();
        for graph in &self.models.graphs {
            let nodes: Vec<Asked> = graph.nodes.iter().map(|node| Asked::new(node.problem.clone())).collect();
            let is_asked_for = |row: &TuningRow| nodes.iter().any(|asked| asked.by(row));
            if !open.iter().any(|(row, _)| is_asked_for(row)) {
                continue;
            }
            let Ok(alone) = Alone::new(graph, &self.chooser) else { continue };
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
        let (n_models, arch) = (KnownModels::count(), &self.chooser.target().arch);
        let told = open.into_iter().filter(|(_, is_fused)| *is_fused).map(|(row, _)| {
            let (op, tokens) = (&row.op, row.tokens);
            let text = format!(
                "no step asks for `{op}` at {tokens} tokens: in each of the {n_models} models that are known by name it \
                 is done there as a part of a longer run (`kernels plan --arch {arch} --op {op}`)"
            );
            finding(FindingKind::NotAskedFor, row, text)
        });
        told.collect()
    }
}

fn finding(kind: FindingKind, row: &TuningRow, text: String) -> LintFinding {
    LintFinding { kind, place: row.place.clone(), text }
}
