//! getp, ended before it is done: whatever ends it, what was finished is kept, and the same command makes the same
//! file of it as a run that nothing ended.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fixtures::models::{Counter, letters, prompt_file};
use crate::fixtures::program::{Ran, argument, command, file, shared_cache};

/// Prompts of the counter, some of them alike, and what a run of them left that nothing ended.
pub(super) struct Job {
    pub(super) counter: Counter,
    pub(super) input: String,
    undisturbed: String,
}

impl Job {
    pub(super) fn new(n: u32) -> Self {
        let counter = Counter::new(256);
        let prompts: Vec<String> = (0..n).map(|i| letters(&vec![i % 8; 1 + i as usize % 37])).collect();
        let input = file(counter.folder.path(), "prompts.txt", &prompt_file(&prompts));
        let undisturbed = argument(&counter.folder.path().join("undisturbed.txt"));
        let job = Self { counter, input, undisturbed };
        job.run(&job.undisturbed, &[]).ok();
        job
    }

    /// Draws tokens, so that a prompt that lost its seed would show.
    pub(super) fn words<'a>(&'a self, out: &'a str, args: &[&'a str]) -> Vec<&'a str> {
        let fixed = ["-m", "getp", "-i", &self.input, "-n", "120", "-T", "2", "-s", "7", "-b", "4", "-o", out];
        [&fixed[..], args].concat()
    }

    pub(super) fn run(&self, out: &str, args: &[&str]) -> Ran {
        self.counter.run(&self.words(out, args))
    }

    pub(super) fn command(&self, out: &str) -> Command {
        let (model, tokenizer) = (self.counter.path("model.bin"), self.counter.path("tokenizer.bin"));
        let mut command =
            command(shared_cache(), &[&["run", &model, "-z", &tokenizer][..], &self.words(out, &[])].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    pub(super) fn out(&self, name: &str) -> (String, PathBuf) {
        let out = self.counter.folder.path().join(name);
        (argument(&out), self.counter.folder.path().join(format!("{name}.records")))
    }

    #[track_caller]
    pub(super) fn is_as_undisturbed(&self, out: &str) {
        let [expected, found] = [&self.undisturbed, out].map(|path| fs::read_to_string(path).expect("there"));
        assert_eq!(found, expected);
    }
}

pub(super) fn n_lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |bytes| bytes.iter().filter(|&&byte| byte == b'\n').count())
}

/// Waits until there are more answers than these, or the run has ended. Whether it has not.
pub(super) fn waits_for_more(child: &mut Child, records: &Path, n: usize) -> bool {
    while child.try_wait().expect("ours").is_none() {
        if n_lines(records) > n {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// xorshift64*, for moments.
fn drawn(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
}

/// `GETP_KILLS=50 cargo test killed_at_random` kills it more often, `GETP_PROMPTS` gives it more to do meanwhile.
#[test]
fn a_run_that_is_killed_at_random_moments_makes_the_same_file_in_the_end() {
    let number = |name: &str, usual: usize| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (n_kills, n_prompts) = (number("GETP_KILLS", 5), number("GETP_PROMPTS", 800));
    let job = Job::new(n_prompts as u32);
    let (out, records) = job.out("killed.txt");
    let (mut state, mut n_killed) = (0x9E37_79B9_7F4A_7C15, 0);
    while n_killed < n_kills {
        let before = n_lines(&records);
        let mut child = job.command(&out).spawn().expect("started");
        if !waits_for_more(&mut child, &records, before) {
            break; // done before it could be killed so often
        }
        std::thread::sleep(Duration::from_micros(drawn(&mut state) % 20_000));
        let signal = [9, 9, 15][drawn(&mut state) as usize % 3];
        let _ = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status();
        let status = child.wait().expect("reaped");
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(signal));
        n_killed += 1;
        assert!(!Path::new(&out).exists() && n_lines(&records) > before, "kill {n_killed}: answers are kept");
    }
    assert!(n_killed >= n_kills.min(2), "only {n_killed} runs could be killed before all was done");
    crate::fixtures::say(&format!("killed {n_killed} times, {} of {n_prompts} answers kept", n_lines(&records)));
    job.run(&out, &[]).ok();
    job.is_as_undisturbed(&out);
    assert!(!records.exists(), "all answers are in their place");
}

#[test]
fn a_torn_line_and_answers_that_are_there_are_told_apart() {
    let job = Job::new(40);
    let (out, records) = job.out("torn.txt");
    let mut child = job.command(&out).spawn().expect("started");
    if waits_for_more(&mut child, &records, 5) {
        child.kill().expect("ours");
    }
    child.wait().expect("reaped");
    let whole = fs::read_to_string(&records).unwrap_or_else(|_| panic!("it was too fast to be killed"));
    let lines: Vec<&str> = whole.lines().collect();
    let torn = format!("{}\n{}", lines[..5].join("\n"), &lines[5][..lines[5].len() - 3]);
    fs::write(&records, torn).expect("written");
    let ran = job.run(&out, &[]).ok();
    assert!(ran.stderr.contains("note: 4 of 40 answers were finished before"), "{}", ran.stderr);
    assert!(ran.stderr.contains("40 prompts (4 of them answered before), "), "{}", ran.stderr);
    job.is_as_undisturbed(&out);

    // All of the records: nothing is left to run, and no token is generated.
    let (again, records) = job.out("again.txt");
    let header = lines[0];
    let ids = fs::read_to_string(&job.undisturbed).expect("there");
    let of = |line: &str| -> (u64, Value) {
        let value: Value = serde_json::from_str(line).expect("JSON");
        (value["index"].as_u64().expect("a number"), value)
    };
    let (index, answer) = of(lines[1]);
    let expected: Vec<Value> = ids
        .lines()
        .nth(index as usize)
        .expect("there")
        .split(' ')
        .map(|id| id.parse::<u32>().expect("an id").into())
        .collect();
    assert_eq!(answer["ids"], Value::Array(expected), "a record is the answer itself");
    fs::write(&records, format!("{header}\n{}\n", lines[1])).expect("written");

    // Records of other settings, or of other prompts, are refused and stay.
    let stderr = job.run(&again, &["-T", "1"]).fails_with_hint(1);
    assert!(stderr.contains("its 1 answers have other settings: `temperature` was 2.0, is 1.0"), "{stderr}");
    let stderr = job.run(&again, &["-s", "8"]).fails_with_hint(1);
    assert!(stderr.contains("`seed` was 7, is 8") && stderr.contains("--restart"), "{stderr}");
    let prompts = fs::read_to_string(&job.input).expect("there");
    let mut changed: Vec<&str> = prompts.lines().collect();
    changed[1 + index as usize] = "AhAhAhAh";
    fs::write(&job.input, changed.join("\n") + "\n").expect("written");
    let stderr = job.run(&again, &[]).fails_with_hint(1);
    assert!(stderr.contains(&format!("prompts.txt`, line {}) is for another prompt", index + 2)), "{stderr}");
    assert_eq!(n_lines(&records), 2);
    fs::write(&job.input, prompts).expect("written");
    let ran = job.run(&again, &["--restart"]).ok();
    assert!(!ran.stderr.contains("from before"), "{}", ran.stderr);
    job.is_as_undisturbed(&again);
    assert!(!records.exists());
}

#[test]
fn a_disk_that_is_full_keeps_what_was_finished() {
    let job = Job::new(200);
    let (out, records) = job.out("full.txt");
    let program = job.command(&out);
    let words = program.get_args().map(|word| format!("'{}'", word.to_str().expect("text")));
    let line =
        [format!("'{}'", program.get_program().display())].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    // A limit on the length of files stands for a disk: writing behind it is an error, half a line included.
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f 40; exec {line}")]);
    limited.envs(program.get_envs().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value.to_owned()))));
    let ran = Ran::new(&["limited"], limited.output().expect("started"));
    let stderr = ran.fails_with_hint(1);
    assert!(stderr.contains("answers are kept in `") && stderr.contains("could not keep answers in `"), "{stderr}");
    let n_kept = n_lines(&records) - 1;
    assert!((10..200).contains(&n_kept), "{n_kept}");
    assert!(fs::read(&records).expect("there").ends_with(b"\n"), "nothing half written is left");
    let ran = job.run(&out, &[]).ok();
    assert!(ran.stderr.contains(&format!("note: {n_kept} of 200 answers were finished before")), "{}", ran.stderr);
    job.is_as_undisturbed(&out);
}

#[test]
fn the_order_in_which_prompts_run_changes_no_answer() {
    let job = Job::new(60);
    for order in ["longest", "prefix"] {
        let (out, _) = job.out(order);
        job.run(&out, &["--order", order]).ok();
        job.is_as_undisturbed(&out);
    }
}

#[test]
fn figures_of_a_run_are_left_in_a_file() {
    let job = Job::new(10);
    let ((out, _), (metrics, _)) = (job.out("out.txt"), job.out("metrics.json"));
    job.run(&out, &["--metrics", &metrics]).ok();
    let metrics: Value = serde_json::from_str(&fs::read_to_string(metrics).expect("there")).expect("JSON");
    let n_tokens = fs::read_to_string(&out).expect("there").split_whitespace().count();
    assert_eq!((&metrics["prompts"], &metrics["slots"], &metrics["tokens"]), (&10.into(), &4.into(), &n_tokens.into()));
    assert_eq!(metrics["prompt_tokens"], (1..=10).sum::<u32>());
    let number = |of: &str, which: &str| metrics[of][which].as_f64().expect("a number");
    assert!(number("latency_s", "p50") <= number("latency_s", "max"), "{metrics}");
    assert!(number("first_token_s", "max") <= number("latency_s", "max"), "{metrics}");
    let [rate, limit, part] =
        ["tok_per_s", "limit_tok_per_s", "limit_fraction"].map(|name| metrics[name].as_f64().expect("a number"));
    assert!(limit > 0.0 && (part * limit / rate - 1.0).abs() < 1e-9, "{metrics}");
}
