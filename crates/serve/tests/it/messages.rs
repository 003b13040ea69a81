//! Anthropic's API: whole and streamed it says the same, and clients in other words get what they ask for.

use serde_json::{Value, json};

use super::scripted::Scripted;

const MESSAGES: &str = "/v1/messages";

const CALL: &str = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Look:<|end|>\
                    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
const TEXT: &str =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes, END and more.<|return|>";

fn body(more: &Value) -> Value {
    let mut body = json!({"model": "gpt-oss-20b", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

/// The message that the events of a stream come to.
fn joined(events: &[(String, String)]) -> Value {
    let mut message = Value::Null;
    let mut partial = String::new();
    for (kind, data) in events {
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(event["type"], **kind);
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match kind.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().expect("a list");
                assert_eq!(content.len(), index);
                content.push(event["content_block"].clone());
                partial.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        block[name] = (block[name].as_str().unwrap_or_default().to_owned() + more).into();
                    }
                }
                partial += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                message["content"][index]["input"] = serde_json::from_str(&partial).expect("JSON");
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

#[test]
fn a_stream_joined_is_the_whole_message() {
    let server = Scripted::new();
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let thinks = json!({"type": "enabled", "budget_tokens": 1024});
    for (output, more, kinds, stop) in [
        (CALL, json!({"tools": tools, "thinking": thinks}), vec!["thinking", "text", "tool_use"], "tool_use"),
        (CALL, json!({"tools": tools}), vec!["text", "tool_use"], "tool_use"),
        (TEXT, json!({}), vec!["text"], "end_turn"),
        (TEXT, json!({"stop_sequences": ["END"]}), vec!["text"], "stop_sequence"),
        (TEXT, json!({"max_tokens": 3, "thinking": thinks}), vec!["thinking"], "max_tokens"),
    ] {
        server.say(output);
        let (status, whole) = server.post(MESSAGES, &body(&more));
        assert_eq!(status, 200, "{whole}");
        server.say(output);
        let mut streamed = joined(&server.stream(MESSAGES, &body(&more)));
        let found: Vec<&str> = whole["content"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|block| block["type"].as_str().expect("a type"))
            .collect();
        assert_eq!(found, kinds, "{whole}");
        assert_eq!(whole["stop_reason"], stop, "{whole}");
        // Each has an id of its own, its calls have, and seals are never the same.
        let mut whole = whole;
        for message in [&mut whole, &mut streamed] {
            message["id"] = Value::Null;
            for block in message["content"].as_array_mut().expect("a list") {
                for name in ["id", "signature"] {
                    if block.get(name).is_some() {
                        block[name] = Value::Null;
                    }
                }
            }
        }
        assert_eq!(streamed, whole);
    }
}

#[test]
fn thoughts_come_back_as_they_were_and_tokens_are_counted() {
    let server = Scripted::new();
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    server.say(CALL);
    let asked = body(&json!({"tools": tools, "thinking": {"type": "adaptive"}}));
    let (_, message) = server.post(MESSAGES, &asked);
    let id = message["content"][2]["id"].clone();
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "3"}]});
    let turns = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": message["content"]}, result,
    ]);
    server.say(TEXT);
    let again = body(&json!({"tools": tools, "messages": turns}));
    let (status, answer) = server.post(MESSAGES, &again);
    assert_eq!(status, 200, "{answer}");
    let prompt = server.asked().prompt;
    let text = server.text(&prompt);
    assert!(text.contains(&CALL["<|channel|>".len()..]), "{text}");
    let (_, counted) = server.post("/v1/messages/count_tokens", &again);
    assert_eq!(counted["input_tokens"], prompt.len());
}

#[test]
fn an_answer_has_one_call_or_the_form_that_is_asked_for() {
    let server = Scripted::new();
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let two = [CALL, &CALL["<|channel|>analysis<|message|>Hm.<|end|>".len()..]].concat();
    for (one, n) in [(true, 1), (false, 2)] {
        server.say(&two.replacen("<|call|>", "", 1));
        let choice = json!({"type": "auto", "disable_parallel_tool_use": one});
        let (status, message) = server.post(MESSAGES, &body(&json!({"tools": tools, "tool_choice": choice})));
        let blocks = message["content"].as_array().expect("a list");
        assert_eq!((status, blocks.iter().filter(|block| block["type"] == "tool_use").count()), (200, n), "{message}");
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                        "additionalProperties": false});
    let asked = body(&json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}));
    for (text, is_right) in [("{\"a\":1}", true), ("{\"b\":1}", false), ("Yes.", false)] {
        let output = format!("<|channel|>final<|message|>{text}<|return|>");
        server.say_checked(&output);
        let (status, message) = server.post(MESSAGES, &asked);
        assert_eq!(status, 200, "{message}");
        assert_eq!(server.asked().n_allowed == Some(server.ids(&output).len()), is_right, "{text}");
    }
    let wrong = json!({"type": "object", "properties": {"a": {"type": "nothing"}}});
    for (more, place) in [
        (json!({"output_config": {"format": {"type": "json_schema", "schema": wrong}}}), "`properties.a"),
        (json!({"tools": [{"name": "f", "input_schema": wrong, "strict": true}]}), "`properties.a"),
    ] {
        let (status, error) = server.post(MESSAGES, &body(&more));
        assert!(status == 400 && error["error"]["message"].to_string().contains(place), "{error}");
    }
}

#[test]
fn errors_have_the_form_of_that_api() {
    let server = Scripted::with_keys(&["right"]);
    let (status, error) = server.post_as("right", MESSAGES, &json!({"messages": []}));
    assert_eq!((status, &error["type"]), (400, &"error".into()));
    assert_eq!(error["error"]["type"], "invalid_request_error");
    let (status, error) = server.post_as("wrong", MESSAGES, &body(&json!({})));
    assert_eq!((status, &error["error"]["type"]), (401, &"authentication_error".into()));
    let (status, error) = server.post_as("right", MESSAGES, &body(&json!({"model": "other"})));
    assert_eq!((status, &error["error"]["type"]), (404, &"not_found_error".into()));
    let (_, error) = server.post_as("right", "/v1/chat/completions", &json!({}));
    assert_eq!(error["error"]["code"], "missing_required_parameter");
}
