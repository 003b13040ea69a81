//! Tokens that are drafted because they came before: fewer steps, and the same tokens.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use engine::Engine;
use engine::scheduler::{DraftOptions, Event, LogitChanges, Request, RequestId, Sampling, TokenMask};
use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use crate::engine::extras::{self, Alternating};
use crate::fixtures::models::{Counter, Fixture};
use crate::graph::forward::{How, ONE_BY_ONE, load_checkpoint};

/// Whatever is expected has a row, right or wrong.
const ALL: DraftOptions = DraftOptions { max_rows: 8, max_sequences: 4, min_probability: 0.0 };

/// Rows of a step that are few enough for rings to go round: the model has a window of 16.
const FOUR: How = How { n_slots: 4, max_rows: 40, threads: 2, ..ONE_BY_ONE };

fn load(how: How) -> Engine {
    let model = Fixture::open("yarn_long").path("model.bin");
    let checkpoint = Checkpoint::open(Path::new(&model), Layout::Auto).expect("a model");
    let driver = Arc::new(HostDriver::new(how.threads).expect("threads"));
    load_checkpoint(driver, &checkpoint, 320, how).expect("loads")
}

/// The answers, in the order of the requests, and how many steps they took.
fn answers(engine: &mut Engine, requests: Vec<Request>) -> (Vec<Vec<u32>>, usize) {
    let before = engine.host_times().steps;
    let ids: Vec<RequestId> = requests.into_iter().map(|request| engine.submit(request).expect("fits")).collect();
    let mut told: HashMap<RequestId, Vec<u32>> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("runs") {
            if let Event::Token { request, token, .. } = event {
                told.entry(request).or_default().push(token);
            }
        }
    }
    (ids.iter().map(|id| told.remove(id).expect("answered")).collect(), engine.host_times().steps - before)
}

fn request(i: u32, sampling: Sampling) -> Request {
    // What repeats after a while, and something of its own.
    let prompt = (0..60).map(|j| if j < 50 { j % (10 + i) } else { (j * j + 7 * i) % 96 }).collect();
    Request::new(prompt, 180 + 10 * i as usize, vec![], sampling)
}

fn drawn(seed: u64) -> Sampling {
    // Cold enough to repeat itself now and then.
    Sampling { temperature: 0.3, top_p: 0.9, seed, ..Sampling::GREEDY }
}

#[test]
fn answers_are_the_same_with_drafts_and_take_fewer_steps() {
    let requests =
        |n: u32| (0..n).map(|i| request(i, if i % 2 == 0 { Sampling::GREEDY } else { drawn(i.into()) })).collect();
    let mut without = load(FOUR);
    let mut with = load(How { drafts: Some(ALL), ..FOUR });
    let mut careful = load(How { drafts: Some(DraftOptions::USUAL), ..FOUR });
    let [mut steps_without, mut steps_with] = [0; 2];
    for n in [1, 2, 4, 6] {
        let (expected, n_steps) = answers(&mut without, requests(n));
        steps_without += n_steps;
        let (told, n_steps) = answers(&mut with, requests(n));
        steps_with += n_steps;
        assert!(told == expected && answers(&mut careful, requests(n)).0 == expected, "{n} at a time");
    }
    assert!(steps_with < steps_without && with.figures().accepted_tokens > 20, "{:?}", with.figures());
    assert_eq!(without.figures().drafted_tokens, 0);
    // Those that are made whatever came of the others are wrong more often.
    let share = |engine: &Engine| engine.figures().accepted_tokens as f64 / engine.figures().drafted_tokens as f64;
    assert!(share(&careful) > share(&with), "{} {}", share(&careful), share(&with));
}

#[test]
fn a_text_that_repeats_itself_takes_a_fifth_of_the_steps() {
    let model = Counter::new(300);
    let load = |drafts| {
        let checkpoint = Checkpoint::open(Path::new(&model.path("model.bin")), Layout::Auto).expect("a model");
        let driver = Arc::new(HostDriver::new(1).expect("threads"));
        load_checkpoint(driver, &checkpoint, 300, How { drafts, ..ONE_BY_ONE }).expect("loads")
    };
    let counting = || vec![Request::new(vec![0, 1, 2], 250, vec![], Sampling::GREEDY)];
    let (expected, n_without) = answers(&mut load(None), counting());
    assert_eq!((expected[0][..7].to_vec(), n_without), (vec![3, 4, 5, 6, 7, 0, 1], 250));
    let mut engine = load(Some(DraftOptions::USUAL));
    let (told, n_with) = answers(&mut engine, counting());
    let figures = engine.figures();
    assert!(told == expected && n_with * 5 < n_without, "{n_with} steps, {figures:?}");
    assert_eq!(figures.accepted_tokens as usize, n_without - n_with);
}

/// Everything that a request can ask of the sampler besides, long enough to repeat itself.
fn changed(i: u32, vocab_size: usize) -> Vec<Request> {
    let with = |changes: LogitChanges, sampling| Request { changes, ..request(i, sampling) };
    let mask =
        |n_left| LogitChanges { mask: Some(Box::new(Alternating::new(vocab_size, n_left))), ..Default::default() };
    let penalties = LogitChanges { frequency_penalty: 0.01, presence_penalty: 0.1, ..LogitChanges::default() };
    let biased = LogitChanges { bias: vec![(7, 2.0), (9, -1.0)], ..LogitChanges::default() };
    vec![
        with(mask(999), Sampling::GREEDY),
        Request { n_logprobs: Some(3), ..with(mask(999), drawn(5)) },
        with(mask(100), Sampling::GREEDY),
        Request { n_logprobs: Some(0), ..with(penalties, Sampling::GREEDY) },
        with(biased, Sampling { min_p: 0.1, ..drawn(6) }),
        Request { n_logprobs: Some(20), ..request(i, Sampling::GREEDY) },
    ]
}

#[test]
fn answers_under_masks_and_penalties_are_the_same_with_drafts_and_take_fewer_steps() {
    let (mut without, mut with) = (load(FOUR), load(How { drafts: Some(ALL), ..FOUR }));
    let vocab_size = without.config().vocab_size;
    let n_kinds = changed(0, vocab_size).len();
    for kind in 0..n_kinds {
        let alone = || changed(0, vocab_size).into_iter().skip(kind).take(1).collect::<Vec<_>>();
        let n_without = without.host_times().steps;
        let expected = extras::answers(&mut without, alone());
        let (n_without, n_with) = (without.host_times().steps - n_without, with.host_times().steps);
        assert_eq!(extras::answers(&mut with, alone()), expected, "kind {kind}");
        let n_with = with.host_times().steps - n_with;
        assert!(n_with < n_without, "kind {kind}: {n_with} steps of {n_without}, {:?}", with.figures());
    }
    // Beside each other, and beside one that asks for nothing.
    for from in 0..n_kinds - 2 {
        let others = || {
            let some = changed(1, vocab_size).into_iter().skip(from).take(3);
            some.chain([request(2, Sampling::GREEDY)]).collect::<Vec<_>>()
        };
        let expected = extras::answers(&mut without, others());
        assert_eq!(extras::answers(&mut with, others()), expected, "from kind {from}");
    }
}

/// Lets one token through at each place: 1, 2, 3, 4, and then another one every time.
#[derive(Clone, Debug, Default)]
struct Script {
    n_told: u32,
    bits: Vec<u32>,
}

impl TokenMask for Script {
    fn allowed(&mut self) -> Option<&[u32]> {
        let token = if self.n_told % 5 < 4 { self.n_told % 5 } else { 10 + self.n_told / 5 };
        self.bits = vec![0; 3];
        self.bits[token as usize / 32] = 1 << (token % 32);
        Some(&self.bits)
    }

    fn push(&mut self, _: u32) {
        self.n_told += 1;
    }

    fn ahead(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

#[test]
fn drafts_that_a_mask_forbids_have_no_rows() {
    let scripted = || {
        let changes = LogitChanges { mask: Some(Box::new(Script::default())), ..LogitChanges::default() };
        vec![Request { changes, ..Request::new(vec![1, 2, 3], 150, vec![], Sampling::GREEDY) }]
    };
    let (expected, n_without) = answers(&mut load(FOUR), scripted());
    let mut engine = load(How { drafts: Some(ALL), ..FOUR });
    let (told, n_with) = answers(&mut engine, scripted());
    let figures = engine.figures();
    assert!(told == expected && n_with * 3 < n_without * 2, "{n_with} of {n_without} steps, {figures:?}");
    assert!(figures.accepted_tokens > 50 && figures.accepted_tokens == figures.drafted_tokens, "{figures:?}");
}
