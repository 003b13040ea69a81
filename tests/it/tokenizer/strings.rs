//! 10,000 strings for every way of splitting text, by digests of what Hugging Face's `tokenizers`, llama.cpp and
//! sentencepiece make of them (`tests/fixtures/make_string_fixtures.py`, which has the twin of all that is here).

use std::fs;
use std::path::Path;

use chat::chat_format::specials::{Specials, begin_of_texts};
use chat::chat_format::{AnswerEvent, Begun, Besides, Has, Prompts, choose};
use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::checkpoint::layout::Layout;
use model::checkpoint::{Checkpoint, TokenizerSource};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::ways::{cases, file_with, path};
use crate::checkpoint::kinds;
use crate::fixtures::program::{argument, run, run_with_stdin};

struct Strings {
    of: Value,
    texts: Vec<String>,
}

impl Strings {
    fn read() -> Self {
        let of: Value = serde_json::from_slice(&fs::read(path("strings.json")).expect("a fixture")).expect("JSON");
        let pools: Vec<Vec<String>> = serde_json::from_value(of["pools"].clone()).expect("lists of texts");
        let mut state = of["seed"].as_u64().expect("a number");
        let mut draw = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let text = |_| {
            let mut text = String::new();
            for _ in 0..1 + draw(16) {
                let pool = &pools[draw(pools.len())];
                for _ in 0..1 + draw(3) {
                    text += &pool[draw(pool.len())];
                }
            }
            text
        };
        let texts: Vec<String> = (0..of["n"].as_u64().expect("a number")).map(text).collect();
        assert_eq!(texts.len(), 10_000);
        Self { of, texts }
    }

    /// Checks groups of strings against digests: `read` gives a string's ids, and its text again.
    #[track_caller]
    fn check(&self, what: &str, n_groups: usize, digests: &Value, read: impl Fn(&str) -> (Vec<u32>, String)) {
        let n = self.of["group"].as_u64().expect("a number") as usize;
        for (i, group) in self.texts.chunks(n).enumerate().take(n_groups) {
            let mut bytes = Vec::new();
            for text in group {
                let (ids, decoded) = read(text);
                ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
                bytes.extend_from_slice(&[0xff; 4]);
                bytes.extend_from_slice(decoded.as_bytes());
                bytes.push(0xff);
            }
            let mut state = 0xcbf2_9ce4_8422_2325_u64;
            for &byte in &bytes {
                state = (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            assert_eq!(format!("{state:016x}"), digests[i], "{what}: strings from {} on", i * n);
        }
    }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8")
}

/// Ids, and what is made of them token by token.
fn ids_and_text(tokenizer: &Tokenizer, text: &str) -> (Vec<u32>, String) {
    let ids = ids(tokenizer, text);
    let mut stream = tokenizer.text_stream();
    let mut read = String::with_capacity(2 * text.len());
    for id in &ids {
        read += &stream.push(tokenizer.decode(*id).expect("its own id"));
    }
    read += &stream.finish();
    (ids, read)
}

#[test]
fn ten_thousand_strings_become_the_ids_that_hugging_face_gives_in_every_way_of_splitting() {
    let (strings, cases) = (Strings::read(), cases());
    let ways = strings.of["ways"].as_object().expect("an object");
    // GLM-4's older files have Llama 3's way, without words that are taken whole.
    assert!(ways.len() == 7 && ways.contains_key("chatglm"));
    for (name, way) in ways.iter().filter(|(name, _)| *name != "chatglm") {
        let case = &cases["ways"][name];
        let file = file_with(&cases, &case["pre_tokenizer"], &case["ignore_merges"]);
        let tokenizer = Tokenizer::from_json(file, None, None).expect("read");
        strings.check(name, usize::MAX, &way["digests"], |text| ids_and_text(&tokenizer, text));
    }
}

/// A file of keys alone, with another value of one.
fn with_pre(file: &[u8], pre: &str) -> Vec<u8> {
    let behind =
        |key: &[u8]| file.windows(key.len()).position(|window| window == key).expect("it has that key") + key.len() + 4;
    let (at, end) = (behind(b"tokenizer.ggml.pre"), behind(b"tokenizer.ggml.add_bos_token") + 1);
    let len = u64::from_le_bytes(file[at..at + 8].try_into().expect("eight")) as usize;
    let value = [&(pre.len() as u64).to_le_bytes()[..], pre.as_bytes()].concat();
    let mut other = [&file[..at], &value, &file[at + 8 + len..end]].concat();
    other.resize(other.len().next_multiple_of(32), 0);
    other
}

fn of_gguf(file: Vec<u8>) -> Tokenizer {
    let gguf = Gguf::read(&file.into()).expect("GGUF");
    Tokenizer::from_gguf(&GgufTokenizer::from_gguf(&gguf).expect("it has one"), None, None).expect("it fits")
}

#[test]
fn a_gguf_file_splits_as_each_name_says() {
    let (strings, small) = (Strings::read(), fs::read(path("small.gguf")).expect("a fixture"));
    for (name, way) in [
        ("gpt-2", "gpt2"),
        ("olmo", "gpt2"),
        ("phi-2", "gpt2"),
        ("smollm", "smollm"),
        ("starcoder", "smollm"),
        ("refact", "smollm"),
        ("command-r", "smollm"),
        ("llama-bpe", "llama3"),
        ("llama3", "llama3"),
        ("llama-v3", "llama3"),
        ("glm4", "llama3"),
        ("chatglm-bpe", "chatglm"),
        ("qwen2", "qwen2"),
        ("deepseek-r1-qwen", "qwen2"),
        ("tekken", "tekken"),
        ("gpt-4o", "o200k"),
        ("llama4", "o200k"),
    ] {
        let tokenizer = of_gguf(with_pre(&small, name));
        strings.check(name, 1, &strings.of["ways"][way]["digests"], |text| ids_and_text(&tokenizer, text));
    }
}

#[test]
fn ten_thousand_strings_become_the_pieces_that_hugging_face_gives() {
    let strings = Strings::read();
    let file: Value = serde_json::from_slice(&fs::read(path("pieces.json")).expect("a fixture")).expect("JSON");
    for name in ["prepend", "first", "always", "split", "gemma"] {
        let of = &strings.of["pieces"][name];
        let mut file = file.clone();
        for (part, value) in of["parts"].as_object().expect("an object") {
            file[part] = value.clone();
        }
        let tokenizer = Tokenizer::from_json(file.to_string().into(), None, None).expect("read");
        // The others differ from these by what is before a text alone.
        let n_groups = if ["prepend", "first"].contains(&name) { usize::MAX } else { 4 };
        strings.check(name, n_groups, &of["digests"], |text| ids_and_text(&tokenizer, text));
    }
    let with = |key: &str, value: Value| {
        let mut file = file.clone();
        file[key] = value;
        Tokenizer::from_json(file.to_string().into(), None, None).expect_err("refused").to_string()
    };
    let other = with("normalizer", json!({"type": "Lowercase"}));
    assert!(other.starts_with("`normalizer` is {\"type\":\"Lowercase\"}"), "{other}");
    let other = with("pre_tokenizer", json!({"type": "Whitespace"}));
    assert!(other.starts_with("`pre_tokenizer` is {\"type\":\"Whitespace\"}"), "{other}");
}

#[test]
fn ten_thousand_strings_become_the_pieces_that_scores_give() {
    let strings = Strings::read();
    let tokenizer = of_gguf(fs::read(path("pieces.gguf")).expect("a fixture"));
    let of = &strings.of["pieces"];
    strings.check("llama.cpp", usize::MAX, &of["llama.cpp"]["digests"], |text| (ids(&tokenizer, text), String::new()));
    let names: Vec<String> = serde_json::from_value(strings.of["names"].clone()).expect("texts");
    strings.check("sentencepiece", usize::MAX, &of["sentencepiece"]["digests"], |text| {
        let has_name = names.iter().any(|name| text.contains(name));
        (if has_name { Vec::new() } else { ids(&tokenizer, text) }, String::new())
    });
}

#[test]
fn pieces_are_a_tokenizer_of_every_command_and_of_texts_that_begin_with_a_token() {
    let (small, file) = (argument(&path("pieces.gguf")), fs::read(path("pieces.gguf")).expect("a fixture"));
    let tokenizer = of_gguf(file);
    let text = "It's  the model: \u{65e5}\u{8a9e}\n";
    let line = ids(&tokenizer, text).iter().map(u32::to_string).collect::<Vec<_>>().join(" ") + "\n";
    assert_eq!(run(&["tokenize", "-z", &small, "-i", text]).ok().text(), line);
    assert_eq!(run_with_stdin(&["decode", "-z", &small], line.as_bytes()).ok().text(), format!("{text}\n"));
    let stderr = run(&["tokenize", "-z", &small, "--split", "llama3", "-i", "x"]).fails_with_hint(1);
    assert!(stderr.contains("`--split` does not apply"), "{stderr}");

    // The file has no word of it: llama.cpp's way is to begin with `<s>`.
    let gguf = Gguf::open(&path("pieces.gguf")).expect("read").expect("GGUF");
    let kind = GgufTokenizer::from_gguf(&gguf).expect("it has one");
    let mut checkpoint = Checkpoint::open(&kinds::path("hf-bf16"), Layout::Auto).expect("a checkpoint");
    checkpoint.origin.tokenizer = Some(TokenizerSource::Gguf(kind.into()));
    checkpoint.origin.files = vec![path("pieces.gguf")];
    let begin = begin_of_texts(&checkpoint, &tokenizer).expect("it says so");
    assert_eq!(begin, [tokenizer.special("<s>").expect("a control token")]);
    let begun = tokenizer.clone().with_begin(begin.clone()).begun(ids(&tokenizer, "a"));
    assert_eq!(begun, [begin, ids(&tokenizer, "a")].concat());
    let specials = Specials::read(&checkpoint, &tokenizer).expect("it says so");
    assert_eq!((specials.bos.as_deref(), specials.eos.as_deref()), (Some("<s>"), Some("</s>")));
    assert_eq!(specials.ends, [tokenizer.special("</s>").expect("a control token")]);

    // An answer is a text of its own: the blank that it begins with is none of it.
    let has = Has {
        tokenizer: &tokenizer,
        specials: &specials,
        template: Some("[INST] {{ messages[0].content }} [/INST]"),
        program: Path::new(env!("CARGO_BIN_EXE_gptoss-jit")),
        besides: Besides::default(),
    };
    let format = choose(None, Prompts::Format, &has).expect("a format");
    let mut answer = format.answer(Begun::default(), false);
    let events = ids(&tokenizer, text).into_iter().flat_map(|id| answer.push(id)).collect::<Vec<_>>();
    let said: String = events.iter().map(|event| if let AnswerEvent::Text(text) = event { text } else { "" }).collect();
    assert_eq!(said, text);
}
