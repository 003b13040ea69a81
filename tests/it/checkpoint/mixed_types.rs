//! A Llama whose matrices have all types that GGUF files may mix, in blocks or not.

use std::path::Path;

use half::f16;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use super::hostile::gguf::{File, key, tensor, text};
use super::odd_sizes::read_npy;
use crate::fixtures::program::{argument, file, run};

const U32: u32 = 4;
const STRING: u32 = 8;
const F32: u32 = 0;

/// Layers, and what all dimensions but the vocabulary and the keys' are: a block of 256 is a row.
const N_LAYERS: usize = 3;
const N: u64 = 256;
const N_KV: u64 = 64;
const VOCAB_SIZE: u64 = 40;

/// A type: its name here, its number, the numbers and bytes of a block, where its scale and its offset are in that, and
/// what a random code times factors of 6 bits is about, and how far its middle is from 0, in offsets.
struct Type {
    name: &'static str,
    number: u32,
    block: [u64; 2],
    scale: usize,
    offset: Option<usize>,
    size: f32,
    middle: f32,
}

const fn of(name: &'static str, number: u32, block: [u64; 2], scale: usize, size: f32) -> Type {
    Type { name, number, block, scale, offset: None, size, middle: 0.0 }
}

const fn with_offset(of: Type, offset: usize, middle: f32) -> Type {
    Type { offset: Some(offset), middle, ..of }
}

const TYPES: [Type; 13] = [
    of("f16", 1, [1, 2], 0, 1.0),
    of("q4_0", 2, [32, 18], 0, 4.6),
    with_offset(of("q4_1", 3, [32, 20], 0, 4.6), 2, -7.5),
    of("q5_0", 6, [32, 22], 0, 9.2),
    with_offset(of("q5_1", 7, [32, 24], 0, 9.2), 2, -15.5),
    of("q8_0", 8, [32, 34], 0, 74.0),
    with_offset(of("q2_k", 10, [256, 84], 80, 14.0), 82, 1.5),
    of("q3_k", 11, [256, 110], 108, 43.0),
    with_offset(of("q4_k", 12, [256, 144], 0, 256.0), 2, 7.5),
    with_offset(of("q5_k", 13, [256, 176], 0, 512.0), 2, 15.5),
    of("q6_k", 14, [256, 210], 208, 1370.0),
    of("iq4_nl", 20, [32, 18], 0, 67.0),
    of("iq4_xs", 23, [256, 136], 0, 1240.0),
];

/// Numbers without a pattern (xorshift64*).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// From 0.5 to 1.5.
    fn factor(&mut self) -> f32 {
        0.5 + self.bits() as f32 / u32::MAX as f32
    }
}

impl Type {
    /// A block of random bytes whose numbers are about the size of those of a row of 256 that keeps sizes as they are.
    fn block(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.block[1]).map(|_| random.bits() as u8).collect();
        let sign = if random.bits() < 1 << 31 { 1.0 } else { -1.0 };
        let scale = sign * random.factor() / (16.0 * self.size);
        let mut put = |at: usize, value: f32| bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        put(self.scale, scale);
        if let Some(at) = self.offset {
            put(at, scale * self.middle);
        }
        bytes
    }
}

/// The model: matrices have the types in turn. The scale of the first block of the broken one is NaN.
fn model(broken: Option<&str>) -> Vec<u8> {
    let number = |name: &str, value: u64| key(name, U32, &(value as u32).to_le_bytes());
    let mut gguf = File::default().key(key("general.architecture", STRING, &text(b"llama")));
    for (name, value) in [
        ("embedding_length", N),
        ("feed_forward_length", N),
        ("block_count", N_LAYERS as u64),
        ("attention.head_count", N / N_KV),
        ("attention.head_count_kv", 1),
        ("context_length", 64),
        ("vocab_size", VOCAB_SIZE),
    ] {
        gguf = gguf.key(number(&format!("llama.{name}"), value));
    }
    let (mut random, mut data) = (Random(7), Vec::new());
    let mut add = |gguf: File, name: &str, shape: &[u64], of: Option<&Type>| {
        let n: u64 = shape.iter().product();
        let offset = (data.len() as u64).next_multiple_of(32);
        data.resize(offset as usize, 0);
        match of {
            None => (0..n).for_each(|_| data.extend(random.factor().to_le_bytes())),
            Some(of) => (0..n / of.block[0]).for_each(|_| data.extend(of.block(&mut random))),
        }
        if let Some(of) = of.filter(|_| broken == Some(name)) {
            data[offset as usize + of.scale..][..2].copy_from_slice(&f16::NAN.to_le_bytes());
        }
        let innermost_first: Vec<u64> = shape.iter().rev().copied().collect();
        gguf.tensor(tensor(name, &innermost_first, of.map_or(F32, |of| of.number), offset))
    };
    let mut types = TYPES.iter().cycle();
    let mut next = || types.next();
    gguf = add(gguf, "token_embd.weight", &[VOCAB_SIZE, N], next());
    gguf = add(gguf, "output.weight", &[VOCAB_SIZE, N], next());
    gguf = add(gguf, "output_norm.weight", &[N], None);
    for layer in 0..N_LAYERS {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        gguf = add(gguf, &name("attn_norm"), &[N], None);
        gguf = add(gguf, &name("ffn_norm"), &[N], None);
        let of = next(); // pieces of one tensor of ours
        for (piece, rows) in [("attn_q", N), ("attn_k", N_KV), ("attn_v", N_KV)] {
            gguf = add(gguf, &name(piece), &[rows, N], of);
        }
        gguf = add(gguf, &name("attn_output"), &[N, N], next());
        let of = next();
        for piece in ["ffn_gate", "ffn_up"] {
            gguf = add(gguf, &name(piece), &[N, N], of);
        }
        gguf = add(gguf, &name("ffn_down"), &[N, N], next());
    }
    gguf.with_data(data).bytes()
}

/// Logits of two prompts.
fn logits(model: &str, folder: &Path, args: &[&str]) -> Vec<f32> {
    let (ids, npy) = (file(folder, "ids.txt", b"1 2 3 4 5 6 7\n39 0 17\n"), argument(&folder.join("logits.npy")));
    run(&[&["logits", model, "--ids", &ids, "-o", &npy, "--device", "cpu"], args].concat()).ok();
    read_npy(Path::new(&npy))
}

#[test]
fn a_model_of_all_types_has_the_logits_that_it_has_with_its_weights_widened() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = file(folder.path(), "mixed.gguf", &model(None));
    let checkpoint = Checkpoint::open(Path::new(&path), Layout::Auto).expect("a model");
    let mut names: Vec<&str> = TYPES.iter().map(|of| of.name).collect();
    names.sort_unstable();
    assert_eq!(checkpoint.as_stored().weights(), names.join(", "));
    assert_eq!((checkpoint.weights(), checkpoint.rounded().weights()), ("f32".into(), "bf16".into()));

    let widened = logits(&path, folder.path(), &["--precision", "f32"]);
    let size = (widened.iter().map(|logit| logit * logit).sum::<f32>() / widened.len() as f32).sqrt();
    assert!(widened.len() == 10 * VOCAB_SIZE as usize && (0.1..100.0).contains(&size), "{size}");
    let worst = |got: &[f32]| got.iter().zip(&widened).map(|(a, b)| (a - b).abs() / size).fold(0.0, f32::max);
    // Sums of what is stored are made in another order, of the same numbers.
    let stored = worst(&logits(&path, folder.path(), &["--precision", "f32", "--stored-weights"]));
    assert!(stored < 1e-5, "{stored}");
    // In bf16 activations are rounded, and of widened weights the numbers, too.
    let in_bf16 = worst(&logits(&path, folder.path(), &["--precision", "bf16", "--stored-weights"]));
    assert!((1e-5..0.1).contains(&in_bf16), "{in_bf16}");
}

#[test]
fn a_scale_that_is_no_number_is_refused_whether_weights_are_widened_or_stored() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = file(folder.path(), "mixed.gguf", &model(Some("blk.1.ffn_down.weight")));
    for stored in [None, Some("--stored-weights")] {
        let ids = file(folder.path(), "ids.txt", b"1\n");
        let npy = argument(&folder.path().join("logits.npy"));
        let args = ["logits", &path, "--ids", &ids, "-o", &npy, "--device", "cpu"];
        let stderr = run(&args.into_iter().chain(stored).collect::<Vec<_>>()).fails_with_hint(1);
        assert!(stderr.contains("has a block whose scale or offset is infinite or NaN"), "{stderr}");
    }
}

#[test]
fn rows_that_are_no_whole_blocks_and_types_without_a_codec_are_refused() {
    let refused = |kind: u32, row: u64, told: &str| {
        let gguf = File::default().tensor(tensor("a", &[row, 2], kind, 0)).with_data(vec![0; 1024]);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = file(folder.path(), "model.gguf", &gguf.bytes());
        super::hostile::refused(Path::new(&path), told);
    };
    refused(12, 288, "`a` cannot be [2, 288] of Q4_K: rows are whole blocks of 256");
    refused(20, 48, "`a` cannot be [2, 48] of IQ4_NL: rows are whole blocks of 32");
    refused(14, 1280, "the tensors take 2100 bytes, the file has 1024 after its header");
}
