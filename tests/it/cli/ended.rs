//! Commands that are ended before they are done: by a signal, or by a disk that is full. Nothing half done is left of
//! what they were to write.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::checkpoint::kinds::path_argument;
use crate::fixtures::models::Counter;
use crate::fixtures::program::{argument, command, file, run, shared_cache};
use crate::fixtures::{say, skipped};

/// SIGHUP, SIGINT and SIGTERM, as shells tell of them: 129, 130 and 143.
const SIGNALS: [i32; 3] = [1, 2, 15];

/// Sends a signal to a command that has said on stderr that it works, and looks at what is left.
fn end(args: &[&str], signal: i32) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = argument(&folder.path().join("out"));
    let mut command = command(shared_cache(), &[args, &["-o", &out, "--verbose"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    // The plan of the memory is told behind the opening of the file, before the first step.
    while !said.contains("KV cache") {
        assert_ne!(stderr.read_line(&mut said).expect("text"), 0, "it ended: {said}");
    }
    let killed = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status();
    assert!(killed.expect("there is `kill`").success());
    stderr.read_to_string(&mut said).expect("text");
    let status = child.wait().expect("reaped");
    assert_eq!(status.signal(), Some(signal), "{args:?}: {status} {said}");
    // Answers that getp had finished by then are kept, and nothing else is there.
    let left = fs::read_dir(folder.path()).expect("listed").map(|entry| entry.expect("an entry").file_name());
    let left: Vec<_> = left.filter(|name| !args.contains(&"getp") || name != "out.records").collect();
    assert!(left.is_empty(), "{args:?}, signal {signal}: {left:?}");
}

/// Whether who started this process has it ignore a signal, and so all that it starts: as `nohup` does with SIGHUP.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("listed").trim();
    u64::from_str_radix(mask, 16).expect("hexadecimal") >> (signal - 1) & 1 == 1
}

#[test]
fn a_signal_ends_a_command_and_leaves_no_half_file() {
    let counter = Counter::new(64);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompts = format!("50000\n{}", "Aa\n".repeat(50_000));
    let prompts = file(folder.path(), "prompts.txt", prompts.as_bytes());
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let ids = file(folder.path(), "ids.txt", "1 2 3 4 5 6 7 8\n".repeat(50_000).as_bytes());
    let (ignored, sent): (Vec<_>, Vec<_>) = SIGNALS.into_iter().partition(|&signal| is_ignored(signal));
    if sent.is_empty() {
        return skipped("who started the tests has them ignore all signals");
    }
    if !ignored.is_empty() {
        say(&format!("signals {ignored:?} are ignored here and not sent"));
    }
    for signal in sent {
        end(&["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &prompts], signal);
        end(&["logits", &path_argument("hf-bf16"), "--ids", &ids], signal);
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompts = file(folder.path(), "prompts.txt", b"1\nOnce\n");
    let ids = file(folder.path(), "ids.txt", b"1 2 3\n");
    let model = path_argument("hf-bf16");
    for args in [
        &["run", &model, "-m", "getp", "-i", &prompts, "-n", "8", "-o", "/dev/full"][..],
        &["logits", &model, "--ids", &ids, "-o", "/dev/full"],
    ] {
        let stderr = run(args).fails(1);
        assert!(stderr.contains("to `/dev/full`") && stderr.contains("No space left on device"), "{stderr}");
    }
    let mut to_stdout = command(shared_cache(), &["run", &model, "-m", "getp", "-i", &prompts, "-n", "8"]);
    let full = fs::File::options().write(true).open("/dev/full").expect("there is one");
    let output = to_stdout.stdout(full).output().expect("started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
}
