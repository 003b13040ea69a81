//! getp by several processes: shards, as a flag or a launcher says, and replicas on a machine.

use std::fs;
use std::process::Command;

use super::resumed::{Job, n_lines, waits_for_more};
use crate::fixtures::models::prompt_file;
use crate::fixtures::program::{Ran, argument, command, file, run, shared_cache};

impl Job {
    /// `run` or `merge` with these flags and these variables, which a launcher would set.
    fn with(&self, what: &str, out: &str, args: &[&str], variables: &[(&str, &str)]) -> Ran {
        let (model, tokenizer) = (self.counter.path("model.bin"), self.counter.path("tokenizer.bin"));
        let words = [&[what, &model, "-z", &tokenizer][..], &self.words(out, args)].concat();
        let mut command = command(shared_cache(), &words);
        command.envs(variables.iter().copied());
        Ran::new(&words, command.output().expect("the program starts"))
    }
}

#[test]
fn shards_merged_are_the_whole() {
    let job = Job::new(23);
    let (out, records) = job.out("merged.txt");
    let of = |index: usize| records.with_extension(format!("records.{index}-of-3"));
    let stderr = job.with("merge", &out, &[], &[]).fails_with_hint(1);
    assert!(stderr.contains("merged.txt.records.I-of-N`, which shards keep"), "{stderr}");

    job.with("run", &out, &["--shard", "0/3"], &[]).ok();
    // A task of a step; and a batch script, which has the job's variables and is none.
    let task = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_LOCALID", "1")];
    let ran = job.with("run", &out, &[], &task).ok();
    assert!(ran.stderr.contains("note: Slurm says rank 2 of 3: shard 2/3, on cpu"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n7 prompts, "), "prompts 2, 5, 8, … 20: {}", ran.stderr);
    let alone = job.counter.folder.path().join("alone.txt");
    job.with("run", alone.to_str().expect("text"), &[], &task[1..]).ok();
    job.is_as_undisturbed(alone.to_str().expect("text"));

    let stderr = job.with("merge", &out, &[], &[]).fails_with_hint(1);
    assert!(stderr.contains("8 of 23 prompts have no answer, the first is prompt 2 ("), "{stderr}");
    assert!(stderr.contains("hint: the run with `--shard 1/3` continues"), "{stderr}");
    assert!(of(0).exists() && !fs::exists(&out).expect("a folder"), "nothing is lost, nothing is half there");
    // A flag overrules the launcher.
    job.with("run", &out, &["--shard", "1/3"], &task).ok();
    let stderr = job.with("merge", &out, &["-T", "1"], &[]).fails_with_hint(1);
    assert!(stderr.contains("`temperature` was 2.0, is 1.0"), "{stderr}");
    let ran = job.with("merge", &out, &[], &[]).ok();
    assert!(ran.stderr.contains("23 prompts of 3 shards, "), "{}", ran.stderr);
    job.is_as_undisturbed(&out);
    assert!((0..3).all(|i| !of(i).exists()), "answers are in their place");
}

#[test]
fn a_shard_may_have_no_prompt_and_needs_a_place_for_its_answers() {
    let job = Job::new(2);
    let (out, _) = job.out("few.txt");
    for shard in ["0/3", "1/3", "2/3"] {
        job.with("run", &out, &["--shard", shard], &[]).ok();
    }
    job.with("merge", &out, &[], &[]).ok();
    job.is_as_undisturbed(&out);
    let stderr = job.counter.run(&["-m", "getp", "-i", &job.input, "--shard", "0/2"]).fails(2);
    assert!(stderr.contains("`-o FILE` or `--records FILE` says where"), "{stderr}");
    let stderr = job.with("run", &out, &[], &[("RANK", "1")]).fails_with_hint(1);
    assert!(stderr.contains("torchrun's environment is incomplete: RANK is set, but WORLD_SIZE is not"), "{stderr}");
}

#[test]
fn replicas_make_the_same_file_and_one_that_is_killed_or_stopped_ends_the_run_with_a_sentence() {
    let job = Job::new(800);
    let (out, records) = job.out("replicas.txt");
    let mut parent = job.command(&out);
    let mut parent = parent.args(["-g", "2"]).spawn().expect("started");
    assert!(waits_for_more(&mut parent, &records, 5), "it was too fast to be killed");
    // Its replicas are its children.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id())).expect("proc");
    let children: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(children.len(), 2);
    assert!(Command::new("kill").args(["-9", children[1]]).status().expect("run").success());
    let output = parent.wait_with_output().expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let expected = format!("the replica on cpu (1 of 2) (process {}) was ended by signal 9", children[1]);
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(!fs::exists(format!("/proc/{}/exe", children[0])).expect("proc"), "the other one is gone, too");
    // One that is stopped says nothing any more, and is named too.
    let before = n_lines(&records);
    let mut parent = job.command(&out);
    let mut parent = parent.args(["-g", "2"]).spawn().expect("started");
    assert!(waits_for_more(&mut parent, &records, before), "it was too fast to be stopped");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id())).expect("proc");
    let stopped = children.split_whitespace().nth(1).expect("two").to_owned();
    assert!(Command::new("kill").args(["-STOP", &stopped]).status().expect("run").success());
    let output = parent.wait_with_output().expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let expected = format!("the replica on cpu (1 of 2) (process {stopped}) has said nothing for 1");
    assert!(stderr.contains(&expected) && stderr.contains(" s, since it is stopped"), "{stderr}");
    let ran = job.run(&out, &["-g", "3"]).ok();
    assert!(ran.stderr.contains(" of 800 answers were finished before"), "{}", ran.stderr);
    job.is_as_undisturbed(&out);
    assert!(!records.exists());
}

#[test]
fn metrics_add_up_what_replicas_did() {
    let job = Job::new(6);
    let (out, _) = job.out("drafted.txt");
    let metrics = job.counter.folder.path().join("metrics.json");
    let did = |args: &[&str]| {
        let words = ["--restart", "-T", "0", "--speculate", "on", "--metrics", metrics.to_str().expect("text")];
        job.with("run", &out, &[&words, args].concat(), &[]).ok();
        let metrics: serde_json::Value = serde_json::from_slice(&fs::read(&metrics).expect("written")).expect("JSON");
        ["steps", "drafted_tokens", "accepted_tokens"].map(|name| metrics[name].as_u64().expect(name))
    };
    // One prompt at a time runs alone, so that nothing depends on who is beside it.
    let ([steps, drafted, accepted], of_two) = (did(&["-b", "1"]), did(&["-b", "1", "-g", "2"]));
    assert!(steps > 0 && accepted > 0 && drafted >= accepted, "{steps} {drafted} {accepted}");
    assert_eq!(of_two, [steps, drafted, accepted]);
}

#[test]
fn replicas_of_two_devices_each_make_the_file_of_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prompts = ["Once upon a time", "Lily had a", "The dog ran", "A boy", "One day", "She was", "He saw", "Tom"];
    let input = file(folder.path(), "prompts.txt", &prompt_file(&prompts));
    let out = argument(&folder.path().join("answers.txt"));
    let answers = |more: &[&str]| {
        let words = ["run", "-m", "getp", "-i", &input, "-o", &out, "-n", "40", "-b", "2", "--precision", "f32"];
        let ran = run(&[&words[..], &["-T", "1", "-s", "7", "--verbose"], more].concat()).ok();
        let answers = fs::read_to_string(&out).expect("written");
        fs::remove_file(&out).expect("it was there");
        // What each device of the replica that speaks is to give.
        (answers, ran.stderr.matches("\nmemory of cpu (1 thread): ").count())
    };
    let (expected, one) = answers(&["--threads", "1"]);
    assert_eq!((expected.lines().count(), one), (prompts.len(), 1));
    assert_eq!(answers(&["-g", "2", "--tp", "2", "--threads", "4"]), (expected, 2));
}
