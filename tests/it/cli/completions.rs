//! What helps people at a shell: completions, manual pages, help.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

use crate::fixtures::program::{argument, run};
use crate::fixtures::skipped;

const WORKER: &str = "compile-worker";

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).ok();
    let listed = help.text().split("\nCommands:\n").nth(1).expect("a list").split("\n\n").next().expect("a list");
    let name = Regex::new(r"(?m)^  (\w+) ").expect("a pattern");
    name.captures_iter(listed).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_shell_gets_the_commands_and_not_the_worker() {
    let commands = commands();
    assert!(["run", "completions", "man", "help"].iter().all(|name| commands.iter().any(|found| found == name)));
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = run(&["completions", shell]).ok();
        for command in &commands {
            assert!(ran.text().contains(command), "{shell}: {command}");
        }
        assert!(ran.text().contains("max-new-tokens"), "{shell}");
        assert!(!ran.text().contains(WORKER), "{shell}");
    }
    let stderr = run(&["completions", "cmd"]).stderr;
    assert!(stderr.contains("invalid value 'cmd'") && stderr.contains("bash"), "{stderr}");
}

#[test]
fn bash_takes_the_completions_and_completes_with_them() {
    let script = r#"
        source /dev/stdin
        registered=$(complete -p gptoss-jit); function=${registered#*-F }; function=${function%% *}
        COMP_WORDS=(gptoss-jit ""); COMP_CWORD=1; $function gptoss-jit "" gptoss-jit; echo "${COMPREPLY[@]}"
        COMP_WORDS=(gptoss-jit run --max); COMP_CWORD=2; $function gptoss-jit --max run; echo "${COMPREPLY[@]}"
    "#;
    let mut bash = std::process::Command::new("bash");
    let bash =
        bash.args(["--norc", "-c", script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let Ok(mut child) = bash.spawn() else {
        skipped("bash is not there");
        return;
    };
    let completions = run(&["completions", "bash"]).ok();
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), &completions.stdout).expect("written");
    let output = child.wait_with_output().expect("reaped");
    let replies = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<Vec<&str>> = replies.lines().map(|line| line.split(' ').collect()).collect();
    let [first, flags] = &lines[..] else { panic!("{replies}") };
    assert!(commands().iter().all(|command| first.contains(&command.as_str())), "{replies}");
    assert!(!replies.contains(WORKER), "{replies}");
    assert_eq!(flags, &["--max-new-tokens"]);
}

#[test]
fn the_worker_is_no_suggestion_and_no_command_of_a_persons() {
    for args in [&["__compile"][..], &["__compile-worker"], &["compile-worker"], &["help", "__compile-worker"]] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        let others = ran.stderr.replace(&format!("'{}'", args.last().expect("one")), "");
        assert!(!others.contains(WORKER), "{}", ran.stderr);
    }
    assert!(!run(&["--help"]).ok().text().contains(WORKER));
}

#[test]
fn help_is_a_command_too() {
    assert_eq!(run(&["help"]).ok().text(), run(&["--help"]).ok().text());
    assert_eq!(run(&["help", "run"]).ok().text(), run(&["run", "--help"]).ok().text());
    assert_eq!(run(&["help", "kernels", "check"]).ok().text(), run(&["kernels", "check", "--help"]).ok().text());
    assert!(run(&["help", "nonsense"]).stderr.contains("'nonsense'"));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("share/man1");
    let ran = run(&["man", &argument(&pages)]).ok();
    let told: BTreeSet<String> = ran.text().lines().map(str::to_owned).collect();
    let written = fs::read_dir(&pages).expect("made").map(|entry| argument(&entry.expect("listed").path()));
    assert_eq!(told, written.collect());
    for command in commands().iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(pages.join(format!("gptoss-jit-{command}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS") && page.contains("GPTOSS_JIT_CACHE"), "{page}");
    }
    let page = |name: &str| fs::read_to_string(pages.join(name)).expect("a page");
    assert!(page("gptoss-jit.1").contains("gptoss\\-jit\\-run(1)") && !page("gptoss-jit.1").contains(WORKER));
    assert!(page("gptoss-jit-run.1").contains("max\\-new\\-tokens"));
    assert!(page("gptoss-jit-kernels-check.1").contains("all\\-params"));
    let stderr = run(&["man", "/proc/nowhere"]).fails(1);
    assert!(stderr.contains("could not make the folder `/proc/nowhere`"), "{stderr}");
}

#[test]
fn every_help_lists_the_variables_that_the_source_reads() {
    let mut read: BTreeSet<String> = gpu::Runtime::ALL.into_iter().map(gpu::Runtime::variable).collect();
    let name = Regex::new(r#"(?:var(?:_os)?|path|named_by)\("([A-Z_]+)"\)|"(GPTOSS_JIT_[A-Z_]+)""#).expect("a pattern");
    let mut folders = ["src", "crates"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("listed") {
            let path = entry.expect("listed").path();
            if path.is_dir() {
                if !path.ends_with("tests") && !path.ends_with("fixtures") {
                    folders.push(path);
                }
            } else if !path.ends_with("src/environment.rs") {
                let text = fs::read_to_string(&path).expect("Rust");
                let code = text.split("#[cfg(test)]").next().expect("a part");
                read.extend(
                    name.captures_iter(code)
                        .filter_map(|found| Some(found.get(1).or(found.get(2))?.as_str().to_owned())),
                );
            }
        }
    }
    for others in [
        "PATH",
        "HOME",
        "OUT_DIR",
        "CARGO_MANIFEST_DIR",
        "GPTOSS_JIT_TEST_SYSTEM_ROOT",
        "GPTOSS_JIT_IGNORED_OVERRIDES",
        "GPTOSS_JIT_SIM",
    ] {
        // The system's, those of the build, what tests alone set, what the program tells itself, and kernels.
        read.remove(others);
    }
    assert!(read.len() > 12, "the pattern finds nothing: {read:?}");
    for help in [run(&["--help"]), run(&["run", "--help"]), run(&["help", "bench"])].map(|ran| ran.ok()) {
        let listed = help.text().split("\nEnvironment variables:\n").nth(1).expect("a list").to_owned();
        let missing: Vec<_> = read
            .iter()
            .filter(|name| !listed.contains(&format!("\n  {name} ")) && !listed.starts_with(&format!("  {name} ")))
            .collect();
        assert!(missing.is_empty(), "{missing:?} in {listed}");
    }
    // The one command that has no model of its own where others do, and its file is the last word.
    let export = run(&["export", "--help"]).ok();
    assert!(
        !export.text().contains("built-in tiny") && export.text().contains(" [MODEL] <OUT.bin>"),
        "{}",
        export.text()
    );
    let help = run(&["run", "--help"]).ok();
    let words: Vec<_> = help.text().split_whitespace().collect();
    assert!(words.join(" ").contains("cuda:N (an NVIDIA GPU)"));
}
