//! Conversations over several turns: what comes back from a client is in the next prompt as the model wrote it.

use serde_json::{Value, json};

use super::scripted::Scripted;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// A call in a form that nobody would render: its recipient stands behind the channel.
const CALL: &str = "<|channel|>analysis<|message|>Look it up.<|end|>\
                    <|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>\
                    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json\
                    <|message|>{\"a\":  1}<|call|>";
const SECOND_CALL: &str = "<|channel|>analysis<|message|>Again.<|end|>\
                           <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>";
const ANSWER: &str =
    "<|channel|>analysis<|message|>Now I know.<|end|><|start|>assistant<|channel|>final<|message|>It is 3.<|return|>";

fn chat_tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "number"}}});
    json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
}

fn chat(server: &Scripted, key: &str, messages: &[Value], says: &str) -> Value {
    server.say(says);
    let (status, answer) = server.post_as(key, CHAT, &json!({"messages": messages, "tools": chat_tools()}));
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["message"].clone()
}

/// What follows `start` in `prompt`, spelled.
fn behind(server: &Scripted, start: &[u32], prompt: &[u32]) -> String {
    let rest = prompt.strip_prefix(start).unwrap_or_else(|| {
        panic!("{}\n\ndoes not begin with\n\n{}", server.text(prompt), server.text(start));
    });
    server.text(rest)
}

const RESULT: &str = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>3<|end|><|start|>assistant";

#[test]
fn tool_turns_of_a_chat_come_back_as_they_were_made_though_the_client_drops_the_reasoning() {
    let server = Scripted::new();
    let mut messages = vec![json!({"role": "user", "content": "How much?"})];
    for (turn, says) in [CALL, SECOND_CALL].into_iter().enumerate() {
        let mut message = chat(&server, "any", &messages, says);
        let made = [server.asked().prompt, server.ids(says)].concat();
        assert!(message["reasoning"].is_string());
        for dropped in ["reasoning", "reasoning_content", "refusal", "annotations"] {
            message.as_object_mut().expect("an object").shift_remove(dropped);
        }
        let id = message["tool_calls"][0]["id"].clone();
        messages.push(message);
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "3"}));
        chat(&server, "any", &messages, ANSWER);
        assert_eq!(behind(&server, &made, &server.asked().prompt), RESULT, "turn {turn}");
    }
}

#[test]
fn reasoning_is_left_out_once_there_is_an_answer() {
    let server = Scripted::new();
    let mut messages = vec![json!({"role": "user", "content": "How much?"})];
    let message = chat(&server, "any", &messages, CALL);
    let id = message["tool_calls"][0]["id"].clone();
    messages.push(message);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "3"}));
    messages.push(chat(&server, "any", &messages, ANSWER));
    messages.push(json!({"role": "user", "content": "Sure?"}));
    chat(&server, "any", &messages, ANSWER);
    let prompt = server.text(&server.asked().prompt);
    let (_, conversation) = prompt.split_once("<|start|>user").expect("a user");
    assert_eq!(
        conversation,
        "<|message|>How much?<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>\
         <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":  1}<|call|>\
         <|start|>functions.f to=assistant<|channel|>commentary<|message|>3<|end|>\
         <|start|>assistant<|channel|>final<|message|>It is 3.<|end|>\
         <|start|>user<|message|>Sure?<|end|><|start|>assistant"
    );
}

#[test]
fn both_names_of_reasoning_are_read() {
    let server = Scripted::new();
    for name in ["reasoning", "reasoning_content"] {
        let call = json!({"id": "call_elsewhere", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let messages = [
            json!({"role": "user", "content": "Go."}),
            json!({"role": "assistant", "content": "", "tool_calls": [call], name: "Hm."}),
            json!({"role": "tool", "tool_call_id": "call_elsewhere", "content": [{"type": "text", "text": "3"}]}),
        ];
        chat(&server, "any", &messages, ANSWER);
        let prompt = server.text(&server.asked().prompt);
        let want = "<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>\
                    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>";
        assert!(prompt.ends_with(&format!("{want}{RESULT}")), "{name}: {prompt}");
    }
}

#[test]
fn a_turn_that_the_client_changed_or_that_is_anothers_is_rendered_anew() {
    let server = Scripted::with_keys(&["one", "other"]);
    let user = json!({"role": "user", "content": "How much?"});
    let mut message = chat(&server, "one", std::slice::from_ref(&user), CALL);
    message
        .as_object_mut()
        .expect("an object")
        .retain(|name, _| ["role", "content", "tool_calls"].contains(&name.as_str()));
    let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"});
    let prompt = |key: &str, message: &Value| {
        chat(&server, key, &[user.clone(), message.clone(), result.clone()], ANSWER);
        server.text(&server.asked().prompt)
    };
    assert!(prompt("one", &message).contains("Look it up."), "it is the same");
    assert!(!prompt("other", &message).contains("Look it up."), "another's key");
    message["tool_calls"][0]["function"]["arguments"] = "{\"a\": 2}".into();
    let changed = prompt("one", &message);
    assert!(
        !changed.contains("Look it up.")
            && changed.contains("to=functions.f<|channel|>commentary json<|message|>{\"a\": 2}")
    );
}

#[test]
fn calls_of_one_message_are_each_followed_by_their_result() {
    let server = Scripted::new();
    let call = |id: &str, arguments: &str| json!({"id": id, "function": {"name": "f", "arguments": arguments}});
    let messages = [
        json!({"role": "user", "content": "Go."}),
        json!({"role": "assistant", "content": null, "tool_calls": [call("x", "{\"a\":1}"), call("y", "{\"a\":2}")]}),
        json!({"role": "tool", "tool_call_id": "y", "content": "two"}),
        json!({"role": "tool", "tool_call_id": "x", "content": "one"}),
    ];
    chat(&server, "any", &messages, ANSWER);
    let prompt = server.text(&server.asked().prompt);
    let turn = |arguments: &str, result: &str| {
        format!(
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{arguments}<|call|>\
             <|start|>functions.f to=assistant<|channel|>commentary<|message|>{result}<|end|>"
        )
    };
    let want = turn("{\"a\":1}", "one") + &turn("{\"a\":2}", "two") + "<|start|>assistant";
    assert!(prompt.ends_with(&want), "{prompt}");

    for (id, param) in [("z", "messages[2].tool_call_id"), ("y", "messages[4].tool_call_id")] {
        let mut wrong = messages.to_vec();
        wrong[2]["tool_call_id"] = id.into();
        if id == "y" {
            wrong.push(messages[2].clone());
        }
        let (status, answer) = server.post(CHAT, &json!({"messages": wrong, "tools": chat_tools()}));
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
}

#[test]
fn leading_instructions_are_one_developer_message_and_later_ones_stay() {
    let server = Scripted::new();
    let messages = [
        json!({"role": "system", "content": "One."}),
        json!({"role": "developer", "content": [{"type": "text", "text": "Two."}]}),
        json!({"role": "user", "content": "Go."}),
        json!({"role": "system", "content": "Three."}),
    ];
    server.say(ANSWER);
    server.post(CHAT, &json!({"messages": messages, "reasoning_effort": "high"}));
    let prompt = server.text(&server.asked().prompt);
    let want = "<|start|>developer<|message|># Instructions\n\nOne.\n\nTwo.<|end|><|start|>user<|message|>Go.<|end|>\
                <|start|>developer<|message|># Instructions\n\nThree.<|end|><|start|>assistant";
    assert!(prompt.ends_with(want), "{prompt}");
    assert!(prompt.contains("\nCurrent date: 2025-06-28\n\nReasoning: high\n"), "{prompt}");
}

#[test]
fn no_reasoning_at_all_begins_with_the_answer() {
    let server = Scripted::new();
    server.say("Yes.<|return|>");
    let body = json!({"messages": [{"role": "user", "content": "Go."}], "reasoning_effort": "none"});
    let (_, answer) = server.post(CHAT, &body);
    assert!(server.text(&server.asked().prompt).ends_with("<|start|>assistant<|channel|>final<|message|>"));
    let message = &answer["choices"][0]["message"];
    assert_eq!((message["content"].as_str(), message.get("reasoning")), (Some("Yes."), None));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

fn respond(server: &Scripted, body: &Value, says: &str) -> Value {
    server.say(says);
    let mut body = body.clone();
    body["tools"] = json!([{"type": "function", "name": "f"}]);
    let (status, response) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{response}");
    response
}

#[test]
fn a_response_that_follows_another_goes_on_with_its_very_ids() {
    let server = Scripted::new();
    let first = respond(&server, &json!({"input": "How much?", "instructions": "Be brief."}), CALL);
    let made = [server.asked().prompt, server.ids(CALL)].concat();
    let kinds: Vec<&str> =
        first["output"].as_array().expect("a list").iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let output = json!([{"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "3"}]);
    let body = json!({"input": output, "instructions": "Be brief.", "previous_response_id": first["id"]});
    let second = respond(&server, &body, ANSWER);
    assert_eq!(behind(&server, &made, &server.asked().prompt), RESULT);
    assert_eq!(second["previous_response_id"], first["id"]);

    // Instructions are those of a request alone; reasoning goes once there is an answer.
    respond(&server, &json!({"input": "Sure?", "previous_response_id": second["id"]}), ANSWER);
    let prompt = server.text(&server.asked().prompt);
    assert!(
        !prompt.contains("Be brief.") && !prompt.contains("Look it up.") && !prompt.contains("Now I know."),
        "{prompt}"
    );
    assert!(prompt.ends_with("It is 3.<|end|><|start|>user<|message|>Sure?<|end|><|start|>assistant"), "{prompt}");
    assert!(prompt.contains("One moment."));
}

#[test]
fn items_that_a_client_gives_back_are_the_turn_that_was_made() {
    let server = Scripted::new();
    let first = respond(&server, &json!({"input": "How much?", "store": false}), CALL);
    let made = [server.asked().prompt, server.ids(CALL)].concat();
    let result = json!({"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "3"});
    let items = first["output"].as_array().expect("a list").clone();
    for kept in [items.clone(), items[1..].to_vec()] {
        let input: Vec<Value> =
            [json!({"role": "user", "content": "How much?"})].into_iter().chain(kept).chain([result.clone()]).collect();
        respond(&server, &json!({"input": input, "store": false}), ANSWER);
        assert_eq!(behind(&server, &made, &server.asked().prompt), RESULT);
    }
}

#[test]
fn responses_are_stored_listed_and_deleted() {
    let server = Scripted::new();
    let response = respond(&server, &json!({"input": "How much?"}), ANSWER);
    let id = response["id"].as_str().expect("an id");
    let path = format!("{RESPONSES}/{id}");
    let ask = |method: &str, path: &str| server.json(method, "any", path, "");
    assert_eq!(ask("GET", &path), (200, response.clone()));
    let (status, items) = ask("GET", &format!("{path}/input_items"));
    assert_eq!((status, &items["data"][0]["content"][0]["text"]), (200, &json!("How much?")));
    assert!(items["first_id"].is_string() && items["first_id"] == items["last_id"]);
    let (status, answer) = ask("POST", &format!("{path}/cancel"));
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_value")));
    assert_eq!(ask("DELETE", &path), (200, json!({"id": id, "object": "response", "deleted": true})));
    for (method, path) in [("GET", path.clone()), ("DELETE", path.clone()), ("POST", format!("{path}/cancel"))] {
        let (status, answer) = ask(method, &path);
        assert_eq!((status, answer["error"]["code"].as_str()), (404, Some("not_found")), "{method} {path}");
    }
    let follows = json!({"input": "Sure?", "previous_response_id": id});
    let (status, answer) = server.post(RESPONSES, &follows);
    let error = &answer["error"];
    assert_eq!((status, error["code"].as_str()), (400, Some("previous_response_not_found")));
    assert_eq!(error["param"], "previous_response_id");

    let response = respond(&server, &json!({"input": "How much?", "store": false}), ANSWER);
    let (status, _) = ask("GET", &format!("{RESPONSES}/{}", response["id"].as_str().expect("an id")));
    assert_eq!((status, &response["store"]), (404, &json!(false)));
}

#[test]
fn functions_of_a_namespace_are_called_by_their_own_names() {
    let server = Scripted::new();
    let nothing = json!({"type": "object", "properties": {}});
    let tools = json!([
        {"type": "namespace", "name": "agents", "description": "Others.", "tools": [
            {"type": "function", "name": "spawn", "description": "Begins one.", "strict": false, "parameters": nothing},
        ]},
        {"type": "web_search", "external_web_access": true},
    ]);
    server.say(" to=functions.agents__spawn<|channel|>commentary json<|message|>{}<|call|>");
    let body = json!({"input": "Go.", "tools": tools, "client_metadata": {"x": 1},
                      "include": ["reasoning.encrypted_content"],
                      "reasoning": {"summary": "auto"}, "store": false});
    let (_, response) = server.post(RESPONSES, &body);
    let prompt = server.text(&server.asked().prompt);
    assert!(prompt.contains("namespace functions {\n\n// Begins one.\ntype agents__spawn = () => any;\n"), "{prompt}");
    assert!(!prompt.contains("web_search"), "{prompt}");
    assert_eq!(response["tools"], json!([tools[0]]), "what the model is not told of is not said to be there");
    let call = response["output"][0].clone();
    assert_eq!((call["name"].as_str(), call["namespace"].as_str()), (Some("spawn"), Some("agents")));
    let made = [
        server.asked().prompt,
        server.ids(" to=functions.agents__spawn<|channel|>commentary json<|message|>{}<|call|>"),
    ]
    .concat();
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "ok"});
    server.say(ANSWER);
    let mut body = body;
    body["input"] = json!([{"role": "user", "content": "Go."}, call, result]);
    let (status, response) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{response}");
    let want =
        "<|start|>functions.agents__spawn to=assistant<|channel|>commentary<|message|>ok<|end|><|start|>assistant";
    assert_eq!(behind(&server, &made, &server.asked().prompt), want);
}
