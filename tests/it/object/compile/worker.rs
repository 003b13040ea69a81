//! What a worker survives, and what it sees.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kernel::object::compile::{CompileError, CompilerOptions, Compilers, How, Request};
use tempfile::TempDir;

use super::{FAKE, compile, current_folders, fake_failure, options, pipe_in, request, wait_until};

#[test]
fn a_compile_is_deterministic_and_depends_on_source_options_and_target() {
    let compiler = Compilers::new(options());
    let request = request(FAKE, "a kernel");
    let object = |request: &Request| compiler.compile(request).unwrap().object;
    assert_eq!(object(&request), object(&Request { label: "another".into(), ..request.clone() }));
    let others = [
        Request { source: "another".into(), ..request.clone() },
        Request { options: vec!["-g".into()], ..request.clone() },
        Request { target: "gfx942".into(), ..request.clone() },
    ];
    let distinct: BTreeSet<Vec<u8>> = others.iter().chain([&request]).map(object).collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn a_compiler_that_kills_its_process_is_reported_with_its_last_words() {
    let (how, log) = fake_failure("// fake: print munmap_chunk(): invalid pointer\n// fake: crash");
    assert_eq!((how, log.as_str()), (How::Crashed { signal: 6 }, "munmap_chunk(): invalid pointer"));
    let (how, log) = fake_failure("// fake: print LLVM ERROR: no\n// fake: exit 3");
    assert_eq!((how, log.as_str()), (How::Exited { code: 3 }, "LLVM ERROR: no"));
    assert_eq!(fake_failure("// fake: exit 0").0, How::Exited { code: 0 });
}

#[test]
fn a_damaged_answer_is_never_an_object() {
    assert!(matches!(fake_failure("// fake: answer-garbage").0, How::Garbage { .. }));
}

#[test]
fn a_compiler_out_of_memory_is_told_apart_from_a_crash() {
    assert_eq!(fake_failure("// fake: oom").0, How::OutOfMemory);
}

#[test]
fn a_refusal_carries_the_log() {
    assert_eq!(fake_failure("// fake: reject no such builtin"), (How::Failed, "no such builtin".into()));
    let at_a_line = "kernel.hip:3:1: error: no such builtin";
    assert_eq!(fake_failure(&format!("// fake: reject {at_a_line}")), (How::Rejected, at_a_line.into()));
}

#[test]
fn a_compiler_that_hangs_is_killed_at_the_deadline() {
    let deadline = Duration::from_millis(300); // it would hang for ever
    let compiler = Compilers::new(CompilerOptions { deadline, ..options() });
    match compiler.compile(&request(FAKE, "// fake: print so far\n// fake: hang")).unwrap_err() {
        CompileError::Failed { how, log, .. } => {
            assert_eq!((how, log.as_str()), (How::TimedOut { after_ms: 300 }, "so far"))
        }
        // A machine so busy that the canary takes longer.
        CompileError::Canary { how, .. } => assert_eq!(how, How::TimedOut { after_ms: 300 }),
        error => panic!("{error}"),
    }
}

#[test]
fn at_the_deadline_what_the_worker_started_is_killed_too() {
    let folder = TempDir::new().unwrap();
    let pipe = pipe_in(folder.path());
    let compiler = Compilers::new(CompilerOptions { deadline: Duration::from_secs(2), ..options() });
    let error = compiler.compile(&request("host", &format!("#include \"{}\"\n", pipe.display()))).unwrap_err();
    assert!(error.to_string().contains("was still busy after 2000 ms"), "{error}");
    // Opening the pipe for writing finds out whether the preprocessor still waits at its other end, and would let it
    // go on: so there is one try, when nobody is left whose folder was taken away.
    let is_orphan = |cwd: &PathBuf| cwd.to_string_lossy().contains("gptoss-jit-compile-") && !cwd.exists();
    wait_until("it lives on", || !current_folders().iter().any(|(_, cwd)| is_orphan(cwd)));
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let writer = fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&pipe);
    let nobody = writer.expect_err("the preprocessor lives on").raw_os_error();
    assert_eq!(nobody, Some(rustix::io::Errno::NXIO.raw_os_error()));
}

#[test]
fn a_worker_sees_nothing_of_the_environment_but_the_fixed_names() {
    let compiled = compile(options(), FAKE, "// fake: environment").unwrap();
    assert_eq!(compiled.log, "AMD_COMGR_CACHE HOME LANG PATH TMPDIR");
}

#[test]
fn a_worker_that_cannot_be_started_is_named() {
    let options = CompilerOptions { worker: Some("/nowhere/gptoss-jit".into()), ..options() };
    let error = compile(options, FAKE, "").unwrap_err();
    assert_eq!(error.to_string(), "could not start the compile worker `/nowhere/gptoss-jit`");
}

#[test]
fn the_hidden_command_touches_no_folder_of_a_person() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("thesis"), "").unwrap();
    let mut worker = Command::new(options().worker.expect("named"));
    worker.arg("__compile-worker").arg(folder.path()).stdin(Stdio::null()); // at its end: as if the parent were gone
    let output = worker.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no job"));
    assert!(folder.path().join("thesis").exists());
}
