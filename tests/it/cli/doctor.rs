//! `doctor`, and `cache explain` of a template, as a person would call them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::fixtures::program::shared_cache;
use crate::fixtures::skipped;

/// The program with a cache of its own, and without the caller's settings.
fn program(room: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"));
    command.args(arguments).env("GPTOSS_JIT_CACHE", room.path().join("cache")).env("XDG_CONFIG_HOME", room.path());
    for name in ["GPTOSS_JIT_TEMPLATES", "GPTOSS_JIT_HIPRTC", "GPTOSS_JIT_CACHE_SIZE", "GPTOSS_JIT_JOBS"] {
        command.env_remove(name);
    }
    command
}

/// The same with the kernels that tests share: `doctor` has the tiny model run.
fn doctor(room: &TempDir, arguments: &[&str]) -> Command {
    let mut command = program(room, &[&["doctor"], arguments].concat());
    command.env("GPTOSS_JIT_CACHE", shared_cache());
    command
}

fn room() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check `{name}`: {report}"))
}

/// All lines of a check.
fn details(check: &Value) -> String {
    check["details"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| format!("{}\n", line.as_str().expect("text")))
        .collect()
}

#[test]
fn doctor_says_that_run_would_work() {
    let room = room();
    let output = run(&mut doctor(&room, &["--json"]));
    let report = json(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!((&report["schema"], &report["ready"]), (&Value::from(1), &Value::from(true)));
    for name in ["cpu", "memory", "C compiler", "temporary", "cache", "templates", "tuning", "self-check"] {
        assert_eq!(check(&report, name)["state"], "ok", "{report}");
    }
    assert!(details(check(&report, "C compiler")).contains(" version "), "{report}");
    assert!(details(check(&report, "self-check")).contains("rmsnorm/"), "{report}");
    assert!(details(check(&report, "cache")).contains(": usable, "), "{report}");
    assert!(details(check(&report, "templates")).contains("built in: "), "{report}");
}

#[test]
fn doctor_fails_without_a_c_compiler_and_says_what_to_do() {
    let room = room();
    let output = run(program(&room, &["doctor"]).env("CC", "/nowhere/cc"));
    assert_eq!(output.status.code(), Some(1));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("missing  C compiler   could not find a C compiler: looked for `/nowhere/cc`"), "{out}");
    assert!(out.contains("hint: install a compiler"), "{out}");
    assert!(err.contains("error: `run` does not work here, on cpu: could not find a C compiler"), "{err}");
}

#[test]
fn doctor_fails_where_compilers_have_no_room_for_their_files() {
    let room = room();
    // A small disk takes a mount, in a namespace where that is allowed.
    let folder = room.path().join("small");
    fs::create_dir(&folder).expect("made");
    // Where there is room, kernels are there already; where there is none, not a source fits, and no compiler begins.
    let mounted = |size: &str, cache: &Path| {
        let (program, folder) = (env!("CARGO_BIN_EXE_gptoss-jit"), folder.display());
        let words =
            format!("mount -t tmpfs -o size={size} none {folder} && TMPDIR={folder} exec {program} doctor --json");
        run(Command::new("unshare").args(["-rm", "sh", "-c", &words]).env("GPTOSS_JIT_CACHE", cache))
    };
    let large = mounted("64m", shared_cache());
    if large.stdout.is_empty() {
        return skipped(&format!("no mounts: {}", String::from_utf8_lossy(&large.stderr).trim()));
    }
    assert_eq!(check(&json(&large), "temporary")["state"], "ok");
    let small = mounted("16k", &room.path().join("cache"));
    let report = json(&small);
    let temporary = check(&report, "temporary");
    assert_eq!(
        (small.status.code(), &temporary["state"], &report["ready"]),
        (Some(1), &"failed".into(), &false.into())
    );
    assert!(details(temporary).contains("compilers may need 16777216"), "{report}");
    assert!(temporary["hint"].as_str().is_some_and(|hint| hint.starts_with("set `TMPDIR`")), "{report}");
}

#[test]
fn doctor_says_where_hiprtc_was_looked_for_or_found() {
    let room = room();
    let report = json(&run(&mut doctor(&room, &["--json"])));
    let hiprtc = check(&report, "hipRTC");
    assert_eq!(hiprtc["needed"], false);
    // This machine may have ROCm.
    if hiprtc["state"] == "ok" {
        assert!(details(hiprtc).contains("libamd_comgr"), "{report}");
    } else {
        assert_eq!(hiprtc["state"], "missing", "{report}");
        assert!(details(hiprtc).contains("libhiprtc.so.6") && details(hiprtc).contains("/opt/rocm/lib"), "{report}");
        assert!(hiprtc["hint"].as_str().is_some_and(|hint| hint.contains("GPTOSS_JIT_HIPRTC")), "{report}");
    }
}

#[test]
fn doctor_finds_what_is_wrong_with_the_settings() {
    let room = room();
    fs::write(room.path().join("cache"), "a file").expect("written");
    let report = json(&run(&mut program(&room, &["doctor", "--json"])));
    assert_eq!((&check(&report, "cache")["state"], &report["ready"]), (&"failed".into(), &true.into()), "{report}");

    let output = run(doctor(&room, &["--json"]).env("GPTOSS_JIT_JOBS", "many"));
    let report = json(&output);
    assert_eq!((output.status.code(), &check(&report, "cache")["needed"]), (Some(1), &true.into()), "{report}");

    let output = run(doctor(&room, &["--json"]).env("GPTOSS_JIT_TEMPLATES", "/nowhere"));
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(details(check(&report, "templates")).contains("/nowhere"), "{report}");
}

#[test]
fn doctor_counts_the_templates_of_a_folder_and_names_a_broken_one() {
    let room = room();
    let folder = room.path().join("gptoss-jit/templates/rmsnorm");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("mine.c.j2"), "{# no front matter #}").expect("written");
    let report = json(&run(&mut doctor(&room, &["--json"])));
    let told = details(check(&report, "templates"));
    assert!(
        told.starts_with(&format!("{}: 0 templates\nbuilt in: ", room.path().join("gptoss-jit/templates").display())),
        "{told}"
    );
    assert!(told.contains("broken: ") && told.contains("mine.c.j2"), "{told}");
    // A broken file that could be chosen is an error, for `run` as for the self-check.
    assert_eq!(check(&report, "self-check")["state"], "failed", "{report}");
}

#[test]
fn doctor_outlives_a_kernel_that_ends_its_process() {
    let room = room();
    let folder = room.path().join("gptoss-jit/templates/rmsnorm");
    fs::create_dir_all(&folder).expect("made");
    let head = "op = \"rmsnorm\"\nsummary = \"a trap\"\n[launch]\ngrid = [\"n_tokens\"]";
    let body = "{% include \"lib/host/types.c.j2\" %}\n{{ signature }} { __builtin_trap(); }";
    fs::write(folder.join("deadly.c.j2"), format!("{{#\n{head}\n#}}\n{body}\n")).expect("written");
    let output = run(&mut doctor(&room, &["--json"]));
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    let told = details(check(&report, "self-check"));
    assert!(told.contains("rmsnorm/deadly") && told.contains("its process ended: signal"), "{told}");
    assert_eq!(check(&report, "C compiler")["state"], "ok", "the checks after it and before it are told: {report}");
}

#[test]
fn a_report_tells_a_part_that_ran_out_of_time_from_one_that_failed() {
    let room = room();
    // A compiler that never answers.
    let compiler = room.path().join("cc");
    fs::write(&compiler, "#!/bin/sh\nexec sleep 600\n").expect("written");
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o700)).expect("set");
    let file = room.path().join("report.md");
    let words = ["doctor", "--device", "cpu", "--seconds", "1", "--json", "--report"];
    let output = run(program(&room, &words).arg(&file).env("CC", &compiler));
    let report = json(&output);
    let part = |name: &str| {
        let parts = report["parts"].as_array().expect("a list");
        let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"));
        (part["state"].clone(), part["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(part("doctor"), ("out_of_time".into(), "it was stopped after 1 s".into()));
    assert_eq!(part("peaks"), ("left_out".into(), "no time was left: `--seconds` gives more".into()));
    let text = fs::read_to_string(file).expect("the report");
    assert!(text.contains("ran out of time"), "{text}");
}

#[test]
fn the_key_of_a_template_is_explained() {
    let room = room();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/odd");
    let (model, ids) = (fixture.join("model.bin"), fixture.join("ids.txt"));
    // The vocabulary of the model and of the op's first test.
    let explain = ["cache", "explain", "sample/rows", "--precision", "f32", "--json", "--with", "vocab_size=131"];
    let nothing = json(&run(&mut program(&room, &explain)));
    assert_eq!((&nothing["result"], &nothing["digest"]), (&"miss".into(), &Value::Null));

    let logits = room.path().join("logits.npy");
    let arguments: [&Path; 6] = ["logits".as_ref(), &model, "--ids".as_ref(), &ids, "-o".as_ref(), &logits];
    let ran = run(program(&room, &[]).args(arguments));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));

    let hit = json(&run(&mut program(&room, &explain)));
    assert_eq!((&hit["result"], &hit["label"]), (&"hit".into(), &"sample/rows".into()), "{hit}");
    let miss = json(&run(program(&room, &explain).args(["--with", "vocab_size=132"])));
    assert_eq!((&miss["result"], &miss["label"]), (&"miss".into(), &"sample/rows".into()), "{miss}");
    assert_eq!(miss["differences"][0]["field"], "source", "{miss}");
    let text = |side: &str| miss["differences"][0][side].as_str().expect("text").to_owned();
    assert!(text("theirs").contains("131") && text("ours").contains("132"), "{miss}");
}

#[test]
fn explaining_takes_a_template_or_an_entry() {
    let room = room();
    for (arguments, expected) in [
        (&["linear/dot", "0123"][..], "a template is compared with the nearest entry"),
        (&["0123", "--with", "n=1"], "name one, such as `linear/dot`"),
        (&["rmsnorm/row"], "`rmsnorm/row` is for a GPU: add --arch"),
    ] {
        let output = run(program(&room, &["cache", "explain"]).args(arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}
