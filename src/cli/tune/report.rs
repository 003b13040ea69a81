//! What came of it: a table for each number of rows, and one of the best at the end.

use gpu::code_object::KernelFacts;
use serde_json::{Value, json};

use crate::cli::output::Output;
use crate::pipeline::Pipeline;
use crate::template::work::Work;
use crate::template::{Params, Problem};
use crate::tuning::table::{StepKind, Tokens};
use crate::workbench::check::Wrong;
use crate::workbench::timing::{Candidate, CandidateError, Timed};

/// One candidate.
pub(super) struct Entry {
    pub candidate: Candidate,
    pub result: Result<Timed, CandidateError>,
}

/// One problem at one number of rows.
pub(super) struct Tuned {
    pub problem: Problem,
    pub n_tokens: u32,
    /// For ops to which it matters.
    pub step: Option<StepKind>,
    pub work: Work,
    /// How much of the outputs is held against the reference.
    pub compared: String,
    pub n_copies: usize,
    pub n_tried: usize,
    /// What the tables say now.
    pub present: (String, Params),
    /// For how many tokens the row holds that says it; `None` where none does.
    pub present_row: Option<Tokens>,
    pub entries: Vec<Entry>,
}

/// None of the candidates gives what it should.
#[derive(Debug, thiserror::Error)]
#[error("no kernel of `{op}` could be timed at {n_tokens} rows; the first: {first}")]
struct NothingTimed {
    op: String,
    n_tokens: u32,
    first: String,
}

impl Tuned {
    /// The candidates that were timed, the fastest first.
    pub fn ranked(&self) -> Vec<(&Entry, &Timed)> {
        let timed = self.entries.iter().filter_map(|entry| Some((entry, entry.result.as_ref().ok()?)));
        let mut ranked: Vec<_> = timed.collect();
        // What went into the finals has more rounds: of others only the final's loser's time counts.
        let n_rounds = ranked.iter().map(|(_, timed)| timed.times_us.len()).max().unwrap_or(0);
        ranked.sort_by(|(_, a), (_, b)| {
            let of_finals = |timed: &Timed| timed.times_us.len() < n_rounds;
            of_finals(a).cmp(&of_finals(b)).then(a.median_us().total_cmp(&b.median_us()))
        });
        ranked
    }

    /// Whether it is what the tables say now.
    pub fn is_present(&self, entry: &Entry) -> bool {
        entry.candidate.template.label() == self.present.0 && entry.candidate.params == self.present.1
    }

    fn present_us(&self) -> Option<f64> {
        self.ranked().iter().find(|(entry, _)| self.is_present(entry)).map(|(_, timed)| timed.median_us())
    }

    /// Bandwidth that a time comes to, in 10^9 bytes per second.
    pub fn gbps(&self, time_us: f64) -> f64 {
        self.work.total_bytes() / time_us / 1e3
    }

    fn tflops(&self, time_us: f64) -> Option<f64> {
        self.work.flop.map(|flop| flop / time_us / 1e6)
    }

    fn title(&self) -> String {
        format!("{}, {} rows", describe(&self.problem), self.n_tokens)
    }

    fn failures(&self) -> impl Iterator<Item = (&Entry, &CandidateError)> {
        self.entries.iter().filter_map(|entry| Some((entry, entry.result.as_ref().err()?)))
    }

    fn row(&self, i: usize, entry: &Entry, timed: &Timed) -> Vec<String> {
        let time_us = timed.median_us();
        let marks = [(i == 0).then_some("best"), self.is_present(entry).then_some("present")];
        let mut cells = vec![
            entry.candidate.template.label(),
            list(&entry.candidate.params),
            format!("{time_us:.2}"),
            format!("{:.1}", 100.0 * timed.spread()),
            format!("{:.0}", self.gbps(time_us)),
            self.tflops(time_us).map_or("-".into(), |tflops| format!("{tflops:.1}")),
            format!("{:.0}", 100.0 * timed.worst),
        ];
        let uses = timed.uses.as_ref().map(|uses| [uses.vgprs, uses.spills(), uses.lds_bytes]);
        cells.extend(uses.map_or(["-"; 3].map(str::to_owned), |uses| uses.map(|n| n.to_string())));
        cells.push(marks.into_iter().flatten().collect::<Vec<_>>().join(", "));
        cells
    }

    fn json(&self) -> Value {
        let rows = self.ranked().into_iter().map(|(entry, timed)| {
            json!({
                "template": entry.candidate.template.label(), "params": entry.candidate.params,
                "time_us": timed.median_us(), "spread": timed.spread(), "rounds": timed.times_us.len(),
                "gbps": self.gbps(timed.median_us()), "tflops": self.tflops(timed.median_us()),
                "worst_error": timed.worst, "source": timed.source, "present": self.is_present(entry),
                "vgprs": timed.uses.as_ref().map(|uses| uses.vgprs),
                "spills": timed.uses.as_ref().map(KernelFacts::spills),
                "lds_bytes": timed.uses.as_ref().map(|uses| uses.lds_bytes),
            })
        });
        let failures = self.failures().map(|(entry, error)| {
            let Candidate { template, params } = &entry.candidate;
            json!({ "template": template.label(), "params": params, "error": error.to_string() })
        });
        let Problem { ops, dims, flags, dtypes, precision, .. } = &self.problem;
        let dtypes: serde_json::Map<String, Value> =
            dtypes.iter().map(|(name, dtype)| (name.clone(), dtype.name().into())).collect();
        json!({
            "op": ops.join("+"), "dims": dims, "flags": flags, "dtypes": dtypes, "precision": precision.name(),
            "tokens": self.n_tokens, "bytes": self.work.total_bytes(), "flop": self.work.flop,
            "compared": self.compared, "copies": self.n_copies, "tried": self.n_tried,
            "timed": rows.collect::<Vec<_>>(), "failed": failures.collect::<Vec<_>>(),
        })
    }
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

fn list(params: &Params) -> String {
    params.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Prints the best of one number of rows, and the present choice.
///
/// # Errors
/// If nothing could be timed.
pub(super) fn print(tuned: &Tuned, show: usize, output: &Output) -> anyhow::Result<()> {
    tell_failures(tuned, output);
    if tuned.ranked().is_empty() {
        let first = tuned.failures().next().map_or("nothing was tried".into(), |(_, error)| error.to_string());
        return Err(NothingTimed { op: tuned.problem.ops.join("+"), n_tokens: tuned.n_tokens, first }.into());
    }
    if output.is_json() {
        return Ok(());
    }
    let Work { flop, .. } = &tuned.work;
    let flop = flop.map_or(String::new(), |flop| format!(", {:.3} GFLOP", flop / 1e9));
    output.line(&format!(
        "\n{}: {:.2} MB{flop}; {} tried, {} copies of the weights, compared: {}",
        tuned.title(),
        tuned.work.total_bytes() / 1e6,
        tuned.n_tried,
        tuned.n_copies,
        tuned.compared
    ))?;
    let ranked = tuned.ranked();
    let is_shown = |(i, (entry, _)): &(usize, &(&Entry, &Timed))| *i < show.max(1) || tuned.is_present(entry);
    let shown = ranked.iter().enumerate().filter(is_shown);
    let rows: Vec<Vec<String>> = shown.map(|(i, (entry, timed))| tuned.row(i, entry, timed)).collect();
    let right = ["µs", "spread %", "GB/s", "TFLOP/s", "error %", "VGPRs", "spills", "LDS bytes"];
    let header: Vec<&str> = ["template", "params"].into_iter().chain(right).chain([""]).collect();
    output.table(&header, &rows, &right)?;
    Ok(())
}

/// Kernels that give something wrong are always told; those that do not compile or fit, with `--verbose`.
fn tell_failures(tuned: &Tuned, output: &Output) {
    for (entry, error) in tuned.failures() {
        let params = list(&entry.candidate.params);
        let params = if params.is_empty() { params } else { format!(" {params}") };
        let text = format!("{}{params}: {error}", entry.candidate.template.label());
        match error {
            CandidateError::Wrong(Wrong::Different(_) | Wrong::Rounding { .. }) => output.warning(&text),
            _ => output.detail(&text),
        }
    }
    let n_failed = tuned.failures().count();
    if n_failed > 0 {
        output.note(&format!("{n_failed} of {} could not be used", tuned.n_tried));
    }
}

/// Prints the best of all numbers of rows, or everything as JSON.
pub(super) fn finish(all: &[Tuned], pipeline: &Pipeline, output: &Output) -> anyhow::Result<()> {
    let device = pipeline.driver().describe();
    if output.is_json() {
        let results: Vec<Value> = all.iter().map(Tuned::json).collect();
        output.json(&json!({ "schema": 1, "device": device, "target": pipeline.target().id(), "results": results }))?;
        return Ok(());
    }
    output.line(&format!("\nthe best, on {device}:"))?;
    let rows: Vec<Vec<String>> = all.iter().map(summary).collect();
    let right = ["rows", "µs", "GB/s", "TFLOP/s", "present µs", "gain %"];
    let header = ["problem", right[0], "template", "params", right[1], right[2], right[3], right[4], right[5]];
    output.table(&header, &rows, &right)?;
    Ok(())
}

/// A line of the table at the end.
fn summary(tuned: &Tuned) -> Vec<String> {
    let ranked = tuned.ranked();
    let (entry, timed) = ranked[0];
    let time_us = timed.median_us();
    let present = tuned.present_us();
    let dims = tuned.problem.dims.values().map(u32::to_string).collect::<Vec<_>>().join("x");
    vec![
        format!("{} {dims}", tuned.problem.ops.join("+")),
        tuned.n_tokens.to_string(),
        entry.candidate.template.label(),
        list(&entry.candidate.params),
        format!("{time_us:.2}"),
        format!("{:.0}", tuned.gbps(time_us)),
        tuned.tflops(time_us).map_or("-".into(), |tflops| format!("{tflops:.1}")),
        present.map_or("-".into(), |us| format!("{us:.2}")),
        present.map_or("-".into(), |us| format!("{:.0}", 100.0 * (us / time_us - 1.0))),
    ]
}
