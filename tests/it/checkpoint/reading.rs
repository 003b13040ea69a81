//! `.bin` files written here byte by byte, whole and damaged, and what is read from them.

use std::fs;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use format::Dtype;
use hint::Hint;
use model::checkpoint::layout::{Layout, LayoutFinding};
use model::checkpoint::tensors::groups;
use model::checkpoint::{Checkpoint, CheckpointError};
use model::config::ConfigError;
use proptest::prelude::*;

use crate::fixtures::models::gpt_oss;
use crate::fixtures::program::run;

/// A header written by hand: 11 tokens, width 6, 3 experts of width 5, 2 of them chosen, 2 layers, heads of width 4,
/// 4 query heads, 2 kv heads, 64 tokens, context 4096, theta 150000.0, factor 32.0, window 128, limit 7.0.
const HEADER: [u8; 60] = [
    11, 0, 0, 0, 6, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 64, 0,
    0, 0, 0, 0x10, 0, 0, 0x00, 0x7c, 0x12, 0x48, 0, 0, 0, 0x42, 128, 0, 0, 0, 0, 0, 0xe0, 0x40,
];

/// 2VH + 2LH + H + L(QH + Q + H*D*NH + H + NH) + L(EH + E) + LE(2IH + 2I + HI + H), with Q = 4 (4 + 2*2) = 32.
const PARAMETERS: usize = 132 + 24 + 6 + 2 * (192 + 32 + 96 + 6 + 4) + 2 * (18 + 3) + 6 * (60 + 10 + 30 + 6);

/// A file in which element number i is the float i.
fn f32_file(header: [u8; 60]) -> Vec<u8> {
    let mut file = header.to_vec();
    file.extend((0..PARAMETERS).flat_map(|i| (i as f32).to_le_bytes()));
    file
}

/// The same with two bytes for each element: its number.
fn bf16_file(header: [u8; 60]) -> Vec<u8> {
    let mut file = header.to_vec();
    file.extend((0..PARAMETERS as u16).flat_map(u16::to_le_bytes));
    file
}

fn with_word(offset: usize, word: [u8; 4]) -> [u8; 60] {
    let mut header = HEADER;
    header[offset..offset + 4].copy_from_slice(&word);
    header
}

fn read(file: Vec<u8>, layout: Layout) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_bytes(Bytes::from(file), layout)
}

fn f32s(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint
        .tensor(name)
        .read()
        .unwrap()
        .unwrap()
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<f32> {
    range.map(|i| i as f32).collect()
}

#[test]
fn the_header_is_read_field_by_field() {
    let checkpoint = read(f32_file(HEADER), Layout::Auto).unwrap();
    let config = gpt_oss(&[
        ("vocab_size", 11.0),
        ("hidden_size", 6.0),
        ("num_experts", 3.0),
        ("experts_per_token", 2.0),
        ("intermediate_size", 5.0),
        ("num_hidden_layers", 2.0),
        ("head_dim", 4.0),
        ("num_attention_heads", 4.0),
        ("num_key_value_heads", 2.0),
        ("max_seq_len", 64.0),
        ("initial_context_length", 4096.0),
        ("rope_theta", 150_000.0),
        ("rope_scaling_factor", 32.0),
        ("sliding_window", 128.0),
        ("swiglu_limit", 7.0),
    ]);
    assert_eq!(checkpoint.config, config);
    assert_eq!(checkpoint.findings, []);
}

#[test]
fn every_tensor_lies_where_the_format_puts_it() {
    let checkpoint = read(f32_file(HEADER), Layout::Auto).unwrap();
    assert_eq!(checkpoint.tensors.len(), 3 + 13 * 2);
    for (name, shape, first) in [
        ("embedding.weight", vec![11, 6], 0),
        ("unembedding.weight", vec![11, 6], 66),
        ("block.0.attn.norm.scale", vec![6], 132),
        ("block.1.attn.norm.scale", vec![6], 138),
        ("block.0.mlp.norm.scale", vec![6], 144),
        ("norm.scale", vec![6], 156),
        ("block.0.attn.qkv.weight", vec![32, 6], 162),
        ("block.1.attn.qkv.weight", vec![32, 6], 354),
        ("block.0.attn.qkv.bias", vec![32], 546),
        ("block.0.attn.out.weight", vec![6, 16], 610),
        ("block.0.attn.out.bias", vec![6], 802),
        ("block.0.attn.sinks", vec![4], 814),
        ("block.0.mlp.gate.weight", vec![3, 6], 822),
        ("block.0.mlp.gate.bias", vec![3], 858),
        ("block.0.mlp.mlp1_weight", vec![3, 10, 6], 864),
        ("block.0.mlp.mlp1_bias", vec![3, 10], 1224),
        ("block.0.mlp.mlp2_weight", vec![3, 6, 5], 1284),
        ("block.1.mlp.mlp2_weight", vec![3, 6, 5], 1374),
        ("block.1.mlp.mlp2_bias", vec![3, 6], 1482),
    ] {
        let tensor = checkpoint.tensor(name);
        assert_eq!((tensor.dtype, &tensor.shape, tensor.name.as_str()), (Dtype::F32, &shape, name));
        assert_eq!(tensor.file_offset, Some(60 + 4 * first as u64), "{name}");
        assert_eq!(f32s(&checkpoint, name), numbers(first..first + tensor.len()), "{name}");
    }
}

#[test]
fn the_size_tells_bf16_from_f32() {
    let checkpoint = read(bf16_file(HEADER), Layout::Auto).unwrap();
    let tensor = checkpoint.tensor("block.1.mlp.mlp2_bias");
    assert_eq!(tensor.dtype, Dtype::Bf16);
    let want: Vec<u8> = (1482u16..1500).flat_map(u16::to_le_bytes).collect();
    assert_eq!(tensor.bytes().unwrap(), &want);
}

#[test]
fn any_other_size_is_refused_with_both_sizes() {
    let (bf16, f32) = (60 + 2 * PARAMETERS, 60 + 4 * PARAMETERS);
    assert_eq!((bf16, f32), (3060, 6060));
    for (found, verdict) in [
        (60, "3000 too few for bf16"),
        (3059, "1 too few for bf16"),
        (3061, "1 too many for bf16 and 2999 too few for f32"),
        (6059, "2999 too many for bf16 and 1 too few for f32"),
        (6067, "7 too many for f32"),
    ] {
        let mut file = f32_file(HEADER);
        file.resize(found, 0);
        assert_eq!(
            read(file, Layout::Auto).unwrap_err().to_string(),
            format!(
                "the header describes 1500 parameters: 6060 bytes as f32 or 3060 bytes as bf16; the file has {found} \
                 bytes, {verdict}"
            )
        );
    }
    for found in [0, 59] {
        let error = read(HEADER[..found].to_vec(), Layout::Auto).unwrap_err();
        assert_eq!(error.to_string(), format!("the file has {found} bytes, the header alone takes 60"));
        assert!(error.hint().is_some());
    }
}

#[test]
fn hostile_header_values_are_named() {
    let out_of_range =
        |offset: usize, value: i32| match read(f32_file(with_word(offset, value.to_le_bytes())), Layout::Auto) {
            Err(CheckpointError::Header { offset: at, source: ConfigError::OutOfRange { field, found, .. } }) => {
                assert_eq!((at, found), (offset, i64::from(value)));
                field
            }
            other => panic!("{other:?}"),
        };
    let fields = [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 52].map(|offset| out_of_range(offset, -1));
    assert_eq!(fields[..3], ["vocab_size", "hidden_size", "num_experts"]);
    assert_eq!(fields[9..], ["max_seq_len", "initial_context_length", "sliding_window"]);
    for offset in [0, 4, 8, 12, 16, 20, 24, 28, 32] {
        out_of_range(offset, 0);
        out_of_range(offset, i32::MAX);
    }
    for offset in [44, 48, 56] {
        for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
            let error = read(f32_file(with_word(offset, value.to_le_bytes())), Layout::Auto).unwrap_err();
            assert!(
                matches!(error, CheckpointError::Header { offset: at, source: ConfigError::BadFloat { .. } } if at == offset),
                "{offset} {value}: {error:?}"
            );
        }
    }
}

#[test]
fn dimensions_that_do_not_fit_each_other_are_refused() {
    let source = |offset: usize, value: i32| match read(f32_file(with_word(offset, value.to_le_bytes())), Layout::Auto)
    {
        Err(CheckpointError::Config(source)) => source,
        other => panic!("{other:?}"),
    };
    let not_a_multiple =
        |field, found, of: &str, divisor| ConfigError::NotAMultiple { field, found, of: of.into(), divisor };
    assert_eq!(
        source(12, 4),
        ConfigError::TooMany { field: "experts_per_token", found: 4, limit: "num_experts".into(), most: 3 }
    );
    assert_eq!(source(32, 3), not_a_multiple("num_attention_heads", 4, "num_key_value_heads", 3));
    assert_eq!(source(24, 5), not_a_multiple("head_dim", 5, "2", 2));
}

#[test]
fn a_header_that_promises_more_than_memory_addresses_is_refused() {
    let mut header = HEADER;
    for (offset, value) in [(4, 1 << 20), (8, 1 << 16), (16, 1 << 20), (20, 1 << 12)] {
        header[offset..offset + 4].copy_from_slice(&i32::to_le_bytes(value));
    }
    assert!(matches!(read(f32_file(header), Layout::Auto), Err(CheckpointError::TooLarge)));
}

#[test]
fn float_words_of_the_older_fork_exporter_are_mended() {
    let mut header = with_word(40, 4096f32.to_le_bytes());
    header[52..56].copy_from_slice(&128f32.to_le_bytes());
    let checkpoint = read(f32_file(header), Layout::Auto).unwrap();
    assert_eq!((checkpoint.config.dim("initial_context_length"), checkpoint.config.dim("sliding_window")), (4096, 128));
    assert_eq!(
        checkpoint.findings,
        [
            LayoutFinding::FloatInInteger { field: "initial_context_length", offset: 40, value: 4096 },
            LayoutFinding::FloatInInteger { field: "sliding_window", offset: 52, value: 128 },
        ]
    );
    // Half a token is no window, and so no repair.
    assert!(matches!(
        read(f32_file(with_word(52, 128.5f32.to_le_bytes())), Layout::Auto),
        Err(CheckpointError::Header { offset: 52, .. })
    ));
}

#[test]
fn an_integer_theta_is_mended() {
    for layout in [Layout::Auto, Layout::Plain] {
        let checkpoint = read(f32_file(with_word(44, 150_000i32.to_le_bytes())), layout).unwrap();
        assert_eq!(checkpoint.config.number("rope_theta"), 150_000.0);
        assert_eq!(
            checkpoint.findings,
            [LayoutFinding::IntegerInFloat { field: "rope_theta", offset: 44, value: 150_000.0 }]
        );
    }
}

#[test]
fn swapped_embeddings_are_swapped_back() {
    let checkpoint = read(f32_file(HEADER), Layout::Swapped).unwrap();
    assert_eq!(f32s(&checkpoint, "unembedding.weight"), numbers(0..66));
    assert_eq!(f32s(&checkpoint, "embedding.weight"), numbers(66..132));
    assert_eq!(checkpoint.tensor("embedding.weight").name, "embedding.weight");
    assert_eq!(f32s(&checkpoint, "block.0.mlp.gate.weight"), numbers(822..840));
    assert_eq!(checkpoint.findings, [LayoutFinding::SwappedEmbeddings]);
}

/// `want[r][c]` is what the file, which holds (columns, rows) from element `first` on, has at `[c][r]`.
fn assert_turned(got: &[f32], first: usize, rows: usize, columns: usize) {
    for r in 0..rows {
        for c in 0..columns {
            assert_eq!(got[r * columns + c], (first + c * rows + r) as f32, "row {r} column {c}");
        }
    }
}

#[test]
fn the_forks_transposes_are_turned_back() {
    let fork = with_word(36, 131_072i32.to_le_bytes());
    for (header, layout, guessed) in
        [(fork, Layout::Auto, true), (HEADER, Layout::Fork, false), (fork, Layout::SwappedFork, false)]
    {
        let checkpoint = read(f32_file(header), layout).unwrap();
        assert!(checkpoint.findings.contains(&LayoutFinding::ForkTransposes { guessed }));
        for l in 0..2 {
            assert_turned(&f32s(&checkpoint, &format!("block.{l}.mlp.gate.weight")), 822 + 18 * l, 3, 6);
            let mlp2 = f32s(&checkpoint, &format!("block.{l}.mlp.mlp2_weight"));
            for e in 0..3 {
                assert_turned(&mlp2[30 * e..30 * (e + 1)], 1284 + 90 * l + 30 * e, 6, 5);
            }
            assert_eq!(
                f32s(&checkpoint, &format!("block.{l}.mlp.mlp1_weight")),
                numbers(864 + 180 * l..1044 + 180 * l)
            );
        }
    }
    let plain = read(f32_file(fork), Layout::Plain).unwrap();
    assert_eq!(f32s(&plain, "block.0.mlp.gate.weight"), numbers(822..840));
    assert_eq!(plain.findings, [LayoutFinding::ForkNotTransposed]);
    // bf16 is turned in steps of its own size.
    let bf16 = read(bf16_file(fork), Layout::Auto).unwrap();
    let gate: Vec<u16> = bf16
        .tensor("block.0.mlp.gate.weight")
        .read()
        .unwrap()
        .unwrap()
        .chunks(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect();
    assert_eq!(gate[..7], [822, 825, 828, 831, 834, 837, 823]);
}

#[test]
fn a_mapped_file_reads_as_its_bytes_do_and_errors_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    fs::write(&path, f32_file(HEADER)).unwrap();
    let opened = Checkpoint::open(&path, Layout::Auto).unwrap();
    let read = read(f32_file(HEADER), Layout::Auto).unwrap();
    assert_eq!(opened.config, read.config);
    for group in groups(&opened.config) {
        let name = group.name_in(1);
        assert_eq!(opened.tensor(&name).bytes(), read.tensor(&name).bytes(), "{name}");
    }
    fs::write(&path, b"").unwrap();
    let error = Checkpoint::open(&path, Layout::Auto).unwrap_err();
    assert_eq!(error.to_string(), format!("could not read checkpoint `{}`", path.display()));
    assert!(error.hint().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_header_panics(changes in prop::collection::vec((0usize..60, any::<u8>()), 0..6), cut in 0usize..7000) {
        let mut header = HEADER;
        for (offset, byte) in changes {
            header[offset] = byte;
        }
        for layout in [Layout::Auto, Layout::SwappedFork] {
            let mut file = f32_file(header);
            if let Ok(checkpoint) = read(file.clone(), layout) {
                prop_assert_eq!(checkpoint.tensors.values().map(|tensor| tensor.len()).sum::<usize>(), PARAMETERS);
            }
            file.truncate(cut);
            let _ = read(file, layout);
        }
    }
}

fn inspect(path: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gptoss-jit")).arg("inspect").arg(path).args(flags).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn inspect_shows_the_file_and_what_was_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    fs::write(&path, bf16_file(with_word(44, 150_000i32.to_le_bytes()))).unwrap();

    let (code, stdout, _) = inspect(&path, &[]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with(&format!("{}: 1,500 parameters, bf16, 3.1 kB\n", path.display())), "{stdout}");
    for row in [
        "hidden_size             hidden_dim                     6",
        "block.*.mlp.mlp2_weight      2  bf16   (3, 6, 5)      2,628  360 B",
        "found: `rope_theta` at offset 44 was written as an integer; read as 150000.0",
    ] {
        assert!(stdout.contains(row), "{row}\n{stdout}");
    }

    let (_, stdout, _) = inspect(&path, &["--json", "--all", "--layout", "fork"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["schema"], &report["parameters"]), (&1.into(), &1500.into()));
    assert_eq!(report["config"]["rope_theta"], 150_000.0);
    assert_eq!(report["findings"][0]["kind"], "integer_in_float");
    assert_eq!(report["tensors"].as_array().unwrap().len(), 29);
    // What is mended where it is used has the offset of what it is made of.
    assert_eq!(report["tensors"][17]["name"], "block.0.mlp.gate.weight".to_owned());
    assert_eq!(report["tensors"][17]["offset"], 60 + 2 * 822);
}

#[test]
fn inspect_refuses_a_damaged_file_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    let mut file = bf16_file(HEADER);
    file.truncate(2000);
    fs::write(&path, file).unwrap();
    let (code, stdout, stderr) = inspect(&path, &[]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("the file has 2000 bytes, 1060 too few for bf16"), "{stderr}");
    assert!(stderr.contains("hint: the file is cut short"), "{stderr}");
}

#[test]
fn inspect_says_what_gpt_oss_20b_is_and_what_it_reads_for_a_token() {
    let ran = run(&["inspect", "--shape", "gpt-oss-20b"]).ok();
    let first = "gpt-oss-20b: 20,914,757,184 parameters, bf16 and u8 and mxfp4, no file\n";
    assert!(ran.text().starts_with(first), "{}", ran.text());
    for row in [
        "block.*.mlp.mlp1_weight     24  mxfp4  (32, 5760, 2880)         -    6.4 GB",
        "363 tensors, 13.8 GB; a step for one token reads 3.7 GB of them",
    ] {
        assert!(ran.text().contains(row), "{row}\n{}", ran.text());
    }
    let report = run(&["inspect", "--shape", "gpt-oss-20b", "--json"]).ok().json();
    assert_eq!(
        (&report["tensor_bytes"], &report["bytes_per_token"]),
        (&13_761_264_768u64.into(), &3_708_089_088u64.into())
    );
}
