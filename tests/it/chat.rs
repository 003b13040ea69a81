//! `run -m chat`, with a model that always gives the same answer, in harmony's format.

use crate::models::Counter;
use crate::program::{Ran, file, keys, run_with_stdin};

/// Ids behind the 256 bytes.
const FINAL: u32 = 256;
const SPECIALS: [&str; 8] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|endoftext|>"];

/// A model that says `é!` on the channel `final`, whatever it is told: each token decides the next.
struct Parrot(Counter);

impl Parrot {
    fn new(seq_len: i32) -> Self {
        let special = |name: &str| FINAL + 1 + SPECIALS.iter().position(|special| *special == name).expect(name) as u32;
        let answer = [
            u32::from(b't'), // the prompt ends in `assistant`
            special("<|channel|>"),
            FINAL,
            special("<|message|>"),
            0xc3,
            0xa9,
            u32::from(b'!'),
            special("<|return|>"),
        ];
        let successors: Vec<(u32, u32)> = answer.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let counter = Counter::with_successors(265, seq_len, &successors);
        file(counter.folder.path(), "tokenizer.bin", &tokenizer());
        Self(counter)
    }

    fn chat(&self, stdin: impl AsRef<[u8]>, args: &[&str]) -> Ran {
        let (model, tokenizer) = (self.0.path("model.bin"), self.0.path("tokenizer.bin"));
        run_with_stdin(&[&["run", &model, "-z", &tokenizer, "-m", "chat"], args].concat(), stdin.as_ref())
    }
}

/// Every byte, the word `final`, and the special tokens.
fn tokenizer() -> Vec<u8> {
    let mut records: Vec<(f32, Vec<u8>)> = (0..=255).map(|byte| (0.0, vec![byte])).collect();
    records[0].1 = b"<0x00>".to_vec();
    records.push((0.0, b"final".to_vec()));
    records.extend(SPECIALS.iter().map(|name| (-1e30, name.as_bytes().to_vec())));
    let mut bytes = 13_i32.to_le_bytes().to_vec();
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
fn a_conversation_that_fills_the_context_ends_with_a_warning() {
    let parrot = Parrot::new(4096);
    let first = parrot.chat("Hello\n", &["-n", "4096", "--json"]).ok();
    assert_eq!(first.text().lines().count(), 1);
    let ran = parrot.chat("Hello again\n".repeat(100), &["-n", "1000"]).ok();
    let answers = ran.text().lines().filter(|line| *line == "é!").count();
    assert!((2..100).contains(&answers), "{answers}");
    assert!(ran.stderr.contains("warning: the conversation has ") && ran.stderr.contains("`-n`"), "{}", ran.stderr);
}
