//! The kernels of a check that took longest to run.

use serde::Serialize;

use crate::output::Output;
use workbench::check::{Checked, Cost};

/// One of the kernels that took longest to run.
#[derive(Serialize)]
pub(super) struct Slowest {
    op: String,
    variant: String,
    precision: &'static str,
    case: String,
    /// Of all launches, and of what they were compared with.
    run_ms: f64,
}

impl Slowest {
    const N: usize = 20;

    pub(crate) fn among(checked: &[Checked]) -> Vec<Self> {
        let mut all: Vec<(&Checked, &Cost)> =
            checked.iter().flat_map(|checked| checked.costs.iter().map(move |cost| (checked, cost))).collect();
        all.sort_by(|(_, one), (_, other)| other.ms.total_cmp(&one.ms));
        let told = all.into_iter().take(Self::N).map(|(checked, cost)| Self {
            op: checked.op.clone(),
            variant: checked.variant.clone(),
            precision: checked.precision.name(),
            case: cost.case.clone(),
            run_ms: cost.ms,
        });
        told.collect()
    }
}

pub(super) fn print_slowest(slowest: &[Slowest], output: &Output) -> anyhow::Result<()> {
    if slowest.is_empty() {
        return Ok(());
    }
    output.line("")?;
    let cells = |one: &Slowest| {
        let ms = format!("{:.1}", one.run_ms);
        vec![one.op.clone(), one.variant.clone(), one.precision.to_owned(), ms, one.case.clone()]
    };
    let cells: Vec<Vec<String>> = slowest.iter().map(cells).collect();
    Ok(output.table(&["op", "variant", "precision", "run ms", "the slowest kernels"], &cells, &["run ms"])?)
}
