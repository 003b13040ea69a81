//! Models whose answers are known: Hugging Face's fixtures, and one that counts.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ran, argument, file, parse_ids, run};

/// A folder of `tests/fixtures/hf`.
pub struct Fixture {
    pub name: &'static str,
    folder: PathBuf,
    pub prompts: Vec<Vec<u32>>,
    /// What argmax appends to each prompt.
    pub greedy: Vec<Vec<u32>>,
    pub vocab_size: usize,
}

const FIXTURES: [&str; 7] = ["odd", "window", "gqa8", "rope_plain", "yarn_long", "wide_window", "bf16"];

impl Fixture {
    pub fn all() -> Vec<Self> {
        FIXTURES.into_iter().map(Self::open).collect()
    }

    pub fn open(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf").join(name);
        let text = |file: &str| fs::read_to_string(folder.join(file)).expect("a fixture");
        let json: Value = serde_json::from_str(&text("fixture.json")).expect("JSON");
        let vocab_size = json["header"]["vocab_size"].as_u64().expect("a number") as usize;
        Self { name, prompts: parse_ids(&text("ids.txt")), greedy: parse_ids(&text("greedy.txt")), vocab_size, folder }
    }

    /// Path of `model.bin`, `ids.txt`, `logits.npy` or `greedy.txt`.
    pub fn path(&self, file: &str) -> String {
        argument(&self.folder.join(file))
    }

    pub fn n_greedy(&self) -> usize {
        self.greedy[0].len()
    }
}

/// A tokenizer with two letters for every token: `Aa`, `Ab`, … `Ba`. No two of them run together into a third.
pub fn letters_tokenizer(vocab_size: usize) -> Vec<u8> {
    let mut bytes = 2_i32.to_le_bytes().to_vec();
    for id in 0..vocab_size as u32 {
        bytes.extend((id as f32).to_le_bytes());
        bytes.extend(2_i32.to_le_bytes());
        bytes.extend(letters(&[id]).into_bytes());
    }
    bytes
}

/// The text of these tokens.
pub fn letters(ids: &[u32]) -> String {
    let pair = |&id: &u32| [char::from(b'A' + (id / 26) as u8), char::from(b'a' + (id % 26) as u8)];
    ids.iter().flat_map(pair).collect()
}

/// A file of prompts as getp takes it.
pub fn prompt_file(prompts: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("{}\n", prompts.len()).into_bytes();
    for prompt in prompts {
        bytes.extend(prompt.as_ref());
        bytes.push(b'\n');
    }
    bytes
}

/// A model that counts: after token `i` of the first eight comes `i + 1`, after the eighth the first. The logit of the
/// next token is sqrt(8), up to eps in the norm, all others are 0; after any other token all logits are 0.
pub struct Counter {
    pub folder: TempDir,
    vocab_size: usize,
}

impl Counter {
    /// With 26 tokens `Aa` to `Az` and room for `seq_len` positions.
    pub fn new(seq_len: i32) -> Self {
        let ring: Vec<(u32, u32)> = (0..8).map(|i| (i, (i + 1) % 8)).collect();
        Self::with_successors(26, seq_len, &ring)
    }

    /// Token `b` follows token `a` for each pair `(a, b)`. The residual stream has a channel for each pair.
    pub fn with_successors(vocab_size: usize, seq_len: i32, successors: &[(u32, u32)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        file(folder.path(), "model.bin", &counter_bytes(vocab_size, seq_len, successors));
        if vocab_size <= 26 * 26 {
            file(folder.path(), "tokenizer.bin", &letters_tokenizer(vocab_size));
        }
        Self { folder, vocab_size }
    }

    pub fn path(&self, name: &str) -> String {
        argument(&self.folder.path().join(name))
    }

    /// The model in a folder without a tokenizer, so that it has the built-in one.
    pub fn model_alone(&self) -> String {
        let bytes = fs::read(self.path("model.bin")).expect("there");
        file(self.folder.path(), "alone/model.bin", &bytes)
    }

    /// `run MODEL -z TOKENIZER`, and more arguments. A large vocabulary has the built-in tokenizer.
    pub fn run(&self, args: &[&str]) -> Ran {
        let (model, tokenizer) = (self.path("model.bin"), self.path("tokenizer.bin"));
        let mut all = vec!["run", &model];
        if self.vocab_size <= 26 * 26 {
            all.extend(["-z", &tokenizer]);
        }
        run(&[&all, args].concat())
    }

    /// `run -m getp` on a file of these bytes.
    pub fn getp(&self, input: &[u8], args: &[&str]) -> Ran {
        let input = file(self.folder.path(), "input.txt", input);
        self.run(&[&["-m", "getp", "-i", &input], args].concat())
    }
}

/// Header and weights, f32: attention and experts add nothing, embedding and unembedding do it all.
fn counter_bytes(vocab_size: usize, seq_len: i32, successors: &[(u32, u32)]) -> Vec<u8> {
    let hidden_size = successors.len();
    let (layers, experts, intermediate, head_dim, heads, kv_heads) = (2, 2, 4, 8, 2, 1);
    let mut bytes = Vec::new();
    let dims = [vocab_size, hidden_size, experts, 1, intermediate, layers, head_dim, heads, kv_heads];
    dims.iter().for_each(|&dim| bytes.extend((dim as i32).to_le_bytes()));
    bytes.extend([seq_len, 4096].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend([150_000.0_f32, 32.0].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(4_i32.to_le_bytes()); // sliding_window
    bytes.extend(7.0_f32.to_le_bytes());

    let mut embedding = vec![0.0_f32; vocab_size * hidden_size];
    let mut unembedding = embedding.clone();
    for (channel, &(token, next)) in successors.iter().enumerate() {
        embedding[token as usize * hidden_size + channel] = 1.0;
        unembedding[next as usize * hidden_size + channel] = 1.0;
    }
    let norms = vec![1.0_f32; (2 * layers + 1) * hidden_size];
    let (qkv, attention) = (head_dim * (heads + 2 * kv_heads), head_dim * heads);
    let of_attention = qkv * hidden_size + qkv + hidden_size * attention + hidden_size + heads;
    let of_expert = 2 * intermediate * hidden_size + 2 * intermediate + hidden_size * intermediate + hidden_size;
    let zeros = vec![0.0_f32; layers * (of_attention + experts * hidden_size + experts + experts * of_expert)];
    for part in [embedding, unembedding, norms, zeros] {
        bytes.extend(part.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}
