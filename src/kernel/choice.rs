//! Which template, with which parameters: the tuning tables' row first, then the other candidates. One function for
//! `run` and `tune`.

use std::sync::Arc;

use super::library::Library;
use super::library_error::LibraryError;
use super::template::{Misfit, Template};
use super::{Params, Problem};
use crate::target::Target;
use crate::tuning::table::{Fact, Facts, Row, StepKind};
use crate::tuning::{Query, TuningTables};

/// A template with complete, legal parameters.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The template.
    pub template: Arc<Template>,
    /// Its parameters, complete.
    pub params: Params,
    /// Why it stands where it stands.
    pub why: Why,
}

/// What decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A row of a tuning table.
    Row(Box<Row>),
    /// The template's priority and its default parameters, or the first legal ones where those are not.
    Priority(i64),
}

/// Choices, the best first, and what was passed over on the way.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Never empty. A choice that cannot compile or launch gives way to the next.
    pub choices: Vec<Choice>,
    /// Tuning rows that could not be followed, a line for each.
    pub warnings: Vec<String>,
}

/// Whether two rankings are of the same kernels in the same order, whatever ranked them.
pub fn are_same(one: &[Choice], other: &[Choice]) -> bool {
    let same = |(a, b): (&Choice, &Choice)| a.template.file.name == b.template.file.name && a.params == b.params;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

impl Problem {
    /// What the tuning tables are asked about it.
    pub fn query(&self) -> Query {
        let dims = self.dims.iter().map(|(name, &value)| (name.clone(), Fact::Number(value.into())));
        let flags = self.flags.iter().map(|(name, &value)| (name.clone(), Fact::Flag(value)));
        let dtypes = self.dtypes.iter().map(|(name, dtype)| (name.clone(), Fact::Text(dtype.name().into())));
        let precision = ("precision".to_owned(), Fact::Text(self.precision.name().into()));
        let facts: Facts = dims.chain(flags).chain(dtypes).chain([precision]).collect();
        Query { op: self.ops.join("+"), facts }
    }
}

/// Ranks the templates that fit a problem for a number of tokens in a step of some kind.
///
/// # Errors
/// If none fits, or a broken file could be one of them.
pub fn choose(
    library: &Library,
    tables: &TuningTables,
    problem: &Problem,
    n_tokens: u32,
    step: StepKind,
    target: &Target,
) -> Result<Ranking, LibraryError> {
    let candidates = library.candidates(problem, target)?;
    let mut ranking = Ranking { choices: Vec::new(), warnings: Vec::new() };
    if let Some(row) = tables.lookup(&problem.query(), n_tokens, step, target) {
        match follow(row, &candidates, problem, target) {
            Ok(choice) => ranking.choices.push(choice),
            Err(why) => ranking.warnings.push(format!("{}: the row is passed over: {why}", row.place)),
        }
    }
    for template in candidates {
        if ranking.choices.iter().any(|choice| choice.template.label() == template.label()) {
            continue;
        }
        let params = template.legal_params(problem, target).next();
        if let Some(params) = params {
            let why = Why::Priority(template.priority);
            ranking.choices.push(Choice { template, params, why });
        }
    }
    if ranking.choices.is_empty() { Err(none_legal(library, problem, target)) } else { Ok(ranking) }
}

/// The choice that a row asks for.
fn follow(row: &Row, candidates: &[Arc<Template>], problem: &Problem, target: &Target) -> Result<Choice, String> {
    let template = candidates
        .iter()
        .find(|template| template.label() == row.template)
        .ok_or_else(|| format!("`{}` does not exist or does not fit", row.template))?;
    if template.is_another_op(&row.params) {
        return Err(format!("it sets a parameter of `{template}` that changes what is computed"));
    }
    let params = template.resolve_params(&row.params, problem, target).map_err(|error| error.to_string())?;
    Ok(Choice { template: Arc::clone(template), params, why: Why::Row(Box::new(row.clone())) })
}

/// The error where templates fit, or none do, and none of them has legal parameters.
fn none_legal(library: &Library, problem: &Problem, target: &Target) -> LibraryError {
    let mut error = library.none_fits(problem, target);
    if let (LibraryError::NoneFits { reasons, .. }, Ok(candidates)) = (&mut error, library.candidates(problem, target))
    {
        for template in candidates {
            let refused = template.resolve_params(&Params::new(), problem, target).err();
            let constraint = refused.map_or_else(String::new, |error| error.to_string());
            reasons.push(format!("{template} {}", Misfit::NoLegalParams { constraint }));
        }
    }
    error
}
