//! The problems of an op in a model's forward pass, for commands that look at one op.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::graph::Graph;
use engine::graph::forward::{ForwardOptions, forward};
use engine::graph::kv_cache::{KvDtypes, KvLayout, KvRequest};
use engine::plan::cover::runs;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::signature::Signature;
use kernel::template::{Precision, Problem};
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::config::tensor_parallel::TpRank;
use model::config::{ModelConfig, NamedShape};

/// Most rows of a step, as `run` has it.
const MAX_ROWS: usize = 512;

/// A problem of a node, or of a run of nodes.
#[derive(Clone, Debug)]
pub(crate) struct InModel {
    /// Where in the model: `block.0.attn.qkv`.
    pub(crate) label: String,
    /// What is asked for there.
    pub(crate) problem: Problem,
    /// Scalar arguments other than `n_tokens`, as the node has them.
    pub(crate) scalars: BTreeMap<String, u32>,
}

/// The problems of an op, or of a run of ops joined by `+`, in two layers of a model: one with a window, one without.
/// Weights are of the precision's type; at bf16 all is encoded as the models are released.
///
/// - `library`: has the contracts
/// - `fusions`: the runs of ops that one kernel may do
///
/// # Errors
/// If the KV cache cannot be laid out.
pub(crate) fn list(
    op: &str,
    shape: NamedShape,
    precision: Precision,
    target: &Target,
    library: &Library,
    fusions: &[Arc<Signature>],
) -> anyhow::Result<Vec<InModel>> {
    let encoding = match precision {
        Precision::F32 => Encoding::F32,
        Precision::Bf16 => Encoding::default(),
    };
    let checkpoint = Checkpoint::random(shape.config(Some(2)), encoding, 0)?;
    let graph = match graph(&checkpoint, precision, target, library) {
        Ok(graph) => graph,
        // A contract of the user's may have other names: the model has no problem for it.
        Err(_) if library.contracts().any(|contract| contract.file.is_own()) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let runs = runs(&graph, fusions);
    let scalars: BTreeMap<String, BTreeMap<String, u32>> =
        graph.nodes.iter().map(|node| (node.label.clone(), node.scalars.clone())).collect();
    let nodes = graph.nodes.into_iter().map(|node| (node.label, node.problem));
    let of_op = nodes.chain(runs).filter(|(_, problem)| problem.ops.join("+") == op);
    let with_scalars = |(label, problem): (String, Problem)| {
        let of_parts = label.split(" + ").filter_map(|part| scalars.get(part)).flatten();
        let scalars = of_parts.map(|(name, value)| (name.clone(), *value)).collect();
        InModel { label, problem, scalars }
    };
    Ok(of_op.map(with_scalars).collect())
}

/// The forward pass of a model.
///
/// # Errors
/// A statement of the family's file that does not fit its op.
pub(crate) fn graph(
    checkpoint: &Checkpoint,
    precision: Precision,
    target: &Target,
    library: &Library,
) -> anyhow::Result<Graph> {
    let request =
        request(&checkpoint.config, KvDtypes::new(precision.activation(), precision), target.has_matrix_layout());
    let kv = KvLayout::new(&checkpoint.config, &request)?;
    let options = ForwardOptions {
        part: TpRank::WHOLE,
        strides: Default::default(),
        shares_stream: false,
        precision,
        max_rows: MAX_ROWS,
        max_logit_rows: MAX_ROWS,
        takes_tokens: target.is_gpu(),
    };
    Ok(forward(checkpoint, &kv, &options, library)?)
}

fn request(config: &ModelConfig, dtypes: KvDtypes, matrix_layout: bool) -> KvRequest {
    KvRequest {
        n_slots: 1,
        n_snapshots: 0,
        n_kept: 0,
        capacity_tokens: config.max_seq_len,
        max_rows: MAX_ROWS,
        dtypes,
        matrix_layout,
        odd_window: None,
        budget_bytes: usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::step::StepKind;
    use kernel::template::library::Layer;
    use workbench::timing::{self, Setup};

    #[test]
    fn the_work_of_ops_with_scalars_of_their_own_can_be_counted() {
        let target = Target::gpu("gfx1100").expect("known");
        let library = Library::from_layers(vec![Layer::built_in()]);
        for op in ["change_logits", "min_p", "logprobs", "take_token"] {
            let found = list(op, NamedShape::gpt_oss_20b(), Precision::Bf16, &target, &library, &[])
                .expect("the cache can be laid out");
            let [one] = found.as_slice() else { panic!("{op}: {found:?}") };
            let setup = |scalars| Setup::for_problem(&one.problem, 1, StepKind::Decode, 1024, 0).with(scalars);
            let work = timing::work(&library, &one.problem, &setup(&one.scalars)).expect("its shapes are known");
            assert!(work.total_bytes() > 0.0, "{op}: {work:?}");
            assert!(timing::work(&library, &one.problem, &setup(&BTreeMap::new())).is_err(), "{op} has no others");
        }
    }
}
