//! `tune diff`: compares two tables on a device.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::JobArgs;
use super::progress::Bar;
use super::report;
use super::setup::Setup;
use crate::output::Output;
use crate::usage::UsageError;
use kernel::choice::Chooser;
use kernel::tuning::{MAX_TABLE_BYTES, TuningTables};
use workbench::timing::Candidate;
use workbench::tune::job::Piece;
use workbench::tune::judge::Time;
use workbench::tune::tuner::{Tuned, is_same, name};

/// Time what two tables choose differently on this device, or predict it
#[derive(clap::Args)]
pub(super) struct Args {
    /// A table, a folder of tables, or `built-in`
    #[arg(value_name = "A")]
    a: PathBuf,

    /// Another one
    #[arg(value_name = "B")]
    b: PathBuf,

    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// What the two choose for a piece, with their times.
struct Differs {
    tuned: Tuned,
    choices: [Candidate; 2],
}

pub(super) fn run(args: &Args, output: &Output) -> anyhow::Result<()> {
    let setup = Setup::from_args(&args.job, None, false, output)?;
    let choosers = [chooser(&args.a, &setup, args)?, chooser(&args.b, &setup, args)?];
    let mut differing: Vec<(Piece, [Candidate; 2])> = Vec::new();
    for piece in setup.all_pieces() {
        let problem = &setup.job.problems[piece.problem].problem;
        let of = |chooser: &Chooser| -> anyhow::Result<Candidate> {
            let choice = chooser.ranking(problem, piece.n_tokens as usize, piece.step)?.choices.swap_remove(0);
            Ok(Candidate { template: choice.template, params: choice.params })
        };
        let [a, b] = [of(&choosers[0])?, of(&choosers[1])?];
        if !is_same(&a, &b) {
            differing.push((piece, [a, b]));
        }
    }
    let bar = Bar::new(output, differing.len());
    let mut journal = setup.journal(None)?;
    let mut judge = setup.judge(None)?;
    let effort = setup.effort();
    let mut tuner = setup.tuner(&effort, &mut judge, &mut journal, (&bar, None));
    let mut found = Vec::new();
    for (piece, choices) in differing {
        let tuned = tuner.compare(&piece, choices.to_vec())?;
        bar.done(&tuned);
        found.push(Differs { tuned, choices });
    }
    bar.clear();
    print(&found, &setup, output)
}

/// What chooses by a table that stands before the built-in ones.
fn chooser(path: &Path, setup: &Setup, args: &Args) -> anyhow::Result<Chooser> {
    let tables = if path == Path::new("built-in") {
        TuningTables::load(&[])?
    } else if path.is_dir() {
        TuningTables::load(&[path.to_owned()])?
    } else {
        let text = mapped_file::read_to_string(path, MAX_TABLE_BYTES)
            .with_context(|| format!("could not read `{}`", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if !setup.target().families().iter().any(|family| *family == name) {
            let target = setup.target().id();
            return Err(UsageError(format!("`{}` is no table for {target}", path.display())).into());
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        TuningTables::load(&[])?.with_table(&[], folder, &name, &text)?
    };
    Ok(Chooser::new(args.job.source.library()?, tables, setup.target().clone())?)
}

impl Differs {
    fn time_us(&self, which: usize) -> Option<f64> {
        let is_it = |candidate: &Candidate| is_same(candidate, &self.choices[which]);
        let entry = self.tuned.entries.iter().find(|entry| is_it(&entry.candidate))?;
        entry.verdict.time().map(Time::median_us)
    }

    /// By how much the second is faster, as a fraction.
    fn gain(&self) -> Option<f64> {
        Some(self.time_us(0)? / self.time_us(1)? - 1.0)
    }
}

fn print(found: &[Differs], setup: &Setup, output: &Output) -> anyhow::Result<()> {
    let choice = |one: &Candidate| name(&one.template, &one.params);
    if output.is_json() {
        let rows = found.iter().map(|one| {
            serde_json::json!({
                "op": one.tuned.problem.ops.join("+"), "dims": one.tuned.problem.dims,
                "tokens": one.tuned.piece.n_tokens, "step": one.tuned.piece.step.name(),
                "a": choice(&one.choices[0]), "a_us": one.time_us(0),
                "b": choice(&one.choices[1]), "b_us": one.time_us(1), "gain": one.gain(),
            })
        });
        let rows: Vec<_> = rows.collect();
        let (kind, device) = (setup.kind().name(), setup.device());
        return Ok(output.json(&serde_json::json!({ "schema": 1, "kind": kind, "device": device, "differ": rows }))?);
    }
    if found.is_empty() {
        output.note("the tables make the same choice everywhere");
        return Ok(());
    }
    let us = |time: Option<f64>| time.map_or("-".into(), |time| format!("{time:.2}"));
    let row = |one: &Differs| {
        vec![
            report::short(&one.tuned.problem, &one.tuned.piece),
            one.tuned.piece.step.name().to_owned(),
            choice(&one.choices[0]),
            us(one.time_us(0)),
            choice(&one.choices[1]),
            us(one.time_us(1)),
            one.gain().map_or("-".into(), |gain| format!("{:+.1}", 100.0 * gain)),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    let right = ["A us", "B us", "B is faster by %"];
    output.table(&["problem", "step", "A", right[0], "B", right[1], right[2]], &rows, &right)?;
    Ok(())
}
