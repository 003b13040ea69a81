//! Finds rows whose templates now render to another text than the measured one.

use super::job::{Piece, TuningJob, TuningProblem};
use engine::graph::Rows;
use format::Dtype;
use kernel::choice::{Chooser, is_of_a_problem, is_stale, renders_it};
use kernel::step::StepKind;
use kernel::template::render::render;
use kernel::template::{Precision, Problem};
use kernel::tuning::table::{Fact, TuningRow};

/// More rows than this are judged for no row that has no end.
const MOST_ROWS: u32 = 4096;

/// A row that is not what was measured, and where it would be measured again.
#[derive(Clone, Debug, PartialEq)]
pub struct Stale {
    pub row: TuningRow,
    /// A problem that it decides, at the number of rows at which it was measured.
    pub piece: Piece,
    /// Whether the row does not say which problem was measured: its source is of none that it decides.
    pub is_of_no_problem: bool,
}

impl Stale {
    /// Where the row is judged anew: where it was measured, and at the ends of its range, as far as it decides there.
    /// One number of rows alone says little about the others.
    pub fn pieces(&self, job: &TuningJob, chooser: &Chooser) -> Vec<Piece> {
        let TuningRow { tokens, place, .. } = &self.row;
        let asked = &job.problems[self.piece.problem];
        let decides = |n: &u32| {
            let ranking = chooser.ranking(&asked.problem, *n as usize, self.piece.step);
            ranking.is_ok_and(|ranking| ranking.row().is_some_and(|row| row.place == *place))
        };
        // Steps of which all rows are prompts' are as long; those in which few give logits are not.
        let last = tokens.last.filter(|last| *last <= MOST_ROWS && asked.rows == Rows::All);
        let mut counts: Vec<u32> = [Some(tokens.first), last].into_iter().flatten().filter(decides).collect();
        counts.push(self.piece.n_tokens);
        counts.sort_unstable();
        counts.dedup();
        counts.into_iter().map(|n_tokens| Piece { n_tokens, ..self.piece }).collect()
    }
}

/// The stale rows for a job's problems: those that decide something. A row is there once, but for each of its problems
/// if it does not say which was measured.
pub fn rows(job: &TuningJob, chooser: &Chooser) -> Vec<Stale> {
    let mut stale: Vec<Stale> = Vec::new();
    // Places of rows of no problem whose source one that they decide renders to.
    let mut is_right: Vec<String> = Vec::new();
    if chooser.target().is_simulated {
        return stale; // what was measured was a GPU's text
    }
    for (problem, asked) in job.problems.iter().enumerate() {
        let (query, identity) = (asked.problem.query(), asked.problem.identity());
        for step in StepKind::ALL {
            for row in chooser.tables().rows_for(chooser.target()).filter(|row| row.applies(&query, step)) {
                if row.problem.as_ref().is_some_and(|measured| *measured != identity) {
                    continue; // its source is another problem's
                }
                let is_of_no_problem = !is_of_a_problem(row, &asked.problem);
                let is_known = |Stale { row: known, piece, .. }: &Stale| {
                    let is_same = piece.problem == problem && (piece.step == step || job.step_of_rows(piece).is_none());
                    known.place == row.place && (!is_of_no_problem || is_same)
                };
                if row.source.is_none() || is_right.contains(&row.place) || stale.iter().any(is_known) {
                    continue;
                }
                let n_tokens = row.timed_at.filter(|n| row.tokens.contains(*n)).unwrap_or(row.tokens.first);
                let Ok(ranking) = chooser.ranking(&asked.problem, n_tokens as usize, step) else { continue };
                if ranking.row().is_none_or(|decides| decides.place != row.place) {
                    continue;
                }
                let choice = &ranking.choices[0];
                let Ok(rendered) =
                    render(chooser.library(), &choice.template, &asked.problem, &choice.params, chooser.target())
                else {
                    continue;
                };
                if is_of_no_problem && renders_it(row, &rendered.source) {
                    is_right.push(row.place.clone());
                } else if is_of_no_problem || is_stale(row, &asked.problem, &rendered.source) {
                    let piece = Piece { problem, step, n_tokens };
                    stale.push(Stale { row: row.clone(), piece, is_of_no_problem });
                }
            }
        }
    }
    stale.retain(|one| !is_right.contains(&one.row.place));
    stale
}

/// Adds to a job the problems on which rows were measured and that it lacks: its own problems with the sizes, flags and
/// types that such a row requires. Returns the places of rows whose measured problem is not found in this way.
pub fn add_measured(job: &mut TuningJob, chooser: &Chooser) -> Vec<String> {
    let target = chooser.target();
    if target.is_simulated {
        return Vec::new(); // as for `rows`
    }
    let mut unknown = Vec::new();
    for row in chooser.tables().rows_for(target).filter(|row| row.source.is_some()) {
        let is_its_problem = |problem: &Problem| match &row.problem {
            Some(measured) => *measured == problem.identity(),
            None => {
                let query = problem.query();
                StepKind::ALL.into_iter().any(|step| row.applies(&query, step))
            }
        };
        let of_op = |one: &&TuningProblem| one.problem.ops.join("+") == row.op;
        if job.problems.iter().filter(of_op).any(|one| is_its_problem(&one.problem)) {
            continue;
        }
        let like_it = job.problems.iter().filter(of_op).map(|one| TuningProblem {
            problem: as_wanted(&one.problem, row),
            parts: Vec::new(),
            ..one.clone()
        });
        let measured: Vec<TuningProblem> = like_it.filter(|one| is_its_problem(&one.problem)).collect();
        if measured.is_empty() {
            unknown.push(row.place.clone());
        }
        measured.into_iter().for_each(|one| job.join(TuningJob { problems: vec![one], ..TuningJob::default() }));
    }
    unknown
}

/// A problem with the sizes, flags and types that a row wants.
fn as_wanted(problem: &Problem, row: &TuningRow) -> Problem {
    let mut problem = problem.clone();
    for (name, fact) in &row.facts {
        match fact {
            Fact::Number(wanted) => {
                if let (Some(own), Ok(wanted)) = (problem.dims.get_mut(name), u32::try_from(*wanted)) {
                    *own = wanted;
                }
            }
            Fact::Flag(wanted) => {
                if let Some(own) = problem.flags.get_mut(name) {
                    *own = *wanted;
                }
            }
            Fact::Text(wanted) if name == "precision" => {
                let all = [Precision::F32, Precision::Bf16];
                problem.precision = all.into_iter().find(|one| one.name() == wanted).unwrap_or(problem.precision);
            }
            Fact::Text(wanted) => {
                if let (Some(own), Some(wanted)) = (problem.dtypes.get_mut(name), Dtype::from_name(wanted)) {
                    *own = wanted;
                }
            }
        }
    }
    problem
}
