//! Weights of 8 bits in safetensors: a scale for a row, for a block or for all of a matrix.

use std::collections::BTreeMap;
use std::fs;

use format::Dtype;
use half::bf16;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::checkpoint::layout::Layout;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::hostile::{copy_of, refused};
use super::odd_sizes::read_npy;
use crate::fixtures::program::{argument, run};

/// What a byte stands for.
fn number(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let size = if exponent == 0 { fraction * 2f32.powi(-6) } else { (1.0 + fraction) * 2f32.powi(exponent - 7) };
    if code & 0x80 == 0 { size } else { -size }
}

/// Which numbers of a matrix share a scale.
#[derive(Clone, Copy, Debug)]
enum Shared {
    Row { is_column: bool },
    Block,
    All,
}

/// A tensor of a file: its type, shape and bytes.
type Stored = (&'static str, Vec<usize>, Vec<u8>);

/// Matrices that are made bytes, and how their scales are stored.
const MADE: [(&str, Shared); 6] = [
    ("q_proj.weight", Shared::Row { is_column: true }),
    ("k_proj.weight", Shared::Row { is_column: false }),
    ("v_proj.weight", Shared::Block),
    ("o_proj.weight", Shared::All),
    ("lm_head.weight", Shared::Block),
    ("embed_tokens.weight", Shared::Row { is_column: true }),
];

/// The fixture with some matrices in 8 bits, and the numbers that these stand for.
fn made() -> (TempDir, BTreeMap<String, Vec<f32>>) {
    let folder = copy_of("hf-bf16");
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("copied");
    let (length, rest) = whole.split_first_chunk().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let Value::Object(header) = serde_json::from_slice(header).expect("JSON") else { panic!("an object") };
    let (mut tensors, mut numbers): (BTreeMap<String, Stored>, _) = (BTreeMap::new(), BTreeMap::new());
    for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let place = |i: usize| entry["data_offsets"][i].as_u64().expect("a place") as usize;
        let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).expect("a shape");
        let bytes = &data[place(0)..place(1)];
        let Some((_, shared)) = MADE.iter().find(|(end, _)| name.ends_with(end)) else {
            tensors.insert(name, ("BF16", shape, bytes.to_vec()));
            continue;
        };
        let [n_rows, n_columns] = shape[..] else { panic!("{name} is a matrix") };
        let kept = match shared {
            Shared::Row { is_column: true } => vec![n_rows, 1],
            Shared::Row { is_column: false } => vec![n_rows],
            Shared::Block => vec![n_rows.div_ceil(128), n_columns.div_ceil(128)],
            Shared::All => vec![],
        };
        let scale_of = |row: usize, column: usize| match shared {
            Shared::Row { .. } => row,
            Shared::Block => row / 128 * n_columns.div_ceil(128) + column / 128,
            Shared::All => 0,
        };
        // Scales of many bits, and bytes of all kinds that have something of the fixture's numbers.
        let scales: Vec<f32> = (0..kept.iter().product()).map(|i| 0.01 + 0.0003 * (i % 17) as f32).collect();
        let of = |i: usize| scales[scale_of(i / n_columns, i % n_columns)];
        let codes = bytes.as_chunks().0.iter().enumerate().map(|(i, &value)| {
            let value = bf16::from_le_bytes(value).to_f32() / of(i);
            (0..=255_u8)
                .filter(|code| code & 0x7f != 0x7f)
                .min_by(|&a, &b| (number(a) - value).abs().total_cmp(&(number(b) - value).abs()))
                .expect("codes")
        });
        let codes: Vec<u8> = codes.collect();
        numbers.insert(name.clone(), codes.iter().enumerate().map(|(i, &code)| of(i) * number(code)).collect());
        let suffix = if matches!(shared, Shared::Block) { "_scale_inv" } else { "_scale" };
        let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        tensors.insert(format!("{name}{suffix}"), ("F32", kept, scales));
        tensors.insert(name.clone(), ("F8_E4M3", shape, codes));
        if name.ends_with("o_proj.weight") {
            let input = name.replace("weight", "input_scale");
            tensors.insert(input, ("F32", vec![1], 0.5_f32.to_le_bytes().to_vec()));
        }
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let begin = data.len();
        data.extend(bytes);
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).expect("written");
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("copied")).expect("JSON");
    config["quantization_config"] = json!({"quant_method": "compressed-tensors", "format": "float-quantized"});
    fs::write(&path, config.to_string()).expect("written");
    (folder, numbers)
}

#[test]
fn bytes_are_what_their_scales_make_of_them_widened_and_as_stored() {
    let (folder, numbers) = made();
    let checkpoint = Checkpoint::open(folder.path(), Layout::Auto).unwrap_or_else(|error| panic!("{error:?}"));
    let layer = |l: usize, name: &str| numbers[&format!("model.layers.{l}.self_attn.{name}_proj.weight")].clone();
    let expected = [
        ("embedding.weight", numbers["model.embed_tokens.weight"].clone()),
        ("unembedding.weight", numbers["lm_head.weight"].clone()),
        ("block.1.attn.qkv.weight", ["q", "k", "v"].map(|name| layer(1, name)).concat()),
        ("block.0.attn.out.weight", layer(0, "o")),
    ];
    let f32s =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect() };
    let stored = checkpoint.as_stored(StoredWeights::All);
    for (name, expected) in expected {
        let tensor = checkpoint.tensor(name);
        assert_eq!(tensor.dtype, Dtype::F32, "{name}");
        assert_eq!(f32s(&tensor.read().expect("memory").expect("in a file")), expected, "{name}");
        // As stored: rows of whole blocks, and a scale for each of these.
        let [codes, scales] =
            [name.to_owned(), name.replace("weight", "scale")].map(|name| stored.tensor(&name).clone());
        assert_eq!((codes.dtype, scales.dtype), (Dtype::F8E4M3, Dtype::F32), "{name}");
        let [n_rows, n_columns] = tensor.shape[..] else { panic!("a matrix") };
        let (padded, n_blocks) = (n_columns.next_multiple_of(128), n_columns.div_ceil(128));
        assert_eq!((&codes.shape[..], &scales.shape[..]), (&[n_rows, padded][..], &[n_rows, n_blocks][..]), "{name}");
        let read = |tensor: &model::checkpoint::Tensor| tensor.read().expect("memory").expect("in a file");
        let (codes, scales) = (read(&codes), f32s(&read(&scales)));
        let number_at = |i: usize| {
            let (row, column) = (i / n_columns, i % n_columns);
            scales[row * n_blocks + column / 128] * number(codes[row * padded + column])
        };
        assert!(expected.iter().enumerate().all(|(i, &value)| number_at(i) == value), "{name}");
    }
}

#[test]
fn logits_are_the_same_widened_and_as_stored() {
    let (folder, _) = made();
    let ids = super::kinds::path_argument("ids.txt");
    let logits = |more: &[&str]| {
        let npy = argument(&folder.path().join("logits.npy"));
        let args =
            ["logits", &argument(folder.path()), "--ids", &ids, "-o", &npy, "--device", "cpu", "--precision", "f32"];
        run(&[&args[..], more].concat()).ok();
        read_npy(npy.as_ref())
    };
    let (widened, stored) = (logits(&["--stored-weights=none"]), logits(&[]));
    let largest = widened.iter().zip(&stored).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest < 1e-4, "{largest}");
}

#[test]
fn scales_that_are_missing_or_of_another_shape_are_told() {
    let (folder, _) = made();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("written");
    let changed = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is in the header");
        let mut bytes = whole.clone();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).expect("written");
    };
    changed("lm_head.weight_scale_inv", "lm_head.weight_scale_xyz");
    refused(folder.path(), "`lm_head.weight_scale` is missing, expected BF16, F16 or F32, (331, 1)");
    changed("layers.0.self_attn.k_proj.weight_scale\"", "layers.0.self_attn.k_proj.weight_zcale\"");
    refused(folder.path(), "`model.layers.0.self_attn.k_proj.weight_scale` is missing");
}
