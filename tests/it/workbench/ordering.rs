//! What orders a token's blocks in `templates/lib`: each fence, barrier and atomic is taken out in turn, and the
//! simulator sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use gpu::sim::SimDriver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::Template;
use kernel::template::library::{Layer, Library};
use workbench::check::{Checker, Runner, Selection};

use crate::fixtures::program::{file, repository, shared_cache};
use crate::fixtures::say;

/// A template of `embedding`: blocks of 64 threads, and workspaces by name, shape and type, of which those named in
/// [`ZEROS`] are zero between launches.
fn own(grid: &str, workspaces: &[[&str; 3]], text: &str) -> String {
    let workspace = |[name, shape, dtype]: &[&str; 3]| {
        let zeroed = ZEROS.contains(name);
        format!("[[workspace]]\nname = \"{name}\"\nshape = [{shape}]\ndtype = \"{dtype}\"\nzeroed = {zeroed}\n")
    };
    let workspaces: String = workspaces.iter().map(workspace).collect();
    format!(
        "{{#\nop = \"embedding\"\nsummary = \"blocks that wait\"\n[requires]\nprecision = [\"f32\"]\n\
         dtypes = {{ table = [\"f32\"] }}\n[launch]\ngrid = [{grid}]\nblock_size = \"64\"\n{workspaces}#}}\n{text}"
    )
}

const ZEROS: [&str; 2] = ["arrived", "counters"];
const ROWS: &str = r#""n_tokens", "hidden_size""#;

fn last_block() -> String {
    let workspaces = [["left", ROWS, "f32"], ["arrived", "\"n_tokens\"", "u32"]];
    own(r#""n_tokens", "2""#, &workspaces, LAST_BLOCK)
}

fn slots() -> String {
    let (given, assignments) = (r#""2 * n_tokens", "hidden_size""#, "\"2 * n_tokens\"");
    let workspaces = [
        ["given", given, "f32"],
        ["before", ROWS, "f32"],
        ["share", assignments, "f32"],
        ["assignment", assignments, "u32"],
        ["arrived", "\"n_tokens\"", "u32"],
    ];
    own(r#""n_tokens", "2""#, &workspaces, SLOTS)
}

fn all_blocks(n: u32) -> String {
    own(&format!("\"{n}\""), &[["left", ROWS, "f32"], ["counters", "\"4\"", "u32"]], ALL_BLOCKS)
}

/// Two blocks a row leave half of it each; the last copies what both left.
const LAST_BLOCK: &str = r#"{% include "lib/hip/last_block.hip.j2" %}

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
const SLOTS: &str = r#"{% include "lib/hip/types.hip.j2" %}

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

/// Four blocks leave some of each row; when all have come, each row is copied by some block.
const ALL_BLOCKS: &str = r#"{% include "lib/hip/all_blocks.hip.j2" %}

{{ signature }} {
  AllBlocks all_blocks(counters, gridDim.x);
  for (u32 t = 0; t < n_tokens; ++t)
    for (u32 i = blockIdx.x * 64 + threadIdx.x; i < {{ hidden_size }}; i += gridDim.x * 64)
      left[(size_t)t * {{ hidden_size }} + i] = table[(size_t)row[t] * {{ hidden_size }} + i];
  all_blocks.share([&](u32 part) {
    for (u32 t = part; t < n_tokens; t += gridDim.x)
      for (u32 i = threadIdx.x; i < {{ hidden_size }}; i += 64) {
        const size_t at = (size_t)t * {{ hidden_size }} + i;
        y[at] = left[at];
      }
  });
}
"#;

/// What templates are tried on.
const ARCHS: [&str; 3] = ["gfx1100", "gfx942", "sm_90"];

/// The templates of this folder, then the built-in ones.
pub(super) fn library_of(folder: &Path) -> Library {
    Library::from_layers(vec![Layer::read(folder).expect("read"), Layer::built_in()])
}

/// What `kernels check` finds wrong with a template of the library and of this folder, on its first shape, with its
/// default parameters, in the order of a seed.
fn failures_in(folder: &Path, arch: &str, seed: u64, op: &str, variant: &str) -> Vec<String> {
    let (op, variant) = (vec![op.into()], vec![variant.into()]);
    let how = Selection { op, variant, first_shape: true, ..Selection::default() };
    let (failures, n_cases) = checked(&library_of(folder), arch, seed, &how);
    assert!(n_cases > 0, "nothing was run");
    failures
}

/// What is wrong with these templates, and the number of launches.
pub(super) fn checked(library: &Library, arch: &str, seed: u64, how: &Selection) -> (Vec<String>, usize) {
    let target = Target::gpu(arch).expect("known").simulated();
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), compilers);
    let driver = SimDriver::new(arch, target.wave_size, 1).expect("threads");
    let driver = driver.with_lds([target.lds_bytes, target.lds_bytes_at_launch()]).with_seed(seed);
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library, target: &target, store: &store, runner, compute_unit: None };
    let checked = checker.check(how, &mut |_| {});
    let failures = checked.iter().flat_map(|checked| checked.failures.iter().map(ToString::to_string));
    (failures.collect(), checked.iter().map(|checked| checked.n_cases).sum())
}

/// The same of this template, where a file of the library is that text.
fn failures(template: &str, name: &str, text: &str, seed: u64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let _ = file(folder.path(), "embedding/own.hip.j2", template.as_bytes());
    let _ = file(folder.path(), name, text.as_bytes());
    failures_in(folder.path(), "gfx1100", seed, "embedding", "own")
}

/// The text with the words that [`mutants`] use.
fn with_words(text: &str) -> String {
    let plainly = |name: &str, then: &str| {
        let body = format!("{{ const T was = *at; *at = {then}; return was; }}");
        format!("\ntemplate <class T> __device__ inline T {name}(T* at, T v) {body}\n")
    };
    let words = plainly("plain_add", "was + v") + &plainly("plain_exchange", "v");
    let head = text.find("#}").expect("its header") + 2;
    format!("{}{words}{}", &text[..head], &text[head..])
}

/// The texts with one of these left out or made plain, each with what it was; `from` is where to begin.
fn mutants(text: &str, from: &str) -> Vec<(String, String)> {
    let begin = text.find(from).expect(from);
    let plain = [
        ("__threadfence();", ";"),
        ("__syncthreads();", ";"),
        ("atomicAdd(", "plain_add("),
        ("atomicExch(", "plain_exchange("),
        ("__syncwarp();", ";"),
    ];
    let mut mutants = Vec::new();
    for (word, instead) in plain {
        for (at, _) in text.match_indices(word).filter(|(at, _)| *at > begin) {
            let line = 1 + text[..at].matches('\n').count();
            let mutant = format!("{}{instead}{}", &text[..at], &text[at + word.len()..]);
            mutants.push((format!("line {line}: {word}"), with_words(&mutant)));
        }
    }
    mutants
}

fn none_can_be_spared(template: &str, name: &str, from: &str, n_expected: usize) {
    let text = fs::read_to_string(repository().join("templates").join(name)).expect(name);
    none_can_be_spared_of(template, name, &text, from, n_expected);
}

/// The same of this text under that name.
fn none_can_be_spared_of(template: &str, name: &str, text: &str, from: &str, n_expected: usize) {
    for seed in 0..4 {
        assert_eq!(failures(template, name, text, seed), Vec::<String>::new(), "{name} as it is, seed {seed}");
    }
    let mutants = mutants(text, from);
    assert_eq!(mutants.len(), n_expected, "{name}");
    for (what, mutant) in mutants {
        let failures = failures(template, name, &mutant, 0);
        let told = |words: &str| failures.iter().any(|failure| failure.contains(words));
        assert!(
            told("races with thread") || told("which no thread wrote before"),
            "{name} without {what}: {failures:?}"
        );
    }
}

#[test]
fn nothing_that_orders_the_last_block_can_be_spared() {
    none_can_be_spared(&last_block(), "lib/hip/last_block.hip.j2", "#else", 6);
}

/// What NVIDIA's compiler gets, in words that the simulator has. An addition that acquires and releases is one between
/// two fences of its thread; a plain store behind it comes after the others' additions, and is an exchange here:
/// only fences order anything in the simulator.
#[test]
fn nothing_that_orders_the_last_block_on_nvidia_can_be_spared() {
    let name = "lib/hip/last_block.hip.j2";
    let mut text = fs::read_to_string(repository().join("templates").join(name)).expect(name);
    let others = text.find("#else").expect("AMD's")..text.find("#endif").expect("its end");
    text.replace_range(others, "");
    let add = "asm volatile(\"atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;\" : \"=r\"(before) : \"l\"(arrived) : \
               \"memory\");";
    for (from, to) in [
        ("#if defined(__CUDACC_RTC__)", "#if 1"),
        (add, "__threadfence();\nbefore = atomicAdd(arrived, 1u);\n__threadfence();"),
        ("*arrived = 0;", "atomicExch(arrived, 0u);"),
    ] {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    none_can_be_spared_of(&last_block(), name, &text, "#if 1", 6);
}

#[test]
fn nothing_that_orders_the_slots_of_a_token_can_be_spared() {
    none_can_be_spared(&slots(), "lib/moe/slots.hip.j2", "n_complete = 0;", 7);
}

/// In the simulator blocks come one after another, so that none but the last has seen all begin, and it takes all parts
/// alone: what orders several that take some is not tried. Of one block, all have begun.
#[test]
fn nothing_that_orders_all_blocks_can_be_spared() {
    let name = "lib/hip/all_blocks.hip.j2";
    let text = fs::read_to_string(repository().join("templates").join(name)).expect(name);
    let (takes, hidden) = ("atomicAdd(counters + TAKEN", "sim::atomic_add(counters + TAKEN");
    assert!(text.contains(takes));
    none_can_be_spared_of(&all_blocks(4), name, &text.replace(takes, hidden), "void share", 9);
    assert_eq!(failures(&all_blocks(1), name, &text, 0), Vec::<String>::new());

    // What NVIDIA's compiler gets, in words that the simulator has.
    let mut text = text.replace(takes, hidden);
    while let Some(others) = text.find("#else") {
        let end = others + text[others..].find("#endif").expect("its end");
        text.replace_range(others..end, "");
    }
    let add = "asm volatile(\"atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;\" : \"=r\"(before) : \"l\"(counters + COME), \
               \"r\"(own)\n        : \"memory\");";
    let load = "asm volatile(\"ld.acquire.gpu.global.u32 %0, [%1];\" : \"=r\"(count) : \"l\"(counters + counter) : \
                \"memory\");";
    for (from, to) in [
        ("#if !defined(__CUDACC_RTC__)\n      __threadfence();\n#endif\n", ""),
        (add, "__threadfence();\nbefore = atomicAdd(counters + COME, own);\n__threadfence();"),
        (load, "count = atomicOr(counters + counter, 0u);"),
    ] {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    let text = text.replace("#if defined(__CUDACC_RTC__)", "#if 1");
    none_can_be_spared_of(&all_blocks(4), name, &text, "void share", 9);
}

/// Templates in which blocks or ranks wait for each other, or one goes on where others left off, are right in whichever
/// order blocks, waves and lanes run. Of `logprobs`, whose rows are long, `lib/hip/last_block` alone.
#[test]
fn templates_with_atomics_are_right_in_other_orders() {
    let library = library_of(&repository().join("templates"));
    let waits =
        ["lib/hip/last_block.hip.j2", "lib/hip/all_blocks.hip.j2", "lib/moe/slots.hip.j2", "lib/hip/ranks.hip.j2"];
    let mut all = BTreeMap::new();
    texts(&repository().join("templates"), "", &mut all);
    let is_waiting = |template: &Template| {
        let name = format!("{}/{}.hip.j2", template.ops.join("+"), template.variant);
        all.contains_key(&name) && waits.iter().any(|file| includes(&all, &name, file))
    };
    let mut tried = BTreeSet::new();
    for (arch, n_least) in [("gfx1100", 8), ("sm_90", 5)] {
        let target = Target::gpu(arch).expect("known").simulated();
        let fits = |template: &Template| template.fits_target(&target).is_ok() && is_waiting(template);
        let waiting = library.templates().filter(|template| fits(template) && template.ops != ["logprobs"]);
        // What other chips have as well was tried there.
        let waiting: Vec<_> = waiting.filter(|template| tried.insert(template.label())).collect();
        assert!(waiting.len() >= n_least, "{waiting:?}");
        for template in waiting {
            let (op, variant) = (vec![template.ops.join("+")], vec![template.variant.clone()]);
            // A decoder waits for nobody.
            let common = Selection { is_thin: true, common_types: true, half: Some(0), ..Selection::default() };
            let how = Selection { op, variant, first_shape: true, op_alone: true, ..common };
            for seed in [1, 2] {
                let (failures, n_cases) = checked(&library, arch, seed, &how);
                assert!(failures.is_empty() && n_cases > 0, "{}, seed {seed}: {failures:?}", template.label());
            }
        }
    }
}

/// The files below `templates`, by name, that GPUs' kernels are made of.
pub(super) fn texts(folder: &Path, below: &str, found: &mut BTreeMap<String, String>) {
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
pub(super) fn includes(texts: &BTreeMap<String, String>, file: &str, other: &str) -> bool {
    let directly = |name: &&String| texts[file].contains(&format!("{{% include \"{name}\" %}}"));
    file == other || texts.keys().filter(directly).any(|name| includes(texts, name, other))
}

/// The text without the lines that only NVIDIA's compiler reads.
pub(super) fn without_hidden(text: &str) -> String {
    let (mut open, mut kept) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let word = line.trim_start();
        if word.starts_with("#if") {
            let is_hidden = word == "#if defined(__CUDACC_RTC__)" || word == "#if !defined(GPTOSS_JIT_SIM)";
            open.push((is_hidden, word == "#if defined(GPTOSS_JIT_SIM)"));
        } else if word.starts_with("#else") {
            let (is_hidden, is_simulated) = open.pop().unwrap_or_default();
            open.push((is_simulated, is_hidden)); // the other branch
        } else if word.starts_with("#endif") {
            open.pop();
        } else if !open.iter().any(|(is_hidden, _)| *is_hidden) {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// By hand: `GPTOSS_JIT_SPARE=lib/moe cargo test what_in_templates -- --ignored --nocapture`, or for one of them
/// `GPTOSS_JIT_SPARE="sample/block.hip.j2 line 203"`. It prints what can be spared; docs/ordering.md has the list with
/// reasons.
#[test]
#[ignore = "an hour: every fence, barrier and atomic of all templates"]
fn what_in_templates_can_be_spared() {
    let only = std::env::var("GPTOSS_JIT_SPARE").unwrap_or_default();
    let mut all = BTreeMap::new();
    texts(&repository().join("templates"), "", &mut all);
    let is_asked = |site: &str| only.split(',').any(|only| site.starts_with(only));
    let (mut spared, mut n_mutants, mut n_hidden) = (Vec::new(), 0, 0);
    for (name, text) in &all {
        // A mutant of what the simulator's compiler does not read is the same kernel.
        for (what, mutant) in mutants(text, "").into_iter().filter(|(what, _)| is_asked(&format!("{name} {what}"))) {
            if without_hidden(&mutant) == without_hidden(&with_words(text)) {
                say(&format!("not simulated: {name} {what}"));
                n_hidden += 1;
                continue;
            }
            n_mutants += 1;
            let (seen, n_cases) = seen(&all, name, &with_words(text), &mutant);
            let outcome = match &seen {
                Some(failure) => format!("seen: {name} {what}: {}", failure.lines().next().unwrap_or_default()),
                None if n_cases == 0 => format!("spared: {name} {what}: in no kernel that is run"),
                None => format!("spared: {name} {what}: in {n_cases} cases"),
            };
            say(&outcome);
            spared.extend(seen.is_none().then_some(outcome));
        }
    }
    assert!(n_mutants + n_hidden > 0, "nothing begins with `{only}`");
    say(&format!(
        "{n_hidden} are not simulated, {} of {n_mutants} others can be spared:\n{}",
        spared.len(),
        spared.join("\n")
    ));
}

/// What is wrong where a file of the library is `mutant` and not `text`, and in how many cases nothing was. Only what
/// is another text so is compiled, up to the first that is wrong. That templates are right as they are is for other
/// tests to say.
pub(super) fn seen(all: &BTreeMap<String, String>, name: &str, text: &str, mutant: &str) -> (Option<String>, usize) {
    let [folder, whole] = [mutant, text].map(|text| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let _ = file(folder.path(), name, text.as_bytes());
        folder
    });
    let (library, whole) = (library_of(folder.path()), Arc::new(library_of(whole.path())));
    let mut n_right = 0;
    let first = Selection { first_shape: true, unlike: Some(whole), until_wrong: true, ..Selection::default() };
    // Some parts of a template are reached at some shapes alone, and some are rendered with some parameters alone.
    let every_shape = Selection { first_shape: false, ..first.clone() };
    let all_params = Selection { all_params: true, ..first.clone() };
    for (how, arch) in [&first, &every_shape, &all_params].into_iter().flat_map(|how| ARCHS.map(|arch| (how, arch))) {
        let target = Target::gpu(arch).expect("known").simulated();
        let users = library.templates().filter(|template| template.fits_target(&target).is_ok());
        // What other chips have as well was tried there.
        let elsewhere = Target::gpu(ARCHS[0]).expect("known").simulated();
        for template in users.filter(|template| arch != "sm_90" || template.fits_target(&elsewhere).is_err()) {
            let (op, variant) = (template.ops.join("+"), template.variant.clone());
            let user = format!("{op}/{variant}.hip.j2");
            if !all.contains_key(&user) || !includes(all, &user, name) {
                continue;
            }
            let how = Selection { op: vec![op], variant: vec![variant], ..how.clone() };
            let (failures, n_cases) = checked(&library, arch, 0, &how);
            // What does not compile says nothing of order.
            if let Some(failure) = failures.into_iter().find(|failure| !failure.contains("could not compile")) {
                return (Some(format!("{user} on {arch}: {failure}")), n_right);
            }
            n_right += n_cases;
        }
    }
    (None, n_right)
}
