//! Prints the results: with `--op` a table for each row count, and a table of the best at the end.

use serde_json::{Value, json};

use super::setup::Setup;
use super::steps::Decided;
use super::{Args, write};
use crate::output::Output;
use kernel::step::StepKind;
use kernel::template::work::Work;
use kernel::template::{Params, Problem};
use kernel::tuning::edit::NewRow;
use system::units::counted;
use workbench::tune::job::{Piece, TuningJob};
use workbench::tune::judge::{Reason, Time, Uses, Verdict};
use workbench::tune::tuner::{CandidateResult, Tuned};

/// None of the candidates gives what it should.
#[derive(Debug, thiserror::Error)]
#[error("no kernel of `{op}` could be timed at {}; the first failed: {first}", counted(*n_tokens as usize, "row"))]
struct NothingTimed {
    op: String,
    n_tokens: u32,
    first: String,
}

/// `--variant` and `--params` leave nothing.
pub(super) fn nothing_to_try(op: &str) -> anyhow::Error {
    let what = format!("no template of `{op}` has legal parameters as `--variant` and `--params` say");
    crate::usage::UsageError(what).into()
}

/// `linear, in_features 2880, out_features 5120, has_bias, weight bf16, precision bf16`.
fn describe(problem: &Problem) -> String {
    let mut parts = vec![problem.ops.join("+")];
    parts.extend(problem.dims.iter().map(|(name, value)| format!("{name} {value}")));
    parts.extend(problem.flags.iter().filter(|(_, value)| **value).map(|(name, _)| name.clone()));
    parts.extend(problem.dtypes.iter().map(|(name, dtype)| format!("{name} {dtype}")));
    parts.push(format!("precision {}", problem.precision));
    parts.join(", ")
}

/// `linear 2880x5120, 32 rows`.
pub(super) fn short(problem: &Problem, piece: &Piece) -> String {
    let dims = problem.dims.values().map(u32::to_string).collect::<Vec<_>>().join("x");
    format!("{} {dims}, {}", problem.ops.join("+"), counted(piece.n_tokens as usize, "row"))
}

/// The same of a piece of a job.
pub(super) fn title(job: &TuningJob, piece: &Piece) -> String {
    short(&job.problems[piece.problem].problem, piece)
}

fn list(params: &Params) -> String {
    params.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// How much faster the best is than what the tables say now, as a fraction; 0 where that is as good.
pub(super) fn gain(tuned: &Tuned) -> Option<f64> {
    let (entry, time) = workbench::tune::rows::chosen(tuned, None)?;
    let present = tuned.present_us()?;
    Some(if tuned.is_present(entry) { 0.0 } else { present / time.median_us() - 1.0 })
}

/// One piece in a line.
pub(super) fn line(tuned: &Tuned) -> String {
    let title = short(&tuned.problem, &tuned.piece);
    let refused = refusals(tuned);
    let refused = if refused.is_empty() { refused } else { format!("; {refused}") };
    let Some((entry, time)) = workbench::tune::rows::chosen(tuned, None) else {
        return format!("{title}: nothing of {} is to be used{refused}", tuned.n_tried);
    };
    let CandidateResult { candidate, .. } = entry;
    let best = format!("{:.2} us by {} {}", time.median_us(), candidate.template.label(), list(&candidate.params));
    let against = match (tuned.is_present(entry), tuned.present_us()) {
        (true, _) => ", as now".to_owned(),
        (false, Some(present)) => format!(", now {present:.2} us"),
        (false, None) => String::new(),
    };
    format!("{title}: {}{against}; {} tried{refused}", best.trim_end(), tuned.n_tried)
}

/// `3 spill, 1 is wrong`.
fn refusals(tuned: &Tuned) -> String {
    tuned.refused().iter().map(|(reason, n)| format!("{n} {}", reason.name())).collect::<Vec<_>>().join(", ")
}

/// Prints the best of one number of rows, and the present choice, where ops are named; wrong kernels always.
///
/// # Errors
/// If nothing could be timed of what was named.
pub(super) fn piece(tuned: &Tuned, args: &Args, output: &Output) -> anyhow::Result<()> {
    tell_failures(tuned, output);
    let is_named = !args.job.op.is_empty();
    if tuned.ranked().is_empty() && is_named {
        let first = failures(tuned).next().map_or("nothing was tried".into(), |(_, _, text)| text.to_owned());
        let n_tokens = tuned.piece.n_tokens;
        return Err(NothingTimed { op: tuned.problem.ops.join("+"), n_tokens, first }.into());
    }
    if output.is_json() || !is_named {
        return Ok(());
    }
    let Work { flop, .. } = &tuned.work;
    let flop = flop.map_or(String::new(), |flop| format!(", {:.3} GFLOP", flop / 1e9));
    let ranked = tuned.ranked();
    let compared = ranked.iter().find_map(|(_, time)| time.compared.as_ref());
    let compared = compared.map_or(String::new(), |(compared, n_copies)| {
        format!(", {n_copies} copies of the weights, compared: {compared}")
    });
    output.line(&format!(
        "\n{}, {}: {:.2} MB{flop}; {} tried{compared}",
        describe(&tuned.problem),
        counted(tuned.piece.n_tokens as usize, "row"),
        tuned.work.total_bytes() / 1e6,
        tuned.n_tried,
    ))?;
    let show = args.show.max(1);
    let shown = ranked.iter().enumerate().filter(|(i, (entry, _))| *i < show || tuned.is_present(entry));
    let rows: Vec<Vec<String>> = shown.map(|(i, (entry, time))| row(tuned, i, entry, time)).collect();
    let right = ["µs", "spread %", "GB/s", "TFLOP/s", "error %", "VGPRs", "spills", "LDS bytes"];
    let header: Vec<&str> = ["template", "params"].into_iter().chain(right).chain([""]).collect();
    output.table(&header, &rows, &right)?;
    Ok(())
}

fn row(tuned: &Tuned, rank: usize, entry: &CandidateResult, time: &Time) -> Vec<String> {
    let time_us = time.median_us();
    let marks = [
        (rank == 0).then_some("best"),
        tuned.is_present(entry).then_some("present"),
        time.evidence.is_none().then_some("predicted"),
    ];
    let mut cells = vec![
        entry.candidate.template.label(),
        list(&entry.candidate.params),
        format!("{time_us:.2}"),
        format!("{:.1}", 100.0 * time.spread()),
        format!("{:.0}", tuned.gbps(time_us)),
        tflops(tuned, time_us).map_or("-".into(), |tflops| format!("{tflops:.1}")),
        time.worst_error.map_or("-".into(), |worst| format!("{:.0}", 100.0 * worst)),
    ];
    let uses = time.uses.map(|Uses { vgprs, spills, lds_bytes }| [vgprs, spills, lds_bytes]);
    cells.extend(uses.map_or(["-"; 3].map(str::to_owned), |uses| uses.map(|n| n.to_string())));
    cells.push(marks.into_iter().flatten().collect::<Vec<_>>().join(", "));
    cells
}

fn tflops(tuned: &Tuned, time_us: f64) -> Option<f64> {
    tuned.work.flop.map(|flop| flop / time_us / 1e6)
}

fn failures(tuned: &Tuned) -> impl Iterator<Item = (&CandidateResult, Reason, &str)> {
    tuned.entries.iter().filter_map(|entry| match &entry.verdict {
        Verdict::Refused { reason, text } => Some((entry, *reason, text.as_str())),
        Verdict::Time(_) => None,
    })
}

/// Kernels that give something wrong or end their process are always told; those that do not compile or fit, with
/// `--verbose`.
fn tell_failures(tuned: &Tuned, output: &Output) {
    for (entry, reason, text) in failures(tuned) {
        let params = list(&entry.candidate.params);
        let params = if params.is_empty() { params } else { format!(" {params}") };
        let text = format!("{}{params}: {text}", entry.candidate.template.label());
        match reason {
            Reason::Wrong | Reason::Died => output.warning(&text),
            _ => output.detail(&text),
        }
    }
}

fn json(tuned: &Tuned) -> Value {
    let rows = tuned.ranked().into_iter().map(|(entry, time)| {
        let Candidate { label, params } = named(entry);
        json!({
            "template": label, "params": params, "time_us": time.median_us(), "spread": time.spread(),
            "rounds": time.times_us.len(), "gbps": tuned.gbps(time.median_us()),
            "tflops": tflops(tuned, time.median_us()), "worst_error": time.worst_error, "source": time.source,
            "object": time.object, "evidence": time.evidence, "present": tuned.is_present(entry),
            "vgprs": time.uses.map(|uses| uses.vgprs), "spills": time.uses.map(|uses| uses.spills),
            "lds_bytes": time.uses.map(|uses| uses.lds_bytes),
        })
    });
    let failed = failures(tuned).map(|(entry, reason, text)| {
        let Candidate { label, params } = named(entry);
        json!({ "template": label, "params": params, "reason": reason, "error": text })
    });
    let Problem { ops, dims, flags, dtypes, precision, .. } = &tuned.problem;
    let dtypes: serde_json::Map<String, Value> =
        dtypes.iter().map(|(name, dtype)| (name.clone(), dtype.name().into())).collect();
    let ranked = tuned.ranked();
    let compared = ranked.iter().find_map(|(_, time)| time.compared.as_ref());
    json!({
        "op": ops.join("+"), "dims": dims, "flags": flags, "dtypes": dtypes, "precision": precision.name(),
        "tokens": tuned.piece.n_tokens, "step": tuned.piece.step.name(), "between": tuned.is_between, "bytes": tuned.work.total_bytes(),
        "flop": tuned.work.flop, "compared": compared.map(|(words, _)| words), "copies": compared.map(|(_, n)| n),
        "tried": tuned.n_tried, "timed": rows.collect::<Vec<_>>(), "failed": failed.collect::<Vec<_>>(),
    })
}

struct Candidate<'a> {
    label: String,
    params: &'a Params,
}

fn named(entry: &CandidateResult) -> Candidate<'_> {
    Candidate { label: entry.candidate.template.label(), params: &entry.candidate.params }
}

/// Prints the best of all numbers of rows and what whole steps say, or everything as JSON.
pub(super) fn finish(all: &[Tuned], decided: Option<&Decided>, setup: &Setup, output: &Output) -> anyhow::Result<()> {
    let (device, target) = (setup.device(), setup.target().id());
    if output.is_json() {
        let results: Vec<Value> = all.iter().map(json).collect();
        let steps = decided.map(Decided::json);
        let kind = setup.kind().name();
        output.json(&json!({
            "schema": 1, "kind": kind, "device": device, "target": target, "results": results, "steps": steps,
        }))?;
        return Ok(());
    }
    let by = device.map_or_else(|| format!("predicted for {target}"), |device| format!("on {device}"));
    output.line(&format!("\nthe best, {by}:"))?;
    let rows: Vec<Vec<String>> = all.iter().filter_map(summary).collect();
    let right = ["rows", "µs", "GB/s", "TFLOP/s", "present µs", "gain %"];
    let header = ["problem", right[0], "template", "params", right[1], right[2], right[3], right[4], right[5]];
    output.table(&header, &rows, &right)?;
    let mut counts = std::collections::BTreeMap::new();
    for (reason, n) in all.iter().flat_map(Tuned::refused) {
        *counts.entry(reason).or_insert(0) += n;
    }
    if !counts.is_empty() {
        let counts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {}", reason.name())).collect();
        output.note(&format!("rejected: {}", counts.join(", ")));
    }
    decided.map_or(Ok(()), |decided| decided.print(output))
}

/// The rows that are written, as the table has them: the last list that is printed is what is there then.
pub(super) fn written(rows: &[NewRow], output: &Output) -> anyhow::Result<()> {
    if rows.is_empty() || output.is_json() {
        return Ok(());
    }
    output.line("\nrows that are written:")?;
    let row = |row: &NewRow| {
        let facts: Vec<String> = row.facts.iter().map(|(name, fact)| format!("{name}={fact}")).collect();
        vec![
            row.op.clone(),
            row.tokens.to_string(),
            row.step.map_or("-", StepKind::name).to_owned(),
            row.template.clone(),
            list(&row.params),
            format!("{:.2}", row.time_us),
            facts.join(" "),
        ]
    };
    let header = ["op", "tokens", "step", "template", "params", "µs", "where"];
    output.table(&header, &rows.iter().map(row).collect::<Vec<_>>(), &["µs"])?;
    Ok(())
}

/// A line of the table at the end.
fn summary(tuned: &Tuned) -> Option<Vec<String>> {
    let (entry, time) = write::chosen(tuned)?;
    let time_us = time.median_us();
    let present = tuned.present_us();
    let dims = tuned.problem.dims.values().map(u32::to_string).collect::<Vec<_>>().join("x");
    Some(vec![
        format!("{} {dims}", tuned.problem.ops.join("+")),
        tuned.piece.n_tokens.to_string(),
        entry.candidate.template.label(),
        list(&entry.candidate.params),
        format!("{time_us:.2}"),
        format!("{:.0}", tuned.gbps(time_us)),
        tflops(tuned, time_us).map_or("-".into(), |tflops| format!("{tflops:.1}")),
        present.map_or("-".into(), |us| format!("{us:.2}")),
        present.map_or("-".into(), |us| format!("{:.0}", 100.0 * (us / time_us - 1.0))),
    ])
}
