//! `kernels compare` of tables and of whole steps: what it is asked for. What it computes is tested where it does that,
//! in `src/kernels/compare/steps.rs`.

use std::fs;

use crate::fixtures::program::run;

#[test]
fn tables_and_whole_steps_are_compared_for_an_arch() {
    let folder = tempfile::tempdir().expect("a folder");
    let tables = folder.path().to_str().expect("a name");
    let said = run(&["kernels", "compare", "today", tables, "--device", "cpu"]).fails(2);
    assert!(said.contains("tables are compared by predicted steps: `--arch`; `tune diff A B --device`"), "{said}");
    let said = run(&["kernels", "compare", "today", tables, "--arch", "x86-64-v3"]).fails(2);
    assert!(said.contains("times of processors are measured, not predicted"), "{said}");
    let said = run(&["kernels", "compare", "today", tables, "--arch", "sim:gfx1100"]).fails(2);
    assert!(said.contains("the simulator says nothing of speed; use `--arch gfx1100`"), "{said}");
    let said = run(&["kernels", "compare", "rmsnorm/rows", "rmsnorm/rows", "--device", "cpu", "--steps"]).fails(2);
    assert!(said.contains("'--device <DEVICE>' cannot be used with '--steps'"), "{said}");
    // What is wrong with one of them is told with its line, before anything is compiled.
    fs::write(folder.path().join("gfx1100.toml"), "[[rows]]\nop = 3\n").expect("written");
    let said = run(&["kernels", "compare", "today", tables, "--arch", "gfx1100"]).fails_with_hint(1);
    assert!(said.contains(&format!("{tables}/gfx1100.toml:2: could not read the tuning table")), "{said}");
}
