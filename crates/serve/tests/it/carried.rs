//! What of earlier answers a client names by id, or carries sealed.

use serde_json::{Value, json};

use super::event_rules;
use super::scripted::Scripted;

const RESPONSES: &str = "/v1/responses";

/// A model that spells its reasoning as no tokenizer would: two tokens where there is one.
fn call(server: &Scripted) -> Vec<u32> {
    let mut ids = server.ids("<|channel|>analysis<|message|>Look");
    ids.extend(" again".bytes().flat_map(|byte| server.ids(std::str::from_utf8(&[byte]).expect("ASCII"))));
    ids.extend(server.ids(".<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"));
    ids
}

fn respond(server: &Scripted, key: &str, body: &Value, says: Vec<u32>) -> (u16, Value) {
    server.say_ids(says);
    let mut body = body.clone();
    body["tools"] = json!([{"type": "function", "name": "f"}]);
    server.post_as(key, RESPONSES, &body)
}

/// The conversation goes on with this reasoning, and a call and a result whose ids nobody knows.
fn goes_on(reasoning: &Value) -> Value {
    json!([
        {"role": "user", "content": "How much?"},
        reasoning,
        {"type": "function_call", "call_id": "elsewhere", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "elsewhere", "output": "3"},
    ])
}

const RESULT: &str = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>3<|end|><|start|>assistant";

#[test]
fn reasoning_that_a_client_carries_sealed_goes_into_the_prompt_by_its_very_ids() {
    let server = Scripted::with_keys(&["one", "other"]);
    let said = call(&server);
    let body = json!({"input": "How much?", "store": false, "include": ["reasoning.encrypted_content"]});
    let (status, response) = respond(&server, "one", &body, said.clone());
    assert_eq!(status, 200, "{response}");
    let made = [server.asked().prompt, said.clone()].concat();
    let reasoning = response["output"][0].clone();
    let sealed = reasoning["encrypted_content"].as_str().expect("it is sealed");
    assert!(!sealed.contains("Look"));

    let answer = || server.ids("<|channel|>final<|message|>3<|return|>");
    let bare = json!({"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": sealed});
    for item in [&reasoning, &bare] {
        let (status, response) = respond(&server, "one", &json!({"input": goes_on(item)}), answer());
        assert_eq!(status, 200, "{response}");
        let prompt = server.asked().prompt;
        let behind = prompt.strip_prefix(made.as_slice()).unwrap_or_else(|| panic!("{}", server.text(&prompt)));
        assert_eq!(server.text(behind), RESULT);
    }

    // Another's key does not open it: its content is as good, and without one that is an error.
    let (status, _) = respond(&server, "other", &json!({"input": goes_on(&reasoning)}), answer());
    let prompt = server.asked().prompt;
    assert_eq!((status, prompt.starts_with(&made)), (200, false));
    assert!(server.text(&prompt).contains("<|channel|>analysis<|message|>Look again.<|end|>"));
    for key in ["one", "other"] {
        let mut item = bare.clone();
        if key == "one" {
            item["encrypted_content"] = sealed.replace(char::is_uppercase, "a").into();
        }
        let (status, error) = server.post_as(key, RESPONSES, &json!({"input": goes_on(&item)}));
        let error = &error["error"];
        assert_eq!((status, error["code"].as_str()), (400, Some("invalid_encrypted_content")), "{error}");
        assert_eq!(error["param"], "input[1].encrypted_content");
    }
}

#[test]
fn reasoning_is_sealed_for_those_who_ask_and_in_streams_with_the_item() {
    let server = Scripted::new();
    server.say_ids(call(&server));
    let asks = json!({"input": "How much?", "include": ["reasoning.encrypted_content"]});
    let events = server.stream(RESPONSES, &asks);
    let response = event_rules::checked(&events);
    assert!(response["output"][0]["encrypted_content"].is_string(), "{response}");
    assert!(response["output"][1].get("encrypted_content").is_none());
    let (_, response) = respond(&server, "any", &json!({"input": "How much?"}), call(&server));
    assert_eq!(response["output"][0]["encrypted_content"], Value::Null);
}

#[test]
fn an_item_is_named_by_its_id_while_its_response_is_stored() {
    let server = Scripted::with_keys(&["one", "other"]);
    let said = call(&server);
    let (_, first) = respond(&server, "one", &json!({"input": "How much?"}), said.clone());
    let made = [server.asked().prompt, said.clone()].concat();
    let id = first["id"].as_str().expect("an id");
    let (_, input) = server.json("GET", "one", &format!("{RESPONSES}/{id}/input_items"), "");
    let refer = |item: &Value| json!({"type": "item_reference", "id": item["id"]});
    let result = json!({"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "3"});
    let items = json!([
        refer(&input["data"][0]),
        {"id": first["output"][0]["id"]},
        refer(&first["output"][1]),
        result,
    ]);
    let answer = server.ids("<|channel|>final<|message|>3<|return|>");
    let (status, response) = respond(&server, "one", &json!({"input": items}), answer.clone());
    assert_eq!(status, 200, "{response}");
    let prompt = server.asked().prompt;
    let behind = prompt.strip_prefix(made.as_slice()).unwrap_or_else(|| panic!("{}", server.text(&prompt)));
    assert_eq!(server.text(behind), RESULT);
    let second = response["id"].as_str().expect("an id");
    let (_, input) = server.json("GET", "one", &format!("{RESPONSES}/{second}/input_items?order=asc"), "");
    assert_eq!(input["data"][1], first["output"][0], "what was referred to is listed");

    // Another's, deleted, not stored, or never there.
    let not_found = |key: &str, item: &Value| {
        let (status, error) = server.post_as(key, RESPONSES, &json!({"input": [refer(item)]}));
        assert_eq!((status, error["error"]["param"].as_str()), (404, Some("input[0].id")), "{error}");
    };
    not_found("other", &first["output"][0]);
    server.json("DELETE", "one", &format!("{RESPONSES}/{id}"), "");
    not_found("one", &first["output"][0]);
    let (_, third) = respond(&server, "one", &json!({"input": "How much?", "store": false}), answer);
    not_found("one", &third["output"][0]);
    for id in ["", "rs", "rs_", "rs_-", "é_é-é"] {
        not_found("one", &json!({ "id": id }));
    }
}
