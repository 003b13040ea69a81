//! Tools that take text and not JSON: `custom`, in Responses.

use serde_json::{Value, json};

use super::event_rules;
use super::scripted::Scripted;

const RESPONSES: &str = "/v1/responses";
const PATCH: &str = "*** Begin Patch\n+{\"a\": 1}\n*** End Patch";

fn custom(format: Value) -> Value {
    json!([{"type": "custom", "name": "apply_patch", "description": "Changes files.", "format": format}])
}

fn call() -> String {
    format!(" to=functions.apply_patch<|channel|>commentary<|message|>{PATCH}<|call|>")
}

#[test]
fn the_model_is_told_of_a_tool_that_takes_text_and_its_call_comes_back_as_it_was_made() {
    let server = Scripted::new();
    server.say_checked(&call());
    let mut body = json!({"input": "Go.", "tools": custom(json!({"type": "text"})), "store": false});
    let (status, response) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{response}");
    let asked = server.asked();
    assert_eq!(asked.n_allowed, Some(server.ids(&call()).len()), "the mask lets all of it be written");
    let prompt = server.text(&asked.prompt);
    assert!(prompt.contains("// Changes files.\ntype apply_patch = (_: string) => any;\n"), "{prompt}");
    assert_eq!(response["tools"], body["tools"]);
    let item = response["output"][0].clone();
    assert_eq!(item["type"], "custom_tool_call", "{response}");
    assert_eq!((&item["name"], &item["input"]), (&json!("apply_patch"), &json!(PATCH)));

    // Known by its id, or written anew for one that is not: both are the header that was made.
    let made = [asked.prompt, server.ids(&call())].concat();
    for call_id in [item["call_id"].clone(), json!("call_of_another_server")] {
        let mut item = item.clone();
        item["call_id"] = call_id.clone();
        let result = json!({"type": "custom_tool_call_output", "call_id": call_id, "output": "Done."});
        server.say("<|channel|>final<|message|>Yes.<|return|>");
        body["input"] = json!([{"role": "user", "content": "Go."}, item, result]);
        let (status, response) = server.post(RESPONSES, &body);
        assert_eq!(status, 200, "{response}");
        let prompt = server.asked().prompt;
        let behind = prompt.strip_prefix(made.as_slice()).unwrap_or_else(|| panic!("{}", server.text(&prompt)));
        assert_eq!(
            server.text(behind),
            "<|start|>functions.apply_patch to=assistant<|channel|>commentary<|message|>Done.<|end|><|start|>assistant"
        );
    }
}

#[test]
fn events_of_a_call_with_text_come_to_the_whole_answer() {
    let server = Scripted::new();
    server.say(&call());
    let body = json!({"input": "Go.", "tools": custom(Value::Null)});
    let events = server.stream(RESPONSES, &body);
    let response = event_rules::checked(&events);
    assert_eq!(response["output"][0]["input"], PATCH);
    assert!(response["tools"][0].get("format").is_none(), "the API has no null there: {response}");
    let n = |kind: &str| events.iter().filter(|(found, _)| found == kind).count();
    assert_eq!(n("response.custom_tool_call_input.done"), 1);
    assert!(n("response.custom_tool_call_input.delta") > 0);
}

#[test]
fn no_text_is_a_text_too_and_what_looks_like_no_arguments_is_text() {
    let server = Scripted::new();
    let body = json!({"input": "Go.", "tools": custom(Value::Null)});
    for (written, is_whole) in [("", true), ("\n", true), ("{}", true), ("", false), ("{}", false)] {
        let end = if is_whole { "<|call|>" } else { "" };
        let says = format!(" to=functions.apply_patch<|channel|>commentary<|message|>{written}{end}");
        server.say(&says);
        let (_, response) = server.post(RESPONSES, &body);
        let item = &response["output"][0];
        assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!(written)), "{says}");
    }
}

#[test]
fn the_text_is_held_to_its_grammar() {
    let server = Scripted::new();
    let grammar =
        |syntax: &str, definition: &str| json!({"type": "grammar", "syntax": syntax, "definition": definition});
    let lark = "start: begin line+ end\nbegin: \"*** Begin Patch\\n\"\nline: /\\+.*\\n/\nend: \"*** End Patch\"";
    let written = |text: &str| format!(" to=functions.apply_patch<|channel|>commentary<|message|>{text}<|call|>");
    for (format, text, is_allowed) in [
        (grammar("lark", lark), PATCH, true),
        (grammar("lark", lark), "*** Begin Patch\n-a\n*** End Patch", false),
        (grammar("regex", r"/\d+/[a-z]\/"), "/12/x/", true),
        (grammar("regex", r"/\d+/[a-z]\/"), "/12/xy", false),
    ] {
        let written = written(text);
        server.say_checked(&written);
        let body = json!({"input": "Go.", "tools": custom(format), "tool_choice": "required"});
        let (status, response) = server.post(RESPONSES, &body);
        assert_eq!(status, 200, "{response}");
        let n_allowed = server.asked().n_allowed.expect("there is a mask");
        assert_eq!(n_allowed == server.ids(&written).len(), is_allowed, "{text}: {n_allowed} tokens");
    }
    for (format, param) in [
        (grammar("lark", "begin: \"a\""), "tools[0].format.definition"),
        (grammar("lark", "start: \"a\" }\nother: %lark { start: \"b\""), "tools[0].format.definition"),
        // Inside of the format's grammar these are right, and write rules into it.
        (grammar("lark", "start: \"a\"\n}\nother: %lark {\nstart: \"b\""), "tools[0].format.definition"),
        (grammar("lark", "start: \"a\"\n}\n// {"), "tools[0].format.definition"),
        (grammar("lark", "start: \"a\"\n}"), "tools[0].format.definition"),
        (grammar("regex", r"a\"), "tools[0].format.definition"),
        (grammar("regex", "("), "tools[0].format.definition"),
        (grammar("gbnf", "root ::= \"a\""), "tools[0].format.syntax"),
        (json!({"type": "json"}), "tools[0].format.type"),
    ] {
        let (status, response) = server.post(RESPONSES, &json!({"input": "Go.", "tools": custom(format.clone())}));
        assert_eq!((status, &response["error"]["param"]), (400, &json!(param)), "{format}: {response}");
    }
}

#[test]
fn a_tool_that_takes_text_can_be_chosen_and_is_refused_in_chats() {
    let server = Scripted::new();
    server.say_checked("<|channel|>final<|message|>No.<|return|>");
    let choice = json!({"type": "custom", "name": "apply_patch"});
    let body = json!({"input": "Go.", "tools": custom(Value::Null), "tool_choice": choice});
    let (status, response) = server.post(RESPONSES, &body);
    assert_eq!((status, server.asked().n_allowed), (200, Some(1)), "no answer but a call: {response}");
    let body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": custom(Value::Null)});
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("tools[0].type")));
}
