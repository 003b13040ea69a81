//! Who is let in, and how much of what.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use serve::listener::Listener;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

use crate::fixtures::http::{self, JSON, ask, get, post, stream};
use crate::fixtures::program::{file, run};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

const SCRIPT: &str = r#"
{"prompt": "endless", "ids": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "delay_ms": 3600000}
{"prompt": "failing", "text": "Hello", "fail": "lost"}
{"text": "<|channel|>final<|message|>Hello<|return|>"}
"#;

/// A server that plays the script.
fn scripted(flags: &[&str]) -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let script = file(folder.path(), "script.jsonl", SCRIPT.as_bytes());
    Server::start(&[&["--replay", script.as_str()], flags].concat())
}

fn body(prompt: &str) -> Value {
    json!({"prompt": prompt, "max_tokens": 20})
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let server = scripted(&["-b", "1", "--max-queue", "1"]);
    let asked = http::request("POST", PATH, &JSON, body("endless").to_string().as_bytes());
    let first = http::send(server.address, &asked);
    server.wait_for("gptoss_num_requests_running", 1.0);
    let second = http::send(server.address, &asked);
    server.wait_for("gptoss_num_requests_waiting", 1.0);
    let mut streamed = body("endless");
    streamed["stream"] = json!(true);
    for body in [body("endless"), streamed] {
        let refused = post(server.address, PATH, &body);
        assert_eq!(refused.fails(503).0, "overloaded");
        let seconds = refused.header("retry-after").and_then(|text| text.parse::<u32>().ok());
        assert!(seconds.is_some_and(|seconds| seconds >= 1), "{refused:?}");
    }
    assert_eq!(server.metric("gptoss_admission_rejections_total"), 2.0);
    assert_eq!(get(server.address, "/health").status, 200);
    drop((first, second));
    server.wait_until_idle();
    assert_eq!(post(server.address, PATH, &body("x")).status, 200);
}

#[test]
fn more_answers_than_can_wait_are_refused_for_good() {
    let server = scripted(&["-b", "1", "--max-queue", "2"]);
    let three = json!({"prompt": ["x", "x", "x"], "max_tokens": 2});
    assert_eq!(post(server.address, PATH, &three).status, 200);
    let chat = |n: u32| json!({"messages": [{"role": "user", "content": "x"}], "n": n});
    assert_eq!(post(server.address, "/v1/chat/completions", &chat(3)).status, 200);
    for (path, body, param) in [
        (PATH, json!({"prompt": ["x", "x"], "n": 2}), "prompt"),
        (PATH, json!({"prompt": "x", "n": 4}), "n"),
        ("/v1/chat/completions", chat(4), "n"),
    ] {
        let refused = post(server.address, path, &body);
        assert_eq!(refused.fails(400).1, param, "{refused:?}");
    }
}

#[test]
fn keys_are_asked_for_and_pages_of_one_origin_let_in() {
    let flags = ["--api-key", "one", "--api-key", "other", "--cors-origin", "https://chat.example.com"];
    let server = scripted(&flags);
    let address = server.address;
    let with = |name: &'static str, value: &'static str| {
        ask(address, "POST", PATH, &[JSON[0], (name, value)], body("x").to_string().as_bytes())
    };
    assert_eq!(with("Authorization", "Bearer one").status, 200);
    assert_eq!(with("X-Api-Key", "other").status, 200);
    assert_eq!(with("Authorization", "Bearer on").fails(401).0, "invalid_api_key");
    assert_eq!(post(address, PATH, &body("x")).fails(401).0, "invalid_api_key");
    assert_eq!(get(address, "/metrics").fails(401).0, "invalid_api_key");
    for path in ["/health", "/v1/models", "/", "/page/app.mjs"] {
        assert_eq!(get(address, path).status, 200, "{path}");
    }

    let preflight = |origin: &'static str| {
        let headers = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
        let reply = ask(address, "OPTIONS", PATH, &headers, b"");
        reply.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://chat.example.com"), Some("https://chat.example.com".into()));
    assert_eq!(preflight("https://other.example.com"), None);
    let shared = Server::shared();
    let reply = ask(shared.address, "GET", "/v1/models", &[("Origin", "https://chat.example.com")], b"");
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

#[test]
fn a_script_answers_in_the_place_of_a_model_and_its_failures_are_told() {
    let server = scripted(&["--model-name", "gpt-oss-20b", "--request-timeout", "0.05"]);
    let answer = post(server.address, PATH, &body("x")).ok();
    assert_eq!(answer["choices"][0]["text"], "<|channel|>final<|message|>Hello");
    assert_eq!((&answer["choices"][0]["finish_reason"], &answer["model"]), (&json!("stop"), &json!("gpt-oss-20b")));
    assert_eq!(post(server.address, PATH, &body("failing")).fails(503).0, "engine_failed");
    let mut streamed = body("failing");
    streamed["stream"] = json!(true);
    let events: Vec<String> = stream(server.address, PATH, &streamed).collect();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("JSON, and not [DONE]");
    assert_eq!(last["error"]["code"], "engine_failed");
    let late = post(server.address, PATH, &body("endless"));
    assert_eq!((late.fails(503).0.as_str(), late.header("x-should-retry")), ("timeout", Some("false")));
    server.wait_until_idle();
}

#[test]
fn before_there_is_a_model_everybody_is_told_to_come_back() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let _inside = runtime.enter();
    let tcp = StdListener::bind("127.0.0.1:0").expect("bound");
    tcp.set_nonblocking(true).expect("set");
    let address = tcp.local_addr().expect("bound");
    let listener = Arc::new(Listener::default());
    runtime.spawn(listener.clone().accept(TcpListener::from_std(tcp).expect("a listener")));
    for reply in [get(address, "/health"), post(address, PATH, &body("x"))] {
        assert_eq!((reply.fails(503).0.as_str(), reply.header("retry-after")), ("loading", Some("1")));
    }
    listener.open(Router::new().route("/health", axum::routing::get(|| async { "ok" })));
    assert_eq!(get(address, "/health").body, b"ok");
}

#[test]
fn a_server_that_cannot_begin_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = file(folder.path(), "script.jsonl", b"{\"texts\": 1}");
    let stderr = run_serve(&["--replay", &script], 1);
    assert!(stderr.contains("line 1 is no script") && stderr.contains("\nhint: "), "{stderr}");
    let keys = file(folder.path(), "keys", b"\n");
    run_serve(&["--api-key-file", &keys], 2);
    run_serve(&["--api-key", ""], 2);
    let taken = Server::shared();
    let port = taken.address.port().to_string();
    let stderr = run(&["serve", "--port", &port]).fails(1);
    assert!(stderr.contains("could not listen"), "{stderr}");
}

/// The error of a server that has its address on stdout before it fails, or not.
fn run_serve(flags: &[&str], code: i32) -> String {
    let ran = run(&[&["serve", "--port", "0"], flags].concat());
    assert_eq!(ran.code, code, "{}", ran.stderr);
    ran.stderr
}
