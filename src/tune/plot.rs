//! A plot of the results: a panel for each problem and kind of step.

use super::setup::Setup;
use super::write::chosen;
use crate::rows_plot::{self, Dot, Panel};
use kernel::tuning::table::ProvenanceKind;
use workbench::predict::Chip;
use workbench::tune::judge::Time;
use workbench::tune::tuner::{CandidateResult, Tuned};

/// The picture. A ring is around what is chosen at a number of rows.
pub(super) fn svg(all: &[Tuned], setup: &Setup) -> String {
    let target = setup.target();
    let chip = setup.chooser.tables().facts(&target.arch).and_then(|facts| Chip::for_target(target, facts));
    let of_problem = all.chunk_by(|a, b| (a.piece.problem, a.piece.step) == (b.piece.problem, b.piece.step));
    let panels: Vec<Panel> = of_problem.map(|of_problem| panel(of_problem, setup, chip.as_ref())).collect();
    let heading = setup.device().map_or_else(|| target.id(), |device| format!("{}, {device}", target.id()));
    rows_plot::svg(&heading, &panels)
}

fn panel(of_problem: &[Tuned], setup: &Setup, chip: Option<&Chip>) -> Panel {
    let problem = &of_problem[0].problem;
    let dims = problem.dims.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    let step = setup.job.step_of_rows(&of_problem[0].piece).map_or("", |step| step.name());
    let title = format!("{} {step}, {dims}", problem.ops.join("+")).replace(" ,", ",");
    let limit = |tuned: &Tuned| Some((tuned.piece.n_tokens, 1e6 * chip?.least_s(&tuned.work)));
    let is_measured = setup.kind() == ProvenanceKind::Measured;
    let dots = of_problem.iter().flat_map(|tuned| {
        let choice = chosen(tuned).map(|(entry, _)| &entry.candidate);
        let dot = move |(entry, time): (&CandidateResult, &Time)| {
            let params = entry.candidate.params.iter().map(|(name, value)| format!("{name}={value}"));
            Dot {
                rows: tuned.piece.n_tokens,
                us: time.median_us(),
                template: entry.candidate.template.label(),
                params: params.collect::<Vec<_>>().join(" "),
                is_measured,
                is_choice: choice.is_some_and(|choice| std::ptr::eq(choice, &entry.candidate)),
            }
        };
        tuned.ranked().into_iter().map(dot).collect::<Vec<_>>()
    });
    Panel { title, limit: of_problem.iter().filter_map(limit).collect(), dots: dots.collect() }
}
