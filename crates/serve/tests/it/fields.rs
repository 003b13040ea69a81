//! Fields of other servers do what they say, in answers and in masks.

use serde_json::{Value, json};

use super::scripted::Scripted;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const TEXT: &str = "<|channel|>final<|message|>Yes.<|return|>";

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[test]
fn completions_have_forms_and_limits_as_chats_have() {
    let server = Scripted::new();
    let number = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                        "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": number}});
    for (field, right, wrong) in [
        (json!({"response_format": schema}), "{\"a\":1}<|return|>", "{\"b\":1}<|return|>"),
        (json!({"guided_json": number}), "{\"a\":1}<|return|>", "Yes<|return|>"),
        (json!({"structured_outputs": {"choice": ["red", "blue"]}}), "blue<|return|>", "green<|return|>"),
        (json!({"regex": "[0-9]{3}"}), "123<|return|>", "12<|return|>"),
        (json!({"grammar": "start: \"a\" \"b\"+"}), "abb<|return|>", "ba<|return|>"),
        (json!({"bad_words": ["No"]}), "Yes", "No"),
        (json!({"allowed_token_ids": server.ids("Yes")}), "Yes", "No"),
    ] {
        for (output, is_right) in [(right, true), (wrong, false)] {
            let mut body = json!({"prompt": "a", "max_tokens": 20});
            body.as_object_mut().expect("an object").extend(field.as_object().expect("an object").clone());
            server.say_checked(output);
            let (status, answer) = server.post(COMPLETIONS, &body);
            assert_eq!(status, 200, "{answer}");
            let n_allowed = server.asked().n_allowed.expect("a mask");
            assert_eq!(n_allowed == server.ids(output).len(), is_right, "{field}: {output}: {n_allowed}");
        }
    }
}

#[test]
fn log_probabilities_end_where_the_text_ends() {
    let server = Scripted::new();
    for stream in [false, true] {
        server.say("Once upon a time<|return|>");
        let body = json!({"prompt": "a", "max_tokens": 20, "logprobs": 1, "stop": [" a time"], "stream": stream});
        let pieces: Vec<Value> = if stream {
            let events = server.stream(COMPLETIONS, &body);
            events.iter().filter_map(|(_, data)| serde_json::from_str(data).ok()).collect()
        } else {
            vec![server.post(COMPLETIONS, &body).1]
        };
        let all = |name: &str| -> Vec<Value> {
            let of = |piece: &Value| piece["choices"][0]["logprobs"][name].as_array().cloned().unwrap_or_default();
            pieces.iter().flat_map(of).collect()
        };
        let text: String = pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, "Once upon");
        assert_eq!(all("tokens"), ["Once", " upon"]);
        assert_eq!(all("text_offset"), [0, 4]);
    }
}

#[test]
fn a_token_that_ends_an_answer_is_no_part_of_it() {
    let server = Scripted::new();
    let stop = server.ids(" upon")[0];
    server.say("<|channel|>final<|message|>Once upon a time<|return|>");
    let (_, answer) = server.post(CHAT, &chat(&json!({"stop_token_ids": [stop]})));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&"Once".into(), &"stop".into()));
    // One of the format's own is read as ever.
    server.say(TEXT);
    let own = server.ids("<|return|>");
    let (_, answer) = server.post(CHAT, &chat(&json!({"stop_token_ids": own})));
    assert_eq!(answer["choices"][0]["message"]["content"], "Yes.");
}

#[test]
fn an_answer_that_is_begun_goes_on() {
    let server = Scripted::new();
    let turns = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}]);
    server.say(" 3.<|return|>");
    let (status, answer) =
        server.post(CHAT, &json!({"messages": turns, "continue_final_message": true, "add_generation_prompt": false}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], " 3.");
    let prompt = server.text(&server.asked().prompt);
    assert!(prompt.ends_with("<|start|>assistant<|channel|>final<|message|>The answer is"), "{prompt}");
    for wrong in [
        json!({"messages": turns, "continue_final_message": true, "add_generation_prompt": true}),
        json!({"messages": turns, "add_generation_prompt": false}),
        json!({"messages": [{"role": "user", "content": "hi"}], "continue_final_message": true}),
    ] {
        assert_eq!(server.post(CHAT, &wrong).0, 400, "{wrong}");
    }
}

#[test]
fn a_cut_call_is_in_the_whole_answer_as_in_the_stream() {
    let server = Scripted::new();
    let call = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": \"x";
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    server.say(call);
    let (_, answer) = server.post(CHAT, &chat(&json!({"tools": tools})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{answer}");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": \"x");
}

#[test]
fn schemas_of_tools_bind_where_one_must_be_called_and_never_fail_a_request() {
    let server = Scripted::new();
    let call = |arguments: &str| {
        format!(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary json\
             <|message|>{arguments}<|call|>"
        )
    };
    let tool = |schema: &Value| json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let number = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                        "additionalProperties": false});
    let allows = |body: &Value, output: &str| {
        server.say_checked(output);
        let (status, answer) = server.post(CHAT, body);
        assert_eq!(status, 200, "{answer}");
        server.asked().n_allowed.expect("a mask") == server.ids(output).len()
    };
    let required = chat(&json!({"tools": tool(&number), "tool_choice": "required"}));
    assert!(allows(&required, &call("{\"a\":1}")) && !allows(&required, &call("{\"b\":1}")));
    let auto = chat(&json!({"tools": tool(&number)}));
    assert!(allows(&auto, &call("{\"b\":1}")));
    // What cannot be enforced is not, where nobody insists.
    let odd = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "a(?=b)"}}});
    let odd_required = chat(&json!({"tools": tool(&odd), "tool_choice": "required"}));
    assert!(allows(&odd_required, &call("{\"b\":1}")));
    // It alone is given up, however many there are.
    let with_name =
        |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let mut many: Vec<Value> = ["g", "h", "i", "j", "k"].iter().map(|name| with_name(name, &number)).collect();
    many.push(with_name("odd", &odd));
    many.push(with_name("f", &number));
    let many = chat(&json!({"tools": many, "tool_choice": "required"}));
    assert!(allows(&many, &call("{\"a\":1}")) && !allows(&many, &call("{\"b\":1}")));
    assert!(allows(&many, &call("{\"b\":1}").replace("functions.f", "functions.odd")));
    let mut strict = tool(&odd);
    strict[0]["function"]["strict"] = true.into();
    let (status, answer) = server.post(CHAT, &chat(&json!({"tools": strict})));
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("`properties.a.pattern`: the pattern `a(?=b)`"), "{message}");
}

#[test]
fn a_text_has_the_token_that_texts_begin_with_where_it_is_asked_for() {
    let server = Scripted::with_begin("<|startoftext|>");
    let plain = server.ids("Hello");
    let begun = [server.ids("<|startoftext|>"), plain.clone()].concat();
    for (body, want) in [
        (json!({"prompt": "Hello"}), &begun),
        (json!({"prompt": "Hello", "add_special_tokens": false}), &plain),
        (json!({"prompt": "<|startoftext|>Hello"}), &begun),
        (json!({"content": "Hello"}), &plain),
        (json!({"content": "Hello", "add_special": true}), &begun),
    ] {
        assert_eq!(server.post("/tokenize", &body).1["tokens"], json!(want), "{body}");
    }
    let turns = json!([{"role": "user", "content": "hi"}]);
    let chat = |adds: bool| server.post("/tokenize", &json!({"messages": turns, "add_special_tokens": adds})).1;
    let (_, applied) = server.post("/apply-template", &json!({ "messages": turns }));
    assert_eq!(chat(false)["tokens"], applied["token_ids"]);
    assert_eq!(chat(true)["error"]["param"], "add_special_tokens", "its template writes them");
    let (_, texts) = server.post("/tokenize", &json!({"prompt": "Hello", "return_token_strs": true}));
    assert_eq!(texts["token_strs"], json!(["<|startoftext|>", "Hello"]));
    assert_eq!(server.post("/detokenize", &json!({"tokens": []})).1["prompt"], "");
    let (status, error) = server.post("/detokenize", &json!({"tokens": [1, "a"]}));
    assert_eq!((status, &error["error"]["param"]), (400, &"tokens[1]".into()), "{error}");
    assert_eq!(server.json("GET", "any", "/tokenizer_info", "").1["bos_token"], "<|startoftext|>");
}

#[test]
fn other_servers_clients_find_what_they_ask() {
    let server = Scripted::new();
    let turns = json!({"messages": [{"role": "user", "content": "cut \u{fffd}"}]});
    let (_, told) = server.post("/tokenize", &turns);
    let (_, applied) = server.post("/apply-template", &turns);
    assert_eq!(told["tokens"], applied["token_ids"]);
    assert_eq!(told["count"], applied["token_ids"].as_array().expect("a list").len());
    let (_, rendered) = server.post("/v1/chat/completions/render", &turns);
    assert_eq!(rendered["token_ids"], applied["token_ids"]);
    // Half a pair of surrogates is the replacement character.
    let half = turns.to_string().replace('\u{fffd}', "\\ud83d");
    assert_eq!(server.json("POST", "any", "/tokenize", &half).1["tokens"], told["tokens"]);
    let (_, text) = server.post("/tokenize", &json!({"prompt": "Hello", "add_special_tokens": false}));
    let (_, back) = server.post("/detokenize", &json!({"tokens": text["tokens"]}));
    assert_eq!(back["prompt"], "Hello");
    for (path, name) in [
        ("/server_info", "context_length"),
        ("/get_server_info", "model_path"),
        ("/model_info", "is_generation"),
        ("/tokenizer_info", "eos_token"),
    ] {
        let (status, answer) = server.json("GET", "any", path, "");
        assert!(status == 200 && !answer[name].is_null(), "{path}: {answer}");
    }
    assert_eq!(server.json("GET", "any", "/get_load", "").1[0]["num_reqs"], 0);
}
