//! Which template, with which parameters, and why: first the row of the tuning tables, then the other candidates.
//! `run`, `tune` and `kernels plan` all use this one function.

pub mod useless;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::step::StepKind;
use crate::target::Target;
use crate::template::library::{Examined, Library};
use crate::template::library_error::LibraryError;
use crate::template::problem::sha256_hex;
use crate::template::signature::Signature;
use crate::template::{Misfit, Params, Problem, Template};
use crate::tuning::table::{APART, Fact, Facts, TuningRow};
use crate::tuning::{Query, TuningError, TuningTables};

/// A template with complete, legal parameters.
#[derive(Clone, Debug)]
pub struct Choice {
    pub template: Arc<Template>,
    /// Its parameters, complete.
    pub params: Params,
    /// Why it has this rank.
    pub why: Why,
}

/// The tuning row or priority that decided a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A row of a tuning table.
    Row(Box<TuningRow>),
    /// The template's priority and its default parameters, or the first legal ones where those are not.
    Priority(i64),
}

/// Templates, tables and a target: all that a choice needs. A device is not among it.
pub struct Chooser {
    library: Library,
    tables: TuningTables,
    target: Target,
}

/// A kernel that is wanted: for this problem, from this row count on, in steps of this kind.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelRequest {
    pub problem: Problem,
    /// Rows of the smallest launch.
    pub n_rows: usize,
    /// What the rows are to each other.
    pub step: StepKind,
}

/// The rankings for a list of what is wanted.
#[derive(Clone, Debug, Default)]
pub struct Rankings {
    /// Each that differs, with what is wanted.
    pub distinct: Vec<(KernelRequest, Ranking)>,
    /// For everything in the list, the index of its ranking.
    pub indices: Vec<usize>,
}

/// A problem for which there is no kernel.
#[derive(Debug, thiserror::Error)]
#[error("no kernel is available for `{}`", problem.ops.join("+"))]
pub struct NoKernel<E: std::error::Error + 'static> {
    pub problem: Box<Problem>,
    /// Why its first choice does not serve, or why there is none.
    #[source]
    pub source: E,
}

/// Why a run of nodes is not done by one kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFused {
    /// Runs are fused where a row says so.
    #[error("no tuning row for the run applies")]
    NoRow,
    /// A row says that they are to be done one by one.
    #[error("the row {place} says `apart`: its ops run one by one")]
    Apart {
        /// `file:line`.
        place: String,
    },
    /// A row applies, and no template does the run here, or the row's own not with the row's parameters.
    #[error("no template fits: {}", reasons.join("; "))]
    NoTemplate {
        /// Every template with its reason; or the row with its own.
        reasons: Vec<String>,
    },
    /// No kernel for it compiles and loads.
    #[error("no kernel for it is available")]
    Refused,
}

/// Choices, the best first, and what was passed over on the way.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Never empty. A choice that cannot compile or launch gives way to the next.
    pub choices: Vec<Choice>,
    /// The other templates of these ops, each with why it is no choice.
    pub misfits: Vec<(Arc<str>, Misfit)>,
    /// Every tuning row that applies. The first has decided, unless it could not be followed; the others follow
    /// it.
    pub rows: Vec<TuningRow>,
    /// Tuning rows that could not be followed, a line for each.
    pub warnings: Vec<String>,
}

impl Ranking {
    /// The row that has decided.
    pub fn row(&self) -> Option<&TuningRow> {
        match &self.choices[0].why {
            Why::Row(row) => Some(row),
            Why::Priority(_) => None,
        }
    }

    /// The choice that would be the first by priority, if a row has put another one before it.
    pub fn overruled(&self) -> Option<&Choice> {
        self.row()?;
        self.choices.get(1).filter(|next| next.template.rank() < self.choices[0].template.rank())
    }
}

/// Whether two rankings are of the same kernels in the same order, whatever ranked them.
pub fn are_same(one: &[Choice], other: &[Choice]) -> bool {
    let same = |(a, b): (&Choice, &Choice)| a.template.file.name == b.template.file.name && a.params == b.params;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

impl Problem {
    /// The query of the tuning tables for it.
    pub fn query(&self) -> Query {
        let dims = self.dims.iter().map(|(name, &value)| (name.clone(), Fact::Number(value.into())));
        let flags = self.flags.iter().map(|(name, &value)| (name.clone(), Fact::Flag(value)));
        let dtypes = self.dtypes.iter().map(|(name, dtype)| (name.clone(), Fact::Text(dtype.name().into())));
        let precision = ("precision".to_owned(), Fact::Text(self.precision.name().into()));
        let facts: Facts = dims.chain(flags).chain(dtypes).chain([precision]).collect();
        Query { op: self.ops.join("+"), facts }
    }
}

/// Whether a row was measured on this problem and with another source than this one, to which its template renders
/// now. Of a row that does not say on which problem it was measured, it is known only if it wants all of its facts.
pub fn is_stale(row: &TuningRow, problem: &Problem, source: &str) -> bool {
    let is_its_problem = row.problem.as_ref().is_none_or(|identity| *identity == problem.identity());
    row.source.is_some() && is_its_problem && is_of_a_problem(row, problem) && !renders_it(row, source)
}

/// Whether a row says which problem was measured, by its digest or by all of its facts. Of another one its source says
/// nothing for one problem alone.
pub fn is_of_a_problem(row: &TuningRow, problem: &Problem) -> bool {
    row.problem.is_some() || row.facts == problem.query().facts
}

/// Whether a source is the one that a row was measured with.
pub fn renders_it(row: &TuningRow, source: &str) -> bool {
    row.source.as_ref().is_some_and(|measured| *measured == sha256_hex(source.as_bytes()))
}

impl Chooser {
    /// Joins the parts. Warns of rows that will never decide anything, of each once.
    ///
    /// # Errors
    /// If a table that concerns the target could not be read.
    pub fn new(library: Library, tables: TuningTables, target: Target) -> Result<Self, TuningError> {
        static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        tables.check_for(&target)?;
        let chooser = Self::unchecked(library, tables, target);
        for warning in useless::warnings(&chooser.library, &chooser.tables, &chooser.target) {
            if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        Ok(chooser)
    }

    /// The same for commands that look for mistakes: skips tables that could not be read, and prints no warnings.
    pub fn unchecked(library: Library, tables: TuningTables, target: Target) -> Self {
        Self { library, tables, target }
    }

    /// The templates to choose from.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The tuning tables that decide.
    pub fn tables(&self) -> &TuningTables {
        &self.tables
    }

    /// The target of compilation.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The runs of ops that templates for the target fuse, the longest first.
    pub fn fusions(&self) -> Vec<Arc<Signature>> {
        self.library.fusions(&self.target)
    }

    /// The templates that fit a problem, the one that is taken for a number of rows first.
    ///
    /// # Errors
    /// If none fits, or a broken file could be one of them.
    pub fn ranking(&self, problem: &Problem, n_rows: usize, step: StepKind) -> Result<Ranking, LibraryError> {
        choose(&self.library, &self.tables, problem, n_rows as u32, step, &self.target)
    }

    /// A ranking for everything that is wanted; what is wanted often is ranked once.
    ///
    /// # Errors
    /// The first problem that no template fits.
    pub fn rank_all(&self, wanted: &[KernelRequest]) -> Result<Rankings, NoKernel<LibraryError>> {
        let mut all = Rankings::default();
        // A table of many rows has as many numbers of rows: what is wanted is compared with what has the same.
        let mut of_rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for one in wanted {
            let alike = of_rows.entry(one.n_rows).or_default();
            let known = alike.iter().copied().find(|&index| all.distinct[index].0 == *one);
            let index = known.unwrap_or(all.distinct.len());
            if known.is_none() {
                alike.push(index);
                let ranking = self.ranking(&one.problem, one.n_rows, one.step);
                let unserved = |source| NoKernel { problem: Box::new(one.problem.clone()), source };
                all.distinct.push((one.clone(), ranking.map_err(unserved)?));
            }
            all.indices.push(index);
        }
        Ok(all)
    }

    /// Row counts from which a tuning row for this problem begins to hold in steps of this kind.
    pub fn bucket_starts(&self, problem: &Problem, step: StepKind) -> Vec<usize> {
        let edges = self.tables.token_edges(&problem.query(), step, &self.target);
        edges.into_iter().map(|edge| edge as usize).collect()
    }

    /// Why a row is passed over at a problem to which it applies; none if it decides there.
    pub fn passes_over(&self, row: &TuningRow, problem: &Problem) -> Option<String> {
        if is_apart(row, problem) {
            return None;
        }
        match self.library.examined(problem, &self.target) {
            Ok(examined) => follow(row, (&self.library, &examined), problem, &self.target).err(),
            Err(broken) => Some(broken.to_string()),
        }
    }

    /// Whether the tables prefer a fused kernel for this problem, and a template fits.
    ///
    /// # Errors
    /// Why not.
    pub fn prefers(&self, fused: &Problem, n_rows: usize, step: StepKind) -> Result<(), NotFused> {
        let row = self.tables.lookup(&fused.query(), n_rows as u32, step, &self.target);
        if let Some(apart) = row.filter(|row| row.template == APART) {
            return Err(NotFused::Apart { place: apart.place.clone() });
        }
        let row = row.ok_or(NotFused::NoRow)?;
        match self.library.examined(fused, &self.target) {
            // The row's template fits, with its parameters or with others. Of others nobody said that they are faster.
            Ok(examined) if examined.candidates.iter().any(|one| one.is_labelled(&row.template)) => {
                let followed = follow(row, (&self.library, &examined), fused, &self.target).map(|_| ());
                followed.map_err(|why| NotFused::NoTemplate { reasons: vec![format!("{}: {why}", row.place)] })
            }
            Ok(examined) if !examined.candidates.is_empty() => Ok(()),
            Ok(Examined { misfits, .. }) => {
                let reasons = misfits.iter().map(|(template, misfit)| format!("{template} {misfit}")).collect();
                Err(NotFused::NoTemplate { reasons })
            }
            Err(broken) => Err(NotFused::NoTemplate { reasons: vec![broken.to_string()] }),
        }
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
    let examined = library.examined(problem, target)?;
    let rows: Vec<TuningRow> = tables.applying(&problem.query(), n_tokens, step, target).cloned().collect();
    let mut ranking = Ranking { choices: Vec::new(), misfits: Vec::new(), rows, warnings: Vec::new() };
    if let Some(row) = ranking.rows.first().filter(|row| !is_apart(row, problem)) {
        match follow(row, (library, &examined), problem, target) {
            Ok(choice) => ranking.choices.push(choice),
            Err(why) => ranking.warnings.push(format!("{}: the row is passed over: {why}", row.place)),
        }
    }
    let Examined { candidates, misfits } = examined;
    ranking.misfits = misfits;
    let of_row = ranking.choices.first().map(|choice| Arc::clone(&choice.template));
    for template in candidates {
        if of_row.as_ref().is_some_and(|chosen| Arc::ptr_eq(chosen, &template)) {
            continue;
        }
        let params = template.legal_params(problem, target).next();
        match params {
            Some(params) => {
                let why = Why::Priority(template.priority);
                ranking.choices.push(Choice { template, params, why });
            }
            None => {
                let refused = template.resolve_params(&Params::new(), problem, target).err();
                let constraint = refused.map_or_else(String::new, |error| error.to_string());
                ranking.misfits.push((template.label().into(), Misfit::NoLegalParams { constraint }));
            }
        }
    }
    if ranking.choices.is_empty() {
        Err(LibraryError::none_fits(problem, target, &ranking.misfits))
    } else {
        Ok(ranking)
    }
}

/// Whether a row wants the ops of a run done one by one.
fn is_apart(row: &TuningRow, problem: &Problem) -> bool {
    row.template == APART && problem.ops.len() > 1
}

/// The choice that a row asks for.
fn follow(row: &TuningRow, of: (&Library, &Examined), problem: &Problem, on: &Target) -> Result<Choice, String> {
    let (library, Examined { candidates, misfits }) = of;
    if row.template == APART {
        return Err(useless::apart_alone(&row.op));
    }
    let found = candidates.iter().find(|template| template.is_labelled(&row.template));
    let template = found.ok_or_else(|| {
        // One label may be a template of each language.
        let of_label = misfits.iter().filter(|(label, _)| **label == *row.template);
        let misfit = of_label.min_by_key(|(_, misfit)| matches!(misfit, Misfit::Language { .. }));
        misfit.map_or_else(
            || useless::no_template(library, &row.template),
            |(label, misfit)| format!("`{label}` {misfit}"),
        )
    })?;
    if template.is_another_op(&row.params) {
        return Err(format!("it sets a parameter of `{template}` that changes what is computed"));
    }
    let params = template.resolve_params(&row.params, problem, on).map_err(|error| error.to_string())?;
    Ok(Choice { template: Arc::clone(template), params, why: Why::Row(Box::new(row.clone())) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::library::Layer;

    #[test]
    fn a_row_that_would_change_what_is_computed_is_passed_over_with_a_warning() {
        let row = r#"
            provenance.hand = { kind = "hand", date = "2026-11-22", method = "judgement" }
            [[rows]]
            op = "attention"
            use = "attention/decode"
            params = { causal = 0 }
            provenance = "hand"
        "#;
        let library = Library::from_layers(vec![Layer::built_in()]);
        let template = library.template("attention/decode", crate::target::Language::Hip).expect("built in").clone();
        let target = Target::gpu("gfx1100").expect("known");
        let problem = |test: &crate::template::contract::TestShape| {
            let first = |(name, allowed): (&String, &Vec<_>)| (name.clone(), allowed[0]);
            let mut problem = Problem {
                ops: template.ops.clone(),
                dims: test.dims.clone(),
                constants: test.constants.clone(),
                flags: test.flags.clone(),
                dtypes: template.signature.dtypes.iter().map(first).collect(),
                precision: crate::template::Precision::Bf16,
                keeps: template.keeps.clone(),
            };
            template.signature.drop_absent_dtypes(&mut problem);
            problem
        };
        let tests = template.signature.tests();
        let problem =
            tests.iter().map(problem).find(|problem| template.fits(problem, &target).is_ok()).expect("it fits");
        let tables = TuningTables::from_texts(&[("gfx1100", row)]).expect("right");
        let chooser = Chooser::new(library, tables, target).expect("right");
        let ranking = chooser.ranking(&problem, 1, StepKind::Decode).expect("some fit");
        assert_eq!(ranking.warnings.len(), 1, "{:?}", ranking.warnings);
        assert!(ranking.warnings[0].contains("changes what is computed"), "{:?}", ranking.warnings);
        assert!(ranking.row().is_none());
        assert!(ranking.choices.iter().all(|choice| choice.params.get("causal").is_none_or(|&causal| causal == 1)));
    }
}
