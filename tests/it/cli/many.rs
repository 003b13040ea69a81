//! Folders of templates that are larger than anybody's: the program takes time and memory in proportion.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::fixtures::program::{argument, command, file, shared_cache};

/// Templates of an op.
const N_VARIANTS: usize = 10_000;

/// What reading them may take of a processor, by a program that nobody optimised: it takes a few.
const CPU_SECONDS: u64 = 40;

/// Runs the program with the bound; what it prints.
fn within_bounds(args: &[&str]) -> String {
    let mut command: Command = command(shared_cache(), args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let limit = Rlimit { current: Some(CPU_SECONDS), maximum: Some(CPU_SECONDS) };
    prlimit(Some(Pid::from_child(&child)), Resource::Cpu, limit).expect("it is there: nobody waited for it");
    let output = child.wait_with_output().expect("reaped");
    assert!(output.status.success(), "{args:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_folder_of_10_000_variants_is_read_in_bounded_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = "{#\nop = \"rmsnorm\"\nsummary = \"nothing\"\n[launch]\ngrid = [\"n_tokens\"]\nblock_size = \"64\"\n#}\n\
                {{ signature }} { }\n";
    for i in 0..N_VARIANTS {
        let _ = file(folder.path(), &format!("rmsnorm/v{i}.hip.j2"), text.as_bytes());
    }
    let templates = argument(folder.path());
    let listed = within_bounds(&["kernels", "ls", "--arch", "gfx1100", "--op", "rmsnorm", "--templates", &templates]);
    let n_listed = listed.lines().filter(|line| line.starts_with("rmsnorm ")).count();
    assert!(n_listed >= N_VARIANTS, "{n_listed}");
}

#[test]
fn tables_of_20_000_rows_are_planned_with_in_bounded_time() {
    let row = |dims: &str, tokens: &str| {
        format!(
            "[[rows]]\nop = \"linear\"\nwhere = {{ precision = \"bf16\", {dims} }}\ntokens = \"{tokens}\"\n\
             use = \"linear/gemv\"\nparams = {{ tokens = 1 }}\nprovenance = \"p\"\n"
        )
    };
    // A row for each of many numbers of rows, and a row for each of many sizes.
    let of_tokens = |i: usize| row("out_features = 5120", &i.to_string());
    let of_dims = |i: usize| row(&format!("out_features = {i}"), "1+");
    for (name, rows) in [("tokens", &of_tokens as &dyn Fn(usize) -> String), ("dims", &of_dims)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let head = "[provenance.p]\nkind = \"predicted\"\ndate = \"2026-11-22\"\nmethod = \"made up\"\n";
        let table: String = std::iter::once(head.to_owned()).chain((1..=20_000).map(rows)).collect();
        let _ = file(folder.path(), "gfx1100.toml", table.as_bytes());
        let tuning = argument(folder.path());
        // Of its layers one of each kind: what the others do is the same.
        let of_shape = ["kernels", "plan", "--shape", "gpt-oss-20b", "--layers", "2", "--arch", "gfx1100"];
        let planned = within_bounds(&[&of_shape[..], &["--tuning", &tuning]].concat());
        assert!(planned.contains(&format!("{tuning}/gfx1100.toml:")), "{name}: no row of the table was taken");
    }
}
