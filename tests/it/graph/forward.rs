//! The forward pass against Hugging Face's: logits after every token, and what argmax makes of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::kv_cache::KvTooLarge;
use engine::graph::placement::{EmbeddingPlace, Streaming};
use engine::scheduler::{DraftOptions, Event, FinishReason, Request, RequestId, Sampling};
use engine::watchdog::Watchdog;
use engine::{Engine, EngineError, EngineOptions};
use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use hint::Hint;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use crate::fixtures::host::FaultyHost;
use crate::fixtures::models::Fixture;
use crate::fixtures::program::{run, shared_cache};

/// How a fixture is run in this process.
#[derive(Clone, Copy)]
pub struct How {
    pub n_slots: usize,
    pub max_rows: usize,
    pub threads: usize,
    pub kv_budget_bytes: usize,
    pub n_snapshots: usize,
    pub drafts: Option<DraftOptions>,
    pub kv_dtype: Dtype,
    /// Beside the processor: which steps leave nothing to it.
    pub streaming: Streaming,
}

pub const ONE_BY_ONE: How = How {
    n_slots: 1,
    max_rows: 512,
    threads: 1,
    kv_budget_bytes: 1 << 30,
    n_snapshots: 0,
    drafts: None,
    kv_dtype: Dtype::F32,
    streaming: Streaming::Never,
};

/// Three at a time in pieces of five, so that windows go round.
pub const MIXED: How = How { n_slots: 3, max_rows: 5, threads: 2, ..ONE_BY_ONE };

pub fn engine(fixture: &Fixture, how: How) -> Engine {
    load(fixture, how).expect("loads")
}

fn load(fixture: &Fixture, how: How) -> Result<Engine, Box<EngineError>> {
    load_on(Arc::new(HostDriver::new(how.threads).expect("threads")), fixture, how)
}

pub fn load_on(driver: Arc<dyn Driver>, fixture: &Fixture, how: How) -> Result<Engine, Box<EngineError>> {
    let checkpoint = Checkpoint::open(Path::new(&fixture.path("model.bin")), Layout::Auto).expect("a model");
    let longest = fixture.prompts.iter().map(Vec::len).max().expect("prompts");
    load_checkpoint(driver, &checkpoint, longest + fixture.n_greedy(), how)
}

/// An engine in f32 for sequences of so many tokens.
pub fn load_checkpoint(
    driver: Arc<dyn Driver>,
    checkpoint: &Checkpoint,
    capacity_tokens: usize,
    how: How,
) -> Result<Engine, Box<EngineError>> {
    load_on_all(vec![driver], checkpoint, capacity_tokens, how)
}

/// The same on several devices, each with a part of the model.
pub fn load_on_all(
    drivers: Vec<Arc<dyn Driver>>,
    checkpoint: &Checkpoint,
    capacity_tokens: usize,
    how: How,
) -> Result<Engine, Box<EngineError>> {
    load_watched(drivers, checkpoint, capacity_tokens, how, None)
}

/// The same, with somebody who notices when they hang.
pub fn load_watched(
    drivers: Vec<Arc<dyn Driver>>,
    checkpoint: &Checkpoint,
    capacity_tokens: usize,
    how: How,
    watchdog: Option<Watchdog>,
) -> Result<Engine, Box<EngineError>> {
    let mut pipelines = drivers.into_iter().map(pipeline);
    let (pipeline, peers) = (pipelines.next().expect("a device"), pipelines.collect());
    let model = model_options(capacity_tokens, how);
    Engine::load(checkpoint, EngineOptions { pipeline, peers, host: None, model, watchdog }, &()).map_err(Box::new)
}

/// In f32, for sequences of so many tokens.
pub fn model_options(capacity_tokens: usize, how: How) -> ModelOptions {
    ModelOptions {
        precision: Precision::F32,
        kv_dtype: how.kv_dtype,
        n_slots: how.n_slots,
        capacity_tokens,
        max_rows: how.max_rows,
        max_logit_rows: how.n_slots,
        odd_window: None,
        kv_budget_bytes: how.kv_budget_bytes,
        max_prompt_rows: None,
        prefix_cache: PrefixCache { n_snapshots: how.n_snapshots, snapshot_tokens: 128, n_kept: 0 },
        drafts: how.drafts,
        embedding: EmbeddingPlace::Device,
    }
}

pub fn pipeline(driver: Arc<dyn Driver>) -> Pipeline {
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), CompilerOptions::new(worker));
    let library = Library::load(&[]).expect("the built-in templates");
    let tables = TuningTables::load(&[]).expect("the built-in tables");
    Pipeline::new(library, tables, Target::host(), store, driver).expect("tables that are right")
}

pub fn greedy(prompt: &[u32], max_new_tokens: usize, stop: &[u32]) -> Request {
    Request::new(prompt.to_vec(), max_new_tokens, stop.to_vec(), Sampling::GREEDY)
}

/// Runs until nothing is left. Gives the tokens of each request and why it ended.
pub fn drain(engine: &mut Engine) -> HashMap<RequestId, (Vec<u32>, Option<FinishReason>)> {
    let mut answers: HashMap<RequestId, (Vec<u32>, Option<FinishReason>)> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("runs") {
            match event {
                Event::Token { request, token, .. } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!(answer.1, None, "a token after the end");
                    answer.0.push(token);
                }
                Event::Finished { request, reason } => answers.entry(request).or_default().1 = Some(reason),
                Event::Admitted { .. } | Event::PromptToken { .. } => {}
            }
        }
    }
    answers
}

#[test]
fn greedy_tokens_of_every_fixture_are_those_of_hugging_face() {
    for fixture in Fixture::all() {
        for how in [ONE_BY_ONE, MIXED] {
            check_greedy(&fixture, &mut engine(&fixture, how));
        }
    }
}

#[test]
fn what_memory_held_before_changes_nothing() {
    for fixture in ["odd", "window", "gqa8"].map(Fixture::open) {
        let driver = Arc::new(FaultyHost::littered(2));
        check_greedy(&fixture, &mut load_on(driver, &fixture, MIXED).expect("loads"));
    }
}

/// All prompts at once give the fixture's greedy tokens.
pub fn check_greedy(fixture: &Fixture, engine: &mut Engine) {
    let submit = |prompt: &Vec<u32>| engine.submit(greedy(prompt, fixture.n_greedy(), &[])).expect("fits");
    let requests: Vec<RequestId> = fixture.prompts.iter().map(submit).collect();
    let answers = drain(engine);
    for (i, request) in requests.iter().enumerate() {
        let (tokens, reason) = &answers[request];
        assert_eq!(tokens, &fixture.greedy[i], "{} prompt {}", fixture.name, i + 1);
        assert_eq!(*reason, Some(FinishReason::Length));
    }
}

#[test]
fn sequences_that_share_little_memory_wait_for_each_other() {
    let fixture = Fixture::open("yarn_long");
    let refused = load(&fixture, How { kv_budget_bytes: 0, ..MIXED }).err().expect("no memory is too little");
    let EngineError::Kv(KvTooLarge { needed_bytes, .. }) = *refused else { panic!("{refused}") };
    assert!(load(&fixture, How { kv_budget_bytes: needed_bytes - 1, ..MIXED }).is_err());
    let mut engine = engine(&fixture, How { kv_budget_bytes: needed_bytes, ..MIXED });
    assert!(engine.kv_layout().total_bytes() <= needed_bytes);
    check_greedy(&fixture, &mut engine);
}

#[test]
fn an_engine_stops_refuses_forgets_and_goes_on() {
    let fixture = Fixture::open("odd");
    let mut engine = engine(&fixture, MIXED);
    let expected = &fixture.greedy[2];
    let stop = expected[4];
    let first = expected.iter().position(|&token| token == stop).expect("it is there");

    engine.submit(greedy(&fixture.prompts[3], 24, &[])).expect("fits");
    engine.step().expect("runs");
    engine.abort();
    assert!(engine.is_idle());

    let refused = [
        (greedy(&[], 1, &[]), "the prompt has no tokens"),
        (greedy(&[3, 131], 1, &[]), "token id 131 at position 1 is not below the model's vocab_size, 131"),
        (greedy(&[1; 58], 2, &[]), "the prompt has 58 tokens, a sequence may have 57"),
    ];
    for (request, message) in refused {
        let error: EngineError = engine.submit(request).expect_err(message);
        assert_eq!(error.to_string(), message);
        assert!(error.hint().is_some(), "{message}");
    }

    let nothing = engine.submit(greedy(&[1], 0, &[])).expect("fits");
    let stopped = engine.submit(greedy(&fixture.prompts[2], 24, &[7777, stop])).expect("fits");
    let longest = engine.submit(greedy(&[1; 57], 1, &[])).expect("fits to the last position");
    let answers = drain(&mut engine);
    assert_eq!(answers[&nothing], (vec![], Some(FinishReason::Length)));
    assert_eq!(answers[&stopped], (expected[..=first].to_vec(), Some(FinishReason::Stop)));
    assert_eq!((answers[&longest].0.len(), answers[&longest].1), (1, Some(FinishReason::Length)));
}

#[test]
fn logits_of_every_fixture_are_those_of_hugging_face() {
    for fixture in Fixture::all() {
        let (model, ids, expect) = (fixture.path("model.bin"), fixture.path("ids.txt"), fixture.path("logits.npy"));
        let args = ["logits", &model, "--ids", &ids, "--expect", &expect, "--json"];
        let exact = run(&[&args[..], &["--precision", "f32", "--rtol", "0", "--atol", "2e-4"]].concat()).ok().json();
        let values = fixture.prompts.iter().map(Vec::len).sum::<usize>() * fixture.vocab_size;
        assert_eq!((exact["values"].as_u64(), exact["beyond"].as_u64()), (Some(values as u64), Some(0)));
        let largest = exact["largest_difference"].as_f64().expect("a number");
        assert!(largest > 0.0 && largest < 2e-4, "{}: {largest}", fixture.name);
    }
}
