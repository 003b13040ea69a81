//! A GPU that is there and is not used: what `run`, `serve` and `doctor` say of it, and how they end.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use super::Room;
use super::commands::{check, text};
use super::driver_files::system;
use crate::fixtures::server::Server;
use crate::object::hiprtc;

/// The program where the driver has a gfx1100 and nothing of NVIDIA's is.
fn program(room: &Room, words: &[&str]) -> Command {
    let mut command = room.without_hiprtc(words);
    command.env("GPTOSS_JIT_TEST_SYSTEM_ROOT", room.path().join("system")).env("GPTOSS_JIT_CUDA", "/nowhere");
    command
}

fn run(room: &Room, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let words = [&["run", "-i", "Once upon a time", "-n", "6"], more].concat();
    program(room, &words).envs(variables.iter().copied()).output().expect("the program starts")
}

fn room(orders: &str) -> Room {
    let room = Room::new(orders);
    system(&room, 110_000);
    room
}

#[test]
fn a_gpu_that_hip_does_not_find_is_a_warning_and_the_last_line_names_what_ran() {
    let none = room("arch =");
    let hidden = [("HIP_VISIBLE_DEVICES", "-1")];
    let said = "warning: the cpu is used: `HIP_VISIBLE_DEVICES=-1` leaves out node 1, a gfx1100; unset \
                `HIP_VISIBLE_DEVICES`, or let it name this GPU\n";
    let output = run(&none, &[], &hidden);
    let err = text(&output.stderr);
    assert!(output.status.success() && err.contains(said), "{err}");
    assert!(err.lines().last().is_some_and(|line| line.contains(" new") && line.contains(", on cpu (")), "{err}");
    // Also for programs, and for who wants no words.
    let output = run(&none, &["--json", "--quiet"], &hidden);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["device"].as_str().is_some_and(|device| device.starts_with("cpu (")), "{report}");
    assert_eq!(text(&output.stderr), said);
    // Whoever names the cpu wants it.
    assert!(!text(&run(&none, &["--device", "cpu"], &hidden).stderr).contains("warning"));
    // Without a runtime the driver knows that there is something to install one for.
    let output = run(&none, &[], &[("GPTOSS_JIT_HIP", "/nowhere")]);
    let err = text(&output.stderr);
    let said =
        "warning: the cpu is used: the driver has a gfx1100, and there is no HIP runtime: looked in `/nowhere`; ";
    assert!(err.contains(said) && err.contains("install ROCm's HIP runtime"), "{err}");
}

#[test]
fn a_server_says_first_what_it_computes_on_and_why() {
    let none = room("arch =");
    let mut command = program(&none, &["serve", "--port", "0"]);
    let server = Server::of(command.env("CUDA_VISIBLE_DEVICES", ""), true);
    server.signal();
    let (_, err) = server.ended();
    let first = err.lines().next().unwrap_or_default();
    assert!(first.contains("the cpu is used: `CUDA_VISIBLE_DEVICES=` leaves out node 1, a gfx1100"), "{err}");
    let serving = err.lines().find(|line| line.starts_with("serving tiny on ")).unwrap_or_default();
    assert!(serving.contains(", on cpu ("), "{err}");
}

#[test]
fn a_runtime_that_ends_its_process_ends_no_command() {
    let deadly = room("arch = gfx1100\ndie = hipInit");
    let said = "libamdhip64.so` ends the process that starts it (signal 6 (abort), free(): invalid pointer)";
    let output = run(&deadly, &[], &[]);
    let err = text(&output.stderr);
    assert!(output.status.success() && err.contains("warning: hip is not used: ") && err.contains(said), "{err}");
    let output = run(&deadly, &["--device", "hip"], &[]);
    let err = text(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains(said), "{err}");
    assert!(err.contains("hint: `--device cpu` does without it"), "{err}");
    let listed = program(&deadly, &["devices"]).output().expect("it starts");
    assert!(listed.status.success() && text(&listed.stderr).contains(said), "{}", text(&listed.stderr));
    let output = program(&deadly, &["doctor", "--json"]).output().expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["device"]), (Some(0), &"cpu".into()), "{report}");
    assert_eq!(check(&report, "HIP runtime")["state"], "failed");
}

#[test]
fn doctor_ends_as_run_does_on_the_device_that_run_takes() {
    // A GPU, and nothing that compiles for it: the cpu would work, and is not what `run` takes.
    let gpu = room("arch = gfx1100");
    let fresh = gpu.path().join("cache");
    let without = |words: &[&str]| {
        let mut command = program(&gpu, words);
        command.env("GPTOSS_JIT_CACHE", &fresh);
        command.output().expect("the program starts")
    };
    let output = without(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["ready"], &report["device"]), (Some(1), &false.into(), &"hip:0".into()));
    assert_eq!(without(&["run", "-i", "x", "-n", "2"]).status.code(), Some(1));
    let works: Vec<(&Value, &Value)> =
        report["verdicts"].as_array().expect("a list").iter().map(|one| (&one["device"], &one["works"])).collect();
    assert_eq!(works, [(&"hip:0".into(), &false.into()), (&"cpu".into(), &true.into())], "{report}");
    assert_eq!(
        (&check(&report, "hipRTC")["needed"], &check(&report, "C compiler")["needed"]),
        (&true.into(), &false.into())
    );
    let asked = program(&gpu, &["doctor", "--device", "cpu"]).output().expect("it starts");
    assert!(text(&asked.stderr).contains("`run` works here, on cpu ("), "{}", text(&asked.stderr));
    let asked = without(&["doctor", "--device", "hip:7"]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text(&asked.stderr).contains("on hip:7: there is no device hip:7: the HIP runtime finds 1"));
}

#[test]
fn a_full_cache_runs_without_its_compiler_and_doctor_knows() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &[], "");
    assert_eq!(text(&room.on("hip", &[]).stdout), simulated);
    let mut gone = room.command("hip", &[]);
    let output = gone.env("GPTOSS_JIT_HIPRTC", "/nowhere").env("CC", "/nowhere/cc").output().expect("it starts");
    let err = text(&output.stderr);
    assert_eq!(text(&output.stdout), simulated, "{err}");
    assert!(err.contains("warning: hipRTC is missing: kernels come only from the cache"), "{err}");
    // An empty one does not.
    let mut other = room.command("hip", &[]);
    other.env("GPTOSS_JIT_HIPRTC", "/nowhere").env("GPTOSS_JIT_CACHE", room.path().join("cache"));
    assert_eq!(other.output().expect("it starts").status.code(), Some(1));
    // A broken C compiler is no obstacle to a GPU.
    let mut doctor = room.compiling(&["doctor", "--json", "--device", "hip"]);
    let output = doctor.env("CC", "/bin/false").output().expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["device"]), (Some(0), &"hip:0".into()), "{report}");
    assert_eq!(
        (&check(&report, "C compiler")["state"], &check(&report, "C compiler")["needed"]),
        (&"failed".into(), &false.into())
    );
}

#[test]
fn a_gpu_that_only_the_weights_fit_on_is_passed_over() {
    let Some(_) = hiprtc::compiler() else { return };
    // No part of it may leave, as of a model without experts whose embedding is tied.
    let (room, _) = Room::executing("gfx1100", &[], "");
    fs::write(room.path().join("orders"), "arch = gfx1100\nmemory = 3300000").expect("written");
    let output = room.on("auto", &["--n-cpu-moe", "0", "--embedding", "device"]);
    let err = text(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert!(err.contains("warning: cpu is used, and hip:0 is not: could not fit the KV cache"), "{err}");
    let output = room.on("hip", &["--n-cpu-moe", "0", "--embedding", "device"]);
    assert_eq!(output.status.code(), Some(1), "who names it is told: {}", text(&output.stderr));
}

#[test]
fn a_library_that_lacks_another_is_not_called_absent() {
    let none = room("arch =");
    let file = none.path().join("libamdhip64.so");
    let text_of_needed = b"libgptoss_jit_needed.so";
    // An ELF file of a linker, where there is one: it needs a library that is nowhere.
    let source = none.path().join("empty.c");
    fs::write(&source, "int needed(void); int hipInit(void) { return needed(); }\n").expect("written");
    let needed = none.path().join("libgptoss_jit_needed.so");
    let stub = none.path().join("stub.c");
    fs::write(&stub, "int needed(void) { return 0; }\n").expect("written");
    let link = |words: &[&std::ffi::OsStr]| Command::new("cc").args(["-shared", "-fPIC", "-o"]).args(words).status();
    let Ok(made) = link(&[needed.as_ref(), stub.as_ref()]) else {
        return crate::fixtures::skipped("no C compiler");
    };
    assert!(made.success());
    let folder = format!("-L{}", none.path().display());
    fs::remove_file(&file).expect("removed");
    let libraries = [file.as_os_str(), source.as_ref(), folder.as_ref(), "-lgptoss_jit_needed".as_ref()];
    assert!(link(&libraries).expect("as before").success());
    assert!(fs::read(&file).expect("made").windows(text_of_needed.len()).any(|bytes| bytes == text_of_needed));
    fs::remove_file(&needed).expect("removed");
    let output = run(&none, &["--device", "hip"], &[]);
    let err = text(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains("error: could not open the HIP runtime:"), "{err}");
    assert!(err.contains("hint: install the package that has `libgptoss_jit_needed.so`"), "{err}");
}

#[test]
fn wheels_of_the_active_environment_are_found_by_themselves() {
    let wheels = room("arch = gfx1100");
    let folder = wheels.path().join("venv/lib/python3.12/site-packages/_rocm_sdk_core/lib");
    fs::create_dir_all(&folder).expect("made");
    for name in ["libamdhip64.so", "orders"] {
        fs::rename(wheels.path().join(name), folder.join(name)).expect("moved");
    }
    let mut command = program(&wheels, &["devices", "--json"]);
    command.env_remove("GPTOSS_JIT_HIP").env("VIRTUAL_ENV", wheels.path().join("venv"));
    let report: Value = serde_json::from_slice(&command.output().expect("it starts").stdout).expect("JSON");
    assert_eq!(report["devices"][0]["device"], "hip:0", "{report}");
    assert!(report["hip"]["library"].as_str().is_some_and(|library| library.contains("_rocm_sdk_core")), "{report}");
}

#[test]
fn a_report_of_a_gpu_that_is_not_there_is_one_sentence_and_fails() {
    let gpu = room("arch = gfx1100");
    let file = gpu.path().join("report.md");
    let mut command = program(&gpu, &["doctor", "--device", "hip:1", "--report"]);
    let output = command.arg(&file).output().expect("it starts");
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let said = "there is no device hip:1 here, only hip:0, cpu";
    assert!(err.contains(&format!("error: {said}")), "{err}");
    let report = fs::read_to_string(&file).expect("written");
    assert_eq!(report.matches(&format!("\n{said}\n")).count(), 1, "{report}");
    assert!(report.contains("## all parts of the device: left out"), "{report}");
}
