//! The simulator: it runs GPUs' kernels as their chips would, and says where one does what it must not.

use tempfile::TempDir;

use crate::fixtures::models::prompt_file;
use crate::fixtures::program::{command, file, run, shared_cache};

/// A right kernel; the tests put something wrong in the place of a line.
const RIGHT: &str = r#"{#
op = "embedding"
summary = "one block copies one row"
[requires]
precision = ["f32"]
dtypes = { table = ["f32"] }
[launch]
grid = ["n_tokens"]
block_size = "64"
#}
{% include "lib/hip/vectors.hip.j2" %}
{% include "lib/hip/wave.hip.j2" %}

{{ signature }} {
  __shared__ f32 held[64];
  const u32 t = blockIdx.x, own = threadIdx.x, other = own ^ 1;
  const f32* from = table + (size_t)row[t] * {{ hidden_size }};
  f32* to = y + (size_t)t * {{ hidden_size }};
  for (u32 first = 0; first < {{ hidden_size }}; first += 64) {
    if (first + own < {{ hidden_size }}) held[own] = from[first + own];
    __syncthreads();  // here
    if (first + other < {{ hidden_size }}) to[first + other] = held[other];
    __syncthreads();
  }
}
"#;

/// A folder of templates with the kernel, with `from` replaced, and its name.
fn templates(from: &str, to: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let _ = file(folder.path(), "embedding/own.hip.j2", RIGHT.replace(from, to).as_bytes());
    let name = folder.path().to_str().expect("text").to_owned();
    (folder, name)
}

/// `kernels check` of the kernel with `from` replaced, in the simulator of a chip: what it prints. Its rows are less
/// than a block long.
fn checked(arch: &str, from: &str, to: &str) -> (i32, String) {
    checked_as(arch, from, to, &["--first-shape"])
}

fn checked_as(arch: &str, from: &str, to: &str, more: &[&str]) -> (i32, String) {
    assert_eq!(RIGHT.matches(from).count(), 1, "`{from}`");
    let (_folder, templates) = templates(from, to);
    let args = ["--op", "embedding", "--variant", "own", "--templates", &templates, "--arch", arch];
    let ran = run(&[&["kernels", "check"], &args[..], more].concat());
    (ran.code, ran.text().to_owned())
}

/// The line of the rendered text in which `mark` is.
fn line_of(from: &str, to: &str, mark: &str) -> usize {
    let (_folder, templates) = templates(from, to);
    let shown = run(&["kernels", "show", "embedding/own", "--arch", "gfx1100", "--templates", &templates]).ok();
    shown.text().lines().position(|line| line.contains(mark)).expect(mark) + 1
}

/// The kernel is refused with these words, told of the line in which `mark` is.
fn refused(from: &str, to: &str, mark: &str, words: &str) {
    refused_as(from, to, mark, words, &["--first-shape"]);
}

/// Each of eight lanes tells its neighbour, then waits for it. A GPU runs lanes together, so none waits for ever.
#[test]
fn lanes_that_wait_for_lanes_let_them_run() {
    let wait = r#"__shared__ f32 held[64];
  u32* flags = (u32*)y + (size_t)blockIdx.x * {{ hidden_size }};
  if (threadIdx.x < 8) flags[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < 8) {
    atomicExch(flags + (threadIdx.x ^ 1), 1u);
    while (atomicOr(flags + threadIdx.x, 0u) == 0) {}
  }
  __syncthreads();"#;
    for arch in ["sim:gfx1100", "sim:gfx942"] {
        let (code, text) = checked_as(arch, "__shared__ f32 held[64];", wait, &["--first-shape", "--deadline", "20"]);
        assert_eq!(code, 0, "{text}");
    }
}

fn refused_as(from: &str, to: &str, mark: &str, words: &str, more: &[&str]) {
    let (code, text) = checked_as("sim:gfx1100", from, to, more);
    let line = line_of(from, to, mark);
    assert_eq!(code, 1, "{to}: {text}");
    assert!(text.contains(&format!("kernel `embedding_own` line {line}, block (")), "{to}: {text}");
    assert!(text.contains(words), "{to}: {text}");
}

#[test]
fn a_right_kernel_is_right_in_waves_of_32_and_of_64() {
    for arch in ["sim:gfx1100", "sim:gfx942"] {
        let (code, text) = checked_as(arch, "// here", "// there", &[]);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn access_outside_of_arguments_is_refused() {
    let past = "to[first + other] = held[other];";
    let read = "held[own] = from[n_rows * {{ hidden_size }}];";
    refused("held[own] = from[first + own];", read, read_mark(read), "bytes past the end of `table`");
    refused(past, "to[first + other - 2] = held[other];", "other - 2]", "writes 4 bytes");
    refused(past, "((f32*)from)[first + other] = held[other];", "((f32*)from)", "which its contract only reads");
}

/// What is left of a line when its expressions are rendered.
fn read_mark(line: &str) -> &str {
    line.split("{{").next().expect("the part before")
}

#[test]
fn access_outside_of_lds_is_refused() {
    let to = "held[own + 20] = from[first + own];";
    refused("held[own] = from[first + own];", to, "held[own + 20]", "past the end of `held` in LDS (256 bytes)");
}

#[test]
fn a_variable_in_lds_has_no_neighbour_to_step_into() {
    // Whichever of the two the compiler puts first; and all of both is written, so that nothing else is wrong.
    for (name, step) in [("held", 64), ("beside", 64), ("held", 4000)] {
        let to = format!(
            "{{ __shared__ f32 beside[64]; held[own] = from[first + own]; beside[own] = 0;\n{name}[own + {step}] = 1; }}"
        );
        let words = format!("writes 4 bytes {} bytes past the end of `{name}` in LDS (256 bytes)", 4 * step - 256);
        refused("held[own] = from[first + own];", &to, &format!("{name}[own + {step}]"), &words);
    }
}

#[test]
fn misaligned_vectors_are_refused() {
    let to = "{ struct alignas(16) Four { f32 at[4]; }; const Four four = *(const Four*)(from + 1); held[own] = four.at[own % 4]; }";
    refused("held[own] = from[first + own];", to, "four.at", "misaligned");
    // The compiler reads no more of these than the one element.
    for (to, alignment) in [
        ("{ const float4 four = *(const float4*)(from + 1); held[own] = four.y; }", 16),
        ("{ held[own] = 0; if (own < 32) held[own] = ((const float4*)&held[2 * (own / 2) + 1])->x; }", 16),
        ("{ held[own] = *(const f32*)((const char*)(from + first + own) + 2); }", 4),
    ] {
        let words = format!("its type's alignment is {alignment} bytes, and the address is ");
        refused("held[own] = from[first + own];", to, to.split(';').next().expect("a part"), &words);
    }
}

#[test]
fn what_the_processor_refuses_is_told_with_its_line() {
    let from = "held[own] = from[first + own];";
    let to = "held[own] = (f32)((first + 64) / (n_rows - n_rows));";
    refused(from, to, "n_rows - n_rows", "divides a whole number by 0");
    refused(from, "__builtin_trap();", "__builtin_trap", "reaches an instruction that cannot be executed");
    let to = "{ struct Deep { static __device__ u32 of(u32 n) { volatile u32 at[64]; at[n % 64] = n; \
              return of(n + 1) + at[n % 64]; } }; held[own] = Deep::of(own); }";
    refused(from, to, "struct Deep", "needs more than 256 KiB of stack");
    // So large that the next thread's stack is within it: its first page that cannot be used is touched all the same.
    let to = "{ struct Wide { static __device__ __attribute__((noinline)) u32 of(u32 n) {\n\
              volatile u32 at[262144]; at[n] = n; return at[n] + at[n + 1]; } }; held[own] = Wide::of(own); }";
    let (code, text) = checked("sim:gfx1100", from, to);
    assert!(code == 1 && text.contains("needs more than 256 KiB of stack"), "{text}");
    assert!(text.contains("the line comes from") && !text.contains("signal 11"), "{text}");
}

#[test]
fn a_line_is_told_with_those_that_called_it() {
    let from = "held[own] = from[first + own];";
    let to = "{\n      const auto at = [&](u32 i) {\n        return from[i];  // within\n      };\n      \
              held[own] = at(first + 4000000u);  // without\n    }";
    let (code, text) = checked("sim:gfx1100", from, to);
    let [within, without] = ["// within", "// without"].map(|mark| line_of(from, to, mark));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!(" line {within}, called in line {without}, block (")), "{text}");
    assert!(text.contains(&format!("\n  line {without} comes from ")), "{text}");
}

#[test]
fn a_local_variable_that_nothing_was_written_to_is_told() {
    let to = "{ f32 parts[2]; parts[own % 2] = from[first + own]; held[own] = parts[0] + parts[1]; }";
    let (code, text) = checked("sim:gfx1100", "held[own] = from[first + own];", to);
    assert!(code == 1 && text.contains("a local variable that nothing was written to"), "{text}");
    let (code, text) = checked("sim:gfx1100", "held[own] = from[first + own];", "held[own] = 1e35f;");
    assert!(code == 1 && !text.contains("a local variable"), "{text}");
}

#[test]
fn races_in_lds_are_refused() {
    let early = "of `held` in LDS, which thread 1 writes only later: no barrier is between the two";
    refused("__syncthreads();  // here", "", "= held[other];", early);
    // Of a row that is longer than a block, the next piece comes too early.
    refused_as("    __syncthreads();\n  }", "  }", "= held[other];", "no barrier is between the two", &[]);
    let to = "held[own & ~3u] = from[first + own];";
    refused("held[own] = from[first + own];", to, "held[own & ~3u]", "races with thread 0");
}

#[test]
fn a_barrier_that_not_all_threads_reach_is_refused() {
    let to = "__syncthreads(); if (own < 32) __syncthreads();  // half of them";
    refused("__syncthreads();  // here", to, "half of them", "which thread 32 does not reach: it waits at the barrier");
    let to = "if (own == 5) return; __syncthreads();  // but one";
    refused("__syncthreads();  // here", to, "but one", "which thread 5 does not reach: it has ended");
}

#[test]
fn a_wave_operation_that_not_all_lanes_reach_is_refused() {
    let to = "__syncthreads(); if (own % 2) held[own] = __shfl_xor(held[own], 1, 32);  // odd lanes";
    refused("__syncthreads();  // here", to, "odd lanes", "wave operation");
}

#[test]
fn what_is_not_written_is_seen() {
    let from = "to[first + other] = held[other];";
    let (code, text) = checked("sim:gfx1100", from, &format!("if (own != 7) {from}"));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("got NaN"), "{text}");
    // Of a thread's own array: bytes of 0xfe, as a number and as a sum's beginning.
    for (to, got) in [
        (
            "f32 kept[2]; if (own != 7) kept[first % 2] = held[other]; to[first + other] = kept[first % 2];",
            "got -16947395",
        ),
        (
            "f32 sums[2]; for (u32 i = 0; i < 2; ++i) sums[i] += held[other]; to[first + other] = sums[first % 2];",
            "got -16947395",
        ),
    ] {
        let (code, text) = checked(
            "sim:gfx1100",
            &format!("if (first + other < {{{{ hidden_size }}}}) {from}"),
            &format!("if (first + other < {{{{ hidden_size }}}}) {{ {to} }}"),
        );
        assert!(code == 1 && text.contains(got), "{to}: {text}");
    }
}

/// The right kernel's barrier, and behind it what all threads do to one element that one of them wrote before.
const PLAIN_SUM: &str = "if (first == 0 && own == 0) to[0] = 1.0f; __syncthreads(); to[0] += 1.0f;  // plain";

#[test]
fn races_in_global_memory_are_refused() {
    refused("__syncthreads();  // here", PLAIN_SUM, "// plain", "no barrier is between the two");
    refused("__syncthreads();  // here", PLAIN_SUM, "// plain", "races with thread 0 for 4 bytes at element 0 of `y`");
    let to = "to[first + other] = held[other]; y[0] = 1.0f;";
    refused("if (first + other < {{ hidden_size }}) to[first + other] = held[other];", to, "y[0]", "element 0 of `y`");
    let to = "y[0] = 1.0f; atomicAdd((u32*)y, own);  // both";
    refused(
        "if (first + other < {{ hidden_size }}) to[first + other] = held[other];",
        to,
        "// both",
        "races with thread",
    );
}

#[test]
fn races_for_parts_of_a_word_are_refused_and_neighbouring_bytes_are_none() {
    // Each thread brings a byte of four words, and what it reads behind the barrier was brought by four.
    let store = "if (first + own < {{ hidden_size }}) held[own] = from[first + own];";
    let bytes = "for (u32 b = own; b < 256; b += 64) if (4 * first + b < 4 * {{ hidden_size }}) \
                 ((u8*)held)[b] = ((const u8*)(from + first))[b];";
    let (code, text) = checked("sim:gfx1100", store, bytes);
    assert_eq!(code, 0, "{text}");
    refused(store, "((u8*)held)[own / 2] = own;  // both", "// both", "races with thread 0 for 1 bytes");
    // What a thread wrote last into a word hides nobody's bytes in it.
    let here = "__syncthreads();  // here";
    for (word, place) in [("held", "at byte 0 of `held` in LDS"), ("to", "at element 0 of `y`")] {
        let reads = format!("if (own == 3 && *(volatile f32*){word} == 2) to[9] = 0;");
        let to = format!("__syncthreads(); ((u8*){word})[own] = 1; {reads}  // word\n    __syncthreads();");
        refused(here, &to, "// word", &format!("races with thread 0 for 4 bytes {place}"));
    }
}

#[test]
fn a_race_shows_whoever_runs_first() {
    let (_folder, templates) = templates("__syncthreads();  // here", PLAIN_SUM);
    let with_seed = |seed: &str| {
        let args = ["kernels", "check", "--op", "embedding", "--variant", "own", "--arch", "sim:gfx1100"];
        let more = ["--first-shape", "--templates", &templates];
        let mut command = command(shared_cache(), &[&args[..], &more].concat());
        let output = command.env("GPTOSS_JIT_SIM_SEED", seed).output().expect("the program");
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
        (output.status.code(), stdout, stderr)
    };
    let first = with_seed("7");
    assert_eq!(first.0, Some(1), "{}", first.1);
    assert!(first.1.contains("races with thread"), "{}", first.1);
    assert!(first.2.contains("GPTOSS_JIT_SIM_SEED=7"), "{}", first.2);
    assert_ne!(first.1, with_seed("0").1, "other threads meet first");
    let (code, _, stderr) = with_seed("seven");
    assert!(code != Some(0) && stderr.contains("expected a whole number"), "{stderr}");
}

#[test]
fn reads_of_what_nobody_wrote_are_refused() {
    let to = "if (own != 7) held[own] = from[first + own];";
    refused("held[own] = from[first + own];", to, "= held[other];", "of `held` in LDS, which no thread wrote before");
    let to = "to[first + other] = held[other] + to[first + other];";
    refused("to[first + other] = held[other];", to, "+ to[", "of `y`, which no thread wrote before");

    // Of workspace that nobody zeroes too.
    let (folder, name) = templates("// here", "// there");
    let workspace = "block_size = \"64\"\n[[workspace]]\nname = \"left\"\nshape = [\"n_tokens\"]\ndtype = \"f32\"";
    let read = "__syncthreads(); if (left[t] == 2.0f) held[own] = 0.0f;";
    let text = RIGHT.replace("block_size = \"64\"", workspace).replace("__syncthreads();  // here", read);
    let _ = file(folder.path(), "embedding/own.hip.j2", text.as_bytes());
    let args = ["kernels", "check", "--op", "embedding", "--variant", "own", "--templates", &name];
    let ran = run(&[&args[..], &["--first-shape", "--arch", "sim:gfx1100"]].concat());
    assert_eq!(ran.code, 1, "{}", ran.text());
    assert!(ran.text().contains("of `left`, which no thread wrote before"), "{}", ran.text());
}

#[test]
fn more_than_a_chip_has_is_refused() {
    let of = |from: &str, to: &str, words: &str| {
        let (code, text) = checked("sim:gfx1100", from, to);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(words), "{text}");
    };
    of("f32 held[64];", "f32 held[65536];", "asks for 262144 bytes of LDS, and gfx1100 has 65536");
    of("block_size = \"64\"", "block_size = \"2048\"", "it is 2048, expected at most 1024");
    let to = "block_size = \"64\"\nlds_bytes = \"4000000000\"";
    of("block_size = \"64\"", to, "asks for 4000000000 bytes of LDS at a launch, and gfx1100 has 65536");
}

/// Where it is run at which precision: both sizes of waves, and all three kinds of matrix units, of which `f32` uses
/// none. Each chip's own units are in `workbench/gpu_kernels.rs`.
const CHIPS: [(&str, &[&str]); 2] = [("f32", &["sim:gfx942"]), ("bf16", &["sim:gfx1100", "sim:gfx1201", "sim:gfx942"])];

/// Prompts of several lengths, so that some are read while others are continued.
const PROMPTS: [&str; 4] = ["The capital of France is", "The", "Question: What is 2 + 2?\nAnswer:", "One day a"];

#[test]
fn the_tiny_model_says_on_every_kind_of_chip_what_it_says_on_the_cpu() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = file(folder.path(), "input.txt", &prompt_file(&PROMPTS));
    let getp = |device: &str, precision: &str| {
        let args = ["run", "-m", "getp", "-i", &input, "--max-new-tokens", "12", "-b", "3", "--chunk", "9"];
        run(&[&args[..], &["--device", device, "--precision", precision]].concat()).ok().ids()
    };
    for (precision, archs) in CHIPS {
        let expected = getp("cpu", precision);
        assert!(expected.iter().all(|ids| !ids.is_empty()), "{expected:?}");
        for &arch in archs {
            assert_eq!(getp(arch, precision), expected, "{arch} {precision}");
        }
    }
}

#[test]
fn the_simulator_starts_warm_the_second_time() {
    let first = run(&["run", "-i", PROMPTS[0], "-n", "8", "--device", "sim:gfx1201"]).ok();
    let second = run(&["run", "-i", PROMPTS[0], "-n", "8", "--device", "sim:gfx1201"]).ok();
    assert_eq!(first.text(), second.text());
    assert!(second.stderr.contains(" 0 compiled"), "{}", second.stderr);
    let unknown = run(&["run", "-i", "a", "--device", "sim:gfx9999"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("gfx9999"), "{}", unknown.stderr);
}
