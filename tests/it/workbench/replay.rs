//! Launches of real steps: taken down by `run`, made again by `kernels replay`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::fixtures::program::{Ran, argument, repository, run};

/// Runs the built-in model, with a launch taken down.
pub(super) fn capture(what: &str, file: &Path) -> Ran {
    capture_on("cpu", what, file)
}

fn capture_on(device: &str, what: &str, file: &Path) -> Ran {
    let file = argument(file);
    run(&[
        "run",
        "-m",
        "generate",
        "-i",
        "Once upon",
        "--max-new-tokens",
        "3",
        "--device",
        device,
        "--capture-launch",
        what,
        &file,
    ])
}

fn replay(file: &Path, flags: &[&str]) -> (i32, Value) {
    let file = argument(file);
    let ran = run(&[&["kernels", "replay", &file, "--json"], flags].concat());
    let report = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    (ran.code, report)
}

/// In the simulator memory that nobody wrote holds no numbers: positions of the cache that are to come, and keys and
/// values in `qkv`, which the contract leaves open.
#[test]
fn what_a_step_leaves_unwritten_is_no_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("launch");
    let said = capture_on("sim:gfx1100", "block.0.attn.norm,2", &file).ok();
    let command = format!("`gptoss-jit kernels replay {} --device sim:gfx1100`", file.display());
    assert!(said.stderr.contains(&command), "{}", said.stderr);
    let (code, same) = replay(&file, &["--device", "sim:gfx1100"]);
    assert_eq!((code, &same["right"]), (0, &Value::Bool(true)), "{same}");
    let outputs = same["outputs"].as_array().expect("a list");
    assert!(outputs.iter().all(|one| one["different"] == 0), "{same}");
    let qkv = outputs.iter().find(|one| one["name"] == "qkv").expect("it is written");
    // Four heads of 32 with two of keys and two of values: q is half of a row.
    assert_eq!((&qkv["open"], &qkv["elements"]), (&128.into(), &128.into()), "{same}");
}

#[test]
fn a_launch_of_a_step_is_made_again_on_the_host_and_in_the_simulator() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("launch");
    capture("block.0.attn.norm,2", &file).ok();
    let (code, same) = replay(&file, &["--device", "cpu"]);
    assert_eq!((code, &same["right"], &same["rows"]), (0, &Value::Bool(true), &1.into()), "{same}");
    assert!(same["outputs"].as_array().expect("a list").iter().all(|one| one["different"] == 0), "{same}");
    assert!(same["median_us"].as_f64().is_some_and(|us| us > 0.0), "{same}");

    let (code, other) = replay(&file, &["--device", "sim:gfx1100"]);
    assert_eq!((code, &other["right"], &other["device"]), (0, &Value::Bool(true), &"sim:gfx1100".into()), "{other}");
    assert_ne!(other["template"], same["template"], "{other}");
    assert!(
        other["worst_error"].as_f64().is_some_and(|worst| worst <= 1.0),
        "it was held against the reference: {other}"
    );
    assert_eq!(other["median_us"], Value::Null, "{other}");

    // What the simulator's processor stops is told with its line, and ends no process.
    let name = other["template"].as_str().expect("a name");
    let text = fs::read_to_string(repository().join(format!("templates/{name}.hip.j2"))).expect("it is there");
    let own = argument(folder.path());
    let template = folder.path().join(format!("{name}.hip.j2"));
    fs::create_dir(template.parent().expect("a folder")).expect("made");
    fs::write(
        &template,
        text.replace("{{ signature }} {", "{{ signature }} { volatile int none = 0; if (7 / none == 3) return;"),
    )
    .expect("written");
    let divided = ["kernels", "replay", &argument(&file), "--device", "sim:gfx1100", "--templates", &own];
    let stderr = run(&divided).fails(1);
    assert!(stderr.contains("divides a whole number by 0") && stderr.contains(".hip.j2:"), "{stderr}");
    assert!(stderr.contains(&format!("  `gptoss-jit kernels show {name} --arch gfx1100 ")), "{stderr}");

    // A template that does something else is told.
    let captured = same["captured"]["template"].as_str().expect("a name");
    let (op, variant) = captured.split_once('/').expect("of two parts");
    let text = fs::read_to_string(repository().join(format!("templates/{captured}.c.j2"))).expect("it is there");
    fs::create_dir_all(folder.path().join(op)).expect("made");
    fs::write(
        folder.path().join(format!("{op}/{variant}.c.j2")),
        text.replace("{{ signature }} {", "{{ signature }} { return; "),
    )
    .expect("written");
    let (code, wrong) = replay(&file, &["--device", "cpu", "--templates", &argument(folder.path())]);
    assert_eq!((code, &wrong["right"]), (1, &Value::Bool(false)), "{wrong}");
    assert!(wrong["why"].as_str().is_some_and(|why| why.contains("elements are wrong")), "{wrong}");
}

#[test]
fn captured_parameters_are_kept_and_a_changed_file_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("launch");
    capture("block.0.attn.norm,2", &file).ok();
    let bytes = fs::read(&file).expect("written");
    let header = |bytes: &[u8]| -> (usize, Value) {
        let begin = bytes.iter().position(|byte| *byte == b'\n').expect("a line") + 1 + size_of::<u64>();
        let length = u64::from_le_bytes(bytes[begin - 8..begin].try_into().expect("eight")) as usize;
        (begin, serde_json::from_slice(&bytes[begin..begin + length]).expect("a header"))
    };
    // The header with a change, and the tensors behind it where they are looked for.
    let changed = |change: &dyn Fn(&mut Value)| {
        let (begin, mut value) = header(&bytes);
        let old = u64::from_le_bytes(bytes[begin - 8..begin].try_into().expect("eight")) as usize;
        change(&mut value);
        let text = serde_json::to_vec(&value).expect("it is JSON");
        let mut new = bytes[..begin - 8].to_vec();
        new.extend((text.len() as u64).to_le_bytes());
        new.extend(&text);
        new.resize(new.len().next_multiple_of(64), 0);
        new.extend(&bytes[(begin + old).next_multiple_of(64)..]);
        fs::write(&file, new).expect("written");
    };
    let (_, before) = header(&bytes);
    // Other values than the tables choose: those of the file are taken, on a processor too.
    assert_eq!(before["params"]["tile_t"], 8, "{before}");
    changed(&|value| value["params"]["tile_t"] = 4.into());
    let (code, report) = replay(&file, &["--device", "cpu"]);
    assert_eq!((code, &report["params"]["tile_t"]), (0, &4.into()), "{report}");
    // Those that no kernel has are told, and others taken.
    changed(&|value| value["params"]["tile_t"] = 5.into());
    let ran = run(&["kernels", "replay", &argument(&file), "--device", "cpu"]);
    assert!(ran.code == 0 && ran.stderr.contains("does not take the captured parameters"), "{}", ran.stderr);

    for (change, expected) in [
        (
            &(|value: &mut Value| value["scalars"]["n_tokens"] = 1_000_000_000_000_u64.into()) as &dyn Fn(&mut Value),
            "1000000000000",
        ),
        (&|value| value["scalars"]["n_tokens"] = 2.into(), "bytes in the file, expected"),
        (&|value| value["args"][0]["dtype"] = "bf16".into(), "`x` is bf16 in the file, expected f32"),
        (&|value| value["dims"]["out_features"] = 512.into(), "bytes in the file, expected"),
        (&|value| drop(value["args"].as_array_mut().expect("a list").remove(1)), "the file has no `"),
        (&|value| value["args"][0]["before"]["end"] = (u64::MAX / 2).into(), "it ends after"),
    ] {
        changed(change);
        let said = run(&["kernels", "replay", &argument(&file), "--device", "cpu"]).fails(1);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn a_launch_that_is_not_there_is_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("launch");
    let said = capture("block.0.attn.nrm", &file).fails(2);
    assert!(said.contains("the model has no node `block.0.attn.nrm`: did you mean `block.0.attn.norm`?"), "{said}");
    let said = capture("block.0.attn.norm,0", &file).fails(2);
    assert!(said.contains("expected a step's number, from 1"), "{said}");
    let ran = capture("block.0.attn.norm,900", &file);
    assert!(ran.code == 1 && ran.stderr.contains("was launched in fewer than 900 steps"), "{}", ran.stderr);
    assert!(!file.exists());
    fs::write(&file, "something else").expect("written");
    let said = run(&["kernels", "replay", &argument(&file), "--device", "cpu"]).fails(1);
    assert!(said.contains("it is no captured launch"), "{said}");
}

#[test]
fn two_parameter_sets_are_held_beside_each_other() {
    let flags = ["--device", "cpu", "--tokens", "1", "--json"];
    let ran = run(&[&["kernels", "compare", "rmsnorm/rows", "rmsnorm/rows"], &flags[..]].concat());
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    for side in ["a", "b"] {
        assert!(report[side]["right"].as_str().is_some_and(|right| right.starts_with("right in ")), "{report}");
    }
    let line = &report["lines"][0];
    for side in ["a", "b"] {
        assert!(line[side]["us"].as_f64().is_some_and(|us| us > 0.0), "{report}");
        assert!(line[side]["kernel"].as_str().is_some_and(|kernel| kernel.starts_with("rmsnorm/rows")), "{report}");
    }
    let said = run(&["kernels", "compare", "rmsnorm/rows", "embedding/rows", "--device", "cpu"]).fails(2);
    assert!(said.contains("one does `rmsnorm` and the other `embedding`"), "{said}");
    let said = run(&["kernels", "compare", "rmsnorm/rows", "today", "--device", "cpu"]).fails(2);
    assert!(said.contains("two kernels or two folders of tables are compared"), "{said}");
    let said = run(&["kernels", "compare", "rmsnorm/rows", "rmsnorm/rows:row=1", "--device", "cpu"]).fails(2);
    assert!(said.contains("`rmsnorm/rows` has no parameter `row`: it has none"), "{said}");
    let said = run(&["kernels", "compare", "rmsnorm/rows", "rmsnorm/rows", "--arch", "x86-64-v3"]).fails(2);
    assert!(said.contains("times of processors are measured, not predicted; use `--device cpu`"), "{said}");
    let said = run(&["kernels", "check", "--variant", "rmsnorm/rows", "--set", "row=1"]).fails(2);
    assert!(said.contains("--set: `rmsnorm/rows` has no parameter `row`"), "{said}");
}

#[test]
fn a_kernel_that_does_not_compile_does_not_end_a_comparison() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("rmsnorm")).expect("made");
    let text = fs::read_to_string(repository().join("templates/rmsnorm/rows.c.j2")).expect("it is there");
    let broken = folder.path().join("rmsnorm/broken.c.j2");
    fs::write(&broken, text.replace("{{ signature }} {", "{{ signature }} { no_such_word;")).expect("written");
    let args = ["kernels", "compare", &argument(&broken), "rmsnorm/rows", "--device", "cpu", "--tokens", "1", "--json"];
    let ran = run(&args);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    assert!(report["a"]["right"].as_str().is_some_and(|right| right.contains("no_such_word")), "{report}");
    let line = &report["lines"][0];
    assert!(line["a"]["why"].as_str().is_some_and(|why| why.contains("could not compile kernel")), "{report}");
    assert!(line["b"]["us"].as_f64().is_some_and(|us| us > 0.0) && line["verdict"].is_null(), "{report}");
}
