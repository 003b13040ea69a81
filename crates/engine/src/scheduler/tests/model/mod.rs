//! The scheduler with a device that computes nothing but who sees what. A token depends on everything that its row
//! finds in the cache, so one wrong block, ring or snapshot is a wrong token; what is right is known without a cache.

mod keeping;

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const VOCAB_SIZE: u64 = 500;
const STOP: u32 = 7;

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(29)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

/// What a position holds: all tokens up to there.
fn prefix(before: Option<u64>, token: u32) -> u64 {
    mix(before.unwrap_or(1), token.into())
}

/// What is sampled from what a row sees: all positions, and those of its window. Of a few tokens, so that what came
/// before comes again as often as not, the one that stops is seldom.
fn sample(all: impl Iterator<Item = u64>, window: impl Iterator<Item = u64>, coin: f32, vocab_size: u64) -> u32 {
    let seen = window.fold(all.fold(0, mix), mix);
    let sampled = mix(seen, coin.to_bits().into());
    if vocab_size < VOCAB_SIZE && sampled.is_multiple_of(512) { STOP } else { (sampled / 512 % vocab_size) as u32 }
}

/// The answer to a prompt, worked out alone.
fn answer(prompt: &[u32], max_new_tokens: usize, sampling: Sampling, window: usize, vocab_size: u64) -> Vec<u32> {
    let mut random = XorShift::new(sampling.seed);
    let mut held: Vec<u64> = Vec::new();
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + max_new_tokens && (tokens.len() == prompt.len() || tokens.last() != Some(&STOP))
    {
        for &token in &tokens[held.len()..] {
            held.push(prefix(held.last().copied(), token));
        }
        let coin = if sampling.temperature == 0.0 { 0.0 } else { random.coin() };
        let first = held.len().saturating_sub(window);
        tokens.push(sample(held.iter().copied(), held[first..].iter().copied(), coin, vocab_size));
    }
    tokens.split_off(prompt.len())
}

/// Memory, and tables as they were told.
struct Device {
    caches: Vec<Vec<u64>>,
    tables: Vec<Vec<u32>>,
    table_blocks: Vec<usize>,
    windows: Vec<Option<usize>>,
    sampled: Vec<u32>,
    vocab_size: u64,
}

impl Device {
    fn new(layout: &KvLayout, scheduler: &mut Scheduler, vocab_size: u64) -> Self {
        scheduler.tables_mut().take_changes();
        Self {
            caches: layout.groups().iter().map(|group| vec![0; group.n_blocks * 64]).collect(),
            tables: (0..layout.groups().len()).map(|group| scheduler.tables().table(group).to_vec()).collect(),
            table_blocks: layout.groups().iter().map(|group| group.table_blocks).collect(),
            windows: layout.groups().iter().map(|group| group.window).collect(),
            sampled: Vec::new(),
            vocab_size,
        }
    }

    fn run(&mut self, step: &Step, scheduler: &mut Scheduler) {
        for copy in &step.copies {
            let (from, n) = (copy.from * 64, copy.n_blocks * 64);
            self.caches[copy.group].copy_within(from..from + n, copy.to * 64);
        }
        if let Some((group, ranges)) = scheduler.tables_mut().take_changes() {
            for range in ranges {
                self.tables[group][range.clone()].copy_from_slice(&scheduler.tables().table(group)[range]);
            }
        }
        for row in &step.rows {
            let token = match row.token {
                RowToken::Id(id) => id,
                RowToken::Sampled(i) => self.sampled[i as usize],
            };
            let (slot, position) = (row.slot as usize, row.position as usize);
            let pool = self.windows.iter().position(Option::is_none).expect("a pool");
            let held =
                prefix(position.checked_sub(1).map(|before| self.caches[pool][self.place(pool, slot, before)]), token);
            for group in 0..self.caches.len() {
                let place = self.place(group, slot, position);
                self.caches[group][place] = held;
            }
        }
        let tokens = step.logit_rows.iter().map(|logit_row| {
            let row = &step.rows[logit_row.row as usize];
            sample(self.seen(row, false), self.seen(row, true), logit_row.coin, self.vocab_size)
        });
        self.sampled = tokens.collect();
    }

    /// What a row finds in the layers with or without a window.
    fn seen(&self, row: &Row, with_window: bool) -> impl Iterator<Item = u64> {
        let (slot, end) = (row.slot as usize, row.position as usize + 1);
        let group = self.windows.iter().position(|window| window.is_some() == with_window);
        group.into_iter().flat_map(move |group| {
            let first = self.windows[group].map_or(0, |window| end.saturating_sub(window));
            (first..end).map(move |position| self.caches[group][self.place(group, slot, position)])
        })
    }

    fn place(&self, group: usize, slot: usize, position: usize) -> usize {
        let n = self.table_blocks[group];
        self.tables[group][slot * n + position / 64 % n] as usize * 64 + position % 64
    }
}

#[derive(Clone, Debug)]
enum Act {
    /// So many tokens of one of a few texts, and some of its own.
    Submit {
        text: u32,
        shared: usize,
        own: usize,
        max_new_tokens: usize,
        seed: u64,
        salt: u64,
        /// Whether its prompt is told with log-probabilities.
        is_scored: bool,
    },
    /// The conversation of an earlier request goes on.
    Continue {
        of: usize,
        more: usize,
    },
    Cancel {
        of: usize,
    },
    Steps(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let submit = (0..3_u32, 0..400_usize, 1..90_usize, 0..150_usize, 0..4_u64, 0..2_u64, 0..4_u32).prop_map(
        |(text, shared, own, max_new_tokens, seed, salt, scored)| {
            let (max_new_tokens, is_scored) = (if scored == 1 { 0 } else { max_new_tokens }, scored < 2);
            Act::Submit { text, shared, own, max_new_tokens, seed, salt, is_scored }
        },
    );
    let act = prop_oneof![
        4 => submit,
        2 => (0..40_usize, 1..60_usize).prop_map(|(of, more)| Act::Continue { of, more }),
        1 => (0..40_usize).prop_map(|of| Act::Cancel { of }),
        3 => (1..80_usize).prop_map(Act::Steps),
    ];
    proptest::collection::vec(act, 1..30)
}

/// A request and what came of it.
struct TestRequest {
    prompt: Vec<u32>,
    sampling: Sampling,
    max_new_tokens: usize,
    salt: u64,
    is_scored: bool,
    /// Tokens of its prompt that were told.
    scored: Vec<u32>,
    told: Vec<u32>,
    reason: Option<FinishReason>,
}

struct Run {
    scheduler: Scheduler,
    device: Device,
    /// The step in flight, if steps are one ahead, and its tokens.
    in_flight: Option<(Step, Vec<u32>)>,
    is_ahead: bool,
    /// Whether it is said of some drafts that they may not come.
    forbids: bool,
    capacity_tokens: usize,
    window: usize,
    asked: HashMap<RequestId, TestRequest>,
    order: Vec<RequestId>,
    n_steps: usize,
    n_rows: usize,
}

/// Three of four drafts that are expected at all have a row.
const DRAFTS: DraftOptions = DraftOptions { max_rows: 8, max_sequences: 4, min_probability: 0.1 };

impl Run {
    fn new(layout: &KvLayout, max_rows: usize, is_ahead: bool) -> Self {
        Self::with_drafts(layout, max_rows, is_ahead, VOCAB_SIZE, None)
    }

    fn with_drafts(
        layout: &KvLayout,
        max_rows: usize,
        is_ahead: bool,
        vocab_size: u64,
        drafts: Option<DraftOptions>,
    ) -> Self {
        // A row or two more than those that tokens are taken of, so that prompts have to share them.
        let n_drafts = drafts.map_or(0, |drafts| drafts.most_rows(layout.n_slots));
        let max_logit_rows = layout.n_slots + n_drafts + max_rows % 3;
        let options = SchedulerOptions { max_logit_rows, snapshot_tokens: 128, drafts, ..options(max_rows) };
        let mut scheduler = Scheduler::new(layout, options);
        let device = Device::new(layout, &mut scheduler, vocab_size);
        let window = layout.groups().iter().find_map(|group| group.window).unwrap_or(0);
        let (capacity_tokens, asked, order) = (layout.capacity_tokens, HashMap::new(), Vec::new());
        Self {
            scheduler,
            device,
            in_flight: None,
            is_ahead,
            forbids: false,
            capacity_tokens,
            window,
            asked,
            order,
            n_steps: 0,
            n_rows: 0,
        }
    }

    fn act(&mut self, act: &Act) {
        let id_of = |order: &[RequestId], of: usize| order.get(of % order.len().max(1)).copied();
        match *act {
            Act::Submit { text, shared, own, max_new_tokens, seed, salt, is_scored } => {
                let n = self.order.len() as u64;
                let of_text = (0..shared as u64).map(|i| (mix(text.into(), i) % self.device.vocab_size) as u32);
                let of_own = (0..own as u64).map(|i| (mix(1000 + n, i) % self.device.vocab_size) as u32);
                self.submit_scored(of_text.chain(of_own).collect(), max_new_tokens, seed, salt, is_scored);
            }
            Act::Continue { of, more } => {
                let Some(id) = id_of(&self.order, of) else { return };
                let TestRequest { prompt, told, salt, .. } = &self.asked[&id];
                let (prompt, salt) = ([&prompt[..], told, &vec![3; more]].concat(), *salt);
                self.submit(prompt, 40, 0, salt);
            }
            Act::Cancel { of } => {
                let Some(id) = id_of(&self.order, of) else { return };
                let was_there = self.asked[&id].reason.is_none();
                let asked = &self.asked[&id];
                let pending = asked.max_new_tokens == 0 && !(asked.is_scored && asked.prompt.len() > 1);
                assert_eq!(self.scheduler.cancel(id), was_there && !pending, "{id:?}");
                assert!(!self.scheduler.cancel(id));
                self.take_events();
            }
            Act::Steps(n) => (0..n).for_each(|_| self.step()),
        }
    }

    fn submit(&mut self, prompt: Vec<u32>, max_new_tokens: usize, seed: u64, salt: u64) {
        self.submit_scored(prompt, max_new_tokens, seed, salt, false);
    }

    fn submit_scored(&mut self, mut prompt: Vec<u32>, max_new_tokens: usize, seed: u64, salt: u64, is_scored: bool) {
        prompt.truncate(self.capacity_tokens);
        let max_new_tokens = max_new_tokens.min(self.capacity_tokens + 1 - prompt.len());
        let temperature = if seed == 0 { 0.0 } else { 1.0 };
        let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
        let prompt_logprobs = is_scored.then_some(PromptLogprobs { n_top: 1, n_told: 0 });
        let request = Request::new(prompt.clone(), max_new_tokens, vec![STOP], sampling);
        let id = self.scheduler.submit(Request { cache_salt: salt, prompt_logprobs, ..request });
        self.order.push(id);
        let (scored, told, reason) = (Vec::new(), Vec::new(), None);
        self.asked.insert(id, TestRequest { prompt, sampling, max_new_tokens, salt, is_scored, scored, told, reason });
    }

    fn step(&mut self) {
        let forbids = self.forbids;
        let step = self.scheduler.next_step(|request, drafts| {
            let first = u64::from(drafts[0]);
            if forbids { mix(request.0 as u64, first) as usize % (drafts.len() + 1) } else { drafts.len() }
        });
        self.take_events();
        self.check_writers(&step);
        let launched = (!step.rows.is_empty()).then(|| {
            self.n_steps += 1;
            self.n_rows += step.rows.len();
            self.device.run(&step, &mut self.scheduler);
            self.check_scored(&step);
            (step, self.device.sampled.clone())
        });
        let known = if self.is_ahead { std::mem::replace(&mut self.in_flight, launched) } else { launched };
        if let Some((step, tokens)) = known {
            let events = self.scheduler.advance(&step, &tokens);
            self.tell(events);
        }
    }

    /// A step is no larger than it may be. A block that a row writes to is held by its slot alone.
    fn check_writers(&self, step: &Step) {
        let SchedulerOptions { max_rows, max_logit_rows, .. } = self.scheduler.options;
        assert!(step.rows.len() <= max_rows);
        assert!(step.logit_rows.len() <= max_logit_rows);
        for row in &step.rows {
            let block = self.scheduler.tables().held(row.slot as usize)[row.position as usize / 64];
            let holds = |&slot: &usize| self.scheduler.tables().held(slot).contains(&block);
            assert_eq!((0..self.scheduler.slots.len()).filter(holds).count(), 1, "block {block} of {row:?}");
        }
    }

    /// Rows that are to tell how probable the token behind them is saw what is before it, and all of that.
    fn check_scored(&self, step: &Step) {
        for (row, &sampled) in step.logit_rows.iter().zip(&self.device.sampled) {
            let Some(given) = row.given else { continue };
            let (prompt, position) = (&self.asked[&row.request].prompt, step.rows[row.row as usize].position as usize);
            assert_eq!(given, prompt[position + 1]);
            let vocab_size = self.device.vocab_size;
            assert_eq!([sampled], answer(&prompt[..=position], 1, Sampling::GREEDY, self.window, vocab_size)[..]);
        }
    }

    fn take_events(&mut self) {
        let events = self.scheduler.take_events();
        self.tell(events);
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Admitted { request, cached_tokens } => {
                    assert!(cached_tokens < self.asked[&request].prompt.len());
                }
                Event::PromptToken { request, token, .. } => {
                    let asked = self.asked.get_mut(&request).expect("it was submitted");
                    assert_eq!((asked.reason, asked.told.len(), asked.is_scored), (None, 0, true));
                    asked.scored.push(token);
                }
                Event::Token { request, token, .. } => {
                    let asked = self.asked.get_mut(&request).expect("it was submitted");
                    assert_eq!(asked.reason, None, "a token after the end");
                    asked.told.push(token);
                }
                Event::Finished { request, reason } => {
                    let asked = self.asked.get_mut(&request).expect("it was submitted");
                    assert_eq!(asked.reason.replace(reason), None, "it ends once");
                }
            }
        }
    }

    /// Runs until nothing is left, and looks at everything that was told.
    fn finish(&mut self) -> Figures {
        for n in 0.. {
            assert!(n < 20_000, "it does not end");
            if self.scheduler.is_idle() && self.in_flight.is_none() {
                break;
            }
            self.step();
        }
        for (id, asked) in &self.asked {
            let vocab_size = self.device.vocab_size;
            let expected = answer(&asked.prompt, asked.max_new_tokens, asked.sampling, self.window, vocab_size);
            let n_told = asked.told.len();
            let n_scored = if asked.is_scored { asked.prompt.len() - 1 } else { 0 };
            assert_eq!(asked.scored, asked.prompt[1..][..asked.scored.len()], "{id:?}");
            assert!(asked.scored.len() == n_scored || asked.reason == Some(FinishReason::Cancelled), "{id:?}");
            match asked.reason {
                Some(FinishReason::Cancelled) => assert_eq!(asked.told, expected[..n_told], "{id:?}"),
                Some(FinishReason::Stop) => assert_eq!((asked.told.last(), &asked.told), (Some(&STOP), &expected)),
                Some(FinishReason::Length) => assert_eq!((n_told, &asked.told), (asked.max_new_tokens, &expected)),
                None => panic!("{id:?} has not ended"),
            }
        }
        let figures = self.scheduler.figures();
        assert_eq!((figures.running, figures.waiting, figures.blocks_held), (0, 0, 0));
        figures
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_and_goes_everybody_gets_his_own_tokens(
        acts in acts(),
        n_slots in 1..5_usize,
        max_rows in 5..150_usize,
        // 512 tokens are eight blocks: a sequence always fits, two seldom.
        pool_blocks in 8..26_usize,
        window in prop_oneof![Just(0_usize), Just(1), Just(5), Just(64), Just(65), Just(130)],
        n_snapshots in 0..9_usize,
        is_ahead in any::<bool>(),
        vocab_size in prop_oneof![Just(VOCAB_SIZE), Just(1), Just(2), Just(3)],
        min_probability in prop_oneof![Just(0.0_f32), Just(0.3)],
        drafts_of in 0..10_usize,
        forbids in any::<bool>(),
    ) {
        let layout = windowed_layout([n_slots, max_rows, 512, pool_blocks], window, n_snapshots);
        let drafts = DraftOptions { max_rows: drafts_of, min_probability, ..DRAFTS };
        let mut run = Run::with_drafts(&layout, max_rows, is_ahead, vocab_size, Some(drafts));
        run.forbids = forbids;
        for act in &acts {
            run.act(act);
        }
        run.finish();
    }
}

/// Many that begin alike, so that the properties above are not about an idle cache.
fn crowd(pool_blocks: usize, n_snapshots: usize, is_ahead: bool) -> Figures {
    let layout = windowed_layout([4, 96, 512, pool_blocks], 70, n_snapshots);
    let mut run = Run::new(&layout, 96, is_ahead);
    for i in 0..40_u32 {
        let (text, shared, own) = (i % 3, 100 + 37 * (i as usize % 7), 1 + i as usize % 20);
        let seed = (i % 4).into();
        run.act(&Act::Submit { text, shared, own, max_new_tokens: 90, seed, salt: 0, is_scored: false });
        if i % 5 == 4 {
            run.act(&Act::Steps(30));
            run.act(&Act::Continue { of: i as usize / 2, more: 5 });
        }
        if i % 11 == 10 {
            run.act(&Act::Cancel { of: i as usize - 3 });
        }
    }
    run.finish()
}

#[test]
fn a_crowd_hits_the_cache_and_preempts_and_nothing_is_lost() {
    for is_ahead in [false, true] {
        let (small, large) = (crowd(9, 6, is_ahead), crowd(120, 60, is_ahead));
        assert!(small.preemptions > 5, "{small:?}");
        assert_eq!(large.preemptions, 0);
        assert!(
            small.prefix_hit_tokens > 0 && 2 * large.prefix_hit_tokens > 3 * small.prefix_hit_tokens,
            "{small:?} {large:?}"
        );
        assert!(large.prefix_hit_tokens * 10 > large.prefix_query_tokens * 4, "{large:?}");
        assert!(large.blocks_cached > 20 && crowd(120, 0, is_ahead).blocks_cached == 0, "{large:?}");
    }
}

/// Sequences of two tokens or one, so that of what is drafted half is right, or all.
fn repeating(vocab_size: u64, drafts: Option<DraftOptions>, is_ahead: bool) -> (Figures, usize) {
    // Rings of three blocks, in which drafts go round too.
    let layout = windowed_layout([3, 40, 512, 8], 70, 6);
    let mut run = Run::with_drafts(&layout, 40, is_ahead, vocab_size, drafts);
    for i in 0..18_u32 {
        let shared = 64 * (i as usize % 4);
        run.act(&Act::Submit {
            text: 1,
            shared,
            own: 3,
            max_new_tokens: 140,
            seed: (i % 3).into(),
            salt: (i % 2).into(),
            is_scored: false,
        });
        run.act(&Act::Steps(10));
        if i % 7 == 6 {
            run.act(&Act::Cancel { of: i as usize - 2 });
            run.act(&Act::Continue { of: i as usize / 2, more: 5 });
        }
    }
    (run.finish(), run.n_steps)
}

#[test]
fn drafts_that_are_right_take_fewer_steps_for_the_same_tokens() {
    for is_ahead in [false, true] {
        for (vocab_size, least, most, steps) in [(1, 0.9, 1.0, 0.5), (2, 0.2, 0.8, 0.85)] {
            let (without, n_without) = repeating(vocab_size, None, is_ahead);
            assert_eq!((without.drafted_tokens, without.accepted_tokens), (0, 0));
            let (figures, n_steps) = repeating(vocab_size, Some(DRAFTS), is_ahead);
            let Figures { drafted_tokens, accepted_tokens, preemptions, prefix_hit_tokens, .. } = figures;
            let right = accepted_tokens as f64 / drafted_tokens as f64;
            assert!((least..=most).contains(&right), "{figures:?}");
            assert!(preemptions > 0 && prefix_hit_tokens > 0, "{figures:?}");
            assert!((n_steps as f64) < n_without as f64 * steps, "{n_steps} of {n_without}");
        }
    }
}

#[test]
fn a_text_that_does_not_repeat_has_no_drafts() {
    let figures = |max_sequences: usize, vocab_size: u64| {
        let layout = windowed_layout([3, 40, 512, 30], 0, 0);
        let drafts = DraftOptions { max_sequences, ..DraftOptions::USUAL };
        let mut run = Run::with_drafts(&layout, 40, false, vocab_size, Some(drafts));
        (0..3).for_each(|_| {
            let (text, seed, salt, is_scored) = (0, 0, 0, false);
            run.act(&Act::Submit { text, shared: 100, own: 9, max_new_tokens: 300, seed, salt, is_scored })
        });
        run.finish()
    };
    assert_eq!(figures(4, VOCAB_SIZE).drafted_tokens, 0);
    assert!(figures(3, 1).accepted_tokens > 400);
    assert_eq!(figures(0, 1).drafted_tokens, 0, "nobody drafts while more than that run");
}
