//! `run -m getp`: files of prompts, in the seeds' words and to the seeds' counts.

mod formats;
mod invariance;
mod resumed;
mod several;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use batch::work::{BatchJob, InFlight};
use engine::scheduler::{Request, Sampling};
use gpu::host::HostDriver;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use crate::fixtures::models::{Counter, Fixture, letters, letters_tokenizer, prompt_file};
use crate::fixtures::program::{Ran, argument, command, file, keys, parse_ids, run, shared_cache, with_environment_of};
use crate::fixtures::skipped;
use crate::graph::forward::{ONE_BY_ONE, load_checkpoint};

/// `run -m getp` of a fixture on prompts given as ids.
fn getp(fixture: &Fixture, prompts: &[Vec<u32>], args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let texts: Vec<String> = prompts.iter().map(|ids| letters(ids)).collect();
    let input = file(folder.path(), "input.txt", &prompt_file(&texts));
    let tokenizer = file(folder.path(), "tokenizer.bin", &letters_tokenizer(fixture.vocab_size));
    run(&[&["run", &fixture.path("model.bin"), "-z", &tokenizer, "-m", "getp", "-i", &input], args].concat())
}

/// What follows token `last` in a counter: so many tokens.
fn count(last: u32, n: usize) -> Vec<u32> {
    (1..=n as u32).map(|i| (last + i) % 8).collect()
}

#[test]
fn greedy_output_is_that_of_hugging_face_to_the_byte() {
    for name in ["odd", "window"] {
        let fixture = Fixture::open(name);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = argument(&folder.path().join("out.txt"));
        let n = fixture.n_greedy().to_string();
        let args = ["--max-new-tokens", &n, "-o", &out, "-v", &fixture.path("greedy.txt"), "-b", "2"];
        let ran = getp(&fixture, &fixture.prompts, &args).ok();
        assert_eq!(ran.text(), "", "ids go to the file");
        let expected = fs::read_to_string(fixture.path("greedy.txt")).expect("a fixture");
        assert_eq!(fs::read_to_string(&out).expect("written"), expected);
        for i in 1..=fixture.prompts.len() {
            assert!(ran.stderr.contains(&format!("✅ Request #{i}: Match ({n} tokens)\n")), "{}", ran.stderr);
        }
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "what was written aside is gone");
    }
}

#[test]
fn steps_count_the_prompt_and_stop_one_short_of_nothing() {
    let counter = Counter::new(40);
    let prompts: Vec<String> = [&[3][..], &[7, 1], &[0, 0, 0, 5], &[1, 2, 3, 4, 5, 6, 7]].map(letters).into();
    let input = prompt_file(&prompts);
    let lens = |steps: &str| {
        let ids = counter.getp(&input, &["-n", steps]).ok().ids();
        for (line, last) in ids.iter().zip([3, 1, 5, 7]) {
            assert_eq!(*line, count(last, line.len()), "-n {steps}");
        }
        ids.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(lens("1"), [0, 0, 0, 0]);
    assert_eq!(lens("2"), [1, 0, 0, 0]);
    assert_eq!(lens("7"), [6, 5, 3, 0]);
    assert_eq!(lens("8"), [7, 6, 4, 1]);
    assert_eq!(lens("40"), [39, 38, 36, 33]);
    // Zero, less, and more than the model's own limit: as far as the model goes.
    for steps in ["0", "-5", "41", "1000000"] {
        assert_eq!(lens(steps), [39, 38, 36, 33], "-n {steps}");
    }
}

#[test]
fn sequences_go_past_1024_positions() {
    let counter = Counter::new(4096);
    let ids = counter.getp(&prompt_file(&[letters(&[2]), letters(&[0, 6])]), &["-n", "1500"]).ok().ids();
    assert_eq!(ids, [count(2, 1499), count(6, 1498)]);
}

#[test]
fn new_tokens_can_be_counted_without_the_prompt() {
    let counter = Counter::new(40);
    let input = prompt_file(&[letters(&[3]), letters(&[1; 38]), letters(&[1; 40]), letters(&[1; 41])]);
    let ids = counter.getp(&input, &["--max-new-tokens", "5"]).ok().ids();
    assert_eq!(ids, [count(3, 5), count(1, 2), vec![], vec![]]);
    assert_eq!(counter.getp(&input, &["--max-new-tokens", "0"]).ok().text(), "\n\n\n\n");
    let stderr = counter.getp(&input, &["--max-new-tokens", "5", "-n", "9"]).fails(2);
    assert!(stderr.contains("cannot be used with"), "{stderr}");
}

#[test]
fn a_stop_token_is_written_and_ends_its_line() {
    let counter = Counter::new(64);
    let input = prompt_file(&[letters(&[0]), letters(&[4, 4]), letters(&[5])]);
    let ids = counter.getp(&input, &["-n", "20", "--stop", "5"]).ok().ids();
    assert_eq!(ids, [vec![1, 2, 3, 4, 5], vec![5], count(5, 8)]);
    let ids = counter.getp(&input, &["-n", "20", "--stop", "3", "--stop", "6"]).ok().ids();
    assert_eq!(ids, [vec![1, 2, 3], vec![5, 6], vec![6]]);
    let stderr = counter.getp(&input, &["--stop", "<|end|>"]).fails(2);
    assert!(stderr.contains("`--stop <|end|>` is neither an id nor a special token"), "{stderr}");
}

#[test]
fn the_seeds_two_stop_ids_stop_in_the_real_vocabulary() {
    let pairs = [(0, 1), (1, 2), (2, 199_999), (3, 4), (4, 200_002), (5, 200_007), (200_007, 200_012), (200_012, 5)];
    let model = Counter::with_successors(201_088, 64, &pairs);
    // Of o200k: `!`, `$`, `&` are the ids 0, 3, 5.
    let input = b"3 prompts\n!\n$\n&\n";
    let ids = model.getp(input, &["-n", "8"]).ok().ids();
    let round = [200_007, 200_012, 5, 200_007, 200_012, 5, 200_007];
    assert_eq!(ids, [&[1, 2, 199_999][..], &[4, 200_002], &round]);
    let ids = model.getp(input, &["-n", "8", "--stop", "<|call|>"]).ok().ids();
    assert_eq!(ids[2], [200_007, 200_012]);

    let generate = |prompt: &str| model.run(&["-i", prompt, "-n", "8"]).ok();
    assert_eq!(generate("!").text(), "!\"#\n", "generate does not print the stop token");
    assert_eq!(generate("$").text(), "$%\n");
    assert_eq!(generate("&").text(), "&<|end|><|call|>&<|end|><|call|>&<|end|><|call|>\n", "others are text");
}

#[test]
fn the_first_line_is_read_as_the_seeds_read_it() {
    let counter = Counter::new(20);
    let (a, b, c) = (count(0, 2), count(1, 2), count(2, 2));
    let n_lines = |first: &str, args: &[&str]| {
        let input = format!("{first}\nAa\nAb\nAc\n");
        let ran = counter.getp(input.as_bytes(), &[&["-n", "3"], args].concat()).ok();
        assert_eq!(ran.ids(), [a.clone(), b.clone(), c.clone()][..ran.ids().len()]);
        assert_eq!(ran.stderr.contains("note: "), ran.stderr.contains("prompts and has 3"), "{}", ran.stderr);
        (ran.ids().len(), ran.stderr.contains("prompts and has 3"))
    };
    assert_eq!(n_lines("3", &[]), (3, false));
    assert_eq!(n_lines("3 prompts", &[]), (3, false));
    assert_eq!(n_lines("  +2abc", &[]), (2, false));
    assert_eq!(n_lines("0", &[]), (0, false));
    assert_eq!(n_lines("6 prompts", &[]), (3, true));
    assert_eq!(n_lines("6 prompts", &["-t", "2"]), (2, false));
    assert_eq!(n_lines("3", &["-t", "0"]), (3, false));
    assert_eq!(n_lines("3", &["-t", "-1"]), (3, false));
    assert_eq!(n_lines("2", &["-t", "3"]), (2, false));
    for first in ["", "prompts", "-1", "99999999999999999999"] {
        let stderr = counter.getp(format!("{first}\nAa\n").as_bytes(), &[]).fails_with_hint(1);
        let expected = format!("line 1 is the number of prompts, found `{first}`");
        assert!(stderr.contains(&expected), "{stderr}");
    }
    assert!(counter.getp(b"", &[]).fails_with_hint(1).contains("line 1 is the number of prompts"));
}

#[test]
fn prompts_are_bytes() {
    let counter = Counter::new(4000);
    // Bytes that no token covers are id 0, as in the seeds; text ends at a NUL; the last line needs no end.
    let long = "Ac".repeat(3000);
    let lines: [&[u8]; 8] = [b"Ae\r", b"Ae\xff\xfe", b"\xf0\x9f\x8e", b"Ae\0Ag", b"\0", b"", long.as_bytes(), b" Ag"];
    let input = prompt_file(&lines);
    let ran = counter.getp(&input[..input.len() - 1], &["-n", "3003"]).ok();
    assert!(ran.stderr.contains("note: 1 prompts of `"), "a line end as Windows has it: {}", ran.stderr);
    let ids = ran.ids();
    let lens: Vec<usize> = ids.iter().map(Vec::len).collect();
    assert_eq!(lens, [3001, 3000, 3000, 3002, 0, 0, 3, 3001]);
    let last = [0, 0, 0, 4, 0, 0, 2, 6];
    for (line, last) in ids.iter().zip(last) {
        assert_eq!(*line, count(last, line.len()));
    }
}

#[test]
fn a_file_of_expected_ids_decides_the_exit_code() {
    let counter = Counter::new(20);
    let input = prompt_file(&["Aa", "", "Ac"]);
    let verify = |expected: &str| {
        let path = file(counter.folder.path(), "expected.txt", expected.as_bytes());
        counter.getp(&input, &["-n", "4", "-v", &path])
    };
    let ran = verify("1 2 3\n\n3 4 5\n").ok();
    assert_eq!(ran.ids(), [vec![1, 2, 3], vec![], vec![3, 4, 5]]);
    assert_eq!(ran.stderr.matches('✅').count(), 2, "two empty lines match silently: {}", ran.stderr);
    assert!(ran.stderr.contains("✅ Request #3: Match (3 tokens)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("verified: 3 of 3 requests match"), "{}", ran.stderr);

    for (expected, line, summary) in [
        ("1 2 3\n\n3 7 5\n", "❌ Request 3: Token mismatch at position 1 (GT: 7, Generated: 4)", "1 of 3"),
        ("1 2 3 4\n\n3 4 5\n", "Request #1: Length mismatch (GT: 4 tokens, Generated: 3 tokens)", "1 of 3"),
        ("1 2 3\n9\n3 4 5\n", "Request #2: Length mismatch (GT: 1 tokens, Generated: 0 tokens)", "1 of 3"),
        ("1 2 3\n\n", "Request #3: Length mismatch (GT: 0 tokens, Generated: 3 tokens)", "1 of 3"),
        ("1 2 3\n\n3 4 5\n6\n", "Request #4: Length mismatch (GT: 1 tokens, Generated: 0 tokens)", "1 of 4"),
    ] {
        let ran = verify(expected);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert_eq!(ran.ids(), [vec![1, 2, 3], vec![], vec![3, 4, 5]], "the result is written all the same");
        assert!(ran.stderr.contains(line), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("error: {summary} requests differ from `")), "{}", ran.stderr);
    }
    // Told before anything is computed: nothing is on stdout.
    let stderr = counter.getp(&input, &["-n", "4", "-v", "/nowhere/expected.txt"]).fails(1);
    assert!(stderr.contains("could not read expected ids `/nowhere/expected.txt`\n  caused by: "), "{stderr}");
    let stderr = verify("1 2 x\n").fails(1);
    assert!(stderr.contains("line 1: `x` is no token id"), "{stderr}");
}

#[test]
fn json_says_what_the_lines_say() {
    let counter = Counter::new(20);
    let json = counter.getp(&prompt_file(&["Aa", "", "Ac"]), &["-n", "4", "--json"]).ok().json();
    let expected = ["schema", "mode", "requests", "ids", "tokens", "seconds", "tok_per_s", "device", "kernels"];
    assert_eq!(keys(&json), expected.into());
    assert_eq!(
        (json["mode"].as_str(), json["requests"].as_u64(), json["tokens"].as_u64()),
        (Some("getp"), Some(3), Some(6))
    );
    assert_eq!(json["ids"], serde_json::json!([[1, 2, 3], [], [3, 4, 5]]));
    let (seconds, rate) = (json["seconds"].as_f64().expect("a number"), json["tok_per_s"].as_f64().expect("a number"));
    assert!(seconds > 0.0 && (rate * seconds - 6.0).abs() < 1e-6, "{json}");
}

#[test]
fn rings_that_nobody_asked_for_do_not_make_the_cache_too_small() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = file(folder.path(), "prompts.txt", "Once upon\n".repeat(33).as_bytes());
    let args = ["run", "-m", "getp", "-i", &input, "--in-format", "lines", "--max-new-tokens", "2", "--device", "cpu"];
    let usual = run(&args).ok();
    // 32 rings of a block of 64 tokens in two layers, keys and values of 2 heads of 32 in bf16: a MiB without a pool.
    let small = run(&[&args[..], &["--kv-memory", "1"]].concat()).ok();
    assert_eq!(small.text(), usual.text());
    assert_eq!(small.text().lines().count(), 33);
    let stderr = run(&[&args[..], &["--kv-memory", "1", "-b", "32"]].concat()).fails_with_hint(1);
    assert!(stderr.contains("could not fit the KV cache"), "what was asked for is not less: {stderr}");
}

#[test]
fn the_output_file_is_whole_or_as_it_was() {
    let counter = Counter::new(20);
    let out = file(counter.folder.path(), "out.txt", b"as it was\n");
    // The built-in tokenizer knows more tokens than the model: the second prompt is refused.
    let input = file(counter.folder.path(), "prompts.txt", &prompt_file(&["!", "Hello"]));
    run(&["run", &counter.model_alone(), "-m", "getp", "-i", &input, "-o", &out]).fails(1);
    assert_eq!(fs::read_to_string(&out).expect("there"), "as it was\n");
    // Told before the model is loaded, and so before the memory does not suffice.
    let stderr = counter.getp(b"1\nAa\n", &["-o", "/nowhere/out.txt", "--kv-memory", "0"]).fails(1);
    assert!(stderr.contains("could not write ids to `/nowhere/out.txt`"), "{stderr}");

    counter.getp(&prompt_file(&["Aa", "Az"]), &["-n", "4", "-o", &out]).ok();
    assert_eq!(parse_ids(&fs::read_to_string(&out).expect("written")), [vec![1, 2, 3], vec![0, 1, 2]]);
    let names = fs::read_dir(counter.folder.path()).expect("listed").count();
    assert_eq!(names, 6, "model, tokenizer, a folder, two files of prompts, and the output: nothing half done is left");
    let new = argument(&counter.folder.path().join("new.txt"));
    counter.getp(b"1\nAa\n", &["-o", &new]).ok();
    let mode = |path: &str| fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode(&new), mode(&input), "others may read it as they may read any file");
    // What is no file is written to and not replaced.
    assert_eq!(counter.getp(b"1\nAa\n", &["-n", "3", "-o", "/dev/stdout"]).ok().text(), "1 2\n");
}

/// In a folder that cannot be written to, and in a sticky one, where nobody but its owner replaces a file.
#[test]
fn an_output_file_that_cannot_be_replaced_is_written_over() {
    let counter = Counter::new(20);
    let input = file(counter.folder.path(), "prompts.txt", b"1\nAa\n");
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let run_to = |out: &str| {
        let args = ["run", &model, "-z", &tokenizer, "-m", "getp", "-i", &input, "-n", "3", "-o", out];
        let program = command(shared_cache(), &args);
        // Root may do all of it. Without these rights it is like anybody else.
        let mut unprivileged = Command::new("setpriv");
        unprivileged.args(["--bounding-set=-dac_override,-fowner", "--"]);
        unprivileged.arg(program.get_program()).args(program.get_args());
        let is_root = rustix::process::geteuid().is_root();
        let mut program = if is_root { with_environment_of(&program, unprivileged) } else { program };
        program.output().map(|output| Ran::new(&args, output))
    };
    let room = tempfile::tempdir().expect("a temporary folder");
    let out = file(room.path(), "out.txt", b"older and longer\n");
    let set_mode = |mode| fs::set_permissions(room.path(), fs::Permissions::from_mode(mode)).expect("ours");
    set_mode(0o555);
    let ran = run_to(&out);
    set_mode(0o755);
    let Ok(ran) = ran else { return skipped("root needs `setpriv` to be refused anything") };
    ran.ok();
    assert_eq!(fs::read_to_string(&out).expect("there"), "1 2\n");

    let somebody = Some(65534);
    set_mode(0o1777);
    fs::set_permissions(&out, fs::Permissions::from_mode(0o666)).expect("ours");
    if chown(&out, somebody, somebody).and_then(|()| chown(room.path(), somebody, somebody)).is_err() {
        return skipped("giving a file to another user needs root");
    }
    fs::write(&out, "older and longer\n").expect("written");
    run_to(&out).expect("as before").ok();
    assert_eq!(fs::read_to_string(&out).expect("there"), "1 2\n");
    assert_eq!(fs::metadata(&out).expect("there").uid(), 65534, "the same file");
    assert_eq!(fs::read_dir(room.path()).expect("listed").count(), 1, "nothing half done is left");
}

#[test]
fn the_time_to_a_first_token_holds_the_step_that_takes_its_prompt_in() {
    let model = Counter::new(64);
    let checkpoint = Checkpoint::open(Path::new(&model.path("model.bin")), Layout::Auto).expect("a model");
    let driver = Arc::new(HostDriver::new(1).expect("threads"));
    let mut engine = load_checkpoint(driver, &checkpoint, 64, ONE_BY_ONE).expect("loads");
    let request = Request::new(vec![0, 1, 2], 1, vec![], Sampling::GREEDY);
    let (mut in_flight, mut answered) = (InFlight::default(), Vec::new());
    in_flight.submit(&mut engine, BatchJob { index: 0, digest: 0, request }).expect("fits");
    assert_eq!(in_flight.step(&mut engine, &mut answered).expect("runs"), 1);
    let launching = engine.host_times().launching.as_secs_f32();
    let first = answered[0].first_token_s.expect("a token");
    assert!(first >= 0.999 * launching && answered[0].latency_s >= first, "{answered:?}, {launching} s of launches");
}
