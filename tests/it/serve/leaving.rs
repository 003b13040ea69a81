//! Clients that leave, and clients that are slow: the one frees what it had, the other slows nobody.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::fixtures::http::{self, JSON, post, stream};
use crate::fixtures::program::file;
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

/// A script that never ends, but for its last line.
fn endless(folder: &Path) -> String {
    let line = |prompt: &str, delay_ms: u64| json!({"prompt": prompt, "ids": vec![1; 100_000], "delay_ms": delay_ms});
    let lines = [line("slow to begin", 3_600_000), line("endless", 5), json!({"text": "short<|return|>"})];
    file(folder, "script.jsonl", lines.map(|line| line.to_string()).join("\n").as_bytes())
}

fn body(prompt: &str, is_streamed: bool) -> Value {
    json!({"prompt": prompt, "stream": is_streamed, "max_tokens": 100_000})
}

fn asked(body: &Value) -> Vec<u8> {
    http::request("POST", PATH, &JSON, body.to_string().as_bytes())
}

#[test]
fn whoever_leaves_frees_the_slot_in_whatever_phase() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&["--replay", &endless(folder.path()), "-b", "1"]);
    let running = || server.wait_for("gptoss_num_requests_running", 1.0);
    let cancelled = |n: f64| {
        server.wait_for("gptoss_cancelled_total", n);
        server.wait_until_idle();
    };

    let mut in_the_middle = stream(server.address, PATH, &body("endless", true));
    in_the_middle.next().expect("an event");
    drop(in_the_middle);
    cancelled(1.0);

    let before_the_first_token = http::send(server.address, &asked(&body("slow to begin", true)));
    running();
    drop(before_the_first_token);
    cancelled(2.0);

    let unstreamed = http::send(server.address, &asked(&body("endless", false)));
    running();
    let queued = [true, false].map(|is_streamed| http::send(server.address, &asked(&body("endless", is_streamed))));
    server.wait_for("gptoss_num_requests_waiting", 2.0);
    drop(queued);
    server.wait_for("gptoss_num_requests_waiting", 0.0);
    assert_eq!(server.metric("gptoss_num_requests_running"), 1.0);
    drop(unstreamed);
    cancelled(5.0);

    assert_eq!(post(server.address, PATH, &body("x", false)).ok()["choices"][0]["text"], "short");
}

#[test]
fn the_engine_forgets_those_who_left_too() {
    const CLIENTS: usize = 60;
    // One by one, so that most of them are still in the queue when all leave, on however fast a machine.
    let server = Server::start(&["-b", "1"]);
    let body = json!({"prompt": "Once", "stream": true, "max_tokens": 1000, "ignore_eos": true});
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| stream(server.address, PATH, &body)).collect();
    clients[0].next().expect("an event");
    drop(clients);
    let unstreamed = http::send(server.address, &asked(&json!({"prompt": "Once", "max_tokens": 1000})));
    drop(unstreamed);
    let short = json!({"prompt": "Once", "max_tokens": 2, "temperature": 0});
    assert_eq!(post(server.address, PATH, &short).ok()["usage"]["completion_tokens"], 2);
    server.wait_until_idle();
    assert_eq!(server.metric("gptoss_kv_cache_usage_perc"), 0.0);
    assert!(server.metric("gptoss_cancelled_total") > 0.0);
    let n_tokens = server.metric("gptoss_generation_tokens_total");
    assert!(n_tokens < 1000.0 * CLIENTS as f64, "nobody's tokens are made for nobody: {n_tokens}");
}

#[test]
fn a_slow_reader_slows_nobody_and_gets_all() {
    const TOKENS: usize = 60_000;
    let folder = tempfile::tempdir().expect("a folder");
    let words = "word ".repeat(TOKENS);
    let lines = [json!({"prompt": "slow", "text": words}), json!({"text": "short<|return|>"})];
    let script = file(folder.path(), "script.jsonl", lines.map(|line| line.to_string()).join("\n").as_bytes());
    let server = Server::start(&["--replay", &script]);
    let slow: Vec<_> = (0..3).map(|_| http::send(server.address, &asked(&body("slow", true)))).collect();
    for _ in 0..20 {
        assert_eq!(post(server.address, PATH, &body("x", false)).ok()["choices"][0]["text"], "short");
    }
    for stream in slow {
        let (head, mut rest) = http::answer(stream);
        assert_eq!(head.status, 200);
        let mut text = String::new();
        rest.read_to_string(&mut text).expect("the whole stream");
        assert!(text.trim_end().ends_with("data: [DONE]"));
        let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let told: String = chunks
            .map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).expect("JSON"))
            .map(|chunk| chunk["choices"][0]["text"].as_str().expect("text").to_owned())
            .collect();
        assert!(told == words, "{} bytes of {}", told.len(), words.len());
    }
}
