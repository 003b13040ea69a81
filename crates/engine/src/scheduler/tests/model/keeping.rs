//! What is kept for those who begin alike, and how little they compute.

use super::*;

#[test]
fn a_conversation_that_goes_on_computes_what_is_new_of_it() {
    let layout = windowed_layout([2, 64, 2048, 60], 128, 8);
    let mut run = Run::new(&layout, 64, false);
    run.act(&Act::Submit { text: 0, shared: 200, own: 1, max_new_tokens: 50, seed: 0, salt: 5, is_scored: false });
    run.finish();
    let mut cached = Vec::new();
    for turn in 0..4 {
        run.act(&Act::Continue { of: turn, more: 30 });
        let before = run.scheduler.figures().prefix_hit_tokens;
        run.finish();
        let n_before = run.asked[&run.order[turn]].prompt.len() + run.asked[&run.order[turn]].told.len();
        let hit = (run.scheduler.figures().prefix_hit_tokens - before) as usize;
        // All whole blocks whose tokens were forwarded: the last token that is generated is not.
        assert_eq!(hit, (n_before - 1) / 64 * 64);
        cached.push(hit);
    }
    assert!(cached.is_sorted() && cached[0] >= 192, "{cached:?}");
    // The same prompt again, and with another salt.
    let TestRequest { prompt, .. } = &run.asked[&run.order[4]];
    let prompt = prompt.clone();
    for (salt, expected) in [(5, (prompt.len() - 1) / 64 * 64), (6, 0)] {
        let before = run.scheduler.figures().prefix_hit_tokens;
        run.submit(prompt.clone(), 3, 0, salt);
        run.finish();
        assert_eq!((run.scheduler.figures().prefix_hit_tokens - before) as usize, expected);
    }
}

#[test]
fn several_answers_to_one_prompt_compute_it_once() {
    let n_rows = |prompts: [u32; 4], n_snapshots: usize| {
        let layout = windowed_layout([4, 64, 512, 40], 70, n_snapshots);
        let mut run = Run::new(&layout, 64, false);
        let prompt = |text: u32| (0..300).map(|i| (mix(text.into(), i) % VOCAB_SIZE) as u32).collect();
        (1..).zip(prompts).for_each(|(seed, text)| run.submit(prompt(text), 5, seed, 0));
        run.finish();
        run.n_rows
    };
    let alone = 300 + 4;
    let others = 300 - 256 + 4;
    assert_eq!(n_rows([0; 4], 3), alone + 3 * others);
    assert_eq!(n_rows([0, 1, 0, 1], 3), 2 * (alone + others));
    assert_eq!((n_rows([0, 1, 2, 3], 3), n_rows([0; 4], 0)), (4 * alone, 4 * alone));
}

#[test]
fn another_end_of_a_long_answer_computes_what_is_new_of_it() {
    let layout = windowed_layout([2, 64, 2048, 60], 128, 8);
    let prompt: Vec<u32> = (100..200).collect();
    let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
    let told = |seed| answer(&prompt, 1000, sampling(seed), 128, VOCAB_SIZE);
    let seed = (1..).find(|&seed| told(seed).len() > 700).expect("one that does not stop");
    let told = told(seed);
    for n_of_answer in [200, 500, 700] {
        let other = [&prompt[..], &told[..n_of_answer], &[3; 9]].concat();
        let (mut again, n_known) = (Run::new(&layout, 64, false), (prompt.len() + n_of_answer) / 64 * 64);
        again.submit(prompt.clone(), 1000, seed, 0);
        again.finish();
        again.submit(other, 3, 0, 0);
        again.finish();
        // A snapshot every 128 tokens, and blocks of 64.
        let hit = again.scheduler.figures().prefix_hit_tokens as usize;
        assert!(hit <= n_known && hit + 128 > n_known, "{hit} of {n_known}");
    }
}

#[test]
fn of_a_prompt_of_whole_blocks_all_but_the_last_block_is_found() {
    let layout = windowed_layout([2, 64, 2048, 60], 128, 8);
    for n_blocks in [2, 4, 5] {
        let mut run = Run::new(&layout, 64, false);
        for _ in 0..2 {
            run.submit((0..64 * n_blocks).map(|i| i % VOCAB_SIZE as u32).collect(), 3, 0, 0);
            run.finish();
        }
        assert_eq!(run.scheduler.figures().prefix_hit_tokens, 64 * u64::from(n_blocks - 1));
    }
}
