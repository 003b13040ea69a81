//! `--write`: what was measured, as rows of the target's tuning table.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};

use super::Args;
use super::report::{Entry, Tuned};
use crate::cli::output::Output;
use crate::cli::usage::UsageError;
use crate::object::compile::compiler_for;
use crate::pipeline::Pipeline;
use crate::template::Problem;
use crate::tuning::edit::{self, NewRow};
use crate::tuning::table::{Facts, Provenance, ProvenanceKind, Tokens};
use crate::tuning::{MAX_TABLE_BYTES, TuningTables};
use crate::workbench::timing::Timed;

/// Times that are no further apart than this are the same, as a fraction.
const NOISE: f64 = 0.02;

/// Puts the choices into the table of the target: in `--tuning`, else in the user's config folder.
pub(super) fn write(all: &[Tuned], args: &Args, pipeline: &Pipeline, output: &Output) -> anyhow::Result<()> {
    let path = path(args, pipeline)?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let provenance = provenance(pipeline)?;
    let mut text = match mapped_file::read_to_string(&path, MAX_TABLE_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("could not read `{}`", path.display())),
    };
    let rows = rows(all, args)?;
    for of_op in rows.chunk_by(|a, b| a.op == b.op) {
        text = edit::merged(&name, &text, of_op, &provenance)?;
    }
    if rows.is_empty() {
        output.note("nothing is better than what the tables say");
        return Ok(());
    }
    edit::write(&path, &text)?;
    output.note(&format!("{} rows are in `{}`", rows.len(), path.display()));
    Ok(())
}

fn path(args: &Args, pipeline: &Pipeline) -> anyhow::Result<PathBuf> {
    let folder = match &args.source.tuning {
        Some(folder) => folder.clone(),
        None => {
            TuningTables::user_folder().ok_or_else(|| anyhow!("there is no config folder: name one with --tuning"))?
        }
    };
    let families = pipeline.target().families();
    Ok(folder.join(format!("{}.toml", families.first().expect("a target has a name"))))
}

/// What made the numbers. Folders are left out of the command: they are of one machine.
fn provenance(pipeline: &Pipeline) -> anyhow::Result<Provenance> {
    let mut method = "gptoss-jit".to_owned();
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--templates" | "--tuning" => drop(given.next()),
            word if word.starts_with("--templates=") || word.starts_with("--tuning=") => {}
            word => {
                method.push(' ');
                method.push_str(word);
            }
        }
    }
    let target = pipeline.target();
    let compiler = compiler_for(target).name();
    let compiler = pipeline.store().compiler().identity(compiler, &target.id())?.description();
    Ok(Provenance {
        kind: ProvenanceKind::Measured,
        date: today(),
        method,
        device: Some(pipeline.driver().describe()),
        compiler: Some(compiler),
        notes: None,
    })
}

/// The rows of everything for which something else is better than what the tables say now, or for which they say
/// nothing. A choice holds for as many rows as it was measured at and for fewer, down to the next smaller number that
/// was measured, but not beyond the range of the row that it takes the place of; the last one holds to the end of that.
/// Neighbours that choose alike are one row.
fn rows(all: &[Tuned], args: &Args) -> anyhow::Result<Vec<NewRow>> {
    let mut rows: Vec<NewRow> = Vec::new();
    for of_problem in all.chunk_by(|a, b| a.problem == b.problem) {
        let facts = facts(&of_problem[0].problem, args)?;
        if rows.iter().any(|row| row.facts == facts && row.op == of_problem[0].problem.ops.join("+")) {
            let what = "two problems would have the same rows: `--where` names too few of their facts";
            return Err(UsageError(what.into()).into());
        }
        rows.extend(rows_of(of_problem, &facts));
    }
    Ok(rows)
}

/// The rows of one problem at rising numbers of tokens.
fn rows_of(of_problem: &[Tuned], facts: &Facts) -> Vec<NewRow> {
    let mut rows: Vec<NewRow> = Vec::new();
    let mut measured = 0;
    for (i, tuned) in of_problem.iter().enumerate() {
        let before = rows.last().filter(|row| row.tokens.last == Some(measured));
        let (entry, timed) = chosen(tuned, before);
        let old = tuned.present_row.unwrap_or(Tokens { first: 1, last: None });
        let last = if i + 1 == of_problem.len() { old.last } else { Some(tuned.n_tokens) };
        let tokens = Tokens { first: old.first.max(measured + 1), last };
        measured = tuned.n_tokens;
        if tuned.present_row.is_some() && tuned.is_present(entry) {
            continue;
        }
        let row = row(tuned, entry, timed, facts.clone(), tokens);
        match rows.last_mut() {
            Some(last)
                if last.tokens.last.and_then(|n| n.checked_add(1)) == Some(tokens.first)
                    && last.is_same_choice(&row) =>
            {
                *last = NewRow { tokens: Tokens { first: last.tokens.first, ..tokens }, ..row };
            }
            _ => rows.push(row),
        }
    }
    rows
}

/// The facts that rows are to want: all, or those of `--where`.
pub(super) fn facts(problem: &Problem, args: &Args) -> anyhow::Result<Facts> {
    let mut facts = problem.query().facts;
    if let Some(unknown) = args.r#where.iter().find(|name| !facts.contains_key(*name)) {
        let known = facts.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(UsageError(format!("--where {unknown}: expected some of: {known}")).into());
    }
    facts.retain(|name, _| args.r#where.is_empty() || args.r#where.contains(name));
    Ok(facts)
}

/// The best; of equally good ones that of the row before, else the present one.
fn chosen<'t>(tuned: &'t Tuned, before: Option<&NewRow>) -> (&'t Entry, &'t Timed) {
    let ranked = tuned.ranked();
    let (best_entry, best) = ranked[0];
    let limit = best.median_us() * (1.0 + NOISE.max(best.spread()));
    let n_rounds = best.times_us.len();
    let is_good = |timed: &Timed| timed.times_us.len() == n_rounds && timed.median_us() <= limit;
    let is_before = |entry: &Entry| {
        let candidate = &entry.candidate;
        before.is_some_and(|row| row.template == candidate.template.label() && row.params == candidate.params)
    };
    let good = || ranked.iter().filter(|(_, timed)| is_good(timed));
    let kept = good().find(|(entry, _)| is_before(entry)).or_else(|| good().find(|(entry, _)| tuned.is_present(entry)));
    kept.copied().unwrap_or((best_entry, best))
}

fn row(tuned: &Tuned, entry: &Entry, timed: &Timed, facts: Facts, tokens: Tokens) -> NewRow {
    let time_us = timed.median_us();
    NewRow {
        op: tuned.problem.ops.join("+"),
        facts,
        tokens,
        step: tuned.step,
        template: entry.candidate.template.label(),
        params: entry.candidate.params.clone(),
        time_us,
        gbps: tuned.gbps(time_us),
        timed_at: tuned.n_tokens,
        source: timed.source.clone(),
    }
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
