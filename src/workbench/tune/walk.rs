//! Templates whose parameters are tried, and what of them is tried first.

use std::sync::Arc;

use super::job::{Job, Piece};
use super::tuner::Effort;
use crate::choice::{Choice, Chooser, Why};
use crate::object::compile::Request;
use crate::template::render::render;
use crate::template::{Params, Template};
use crate::workbench::timing::Candidate;
use crate::workbench::timing::search::look_around;

/// A template whose parameters are tried.
pub(super) struct Walk {
    pub template: Arc<Template>,
    /// Its parameters that the problem and the chip allow.
    pub legal: Vec<Params>,
    /// Where it begins.
    pub start: Params,
    /// Whether the tables say that: then it may spill.
    pub is_of_a_row: bool,
}

impl Walk {
    pub fn with(&self, params: Params) -> Candidate {
        Candidate { template: Arc::clone(&self.template), params }
    }

    pub fn start(&self) -> Candidate {
        self.with(self.start.clone())
    }

    /// What is tried before anything is known.
    ///
    /// - `before`: what is good at the number of rows before
    pub fn first(&self, most: usize, before: &[Candidate]) -> Vec<Params> {
        let mut first = look_around(&self.legal, &self.start, most.max(1));
        let own = before.iter().filter(|one| one.template.label() == self.template.label());
        let own = own.filter(|one| self.legal.contains(&one.params) && !first.contains(&one.params));
        let own: Vec<Params> = own.map(|one| one.params.clone()).collect();
        first.extend(own);
        first
    }
}

/// The templates that are tried, each with its legal parameters.
pub(super) fn walks(chooser: &Chooser, job: &Job, effort: &Effort, piece: &Piece, choices: &[Choice]) -> Vec<Walk> {
    let Effort { variants, params: fixed, .. } = effort;
    let keeps = |params: &Params| fixed.iter().all(|(name, value)| params.get(name) == Some(value));
    let problem = &job.asked[piece.problem].problem;
    let wanted = choices.iter().filter(|choice| variants.is_empty() || variants.contains(&choice.template.variant));
    let of = |choice: &Choice| {
        let template = Arc::clone(&choice.template);
        let legal: Vec<Params> = template.legal_params(problem, chooser.target()).filter(keeps).collect();
        let first = legal.first()?;
        let start = if keeps(&choice.params) { choice.params.clone() } else { first.clone() };
        Some(Walk { template, legal, start, is_of_a_row: choice.is_of_a_row() })
    };
    wanted.filter_map(of).collect()
}

/// What is asked of the compiler first when a piece is tuned.
pub fn first_requests(chooser: &Chooser, job: &Job, effort: &Effort, piece: &Piece) -> Vec<Request> {
    let problem = &job.asked[piece.problem].problem;
    let ranking = chooser.ranking(problem, piece.n_tokens as usize, piece.step);
    let choices = ranking.map(|ranking| ranking.choices).unwrap_or_default();
    let first = walks(chooser, job, effort, piece, &choices).into_iter().flat_map(|walk| {
        let first = walk.first(effort.most(piece.problem), &[]);
        first.into_iter().map(|params| walk.with(params)).collect::<Vec<_>>()
    });
    let (library, target) = (chooser.library(), chooser.target());
    let rendered = first.filter_map(|one| render(library, &one.template, problem, &one.params, target).ok());
    rendered.map(|rendered| Request::of(&rendered, target)).collect()
}

impl Choice {
    fn is_of_a_row(&self) -> bool {
        matches!(self.why, Why::Row(_))
    }
}
