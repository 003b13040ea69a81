//! Whole files of every kind, mutated, given to the program as a process. Whatever a file holds: the program ends by
//! itself with 0, 1 or 2, one error where it failed, without a panic, a signal, much memory or much time.
//!
//! `GPTOSS_JIT_ADVERSARY_RUNS` sets how many runs, `GPTOSS_JIT_ADVERSARY_SEED` which: with `--release` 10,000 take four
//! minutes of one processor.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

use crate::fixtures::program::{argument, command, repository, shared_cache};
use crate::fixtures::say;

/// Runs of a test of everything.
const RUNS: u64 = 300;

/// What a run may take of a processor, all threads together. The longest honest one takes about one.
const CPU_SECONDS: u64 = 60;

/// After so long asleep, with all that it started, a run hangs: it waits for something that does not come. Whoever
/// waits for a processor is not asleep, on however busy a machine.
const MAX_ASLEEP: Duration = Duration::from_secs(60);

/// How often it is looked at whether a run sleeps.
const LOOK: Duration = Duration::from_millis(250);

/// What a run may have in memory at a time. The files are smaller than a megabyte.
const MAX_RESIDENT_BYTES: u64 = 1 << 30;

/// A file, the others that the program needs beside it, and what the program is to do with them.
struct Subject {
    /// A folder or file of the repository, copied for each run.
    files: &'static str,
    /// The one that is mutated, within that.
    victim: &'static str,
    /// What `{}` stands for is the copy.
    args: &'static [&'static str],
}

const CHECKPOINTS: &str = "tests/fixtures/checkpoints";

const PIECES: &str = "tests/fixtures/tokenizers";

const SUBJECTS: [Subject; 15] = [
    Subject { files: "hf-bf16", victim: "config.json", args: &["inspect", "{}"] },
    Subject { files: "hf-bf16", victim: "model.safetensors", args: &["inspect", "{}"] },
    Subject { files: "hf-bf16", victim: "model.safetensors", args: &["run", "{}", "-i", "Once", "-n", "8"] },
    Subject { files: "hf-bf16", victim: "tokenizer.json", args: &["tokenize", "{}", "-i", "Once upon <|end|>"] },
    Subject {
        files: PIECES,
        victim: "pieces.json",
        args: &["tokenize", "-z", "{}/pieces.json", "-i", "<s>Once  \u{65e5}"],
    },
    Subject {
        files: PIECES,
        victim: "pieces.gguf",
        args: &["tokenize", "-z", "{}/pieces.gguf", "-i", "<s>Once  \u{65e5}"],
    },
    Subject { files: "hf-bf16-sharded", victim: "model.safetensors.index.json", args: &["inspect", "{}"] },
    Subject { files: "gguf", victim: "mxfp4-bf16.gguf", args: &["inspect", "{}/mxfp4-bf16.gguf"] },
    Subject { files: "gguf", victim: "mxfp4-bf16.gguf", args: &["tokenize", "{}/mxfp4-bf16.gguf", "-i", "Once"] },
    Subject { files: "gguf", victim: "mxfp4-q8_0.gguf", args: &["inspect", "{}/mxfp4-q8_0.gguf", "--json"] },
    Subject {
        files: "templates/rmsnorm",
        victim: "row.hip.j2",
        args: &["kernels", "show", "rmsnorm/row", "--arch", "gfx1100", "--templates", "{}/.."],
    },
    Subject {
        files: "templates/moe_mlp2",
        victim: "matrix.hip.j2",
        args: &["kernels", "show", "moe_mlp2/matrix", "--arch", "gfx942", "--templates", "{}/.."],
    },
    Subject {
        files: "templates/linear",
        victim: "op.toml",
        args: &["kernels", "ls", "--arch", "gfx1100", "--why", "--templates", "{}/.."],
    },
    Subject {
        files: "tuning",
        victim: "gfx1100.toml",
        args: &["kernels", "plan", "--shape", "gpt-oss-20b", "--arch", "gfx1100", "--tuning", "{}"],
    },
    Subject { files: "tuning", victim: "host.toml", args: &["run", "-i", "Once", "-n", "4", "--tuning", "{}"] },
];

impl Subject {
    /// A copy of the files in a folder of the same name, for a template's folder says which op it is for.
    fn copy(&self, to: &Path) -> PathBuf {
        let of_checkpoint = repository().join(CHECKPOINTS).join(self.files);
        let from = if of_checkpoint.is_dir() { of_checkpoint } else { repository().join(self.files) };
        let folder = to.join(from.file_name().expect("a name"));
        fs::create_dir(&folder).expect("made");
        for entry in fs::read_dir(&from).expect("listed").flatten().filter(|entry| entry.path().is_file()) {
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
        }
        folder
    }
}

/// xorshift64*: Vigna, An experimental exploration of Marsaglia's xorshift generators, 2016.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }
}

/// What numbers, texts and structures may become.
const WORDS: [&[u8]; 16] = [
    b"0",
    b"-1",
    b"18446744073709551615",
    b"99999999999999999999999",
    b"1e999",
    b"nan",
    b"\"\"",
    b"[]",
    b"{}",
    b"null",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\x80",
    b"{% for a in range(100000) %}{{ a }}{% endfor %}",
    b"{{ 'x' * 1000000000 }}",
    b"((((((((((((((((((((((((((((((((",
    b"\n",
];

/// One to four changes. Half of them in the first tenth of the file, where headers are.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let reach = if random.below(2) == 0 { bytes.len() / 10 } else { bytes.len() };
        let at = random.below(reach);
        let rest = bytes.len() - at;
        match random.below(7) {
            0 if rest > 0 => bytes[at] ^= 1 << random.below(8),
            1 if rest > 0 => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + random.below(rest.min(64) + 1))),
            4 => {
                let piece = bytes[at..at + random.below(rest.min(256) + 1)].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            // A number of a text becomes another.
            5 => {
                let Some(begin) = bytes[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else {
                    continue;
                };
                let len = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(begin..begin + len, WORDS[random.below(WORDS.len())].iter().copied());
            }
            _ => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
        }
    }
}

/// What the kernel says of a process under a name, without blanks.
fn told(status: &str, name: &str) -> Option<String> {
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

fn pids(text: &str) -> impl Iterator<Item = u32> {
    text.split_whitespace().filter_map(|pid| pid.parse().ok())
}

/// Whether no thread of a process, nor of any that it started, runs or could run.
fn is_asleep(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let is_running = told(&read("status"), "State:").is_some_and(|state| state.starts_with(['R', 'D']));
        !is_running && pids(&read("children")).all(is_asleep)
    })
}

/// Waits for the end of a process; gives how it ended and the most memory that it was seen with, in bytes.
fn watch(child: &mut Child) -> Result<(ExitStatus, u64), String> {
    let (mut looked, mut asleep) = (Instant::now(), Duration::ZERO);
    let mut most = 0;
    loop {
        if let Some(status) = child.try_wait().expect("waited for") {
            return Ok((status, most));
        }
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = told(&status, "VmHWM:").and_then(|peak| peak.strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(peak.unwrap_or(0) << 10);
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            asleep = if is_asleep(child.id()) { asleep + LOOK } else { Duration::ZERO };
        }
        if asleep > MAX_ASLEEP {
            child.kill().expect("killed");
            child.wait().expect("reaped");
            return Err("it does not end".into());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// What is wrong with how the program took a mutated file, or nothing.
fn attack(subject: &Subject, seed: u64) -> Result<i32, String> {
    let folder = TempDir::new().expect("a temporary folder");
    let copy = subject.copy(folder.path());
    let victim = copy.join(subject.victim);
    let mut bytes = fs::read(&victim).expect("read");
    // Neighbouring seeds must not begin alike.
    mutate(&mut bytes, &mut Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    fs::write(&victim, bytes).expect("written");

    let args: Vec<String> = subject.args.iter().map(|arg| arg.replace("{}", &argument(&copy))).collect();
    let mut command = command(shared_cache(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    let said = folder.path().join("stderr");
    command.stdout(File::create(folder.path().join("stdout")).expect("made"));
    let mut child = command.stderr(File::create(&said).expect("made")).spawn().expect("started");
    let pid = Pid::from_child(&child);
    let limit = Rlimit { current: Some(CPU_SECONDS), maximum: Some(CPU_SECONDS) };
    let _ = prlimit(Some(pid), Resource::Cpu, limit); // it may have ended
    let (status, most_bytes) = watch(&mut child)?;
    let stderr = String::from_utf8(fs::read(&said).expect("read")).map_err(|_| "stderr is no text")?;
    let n_errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
    match status.code() {
        None => Err(format!("{status}\n{stderr}")),
        Some(code @ 0..=2) if !stderr.contains("panicked") && n_errors == usize::from(code != 0) => {
            if most_bytes > MAX_RESIDENT_BYTES { Err(format!("it took {most_bytes} bytes")) } else { Ok(code) }
        }
        Some(code) => Err(format!("exit {code}, {n_errors} errors\n{stderr}")),
    }
}

#[test]
fn a_run_that_waits_for_what_does_not_come_is_told_from_one_that_works() {
    let started = |words: &str| Command::new("sh").args(["-c", words]).stdin(Stdio::null()).spawn().expect("a shell");
    // A shell waits for what it started, which sleeps or works.
    for (words, sleeps) in [("sleep 60; true", true), ("(while :; do :; done); true", false)] {
        let mut shell = started(words);
        let started = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap_or_default();
        let seen = (0..400).any(|_| {
            thread::sleep(Duration::from_millis(5));
            pids(&started()).next().is_some() && is_asleep(shell.id()) == sleeps
        });
        let left: Vec<u32> = pids(&started()).collect(); // nobody's child when the shell is gone
        shell.kill().expect("killed");
        shell.wait().expect("reaped");
        for pid in left {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        assert!(seen, "{words}");
    }
}

#[test]
fn no_mutated_file_takes_the_program_down() {
    let number = |name: &str, usual: u64| env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (runs, first) = (number("GPTOSS_JIT_ADVERSARY_RUNS", RUNS), number("GPTOSS_JIT_ADVERSARY_SEED", 0));
    let mut codes = [0; 3];
    let mut wrong = Vec::new();
    for seed in first..first + runs {
        let subject = &SUBJECTS[(seed % SUBJECTS.len() as u64) as usize];
        match attack(subject, seed) {
            Ok(code) => codes[code as usize] += 1,
            Err(what) => wrong.push(format!("seed {seed}, {} in {:?}: {what}", subject.victim, subject.args)),
        }
    }
    say(&format!(
        "{runs} mutated files: {} taken, {} refused, {} of them as usage",
        codes[0],
        codes[1] + codes[2],
        codes[2]
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(
        runs < RUNS || (codes[0] > 0 && codes[1] > 0),
        "a test that never fails, or always, mutates nothing that matters: {codes:?}"
    );
}
