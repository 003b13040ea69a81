//! Kernels that end the process that runs them: `kernels check` tells which case it was, and goes on.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::fixtures::program;

/// Copies rows, and does what is right but for the first case.
const ROWS: &str = r#"{#
op         = "embedding"
summary    = "a copy with something in it"

[requires]
precision = ["f32"]
when      = ["hidden_size == 45", "table == 'f32'"]

[launch]
grid = ["n_tokens"]
HEAD#}
{% include "lib/host/types.c.j2" %}
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

BEFORE

{{ signature }} {
  const u32 t = block_x, C = {{ hidden_size }};
  DOES
  for (u32 c = 0; c < C; ++c) y[(size_t)t * C + c] = table[(size_t)row[t] * C + c];
}
"#;

/// A folder with a variant of `embedding` for each of these names, with what goes before the kernel and into it.
fn folder(variants: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("embedding")).unwrap();
    for (name, head, before, does) in variants {
        let text = ROWS.replace("HEAD", head).replace("BEFORE", before).replace("DOES", does);
        fs::write(folder.path().join(format!("embedding/{name}.c.j2")), text).unwrap();
    }
    folder
}

/// The exit code and the report's templates, without the built-in ones.
fn check(folder: &Path, flags: &[&str]) -> (i32, Vec<Value>) {
    let folder = folder.to_str().expect("a name");
    let ran =
        program::run(&[&["kernels", "check", "--json", "--op", "embedding", "--templates", folder], flags].concat());
    let stdout = String::from_utf8(ran.stdout).expect("text");
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
    let rows = report["templates"].as_array().expect("a list").iter();
    (ran.code, rows.filter(|row| row["variant"] != "rows" && row["variant"] != "blocks").cloned().collect())
}

fn failures(row: &Value) -> Vec<&str> {
    row["failures"].as_array().expect("a list").iter().map(|failure| failure.as_str().expect("text")).collect()
}

#[test]
fn a_kernel_that_ends_its_process_is_told_and_the_check_goes_on() {
    const PRINTS: &str = "printf(\"{\\\"Done\\\": {}}\\n\"); fflush(stdout);";
    let recursion = "static int deep(volatile int* at) { int here[64]; here[0] = *at; return deep(here) + here[0]; }";
    let folder = folder(&[
        ("a_segv", "", "", "if (n_tokens == 1) *(volatile int*)8 = 1;"),
        ("b_trap", "", "", "if (n_tokens == 1) __builtin_trap();"),
        ("c_recursion", "", recursion, "if (n_tokens == 1) y[0] = deep((volatile int*)row);"),
        ("d_exit", "", "", "if (n_tokens == 1) exit(0);"),
        ("e_endless", "", "", "if (n_tokens == 1) for (;;) sleep(1);"),
        ("f_always", "", "", "abort();"),
        ("g_constructor", "", "__attribute__((constructor)) static void begin(void) { abort(); }", ""),
        ("h_prints", "", "", PRINTS),
    ]);
    let (code, rows) = check(folder.path(), &["--deadline", "20"]);
    assert_eq!((code, rows.len()), (1, 8), "{rows:#?}");
    let case = "hidden_size 45, table f32, n_rows 37, n_tokens 1, no memory before its tensors: ";
    for (row, how) in rows.iter().zip([
        "its process ended: signal 11 (segmentation fault)",
        "its process ended: signal 4 (illegal instruction)",
        "its process ended: signal ",
        "its process ended: exit code 0",
        "it was still running after 20 s and was killed",
    ]) {
        let told = failures(row);
        assert!(told.len() == 1 && told[0].starts_with(&format!("{case}{how}")), "{told:?}");
        assert_eq!((&row["status"], row["cases"].as_u64() > Some(8)), (&"wrong".into(), true), "{row}");
    }
    let told = failures(&rows[5]);
    assert!(told.len() == 4 && told[..3].iter().all(|told| told.contains("signal 6 (abort)")), "{told:?}");
    assert!(told[3].starts_with("the other cases: they were not run: 3 kernels"), "{told:?}");
    // An object is opened first by who compiles it.
    let told = failures(&rows[6]);
    assert!(told[0].contains("could not compile") && told[0].ends_with("signal 6 (abort)"), "{told:?}");
    assert_eq!((&rows[7]["status"], failures(&rows[7]).len()), (&"ok".into(), 0), "{}", rows[7]);
}

/// A copy that never ends in one thread of one block.
const ENDLESS: &str = r#"{#
op      = "embedding"
summary = "a copy that never ends"
uses    = ["lib/hip/block.hip.j2"]

[requires]
precision = ["f32"]
when      = ["hidden_size == 45", "table == 'f32'"]

[params.block_size]
default = 64

[launch]
grid = ["n_tokens"]
#}
{% include "lib/hip/types.hip.j2" %}
{% include "lib/hip/stay.hip.j2" %}

{{ signature }} {
  const u32 t = blockIdx.x;
  for (u32 c = threadIdx.x; c < {{ hidden_size }}; c += BLOCK) {
    y[(size_t)t * {{ hidden_size }} + c] = table[(size_t)row[t] * {{ hidden_size }} + c];
    if (c == 5) stay_while_equal(y + (size_t)t * {{ hidden_size }} + c, table + (size_t)row[t] * {{ hidden_size }} + c);
  }
}
"#;

/// A function of its own in the object, beside others that call it.
const STAY: &str = r#"{#
[gives]
c = ["stay_while_equal"]
#}
{% include "lib/hip/types.hip.j2" %}

__attribute__((noinline)) static __device__ void stay_while_equal(const f32* one, const f32* other) {
  while (*(const volatile f32*)one == *(const volatile f32*)other) {
  }
}
"#;

#[test]
fn where_a_simulated_kernel_hangs_is_told_and_who_called_it() {
    let folder = tempfile::tempdir().unwrap();
    ["embedding", "lib/hip"].iter().for_each(|name| fs::create_dir_all(folder.path().join(name)).unwrap());
    fs::write(folder.path().join("lib/hip/stay.hip.j2"), STAY).unwrap();
    fs::write(folder.path().join("embedding/endless.hip.j2"), ENDLESS).unwrap();
    let flags = ["--arch", "sim:gfx1100", "--variant", "endless", "--deadline", "1", "--first-shape", "--within", "1s"];
    let (code, rows) = check(folder.path(), &flags);
    let told = failures(&rows[0]);
    assert!(code == 1 && told[0].contains(" thread 5: still runs after 1 s"), "{told:?}");
    let line = ENDLESS.lines().position(|line| line.contains("if (c == 5) stay")).expect("it is there") + 1;
    assert!(told[0].contains("lib/hip/stay.hip.j2:8"), "{told:?}");
    assert!(told[0].contains(&format!("endless.hip.j2:{line}")), "line {line}: {told:?}");
    assert!(told[0].contains("`gptoss-jit kernels show embedding/endless --arch gfx1100"), "{told:?}");
}

#[test]
fn memory_outside_of_a_tensor_is_not_there() {
    // What is read is not used, so that no result is spoilt.
    let folder = folder(&[
        ("a_before", "", "", "(void)*(const volatile f32*)(table - 1);"),
        ("b_after", "", "", "(void)*(const volatile f32*)(table + 37 * 45);"),
        ("c_inside", "", "", "(void)*(const volatile f32*)(table + 37 * 45 - 1); (void)*(const volatile f32*)table;"),
    ]);
    let (code, rows) = check(folder.path(), &[]);
    assert_eq!((code, rows.len()), (1, 3));
    for (row, note) in [(&rows[0], "no memory before its tensors"), (&rows[1], "no memory after its tensors")] {
        let told = failures(row);
        assert!(told[0].contains(note) && told[0].contains("signal 11"), "{told:?}");
    }
    assert!(failures(&rows[2]).is_empty(), "{}", rows[2]);
}

#[test]
fn what_a_kernel_keeps_between_launches_is_seen() {
    // Right in the order in which a test lists its rows, and wrong when one follows that is less.
    let does = "if (n_tokens < most) { y[(size_t)t * C] = 1.0f; return; } most = n_tokens;";
    let folder = folder(&[("a_keeps", "", "static u32 most;", does)]);
    let (code, rows) = check(folder.path(), &[]);
    let told = failures(&rows[0]);
    assert!(code == 1 && !told.is_empty(), "{rows:?}");
    assert!(told.iter().all(|told| told.contains("no memory after its tensors")), "in the second pass: {told:?}");
}

#[test]
fn a_number_of_rows_that_no_test_has_is_run() {
    let folder = folder(&[("a_few", "", "", "if (n_tokens > 257) y[(size_t)t * C] = 1.0f; else")]);
    let (code, rows) = check(folder.path(), &[]);
    let told = failures(&rows[0]);
    assert!(code == 1 && told.len() == 2, "in both passes: {told:?}");
    assert!(told.iter().all(|told| told.contains("n_tokens 2") && told.contains("`y`[")), "{told:?}");
}

#[test]
fn sizes_that_no_machine_has_are_errors() {
    let launch = |expression: &str| format!("scratch_bytes = \"{expression}\"\n");
    let workspace = |shape: &str| format!("[[workspace]]\nname = \"sums\"\ndtype = \"f32\"\nshape = [{shape}]\n");
    let huge = "18446744073709551615";
    let cases = [
        (launch(huge), "expected at most 281474976710656"),
        (launch("281474976710656"), "could not allocate"),
        (launch(&format!("{huge} + n_tokens")), "expected a whole number from 0 to 2^64 - 1"),
        (workspace(&format!("\"{huge}\"")), "are too many"),
        (workspace(&format!("\"{huge}\", \"2\"")), "are too many"),
        (workspace("\"4000000000\""), "expected at most 2^30 in a test"),
    ];
    let grids = [("4294967295\", \"4294967295\", \"4294967295", "are too many"), (huge, "expected at most 4294967295")];
    let names: Vec<String> = (0..cases.len() + grids.len()).map(|i| format!("v{i}")).collect();
    let variants: Vec<_> = cases.iter().zip(&names).map(|((head, _), name)| (name.as_str(), &**head, "", "")).collect();
    let folder = folder(&variants);
    for ((grid, _), name) in grids.iter().zip(&names[cases.len()..]) {
        let text = ROWS
            .replace("HEAD", "")
            .replace("BEFORE", "")
            .replace("DOES", "")
            .replace("n_tokens\"]", &format!("{grid}\"]"));
        fs::write(folder.path().join(format!("embedding/{name}.c.j2")), text).unwrap();
    }
    let (code, rows) = check(folder.path(), &[]);
    assert_eq!((code, rows.len()), (1, names.len()));
    for (row, (_, why)) in rows
        .iter()
        .zip(cases.iter().map(|(head, why)| (head.as_str(), why)).chain(grids.iter().map(|(grid, why)| (*grid, why))))
    {
        let told = failures(row);
        assert!(!told.is_empty() && told.iter().all(|told| told.contains(why)), "{why}: {told:?}");
        assert!(*why == "could not allocate" || why.contains("in a test") || told[0].contains(".c.j2:"), "{told:?}");
    }
}

#[test]
fn parameters_of_too_many_choices_are_refused_where_they_are_declared() {
    let values: Vec<String> = (1..=51).map(|value| value.to_string()).collect();
    let param = |name: &str| {
        format!("\n[params.{name}]\nvalues = [{}]\ndefault = 1\ndoc = \"one of many\"\n", values.join(", "))
    };
    let head = format!("{}{}{}", param("a"), param("b"), param("c"));
    let folder = folder(&[("a_many", &head, "", "")]);
    let folder = folder.path().to_str().expect("a name");
    let ran = program::run(&["kernels", "check", "--all-params", "--op", "embedding", "--templates", folder]);
    let stdout = String::from_utf8(ran.stdout).expect("text");
    assert_eq!(ran.code, 1, "{stdout}");
    assert!(stdout.contains("a_many.c.j2:") && stdout.contains("at most 131072 choices"), "{stdout}");
}
