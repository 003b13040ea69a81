//! `tokenizer.json`, and the tokenizer in a GGUF file.

use std::fs;

use bytes::Bytes;
use model::tokenizer::Tokenizer;
use proptest::prelude::*;

use super::run_limited;
use crate::checkpoint::kinds;
use crate::fixtures::program::file;

#[test]
fn files_that_are_no_tokenizer_of_gpt_oss_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = fs::read_to_string(kinds::path("tokenizer/tokenizer.json")).expect("a fixture");
    let cases = [
        (whole[..whole.len() / 2].to_owned(), "could not read the JSON"),
        ("{\"model\":".repeat(100_000), "could not read the JSON"),
        (whole.replacen("\"BPE\"", "\"Unigram\"", 1), "`model.type` is \"Unigram\", expected \"BPE\""),
        (whole.replacen("\\\\p{N}{1,3}", "\\\\p{N}{1,2}", 1), "`pre_tokenizer` is {"),
        (
            whole.replacen("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", 1),
            "`normalizer` is {\"type\":\"NFKC\"}",
        ),
        (whole.replacen("\"byte_fallback\": false", "\"byte_fallback\": true", 1), "`model.byte_fallback` is true"),
        (whole.replacen("\"lstrip\": false", "\"lstrip\": true", 1), "`added_tokens` is"),
        (
            whole.replacen("\"!\": 0", "\"!\": 4294967295", 1),
            "the token `!` has the id 4294967295, expected one below 326",
        ),
        (whole.replacen("\"!\": 0", "\"!\": 1", 1), "two tokens have the id 1"),
        (whole.replacen("\"!\": 0", "\"\u{65e5}\": 0", 1), "stands for no byte"),
        (whole.replacen("\"!\": 0", "\"!!\": 0", 1), "no token stands for the byte 0x21 alone"),
    ];
    for (text, message) in cases {
        assert_ne!(text, whole, "{message}");
        let path = file(folder.path(), "tokenizer.json", text.as_bytes());
        let stderr = run_limited(&["tokenize", "-z", &path, "-i", "x"]).fails_with_hint(1);
        assert!(stderr.starts_with(&format!("error: could not use tokenizer `{path}`\n")), "{stderr}");
        assert!(stderr.contains(message), "expected `{message}` in: {stderr}");
    }
}

#[test]
fn a_gguf_file_whose_tokenizer_is_another_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = fs::read(kinds::path("gguf/mxfp4-bf16.gguf")).expect("a fixture");
    for (from, to, message) in [
        ("\x04\0\0\0\0\0\0\0gpt2", "\x04\0\0\0\0\0\0\0bert", "`tokenizer.ggml.model` is `bert`, expected `gpt2`"),
        (
            "\x06\0\0\0\0\0\0\0gpt-4o",
            "\x06\0\0\0\0\0\0\0gpt-42",
            "`tokenizer.ggml.pre` is `gpt-42`, expected the name of a known way",
        ),
        ("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz", "the key `tokenizer.ggml.tokens` is missing"),
    ] {
        let mut bytes = whole.clone();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("there");
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = file(folder.path(), "model.gguf", &bytes);
        let stderr = run_limited(&["tokenize", "-z", &path, "-i", "x"]).fails_with_hint(1);
        assert!(stderr.contains(&path) && stderr.contains(message), "expected `{message}` in: {stderr}");
    }
}

#[test]
fn a_special_token_of_no_text_is_found_nowhere() {
    let whole = fs::read_to_string(kinds::path("tokenizer/tokenizer.json")).expect("a fixture");
    let emptied = whole.replacen("\"content\": \"<|startoftext|>\"", "\"content\": \"\"", 1);
    assert_ne!(emptied, whole);
    let tokenizer = Tokenizer::from_json(Bytes::from(emptied), Some(331), None).expect("as Hugging Face takes it");
    let ids = tokenizer.encode_with_specials(b"Hello<|end|>").expect("text");
    assert_eq!(tokenizer.decode_all(&ids).expect("ids"), b"Hello<|end|>");
}

/// The same in a GGUF file: the name of a control token goes, and the next one is longer by as much.
#[test]
fn a_control_token_of_no_text_in_a_gguf_file_is_found_nowhere() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = kinds::path("gguf/mxfp4-bf16.gguf");
    let mut bytes = fs::read(&whole).expect("a fixture");
    let name = b"<|startoftext|>";
    let listed = [&(name.len() as u64).to_le_bytes()[..], name].concat();
    let at = bytes.windows(listed.len()).position(|window| window == listed).expect("it has that token");
    let next = at + listed.len();
    let len = u64::from_le_bytes(bytes[next..next + 8].try_into().expect("eight")) + name.len() as u64;
    let emptied = [&0_u64.to_le_bytes()[..], &len.to_le_bytes(), b"<|longer by 15:"].concat();
    bytes[at..at + emptied.len()].copy_from_slice(&emptied);
    let path = file(folder.path(), "model.gguf", &bytes);
    let ids = |path: &str| {
        run_limited(&["tokenize", "-z", path, "-i", "Hello<|end|> again", "--special"]).ok().text().to_owned()
    };
    let expected = ids(&whole.display().to_string());
    assert_eq!(ids(&path), expected);
    assert!(!expected.trim().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_damage_panics(changes in prop::collection::vec((0usize..15_000, any::<u8>()), 1..4)) {
        let mut bytes = fs::read(kinds::path("tokenizer/tokenizer.json")).expect("a fixture");
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_json(Bytes::from(bytes), Some(331), None) {
            let ids = tokenizer.encode("Once upon a time, 1234 times".as_bytes()).expect("text");
            tokenizer.decode_all(&ids).expect("its own ids");
        }
    }
}
