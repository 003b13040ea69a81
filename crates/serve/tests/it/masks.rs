//! What a request wants of tools and of JSON is what its mask allows, in both APIs.

use serde_json::{Value, json};

use super::scripted::Scripted;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

const CALL_F: &str = "<|channel|>analysis<|message|>Hm.<|end|>\
                      <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
const CALL_G: &str = "<|channel|>analysis<|message|>Hm.<|end|>\
                      <|start|>assistant to=functions.g<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
const CALL_X: &str = "<|channel|>analysis<|message|>Hm.<|end|>\
                      <|start|>assistant to=functions.x<|channel|>commentary json<|message|>{\"a\":1}<|call|>";
const TEXT: &str =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
const JSON: &str =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{\"a\":1}<|return|>";
const ODD_HEADER: &str = "<|channel|>analysis<|channel|>final<|message|>Yes.<|return|>";

/// Whether the mask of a request allows all of an output.
fn allows(server: &Scripted, path: &str, body: &Value, output: &str) -> bool {
    server.say_checked(output);
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{answer}");
    server.asked().n_allowed.expect("a mask") == server.ids(output).len()
}

fn bodies(fields: &Value, chat: &Value, responses: &Value) -> [(&'static str, Value); 2] {
    let with = |mut body: Value, more: &Value| {
        for more in [fields, more] {
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        }
        body
    };
    let messages = json!([{"role": "user", "content": "Go."}]);
    [(CHAT, with(json!({ "messages": messages }), chat)), (RESPONSES, with(json!({"input": "Go."}), responses))]
}

/// Of an object that has `a` alone, of a type.
fn schema_of_a(kind: &str) -> Value {
    let properties = json!({"a": {"type": kind}});
    json!({"type": "object", "properties": properties, "required": ["a"], "additionalProperties": false})
}

#[test]
fn a_choice_of_tools_is_held_to() {
    let server = Scripted::new();
    let tools = json!([{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]);
    let outputs = [TEXT, CALL_F, CALL_G, CALL_X];
    for (choice, want) in [
        (json!("none"), [true, false, false, false]),
        (json!("auto"), [true, true, true, false]),
        (Value::Null, [true, true, true, false]),
        (json!("required"), [false, true, true, false]),
        (json!({"type": "function", "name": "g"}), [false, false, true, false]),
        (json!({"type": "function", "function": {"name": "g"}}), [false, false, true, false]),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}),
            [true, true, false, false],
        ),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"name": "f"}]}}),
            [false, true, false, false],
        ),
    ] {
        let fields = json!({"tools": tools, "tool_choice": choice});
        for (path, body) in bodies(&fields, &json!({}), &json!({})) {
            let found = outputs.map(|output| allows(&server, path, &body, output));
            assert_eq!(found, want, "{path} {choice}");
        }
    }
}

#[test]
fn headers_are_masked_in_every_request() {
    let server = Scripted::new();
    for (path, body) in bodies(&json!({}), &json!({}), &json!({})) {
        assert!(allows(&server, path, &body, TEXT), "{path}");
        assert!(!allows(&server, path, &body, ODD_HEADER), "{path}");
    }
}

#[test]
fn structured_output_is_held_to_its_schema() {
    let server = Scripted::new();
    for (format, want) in [
        (json!({"type": "json_object"}), true),
        (json!({"type": "json_schema", "name": "it", "schema": schema_of_a("integer"), "strict": true}), true),
        (json!({"type": "json_schema", "name": "it", "schema": schema_of_a("string")}), false),
    ] {
        let mut nested = format.clone();
        if format["type"] == "json_schema" {
            nested = json!({"type": "json_schema", "json_schema": format});
        }
        for (path, body) in
            bodies(&json!({}), &json!({"response_format": nested}), &json!({"text": {"format": format}}))
        {
            assert_eq!(allows(&server, path, &body, JSON), want, "{path} {format}");
            assert!(!allows(&server, path, &body, TEXT), "{path} {format}");
            let prompt = server.text(&server.asked().prompt);
            assert_eq!(
                prompt.contains("# Response Formats\n\n## it\n\n{"),
                format["type"] == "json_schema",
                "{prompt}"
            );
        }
    }
}

#[test]
fn what_is_asked_of_an_answer_holds_with_ignore_eos_too_which_goes_on_where_nothing_is() {
    let server = Scripted::new();
    let schema = json!({"type": "json_schema", "name": "it", "schema": schema_of_a("string")});
    let tools = json!([{"type": "function", "name": "f"}]);
    let named = json!({"type": "function", "name": "f"});
    for (fields, chat, responses, output) in [
        (
            json!({}),
            json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
            json!({"text": {"format": schema}}),
            JSON,
        ),
        (
            json!({}),
            json!({"response_format": {"type": "json_object"}}),
            json!({"text": {"format": {"type": "json_object"}}}),
            TEXT,
        ),
        (json!({"tools": tools, "tool_choice": "required"}), json!({}), json!({}), TEXT),
        (json!({"tools": tools, "tool_choice": named}), json!({}), json!({}), TEXT),
        (json!({"tools": tools}), json!({}), json!({}), CALL_G),
    ] {
        for (path, mut body) in bodies(&fields, &chat, &responses) {
            body["ignore_eos"] = true.into();
            assert!(!allows(&server, path, &body, output), "{path} {body}");
        }
    }
    // It ends with the form, and what comes behind is not of the answer.
    let more = "<|start|>assistant<|channel|>final<|message|>More.<|return|>";
    for (fields, want) in
        [(json!({"response_format": {"type": "json_object"}}), "{\"a\":1}"), (json!({}), "Yes.\n\nMore.")]
    {
        let [(_, mut body), _] = bodies(&fields, &json!({}), &json!({}));
        body["ignore_eos"] = true.into();
        let first = if fields["response_format"].is_null() { TEXT } else { JSON };
        server.say(&[first, more].concat());
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!((status, answer["choices"][0]["message"]["content"].as_str()), (200, Some(want)), "{answer}");
    }
}

#[test]
fn ignore_eos_goes_on_in_an_answer_without_reasoning_too() {
    let server = Scripted::new();
    let [(_, mut body), _] = bodies(&json!({"reasoning_effort": "none"}), &json!({}), &json!({}));
    body["ignore_eos"] = true.into();
    server.say("Yes.<|return|><|start|>assistant<|channel|>final<|message|>More.<|return|>");
    let (status, answer) = server.post(CHAT, &body);
    let choice = &answer["choices"][0];
    assert_eq!((status, choice["message"]["content"].as_str()), (200, Some("Yes.\n\nMore.")), "{answer}");
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn arguments_are_held_to_their_schema_if_they_are_strict() {
    let server = Scripted::new();
    let parameters = schema_of_a("string");
    for strict in [true, false] {
        let tools = json!([{"type": "function", "name": "f", "parameters": parameters, "strict": strict}]);
        for (path, body) in bodies(&json!({ "tools": tools }), &json!({}), &json!({})) {
            assert_eq!(allows(&server, path, &body, CALL_F), !strict, "{path}: `a` is a number");
        }
    }
}

#[test]
fn a_schema_that_cannot_be_enforced_is_refused_and_named() {
    let server = Scripted::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "nothing"}}});
    let tool = json!({"type": "function", "name": "f", "parameters": schema, "strict": true});
    let format = json!({"type": "json_schema", "name": "it", "schema": schema});
    let nested = json!({"type": "json_schema", "json_schema": format});
    let first = json!({"type": "web_search"});
    for (path, body, param) in [
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}], "response_format": nested}),
            "response_format.json_schema.schema",
        ),
        (CHAT, json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool]}), "tools[0].parameters"),
        (RESPONSES, json!({"input": "a", "text": {"format": format}}), "text.format.schema"),
        (RESPONSES, json!({"input": "a", "tools": [first, tool]}), "tools[1].parameters"),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["code"].as_str()), (400, Some("invalid_json_schema")), "{answer}");
        assert_eq!(error["param"], param);
    }
    assert_eq!(server.n_asked(), 0, "nothing of that was begun");
}

#[test]
fn the_ids_that_a_chat_would_run_can_be_seen() {
    let server = Scripted::new();
    let [(_, body), _] = bodies(&json!({}), &json!({}), &json!({}));
    let (status, applied) = server.post("/apply-template", &body);
    server.say(TEXT);
    server.post(CHAT, &body);
    let prompt = server.asked().prompt;
    assert_eq!((status, &applied), (200, &json!({"prompt": server.text(&prompt), "token_ids": prompt})));
}
