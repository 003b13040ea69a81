//! What fuzzers start from, and the cases that they found: each is read again. `fuzz/README.md` says how more are
//! found.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/inputs.rs"]
mod inputs;

/// A fuzz target: its name, and what it does with bytes.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 5] = [
    ("bin", inputs::bin),
    ("safetensors", inputs::safetensors),
    ("gguf", inputs::gguf),
    ("tokenizer_bin", inputs::tokenizer_bin),
    ("tokenizer_json", inputs::tokenizer_json),
];

#[test]
fn seeds_and_found_cases_are_read_or_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (target, read) in TARGETS {
        let seeds = fs::read_dir(root.join("fuzz/seeds").join(target)).expect("every target has seeds");
        let found = fs::read_dir(root.join("tests/fixtures/fuzzed").join(target));
        for entry in seeds.chain(found.into_iter().flatten()) {
            read(&fs::read(entry.expect("listed").path()).expect("a file"));
        }
    }
}

/// A fuzzer that starts from files that are refused at once would find nothing.
#[test]
fn seeds_are_whole() {
    let seed = |name: &str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name)).expect(name);
    for name in ["bin/f32", "bin/bf16"] {
        assert!(inputs::is_bin(&seed(name)), "{name}");
    }
    for name in ["hf_bf16", "hf_mxfp4", "openai", "index"] {
        assert!(inputs::is_safetensors(&seed(&format!("safetensors/{name}"))), "{name}");
    }
    for name in ["bf16", "f16", "q8_0"] {
        assert!(inputs::is_gguf(&seed(&format!("gguf/{name}"))), "{name}");
    }
    assert!(inputs::is_gguf_tokenizer(&seed("gguf/tokens")));
    assert!(inputs::is_tokenizer_bin(&seed("tokenizer_bin/small")));
    assert!(inputs::is_tokenizer_json(&seed("tokenizer_json/small")));
}
