//! Safetensors files, their index and their `config.json`.

use std::fs;

use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use proptest::prelude::*;

use super::{copy_of, refused};
use crate::checkpoint::kinds;

/// A file of this header and so many bytes of data.
fn file(header: &[u8], data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + data_bytes, 0);
    file
}

fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = copy_of("openai");
    let path = folder.path().join("model.safetensors");
    let of = |entries: &[String], data_bytes| file(format!("{{{}}}", entries.join(",")).as_bytes(), data_bytes);
    let length = |length: u64| [&length.to_le_bytes()[..], b"{\"a\":1}"].concat();
    let a = entry("a", "F32", "2, 3", 0, 24);
    let whole = fs::read(&path).expect("copied");
    let cases: [(Vec<u8>, &str); 24] = [
        (vec![], "the file has 0 bytes, its header alone takes 8"),
        (whole[..7].to_vec(), "the file has 7 bytes, its header alone takes 8"),
        (whole[..5000].to_vec(), "the tensors take"),
        (whole[..whole.len() - 1].to_vec(), "hint: the file is cut short"),
        ([&whole[..], b"x"].concat(), "bytes, the file has"),
        (length(u64::MAX), "the header has 18446744073709551615 bytes, expected 16777216 at most"),
        (length(1 << 40), "the header has 1099511627776 bytes"),
        (length(16 << 20), "the file has 15 bytes, its header alone takes 16777224"),
        (file(b"", 0), "could not read the header"),
        (file(b"[]", 0), "could not read the header"),
        (file(b"{\"\xff\":1}", 0), "could not read the header"),
        (file(&b"{\"a\":".repeat(100_000), 0), "could not read the header"),
        (file(&b"[".repeat(100_000), 0), "could not read the header"),
        (file(br#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4), "could not read the header"),
        (file(br#"{"a":{"dtype":"F32","shape":[1]}}"#, 4), "missing field `data_offsets`"),
        (of(&[a.clone(), entry("a", "F32", "2, 3", 24, 48)], 48), "there are two tensors `a`"),
        (of(&[a.clone(), entry("b", "F32", "2", 20, 28)], 28), "`b` begins at byte 20 of the data, expected 24"),
        (of(&[a.clone(), entry("b", "F32", "2", 28, 36)], 36), "`b` begins at byte 28 of the data, expected 24"),
        (of(std::slice::from_ref(&a), 20), "the tensors take 24 bytes, the file has 20 after its header"),
        (of(&[entry("a", "F33", "2, 3", 0, 24)], 24), "`a` has the type `F33`, which is none of the format's"),
        (
            of(&[entry("a", "F32", "2, 3", 0, 23)], 23),
            "takes bytes 0 to 23 of the data, expected 24 bytes for F32 [2, 3]",
        ),
        (of(&[entry("a", "F32", "2, 3", 24, 0)], 24), "takes bytes 24 to 0 of the data, expected 24 bytes"),
        (
            of(&[entry("a", "F32", "4294967296, 4294967296, 4", 0, 24)], 24),
            "expected no such shape for F32 [4294967296, 4294967296, 4]",
        ),
        (
            of(&[entry("a", "U8", "18446744073709551615", 0, u64::MAX)], 24),
            "the tensors take 18446744073709551615 bytes, the file has 24 after its header",
        ),
    ];
    for (bytes, message) in cases {
        fs::write(&path, &bytes).expect("written");
        refused(folder.path(), message);
        refused(&path, message);
    }
}

#[test]
fn all_tensors_that_do_not_fit_are_listed_in_one_error() {
    let folder = copy_of("openai");
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("copied");
    let length = u64::from_le_bytes(*whole.first_chunk().expect("a header")) as usize;
    let header = String::from_utf8(whole[8..8 + length].to_vec()).expect("JSON");
    // The same lengths and offsets, other names and types.
    let changed = header
        .replace("\"block.0.attn.sinks\"", "\"block.0.attn.drain\"")
        .replacen("\"norm.scale\":{\"dtype\":\"BF16\"", "\"norm.scale\":{\"dtype\":\"I16\" ", 1)
        .replace("\"shape\":[331,96]", "\"shape\":[96,331]");
    assert_eq!(changed.len(), header.len());
    fs::write(&path, [&whole[..8], changed.as_bytes(), &whole[8 + length..]].concat()).expect("written");
    for line in [
        "5 of the tensors do not match the model's dimensions:",
        "\n    `embedding.weight` is (96, 331), expected (331, 96)",
        "\n    `unembedding.weight` is (96, 331), expected (331, 96)",
        "\n    `norm.scale` consists of I16, expected BF16, F16 or F32",
        "\n    `block.0.attn.sinks` is missing, expected BF16, F16 or F32, (8)",
        "\n    `block.0.attn.drain` has no place in the model, found BF16, (8)",
    ] {
        refused(folder.path(), line);
    }
}

#[test]
fn indices_that_lie_are_refused() {
    let folder = copy_of("hf-bf16-sharded");
    let path = folder.path().join("model.safetensors.index.json");
    let whole = fs::read_to_string(&path).expect("copied");
    let first = "model-00001-of-00004.safetensors";
    let second = "model-00002-of-00004.safetensors";
    assert!(whole.contains(first));
    let sinks = "\"model.layers.0.self_attn.sinks\": \"";
    let moved = if whole.contains(&format!("{sinks}{first}")) { (first, second) } else { (second, first) };
    let cases = [
        (whole.replacen(first, "../model.safetensors", 1), "is in `../model.safetensors`, expected the name of a file"),
        (whole.replacen(first, "/etc/passwd", 1), "is in `/etc/passwd`, expected the name of a file beside it"),
        (whole.replacen(first, "..\\\\x", 1), "expected the name of a file beside it"),
        (whole.replacen(first, "a\\u0000b", 1), "expected the name of a file beside it"),
        (whole.replacen(first, "elsewhere.safetensors", 1), "could not read its file"),
        (
            whole.replacen(&format!("{sinks}{}", moved.0), &format!("{sinks}{}", moved.1), 1),
            "`model.layers.0.self_attn.sinks` lies in `model-0000",
        ),
        (whole.replacen("self_attn.sinks", "self_attn.drain", 1), "the index does not have it"),
        (whole.replacen("self_attn.sinks", "self_attn.drain", 1), "where the index says it is"),
        (whole.replacen("\"weight_map\": {", "\"weight_map\": { \"a\": \"x\", \"a\": \"x\",", 1), "two entries `a`"),
        ("{\"weight_map\":".repeat(100_000), "could not read the index"),
        ("{}".into(), "missing field `weight_map`"),
        (" ".repeat(17 << 20), "the index has 17825792 bytes, expected 16777216 at most"),
    ];
    for (text, message) in cases {
        assert_ne!(text, whole, "{message}");
        fs::write(&path, text).expect("written");
        refused(folder.path(), message);
    }
    fs::remove_file(&path).expect("removed");
    refused(folder.path(), "the folder has 4 files `*.safetensors` and no `model.safetensors.index.json`");
}

#[test]
fn folders_without_a_model_are_refused() {
    let folder = copy_of("hf-mxfp4");
    let config = folder.path().join("config.json");
    let whole = fs::read_to_string(&config).expect("copied");
    for (text, message) in [
        (whole.replace("\"gpt_oss\"", "\"bert\""), "`model_type` is \"bert\", expected \"gemma3_text\" or"),
        (whole.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), "`layer_types` is"),
        (whole.replace("\"hidden_size\": 96", "\"hidden_size\": 97"), "expected (331, 97)"),
        (
            whole.replace("\"hidden_size\": 96", "\"hidden_size\": 1e99"),
            "`hidden_size` is 1e+99, expected a whole number",
        ),
        ("[".repeat(100_000), "the file is not JSON"),
    ] {
        assert_ne!(text, whole);
        fs::write(&config, text).expect("written");
        refused(folder.path(), message);
    }
    fs::write(&config, whole).expect("written");
    fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
    refused(folder.path(), "the folder has none of `model.safetensors`");
    fs::remove_file(config).expect("removed");
    refused(folder.path(), "could not read its file");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_damage_panics(changes in prop::collection::vec((0usize..4500, any::<u8>()), 1..5), cut in prop::option::of(0usize..5000)) {
        let folder = copy_of("openai");
        let path = folder.path().join("model.safetensors");
        let mut bytes = fs::read(kinds::path("openai/model.safetensors")).expect("a fixture");
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        fs::write(&path, bytes).expect("written");
        if let Ok(checkpoint) = Checkpoint::open(folder.path(), Layout::Auto) {
            for tensor in checkpoint.tensors.values() {
                prop_assert_eq!(tensor.read().expect("memory").expect("bytes").len(), tensor.len_bytes());
            }
        }
    }
}
