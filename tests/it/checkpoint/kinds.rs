//! One small model in every kind of checkpoint (`tests/fixtures/checkpoints`): the same numbers, logits, tokens and
//! text.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::Dtype;
use gpu::host::HostDriver;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::layout::Layout;
use model::checkpoint::{Checkpoint, Tensor};
use model::tokenizer::Tokenizer;
use model::tokenizer::bpe::SpelledBpe;
use model::tokenizer::split::Split;
use serde_json::Value;

use crate::fixtures::program::{argument, file, parse_ids, run};
use crate::graph::forward::{ONE_BY_ONE, drain, greedy, load_checkpoint};

/// The kinds, with what is expected of each.
const KINDS: [(&str, &str); 6] = [
    ("hf-bf16", "bf16"),
    ("hf-bf16-sharded", "bf16"),
    ("hf-mxfp4", "mxfp4"),
    ("openai", "mxfp4"),
    ("gguf/mxfp4-bf16.gguf", "mxfp4"),
    ("gguf/mxfp4-q8_0.gguf", "q8_0"),
];

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints").join(name)
}

pub fn path_argument(name: &str) -> String {
    argument(&path(name))
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&path(name), Layout::Auto).unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

fn bytes(tensor: &Tensor) -> bytes::Bytes {
    let bytes = tensor.read().expect("enough memory").expect("not random");
    assert_eq!(bytes.len(), tensor.len_bytes(), "{}", tensor.name);
    bytes
}

/// The first tensor in which two checkpoints differ.
fn difference(a: &Checkpoint, b: &Checkpoint) -> Option<String> {
    assert!(a.tensors.keys().eq(b.tensors.keys()));
    let same = |(a, b): &(&Tensor, &Tensor)| a.dtype == b.dtype && a.shape == b.shape && bytes(a) == bytes(b);
    let mut pairs = a.tensors.values().zip(b.tensors.values());
    pairs.find(|pair| !same(pair)).map(|(tensor, _)| tensor.name.clone())
}

#[test]
fn all_kinds_of_a_model_hold_the_same_bytes() {
    let mxfp4 = open("openai");
    assert_eq!((mxfp4.dense_dtype(), mxfp4.expert_dtype()), (Dtype::Bf16, Some(Dtype::Mxfp4)));
    for name in ["hf-mxfp4", "gguf/mxfp4-bf16.gguf", "openai/model.safetensors"] {
        let other = open(name);
        assert_eq!(other.config, mxfp4.config, "{name}");
        assert_eq!(difference(&mxfp4, &other), None, "{name}");
    }
    let bf16 = open("hf-bf16");
    assert_eq!((bf16.dense_dtype(), bf16.expert_dtype()), (Dtype::Bf16, Some(Dtype::Bf16)));
    for name in ["hf-bf16-sharded", "hf-bf16-sharded/model.safetensors.index.json"] {
        assert_eq!(difference(&bf16, &open(name)), None, "{name}");
    }
    // What is as it is needed stays where it is mapped.
    let mapped = |checkpoint: &Checkpoint, name: &str| checkpoint.tensor(name).bytes().is_some();
    assert!(mxfp4.tensors.values().all(|tensor| tensor.bytes().is_some()), "OpenAI's files have all as it is needed");
    assert!(mapped(&bf16, "embedding.weight") && !mapped(&bf16, "block.0.attn.qkv.weight"));
}

#[test]
fn logits_of_every_kind_are_those_of_transformers() {
    let ids = path_argument("ids.txt");
    for (name, expected) in KINDS {
        let expect = path_argument(&format!("expected/{expected}/logits.npy"));
        let args = ["logits", &path_argument(name), "--ids", &ids, "--expect", &expect, "--device", "cpu"];
        run(&[&args[..], &["--precision", "f32", "--rtol", "0", "--atol", "2e-4"]].concat()).ok();
    }
}

#[test]
fn greedy_tokens_of_every_kind_are_those_of_transformers() {
    let lines = |name: &str| parse_ids(&fs::read_to_string(path(name)).expect("a fixture"));
    let prompts = lines("ids.txt");
    for (name, expected) in KINDS {
        let answers = lines(&format!("expected/{expected}/greedy.txt"));
        let driver = Arc::new(HostDriver::new(2).expect("threads"));
        let mut engine = load_checkpoint(driver, &open(name), 64, ONE_BY_ONE).expect("loads");
        for (prompt, answer) in prompts.iter().zip(&answers) {
            let request = engine.submit(greedy(prompt, answer.len(), &[])).expect("fits");
            assert_eq!(&drain(&mut engine)[&request].0, answer, "{name}");
        }
    }
}

#[test]
fn weights_stored_in_q8_0_and_f16_are_f32_or_bf16_where_that_is_asked_for() {
    let exact = open("gguf/mxfp4-q8_0.gguf");
    assert_eq!((exact.dense_dtype(), exact.expert_dtype()), (Dtype::F32, Some(Dtype::Mxfp4)));
    let rounded = exact.rounded();
    assert_eq!((rounded.dense_dtype(), rounded.expert_dtype()), (Dtype::Bf16, Some(Dtype::Mxfp4)));
    for (f32s, bf16s) in exact.tensors.values().zip(rounded.tensors.values()).filter(|(a, _)| a.dtype == Dtype::F32) {
        let f32s = bytes(f32s).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
        let bf16s = bytes(bf16s).chunks(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
        // Half of the last place, of numbers of their size.
        let near = |(a, b): (&f32, &u16)| (a - f32::from_bits(u32::from(*b) << 16)).abs() <= a.abs() / 256.0;
        assert!(f32s.iter().zip(&bf16s).all(near));
    }
    let ids = path_argument("ids.txt");
    let folder = tempfile::tempdir().unwrap();
    let out = argument(&folder.path().join("logits.npy"));
    let widened = "--stored-weights=none";
    for (more, used) in [
        (&[][..], "bf16, q8_0 and experts mxfp4, precision bf16"),
        (&[widened], "bf16 and experts mxfp4, precision bf16"),
        (&[widened, "--precision", "f32"], "f32 and experts mxfp4"),
    ] {
        let mut args = vec!["logits", "--verbose", "--ids", &ids, "-o", &out, "--device", "cpu"];
        let model = path_argument("gguf/mxfp4-q8_0.gguf");
        args.push(&model);
        args.extend(more);
        let stderr = run(&args).ok().stderr;
        assert!(stderr.contains(used), "{used}: {stderr}");
    }
}

/// The codes and scales that are kept give the numbers that the other way of reading gives.
#[test]
fn weights_stored_in_q8_0_and_f16_stay_so_where_every_tensor_has_its_own_type() {
    let exact = open("gguf/mxfp4-q8_0.gguf");
    let stored = exact.as_stored(StoredWeights::All);
    let halves = |tensor: &Tensor| -> Vec<f32> {
        bytes(tensor).chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    };
    let (mut n_kept, mut n_halves) = (0, 0);
    for (name, tensor) in &exact.tensors {
        let kept = stored.tensor(name);
        if kept.dtype == Dtype::F16 {
            let numbers: Vec<u8> = halves(kept).into_iter().flat_map(f32::to_le_bytes).collect();
            assert_eq!(numbers, bytes(tensor), "{name}");
            n_halves += 1;
            continue;
        }
        if kept.dtype != Dtype::Q8_0 {
            assert!((kept.dtype, bytes(kept)) == (tensor.dtype, bytes(tensor)), "{name}: {}", kept.dtype);
            continue;
        }
        n_kept += 1;
        let scale = stored.tensor(&name.replace("weight", "scale"));
        let row_len = *tensor.shape.last().expect("a matrix");
        assert_eq!((&kept.shape, scale.dtype), (&tensor.shape, Dtype::F16), "{name}");
        assert_eq!(*scale.shape.last().expect("a matrix"), row_len / 32, "{name}");
        let codes = bytes(kept);
        let scales = halves(scale);
        let numbers: Vec<u8> = codes
            .iter()
            .enumerate()
            .flat_map(|(i, &code)| (scales[i / 32] * f32::from(code as i8)).to_le_bytes())
            .collect();
        assert_eq!(numbers, bytes(tensor), "{name}");
    }
    assert_eq!(n_halves, 2, "embedding and unembedding");
    assert_eq!(n_kept, 2 * 2, "in each layer queries, keys and values in one, and the projection behind attention");
    assert_eq!(stored.tensors.len(), exact.tensors.len() + n_kept);
}

#[test]
fn f32_among_bf16_is_bf16_only_if_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut gguf = fs::read(path("gguf/mxfp4-bf16.gguf")).unwrap();
    let checkpoint = open("gguf/mxfp4-bf16.gguf");
    let sinks = checkpoint.tensor("block.1.attn.sinks");
    let at = sinks.file_offset.unwrap() as usize;
    gguf[at] ^= 1; // the last bit of the first one
    let changed = file(folder.path(), "model.gguf", &gguf);
    let changed = Checkpoint::open(Path::new(&changed), Layout::Auto).unwrap();
    assert_eq!(changed.dense_dtype(), Dtype::F32);
    assert_eq!(bytes(changed.tensor("block.1.attn.sinks")), &gguf[at..at + 4 * sinks.len()]);
    assert_eq!(difference(&changed.rounded(), &checkpoint), None, "rounded, it is what it was");
}

#[test]
fn every_kind_can_be_looked_at_and_only_bin_files_have_a_layout() {
    for (name, _) in KINDS {
        let report = run(&["inspect", &path_argument(name), "--json"]).ok().json();
        assert_eq!(report["config"]["head_dim"], 16, "{name}");
        let folder = path(name);
        let is_weights = |path: &PathBuf| path.extension().is_some_and(|e| e == "safetensors");
        let size = |path: PathBuf| fs::metadata(path).unwrap().len();
        let file_bytes = match folder.is_dir() {
            true => fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(is_weights).map(size).sum(),
            false => size(folder),
        };
        assert_eq!(report["file_bytes"], file_bytes, "{name}");
        let stderr = run(&["inspect", &path_argument(name), "--layout", "swapped"]).fails_with_hint(1);
        assert!(stderr.contains("`--layout` says what an exporter of `.bin` files got wrong"), "{stderr}");
    }
}

fn cases() -> Vec<(String, Vec<u32>)> {
    let cases = fs::read(path("tokenizer/cases.json")).unwrap();
    let Value::Array(cases) = serde_json::from_slice(&cases).unwrap() else { panic!("a list") };
    assert!(cases.len() > 30);
    let ids = |case: &Value| serde_json::from_value(case["ids"].clone()).unwrap();
    cases.iter().map(|case| (case["text"].as_str().unwrap().to_owned(), ids(case))).collect()
}

#[test]
fn text_becomes_the_ids_that_hugging_face_gives_and_they_become_the_text() {
    let tokenizer = Tokenizer::from_file(&path("tokenizer/tokenizer.json"), Some(331), None).unwrap();
    assert_eq!(tokenizer.vocab_size(), 331);
    for (text, ids) in cases() {
        assert_eq!(tokenizer.encode_with_specials(text.as_bytes()).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode_all(&ids).unwrap(), text.as_bytes(), "{text:?}");
    }
}

#[test]
fn every_command_takes_the_tokenizer_of_a_checkpoint() {
    let cases = cases();
    let (text, ids) = cases.iter().find(|(text, _)| text.contains("<|message|>")).unwrap();
    let line = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let folder = tempfile::tempdir().unwrap();
    let ids = file(folder.path(), "ids.txt", line.as_bytes());
    for name in ["hf-bf16", "hf-mxfp4/tokenizer.json", "gguf/mxfp4-bf16.gguf"] {
        let name = path_argument(name);
        let ran = run(&["tokenize", "-z", &name, "--special", "-i", text]).ok();
        assert_eq!(ran.text(), format!("{line}\n"), "{name}");
        assert_eq!(run(&["decode", "-z", &name, "-i", &ids]).ok().text(), format!("{text}\n"), "{name}");
    }
    // A model without one takes the built-in tokenizer, whose ids it does not have.
    for (name, has_own) in [("hf-mxfp4", true), ("gguf/mxfp4-bf16.gguf", true), ("openai", false)] {
        let ran = run(&["run", &path_argument(name), "-i", "Once upon a time", "-n", "12", "--device", "cpu"]);
        if has_own {
            assert!(ran.ok().stdout.starts_with(b"Once upon a time"), "{name}");
        } else {
            assert!(ran.fails_with_hint(1).contains("is not below the model's vocab_size, 331"), "{name}");
        }
    }
    let ran = run(&["run", &path_argument("openai"), "-z", &path_argument("hf-bf16"), "-i", "Once", "-n", "6"]).ok();
    assert!(ran.stdout.starts_with(b"Once"));
}

/// A byte as GPT-2 writes it.
fn spelled(byte: u8) -> char {
    let is_printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match is_printable(&byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|other| !is_printable(other)).count();
            char::from_u32(256 + before as u32).unwrap()
        }
    }
}

/// o200k as transformers' converter spells it: every pair of tokens that together are one merges, by that one's id.
#[test]
fn the_real_vocabulary_gives_the_same_ids_when_it_is_spelled_as_files_do() {
    let built_in = Tokenizer::o200k_harmony();
    let text_of = |bytes: &[u8]| bytes.iter().map(|byte| spelled(*byte)).collect::<String>();
    let tokens: Vec<&[u8]> = (0..199_998).map(|id| built_in.decode(id).unwrap()).collect();
    let ids: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(id, bytes)| (*bytes, id)).collect();
    let mut merges = Vec::new();
    for token in &tokens {
        let pair = |at: usize| Some((*ids.get(&token[..at])?, *ids.get(&token[at..])?));
        let mut pairs: Vec<(usize, usize)> = (1..token.len()).filter_map(pair).collect();
        pairs.sort_unstable();
        merges.extend(pairs.into_iter().map(|(left, right)| (text_of(tokens[left]), text_of(tokens[right]))));
    }
    assert!(merges.len() > 400_000);
    let tokens = tokens.iter().enumerate().map(|(id, bytes)| (text_of(bytes), id as u32)).collect();
    let added = [("<|startoftext|>", 199_998), ("<|endoftext|>", 199_999)].map(|(name, id)| (name.to_owned(), id));
    let spelled = SpelledBpe { tokens, added: added.to_vec(), merges, ..SpelledBpe::default() };
    let from_file = Tokenizer::from_spelled(spelled, Some(201_088), Split::O200k).unwrap();
    let source = include_str!("kinds.rs");
    for text in
        cases().iter().map(|(text, _)| text.as_str()).chain([source, "<|endoftext|>", "Żółć, naïve 日本語 🦀🦀"])
    {
        assert_eq!(from_file.encode(text.as_bytes()).unwrap(), built_in.encode(text.as_bytes()).unwrap(), "{text:?}");
    }
}
