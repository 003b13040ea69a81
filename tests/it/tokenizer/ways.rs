//! Every known way of splitting text, by the ids of Hugging Face's `tokenizers` for a small vocabulary that lacks some
//! bytes (`tests/fixtures/tokenizers`).

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use clap::ValueEnum;
use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::tokenizer::Tokenizer;
use model::tokenizer::split::Split;
use model::tokenizer::stream::TextStream;
use serde_json::{Value, json};

use crate::fixtures::program::{argument, repository, run, run_with_stdin};

/// Where the bytes that no token stands for are left out of a text.
pub fn without(text: &str, lacking: &Value) -> Vec<u8> {
    let lacking: Vec<u8> = serde_json::from_value(lacking.clone()).expect("bytes");
    text.bytes().filter(|byte| !lacking.contains(byte)).collect()
}

/// Ids become the text again, all at once and one by one.
#[track_caller]
pub fn check_decoding(tokenizer: &Tokenizer, ids: &[u32], text: &[u8]) {
    assert_eq!(tokenizer.decode_all(ids).expect("its own ids"), text);
    let mut stream = TextStream::default();
    let mut written: String = ids.iter().map(|id| stream.push(tokenizer.decode(*id).expect("its own id"))).collect();
    written += &stream.finish();
    assert_eq!(written, String::from_utf8_lossy(text));
}

pub fn path(name: &str) -> PathBuf {
    repository().join("tests/fixtures/tokenizers").join(name)
}

pub fn cases() -> Value {
    serde_json::from_slice(&fs::read(path("cases.json")).expect("a fixture")).expect("JSON")
}

fn texts(cases: &Value) -> Vec<String> {
    serde_json::from_value(cases["texts"].clone()).expect("texts")
}

fn ids(way: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(way["ids"].clone()).expect("ids")
}

/// A `tokenizer.json` with the small vocabulary.
pub fn file_with(cases: &Value, pre_tokenizer: &Value, ignore_merges: &Value) -> Bytes {
    let mut file = json!({
        "added_tokens": cases["added_tokens"],
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "model": cases["model"],
    });
    file["model"]["ignore_merges"] = ignore_merges.clone();
    file.to_string().into()
}

#[test]
fn every_way_of_splitting_gives_the_ids_that_hugging_face_gives() {
    let cases = cases();
    let texts = texts(&cases);
    let ways = cases["ways"].as_object().expect("an object");
    let all: Vec<Split> = Split::value_variants().iter().copied().filter(|split| *split != Split::Seeds).collect();
    assert_eq!(ways.len(), all.len());
    for (name, way) in ways {
        let split = Split::from_str(name, false).expect("a way");
        let by_name = Split::of_llama_cpp(way["llama_cpp"].as_str().expect("a name"));
        assert_eq!(by_name, Some((split, way["ignore_merges"] == true)), "{name}");
        // As the file says, and as `--split` says.
        let told = Tokenizer::from_json(file_with(&cases, &way["pre_tokenizer"], &way["ignore_merges"]), None, None);
        let named = Tokenizer::from_json(file_with(&cases, &Value::Null, &way["ignore_merges"]), None, Some(split));
        let [told, named] = [told, named].map(|read| read.unwrap_or_else(|error| panic!("{name}: {error:?}")));
        let ids = ids(way);
        assert!(texts.len() > 40 && ids.len() == texts.len());
        // The last text has a byte without a token within a piece: `tokenizers` leaves it out before it merges.
        let (last, others) = texts.split_last().expect("there are some");
        assert_eq!(last, "!\u{4}!");
        for tokenizer in [&told, &named] {
            assert_eq!(tokenizer.encode(last.as_bytes()).unwrap(), tokenizer.encode(b"!!").unwrap(), "{name}");
        }
        for (text, ids) in others.iter().zip(&ids) {
            assert_eq!(&told.encode_with_specials(text.as_bytes()).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(&named.encode_with_specials(text.as_bytes()).unwrap(), ids, "{name}: {text:?}");
            check_decoding(&told, ids, &without(text, &cases["lacking"]));
        }
        // Another way than the file's own gives other ids, and is refused.
        for other in all.iter().filter(|other| **other != split) {
            let file = file_with(&cases, &way["pre_tokenizer"], &way["ignore_merges"]);
            let error = Tokenizer::from_json(file, None, Some(*other)).expect_err("another way").to_string();
            assert!(error.starts_with(&format!("this tokenizer splits text as `--split {name}` does")), "{error}");
        }
    }
}

/// The texts, composed, are in Unicode's own tables; `tokenizers` 0.23.3 gives the same ids of both, too.
#[test]
fn characters_are_composed_where_the_file_says_so() {
    let cases = cases();
    let qwen2 = &cases["ways"]["qwen2"];
    let plain = file_with(&cases, &qwen2["pre_tokenizer"], &json!(false));
    let mut composing: Value = serde_json::from_slice(&plain).expect("JSON");
    composing["normalizer"] = json!({ "type": "NFC" });
    let read = |bytes: Bytes| Tokenizer::from_json(bytes, None, None).expect("read");
    let [plain, composing] = [plain, composing.to_string().into()].map(read);
    let ids = |tokenizer: &Tokenizer, text: &str| tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8");
    for (text, composed) in [
        ("cafe\u{301} 1", "caf\u{e9} 1"),
        ("\u{212b}ngstrom", "\u{c5}ngstrom"),
        ("\u{1100}\u{1161}<|im_end|>\u{1112}\u{1161}\u{11ab}", "\u{ac00}<|im_end|>\u{d55c}"),
        ("q\u{307}\u{323}", "q\u{323}\u{307}"),
    ] {
        assert_eq!(ids(&composing, text), ids(&plain, composed), "{text:?}");
        assert_ne!(ids(&plain, text), ids(&plain, composed), "{text:?}");
    }
    for (text, expected) in
        texts(&cases).iter().zip(self::ids(qwen2)).filter(|(text, _)| text.is_ascii() && *text != "!\u{4}!")
    {
        assert_eq!(ids(&composing, text), expected, "{text:?}");
    }
}

/// Tokens that were added and are not special are tokens in a prompt, and none in a message.
#[test]
fn added_tokens_that_are_not_special_are_tokens_in_prompts() {
    let mut cases = cases();
    let n = cases["model"]["vocab"].as_object().expect("an object").len() as u32;
    let added = cases["added_tokens"].as_array_mut().expect("a list");
    added.push(json!({ "id": n, "content": "[[page]]", "special": false }));
    let file = file_with(&cases, &cases["ways"]["gpt2"]["pre_tokenizer"], &json!(false));
    let tokenizer = Tokenizer::from_json(file, None, None).expect("read");
    let text = |text: &str| tokenizer.encode(text.as_bytes()).expect("UTF-8");
    let prompt = |text: &str| tokenizer.encode_prompt(text.as_bytes()).expect("UTF-8");
    assert_eq!(prompt("one[[page]] two"), [text("one"), vec![n], text(" two")].concat());
    assert!(text("one[[page]] two").iter().all(|id| *id != n));
    assert_eq!(prompt("one<|im_end|>"), text("one<|im_end|>"), "a special one is text");
    assert_eq!(tokenizer.encode_with_specials(b"[[page]]<|im_end|>").expect("UTF-8"), [n, 2]);
}

#[test]
fn a_file_of_two_ways_mixed_is_refused() {
    let cases = cases();
    let of = |name: &str| cases["ways"][name]["pre_tokenizer"].clone();
    let (gpt2, smollm, qwen2) = (of("gpt2"), of("smollm"), of("qwen2"));
    let digits = &smollm["pretokenizers"][0];
    let mut in_threes = smollm.clone();
    in_threes["pretokenizers"][0]["individual_digits"] = json!(false);
    let mut with_blank = gpt2.clone();
    with_blank["add_prefix_space"] = json!(true);
    let mut twice = qwen2.clone();
    twice["pretokenizers"][1]["use_regex"] = json!(true);
    let mut merged = qwen2.clone();
    merged["pretokenizers"][0]["behavior"] = json!("MergedWithPrevious");
    let before =
        json!({ "type": "Sequence", "pretokenizers": [digits, qwen2["pretokenizers"][0], qwen2["pretokenizers"][1]] });
    for other in [in_threes, with_blank, twice, merged, before, digits.clone(), Value::Null] {
        let error = Tokenizer::from_json(file_with(&cases, &other, &json!(false)), None, None).expect_err("refused");
        assert!(error.to_string().starts_with("`pre_tokenizer` is "), "{other}: {error}");
    }
}

#[test]
fn a_gguf_file_says_how_it_splits() {
    let cases = cases();
    let (texts, ids) = (texts(&cases), ids(&cases["ways"]["smollm"]));
    let gguf = Gguf::open(&path("small.gguf")).expect("read").expect("GGUF");
    let tokenizer =
        Tokenizer::from_gguf(&GgufTokenizer::from_gguf(&gguf).expect("it has one"), None, None).expect("it fits");
    for (text, ids) in texts.iter().zip(&ids) {
        assert_eq!(&tokenizer.encode_with_specials(text.as_bytes()).unwrap(), ids, "{text:?}");
    }
    let end = tokenizer.special("<|im_end|>").expect("a control token");
    assert!(end < tokenizer.vocab_size() as u32);

    let small = argument(&path("small.gguf"));
    let at = texts.iter().position(|text| text.starts_with("<|im_start|>user")).expect("there");
    let line = ids[at].iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
    assert_eq!(run(&["tokenize", "-z", &small, "--special", "-i", &texts[at]]).ok().text(), line);
    assert_eq!(run_with_stdin(&["decode", "-z", &small], line.as_bytes()).ok().text(), format!("{}\n", texts[at]));
}
