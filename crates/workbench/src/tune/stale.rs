//! Rows whose templates render to something else now than what was measured.

use super::job::{Piece, TuningJob};
use kernel::choice::{Chooser, is_stale};
use kernel::step::StepKind;
use kernel::template::render::render;
use kernel::tuning::table::TuningRow;

/// A row that is not what was measured, and where it would be measured again.
#[derive(Clone, Debug, PartialEq)]
pub struct Stale {
    pub row: TuningRow,
    /// A problem that it decides, at the number of rows at which it was measured.
    pub piece: Piece,
}

/// The stale rows for a job's problems: those that decide something.
pub fn rows(job: &TuningJob, chooser: &Chooser) -> Vec<Stale> {
    let mut stale: Vec<Stale> = Vec::new();
    if chooser.target().is_simulated {
        return stale; // what was measured was a GPU's text
    }
    for (problem, asked) in job.problems.iter().enumerate() {
        let query = asked.problem.query();
        for step in StepKind::ALL {
            for row in chooser.tables().rows_for(chooser.target()).filter(|row| row.applies(&query, step)) {
                if row.source.is_none() || stale.iter().any(|known| known.row.place == row.place) {
                    continue;
                }
                let n_tokens = row.timed_at.filter(|n| row.tokens.contains(*n)).unwrap_or(row.tokens.first);
                let Ok(ranking) = chooser.ranking(&asked.problem, n_tokens as usize, step) else { continue };
                let decides = ranking.row().is_some_and(|decides| decides.place == row.place);
                let choice = &ranking.choices[0];
                let rendered =
                    render(chooser.library(), &choice.template, &asked.problem, &choice.params, chooser.target());
                if decides && rendered.is_ok_and(|rendered| is_stale(row, &asked.problem, &rendered.source)) {
                    stale.push(Stale { row: row.clone(), piece: Piece { problem, step, n_tokens } });
                }
            }
        }
    }
    stale
}
