//! An engine on the fake device, which runs one step ahead of what is known: a sequence loses its blocks while its
//! token is on the way, gets them back from the prefix cache, and another one is cancelled in flight.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use engine::blueprint::{ModelOptions, PrefixCache};
use engine::device::Device;
use engine::graph::kv_cache::BLOCK_TOKENS;
use engine::graph::placement::EmbeddingPlace;
use engine::scheduler::{DraftOptions, Event, FinishReason, LogitChanges, Request, RequestId, Sampling};
use engine::{Engine, EngineOptions};
use format::Dtype;
use gpu::Driver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use super::Room;
use super::run::cache;
use crate::engine::extras::Alternating;
use crate::object::hiprtc;

/// The tiny model in f32, with room for two sequences and so many blocks.
fn load((target, driver): (Target, Arc<dyn Driver>), pool_blocks: usize, drafts: Option<DraftOptions>) -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny/model.bin");
    let checkpoint = Checkpoint::open(&model, Layout::Auto).expect("a model");
    let store = Store::new(Cache::open(cache(), CacheLimits::default()), hiprtc::options());
    let (library, tables) = (Library::load(&[]).expect("built in"), TuningTables::load(&[]).expect("built in"));
    let mut model = ModelOptions {
        precision: Precision::F32,
        kv_dtype: Dtype::F32,
        n_slots: 2,
        capacity_tokens: 3 * BLOCK_TOKENS,
        max_rows: 70,
        max_logit_rows: 2,
        odd_window: None,
        kv_budget_bytes: usize::MAX,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::new(4),
        drafts,
        embedding: EmbeddingPlace::Device,
    };
    let layout = engine::blueprint::sizes(&checkpoint.config, &model, &target).expect("it fits").0;
    let pool = layout.groups().iter().find(|group| group.window.is_none()).expect("a pool");
    let block_bytes = pool.block_bytes;
    model.kv_budget_bytes = layout.total_bytes() - (pool.n_blocks - pool_blocks) * block_bytes;
    let pipeline = Pipeline::new(library, tables, target, store, driver).expect("tables that are right");
    Engine::load(&checkpoint, EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None }, &())
        .expect("loads")
}

/// A prompt of its own, and how its answer is drawn.
fn request(seed: u64, n_prompt: u64, max_new_tokens: usize) -> Request {
    let prompt = (0..n_prompt).map(|i| ((i * i * 7 + i * 13 + seed * 101) % 700) as u32).collect();
    let sampling = Sampling { temperature: if seed == 1 { 0.0 } else { 1.0 }, seed, ..Sampling::GREEDY };
    Request::new(prompt, max_new_tokens, vec![], sampling)
}

type ToldTokens = HashMap<RequestId, (Vec<u32>, Option<FinishReason>)>;

fn step(engine: &mut Engine, told: &mut ToldTokens) {
    for event in engine.step().expect("runs") {
        match event {
            Event::Token { request, token, .. } => told.entry(request).or_default().0.push(token),
            Event::Finished { request, reason } => told.entry(request).or_default().1 = Some(reason),
            Event::Admitted { .. } | Event::PromptToken { .. } => {}
        }
    }
}

#[test]
fn what_is_taken_away_in_flight_comes_back_as_it_was() {
    let Some(_) = hiprtc::compiler() else { return };
    let tables = TuningTables::load(&[]).expect("built in");
    let open = |device: &str| device.parse::<Device>().expect("a name").open(&tables, 0).expect("it opens");
    let expected: Vec<Vec<u32>> = [request(1, 61, 70), request(2, 61, 9)]
        .into_iter()
        .map(|request| {
            let (mut engine, mut told) = (load(open("cpu"), 6, None), ToldTokens::new());
            let id = engine.submit(request).expect("fits");
            while !engine.is_idle() {
                step(&mut engine, &mut told);
            }
            told.remove(&id).expect("answered").0
        })
        .collect();

    drop(load(open("sim:gfx1100"), 3, None)); // the fake executes what that compiles
    let room = Room::new(&format!("arch = gfx1100\nkernels = {}", cache().display()));
    let driver: Arc<dyn Driver> = Arc::new(room.driver());
    let mut engine = load((tables.gpu("gfx1100").expect("known"), driver), 3, None);
    let (mut told, before) = (ToldTokens::new(), room.count("hipMemcpyAsync"));
    let first = engine.submit(request(1, 61, 70)).expect("fits");
    let second = engine.submit(request(2, 61, 9)).expect("fits");
    while engine.figures().preemptions == 0 {
        step(&mut engine, &mut told);
    }
    // Both reached the end of their blocks, and there was one more. What the second had will be found again.
    assert_eq!((engine.figures().running, engine.figures().waiting, engine.figures().blocks_cached), (1, 1, 1));
    step(&mut engine, &mut told);
    assert!(engine.cancel(first) && !engine.cancel(first));
    assert_eq!(engine.figures().blocks_held, 0);
    while !engine.is_idle() {
        step(&mut engine, &mut told);
    }
    let (tokens, reason) = &told[&first];
    assert_eq!((&tokens[..], *reason), (&expected[0][..tokens.len()], Some(FinishReason::Cancelled)));
    assert_eq!(told[&second], (expected[1].clone(), Some(FinishReason::Length)));
    // It goes on: all but the end of the conversation is there.
    let prompt = [&request(2, 61, 9).prompt[..], &expected[1]].concat();
    let third = engine.submit(Request { prompt, ..request(1, 1, 1) }).expect("fits");
    while !engine.is_idle() {
        step(&mut engine, &mut told);
    }
    assert_eq!((told[&third].0.len(), engine.figures().prefix_hit_tokens), (1, 64));
    assert_eq!((engine.figures().blocks_held, engine.figures().preemptions), (0, 1));
    let on_device = room.calls().iter().filter(|line| line.ends_with("on the device")).count();
    assert!(on_device >= 4 && room.count("hipMemcpyAsync") > before + on_device, "{on_device}");
    drop(engine);
    room.assert_all_given_back();
}

#[test]
fn drafts_wait_for_the_tokens_before_them_and_change_none() {
    let Some(_) = hiprtc::compiler() else { return };
    let tables = TuningTables::load(&[]).expect("built in");
    let open = |device: &str| device.parse::<Device>().expect("a name").open(&tables, 0).expect("it opens");
    // Long enough for pairs of tokens to come again, of which most are followed by something else.
    let request = |seed: u64| request(seed, 20, 50);
    let answers = |engine: &mut Engine| {
        let (mut told, mut n_calls) = (ToldTokens::new(), 0);
        let mask = Box::new(Alternating::new(engine.config().vocab_size, 99));
        let changes = LogitChanges { mask: Some(mask), presence_penalty: -1.0, ..LogitChanges::default() };
        let masked = Request { changes, max_new_tokens: 20, ..request(1) };
        let ids = [request(1), masked, request(2)].map(|request| engine.submit(request).expect("fits"));
        while !engine.is_idle() {
            step(engine, &mut told);
            n_calls += 1;
        }
        (ids.map(|id| told.remove(&id).expect("answered")), n_calls)
    };
    let (expected, _) = answers(&mut load(open("cpu"), 6, None));
    let drafts = DraftOptions { max_rows: 3, max_sequences: 2, min_probability: 0.0 };
    drop(load(open("sim:gfx1100"), 6, Some(drafts))); // the fake executes what that compiles
    let room = Room::new(&format!("arch = gfx1100\nkernels = {}", cache().display()));
    let driver: Arc<dyn Driver> = Arc::new(room.driver());
    let mut engine = load((tables.gpu("gfx1100").expect("known"), driver), 6, Some(drafts));
    let (told, n_calls) = answers(&mut engine);
    assert!(told == expected, "{told:?}");
    let figures = engine.figures();
    assert!(figures.drafted_tokens > 0 && figures.blocks_held == 0, "{figures:?}");
    assert!(engine.host_times().steps < n_calls, "some calls wait and launch nothing");
    drop(engine);
    room.assert_all_given_back();
}
