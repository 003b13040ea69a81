//! Every built-in template against its reference, and what a wrong kernel cannot hide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use gpu::host::HostDriver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::Precision;
use kernel::template::library::{Layer, Library};
use kernel::tuning::TuningTables;
use workbench::check::{Checked, Checker, Runner, Selection, Side, Wrong};

use crate::fixtures::program::{run, shared_cache};
use crate::fixtures::skipped;

pub fn store() -> Store {
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    Store::new(Cache::open(shared_cache(), CacheLimits::default()), CompilerOptions::new(worker))
}

pub fn built_in() -> Library {
    let library = Library::checked(vec![Layer::built_in()]);
    let broken: Vec<String> = library.broken().iter().map(|broken| broken.error.to_string()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    library
}

pub fn check(library: &Library, target: &Target, selection: &Selection) -> Vec<Checked> {
    let (store, driver) = (store(), HostDriver::new(2).unwrap());
    let runner = Some(Runner { target, driver: &driver });
    let checker = Checker { library, target, store: &store, runner, compute_unit: None };
    checker.check(selection, &mut |_| {})
}

pub fn of_op(op: &str) -> Selection {
    Selection { op: vec![op.into()], ..Selection::default() }
}

pub fn failures(checked: &[Checked]) -> String {
    let of = |one: &Checked| {
        let lines = one.failures.iter().map(|wrong| format!("{}/{} {}: {wrong}\n", one.op, one.variant, one.precision));
        lines.collect::<String>()
    };
    checked.iter().map(of).collect()
}

/// Half of the cases, as `gpu_kernels.rs` says what that leaves; of products the next level of instructions has the
/// other half. All at once, by hand: `kernels check`.
fn half(half: usize, op: Vec<String>) -> Selection {
    Selection { op, half: Some(half), is_thin: true, ..Selection::default() }
}

#[test]
fn every_built_in_host_template_agrees_with_its_reference() {
    let library = built_in();
    let checked = check(&library, &Target::host(), &half(0, Vec::new()));
    assert!(failures(&checked).is_empty(), "{}", failures(&checked));
    for contract in library.contracts() {
        const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];
        let precisions = match contract.op.as_str() {
            "random_weights" => &BOTH[..1], // made at one precision, whatever the model's
            "peak_matrix" => &[],           // the host has no matrix unit that all of them have
            "fill_lds" => &[],              // nor LDS
            _ => &BOTH[..],
        };
        for &precision in precisions {
            let is_checked = |one: &Checked| one.op == contract.op && one.precision == precision && one.n_cases > 0;
            assert!(checked.iter().any(is_checked), "no template of `{}` was run at {precision}", contract.op);
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn dot_products_agree_at_the_lower_x86_levels_too() {
    let (library, host) = (built_in(), Target::host());
    for (level, nth) in [("x86-64", 0), ("x86-64-v3", 1)] {
        let mut target = Target::named(level).unwrap();
        if !target.features.is_subset(&host.features) {
            skipped(&format!("this machine is below {level}"));
            continue;
        }
        if target.arch == host.arch {
            target.features.retain(|feature| !feature.starts_with("avx512"));
        }
        let products = Selection { common_types: true, ..half(nth, vec!["linear".into()]) };
        // What is fused multiplies by the same text: of op, level and shape any two meet, and of op, level and type.
        let alone = Selection { op_alone: true, ..products };
        let fused = Selection { op: vec!["rmsnorm+linear".into()], first_shape: true, ..alone.clone() };
        for selection in [alone, fused] {
            let checked = check(&library, &target, &selection);
            assert!(!checked.is_empty() && failures(&checked).is_empty(), "{level}\n{}", failures(&checked));
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn integers_of_few_rows_agree_with_the_reference() {
    let (library, host) = (built_in(), Target::host());
    if !host.features.contains("avx512bf16") {
        return skipped("no AVX512_BF16");
    }
    let few = Selection {
        op: ["moe_mlp1", "moe_mlp2"].map(String::from).to_vec(),
        variant: vec!["grouped".into()],
        params: [("tile_r".to_owned(), 2)].into(),
        precision: Some(Precision::Bf16),
        common_types: true,
        ..half(0, Vec::new())
    };
    let checked = check(&library, &host, &few);
    assert_eq!(checked.len(), 2, "{checked:?}");
    assert!(failures(&checked).is_empty(), "{}", failures(&checked));
}

// ---- wrong kernels ----

const LINEAR: &str = r#"{#
op      = "linear"
summary = "plain loops"

[launch]
grid = ["n_tokens"]
#}
{% include "lib/host/activation.c.j2" %}

{{ signature }} {
  const size_t K = {{ in_features }}, N = {{ out_features }}, t = block_x;
  BEFORE
  for (size_t n = 0; n < N; ++n) {
    double sum = 0.0;
    for (size_t k = 0; k < LENGTH; ++k)
      sum += (double)f32_from_activation(x[t * K + k]) * f32_from_{{ weight }}(weight[n * K + k]);
{% if has_bias %}
    sum += f32_from_{{ bias }}(bias[n]);
{% endif %}
{% if has_residual %}
    sum += residual[t * N + n];
{% endif %}
    if (WRITES) y[t * N + n] = (f32)sum;
  }
  AFTER
}
"#;

/// The kernel above with some of its holes filled, the others as is right, as the only file of a folder of templates.
fn linear_in_a_folder(holes: &[(&str, &str)]) -> tempfile::TempDir {
    let mut text = LINEAR.to_owned();
    for (hole, filling) in holes.iter().chain(&[("BEFORE", ""), ("LENGTH", "K"), ("WRITES", "1"), ("AFTER", "")]) {
        text = text.replace(hole, filling);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("linear")).unwrap();
    fs::write(folder.path().join("linear/plain.c.j2"), text).unwrap();
    folder
}

/// It on the first test shape, which is enough to see whether something is caught at all.
fn check_linear(holes: &[(&str, &str)]) -> Vec<Checked> {
    check_linear_as(holes, Selection { first_shape: true, ..of_op("linear") })
}

/// It on all test shapes.
fn check_linear_everywhere(holes: &[(&str, &str)]) -> Vec<Checked> {
    check_linear_as(holes, of_op("linear"))
}

fn check_linear_as(holes: &[(&str, &str)], selection: Selection) -> Vec<Checked> {
    let folder = linear_in_a_folder(holes);
    let library = Library::from_layers(vec![Layer::read(folder.path()).unwrap(), Layer::built_in()]);
    let checked = check(&library, &Target::host(), &Selection { variant: vec!["plain".into()], ..selection });
    assert_eq!(checked.len(), 2, "one for each precision");
    checked
}

/// Every way in which some case went wrong.
pub fn wrongs(checked: &[Checked]) -> Vec<&Wrong> {
    checked.iter().flat_map(|one| &one.failures).map(|failure| &failure.wrong).collect()
}

#[test]
fn plain_loops_are_right() {
    let checked = check_linear_everywhere(&[]);
    assert!(failures(&checked).is_empty(), "{}", failures(&checked));
    assert!(checked.iter().all(|one| one.n_cases > 20 && one.worst > 0.0 && one.worst < 1.0));
}

#[test]
fn a_sum_that_is_one_short_is_caught_and_told() {
    let checked = check_linear_everywhere(&[("LENGTH", "K - 1")]);
    assert_eq!(checked[0].failures.len(), checked[0].n_cases, "{}", failures(&checked));
    // At bf16 precision one term of 2880 may hide in the rounding of x, and so may a small one of a single row.
    let is_plain = |case: &str| ["45", "64", "24"].iter().any(|k| case.contains(&format!("in_features {k}")));
    let is_single = |case: &str| case.ends_with("n_tokens 1") || case.contains("n_tokens 1,");
    let caught = checked[1].failures.iter().filter(|failure| is_plain(&failure.case) && !is_single(&failure.case));
    assert_eq!(caught.count(), 2 * (4 * 4 + 2 * (5 + 4)), "placements, types, n_tokens: {}", failures(&checked));
    let told = checked[0].failures[0].to_string();
    for part in ["in_features 45", "weight ", "n_tokens 1", "`y`[0, ", "got ", "want ", "tolerance ", "33 elements"] {
        assert!(told.contains(part), "`{part}` is not in: {told}");
    }
}

#[test]
fn a_write_one_past_the_end_or_before_the_start_is_caught() {
    for (write, side) in [("y[n_tokens * N] = 0;", Side::After), ("y[-1] = 0;", Side::Before)] {
        let checked = check_linear(&[("AFTER", write)]);
        let is_told = |wrong: &&Wrong| matches!(wrong, Wrong::OutOfBounds { argument, side: told, offset_bytes: 0..=4 } if argument == "y" && *told == side);
        assert!(wrongs(&checked).iter().all(is_told), "{}", failures(&checked));
        assert!(checked.iter().all(|one| one.failures.len() == one.n_cases));
    }
}

#[test]
fn an_element_that_is_never_written_is_caught() {
    let checked = check_linear(&[("WRITES", "n != 0")]);
    assert!(checked.iter().all(|one| one.failures.len() == one.n_cases));
    let told = checked[0].failures[0].to_string();
    assert!(told.contains("`y`[0, 0]: got NaN") && told.contains("never written"), "{told}");
}

#[test]
fn a_read_past_the_end_spoils_the_result() {
    let checked = check_linear(&[("LENGTH", "K + (t + 1 == n_tokens && n + 1 == N)")]);
    assert!(wrongs(&checked).iter().all(|wrong| matches!(wrong, Wrong::Different(_))));
    assert!(checked.iter().all(|one| one.failures.len() == one.n_cases), "{}", failures(&checked));
}

#[test]
fn a_write_to_what_is_only_read_is_caught() {
    let checked = check_linear(&[("AFTER", "((activation*)x)[t * K] = activation_from_f32(7.0f);")]);
    let is_told = |wrong: &Wrong| matches!(wrong, Wrong::ReadOnly { argument } if argument == "x");
    assert!(wrongs(&checked).into_iter().any(is_told), "{}", failures(&checked));
}

#[test]
fn a_kernel_that_spoils_its_residual_in_place_is_caught() {
    let checked = check_linear_everywhere(&[("BEFORE", "for (size_t n = 0; n < N; ++n) y[t * N + n] = 0.0f;")]);
    let cases: Vec<&str> = checked.iter().flat_map(|one| &one.failures).map(|failure| failure.case.as_str()).collect();
    assert!(!cases.is_empty());
    assert!(cases.iter().all(|case| case.contains("has_residual true") && case.contains("in place")), "{cases:?}");
}

#[test]
fn a_kernel_that_does_not_compile_is_told_with_the_compilers_words() {
    let checked = check_linear(&[("AFTER", "nonsense;")]);
    let is_told = |wrong: &&Wrong| matches!(wrong, Wrong::Compile { .. }) && wrong.to_string().contains("nonsense");
    assert!(!wrongs(&checked).is_empty() && wrongs(&checked).iter().all(is_told), "{}", failures(&checked));
}

#[test]
fn a_compilers_error_is_told_once_with_the_line_of_the_template() {
    let folder = linear_in_a_folder(&[("AFTER", "nonsense;")]);
    let text = fs::read_to_string(folder.path().join("linear/plain.c.j2")).unwrap();
    let line = 1 + text.lines().position(|line| line.contains("nonsense;")).expect("it is there");
    let (code, stdout, _) = kernels_check(folder.path(), &[]);
    assert_eq!(code, Some(1));
    let place = format!(" comes from {}:{line}\n", folder.path().join("linear/plain.c.j2").display());
    assert_eq!(stdout.matches(&place).count(), 2, "once at each precision, not for every kernel: {stdout}");
    assert!(stdout.contains(" more kernels in the same words"), "{stdout}");
}

#[test]
fn a_wrong_kernel_shows_its_worst_error() {
    let checked = check_linear(&[("LENGTH", "K - 1")]);
    assert!(checked.iter().all(|one| one.worst > 1.0), "{checked:?}");
    let folder = linear_in_a_folder(&[("LENGTH", "K - 1")]);
    let (_, stdout, _) = kernels_check(folder.path(), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(report["templates"][0]["worst_error"].as_f64().expect("a size") > 1.0, "{stdout}");
    let nothing = check_linear(&[("AFTER", "nonsense;")]);
    assert!(nothing.iter().all(|one| one.worst == 0.0), "never run");
}

#[test]
fn parameters_that_only_a_table_chooses_are_run() {
    // A row for a shape that no test has; its parameters are run at those that there are.
    let table = "[provenance.hand]\nkind = \"hand\"\ndate = \"2026-11-22\"\nmethod = \"a test\"\n\n\
                 [[rows]]\nop = \"linear\"\nwhere = { in_features = 999 }\nuse = \"linear/plain\"\n\
                 params = { terms = 2 }\nprovenance = \"hand\"\n";
    let tables = TuningTables::from_texts(&[("host", table)]).expect("right");
    let edits = [
        ("[launch]", "[params.terms]\nvalues = [1, 2]\ndefault = 1\ndoc = \"2 is wrong\"\n\n[launch]"),
        ("LENGTH", "{{ 'K' if terms == 1 else 'K - 1' }}"),
    ];
    let folder = linear_in_a_folder(&edits);
    let library = Library::from_layers(vec![Layer::read(folder.path()).unwrap(), Layer::built_in()]);
    let selection = |tables| Selection { variant: vec!["plain".into()], tables, first_shape: true, ..of_op("linear") };
    let check = |tables| check(&library, &Target::host(), &selection(tables));
    assert!(failures(&check(None)).is_empty());
    let told = failures(&check(Some(Arc::new(tables))));
    assert!(told.lines().any(|line| line.contains("(terms 2)")) && !told.contains("(terms 1)"), "{told}");
}

#[test]
fn a_kernel_that_needs_workspace_as_the_plan_gave_it_is_caught() {
    // Right on poisoned workspace, wrong on what its own first launch left there.
    let holes = [
        ("[launch]", "[[workspace]]\nname = \"seen\"\ndtype = \"u32\"\nshape = [\"n_tokens\"]\n\n[launch]"),
        ("AFTER", "if (seen[t] == 1) for (size_t n = 0; n < N; ++n) y[t * N + n] = 0.0f;\n  seen[t] = 1;"),
    ];
    let checked = check_linear(&holes);
    assert!(!wrongs(&checked).is_empty(), "one launch is not enough");
    assert!(wrongs(&checked).iter().all(|wrong| matches!(wrong, Wrong::Different(_))), "{}", failures(&checked));
    // A thin check sees it at the fewest and the most rows.
    let rows = |checked: &[Checked]| {
        let cases = checked.iter().flat_map(|one| &one.failures).map(|failure| &failure.case);
        let rows = cases.filter_map(|case| case.split("n_tokens ").nth(1)?.split(',').next()?.parse::<u32>().ok());
        rows.collect::<std::collections::BTreeSet<u32>>()
    };
    assert_eq!(Vec::from_iter(rows(&checked)), [1, 2, 3, 17, 63]);
    let thin = check_linear_as(&holes, Selection { first_shape: true, is_thin: true, ..of_op("linear") });
    assert_eq!(Vec::from_iter(rows(&thin)), [1, 63]);
}

#[test]
fn a_template_that_no_test_fits_is_a_failure() {
    let checked = check_linear_everywhere(&[("[launch]", "[requires]\nwhen = [\"in_features == 1\"]\n\n[launch]")]);
    assert!(wrongs(&checked).iter().all(|wrong| matches!(wrong, Wrong::NoTest)));
    assert_eq!(wrongs(&checked).len(), 2);
}

// ---- the command ----

fn kernels_check(folder: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"))
        .args(["kernels", "check", "--variant", "plain", "--templates"])
        .arg(folder)
        .args(flags)
        .env("GPTOSS_JIT_CACHE", shared_cache())
        .output()
        .unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), stdout, stderr)
}

#[test]
fn the_command_fails_when_a_kernel_is_wrong_and_says_where() {
    let right = linear_in_a_folder(&[]);
    let (code, stdout, stderr) = kernels_check(right.path(), &["--op", "linear"]);
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    assert_eq!(stdout.lines().filter(|line| line.starts_with("linear  plain") && line.ends_with("ok")).count(), 2);

    let wrong = linear_in_a_folder(&[("LENGTH", "K - 1")]);
    let (code, stdout, stderr) = kernels_check(wrong.path(), &[]);
    assert_eq!(code, Some(1));
    assert!(stdout.contains("linear/plain f32: in_features 45, ") && stdout.contains(", tolerance "), "{stdout}");
    assert!(stderr.contains("2 of 2 checks failed"), "{stderr}");

    let (code, stdout, _) = kernels_check(wrong.path(), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["schema"]), (Some(1), &1.into()));
    assert_eq!(report["templates"][0]["status"], "wrong");
    let failures = report["templates"][0]["failures"].as_array().unwrap().len();
    assert_eq!(Some(failures as u64), report["templates"][0]["cases"].as_u64(), "a dropped term is seen in each case");

    for op in ["attention", "linear,attention"] {
        let (code, _, stderr) = kernels_check(right.path(), &["--op", op]);
        assert_eq!(code, Some(2));
        assert!(stderr.contains("no template for ") && stderr.contains(" matches `attention`"), "{stderr}");
    }
    let two = run(&["kernels", "check", "--first-shape", "--op", "rope_angles,take_token"]).ok();
    let two = two.text();
    assert!(two.contains("\nrope_angles ") && two.contains("\ntake_token "), "{two}");
}
