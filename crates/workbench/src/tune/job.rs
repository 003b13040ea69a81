//! The problems to tune: those of a forward pass, at the row counts of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::timing::{self, Setup, TimingError};
use engine::graph::{Graph, Rows};
use engine::plan::cover::runs;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::target::compute_unit::Product;
use kernel::template::Problem;
use kernel::template::library::Library;
use kernel::template::signature::Signature;

/// Problems, with what they are to a step.
#[derive(Clone, Debug, Default)]
pub struct TuningJob {
    /// Of each its index is its name among the processes that tune.
    pub problems: Vec<TuningProblem>,
    /// Positions that the last row of a slot sees; a prompt's are at least its rows.
    pub context: u32,
    /// What the device's last cache holds, in bytes.
    pub cache_bytes: usize,
}

/// A problem of a forward pass.
#[derive(Clone, Debug)]
pub struct TuningProblem {
    /// Where it is first: `block.0.attn.qkv`.
    pub label: String,
    /// What is asked for there.
    pub problem: Problem,
    /// How many nodes ask for it.
    pub n_nodes: usize,
    /// Which rows of a step are counted.
    pub rows: Rows,
    /// Scalar arguments other than `n_tokens`, as the first node that asks for it has them.
    pub scalars: BTreeMap<String, u32>,
    /// Of a run, the indices of the problems of its ops.
    pub parts: Vec<usize>,
}

/// A problem at a number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// Index of the problem.
    pub problem: usize,
    /// What the rows are to each other, for ops that look at positions; of others the kind of step that has so many.
    pub step: StepKind,
    /// Token rows of the launch.
    pub n_tokens: u32,
}

/// Numbers of rows that steps have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Of steps in which every row is alone in its slot.
    pub decode: Vec<u32>,
    /// Of steps that take in a prompt.
    pub prompt: Vec<u32>,
    /// Those of them at which parameters are searched for. At the others what is good at their neighbours is compared.
    pub searched: Vec<u32>,
}

/// Where nothing is known of a chip, a guess: operations that take as long as moving a byte.
const FLOP_PER_BYTE: f64 = 20.0;

/// A guess: what a launch takes that does nothing, in bytes that could be moved meanwhile.
const LAUNCH_BYTES: f64 = 1e6;

/// Most sequences of a step that is timed, if prompts have as many rows: each is alone in its slot, and keys and
/// values of thousands take minutes to make.
pub const MOST_SEQUENCES: u32 = 1024;

impl Counts {
    /// Those of a chip's usual steps: up to 256 sequences, and prompts in chunks of up to 512 rows, or 4096 on a GPU.
    pub fn for_target(target: &Target) -> Self {
        let (decode, prompt, searched): (&[u32], &[u32], &[u32]) = match target.is_gpu() {
            true => {
                let decode = &[1, 2, 4, 8, 16, 32, 64, 128, 256];
                (decode, &[64, 256, 512, 2048, 4096], &[1, 2, 8, 32, 256, 512, 4096])
            }
            false => (&[1, 2, 4, 8, 16, 32], &[16, 64, 512], &[1, 8, 32, 512]),
        };
        Self { decode: decode.to_vec(), prompt: prompt.to_vec(), searched: searched.to_vec() }
    }

    /// These alone, of steps of both kinds, and all of them are searched.
    pub fn only(tokens: &[u32]) -> Self {
        let [decode, prompt, searched] = [(); 3].map(|()| tokens.to_vec());
        Self { decode, prompt, searched }
    }
}

impl TuningJob {
    /// The problems of a forward pass, and of the runs of its nodes that one kernel may do, without nodes that a step
    /// has only if a request asks for them.
    pub fn from_graph(graph: &Graph, fusions: &[Arc<Signature>], context: u32, cache_bytes: usize) -> Self {
        let mut job = Self { problems: Vec::new(), context, cache_bytes };
        let mut places: BTreeMap<&str, (usize, Rows)> = BTreeMap::new();
        for node in &graph.nodes {
            let problem = TuningProblem {
                label: node.label.clone(),
                problem: node.problem.clone(),
                n_nodes: 0,
                rows: node.rows,
                scalars: node.scalars.clone(),
                parts: Vec::new(),
            };
            places.insert(&node.label, (job.add(problem), node.rows));
        }
        for (label, problem) in runs(graph, fusions) {
            let of_parts: Vec<(usize, Rows)> =
                label.split(" + ").filter_map(|part| places.get(part).copied()).collect();
            // Those of its own nodes: elsewhere the same problem may be asked for with more.
            let Some(&(_, rows)) = of_parts.first() else { continue };
            let parts: Vec<usize> = of_parts.into_iter().map(|(part, _)| part).collect();
            let scalars = parts.iter().flat_map(|part| job.problems[*part].scalars.clone()).collect();
            job.add(TuningProblem { label, problem, n_nodes: 0, rows, scalars, parts });
        }
        job
    }

    /// Adds the problems of another job. Each is there once.
    pub fn join(&mut self, other: Self) {
        let mut places: Vec<usize> = Vec::new();
        for mut one in other.problems {
            one.parts = one.parts.iter().map(|part| places[*part]).collect(); // a run's ops come before it
            let more_nodes = one.n_nodes.saturating_sub(1);
            one.n_nodes = 0;
            places.push(self.add(one));
            self.problems[places[places.len() - 1]].n_nodes += more_nodes;
        }
    }

    fn add(&mut self, problem: TuningProblem) -> usize {
        let rows = problem.rows;
        let index = self.problems.iter().position(|one| one.problem == problem.problem).unwrap_or_else(|| {
            self.problems.push(problem);
            self.problems.len() - 1
        });
        self.problems[index].n_nodes += 1;
        if rows == Rows::All {
            self.problems[index].rows = rows; // the more numbers of rows
        }
        index
    }

    /// The pieces of some problems at these numbers of rows: what takes the largest share of a step first, but a run
    /// after its ops, than which it has to be better; a problem's in the order of their rows. What cannot be counted
    /// comes last.
    pub fn pieces(
        &self,
        which: &BTreeSet<usize>,
        counts: &Counts,
        library: &Library,
        product: Option<&Product>,
    ) -> Vec<Piece> {
        let shares = self.shares(which, counts, library, product);
        let mut order: Vec<usize> = which.iter().copied().collect();
        order.sort_by(|a, b| shares[b].total_cmp(&shares[a]));
        let place = |problem: usize| order.iter().position(|&one| one == problem);
        let last = |problem: usize| {
            let parts = self.problems[problem].parts.iter().filter_map(|&part| place(part)).max();
            (parts.max(place(problem)), !self.problems[problem].parts.is_empty())
        };
        let mut sorted = order.clone();
        sorted.sort_by_key(|&problem| last(problem));
        sorted.into_iter().flat_map(|problem| self.of_problem(problem, counts)).collect()
    }

    /// The part that each problem has of a step of the fewest rows or of the most, whichever is larger.
    pub fn shares(
        &self,
        which: &BTreeSet<usize>,
        counts: &Counts,
        library: &Library,
        product: Option<&Product>,
    ) -> BTreeMap<usize, f64> {
        // What a step of each of these numbers of rows takes at least, and each problem's part of it.
        let mut costs: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for &problem in which {
            let pieces = self.of_problem(problem, counts);
            let ends = [pieces.first(), pieces.last()].into_iter().flatten();
            let cost = |piece| self.cost(piece, library, product).unwrap_or_default();
            costs.insert(problem, ends.map(cost).collect());
        }
        // A run and its ops are the same work: of a step each counts for itself.
        let total = |end: usize| costs.values().filter_map(|cost| cost.get(end)).sum::<f64>().max(f64::MIN_POSITIVE);
        let totals = [total(0), total(1)];
        let share = |cost: &[f64]| cost.iter().zip(totals).map(|(cost, total)| cost / total).fold(0.0, f64::max);
        costs.iter().map(|(&problem, cost)| (problem, share(cost))).collect()
    }

    fn of_problem(&self, problem: usize, counts: &Counts) -> Vec<Piece> {
        let asked = &self.problems[problem];
        let at = |step: StepKind, n_tokens: u32| Piece { problem, step, n_tokens };
        let decode = counts.decode.iter().map(|&n| at(StepKind::Decode, n));
        let prompt = counts.prompt.iter().map(|&n| at(StepKind::Mixed, n));
        let mut pieces: Vec<Piece> = match asked.rows {
            Rows::All if looks_at_positions(&asked.problem) => {
                let is_step =
                    |piece: &Piece| piece.n_tokens <= MOST_SEQUENCES || !counts.prompt.contains(&piece.n_tokens);
                decode.filter(is_step).chain(prompt).collect()
            }
            Rows::All => {
                // Rows are rows: what kind of step they are of is nothing to them.
                decode.chain(counts.prompt.iter().map(|&n| at(StepKind::Decode, n))).collect()
            }
            _ => decode.collect(),
        };
        pieces.sort_unstable();
        pieces.dedup();
        pieces
    }

    /// The kind of step that rows of a table want for a piece: none if it does not matter.
    pub fn step_of_rows(&self, piece: &Piece) -> Option<StepKind> {
        looks_at_positions(&self.problems[piece.problem].problem).then_some(piece.step)
    }

    /// What a piece takes at least, in bytes that could be moved meanwhile, for all nodes that ask for it.
    fn cost(&self, piece: &Piece, library: &Library, product: Option<&Product>) -> Result<f64, TimingError> {
        let asked = &self.problems[piece.problem];
        let work = timing::work(library, &asked.problem, &self.setup(piece))?;
        let ratio = product.filter(|product| product.matrix_flop_per_cycle > 0);
        let ratio = ratio.map_or(FLOP_PER_BYTE, |one| 1e3 * one.matrix_tflops() / one.memory_gbps);
        let least = work.total_bytes().max(work.flop.unwrap_or_default() / ratio);
        Ok(asked.n_nodes as f64 * (least + LAUNCH_BYTES))
    }

    /// The scalars and the kind of the inputs of a piece, with what its node says besides.
    pub(crate) fn setup(&self, piece: &Piece) -> Setup {
        let TuningProblem { problem, scalars, .. } = &self.problems[piece.problem];
        Setup::for_problem(problem, piece.n_tokens, piece.step, self.context, self.cache_bytes).with(scalars)
    }
}

/// Whether it matters to a problem which slots its rows are in.
fn looks_at_positions(problem: &Problem) -> bool {
    problem.ops.iter().any(|op| op == "attention" || op == "rope_kv")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kernel::template::Precision;

    #[test]
    fn thousands_of_rows_are_a_prompts() {
        let problem = Problem {
            ops: vec!["rope_kv".to_owned()],
            dims: BTreeMap::new(),
            constants: BTreeMap::new(),
            flags: BTreeMap::new(),
            dtypes: BTreeMap::new(),
            precision: Precision::Bf16,
            keeps: BTreeSet::new(),
        };
        let asked = TuningProblem {
            label: String::new(),
            problem,
            n_nodes: 1,
            rows: Rows::All,
            scalars: BTreeMap::new(),
            parts: Vec::new(),
        };
        let job = TuningJob { problems: vec![asked], ..TuningJob::default() };
        let steps = |counts: &Counts| -> Vec<(StepKind, u32)> {
            job.of_problem(0, counts).iter().map(|piece| (piece.step, piece.n_tokens)).collect()
        };
        let both = [(StepKind::Decode, 8), (StepKind::Mixed, 8), (StepKind::Mixed, 4096)];
        assert_eq!(BTreeSet::from_iter(steps(&Counts::only(&[8, 4096]))), BTreeSet::from(both));
        let decode = Counts { prompt: Vec::new(), ..Counts::only(&[4096]) };
        assert_eq!(steps(&decode), [(StepKind::Decode, 4096)]); // asked for by `--rows decode`
    }
}
