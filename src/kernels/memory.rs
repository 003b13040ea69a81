//! `kernels check --memory`: where a template's waves have bank conflicts in LDS, and touch more cache lines than they
//! need.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::output::Output;
use workbench::check::{AtLine, Checked};

/// Lines of a template that are printed.
const MAX_TOLD: usize = 12;

/// A line of a template, in `--json` all of them.
#[derive(Serialize)]
pub(super) struct MemoryRow {
    /// `file:line`.
    place: String,
    /// `LDS` or `memory`.
    what: &'static str,
    /// How often a wave went there.
    accesses: u64,
    /// Cycles of banks of LDS, or lines of 128 bytes: what that took, and what it would at best.
    taken: u64,
    at_best: u64,
}

impl MemoryRow {
    /// Those that cost most first.
    pub(super) fn all(traffic: &BTreeMap<AtLine, [u64; 3]>) -> Vec<Self> {
        let row = |(at, &[accesses, taken, at_best]): (&AtLine, &[u64; 3])| {
            let what = if at.is_lds { "LDS" } else { "memory" };
            Self { place: at.place.clone(), what, accesses, taken, at_best }
        };
        let mut rows: Vec<Self> = traffic.iter().map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.taken - row.at_best));
        rows
    }

    fn cells(&self) -> Vec<String> {
        let Self { place, what, accesses, taken, at_best } = self;
        let times = format!("{:.2}", *taken as f64 / (*at_best).max(1) as f64);
        vec![(*what).to_owned(), accesses.to_string(), taken.to_string(), at_best.to_string(), times, place.clone()]
    }
}

/// A table for each template: the lines that cost most first.
pub(super) fn print(checked: &[Checked], output: &Output) -> anyhow::Result<()> {
    const RIGHT: [&str; 4] = ["wave accesses", "taken", "at best", "times"];
    for one in checked.iter().filter(|one| !one.traffic.is_empty()) {
        output.line(&format!(
            "\n{}/{} {}: cycles of LDS banks, and lines of 128 bytes, of all accesses of waves",
            one.op, one.variant, one.precision
        ))?;
        let rows: Vec<Vec<String>> = MemoryRow::all(&one.traffic).iter().take(MAX_TOLD).map(MemoryRow::cells).collect();
        output.table(&["what", RIGHT[0], RIGHT[1], RIGHT[2], RIGHT[3], "line"], &rows, &RIGHT)?;
    }
    Ok(())
}
