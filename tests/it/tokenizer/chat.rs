//! `run -m chat`, with a model that always gives the same answer, in harmony's format.

use crate::fixtures::models::Counter;
use crate::fixtures::program::{Ran, file, keys, run_with_stdin};

/// Ids behind the 256 bytes, and behind the special tokens.
const FINAL: u32 = 256;
const ANALYSIS: u32 = 265;
/// A header in ordinary letters: what follows `<|channel|>` is what follows it everywhere.
const SPELLED: u32 = 266;
const SPECIALS: [&str; 8] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|endoftext|>"];

/// A model that says `é!` on the channel `final`, whatever it is told: each token decides the next.
pub struct Parrot(pub Counter);

fn special(name: &str) -> u32 {
    FINAL + 1 + SPECIALS.iter().position(|special| *special == name).expect(name) as u32
}

impl Parrot {
    pub fn new(seq_len: i32) -> Self {
        Self::that_goes_on(seq_len, &[special("<|return|>")])
    }

    /// With other tokens after the words of its answer.
    fn that_goes_on(seq_len: i32, ending: &[u32]) -> Self {
        Self::that_says(seq_len, &[&Self::head()[..], &[0xc3, 0xa9, u32::from(b'!')], ending].concat())
    }

    /// What comes before the words of a final message. The prompt ends in `assistant`.
    pub fn head() -> Vec<u32> {
        vec![u32::from(b't'), special("<|channel|>"), FINAL, special("<|message|>")]
    }

    /// With these tokens, the first of which is the prompt's last.
    pub fn that_says(seq_len: i32, answer: &[u32]) -> Self {
        let successors: Vec<(u32, u32)> = answer.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let counter = Counter::with_successors(267, seq_len, &successors);
        file(counter.folder.path(), "tokenizer.bin", &tokenizer());
        Self(counter)
    }

    /// One that thinks `?!` and says `Z`.
    pub fn that_thinks() -> Self {
        let thought = [ANALYSIS, special("<|message|>"), u32::from(b'?'), u32::from(b'!'), special("<|end|>")];
        let words = [special("<|start|>"), SPELLED, u32::from(b'Z'), special("<|return|>")];
        Self::that_says(4096, &[&Self::head()[..2], &thought, &words].concat())
    }

    fn chat(&self, stdin: impl AsRef<[u8]>, args: &[&str]) -> Ran {
        let (model, tokenizer) = (self.0.path("model.bin"), self.0.path("tokenizer.bin"));
        run_with_stdin(&[&["run", &model, "-z", &tokenizer, "-m", "chat"], args].concat(), stdin.as_ref())
    }
}

/// Every byte, the word `final`, the special tokens, the word `analysis`, and a header.
fn tokenizer() -> Vec<u8> {
    let mut records: Vec<(f32, Vec<u8>)> = (0..=255).map(|byte| (0.0, vec![byte])).collect();
    records[0].1 = b"<0x00>".to_vec();
    records.push((0.0, b"final".to_vec()));
    records.extend(SPECIALS.iter().map(|name| (-1e30, name.as_bytes().to_vec())));
    records.push((0.0, b"analysis".to_vec()));
    records.push((0.0, b"assistant<|channel|>final ".to_vec()));
    let mut bytes = 26_i32.to_le_bytes().to_vec();
    for (score, text) in records {
        bytes.extend(score.to_le_bytes());
        bytes.extend((text.len() as i32).to_le_bytes());
        bytes.extend(text);
    }
    bytes
}

#[test]
fn every_line_is_answered() {
    let parrot = Parrot::new(4096);
    let ran = parrot.chat("Hello\nAnd again\r\n", &["-n", "4096"]).ok();
    assert_eq!(ran.text(), "é!\né!\n");
    assert!(ran.stderr.contains("kernels: "), "{}", ran.stderr);
    assert_eq!(parrot.chat("", &["-n", "4096", "-i", "Hello"]).ok().text(), "é!\n");
    assert_eq!(parrot.chat("more", &["-n", "4096", "-i", "Hello"]).ok().text(), "é!\né!\n");
    assert_eq!(parrot.chat("", &["-n", "4096"]).ok().text(), "");
    // Bytes that are no text, a NUL, and no words at all.
    assert_eq!(parrot.chat(b"\xff\xfe\n\0\n\n", &["-n", "4096"]).ok().text(), "é!\né!\né!\n");
}

#[test]
fn json_is_an_object_for_each_answer() {
    let parrot = Parrot::new(4096);
    let ran = parrot.chat("Hello\nAnd again\n", &["-n", "4096", "--json", "-y", "Be kind."]).ok();
    let turns: Vec<serde_json::Value> =
        ran.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(turns.len(), 2);
    for turn in turns {
        assert_eq!(keys(&turn), ["schema", "mode", "text", "analysis", "new_tokens"].into());
        assert_eq!((&turn["schema"], &turn["mode"]), (&1.into(), &"chat".into()));
        assert_eq!((&turn["text"], &turn["analysis"]), (&"é!".into(), &"".into()));
        assert_eq!(turn["new_tokens"], 7, "<|channel|>, final, <|message|>, two bytes, !, <|return|>");
    }
}

#[test]
fn thoughts_are_shown_to_those_who_ask() {
    let parrot = Parrot::that_thinks();
    let ran = parrot.chat("Hello\n", &[]).ok();
    assert_eq!((ran.text(), ran.stderr.contains("?!")), ("Z\n", false), "{}", ran.stderr);
    let ran = parrot.chat("Hello\n", &["--show-reasoning"]).ok();
    assert_eq!((ran.text(), ran.stderr.starts_with("?!\n")), ("Z\n", true), "{}", ran.stderr);
    assert!(parrot.chat("Hello\n", &["--verbose"]).ok().stderr.contains("[analysis] ?!\n"));
    let turn = parrot.chat("Hello\n", &["--json"]).ok().json();
    assert_eq!((&turn["text"], &turn["analysis"]), (&"Z".into(), &"?!".into()));
}

#[test]
fn a_character_is_never_cut_even_where_the_answer_is() {
    let parrot = Parrot::new(4096);
    // The fourth new token is the first byte of é.
    for (n, expected) in [("3", ""), ("4", "\u{fffd}"), ("5", "é"), ("6", "é!")] {
        let args = &["--max-new-tokens", n][..];
        assert_eq!(parrot.chat("Hello\n", args).ok().text(), format!("{expected}\n"));
        let ran = parrot.chat("Hello\n", &[args, &["--json"]].concat()).ok();
        let turn: serde_json::Value = serde_json::from_str(ran.text()).expect("JSON");
        assert_eq!(turn["text"], expected);
    }
}

#[test]
fn a_message_that_does_not_fit_the_context_ends_the_conversation_with_an_error() {
    let parrot = Parrot::new(4096);
    let first = parrot.chat("Hello\n", &["-n", "4096", "--json"]).ok();
    assert_eq!(first.text().lines().count(), 1);
    let ran = parrot.chat("Hello again\n".repeat(100), &["-n", "1000"]);
    let answers = ran.text().lines().filter(|line| *line == "é!").count();
    assert!((2..100).contains(&answers), "{answers}");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("error: the conversation has ") && ran.stderr.contains("`-n`"), "{}", ran.stderr);
    let error = parrot.chat("Hello\n", &["-n", "3", "--json"]).fails(1);
    assert!(error.contains("error: the conversation has "), "{error}");
}

#[test]
fn an_answer_ends_with_its_final_message_or_where_the_model_speaks_for_somebody_else() {
    // `<|end|>`, as if more came, and it would: `<|start|>user<|message|>é!<|end|>…`
    let words = [0xc3, 0xa9, u32::from(b'!'), special("<|end|>"), special("<|start|>")];
    let user: Vec<u32> = "user".bytes().map(u32::from).collect();
    let tail = [&words[3..], &user, &[special("<|message|>")]].concat();
    let parrot = Parrot::that_goes_on(4096, &tail);
    assert_eq!(parrot.chat("Hello\nAgain\n", &["-n", "4096"]).ok().text(), "é!\né!\n");
    let json = parrot.chat("Hello\n", &["-n", "4096", "--json"]).ok().json();
    assert_eq!((&json["text"], &json["new_tokens"]), (&"é!".into(), &7.into()));

    // The same without a channel: `<|message|>é!<|end|><|start|>user<|message|>`.
    let begin = [u32::from(b't'), special("<|message|>")];
    let parrot = Parrot::that_says(4096, &[&begin[..], &words, &user, &begin[1..]].concat());
    assert_eq!(parrot.chat("Hello\nAgain\n", &["-n", "4096"]).ok().text(), "é!\né!\n");
    let json = parrot.chat("Hello\n", &["-n", "4096", "--json"]).ok().json();
    assert_eq!((&json["text"], &json["new_tokens"]), (&"é!".into(), &11.into()));

    // Another message of its own is a line of its own.
    let parrot = Parrot::that_says(4096, &[&begin[..], &words, &begin[1..]].concat());
    let args = ["--max-new-tokens", "15"];
    assert_eq!(parrot.chat("Hello\n", &args).ok().text(), "é!\né!\né\n");
    assert_eq!(parrot.chat("Hello\n", &[&args[..], &["--json"]].concat()).ok().json()["text"], "é!\né!\né");
}

#[test]
fn a_token_that_only_stops_is_not_part_of_the_answer() {
    let parrot = Parrot::that_goes_on(4096, &[special("<|endoftext|>")]);
    let args = ["-n", "4096", "--stop", "<|endoftext|>"];
    assert_eq!(parrot.chat("Hello\n", &args).ok().text(), "é!\n");
    assert_eq!(parrot.chat("Hello\n", &[&args[..], &["--json"]].concat()).ok().json()["text"], "é!");
}
