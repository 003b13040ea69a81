//! What `docs/debugging.md` relies on: `kernels replay --debug` names the text, and gdb stops in one thread of a
//! simulated kernel and knows its variables.

use std::fs;
use std::process::{Command, Stdio};

use super::replay::capture;
use crate::fixtures::program::{argument, command, run, shared_cache};
use crate::fixtures::skipped;

#[test]
fn gdb_stops_in_a_thread_of_a_simulated_kernel() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("norm.launch");
    capture("block.0.attn.norm,2", &file).ok();
    let file = argument(&file);
    let replay = ["kernels", "replay", &file, "--device", "sim:gfx1100", "--debug"];
    let ran = run(&replay);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let show = ran.stderr.lines().find_map(|line| line.strip_prefix("`gptoss-jit ")?.split_once(" > kernel.hip`"));
    let (show, _) = show.unwrap_or_else(|| panic!("no command that writes the text: {}", ran.stderr));
    let text = String::from_utf8(run(&show.split(' ').collect::<Vec<_>>()).ok().stdout).expect("text");
    let line = 1 + text.lines().position(|line| line.contains("mine *= (accum)norm_factor")).expect("the page's line");
    fs::write(folder.path().join("kernel.hip"), &text).expect("written");

    if !Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return skipped("there is no gdb");
    }
    let program = command(shared_cache(), &replay);
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-ex", "set breakpoint pending on", "-ex"]);
    gdb.arg(format!("break kernel.hip:{line} if sim::context->thread->index == 33"));
    for word in ["run", "print sim::context->thread->index", "print lane", "print dots.at[0][0] == 0", "list"] {
        gdb.args(["-ex", word]);
    }
    gdb.args(["-ex", "kill", "--args"]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => gdb.env(name, value),
            None => gdb.env_remove(name),
        };
    }
    let said = gdb.current_dir(folder.path()).stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    if said.contains("ptrace: Operation not permitted") || said.contains("Could not trace") {
        return skipped("gdb may not trace here");
    }
    for expected in [" hit Breakpoint 1", "$1 = 33", "$2 = 1\n", "$3 = false", "mine *= (accum)norm_factor"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
