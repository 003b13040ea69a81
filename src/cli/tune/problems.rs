//! What is timed: problems as they occur in a model's forward pass, and the rows that they are given.

use std::collections::BTreeMap;

use super::Args;
use crate::cli::model_problems;
use crate::cli::usage::UsageError;
use crate::graph::kv_cache::{BLOCK_TOKENS, ring_blocks};
use crate::pipeline::Pipeline;
use crate::template::Problem;
use crate::tuning::table::StepKind;

/// Rows of a step, for ops that look at positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Rows {
    /// Every row is alone in its slot.
    Decode,
    /// All rows are of one slot.
    Prompt,
}

impl Rows {
    /// What steps of such rows are.
    pub(super) fn step(self) -> StepKind {
        match self {
            Self::Decode => StepKind::Decode,
            Self::Prompt => StepKind::Mixed,
        }
    }
}

/// The scalars of a launch, and the kind of its inputs.
pub(super) struct Workload {
    pub scalars: BTreeMap<String, u64>,
    pub inputs: Option<String>,
    /// For ops to which it matters.
    pub step: Option<StepKind>,
}

/// The problems of the op that are asked for.
pub(super) fn of(op: &str, args: &Args, pipeline: &Pipeline) -> anyhow::Result<Vec<Problem>> {
    for op in op.split('+') {
        pipeline.library().contract(op)?; // an op that is none is an error that lists those that are
    }
    let mut all: Vec<Problem> = Vec::new();
    let fusions = pipeline.chooser().fusions();
    for found in model_problems::of(op, args.model, args.precision, pipeline.target(), &fusions)? {
        let mut problem = found.problem;
        for (name, dtype) in &args.dtype {
            let known = problem.dtypes.keys().cloned().collect::<Vec<_>>().join(", ");
            let unknown = || UsageError(format!("--dtype {name}: expected one of: {known}"));
            *problem.dtypes.get_mut(name).ok_or_else(unknown)? = *dtype;
        }
        if !all.contains(&problem) {
            all.push(problem);
        }
    }
    let Some(first) = all.first() else {
        let what = format!("{} has no `{}` in its forward pass", args.model.name(), op);
        return Err(UsageError(what).into());
    };
    let named = with_names(first, args)?;
    let has = |problem: &&Problem| {
        args.dims.iter().all(|(name, value)| problem.dims.get(name) == Some(value))
            && args.flag.iter().all(|(name, value)| problem.flags.get(name) == Some(value))
    };
    let matching: Vec<Problem> = all.iter().filter(has).cloned().collect();
    Ok(if matching.is_empty() { vec![named] } else { matching })
}

/// A problem with the dims and flags that were given.
fn with_names(problem: &Problem, args: &Args) -> Result<Problem, UsageError> {
    let mut problem = problem.clone();
    for (name, value) in &args.dims {
        let known = problem.dims.keys().cloned().collect::<Vec<_>>().join(", ");
        let unknown = || UsageError(format!("--dims {name}: expected one of: {known}"));
        *problem.dims.get_mut(name).ok_or_else(unknown)? = *value;
    }
    for (name, value) in &args.flag {
        let known = problem.flags.keys().cloned().collect::<Vec<_>>().join(", ");
        let unknown = || UsageError(format!("--flag {name}: expected one of: {known}"));
        *problem.flags.get_mut(name).ok_or_else(unknown)? = *value;
    }
    Ok(problem)
}

/// The scalars and inputs of a problem with so many rows.
pub(super) fn workload(args: &Args, problem: &Problem, n_tokens: u32) -> anyhow::Result<Workload> {
    let (n, context) = (n_tokens as usize, args.context as usize);
    let window = problem.dims.get("window").map_or(0, |&window| window as usize);
    let (n_slots, run) = match args.rows {
        Rows::Decode => (n, 1),
        Rows::Prompt => (1, n),
    };
    let op = problem.ops[0].as_str();
    let table_blocks = match window {
        _ if op == "rope_kv" => run.div_ceil(BLOCK_TOKENS),
        0 => context.max(run).div_ceil(BLOCK_TOKENS),
        window => ring_blocks(window, run),
    };
    let mut scalars = BTreeMap::from([("n_tokens".to_owned(), n as u64)]);
    if problem.dims.contains_key("block_tokens") {
        let sizes = [("n_slots", n_slots), ("table_blocks", table_blocks), ("n_blocks", n_slots * table_blocks)];
        scalars.extend(sizes.map(|(name, size)| (name.to_owned(), size as u64)));
    }
    let inputs = match (op, args.rows) {
        ("attention" | "rope_kv", Rows::Decode) => Some("decode"),
        ("attention", Rows::Prompt) => Some("end"),
        ("rope_kv", Rows::Prompt) => Some("chunk"),
        ("moe_sort" | "moe_mlp1" | "moe_mlp2", _) => Some("spread"),
        _ => None,
    };
    let step = (op == "attention").then(|| args.rows.step());
    Ok(Workload { scalars, inputs: inputs.map(str::to_owned), step })
}
