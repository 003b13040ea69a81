//! A model's steps, planned and not loaded: the launches of each.

use crate::spans::{self, SpanLine};
use engine::graph::placement::Place;
use engine::graph::{Graph, StepLimits, StepShape};
use engine::plan::decisions::Decisions;
use kernel::choice::Chooser;
use kernel::step::StepKind;
use kernel::template::library_error::LibraryError;
use workbench::predict::step::StepLaunch;
use workbench::timing::{Candidate, Setup};

/// A forward pass, with what was chosen for it.
pub(crate) struct PlannedSteps {
    graph: Graph,
    decisions: Decisions,
}

impl PlannedSteps {
    /// Chooses for all steps within limits.
    ///
    /// # Errors
    /// If there is a node that no template fits.
    pub(crate) fn new(graph: Graph, limits: StepLimits, chooser: &Chooser) -> Result<Self, LibraryError> {
        let decisions = Decisions::new(&graph, Place::Device, chooser, limits)?;
        Ok(Self { graph, decisions })
    }

    /// What a step of one row for each of `n` sequences launches.
    ///
    /// - `context`: positions that a row sees in a layer without a window
    pub(crate) fn launches(&self, n: usize, context: usize) -> Vec<StepLaunch> {
        let shape = StepShape { n_rows: n, n_logit_rows: n, kind: StepKind::Decode, compares: false };
        let lines = spans::lines(&[&self.decisions], false);
        lines.iter().filter_map(|line| self.launch(line, shape, context)).collect()
    }

    /// A line's launch in this step; none if the line is about other steps.
    fn launch(&self, line: &SpanLine<'_>, shape: StepShape, context: usize) -> Option<StepLaunch> {
        let n_rows = shape.count(line.decision.rows);
        let is_of_step = line.step.is_none_or(|step| step == shape.kind);
        if !is_of_step || !(line.first_row_count..=line.last_row_count).contains(&n_rows) || n_rows == 0 {
            return None;
        }
        let choice = line.ranking.choices.first()?;
        let setup = Setup::for_problem(line.problem, n_rows as u32, shape.kind, context as u32, 0);
        let nodes = &self.graph.nodes[line.decision.nodes.clone()];
        Some(StepLaunch {
            label: line.label(),
            n_launches: line.layers.len().max(1),
            problem: line.problem.clone(),
            candidate: Candidate { template: choice.template.clone(), params: choice.params.clone() },
            setup: nodes.iter().fold(setup, |setup, node| setup.with(&node.scalars)),
        })
    }
}
