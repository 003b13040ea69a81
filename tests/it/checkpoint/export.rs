//! `export`: files that others wrote come out byte for byte, and one that is not finished is nowhere.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use serde_json::Value;

use crate::fixtures::program::{argument, command, keys, parse_ids, run, shared_cache};
use crate::fixtures::skipped;
use crate::graph::forward::{ONE_BY_ONE, drain, greedy, load_checkpoint};

fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

fn n_files(folder: &Path) -> usize {
    fs::read_dir(folder).expect("listed").count()
}

#[test]
fn bin_files_that_others_wrote_come_out_byte_for_byte() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["odd", "bf16", "gqa8", "rope_plain"] {
        let (model, out) = (argument(&fixtures().join("hf").join(name).join("model.bin")), folder.path().join(name));
        let ran = run(&["export", &model, &argument(&out), "--verify"]).ok();
        assert!(fs::read(&out).expect("there") == fs::read(&model).expect("there"), "{name}");
        assert!(ran.text().ends_with(&format!("  {}\n", out.display())), "{}", ran.text());
        assert!(ran.stderr.contains("read back and compared"), "{}", ran.stderr);
        let mut sums = Command::new("sha256sum")
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("coreutils");
        sums.stdin.take().expect("piped").write_all(&ran.stdout).expect("written");
        assert!(sums.wait().expect("reaped").success(), "{name}: {}", ran.text());
    }
}

#[test]
fn every_kind_comes_out_as_the_bytes_that_the_seeds_exporter_writes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = argument(&folder.path().join("out.bin"));
    let fixture = fs::read(fixtures().join("checkpoints/fixture.json")).expect("a fixture");
    let digests = &serde_json::from_slice::<Value>(&fixture).expect("JSON")["bin_sha256"];
    let kinds = [
        ("hf-bf16", "bf16"),
        ("hf-bf16-sharded", "bf16"),
        ("hf-mxfp4", "mxfp4"),
        ("openai", "mxfp4"),
        ("gguf/mxfp4-bf16.gguf", "mxfp4"),
    ];
    for (name, expected) in kinds {
        let model = argument(&fixtures().join("checkpoints").join(name));
        for flags in [&[][..], &["--dtype", "f32"]] {
            let report = run(&[&["export", &model, &out, "--force", "--json"], flags].concat()).ok().json();
            let dtype = report["dtype"].as_str().expect("a type");
            assert_eq!(report["sha256"], digests[expected][dtype], "{name} as {dtype}");
            assert_eq!(report["rounded"], 0, "{name} as {dtype}");
        }
        // What was exported is read and exported the same.
        let again = argument(&folder.path().join("again.bin"));
        run(&["export", &out, &again, "--force"]).ok();
        assert!(fs::read(&out).expect("there") == fs::read(&again).expect("there"), "{name}");
    }
}

#[test]
fn exports_give_the_logits_and_the_tokens_of_transformers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| argument(&fixtures().join("checkpoints").join(name));
    let ids = path("ids.txt");
    // Others with the same expectation are the same bytes: the test above. What Q8_0 and F16 stand for, f32 alone
    // holds.
    for (name, expected) in [("hf-bf16", "bf16"), ("openai", "mxfp4"), ("gguf/mxfp4-q8_0.gguf", "q8_0")] {
        let out = argument(&folder.path().join(expected));
        run(&["export", &path(name), &out, "--dtype", "f32"]).ok();
        let logits = path(&format!("expected/{expected}/logits.npy"));
        run(&["logits", &out, "--ids", &ids, "--expect", &logits, "--rtol", "0", "--atol", "2e-4", "--device", "cpu"])
            .ok();

        let lines = |name: &str| parse_ids(&fs::read_to_string(path(name)).expect("a fixture"));
        let checkpoint = Checkpoint::open(Path::new(&out), Layout::Auto).expect("a checkpoint");
        let driver = Arc::new(HostDriver::new(2).expect("threads"));
        let mut engine = load_checkpoint(driver, &checkpoint, 64, ONE_BY_ONE).expect("loads");
        for (prompt, answer) in lines("ids.txt").iter().zip(&lines(&format!("expected/{expected}/greedy.txt"))) {
            let request = engine.submit(greedy(prompt, answer.len(), &[])).expect("fits");
            assert_eq!(&drain(&mut engine)[&request].0, answer, "{name}");
        }
    }
    let ran = run(&["export", &path("gguf/mxfp4-q8_0.gguf"), &argument(&folder.path().join("rounded"))]).ok();
    assert!(ran.stderr.contains(" numbers were rounded to bf16\n"), "{}", ran.stderr);
}

#[test]
fn a_type_and_a_length_can_be_asked_for_and_what_that_costs_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| argument(&folder.path().join(name));
    let model = argument(&fixtures().join("hf/gqa8/model.bin")); // f32 numbers that bf16 holds
    let report = run(&["export", &model, &path("a"), "--dtype", "bf16", "--max-seq-len", "77", "--json"]).ok().json();
    let expected =
        ["schema", "path", "bytes", "parameters", "dtype", "max_seq_len", "rounded", "sha256", "verified", "seconds"];
    assert_eq!(keys(&report), expected.into());
    assert_eq!((&report["dtype"], &report["rounded"], &report["max_seq_len"]), (&"bf16".into(), &0.into(), &77.into()));
    assert_eq!(report["bytes"], fs::metadata(path("a")).expect("there").len());
    run(&["export", &path("a"), &path("b"), "--dtype", "f32", "--max-seq-len", "256"]).ok();
    assert!(fs::read(path("b")).expect("there") == fs::read(&model).expect("there"));

    let odd = argument(&fixtures().join("hf/odd/model.bin"));
    let ran = run(&["export", &odd, &path("c"), "--dtype", "bf16"]).ok();
    assert!(ran.stderr.contains(" numbers were rounded to bf16\n"), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (model, out) = (argument(&fixtures().join("hf/bf16/model.bin")), argument(&folder.path().join("out.bin")));
    fs::write(&out, "precious").expect("written");
    let stderr = run(&["export", &model, &out]).fails_with_hint(1);
    assert!(stderr.contains("there is a file of this name") && stderr.contains("`--force`"), "{stderr}");
    assert_eq!(fs::read_to_string(&out).expect("there"), "precious");
    run(&["export", &model, &out, "--force"]).ok();
    assert!(fs::read(&out).expect("there") == fs::read(&model).expect("there"));

    // 13 TB.
    let big = argument(&folder.path().join("big.bin"));
    let stderr = run(&["export", "--shape", "gpt-oss-120b", "--layers", "1000", "--weights", "f32", &big]).fails(1);
    assert!(stderr.contains("bytes, and the disk of `") && stderr.contains("hint: "), "{stderr}");
    assert_eq!(n_files(folder.path()), 1);

    run(&["export", &out]).fails(2);
    run(&["export", &model, &argument(folder.path()), "--force"]).fails(1);
    run(&["export", &model, "/nowhere/out.bin"]).fails(1);
    run(&["export", "/nowhere/model.bin", &big]).fails(1);
    run(&["export", &model, &big, "--max-seq-len", "0"]).fails_with_hint(1);
    assert_eq!(n_files(folder.path()), 1);
}

#[test]
fn an_export_that_is_interrupted_or_killed_leaves_nothing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let out = argument(&folder.path().join("out.bin"));
    for (signal, message) in [("INT", Some("interrupted")), ("TERM", Some("interrupted")), ("KILL", None)] {
        // 4 GB: it takes seconds to write them.
        let args = ["export", "--shape", "gpt-oss-20b", "--layers", "1", "--quiet", &out];
        let mut child = command(shared_cache(), &args).stderr(Stdio::piped()).spawn().expect("started");
        let deadline = Instant::now() + Duration::from_secs(600);
        while written_bytes(child.id()) < 10_000_000 && child.try_wait().expect("waited").is_none() {
            assert!(Instant::now() < deadline, "it writes");
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        kill.expect("a command"); // fails for a process that is over
        let status = child.wait().expect("reaped");
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        if stderr.contains("the disk is too small") {
            skipped("no 4 GB of disk to begin an export with");
            return;
        }
        assert!(!status.success());
        assert!(message.is_none_or(|message| stderr.contains(message)), "{signal}: {stderr}");
        if signal == "KILL" && !has_nameless_files(folder.path()) {
            skipped("no nameless files here: what is killed leaves one");
            return;
        }
        assert_eq!(n_files(folder.path()), 0, "{signal}");
    }
}

fn has_nameless_files(folder: &Path) -> bool {
    use rustix::fs::{Mode, OFlags};

    rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).is_ok()
}

/// What a process has written so far, by the kernel's account.
fn written_bytes(id: u32) -> u64 {
    let account = fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
    let wchar = account.lines().find_map(|line| line.strip_prefix("wchar: "));
    wchar.and_then(|count| count.parse().ok()).unwrap_or(0)
}
