//! The end of a server: those who are in are served, those who come are told.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::not_numbers::damaged;
use crate::fixtures::http::{get, post, stream};
use crate::fixtures::program::file;
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

fn body(prompt: &str, is_streamed: bool) -> Value {
    json!({"prompt": prompt, "max_tokens": 1000, "stream": is_streamed})
}

#[test]
fn a_server_that_is_told_to_end_loses_no_request_that_it_took() {
    let server = Server::start(&["-b", "4", "--drain", "600"]);
    let address = server.address;
    let clients: Vec<_> = (0..10)
        .map(|i| {
            thread::spawn(move || {
                let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": i % 2 == 0});
                if i % 2 == 1 {
                    return post(address, PATH, &body).ok()["usage"]["completion_tokens"].clone();
                }
                let events: Vec<String> = stream(address, PATH, &body).collect();
                assert_eq!(events.last().expect("events"), "[DONE]");
                json!(300)
            })
        })
        .collect();
    while server.metric("gptoss_num_requests_running")
        + server.metric("gptoss_num_requests_waiting")
        + server.metric("gptoss_request_success_total")
        < 10.0
    {
        thread::sleep(Duration::from_millis(2));
    }
    server.signal();
    // Nobody sends a request here any more, long before the last one is answered.
    let left = loop {
        let health = get(server.address, "/health");
        match health.status {
            200 => thread::sleep(Duration::from_millis(1)),
            _ => break (health.fails(503).0, clients.iter().any(|client| !client.is_finished())),
        }
    };
    assert_eq!(left, ("shutting_down".to_owned(), true));
    for client in clients {
        assert_eq!(client.join().expect("answered"), 300);
    }
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    let requests = log.lines().filter(|line| line.contains("request id=") && line.contains("tokens=300")).count();
    assert_eq!(requests, 10, "{log}");
}

#[test]
fn who_comes_late_is_told_and_a_second_signal_ends_it_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = json!({"ids": vec![1; 1000], "delay_ms": 1}).to_string() + "\n";
    let slow = json!({"prompt": "endless", "ids": vec![1; 1000], "delay_ms": 3_600_000}).to_string();
    let script = file(folder.path(), "script.jsonl", (script + &slow).as_bytes());
    let server = Server::start(&["--replay", &script, "--drain", "100000"]);
    let mut events =
        stream(server.address, PATH, &json!({"prompt": ["x", "endless"], "max_tokens": 1000, "stream": true}));
    events.next().expect("an event");
    server.signal();
    while get(server.address, "/health").status == 200 {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(get(server.address, "/health").fails(503).0, "shutting_down");
    let late = post(server.address, PATH, &body("x", false));
    assert_eq!((late.fails(503).0.as_str(), late.header("retry-after")), ("shutting_down", Some("1")));
    server.signal();
    let last: Value = serde_json::from_str(&events.last().expect("events")).expect("JSON, and not [DONE]");
    assert_eq!(last["error"]["code"], "shutting_down");
    let address = server.address;
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_server_whose_engine_fails_tells_all_who_wait_and_ends_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = damaged(folder.path(), "block.1.attn.norm.scale", f32::NAN);
    let server = Server::start(&[&model, "-b", "2", "-n", "64"]);
    let reply = post(server.address, PATH, &json!({"prompt": "Once upon", "n": 3}));
    assert_eq!(reply.fails(503).0, "engine_failed");
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("error: the engine failed: a logit is not a number") && log.contains("\nhint: "), "{log}");
}

#[test]
fn nothing_of_what_is_said_is_logged_unless_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = file(folder.path(), "script.jsonl", b"{\"text\": \"a secret answer<|return|>\"}");
    for (flags, is_logged) in [(&[][..], false), (&["--log-content"][..], true)] {
        let server = Server::start(&[&["--replay", script.as_str()], flags].concat());
        let answer = post(server.address, PATH, &body("a secret prompt", false));
        assert_eq!(answer.status, 200);
        let id = answer.header("x-request-id").expect("an id").to_owned();
        server.signal();
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains(&id), "{log}");
        assert_eq!(log.contains("secret prompt"), is_logged, "{log}");
        assert_eq!(log.contains("secret answer"), is_logged, "{log}");
    }
}
