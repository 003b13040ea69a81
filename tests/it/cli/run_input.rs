//! Where `run` takes its input from, and which flags make sense with what it does.

use std::process::{Command, Stdio};

use crate::fixtures::models::{Counter, letters, prompt_file};
use crate::fixtures::program::{Ran, command, file, run_with_stdin, shared_cache};
use crate::fixtures::skipped;
use crate::tokenizer::chat::Parrot;

/// `run` with a text on stdin, through a pipe.
fn piped(counter: &Counter, stdin: &[u8], args: &[&str]) -> Ran {
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    run_with_stdin(&[&["run", &model, "-z", &tokenizer], args].concat(), stdin)
}

#[test]
fn a_pipe_is_the_prompt_whole_but_for_its_last_line_end() {
    let counter = Counter::new(40);
    for mode in [&[][..], &["-m", "generate"]] {
        let ids = |stdin: &[u8]| {
            let json = piped(&counter, stdin, &[mode, &["-n", "6", "--json"]].concat()).ok().json();
            (json["prompt_tokens"].as_u64().expect("a number"), json["text"].as_str().expect("text").to_owned())
        };
        assert_eq!(ids(b"AaAb"), (2, "AaAbAcAdAeAfAg".into()));
        assert_eq!(ids(b"AaAb\n"), (2, "AaAbAcAdAeAfAg".into()));
        assert_eq!(ids(b"AaAb\r\n"), (2, "AaAbAcAdAeAfAg".into()));
        // Line ends within the text are of the text: four bytes that no token covers, each id 0.
        assert_eq!(ids(b"Ab\nAb\n\n").0, 4);
    }
    let stderr = piped(&counter, b"", &[]).fails(2);
    assert!(stderr.contains("generate needs a prompt: `-i TEXT`, or a text on stdin"), "{stderr}");
    // Who gives a prompt is not waited for.
    assert_eq!(piped(&counter, b"Ah", &["-i", "Aa", "-n", "2"]).ok().text(), "AaAbAc\n");
}

#[test]
fn at_a_terminal_a_run_without_input_is_a_chat() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skipped("`script`, which gives a program a terminal, is not there");
        return;
    }
    let parrot = Parrot::new(4096);
    let (model, tokenizer) = (parrot.0.path("model.bin"), parrot.0.path("tokenizer.bin"));
    let args = ["run", &model, "-z", &tokenizer, "-n", "4096"];
    let program = command(shared_cache(), &args);
    // The terminal shows what is typed, so that the answer is what begins its line.
    let words = program.get_args().map(|word| format!("'{}'", word.to_str().expect("text")));
    let line =
        [format!("'{}'", program.get_program().display())].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    let mut terminal = Command::new("script");
    terminal
        .args(["-q", "-e", "-c", &line, "/dev/null"])
        .envs(program.get_envs().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value.to_owned()))));
    let mut child = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    std::io::Write::write_all(child.stdin.as_mut().expect("piped"), b"Hello\n\x04").expect("written");
    let output = child.wait_with_output().expect("reaped");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("one message a line; the end of input (ctrl-d) ends the chat"), "{shown}");
    assert!(shown.lines().any(|line| line.trim_end() == "é!"), "{shown}");
}

#[test]
fn a_text_that_is_no_file_is_the_only_prompt_of_getp() {
    let counter = Counter::new(20);
    let getp = |input: &str, args: &[&str]| counter.run(&[&["-m", "getp", "-i", input, "-n", "4"], args].concat());
    let ran = getp("AaAb", &[]).ok();
    assert_eq!(ran.ids(), [[2, 3]]);
    assert!(ran.stderr.contains("note: there is no such file: what `-i` says is the only prompt"), "{}", ran.stderr);
    // Longer than any name of a file, and with line ends and slashes, which do not cut it.
    let long = "Aa".repeat(3000);
    assert_eq!(getp(&long, &[]).ok().ids(), [[]; 1] as [[u32; 0]; 1]);
    assert_eq!(getp("Ab\nAb / Ab.c", &["--max-new-tokens", "2"][..0]).ok().ids().len(), 1);
    // A file that is there is read, and a name that was mistyped is no prompt.
    let prompts = file(counter.folder.path(), "prompts", &prompt_file(&["Aa", "Ac"]));
    assert_eq!(getp(&prompts, &[]).ok().ids(), [[1, 2, 3], [3, 4, 5]]);
    for absent in ["prompt.txt", "data/prompts", "/nowhere/in.txt"] {
        let stderr = getp(absent, &[]).fails(1);
        assert!(stderr.contains(&format!("could not read prompts `{absent}`")), "{stderr}");
    }
}

#[test]
fn a_flag_that_a_mode_would_ignore_is_wrong_usage() {
    let counter = Counter::new(20);
    let out = counter.path("out.txt");
    for mode in ["generate", "chat"] {
        for (flag, value) in [("-o", out.as_str()), ("-v", &out), ("-b", "32"), ("-t", "0")] {
            let stderr = counter.run(&["-m", mode, "-i", "Aa", flag, value]).fails(2);
            assert!(
                stderr.contains(&format!("`{flag}` does nothing with `-m {mode}`: it is a flag of `-m getp`")),
                "{stderr}"
            );
        }
    }
    let stderr = counter.run(&["-i", "Aa", "--batch", "2"]).fails(2);
    assert!(stderr.contains("`-b` does nothing with `-m generate`"), "{stderr}");
    let stderr = piped(&counter, b"Aa", &["-o", &out]).fails(2);
    assert!(stderr.contains("`-o` does nothing with `-m generate`"), "{stderr}");
    assert!(!counter.folder.path().join("out.txt").exists());
    assert_eq!(counter.getp(b"1\nAa\n", &["-n", "3", "-b", "1", "-t", "1"]).ok().ids(), [[1, 2]]);
}

#[test]
fn a_run_that_generates_nothing_has_no_rate() {
    let counter = Counter::new(20);
    let prompt = letters(&[0, 1, 2]);
    let generate = |args: &[&str]| counter.run(&[&["-i", &prompt], args].concat()).ok();
    let ran = generate(&["--max-new-tokens", "0"]);
    assert!(ran.stderr.contains("3 prompt tokens, 0 new; kernels: "), "{}", ran.stderr);
    assert!(generate(&["--max-new-tokens", "1"]).stderr.contains(" tok/s; kernels: "));
    assert!(generate(&["--max-new-tokens", "0", "--json"]).json()["tok_per_s"].is_null());

    let input = prompt_file(&[&prompt]);
    let getp = |args: &[&str]| counter.getp(&input, args).ok();
    let ran = getp(&["-n", "3"]);
    assert!(ran.stderr.contains("1 prompts, 0 tokens in ") && !ran.stderr.contains("tok/s"), "{}", ran.stderr);
    assert!(getp(&["-n", "5"]).stderr.contains(" tok/s; kernels: "));
    assert!(getp(&["-n", "3", "--json"]).json()["tok_per_s"].is_null());
}
