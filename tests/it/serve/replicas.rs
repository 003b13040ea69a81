//! `serve -g N`: several processes answer as one does, and go on where one of them ended.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::not_numbers::damaged;
use crate::fixtures::http::{get, post, stream};
use crate::fixtures::program::{file, repository};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

/// Two replicas with these slots each.
fn two(n_slots: &str) -> Server {
    Server::start(&["-g", "2", "-b", n_slots, "--model-name", "tiny"])
}

/// A body whose answer takes as long as there is context.
fn long(prompt: &str, seed: u64) -> Value {
    json!({"prompt": prompt, "max_tokens": 1000, "ignore_eos": true, "temperature": 1.0, "seed": seed})
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Asks for a whole answer, in a thread of its own.
fn asking(server: &Server, path: &'static str, body: Value) -> JoinHandle<Value> {
    let address = server.address;
    thread::spawn(move || post(address, path, &body).ok())
}

/// The same of a stream: all of its text.
fn following(server: &Server, mut body: Value) -> JoinHandle<String> {
    body["stream"] = true.into();
    let address = server.address;
    thread::spawn(move || {
        let mut events: Vec<String> = stream(address, PATH, &body).collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| text(&serde_json::from_str(event).expect("JSON"))).collect()
    })
}

#[test]
fn two_replicas_answer_as_one_process_does() {
    let (one, two) = (Server::shared(), two("4"));
    let call = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let chat = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let asks = [
        (PATH, json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0})),
        (PATH, json!({"prompt": "Lily", "max_tokens": 40, "seed": 5, "n": 3, "logprobs": 3})),
        (PATH, json!({"prompt": "Lily and", "max_tokens": 2, "seed": 5, "echo": true, "logprobs": 2})),
        (
            PATH,
            json!({"prompt": "The", "max_tokens": 30, "seed": 6, "frequency_penalty": 1, "min_p": 0.1,
            "logit_bias": {"100": 3}}),
        ),
        (PATH, json!({"prompt": "A boy", "max_tokens": 40, "temperature": 0, "stop": ["."]})),
        ("/v1/chat/completions", chat(json!({"seed": 3, "logprobs": true, "top_logprobs": 2}))),
        ("/v1/chat/completions", chat(json!({"seed": 4, "response_format": format, "reasoning_effort": "none"}))),
        ("/v1/chat/completions", chat(json!({"seed": 5, "tools": [call], "tool_choice": "required"}))),
    ];
    // All at a time, so that both have some.
    let answers: Vec<_> = asks.iter().map(|(path, body)| asking(&two, path, body.clone())).collect();
    for (answer, (path, body)) in answers.into_iter().zip(&asks) {
        let (answer, expected) = (answer.join().expect("answered"), post(one.address, path, body).ok());
        let choices = |answer: &Value| {
            let mut choices = answer["choices"].clone();
            // Calls have ids that are drawn.
            if let Some(calls) = choices[0]["message"]["tool_calls"].as_array_mut() {
                calls.iter_mut().for_each(|call| call["id"] = Value::Null);
            }
            choices
        };
        assert_eq!(choices(&answer), choices(&expected), "{body}");
        assert_eq!(answer["usage"]["completion_tokens"], expected["usage"]["completion_tokens"], "{body}");
        assert_eq!(answer["system_fingerprint"], expected["system_fingerprint"]);
    }
    let bad = chat(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema":
        {"type": "nonsense"}}}}));
    assert_eq!(post(two.address, "/v1/chat/completions", &bad).fails(400).0, "invalid_json_schema");
    assert!(two.metric("gptoss_grammar_mask_seconds_count") > 0.0, "masks are made there and counted here");
    two.wait_until_idle();
    let figures = |name: &str| two.metrics(name).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    assert_eq!(figures("gptoss_replica_up"), [1.0, 1.0]);
    assert_eq!(figures("gptoss_replica_requests_running"), [0.0, 0.0]);
    assert_eq!((two.metric("gptoss_requests_moved_total"), two.metric("gptoss_kv_cache_usage_perc")), (0.0, 0.0));
}

#[test]
fn replicas_of_two_devices_each_answer_as_one_does() {
    let f32 = ["--model-name", "tiny", "--precision", "f32"];
    let answers = |more: &[&str]| {
        let server = Server::start(&[&f32[..], more].concat());
        let ask = |seed: usize| {
            let body = json!({"prompt": "Once upon a time", "max_tokens": 24, "seed": seed,
                "ignore_eos": true, "temperature": if seed.is_multiple_of(2) { 1.0 } else { 0.0 }});
            asking(&server, PATH, body)
        };
        let asked: Vec<_> = (0..6).map(ask).collect();
        asked.into_iter().map(|answer| text(&answer.join().expect("answered"))).collect::<Vec<_>>()
    };
    let expected = answers(&["-b", "6", "--threads", "1"]);
    assert_ne!(expected[0], expected[2], "they are drawn");
    assert_eq!(answers(&["-g", "2", "--tp", "2", "-b", "2", "--threads", "4"]), expected);
}

#[test]
fn a_request_goes_where_its_prefix_is_and_others_where_least_is_to_do() {
    let server = two("4");
    let story = |name: &str| format!("{name} was a little girl who had a red kite. ").repeat(20);
    let ask = |prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true});
        let answer = post(server.address, PATH, &body).ok();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (format!("{prompt}{}", text(&answer)), cached)
    };
    let names = ["Lily", "Anna", "Mia", "Sue"];
    let turns: Vec<(String, u64)> = names.iter().map(|name| ask(&story(name))).collect();
    assert!(turns.iter().all(|(_, cached)| *cached == 0));
    // They were shared out, so in this order each but the first would come to another replica by its turn.
    for i in [1, 0, 3, 2] {
        let (_, cached) = ask(&(turns[i].0.clone() + " The end. And then"));
        assert!(cached >= 64, "{}: {cached}", names[i]);
    }
    // Nobody waits while the other one has nothing to do.
    let clients: Vec<_> = (0..8).map(|seed| following(&server, long(&story("Lily")[..200], seed))).collect();
    let mut most: Vec<f64> = vec![0.0; 2];
    while most.iter().any(|n| *n < 4.0) {
        assert!(!clients.iter().all(JoinHandle::is_finished), "{most:?}");
        for (most, (_, n)) in most.iter_mut().zip(server.metrics("gptoss_replica_requests_running")) {
            *most = most.max(n);
        }
    }
    drop(server);
    clients.into_iter().for_each(|client| drop(client.join()));
}

#[test]
fn a_replica_that_is_killed_is_missed_by_nobody() {
    let (one, two) = (Server::shared(), two("4"));
    let asks: Vec<Value> = (0..6).map(|seed| long("Once upon a time", seed)).collect();
    let expected: Vec<_> = asks.iter().map(|body| asking(&one, PATH, body.clone())).collect();
    let expected: Vec<String> = expected.into_iter().map(|answer| text(&answer.join().expect("answered"))).collect();
    let mut n_killed = 0.0;
    // A machine that does something else for a second may let all of them end before.
    while two.metric("gptoss_requests_moved_total") == 0.0 {
        let before = two.metric("gptoss_generation_tokens_total");
        let streamed: Vec<_> = asks[..3].iter().map(|body| following(&two, body.clone())).collect();
        let whole: Vec<_> = asks[3..].iter().map(|body| asking(&two, PATH, body.clone())).collect();
        while two.metric("gptoss_generation_tokens_total") < before + 200.0 {}
        two.kill(Some(two.replicas()[0]));
        n_killed += 1.0;
        for (answer, expected) in streamed.into_iter().zip(&expected) {
            assert_eq!(answer.join().expect("followed"), *expected);
        }
        for (answer, expected) in whole.into_iter().zip(&expected[3..]) {
            assert_eq!(text(&answer.join().expect("answered")), *expected);
        }
        two.wait_for("gptoss_replica_up", 2.0);
    }
    assert_eq!(two.metric("gptoss_replica_restarts_total"), n_killed);
    assert_eq!(get(two.address, "/health").ok()["status"], "ok");
    assert_eq!(two.replicas().len(), 2);
    two.wait_until_idle();
    two.signal();
    let (status, log) = two.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("was ended by signal 9; it is started again in 0 s"), "{log}");
}

#[test]
fn without_a_replica_the_others_answer_and_without_any_the_client_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let tiny = |name: &str| fs::read(repository().join("examples/tiny").join(name)).expect("there");
    let model = file(folder.path(), "model.bin", &tiny("model.bin"));
    let tokenizer = file(folder.path(), "tokenizer.bin", &tiny("tokenizer.bin"));
    let server = Server::start(&[&model, "-z", &tokenizer, "-g", "2", "-b", "2"]);
    // Nobody can load it any more.
    fs::remove_file(&model).expect("it was there");
    server.kill(Some(server.replicas()[0]));
    let health = loop {
        let health = get(server.address, "/health").ok();
        if health["status"] != "ok" {
            break health;
        }
    };
    assert_eq!(health, json!({"status": "degraded", "replicas": 2, "replicas_up": 1}));
    let short = json!({"prompt": "Once", "max_tokens": 2});
    assert_eq!(post(server.address, PATH, &short).ok()["usage"]["completion_tokens"], 2);
    while server.metric("gptoss_replica_up") > 0.0 {
        server.replicas().iter().for_each(|replica| server.kill(Some(*replica)));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(get(server.address, "/health").fails(503).0, "loading");
    let refused = post(server.address, PATH, &short);
    assert_eq!((refused.fails(503).0.as_str(), refused.header("retry-after")), ("loading", Some("1")));
}

#[test]
fn a_request_at_which_replicas_end_is_run_three_times_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = damaged(folder.path(), "block.1.attn.norm.scale", f32::NAN);
    let server = Server::start(&[&model, "-g", "2", "-b", "2", "-n", "64"]);
    let reply = post(server.address, PATH, &json!({"prompt": "Once upon"}));
    assert_eq!(reply.fails(503).0, "engine_failed");
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("3 replicas ended while they had it") && message.contains("not a number"), "{message}");
    server.wait_until_idle();
    assert_eq!(server.metric("gptoss_requests_moved_total"), 2.0);
}

#[test]
fn who_leaves_is_forgotten_by_the_replica_too() {
    let server = two("1");
    let clients: Vec<_> = (0..6)
        .map(|seed| {
            let mut body = long("Once", seed);
            body["stream"] = true.into();
            stream(server.address, PATH, &body)
        })
        .collect();
    while server.metrics("gptoss_replica_requests_running").iter().any(|(_, n)| *n != 1.0) {
        thread::sleep(Duration::from_millis(2));
    }
    drop(clients);
    server.wait_until_idle();
    let n_tokens = server.metric("gptoss_generation_tokens_total");
    assert!(n_tokens < 6000.0, "nobody's tokens are made for nobody: {n_tokens}");
    for name in ["replica_requests_running", "replica_requests_waiting", "kv_cache_usage_perc"] {
        server.wait_for(&format!("gptoss_{name}"), 0.0);
    }
    assert!(server.metric("gptoss_cancelled_total") > 0.0);
}

#[test]
fn replicas_end_with_the_server_and_not_before_its_requests() {
    let server = two("2");
    let clients: Vec<_> = (0..6).map(|seed| asking(&server, PATH, long("Once", seed))).collect();
    while server.metric("gptoss_num_requests_running") + server.metric("gptoss_num_requests_waiting") < 6.0 {}
    let replicas = server.replicas();
    // A service manager tells all of them.
    for replica in &replicas {
        let pid = rustix::process::Pid::from_raw(*replica).expect("a number");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    }
    server.signal();
    for client in clients {
        assert_eq!(client.join().expect("answered")["choices"][0]["finish_reason"], "length");
    }
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("started again"), "{log}");
    replicas.into_iter().for_each(wait_until_gone);

    let server = two("2");
    let replicas = server.replicas();
    server.kill(None);
    replicas.into_iter().for_each(wait_until_gone);
}

fn wait_until_gone(pid: i32) {
    // One that ended and that nobody asked how is a zombie, which has no program.
    while fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
}
