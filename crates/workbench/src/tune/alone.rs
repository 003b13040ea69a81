//! Which problems of a forward pass the tables launch alone; others are parts of runs that one kernel does.

use super::job::{Piece, TuningJob};
use engine::graph::placement::Place;
use engine::graph::{Graph, StepLimits};
use engine::plan::decisions::Decisions;
use kernel::choice::Chooser;
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::template::library_error::LibraryError;
use kernel::tuning::edit::NewRow;
use kernel::tuning::table::APART;

/// More rows than any step has that is tuned.
const MOST_ROWS: usize = 1 << 16;

/// A problem of a single node at numbers of rows at which a launch does it alone.
#[derive(Clone, Debug)]
struct AloneAt {
    problem: Problem,
    step: StepKind,
    first: usize,
    last: usize,
}

/// All of them, and the problems of all nodes.
#[derive(Clone, Debug, Default)]
pub struct Alone {
    alone: Vec<AloneAt>,
    of_nodes: Vec<Problem>,
}

impl Alone {
    /// Of a forward pass.
    ///
    /// # Errors
    /// If there is a node that no template fits.
    pub fn new(graph: &Graph, chooser: &Chooser) -> Result<Self, LibraryError> {
        let limits = StepLimits { max_rows: MOST_ROWS, max_logit_rows: MOST_ROWS, max_decode_rows: MOST_ROWS };
        let decisions = Decisions::new(graph, Place::Device, chooser, limits)?;
        let alone = decisions.all.iter().filter(|decision| decision.nodes.len() == 1).map(|decision| AloneAt {
            problem: graph.nodes[decision.nodes.start].problem.clone(),
            step: decision.step,
            first: decision.first_row_count,
            last: decision.last_row_count,
        });
        let mut of_nodes: Vec<Problem> = Vec::new();
        for node in &graph.nodes {
            if !of_nodes.contains(&node.problem) {
                of_nodes.push(node.problem.clone());
            }
        }
        Ok(Self { alone: alone.collect(), of_nodes })
    }

    /// Whether a launch does such a problem alone at any of these numbers of rows; `step`: in steps of this kind.
    pub fn has(&self, is_it: impl Fn(&Problem) -> bool, step: Option<StepKind>, first: usize, last: usize) -> bool {
        self.alone.iter().any(|one| {
            one.first <= last && first <= one.last && step.is_none_or(|step| step == one.step) && is_it(&one.problem)
        })
    }

    /// Whether a piece is of an op that at its number of rows is done by launches of longer runs alone.
    pub fn is_only_fused(&self, job: &TuningJob, piece: &Piece) -> bool {
        let problem = &job.problems[piece.problem].problem;
        let n = piece.n_tokens as usize;
        problem.ops.len() == 1 && !self.has(|one| one == problem, job.step_of_rows(piece), n, n)
    }

    /// Whether a new row of a single op is for a problem of the forward pass, and at none of its numbers of tokens a
    /// launch does it alone.
    pub fn is_asked_for_by_none(&self, row: &NewRow) -> bool {
        let is_it = |problem: &Problem| {
            problem.ops.len() == 1 && Some(problem.identity()) == row.proof.problem && row.template != APART
        };
        let last = row.tokens.last.map_or(usize::MAX, |last| last as usize);
        self.of_nodes.iter().any(is_it) && !self.has(is_it, row.step, row.tokens.first as usize, last)
    }
}
