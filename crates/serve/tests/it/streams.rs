//! What is streamed is what is not streamed, whatever the model writes and wherever it is cut; and events come in the
//! order that clients rely on.

use std::collections::BTreeMap;

use chat::harmony::MessageKind;
use serde_json::{Value, json};

use super::event_rules;
use super::scripted::{Scripted, logprob};
use fixtures::outputs::{OUTPUTS, Output};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

fn chat_body() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "stream_options": {"include_usage": true},
    })
}

fn responses_body() -> Value {
    json!({"input": "Go.", "tools": [{"type": "function", "name": "f"}]})
}

/// The choices and the usage that chunks come to, joined as the API's documents say.
fn joined(events: &[(String, String)]) -> (Vec<Value>, Value) {
    let mut choices: BTreeMap<u64, Value> = BTreeMap::new();
    let mut usage = Value::Null;
    let (last, chunks) = events.split_last().expect("something was told");
    assert_eq!(last.1, "[DONE]");
    for (kind, data) in chunks {
        assert_eq!(kind, "");
        let chunk: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert!(usage.is_null(), "the usage is told last: {chunk}");
        usage = chunk["usage"].clone();
        for choice in chunk["choices"].as_array().expect("a list") {
            let index = choice["index"].as_u64().expect("a number");
            let is_first = !choices.contains_key(&index);
            assert_eq!(choice["delta"]["role"] == "assistant", is_first, "the first has the role: {chunk}");
            let whole = choices.entry(index).or_insert_with(|| json!({"calls": [], "logprobs": []}));
            assert!(whole["finish"].is_null(), "nothing comes behind the end: {chunk}");
            join(whole, choice);
        }
    }
    assert!(usage.is_object(), "the usage was asked for");
    (choices.into_values().collect(), usage)
}

fn join(whole: &mut Value, choice: &Value) {
    let delta = choice["delta"].as_object().expect("an object");
    for (name, value) in delta {
        match (name.as_str(), value) {
            ("role", _) => {}
            ("tool_calls", calls) => {
                for call in calls.as_array().expect("a list") {
                    let index = call["index"].as_u64().expect("a number") as usize;
                    let calls = whole["calls"].as_array_mut().expect("a list");
                    if calls.len() == index {
                        assert_eq!(
                            (call["type"].as_str(), &call["function"]["arguments"]),
                            (Some("function"), &json!(""))
                        );
                        calls.push(json!({"id": call["id"], "name": call["function"]["name"], "arguments": ""}));
                    } else {
                        assert!(call["id"].is_null() && call["function"]["name"].is_null(), "told once: {call}");
                        let more = call["function"]["arguments"].as_str().expect("a text");
                        calls[index]["arguments"] =
                            (calls[index]["arguments"].as_str().expect("begun").to_owned() + more).into();
                    }
                }
            }
            (name, value) => {
                let text = whole[name].as_str().unwrap_or_default().to_owned();
                whole[name] = (text + value.as_str().expect("a text")).into();
            }
        }
    }
    if let Some(logprobs) = choice["logprobs"]["content"].as_array() {
        whole["logprobs"].as_array_mut().expect("a list").extend(logprobs.clone());
    }
    whole["finish"] = choice["finish_reason"].clone();
}

/// A whole choice in the terms of [`joined`].
fn whole(choice: &Value) -> Value {
    let message = &choice["message"];
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        json!({"id": "", "name": call["function"]["name"], "arguments": call["function"]["arguments"]})
    };
    let calls: Vec<Value> =
        message["tool_calls"].as_array().map_or(Vec::new(), |calls| calls.iter().map(call).collect());
    assert!(message["tool_calls"].is_null() || !calls.is_empty(), "no calls are no list: {message}");
    let logprobs = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    let mut whole = json!({"calls": calls, "logprobs": logprobs, "finish": choice["finish_reason"]});
    whole["content"] = message["content"].as_str().unwrap_or_default().into();
    assert!(message["content"].is_string() || !calls.is_empty(), "only beside calls there is no content: {message}");
    for name in ["reasoning", "reasoning_content"] {
        if let Some(text) = message.get(name) {
            whole[name] = text.clone();
        }
    }
    whole
}

fn without_ids(mut choices: Vec<Value>) -> Vec<Value> {
    for choice in &mut choices {
        for call in choice["calls"].as_array_mut().expect("a list") {
            call["id"] = "".into();
        }
    }
    choices
}

/// Asks for the same twice, and gives what chat said of it.
fn same_in_chat(server: &Scripted, ids: &[u32], body: &Value, what: &str) -> (Value, Value) {
    server.say_ids(ids.to_vec());
    let (status, answer) = server.post(CHAT, body);
    assert_eq!(status, 200, "{what}: {answer}");
    server.say_ids(ids.to_vec());
    let (streamed, usage) = joined(&server.stream(CHAT, body));
    let mut streamed = without_ids(streamed);
    let choices: Vec<Value> = answer["choices"].as_array().expect("a list").iter().map(whole).collect();
    for choice in &mut streamed {
        choice["content"] = choice["content"].as_str().unwrap_or_default().into();
    }
    assert_eq!(streamed, choices, "{what}");
    assert_eq!(usage, answer["usage"], "{what}");
    (choices[0].clone(), answer)
}

/// Asks for the same twice, and gives the response.
fn same_in_responses(server: &Scripted, ids: &[u32], body: &Value, what: &str) -> Value {
    server.say_ids(ids.to_vec());
    let (status, mut answer) = server.post(RESPONSES, body);
    assert_eq!(status, 200, "{what}: {answer}");
    server.say_ids(ids.to_vec());
    let mut streamed = event_rules::checked(&server.stream(RESPONSES, body));
    for response in [&mut answer, &mut streamed] {
        for name in ["id", "created_at", "completed_at"] {
            assert!(!response[name].is_null() || name == "completed_at", "{what}");
            response[name] = Value::Null;
        }
        for item in response["output"].as_array_mut().expect("a list") {
            item["id"] = Value::Null;
            if item["type"] == "function_call" {
                item["call_id"] = Value::Null;
            }
        }
    }
    assert_eq!(streamed, answer, "{what}");
    answer
}

fn texts(output: &Output, of: impl Fn(&MessageKind) -> bool) -> String {
    let texts: Vec<&str> = output.parts.iter().filter(|(part, _)| of(part)).map(|(_, text)| *text).collect();
    texts.join("\n\n")
}

#[test]
fn every_output_is_the_same_streamed_and_not_and_is_what_it_should_be() {
    let server = Scripted::new();
    for output in OUTPUTS {
        let ids = output.ids(&server.tokenizer);
        let (choice, answer) = same_in_chat(&server, &ids, &chat_body(), output.what);
        let calls: Vec<(&str, &str)> = output
            .parts
            .iter()
            .filter_map(|(part, text)| match part {
                MessageKind::Call(name) => Some((*name, *text)),
                _ => None,
            })
            .collect();
        let is_cut = !output.is_over;
        let finish = if is_cut {
            "length"
        } else if calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        };
        assert_eq!(choice["finish"], finish, "{}", output.what);
        assert_eq!(
            choice["content"],
            texts(output, |part| matches!(part, MessageKind::Preamble | MessageKind::Answer)),
            "{}",
            output.what
        );
        let reasoning = texts(output, |part| matches!(part, MessageKind::Reasoning));
        assert_eq!(choice["reasoning"].as_str().unwrap_or_default(), reasoning, "{}", output.what);
        assert_eq!(choice["reasoning"], choice["reasoning_content"], "{}", output.what);
        let told: Vec<(&str, &str)> = choice["calls"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|call| (call["name"].as_str().expect("a name"), call["arguments"].as_str().expect("a text")))
            .collect();
        assert_eq!(told, calls, "{}", output.what);
        assert!(answer["usage"]["completion_tokens"].as_u64().expect("a number") <= ids.len() as u64);

        let response = same_in_responses(&server, &ids, &responses_body(), output.what);
        assert_eq!(response["status"], if is_cut { "incomplete" } else { "completed" }, "{}", output.what);
        let items: Vec<(&str, &str)> = response["output"].as_array().expect("a list").iter().map(item).collect();
        let kind = |part: &MessageKind| match part {
            MessageKind::Reasoning => "reasoning",
            MessageKind::Preamble => "commentary",
            MessageKind::Answer => "final_answer",
            MessageKind::Call(_) => "function_call",
        };
        let want: Vec<(&str, &str)> = output.parts.iter().map(|(part, text)| (kind(part), *text)).collect();
        assert_eq!(items, want, "{}", output.what);
    }
}

/// What an output item is, and its text.
fn item(item: &Value) -> (&str, &str) {
    let kind = item["phase"].as_str().or(item["type"].as_str()).expect("a type");
    (kind, item["arguments"].as_str().or(item["content"][0]["text"].as_str()).expect("a text"))
}

#[test]
fn an_output_that_is_cut_anywhere_is_the_same_streamed_and_not() {
    let server = Scripted::new();
    for output in OUTPUTS {
        let ids = output.ids(&server.tokenizer);
        for n in 1..ids.len() {
            let what = format!("{} at {n}", output.what);
            let (mut chat, mut responses) = (chat_body(), responses_body());
            chat["max_tokens"] = n.into();
            responses["max_output_tokens"] = n.into();
            let (choice, answer) = same_in_chat(&server, &ids, &chat, &what);
            let response = same_in_responses(&server, &ids, &responses, &what);
            let n_tokens = answer["usage"]["completion_tokens"].as_u64().expect("a number");
            assert_eq!(response["usage"]["output_tokens"], n_tokens, "{what}");
            // Unless the turn was over before, that is why it ended.
            assert_eq!(choice["finish"] == "length", response["status"] == "incomplete", "{what}");
            let reason = &response["incomplete_details"]["reason"];
            assert_eq!(choice["finish"] == "length", reason == "max_output_tokens", "{what}");
        }
    }
}

#[test]
fn random_outputs_keep_the_rules_of_both_streams() {
    const PIECES: [&str; 16] = [
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|return|>",
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "json",
        "{\"a\": 1}",
        " words é 🎈",
        "<|start|>assistant",
    ];
    let server = Scripted::new();
    let pieces: Vec<Vec<u32>> = PIECES.iter().map(|piece| server.ids(piece)).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    for run in 0..150 {
        let n = 1 + below(24);
        let ids: Vec<u32> = (0..n).flat_map(|_| pieces[below(PIECES.len() as u64) as usize].clone()).collect();
        let what = format!("run {run}: {}", server.text(&ids));
        same_in_chat(&server, &ids, &chat_body(), &what);
        same_in_responses(&server, &ids, &responses_body(), &what);
    }
}

#[test]
fn a_stop_ends_visible_text_alone() {
    let server = Scripted::new();
    let text = "<|channel|>analysis<|message|>Not END here.<|end|><|start|>assistant<|channel|>final<|message|>\
                Some text, ENough, END of it.<|return|>";
    let ids = server.ids(text);
    let mut body = chat_body();
    body["stop"] = json!(["END"]);
    let (choice, answer) = same_in_chat(&server, &ids, &body, "a stop");
    assert_eq!(choice["reasoning"], "Not END here.");
    assert_eq!((choice["content"].as_str(), choice["finish"].as_str()), (Some("Some text, ENough, "), Some("stop")));
    assert!(answer["usage"]["completion_tokens"].as_u64().expect("a number") < ids.len() as u64);
}

#[test]
fn logprobs_are_those_of_the_content_whose_text_their_bytes_are() {
    let server = Scripted::new();
    let analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    for (text, stop, content) in [
        ("<|channel|>final<|message|>Some 🎈🎈 text é.<|return|>", Value::Null, "Some 🎈🎈 text é."),
        ("<|channel|>final<|message|>Some 🎈 text. And more<|return|>", json!(". And"), "Some 🎈 text"),
        ("<|channel|>final Some 🎈 text<|return|>", Value::Null, "Some 🎈 text"),
    ] {
        let mut body = chat_body();
        body["logprobs"] = true.into();
        body["top_logprobs"] = 3.into();
        body["stop"] = stop;
        let ids = server.ids(&format!("{analysis}{text}"));
        let (choice, _) = same_in_chat(&server, &ids, &body, text);
        assert_eq!(choice["content"], content);
        let entries = choice["logprobs"].as_array().expect("a list");
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| {
                entry["bytes"].as_array().expect("bytes").iter().map(|byte| byte.as_u64().expect("a byte") as u8)
            })
            .collect();
        let told = String::from_utf8(bytes).expect("whole characters");
        assert_eq!(told.trim_start(), content, "a stop may begin inside of a token");
        for entry in entries {
            assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3));
            assert!(entry["logprob"].as_f64().expect("a number") <= f64::from(logprob(0)));
        }
        // Every token has its own.
        let own: Vec<f64> = entries.iter().map(|entry| entry["logprob"].as_f64().expect("a number")).collect();
        assert!(own.windows(2).all(|pair| pair[1] == pair[0] - 0.25), "{own:?}");
    }
}

#[test]
fn several_answers_are_told_side_by_side() {
    let server = Scripted::new();
    let mut body = chat_body();
    body["n"] = 3.into();
    body["seed"] = (-2).into();
    let say = || {
        for text in ["one", "two", "three"] {
            server.say(&format!("<|channel|>final<|message|>{text}<|return|>"));
        }
    };
    say();
    let (_, answer) = server.post(CHAT, &body);
    assert_eq!(server.asked().seed, 0, "seeds follow each other, and -2 + 2 is 0");
    let choices: Vec<Value> = answer["choices"].as_array().expect("a list").iter().map(whole).collect();
    let contents: Vec<&str> = choices.iter().map(|choice| choice["content"].as_str().expect("a text")).collect();
    assert_eq!(contents, ["one", "two", "three"]);
    say();
    let (streamed, usage) = joined(&server.stream(CHAT, &body));
    assert_eq!(without_ids(streamed), choices);
    assert_eq!(usage, answer["usage"]);
    assert_eq!(usage["completion_tokens"], 5 * 3, "channel, its name, message, a word, return");
}

#[test]
fn usage_counts_reasoning_and_what_was_cached() {
    let server = Scripted::new();
    let ids = server
        .ids("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>");
    // channel, analysis, message, two of text, end; start, assistant, channel, final, message, two of text, return.
    assert_eq!(ids.len(), 14);
    let (_, answer) = same_in_chat(&server, &ids, &chat_body(), "usage");
    let n_prompt = server.asked().prompt.len();
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": n_prompt, "completion_tokens": 14, "total_tokens": n_prompt + 14,
            "prompt_tokens_details": {"cached_tokens": n_prompt / 2},
            "completion_tokens_details": {"reasoning_tokens": 6},
        })
    );
    let response = same_in_responses(&server, &ids, &responses_body(), "usage");
    assert_eq!(response["usage"]["output_tokens_details"], json!({"reasoning_tokens": 6}));
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], n_prompt / 2);

    let mut body = chat_body();
    body["stream_options"] = json!({"continuous_usage_stats": true});
    server.say_ids(ids);
    let chunks = server.stream(CHAT, &body);
    let counts: Vec<u64> = chunks[..chunks.len() - 1]
        .iter()
        .map(|(_, data)| {
            serde_json::from_str::<Value>(data).expect("JSON")["usage"]["completion_tokens"].as_u64().expect("a count")
        })
        .collect();
    assert_eq!(counts.last(), Some(&14));
}

/// The second answer has a slot, is told and over before the first one has one.
#[test]
fn what_was_cached_is_what_the_first_answer_found_whichever_is_told_first() {
    let server = Scripted::new();
    let mut body = chat_body();
    (body["n"], body["stream_options"]) = (json!(2), json!({"include_usage": true}));
    server.say_late("<|channel|>final<|message|>one<|return|>");
    server.say("<|channel|>final<|message|>two<|return|>");
    let mut n_before = 0;
    let events = server.stream_watched(CHAT, &body, &mut |so_far| {
        if n_before == 0 && so_far.contains("\"finish_reason\":\"stop\"") {
            assert!(so_far.contains("two") && !so_far.contains("one"), "{so_far}");
            n_before = so_far.len();
            server.go_on();
        }
    });
    assert!(n_before > 0, "{events:?}");
    let mut usage =
        events.iter().filter_map(|(_, data)| serde_json::from_str::<Value>(data).ok()?.get("usage").cloned());
    let usage = usage.rfind(|usage| !usage.is_null()).expect("the last event has it");
    let n_prompt = server.asked().prompt.len();
    assert_ne!(n_prompt / 4, n_prompt / 2);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], n_prompt / 4, "{usage}");
}

#[test]
fn reasoning_is_left_out_of_the_answer_if_it_is_not_wanted() {
    let server = Scripted::new();
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
    for (name, value) in [("include_reasoning", json!(false)), ("reasoning", json!({"exclude": true}))] {
        let mut body = chat_body();
        body[name] = value;
        let (choice, _) = same_in_chat(&server, &server.ids(text), &body, name);
        assert!(choice.get("reasoning").is_none() && choice.get("reasoning_content").is_none());
        assert_eq!(choice["content"], "Yes.");
    }
}

#[test]
fn a_failure_behind_the_head_is_told_and_the_stream_ends() {
    let server = Scripted::new();
    server.say_and_fail("<|channel|>final<|message|>Some");
    let events = server.stream(CHAT, &chat_body());
    let last: Value = serde_json::from_str(&events.last().expect("something").1).expect("JSON, and not [DONE]");
    assert_eq!(
        (last["error"]["type"].as_str(), last["error"]["code"].as_str()),
        (Some("server_error"), Some("engine_failed"))
    );
    server.say_and_fail("<|channel|>final<|message|>Some");
    let events = server.stream(RESPONSES, &responses_body());
    let (kind, data) = events.last().expect("something");
    let failed: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!((kind.as_str(), &failed["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(failed["response"]["error"]["code"], "server_error");
    server.say_and_fail("<|channel|>final<|message|>Some");
    let (status, answer) = server.post(CHAT, &chat_body());
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("engine_failed")));
}

#[test]
fn text_that_comes_at_a_time_is_one_event() {
    const WORDS: usize = 100;
    let server = Scripted::new();
    let text = " word".repeat(WORDS);
    for n_logprobs in [None, Some(1)] {
        server.say(&format!("<|channel|>final<|message|>{text}<|return|>"));
        let mut body = chat_body();
        body["logprobs"] = n_logprobs.is_some().into();
        body["top_logprobs"] = n_logprobs.into();
        let events = server.stream(CHAT, &body);
        let (choices, _) = joined(&events);
        assert_eq!(choices[0]["content"], text);
        // Half of the tokens are there when the server looks first.
        let n_events = events.iter().filter(|(_, data)| data.contains(" word")).count();
        assert!(n_events <= WORDS / 2 + 2, "{n_events} events");
        let n_told = choices[0]["logprobs"].as_array().expect("a list").len();
        assert_eq!(n_told, n_logprobs.map_or(0, |_| WORDS));
        server.say(&format!("<|channel|>final<|message|>{text}<|return|>"));
        let events = server.stream(RESPONSES, &responses_body());
        let n_events = events.iter().filter(|(kind, _)| kind == "response.output_text.delta").count();
        assert!((1..=WORDS / 2 + 2).contains(&n_events), "{n_events} events");
    }
}
