//! `gptoss-jit cache …`, as a person or a script runs it.

use std::fs;
use std::process::{Command, Output, Stdio};

use kernel::object::key::KernelKey;
use serde_json::Value;

use super::{Room, key, names};

impl Room {
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"));
        command.arg("cache").args(args).env("GPTOSS_JIT_CACHE", self.root()).env_remove("GPTOSS_JIT_CACHE_SIZE");
        command.stdin(Stdio::null()).output().expect("started")
    }

    fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, args: &[&str]) -> Value {
        let value: Value = serde_json::from_str(&self.stdout(&[args, &["--json"]].concat())).expect("JSON");
        assert_eq!(value["schema"], 1);
        value
    }

    /// Runs what should fail; gives the exit code and stderr.
    fn fails(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?} succeeded");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    }
}

fn short(key: &KernelKey) -> String {
    key.digest().to_string()[..12].into()
}

#[test]
fn dir_tells_the_folder_and_makes_none() {
    let room = Room::new();
    assert_eq!(room.stdout(&["dir"]), format!("{}\n", room.root().display()));
    assert_eq!(room.json(&["dir"])["root"], room.root().to_str().expect("text"));
    assert!(!room.root().exists());
}

#[test]
fn ls_lists_and_show_shows() {
    let room = Room::new();
    let (good, bad) = (key("void k() {}"), key("broken"));
    room.publish(&good);
    room.open().remember_failure(&bad, "linear/mfma", "1:1: error\n");
    let text = room.stdout(&["ls", "--sort", "label"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("digest        label         target"), "{text}");
    assert!(lines[1].starts_with(&short(&bad)) && lines[1].ends_with("failure"), "{text}");
    assert!(lines[2].starts_with(&short(&good)) && lines[2].contains("rmsnorm/simt"), "{text}");

    let listed = room.json(&["ls"]);
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(2));
    let shown = room.json(&["show", &short(&good)]);
    assert_eq!(shown["digest"], good.digest().to_string());
    assert_eq!(shown["meta"]["key"]["options"][0], "-O3");
    assert_eq!(shown["meta"]["object"]["len_bytes"], 21);
    assert!(room.stdout(&["show", &short(&good)]).contains("target       gfx90a:sramecc+:xnack-\n"));
    assert_eq!(room.stdout(&["show", &short(&good), "--source"]), "void k() {}");
    assert_eq!(room.stdout(&["show", &short(&bad), "--log"]), "1:1: error\n");
}

#[test]
fn a_prefix_that_means_none_or_several_is_refused_by_name() {
    let room = Room::new();
    // Of 17 digests, two begin with the same digit.
    let keys: Vec<KernelKey> = (0..17).map(|i| key(&format!("k{i}"))).collect();
    keys.iter().for_each(|key| drop(room.publish(key)));
    let first = |key: &KernelKey| key.digest().to_string()[..1].to_owned();
    let doubled = keys.iter().map(first).find(|c| keys.iter().filter(|key| first(key) == *c).count() > 1);
    let doubled = doubled.expect("by the pigeonhole principle");
    let (code, stderr) = room.fails(&["show", &doubled]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("could not tell which cache entry `{doubled}` means")), "{stderr}");
    let (code, stderr) = room.fails(&["pin", &short(&keys[0]), "zz"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("`zz`") && stderr.contains("hint:") && stderr.contains("cache ls"), "{stderr}");
    assert_eq!(room.stdout(&["unpin", &short(&keys[0])]).lines().count(), 1);
    let pinned = room.json(&["ls"])["entries"].as_array().expect("a list").iter().any(|e| e["pinned"] == true);
    assert!(!pinned, "a wrong prefix changes nothing");
}

#[test]
fn explain_tells_the_field_and_the_line() {
    let room = Room::new();
    let (one, other) = (key("a\nb\n"), key("a\nB\n"));
    room.publish(&one);
    assert!(room.stdout(&["explain", &short(&one)]).contains("no other entry"));
    room.publish(&other);
    let third = KernelKey { target: "gfx1100".into(), compiler: "x".into(), ..key("a\nb\n") };
    room.publish(&third);
    let text = room.stdout(&["explain", &short(&one)]);
    assert!(text.contains(&short(&other)) && text.contains("source, line 2"), "{text}");
    assert!(text.contains("there: `B`\n    here:  `b`"), "{text}");
    let differences = &room.json(&["explain", &short(&one), &short(&third)])["differences"];
    assert_eq!(differences[0]["field"], "target");
    assert_eq!(differences[0]["theirs"], "gfx1100");
    assert_eq!(differences[1]["field"], "compiler");
}

#[test]
fn verify_finds_and_repairs() {
    let room = Room::new();
    let dir = room.publish(&key("s"));
    let whole = room.publish(&key("t"));
    assert_eq!(room.json(&["verify"])["entries"], 2);
    fs::write(dir.join("object"), "not what was compiled").expect("written");
    fs::write(whole.join("notes.txt"), "mine").expect("written");
    fs::write(room.root().join("v1/README"), "mine").expect("written");
    let (code, stderr) = room.fails(&["verify"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("found 3 problems in the cache") && stderr.contains("--repair"), "{stderr}");
    assert!(dir.exists(), "without --repair nothing is changed");
    let repaired = room.json(&["verify", "--repair"]);
    assert_eq!((repaired["repaired"].as_u64(), repaired["findings"].as_array().map(Vec::len)), (Some(3), Some(3)));
    assert!(!dir.exists() && whole.exists());
    assert_eq!(room.json(&["verify"])["entries"], 1);
}

#[test]
fn pin_follows_no_link() {
    let room = Room::new();
    let entry = key("linked");
    let pin = room.publish(&entry).join("pin");
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let outside = elsewhere.path().join("outside");
    std::os::unix::fs::symlink(&outside, &pin).expect("linked");
    let (code, stderr) = room.fails(&["pin", &short(&entry)]);
    assert!(code == Some(1) && stderr.contains("could not write"), "{stderr}");
    assert!(!outside.exists(), "what the link named was made");
}

#[test]
fn prune_clear_and_pin_say_what_they_did() {
    let room = Room::new();
    let (pinned, other) = (key("pinned"), key("other"));
    room.publish(&pinned);
    room.publish(&other);
    assert_eq!(room.json(&["pin", &short(&pinned)])["digests"][0], pinned.digest().to_string());
    let removed = room.json(&["prune", "--max", "0"]);
    assert_eq!((&removed["entries"], &removed["kept_pinned"]), (&1.into(), &1.into()));
    assert_eq!(room.fails(&["prune", "--max", "much"]).0, Some(2));

    let (code, stderr) = room.fails(&["clear"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--yes"), "{stderr}");
    let text = room.stdout(&["clear", "--yes"]);
    assert!(text.starts_with("removed 0 entries") && text.ends_with("kept 1 pinned\n"), "{text}");
    assert_eq!(room.json(&["clear", "--yes", "--all"])["entries"], 1);
    assert_eq!(room.json(&["ls"])["entries"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_unusable_folder_is_an_error_with_a_hint() {
    let room = Room::new();
    fs::write(room.root(), "in the way").expect("written");
    let (code, stderr) = room.fails(&["ls"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains(room.root().to_str().expect("text")) && stderr.contains("GPTOSS_JIT_CACHE"), "{stderr}");
    assert_eq!(names(&room.root()), [""; 0]);
}
