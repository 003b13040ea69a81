//! The tokenizer of a published model, by llama.cpp's ids (`tests/fixtures/smollm2`).

use std::fs;

use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::tokenizer::Tokenizer;
use serde_json::Value;

use super::ways::{check_decoding, without};
use crate::fixtures::models::smollm2;
use crate::fixtures::program::{parse_ids, repository};

fn fixture(name: &str) -> String {
    fs::read_to_string(repository().join("tests/fixtures/smollm2").join(name)).expect("a fixture")
}

fn json(name: &str) -> Value {
    serde_json::from_str(&fixture(name)).expect("JSON")
}

fn tokenizer() -> Option<Tokenizer> {
    let gguf = Gguf::open(&smollm2()?).expect("read").expect("GGUF");
    let tokenizer = GgufTokenizer::from_gguf(&gguf).expect("it has one");
    Some(Tokenizer::from_gguf(&tokenizer, None, None).expect("every model that is published can be used"))
}

#[test]
fn text_becomes_the_ids_that_llama_cpp_gives_of_smollm2() {
    let Some(tokenizer) = tokenizer() else { return };
    let tokens = json("tokens.json");
    let texts = tokens["texts"].as_array().expect("a list");
    assert!(texts.len() > 40);
    for case in texts {
        let text = case["text"].as_str().expect("a text");
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).ok();
        let with_names = ids("ids").expect("ids");
        assert_eq!(tokenizer.encode_with_specials(text.as_bytes()).unwrap(), with_names, "{text:?}");
        let plain = ids("plain").unwrap_or(with_names.clone());
        assert_eq!(tokenizer.encode(text.as_bytes()).unwrap(), plain, "{text:?}");
        for ids in [&with_names, &plain] {
            check_decoding(&tokenizer, ids, &without(text, &tokens["lacking"]));
        }
    }
}

#[test]
fn the_prompts_of_smollm2_have_llama_cpps_ids() {
    let Some(tokenizer) = tokenizer() else { return };
    let fixture_json = json("fixture.json");
    let prompts = fixture_json["prompts"].as_array().expect("a list").iter().map(|prompt| &prompt["text"]);
    let texts = prompts.chain([&fixture_json["likelihood"]["text"]]).map(|text| text.as_str().expect("a text"));
    let ids = parse_ids(&fixture("ids.txt"));
    let encoded: Vec<_> = texts.map(|text| tokenizer.encode_with_specials(text.as_bytes()).unwrap()).collect();
    assert_eq!(encoded, ids);
    let end = tokenizer.special("<|im_end|>");
    assert_eq!(end.map(u64::from), fixture_json["end"].as_u64());
}
