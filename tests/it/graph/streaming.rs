//! Experts of main memory that the device computes in steps of many tokens: what the device alone would have said.

use std::sync::Arc;

use engine::graph::placement::{HostLayers, Streaming};
use engine::plan::error::PlanError;
use engine::scheduler::{Request, RequestId, Sampling};
use engine::{Engine, EngineError};
use gpu::Driver;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;

use super::forward::{How, ONE_BY_ONE, drain, greedy, load_checkpoint, pipeline};
use super::placement::{beside, cores, odd, open, simulated};
use crate::fixtures::host::FaultyHost;
use crate::fixtures::models::Fixture;
use crate::fixtures::program::{repository, run};

/// Steps of up to 20 rows, all of which give logits if somebody asks.
const CHUNKS: How = How { n_slots: 20, max_rows: 20, threads: 2, streaming: Streaming::From(16), ..ONE_BY_ONE };

fn loaded(checkpoint: &Checkpoint, host: Arc<dyn Driver>, n_layers: usize, how: How) -> Engine {
    beside(pipeline(cores(how.threads)), host, HostLayers::Last(n_layers), checkpoint, how).expect("loads")
}

fn on_cores(checkpoint: &Checkpoint, n_layers: usize, how: How) -> Engine {
    loaded(checkpoint, cores(2), n_layers, how)
}

fn from_rows(engine: &Engine) -> Option<usize> {
    engine.executor().stream_plan().expect("some may be streamed").from_rows
}

/// Both places have the same templates here, so that logits are the same to the bit: of steps of 20, 20 and 15 tokens,
/// of which the last is the processor's.
#[test]
fn prompts_change_no_bit_above_and_below_the_threshold() {
    let moe = repository().join("tests/fixtures/families/qwen3-moe");
    for checkpoint in [odd(), open(moe.to_str().expect("text"))] {
        let ids: Vec<u32> = (0..55).map(|i| i * 37 % 90).collect();
        let logits = load_checkpoint(cores(2), &checkpoint, 128, CHUNKS).expect("loads").teacher_force(&ids, None);
        let (logits, all) = (logits.expect("runs"), checkpoint.expert_bytes().len());
        // One place, two, and the first of them again.
        for n_layers in [1, 2, all] {
            let mut engine = on_cores(&checkpoint, n_layers, CHUNKS);
            assert_eq!(from_rows(&engine), Some(16));
            assert_eq!(engine.teacher_force(&ids, None).expect("runs"), logits, "{n_layers} of {all} layers");
        }
    }
}

/// Prompts of which the longest has three chunks, beside sequences that generate, and a threshold that was measured.
#[test]
fn answers_are_those_of_the_device_alone() {
    let checkpoint = odd();
    let prompts: Vec<Vec<u32>> = [3, 55, 20].iter().map(|&n| (0..n).map(|i| (i * 31 + n) % 90).collect()).collect();
    let answers = |engine: &mut Engine| -> Vec<Vec<u32>> {
        let submit = |prompt: &Vec<u32>| engine.submit(greedy(prompt, 12, &[])).expect("fits");
        let requests: Vec<RequestId> = prompts.iter().map(submit).collect();
        let mut all = drain(engine);
        requests.iter().map(|request| all.remove(request).expect("an answer").0).collect()
    };
    let expected = answers(&mut load_checkpoint(cores(2), &checkpoint, 128, CHUNKS).expect("loads"));
    for streaming in [Streaming::From(17), Streaming::Measured] {
        let mut engine = on_cores(&checkpoint, 3, How { streaming, ..CHUNKS });
        let plan = engine.executor().stream_plan().expect("some may be streamed").clone();
        let measured = plan.times.map(|(_, n_rows, _)| (16..=20).contains(&n_rows));
        assert_eq!(measured, (streaming == Streaming::Measured).then_some(true), "{plan}");
        assert_eq!(answers(&mut engine), expected, "{streaming:?}");
    }
}

/// The processor launches nothing in steps of 16 tokens, and all of its part in the first one of fewer.
#[test]
fn whoever_has_the_weights_in_a_step_computes_alone() {
    let checkpoint = odd();
    // Weights are made by launches, too: two tensors of codes and scales, and a bias, for each of two matrices.
    let host = Arc::new(FaultyHost::failing_after(2 * 6));
    let mut engine = loaded(&checkpoint, host, 2, CHUNKS);
    let ids: Vec<u32> = (0..36).collect();
    engine.teacher_force(&ids, None).expect("20 tokens, and 16");
    let told = engine.teacher_force(&ids[..35], None).expect_err("15 are the processor's").to_string();
    assert!(told.starts_with("could not run `block.2.mlp."), "{told}");
}

#[test]
fn room_for_two_layers_is_planned_and_done_without_where_there_is_none() {
    let config = odd().config.clone().with("num_experts", 64).with("intermediate_size", 640);
    let checkpoint = Checkpoint::random(config.with("num_hidden_layers", 8), Encoding::Mxfp4, 3).expect("a model");
    let of_layer = *checkpoint.expert_bytes().values().next().expect("it has experts");
    let how = How { n_slots: 1, threads: 1, ..CHUNKS };
    let load = |most_bytes: usize, layers, how: How| -> Result<Engine, Box<EngineError>> {
        beside(pipeline(cores(1)).with_memory(most_bytes), cores(1), layers, &checkpoint, how)
    };
    let plan = |engine: Engine| engine.executor().memory_plan().clone();
    let never = How { streaming: Streaming::Never, ..how };
    let without = plan(load(usize::MAX, HostLayers::Last(6), never).expect("fits"));
    assert_eq!(without.streaming, 0);
    let with = plan(load(usize::MAX, HostLayers::Last(6), how).expect("fits"));
    assert!((2 * of_layer..2 * of_layer + 8192).contains(&with.streaming), "{} of {of_layer}", with.streaming);
    let (more, told) = (with.needed_bytes() - without.needed_bytes(), with.to_string());
    assert!(more >= with.streaming, "{told}");
    assert!(told.contains(", room for experts from main memory 0."), "{told}");
    assert_eq!(plan(load(usize::MAX, HostLayers::Last(1), how).expect("fits")).streaming / of_layer, 1);

    // A byte less, and the processor computes all of its part.
    let engine = load(with.needed_bytes() - 1, HostLayers::Last(6), how).expect("fits without");
    assert!(engine.executor().stream_plan().is_none());
    assert_eq!(plan(engine).streaming, 0);
    let error = load(without.needed_bytes() - 1, HostLayers::Last(6), how).err().expect("too little");
    assert!(matches!(*error, EngineError::Plan(PlanError::Memory(_))), "{error}");

    // Where it is free to, it takes two layers more for that; not for the sake of three.
    let whole = plan(load(usize::MAX, HostLayers::AsNeeded, how).expect("fits"));
    let layers_and_room = |missing_layers: usize| {
        let most_bytes = whole.needed_bytes() - missing_layers * of_layer + of_layer / 2;
        let plan = plan(load(most_bytes, HostLayers::AsNeeded, how).expect("fits"));
        assert!(plan.needed_bytes() <= most_bytes, "{plan}");
        (plan.host.as_ref().expect("a part").n_layers[0], plan.streaming / of_layer)
    };
    assert_eq!([layers_and_room(3), layers_and_room(4)], [(3, 0), (6, 2)]);
}

/// A GPU's kernels beside the processor's: the fixture's longest prompt, of 33 tokens, comes in two chunks.
#[test]
fn a_gpu_gives_the_tokens_that_it_gives_alone() {
    let fixture = Fixture::open("odd");
    let checkpoint = open(&fixture.path("model.bin"));
    let how = How { n_slots: 1, ..CHUNKS };
    let mut engine = beside(simulated(), cores(2), HostLayers::Last(99), &checkpoint, how).expect("loads");
    assert_eq!(from_rows(&engine), Some(16));
    let last = fixture.prompts.len() - 1;
    let request = Request::new(fixture.prompts[last].clone(), 2, Vec::new(), Sampling::GREEDY);
    let request = engine.submit(request).expect("fits");
    assert!(fixture.prompts[last].len() > 20);
    assert_eq!(drain(&mut engine)[&request].0, fixture.greedy[last][..2]);
}

#[test]
fn a_run_says_which_way_it_takes() {
    let run = |more: &[&str]| {
        let words =
            ["run", "-i", "Once upon a time there was a cat", "-n", "12", "--device", "sim:gfx1100", "--verbose"];
        run(&[&words[..], &["--n-cpu-moe", "2"], more].concat()).ok()
    };
    let with = run(&["--stream-experts", "16"]);
    assert!(with.stderr.contains("; prompts of many tokens bring them to the device, which keeps "), "{}", with.stderr);
    let said = "steps that take in prompts bring experts to the device from 16 tokens on: 0.001 GB a layer, from";
    assert!(with.stderr.contains(said), "{}", with.stderr);
    let without = run(&["--stream-experts", "off"]);
    assert_eq!(without.text(), with.text());
    assert!(!without.stderr.contains("prompts"), "{}", without.stderr);
}
