//! `run` beside gpt-oss-amd's own CPU program: tokens and printed bytes that it gave for the same command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::fixtures::program::shared_cache;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hf/odd/model.bin");
const VOCAB_SIZE: u32 = 131;

/// `~`, both bytes of `é`, and a byte that no character has.
const PROMPT: &[u8] = b"~\xc3\xa9\xff";

/// What the seeds' program (28f526d, `g++ -O0` and `-O3 -march=native` alike) generates with `-n 24`, by further flags.
const GENERATED: [(&[&str], [u32; 21]); 4] = [
    (&[], [21, 72, 109, 110, 79, 110, 79, 14, 42, 2, 42, 42, 42, 42, 2, 42, 80, 53, 53, 53, 53]),
    (
        &["-T", "0.7", "-p", "0.9", "-s", "123"],
        [114, 109, 16, 73, 73, 73, 73, 73, 73, 73, 73, 49, 53, 33, 110, 110, 110, 110, 110, 76, 128],
    ),
    (
        &["-T", "1.5", "-p", "0", "-s", "7"],
        [114, 114, 17, 48, 53, 53, 122, 110, 23, 110, 72, 82, 73, 101, 41, 40, 123, 105, 34, 80, 116],
    ),
    (
        &["-T", "1", "-p", "1", "-s", "-3"],
        [125, 17, 48, 118, 17, 29, 42, 2, 110, 110, 110, 110, 110, 110, 110, 23, 92, 42, 107, 42, 99],
    ),
];

/// The byte that token `id` of [`tokenizer`] stands for.
fn byte(id: u32) -> u8 {
    u8::try_from(125 + id).expect("131 tokens from byte 125 on")
}

/// A `tokenizer.bin` with a token for each byte from 125 to 255: most of them are no characters.
fn tokenizer(room: &TempDir) -> PathBuf {
    let mut file = 1_i32.to_le_bytes().to_vec();
    for id in 0..VOCAB_SIZE {
        file.extend((id as f32).to_le_bytes());
        file.extend(1_i32.to_le_bytes());
        file.push(byte(id));
    }
    let path = room.path().join("tokenizer.bin");
    std::fs::write(&path, file).expect("written");
    path
}

/// What `run` prints for these flags.
fn run(room: &TempDir, tokenizer: &Path, flags: &[&str]) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"));
    command.env("GPTOSS_JIT_CACHE", shared_cache()).env("XDG_CONFIG_HOME", room.path());
    command.env_remove("GPTOSS_JIT_TEMPLATES").args(["run", MODEL, "-i"]).arg(OsStr::from_bytes(PROMPT));
    let output = command.arg("-z").arg(tokenizer).args(flags).output().expect("the program starts");
    assert!(output.status.success(), "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn the_tokens_are_those_of_the_seeds_and_their_bytes_are_printed_as_they_are() {
    let room = tempfile::tempdir().expect("a temporary folder");
    let tokenizer = tokenizer(&room);
    for (flags, expected) in GENERATED {
        let flags = [&["-n", "24"], flags].concat();
        let json: Value = serde_json::from_slice(&run(&room, &tokenizer, &[&["--json"], &flags[..]].concat())).unwrap();
        assert_eq!(json["ids"], serde_json::json!(expected), "{flags:?}");
        assert_eq!(json["prompt_tokens"], 4);

        let printed = [PROMPT, &expected.map(byte), b"\n"].concat();
        assert_eq!(run(&room, &tokenizer, &flags), printed, "{flags:?}");
        let text = String::from_utf8_lossy(&printed[..printed.len() - 1]);
        assert_eq!(json["text"], text.as_ref(), "JSON holds characters only");
    }
}

#[test]
fn of_a_flag_given_twice_the_last_counts() {
    let room = tempfile::tempdir().expect("a temporary folder");
    let tokenizer = tokenizer(&room);
    let expected = [PROMPT, &GENERATED[0].1[..2].iter().map(|&id| byte(id)).collect::<Vec<u8>>(), b"\n"].concat();
    assert_eq!(run(&room, &tokenizer, &["-n", "24", "-T", "1", "-n", "5", "-T", "0"]), expected);
}
