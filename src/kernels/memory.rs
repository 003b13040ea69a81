//! `kernels check --memory`: where waves of a template meet in banks of LDS, and touch more lines of the cache than
//! they need.

use crate::output::Output;
use workbench::check::{AtLine, Checked};

/// Lines of a template that are told.
const MAX_TOLD: usize = 12;

/// A table for each template: the lines that cost most first.
pub(super) fn print(checked: &[Checked], output: &Output) -> anyhow::Result<()> {
    const RIGHT: [&str; 4] = ["wave accesses", "taken", "at best", "times"];
    for one in checked.iter().filter(|one| !one.traffic.is_empty()) {
        output.line(&format!(
            "\n{}/{} {}: cycles of LDS banks, and lines of 128 bytes, of all accesses of waves",
            one.op, one.variant, one.precision
        ))?;
        let mut all: Vec<(&AtLine, &[u64; 3])> = one.traffic.iter().collect();
        all.sort_by_key(|(_, [_, taken, least])| std::cmp::Reverse(taken - least));
        let row = |(at, [n, taken, least]): &(&AtLine, &[u64; 3])| {
            let what = if at.is_lds { "LDS" } else { "memory" };
            let times = format!("{:.2}", *taken as f64 / (*least).max(1) as f64);
            vec![what.to_owned(), n.to_string(), taken.to_string(), least.to_string(), times, at.place.clone()]
        };
        let rows: Vec<Vec<String>> = all.iter().take(MAX_TOLD).map(row).collect();
        output.table(&["what", RIGHT[0], RIGHT[1], RIGHT[2], RIGHT[3], "line"], &rows, &RIGHT)?;
    }
    Ok(())
}
