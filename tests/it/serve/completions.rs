//! Completions of the tiny model: the same text streamed and not, and as `run` writes it.

use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::odd_sizes::read_npy;
use crate::fixtures::http::{post, stream};
use crate::fixtures::models::{Fixture, letters_tokenizer};
use crate::fixtures::program::{file, run};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";
const PROMPT: &str = "Once upon a time";

/// The choices that a stream's chunks come to, by index, and its usage.
fn joined(server: &Server, body: &Value) -> (Vec<Value>, Value) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let events: Vec<String> = stream(server.address, PATH, &body).collect();
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let (usage, chunks) = chunks.split_last().expect("chunks");
    assert_eq!(usage["choices"], json!([]));
    let mut choices: Vec<Value> = Vec::new();
    for chunk in chunks {
        assert_eq!((&chunk["object"], &chunk["usage"]), (&json!("text_completion"), &Value::Null));
        assert_eq!(chunk["id"], chunks[0]["id"]);
        let [choice] = &chunk["choices"].as_array().expect("a list")[..] else { panic!("{chunk}") };
        let index = choice["index"].as_u64().expect("a number") as usize;
        while choices.len() <= index {
            choices.push(json!({"index": choices.len(), "text": "", "logprobs": null, "finish_reason": null}));
        }
        let whole = &mut choices[index];
        assert_eq!(whole["finish_reason"], Value::Null, "nothing comes behind the end");
        whole["text"] =
            json!(format!("{}{}", whole["text"].as_str().expect("text"), choice["text"].as_str().expect("text")));
        whole["finish_reason"] = choice["finish_reason"].clone();
        if let Some(lists) = choice["logprobs"].as_object() {
            for (name, list) in lists {
                let all = whole["logprobs"][name].as_array().cloned().unwrap_or_default();
                whole["logprobs"][name] = json!([all, list.as_array().expect("a list").clone()].concat());
            }
        }
    }
    (choices, usage["usage"].clone())
}

#[test]
fn a_text_goes_on_as_run_has_it() {
    let server = Server::shared();
    let got = post(server.address, PATH, &json!({"prompt": PROMPT, "max_tokens": 40, "temperature": 0})).ok();
    let want = run(&["--json", "run", "-i", PROMPT, "--max-new-tokens", "40", "-T", "0"]).ok().json();
    let text = want["text"].as_str().expect("text").strip_prefix(PROMPT).expect("the prompt goes first");
    assert_eq!(got["choices"][0]["text"], text);
    assert_eq!(got["choices"][0]["finish_reason"], want["finish_reason"]);
    let n_new = want["ids"].as_array().expect("a list").len();
    let usage = &got["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&want["prompt_tokens"], &json!(n_new)));
    assert_eq!((&got["object"], &got["model"]), (&json!("text_completion"), &json!("tiny")));
}

#[test]
fn a_stream_is_the_whole_answer_in_pieces() {
    let server = Server::shared();
    for body in [
        json!({"prompt": PROMPT, "max_tokens": 40, "temperature": 0}),
        json!({"prompt": [PROMPT, "The dog"], "max_tokens": 20, "n": 2, "seed": 7, "echo": true}),
        json!({"prompt": [[1, 2, 3], [4]], "max_tokens": 9, "seed": -5, "ignore_eos": true, "temperature": 2}),
        json!({"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": [" the", "."]}),
        json!({"prompt": PROMPT, "max_tokens": 10, "seed": 1, "logprobs": 3}),
        json!({"prompt": PROMPT, "max_tokens": 0, "echo": true}),
        json!({"prompt": [PROMPT, "The dog"], "max_tokens": 3, "seed": 2, "n": 2, "echo": true, "logprobs": 2}),
        json!({"prompt": [[5, 6, 7, 8], [9]], "max_tokens": 0, "echo": true, "logprobs": 1}),
    ] {
        let whole = post(server.address, PATH, &body).ok();
        let (choices, usage) = joined(&server, &body);
        assert_eq!(json!(choices), whole["choices"], "{body}");
        // What was computed before depends on who was there before.
        for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(usage[key], whole["usage"][key], "{body}");
        }
    }
}

/// log softmax(logits).
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - largest) - sum.ln()).collect()
}

#[test]
fn a_prompt_that_is_echoed_has_the_log_probabilities_of_another_implementation() {
    let fixture = Fixture::open("bf16");
    let (model, folder) = (fixture.path("model.bin"), tempfile::tempdir().expect("a temporary folder"));
    let tokenizer = file(folder.path(), "letters.bin", &letters_tokenizer(fixture.vocab_size));
    let server = Server::start(&[&model, "--tokenizer", &tokenizer, "--precision", "f32", "-b", "2"]);
    // A batch as lm-evaluation-harness sends it: ids, and one token more than anybody looks at.
    let batch: Vec<&Vec<u32>> = fixture.prompts.iter().collect();
    let body = json!({"prompt": batch, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true});
    let answer = post(server.address, PATH, &body).ok();
    let logits = read_npy(Path::new(&fixture.path("logits.npy")));
    let mut logits = logits.chunks(fixture.vocab_size);
    for (i, prompt) in fixture.prompts.iter().enumerate() {
        let choice = &answer["choices"][i];
        assert_eq!(choice["index"], i);
        let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
            .map(|name| choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("{choice}")).clone());
        assert_eq!(lists.each_ref().map(Vec::len), [prompt.len() + 1; 4], "{choice}");
        let [tokens, told, top, offsets] = lists;
        assert_eq!((&told[0], &top[0], &offsets[0]), (&Value::Null, &Value::Null, &json!(0)));
        let (mut text, mut is_greedy, mut sum, mut expected_sum) = (String::new(), true, 0.0, 0.0);
        for (n, &id) in prompt.iter().enumerate() {
            assert_eq!(offsets[n], text.chars().count());
            text += tokens[n].as_str().expect("text");
            let row = logits.next().expect("a row for each token");
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a vocabulary");
            let next = prompt.get(n + 1).map_or(best, |&id| id as usize); // behind the prompt greedily
            let (expected, told) = (log_softmax(row)[next], told[n + 1].as_f64().expect("a number"));
            assert!((expected - told).abs() < 1e-3, "token {n} ({id}) of {i}: {told} for {expected}");
            let top = top[n + 1].as_object().expect("texts");
            assert_eq!(top.len(), if next == best { 1 } else { 2 }, "{top:?}");
            let most = top.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(most == told, next == best, "the same number in both lists, {top:?}");
            assert!(top.values().any(|value| value.as_f64() == Some(told)), "{told} is in {top:?}");
            // What the harness makes of it, with half of the prompt for a context.
            if (prompt.len() / 2..prompt.len() - 1).contains(&n) {
                (sum, expected_sum) = (sum + told, expected_sum + expected);
                is_greedy &= most == told;
            }
        }
        assert!((sum - expected_sum).abs() < 1e-2, "{sum} for {expected_sum}");
        assert!(choice["text"].as_str().expect("text").starts_with(&text), "{choice} begins with {text}");
        assert!(is_greedy == (prompt.len() == 1), "{i}: nobody says what stands there by chance");
    }
    let n_prompt: usize = fixture.prompts.iter().map(Vec::len).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], n_prompt);
    assert_eq!(answer["usage"]["completion_tokens"], fixture.prompts.len());
    // Without a token more, and again with what the prefix cache has by now: the same numbers.
    let mut alone = body;
    (alone["prompt"], alone["max_tokens"]) = (json!(fixture.prompts[3]), json!(0));
    for _ in 0..2 {
        let alone = post(server.address, PATH, &alone).ok();
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let mut expected = answer["choices"][3]["logprobs"][name].as_array().expect("a list").clone();
            expected.pop();
            assert_eq!(alone["choices"][0]["logprobs"][name], json!(expected), "{name}");
        }
        assert_eq!(alone["usage"]["completion_tokens"], 0);
    }
}

#[test]
fn tokens_that_an_earlier_prompt_left_are_counted_streamed_and_not() {
    let server = Server::shared();
    // Of more than a block, which is 64 tokens, and like no other test's.
    let prompt: String = (0..40).map(|i| format!("The cat saw {i} birds. ")).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0});
    let first = post(server.address, PATH, &body).ok();
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(first["usage"]["prompt_tokens_details"], json!({"cached_tokens": 0}));
    // All whole blocks but for the last token, which is computed in any case.
    let cached = json!({"cached_tokens": (n_prompt - 1) / 64 * 64});
    let again = post(server.address, PATH, &body).ok();
    assert_eq!(again["usage"]["prompt_tokens_details"], cached);
    assert_eq!(again["choices"], first["choices"]);
    let (choices, usage) = joined(&server, &body);
    assert_eq!((&usage["prompt_tokens_details"], &choices[0]["text"]), (&cached, &first["choices"][0]["text"]));
}

#[test]
fn answers_of_a_seed_are_the_same_and_of_another_are_not() {
    let server = Server::shared();
    let texts = |seed: i64, n: usize| {
        let body = json!({"prompt": PROMPT, "max_tokens": 30, "seed": seed, "n": n, "temperature": 1.5});
        let whole = post(server.address, PATH, &body).ok();
        whole["choices"].as_array().expect("a list").iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()
    };
    let four = texts(10, 4);
    assert_eq!(texts(12, 1), four[2..3], "the seed of the third answer is two more");
    assert_eq!(texts(10, 4), four);
    assert_ne!(four[0], four[1]);
}

#[test]
fn a_stop_ends_the_text_before_it() {
    let server = Server::shared();
    let body = json!({"prompt": PROMPT, "max_tokens": 60, "temperature": 0});
    let whole = post(server.address, PATH, &body).ok();
    let text = whole["choices"][0]["text"].as_str().expect("text").to_owned();
    let stop: String = text.chars().skip(9).take(5).collect();
    let at = text.find(&stop).expect("it is part of it");
    let mut stopped = body.clone();
    stopped["stop"] = json!(stop);
    let cut = post(server.address, PATH, &stopped).ok();
    assert_eq!(cut["choices"][0]["text"], text[..at]);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    assert!(cut["usage"]["completion_tokens"].as_u64() < whole["usage"]["completion_tokens"].as_u64());
    // What could have begun a stop and did not is told in the end.
    let end: String = text.chars().rev().take(4).collect::<Vec<_>>().into_iter().rev().collect();
    stopped["stop"] = json!(format!("{end} and no more"));
    assert_eq!(post(server.address, PATH, &stopped).ok()["choices"], whole["choices"]);
}

#[test]
fn names_of_special_tokens_are_text_unless_asked() {
    let server = Server::shared();
    let n_tokens = |parse_special: bool| {
        let body = json!({"prompt": "<|start|>user", "max_tokens": 0, "parse_special": parse_special, "echo": true});
        let answer = post(server.address, PATH, &body).ok();
        assert_eq!(answer["choices"][0]["text"], "<|start|>user");
        answer["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    assert!(n_tokens(true) < n_tokens(false));
}
