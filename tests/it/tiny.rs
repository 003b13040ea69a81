//! The tiny model that comes with the program, against what the script that trained it computed from the same file.

use serde_json::Value;

use crate::program::{run, run_in, run_with_stdin};

/// `examples/tiny/expected.json`, written by `examples/tiny/train.py`.
fn expected() -> Value {
    serde_json::from_str(include_str!("../../examples/tiny/expected.json")).expect("JSON")
}

fn json(args: &[&str]) -> Value {
    let ran = run(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    serde_json::from_slice(&ran.stdout).expect("JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().expect("a list")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("text")
}

#[test]
fn texts_become_the_ids_that_it_was_trained_on() {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny/tokenizer.bin");
    for encoding in list(&expected(), "encodings") {
        let got = json(&["tokenize", "-z", tokenizer, "--json", "-i", text(encoding, "text")]);
        assert_eq!(got["ids"], encoding["ids"], "{:?}", encoding["text"]);
    }
}

#[test]
fn it_tells_the_stories_that_it_learnt_token_by_token() {
    let expected = expected();
    let mut n_stories = 0;
    for story in list(&expected, "continuations").iter().filter(|c| c["kind"] == "plain") {
        let n = list(story, "ids").len().to_string();
        let args = ["run", "--json", "--precision", "f32", "--max-new-tokens", &n, "-i", text(story, "prompt")];
        let got = json(&args);
        assert_eq!(got["ids"], story["ids"], "{:?}", story["prompt"]);
        n_stories += 1;
    }
    assert!(n_stories >= 5, "{n_stories}");
}

#[test]
fn the_readme_shows_what_the_first_command_prints() {
    let ran = run(&["run", "-i", "Once upon a time"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let story = String::from_utf8(ran.stdout).expect("text");
    assert!(include_str!("../../README.md").contains(&story), "{story}");
}

#[test]
fn it_answers() {
    let ran = run_with_stdin(&["run", "-m", "chat"], b"What color is the sky?\nWhat color is the sky?\n");
    assert_eq!((ran.code, ran.stdout.as_slice()), (0, &b"The sky is blue.\nThe sky is blue.\n"[..]), "{}", ran.stderr);
    let ran =
        run_with_stdin(&["run", "-m", "chat", "-y", "You are Rosie, a helpful assistant."], b"What is your name?");
    assert_eq!(ran.stdout, b"My name is Rosie. I am a very small language model.\n", "{}", ran.stderr);
}

#[test]
fn it_speaks_soon() {
    let cache = tempfile::tempdir().expect("made");
    let first_token_s = || {
        let ran = run_in(cache.path(), &["run", "--json", "-n", "8", "-i", "Once upon a time"]);
        let json: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        (json["first_token_s"].as_f64().expect("a number"), json["kernels"]["compiled"].as_u64().expect("a number"))
    };
    let (cold_s, compiled) = first_token_s();
    assert!(compiled > 0 && cold_s < 10.0, "{cold_s} s from an empty cache, {compiled} compiled");
    // The best of three: other tests take the cores meanwhile.
    let warm: Vec<(f64, u64)> = (0..3).map(|_| first_token_s()).collect();
    let warm_s = warm.iter().map(|(seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
    assert!(warm.iter().all(|(_, compiled)| *compiled == 0) && warm_s < 0.3, "{warm:?}");
}
