//! A model whose chat format is its template, as the program serves it and talks with it.

use serde_json::{Value, json};

use super::{ChatMl, IM_END, tokenizer};
use crate::cli::run_input::Terminal;
use crate::fixtures::http::{Reply, post};
use crate::fixtures::program::{file, run, run_with_stdin};
use crate::fixtures::server::Server;

fn hello() -> Value {
    json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
}

/// What the template makes of [`hello`].
const PROMPT: &str =
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";

/// An answer that is an error, and its message.
fn refused(reply: &Reply, code: &str) -> String {
    let body = reply.json();
    assert_eq!((reply.status, &body["error"]["code"]), (400, &json!(code)), "{body}");
    body["error"]["message"].as_str().expect("text").to_owned()
}

#[test]
fn chats_are_answered_up_to_the_end_of_the_turn() {
    let model = ChatMl::new("chatml");
    let script = file(model.folder.path(), "script.jsonl", b"{\"text\": \"Hi.<|im_end|> and never this\"}\n");
    let server = Server::start(&[model.path(), "--replay", &script]);
    let ask = |path: &str, body: Value| post(server.address, path, &body);

    let prompt = ask("/apply-template", json!({"messages": hello()})).ok();
    let ids = tokenizer().encode_with_specials(PROMPT.as_bytes()).expect("text");
    assert_eq!((&prompt["prompt"], &prompt["token_ids"]), (&json!(PROMPT), &json!(ids)));

    let answer = ask("/v1/chat/completions", json!({"messages": hello()})).ok();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("Hi."), &json!("stop")), "{answer}");
    assert!(choice["message"].get("reasoning").is_none() && choice["message"].get("tool_calls").is_none(), "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], ids.len());

    let stream = ask("/v1/chat/completions", json!({"messages": hello(), "stream": true}));
    let events = String::from_utf8(stream.body).expect("text");
    let chunks = events.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let told: String =
        chunks.filter_map(|chunk| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect();
    assert_eq!(told, "Hi.", "{events}");

    let response = ask("/v1/responses", json!({"input": "Hello", "instructions": "Be brief."})).ok();
    assert_eq!(response["output"][0]["content"][0]["text"], "Hi.", "{response}");
    let next = json!({"input": "Bye", "previous_response_id": response["id"]});
    let counted = ask("/v1/responses/input_tokens", next).ok();
    let whole = "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi.\
                 <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    let n_whole = tokenizer().encode_with_specials(whole.as_bytes()).expect("text").len();
    assert_eq!(counted["input_tokens"], n_whole, "what was answered is a part of what follows");
    // A text is no chat: it ends at the vocabulary's ends all the same.
    let text = ask("/v1/completions", json!({"prompt": "Once", "max_tokens": 50})).ok();
    assert_eq!((&text["choices"][0]["text"], &text["choices"][0]["finish_reason"]), (&json!("Hi."), &json!("stop")));
}

#[test]
fn what_the_template_does_not_take_is_a_clear_400() {
    let (model, with_tools) = (ChatMl::new("chatml"), ChatMl::new("tools"));
    let serve = |model: &ChatMl| {
        let script = file(model.folder.path(), "script.jsonl", b"{\"text\": \"Hi.<|im_end|>\"}\n");
        Server::start(&[model.path(), "--replay", &script])
    };
    let (server, other) = (serve(&model), serve(&with_tools));
    let ask = |server: &Server, more: Value| {
        let mut body = json!({"messages": hello()});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        post(server.address, "/v1/chat/completions", &body)
    };
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]);
    let none = json!({"tools": tools, "tool_choice": "none"});
    let message = refused(&ask(&server, none.clone()), "unsupported_value");
    assert_eq!(message, "this model's chat template does not take tools");
    let message = refused(&ask(&server, json!({"tools": tools})), "unsupported_value");
    assert!(message.contains("tool calls cannot be told from text in this model's answers"), "{message}");
    // One that takes them is told of them; nobody reads calls.
    ask(&other, none).ok();
    let message = refused(&ask(&other, json!({"tools": tools})), "unsupported_value");
    assert!(message.contains("tool calls cannot be told from text in this model's answers"), "{message}");
    let message = refused(&ask(&server, json!({"reasoning_effort": "high"})), "unsupported_value");
    assert_eq!(message, "this model's chat template does not take a reasoning effort");
    ask(&server, json!({"reasoning_effort": "none"})).ok();
    ask(&other, json!({"reasoning_effort": "high"})).ok();
    let called = json!({"messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]});
    let message = refused(&post(server.address, "/v1/chat/completions", &called), "unsupported_value");
    assert!(message.contains("does not take calls of tools"), "{message}");
}

/// As Qwen 3 does: thoughts, and calls that are objects between marks.
const MARKED: &str = "{%- if tools %}{{- tools | tojson }}{% endif %}{%- for message in messages %}\
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}{%- for call in message.tool_calls or [] %}\
    {{- '<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}\
    {%- endfor %}{{- '<|im_start|>assistant\\n' }}\
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}";

#[test]
fn thoughts_and_calls_are_told_as_those_of_harmony() {
    let model = ChatMl::with(Some(MARKED), &[IM_END]);
    let said = "<think>\nHm.\n</think>\n\nLook:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>";
    let script = file(model.folder.path(), "script.jsonl", json!({ "text": said }).to_string().as_bytes());
    let server = Server::start(&[model.path(), "--replay", &script]);
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    let tools = json!([{"type": "function", "function": function}]);
    let mut body = json!({"messages": hello(), "tools": tools});
    let choice = post(server.address, "/v1/chat/completions", &body).ok()["choices"][0].take();
    let message = &choice["message"];
    assert_eq!((&message["reasoning"], &message["content"]), (&json!("Hm."), &json!("Look:")), "{choice}");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}), "{choice}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    body["stream"] = true.into();
    let events = String::from_utf8(post(server.address, "/v1/chat/completions", &body).body).expect("text");
    let chunks: Vec<Value> =
        events.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let delta = |key: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][key].as_str()).collect()
    };
    assert_eq!((delta("reasoning").as_str(), delta("content").as_str()), ("Hm.", "Look:"), "{events}");
    let called: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]).collect();
    let called: Vec<&Value> = called.into_iter().filter(|call| !call.is_null()).collect();
    let pieces = || called.iter().filter_map(|call| call["function"]["arguments"].as_str());
    assert_eq!((&called[0]["function"]["name"], &called[0]["type"]), (&json!("f"), &json!("function")), "{events}");
    assert_eq!(pieces().collect::<String>(), "{\"a\": 1}", "{events}");
    assert!(called[1..].iter().all(|call| call["id"].is_null() && call["index"] == 0), "{events}");
    let flat =
        json!({"input": "Hello", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]});
    let response = post(server.address, "/v1/responses", &flat).ok();
    let kinds: Vec<&Value> = response["output"].as_array().expect("a list").iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"], "{response}");
    // What comes back is written as the template has it, and not thinking is told.
    body["messages"] = json!([
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Look:", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "<|im_end|>"},
    ]);
    body["chat_template_kwargs"] = json!({"enable_thinking": false});
    let prompt = post(server.address, "/apply-template", &body).ok();
    let text = prompt["prompt"].as_str().expect("text");
    assert!(text.contains("Look:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"), "{text}");
    assert!(text.ends_with("tool\n<|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"), "{text}");
    let n_ends = prompt["token_ids"].as_array().expect("ids").iter().filter(|id| **id == IM_END).count();
    assert_eq!(n_ends, 3, "of three messages, and not the one that a tool gave");
}

#[test]
fn an_answer_may_end_with_its_first_call() {
    let model = ChatMl::with(Some(MARKED), &[IM_END]);
    let call = |n: u32| format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"n\": {n}}}}}</tool_call>");
    let said = json!({ "text": call(1) + &call(2) + "<|im_end|>" });
    let script = file(model.folder.path(), "script.jsonl", said.to_string().as_bytes());
    let server = Server::start(&[model.path(), "--replay", &script]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let mut body = json!({"messages": hello(), "tools": tools});
    let calls = |body: &Value| {
        let choice = post(server.address, "/v1/chat/completions", body).ok()["choices"][0].take();
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        choice["message"]["tool_calls"].as_array().expect("a list").len()
    };
    assert_eq!(calls(&body), 2);
    body["parallel_tool_calls"] = false.into();
    assert_eq!(calls(&body), 1);
    body["parallel_tool_calls"] = "no".into();
    refused(&post(server.address, "/v1/chat/completions", &body), "invalid_value");
}

/// The template for conversations with tools, what it is told by a flag, and a user's marks.
#[test]
fn a_template_may_have_another_beside_it_and_words_and_marks_of_a_user() {
    let model = ChatMl::with(None, &[IM_END]);
    let path = model.folder.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    let usual = "plain {{ mood | default('calm') }}{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>";
    config["chat_template"] = json!([
        {"name": "default", "template": usual},
        {"name": "tool_use", "template": usual.replace("plain", "tools {{ tools | length }}")},
    ]);
    std::fs::write(&path, config.to_string()).expect("written");
    let marks = "about = \"a test's\"\nwhen = [{ template = [\"tools \"] }]\n[calls]\nbegin = \"CALL\"\nshape = \"object\"\n\
                 [reasoning]\nbegin = \"((\"\nend = \"))\"\n";
    let marks = file(model.folder.path(), "marks.toml", marks.as_bytes());
    let said = json!({"text": "((Hm.))CALL{\"name\": \"f\", \"arguments\": {}}<|im_end|>"});
    let script = file(model.folder.path(), "script.jsonl", said.to_string().as_bytes());
    let kwargs = "{\"mood\": \"bright\"}";
    let words = [model.path(), "--replay", &script, "--chat-def", &marks, "--chat-template-kwargs", kwargs];
    let server = Server::start(&words);
    let mut body = json!({"messages": hello()});
    let prompt = |body: &Value| {
        let prompt = post(server.address, "/apply-template", body).ok();
        prompt["prompt"].as_str().expect("text").to_owned()
    };
    assert_eq!(prompt(&body), "plain brightBe brief.Hello<|im_start|>");
    body["chat_template_kwargs"] = json!({"mood": "grey"});
    assert_eq!(prompt(&body), "plain greyBe brief.Hello<|im_start|>", "a request goes first");
    body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    assert_eq!(prompt(&body), "tools 1 greyBe brief.Hello<|im_start|>");
    let message = post(server.address, "/v1/chat/completions", &body).ok()["choices"][0]["message"].take();
    assert_eq!((&message["reasoning"], &message["tool_calls"][0]["function"]["name"]), (&json!("Hm."), &json!("f")));
    drop(server);
    let stderr =
        run_with_stdin(&["run", model.path(), "-m", "chat", "--chat-def", &script], b"Hello\n").fails_with_hint(1);
    assert!(stderr.contains("does not say how a model marks its answers"), "{stderr}");
    let stderr = run(&["serve", model.path(), "--chat-template-kwargs", "[1]"]).stderr;
    assert!(stderr.contains("expected a JSON object"), "{stderr}");
}

/// Answers of a file of conversations, whose prompts end where thoughts have begun.
#[test]
fn answers_in_files_begin_with_thoughts_that_their_prompts_opened() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|><think>\n{# </think> #}";
    let model = ChatMl::with(Some(template), &[IM_END]);
    let line = format!("{}\n", json!({"messages": hello(), "max_tokens": 6}));
    let prompts = file(model.folder.path(), "chats.jsonl", line.as_bytes());
    let ran = run(&["run", model.path(), "-m", "getp", "-i", &prompts]).ok();
    let answer: Value = serde_json::from_str(ran.text()).expect("JSON");
    assert_eq!(answer["text"], "", "{answer}");
    assert!(!answer["reasoning"].as_str().expect("text").is_empty(), "{answer}");
}

#[test]
fn a_form_holds_whatever_the_model_would_write() {
    let model = ChatMl::new("chatml");
    let server = Server::start(&[model.path(), "-n", "256"]);
    let schema = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["kind", "n"],
        "additionalProperties": false,
    });
    for seed in 0..4 {
        let format = json!({"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": true}});
        let body = json!({"messages": hello(), "response_format": format, "seed": seed, "max_tokens": 200});
        let answer = post(server.address, "/v1/chat/completions", &body).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let pet: Value = serde_json::from_str(choice["message"]["content"].as_str().expect("text")).expect("JSON");
        assert!(["cat", "dog"].map(Value::from).contains(&pet["kind"]), "{pet}");
        assert!((1..=9).contains(&pet["n"].as_i64().expect("a number")), "{pet}");
        assert_eq!(pet.as_object().expect("an object").len(), 2);
    }
    let bad =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}, "strict": true}});
    let reply = post(server.address, "/v1/chat/completions", &json!({"messages": hello(), "response_format": bad}));
    refused(&reply, "invalid_json_schema");
}

#[test]
fn without_a_template_chats_are_refused_and_texts_go_on() {
    let model = ChatMl::with(None, &[IM_END]);
    let server = Server::start(&[model.path(), "-n", "64"]);
    let message =
        refused(&post(server.address, "/v1/chat/completions", &json!({"messages": hello()})), "unsupported_value");
    assert!(message.contains("this model has no chat format") && message.contains("give it plain text"), "{message}");
    refused(&post(server.address, "/v1/responses", &json!({"input": "Hello"})), "unsupported_value");
    let text = post(server.address, "/v1/completions", &json!({"prompt": "Once", "max_tokens": 4})).ok();
    assert_eq!(text["usage"]["completion_tokens"], 4, "{text}");
    drop(server);
    let stderr = run_with_stdin(&["run", model.path(), "-m", "chat"], b"Hello\n").fails_with_hint(1);
    assert!(stderr.contains("the checkpoint has no chat template"), "{stderr}");
    run(&["run", model.path(), "-i", "Once", "--max-new-tokens", "2"]).ok();
}

/// The tokens that the model goes on with, greedily, behind the prompt of a chat, as text.
fn goes_on(model: &ChatMl, prompt: &str, n: usize) -> Vec<u32> {
    let ids = tokenizer().encode_with_specials(prompt.as_bytes()).expect("text");
    let prompts = file(model.folder.path(), "prompts.jsonl", format!("{}\n", json!({ "ids": ids })).as_bytes());
    let n = n.to_string();
    let ran = run(&["run", model.path(), "-m", "getp", "-i", &prompts, "--max-new-tokens", &n, "--out-format", "ids"]);
    ran.ok().ids().remove(0)
}

fn text_of(ids: &[u32]) -> String {
    let words: Vec<u32> = ids.iter().copied().filter(|id| !tokenizer().is_special(*id)).collect();
    String::from_utf8_lossy(&tokenizer().decode_all(&words).expect("ids")).into_owned()
}

#[test]
fn a_chat_is_written_by_the_template_and_ends_where_the_vocabulary_says() {
    let free = ChatMl::with(Some(&super::source("chatml")), &[330]);
    let ids = goes_on(&free, PROMPT, 6);
    assert_eq!(ids.len(), 6, "no such end comes by itself");
    let chat = |model: &ChatMl, args: &[&str]| {
        let words = [&["run", model.path(), "-m", "chat", "-y", "Be brief."], args].concat();
        run_with_stdin(&words, b"Hello\n").ok()
    };
    let six = ["--max-new-tokens", "6"];
    assert_eq!(chat(&free, &six).text(), format!("{}\n", text_of(&ids)));
    // An end in its way.
    let ends = ChatMl::with(Some(&super::source("chatml")), &[IM_END, ids[3]]);
    let first = ids.iter().position(|id| *id == ids[3]).expect("there");
    assert_eq!(chat(&ends, &six).text(), format!("{}\n", text_of(&ids[..first])));
    // The same in a file of conversations.
    let line = format!("{}\n", json!({"messages": hello(), "max_tokens": 6}));
    let prompts = file(ends.folder.path(), "chats.jsonl", line.as_bytes());
    let ran = run(&["run", ends.path(), "-m", "getp", "-i", &prompts]).ok();
    let answer: Value = serde_json::from_str(ran.text()).expect("JSON");
    assert_eq!((&answer["text"], &answer["reasoning"]), (&json!(text_of(&ids[..first])), &json!("")), "{answer}");
    assert_eq!((&answer["ids"], &answer["finish_reason"]), (&json!(ids[..=first]), &json!("stop")), "{answer}");
    let words = ["run", ends.path(), "-m", "chat", "--reasoning", "high"];
    let stderr = run_with_stdin(&words, b"Hello\n").fails_with_hint(1);
    assert!(stderr.contains("does not take a reasoning effort"), "{stderr}");
    let words = ["run", ends.path(), "-m", "chat", "--chat-format", "harmony"];
    let stderr = run_with_stdin(&words, b"Hello\n").fails_with_hint(1);
    assert!(stderr.contains("lacks the special tokens of harmony"), "{stderr}");
}

#[test]
fn at_a_terminal_it_is_a_chat_too() {
    let free = ChatMl::with(Some(&super::source("chatml")), &[330]);
    let ids = goes_on(&free, PROMPT, 6);
    let model = ChatMl::with(Some(&super::source("chatml")), &[ids[4]]);
    let answer = text_of(&ids[..ids.iter().position(|id| *id == ids[4]).expect("there")]);
    let words = ["run", model.path(), "-T", "0", "-y", "Be brief.", "--max-new-tokens", "6"];
    let Some(mut terminal) = Terminal::of(&words) else { return };
    terminal.waits_for_marks(1);
    terminal.types("Hello\r");
    terminal.waits_for(" tok/s, the first after ", 1);
    terminal.waits_for_marks(2);
    let saved = model.folder.path().join("saved.json");
    terminal.types(&format!("/save {}\r", saved.display()));
    terminal.waits_for("2 messages written", 1);
    terminal.waits_for_marks(3);
    terminal.types("/regenerate\r");
    terminal.waits_for(" tok/s, the first after ", 2);
    terminal.waits_for_marks(4);
    terminal.types("\x04");
    let shown = terminal.ends();
    assert!(shown.contains("ctrl-d ends the chat"), "{shown}");
    let saved: Value = serde_json::from_slice(&std::fs::read(saved).expect("there")).expect("JSON");
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let want = [said("system", "Be brief."), said("user", "Hello"), said("assistant", &answer)];
    assert_eq!(saved["messages"], Value::from(want.to_vec()));
}
