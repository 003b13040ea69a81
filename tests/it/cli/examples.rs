//! What `examples/` shows of the engine as a library, run as a reader would: the programs are beside this one.

use std::process::Command;

use crate::fixtures::program::{program, repository, run, shared_cache};

/// What an example prints.
fn example(name: &str) -> String {
    let path = program().with_file_name("examples").join(name);
    let output = Command::new(&path).current_dir(repository()).env("GPTOSS_JIT_CACHE", shared_cache()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn generate_says_what_the_program_says() {
    let ours = run(&["run", "-i", "Once upon a time", "-T", "0", "--device", "cpu"]).ok();
    let prompt_and_answer = ours.text().trim_end();
    let answer = prompt_and_answer.strip_prefix("Once upon a time").expect("the prompt");
    // On a machine with a GPU its sums are others.
    assert_eq!(example("generate").trim_end(), answer);
}

#[test]
fn batch_answers_every_prompt_in_its_order_of_slots() {
    let printed = example("batch");
    let steps: Vec<&str> = printed.lines().map(|line| line.split(',').next().expect("a step")).collect();
    assert_eq!(steps, ["step  24", "step  24", "step  48", "step  48", "step  72"]);
}

#[test]
fn a_custom_kernel_is_found_and_right() {
    let printed = example("custom_kernel");
    let right = printed.lines().filter(|line| line.starts_with("rmsnorm/mine") && line.ends_with("right")).count();
    assert_eq!((right, printed.lines().count()), (2, 2), "{printed}");
}
