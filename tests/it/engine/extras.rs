//! Masks, biases, penalties, `min_p` and log-probabilities of the tiny model's tokens, against the logits that it gives
//! when it is forced to say the same.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::kv_cache::{BLOCK_TOKENS, KvTooLarge};
use engine::graph::placement::EmbeddingPlace;
use engine::scheduler::{
    Event, FinishReason, LogitChanges, LogitRowLogprobs, PromptLogprobs, Request, RequestId, Sampling, TokenMask,
};
use engine::{Engine, EngineError, EngineOptions};
use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
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

use crate::fixtures::program::shared_cache;

/// The tiny model on the cpu, with so many slots.
fn on_cpu(n_slots: usize) -> Engine {
    on_cpu_with((n_slots, 64, 1 << 30)).expect("loads")
}

fn on_cpu_with(sizes: (usize, usize, usize)) -> Result<Engine, EngineError> {
    let compilers = CompilerOptions::new(env!("CARGO_BIN_EXE_gptoss-jit").into());
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), compilers);
    load_with(Target::host(), store, Arc::new(HostDriver::new(2).expect("threads")), sizes)
}

/// The tiny model in f32.
pub fn load(target: Target, store: Store, driver: Arc<dyn Driver>, n_slots: usize) -> Engine {
    load_with(target, store, driver, (n_slots, 64, 1 << 30)).expect("loads")
}

/// With so many slots, positions in each, and bytes for the cache.
fn load_with(
    target: Target,
    store: Store,
    driver: Arc<dyn Driver>,
    sizes: (usize, usize, usize),
) -> Result<Engine, EngineError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny/model.bin");
    load_model(&path, target, store, driver, sizes)
}

/// Any model.
pub fn load_model(
    path: &Path,
    target: Target,
    store: Store,
    driver: Arc<dyn Driver>,
    (n_slots, capacity_tokens, kv_budget_bytes): (usize, usize, usize),
) -> Result<Engine, EngineError> {
    let checkpoint = Checkpoint::open(path, Layout::Auto).expect("a model");
    let (library, tables) = (Library::load(&[]).expect("built in"), TuningTables::load(&[]).expect("built in"));
    let pipeline = Pipeline::new(library, tables, target, store, driver).expect("tables that are right");
    let model = ModelOptions {
        precision: Precision::F32,
        kv_dtype: Dtype::F32,
        n_slots,
        capacity_tokens,
        max_rows: 16,
        max_logit_rows: n_slots,
        odd_window: None,
        kv_budget_bytes,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::Device,
    };
    Engine::load(&checkpoint, EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None }, &())
}

/// After an even token an odd one must come, and after an odd one an even one; after `n_left` tokens nothing may.
#[derive(Clone, Debug)]
pub struct Alternating {
    masks: [Vec<u32>; 2],
    next: usize,
    n_left: usize,
}

impl Alternating {
    pub fn new(vocab_size: usize, n_left: usize) -> Self {
        let mask = |bits: u32| vec![bits; vocab_size.div_ceil(32)];
        Self { masks: [mask(0x5555_5555), mask(0xaaaa_aaaa)], next: 1, n_left }
    }
}

impl TokenMask for Alternating {
    fn allowed(&mut self) -> Option<&[u32]> {
        Some(if self.n_left == 0 { &[] } else { &self.masks[self.next] })
    }

    fn push(&mut self, token: u32) {
        self.next = usize::from(token.is_multiple_of(2));
        self.n_left -= 1;
    }

    fn ahead(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

/// Lets one token through, again and again.
#[derive(Debug)]
struct Only(Vec<u32>);

impl TokenMask for Only {
    fn allowed(&mut self) -> Option<&[u32]> {
        Some(&self.0)
    }

    fn push(&mut self, _: u32) {}

    fn ahead(&self) -> Box<dyn TokenMask> {
        Box::new(Self(self.0.clone()))
    }
}

/// What a request asks for, to be asked again.
#[derive(Clone, Debug)]
pub struct Ask {
    prompt: Vec<u32>,
    sampling: Sampling,
    bias: Vec<(u32, f32)>,
    penalties: [f32; 2],
    repetition: f32,
    alternates: Option<usize>,
    n_logprobs: Option<usize>,
    n_prompt_logprobs: Option<usize>,
    n_new: usize,
}

/// Tokens of a request, unless it says otherwise.
const N_NEW: usize = 12;

impl Ask {
    fn plain(first: u32, sampling: Sampling) -> Self {
        let prompt = vec![first, first + 7, first + 3];
        let (bias, penalties, repetition, alternates) = (vec![], [0.0; 2], 1.0, None);
        let (n_logprobs, n_prompt_logprobs, n_new) = (None, None, N_NEW);
        Self { prompt, sampling, bias, penalties, repetition, alternates, n_logprobs, n_prompt_logprobs, n_new }
    }

    pub fn request(&self, vocab_size: usize) -> Request {
        let [frequency_penalty, presence_penalty] = self.penalties;
        let mask = self.alternates.map(|n| Box::new(Alternating::new(vocab_size, n)) as Box<dyn TokenMask>);
        let (bias, repetition_penalty) = (self.bias.clone(), self.repetition);
        let changes = LogitChanges { bias, repetition_penalty, frequency_penalty, presence_penalty, mask };
        let request = Request::new(self.prompt.clone(), self.n_new, vec![], self.sampling);
        let prompt_logprobs = self.n_prompt_logprobs.map(|n_top| PromptLogprobs { n_top, n_told: 0 });
        Request { changes, n_logprobs: self.n_logprobs, prompt_logprobs, ..request }
    }

    /// The logits after these tokens were generated, as they should be changed.
    fn changed(&self, logits: &[f32], generated: &[u32]) -> Vec<f64> {
        let mut changed: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
        for (id, logit) in changed.iter_mut().enumerate() {
            if self.prompt.iter().chain(generated).any(|&token| token as usize == id) {
                let penalty = f64::from(self.repetition);
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for &(id, bias) in &self.bias {
            changed[id as usize] += f64::from(bias);
        }
        for (id, logit) in changed.iter_mut().enumerate() {
            let count = generated.iter().filter(|&&token| token as usize == id).count();
            let [frequency, presence] = self.penalties.map(f64::from);
            *logit -= frequency * count as f64 + if count > 0 { presence } else { 0.0 };
            let next_is_odd = generated.last().is_none_or(|last| last.is_multiple_of(2));
            if self.alternates.is_some() && (id % 2 == 1) != next_is_odd {
                *logit = f64::NEG_INFINITY;
            }
        }
        changed
    }

    /// The token that comes by these logits and this coin, by the formulas.
    fn token(&self, logits: &[f64], coin: f64) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let falling = falling(logits);
        if temperature == 0.0 {
            return falling[0];
        }
        let largest = logits[falling[0] as usize];
        let heat = f64::from(temperature);
        let sum: f64 = logits.iter().map(|logit| ((logit - largest) / heat).exp()).sum();
        let probability = |id: u32| ((logits[id as usize] - largest) / heat).exp() / sum;
        let is_cut = top_k > 0 || min_p > 0.0 || (top_p > 0.0 && top_p < 1.0);
        let mut kept = if is_cut { falling.clone() } else { (0..logits.len() as u32).collect() };
        if top_k > 0 {
            kept.truncate(top_k as usize);
        }
        kept.retain(|&id| probability(id) >= f64::from(min_p) * probability(falling[0]));
        if top_p > 0.0 && top_p < 1.0 {
            kept.retain(|&id| probability(id) >= (1.0 - f64::from(top_p)) / (logits.len() - 1) as f64);
            let mut passed = 0.0;
            let n = kept.iter().take_while(|&&id| {
                let goes_on = passed <= f64::from(top_p);
                passed += probability(id);
                goes_on
            });
            kept.truncate(n.count());
        }
        let target = coin * kept.iter().map(|&id| probability(id)).sum::<f64>();
        let mut passed = 0.0;
        let drawn = kept.iter().find(|&&id| {
            passed += probability(id);
            passed > target
        });
        *drawn.expect("the coin is below 1")
    }
}

/// Ids by falling logit, of equal ones the lower first.
fn falling(logits: &[f64]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    ids
}

/// The random numbers of a request: xorshift64*, 24 bits.
fn coins(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        f64::from((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u32) / f64::from(1 << 24)
    })
}

/// What a request was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    prompt: Vec<(u32, LogitRowLogprobs)>,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<Option<Box<LogitRowLogprobs>>>,
    reason: Option<FinishReason>,
}

/// All of them at the same time, as far as there are slots.
pub fn answers(engine: &mut Engine, requests: Vec<Request>) -> Vec<Answer> {
    let ids: Vec<RequestId> = requests.into_iter().map(|request| engine.submit(request).expect("right")).collect();
    let mut answers: HashMap<RequestId, Answer> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("runs") {
            match event {
                Event::Token { request, token, logprobs } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!(answer.reason, None, "a token after the end");
                    answer.tokens.push(token);
                    answer.logprobs.push(logprobs);
                }
                Event::Finished { request, reason } => answers.entry(request).or_default().reason = Some(reason),
                Event::PromptToken { request, token, logprobs } => {
                    let answer = answers.entry(request).or_default();
                    assert_eq!((answer.tokens.len(), answer.reason), (0, None), "the prompt comes before the answer");
                    answer.prompt.push((token, *logprobs.expect("asked for")));
                }
                Event::Admitted { .. } => {}
            }
        }
    }
    ids.iter().map(|id| answers.remove(id).expect("told of")).collect()
}

/// Everything that can be asked for, alone and together, greedily and drawn, and requests that ask for nothing.
pub fn asks() -> Vec<Ask> {
    let drawn = |seed| Sampling { temperature: 0.9, seed, ..Sampling::GREEDY };
    let plain = |first, sampling| Ask::plain(first, sampling);
    vec![
        plain(40, Sampling::GREEDY),
        Ask { n_logprobs: Some(0), ..plain(40, Sampling::GREEDY) },
        Ask { bias: vec![(65, 100.0), (66, -100.0)], ..plain(41, Sampling::GREEDY) },
        Ask { penalties: [0.7, 1.3], n_logprobs: Some(5), ..plain(40, Sampling::GREEDY) },
        plain(44, drawn(5)),
        Ask { alternates: Some(99), ..plain(40, Sampling::GREEDY) },
        Ask { alternates: Some(99), n_logprobs: Some(20), ..plain(45, drawn(9)) },
        Ask { bias: vec![(50, 3.0), (50, 2.0)], penalties: [-0.5, 2.0], ..plain(46, drawn(11)) },
        plain(47, Sampling { min_p: 0.2, ..drawn(12) }),
        Ask { alternates: Some(99), ..plain(48, Sampling { min_p: 0.05, top_k: 7, top_p: 0.8, ..drawn(3) }) },
        plain(44, Sampling { top_p: 0.9, ..drawn(6) }),
        Ask { n_prompt_logprobs: Some(3), n_logprobs: Some(2), bias: vec![(65, 4.0)], ..plain(49, drawn(2)) },
        Ask { n_prompt_logprobs: Some(0), n_new: 0, ..plain(50, Sampling::GREEDY) },
    ]
}

fn requests(asks: &[Ask], vocab_size: usize) -> Vec<Request> {
    asks.iter().map(|ask| ask.request(vocab_size)).collect()
}

#[test]
fn tokens_and_their_probabilities_are_those_of_the_changed_logits() {
    let mut engine = on_cpu(4);
    let (asks, vocab_size) = (asks(), engine.config().vocab_size);
    let answers = answers(&mut engine, requests(&asks, vocab_size));
    for (ask, answer) in asks.iter().zip(&answers) {
        assert_eq!((answer.tokens.len(), answer.reason), (ask.n_new, Some(FinishReason::Length)), "{ask:?}");
        let all = [&ask.prompt[..], &answer.tokens].concat();
        let logits = engine.teacher_force(&all, None).expect("runs");
        let mut coins = coins(ask.sampling.seed);
        for (i, &token) in answer.tokens.iter().enumerate() {
            let row = &logits[(ask.prompt.len() - 1 + i) * vocab_size..][..vocab_size];
            let changed = ask.changed(row, &answer.tokens[..i]);
            let coin = if ask.sampling.temperature == 0.0 { 0.0 } else { coins.next().expect("endless") };
            assert_eq!(token, ask.token(&changed, coin), "token {i} of {ask:?}: {:?}", answer.tokens);
            check_logprobs(ask.n_logprobs, &changed, token, answer.logprobs[i].as_deref());
        }
        // Those of the prompt are of the logits as they come.
        let n_scored = ask.n_prompt_logprobs.map_or(0, |_| ask.prompt.len() - 1);
        assert!(answer.prompt.iter().map(|(token, _)| token).eq(&ask.prompt[1..][..n_scored]), "{answer:?}");
        for ((token, told), row) in answer.prompt.iter().zip(logits.chunks(vocab_size)) {
            let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
            check_logprobs(ask.n_prompt_logprobs, &row, *token, Some(told));
        }
    }
    // A bias of 100 decides, and penalties change what the model repeats.
    assert_eq!(answers[2].tokens, [65; N_NEW]);
    assert_ne!(answers[3].tokens, answers[0].tokens);
    assert_eq!(answers[1].tokens, answers[0].tokens);
}

/// The most probable tokens and the one that came have the logarithms of softmax.
fn check_logprobs(n: Option<usize>, logits: &[f64], token: u32, got: Option<&LogitRowLogprobs>) {
    assert_eq!(got.is_some(), n.is_some());
    let Some((got, n)) = got.zip(n) else { return };
    let falling = falling(logits);
    let largest = logits[falling[0] as usize];
    let log_sum = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
    let is_right = |token: u32, got: f32| (logits[token as usize] - log_sum - f64::from(got)).abs() < 1e-4;
    assert!(is_right(token, got.chosen), "{token}: {got:?}");
    assert_eq!(got.top.iter().map(|one| one.token).collect::<Vec<_>>(), falling[..n]);
    assert!(got.top.iter().all(|one| is_right(one.token, one.logprob)), "{got:?}");
}

#[test]
fn requests_that_ask_for_nothing_are_answered_as_without_the_others() {
    let mut engine = on_cpu(4);
    let (asks, vocab_size) = (asks(), engine.config().vocab_size);
    let together = answers(&mut engine, requests(&asks, vocab_size));
    for (ask, answer) in asks.iter().zip(together) {
        let alone = answers(&mut engine, vec![ask.request(vocab_size)]).remove(0);
        assert_eq!(alone, answer, "{ask:?}");
    }
}

#[test]
fn a_sequence_that_is_computed_again_keeps_its_mask_and_its_penalties() {
    let (n_slots, capacity_tokens) = (3, 3 * BLOCK_TOKENS);
    let refused = on_cpu_with((n_slots, capacity_tokens, 0)).err().expect("no memory is too little");
    let EngineError::Kv(KvTooLarge { needed_bytes, .. }) = refused else { panic!("{refused}") };
    let mut alone = on_cpu_with((n_slots, capacity_tokens, 1 << 30)).expect("loads");
    let mut crowded = on_cpu_with((n_slots, capacity_tokens, needed_bytes)).expect("loads"); // blocks for one

    let vocab_size = alone.config().vocab_size;
    let long = |ask: Ask| {
        let prompt = (0..58).map(|i| (i * 7 + ask.prompt[0]) % 300).collect(); // its answer takes a second block
        Ask { prompt, ..ask }
    };
    let asks: Vec<Ask> = asks().into_iter().map(long).collect();
    let told = answers(&mut crowded, requests(&asks, vocab_size));
    assert!(crowded.figures().preemptions > 0, "{:?}", crowded.figures());
    for (ask, told) in asks.iter().zip(told) {
        assert_eq!(answers(&mut alone, vec![ask.request(vocab_size)]).remove(0), told, "{ask:?}");
    }
}

#[test]
fn a_request_that_began_elsewhere_goes_on_as_it_would_have_there() {
    let mut engine = on_cpu(4);
    let (asks, vocab_size) = (asks(), engine.config().vocab_size);
    for ask in &asks {
        let whole = answers(&mut engine, vec![ask.request(vocab_size)]).remove(0);
        let of_prompt = |n_told| ask.n_prompt_logprobs.map(|n_top| PromptLogprobs { n_top, n_told });
        for cut in [1, 5, N_NEW - 1, N_NEW].into_iter().filter(|&cut| cut <= ask.n_new) {
            let generated = whole.tokens[..cut].to_vec();
            let prompt_logprobs = of_prompt(ask.prompt.len() - 1);
            let rest = Request { generated, prompt_logprobs, ..ask.request(vocab_size) };
            let rest = answers(&mut engine, vec![rest]).remove(0);
            assert_eq!((&rest.tokens[..], rest.reason), (&whole.tokens[cut..], whole.reason), "{cut}: {ask:?}");
            assert_eq!(rest.logprobs, whole.logprobs[cut..], "{cut}: {ask:?}");
            assert_eq!(rest.prompt, [], "{cut}: {ask:?}");
        }
        let rest = Request { prompt_logprobs: of_prompt(1), ..ask.request(vocab_size) };
        let rest = answers(&mut engine, vec![rest]).remove(0);
        assert_eq!((&rest.tokens, &rest.prompt[..]), (&whole.tokens, whole.prompt.get(1..).unwrap_or(&[])));
    }
    let foreign = Request { generated: vec![vocab_size as u32], ..asks[0].request(vocab_size) };
    assert!(matches!(engine.submit(foreign), Err(EngineError::Prompt(_))));
}

#[test]
fn a_mask_of_one_token_gives_that_token_and_one_of_none_ends_the_answer() {
    let mut engine = on_cpu(2);
    let vocab_size = engine.config().vocab_size;
    for sampling in [Sampling::GREEDY, Sampling { temperature: 1.5, seed: 4, ..Sampling::GREEDY }] {
        for digit in [b'7', b'0'].map(u32::from) {
            let ask = Ask { n_logprobs: Some(3), bias: vec![(digit, -100.0)], ..Ask::plain(60, sampling) };
            let mut request = ask.request(vocab_size);
            let mut bits = vec![0; digit as usize / 32 + 1]; // shorter than the vocabulary
            bits[digit as usize / 32] = 1 << (digit % 32);
            request.changes.mask = Some(Box::new(Only(bits)));
            let answer = answers(&mut engine, vec![request]).remove(0);
            assert_eq!(answer.tokens, [digit; N_NEW]);
            for logprobs in answer.logprobs.iter().flatten() {
                assert_eq!((logprobs.chosen, logprobs.top.len()), (0.0, 1), "the others cannot come");
            }
        }
        // Nothing may come after five tokens, or ever; others go on meanwhile.
        let asks = [Some(5), None, Some(0), Some(1)].map(|alternates| Ask { alternates, ..Ask::plain(70, sampling) });
        let told = answers(&mut engine, requests(&asks, vocab_size));
        let n_tokens: Vec<usize> = told.iter().map(|answer| answer.tokens.len()).collect();
        assert_eq!(n_tokens, [5, N_NEW, 0, 1]);
        assert!(told.iter().all(|answer| answer.reason == Some(FinishReason::Length)), "{told:?}");
    }
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let mut engine = on_cpu(1);
    let vocab_size = engine.config().vocab_size;
    let ask = Ask { bias: vec![(vocab_size as u32, 1.0)], ..Ask::plain(60, Sampling::GREEDY) };
    let error = engine.submit(ask.request(vocab_size)).expect_err("no such token");
    assert!(matches!(error, EngineError::Extras(_)) && error.to_string().contains("vocab_size"), "{error}");
    assert!(engine.is_idle());
}

/// Another device says what the cpu says: of each kind of question one, and few tokens, since it may be simulated.
pub fn check_against_the_cpu(engine: &mut Engine) {
    let (all, vocab_size) = (asks(), engine.config().vocab_size);
    let mut asks: Vec<Ask> = [0, 3, 6, 9].map(|i| Ask { n_new: 5, ..all[i].clone() }).into();
    asks[1].n_prompt_logprobs = Some(2);
    asks.push(Ask { alternates: Some(2), n_new: 5, ..Ask::plain(70, Sampling::GREEDY) });
    let expected = answers(&mut on_cpu(3), requests(&asks, vocab_size));
    let told = answers(engine, requests(&asks, vocab_size));
    assert_eq!(told[4].tokens.len(), 2, "nothing may come after that");
    for ((ask, expected), told) in asks.iter().zip(&expected).zip(&told) {
        assert_eq!((&told.tokens, told.reason), (&expected.tokens, expected.reason), "{ask:?}");
        let all = |answer: &Answer| {
            let of_prompt = answer.prompt.iter().map(|(_, logprobs)| Some(logprobs.clone()));
            of_prompt.chain(answer.logprobs.iter().map(|told| told.as_deref().cloned())).collect::<Vec<_>>()
        };
        let (told, expected) = (all(told), all(expected));
        assert_eq!(told.len(), expected.len());
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told.is_some(), expected.is_some());
            let (Some(told), Some(expected)) = (told, expected) else { continue };
            assert!((told.chosen - expected.chosen).abs() < 1e-4, "{told:?} for {expected:?}");
            assert!(told.top.iter().map(|one| one.token).eq(expected.top.iter().map(|one| one.token)), "{ask:?}");
        }
    }
}
