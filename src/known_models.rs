//! Models that are known by name: a tuning row may be for one of these even if the model at hand does not need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::ValueEnum as _;

use crate::model_problems;
use engine::graph::Graph;
use engine::plan::cover::runs;
use format::Dtype;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::signature::Signature;
use kernel::template::{Precision, Problem};
use kernel::tuning::Query;
use kernel::tuning::table::{Fact, TuningRow};
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::config::NamedShape;
use workbench::tune::job::TuningJob;

/// Positions before a step's rows. They are part of no problem.
const CONTEXT: u32 = 1024;

/// Two layers of each model, at bf16 as the models are released, and at f32.
pub(crate) struct KnownModels {
    pub(crate) graphs: Vec<Graph>,
    fusions: Vec<Arc<Signature>>,
    /// Of their nodes and of runs of these, each once, by the ops.
    problems: BTreeMap<String, Vec<Asked>>,
}

/// A problem, and what the tables are asked about it.
pub(crate) struct Asked {
    pub(crate) problem: Problem,
    query: Query,
}

impl Asked {
    pub(crate) fn new(problem: Problem) -> Self {
        Self { query: problem.query(), problem }
    }

    /// Whether a row applies at some number of tokens in some step.
    pub(crate) fn by(&self, row: &TuningRow) -> bool {
        StepKind::ALL.into_iter().any(|step| row.applies(&self.query, step))
    }

    /// The same, if it had the types that the row wants: types are what a checkpoint has, the sizes are the model's.
    fn by_but_for_types(&self, row: &TuningRow) -> bool {
        let is_type = |fact: &Fact| matches!(fact, Fact::Text(_));
        row.facts.iter().all(|(name, want)| match self.query.facts.get(name) {
            Some(own) => own == want || name != "precision" && is_type(own) && is_type(want),
            None => false,
        })
    }
}

impl KnownModels {
    pub(crate) fn new(library: &Library, target: &Target) -> anyhow::Result<Self> {
        let fusions = library.fusions(target);
        let mut graphs = Vec::new();
        for &shape in NamedShape::value_variants() {
            for (precision, encoding) in [(Precision::Bf16, Encoding::default()), (Precision::F32, Encoding::F32)] {
                let checkpoint = Checkpoint::random(shape.config(Some(2)), encoding, 0)?;
                // Contracts of one's own may have other names: what is wrong with them is told elsewhere.
                graphs.extend(model_problems::graph(&checkpoint, precision, target, library).ok());
            }
        }
        let mut each: BTreeMap<String, Problem> = BTreeMap::new();
        for problem in graphs.iter().flat_map(|graph| problems_of(graph, &fusions)) {
            each.entry(problem.identity()).or_insert(problem);
        }
        let mut problems: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
        for problem in each.into_values() {
            problems.entry(problem.ops.join("+")).or_default().push(Asked::new(problem));
        }
        Ok(Self { graphs, fusions, problems })
    }

    pub(crate) fn count() -> usize {
        NamedShape::value_variants().len()
    }

    /// All of their problems.
    pub(crate) fn job(&self) -> TuningJob {
        let mut job = TuningJob::default();
        for graph in &self.graphs {
            job.join(TuningJob::from_graph(graph, &self.fusions, CONTEXT, 0));
        }
        job
    }

    /// The problems to which a row applies, with the types that it wants.
    pub(crate) fn asking<'a>(&'a self, row: &'a TuningRow) -> impl Iterator<Item = Problem> + 'a {
        self.of_op(&row.op)
            .iter()
            .filter(|asked| asked.by_but_for_types(row))
            .map(|asked| with_types_of(&asked.problem, row))
    }

    /// Why no model has a problem to which a row applies; none if one has.
    pub(crate) fn unasked(&self, row: &TuningRow) -> Option<String> {
        let of_op = self.of_op(&row.op);
        if of_op.iter().any(|asked| asked.by_but_for_types(row)) {
            return None;
        }
        let is_of_none = |(name, fact): &(&String, &Fact)| {
            !matches!(fact, Fact::Text(_)) && !of_op.iter().any(|asked| asked.query.facts.get(*name) == Some(*fact))
        };
        let of_none: Vec<String> =
            row.facts.iter().filter(is_of_none).map(|(name, fact)| format!("`{name} = {fact}`")).collect();
        let of_none = match of_none.as_slice() {
            [_, ..] if !of_op.is_empty() => format!(": none has {}", of_none.join(" or ")),
            _ => String::new(),
        };
        let n_models = Self::count();
        let op = &row.op;
        Some(format!("none of the {n_models} models that are known by name has a problem of `{op}` like this{of_none}"))
    }

    fn of_op(&self, op: &str) -> &[Asked] {
        self.problems.get(op).map_or(&[], Vec::as_slice)
    }
}

/// The problems of a forward pass: of its nodes, and of the runs of these that one kernel may do.
pub(crate) fn problems_of(graph: &Graph, fusions: &[Arc<Signature>]) -> Vec<Problem> {
    let of_nodes = graph.nodes.iter().map(|node| node.problem.clone());
    of_nodes.chain(runs(graph, fusions).into_iter().map(|(_, problem)| problem)).collect()
}

/// What is asked, with the types that a row wants, where there are such types.
fn with_types_of(problem: &Problem, row: &TuningRow) -> Problem {
    let mut problem = problem.clone();
    for (name, want) in &row.facts {
        if let (Fact::Text(want), Some(own)) = (want, problem.dtypes.get_mut(name)) {
            *own = Dtype::from_name(want).unwrap_or(*own);
        }
    }
    problem
}

/// Of rows, those that are a person's own.
pub(crate) fn own<'a>(rows: impl Iterator<Item = &'a TuningRow>) -> Vec<&'a TuningRow> {
    let mut places = BTreeSet::new();
    rows.filter(|row| !row.is_built_in() && places.insert(&row.place)).collect()
}
