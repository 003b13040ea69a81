//! What orders a token's blocks in `templates/lib`: each fence, barrier and atomic is taken out in turn, and the
//! simulator sees it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gptoss_jit::object::cache::{Cache, Limits};
use gptoss_jit::object::compile::CompilerOptions;
use gptoss_jit::object::store::Store;
use gptoss_jit::target::Target;
use gptoss_jit::template::library::{Layer, Library};
use gptoss_jit::workbench::check::{Checker, Runner, Selection};
use gpu::sim::SimDriver;
use tempfile::TempDir;

use crate::fixtures::program::{file, repository, shared_cache};
use crate::fixtures::say;

/// Two blocks a row leave half of it each; the last copies what both left.
const LAST_BLOCK: &str = r#"{#
op = "embedding"
summary = "two blocks a row"
[requires]
precision = ["f32"]
dtypes = { table = ["f32"] }
[launch]
grid = ["n_tokens", "2"]
block_size = "64"
[[workspace]]
name = "left"
shape = ["n_tokens", "hidden_size"]
dtype = "f32"
[[workspace]]
name = "arrived"
shape = ["n_tokens"]
dtype = "u32"
zeroed = true
#}
{% include "lib/hip/last_block.hip.j2" %}

{{ signature }} {
  const u32 t = blockIdx.x, own = threadIdx.x;
  const size_t at = (size_t)t * {{ hidden_size }};
  const f32* from = table + (size_t)row[t] * {{ hidden_size }};
  for (u32 i = 2 * own + blockIdx.y; i < {{ hidden_size }}; i += 128) left[at + i] = from[i];
  if (!is_last_block(&arrived[t], 2)) return;
  for (u32 i = own; i < {{ hidden_size }}; i += 64) y[at + i] = left[at + i];
}
"#;

/// Two experts of each token, of which the first gives the row and the second nothing.
const SLOTS: &str = r#"{#
op = "embedding"
summary = "two experts a token"
[requires]
precision = ["f32"]
dtypes = { table = ["f32"] }
[launch]
grid = ["n_tokens", "2"]
block_size = "64"
[[workspace]]
name = "given"
shape = ["2 * n_tokens", "hidden_size"]
dtype = "f32"
[[workspace]]
name = "before"
shape = ["n_tokens", "hidden_size"]
dtype = "f32"
[[workspace]]
name = "share"
shape = ["2 * n_tokens"]
dtype = "f32"
[[workspace]]
name = "assignment"
shape = ["2 * n_tokens"]
dtype = "u32"
[[workspace]]
name = "arrived"
shape = ["n_tokens"]
dtype = "u32"
zeroed = true
#}
{% include "lib/hip/types.hip.j2" %}

enum { N = {{ hidden_size }}, SLOTS = 2, TILE_T = 2, TILE_N = (N + 3) / 4 * 4, THREADS = 64, N_EXPERTS = 2 };
{% include "lib/moe/slots.hip.j2" %}

{{ signature }} {
  const u32 k = blockIdx.y, first = 2 * blockIdx.x, end = min_u32(first + 2, n_tokens), own = threadIdx.x;
  if (first >= n_tokens) return;
  for (u32 t = first; t < end; ++t) {
    const u32 a = 2 * t + k;
    if (own == 0) assignment[k * n_tokens + t] = a;
    if (own == 0) share[a] = 1.0f;
    for (u32 i = own; i < N; i += THREADS) {
      given[(size_t)a * N + i] = k == 0 ? table[(size_t)row[t] * N + i] : 0.0f;
      if (k == 0) before[(size_t)t * N + i] = 0.0f;
    }
  }
  const ExpertTile tile = { k, k * n_tokens + first, k * n_tokens + end };
  add_slots(tile, assignment, 0, given, arrived, share, before, y);
}
"#;

/// What templates are tried on.
const ARCHS: [&str; 3] = ["gfx1100", "gfx942", "sm_90"];

/// What `kernels check` finds wrong with a template of the library and of this folder, on its first shape, with its
/// default parameters or with all.
fn failures_in(folder: &Path, arch: &str, op: &str, variant: &str, all_params: bool) -> Vec<String> {
    let library = Library::from_layers(vec![Layer::read(folder).expect("read"), Layer::built_in()]);
    let target = Target::gpu(arch).expect("known").simulated();
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    let store = Store::new(Cache::open(shared_cache(), Limits::default()), compilers);
    let driver = SimDriver::new(arch, target.wave_size, 1).expect("threads");
    let driver = driver.with_lds([target.lds_bytes, target.lds_bytes_at_launch()]);
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let (op, variant) = (Some(op.into()), Some(variant.into()));
    let selection = Selection { op, variant, all_params, first_shape: true, ..Selection::default() };
    let checked = checker.check(&selection, &mut |_| {});
    assert!(!checked.is_empty() && checked.iter().all(|checked| checked.n_cases > 0), "{checked:?}");
    checked.iter().flat_map(|checked| checked.failures.iter().map(ToString::to_string)).collect()
}

/// The same of this template, where a file of the library is that text.
fn failures(template: &str, name: &str, text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let _ = file(folder.path(), "embedding/own.hip.j2", template.as_bytes());
    let _ = file(folder.path(), name, text.as_bytes());
    failures_in(folder.path(), "gfx1100", "embedding", "own", false)
}

/// The texts with one of these left out or made plain, each with what it was; `from` is where to begin.
fn mutants(text: &str, from: &str) -> Vec<(String, String)> {
    let begin = text.find(from).expect(from);
    let plain = [
        ("__threadfence();", ""),
        ("__syncthreads();", ""),
        ("atomicAdd(", "plain_add("),
        ("atomicExch(", "plain_exchange("),
        ("__syncwarp();", ""),
    ];
    let plainly = |name: &str, then: &str| {
        let body = format!("{{ const T was = *at; *at = {then}; return was; }}");
        format!("\ntemplate <class T> __device__ inline T {name}(T* at, T v) {body}\n")
    };
    let words = plainly("plain_add", "was + v") + &plainly("plain_exchange", "v");
    let head = text.find("#}").expect("its header") + 2;
    let mut mutants = Vec::new();
    for (word, instead) in plain {
        for (at, _) in text.match_indices(word).filter(|(at, _)| *at > begin) {
            let line = text[..at].lines().count();
            let mutant = format!("{}{words}{}{instead}{}", &text[..head], &text[head..at], &text[at + word.len()..]);
            mutants.push((format!("line {line}: {word}"), mutant));
        }
    }
    mutants
}

fn none_can_be_spared(template: &str, name: &str, from: &str, n_expected: usize) {
    let text = fs::read_to_string(repository().join("templates").join(name)).expect(name);
    assert_eq!(failures(template, name, &text), Vec::<String>::new(), "{name} as it is");
    let mutants = mutants(&text, from);
    assert_eq!(mutants.len(), n_expected, "{name}");
    for (what, mutant) in mutants {
        let failures = failures(template, name, &mutant);
        let told = |words: &str| failures.iter().any(|failure| failure.contains(words));
        assert!(told("races with thread") || told("which nobody wrote before"), "{name} without {what}: {failures:?}");
    }
}

#[test]
fn nothing_that_orders_the_last_block_can_be_spared() {
    none_can_be_spared(LAST_BLOCK, "lib/hip/last_block.hip.j2", "#else", 6);
}

#[test]
fn nothing_that_orders_the_slots_of_a_token_can_be_spared() {
    none_can_be_spared(SLOTS, "lib/moe/slots.hip.j2", "n_complete = 0;", 7);
}

/// The files below `templates`, by name, that GPUs' kernels are made of.
fn texts(folder: &Path, below: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("listed").flatten() {
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            texts(&entry.path(), &format!("{name}/"), found);
        } else if name.ends_with(".hip.j2") && name != "lib/hip/simulator.hip.j2" {
            found.insert(name, fs::read_to_string(entry.path()).expect("text"));
        }
    }
}

/// Whether a file is another one or includes it.
fn includes(texts: &BTreeMap<String, String>, file: &str, other: &str) -> bool {
    let directly = |name: &&String| texts[file].contains(&format!("{{% include \"{name}\" %}}"));
    file == other || texts.keys().filter(directly).any(|name| includes(texts, name, other))
}

/// By hand: `GPTOSS_JIT_SPARE=lib/moe cargo test what_in_templates -- --ignored --nocapture`. It prints what can be
/// spared; docs/ordering.md has the list with reasons.
#[test]
#[ignore = "hours: every fence, barrier and atomic of all templates"]
fn what_in_templates_can_be_spared() {
    let only = std::env::var("GPTOSS_JIT_SPARE").unwrap_or_default();
    let mut all = BTreeMap::new();
    texts(&repository().join("templates"), "", &mut all);
    let library = Library::from_layers(vec![Layer::built_in()]);
    let (mut spared, mut n_mutants) = (Vec::new(), 0);
    for (name, text) in all.iter().filter(|(name, _)| name.starts_with(&only)) {
        for (what, mutant) in mutants(text, "") {
            n_mutants += 1;
            let folder = tempfile::tempdir().expect("a temporary folder");
            let _ = file(folder.path(), name, mutant.as_bytes());
            let seen = |all_params, arch| {
                let target = Target::gpu(arch).expect("known").simulated();
                let users = library.templates().iter().filter(|template| template.fits_target(&target).is_ok());
                // What else is of that chip alone is written in its instructions, which nobody simulates.
                let users = users.filter(|template| arch != "sm_90" || !template.tests.is_empty());
                users.map(|template| (template.ops.join("+"), template.variant.clone())).find_map(|(op, variant)| {
                    let user = format!("{op}/{variant}.hip.j2");
                    let is_user = all.contains_key(&user) && includes(&all, &user, name);
                    let failures_in = |folder: &TempDir| failures_in(folder.path(), arch, &op, &variant, all_params);
                    let failures = if is_user { failures_in(&folder) } else { Vec::new() };
                    // What does not compile says nothing of order.
                    let failure = failures.into_iter().find(|failure| !failure.contains("could not compile"))?;
                    let whole = tempfile::tempdir().expect("a temporary folder");
                    assert_eq!(failures_in(&whole), Vec::<String>::new(), "{user} on {arch} as it is");
                    Some(format!("{user} on {arch}: {failure}"))
                })
            };
            // Some parts of a template are rendered with some parameters alone.
            let mut tries = [false, true].into_iter().flat_map(|all| ARCHS.map(|arch| (all, arch)));
            let seen = tries.find_map(|(all_params, arch)| seen(all_params, arch));
            match seen {
                Some(failure) => say(&format!("seen: {name} {what}: {}", failure.lines().next().unwrap_or_default())),
                None => {
                    say(&format!("spared: {name} {what}"));
                    spared.push(format!("{name} {what}"));
                }
            }
        }
    }
    assert!(n_mutants > 0, "nothing begins with `{only}`");
    say(&format!("{} of {n_mutants} can be spared:\n{}", spared.len(), spared.join("\n")));
}
