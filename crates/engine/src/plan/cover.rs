//! Which launches a bucket of row counts has: the nodes of a segment, or runs of them that one kernel covers.
//!
//! A run is what a template says that it fuses, found node by node in launch order. Whether it is preferred to its
//! nodes is the tuning tables' affair, through the chooser; how launches are made of a cover is [`super::executor`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::graph::{Graph, Node, Storage, TensorId};
use kernel::choice::{Chooser, NotFused};
use kernel::step::StepKind;
use kernel::template::Problem;
use kernel::template::contract::Access;
use kernel::template::signature::{Joint, Signature};

/// One launch to be: a node, or a run of nodes that one kernel covers.
#[derive(Clone, Debug)]
pub(super) struct Cover {
    /// The node's, or the nodes' joined by ` + `.
    pub(crate) label: String,
    pub(crate) problem: Problem,
    pub(crate) args: BTreeMap<String, TensorId>,
    pub(crate) scalars: BTreeMap<String, u32>,
    /// The nodes in the graph.
    pub(crate) nodes: Range<usize>,
    /// Longer runs that begin here and are not done by one kernel.
    pub(crate) unfused: Vec<Unfused>,
}

/// A run of nodes that one kernel could do, and why none does.
#[derive(Clone, Debug)]
pub struct Unfused {
    /// What the kernel would have to do.
    pub problem: Problem,
    pub why: NotFused,
}

/// What a segment can be covered with.
pub(super) struct Candidates {
    /// The segment's nodes in the graph.
    pub(crate) range: Range<usize>,
    singles: Vec<Cover>,
    /// The runs that begin at each node, the longest first.
    runs: Vec<Vec<Cover>>,
}

/// Runs of nodes that work on the same rows, and what each can be covered with.
pub(super) fn segments(graph: &Graph, fusions: &[Arc<Signature>]) -> Vec<Candidates> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if graph.nodes[range.start].rows == node.rows => range.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges.into_iter().map(|range| Candidates::in_range(graph, fusions, range)).collect()
}

/// Every run of nodes that one kernel may do: its label and its problem.
pub fn runs(graph: &Graph, fusions: &[Arc<Signature>]) -> Vec<(String, Problem)> {
    let all = segments(graph, fusions).into_iter().flat_map(|segment| segment.runs).flatten();
    all.map(|run| (run.label, run.problem)).collect()
}

impl Candidates {
    fn in_range(graph: &Graph, fusions: &[Arc<Signature>], range: Range<usize>) -> Self {
        let runs_at = |at: usize| fusions.iter().filter_map(|run| fused(graph, run, at..range.end)).collect();
        let singles = range.clone().map(|at| single(graph, at)).collect();
        Self { singles, runs: range.clone().map(runs_at).collect(), range }
    }

    /// The nodes of every run that one kernel may cover, whether it is preferred or not.
    pub(crate) fn run_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let at = self.range.clone().zip(&self.runs);
        at.flat_map(|(at, runs)| runs.iter().map(move |run| at..at + run.problem.ops.len()))
    }

    /// Row counts at which any choice may change in steps of a kind, rising from the first of those that occur.
    pub(crate) fn bucket_starts(
        &self,
        chooser: &Chooser,
        step: StepKind,
        occurring: &RangeInclusive<usize>,
    ) -> Vec<usize> {
        let mut starts = BTreeSet::from([*occurring.start()]);
        for cover in self.singles.iter().chain(self.runs.iter().flatten()) {
            starts.extend(chooser.bucket_starts(&cover.problem, step));
        }
        starts.into_iter().filter(|start| occurring.contains(start)).collect()
    }

    /// The launches of a bucket: from the first node on the longest run that the tuning tables prefer, else a kernel
    /// for the node alone. No run is taken that is among `refused`.
    pub(crate) fn cover(&self, chooser: &Chooser, n_rows: usize, step: StepKind, refused: &[Problem]) -> Vec<Cover> {
        let mut cover = Vec::new();
        let mut at = 0;
        while at < self.singles.len() {
            let mut unfused = Vec::new();
            let is_preferred = |run: &&Cover| {
                let problem = &run.problem;
                let is_refused = refused.contains(problem);
                let preferred =
                    if is_refused { Err(NotFused::Refused) } else { chooser.prefers(problem, n_rows, step) };
                preferred.map_err(|why| unfused.push(Unfused { problem: problem.clone(), why })).is_ok()
            };
            let next = self.runs[at].iter().find(is_preferred).unwrap_or(&self.singles[at]).clone();
            at += next.problem.ops.len();
            cover.push(Cover { unfused, ..next });
        }
        cover
    }
}

fn single(graph: &Graph, at: usize) -> Cover {
    let Node { label, problem, args, scalars, .. } = graph.nodes[at].clone();
    Cover { label, problem, args, scalars, nodes: at..at + 1, unfused: Vec::new() }
}

/// The first nodes of `within` as one, if they are the ops of a run, hand on what it expects, and no name means two
/// things. What is handed on and others need is to be kept.
fn fused(graph: &Graph, run: &Signature, within: Range<usize>) -> Option<Cover> {
    let range = within.start..within.start + run.ops.len();
    let nodes = graph.nodes.get(range.clone()).filter(|_| range.end <= within.end)?;
    if !nodes.iter().zip(&run.ops).all(|(node, op)| node.problem.ops == [op.as_str()]) {
        return None;
    }
    let mut problem =
        nodes[1..].iter().try_fold(nodes[0].problem.clone(), |first, node| merged(first, &node.problem))?;
    let mut args = BTreeMap::new();
    let mut scalars = BTreeMap::new();
    for (i, node) in nodes.iter().enumerate() {
        let (before, after) = (i.checked_sub(1).map(|before| &run.joints[before]), run.joints.get(i));
        // A tensor that the later node changes in place is the run's under that node's name.
        let is_own = |name: &String| {
            before.is_none_or(|joint| joint.is_changed() || joint.taken.name != *name)
                && after.is_none_or(|joint| !joint.is_changed() || joint.written.name != *name)
        };
        let own = node.args.iter().filter(|(name, _)| is_own(name));
        let name_in_run = |name: &String| match after {
            Some(joint) if joint.written.name == *name => joint.kept_name(),
            _ => run.name_in_run(i, name),
        };
        let own = own.map(|(name, id)| (name_in_run(name), *id)).collect();
        if !add(&mut args, &own) || !add(&mut scalars, &node.scalars) {
            return None;
        }
    }
    for (i, joint) in run.joints.iter().enumerate() {
        if is_needed(graph, joint, &range, i)? {
            problem.keeps.insert(joint.path.clone());
        }
    }
    let label = nodes.iter().map(|node| node.label.as_str()).collect::<Vec<_>>().join(" + ");
    writes_are_apart(run, &args).then_some(Cover { label, problem, args, scalars, nodes: range, unfused: Vec::new() })
}

/// Whether others than the two nodes need the tensor between node `i` of the run and the next one; `None` if these do
/// not share it, or a node of the run needs it that does not get it handed.
fn is_needed(graph: &Graph, joint: &Joint, range: &Range<usize>, i: usize) -> Option<bool> {
    let (writer, taker) = (&graph.nodes[range.start + i], &graph.nodes[range.start + i + 1]);
    let between = writer.args.get(&joint.written.name)?;
    let reads = |node: &Node| node.args.values().filter(|id| *id == between).count();
    let in_run: usize = graph.nodes[range.clone()].iter().map(reads).sum();
    if taker.args.get(&joint.taken.name) != Some(between) || in_run != 2 {
        return None;
    }
    let everywhere: usize = graph.nodes.iter().map(reads).sum();
    let is_needed = everywhere > in_run || graph.tensor_of(*between).storage != Storage::Arena;
    Some(is_needed && !joint.is_changed())
}

/// Whether no tensor that the run writes is another of its arguments too: one node's result would be another one's
/// input, and the blocks of one kernel do not wait for each other.
fn writes_are_apart(run: &Signature, args: &BTreeMap<String, TensorId>) -> bool {
    let is_written = |name: &String| run.args.iter().any(|arg| arg.name == *name && arg.access != Access::Read);
    let written = args.iter().filter(|(name, _)| is_written(name));
    let mut others = written.map(|(name, id)| args.iter().filter(move |(other, same)| *other != name && *same == id));
    others.all(|mut others| others.next().is_none())
}

/// Both problems as one; `None` when they use a name for different things.
fn merged(mut first: Problem, second: &Problem) -> Option<Problem> {
    first.ops.extend(second.ops.iter().cloned());
    let agree = add(&mut first.dims, &second.dims)
        && add(&mut first.constants, &second.constants)
        && add(&mut first.flags, &second.flags)
        && add(&mut first.dtypes, &second.dtypes);
    agree.then_some(first)
}

/// Adds values under their names; false where one has another value already.
fn add<V: Clone + PartialEq>(to: &mut BTreeMap<String, V>, from: &BTreeMap<String, V>) -> bool {
    from.iter().all(|(name, value)| to.entry(name.clone()).or_insert_with(|| value.clone()) == value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::forward::{ForwardOptions, forward};
    use crate::graph::kv_cache::{KvDtypes, KvLayout, KvRequest};
    use format::Dtype;
    use model::checkpoint::Checkpoint;
    use model::checkpoint::encoding::Encoding;
    use model::config::NamedShape;
    use model::config::tensor_parallel::TpRank;

    use kernel::target::Target;
    use kernel::template::Precision;
    use kernel::template::contract::ArgDtype;
    use kernel::template::library::{Layer, Library};
    use kernel::tuning::TuningTables;

    /// The forward pass of gpt-oss-20b.
    fn graph(precision: Precision) -> Graph {
        graph_with(precision, Dtype::Bf16)
    }

    fn graph_with(precision: Precision, kv: Dtype) -> Graph {
        let checkpoint =
            Checkpoint::random(NamedShape::gpt_oss_20b().config_with(&[("max_seq_len", 2048.0)]), Encoding::Mxfp4, 1)
                .expect("a model");
        let request = KvRequest {
            n_slots: 300,
            n_snapshots: 0,
            n_kept: 0,
            capacity_tokens: 1024,
            max_rows: 2048,
            dtypes: KvDtypes::new(kv, precision),
            matrix_layout: true,
            odd_window: None,
            budget_bytes: usize::MAX,
        };
        let options = ForwardOptions {
            part: TpRank::WHOLE,
            strides: Default::default(),
            precision,
            max_rows: 2048,
            max_logit_rows: 300,
            takes_tokens: true,
        };
        let layout = KvLayout::new(&checkpoint.config, &request).expect("it fits");
        let library = Library::from_layers(vec![Layer::built_in()]);
        forward(&checkpoint, &layout, &options, &library).expect("the family fits its ops")
    }

    fn chooser(arch: &str, tables: TuningTables) -> Chooser {
        let target = tables.gpu(arch).or_else(|_| Target::gpu(arch)).expect("known");
        Chooser::new(Library::from_layers(vec![Layer::built_in()]), tables, target).expect("tables that are right")
    }

    /// The launches of a step with so many rows, all of which give logits and ask for no more.
    fn launches(graph: &Graph, chooser: &Chooser, n: usize, step: StepKind) -> Vec<Cover> {
        let mut segments = segments(graph, &chooser.fusions());
        segments.retain(|segment| !graph.nodes[segment.range.start].rows.are_asked_for());
        segments.iter().flat_map(|segment| segment.cover(chooser, n, step, &[])).collect()
    }

    #[test]
    fn a_step_of_gpt_oss_20b_has_so_many_launches() {
        let (bf16, f32) = (graph(Precision::Bf16), graph(Precision::F32));
        for arch in ["gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950", "sm_90"] {
            let one_by_one = chooser(arch, TuningTables::default());
            let built_in = chooser(arch, TuningTables::load(&[]).expect("right"));
            let count = |graph: &Graph, chooser: &Chooser, n| launches(graph, chooser, n, StepKind::Decode).len();
            // In a layer 11: norm, qkv, rope, attention, out, norm, gate, route, sort, two products; around them token,
            // angles, embedding, the rows that give logits, norm, unembedding, sampler.
            assert_eq!(count(&bf16, &one_by_one, 1), 24 * 11 + 7, "{arch}");
            // norm + qkv + rope, and norm + gate + route + sort, are one each; so are norm + unembedding. On Hopper one
            // row's rope is apart.
            let is_hopper = arch == "sm_90";
            assert_eq!(count(&bf16, &built_in, 1), 24 * (6 + usize::from(is_hopper)) + 6, "{arch}");
            assert_eq!(count(&bf16, &built_in, 2), 24 * 6 + 6, "{arch}");
            // Many rows: route + sort. On Hopper the second product is one with the next layer's norm, and of still
            // more rows rope with qkv.
            assert_eq!(count(&bf16, &built_in, 256), 24 * 10 + 7 - 23 * usize::from(is_hopper), "{arch}");
            assert_eq!(count(&bf16, &built_in, 512), 24 * (10 - usize::from(is_hopper)) + 7, "{arch}");
            assert_eq!(count(&f32, &built_in, 1), 24 * 11 + 7, "{arch}: parity is summed op by op");
        }
    }

    #[test]
    fn every_tensor_is_of_the_type_that_its_contracts_say() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        for (precision, activation) in [(Precision::F32, Dtype::F32), (Precision::Bf16, Dtype::Bf16)] {
            let graph = graph(precision);
            let mut n_activations = 0;
            for node in &graph.nodes {
                let contract = library.contract(&node.problem.ops[0]).expect("built in");
                for arg in contract.args.iter().filter(|arg| node.args.contains_key(&arg.name)) {
                    let tensor = graph.tensor_of(node.args[&arg.name]);
                    assert_eq!(arg.dtype.resolve(&node.problem), Some(tensor.dtype), "{}: {}", node.label, tensor.name);
                    n_activations += usize::from(arg.dtype == ArgDtype::Activation && tensor.dtype == activation);
                }
            }
            // In a layer two norms, qkv, attention, out, gate, x and y of mlp1, mlp2; at the end norm and unembedding.
            assert_eq!(n_activations, 24 * 9 + 2);
        }
    }

    #[test]
    fn what_others_read_is_kept_and_what_is_refused_is_done_node_by_node() {
        let graph = graph(Precision::Bf16);
        let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
        let all = launches(&graph, &chooser, 1, StepKind::Decode);
        let label = "block.7.mlp.norm + block.7.mlp.gate + block.7.mlp.moe_route + block.7.mlp.moe_sort";
        let run = all.iter().find(|cover| cover.label == label).expect("the router in one launch");
        assert_eq!(run.problem.keeps, ["rmsnorm.y".to_owned()].into());
        let experts = all.iter().find(|cover| cover.label == "block.7.mlp.mlp1").expect("a launch of its own");
        assert_eq!(run.args["rmsnorm_y"], experts.args["x"]);
        assert_eq!(run.args["assignment"], experts.args["assignment"]);
        assert!(run.args["x"] != run.args["rmsnorm_y"] && !run.args.contains_key("expert"));

        let segments = segments(&graph, &chooser.fusions());
        let cover = |refused: &[Problem]| {
            segments[0].cover(&chooser, 1, StepKind::Decode, refused).into_iter().map(|c| c.label)
        };
        let refused: Vec<String> = cover(std::slice::from_ref(&run.problem)).collect();
        assert!(!refused.iter().any(|label| label.contains("mlp.norm + ")), "{refused:?}");
        // What is left of the run is a run too, and is preferred.
        assert!(refused.contains(&"block.7.mlp.moe_route + block.7.mlp.moe_sort".to_owned()), "{refused:?}");
    }

    #[test]
    fn what_the_next_node_changes_in_place_is_the_runs_own() {
        let graph = graph(Precision::Bf16);
        let chooser = chooser("sm_90", TuningTables::load(&[]).expect("right"));
        let runs = [
            (2, "block.7.attn.norm + block.7.attn.qkv + block.7.attn.rope_kv"),
            (32, "block.7.attn.qkv + block.7.attn.rope_kv"),
            (4096, "block.7.attn.qkv + block.7.attn.rope_kv"),
        ];
        for (n, label) in runs {
            let all = launches(&graph, &chooser, n, StepKind::Mixed);
            let run = all.iter().find(|cover| cover.label == label).expect(label);
            let attention =
                all.iter().find(|cover| cover.label == "block.7.attn.attention").expect("a launch of its own");
            // Nobody else has what the product gave before it was rotated.
            assert!(run.problem.keeps.is_empty() && !run.args.contains_key("y") && !run.args.contains_key("linear_y"));
            for name in ["qkv", "k_cache", "v_cache"] {
                assert_eq!(run.args[name], attention.args[name], "{name}");
            }
        }
    }

    #[test]
    fn rows_of_eight_bits_are_stored_by_kernels_that_see_whole_heads() {
        let graph = graph_with(Precision::Bf16, Dtype::Int8);
        for arch in ["gfx1100", "gfx942", "sm_90"] {
            let chooser = chooser(arch, TuningTables::load(&[]).expect("right"));
            for (n, step) in
                [(1, StepKind::Decode), (2, StepKind::Decode), (64, StepKind::Decode), (2048, StepKind::Mixed)]
            {
                let all = launches(&graph, &chooser, n, step);
                for l in 0..24 {
                    let attention = all.iter().find(|cover| cover.label == format!("block.{l}.attn.attention"));
                    let attention = attention.expect("a launch of its own");
                    let is_scaled = l % 2 == 1; // the others have a window
                    let kv = if is_scaled { Dtype::Int8 } else { Dtype::Bf16 };
                    assert_eq!(attention.problem.dtypes["kv"], kv, "{arch}, layer {l}");
                    let label = format!("block.{l}.attn.rope_kv");
                    let stores = all.iter().find(|cover| cover.label.ends_with(&label)).expect("it stores");
                    assert!(!is_scaled || stores.problem.ops == ["rope_kv"], "{arch}, {n}: {}", stores.label);
                    for name in ["k_cache", "v_cache", "k_scale", "v_scale"] {
                        assert_eq!(stores.args.get(name), attention.args.get(name), "{name}");
                        assert!(attention.args.contains_key(name) || !is_scaled && name.ends_with("scale"), "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_run_of_two_layers_has_both_their_tensors() {
        let graph = graph(Precision::Bf16);
        let chooser = chooser("sm_90", TuningTables::load(&[]).expect("right"));
        let all = launches(&graph, &chooser, 64, StepKind::Decode);
        let of = |label: &str| all.iter().find(|cover| cover.label == label).expect(label);
        let run = of("block.7.mlp.mlp2 + block.8.attn.norm");
        assert_eq!(run.problem.keeps, ["moe_mlp2.y".to_owned()].into());
        // Both ops have a tensor `scale`: that of the later one is under its op's name.
        let weight = |name: &str| match &graph.tensor_of(run.args[name]).storage {
            Storage::Weight(weight) => weight.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(weight("scale"), "block.7.mlp.mlp2_scale");
        assert_eq!(weight("rmsnorm_scale"), "block.8.attn.norm.scale");
        assert_eq!(run.args["y"], of("block.8.attn.qkv + block.8.attn.rope_kv").args["x"]);
        assert_eq!(run.args["moe_mlp2_y"], of("block.8.attn.out").args["residual"]);
    }

    #[test]
    fn what_a_contract_calls_weights_no_kernel_writes() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let graph = graph(Precision::Bf16);
        let mut weights = 0;
        for node in &graph.nodes {
            let contract = library.contract(&node.problem.ops[0]).expect("built in");
            for (name, tensor) in &node.args {
                let arg = contract.args.iter().find(|arg| &arg.name == name).expect("declared");
                let is_weight = matches!(graph.tensors[tensor.0].storage, Storage::Weight(_));
                weights += usize::from(arg.is_weights);
                // The rows that give logits are embedded from the residual stream, so a table can be either.
                assert!(arg.is_weights == is_weight || node.problem.ops == ["embedding"], "{}: {name}", node.label);
            }
        }
        // In a layer two norms, three projections with a bias, sinks, and the experts' two with factors and a bias;
        // at the end a norm and the unembedding.
        assert_eq!(weights, 24 * (2 + 3 * 2 + 1 + 2 * 3) + 2);
    }

    #[test]
    fn experts_are_chosen_before_the_kernel_that_the_second_projection_follows() {
        // `moe_mlp2/dot4` looks for its weights while that kernel still runs.
        let graph = graph(Precision::Bf16);
        let chooser = chooser("sm_90", TuningTables::load(&[]).expect("right"));
        for n in [1, 2, 8, 256] {
            let all = launches(&graph, &chooser, n, StepKind::Decode);
            let before = all.windows(2).filter(|pair| pair[1].problem.ops[0] == "moe_mlp2");
            let before: Vec<&[String]> = before.map(|pair| pair[0].problem.ops.as_slice()).collect();
            assert_eq!(before, [["moe_mlp1"]; 24], "{n} rows");
        }
    }

    #[test]
    fn attention_of_many_single_rows_is_not_that_of_a_prompt() {
        // Of a layer with a window two hundred rows of a prompt are as fast one by one, on an H200 and by prediction.
        let graph = graph(Precision::Bf16);
        let is_whole = |node: &&Node| node.problem.ops == ["attention"] && node.problem.dims.get("window") == Some(&0);
        let problem = graph.nodes.iter().find(is_whole).expect("12 of them").problem.query();
        let tables = TuningTables::load(&[]).expect("right");
        for arch in ["gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950", "sm_90"] {
            let target = Target::gpu(arch).expect(arch);
            let template = |step| tables.lookup(&problem, 400, step, &target).map(|row| row.template.clone());
            assert_eq!(template(StepKind::Decode).as_deref(), Some("attention/decode_matrix"), "{arch}");
            let of_prompts = if arch == "sm_90" { "attention/wgmma" } else { "attention/flash" };
            assert_eq!(template(StepKind::Mixed).as_deref(), Some(of_prompts), "{arch}");
        }
    }
}
