//! A model of which the processor computes a part: what the device alone would have said.

use std::path::Path;
use std::sync::Arc;

use engine::blueprint::ModelOptions;
use engine::graph::placement::{EmbeddingPlace, HostLayers};
use engine::plan::error::PlanError;
use engine::scheduler::{DraftOptions, Request, RequestId, Sampling};
use engine::{Engine, EngineError, EngineOptions, HostShare};
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use kernel::pipeline::Pipeline;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::layout::Layout;
use model::config::ModelConfig;

use super::forward::{How, MIXED, ONE_BY_ONE, check_greedy, drain, greedy, model_options, pipeline};
use crate::fixtures::host::FaultyHost;
use crate::fixtures::models::{Fixture, gpt_oss};
use crate::fixtures::program::{repository, run};
use crate::workbench::kernels::store;

pub(super) fn cores(n_threads: usize) -> Arc<dyn Driver> {
    Arc::new(HostDriver::new(n_threads).expect("threads"))
}

/// A GPU in the simulator.
pub(super) fn simulated() -> Pipeline {
    let tables = TuningTables::load(&[]).expect("the built-in tables");
    let target = tables.gpu("gfx1100").expect("known").simulated();
    let driver = Arc::new(SimDriver::new(&target.arch, target.wave_size, 2).expect("threads"));
    Pipeline::new(Library::load(&[]).expect("built in"), tables, target, store(), driver).expect("right")
}

/// An engine whose device is these cores, or another pipeline, with other cores beside it.
pub(super) fn beside(
    device: Pipeline,
    host: Arc<dyn Driver>,
    layers: HostLayers,
    checkpoint: &Checkpoint,
    how: How,
) -> Result<Engine, Box<EngineError>> {
    let host = Some(HostShare { pipeline: pipeline(host), layers, streaming: how.streaming });
    let model = model_options(128, how);
    let options = EngineOptions { pipeline: device, peers: Vec::new(), host, model, watchdog: None };
    Engine::load(checkpoint, options, &()).map_err(Box::new)
}

fn on_cores(checkpoint: &Checkpoint, n_layers: usize, how: How) -> Engine {
    beside(pipeline(cores(how.threads)), cores(2), HostLayers::Last(n_layers), checkpoint, how).expect("loads")
}

pub(super) fn open(path: &str) -> Checkpoint {
    Checkpoint::open(Path::new(path), Layout::Auto).expect("a model")
}

/// Odd sizes: no dimension divides another.
pub(super) fn odd() -> Checkpoint {
    let config = gpt_oss(&[
        ("vocab_size", 131.0),
        ("hidden_size", 45.0),
        ("num_experts", 5.0),
        ("experts_per_token", 3.0),
        ("intermediate_size", 37.0),
        ("num_hidden_layers", 4.0),
        ("head_dim", 6.0),
        ("num_attention_heads", 6.0),
        ("num_key_value_heads", 2.0),
        ("max_seq_len", 256.0),
        ("initial_context_length", 4096.0),
        ("rope_theta", 150_000.0),
        ("rope_scaling_factor", 32.0),
        ("sliding_window", 7.0),
        ("swiglu_limit", 7.0),
    ]);
    Checkpoint::random(config, Encoding::Mxfp4, 3).expect("a model")
}

/// A small gpt-oss of random sizes.
fn drawn(below: &mut impl FnMut(usize) -> usize) -> Checkpoint {
    let n_experts = 2 + below(9);
    let kv_heads = 1 + below(3);
    let config = gpt_oss(&[
        ("vocab_size", 91.0 + below(80) as f64),
        ("hidden_size", 8.0 + below(60) as f64),
        ("num_experts", n_experts as f64),
        ("experts_per_token", 1.0 + below(n_experts.min(4)) as f64),
        ("intermediate_size", 5.0 + below(60) as f64),
        ("num_hidden_layers", 2.0 + below(4) as f64),
        ("head_dim", 2.0 * (2 + below(7)) as f64),
        ("num_attention_heads", (kv_heads * (1 + below(4))) as f64),
        ("num_key_value_heads", kv_heads as f64),
        ("max_seq_len", 256.0),
        ("initial_context_length", 4096.0),
        ("rope_theta", 150_000.0),
        ("rope_scaling_factor", 32.0),
        ("sliding_window", 2.0 + below(20) as f64),
        ("swiglu_limit", 7.0),
    ]);
    let encoding = if below(2) == 0 { Encoding::Mxfp4 } else { Encoding::Bf16 };
    Checkpoint::random(config, encoding, below(1000) as u64).expect("a model")
}

#[test]
fn tokens_of_fixtures_are_those_of_hugging_face_wherever_experts_are() {
    for (name, n_layers, how) in [("odd", 1, MIXED), ("window", 2, ONE_BY_ONE), ("bf16", 99, MIXED)] {
        let fixture = Fixture::open(name);
        let checkpoint = open(&fixture.path("model.bin"));
        let mut engine = on_cores(&checkpoint, n_layers, how);
        let [n, all] = engine.executor().memory_plan().host.as_ref().expect("a part").n_layers;
        assert_eq!(n, n_layers.min(all));
        check_greedy(&fixture, &mut engine);
    }
}

/// Both places have the same templates here, so that logits are the same to the bit; steps, drafts and kept prefixes
/// are as random as placements. `GPTOSS_JIT_PLACEMENTS=200` has so many placements, of models whose sizes are drawn.
#[test]
fn random_placements_change_no_bit() {
    let moe = repository().join("tests/fixtures/families/qwen3-moe");
    let asked = std::env::var("GPTOSS_JIT_PLACEMENTS").ok().map(|text| text.parse::<usize>().expect("a number"));
    let mut random = 17_usize;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut models = vec![odd(), open(moe.to_str().expect("text"))];
    let of_each = if asked.is_some() { 16 } else { 8 };
    while models.len() * of_each < asked.unwrap_or(0) {
        models.push(drawn(&mut below));
    }
    for checkpoint in models {
        let vocab_size = checkpoint.config.vocab_size;
        let (all, ids) = (checkpoint.expert_bytes().len(), (0..40).map(|i| i * 37 % 90).collect::<Vec<u32>>());
        assert!(all > 1 && vocab_size > 90);
        let alone = |how: How| super::forward::load_checkpoint(cores(1), &checkpoint, 128, how).expect("loads");
        let logits = alone(ONE_BY_ONE).teacher_force(&ids, None).expect("runs");
        for _ in 0..of_each {
            let drafts = (below(2) == 1).then_some(DraftOptions::USUAL);
            let how = How { n_slots: 1 + below(3), max_rows: 3 + below(9), n_snapshots: below(3), drafts, ..MIXED };
            let n_layers = below(all + 1);
            let mut engine = on_cores(&checkpoint, n_layers, how);
            let what = format!("{n_layers} of {all} layers, {} slots, {} rows", how.n_slots, how.max_rows);
            assert_eq!(engine.teacher_force(&ids, None).expect("runs"), logits, "{what}");
            let prompts: Vec<Vec<u32>> = (0..4).map(|i| ids[..5 + 9 * i].to_vec()).collect();
            let answers = |engine: &mut Engine| -> Vec<Vec<u32>> {
                let submit = |prompt: &Vec<u32>| engine.submit(greedy(prompt, 12, &[])).expect("fits");
                let requests: Vec<RequestId> = prompts.iter().map(submit).collect();
                let mut all = drain(engine);
                requests.iter().map(|request| all.remove(request).expect("an answer").0).collect()
            };
            assert_eq!(answers(&mut engine), answers(&mut alone(how)), "{what}");
        }
    }
}

#[test]
fn a_gpu_gives_the_tokens_that_it_gives_alone() {
    let fixture = Fixture::open("odd");
    let checkpoint = open(&fixture.path("model.bin"));
    let mut engine = beside(simulated(), cores(2), HostLayers::Last(1), &checkpoint, MIXED).expect("loads");
    let prompts = fixture.prompts.iter().zip(&fixture.greedy).take(3);
    let submit = |(prompt, tokens): (&Vec<u32>, &Vec<u32>)| {
        let request = Request::new(prompt.clone(), 6, Vec::new(), Sampling::GREEDY);
        (engine.submit(request).expect("fits"), tokens[..6].to_vec())
    };
    let expected: Vec<(RequestId, Vec<u32>)> = prompts.map(submit).collect();
    let answers = drain(&mut engine);
    assert!(expected.iter().all(|(request, tokens)| answers[request].0 == *tokens));
}

#[test]
fn as_few_layers_as_needed_leave_room_for_the_rest() {
    let config: ModelConfig = odd().config.clone().with("num_experts", 64).with("intermediate_size", 640);
    let checkpoint = Checkpoint::random(config, Encoding::Mxfp4, 3).expect("a model");
    let load = |most_bytes: usize, layers| {
        let device = pipeline(cores(1)).with_memory(most_bytes);
        beside(device, cores(1), layers, &checkpoint, How { max_rows: 8, ..ONE_BY_ONE })
    };
    let plan = |most_bytes| load(most_bytes, HostLayers::AsNeeded).expect("fits").executor().memory_plan().clone();
    let whole = plan(usize::MAX);
    assert_eq!(whole.host, None);
    let of_layer = *checkpoint.expert_bytes().values().next().expect("it has experts");
    for n in 1..=4 {
        let most_bytes = whole.needed_bytes() - (n - 1) * of_layer - 1;
        let plan = plan(most_bytes);
        let host = plan.host.as_ref().expect("a part");
        assert_eq!((host.n_layers, host.weights), ([n, 4], n * of_layer));
        assert!(plan.needed_bytes() <= most_bytes);
        let told = plan.to_string();
        assert!(told.contains(&format!("; experts of the last {n} of 4 layers in main memory: weights ")), "{told}");
    }
    // One layer fewer does not do, and without any experts there still is too little.
    let refused = |most_bytes: usize, layers| {
        let error = load(most_bytes, layers).err().expect("too little");
        assert!(matches!(*error, EngineError::Plan(PlanError::Memory(_))), "{error}");
    };
    // Activations between the matrices of experts go with the last of these.
    refused(whole.needed_bytes() - of_layer - 200_000, HostLayers::Last(1));
    refused(whole.needed_bytes() - 4 * of_layer - 200_000, HostLayers::AsNeeded);
}

#[test]
fn cores_that_fail_end_the_step_and_nobody_waits() {
    let checkpoint = odd();
    for n_launches in [0, 1, 5] {
        // Weights are made by launches, too: two tensors of codes and scales, and a bias, for each of two matrices.
        let host = Arc::new(FaultyHost::failing_after(2 * 6 + n_launches));
        let mut engine = beside(pipeline(cores(1)), host, HostLayers::Last(2), &checkpoint, ONE_BY_ONE).expect("loads");
        engine.submit(greedy(&[1, 2, 3], 20, &[])).expect("fits");
        let error = (0..20).find_map(|_| engine.step().err()).expect("a launch fails");
        let told = error.to_string();
        assert!(told.starts_with("could not run `block.") && told.contains(".mlp."), "{told}");
    }
}

#[test]
fn what_does_not_go_together_is_said() {
    let said = |words: &[&str]| {
        let ran = run(words);
        assert_ne!(ran.code, 0, "{words:?}");
        ran.stderr
    };
    let run_with =
        |more: &[&str]| said(&[&["run", "-i", "x", "-n", "3", "--device", "sim:gfx1100"][..], more].concat());
    let both = run_with(&["--tp", "2", "--n-cpu-moe", "1"]);
    assert!(both.contains("`--n-cpu-moe` does not go with `--tp`: devices that compute"), "{both}");
    let copies = run_with(&["-m", "getp", "-g", "2", "--n-cpu-moe", "1"]);
    assert!(copies.contains("`--n-cpu-moe` does not go with `-g`: each of several GPUs has all"), "{copies}");
    let dense = repository().join("tests/fixtures/families/llama3");
    let none = run_with(&[dense.to_str().expect("text"), "--n-cpu-moe", "1"]);
    assert!(none.contains("the model has no experts"), "{none}");
    assert!(run_with(&["--n-cpu-moe", "some"]).contains("expected a number of layers, or `auto`"));
    assert!(run_with(&["--stream-experts", "0"]).contains("expected a number of tokens, `auto` or `off`"));
    assert!(run_with(&["--embedding", "cpu"]).contains("expected `device`, `host` or `auto`"));
    let tied = repository().join("tests/fixtures/families/qwen2");
    let tied = run_with(&[tied.to_str().expect("text"), "--embedding", "host"]);
    assert!(tied.contains("`--embedding host`: the model's logits are computed with it as well"), "{tied}");
    let on_cores = said(&["run", "-i", "x", "-n", "3", "--device", "cpu", "--embedding", "host"]);
    assert!(on_cores.contains("`--embedding host`: this device computes in main memory"), "{on_cores}");
    let small = run_with(&["--memory", "100KB"]);
    assert!(small.contains("could not fit the model into the memory of sim:gfx1100"), "{small}");
}

/// Through the command line: the default makes room where a limit says that there is too little, and says what it
/// costs; `kernels plan` shows who computes what.
#[test]
fn a_limit_of_memory_has_the_processor_help() {
    let words = ["run", "-i", "Once upon a time", "-n", "8"];
    let alone = run(&[&words[..], &["--device", "cpu"]].concat()).ok().text().to_owned();
    // Drafts would take the room of a layer for their logits.
    let limits = ["--device", "sim:gfx1100", "--memory", "3MB", "--speculate", "off"];
    let ran = run(&[&words[..], &limits].concat()).ok();
    assert_eq!(ran.text(), alone);
    let note = "the processor computes the experts of the last 3 of 4 layers: 1.8 MB in main memory, which reads 446.2";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    let plan = run(&["kernels", "plan", "--arch", "gfx1100", "--n-cpu-moe", "3", "--op", "moe_mlp1"]).ok();
    let of = |by: &str| plan.text().lines().filter(|line| line.trim_end().ends_with(by)).collect::<Vec<_>>().join("\n");
    assert!(of("the processor").contains("block.1-3.mlp.mlp1"), "{}", plan.text());
    assert!(of("gfx1100").contains("block.0.mlp.mlp1"), "{}", plan.text());
    assert!(of("gfx1100, streamed").contains("block.1-3.mlp.mlp1"), "{}", plan.text());
    assert!(plan.stderr.contains("what is streamed comes from main memory in steps of more tokens"), "{}", plan.stderr);
    assert!(!of("gfx1100").contains("block.1"), "{}", plan.text());
    let inspected = run(&["inspect", "--device", "sim:gfx1100", "--n-cpu-moe", "2"]).ok();
    assert!(inspected.text().contains("the processor, the experts of the last 2 of 4 layers"), "{}", inspected.text());
}

/// The same bytes in either place are the same logits, to the bit; a table that logits are computed with as well stays.
#[test]
fn a_table_in_main_memory_is_none_of_the_devices_and_changes_no_logit() {
    for (name, is_tied) in [("llama3", false), ("qwen2", true)] {
        let fixture = repository().join("tests/fixtures/families").join(name);
        let checkpoint = open(fixture.to_str().expect("text"));
        let of = |embedding| {
            let model = ModelOptions { embedding, ..model_options(64, ONE_BY_ONE) };
            let (pipeline, peers) = (pipeline(cores(1)), Vec::new());
            let options = EngineOptions { pipeline, peers, host: None, model, watchdog: None };
            let mut engine = Engine::load(&checkpoint, options, &()).expect("loads");
            let logits = engine.teacher_force(&[5, 3, 7, 5], None).expect("runs");
            let plan = engine.executor().memory_plan();
            (logits, [plan.weights, plan.zero_copy])
        };
        let table = checkpoint.looked_up_bytes();
        let (expected, [all, none]) = of(EmbeddingPlace::Device);
        let (found, bytes) = of(EmbeddingPlace::Host);
        assert_eq!((none, table == 0), (0, is_tied), "{name}");
        assert_eq!((found, bytes), (expected, [all - table, table]), "{name}");
    }
}

/// The tiny model's table takes 196.6 kB: where so much is missing, it goes to main memory, and no experts do.
#[test]
fn a_table_leaves_a_device_that_lacks_its_room_before_experts_do() {
    let words = ["run", "-i", "Once upon a time", "-n", "8", "--speculate", "off", "--kv-memory", "1", "--device"];
    let on = |more: &[&str]| run(&[&words[..], &["sim:gfx1100", "--verbose"], more].concat()).ok();
    let all = on(&["--embedding", "device"]);
    assert!(!all.stderr.contains("the embedding"), "{}", all.stderr);
    // Steps of less than the table takes: one of them is where it is all that has to go.
    let limits = (2_000..=6_000).rev().step_by(150).map(|kb| format!("{kb}KB"));
    let mut limited = limits.map(|limit| on(&["--memory", &limit]));
    let limited = limited.find(|ran| ran.stderr.contains("in main memory")).expect("a limit at which something goes");
    assert_eq!(limited.text(), all.text());
    let note = "the embedding (196.6 kB) is in main memory, where sim:gfx1100";
    assert!(limited.stderr.contains(note) && !limited.stderr.contains("the processor computes"), "{}", limited.stderr);
    let inspected = run(&["inspect", "--device", "sim:gfx1100", "--embedding", "host"]).ok();
    assert!(inspected.text().contains("the embedding, 196.6 kB, is in main memory"), "{}", inspected.text());
    let alone = run(&["inspect", "--embedding", "host"]).fails(2);
    assert!(alone.contains("`--n-cpu-moe`, `--embedding` and `--memory` of `inspect` need `--device`"), "{alone}");
}
