//! The model that comes with the program, against what the program that trained it says.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::fixtures::models::prompt_file;
use crate::fixtures::program::{file, run, run_in, run_with_stdin};

/// `examples/tiny/expected.json`.
#[derive(Deserialize)]
struct Expected {
    continuations: Vec<Continuation>,
}

/// What argmax in f32 gives after a prompt, the stop token included.
#[derive(Deserialize)]
struct Continuation {
    kind: String,
    prompt: String,
    text: String,
    /// How far ahead the best logit was of the second, at the least.
    smallest_gap: f64,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
}

fn continuations(kind: &str) -> Vec<Continuation> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny/expected.json");
    let expected: Expected = serde_json::from_slice(&fs::read(path).expect("there")).expect("JSON");
    let of_kind: Vec<Continuation> = expected.continuations.into_iter().filter(|c| c.kind == kind).collect();
    assert!(of_kind.len() >= 5, "{}", of_kind.len());
    of_kind
}

#[test]
fn it_continues_texts_as_its_trainer_does() {
    let continuations = continuations("plain");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompts: Vec<&str> = continuations.iter().map(|c| c.prompt.as_str()).collect();
    let input = file(folder.path(), "input.txt", &prompt_file(&prompts));
    let args = ["run", "-m", "getp", "-i", &input, "--max-new-tokens", "400", "--precision", "f32", "-b", "5"];
    let exact = run(&args).ok().ids();
    for (ids, expected) in exact.iter().zip(&continuations) {
        assert!(expected.smallest_gap > 1e-3, "{}: a draw", expected.prompt);
        assert_eq!(ids, &expected.ids, "{}", expected.prompt);
    }
    let json = run(&["run", "-i", prompts[0], "--precision", "f32", "--json"]).ok().json();
    assert_eq!(json["prompt_tokens"], continuations[0].prompt_ids.len());
    assert_eq!((&json["ids"], &json["finish_reason"]), (&serde_json::json!(continuations[0].ids), &"stop".into()));
    let text = format!("{}{}", prompts[0], continuations[0].text.replace("<|endoftext|>", ""));
    assert_eq!(json["text"], text);
    // Its own precision rounds to 8 bits of mantissa, which a clear lead survives.
    assert!(continuations[0].smallest_gap > 0.3);
    assert_eq!(run(&["run", "-i", prompts[0]]).ok().text(), format!("{text}\n"));
}

/// The parts of a harmony prompt: the system text, if there is one, and the user's.
fn parts(prompt: &str) -> (Option<&str>, &str) {
    let of = |role: &str| {
        let (_, rest) = prompt.split_once(&format!("<|start|>{role}<|message|>"))?;
        rest.split_once("<|end|>").map(|(text, _)| text)
    };
    (of("system"), of("user").expect("the user's words"))
}

#[test]
fn it_answers_as_its_trainer_says() {
    for expected in continuations("harmony") {
        let (system, user) = parts(&expected.prompt);
        let system = system.map_or(vec![], |text| vec!["-y", text]);
        let (_, words) = expected.text.split_once("<|message|>").expect("a message");
        let words = words.split("<|").next().expect("words");
        let chat = |more: &[&str]| {
            let args = [&["run", "-m", "chat", "--precision", "f32"], &system[..], more].concat();
            run_with_stdin(&args, format!("{user}\n").as_bytes()).ok()
        };
        assert_eq!(chat(&[]).text(), format!("{words}\n"), "{user}");
        assert_eq!(chat(&["--json"]).json()["text"], words, "{user}");
    }
}

#[test]
fn a_conversation_goes_on() {
    let expected = &continuations("harmony")[1];
    let (system, user) = parts(&expected.prompt);
    let lines = format!("{user}\nWhat color is the sky?\n");
    let args = ["run", "-m", "chat", "--precision", "f32", "-y", system.expect("a system text")];
    let ran = run_with_stdin(&args, lines.as_bytes()).ok();
    let (first, second) = ran.text().split_once('\n').expect("two answers");
    let (_, words) = expected.text.split_once("<|message|>").expect("a message");
    assert_eq!(first, words.trim_end_matches("<|return|>"));
    assert!(second.ends_with('\n') && second.trim().len() > 3, "{second}");
    // The same message as the first line, or with `-i`.
    let with_flag = run_with_stdin(&[&args[..], &["-i", user]].concat(), b"What color is the sky?\n").ok();
    assert_eq!(with_flag.text(), ran.text());
    // Drawn with the same seed, a conversation is the same.
    let drawn = |seed: &str| {
        let args = [&args[..], &["-T", "1.2", "-s", seed]].concat();
        run_with_stdin(&args, b"Tell me a story about a rabbit.\nAnother one.\n").ok().text().to_owned()
    };
    assert_eq!(drawn("7"), drawn("7"));
    assert_ne!(drawn("7"), drawn("8"));
}

#[test]
fn texts_become_the_ids_that_it_was_trained_on() {
    #[derive(Deserialize)]
    struct Encodings {
        encodings: Vec<Encoding>,
    }
    #[derive(Deserialize)]
    struct Encoding {
        text: String,
        ids: Vec<u32>,
    }
    let Encodings { encodings } =
        serde_json::from_str(include_str!("../../../examples/tiny/expected.json")).expect("JSON");
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny/tokenizer.bin");
    assert!(encodings.len() >= 5);
    for Encoding { text, ids } in encodings {
        let json = run(&["tokenize", "-z", tokenizer, "--json", "-i", &text]).ok().json();
        assert_eq!(json["ids"], serde_json::json!(ids), "{text}");
    }
}

#[test]
fn the_readme_shows_what_the_first_command_prints() {
    let ran = run(&["run", "-i", "Once upon a time"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let story = String::from_utf8(ran.stdout).expect("text");
    assert!(include_str!("../../../README.md").contains(&story), "{story}");
}

#[test]
fn the_first_token_is_timed_and_a_warm_start_compiles_nothing() {
    let cache = tempfile::tempdir().expect("made");
    let first_token = || {
        let ran = run_in(cache.path(), &["run", "--json", "-n", "8", "-i", "Once upon a time"]);
        let json: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        (json["first_token_s"].as_f64().expect("a number"), json["kernels"]["compiled"].as_u64().expect("a number"))
    };
    let (cold_s, compiled) = first_token();
    assert!(compiled > 0 && cold_s > 0.0, "{cold_s} s from an empty cache, {compiled} compiled");
    let (warm_s, compiled) = first_token();
    assert!(compiled == 0 && warm_s > 0.0, "{warm_s} s from a full cache, {compiled} compiled");
}

#[test]
fn a_seed_is_a_c_int() {
    let drawn = |seed: &str| {
        let args = ["run", "-i", "Once upon a time", "-n", "60", "-T", "1.5", "-p", "1", "-s", seed];
        run(&args).ok().text().to_owned()
    };
    // 3,000,000,000 - 2^32, as C's `atoi` gives it into an `int` of 32 bits.
    assert_eq!(drawn("3000000000"), drawn("-1294967296"));
    assert_ne!(drawn("3000000000"), drawn("3"));
}
