//! Requests that share what they can get: blocks, slots, and what they begin with. None of it changes a token.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use engine::graph::kv_cache::KvTooLarge;
use engine::scheduler::{Event, FinishReason, Request, RequestId, Sampling};
use engine::{Engine, EngineError};
use format::Dtype;
use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use crate::fixtures::models::Fixture;
use crate::graph::forward::{How, ONE_BY_ONE, drain, load_checkpoint};

const CAPACITY_TOKENS: usize = 320;

/// Rows of a step that are few enough for rings to go round.
const THREE: How = How { n_slots: 3, max_rows: 40, threads: 2, ..ONE_BY_ONE };

fn load(how: How) -> Result<Engine, Box<EngineError>> {
    let model = Fixture::open("yarn_long").path("model.bin"); // a window of 16
    let checkpoint = Checkpoint::open(Path::new(&model), Layout::Auto).expect("a model");
    load_checkpoint(Arc::new(HostDriver::new(how.threads).expect("threads")), &checkpoint, CAPACITY_TOKENS, how)
}

/// With a pool of so many blocks more than one sequence needs.
fn with_blocks(how: How, more: usize) -> Engine {
    let refused = load(How { kv_budget_bytes: 0, ..how }).err().expect("no memory is too little");
    let EngineError::Kv(KvTooLarge { needed_bytes, .. }) = *refused else { panic!("{refused}") };
    let layout = load(how).expect("loads").kv_layout().clone();
    let pool = layout.groups().iter().find(|group| group.window.is_none()).expect("a pool");
    let block_bytes = pool.block_bytes;
    let engine = load(How { kv_budget_bytes: needed_bytes + more * block_bytes, ..how }).expect("loads");
    assert_eq!(engine.figures().blocks, CAPACITY_TOKENS / 64 + more);
    engine
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Prompts, three beginnings among them, and how their tokens are drawn.
fn requests() -> Vec<(Vec<u32>, usize, Sampling)> {
    let mut random = Random(1);
    let mut text = |len: usize| (0..len).map(|_| random.below(96) as u32).collect::<Vec<u32>>();
    let beginnings = [text(70), text(140), text(200)];
    let prompts: Vec<Vec<u32>> = (0..24)
        .map(|i| {
            let own = text(1 + 7 * i % 50);
            if i % 5 == 4 { own } else { [&beginnings[i % 3][..], &own].concat() }
        })
        .collect();
    let sampling = |seed: u64| match seed % 2 {
        0 => Sampling::GREEDY,
        _ => Sampling { temperature: 1.0, seed, ..Sampling::GREEDY },
    };
    prompts.into_iter().enumerate().map(|(i, prompt)| (prompt, 20 + 3 * (i % 20), sampling(i as u64))).collect()
}

fn ask(engine: &mut Engine, (prompt, max_new_tokens, sampling): &(Vec<u32>, usize, Sampling)) -> RequestId {
    engine.submit(Request::new(prompt.clone(), *max_new_tokens, vec![], *sampling)).expect("fits")
}

#[test]
fn nothing_that_is_shared_changes_a_token() {
    check(Dtype::F32, &[(0, 1), (0, 10), (3, 1), (12, 3), (40, 10)]);
}

#[test]
fn scales_go_where_the_blocks_go_that_they_are_of() {
    check(Dtype::Int8, &[(12, 3)]);
}

/// Tokens are those of requests alone, with so many snapshots and so many blocks more than one sequence needs.
fn check(kv_dtype: Dtype, settings: &[(usize, usize)]) {
    let requests = requests();
    let mut alone = load(How { kv_dtype, ..ONE_BY_ONE }).expect("loads");
    let expected: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| {
            let id = ask(&mut alone, request);
            drain(&mut alone).remove(&id).expect("answered").0
        })
        .collect();
    for &(n_snapshots, more_blocks) in settings {
        let mut engine = with_blocks(How { n_snapshots, kv_dtype, ..THREE }, more_blocks);
        let mut random = Random(2 + n_snapshots as u64);
        let (mut told, mut number_of) = (HashMap::<RequestId, Vec<u32>>::new(), HashMap::new());
        let mut n_cached = 0;
        // Every request comes twice, and some leave in the middle.
        let mut left: Vec<usize> = (0..2 * requests.len()).map(|i| i % requests.len()).collect();
        let (mut cancelled, mut ended) = (Vec::new(), HashMap::new());
        while !(left.is_empty() && engine.is_idle()) {
            if !left.is_empty() && random.below(4) == 0 {
                let i = left.swap_remove(random.below(left.len()));
                number_of.insert(ask(&mut engine, &requests[i]), i);
            }
            if random.below(40) == 0 {
                let id = RequestId(random.below(number_of.len().max(1)));
                if engine.cancel(id) {
                    cancelled.push(id);
                }
            }
            for event in engine.step().expect("runs") {
                match event {
                    Event::Admitted { cached_tokens, .. } => n_cached += cached_tokens,
                    Event::Token { request, token, .. } => told.entry(request).or_default().push(token),
                    Event::PromptToken { .. } => {}
                    Event::Finished { request, reason } => assert_eq!(ended.insert(request, reason), None),
                }
            }
        }
        for (id, i) in &number_of {
            let told = told.remove(id).unwrap_or_default();
            if cancelled.contains(id) {
                assert_eq!((told[..] == expected[*i][..told.len()], ended[id]), (true, FinishReason::Cancelled));
            } else {
                assert_eq!((&told, ended[id]), (&expected[*i], FinishReason::Length), "{n_snapshots} {more_blocks}");
            }
        }
        let figures = engine.figures();
        assert_eq!((figures.running, figures.waiting, figures.blocks_held), (0, 0, 0));
        assert_eq!((n_cached > 0, figures.prefix_hit_tokens), (n_snapshots > 0, n_cached as u64), "{figures:?}");
        assert_eq!(figures.preemptions > 0, more_blocks < 10, "{figures:?}");
        assert!(!cancelled.is_empty());
    }
}

#[test]
fn a_request_gets_as_many_tokens_as_the_context_leaves() {
    let mut engine = load(THREE).expect("loads");
    for (n_prompt, expected) in [(CAPACITY_TOKENS - 5, 6), (CAPACITY_TOKENS, 1)] {
        let id = ask(&mut engine, &(vec![1; n_prompt], 32_000, Sampling::GREEDY));
        let (tokens, reason) = drain(&mut engine).remove(&id).expect("answered");
        assert_eq!((tokens.len(), reason), (expected, Some(FinishReason::Length)));
    }
    let error = engine.submit(Request::new(vec![1; CAPACITY_TOKENS + 1], 1, vec![], Sampling::GREEDY)).unwrap_err();
    assert_eq!(error.to_string(), "the prompt has 321 tokens, a sequence may have 320");
}

#[test]
fn logits_are_those_of_a_sequence_that_shares_nothing_and_leave_nothing_behind() {
    let (prompt, ..) = &requests()[2];
    let mut engine = load(How { n_snapshots: 4, ..THREE }).expect("loads");
    let before = engine.teacher_force(prompt, None).expect("fits");
    let request = (prompt.clone(), 30, Sampling::GREEDY);
    for _ in 0..2 {
        ask(&mut engine, &request);
        drain(&mut engine);
    }
    assert_eq!(engine.figures().prefix_hit_tokens, 192);
    // Forcing writes to the cache, so that nobody may begin with what is there.
    assert_eq!(engine.teacher_force(prompt, None).expect("fits"), before);
    ask(&mut engine, &request);
    drain(&mut engine);
    assert_eq!(engine.figures().prefix_hit_tokens, 192);
}
