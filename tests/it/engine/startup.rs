//! Cold starts, warm starts, many at once, killed ones, and caches that are damaged or cannot be used.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::fixtures::models::Counter;
use crate::fixtures::program::{Ran, command, run_in};

/// A model, and a cache that nobody else uses.
struct Start {
    counter: Counter,
    folder: TempDir,
}

/// What the model is asked, and what it says.
const ASK: [&str; 4] = ["-i", "Aa", "-n", "5"];
const TEXT: &str = "AaAbAcAdAeAf\n";

impl Start {
    fn new() -> Self {
        Self { counter: Counter::new(64), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// The cache, which is not there yet.
    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// The program on the model, with these arguments.
    fn command(&self, cache: &Path, args: &[&str]) -> Command {
        let (model, tokenizer) = (self.counter.path("model.bin"), self.counter.path("tokenizer.bin"));
        command(cache, &[&["run", &model, "-z", &tokenizer], args].concat())
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(args, self.command(&self.cache(), args).output().expect("started"))
    }

    /// Starts once more. Gives how many kernels came from the cache, and how many were compiled.
    fn kernels(&self) -> (u64, u64) {
        let json = self.run(&[&ASK[..], &["--json"]].concat()).ok().json();
        assert_eq!(json["text"], TEXT.trim_end());
        counts(&json)
    }

    fn spawn(&self) -> Child {
        let mut command = self.command(&self.cache(), &ASK);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
    }

    fn entries(&self) -> Vec<Value> {
        let json = run_in(&self.cache(), &["cache", "ls", "--json"]).ok().json();
        json["entries"].as_array().expect("a list").clone()
    }

    /// The cache is whole: no findings.
    fn verify(&self) {
        let ran = run_in(&self.cache(), &["cache", "verify"]);
        assert_eq!((ran.code, ran.text()), (0, ""), "{}", ran.stderr);
    }

    /// The folder of the entry of this template.
    fn entry(&self, label: &str) -> PathBuf {
        let entries = self.entries();
        let entry = entries.iter().find(|entry| entry["meta"]["label"] == label).expect(label);
        PathBuf::from(entry["dir"].as_str().expect("a path"))
    }
}

/// Kernels from the cache, and compiled.
fn counts(json: &Value) -> (u64, u64) {
    let count = |name: &str| json["kernels"][name].as_u64().expect("a number");
    (count("from_cache"), count("compiled"))
}

#[test]
fn a_second_start_compiles_nothing() {
    let start = Start::new();
    let (from_cache, n) = start.kernels();
    assert!(from_cache == 0 && n >= 12, "{from_cache} from the cache, {n} compiled");
    assert_eq!(start.kernels(), (n, 0));
    let ran = start.run(&ASK).ok();
    assert_eq!(ran.text(), TEXT);
    assert!(ran.stderr.ends_with(&format!("; kernels: {n} from cache, 0 compiled\n")), "{}", ran.stderr);
    assert_eq!(start.entries().len() as u64, n);
    // Other prompts, numbers of steps, draws and threads take the same kernels.
    for args in
        [&["-i", "AaAbAc", "-n", "60"][..], &["-i", "Ab", "-T", "1", "-k", "2"], &["-i", "Aa", "--threads", "1"]]
    {
        let json = start.run(&[args, &["--json"]].concat()).ok().json();
        assert_eq!(counts(&json), (n, 0), "{args:?}");
    }
    start.verify();

    fs::remove_dir_all(start.entry("moe_mlp1/grouped")).expect("removed");
    assert_eq!(start.kernels(), (n - 1, 1));
    assert_eq!(start.kernels(), (n, 0));

    flip_a_bit(&start.entry("moe_mlp2/grouped").join("object"));
    let ran = run_in(&start.cache(), &["cache", "verify"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert_eq!(start.kernels(), (n - 1, 1), "what is damaged is compiled anew, and the tokens are the same");
    assert_eq!(start.kernels(), (n, 0));
    start.verify();

    flip_a_bit(&start.entry("sample/rows").join("object"));
    let stderr = start.run(&ASK).ok().stderr;
    assert!(stderr.contains("warning: ") && stderr.ends_with("1 compiled\n"), "{stderr}");
}

/// Flips a bit in the middle of a file.
fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).expect("there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).expect("ours");
}

#[test]
fn no_length_of_a_context_compiles_anything() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let counter = Counter::new(1000);
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let kernels = |steps: &str| {
        let args = ["run", &model, "-z", &tokenizer, "-i", "Aa", "-n", steps, "--json"];
        counts(&run_in(cache.path(), &args).ok().json())
    };
    let (_, n) = kernels("2"); // less than the window
    for steps in ["5", "63", "64", "700"] {
        assert_eq!(kernels(steps), (n, 0), "{steps} steps");
    }
}

#[test]
fn ten_starts_at_once_share_the_work() {
    let start = Start::new();
    let children: Vec<Child> = (0..10).map(|_| start.spawn()).collect();
    let mut compiled = 0;
    let mut n_kernels = HashSet::new();
    for child in children {
        let ran = Ran::new(&["run"], child.wait_with_output().expect("reaped")).ok();
        assert_eq!(ran.text(), TEXT);
        let (_, counts) = ran.stderr.rsplit_once("kernels: ").expect("a summary");
        let numbers: Vec<u64> = counts.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers.len(), 2, "{counts}");
        n_kernels.insert(numbers[0] + numbers[1]);
        compiled += numbers[1];
    }
    assert_eq!(n_kernels.len(), 1, "all want the same kernels: {n_kernels:?}");
    let n = n_kernels.into_iter().next().expect("one");
    assert_eq!(compiled, n, "each is compiled once");
    let digests: HashSet<String> = start.entries().iter().map(|entry| entry["digest"].to_string()).collect();
    assert_eq!((digests.len() as u64, start.entries().len() as u64), (n, n));
    assert_eq!(start.kernels(), (n, 0));
    start.verify();
}

#[test]
fn a_start_after_killed_starts_works() {
    let start = Start::new();
    let mut random: u64 = 0x2545_f491_4f6c_dd1d;
    let mut killed_midway = 0;
    for _ in 0..8 {
        let mut child = start.spawn();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_millis((random >> 33) % 400));
        killed_midway += usize::from(child.try_wait().expect("ours").is_none());
        let _ = child.kill(); // with signal 9; it may have ended
        child.wait().expect("reaped");
        start.verify();
    }
    assert!(killed_midway >= 2, "only {killed_midway} were killed before they ended");
    let (from_cache, compiled) = start.kernels();
    assert!(from_cache + compiled >= 12);
    assert_eq!(start.kernels(), (from_cache + compiled, 0));
    start.verify();
}

#[test]
fn without_a_cache_folder_the_program_runs_and_says_so() {
    let start = Start::new();
    let file = start.folder.path().join("file");
    fs::write(&file, "in the way").expect("written");
    let ran = Ran::new(&ASK, start.command(&file.join("cache"), &ASK).output().expect("started")).ok();
    assert_eq!(ran.text(), TEXT);
    assert!(ran.stderr.contains("warning: ") && ran.stderr.contains("file/cache`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("kernels: 0 from cache, "), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "in the way");
    let stderr = run_in(&file.join("cache"), &["cache", "ls"]).fails_with_hint(1);
    assert!(stderr.contains("GPTOSS_JIT_CACHE"), "{stderr}");
}

#[test]
fn without_a_compiler_a_cold_start_says_what_is_missing() {
    let start = Start::new();
    let output = start.command(&start.cache(), &ASK).env("CC", "/nowhere/cc").output().expect("started");
    let stderr = Ran::new(&ASK, output).fails_with_hint(1);
    assert!(stderr.contains("could not find a C compiler: looked for `/nowhere/cc`"), "{stderr}");
    assert_eq!(start.entries().len(), 0, "that is not remembered as a failure of the kernels");
}
