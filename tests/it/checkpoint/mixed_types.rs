//! A Llama whose matrices have all types that GGUF files may mix, in blocks or not.

use std::path::Path;

use format::Dtype;
use half::f16;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
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

/// A model whose matrices have the types in turn, pieces of one matrix the same. The scale of the first block of the
/// broken one is NaN.
fn in_turn(broken: Option<&str>) -> Vec<u8> {
    let (mut types, mut last) = (TYPES.iter().cycle(), &TYPES[0]);
    let of = |name: &str| {
        if !["attn_k", "attn_v", "ffn_up"].iter().any(|piece| name.contains(piece)) {
            last = types.next().expect("a cycle has no end");
        }
        last
    };
    model(broken, of, 1, false)
}

/// A model with biases in which pieces of one matrix have several types.
fn in_pieces() -> Vec<u8> {
    let of = |name: &str| {
        let wanted = match name {
            "blk.0.attn_q.weight" | "blk.0.attn_k.weight" => "q4_1",
            "blk.1.attn_q.weight" => "q5_0",
            "blk.1.attn_k.weight" => "q4_0",
            "blk.2.attn_q.weight" => "f16",
            "blk.1.ffn_up.weight" => "q5_1",
            _ => "q8_0",
        };
        TYPES.iter().find(|of| of.name == wanted).expect("one of them")
    };
    model(None, of, 2, true)
}

fn model(
    broken: Option<&str>,
    mut of: impl FnMut(&str) -> &'static Type,
    n_kv_heads: u64,
    has_biases: bool,
) -> Vec<u8> {
    let number = |name: &str, value: u64| key(name, U32, &(value as u32).to_le_bytes());
    let mut gguf = File::default().key(key("general.architecture", STRING, &text(b"llama")));
    for (name, value) in [
        ("embedding_length", N),
        ("feed_forward_length", N),
        ("block_count", N_LAYERS as u64),
        ("attention.head_count", N / N_KV),
        ("attention.head_count_kv", n_kv_heads),
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
    let matrices = [
        ("attn_q", N),
        ("attn_k", n_kv_heads * N_KV),
        ("attn_v", n_kv_heads * N_KV),
        ("attn_output", N),
        ("ffn_gate", N),
        ("ffn_up", N),
        ("ffn_down", N),
    ];
    for name in ["token_embd.weight", "output.weight"] {
        gguf = add(gguf, name, &[VOCAB_SIZE, N], Some(of(name)));
    }
    gguf = add(gguf, "output_norm.weight", &[N], None);
    for layer in 0..N_LAYERS {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        gguf = add(gguf, &name("attn_norm"), &[N], None);
        gguf = add(gguf, &name("ffn_norm"), &[N], None);
        for (matrix, rows) in matrices {
            gguf = add(gguf, &name(matrix), &[rows, N], Some(of(&name(matrix))));
            if has_biases && matrix.starts_with("attn") {
                gguf = add(gguf, &format!("blk.{layer}.{matrix}.bias"), &[rows], None);
            }
        }
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
    let path = file(folder.path(), "mixed.gguf", &in_turn(None));
    let checkpoint = Checkpoint::open(Path::new(&path), Layout::Auto).expect("a model");
    let mut names: Vec<&str> = TYPES.iter().map(|of| of.name).collect();
    names.sort_unstable();
    assert_eq!(checkpoint.as_stored(StoredWeights::All).weights(), names.join(", "));
    assert_eq!((checkpoint.weights(), checkpoint.rounded().weights()), ("f32".into(), "bf16".into()));

    let widened = logits(&path, folder.path(), &["--precision", "f32", "--stored-weights=none"]);
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
fn pieces_of_a_matrix_keep_their_types_on_one_device_and_on_two() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = file(folder.path(), "pieces.gguf", &in_pieces());
    let checkpoint = Checkpoint::open(Path::new(&path), Layout::Auto).expect("a model");
    let stored = checkpoint.rounded().as_stored(StoredWeights::Blocks);
    let rows = |name: &str, stored: &Checkpoint| {
        let tensor = stored.tensors.get(&format!("block.{name}"));
        tensor.map(|tensor| (tensor.dtype, tensor.shape[0] as u64))
    };
    let n_kv = 2 * N_KV;
    for (name, dtype, n_rows) in [
        ("0.attn.qkv.0", Dtype::Q4_1, N + n_kv),
        ("0.attn.qkv.1", Dtype::Q8_0, n_kv),
        ("1.attn.qkv.0", Dtype::Q5_0, N),
        ("1.attn.qkv.1", Dtype::Q4_0, n_kv),
        ("1.attn.qkv.2", Dtype::Q8_0, n_kv),
        ("2.attn.qkv.0", Dtype::Bf16, N), // f16 in the file
        ("2.attn.qkv.1", Dtype::Q8_0, 2 * n_kv),
        ("1.mlp.gate_up.0", Dtype::Q8_0, N),
        ("1.mlp.gate_up.1", Dtype::Q5_1, N),
        ("2.mlp.gate_up", Dtype::Q8_0, 2 * N),
    ] {
        assert_eq!(rows(&format!("{name}.weight"), &stored), Some((dtype, n_rows)), "{name}");
        let bias = rows(&format!("{name}.bias"), &stored);
        assert_eq!(bias.map(|(_, n)| n), name.contains("attn").then_some(n_rows), "{name}");
    }
    for whole in ["0.attn.qkv.weight", "0.attn.qkv.bias", "1.mlp.gate_up.weight"] {
        assert_eq!(rows(whole, &stored), None, "{whole}");
    }

    let logits = |args: &[&str]| logits(&path, folder.path(), &[&["--precision", "f32"], args].concat());
    let widened = logits(&["--stored-weights=none"]);
    let size = (widened.iter().map(|logit| logit * logit).sum::<f32>() / widened.len() as f32).sqrt();
    for args in [&[][..], &["--stored-weights"], &["--tp", "2"], &["--tp", "2", "--stored-weights=all"]] {
        let worst = logits(args).iter().zip(&widened).map(|(a, b)| (a - b).abs() / size).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{args:?}: {worst}");
    }
}

#[test]
fn a_scale_that_is_no_number_is_refused_whether_weights_are_widened_or_stored() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = file(folder.path(), "mixed.gguf", &in_turn(Some("blk.1.ffn_down.weight")));
    for stored in [None, Some("--stored-weights"), Some("--stored-weights=none")] {
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
