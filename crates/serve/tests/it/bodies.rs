//! Bodies that nobody would write: whatever stands in one, it is answered, or refused with an error that says where.
//!
//! `GPTOSS_JIT_BODIES` is how many are tried instead of a few hundred.

use fixtures::bodies::{CHAT, RESPONSES, Random, mutate, seeds};
use serde_json::Value;

use super::scripted::Scripted;

/// An error is as the API shapes it; an answer has what every client reads.
fn check(path: &str, status: u16, answer: &Value) {
    if status != 200 {
        assert!((400..500).contains(&status), "{status}");
        let error = answer["error"].as_object().expect("an error");
        let text_or_null = |name: &str| error[name].is_string() || error[name].is_null();
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(error["type"].is_string() && text_or_null("param") && text_or_null("code"));
        return;
    }
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{name}"));
    if path == RESPONSES {
        assert_eq!(count("input_tokens") + count("output_tokens"), count("total_tokens"));
        assert!(["completed", "incomplete"].contains(&answer["status"].as_str().expect("a status")));
        let items = answer["output"].as_array().expect("items");
        assert!(items.iter().all(|item| item["id"].is_string() && item["type"].is_string()));
        assert!(answer["tools"].is_array() && answer["metadata"].is_object());
        return;
    }
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));
    let choices = answer["choices"].as_array().expect("choices");
    assert!(!choices.is_empty());
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
        assert!(["stop", "length", "tool_calls"].contains(&choice["finish_reason"].as_str().expect("a reason")));
        let text = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
        assert!(text.is_string() || path == CHAT && text.is_null());
    }
}

#[test]
fn whatever_a_body_says_it_is_answered_or_refused_with_an_error() {
    let n_bodies: u64 = std::env::var("GPTOSS_JIT_BODIES").map_or(400, |n| n.parse().expect("a number"));
    let server = Scripted::new();
    let seeds = seeds();
    let said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
    let ids = server.ids(said);
    (0..1100).for_each(|_| server.say_ids(ids.clone()));
    let (mut n_asked, mut n_answered) = (0, 0);
    for seed in 0..n_bodies {
        let mut random = Random(seed);
        let (path, mut body) = random.one_of(&seeds).clone();
        for _ in 0..random.below(4) {
            mutate(&mut body, &mut random, &seeds);
        }
        let text = body.to_string();
        let answer = server.ask("POST", "any", path, &text);
        let told = std::panic::catch_unwind(|| match answer.content_type.as_str() {
            // An error in a stream is one of its events, and nothing fails here.
            "text/event-stream" => assert!(answer.status == 200 && !answer.body.contains("\"error\":{"), "a stream"),
            _ => check(path, answer.status, &serde_json::from_str(&answer.body).expect("JSON")),
        });
        assert!(told.is_ok(), "body {seed}: {path} {text}\n{} {}", answer.status, answer.body);
        n_answered += u64::from(answer.status == 200);
        // The model has something to say again.
        (n_asked..server.n_asked()).for_each(|_| server.say_ids(ids.clone()));
        n_asked = server.n_asked();
    }
    assert!(n_answered > n_bodies / 10 && n_answered < n_bodies * 9 / 10, "{n_answered} of {n_bodies} were answered");
}
