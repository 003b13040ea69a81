//! The words and the JSON of `kernels plan`.
//!
//! With `--json`, one object with `"schema": 1`: `model`, `target`, `precision`, `limits`, `bytes_per_token` (of the
//! weights, what the `device` and the `host` read), `launches` (see [`Launch`]) and `overruled`: templates of one's own
//! that a row keeps from winning, each with `template`, `file`, `priority`, `rows` (where: `step`, `first`, `last`),
//! `why` and `advice`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use crate::output::Output;
use crate::spans::SpanLine;
use engine::graph::placement::Place;
use engine::graph::{Rows, StepLimits};
use engine::plan::overruled::Overruled;
use kernel::choice::{Choice, Chooser, Ranking, Why, is_of_a_problem, is_stale, renders_it};
use kernel::template::render::render;
use kernel::template::{Params, Precision, Template};
use kernel::tuning::table::{Provenance, TuningRow};
use system::units::human_bytes;

/// All that there is to tell.
pub(super) struct Report<'a> {
    pub(crate) model: String,
    pub(crate) precision: Precision,
    pub(crate) limits: StepLimits,
    pub(crate) chooser: &'a Chooser,
    pub(crate) lines: &'a [SpanLine<'a>],
    pub(crate) overruled: Vec<Overruled>,
    /// Weights that a step for one token reads, and those of them that the processor reads.
    pub(crate) bytes_per_token: [u64; 2],
}

/// One launch of some layers, for a range of row counts.
#[derive(Serialize)]
struct Launch<'a> {
    nodes: String,
    layers: Vec<usize>,
    ops: &'a [String],
    /// Who computes it: `device` or `host`, or, in steps of many tokens, the device in the host's place: `streamed`.
    place: &'static str,
    /// `decode`, `mixed` or `any`.
    step: &'static str,
    rows: RowCounts,
    template: String,
    /// The template's file.
    file: String,
    /// Where files of the same name lie that it hides.
    hides: Vec<String>,
    params: &'a Params,
    priority: i64,
    /// The row that chose it; null where priorities did.
    row: Option<TuningRowReport<'a>>,
    /// Other rows that apply: they follow that one, or could not be followed.
    other_rows: Vec<TuningRowReport<'a>>,
    warnings: &'a [String],
    next: Vec<Loser>,
    misfits: Vec<Misfit>,
    unfused: Vec<Unfused>,
}

#[derive(Serialize)]
struct RowCounts {
    /// `all` rows of a step, or those that want `logits`.
    of: &'static str,
    first: usize,
    last: usize,
}

/// A row of a tuning table.
#[derive(Serialize)]
struct TuningRowReport<'a> {
    /// `file:line`.
    place: &'a str,
    #[serde(rename = "use")]
    template: &'a str,
    tokens: String,
    params: &'a BTreeMap<String, u32>,
    time_us: Option<f64>,
    timed_at: Option<u32>,
    provenance: Option<serde_json::Value>,
}

/// A candidate that did not win.
#[derive(Serialize)]
struct Loser {
    template: String,
    params: Params,
    why: String,
}

/// A template that is no candidate.
#[derive(Serialize)]
struct Misfit {
    template: String,
    why: String,
}

/// A run of ops that is not fused.
#[derive(Serialize)]
struct Unfused {
    ops: Vec<String>,
    why: String,
}

impl Report<'_> {
    /// The object of `--json`.
    pub(crate) fn json(&self) -> serde_json::Value {
        let launches: Vec<Launch<'_>> = self.lines.iter().map(|line| self.launch(line)).collect();
        let target = self.chooser.target();
        let overruled = self.overruled.iter().map(|one| {
            let ranges = one.ranges.iter();
            let ranges = ranges.map(|(step, first, last)| json!({ "step": step.name(), "first": first, "last": last }));
            json!({
                "template": one.template.label(),
                "file": one.template.file.place(0).to_string(),
                "priority": one.template.priority,
                "rows": ranges.collect::<Vec<_>>(),
                "why": one.by.to_string(),
                "advice": one.advice(target),
            })
        });
        json!({
            "schema": 1,
            "model": self.model,
            "target": target.arch,
            "precision": self.precision.name(),
            "limits": {
                "max_rows": self.limits.max_rows,
                "max_logit_rows": self.limits.max_logit_rows,
                "max_decode_rows": self.limits.max_decode_rows,
            },
            "bytes_per_token": { "device": self.bytes_per_token[0] - self.bytes_per_token[1], "host": self.bytes_per_token[1] },
            "launches": launches,
            "overruled": overruled.collect::<Vec<_>>(),
        })
    }

    fn launch<'l>(&'l self, line: &'l SpanLine<'_>) -> Launch<'l> {
        let (first, ranking) = (&line.ranking.choices[0], line.ranking);
        let rows: Vec<TuningRowReport<'_>> = ranking.rows.iter().map(|row| self.row(row)).collect();
        let mut rows = rows.into_iter();
        Launch {
            nodes: line.label(),
            layers: line.layers.iter().copied().collect(),
            ops: &line.problem.ops,
            place: match line.decision.place {
                Place::Device => "device",
                Place::Host => "host",
                Place::Streamed => "streamed",
            },
            step: line.step_name(),
            rows: RowCounts {
                of: match line.decision.rows {
                    Rows::All => "all",
                    Rows::Logits | Rows::Gathered | Rows::Compared => "logits",
                    Rows::Changed => "changed",
                    Rows::Logprobs => "logprobs",
                },
                first: line.first_row_count,
                last: line.last_row_count,
            },
            template: first.template.label(),
            file: first.template.file.place(0).to_string(),
            hides: hidden(&first.template),
            params: &first.params,
            priority: first.template.priority,
            row: if ranking.row().is_some() { rows.next() } else { None },
            other_rows: rows.collect(),
            warnings: &ranking.warnings,
            next: losers(ranking).collect(),
            misfits: misfits(ranking).collect(),
            unfused: unfused(line).collect(),
        }
    }

    fn row<'l>(&self, row: &'l TuningRow) -> TuningRowReport<'l> {
        let provenance = self.chooser.tables().provenance(row).map(|known| {
            let Provenance { kind, date, method, device, compiler, notes } = known;
            let (name, kind) = (&row.provenance, kind.name());
            json!({
                "name": name, "kind": kind, "date": date, "method": method, "device": device, "compiler": compiler,
                "notes": notes,
            })
        });
        TuningRowReport {
            place: &row.place,
            template: &row.template,
            tokens: row.tokens.to_string(),
            params: &row.params,
            time_us: row.time_us,
            timed_at: row.timed_at,
            provenance,
        }
    }

    /// The table, what is hidden and overruled, and all reasons if asked.
    pub(crate) fn print(&self, with_reasons: bool, output: &Output) -> anyhow::Result<()> {
        let cells: Vec<Vec<String>> = self.lines.iter().map(|line| self.cells(line)).collect();
        let header = ["nodes", "step", "rows", "template", "parameters", "chosen by", "next", "by"];
        // Where the device computes everything, there is no need to say so.
        let n_columns = header.len() - usize::from(!self.is_shared());
        let shown: Vec<Vec<String>> = cells.into_iter().map(|row| row.into_iter().take(n_columns).collect()).collect();
        output.table(&header[..n_columns], &shown, &[])?;
        if with_reasons {
            for line in self.lines {
                output.line("")?;
                for text in self.reasons(line) {
                    output.line(&text)?;
                }
            }
        }
        for text in self.remarks() {
            output.line(&text)?;
        }
        let StepLimits { max_rows, max_decode_rows, .. } = self.limits;
        output.note(&format!(
            "{} for {} in precision {}: steps of up to {max_rows} rows, {max_decode_rows} sequences at a time",
            self.model,
            self.chooser.target().arch,
            self.precision,
        ));
        if self.is_shared() {
            let [all, host] = self.bytes_per_token;
            let [device, host] = [all - host, host].map(human_bytes);
            let arch = &self.chooser.target().arch;
            output.note(&format!("weights that one token reads: {device} by {arch}, {host} by the processor"));
            if self.lines.iter().any(|line| line.decision.place == Place::Streamed) {
                output.note(
                    "what is streamed comes from main memory in steps of more tokens than the processor is as fast for, \
                     which is measured when the model is loaded (`--stream-experts`)",
                );
            }
        }
        Ok(())
    }

    fn cells(&self, line: &SpanLine<'_>) -> Vec<String> {
        let first = &line.ranking.choices[0];
        let next = match &line.ranking.choices[1..] {
            [] => "-".to_owned(),
            [next] => next.template.label(),
            [next, others @ ..] => format!("{} and {} more", next.template, others.len()),
        };
        let (label, params) = (first.template.label(), params_text(&first.params));
        let step = line.step_name().to_owned();
        let by = match line.decision.place {
            Place::Device => self.chooser.target().arch.clone(),
            Place::Host => "the processor".to_owned(),
            Place::Streamed => format!("{}, streamed", self.chooser.target().arch),
        };
        vec![line.label(), step, line.row_counts(), label, params, self.chosen_by(line.ranking), next, by]
    }

    /// Whether the processor computes a part.
    fn is_shared(&self) -> bool {
        self.bytes_per_token[1] > 0
    }

    /// `<built in>/matrix.toml:9, predicted`, or the priority.
    fn chosen_by(&self, ranking: &Ranking) -> String {
        let behind = |rows: &[TuningRow]| match rows {
            [] => String::new(),
            [row] => format!(", before {}", row.place),
            [row, others @ ..] => format!(", before {} and {} more", row.place, others.len()),
        };
        match (&ranking.choices[0].why, ranking.rows.as_slice()) {
            (Why::Row(_), [row, others @ ..]) => {
                let kind = self.chooser.tables().provenance(row).map_or("unknown", |known| known.kind.name());
                format!("{}, {kind}{}", row.place, behind(others))
            }
            (Why::Priority(priority), [row, ..]) => {
                // A warning begins with the row's place.
                let why = ranking.warnings.iter().find_map(|warning| warning.strip_prefix(row.place.as_str()));
                let why = why.map(|why| why.strip_prefix(": the row is passed over").unwrap_or(why));
                let why = why.map_or(String::new(), |why| format!(" ({})", why.trim_start_matches([':', ' '])));
                format!("priority {priority}; {} is passed over{why}", row.place)
            }
            (Why::Priority(priority), []) => format!("priority {priority}"),
            (Why::Row(row), []) => row.place.clone(),
        }
    }

    /// All that is known of a line's choice.
    fn reasons(&self, line: &SpanLine<'_>) -> Vec<String> {
        let (first, ranking) = (&line.ranking.choices[0], line.ranking);
        let rows = line.row_counts();
        let mut told = vec![format!("{}, {} step, {rows}: {}", line.label(), line.step_name(), first.template)];
        let file = first.template.file.place(0);
        match hidden(&first.template).as_slice() {
            [] => told.push(format!("  file       {file}")),
            hidden => told.push(format!("  file       {file}, which hides {}", hidden.join(", "))),
        }
        told.extend(first_reason(&self.chosen_by(ranking)));
        for (i, row) in ranking.rows.iter().enumerate() {
            let standing = if i == 0 && ranking.row().is_some() { "by row    " } else { "behind it " };
            told.push(format!("  {standing} {}", self.row_text(row)));
        }
        told.extend(self.staleness(line).map(|why| format!("  stale      {why}")));
        told.extend(ranking.warnings.iter().map(|warning| format!("  passed over {warning}")));
        told.extend(
            losers(ranking).map(|Loser { template, params, why }| {
                format!("  next       {template} {}: {why}", params_text(&params))
            }),
        );
        told.extend(misfits(ranking).map(|Misfit { template, why }| format!("  no         {template} {why}")));
        told.extend(unfused(line).map(|Unfused { ops, why }| format!("  not fused  {}: {why}", ops.join("+"))));
        told
    }

    /// Why the row that chose is not of the text that runs.
    fn staleness(&self, line: &SpanLine<'_>) -> Option<&'static str> {
        let (chooser, choice) = (self.chooser, &line.ranking.choices[0]);
        let target = chooser.target();
        let is_of_target = !target.is_simulated && line.decision.place == Place::Device;
        let row = line.ranking.row().filter(|row| is_of_target && row.source.is_some())?;
        let rendered = render(chooser.library(), &choice.template, line.problem, &choice.params, target).ok()?;
        let is_open = !is_of_a_problem(row, line.problem) && !renders_it(row, &rendered.source);
        if is_stale(row, line.problem, &rendered.source) {
            return Some("its template renders to something else now than what was measured");
        }
        is_open.then_some("its `source` is not what runs here, and it has no `problem` that says where it was measured")
    }

    fn row_text(&self, row: &TuningRow) -> String {
        let tokens = row.tokens.to_string();
        let rows = if tokens == "1" { "row" } else { "rows" };
        let mut text = format!("{}: `{}` {} at {tokens} {rows}", row.place, row.template, params_text(&row.params));
        if let Some(Provenance { kind, date, method, device, .. }) = self.chooser.tables().provenance(row) {
            let device = device.as_ref().map_or(String::new(), |device| format!(", {device}"));
            text += &format!("; {} {date}{device}: {method}", kind.name());
        }
        match (row.time_us, row.timed_at) {
            (Some(time_us), Some(rows)) => text + &format!("; {time_us} us at {rows} rows"),
            (Some(time_us), None) => text + &format!("; {time_us} us"),
            (None, _) => text,
        }
    }

    /// What hides what among files, and which templates are overruled.
    fn remarks(&self) -> Vec<String> {
        let mut told = Vec::new();
        for line in self.lines {
            let template = &line.ranking.choices[0].template;
            let file = template.file.place(0);
            told.extend(hidden(template).iter().map(|hidden| format!("{file} hides {hidden}")));
        }
        told.sort();
        told.dedup();
        told.extend(self.overruled.iter().map(|one| format!("{one}; {}", one.advice(self.chooser.target()))));
        if !told.is_empty() {
            told.insert(0, String::new());
        }
        told
    }
}

/// What decided, where it was no row.
fn first_reason(chosen_by: &str) -> Option<String> {
    chosen_by.starts_with("priority").then(|| format!("  by         {chosen_by}"))
}

/// The files of the same name that a template's hides.
fn hidden(template: &Template) -> Vec<String> {
    let name = &template.file.name;
    template.shadows.iter().map(|origin| format!("{name} of {origin}")).collect()
}

/// The candidates after the first, each with why it is behind.
fn losers(ranking: &Ranking) -> impl Iterator<Item = Loser> {
    let winner = &ranking.choices[0];
    ranking.choices[1..].iter().map(move |choice| Loser {
        template: choice.template.label(),
        params: choice.params.clone(),
        why: why_behind(choice, winner),
    })
}

fn why_behind(choice: &Choice, winner: &Choice) -> String {
    let (own, other) = (choice.template.priority, winner.template.priority);
    match winner.why {
        Why::Row(_) => format!("priority {own}; a tuning row goes before priorities"),
        Why::Priority(_) if own == other => format!("priority {own} as well; names decide"),
        Why::Priority(_) => format!("priority {own} is below {other}"),
    }
}

fn misfits(ranking: &Ranking) -> impl Iterator<Item = Misfit> {
    let all = ranking.misfits.iter();
    all.map(|(template, why)| Misfit { template: template.to_string(), why: why.to_string() })
}

fn unfused(line: &SpanLine<'_>) -> impl Iterator<Item = Unfused> {
    let all = line.decision.unfused.iter();
    all.map(|run| Unfused { ops: run.problem.ops.clone(), why: run.why.to_string() })
}

fn params_text(params: &Params) -> String {
    if params.is_empty() {
        return "-".into();
    }
    params.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
