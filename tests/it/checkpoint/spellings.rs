//! The same model under other names: F8_E8M0 for scales, Ollama's tensors; and those that are refused by name.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use model::checkpoint::layout::Layout;
use model::checkpoint::{Checkpoint, Tensor};
use serde_json::{Value, json};

use super::hostile::gguf::{File, key, tensor, text};
use super::hostile::{copy_of, refused};
use super::kinds;
use crate::fixtures::program::file;

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path, Layout::Auto).unwrap_or_else(|error| panic!("{error:?}"))
}

fn bytes(tensor: &Tensor) -> Bytes {
    tensor.read().expect("memory").expect("in a file")
}

/// Rewrites what the header of a safetensors file says of its tensors.
fn respell(path: &Path, change: impl Fn(&str, &mut Value) -> Option<String>) {
    let whole = fs::read(path).expect("copied");
    let (length, rest) = whole.split_first_chunk().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let Value::Object(header) = serde_json::from_slice(header).expect("JSON") else { panic!("an object") };
    let renamed = header.into_iter().map(|(name, mut entry)| (change(&name, &mut entry).unwrap_or(name), entry));
    let header = Value::Object(renamed.collect()).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
    fs::write(path, file).expect("written");
}

#[test]
fn scales_of_mxfp4_may_be_called_exponents_and_codes_may_not() {
    for (kind, scales, codes) in [("hf-mxfp4", "_scales", "_blocks"), ("openai", ".scales", ".blocks")] {
        let called = |suffix: &'static str| {
            let folder = copy_of(kind);
            respell(&folder.path().join("model.safetensors"), |name, entry| {
                if name.ends_with(suffix) {
                    entry["dtype"] = json!("F8_E8M0");
                }
                None
            });
            folder
        };
        let (folder, expected) = (called(scales), open(&kinds::path(kind)));
        let found = open(folder.path());
        assert!(found.tensors.keys().eq(expected.tensors.keys()));
        for (found, expected) in found.tensors.values().zip(expected.tensors.values()) {
            assert_eq!((found.dtype, bytes(found)), (expected.dtype, bytes(expected)), "{}", found.name);
        }
        refused(called(codes).path(), "consists of F8_E8M0, expected U8");
    }
}

/// The fixture as Ollama's converter writes it, which has queries, keys and values in one tensor or in three.
fn of_ollama(whole: &Checkpoint, is_fused: bool, architecture: &str, mxfp4: u32) -> Vec<u8> {
    const U32: u32 = 4;
    const F32: u32 = 6;
    const STRING: u32 = 8;
    let config = &whole.config;
    let mut gguf = File::default().key(key("general.architecture", STRING, &text(architecture.as_bytes())));
    for (name, dim) in [
        ("context_length", "max_seq_len"),
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "experts_per_token"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("attention.sliding_window", "sliding_window"),
        ("rope.scaling.original_context_length", "initial_context_length"),
    ] {
        let value = (config.dim(dim) as u32).to_le_bytes();
        gguf = gguf.key(key(&format!("{architecture}.{name}"), U32, &value));
    }
    for (name, value) in
        [("attention.layer_norm_rms_epsilon", 1e-5_f32), ("rope.freq_base", 150_000.0), ("rope.scaling.factor", 32.0)]
    {
        gguf = gguf.key(key(&format!("{architecture}.{name}"), F32, &value.to_le_bytes()));
    }
    let mut data = Vec::new();
    let mut add = |gguf: File, name: &str, shape: &[usize], kind: u32, bytes: &[u8]| {
        let offset = data.len().next_multiple_of(32);
        data.resize(offset, 0);
        data.extend(bytes);
        let innermost_first: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        gguf.tensor(tensor(name, &innermost_first, kind, offset as u64))
    };
    const BF16: u32 = 30;
    for tensor in whole.tensors.values() {
        let (layer, own) = match tensor.name.strip_prefix("block.").and_then(|rest| rest.split_once('.')) {
            Some((layer, own)) => (format!("blk.{layer}."), own),
            None => (String::new(), tensor.name.as_str()),
        };
        let (bytes, shape) = (bytes(tensor), &tensor.shape[..]);
        let name = match own {
            "embedding.weight" => "token_embd.weight",
            "unembedding.weight" => "output.weight",
            "norm.scale" => "output_norm.weight",
            "attn.norm.scale" => "attn_norm.weight",
            "mlp.norm.scale" => "ffn_norm.weight",
            "attn.out.weight" => "attn_out.weight",
            "attn.out.bias" => "attn_out.bias",
            "attn.sinks" => "attn_sinks",
            "mlp.gate.weight" => "ffn_gate_inp.weight",
            "mlp.gate.bias" => "ffn_gate_inp.bias",
            "mlp.mlp1_bias" => "ffn_gate_up_exps.bias",
            "mlp.mlp2_bias" => "ffn_down_exps.bias",
            "attn.qkv.weight" | "attn.qkv.bias" => {
                let suffix = own.rsplit('.').next().expect("a suffix");
                let rows = [config.dim("num_attention_heads"), config.dim("num_key_value_heads")]
                    .map(|heads| heads * config.dim("head_dim"));
                let parts = [("attn_q", rows[0]), ("attn_k", rows[1]), ("attn_v", rows[1])];
                let parts = if is_fused { &[("attn_qkv", shape[0])][..] } else { &parts[..] };
                let (row_bytes, mut at) = (bytes.len() / shape[0], 0);
                for (part, rows) in parts {
                    let (name, shape) = (format!("{layer}{part}.{suffix}"), [&[*rows], &shape[1..]].concat());
                    gguf = add(gguf, &name, &shape, BF16, &bytes[at..at + rows * row_bytes]);
                    at += rows * row_bytes;
                }
                continue;
            }
            "mlp.mlp1_weight" | "mlp.mlp2_weight" => {
                let scales = self::bytes(whole.tensor(&tensor.name.replace("weight", "scale")));
                let blocks = scales.iter().zip(bytes.as_chunks::<16>().0);
                let blocks: Vec<u8> = blocks.flat_map(|(&scale, codes)| [&[scale][..], codes].concat()).collect();
                let name = if own.starts_with("mlp.mlp1") { "ffn_gate_up_exps" } else { "ffn_down_exps" };
                gguf = add(gguf, &format!("{layer}{name}.weight"), shape, mxfp4, &blocks);
                continue;
            }
            "mlp.mlp1_scale" | "mlp.mlp2_scale" => continue,
            other => panic!("{other}"),
        };
        gguf = add(gguf, &format!("{layer}{name}"), shape, BF16, &bytes);
    }
    gguf.with_data(data).bytes()
}

#[test]
fn ollamas_tensors_are_those_of_the_model() {
    let (expected, folder) = (open(&kinds::path("openai")), tempfile::tempdir().expect("a temporary folder"));
    for is_fused in [true, false] {
        let found = open(Path::new(&file(folder.path(), "a.gguf", &of_ollama(&expected, is_fused, "gptoss", 4))));
        assert_eq!(found.config, expected.config);
        assert!(found.tensors.keys().eq(expected.tensors.keys()));
        for (found, expected) in found.tensors.values().zip(expected.tensors.values()) {
            assert_eq!((found.dtype, &found.shape), (expected.dtype, &expected.shape), "{}", found.name);
            assert_eq!(bytes(found), bytes(expected), "{}", found.name);
        }
    }
    // Elsewhere the number is nobody's.
    let path = file(folder.path(), "b.gguf", &of_ollama(&expected, false, "gpt-oss", 4));
    refused(Path::new(&path), "has elements of type 4, which is not known");
}

#[test]
fn what_others_quantised_is_refused_by_its_name() {
    for (method, name) in [("awq", "AWQ"), ("gptq", "GPTQ"), ("bitsandbytes", "bitsandbytes")] {
        let folder = copy_of("hf-bf16");
        let path = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("copied")).expect("JSON");
        config["quantization_config"] = json!({"quant_method": method, "bits": 4});
        fs::write(&path, config.to_string()).expect("written");
        refused(folder.path(), &format!("could not read weights that {name} quantised, as"));
        refused(folder.path(), "hint: use the model's BF16 or F16 files");
    }
    for (suffix, name) in [(".qzeros", "AWQ"), (".g_idx", "GPTQ"), (".weight.absmax", "bitsandbytes")] {
        let folder = copy_of("hf-bf16");
        respell(&folder.path().join("model.safetensors"), |name, _| {
            (name == "model.layers.1.self_attn.o_proj.bias").then(|| format!("model.layers.1.self_attn.o_proj{suffix}"))
        });
        let expected = format!("{name} quantised, as a tensor `model.layers.1.self_attn.o_proj{suffix}` shows");
        refused(folder.path(), &expected);
    }
}
