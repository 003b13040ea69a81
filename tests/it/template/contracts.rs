//! What contracts can ask for and no built-in host template uses: the cache laid out for matrix units, MXFP4 weights,
//! and workspace that is zero between launches. Plain kernels, written here, hold contract, reference and checker to
//! it.

use std::fs;
use std::path::Path;

use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::{Layer, Library};
use workbench::check::{Checked, Selection, Wrong};

use crate::fixtures::models::{Counter, letters};
use crate::fixtures::program::{argument, file};
use crate::workbench::kernels::{check, failures, of_op, wrongs};

/// A folder with one template.
fn folder(name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), name, text.as_bytes());
    folder
}

/// Checks `op/plain`, which is all that its folder holds, at both precisions. Contract and reference are asked about
/// here, not a template that anybody runs: rows, types and precisions meet in pairs, as `gpu_kernels.rs` says.
fn check_plain(op: &str, text: &str) -> Vec<Checked> {
    check_plain_as(&Selection { half: Some(0), is_thin: true, ..of_op(op) }, op, text)
}

/// The same on the first shape alone, which shows whether a mistake is seen.
fn check_wrong(op: &str, text: &str) -> Vec<Checked> {
    check_plain_as(&Selection { first_shape: true, is_thin: true, ..of_op(op) }, op, text)
}

fn check_plain_as(how: &Selection, op: &str, text: &str) -> Vec<Checked> {
    let folder = folder(&format!("{op}/plain.c.j2"), text);
    let library = Library::from_layers(vec![Layer::read(folder.path()).unwrap(), Layer::built_in()]);
    check(&library, &Target::host(), &Selection { variant: vec!["plain".into()], ..how.clone() })
}

/// Nothing is wrong, and at least so many launches were compared at each precision.
fn assert_right(checked: &[Checked], n_cases: usize) {
    assert!(failures(checked).is_empty(), "{}", failures(checked));
    assert!(!checked.is_empty() && checked.iter().all(|one| one.n_cases >= n_cases), "{checked:?}");
}

/// A built-in template with parts of it replaced.
fn edited(name: &str, edits: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates").join(name);
    let mut text = fs::read_to_string(path).expect("a built-in template");
    for (from, to) in edits {
        assert_eq!(text.matches(from).count(), 1, "`{from}` is not once in {text}");
        text = text.replace(from, to);
    }
    text
}

// ---- the cache's two layouts ----

const FOR_MATRIX_UNITS: (&str, &str) = ("\"not matrix_layout\"", "\"matrix_layout\"");

#[test]
fn rope_kv_stores_rows_where_matrix_units_look_for_them() {
    let swapped = [
        FOR_MATRIX_UNITS,
        ("k_block[d * BLOCK_TOKENS + p % BLOCK_TOKENS]", "k_block[p % BLOCK_TOKENS * HEAD_DIM + d]"),
        ("v_block[p % BLOCK_TOKENS * HEAD_DIM + d]", "v_block[d * BLOCK_TOKENS + p % BLOCK_TOKENS]"),
    ];
    assert_right(&check_plain("rope_kv", &edited("rope_kv/rows.c.j2", &[swapped[0], swapped[2], swapped[1]])), 15);
    let not_swapped = check_wrong("rope_kv", &edited("rope_kv/rows.c.j2", &swapped[..1]));
    assert!(not_swapped.iter().all(|one| one.failures.len() == one.n_cases));
}

#[test]
fn attention_reads_rows_where_matrix_units_have_them() {
    let k = "k_cache + block_start(table, table_blocks, p, g) + p % BLOCK_TOKENS";
    let v = "v_cache + block_start(table, table_blocks, p, g) + p % BLOCK_TOKENS";
    let swapped = [
        FOR_MATRIX_UNITS,
        (&format!("{k};"), &format!("{k} * HEAD_DIM;")),
        ("(k[d * BLOCK_TOKENS])", "(k[d])"),
        (&format!("{v} * HEAD_DIM;"), &format!("{v};")),
        ("(v[d])", "(v[d * BLOCK_TOKENS])"),
    ];
    let checked = check_plain("attention", &edited("attention/two_pass.c.j2", &swapped));
    assert_right(&checked, 70);
    assert!(checked.iter().all(|one| one.precision == Precision::F32));
    let not_swapped = check_wrong("attention", &edited("attention/two_pass.c.j2", &swapped[..1]));
    // A row that sees nothing but one position of its own may be right by chance, not more.
    assert!(not_swapped.iter().all(|one| one.failures.len() > one.n_cases / 2), "{}", failures(&not_swapped));
}

// ---- MXFP4 ----

/// Both MoE products in plain loops; `OP` is which.
const MXFP4_DOT: &str = r"
static const f32 E2M1[16] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
enum { BLOCKS = (K + 31) / 32 };  // of a row

INLINE double dot(const activation* x, const mxfp4* weight, const u8* scale, size_t row) {
  double sum = 0.0;
  for (u32 k = 0; k < K; ++k) {
    const u32 bits = weight[row * BLOCKS * 16 + k / 2] >> NIBBLE & 15;
    const double factor = __builtin_ldexp(1.0, (int)scale[row * BLOCKS + k / 32] - 127);
    sum += (double)f32_from_activation(x[k]) * E2M1[bits] * factor;
  }
  return sum;
}
";

const MXFP4_MLP1: &str = r#"{#
op      = "moe_mlp1"
summary = "plain loops"

[requires]
dtypes = { weight = ["mxfp4"] }

[launch]
grid = ["n_tokens * experts_per_token"]
#}
{% include "lib/host/activation.c.j2" %}
enum { K = {{ hidden_size }}, N = {{ intermediate_size }} };
DOT
{{ signature }} {
  const f32 limit = {{ swiglu_limit | f32 }};
  const u32 a = assignment[block_x];
  u32 e = 0;
  while (expert_begin[e + 1] <= block_x) ++e;
  for (u32 i = 0; i < N; ++i) {
    double h[2];
    for (u32 j = 0; j < 2; ++j) {
      const size_t row = ((size_t)e * N + i) * 2 + j;
      h[j] = dot(x + (size_t)(a / {{ experts_per_token }}) * K, weight, scale, row) + BIAS;
    }
    const double gate = h[0] > limit ? limit : h[0], up = h[1] > limit ? limit : h[1] < -limit ? -limit : h[1];
    y[(size_t)a * N + i] = activation_from_f32((f32)(gate / (1.0 + __builtin_exp(-ALPHA * gate)) * (up + OFFSET)));
  }
}
"#;

const MXFP4_MLP2: &str = r#"{#
op      = "moe_mlp2"
summary = "plain loops"

[requires]
dtypes = { weight = ["mxfp4"] }

[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/activation.c.j2" %}
enum { K = {{ intermediate_size }}, N = {{ hidden_size }}, N_CHOSEN = {{ experts_per_token }} };
DOT
{{ signature }} {
  for (u32 c = 0; c < N; ++c) {
    double sum = residual[(size_t)block_x * N + c];
    for (u32 e = 0; e < {{ num_experts }}; ++e)
      for (u32 i = expert_begin[e]; i < expert_begin[e + 1]; ++i) {
        const u32 a = assignment[i];
        const size_t row = (size_t)e * N + c;
        if (a / N_CHOSEN == block_x)
          sum += route_weight[a] * (dot(x + (size_t)a * K, weight, scale, row) + BIAS);
      }
    y[(size_t)block_x * N + c] = (f32)sum;
  }
}
"#;

fn mxfp4(kernel: &str, nibble: &str) -> String {
    let dot = MXFP4_DOT.replace("NIBBLE", nibble);
    let bias = r#"{{ "f32_from_" ~ bias ~ "(bias[row])" if has_bias else "0.0f" }}"#;
    let number = |name: &str| format!("(double){{{{ {name} | f32 }}}}");
    let kernel = kernel.replace("DOT", &dot).replace("BIAS", bias);
    kernel.replace("ALPHA", &number("swiglu_alpha")).replace("OFFSET", &number("swiglu_offset"))
}

#[test]
fn the_even_element_of_mxfp4_is_the_low_half_of_its_byte() {
    for (op, kernel) in [("moe_mlp1", MXFP4_MLP1), ("moe_mlp2", MXFP4_MLP2)] {
        assert_right(&check_plain(op, &mxfp4(kernel, "4 * (k % 2)")), 40);
        let high_first = check_wrong(op, &mxfp4(kernel, "4 * (1 - k % 2)"));
        assert!(high_first.iter().all(|one| one.failures.len() == one.n_cases), "{}", failures(&high_first));
    }
}

// ---- workspace that is zero between launches ----

/// Two blocks for every token; the second to arrive puts the counter back. A counter that was not zero spoils the
/// output.
const COUNTED: &str = r#"{#
op       = "linear"
summary  = "two blocks a token, which count each other"
priority = 9

[launch]
grid = ["n_tokens", "2"]

[[workspace]]
name   = "arrived"
dtype  = "u32"
shape  = ["n_tokens"]
zeroed = true

[[workspace]]
name  = "noise"
dtype = "f32"
shape = ["n_tokens", "out_features"]
#}
{% include "lib/host/activation.c.j2" %}

{{ signature }} {
  const size_t K = {{ in_features }}, N = {{ out_features }}, t = block_x, half = (N + 1) / 2;
  for (size_t n = block_y * half; n < (block_y == 0 ? half : N); ++n) {
    double sum = 0.0;
    for (size_t k = 0; k < K; ++k)
      sum += (double)f32_from_activation(x[t * K + k]) * f32_from_{{ weight }}(weight[n * K + k]);
{% if has_bias %}
    sum += f32_from_{{ bias }}(bias[n]);
{% endif %}
{% if has_residual %}
    sum += residual[t * N + n];
{% endif %}
    y[t * N + n] = (f32)sum;
    noise[t * N + n] = y[t * N + n];
  }
  const u32 before = __atomic_fetch_add(arrived + t, 1, __ATOMIC_ACQ_REL);
  if (before > 1) y[t * N] = __builtin_nanf("");
  if (before == 1) arrived[t] = LEFT;
}
"#;

#[test]
fn zeroed_workspace_is_zero_and_has_to_be_left_zero() {
    assert_right(&check_plain("linear", &COUNTED.replace("LEFT", "0")), 70);
    let left = check_wrong("linear", &COUNTED.replace("LEFT", "t == n_tokens - 1"));
    assert!(left.iter().all(|one| one.failures.len() == one.n_cases));
    let is_told = |wrong: &&Wrong| matches!(wrong, Wrong::NotZero { argument, .. } if argument == "arrived");
    assert!(wrongs(&left).iter().all(is_told), "{}", failures(&left));
    let told = left[0].failures[0].to_string();
    assert!(told.contains("it leaves the workspace `arrived` other than zero, from byte 0 on"), "{told}");
}

#[test]
fn the_plan_gives_launches_the_same_zeros_again_and_again() {
    let counter = Counter::new(64);
    let generate = |left: &str| {
        let folder = folder("linear/counted.c.j2", &COUNTED.replace("LEFT", left));
        let args = ["-i", &letters(&[0]), "-n", "5", "--templates", &argument(folder.path()), "--verbose"];
        counter.run(&args)
    };
    assert_eq!(generate("0").ok().text(), "AaAbAcAdAeAf\n");
    let ran = generate("7"); // what one launch leaves the next one finds
    let is_told = ran.stderr.contains("a logit is not a number: the first is in `block.0.attn.out.y`");
    assert!(ran.code == 1 && is_told, "{}", ran.stderr);
}
