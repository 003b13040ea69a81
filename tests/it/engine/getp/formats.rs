//! How prompts and answers of getp are written down.

use serde_json::{Value, json};

use super::count;
use crate::fixtures::models::Counter;
use crate::fixtures::program::{Ran, argument, file, run, run_with_stdin};
use crate::tokenizer::chat::Parrot;

/// A file of these objects, a line each.
fn lines(counter: &Counter, name: &str, objects: &[Value]) -> String {
    let text: String = objects.iter().map(|object| format!("{object}\n")).collect();
    file(counter.folder.path(), name, text.as_bytes())
}

fn objects(ran: &Ran) -> Vec<Value> {
    ran.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn getp(counter: &Counter, input: &str, args: &[&str]) -> Ran {
    counter.run(&[&["-m", "getp", "-i", input], args].concat())
}

#[test]
fn lines_need_no_count_and_stdin_and_patterns_are_files_too() {
    let counter = Counter::new(20);
    let folder = counter.folder.path();
    let plain = file(folder, "b.lines", b"Aa\r\n\nAc");
    let expected = [vec![1, 2, 3], vec![], vec![3, 4, 5]];
    assert_eq!(getp(&counter, &plain, &["-n", "4"]).ok().ids(), expected);
    // A return goes with the line's end; where the line of the count has none it is a part of the prompt, and is told.
    let windows = getp(&counter, &file(folder, "windows.txt", b"2\r\nAa\r\nAc\r\n"), &["-n", "4"]).ok();
    assert_eq!(windows.ids(), [vec![1, 2, 3], vec![3, 4, 5]]);
    let counted = getp(&counter, &file(folder, "counted.txt", b"2\nAa\r\nAc\n"), &["-n", "4"]).ok();
    assert!(
        counted.stderr.contains("1 prompts of `") && counted.stderr.contains("carriage return"),
        "{}",
        counted.stderr
    );
    let other = file(folder, "prompts.txt", b"Aa\n\nAc\n");
    assert_eq!(getp(&counter, &other, &["-n", "4", "--in-format", "lines"]).ok().ids(), expected);
    let stderr = getp(&counter, &other, &["-n", "4"]).fails_with_hint(1);
    assert!(stderr.contains("line 1 is the number of prompts") && stderr.contains("`--in-format lines`"), "{stderr}");

    file(folder, "a.lines", b"Ah\n");
    let both = getp(&counter, &argument(&folder.join("*.lines")), &["-n", "2"]).ok().ids();
    assert_eq!(both, [vec![0], vec![1], vec![], vec![3]]);
    let stderr = getp(&counter, &argument(&folder.join("*.csv")), &[]).fails_with_hint(1);
    assert!(stderr.contains("*.csv`: no file has such a name"), "{stderr}");

    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let piped = |stdin: &[u8], args: &[&str]| {
        run_with_stdin(&[&["run", &model, "-z", &tokenizer, "-m", "getp", "-i", "-", "-n", "3"], args].concat(), stdin)
    };
    assert_eq!(piped(b"1\nAa\n", &[]).ok().ids(), [[1, 2]]);
    assert_eq!(piped(b"Aa\nAb", &["--in-format", "lines"]).ok().ids(), [[1, 2], [2, 3]]);
    assert!(piped(b"{\"prompt\": \"Aa\"}\n", &[]).fails_with_hint(1).contains("stdin"));
}

#[test]
fn an_object_says_how_its_prompt_is_answered() {
    let counter = Counter::new(40);
    let input = lines(
        &counter,
        "in.jsonl",
        &[
            json!({ "prompt": "AaAb", "max_tokens": 3, "id": "first" }),
            json!({ "ids": [0, 7], "max_tokens": 20, "stop_token_ids": [3], "id": 2 }),
            json!({ "prompt": "Ac" }),
        ],
    );
    let ran = getp(&counter, &input, &["-n", "6"]).ok();
    let found = objects(&ran);
    assert_eq!(
        found[0],
        json!({
            "index": 0, "id": "first", "text": "AcAdAe", "ids": [2, 3, 4], "finish_reason": "length",
            "usage": { "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5,
                       "prompt_tokens_details": { "cached_tokens": 0 } },
        })
    );
    assert_eq!(found[1]["ids"], json!([0, 1, 2, 3]));
    assert_eq!((&found[1]["text"], &found[1]["finish_reason"]), (&"AaAbAc".into(), &"stop".into()));
    assert_eq!((&found[1]["id"], &found[2]["id"]), (&2.into(), &Value::Null));
    assert_eq!(found[2]["ids"], json!(count(2, 5)), "flags say what the line does not");

    assert_eq!(getp(&counter, &input, &["--out-format", "ids", "-n", "6"]).ok().ids()[0], [2, 3, 4]);
    assert_eq!(
        getp(&counter, &input, &["--out-format", "text", "-n", "6"]).ok().text(),
        "AcAdAe\nAaAbAc\nAdAeAfAgAh\n"
    );

    // A seed of its own is that of another run.
    let drawn = |object: Value, args: &[&str]| {
        let input = lines(&counter, "drawn.jsonl", &[object]);
        getp(&counter, &input, &[&["-n", "30", "--out-format", "ids"], args].concat()).ok().ids()
    };
    let by_flags = drawn(json!({ "prompt": "Aa" }), &["-T", "2", "-p", "1", "-s", "5"]);
    let by_line = drawn(json!({ "prompt": "Aa", "temperature": 2, "top_p": 1, "seed": 5 }), &["-s", "9"]);
    assert_eq!(by_flags, by_line);
    assert_ne!(by_flags, [count(0, 29)]);
}

#[test]
fn a_line_that_is_wrong_is_an_error_that_says_where_and_why() {
    let counter = Counter::new(40);
    for (line, what) in [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("{}", "expected one of `prompt`, `messages` and `ids`, found 0"),
        (r#"{"prompt": "Aa", "ids": [1]}"#, "found 2"),
        (r#"{"prompt": 7}"#, "`prompt` should be a string, but is `7`"),
        (r#"{"prompt": "Aa", "max_token": 7}"#, "`max_token` not supported"),
        (r#"{"prompt": "Aa", "stop": ["x"]}"#, "`stop` not supported"),
        (r#"{"prompt": "Aa", "temperature": 3}"#, "`temperature` is 3, expected 0 to 2"),
        (r#"{"prompt": ""}"#, "the prompt has no tokens"),
        (r#"{"ids": [1, 26]}"#, "token id 26 at position 1 is not below the model's vocab_size, 26"),
        (r#"{"messages": []}"#, "the tokenizer lacks the special tokens of harmony"),
    ] {
        let input = file(counter.folder.path(), "in.jsonl", format!("{{\"prompt\": \"Aa\"}}\n\n{line}\n").as_bytes());
        let out = counter.path("out.txt");
        let stderr = getp(&counter, &input, &["-o", &out]).fails_with_hint(1);
        assert!(stderr.contains("could not run prompt 2 (`") && stderr.contains("in.jsonl`, line 3)\n"), "{stderr}");
        assert!(stderr.contains(what), "{what}: {stderr}");
        assert!(!counter.folder.path().join("out.txt.records").exists(), "told before anything is computed");
    }
}

#[test]
fn batch_files_are_answered_as_openai_answers_them() {
    let parrot = Parrot::new(4096);
    let counter = &parrot.0;
    let line =
        |id: &str, url: &str, body: Value| json!({ "custom_id": id, "method": "POST", "url": url, "body": body });
    let chat = "/v1/chat/completions";
    let hello = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "Hello" }]);
    let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "Hello" }] }]);
    let input = lines(
        counter,
        "in.jsonl",
        &[
            line(
                "a",
                chat,
                json!({ "model": "m", "messages": hello, "max_completion_tokens": 100, "n": 1, "user": "u" }),
            ),
            line("b", chat, json!({ "messages": parts, "max_tokens": 2 })),
            line("c", chat, json!({ "messages": hello, "tools": [{ "type": "function" }] })),
            line("d", "/v1/embeddings", json!({ "input": "x" })),
            line("e", "/v1/completions", json!({ "prompt": "t", "max_tokens": 4 })),
            line("f", chat, json!({ "messages": [{ "role": "robot", "content": "x" }] })),
            line("g", chat, json!({ "messages": hello, "temperature": "hot" })),
        ],
    );
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let ran = run(&["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &input, "-n", "4096"]).ok();
    let found = objects(&ran);
    let ids: Vec<&str> = found.iter().map(|line| line["custom_id"].as_str().expect("text")).collect();
    assert_eq!(ids, ["a", "b", "c", "d", "e", "f", "g"]);
    let status: Vec<u64> =
        found.iter().map(|line| line["response"]["status_code"].as_u64().expect("a number")).collect();
    assert_eq!(status, [200, 200, 400, 400, 200, 400, 400]);

    let body = &found[0]["response"]["body"];
    assert_eq!((&body["object"], &body["model"]), (&"chat.completion".into(), &"m".into()));
    let choice = &body["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&"é!".into(), &"stop".into()));
    // <|channel|>, final, <|message|>, two bytes, !, <|return|>
    assert_eq!(body["usage"]["completion_tokens"], 7);
    let n_prompt = body["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(body["usage"]["total_tokens"], n_prompt + 7);
    assert!(n_prompt > 200, "the system message of OpenAI's models is in it: {n_prompt}");
    let cut = &found[1]["response"]["body"]["choices"][0];
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&"".into(), &"length".into()));
    let text = &found[4]["response"]["body"];
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["choices"][0]["text"], "<|channel|>final<|message|>\u{fffd}");

    let error = |i: usize| found[i]["response"]["body"]["error"].clone();
    assert_eq!(
        error(2),
        json!({ "message": "`tools` not supported in files of prompts: chats have tools, completions and files of prompts have none", "type": "invalid_request_error",
                "param": "tools", "code": "unsupported_parameter" })
    );
    assert_eq!((&error(3)["param"], &error(6)["param"]), (&"url".into(), &"temperature".into()));
    assert_eq!(error(5)["message"], "`messages[0]`: role `robot` is none of system, developer, user and assistant");
    assert!(found.iter().all(|line| line["error"].is_null()));

    // A line that cannot be read has no name, and two lines have not the same one.
    let half = "{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": \
                {\"prompt\": \"cut \\ud83d\", \"max_tokens\": 1}}";
    let broken = file(counter.folder.path(), "broken.jsonl", format!("{half}\n{{broken\n").as_bytes());
    let ran = run(&["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &broken, "-n", "4096"]).ok();
    let found = objects(&ran);
    assert_eq!((&found[0]["custom_id"], &found[0]["response"]["status_code"]), (&"1".into(), &200.into()));
    assert_eq!((&found[1]["custom_id"], &found[1]["response"]["status_code"]), (&Value::Null, &400.into()));
    assert!(ran.stderr.contains("warning: 1 prompt could not be run: the answers say why"), "{}", ran.stderr);
    let twice = file(counter.folder.path(), "twice.jsonl", format!("{half}\n{half}\n").as_bytes());
    let stderr = run(&["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &twice]).fails_with_hint(1);
    assert!(stderr.contains("has its `custom_id`, `1`, too"), "{stderr}");

    // In other formats a wrong line is an error of the run.
    let args = ["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &input, "--out-format", "text"];
    assert!(run(&args).fails_with_hint(1).contains("in.jsonl`, line 3"));
}

#[test]
fn what_a_model_thinks_is_told_apart_from_what_it_says() {
    let parrot = Parrot::that_thinks();
    let input = lines(&parrot.0, "in.jsonl", &[json!({ "messages": [{ "role": "user", "content": "x" }] })]);
    let (model, tokenizer) = (parrot.0.path("model.bin"), parrot.0.path("tokenizer.bin"));
    let run_as = |format: &str, args: &[&str]| {
        let words = ["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &input, "-n", "4096", "--out-format", format];
        run(&[&words[..], args].concat()).ok()
    };
    let answer = &objects(&run_as("jsonl", &[]))[0];
    assert_eq!((&answer["text"], &answer["reasoning"]), (&"Z".into(), &"?!".into()));
    // <|channel|>, analysis, <|message|>, ?, !, <|end|>
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 6);
    assert_eq!(run_as("text", &[]).text(), "Z\n");
    let n_prompt = |args: &[&str]| objects(&run_as("jsonl", args))[0]["usage"]["prompt_tokens"].clone();
    let (usual, medium, high) =
        (n_prompt(&[]), n_prompt(&["--reasoning", "medium"]), n_prompt(&["--reasoning", "high"]));
    assert_eq!(usual, medium);
    assert_eq!(usual.as_u64().expect("a number"), high.as_u64().expect("a number") + 2, "bytes of `medium` and `high`");
}
