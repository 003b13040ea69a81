//! `gptoss-jit bundle`: kernels compiled ahead, and machines without a compiler that run from them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use kernel::target::Target;
use serde_json::Value;
use tempfile::TempDir;

use crate::fixtures::program::{Ran, argument, command, run};
use crate::fixtures::skipped;

/// What the tiny model is asked.
const ASK: [&str; 8] = ["run", "--device", "cpu", "-i", "Once upon a time", "-n", "12", "--json"];

/// This machine's processor, as far as templates look at it.
fn host() -> String {
    let host = Target::host();
    let asked = ["amx_bf16", "avx512bf16"].into_iter().filter(|name| host.features.contains(*name));
    std::iter::once(host.arch.clone()).chain(asked.map(|name| format!("+{name}"))).collect()
}

/// The bundle of the tiny model for this machine, made once, by a store that has its kernels in the tests' cache.
fn bundle() -> &'static Path {
    static MADE: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("kernels.tar.zst");
        make(&path, &host());
        (folder, path)
    });
    &MADE.1
}

fn make(path: &Path, arch: &str) -> Value {
    run(&["bundle", "--arch", arch, "--model", "tiny", "-o", &argument(path), "--json"]).ok().json()
}

/// A machine that has nothing: no compiler on its path, one by its variable that fails, and an empty cache.
struct Bare {
    folder: TempDir,
}

impl Bare {
    fn new() -> Self {
        let bare = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        fs::create_dir(bare.bundles()).expect("made");
        let failing = bare.folder.path().join("cc");
        fs::write(&failing, "#!/bin/sh\nexit 1\n").expect("written");
        fs::set_permissions(&failing, fs::Permissions::from_mode(0o755)).expect("ours");
        bare
    }

    fn bundles(&self) -> PathBuf {
        self.folder.path().join("bundles")
    }

    /// A copy of the bundle in its folder.
    fn with_bundle(self) -> (Self, PathBuf) {
        let copy = self.bundles().join("kernels.tar.zst");
        fs::copy(bundle(), &copy).expect("copied");
        (self, copy)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.folder.path().join("cache"), args);
        command.env("PATH", self.folder.path().join("nothing")).env("CC", self.folder.path().join("cc"));
        command.env("GPTOSS_JIT_BUNDLES", self.bundles());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(args, self.command(args).output().expect("started"))
    }
}

#[test]
fn two_runs_make_the_same_bytes_and_any_tar_unpacks_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let again = folder.path().join("again.tar.zst");
    let made = make(&again, &host());
    assert_eq!(fs::read(bundle()).expect("made"), fs::read(&again).expect("made"));
    let n = made["kernels"].as_u64().expect("a number");
    assert!(n >= 20 && made["failures"] == 0, "{made}");
    assert_eq!(made["bytes"], fs::metadata(&again).expect("there").len());

    let verified = run(&["bundle", "verify", &argument(&again), "--json"]).ok().json();
    assert_eq!((verified["kernels"].as_u64(), verified["findings"].as_array().map(Vec::len)), (Some(n), Some(0)));
    let listed = run(&["bundle", "ls", &argument(&again), "--json"]).ok().json();
    assert_eq!(
        (&listed["bundles"][0]["targets"][0], &listed["bundles"][0]["models"][0]),
        (&host().into(), &"tiny".into())
    );

    let tar = Command::new("tar").args(["--zstd", "-xf"]).arg(&again).arg("-C").arg(folder.path()).output();
    let Ok(tar) = tar.map_err(drop).and_then(|tar| if tar.status.success() { Ok(tar) } else { Err(()) }) else {
        return skipped("`tar --zstd` is not here");
    };
    assert_eq!(String::from_utf8_lossy(&tar.stderr), "");
    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.path().join("manifest.json")).expect("there")).expect("JSON");
    for kernel in manifest["kernels"].as_array().expect("a list") {
        let [key, source] = ["key", "source_sha256"].map(|name| kernel[name].as_str().expect("a digest"));
        let object = fs::read(folder.path().join("objects").join(key)).expect("there");
        assert_eq!(Some(object.len() as u64), kernel["object"]["len_bytes"].as_u64());
        assert!(object.starts_with(b"\x7fELF"));
        assert!(folder.path().join("sources").join(source).is_file());
    }
}

#[test]
fn a_machine_without_a_compiler_runs_from_a_bundle() {
    let (bare, path) = Bare::new().with_bundle();
    let here = run(&ASK).ok().json();
    let there = bare.run(&ASK).ok().json();
    assert_eq!(there["text"], here["text"]);
    let kernels = &there["kernels"];
    assert!(kernels["from_bundles"].as_u64().is_some_and(|n| n >= 15), "{kernels}");
    assert_eq!((&kernels["from_cache"], &kernels["compiled"]), (&0.into(), &0.into()));
    // Prompts of any length, many at a time, and every way of choosing tokens take kernels that are there.
    for more in [&["--no-compile", "--chunk", "4096"][..], &["--no-compile", "-T", "1", "--min-p", "0.1"]] {
        assert_eq!(bare.run(&[&ASK[..], more].concat()).ok().json()["kernels"]["compiled"], 0, "{more:?}");
    }
    let explained = bare.run(&["cache", "explain", "sample/rows", "--with", "vocab_size=768", "--json"]).ok().json();
    assert_eq!((&explained["result"], &explained["bundle"]), (&"bundle".into(), &argument(&path).into()));
    let doctor = bare.run(&["doctor", "--device", "cpu", "--json"]).ok().json();
    assert_eq!(doctor["ready"], true);
    let told = doctor["checks"].as_array().expect("a list").iter().find(|check| check["name"] == "bundles");
    let told = told.expect("a check")["details"][0].as_str().expect("a line");
    assert!(told.starts_with(&argument(&path)) && told.ends_with(&format!("for {}", host())), "{told}");
}

#[test]
fn what_is_missing_is_listed() {
    let bare = Bare::new();
    let stderr = bare.run(&[&ASK[..], &["--no-compile"]].concat()).fails_with_hint(1);
    assert!(stderr.contains("kernels are in no bundle and not in the cache:\n  "), "{stderr}");
    assert!(stderr.contains("\n  sample/rows for x86-64") && stderr.contains("\n  linear/dot for x86-64"), "{stderr}");
    assert!(stderr.contains("tile_n=") && stderr.contains("`gptoss-jit bundle --arch x86-64"), "{stderr}");

    let text = "GPTOSS_JIT_NO_COMPILE";
    let wrong = Ran::new(&ASK, bare.command(&ASK).env(text, "perhaps").output().expect("started")).fails_with_hint(1);
    assert!(wrong.contains("`GPTOSS_JIT_NO_COMPILE=perhaps`"), "{wrong}");
}

#[test]
fn a_bundle_that_was_changed_is_not_used() {
    let (bare, path) = Bare::new().with_bundle();
    let whole = fs::read(&path).expect("there");
    let mut damaged = whole.clone();
    let at = whole.len() / 10; // among the objects
    damaged[at] ^= 1;
    fs::write(&path, &damaged).expect("written");
    let verified = bare.run(&["bundle", "verify", &argument(&path)]);
    assert_eq!(verified.code, 1, "{}", verified.stderr);
    let stderr = bare.run(&[&ASK[..], &["--no-compile"]].concat()).fails_with_hint(1);
    assert!(stderr.contains("warning: ") && stderr.contains("in no bundle"), "{stderr}");

    let mut damaged = whole.clone();
    let at = whole.len() - 300; // in the index
    damaged[at] ^= 1;
    fs::write(&path, &damaged).expect("written");
    let refused = bare.run(&["bundle", "verify", &argument(&path)]).fails_with_hint(1);
    assert!(refused.contains("its index does not match its SHA-256"), "{refused}");
    fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    let refused = bare.run(&["bundle", "verify", &argument(&path)]).fails_with_hint(1);
    assert!(refused.contains("it is not a bundle"), "{refused}");
    // The others are looked at all the same.
    fs::copy(bundle(), bare.bundles().join("whole.tar.zst")).expect("copied");
    let ran = bare.run(&["bundle", "verify", &argument(&bare.bundles()), "--json"]);
    let told: Vec<Value> = ran.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let findings: Vec<&Value> = told.iter().map(|of| &of["findings"]).collect();
    assert_eq!((ran.code, findings.len(), &findings[0][0]["place"]), (1, 2, &"file".into()), "{told:?}");
    assert!(
        told[0]["kernels"].is_null() && told[1]["kernels"].as_u64() > Some(20) && findings[1] == &Value::Array(vec![])
    );
}

#[test]
fn kernels_are_judged_by_what_this_machine_compiles() {
    // A bundle has the kernel that `run` would take; what is checked, compared or tuned is compiled here, or nowhere.
    let (bare, _) = Bare::new().with_bundle();
    let tune =
        ["tune", "--op", "sample", "--device", "cpu", "--dims", "vocab_size=768", "--tokens", "1", "--most", "1"];
    let args = [&tune[..], &["--no-compile"]].concat();
    let mut command = command(&bare.folder.path().join("cache"), &args);
    let ran = Ran::new(&args, command.env("GPTOSS_JIT_BUNDLES", bare.bundles()).output().expect("started"));
    assert!(ran.code == 1 && ran.stderr.contains("is in no bundle and not in the cache"), "{}", ran.stderr);
}

#[test]
fn a_bundle_that_others_could_have_written_is_refused_with_a_sentence() {
    let (bare, path) = Bare::new().with_bundle();
    let refused = |what: &str| {
        let ran = bare.run(&[&ASK[..], &["--no-compile"]].concat());
        let stderr = ran.fails_with_hint(1);
        assert!(stderr.contains(&format!("warning: not using the bundle `{}`: ", path.display())), "{stderr}");
        assert!(stderr.contains(what), "{stderr}");
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    mode(&path, 0o666);
    refused("its mode 0666 lets other users write to it");
    mode(&path, 0o644);
    mode(&bare.bundles(), 0o777);
    refused("its mode 0777 lets other users write to it");
    mode(&bare.bundles(), 0o755);
    bare.run(&[&ASK[..], &["--no-compile"]].concat()).ok();
    if !rustix::process::geteuid().is_root() {
        return skipped("giving a bundle to another user needs root");
    }
    std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
    refused("it belongs to user 65534, not to user 0");
}
