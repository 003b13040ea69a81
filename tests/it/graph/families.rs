//! A family that is a file and nothing else: a gpt-oss with other names, without sinks, with a window on every third
//! layer. Its logits are those of the plain loops below, which know nothing of ops, graphs or kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::placement::EmbeddingPlace;
use engine::{Engine, EngineOptions};
use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use kernel::pipeline::Pipeline;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::Library;
use kernel::tuning::TuningTables;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::{Checkpoint, Elements};
use model::config::ModelConfig;
use model::family::Family;

use crate::fixtures::program::{file, repository, run};
use crate::workbench::kernels::store;

/// The file of gpt-oss, changed.
fn text() -> String {
    let mut text = std::fs::read_to_string(repository().join("models/gpt-oss.toml")).expect("it is there");
    let sinks = text.find("[[tensor]]\nname  = \"attn.sinks\"").expect("it has sinks");
    let end = text[sinks..].find("\n\n").expect("another follows") + sinks + 2;
    text.replace_range(sinks..end, "");
    for (from, to) in [
        ("\"gpt-oss\"", "\"other\""),
        ("\"gpt_oss\"", "\"other\""),
        ("sinks = attn.sinks, ", ""),
        ("layer % 2", "layer % 3"),
        ("attn.qkv", "self.heads"),
        ("attn.out", "self.mix"),
        ("mlp.gate", "experts.router"),
        ("mlp.mlp1", "experts.first"),
        ("mlp.mlp2", "experts.second"),
        ("[shapes.gpt-oss", "[shapes.other"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

const VOCAB: usize = 96;
const HIDDEN: usize = 64;
const EXPERTS: usize = 5;
const CHOSEN: usize = 2;
const FEATURES: usize = 40;
const LAYERS: usize = 4;
const HEAD: usize = 16;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const WINDOW: usize = 7;

fn config(family: &'static Family) -> ModelConfig {
    let dims: [(&str, usize); 12] = [
        ("vocab_size", VOCAB),
        ("hidden_size", HIDDEN),
        ("num_experts", EXPERTS),
        ("experts_per_token", CHOSEN),
        ("intermediate_size", FEATURES),
        ("num_hidden_layers", LAYERS),
        ("head_dim", HEAD),
        ("num_attention_heads", HEADS),
        ("num_key_value_heads", KV_HEADS),
        ("max_seq_len", 256),
        ("initial_context_length", 4096),
        ("sliding_window", WINDOW),
    ];
    let numbers = [("rope_theta", 10_000.0), ("rope_scaling_factor", 1.0), ("swiglu_limit", 7.0)];
    let values: Vec<(&str, f64)> = dims.iter().map(|&(name, n)| (name, n as f64)).chain(numbers).collect();
    ModelConfig::with_values(family, &values)
}

/// All tensors as numbers.
struct Numbers(BTreeMap<String, Vec<f64>>);

impl Numbers {
    fn of(checkpoint: &Checkpoint) -> Self {
        let values = |tensor: &model::checkpoint::Tensor| {
            let Elements::Random(random) = &tensor.elements else { panic!("{} is not random", tensor.name) };
            let mut bytes = vec![0; tensor.len_bytes()];
            random.write(tensor.dtype, 0, &mut bytes);
            let floats = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four")));
            floats.map(f64::from).collect()
        };
        Self(checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), values(tensor))).collect())
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.0[name]
    }

    fn layer(&self, l: usize, name: &str) -> &[f64] {
        self.get(&format!("block.{l}.{name}"))
    }
}

fn rmsnorm(x: &[f64], scale: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(scale).map(|(v, s)| v / (mean + 1e-5).sqrt() * s).collect()
}

/// weight x + bias
fn linear(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(w, v)| w * v).sum::<f64>();
    weight.chunks_exact(x.len()).zip(bias).map(|(row, b)| dot(row) + b).collect()
}

fn rotated(head: &[f64], position: usize) -> Vec<f64> {
    let half = HEAD / 2;
    let mut turned = vec![0.0; HEAD];
    for i in 0..half {
        let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / HEAD as f64);
        let (sin, cos) = angle.sin_cos();
        turned[i] = head[i] * cos - head[i + half] * sin;
        turned[i + half] = head[i + half] * cos + head[i] * sin;
    }
    turned
}

/// Logits after every token.
fn reference(numbers: &Numbers, ids: &[u32]) -> Vec<f64> {
    let mut keys: Vec<Vec<Vec<f64>>> = vec![Vec::new(); LAYERS];
    let mut values = keys.clone();
    let mut logits = Vec::new();
    for (position, &id) in ids.iter().enumerate() {
        let mut x = numbers.get("embedding.weight")[id as usize * HIDDEN..][..HIDDEN].to_vec();
        for l in 0..LAYERS {
            let of = |name: &str| numbers.layer(l, name);
            let a = rmsnorm(&x, of("attn.norm.scale"));
            let qkv = linear(&a, of("self.heads.weight"), of("self.heads.bias"));
            let heads: Vec<&[f64]> = qkv.chunks_exact(HEAD).collect();
            keys[l].push((0..KV_HEADS).flat_map(|g| rotated(heads[HEADS + g], position)).collect());
            values[l].push((0..KV_HEADS).flat_map(|g| heads[HEADS + KV_HEADS + g].to_vec()).collect());
            let first = if l % 3 == 0 { (position + 1).saturating_sub(WINDOW) } else { 0 };
            let mut mixed = Vec::new();
            for (h, head) in heads[..HEADS].iter().enumerate() {
                let (q, g) = (rotated(head, position), h / (HEADS / KV_HEADS) * HEAD);
                let score = |p: usize| q.iter().zip(&keys[l][p][g..]).map(|(q, k)| q * k).sum::<f64>() / 4.0;
                let scores: Vec<f64> = (first..=position).map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                let channel = |d: usize| {
                    let seen = weights.iter().zip(first..).map(|(w, p)| w * values[l][p][g + d]);
                    seen.sum::<f64>() / total
                };
                mixed.extend((0..HEAD).map(channel));
            }
            let out = linear(&mixed, of("self.mix.weight"), of("self.mix.bias"));
            x.iter_mut().zip(out).for_each(|(x, y)| *x += y);

            let a = rmsnorm(&x, of("mlp.norm.scale"));
            let route = linear(&a, of("experts.router.weight"), of("experts.router.bias"));
            let mut order: Vec<usize> = (0..EXPERTS).collect();
            order.sort_by(|&a, &b| route[b].total_cmp(&route[a]));
            let chosen = &order[..CHOSEN];
            let total: f64 = chosen.iter().map(|&e| (route[e] - route[order[0]]).exp()).sum();
            for &e in chosen {
                let own = |name: &str, n: usize| &of(name)[e * n..][..n];
                let (first, bias) =
                    (own("experts.first_weight", 2 * FEATURES * HIDDEN), own("experts.first_bias", 2 * FEATURES));
                let h = linear(&a, first, bias);
                let pair = |pair: &[f64]| {
                    let (gate, up) = (pair[0].min(7.0), pair[1].clamp(-7.0, 7.0));
                    gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
                };
                let h: Vec<f64> = h.chunks_exact(2).map(pair).collect();
                let y = linear(&h, own("experts.second_weight", HIDDEN * FEATURES), own("experts.second_bias", HIDDEN));
                let weight = (route[e] - route[order[0]]).exp() / total;
                x.iter_mut().zip(y).for_each(|(x, y)| *x += weight * y);
            }
        }
        let last = rmsnorm(&x, numbers.get("norm.scale"));
        logits.extend(linear(&last, numbers.get("unembedding.weight"), &[0.0; VOCAB]));
    }
    logits
}

pub fn logits(checkpoint: &Checkpoint, target: Target, driver: Arc<dyn Driver>, ids: &[u32]) -> Vec<f32> {
    let library = Library::load(&[]).expect("the built-in templates");
    let tables = TuningTables::load(&[]).expect("the built-in tables");
    let pipeline = Pipeline::new(library, tables, target, store(), driver).expect("tables that are right");
    let model = ModelOptions {
        precision: Precision::F32,
        kv_dtype: Dtype::F32,
        n_slots: 1,
        capacity_tokens: 64,
        max_rows: 8,
        max_logit_rows: 8,
        odd_window: None,
        kv_budget_bytes: 1 << 30,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::Device,
    };
    let options = EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None };
    Engine::load(checkpoint, options, &()).expect("loads").teacher_force(ids, None).expect("runs")
}

#[test]
fn a_family_that_is_a_file_alone_computes_what_its_layer_says() {
    let family = Box::leak(Box::new(Family::read("other.toml", &text()).expect("it is right")));
    let checkpoint = Checkpoint::random(config(family), Encoding::F32, 7).expect("a model");
    let numbers = Numbers::of(&checkpoint);
    let ids: Vec<u32> = (0..30).map(|i| i * 37 % VOCAB as u32).collect();
    let expected = reference(&numbers, &ids);
    let host = HostDriver::new(1).expect("threads");
    let mut devices: Vec<(Target, Arc<dyn Driver>)> = vec![(Target::host(), Arc::new(host))];
    for arch in ["gfx1100", "gfx942"] {
        let target = Target::gpu(arch).expect(arch).simulated();
        let driver = SimDriver::new(arch, target.wave_size, 2).expect("threads");
        devices.push((target, Arc::new(driver)));
    }
    for (target, driver) in devices {
        let name = target.arch.clone();
        let found = logits(&checkpoint, target, driver, &ids);
        assert_eq!(found.len(), expected.len());
        let most = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        // Logits of size 1 after four layers of sums of at most 96 products, which f32 rounds once or twice.
        assert!(most < 2e-5, "{name}: {most}");
    }
}

#[test]
fn the_program_takes_such_a_file_and_says_what_is_wrong_with_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = file(folder.path(), "other.toml", text().as_bytes());
    let listed = run(&["models", "ls", "--model-def", &right]).ok();
    assert!(
        listed.text().lines().any(|line| line.starts_with("other") && line.contains("other-20b")),
        "{}",
        listed.text()
    );
    let shown = run(&["models", "show", "other", "--model-def", &right]).ok();
    assert!(shown.text().contains("self.heads.weight") && !shown.text().contains("sinks"), "{}", shown.text());

    let line_of = |part: &str| text().lines().position(|line| line.contains(part)).expect(part) + 1;
    for (from, to, at, message) in [
        (
            "h     = moe_mlp1(a",
            "h     = moe_mlp(a",
            "moe_mlp1",
            "`moe_mlp`: expected an op, which has a contract `templates/<op>/op.toml`, such as `moe_mlp",
        ),
        (
            "linear(mixed, self.mix) + x",
            "linear(mixed, self.mix) + y",
            "self.mix) + x",
            "`y`: expected a tensor of a layer",
        ),
        (
            "linear(mixed, self.mix)",
            "linear(mixed, self.mixer)",
            "self.mix) + x",
            "`self.mixer`: expected a tensor of a layer",
        ),
        (
            "eps = 1e-5)\nqkv",
            "epsilon = 1e-5)\nqkv",
            "attn.norm, eps",
            "`rmsnorm`: expected one of its dims, constants",
        ),
        (
            "rmsnorm(x, attn.norm, eps = 1e-5)",
            "rmsnorm(x, attn.norm)",
            "attn.norm, eps",
            "`rmsnorm`: expected a number for `eps`",
        ),
        (
            "qkv   = linear(a, self.heads)",
            "qkv   = linear(self.heads)",
            "qkv   =",
            "`linear`: expected an argument for `x`",
        ),
        ("rope_kv(qkv) ", "rope_kv(a) ", "rope_kv(qkv)", "`rope_kv`: expected `qkv` of shape"),
        (
            "qkv   = linear(a, self.heads)",
            "qkv   = linear(x, self.heads)",
            "qkv   =",
            "`linear`: expected `x` of bf16, which `narrow` makes of f32, found f32",
        ),
        (
            "mixed = attention(qkv, ",
            "mixed, more = attention(qkv, ",
            "mixed = attention",
            "`attention`: expected 1, as many as the op gives",
        ),
        (
            "expert, route_weight = moe_route(",
            "expert = moe_route(",
            "moe_route",
            "`moe_route`: expected 2, as many as the op gives",
        ),
        (
            "moe_mlp2(h, experts.second)",
            "moe_mlp2(h, experts.second",
            "experts.second) + x",
            "expected `)` for every `(`",
        ),
        (
            "swiglu_offset = 1.0)",
            "swiglu_offset = 1.0)\nb     = rmsnorm(x, mlp.norm, eps = 1e-5)",
            "moe_mlp1(a",
            "`b`: expected a statement behind it that uses it",
        ),
        (
            "x     = moe_mlp2(h, experts.second) + x",
            "y     = rmsnorm(x, mlp.norm, eps = 1e-5)",
            "layer = \"\"\"",
            "expected a statement that uses the tensor `experts.second",
        ),
        (
            "sliding_window if layer % 3 == 0 else 0",
            "5 // layer",
            "mixed = attention",
            "could not evaluate `5 // layer`",
        ),
        ("rope_kv(qkv) ", "", "mixed = attention", "`attention`: expected one `rope_kv` in a layer, and after it"),
        (
            "name  = \"self.heads.weight\"",
            "when = \"layer % 2\"\nname  = \"self.heads.weight\"",
            "name  = \"self.heads.weight\"",
            "could not evaluate `layer % 2`: it is 0, expected true or false",
        ),
        (
            "stack = [\"num_attention_heads * head_dim\"",
            "stack = [\"num_attention_heads\"",
            "stack = [",
            "`self.heads.weight`: expected pieces of 5120 rows together, as `shape` has, found 1088",
        ),
        ("cut   = \"head rows\"", "cut   = \"heads\"", "cut   = \"head rows\"", "unknown variant `heads`"),
    ] {
        assert!(text().contains(from), "{from}");
        let wrong = file(folder.path(), "wrong.toml", text().replacen(from, to, 1).as_bytes());
        let error = run(&["models", "check", &wrong]).fails_with_hint(1);
        assert!(error.contains(message), "{message}: {error}");
        let line = line_of(at) + usize::from(message.starts_with("`b`") || at.starts_with("layer"));
        assert!(error.contains(&format!("wrong.toml:{line}: ")), "{line}: {error}");
    }
}
