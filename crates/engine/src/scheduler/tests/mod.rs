//! The scheduler alone.

mod model;

use super::random::XorShift;
use super::*;
use crate::graph::StepShape;
use crate::graph::kv_cache::tests::windowed_layout;
use kernel::step::StepKind;

/// A cache for two layers that see everything.
pub(super) fn layout(n_slots: usize, max_rows: usize, capacity_tokens: usize, pool_blocks: usize) -> KvLayout {
    windowed_layout([n_slots, max_rows, capacity_tokens, pool_blocks], 0, 0)
}

fn options(max_rows: usize) -> SchedulerOptions {
    let (max_logit_rows, max_prompt_rows) = (max_rows, max_rows);
    SchedulerOptions { max_rows, max_logit_rows, max_prompt_rows, snapshot_tokens: 4096, drafts: None }
}

fn scheduler(n_slots: usize, max_rows: usize, capacity_tokens: usize, pool_blocks: usize) -> Scheduler {
    Scheduler::new(&layout(n_slots, max_rows, capacity_tokens, pool_blocks), options(max_rows))
}

/// Whatever is drafted may come.
fn all(_: RequestId, drafts: &[u32]) -> usize {
    drafts.len()
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request::new(prompt.to_vec(), max_new_tokens, vec![9], Sampling::GREEDY)
}

fn told(request: usize, token: u32) -> Event {
    Event::Token { request: RequestId(request), token, logprobs: None }
}

fn rows(step: &Step) -> Vec<(u32, u32, u32)> {
    let id = |token| match token {
        RowToken::Id(id) => id,
        RowToken::Sampled(i) => 100 + i,
    };
    step.rows.iter().map(|row| (row.slot, row.position, id(row.token))).collect()
}

#[test]
fn prompts_run_in_chunks_and_mix_with_generation() {
    let mut scheduler = scheduler(2, 4, 64, 100);
    scheduler.submit(request(&[1, 2], 2));
    scheduler.submit(request(&[3, 4, 5, 6], 1));
    let first = scheduler.next_step(all);
    assert_eq!(rows(&first), [(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4)]);
    assert_eq!(first.logit_rows.iter().map(|l| l.row).collect::<Vec<_>>(), [1]);
    assert_eq!(scheduler.advance(&first, &[7]), [told(0, 7)]);

    assert_eq!(first.shape(), StepShape { n_rows: 4, n_logit_rows: 1, kind: StepKind::Mixed, compares: false });

    let second = scheduler.next_step(all);
    assert_eq!(rows(&second), [(0, 2, 7), (1, 2, 5), (1, 3, 6)]);
    assert_eq!(second.shape(), StepShape { n_rows: 3, n_logit_rows: 2, kind: StepKind::Mixed, compares: false });
    let events = scheduler.advance(&second, &[8, 8]);
    assert_eq!(
        events,
        [
            told(0, 8),
            Event::Finished { request: RequestId(0), reason: FinishReason::Length },
            told(1, 8),
            Event::Finished { request: RequestId(1), reason: FinishReason::Length },
        ]
    );
    let admitted = |request| Event::Admitted { request: RequestId(request), cached_tokens: 0 };
    assert_eq!(scheduler.take_events(), [0, 1].map(admitted));
    assert!(scheduler.is_idle());
}

#[test]
fn a_freed_slot_is_filled_in_the_next_step() {
    let mut scheduler = scheduler(1, 8, 64, 100);
    scheduler.submit(request(&[1], 5));
    scheduler.submit(request(&[2], 5));
    let step = scheduler.next_step(all);
    assert_eq!(rows(&step), [(0, 0, 1)]);
    assert_eq!(step.shape(), StepShape { n_rows: 1, n_logit_rows: 1, kind: StepKind::Decode, compares: false });
    let events = scheduler.advance(&step, &[9]);
    assert_eq!(events[1], Event::Finished { request: RequestId(0), reason: FinishReason::Stop });
    assert_eq!(rows(&scheduler.next_step(all)), [(0, 0, 2)]);
}

#[test]
fn a_step_that_is_made_before_the_tokens_are_known_takes_them_from_the_one_before() {
    let mut scheduler = scheduler(2, 8, 64, 100);
    scheduler.submit(request(&[1, 2], 9));
    scheduler.submit(request(&[3], 2));
    scheduler.submit(request(&[4], 9));
    let first = scheduler.next_step(all);
    assert_eq!(rows(&first), [(0, 0, 1), (0, 1, 2), (1, 0, 3)]);
    let second = scheduler.next_step(all);
    assert_eq!(rows(&second), [(0, 2, 100), (1, 1, 101)]);
    let token = told;
    let finished = |request, reason| Event::Finished { request: RequestId(request), reason };
    // The first stops (9); its row in the second step comes to nothing, and the second has had all it may.
    let told = scheduler.advance(&first, &[9, 5]);
    assert_eq!(told, [token(0, 9), finished(0, FinishReason::Stop), token(1, 5)]);
    let third = scheduler.next_step(all);
    assert_eq!(rows(&third), [(0, 0, 4)]);
    assert_eq!(scheduler.advance(&second, &[7, 6]), [token(1, 6), finished(1, FinishReason::Length)]);
    assert_eq!(rows(&scheduler.next_step(all)), [(0, 1, 100)]);
    assert_eq!(scheduler.advance(&third, &[8]), [token(2, 8)]);
}

#[test]
fn a_sequence_waits_for_cache_blocks() {
    let mut scheduler = scheduler(3, 200, 128, 3);
    scheduler.submit(request(&[1; 100], 1));
    scheduler.submit(request(&[2; 100], 1));
    scheduler.submit(request(&[3], 1));
    let step = scheduler.next_step(all);
    let rows_of = |step: &Step, id: u32| step.rows.iter().filter(|row| row.token == RowToken::Id(id)).count();
    assert_eq!([1, 2, 3].map(|id| rows_of(&step, id)), [100, 0, 1], "one block is left, which is enough for the last");
    scheduler.advance(&step, &[5, 5]);
    assert_eq!(rows_of(&scheduler.next_step(all), 2), 100);
}

#[test]
fn a_request_for_no_tokens_ends_without_a_step() {
    let mut scheduler = scheduler(1, 1, 64, 100);
    let id = scheduler.submit(request(&[1], 0));
    assert_eq!(scheduler.take_events(), [Event::Finished { request: id, reason: FinishReason::Length }]);
    assert!(scheduler.is_idle());
}

#[test]
fn coins_are_those_of_the_seeds() {
    // xorshift64* from state 1, worked out with Python's integers.
    let mut random = XorShift::new(1);
    let coins: Vec<u32> = (0..3).map(|_| (random.coin() * 16_777_216.0) as u32).collect();
    assert_eq!(coins, EXPECTED_COINS);
}

const EXPECTED_COINS: [u32; 3] = [4_711_630, 11_259_814, 12_177_677];

/// Runs until nothing is left. Gives the requests in the order in which they were admitted.
fn admissions(scheduler: &mut Scheduler) -> Vec<RequestId> {
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        let step = scheduler.next_step(all);
        scheduler.advance(&step, &vec![4; step.logit_rows.len()]);
        let admitted = |event: &Event| if let Event::Admitted { request, .. } = event { Some(*request) } else { None };
        order.extend(scheduler.take_events().iter().filter_map(admitted));
    }
    order
}

#[test]
fn who_waits_for_blocks_is_overtaken_so_many_times() {
    // The first may need all three blocks, so nobody runs beside it; then the large one is next.
    let mut alone = scheduler(3, 200, 192, 3);
    let first = alone.submit(request(&[1; 128], 60));
    let large = alone.submit(request(&[2; 100], 1));
    let small: Vec<RequestId> = (0..40).map(|_| alone.submit(request(&[3], 1))).collect();
    assert_eq!(admissions(&mut alone), [&[first, large], &small[..]].concat());

    // One block is left beside the first: small ones pass, sixteen of them.
    let mut beside = scheduler(3, 200, 192, 3);
    let first = beside.submit(request(&[1; 70], 50));
    let large = beside.submit(request(&[2; 100], 1));
    let small: Vec<RequestId> = (0..40).map(|_| beside.submit(request(&[3], 1))).collect();
    assert_eq!(admissions(&mut beside), [&[first], &small[..16], &[large], &small[16..]].concat());
}

#[test]
fn the_youngest_gives_its_blocks_back_and_goes_on_later_where_it_was() {
    let mut scheduler = scheduler(2, 200, 192, 3);
    let (first, second) = (scheduler.submit(request(&[1; 60], 70)), scheduler.submit(request(&[2; 60], 10)));
    let (mut answers, mut ended_in, mut n_steps) = ([Vec::new(), Vec::new()], [0; 2], 0);
    while !scheduler.is_idle() {
        let step = scheduler.next_step(all);
        scheduler.take_events();
        // Tokens that tell how many a request has had.
        let tokens: Vec<u32> = step.logit_rows.iter().map(|row| 100 + answers[row.request.0].len() as u32).collect();
        for event in scheduler.advance(&step, &tokens) {
            match event {
                Event::Token { request, token, .. } => answers[request.0].push(token),
                Event::Finished { request, .. } => ended_in[request.0] = n_steps + 1,
                Event::Admitted { .. } | Event::PromptToken { .. } => {}
            }
        }
        n_steps += 1;
        assert!(n_steps < 200);
    }
    assert_eq!(answers.map(|answer| answer.len()), [70, 10]);
    // The first has a token in every step. The second has five, loses its block, and has the others behind the first.
    assert_eq!((ended_in[first.0], ended_in[second.0]), (70, 75));
    assert_eq!(scheduler.figures(), Figures { blocks: 3, preemptions: 1, ..Figures::default() });
}

#[test]
fn a_cancelled_request_frees_its_slot_and_is_told_of_once() {
    let mut scheduler = scheduler(1, 8, 64, 100);
    let ids: Vec<RequestId> = (0..3).map(|i| scheduler.submit(request(&[i; 12], 5))).collect();
    let cancelled = |request| Event::Finished { request, reason: FinishReason::Cancelled };
    assert!(scheduler.cancel(ids[1]), "waiting");
    assert!(!scheduler.cancel(ids[1]), "it is not there any more");
    let step = scheduler.next_step(all);
    assert_eq!(scheduler.take_events()[0], cancelled(ids[1]));
    assert!(scheduler.advance(&step, &[]).is_empty());
    assert!(scheduler.cancel(ids[0]), "in its prompt");
    assert_eq!((scheduler.figures().running, scheduler.figures().blocks_held), (0, 0));
    let steps = [scheduler.next_step(all), scheduler.next_step(all), scheduler.next_step(all)];
    assert_eq!(rows(&steps[0])[..2], [(0, 0, 2), (0, 1, 2)], "the next one has the slot");
    // Generating, one token known and the next one in flight.
    assert_eq!(scheduler.advance(&steps[0], &[]), []);
    assert_eq!(scheduler.advance(&steps[1], &[7]), [told(2, 7)]);
    assert!(scheduler.cancel(ids[2]));
    assert_eq!(scheduler.take_events().last(), Some(&cancelled(ids[2])));
    assert_eq!(scheduler.advance(&steps[2], &[8]), []);
    assert!(scheduler.is_idle() && !scheduler.cancel(ids[2]));
}

#[test]
fn short_prompts_get_through_beside_a_long_one_and_so_does_the_long_one() {
    let mut scheduler = scheduler(8, 64, 4096, 100);
    let long = scheduler.submit(request(&[1; 3000], 1));
    for _ in 0..4 {
        scheduler.submit(request(&[2; 50], 20));
    }
    let (mut first_token_in, mut n_long) = ([0; 5], 0);
    for n in 1..200 {
        let step = scheduler.next_step(all);
        let of_long = step.rows.iter().filter(|row| row.slot == 0).count();
        let left = 3000_usize.saturating_sub(n_long);
        n_long += of_long;
        assert!(of_long >= left.min((64 - step.logit_rows.len()) / 2), "{of_long} rows in step {n}");
        step.logit_rows.iter().for_each(|row| {
            let first = &mut first_token_in[row.request.0];
            *first = if *first == 0 { n } else { *first };
        });
        scheduler.advance(&step, &vec![5; step.logit_rows.len()]);
    }
    assert_eq!(first_token_in[1..], [2, 4, 5, 7], "32 of 64 rows, less those that generate");
    assert!((48..=60).contains(&first_token_in[long.0]), "{first_token_in:?}");
}

#[test]
fn prompts_of_one_length_follow_each_other_and_leave_room_for_those_who_generate() {
    let mut scheduler =
        Scheduler::new(&layout(3, 64, 640, 30), SchedulerOptions { max_prompt_rows: 10, ..options(64) });
    (1..4).for_each(|i| _ = scheduler.submit(request(&[i; 64], 9)));
    let of_slots = |step: &Step| [0, 1, 2].map(|slot| step.rows.iter().filter(|row| row.slot == slot).count());
    let first = scheduler.next_step(all);
    assert_eq!(of_slots(&first), [64, 0, 0]);
    scheduler.advance(&first, &[5]);
    assert_eq!(of_slots(&scheduler.next_step(all)), [1, 10, 0]);
}

fn in_background(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { is_background: true, ..request(prompt, max_new_tokens) }
}

fn rows_of(step: &Step, id: u32) -> usize {
    step.rows.iter().filter(|row| row.token == RowToken::Id(id)).count()
}

#[test]
fn who_is_in_the_background_gives_way_at_once_and_loses_nothing() {
    let mut scheduler = scheduler(2, 200, 192, 100);
    let background = [1, 2, 3].map(|id| scheduler.submit(in_background(&[id; 20], 6)));
    let first = scheduler.next_step(all);
    assert_eq!([1, 2, 3].map(|id| rows_of(&first, id)), [20, 20, 0]);
    let mut answers = [0; 4];
    let mut count = |events: Vec<Event>| {
        for event in events {
            if let Event::Token { request, .. } = event {
                answers[request.0] += 1;
            }
        }
    };
    count(scheduler.advance(&first, &[5, 5]));
    // One step is in flight when somebody comes who is not to wait: both slots are taken.
    let second = scheduler.next_step(all);
    let other = scheduler.submit(request(&[8; 30], 3));
    let third = scheduler.next_step(all);
    assert_eq!(rows_of(&third, 8), 30, "its whole prompt is in the next step");
    count(scheduler.advance(&second, &[5, 5]));
    count(scheduler.advance(&third, &vec![5; third.logit_rows.len()]));
    let mut order = Vec::new();
    while !scheduler.is_idle() {
        let step = scheduler.next_step(all);
        let events = scheduler.advance(&step, &vec![5; step.logit_rows.len()]);
        let ended = |event: &Event| if let Event::Finished { request, .. } = event { Some(*request) } else { None };
        order.extend(events.iter().filter_map(ended));
        count(events);
        scheduler.take_events();
    }
    assert_eq!(order, [&[other], &background[..]].concat(), "the one that gave way goes on before the third");
    assert_eq!((answers, scheduler.figures().preemptions), ([6, 6, 6, 3], 1));
}

#[test]
fn blocks_and_rows_are_for_those_first_who_are_not_in_the_background() {
    // Three blocks of 64 tokens, all of which are taken when somebody comes who needs two.
    let mut scheduler = scheduler(4, 100, 192, 3);
    (1..4).for_each(|id| _ = scheduler.submit(in_background(&[id; 30], 9)));
    let first = scheduler.next_step(all);
    assert_eq!([1, 2, 3].map(|id| rows_of(&first, id)), [30, 30, 30]);
    scheduler.advance(&first, &[5, 5, 5]);
    scheduler.submit(request(&[8; 100], 1));
    let second = scheduler.next_step(all);
    assert_eq!((rows_of(&second, 8), rows_of(&second, 5), scheduler.figures().preemptions), (99, 1, 2));
    // Who waits in front of all others in the background is not overtaken by them.
    scheduler.submit(request(&[9; 128], 1));
    scheduler.advance(&second, &[5]);
    let third = scheduler.next_step(all);
    assert_eq!([8, 9, 1, 2, 3].map(|id| rows_of(&third, id)), [1, 0, 0, 0, 0]);

    let mut scheduler = self::scheduler(2, 32, 4096, 200);
    scheduler.submit(in_background(&[1; 100], 1));
    scheduler.submit(request(&[2; 40], 1));
    let steps = [(); 3].map(|()| {
        let step = scheduler.next_step(all);
        scheduler.advance(&step, &vec![5; step.logit_rows.len()]);
        [1, 2].map(|id| rows_of(&step, id))
    });
    assert_eq!(steps, [[0, 32], [24, 8], [32, 0]]);
}

#[test]
fn who_is_in_the_background_keeps_nobody_from_drafts_and_prompts_from_no_rows() {
    let drafts = Some(DraftOptions { max_rows: 4, max_sequences: 1, min_probability: 0.1 });
    let options = SchedulerOptions { max_prompt_rows: 10, drafts, ..options(64) };
    let mut scheduler = Scheduler::new(&layout(3, 64, 640, 30), options);
    (1..3).for_each(|id| _ = scheduler.submit(in_background(&[id; 20], 90)));
    let first = scheduler.next_step(all);
    scheduler.advance(&first, &[5, 5]);
    scheduler.submit(request(&[8; 30], 90));
    let second = scheduler.next_step(all);
    assert_eq!(rows_of(&second, 8), 30, "those who generate meanwhile do not mind");
    scheduler.advance(&second, &[5, 5, 5]);
    let mut most = [0; 3];
    for _ in 0..10 {
        let step = scheduler.next_step(all);
        for (slot, most) in most.iter_mut().enumerate() {
            *most = step.rows.iter().filter(|row| row.slot as usize == slot).count().max(*most);
        }
        scheduler.advance(&step, &vec![5; step.logit_rows.len()]);
    }
    assert_eq!(most, [1, 1, 5], "one sequence is as many as may draft");
}

#[test]
fn parts_of_prefixes_are_taken_in_while_there_is_room_and_found_where_they_were_put() {
    let mut scheduler = Scheduler::new(&windowed_layout([1, 64, 1024, 16], 128, 2), options(64));
    let name = |id, index| PrefixBlock { key: PrefixKey::root(id), before: PrefixKey::root(0), index };
    let (one, two) = (name(1, 0), name(2, 1));
    assert_eq!(scheduler.room(), (16, true));
    for part in [PrefixPart::Block, PrefixPart::Windows] {
        let place = scheduler.adopt(&one, part);
        assert!(place.as_ref().is_some_and(|ranges| !ranges.is_empty()), "{place:?}");
        assert_eq!(scheduler.part(&one, part), place);
        assert_eq!((scheduler.adopt(&one, part), scheduler.part(&two, part)), (None, None));
    }
    assert_eq!(scheduler.room(), (15, true));
    assert!(scheduler.adopt(&two, PrefixPart::Windows).is_some());
    assert_eq!(scheduler.room(), (15, false));
}

#[test]
fn a_draft_takes_no_block_that_somebody_may_need_sooner() {
    let rows_of_second_step = |[n_slots, pool_blocks]: [usize; 2]| {
        let drafts = Some(DraftOptions { max_rows: 4, max_sequences: 1, min_probability: 0.0 });
        let options = SchedulerOptions { drafts, ..options(64) };
        let mut scheduler = Scheduler::new(&layout(n_slots, 64, 128, pool_blocks), options);
        scheduler.submit(request(&[5; 62], 60));
        let first = scheduler.next_step(all);
        scheduler.advance(&first, &[5]);
        scheduler.next_step(all).rows.len()
    };
    // Two positions are left of its block. Whoever runs may need the one block that is free; of two one is left.
    assert_eq!([[1, 2], [2, 3]].map(rows_of_second_step), [2, 5]);
}

#[test]
fn only_the_same_text_is_waited_for() {
    let rows_of_first_step = |prompts: [&[u32]; 2]| {
        let mut scheduler = Scheduler::new(&windowed_layout([2, 400, 1024, 48], 128, 4), options(400));
        for prompt in prompts {
            scheduler.submit(request(prompt, 1));
        }
        let step = scheduler.next_step(all);
        [0, 1].map(|slot| step.rows.iter().filter(|row| row.slot == slot).count())
    };
    assert_eq!(rows_of_first_step([&[1; 130], &[1; 130]]), [130, 0]);
    assert_eq!(rows_of_first_step([&[1; 130], &[2; 130]]), [130, 130]);
    // What begins alike and goes on gives no snapshot where the shorter one needs it.
    assert_eq!(rows_of_first_step([&[1; 200], &[1; 130]]), [200, 130]);
}

#[test]
fn the_last_token_of_an_answer_takes_no_position() {
    let sequence = Sequence::new(RequestId(0), request(&[1, 2, 3], 5));
    assert_eq!(sequence.n_positions(), 3 + 4);
}
