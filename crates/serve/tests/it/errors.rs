//! What is wrong with a request is told by status, code and path; and what is asked for is never left out in silence.

use serde_json::{Value, json};

use super::scripted::{CONTEXT_TOKENS, Scripted};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const FINAL: &str = "<|channel|>final<|message|>Yes.<|return|>";

fn chat(fields: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Go."}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn responses(fields: &Value) -> Value {
    let mut body = json!({"input": "Go."});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// Status, code and param; all four fields are there.
fn told(answer: (u16, Value)) -> (u16, String, Option<String>) {
    let (status, body) = answer;
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {body}"));
    let names: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(names, ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().expect("a text").is_empty());
    let text = |name: &str| error[name].as_str().map(str::to_owned);
    (status, text("code").expect("a code"), text("param"))
}

#[test]
fn what_is_wrong_is_named_in_both_apis() {
    let server = Scripted::new();
    let f = json!([{"type": "function", "name": "f"}]);
    for (fields, code, param) in [
        (json!({"temperature": 3}), "invalid_value", "temperature"),
        (json!({"temperature": "hot"}), "invalid_value", "temperature"),
        (json!({"top_p": -1}), "invalid_value", "top_p"),
        (json!({"top_logprobs": 21}), "invalid_value", "top_logprobs"),
        (json!({"tools": [{"type": "function", "name": "a b"}]}), "invalid_value", "tools[0].name"),
        (json!({"tools": [{"name": "f"}]}), "missing_required_parameter", "tools[0].type"),
        (json!({"tools": f, "tool_choice": "maybe"}), "invalid_value", "tool_choice"),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"tools": f, "tool_choice": {"type": "web_search"}}), "unsupported_value", "tool_choice.type"),
        (json!({"reasoning": {"effort": "lots"}}), "invalid_value", "reasoning.effort"),
        (json!({"stream": "yes"}), "invalid_value", "stream"),
        (json!({"ebnf": "root ::= a"}), "unsupported_parameter", "ebnf"),
        (json!({"logit_bias": {"x": 1}}), "invalid_value", "logit_bias.x"),
    ] {
        let want = (400, code.to_owned(), Some(param.to_owned()));
        assert_eq!(told(server.post(CHAT, &chat(&fields))), want, "{fields}");
        assert_eq!(told(server.post(RESPONSES, &responses(&fields))), want, "{fields}");
    }
    assert_eq!(server.n_asked(), 0, "nothing of that was begun");
}

#[test]
fn what_is_wrong_is_named_in_each_api() {
    let server = Scripted::new();
    for (body, code, param) in [
        (chat(&json!({"n": 129})), "invalid_value", "n"),
        (chat(&json!({"max_tokens": 0})), "invalid_value", "max_tokens"),
        (chat(&json!({"functions": [{"name": "f"}]})), "unsupported_parameter", "functions"),
        (chat(&json!({"response_format": {"type": "xml"}})), "invalid_value", "response_format.type"),
        (
            chat(&json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}})),
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (chat(&json!({"tools": [{"type": "web_search"}]})), "invalid_value", "tools[0].type"),
        (json!({}), "missing_required_parameter", "messages"),
    ] {
        assert_eq!(told(server.post(CHAT, &body)), (400, code.to_owned(), Some(param.to_owned())), "{body}");
    }
    for (body, code, param) in [
        (responses(&json!({"background": true})), "unsupported_parameter", "background"),
        (responses(&json!({"conversation": "conv_1"})), "unsupported_parameter", "conversation"),
        (responses(&json!({"prompt": {"id": "p"}})), "unsupported_parameter", "prompt"),
        (responses(&json!({"max_output_tokens": 0})), "invalid_value", "max_output_tokens"),
        (responses(&json!({"include": ["everything"]})), "invalid_value", "include[0]"),
        (
            responses(&json!({"text": {"format": {"type": "json_schema", "name": "a"}}})),
            "missing_required_parameter",
            "text.format.schema",
        ),
        (responses(&json!({"truncation": "some"})), "invalid_value", "truncation"),
        (json!({}), "missing_required_parameter", "input"),
        (json!({"input": []}), "missing_required_parameter", "input"),
    ] {
        assert_eq!(told(server.post(RESPONSES, &body)), (400, code.to_owned(), Some(param.to_owned())), "{body}");
    }
    for path in [CHAT, RESPONSES] {
        let broken = server.json("POST", "any", path, "{\"messages\": [");
        assert_eq!(told(broken), (400, "invalid_json".into(), None));
        let list = server.json("POST", "any", path, "[]");
        assert_eq!(told(list), (400, "invalid_value".into(), None));
        let model =
            server.post(path, &json!({"model": "gpt-5", "messages": [{"role": "user", "content": "a"}], "input": "a"}));
        assert!(model.1["error"]["message"].as_str().expect("a text").contains("gpt-oss-20b"), "{model:?}");
        assert_eq!(told(model), (404, "model_not_found".into(), Some("model".into())));
    }
    assert_eq!(server.n_asked(), 0, "nothing of that was begun");
}

#[test]
fn a_prompt_that_does_not_fit_is_told_with_the_context_and_more_answer_than_fits_is_clamped() {
    let server = Scripted::new();
    let long = "word ".repeat(CONTEXT_TOKENS);
    for (path, body, param) in [
        (CHAT, json!({"messages": [{"role": "user", "content": long}]}), "messages"),
        (RESPONSES, json!({ "input": long }), "input"),
    ] {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().expect("a text");
        let want = format!("`{param}` has more than {CONTEXT_TOKENS} tokens, which is the context of this model");
        assert_eq!(message, want);
        assert_eq!(told((status, answer.clone())), (400, "context_length_exceeded".into(), Some(param.into())));
    }
    server.say(FINAL);
    server.post(CHAT, &chat(&json!({"max_tokens": 32000})));
    let asked = server.asked();
    assert_eq!(asked.max_new_tokens, CONTEXT_TOKENS + 1 - asked.prompt.len());
}

#[test]
fn truncation_leaves_out_the_oldest_and_only_if_it_is_asked_for() {
    let server = Scripted::new();
    let user = |text: &str| json!({"role": "user", "content": text});
    let old = "word ".repeat(CONTEXT_TOKENS - 300);
    let said = json!({"role": "assistant", "content": "Fine."});
    let more = user(&"more ".repeat(400));
    let input = json!([{"role": "developer", "content": "Be kind."}, user(&old), said, more, said, user("Now?")]);
    let body = |truncation: &str| json!({"input": input, "truncation": truncation});
    assert_eq!(told(server.post(RESPONSES, &body("disabled"))).1, "context_length_exceeded");
    server.say(FINAL);
    let (status, response) = server.post(RESPONSES, &body("auto"));
    assert_eq!(status, 200, "{response}");
    let prompt = server.text(&server.asked().prompt);
    assert!(
        !prompt.contains("word")
            && prompt.contains("Be kind.")
            && prompt.contains("more more")
            && prompt.contains("Now?")
    );
    // What is left is too long by itself.
    let alone = json!({"input": "word ".repeat(CONTEXT_TOKENS), "truncation": "auto"});
    assert_eq!(told(server.post(RESPONSES, &alone)).1, "context_length_exceeded");
}

#[test]
fn what_means_nothing_here_is_accepted() {
    let server = Scripted::new();
    let both = json!({"user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto",
                      "prompt_cache_key": "k",
                      "safety_identifier": "s", "parallel_tool_calls": true, "client_metadata": {"x": 1},
                      "seed": null});
    server.say(FINAL);
    assert_eq!(server.post(CHAT, &chat(&both)).0, 200);
    server.say(FINAL);
    let (status, response) = server.post("/responses", &responses(&both));
    assert_eq!(status, 200);
    for name in ["user", "metadata", "prompt_cache_key", "safety_identifier", "parallel_tool_calls", "store"] {
        assert_eq!(response[name], both[name], "{name}");
    }
    for wrong in [
        json!({"metadata": {"a": 1}}),
        json!({"metadata": {"a": null}}),
        json!({"user": 1}),
        json!({"store": "yes"}),
        json!({"max_tool_calls": 0}),
    ] {
        let name = wrong.as_object().expect("an object").keys().next().expect("one").clone();
        let (status, answer) = server.post("/responses", &responses(&wrong));
        assert_eq!(status, 400, "{wrong}");
        assert!(answer["error"]["param"].as_str().is_some_and(|param| param.starts_with(&name)), "{wrong}: {answer}");
    }
    let required = [
        "id",
        "object",
        "created_at",
        "error",
        "incomplete_details",
        "instructions",
        "model",
        "tools",
        "output",
        "parallel_tool_calls",
        "metadata",
        "tool_choice",
        "temperature",
        "top_p",
        "status",
        "completed_at",
        "max_output_tokens",
        "previous_response_id",
        "reasoning",
        "text",
        "truncation",
        "usage",
    ];
    for name in required {
        assert!(response.get(name).is_some(), "{name}: {response}");
    }
    server.say(FINAL);
    let (_, response) = server.post("/responses", &responses(&json!({})));
    assert!(response.get("user").is_none(), "it is a text, and never null: {response}");
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
}

#[test]
fn tokens_of_a_prompt_are_counted_without_running_it() {
    let server = Scripted::new();
    server.say(FINAL);
    let (_, answer) = server.post(CHAT, &chat(&json!({})));
    let n = &answer["usage"]["prompt_tokens"];
    let want = json!({"object": "response.input_tokens", "input_tokens": n});
    assert_eq!(server.post("/v1/chat/completions/input_tokens", &chat(&json!({}))), (200, want.clone()));
    assert_eq!(server.post("/v1/responses/input_tokens", &responses(&json!({}))), (200, want));
    assert_eq!(server.n_asked(), 1);
}
