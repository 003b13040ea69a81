//! Files and batches, over HTTP.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serve::batches::store::BatchLimits;

use super::scripted::{Answered, Scripted};

const LIMITS: BatchLimits = BatchLimits { max_file_bytes: 5000, max_requests: 20, max_bytes: 1 << 20 };
const ANSWER: &str = "<|channel|>final<|message|>Hello!<|return|>";

fn line(id: &str, more: &str) -> String {
    let body = format!(r#"{{"messages": [{{"role": "user", "content": "{id}"}}]{more}}}"#);
    format!(r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/chat/completions", "body": {body}}}"#)
}

fn lines(ids: &[&str]) -> String {
    ids.iter().map(|id| line(id, "") + "\n").collect()
}

/// Sends a form with a file, and other lines of the head if there are any. A purpose `batch, 3600` has it go then.
fn send(server: &Scripted, key: &str, text: &str, purpose: &str, head: &str) -> Answered {
    let file = "--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a b.jsonl\"\r\n\r\n";
    let field =
        |name: &str, text: &str| format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n");
    let (purpose, expiry) = purpose.split_once(", ").unwrap_or((purpose, ""));
    let mut fields = field("purpose", purpose);
    if !expiry.is_empty() {
        fields += &(field("expires_after[anchor]", "created_at") + &field("expires_after[seconds]", expiry));
    }
    let body = format!("{file}{text}\r\n{fields}--cut--\r\n");
    let head = format!("Content-Type: multipart/form-data; boundary=cut{head}");
    server.ask_with("POST", key, "/v1/files", &head, &body)
}

fn upload(server: &Scripted, key: &str, text: &str) -> Value {
    let answer = send(server, key, text, "batch", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_str(&answer.body).expect("JSON")
}

fn create(server: &Scripted, key: &str, file: &Value, window: &str) -> Value {
    let body = json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": window,
        "metadata": {"of": "a test"},
    });
    let (status, batch) = server.post_as(key, "/v1/batches", &body);
    assert_eq!(status, 200, "{batch}");
    batch
}

fn batch(server: &Scripted, key: &str, id: &Value) -> Value {
    let (status, batch) = server.json("GET", key, &format!("/v1/batches/{}", id.as_str().expect("an id")), "");
    assert_eq!(status, 200, "{batch}");
    batch
}

/// Waits until a batch is as it should be.
fn until(server: &Scripted, key: &str, id: &Value, is: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let batch = batch(server, key, id);
        if is(&batch) {
            return batch;
        }
        assert!(Instant::now() < deadline, "{batch}");
        sleep(Duration::from_millis(5));
    }
}

fn until_over(server: &Scripted, key: &str, id: &Value) -> Value {
    let is_over = |batch: &Value| {
        ["completed", "failed", "expired", "cancelled"].contains(&batch["status"].as_str().expect("a status"))
    };
    until(server, key, id, is_over)
}

fn content(server: &Scripted, key: &str, id: &Value) -> Vec<Value> {
    let answer = server.ask("GET", key, &format!("/v1/files/{}/content", id.as_str().expect("a file")), "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["custom_id"].as_str().expect("an id")).collect()
}

fn open(folder: &Path, keys: &[&str]) -> Scripted {
    Scripted::with_batches(keys, folder, LIMITS)
}

#[test]
fn a_batch_is_answered_in_order_behind_all_others_and_is_one_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = open(folder.path(), &["one", "other"]);
    (0..3).for_each(|_| server.say(ANSWER));
    let text = [line("a", ""), line("b", ""), line("c", r#", "temperature": "hot""#), line("d", "")].join("\r\n");
    let file = upload(&server, "one", &text);
    assert_eq!(
        (&file["bytes"], &file["filename"], &file["purpose"]),
        (&json!(text.len()), &json!("a b.jsonl"), &json!("batch"))
    );
    let begun = create(&server, "one", &file, "24h");
    assert_eq!((&begun["object"], &begun["metadata"]), (&json!("batch"), &json!({"of": "a test"})));
    assert_eq!(begun["expires_at"].as_u64(), begun["created_at"].as_u64().map(|at| at + 86_400));
    let batch = until_over(&server, "one", &begun["id"]);
    assert_eq!(
        (&batch["status"], &batch["model"], &batch["errors"]),
        (&json!("completed"), &json!("gpt-oss-20b"), &Value::Null)
    );
    assert_eq!(batch["request_counts"], json!({"total": 4, "completed": 3, "failed": 1}));
    assert!(server.asked().is_background);
    let answers = content(&server, "one", &batch["output_file_id"]);
    assert_eq!(ids(&answers), ["a", "b", "d"]);
    for answer in &answers {
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("batch_req_")) && answer["error"].is_null());
        let response = &answer["response"];
        assert_eq!((&response["status_code"], &response["body"]["object"]), (&json!(200), &json!("chat.completion")));
        assert_eq!(response["body"]["choices"][0]["message"]["content"], "Hello!");
        assert!(response["request_id"].as_str().is_some_and(|id| id.starts_with("req_")));
    }
    let errors = content(&server, "one", &batch["error_file_id"]);
    assert_eq!(ids(&errors), ["c"]);
    assert_eq!(errors[0]["response"]["status_code"], 400);
    assert_eq!(errors[0]["response"]["body"]["error"]["param"], "temperature");

    // Of the other key there is nothing.
    let files = |key: &str, query: &str| server.json("GET", key, &format!("/v1/files{query}"), "").1;
    assert_eq!(files("other", "")["data"], json!([]));
    let id = |value: &Value| value["id"].as_str().expect("an id").to_owned();
    for path in [format!("/v1/files/{}", id(&file)), format!("/v1/batches/{}", id(&batch))] {
        assert_eq!(server.json("GET", "other", &path, "").0, 404, "{path}");
        assert_eq!(server.json("GET", "one", &path, "").0, 200, "{path}");
    }
    assert_eq!(server.json("GET", "other", "/v1/batches", "").1["data"], json!([]));
    assert_eq!(server.json("GET", "one", "/v1/batches?limit=1", "").1["data"][0]["id"], batch["id"]);
    assert_eq!(files("one", "")["data"].as_array().map(Vec::len), Some(3));
    assert_eq!(files("one", "?purpose=batch")["data"], json!([file]));
    let path = format!("/v1/files/{}", id(&file));
    assert_eq!(server.json("DELETE", "other", &path, "").0, 404);
    assert_eq!(server.json("DELETE", "one", &path, "").1, json!({"id": file["id"], "object": "file", "deleted": true}));
    assert_eq!(server.json("GET", "one", &path, "").0, 404);
    assert_eq!(std::fs::read_dir(folder.path().join("files")).expect("there").count(), 4, "of two files");
    assert_eq!(std::fs::read_dir(folder.path().join("batches")).expect("there").count(), 1, "no records are left");
}

#[test]
fn what_was_answered_is_not_asked_again_by_the_server_that_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = open(folder.path(), &[]);
    (0..3).for_each(|_| server.say(ANSWER));
    (0..2).for_each(|_| server.hang());
    let file = upload(&server, "any", &lines(&["a", "b", "c", "d", "e"]));
    let begun = create(&server, "any", &file, "1h");
    let begun = until(&server, "any", &begun["id"], |batch| batch["request_counts"]["completed"] == 3);
    assert_eq!(begun["status"], "in_progress");
    let path = format!("/v1/files/{}", file["id"].as_str().expect("an id"));
    assert_eq!(server.json("DELETE", "any", &path, "").1["error"]["code"], "file_in_use");
    drop(server); // as if it was killed: nothing more is written
    let records = folder.path().join(format!("batches/{}.records", begun["id"].as_str().expect("an id")));
    let kept = std::fs::read_to_string(&records).expect("there");
    assert_eq!(kept.lines().count(), 4, "a header and three answers");
    // A kill may leave half of a line.
    std::fs::write(&records, kept.clone() + "{\"index\":4,\"dig").expect("written");

    let server = open(folder.path(), &[]);
    (0..2).for_each(|_| server.say(ANSWER));
    let batch = until_over(&server, "any", &begun["id"]);
    assert_eq!((&batch["status"], server.n_asked()), (&json!("completed"), 2));
    assert_eq!(batch["request_counts"], json!({"total": 5, "completed": 5, "failed": 0}));
    let answers = content(&server, "any", &batch["output_file_id"]);
    assert_eq!((ids(&answers), &batch["error_file_id"]), (vec!["a", "b", "c", "d", "e"], &Value::Null));
    let before: Vec<Value> = kept.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for record in before {
        let line: Value = serde_json::from_str(record["line"].as_str().expect("a line")).expect("JSON");
        assert_eq!(answers[record["index"].as_u64().expect("a number") as usize], line);
    }
}

#[test]
fn a_batch_ends_when_it_is_cancelled_or_its_time_is_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = open(folder.path(), &[]);
    for (window, status, code) in [("24h", "cancelled", "batch_cancelled"), ("1s", "expired", "batch_expired")] {
        server.say(ANSWER);
        (0..2).for_each(|_| server.hang());
        let file = upload(&server, "any", &lines(&["a", "b", "c"]));
        let begun = create(&server, "any", &file, window);
        if status == "cancelled" {
            until(&server, "any", &begun["id"], |batch| batch["request_counts"]["completed"] == 1);
            let path = format!("/v1/batches/{}/cancel", begun["id"].as_str().expect("an id"));
            let (code, told) = server.post(&path, &json!({}));
            assert!(code == 200 && told["cancelling_at"].is_u64(), "{told}");
        }
        let batch = until_over(&server, "any", &begun["id"]);
        assert_eq!(batch["status"], status, "{batch}");
        assert!(batch[format!("{status}_at")].is_u64(), "{batch}");
        assert_eq!(batch["request_counts"], json!({"total": 3, "completed": 1, "failed": 0}));
        assert_eq!(ids(&content(&server, "any", &batch["output_file_id"])).len(), 1);
        let errors = content(&server, "any", &batch["error_file_id"]);
        assert_eq!(errors.iter().map(|line| line["error"]["code"].as_str()).collect::<Vec<_>>(), [Some(code); 2]);
        let path = format!("/v1/batches/{}/cancel", begun["id"].as_str().expect("an id"));
        assert_eq!(server.post(&path, &json!({})).1["error"]["code"], "invalid_batch_status");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = open(folder.path(), &[]);
    let text = [line("a", ""), line("b", r#", "stream": true"#), line("a", ""), "{".to_owned()].join("\n");
    let file = upload(&server, "any", &text);
    let batch = until_over(&server, "any", &create(&server, "any", &file, "24h")["id"]);
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &Value::Null));
    let errors = batch["errors"]["data"].as_array().expect("a list");
    let told: Vec<(&Value, &Value)> = errors.iter().map(|error| (&error["code"], &error["line"])).collect();
    let want = [("unsupported_value", 2), ("duplicate_custom_id", 3), ("invalid_json_line", 4)];
    assert_eq!(
        told,
        want.map(|(code, line)| (json!(code), json!(line))).iter().map(|(a, b)| (a, b)).collect::<Vec<_>>()
    );

    let good = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        let (status, told) = server.post("/v1/batches", &body);
        (status, told["error"]["param"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(with("endpoint", json!("/v1/embeddings")), (400, "endpoint".to_owned()));
    assert_eq!(with("completion_window", json!("soon")), (400, "completion_window".to_owned()));
    assert_eq!(with("metadata", json!({"a": 3})), (400, "metadata.a".to_owned()));
    let expiry = json!({"anchor": "created_at", "seconds": 9});
    assert_eq!(with("output_expires_after", expiry), (400, "output_expires_after.seconds".to_owned()));
    assert_eq!(with("input_file_id", json!("../../etc/passwd")).0, 404);

    let refused = |answer: Answered| {
        let json: Value = serde_json::from_str(&answer.body).expect("JSON");
        (answer.status, json["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(refused(send(&server, "any", "x", "fine-tune", "")), (400, "unsupported_value".to_owned()));
    assert_eq!(refused(send(&server, "any", "x", "batch, 9", "")), (400, "invalid_value".to_owned()));
    assert_eq!(refused(send(&server, "any", &"x".repeat(5001), "batch", "")), (413, "file_too_large".to_owned()));
    let foreign = "\r\nOrigin: https://elsewhere.example";
    assert_eq!(refused(send(&server, "any", "x", "batch", foreign)), (403, "origin_not_allowed".to_owned()));
    assert_eq!(send(&server, "any", "x", "batch", "\r\nOrigin: http://test").status, 200);
    assert_eq!(refused(server.ask("POST", "any", "/v1/files", "{}")), (400, "invalid_form".to_owned()));

    let server = Scripted::new();
    for (method, path) in [("GET", "/v1/files"), ("GET", "/v1/batches"), ("POST", "/v1/batches")] {
        let (status, told) = server.json(method, "any", path, "{}");
        assert_eq!((status, &told["error"]["code"]), (400, &json!("batches_disabled")), "{path}");
    }
}

#[test]
fn files_say_when_they_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = open(folder.path(), &[]);
    server.say(ANSWER);
    let answer = send(&server, "any", &lines(&["a"]), "batch, 3600", "");
    let file: Value = serde_json::from_str(&answer.body).expect("JSON");
    let lifetime =
        |file: &Value| file["expires_at"].as_u64().zip(file["created_at"].as_u64()).map(|(at, from)| at - from);
    assert_eq!(lifetime(&file), Some(3600), "{file}");
    let body = json!({
        "input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "output_expires_after": {"anchor": "created_at", "seconds": 7200},
    });
    let (status, begun) = server.post("/v1/batches", &body);
    assert_eq!(status, 200, "{begun}");
    let batch = until_over(&server, "any", &begun["id"]);
    let path = format!("/v1/files/{}", batch["output_file_id"].as_str().expect("a file"));
    assert_eq!(lifetime(&server.json("GET", "any", &path, "").1), Some(7200));
}

#[test]
fn a_full_folder_takes_no_files_and_a_batch_waits_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, other) = (lines(&["a"]), "x".repeat(4000));
    // Of two files and a batch, 4,096 bytes each besides what is in them: an answer does not fit.
    let max_bytes = (3 * 4096 + text.len() + other.len() + 10) as u64;
    let server = Scripted::with_batches(&[], folder.path(), BatchLimits { max_bytes, ..LIMITS });
    server.say(ANSWER);
    let (file, other) = (upload(&server, "any", &text), upload(&server, "any", &other));
    let begun = create(&server, "any", &file, "24h");
    let refused = send(&server, "any", "x", "batch", "");
    let told: Value = serde_json::from_str(&refused.body).expect("JSON");
    assert_eq!((refused.status, &told["error"]["code"]), (400, &json!("storage_quota_exceeded")));
    let body = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "1h"});
    assert_eq!(server.post("/v1/batches", &body).1["error"]["code"], "storage_quota_exceeded");
    let waits = until(&server, "any", &begun["id"], |batch| !batch["errors"].is_null());
    assert_eq!(
        (&waits["status"], &waits["errors"]["data"][0]["code"]),
        (&json!("in_progress"), &json!("storage_error"))
    );
    let path = format!("/v1/files/{}", other["id"].as_str().expect("an id"));
    assert_eq!(server.json("DELETE", "any", &path, "").0, 200);
    let batch = until_over(&server, "any", &begun["id"]);
    assert_eq!((&batch["status"], &batch["errors"]), (&json!("completed"), &Value::Null));
    assert_eq!(content(&server, "any", &batch["output_file_id"]).len(), 1);
}
