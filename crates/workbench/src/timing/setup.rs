//! A problem at a number of rows, with the inputs that a model's step has.

use std::collections::BTreeMap;

use super::Setup;
use engine::graph::kv_cache::{BLOCK_TOKENS, ring_blocks};
use kernel::step::StepKind;
use kernel::template::Problem;

impl Setup {
    /// The scalars and the kind of inputs of a problem with so many rows. What comes into a run of ops from outside is
    /// its first op's, but for positions in the cache, which are those of the op that looks at them.
    ///
    /// - `step`: whether each row is alone in its slot, or all are of one; matters only to ops that look at positions
    /// - `context`: positions that the last row of a slot sees; a prompt's are at least its rows
    /// - `cache_bytes`: what the device's last cache holds; 0 where nothing is timed
    pub fn for_problem(problem: &Problem, n_tokens: u32, step: StepKind, context: u32, cache_bytes: usize) -> Self {
        let (n, context) = (n_tokens as usize, context as usize);
        let window = problem.dims.get("window").map_or(0, |&window| window as usize);
        let (n_slots, run) = match step {
            StepKind::Decode => (n, 1),
            StepKind::Mixed => (1, n),
        };
        let stores = problem.ops.iter().find(|op| *op == "rope_kv");
        let op = stores.or(problem.ops.first()).map_or("", String::as_str);
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
        let inputs = match (op, step) {
            ("attention" | "rope_kv", StepKind::Decode) => Some("decode"),
            ("attention", StepKind::Mixed) => Some("end"),
            ("rope_kv", StepKind::Mixed) => Some("chunk"),
            ("moe_sort" | "moe_mlp1" | "moe_mlp2", _) => Some("uneven"),
            // A model's logits: few tokens have most of the probability.
            ("sample", _) => Some("steep"),
            _ => None,
        };
        Self { scalars, inputs: inputs.map(str::to_owned), cache_bytes, seed: u64::from(n_tokens) }
    }

    /// With scalars that a node has besides.
    pub fn with(mut self, scalars: &BTreeMap<String, u32>) -> Self {
        for (name, &value) in scalars {
            self.scalars.entry(name.clone()).or_insert(value.into());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kernel::template::Precision;

    #[test]
    fn a_run_that_stores_in_the_cache_has_the_positions_of_its_last_op() {
        let problem = |ops: &[&str]| Problem {
            ops: ops.iter().map(|&op| op.to_owned()).collect(),
            dims: BTreeMap::from([("block_tokens".to_owned(), 64)]),
            constants: BTreeMap::new(),
            flags: BTreeMap::new(),
            dtypes: BTreeMap::new(),
            precision: Precision::Bf16,
            keeps: BTreeSet::new(),
        };
        for step in [StepKind::Decode, StepKind::Mixed] {
            let setup = |ops: &[&str]| Setup::for_problem(&problem(ops), 200, step, 512, 0);
            let (alone, run) = (setup(&["rope_kv"]), setup(&["rmsnorm", "linear", "rope_kv"]));
            assert!(alone.inputs.is_some());
            assert_eq!((alone.scalars, alone.inputs), (run.scalars, run.inputs));
        }
    }
}
