//! Models of other families than gpt-oss (`tests/fixtures/families`): logits and tokens are those of transformers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu::Driver;
use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use super::hostile::gguf::{File, array, key, tensor, text};
use super::hostile::refused;
use crate::fixtures::program::{argument, file, parse_ids, repository, run};
use crate::graph::forward::{MIXED, drain, greedy, load_on_all};

/// The folders, what is a model in each (the folder itself, or a file of it), and what computes it here. Families with
/// ops of their own meet waves of 32 or of 64.
const MODELS: [(&str, &str, &str); 22] = [
    ("qwen2", ".", "cpu"),
    ("qwen2", "model.gguf", "cpu"),
    ("qwen2-window", ".", "cpu"),
    ("llama3", ".", "cpu"),
    ("llama3", "model.gguf", "cpu"),
    ("mistral", ".", "cpu"),
    ("qwen3", ".", "cpu"),
    ("qwen3", "model.gguf", "cpu"),
    ("qwen3-moe", ".", "cpu"),
    ("qwen3-moe", "model.gguf", "cpu"),
    ("qwen3-moe-dense", ".", "cpu"),
    ("glm4", ".", "sim:gfx1100"),
    ("glm4", "model.gguf", "cpu"),
    ("glm4", "q8_0.gguf", "cpu"),
    ("glm", ".", "cpu"),
    ("glm", "model.gguf", "cpu"),
    ("olmo2", "model.gguf", "cpu"),
    ("olmo2", ".", "sim:gfx942"),
    ("olmo2", "q8_0.gguf", "cpu"),
    ("gemma3", ".", "sim:gfx942"),
    ("gemma3-gguf", "model.gguf", "cpu"),
    ("gemma3-gguf", "q8_0.gguf", "cpu"),
];

fn path(folder: &str, name: &str) -> PathBuf {
    repository().join("tests/fixtures/families").join(folder).join(name)
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path, Layout::Auto).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

#[test]
fn logits_of_every_family_are_those_of_transformers() {
    for (folder, model, device) in MODELS {
        let logits = if model == "q8_0.gguf" { "q8_0.npy" } else { "logits.npy" };
        let [model, ids, logits] = [model, "ids.txt", logits].map(|name| argument(&path(folder, name)));
        let args = ["logits", &model, "--ids", &ids, "--expect", &logits, "--device", device];
        // A matrix of a GPU has a kernel for each of several numbers of rows, which the family does not change: the
        // simulated ones compile those for few rows.
        let chunk: &[&str] = if device == "cpu" { &[] } else { &["--chunk", "4"] };
        run(&[&args[..], &["--precision", "f32", "--rtol", "0", "--atol", "2e-4"], chunk].concat()).ok();
    }
}

/// Three sequences at a time, five rows in a step: windows go round, and positions of several are in one step.
#[test]
fn greedy_tokens_of_every_family_are_those_of_transformers() {
    for (folder, model, _) in MODELS.into_iter().filter(|(_, model, _)| *model == ".") {
        let lines = |name| parse_ids(&fs::read_to_string(path(folder, name)).expect("a fixture"));
        // Norms behind a sum are done by each of two devices that sum; heads that are normalised together are one's.
        let n_devices = if ["glm4", "glm", "gemma3"].contains(&folder) { 2 } else { 1 };
        let driver = || Arc::new(HostDriver::new(MIXED.threads).expect("threads")) as Arc<dyn Driver>;
        let drivers = (0..n_devices).map(|_| driver()).collect();
        let mut engine = load_on_all(drivers, &open(&path(folder, model)), 128, MIXED).expect("loads");
        let answers = lines("greedy.txt");
        let submit =
            |(prompt, answer): (&Vec<u32>, &Vec<u32>)| engine.submit(greedy(prompt, answer.len(), &[])).expect("fits");
        let requests: Vec<_> = lines("ids.txt").iter().zip(&answers).map(submit).collect();
        let finished = drain(&mut engine);
        for (request, answer) in requests.iter().zip(&answers) {
            assert_eq!(&finished[request].0, answer, "{folder}");
        }
    }
}

/// A family that the program does not know: a file, and a checkpoint.
#[test]
fn a_family_is_added_by_its_file_alone() {
    for (folder, model_type) in [("olmo2", "olmo2"), ("gemma3", "gemma3_text")] {
        let own = tempfile::tempdir().expect("a folder");
        let text = fs::read_to_string(repository().join(format!("models/{folder}.toml"))).expect("a family");
        let text = text.replacen(&format!("\"{folder}\""), "\"mine\"", 1);
        let text = text.replacen(&format!("model_type   = \"{model_type}\""), "model_type   = \"mine\"", 1);
        let text = text.replace("[shapes.\"", "[shapes.\"of-");
        let family = file(own.path(), "mine.toml", text.as_bytes());
        let config = fs::read_to_string(path(folder, "config.json")).expect("a fixture");
        file(own.path(), "config.json", config.replace(model_type, "mine").as_bytes());
        fs::copy(path(folder, "model.safetensors"), own.path().join("model.safetensors")).expect("copied");
        let model = argument(own.path());
        let [ids, logits] = ["ids.txt", "logits.npy"].map(|name| argument(&path(folder, name)));
        let args = ["logits", &model, "--ids", &ids, "--expect", &logits, "--device", "cpu", "--precision", "f32"];
        let args = [&args[..], &["--rtol", "0", "--atol", "2e-4"]].concat();
        assert!(run(&args).fails_with_hint(1).contains("`model_type` is \"mine\""));
        run(&[&args[..], &["--model-def", &family]].concat()).ok();
    }
}

#[test]
fn heads_that_are_normalised_together_are_for_one_device() {
    let [model, ids] = [".", "ids.txt"].map(|name| argument(&path("olmo2", name)));
    let args = ["logits", &model, "--ids", &ids, "--trace", "--device", "cpu", "--tp", "2"];
    let error = run(&args).fails_with_hint(1);
    let told = "`attn.heads.q_scale` of the family `olmo2` is of all heads together, which no device has";
    assert!(error.contains(told), "{error}");
}

#[test]
fn gguf_files_that_would_be_computed_otherwise_are_refused_by_a_key() {
    const U32: u32 = 4;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refuses = |architecture: &str, more: Vec<u8>, message: &str| {
        let mut gguf = File::default().key(key("general.architecture", 8, &text(architecture.as_bytes())));
        for (name, value) in [
            ("vocab_size", 101_u32),
            ("context_length", 64),
            ("block_count", 1),
            ("embedding_length", 32),
            ("feed_forward_length", 32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 16),
        ] {
            gguf = gguf.key(key(&format!("{architecture}.{name}"), U32, &value.to_le_bytes()));
        }
        let path = PathBuf::from(file(folder.path(), "model.gguf", &gguf.key(more).bytes()));
        refused(&path, message);
    };
    let number = |name: &str, value: u32| key(name, U32, &value.to_le_bytes());
    // GLM-4V, whose heads rotate by halves; a rotation of all of a head.
    let sections = array("glm4.rope.dimension_sections", U32, 1, &[8, 0, 0, 0]);
    refuses("glm4", sections, "`glm4.rope.dimension_sections` is ");
    refuses(
        "chatglm",
        number("chatglm.rope.dimension_count", 16),
        "`chatglm.rope.dimension_count` is 16.0, expected 8",
    );
    // OLMo 3, and Gemma 2's caps.
    refuses(
        "olmo2",
        number("olmo2.attention.sliding_window", 4096),
        "`olmo2.attention.sliding_window` is 4096.0, expected 0",
    );
    let cap = key("gemma3.final_logit_softcapping", 6, &30_f32.to_le_bytes());
    refuses("gemma3", cap, "`gemma3.final_logit_softcapping` is 30.0, expected 0");
}

/// A Llama of one layer and of zeros, with these keys more and, if there are any, these divisors of its two pairs.
fn llama(keys: &[(&str, u32, &[u8])], divisors: Option<[f32; 2]>) -> Vec<u8> {
    const U32: u32 = 4;
    const F32: u32 = 6;
    const STRING: u32 = 8;
    let mut gguf = File::default().key(key("general.architecture", STRING, &text(b"llama")));
    for (name, value) in [
        ("context_length", 64_u32),
        ("block_count", 1),
        ("embedding_length", 4),
        ("feed_forward_length", 4),
        ("attention.head_count", 1),
    ] {
        gguf = gguf.key(key(&format!("llama.{name}"), U32, &value.to_le_bytes()));
    }
    for (name, kind, value) in
        [("attention.layer_norm_rms_epsilon", F32, &1e-5_f32.to_le_bytes()[..])].iter().chain(keys)
    {
        gguf = gguf.key(key(&format!("llama.{name}"), *kind, value));
    }
    let mut data = Vec::new();
    let vectors = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"].map(|name| (name, &[4_u64][..]));
    let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let matrices = matrices.map(|name| (format!("blk.0.{name}"), &[4_u64, 4][..]));
    let all = vectors.map(|(name, shape)| (name.to_owned(), shape)).into_iter().chain(matrices);
    for (name, shape) in all.chain([("token_embd".to_owned(), &[4, 4][..])]) {
        gguf = gguf.tensor(tensor(&format!("{name}.weight"), shape, 0, data.len() as u64));
        let size: u64 = shape.iter().product::<u64>() * 4;
        data.resize(data.len() + size.next_multiple_of(32) as usize, 0);
    }
    if let Some(divisors) = divisors {
        gguf = gguf.tensor(tensor("rope_freqs.weight", &[2], 0, data.len() as u64));
        data.extend(divisors.map(f32::to_le_bytes).concat());
    }
    gguf.with_data(data).bytes()
}

#[test]
fn gguf_says_how_positions_are_stretched_by_keys_or_by_a_tensor() {
    const F32: u32 = 6;
    const STRING: u32 = 8;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let written = |bytes: &[u8]| PathBuf::from(file(folder.path(), "model.gguf", bytes));
    let angles = |keys: &[(&str, u32, &[u8])], divisors| {
        open(&written(&llama(keys, divisors))).config.rotations()[0].inv_freq.clone()
    };
    let plain = [1.0, 0.01]; // 10000^(-2 / 4)
    let four = 4_f32.to_le_bytes();
    let [linear, none, yarn] = [&b"linear"[..], b"none", b"yarn"].map(text);
    assert_eq!(angles(&[], None), plain);
    // llama.cpp takes a factor for linear where no type is named, and one of 0 for none.
    assert_eq!(angles(&[("rope.scaling.factor", F32, &four)], None), [0.25, 0.0025]);
    assert_eq!(
        angles(&[("rope.scaling.type", STRING, &linear), ("rope.scale_linear", F32, &four)], None),
        [0.25, 0.0025]
    );
    assert_eq!(angles(&[("rope.scaling.type", STRING, &none), ("rope.scaling.factor", F32, &four)], None), plain);
    assert_eq!(angles(&[("rope.scaling.factor", F32, &[0; 4])], None), plain);
    assert_eq!(angles(&[], Some([1.0, 8.0])), [1.0, 0.00125]);
    assert_eq!(angles(&[("rope.scaling.factor", F32, &four)], Some([1.0, 2.0])), [0.25, 0.00125]);
    refused(&written(&llama(&[("rope.scaling.type", STRING, &yarn)], None)), "is `yarn`, expected linear or none");
    refused(
        &written(&llama(&[], Some([1.0, 0.0]))),
        "`rope_freqs.weight` consists of F32 of which some is not, expected F32 above 0",
    );
}
