//! The tokens that begin and end a sequence, from every place that says them.

use std::fs;

use chat::chat_format::specials::{Specials, begin_of_texts};
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::{ChatMl, END_OF_TEXT, IM_END, tokenizer};
use crate::checkpoint::kinds;
use crate::fixtures::program::{file, run};

fn of(path: &str) -> Result<Specials, String> {
    let checkpoint = Checkpoint::open(path.as_ref(), Layout::Auto).expect("a checkpoint");
    Specials::read(&checkpoint, &tokenizer()).map_err(|error| error.to_string())
}

#[test]
fn a_folder_says_it_in_the_configuration_of_generation_and_else_of_the_model() {
    let model = ChatMl::new("chatml");
    let folder = model.folder.path();
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).expect("there")).expect("JSON");
    let with = |generation: Option<Value>, of_model: Value| {
        let path = folder.join("generation_config.json");
        match generation {
            Some(ends) => fs::write(path, json!({ "eos_token_id": ends }).to_string()).expect("written"),
            None => fs::remove_file(path).expect("there"),
        }
        let mut config = config.clone();
        config["eos_token_id"] = of_model;
        fs::write(folder.join("config.json"), config.to_string()).expect("written");
        of(model.path()).map(|specials| specials.ends)
    };
    assert_eq!(with(Some(json!([IM_END, END_OF_TEXT])), json!(5)), Ok(vec![IM_END, END_OF_TEXT]), "a list");
    assert_eq!(with(Some(json!(IM_END)), json!(5)), Ok(vec![IM_END]), "one");
    assert_eq!(with(Some(Value::Null), json!([7, 9])), Ok(vec![7, 9]), "of the model");
    assert_eq!(with(Some(json!([])), json!(5)), Ok(vec![5]));
    assert_eq!(with(Some(json!([IM_END, 331, 199_999])), json!(5)), Ok(vec![IM_END]), "no such tokens");
    let error = with(Some(json!("<|im_end|>")), json!(5)).expect_err("a name");
    assert!(error.contains("`eos_token_id` is \"<|im_end|>\", expected the id of a token"), "{error}");
    assert!(with(Some(json!([-1])), json!(5)).is_err());
    assert_eq!(with(None, json!(5)), Ok(vec![5]));
    // Nobody says it: a token is called so.
    fs::write(folder.join("generation_config.json"), "{}").expect("written");
    assert_eq!(with(Some(Value::Null), Value::Null), Ok(vec![END_OF_TEXT]));
    fs::write(folder.join("generation_config.json"), "{").expect("written");
    assert!(of(model.path()).expect_err("no JSON").contains("generation_config.json"));
}

#[test]
fn a_folder_names_what_begins_and_ends_a_text() {
    let specials = of(ChatMl::new("chatml").path()).expect("it says so");
    assert_eq!((specials.bos.as_deref(), specials.eos.as_deref()), (Some("<|endoftext|>"), Some("<|im_end|>")));
}

/// A key of a GGUF file with its value.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &kind.to_le_bytes(), value].concat()
}

/// The fixture with another name for `<|start|>`, and with more keys in front.
fn gguf(more: &[Vec<u8>]) -> Vec<u8> {
    const U32: u32 = 4;
    const TEXT: u32 = 8;
    let mut bytes = fs::read(kinds::path("gguf/mxfp4-bf16.gguf")).expect("a fixture");
    let start = b"<|start|>";
    let at = bytes.windows(start.len()).position(|window| window == start).expect("it has that token");
    bytes[at..at + start.len()].copy_from_slice(b"<|begin|>");
    let eos = b"tokenizer.ggml.eos_token_id";
    let at = bytes.windows(eos.len()).position(|window| window == eos).expect("it has that key") + eos.len();
    assert_eq!(bytes[at..at + 4], U32.to_le_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&IM_END.to_le_bytes());
    let mut keys = more.concat();
    // The tensors stay where they are aligned.
    let filler = entry("filler", TEXT, &0_u64.to_le_bytes()).len();
    let n_blanks = (32 - (keys.len() + filler) % 32) % 32;
    let blanks = [&(n_blanks as u64).to_le_bytes()[..], &vec![b' '; n_blanks]].concat();
    keys.extend(entry("filler", TEXT, &blanks));
    let n_keys = u64::from_le_bytes(bytes[16..24].try_into().expect("eight")) + more.len() as u64 + 1;
    bytes[16..24].copy_from_slice(&n_keys.to_le_bytes());
    bytes.splice(24..24, keys);
    bytes
}

#[test]
fn a_gguf_file_says_it_of_texts_turns_and_messages_and_has_its_template() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let id = |key: &str, id: u32| entry(&format!("tokenizer.ggml.{key}"), 4, &id.to_le_bytes());
    let template = "{{ bos_token }}{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}";
    let text = [&(template.len() as u64).to_le_bytes()[..], template.as_bytes()].concat();
    let bytes = gguf(&[
        id("eot_token_id", 317),
        id("eom_token_id", IM_END), // which is an end already
        entry("tokenizer.chat_template", 8, &text),
    ]);
    let path = file(folder.path(), "model.gguf", &bytes);
    let specials = of(&path).expect("it says so");
    assert_eq!(specials.ends, [IM_END, 317]);
    assert_eq!(specials.eos.as_deref(), Some("<|im_end|>"), "as the other vocabulary names it");
    let only_eos = file(folder.path(), "eos.gguf", &gguf(&[]));
    assert_eq!(of(&only_eos).expect("it says so").ends, [IM_END, END_OF_TEXT], "which ends texts by its name");
    // The program takes the file's own vocabulary and template.
    let script = file(folder.path(), "script.jsonl", b"{\"text\": \"Hi<|end|>never\"}\n");
    let server = crate::fixtures::server::Server::start(&[&path, "--replay", &script]);
    let body = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let asked = crate::fixtures::http::post(server.address, "/apply-template", &body).json();
    let bos = asked["token_ids"][0].as_u64().expect("an id");
    assert!(asked["prompt"].as_str().expect("text").ends_with("<|begin|>user\nHello<|end|>\n"), "{asked}");
    assert!(bos > 255, "the token that begins a text: {asked}");
    let answer = crate::fixtures::http::post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi", "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// gpt-oss' vocabularies are ended as ever; two ids of theirs end no other, however large.
#[test]
fn harmony_ends_by_name_whatever_files_say_and_no_other_vocabulary_by_its_ids() {
    let harmony = Checkpoint::open(&kinds::path("hf-mxfp4"), Layout::Auto).expect("a checkpoint");
    let own = Tokenizer::from_file(&kinds::path("tokenizer/tokenizer.json"), Some(331), None).expect("a vocabulary");
    assert_eq!(Specials::read(&harmony, &own).expect("by name").ends, [317, 318]);
    let o200k = Tokenizer::o200k_harmony();
    assert_eq!(Specials::of_names(&o200k).ends, [199_999, 200_002]);
    // Letters, as many as a large vocabulary has: nothing in it ends a text.
    let letters: Vec<u8> = (0..202_048_u32)
        .flat_map(|id| [&0_f32.to_le_bytes()[..], &8_i32.to_le_bytes(), format!("{id:08}").as_bytes()].concat())
        .collect();
    let bytes = [&8_i32.to_le_bytes()[..], &letters].concat();
    let large = Tokenizer::from_bin(bytes.into(), None, None).expect("a vocabulary");
    assert_eq!(large.vocab_size(), 202_048);
    assert_eq!(Specials::of_names(&large).ends, [0_u32; 0]);
}

/// What a model continues ends where its vocabulary says, too.
#[test]
fn a_text_ends_at_the_end_that_a_folder_says() {
    let ids = |model: &ChatMl| {
        let ran = run(&["run", model.path(), "-i", "Once upon", "--max-new-tokens", "8", "--json"]).ok().json();
        let ids = ran["ids"].as_array().expect("ids").clone();
        (ids, ran["finish_reason"].as_str().expect("a word").to_owned())
    };
    let (whole, reason) = ids(&ChatMl::with(None, &[IM_END]));
    assert_eq!((whole.len(), reason.as_str()), (8, "length"));
    let end = u32::try_from(whole[2].as_u64().expect("an id")).expect("an id");
    let (cut, reason) = ids(&ChatMl::with(None, &[end]));
    let first = whole.iter().position(|id| *id == end).expect("there");
    assert_eq!((&cut[..], reason.as_str()), (&whole[..=first], "stop"));
}

#[test]
fn a_text_begins_with_a_token_where_the_checkpoint_says_so() {
    let begin = |path: &str| {
        let checkpoint = Checkpoint::open(path.as_ref(), Layout::Auto).expect("a checkpoint");
        begin_of_texts(&checkpoint, &tokenizer()).expect("it says so")
    };
    let model = ChatMl::new("chatml");
    let with = |adds: Value, post_processor: Value| {
        let change = |name: &str, key: &str, value: Value| {
            let path = model.folder.path().join(name);
            let mut object: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
            object[key] = value;
            fs::write(path, object.to_string()).expect("written");
        };
        change("tokenizer_config.json", "add_bos_token", adds);
        change("tokenizer.json", "post_processor", post_processor);
        begin(model.path())
    };
    let template = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [321], "tokens": ["<|im_start|>"]}},
    });
    let bytes = json!({"type": "ByteLevel"});
    let both = json!({"type": "Sequence", "processors": [bytes, template]});
    assert_eq!(with(Value::Null, Value::Null), [0; 0]);
    assert_eq!(with(Value::Null, bytes), [0; 0]);
    assert_eq!(with(Value::Null, template.clone()), [321]);
    assert_eq!(with(Value::Null, both), [321]);
    // As with GLM-4, whose texts begin with two.
    let mut two = template.clone();
    let first = two["single"][0].clone();
    two["single"].as_array_mut().expect("a list").insert(0, first);
    assert_eq!(with(Value::Null, two), [321, 321]);
    assert_eq!(with(json!(false), template), [0; 0], "the configuration goes first");
    assert_eq!(with(json!(true), Value::Null), [END_OF_TEXT], "its `bos_token`");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let adds = |adds: bool| entry("tokenizer.ggml.add_bos_token", 7, &[u8::from(adds)]);
    let of_gguf = |keys: &[Vec<u8>]| begin(&file(folder.path(), "model.gguf", &gguf(keys)));
    assert_eq!([of_gguf(&[]), of_gguf(&[adds(false)])], [vec![0_u32; 0], vec![0; 0]]);
    assert!(of_gguf(&[adds(true)]).iter().all(|id| *id > 255));
    // What a text becomes begins so, and is shown without it.
    assert_eq!(with(Value::Bool(true), Value::Null), [END_OF_TEXT]);
    let ran = run(&["run", model.path(), "-i", "Once upon", "--max-new-tokens", "1", "--json"]).ok().json();
    let n_tokens = tokenizer().encode(b"Once upon").expect("UTF-8").len();
    assert_eq!(ran["prompt_tokens"], n_tokens + 1, "{ran}");
    assert!(ran["text"].as_str().expect("text").starts_with("Once upon"), "{ran}");
}
