//! Where `run` takes its input from, and which flags make sense with what it does.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fixtures::models::{Counter, letters, prompt_file};
use crate::fixtures::program::{Ran, command, file, run_with_stdin, shared_cache, with_environment_of};
use crate::fixtures::skipped;
use crate::tokenizer::chat::Parrot;

/// `run` with a text on stdin, through a pipe.
fn piped(counter: &Counter, stdin: &[u8], args: &[&str]) -> Ran {
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    run_with_stdin(&[&["run", &model, "-z", &tokenizer], args].concat(), stdin)
}

#[test]
fn a_pipe_is_the_prompt_whole_but_for_its_last_line_end() {
    let counter = Counter::new(40);
    for mode in [&[][..], &["-m", "generate"]] {
        let ids = |stdin: &[u8]| {
            let json = piped(&counter, stdin, &[mode, &["-n", "6", "--json"]].concat()).ok().json();
            (json["prompt_tokens"].as_u64().expect("a number"), json["text"].as_str().expect("text").to_owned())
        };
        assert_eq!(ids(b"AaAb"), (2, "AaAbAcAdAeAfAg".into()));
        assert_eq!(ids(b"AaAb\n"), (2, "AaAbAcAdAeAfAg".into()));
        assert_eq!(ids(b"AaAb\r\n"), (2, "AaAbAcAdAeAfAg".into()));
        // Line ends within the text are of the text: four bytes that no token covers, each id 0.
        assert_eq!(ids(b"Ab\nAb\n\n").0, 4);
    }
    let stderr = piped(&counter, b"", &[]).fails(2);
    assert!(stderr.contains("generate needs a prompt: `-i TEXT`, or a text on stdin"), "{stderr}");
    // Who gives a prompt is not waited for.
    assert_eq!(piped(&counter, b"Ah", &["-i", "Aa", "-n", "2"]).ok().text(), "AaAbAc\n");
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_text_and_other_encodings_are_named() {
    let counter = Counter::new(40);
    let (model, mark) = (counter.path("model.bin"), &b"\xef\xbb\xbf"[..]);
    let ids = |text: &[u8]| run_with_stdin(&["tokenize", &model], text);
    assert_eq!(ids(&[mark, b"AcAb"].concat()).ok().text(), "2 1\n");
    assert_eq!(run_with_stdin(&["decode", &model], &[mark, b"2 1\n"].concat()).ok().text(), "AcAb\n");
    let json = piped(&counter, &[mark, b"AaAb"].concat(), &["-n", "6", "--json"]).ok().json();
    assert_eq!((&json["prompt_tokens"], &json["text"]), (&2.into(), &"AaAbAcAdAeAfAg".into()));
    for wide in [&b"\xff\xfeA\0c\0"[..], b"A\0c\0A\0b\0"] {
        let stderr = ids(wide).fails_with_hint(1);
        assert!(stderr.contains("the text on stdin is written in UTF-16, expected UTF-8"), "{stderr}");
    }
}

/// The program at a terminal, which `script` gives it.
pub struct Terminal {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// None where there is no `script`.
    fn open(model: &Counter, args: &[&str]) -> Option<Self> {
        let (checkpoint, tokenizer) = (model.path("model.bin"), model.path("tokenizer.bin"));
        Self::of(&[&["run", &checkpoint, "-z", &tokenizer], args].concat())
    }

    /// The same, with any words.
    pub fn of(args: &[&str]) -> Option<Self> {
        if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
            skipped("`script`, which gives a program a terminal, is not there");
            return None;
        }
        let program = command(shared_cache(), args);
        let words = [program.get_program()].into_iter().chain(program.get_args());
        let words = words.map(|word| format!("'{}'", word.to_str().expect("text")));
        // `exec`: a shell that waits for the program is told of a ctrl-c too, and some shells die of it.
        let line = ["exec".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
        let mut terminal = with_environment_of(&program, Command::new("script"));
        terminal.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", "xterm");
        let mut child = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut stdout, screen) = (child.stdout.take().expect("piped"), shown.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stdout.read(&mut bytes) {
                screen.lock().expect("no panic").extend(&bytes[..n]);
            }
        });
        Some(Self { child, shown, reader })
    }

    pub fn types(&mut self, keys: &str) {
        self.child.stdin.as_mut().expect("piped").write_all(keys.as_bytes()).expect("written");
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    /// Waits until so many of these words are on the screen. A program that ended shows no more of them.
    pub fn waits_for(&mut self, words: &str, n: usize) {
        while self.shown().matches(words).count() < n {
            assert!(self.child.try_wait().expect("ours").is_none(), "`{words}` never came: {}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it asks for a message so many times: what is typed before would not be edited, and a ctrl-c be a
    /// signal.
    pub fn waits_for_marks(&mut self, n: usize) {
        self.waits_for("\x1b[?2004h", n);
    }

    /// Everything that it showed, if it ended well.
    pub fn ends(mut self) -> String {
        let status = self.child.wait().expect("reaped");
        self.reader.join().expect("no panic");
        let shown = String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned();
        assert!(status.success(), "{shown}");
        shown
    }
}

#[test]
fn at_a_terminal_a_run_without_input_is_a_chat() {
    let parrot = Parrot::new(4096);
    let Some(mut terminal) = Terminal::open(&parrot.0, &["-T", "0"]) else { return };
    terminal.waits_for_marks(1);
    terminal.types("Hello\r");
    terminal.waits_for(" tok/s, the first after ", 1);
    // Several lines that are pasted are one message, and can be gone on with.
    terminal.waits_for_marks(2);
    terminal.types("\x1b[200~one\ntwo\x1b[201~ and\r");
    terminal.waits_for(" tok/s, the first after ", 2);
    terminal.waits_for_marks(3);
    terminal.types("/stats\r");
    terminal.waits_for("2 answers: 14 tokens in ", 1);
    terminal.waits_for_marks(4);
    terminal.types("/nonsense\r");
    terminal.waits_for("there is no command `/nonsense`", 1);
    let saved = parrot.0.path("saved.json");
    terminal.waits_for_marks(5);
    terminal.types(&format!("/save {saved}\r"));
    terminal.waits_for("4 messages written", 1);
    terminal.waits_for_marks(6);
    terminal.types("/clear\r");
    terminal.waits_for("forgotten", 1);
    terminal.waits_for_marks(7);
    terminal.types(&format!("/load {saved}\r"));
    terminal.waits_for("4 messages read", 1);
    terminal.waits_for_marks(8);
    terminal.types("/regenerate\r");
    terminal.waits_for(" tok/s, the first after ", 3);
    terminal.waits_for_marks(9);
    terminal.types(&format!("/save {saved}\r"));
    terminal.waits_for("4 messages written", 2);
    terminal.waits_for_marks(10);
    terminal.types("/drop\r");
    terminal.waits_for("2 messages forgotten", 1);
    terminal.waits_for_marks(11);
    terminal.types("/drop 9\r");
    terminal.waits_for("2 messages forgotten", 2);
    terminal.waits_for_marks(12);
    terminal.types("/drop\r");
    terminal.waits_for("there is no message to forget", 1);
    terminal.waits_for_marks(13);
    terminal.types("\x04");
    let shown = terminal.ends();
    assert!(shown.contains("ctrl-c stops an answer, ctrl-d ends the chat"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.trim_end() == "é!").count(), 3, "{shown}");
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(saved).expect("there")).expect("JSON");
    let said = |role: &str, content: &str| serde_json::json!({ "role": role, "content": content });
    let [user, assistant] = ["user", "assistant"];
    let expected = [said(user, "Hello"), said(assistant, "é!"), said(user, "one\ntwo and"), said(assistant, "é!")];
    assert_eq!(saved["messages"], serde_json::Value::from(expected.to_vec()));
}

#[test]
fn a_message_that_does_not_fit_and_an_answer_that_is_stopped_leave_the_chat_as_it_was() {
    // An answer without an end: after `c` comes `a`.
    let mut answer = Parrot::head();
    answer.extend(b"abca".map(u32::from));
    let parrot = Parrot::that_says(100_000, &answer);
    let Some(mut terminal) = Terminal::open(&parrot.0, &["-T", "0"]) else { return };
    terminal.waits_for_marks(1);
    terminal.types("Hello\r");
    terminal.waits_for("abcabcabc", 1);
    terminal.types("\x03");
    terminal.waits_for("stopped; ", 1);
    // A ctrl-c where there is no answer to stop clears the line and ends nothing.
    terminal.waits_for_marks(2);
    terminal.types("half a line\x03");
    terminal.waits_for("ctrl-d ends the chat", 2);
    terminal.waits_for_marks(3);
    terminal.types(&format!("\x1b[200~{}\x1b[201~\r", "x".repeat(100_000)));
    terminal.waits_for("the context 100000", 1);
    terminal.waits_for_marks(4);
    let n = terminal.shown().matches("abcabcabc").count();
    terminal.types("Again\r");
    terminal.waits_for("abcabcabc", n + 1);
    terminal.types("\x03");
    terminal.waits_for("stopped; ", 2);
    terminal.waits_for_marks(5);
    terminal.types("/quit\r");
    let shown = terminal.ends();
    // The message alone has 100,000 tokens; the stopped answer has as many as came until it was.
    assert!(shown.contains("the conversation has 1") && shown.contains("the message was not sent"), "{shown}");
}

#[test]
fn at_a_terminal_thoughts_are_counted_while_they_last_or_shown() {
    let parrot = Parrot::that_thinks();
    for (args, thoughts) in
        [(&["-T", "0"][..], "\r\x1b[2Kthinking, 3 tokens"), (&["-T", "0", "--show-reasoning"], "?!")]
    {
        let Some(mut terminal) = Terminal::open(&parrot.0, args) else { return };
        terminal.waits_for_marks(1);
        terminal.types("Hello\r");
        terminal.waits_for_marks(2);
        terminal.types("\x04");
        let shown = terminal.ends();
        assert!(shown.contains(thoughts), "{shown:?}");
        // <|channel|>, analysis, <|message|>, ?, !, <|end|>
        assert!(shown.contains("10 tokens, 6 of them thought, "), "{shown:?}");
        // Words begin their line, wherever the count stood.
        assert!(shown.contains("\x1b[2KZ\r\n") || shown.contains("?!\r\nZ\r\n"), "{shown:?}");
    }
}

#[test]
fn a_text_that_is_no_file_is_the_only_prompt_of_getp() {
    let counter = Counter::new(20);
    let getp = |input: &str, args: &[&str]| counter.run(&[&["-m", "getp", "-i", input, "-n", "4"], args].concat());
    let ran = getp("AaAb", &[]).ok();
    assert_eq!(ran.ids(), [[2, 3]]);
    assert!(ran.stderr.contains("note: there is no such file: what `-i` says is the only prompt"), "{}", ran.stderr);
    // Longer than any name of a file, and with line ends and slashes, which do not cut it.
    let long = "Aa".repeat(3000);
    assert_eq!(getp(&long, &[]).ok().ids(), [[]; 1] as [[u32; 0]; 1]);
    assert_eq!(getp("Ab\nAb / Ab.c", &["--max-new-tokens", "2"][..0]).ok().ids().len(), 1);
    // A file that is there is read, and a name that was mistyped is no prompt.
    let prompts = file(counter.folder.path(), "prompts", &prompt_file(&["Aa", "Ac"]));
    assert_eq!(getp(&prompts, &[]).ok().ids(), [[1, 2, 3], [3, 4, 5]]);
    for absent in ["prompt.txt", "data/prompts", "/nowhere/in.txt"] {
        let stderr = getp(absent, &[]).fails(1);
        assert!(stderr.contains(&format!("could not read prompts `{absent}`")), "{stderr}");
    }
}

#[test]
fn a_flag_that_a_mode_would_ignore_is_wrong_usage() {
    let counter = Counter::new(20);
    let out = counter.path("out.txt");
    for mode in ["generate", "chat"] {
        for (flag, value) in [("-o", out.as_str()), ("-v", &out), ("-b", "32"), ("-t", "0")] {
            let stderr = counter.run(&["-m", mode, "-i", "Aa", flag, value]).fails(2);
            assert!(
                stderr.contains(&format!("`{flag}` does nothing with `-m {mode}`: it is a flag of `-m getp`")),
                "{stderr}"
            );
        }
    }
    let stderr = counter.run(&["-i", "Aa", "--batch", "2"]).fails(2);
    assert!(stderr.contains("`-b` does nothing with `-m generate`"), "{stderr}");
    let stderr = piped(&counter, b"Aa", &["-o", &out]).fails(2);
    assert!(stderr.contains("`-o` does nothing with `-m generate`"), "{stderr}");
    assert!(!counter.folder.path().join("out.txt").exists());
    assert_eq!(counter.getp(b"1\nAa\n", &["-n", "3", "-b", "1", "-t", "1"]).ok().ids(), [[1, 2]]);
}

#[test]
fn a_run_that_generates_nothing_has_no_rate() {
    let counter = Counter::new(20);
    let prompt = letters(&[0, 1, 2]);
    let generate = |args: &[&str]| counter.run(&[&["-i", &prompt], args].concat()).ok();
    let ran = generate(&["--max-new-tokens", "0"]);
    assert!(ran.stderr.contains("3 prompt tokens, 0 new, on cpu ("), "{}", ran.stderr);
    assert!(generate(&["--max-new-tokens", "1"]).stderr.contains(" tok/s, on cpu ("));
    assert!(generate(&["--max-new-tokens", "0", "--json"]).json()["tok_per_s"].is_null());

    let input = prompt_file(&[&prompt]);
    let getp = |args: &[&str]| counter.getp(&input, args).ok();
    let ran = getp(&["-n", "3"]);
    assert!(ran.stderr.contains("1 prompt, 0 tokens in ") && !ran.stderr.contains("tok/s"), "{}", ran.stderr);
    assert!(getp(&["-n", "5"]).stderr.contains(" tok/s, on cpu ("));
    assert!(getp(&["-n", "3", "--json"]).json()["tok_per_s"].is_null());
}
