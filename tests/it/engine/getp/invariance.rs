//! What must not change a single token: how many sequences run at a time, in what pieces, on how many threads.

use super::getp;
use crate::fixtures::models::Fixture;

/// Ids in no pattern, always the same ones.
fn prompt(len: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_u32 ^ len as u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab_size as u32
    };
    (0..len).map(|_| next()).collect()
}

/// Every way to run gives the ids of the first.
fn check(fixture: &Fixture, lengths: &[usize], always: &[&str]) {
    let prompts: Vec<Vec<u32>> = lengths.iter().map(|&len| prompt(len, fixture.vocab_size)).collect();
    let ids = |args: &[&str]| getp(fixture, &prompts, &[always, args].concat()).ok().ids();
    let expected = ids(&["-b", "32", "--chunk", "512", "--threads", "2"]);
    assert!(expected.iter().all(|line| line.len() == 20), "{expected:?}");
    for args in [
        &["-b", "1", "--chunk", "512", "--threads", "1"][..],
        &["-b", "3", "--chunk", "512", "--threads", "3"],
        &["-b", "1", "--chunk", "1", "--threads", "2"],
        &["-b", "3", "--chunk", "5", "--threads", "1"],
        &["-b", "32", "--chunk", "7", "--threads", "3"],
    ] {
        assert_eq!(ids(args), expected, "{} {always:?} {args:?}", fixture.name);
    }
}

#[test]
fn f32_gives_the_same_tokens_however_it_is_run() {
    let window = Fixture::open("window");
    for kv in [&["--kv32"][..], &["--kv16"]] {
        check(&window, &[1, 6, 7, 8, 64, 2, 100], &[&["--precision", "f32", "--max-new-tokens", "20"], kv].concat());
    }
}

#[test]
fn bf16_gives_the_same_tokens_however_it_is_run() {
    let bf16 = Fixture::open("bf16");
    for kv in [&["--kv16"][..], &["--kv32"], &["--kv-dtype", "fp8"]] {
        check(&bf16, &[1, 15, 16, 17, 64, 2, 100], &[&["--precision", "bf16", "--max-new-tokens", "20"], kv].concat());
    }
}

#[test]
fn rings_give_the_same_tokens_as_room_for_all() {
    // Positions far past the window: small chunks have small rings, which go round.
    check(&Fixture::open("yarn_long"), &[1, 15, 16, 17, 300, 250], &["--max-new-tokens", "20"]);
}
