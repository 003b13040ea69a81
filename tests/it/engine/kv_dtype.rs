//! Keys and values in eight bits: near what they stand for, and the same however sequences run.

use std::sync::Arc;

use format::Dtype;

use crate::fixtures::host::FaultyHost;
use crate::fixtures::models::Fixture;
use crate::graph::forward::{How, MIXED, ONE_BY_ONE, drain, engine, greedy, load_on};

#[test]
fn logits_are_near_those_of_f32_and_nearer_with_whole_numbers() {
    let fixture = Fixture::open("yarn_long"); // every other layer sees everything
    let ids = &fixture.prompts[0];
    let logits = |kv_dtype| engine(&fixture, How { kv_dtype, ..ONE_BY_ONE }).teacher_force(ids, None).expect("runs");
    let expected = logits(Dtype::F32);
    let norm = |all: &mut dyn Iterator<Item = f32>| all.map(|one| f64::from(one).powi(2)).sum::<f64>().sqrt();
    let of_all = norm(&mut expected.iter().copied());
    let [int8, fp8, bf16] = [Dtype::Int8, Dtype::Fp8, Dtype::Bf16].map(|kv_dtype| {
        norm(&mut expected.iter().zip(logits(kv_dtype)).map(|(expected, found)| expected - found)) / of_all
    });
    // A head of 64 normal numbers is in steps of a fiftieth of their deviation, or to 4 bits each.
    assert!(0.0 < int8 && int8 < 0.01 && int8 < fp8 && fp8 < 0.04, "{int8} {fp8}");
    assert!(bf16 < int8, "{bf16} {int8}");
}

#[test]
fn tokens_are_the_same_whatever_memory_held_and_whoever_runs_beside() {
    let fixture = Fixture::open("window");
    for kv_dtype in [Dtype::Int8, Dtype::Fp8] {
        let tokens = |mut engine: engine::Engine| -> Vec<Vec<u32>> {
            let submit = |prompt: &Vec<u32>| engine.submit(greedy(prompt, fixture.n_greedy(), &[])).expect("fits");
            let requests: Vec<_> = fixture.prompts.iter().map(submit).collect();
            let mut answers = drain(&mut engine);
            requests.iter().map(|request| answers.remove(request).expect("answered").0).collect()
        };
        let alone = tokens(engine(&fixture, How { kv_dtype, ..ONE_BY_ONE }));
        let littered = load_on(Arc::new(FaultyHost::littered(2)), &fixture, How { kv_dtype, ..MIXED });
        assert_eq!(tokens(littered.expect("loads")), alone, "{kv_dtype}");
    }
}
