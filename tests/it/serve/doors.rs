//! What others may try with a server: fill it, wait in it, reach it from a page of theirs, write into its log. None of
//! it ends the server, slows others or stays.
//!
//! `GPTOSS_JIT_BODIES` and `GPTOSS_JIT_IDLE` are how many mutated bodies and idle connections are tried.

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::fixtures::http::{self, JSON, Reply, ask, get, post, stream};
use crate::fixtures::program::{command, file, shared_cache};
use crate::fixtures::server::Server;
use crate::fixtures::{say, skipped};
use fixtures::bodies::{Random, mutate, seeds};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";

/// The folder of a script that always says the same.
struct Script(tempfile::TempDir);

impl Script {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        file(folder.path(), "script.jsonl", br#"{"text": "<|channel|>final<|message|>Hello<|return|>"}"#);
        Self(folder)
    }

    /// A server that plays it.
    fn command(&self, flags: &[&str]) -> Command {
        let script = self.0.path().join("script.jsonl");
        Server::command(&[&["--replay", script.to_str().expect("UTF-8")], flags].concat())
    }

    fn start(&self, flags: &[&str]) -> Server {
        Server::of(&mut self.command(flags), true)
    }
}

fn chat(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("a device")
}

/// The server answers requests that log, warn or stream, and ends well.
fn answers(server: Server) {
    let answer = post(server.address, CHAT, &chat("hi")).ok();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello");
    assert_eq!(get(server.address, "/v1/models").ok()["object"], "list");
    let mut streamed = chat("hi");
    streamed["stream"] = true.into();
    assert_eq!(stream(server.address, CHAT, &streamed).last().expect("events"), "[DONE]");
    let hosted = json!({"input": "hi", "tools": [{"type": "web_search"}]});
    assert_eq!(post(server.address, RESPONSES, &hosted).ok()["status"], "completed");
    assert_eq!(get(server.address, "/nothing").fails(404).0, "not_found");
    server.signal();
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn a_log_that_cannot_be_written_changes_no_answer() {
    let script = Script::new();
    for flags in [&["--log-content"][..], &["--log-content", "--json"], &["--quiet"]] {
        answers(Server::of(script.command(flags).stderr(full()), false));
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        answers(Server::of(script.command(flags).stderr(writer), false));
    }
}

#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let script = Script::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let server = Server::of(script.command(&["--log-content"]).stderr(writer), false);
    // Some 2 KB each, of the 64 KiB that a pipe holds.
    let said = "said ".repeat(400);
    for _ in 0..100 {
        post(server.address, CHAT, &chat(&said)).ok();
    }
    answers(server);
    drop(reader);
}

#[test]
fn messages_that_cannot_be_written_change_nothing_of_what_a_command_prints() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = file(folder.path(), "prompts.txt", b"2\nOnce upon a time\nTom\n");
    // A cache that cannot be made is a warning, and costs one of them its kernels.
    let no_cache = PathBuf::from(file(folder.path(), "no-folder", b""));
    let cache = shared_cache().to_owned();
    for (args, cache) in [
        (&["run", "-i", "Once upon a time", "-n", "24", "--verbose"][..], &cache),
        (&["run", "-i", "Once upon a time", "-n", "24", "--json"], &no_cache),
        (&["run", "-m", "getp", "-i", &prompts, "-n", "12", "--verbose"], &cache),
        (&["run", "no-such-model"], &no_cache),
        (&["kernels", "plan", "--op", "rmsnorm"], &no_cache),
    ] {
        let printed = |stderr: Stdio| {
            let output = command(cache, args).stdin(Stdio::null()).stderr(stderr).output().expect("started");
            (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
        };
        let (code, stdout) = printed(full().into());
        let (usual_code, usual_stdout) = printed(Stdio::null());
        assert_eq!(code, usual_code, "{args:?}");
        // Times differ from run to run.
        let text = |stdout: &str| stdout.split("\"tok_per_s\"").next().map(str::to_owned);
        assert_eq!(text(&stdout), text(&usual_stdout), "{args:?}");
    }
}

/// What a request took of the server: memory above what it had, in bytes, and its time.
struct Took {
    memory_bytes: u64,
    what: String,
}

/// Asks with a body, and measures what the server takes for it: its memory above `before_kib`.
fn measured(server: &Server, before_kib: u64, path: &str, body: &[u8]) -> (Reply, Took) {
    server.forget_peak();
    let (cpu_s, begin) = (server.cpu_s(), Instant::now());
    let reply = ask(server.address, "POST", path, &JSON, body);
    let (seconds, cpu_s) = (begin.elapsed().as_secs_f64(), server.cpu_s() - cpu_s);
    let memory_bytes = (server.proc_status("VmHWM").saturating_sub(before_kib)) << 10;
    let what = format!(
        "{path}: {} bytes, {} in {:.0} ms, {:.0} ms of processor time, {:.1} MB more memory",
        body.len(),
        reply.status,
        seconds * 1e3,
        cpu_s * 1e3,
        memory_bytes as f64 / 1e6
    );
    (reply, Took { memory_bytes, what })
}

/// As a user would write them by `json.dumps`, each of 30 MB.
#[test]
fn a_prompt_of_30_mb_is_refused_and_takes_little_memory() {
    const N: usize = 30_000_000;
    let script = Script::new();
    let server = script.start(&[]);
    post(server.address, CHAT, &chat("hi")).ok();
    let before_kib = server.proc_status("VmRSS");
    let text = |field: &str, letter: &str| format!(r#"{{"{field}": "{}"}}"#, letter.repeat(N / letter.len()));
    let ids = |field: &str, id: &str| format!(r#"{{"{field}": [{}1]}}"#, format!("{id}, ").repeat(N / (id.len() + 2)));
    let message = |content: &str| format!(r#"{{"role": "user", "content": "{content}"}}"#);
    let messages = |n: usize| {
        let one = message(&"a".repeat((N / n).saturating_sub(40).max(1)));
        format!(r#"{{"messages": [{}]}}"#, vec![one; n].join(","))
    };
    let biases = format!(r#"{{"prompt": "a", "logit_bias": {{"1": [{}1]}}}}"#, "1, ".repeat(N / 3));
    let item = format!("{}{}", message("a"), " ".repeat(260));
    let items = format!(r#"{{"input": [{}]}}"#, vec![item; 100_000].join(","));
    let regex = format!(r#"{{"input": "a", "tools": [{}]}}"#, custom_tool(N));
    let escaped = format!(r#"{{"messages": [{}]}}"#, message(&r"\n".repeat(N / 2)));
    for (path, body, want) in [
        (COMPLETIONS, text("prompt", "a"), "context_length_exceeded"),
        (COMPLETIONS, text("prompt", "word "), "context_length_exceeded"),
        (COMPLETIONS, text("stop", "a"), "context_length_exceeded"),
        (COMPLETIONS, text("model", "a"), "context_length_exceeded"),
        (COMPLETIONS, ids("prompt", "1"), "request_too_large"),
        (COMPLETIONS, biases, "request_too_large"),
        (CHAT, messages(1), "context_length_exceeded"),
        (CHAT, messages(30), "context_length_exceeded"),
        (CHAT, messages(700_000), "request_too_large"),
        (CHAT, escaped.clone(), "context_length_exceeded"),
        (RESPONSES, text("input", " "), "context_length_exceeded"),
        (RESPONSES, items, "request_too_large"),
        (RESPONSES, regex, "context_length_exceeded"),
        (RESPONSES, text("instructions", "中"), "context_length_exceeded"),
        ("/tokenize", text("content", "a"), "context_length_exceeded"),
        ("/detokenize", ids("tokens", "1"), "request_too_large"),
        ("/apply-template", messages(1), "context_length_exceeded"),
        ("/v1/chat/completions/input_tokens", messages(1), "context_length_exceeded"),
        ("/v1/responses/input_tokens", text("input", "=\\n"), "context_length_exceeded"),
    ] {
        let (reply, took) = measured(&server, before_kib, path, body.as_bytes());
        say(&took.what);
        assert!((400..500).contains(&reply.status), "{}", took.what);
        assert_eq!(reply.json()["error"]["code"], want, "{path} {}", &body[..60]);
        assert!(reply.body.len() < 4096, "what was sent does not come back");
        assert!(took.memory_bytes <= 64_000_000, "{}", took.what);
    }
    // Texts that have as few bytes as a prompt may, and more tokens.
    for body in [text("content", "a"), text("content", "word ")].map(|body| body[..15_000_000].to_owned() + "\"}") {
        let (reply, took) = measured(&server, before_kib, "/tokenize", body.as_bytes());
        say(&took.what);
        assert_eq!(reply.fails(400), ("context_length_exceeded".into(), json!("content")));
        assert!(took.memory_bytes <= 64_000_000, "{}", took.what);
    }
    // A grammar takes a hundred times its text.
    let body = format!(r#"{{"input": "a", "tools": [{}]}}"#, custom_tool(1_000_000));
    let (reply, took) = measured(&server, before_kib, RESPONSES, body.as_bytes());
    say(&took.what);
    assert_eq!(reply.fails(400).0, "invalid_json_schema");
    assert!(took.memory_bytes <= 64_000_000, "{}", took.what);
    // What fits is not refused: 900,000 ids are too many for the context, and nothing else.
    let ids = format!(r#"{{"prompt": [{}1]}}"#, "1,".repeat(900_000));
    assert_eq!(post_text(&server, COMPLETIONS, &ids).fails(400).0, "context_length_exceeded");
    answers(server);
}

fn post_text(server: &Server, path: &str, body: &str) -> Reply {
    ask(server.address, "POST", path, &JSON, body.as_bytes())
}

/// A tool that takes a text of a regular expression of so many letters.
fn custom_tool(n: usize) -> String {
    let format = format!(r#"{{"type": "grammar", "syntax": "regex", "definition": "{}"}}"#, "a".repeat(n));
    format!(r#"{{"type": "custom", "name": "c", "format": {format}}}"#)
}

/// A body's values take more memory than its bytes: what is let in takes what is counted.
#[test]
fn a_body_of_many_values_takes_no_more_memory_than_is_counted() {
    let script = Script::new();
    let server = script.start(&[]);
    post(server.address, CHAT, &chat("hi")).ok();
    let list = |element: &str, n: usize| format!(r#"{{"messages": [], "x": [{}0]}}"#, format!("{element},").repeat(n));
    let fields: String = (0..41_000).map(|i| format!(r#""{i}":0,"#)).collect();
    for body in [
        list("0", 110_000),
        list("[0]", 36_000),
        list(r#"{"":0}"#, 20_000),
        list(r#"{"a":0,"b":0,"c":0,"d":0}"#, 8_000),
        format!(r#"{{"messages": [], "x": {{{fields}"y": 0}}}}"#),
    ] {
        let before_kib = server.proc_status("VmRSS");
        let (reply, took) = measured(&server, before_kib, CHAT, body.as_bytes());
        say(&took.what);
        assert_eq!(reply.fails(400).1, "messages", "it was read");
        assert!(took.memory_bytes <= (16 << 20) + 2 * body.len() as u64 + (4 << 20), "{}", took.what);
    }
}

#[test]
fn a_grammar_of_a_few_lines_does_not_end_the_server() {
    let script = Script::new();
    let server = script.start(&[]);
    let of = |syntax: &str, definition: &str| {
        let format = json!({"type": "grammar", "syntax": syntax, "definition": definition});
        post(
            server.address,
            RESPONSES,
            &json!({"input": "a", "tools": [{"type": "custom", "name": "c", "format": format}]}),
        )
    };
    // A thread's usual stack has room for 650 of such rules.
    let links: String = (0..1000).map(|i| format!("r{i}: \"a\" r{}\n", i + 1)).collect();
    assert_eq!(of("lark", &format!("start: r0\n{links}r1000: \"b\"")).status, 200);
    assert_eq!(of("regex", &"a?".repeat(20_000)).fails(400).0, "invalid_json_schema");
    answers(server);
}

#[test]
fn on_a_loopback_address_other_hosts_are_not_served() {
    let script = Script::new();
    let server = script.start(&[]);
    let of = |server: &Server, host: &'static str, method: &str, path: &str, body: &Value| {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        ask(server.address, method, path, &[JSON[0], ("Host", host)], body.as_bytes())
    };
    let paths = [("GET", "/"), ("GET", "/v1/models"), ("GET", "/metrics"), ("OPTIONS", CHAT), ("POST", CHAT)];
    for (method, path) in paths {
        let reply = of(&server, "evil.example", method, path, &chat("hi"));
        assert_eq!(reply.fails(403).0, "host_not_allowed", "{path}");
        for host in ["localhost:8000", "127.0.0.1", "[::1]:80"] {
            assert_ne!(of(&server, host, method, path, &chat("hi")).status, 403, "{host} {path}");
        }
    }
    let named = script.start(&["--allowed-hosts", "chat.example.com,.lan"]);
    for (host, status) in [("chat.example.com", 200), ("box.lan:80", 200), ("evil.example", 403)] {
        assert_eq!(of(&named, host, "POST", CHAT, &chat("hi")).status, status, "{host}");
    }
    let everywhere = script.start(&["--host", "0.0.0.0"]);
    assert_eq!(of(&everywhere, "box.lan", "POST", CHAT, &chat("hi")).status, 200);
    let wrong = script.command(&["--allowed-hosts", "https://chat.example.com"]).output().expect("started");
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_page_of_another_site_cannot_have_a_browser_post() {
    let script = Script::new();
    let server = script.start(&[]);
    // What a page may send without asking: these types, or none.
    for headers in [
        &[("Origin", "https://evil.example")][..],
        &[("Origin", "https://evil.example"), ("Content-Type", "text/plain")],
        &[("Origin", "https://evil.example"), ("Content-Type", "application/x-www-form-urlencoded")],
        &[],
    ] {
        for path in [CHAT, RESPONSES, COMPLETIONS, "/tokenize"] {
            let reply = ask(server.address, "POST", path, headers, chat("hi").to_string().as_bytes());
            assert_eq!(reply.fails(415).0, "unsupported_media_type", "{path} {headers:?}");
        }
    }
}

#[test]
fn keys_of_files_and_of_the_environment_are_those_that_are_meant() {
    let script = Script::new();
    let keys = file(script.0.path(), "keys", b"\xef\xbb\xbfone\n# comment\n\ntwo\r\n");
    let server = script.command(&["--api-key-file", &keys]);
    let server = Server::of({ server }.env("GPTOSS_JIT_API_KEY", "three\n"), true);
    for (key, status) in [("one", 200), ("two", 200), ("three", 200), ("# comment", 401), ("", 401), ("comment", 401)] {
        let headers = [JSON[0], ("Authorization", &format!("Bearer {key}"))];
        assert_eq!(
            ask(server.address, "POST", CHAT, &headers, chat("hi").to_string().as_bytes()).status,
            status,
            "{key}"
        );
    }
    for empty in ["", "\n"] {
        let ended = script.command(&[]).env("GPTOSS_JIT_API_KEY", empty).output().expect("started");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && stderr.contains("GPTOSS_JIT_API_KEY is empty"), "{stderr}");
    }
}

#[test]
fn what_a_client_writes_is_not_in_the_log() {
    let script = Script::new();
    let server = script.start(&[]);
    let secret = "secret".repeat(500);
    for (path, body) in [
        (RESPONSES, json!({"input": "hi", "tools": [{"type": "web_search"}, {"type": secret}]})),
        (CHAT, json!({"model": secret, "messages": []})),
        (COMPLETIONS, json!({"prompt": {"secret": secret}, "secret": 1})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function":
            {"name": "secret", "parameters": {"secret": "secret", "type": "secret"}, "strict": true}}]}),
        ),
    ] {
        post(server.address, path, &body);
    }
    let long_path = format!("/{}", "x".repeat(3000));
    get(server.address, &long_path).fails(404);
    ask(server.address, &"M".repeat(3000), "/", &[], b"");
    server.signal();
    let log = server.ended().1;
    assert!(!log.contains("secret"), "{log}");
    assert!(log.contains("tools of type `web_search` are dropped"), "{log}");
    assert!(log.lines().all(|line| line.len() < 400), "{log}");
}

#[test]
fn a_server_that_runs_out_of_descriptors_says_so_and_goes_on() {
    let script = Script::new();
    let plain = script.command(&[]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::of(&mut limited, true);
    let idle: Vec<TcpStream> = (0..60).map(|_| http::send(server.address, b"")).collect();
    // The kernel lets it in, and it is answered when others leave.
    let waiting = http::send(server.address, &http::request("POST", CHAT, &JSON, chat("hi").to_string().as_bytes()));
    drop(idle);
    assert_eq!(http::answer(waiting).0.status, 200);
    server.signal();
    let log = server.ended().1;
    assert!(log.contains("all 36 connections are taken: others wait until one ends; a higher hard limit"), "{log}");
    assert_eq!(log.matches("are taken").count(), 1, "once a minute is enough: {log}");
}

#[test]
fn idle_connections_take_little_and_leave_nothing() {
    let n = times("GPTOSS_JIT_IDLE", 2000);
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < n as u64 + 500) {
        return skipped(&format!("this process may not have {n} connections"));
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum.or(Some(n as u64 + 500)), ..limit }).expect("it may");
    let script = Script::new();
    let server = script.start(&[]);
    post(server.address, CHAT, &chat("hi")).ok();
    let (rss_kib, n_descriptors) = (server.proc_status("VmRSS"), server.n_descriptors());
    let idle: Vec<TcpStream> = (0..n).map(|_| http::send(server.address, b"")).collect();
    post(server.address, CHAT, &chat("hi")).ok();
    // One that was counted before may be gone.
    wait_until(|| server.n_descriptors() + 1 >= n_descriptors + n);
    let each_kib = server.proc_status("VmRSS").saturating_sub(rss_kib) as f64 / n as f64;
    drop(idle);
    wait_until(|| server.n_descriptors() <= n_descriptors);
    let after_kib = server.proc_status("VmRSS");
    say(&format!(
        "{n} idle connections: {each_kib:.1} KiB each; {n_descriptors} descriptors before and after, \
         {rss_kib} KiB before, {after_kib} after"
    ));
    assert!(each_kib < 64.0, "{each_kib} KiB each");
    answers(server);
}

#[test]
fn mutated_bodies_leave_nothing() {
    let n_bodies = times("GPTOSS_JIT_BODIES", 1000) as u64;
    let script = Script::new();
    let server = script.start(&["--max-queue", "100000"]);
    let seeds = seeds();
    let try_all = |seeds_of_random: std::ops::Range<u64>| {
        let mut counts = [0; 6];
        for seed in seeds_of_random {
            let mut random = Random(seed);
            let (path, mut body) = random.one_of(&seeds).clone();
            (0..random.below(4)).for_each(|_| mutate(&mut body, &mut random, &seeds));
            let mut bytes = body.to_string().into_bytes();
            // A third is broken as bytes too: cut, or another byte somewhere.
            match random.below(6) {
                0 => bytes.truncate(random.below(bytes.len() + 1)),
                1 => {
                    let at = random.below(bytes.len());
                    bytes[at] = random.below(256) as u8;
                }
                _ => {}
            }
            let reply = ask(server.address, "POST", path, &JSON, &bytes);
            assert!(reply.status < 500, "body {seed}: {path} {}: {}", String::from_utf8_lossy(&bytes), reply.status);
            counts[usize::from(reply.status / 100)] += 1;
        }
        counts
    };
    // What is kept of the first is kept of all: grammars, answers that others may follow.
    try_all(n_bodies..n_bodies + n_bodies / 2);
    server.wait_until_idle();
    let (rss_kib, n_descriptors) = (server.proc_status("VmRSS"), server.n_descriptors());
    let counts = try_all(0..n_bodies);
    server.wait_until_idle();
    let after_kib = server.proc_status("VmRSS");
    say(&format!(
        "{n_bodies} mutated bodies: {} answered, {} refused; {rss_kib} KiB before, {after_kib} after; \
         {n_descriptors} descriptors before, {} after",
        counts[2],
        counts[4],
        server.n_descriptors()
    ));
    assert!(counts[2] > 0 && counts[4] > 0, "{counts:?}");
    assert!(server.n_descriptors() <= n_descriptors + 1);
    assert!(after_kib < rss_kib + (64 << 10), "{rss_kib} KiB before, {after_kib} after");
    answers(server);
}

#[test]
fn the_address_is_told_when_there_is_a_model_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = file(folder.path(), "model.bin", b"no model");
    let ended = Server::command(&[&broken]).output().expect("started");
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.code() == Some(1) && stdout.is_empty(), "{stdout} {stderr}");
    // Nobody waits for a model here.
    let server = Server::of(&mut Server::command(&["-n", "64"]), true);
    assert_eq!(get(server.address, "/health").status, 200);
}

/// Waits for something that comes, though not for ever.
#[track_caller]
fn wait_until(has_come: impl Fn() -> bool) {
    let begin = Instant::now();
    while !has_come() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// How often something is tried.
fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |n| n.parse().expect("a number"))
}
