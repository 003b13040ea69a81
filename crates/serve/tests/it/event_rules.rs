//! The rules of a stream of Responses events, as the strictest clients hold servers to them.

use std::collections::HashSet;

use serde_json::{Value, json};

/// An item that was added and is not done.
struct Open {
    output_index: u64,
    item: Value,
    /// What its deltas come to.
    text: String,
    has_part: bool,
    is_told: bool,
}

/// The response that the events end in.
///
/// # Panics
/// They break a rule.
pub fn checked(events: &[(String, String)]) -> Value {
    let mut open: Option<Open> = None;
    let mut done: Vec<Value> = Vec::new();
    let (mut id, mut last) = (None, None);
    let mut item_ids = HashSet::new();
    for (n, (kind, data)) in events.iter().enumerate() {
        let event: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(event["type"], kind.as_str());
        assert_eq!(event["sequence_number"], n, "{event}");
        assert!(last.is_none(), "nothing comes behind the end: {event}");
        if let Some(response) = event.get("response") {
            let own = response["id"].as_str().expect("an id").to_owned();
            assert_eq!(id.get_or_insert_with(|| own.clone()), &own, "one response, one id");
        }
        match (kind.as_str(), n) {
            ("response.created", 0) | ("response.in_progress", 1) => {
                assert_eq!(
                    (&event["response"]["status"], &event["response"]["output"]),
                    (&json!("in_progress"), &json!([]))
                );
            }
            (_, 0 | 1) => panic!("the stream begins with {kind}"),
            ("response.output_item.added", _) => {
                assert!(open.is_none(), "the last item is not done: {event}");
                let output_index = event["output_index"].as_u64().expect("a number");
                assert_eq!(output_index, done.len() as u64, "{event}");
                let item = event["item"].clone();
                assert_eq!(item["status"], "in_progress");
                assert!(item_ids.insert(item["id"].as_str().expect("an id").to_owned()), "a new id: {event}");
                let is_empty = match called_with(&item) {
                    Some((_, given)) => &item[given] == "",
                    None => item["content"] == json!([]),
                };
                assert!(is_empty, "{event}");
                open = Some(Open { output_index, item, text: String::new(), has_part: false, is_told: false });
            }
            ("response.output_item.done", _) => {
                let open = open.take().expect("an item was added");
                let item = &event["item"];
                assert_eq!((&item["id"], &item["type"]), (&open.item["id"], &open.item["type"]));
                assert_eq!((event["output_index"].as_u64(), open.is_told), (Some(open.output_index), true));
                assert!(["completed", "incomplete"].contains(&item["status"].as_str().expect("a status")));
                let called = called_with(item);
                let text = called.map_or(&item["content"][0]["text"], |(_, given)| &item[given]);
                assert_eq!(text, open.text.as_str(), "{event}");
                assert_eq!(called.is_some(), !open.has_part);
                done.push(item.clone());
            }
            ("response.completed" | "response.incomplete", _) => {
                assert!(open.is_none(), "an item is not done");
                assert_eq!(event["response"]["output"], json!(done));
                assert_eq!(format!("response.{}", event["response"]["status"].as_str().expect("a status")), *kind);
                assert!(event["response"]["usage"]["total_tokens"].is_u64());
                last = Some(event["response"].clone());
            }
            (kind, _) => inside(open.as_mut().unwrap_or_else(|| panic!("{kind} outside of an item")), kind, &event),
        }
    }
    last.expect("the stream has an end")
}

/// What a call's events are named by, and the field with what it gives; None for what is no call.
fn called_with(item: &Value) -> Option<(&'static str, &'static str)> {
    match item["type"].as_str().expect("a type") {
        "function_call" => Some(("response.function_call_arguments", "arguments")),
        "custom_tool_call" => Some(("response.custom_tool_call_input", "input")),
        _ => None,
    }
}

/// An event inside of an item.
fn inside(open: &mut Open, kind: &str, event: &Value) {
    assert_eq!((&event["item_id"], event["output_index"].as_u64()), (&open.item["id"], Some(open.output_index)));
    let called = called_with(&open.item);
    let is_call = called.is_some();
    assert_eq!(event["content_index"].as_u64(), (!is_call).then_some(0), "{event}");
    let prefix = match (open.item["type"].as_str().expect("a type"), called) {
        (_, Some((prefix, _))) => prefix,
        ("reasoning", _) => "response.reasoning_text",
        ("message", _) => "response.output_text",
        (other, _) => panic!("an item of type {other}"),
    };
    match kind.strip_prefix(prefix) {
        Some(".delta") => {
            assert!((open.has_part || is_call) && !open.is_told, "{event}");
            open.text += event["delta"].as_str().expect("a text");
        }
        Some(".done") => {
            assert!(!open.is_told, "{event}");
            assert_eq!(event[called.map_or("text", |(_, given)| given)], open.text.as_str());
            let is_function = open.item["type"] == "function_call";
            assert_eq!(event["name"], if is_function { open.item["name"].clone() } else { Value::Null });
            open.is_told = true;
        }
        _ => match kind {
            "response.content_part.added" => {
                assert!(!open.has_part && !is_call, "{event}");
                assert_eq!(event["part"]["text"], "");
                open.has_part = true;
            }
            "response.content_part.done" => {
                assert!(open.has_part && open.is_told, "{event}");
                assert_eq!(event["part"]["text"], open.text.as_str());
            }
            kind => panic!("{kind} in an item of type {}", open.item["type"]),
        },
    }
}
