//! Writes the results as rows of the target's tuning table.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use super::Args;
use super::setup::{self, Setup};
use crate::output::Output;
use crate::usage::UsageError;
use kernel::object::compile::compiler_for;
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::tuning::MAX_TABLE_BYTES;
use kernel::tuning::edit::{self, NewRow};
use kernel::tuning::table::{Facts, Provenance, ProvenanceKind};
pub(super) use workbench::tune::rows::chosen as chosen_of;
use workbench::tune::rows::{Rules, behind_measured, rows_of};
use workbench::tune::tuner::{CandidateResult, Tuned};

/// The best of a piece.
pub(super) fn chosen(tuned: &Tuned) -> Option<(&CandidateResult, &workbench::tune::judge::Time)> {
    chosen_of(tuned, None)
}

/// The rows of everything for which something else is better than what the tables say now, or for which they say
/// nothing.
pub(super) fn rows(all: &[Tuned], args: &Args, setup: &Setup) -> anyhow::Result<Vec<NewRow>> {
    let rules = Rules { kind: setup.kind(), renews: args.stale };
    let counts = setup.counts();
    let most = |step: StepKind| {
        let both = counts.decode.iter().chain(&counts.prompt);
        let own = if step == StepKind::Decode { counts.decode.iter().max() } else { counts.prompt.iter().max() };
        (both.max().copied(), own.copied())
    };
    let is_complete = args.job.tokens.is_empty() && !args.stale;
    let apart = |run: &Tuned| -> Option<f64> {
        let parts = &setup.job.problems[run.piece.problem].parts;
        let of_part = |&part: &usize| {
            let is_it = |one: &&Tuned| one.piece.problem == part && one.piece.n_tokens == run.piece.n_tokens;
            let same_step = |one: &&Tuned| one.piece.step == run.piece.step;
            let found = all.iter().filter(is_it).find(same_step).or_else(|| all.iter().find(is_it))?;
            Some(chosen(found)?.1.median_us())
        };
        (!parts.is_empty()).then(|| parts.iter().map(of_part).sum()).flatten()
    };
    let mut rows: Vec<NewRow> = Vec::new();
    // No step would ask for their rows. Those of ops that are named are told when they are written.
    let is_asked_for = |one: &&Tuned| args.stale || !args.job.op.is_empty() || !setup.is_only_fused(&one.piece);
    let asked: Vec<Tuned> = all.iter().filter(is_asked_for).cloned().collect();
    for of_problem in asked.chunk_by(|a, b| (a.piece.problem, a.piece.step) == (b.piece.problem, b.piece.step)) {
        let facts = facts(&of_problem[0].problem, &args.r#where)?;
        let op = of_problem[0].problem.ops.join("+");
        let step = setup.job.step_of_rows(&of_problem[0].piece);
        if rows.iter().any(|row| row.facts == facts && row.op == op && row.step == step) {
            if args.r#where.is_empty() {
                continue; // they differ in what tables do not know, and the first is asked for more often
            }
            let what = "two problems would have the same rows: `--where` names too few of their facts";
            return Err(UsageError(what.into()).into());
        }
        let (most_of_all, most_of_step) = most(of_problem[0].piece.step);
        let last = of_problem.last().map(|one| one.piece.n_tokens);
        let is_last = is_complete && last == if step.is_some() { most_of_step } else { most_of_all };
        rows.extend(rows_of(&setup.job, of_problem, &facts, rules, is_last, &apart));
    }
    if setup.kind() == ProvenanceKind::Predicted {
        rows = behind_measured(rows, setup.tables(), setup.target());
    }
    Ok(rows)
}

/// Puts rows into the table of the target: in `--tuning`, else in the user's config folder.
pub(super) fn write(rows: &[NewRow], setup: &Setup, output: &Output) -> anyhow::Result<()> {
    if rows.is_empty() {
        output.note("nothing is better than the tables' choices: nothing is written");
        return Ok(());
    }
    let path = setup::folder(&setup.args().source)?.join(format!("{}.toml", name(setup)));
    edit::write(&path, &merged(rows, setup)?)?;
    output.note(&format!(
        "{} in `{}`",
        if rows.len() == 1 { "1 row is".into() } else { format!("{} rows are", rows.len()) },
        path.display()
    ));
    for row in rows.iter().filter(|row| setup.is_asked_for_by_none(row)) {
        let (op, arch) = (&row.op, &setup.target().arch);
        output.warning(&format!(
            "no step of the forward pass asks for the row of `{op}` at {} tokens: a kernel of a longer run does it there \
             (`gptoss-jit kernels plan --arch {arch} --op {op}`)",
            row.tokens
        ));
    }
    Ok(())
}

/// The table's name without its extension.
pub(super) fn name(setup: &Setup) -> String {
    setup.target().families().first().expect("a target has a name").to_string()
}

/// The table's text with these rows in it.
pub(super) fn merged(rows: &[NewRow], setup: &Setup) -> anyhow::Result<String> {
    let name = name(setup);
    let path = setup::folder(&setup.args().source)?.join(format!("{name}.toml"));
    let provenance = provenance(setup)?;
    let mut text = match mapped_file::read_to_string(&path, MAX_TABLE_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("could not read `{}`", path.display())),
    };
    let mut ops: Vec<&String> = Vec::new();
    rows.iter().map(|row| &row.op).for_each(|op| {
        if !ops.contains(&op) {
            ops.push(op)
        }
    });
    for op in ops {
        let of_op: Vec<NewRow> = rows.iter().filter(|row| row.op == *op).cloned().collect();
        text = edit::merged(&name, &text, &of_op, &provenance)?;
    }
    Ok(text)
}

/// What made the numbers. Folders are left out of the command: they are of one machine.
fn provenance(setup: &Setup) -> anyhow::Result<Provenance> {
    let mut method = "gptoss-jit".to_owned();
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        let of_this_machine = ["--templates", "--tuning", "--journal"];
        match word.as_str() {
            word if of_this_machine.contains(&word) => drop(given.next()),
            word if of_this_machine.iter().any(|flag| word.starts_with(&format!("{flag}="))) => {}
            word => {
                method.push(' ');
                method.push_str(word);
            }
        }
    }
    let target = setup.target();
    let compiler = compiler_for(target).name();
    let compiler = setup.store.compiler().identity(compiler, &target.id())?.description();
    Ok(Provenance {
        kind: setup.kind(),
        date: today(),
        method,
        device: setup.device().map(str::to_owned),
        compiler: Some(compiler),
        notes: None,
    })
}

/// The facts that rows are to want: all, or those of `--where`.
pub(super) fn facts(problem: &Problem, names: &[String]) -> anyhow::Result<Facts> {
    let mut facts = problem.query().facts;
    if let Some(unknown) = names.iter().find(|name| !facts.contains_key(*name)) {
        let known = facts.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(UsageError(format!("--where {unknown}: expected some of: {known}")).into());
    }
    facts.retain(|name, _| names.is_empty() || names.contains(name));
    Ok(facts)
}
/// Year, month and day, in Greenwich.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of(seconds / 86_400)
}

/// The date of a day, counted from 1970-01-01 (Howard Hinnant's `civil_from_days`: years begin in March).
fn date_of(day: u64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    format!("{:04}-{month:02}-{of_month:02}", year + 400 * era)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (day, date) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_777, "2026-11-20")] {
            assert_eq!(date_of(day), date);
        }
    }
}
