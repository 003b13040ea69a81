//! What the server says to anybody: models, tokens, health, and errors.

use std::io::Write;
use std::net::Shutdown;

use serde_json::{Value, json};

use crate::fixtures::http::{self, JSON, ask, get, post};
use crate::fixtures::server::Server;

#[test]
fn models_are_listed_and_found_by_names_with_slashes() {
    let server = Server::shared();
    let address = server.address;
    let list = get(address, "/v1/models").ok();
    let names: Vec<&Value> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["tiny", "openai/tiny"]);
    assert_eq!(get(address, "/models").ok(), list);
    for path in ["/v1/models/openai/tiny", "/v1/models/openai%2Ftiny"] {
        let model = get(address, path).ok();
        assert_eq!((&model["id"], &model["object"]), (&json!("openai/tiny"), &json!("model")), "{path}");
        assert_eq!(model["max_model_len"], 1024);
    }
    assert_eq!(get(address, "/v1/models/other").fails(404), ("model_not_found".into(), json!("model")));
}

#[test]
fn text_goes_to_tokens_and_back() {
    let server = Server::shared();
    let address = server.address;
    let tokens = post(address, "/tokenize", &json!({"content": "Once é<|end|>"})).ok()["tokens"].clone();
    let text = post(address, "/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(text["content"], "Once é<|end|>");
    let pieces = post(address, "/v1/tokenize", &json!({"content": "Once é<|end|>", "with_pieces": true})).ok();
    let pieces = pieces["tokens"].as_array().expect("a list").clone();
    assert_eq!(pieces.last().expect("one")["piece"], "<|end|>");
    assert_eq!(json!(pieces.iter().map(|piece| &piece["id"]).collect::<Vec<_>>()), tokens);
    let spelled = post(address, "/tokenize", &json!({"content": "<|end|>", "parse_special": false})).ok();
    assert!(spelled["tokens"].as_array().expect("a list").len() > 1);
}

#[test]
fn everybody_may_look_at_health_and_page_and_version() {
    let server = Server::shared();
    for path in ["/health", "/v1/health", "/ping"] {
        assert_eq!(get(server.address, path).ok(), json!({"status": "ok"}), "{path}");
    }
    assert_eq!(get(server.address, "/version").ok()["version"], env!("CARGO_PKG_VERSION"));
    let page = get(server.address, "/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|found| found.starts_with("text/html")));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
    let script = get(server.address, "/page/app.mjs");
    assert!(script.header("content-type").is_some_and(|found| found.starts_with("text/javascript")));
    assert_eq!(script.status, 200);
    let tag = script.header("etag").expect("a tag").to_owned();
    let again = ask(server.address, "GET", "/page/app.mjs", &[("If-None-Match", tag.as_str())], b"");
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(get(server.address, "/page/none.mjs").fails(404).0, "not_found");
    let metrics = get(server.address, "/metrics");
    assert!(metrics.header("content-type").is_some_and(|found| found.starts_with("application/openmetrics-text")));
    assert!(metrics.body.ends_with(b"# EOF\n"));
}

#[test]
fn errors_of_every_status_have_the_shape_of_openais() {
    let server = Server::shared();
    let address = server.address;
    let completions = "/v1/completions";
    let of = |body: Value| post(address, completions, &body).fails(400);
    assert_eq!(of(json!({})), ("missing_required_parameter".into(), json!("prompt")));
    assert_eq!(of(json!({"prompt": "a", "temperature": 3})), ("invalid_value".into(), json!("temperature")));
    assert_eq!(of(json!({"prompt": "a", "temperature": "x"})), ("invalid_value".into(), json!("temperature")));
    assert_eq!(of(json!({"prompt": [1, "a"]})), ("invalid_value".into(), json!("prompt[1]")));
    assert_eq!(of(json!({"prompt": [70000]})), ("invalid_value".into(), json!("prompt")));
    assert_eq!(of(json!({"prompt": ""})), ("invalid_value".into(), json!("prompt")));
    assert_eq!(of(json!({"prompt": "a", "suffix": "b"})), ("unsupported_parameter".into(), json!("suffix")));
    assert_eq!(of(json!({"prompt": "a", "n": 0})), ("invalid_value".into(), json!("n")));
    assert_eq!(of(json!({"prompt": vec![1; 1025]})), ("context_length_exceeded".into(), json!("prompt")));
    let wrong = |status: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        ask(address, method, path, headers, body).fails(status).0
    };
    assert_eq!(wrong(400, "POST", completions, &JSON, b"{"), "invalid_json");
    assert_eq!(wrong(404, "POST", completions, &JSON, br#"{"prompt": "a", "model": "b"}"#), "model_not_found");
    assert_eq!(wrong(404, "GET", "/v1/embeddings", &[], b""), "not_found");
    assert_eq!(wrong(405, "GET", completions, &[], b""), "method_not_allowed");
    let too_long = [JSON[0], ("Content-Length", "33554433")];
    assert_eq!(wrong(413, "POST", completions, &too_long, b""), "request_too_large");
    assert_eq!(wrong(415, "POST", completions, &[("Content-Type", "text/plain")], b"{}"), "unsupported_media_type");
}

#[test]
fn a_request_keeps_its_own_id() {
    let server = Server::shared();
    let own = ask(server.address, "GET", "/health", &[("X-Request-Id", "mine-1")], b"");
    assert_eq!(own.header("x-request-id"), Some("mine-1"));
    let (one, other) = (get(server.address, "/health"), get(server.address, "/health"));
    assert!(one.header("x-request-id").is_some_and(|id| id.starts_with("req_")));
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
}

#[test]
fn a_request_that_is_cut_at_any_byte_harms_nobody() {
    let server = Server::shared();
    let body = json!({"prompt": "Once", "max_tokens": 1, "temperature": 0}).to_string();
    let whole = http::request("POST", "/v1/completions", &JSON, body.as_bytes());
    let want = post(server.address, "/v1/completions", &serde_json::from_str(&body).expect("JSON")).ok();
    for cut in 0..whole.len() {
        let mut stream = http::send(server.address, &whole[..cut]);
        let _ = stream.flush();
        if cut % 2 == 0 {
            let _ = stream.shutdown(Shutdown::Write); // a half-closed connection, besides those that are dropped
        }
    }
    let got = post(server.address, "/v1/completions", &serde_json::from_str(&body).expect("JSON")).ok();
    assert_eq!(got["choices"], want["choices"]);
    server.wait_until_idle();
}
