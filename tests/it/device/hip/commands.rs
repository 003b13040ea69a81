//! The program with a fake runtime.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::Room;
use crate::fixtures::program::shared_cache;

impl Room {
    /// The program, with this runtime and the cache of all tests.
    pub(super) fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"));
        command.args(arguments).env("GPTOSS_JIT_HIP", self.path()).env("XDG_CONFIG_HOME", self.path());
        command.env("GPTOSS_JIT_CACHE", shared_cache());
        // The fake takes its time.
        command.env("GPTOSS_JIT_STEP_TIMEOUT", "0");
        for name in [
            "GPTOSS_JIT_TEMPLATES",
            "GPTOSS_JIT_GRAPHS",
            "GPTOSS_JIT_JOBS",
            "HSA_OVERRIDE_GFX_VERSION",
            "HIP_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ROCM_PATH",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// The same where no hipRTC is, and a cache with no kernels of GPUs, which would do without one.
    pub(super) fn without_hiprtc(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(arguments);
        let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels-of-no-gpu");
        command.env("GPTOSS_JIT_HIPRTC", "/nowhere").env("GPTOSS_JIT_CACHE", cache);
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.program(arguments).output().expect("the program starts")
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.without_hiprtc(arguments).output().expect("the program starts");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn devices_lists_what_the_runtime_finds_and_the_cpu() {
    let room = Room::new("arch = gfx90a:sramecc+:xnack-, gfx1152\nmemory = 1073741824");
    let report = room.json(&["devices", "--json"]);
    let devices = report["devices"].as_array().expect("a list");
    let names: Vec<_> = devices.iter().map(|device| device["device"].as_str().expect("text")).collect();
    assert_eq!(names, ["hip:0", "hip:1", "cpu"]);
    assert_eq!((&devices[0]["arch"], &devices[0]["wave_size"]), (&"gfx90a:sramecc+:xnack-".into(), &64.into()));
    assert_eq!((&devices[0]["total_bytes"], &devices[0]["problem"]), (&1_073_741_824_u64.into(), &Value::Null));
    assert!(devices[1]["problem"].as_str().is_some_and(|said| said.contains("assumed to be like gfx1151")), "{report}");
    assert_eq!((&report["hip"]["runtime_version"], &report["hip"]["problem"]), (&"6.4.43484".into(), &Value::Null));

    let output = room.run(&["devices"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("hip:1   gfx1152") && out.contains("Fake gfx1152") && out.contains("1.1 GB"), "{out}");
    assert!(err.contains("hip:1: nothing is known about gfx1152") && err.contains("HIP runtime 6.4.43484"), "{err}");
}

#[test]
fn compute_units_are_counted_alike_on_all_chips() {
    let room = Room::new("arch = gfx1100, gfx942:sramecc+:xnack-\nmultiprocessors = 48, 304");
    let report = room.json(&["devices", "--json"]);
    let counts = |i: usize| (&report["devices"][i]["cores"], &report["devices"][i]["multiprocessors"]);
    assert_eq!(counts(0), (&96.into(), &48.into()), "{report}");
    assert_eq!(counts(1), (&304.into(), &304.into()), "{report}");
    assert_eq!(counts(2).1, &Value::Null, "{report}");
    let table = text(&room.run(&["devices"]).stdout);
    assert!(table.contains("  96 (48 WGPs)  ") && table.contains("  304  "), "{table}");

    // A runtime that is told to count compute units does.
    let output = room.program(&["devices"]).env("GPU_ENABLE_WGP_MODE", "0").output().expect("it starts");
    assert!(text(&output.stdout).contains("  48  "), "{}", text(&output.stdout));
}

#[test]
fn devices_works_without_a_runtime_and_without_a_device() {
    let room = Room::new("arch =");
    let report = room.json(&["devices", "--json"]);
    assert_eq!(report["hip"]["problem"], "it finds no device");
    assert_eq!(report["devices"].as_array().map(Vec::len), Some(1));

    let output = room.program(&["devices", "--json"]).env("GPTOSS_JIT_HIP", "/nowhere").output().expect("it starts");
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let problem = report["hip"]["problem"].as_str().expect("text");
    assert_eq!(problem, "there is no HIP runtime: looked in `/nowhere`");
    assert_eq!(report["devices"][0]["device"], "cpu");
}

#[test]
fn a_device_that_makes_no_sense_is_listed_with_its_problem() {
    let room = Room::new("wave_size = 7");
    let report = room.json(&["devices", "--json"]);
    let problem = report["devices"][0]["problem"].as_str().expect("text");
    assert_eq!(problem, "hip:0: the runtime reports an impossible wave size: 7");
}

pub(super) fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check `{name}`: {report}"))
}

#[test]
fn doctor_tells_of_the_runtime_and_its_devices() {
    let room = Room::new("arch = gfx1151\nmemory = 2147483648");
    let report = room.json(&["doctor", "--json"]);
    let hip = check(&report, "HIP runtime");
    // It is what `run` takes, though the fake computes nothing.
    assert_eq!((&hip["state"], &hip["needed"]), (&"ok".into(), &true.into()), "{report}");
    assert_eq!((&report["device"], &report["ready"]), (&"hip:0".into(), &false.into()), "{report}");
    let details = hip["details"].to_string();
    assert!(details.contains("6.4.43484 (driver 6.4.43484), ") && details.contains("libamdhip64.so"), "{details}");
    let device = "hip:0: Fake gfx1151, gfx1151, 8 CUs (4 WGPs), waves of 32, 65.5 kB of LDS, 2.1 GB of 2.1 GB free";
    assert!(details.contains(device), "{details}");
}

#[test]
fn doctor_tries_which_devices_see_each_others_memory() {
    for (peers, said) in [
        ("true", "hip:0 and hip:1 see each other's memory (tried by a write and a read of each), copies at "),
        ("false", "hip:0 does not reach the memory of hip:1: `--tp` cannot use both"),
    ] {
        let room = Room::new(&format!("arch = gfx942, gfx942\npeers = {peers}"));
        let report = room.json(&["doctor", "--json"]);
        let hip = check(&report, "HIP runtime");
        assert_eq!(hip["state"], "ok", "{report}");
        assert!(hip["details"].to_string().contains(said), "{report}");
        let links = &room.json(&["devices", "--json"])["links"];
        assert_eq!(links[0]["devices"], serde_json::json!(["hip:0", "hip:1"]), "{links}");
        assert_eq!(links[0]["copy_gbps"].is_f64(), peers == "true", "{links}");
        assert_eq!(links[0]["problem"].is_string(), peers == "false", "{links}");
    }
}

#[test]
fn doctor_says_what_is_wrong_with_the_runtime_and_what_to_do() {
    for (orders, state, detail, hint) in [
        ("arch =", "missing", "it finds no device", "/dev/kfd"),
        ("fail = hipInit:303", "failed", "`hipInit` failed: hipErrorSharedObjectInitFailed (303)", ""),
        ("wave_size = 7", "failed", "an impossible wave size: 7", "GPTOSS_JIT_HIP"),
    ] {
        let room = Room::new(orders);
        let report = room.json(&["doctor", "--json"]);
        let hip = check(&report, "HIP runtime");
        assert_eq!(hip["state"], state, "{report}");
        assert!(hip["details"].to_string().contains(detail), "{report}");
        assert!(hip["hint"].as_str().unwrap_or_default().contains(hint), "{report}");
        assert_eq!(report["ready"], true, "{report}");
    }
    let room = Room::new("");
    std::fs::remove_file(room.path().join("libamdhip64.so")).expect("removed");
    let report = room.json(&["doctor", "--json"]);
    let hip = check(&report, "HIP runtime");
    assert_eq!(hip["state"], "missing", "{report}");
    assert!(hip["hint"].as_str().is_some_and(|hint| hint.contains("GPTOSS_JIT_HIP")), "{report}");
}

#[test]
fn a_library_that_is_no_hip_runtime_says_which_function_it_lacks() {
    let room = Room::new("");
    let file = room.path().join("libamdhip64.so");
    std::fs::copy(any_library(), &file).expect("copied");
    let output = room.run(&["devices", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let problem = report["hip"]["problem"].as_str().expect("text");
    assert!(problem.contains("could not open the HIP runtime"), "{problem}");
    assert!(problem.contains("hipInit"), "{problem}");
}

/// A shared library that every machine with this test has.
fn any_library() -> std::path::PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let libc = maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("/libc.so"));
    Path::new(libc.expect("this test is linked with it")).to_path_buf()
}

#[test]
fn kernels_are_shown_for_an_arch_that_nobody_knows_with_a_warning() {
    let room = Room::new("");
    let output = room.run(&["kernels", "show", "linear/gemv", "--arch", "gfx1152"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("linear_gemv"), "{err}");
    assert!(
        err.contains("nothing is known about gfx1152: assumed to be like gfx1151 (waves of 32, 65536 bytes"),
        "{err}"
    );

    let output = room.run(&["kernels", "show", "linear/gemv", "--arch", "gfx803"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("nothing is known about the arch `gfx803`, expected one of: gfx1030"), "{err}");
}
