//! Which launches cover a graph.

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

fn checkpoint() -> Checkpoint {
    let config = NamedShape::gpt_oss_20b().config_with(&[("max_seq_len", 2048.0)]);
    Checkpoint::random(config, Encoding::Mxfp4, 1).expect("a model")
}

/// The forward pass of gpt-oss-20b.
fn graph(precision: Precision) -> Graph {
    graph_with(precision, Dtype::Bf16)
}

fn graph_with(precision: Precision, kv: Dtype) -> Graph {
    let checkpoint = checkpoint();
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
        shares_stream: false,
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
    let mut segments = segments(graph, Place::Device, &chooser.fusions());
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

    let segments = segments(&graph, Place::Device, &chooser.fusions());
    let cover =
        |refused: &[Problem]| segments[0].cover(&chooser, 1, StepKind::Decode, refused).into_iter().map(|c| c.label);
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
        let attention = all.iter().find(|cover| cover.label == "block.7.attn.attention").expect("a launch of its own");
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
        for (n, step) in [(1, StepKind::Decode), (2, StepKind::Decode), (64, StepKind::Decode), (2048, StepKind::Mixed)]
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

/// A run of these ops, and where the first of them is in the graph.
fn run_of(chooser: &Chooser, graph: &Graph, ops: [&str; 2]) -> (Arc<Signature>, usize) {
    let run = chooser.fusions().into_iter().find(|run| run.ops == ops).expect("templates fuse it");
    let is_first = |nodes: &[Node]| nodes.iter().map(|node| &node.problem.ops).eq(&ops.map(|op| vec![op.to_owned()]));
    (run, graph.nodes.windows(2).position(is_first).expect("the graph has it"))
}

#[test]
fn what_is_handed_on_is_kept_where_it_is_no_arenas() {
    let mut graph = graph(Precision::Bf16);
    let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
    let (run, at) = run_of(&chooser, &graph, ["moe_route", "moe_sort"]);
    let joint = &run.joints[0];
    let keeps = |graph: &Graph| fused(graph, &run, at..at + 2).expect("they are a run").problem.keeps;
    assert!(keeps(&graph).is_empty());
    let between = graph.nodes[at].args[&joint.written.name];
    graph.tensors[between.0].storage = Storage::External("kept".into());
    assert_eq!(keeps(&graph), [joint.path.clone()].into());
}

#[test]
fn nodes_of_which_one_writes_what_another_reads_besides_are_no_run() {
    let mut graph = graph(Precision::Bf16);
    let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
    let (run, at) = run_of(&chooser, &graph, ["rmsnorm", "linear"]);
    assert!(fused(&graph, &run, at..at + 2).is_some());
    let read = graph.nodes[at].args["x"];
    graph.nodes[at + 1].args.insert("y".into(), read);
    assert!(fused(&graph, &run, at..at + 2).is_none(), "a block would read what another one has written");
}

/// The processor's, which compiles nothing.
fn pipeline(folder: &std::path::Path) -> kernel::pipeline::Pipeline {
    use kernel::object::cache::{Cache, CacheLimits};
    use kernel::object::compile::CompilerOptions;
    use kernel::object::store::Store;

    let compilers = CompilerOptions::new(folder.join("no-worker"));
    let store = Store::new(Cache::open(folder, CacheLimits::default()), compilers);
    let library = Library::from_layers(vec![Layer::built_in()]);
    let driver = Arc::new(gpu::host::HostDriver::new(1).expect("a thread"));
    kernel::pipeline::Pipeline::new(library, TuningTables::default(), Target::host(), store, driver).expect("right")
}

#[test]
fn what_a_run_needs_lives_from_its_first_node_to_its_last() {
    let graph = graph(Precision::Bf16);
    let chooser = chooser("sm_90", TuningTables::load(&[]).expect("right"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pipeline = pipeline(folder.path());
    let limits = crate::graph::StepLimits { max_rows: 64, max_logit_rows: 64, max_decode_rows: 64 };
    let (shared, streaming) = (Vec::new(), crate::graph::placement::Streaming::Never);
    let (kv_bytes, snapshot_bytes, zero_copy) = (0, 0, false);
    let options =
        super::super::options::ExecutorOptions { limits, shared, kv_bytes, snapshot_bytes, zero_copy, streaming };
    let lives = |candidates: &[Candidates]| {
        super::super::lifetimes::lifetimes(&graph, candidates, &pipeline, &options).expect("contracts fit")
    };
    let candidates = segments(&graph, Place::Device, &chooser.fusions());
    let (alone, all) = (lives(&[]), lives(&candidates));
    let (mut n_begin, mut n_end) = (0, 0);
    for range in candidates.iter().flat_map(Candidates::run_ranges) {
        for id in graph.nodes[range.clone()].iter().flat_map(|node| node.args.values()) {
            let (Some(alone), Some(life)) = (alone.get(&id.0), all.get(&id.0)) else { continue };
            assert!(life.first_node <= range.start && life.last_node >= range.end - 1, "tensor {}", id.0);
            n_begin += usize::from(alone.first_node > range.start);
            n_end += usize::from(alone.last_node < range.end - 1);
        }
    }
    let ends = |id: &usize| {
        let of_run = |range: &std::ops::Range<usize>| {
            graph.nodes[range.clone()].iter().flat_map(|node| node.args.values()).any(|arg| arg.0 == *id)
        };
        candidates.iter().flat_map(Candidates::run_ranges).filter(of_run).map(|range| range.end - 1).max()
    };
    for (id, life) in &all {
        assert_eq!(life.last_node, alone[id].last_node.max(ends(id).unwrap_or(0)), "tensor {id}: no longer than that");
    }
    assert!(n_begin > 24 && n_end > 24, "{n_begin}, {n_end}");
}

#[test]
fn a_run_that_is_refused_is_done_node_by_node_unless_a_kernel_is_missing() {
    use super::super::buckets::served;
    use kernel::choice::NoKernel;
    use kernel::object::store::StoreError;
    use kernel::pipeline::PipelineError;

    let graph = graph(Precision::Bf16);
    let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
    let limits = crate::graph::StepLimits { max_rows: 1, max_logit_rows: 1, max_decode_rows: 1 };
    let candidates = segments(&graph, Place::Device, &chooser.fusions());
    let without_runs = |why: &dyn Fn() -> StoreError| {
        served(&graph, &candidates, &chooser, limits, |wanted| {
            let run = wanted.iter().find(|request| request.problem.ops.len() > 1);
            let problem = |run: &kernel::choice::KernelRequest| Box::new(run.problem.clone());
            let refused = |run| NoKernel { problem: problem(run), source: PipelineError::Store(why()) };
            run.map(refused).map_or(Ok(()), Err)
        })
    };
    let (planned, ()) = without_runs(&|| StoreError::Jobs { text: "x".into() }).expect("every node has a kernel");
    let of_one_row =
        planned.iter().filter(|segment| !segment.rows.are_asked_for()).flat_map(|segment| &segment.buckets);
    let decoding = of_one_row.filter(|bucket| bucket.step == StepKind::Decode);
    // As `a_step_of_gpt_oss_20b_has_so_many_launches` counts them.
    assert_eq!(decoding.map(|bucket| bucket.covers.len()).sum::<usize>(), 24 * 11 + 7);
    assert!(without_runs(&|| StoreError::Missing(Arc::default())).is_err(), "node by node more would be missing");
}

#[test]
fn a_segment_whose_weights_come_from_main_memory_is_for_prompts_of_so_many_rows() {
    use super::super::buckets::served;
    use super::super::streaming::LEAST_ROWS;
    use kernel::choice::NoKernel;

    let mut graph = graph(Precision::Bf16);
    let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
    let of_experts = |node: &&mut Node| node.label.starts_with("block.7.mlp.mlp");
    graph.nodes.iter_mut().filter(of_experts).for_each(|node| node.place = Place::Host);
    let candidates = segments(&graph, Place::Streamed, &chooser.fusions());
    assert_eq!(candidates.len(), 1);
    let buckets = |max_rows| {
        let limits = crate::graph::StepLimits { max_rows, max_logit_rows: 1, max_decode_rows: 1 };
        let serve = |_: &[_]| Ok::<_, NoKernel<std::io::Error>>(());
        let (planned, ()) = served(&graph, &candidates, &chooser, limits, serve).expect("nothing is refused");
        let range = |bucket: &super::super::buckets::PlannedBucket| {
            (bucket.step, bucket.first_row_count, bucket.last_row_count)
        };
        planned[0].buckets.iter().map(range).collect::<Vec<_>>()
    };
    assert_eq!(buckets(LEAST_ROWS), [(StepKind::Mixed, LEAST_ROWS, LEAST_ROWS)]);
    assert_eq!(buckets(LEAST_ROWS - 1), []);
}

#[test]
fn nodes_that_read_the_same_are_a_run() {
    let mut graph = graph(Precision::Bf16);
    let chooser = chooser("gfx942", TuningTables::load(&[]).expect("right"));
    let (run, at) = run_of(&chooser, &graph, ["rmsnorm", "linear"]);
    let read = graph.nodes[at].args["scale"];
    graph.nodes[at + 1].args.insert("bias".into(), read);
    assert!(fused(&graph, &run, at..at + 2).is_some());
}

#[test]
fn weights_take_what_all_of_a_checkpoints_tensors_have() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = checkpoint();
    let graph = graph(Precision::Bf16);
    let stay = vec![false; graph.tensors.len()];
    let plan = super::super::memory::MemoryPlan::new(&graph, &stay, &checkpoint, &pipeline(folder.path()));
    let plan = plan.expect("memory has a size");
    let all: usize = checkpoint.tensors.values().map(model::checkpoint::Tensor::len_bytes).sum();
    assert_eq!((plan.weights, plan.weights_in_place), (all, 0), "random weights are in no file");
}

#[test]
fn a_kernel_makes_the_random_weights_of_each_type() {
    let checkpoint = checkpoint();
    let found = super::super::weights::random_dtypes(&graph(Precision::Bf16), Place::Device, &checkpoint);
    let names = |dtypes: &mut dyn Iterator<Item = Dtype>| dtypes.map(|dtype| dtype.to_string()).collect::<Vec<_>>();
    let mut found = names(&mut found.expect("the graph's weights are the checkpoint's").into_iter());
    found.sort();
    let all: BTreeSet<String> =
        names(&mut checkpoint.tensors.values().map(|tensor| tensor.dtype)).into_iter().collect();
    assert_eq!(found, all.into_iter().collect::<Vec<_>>(), "each once");
}
