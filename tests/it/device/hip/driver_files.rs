//! What `doctor` says of AMD's kernel driver and of GPUs that a runtime does not find: a folder of files stands for the
//! system.

use std::fs;

use serde_json::Value;

use super::Room;
use super::commands::{check, text};

/// A system with a GPU of a gfx version at node 1.
pub(super) fn system(room: &Room, gfx_version: u32) {
    let root = room.path().join("system");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    };
    write("proc/sys/kernel/osrelease", "6.14.0-24-generic\n");
    write("sys/module/amdgpu/initstate", "live\n");
    write("dev/kfd", "");
    write("dev/dri/renderD128", "");
    let gpu =
        "simd_count 1024\nsimd_per_cu 4\nwave_front_size 64\nlocation_id 768\ndrm_render_minor 128\ndevice_id 30112\n";
    let text = format!("{gpu}gfx_target_version {gfx_version}\n");
    write("sys/class/kfd/kfd/topology/nodes/1/properties", &text);
}

/// The checks of the driver and of the runtime.
fn checks(room: &Room, variables: &[(&str, &str)]) -> [Value; 2] {
    let mut command = room.without_hiprtc(&["doctor", "--json"]);
    for name in [
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HSA_OVERRIDE_GFX_VERSION",
    ] {
        command.env_remove(name);
    }
    command.env("GPTOSS_JIT_TEST_SYSTEM_ROOT", room.path().join("system")).envs(variables.iter().copied());
    let output = command.output().expect("the program starts");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    [check(&report, "AMD driver").clone(), check(&report, "HIP runtime").clone()]
}

#[test]
fn doctor_names_the_chip_that_a_runtime_is_too_old_for() {
    let room = Room::new("arch =\nversion = 6.4.43484");
    system(&room, 90_500);
    let [driver, runtime] = checks(&room, &[]);
    assert_eq!((&driver["state"], &driver["details"][0]), (&"ok".into(), &"amdgpu on Linux 6.14.0-24-generic".into()));
    assert_eq!(
        driver["details"][1],
        "node 1: gfx950, 0x75a0 at 0000:03:00.0, 256 CUs, waves of 64, /dev/dri/renderD128"
    );
    assert_eq!(runtime["details"][2], "HIP 6.4 does not know node 1, a gfx950");
    assert_eq!(runtime["hint"], "install ROCm 7.0 or newer: it knows gfx950");

    // With none at all, what to install is said too.
    fs::remove_file(room.path().join("libamdhip64.so")).expect("removed");
    let [_, runtime] = checks(&room, &[]);
    assert_eq!(runtime["details"][1], "HIP 7.0 and newer know node 1, a gfx950");
}

#[test]
fn doctor_names_the_variable_that_hides_a_gpu() {
    let room = Room::new("arch =");
    system(&room, 110_000);
    let [_, runtime] = checks(&room, &[("HIP_VISIBLE_DEVICES", "1")]);
    assert_eq!(runtime["details"][2], "`HIP_VISIBLE_DEVICES=1` leaves out node 1, a gfx1100");
    assert!(runtime["hint"].as_str().is_some_and(|hint| hint.starts_with("unset `HIP_VISIBLE_DEVICES`")), "{runtime}");
}

#[test]
fn doctor_names_the_device_file_that_is_not_there() {
    let room = Room::new("arch =");
    system(&room, 110_000);
    fs::remove_dir_all(room.path().join("system/dev/dri")).expect("removed");
    let [driver, runtime] = checks(&room, &[]);
    assert_eq!(driver["state"], "failed");
    assert!(driver["details"][2].as_str().is_some_and(|said| said.starts_with("`/dev/dri/renderD128`, ")), "{driver}");
    assert_eq!(runtime["hint"], driver["hint"], "{runtime}");
    assert!(driver["hint"].as_str().is_some_and(|hint| hint.contains("--device=/dev/dri")), "{driver}");
}

#[test]
fn an_override_that_hides_a_chip_is_ignored_and_told() {
    let room = Room::new("arch = gfx1100");
    system(&room, 110_501);
    let [driver, runtime] = checks(&room, &[("HSA_OVERRIDE_GFX_VERSION", "11.0.0")]);
    assert_eq!((&driver["state"], &runtime["state"]), (&"ok".into(), &"ok".into()));
    let said = "`HSA_OVERRIDE_GFX_VERSION=11.0.0` is ignored: node 1 is a gfx1151, and kernels are compiled for the actual chip; unset it";
    assert_eq!(driver["details"][2], said, "{driver}");
    // One that says the same as the driver is nobody's business.
    let [driver, _] = checks(&room, &[("HSA_OVERRIDE_GFX_VERSION", "11.5.1")]);
    assert_eq!(driver["details"][2], Value::Null, "{driver}");
}

/// The fences of JSON of a report in their order, as a program reads it: the first is the summary.
fn fences(report: &str) -> Vec<Value> {
    let inner = report.split("```json\n").skip(1).map(|text| text.split("\n```").next().expect("some"));
    inner.map(|json| serde_json::from_str(json).expect("JSON")).collect()
}

#[test]
fn a_report_goes_on_behind_what_fails_and_tells_no_name() {
    let room = Room::new("arch = gfx1100\nmultiprocessors = 48\nmemory = 24000000000");
    let (home, file) = (room.path().join("home/mary"), room.path().join("report.md"));
    let mut command = room.program(&["doctor", "--device", "hip:0", "--seconds", "8", "--report"]);
    command.arg(&file).env("HOME", &home).env("USER", "mary").env("GPTOSS_JIT_CACHE", home.join("cache"));
    // Whatever is compiled for the device fails; what the cpu does may or may not be done in time.
    let output = command.env("GPTOSS_JIT_HIPRTC", home.join("no-hiprtc")).output().expect("the program starts");
    let err = text(&output.stderr);
    assert!(output.status.success() && err.contains("read it before you send it"), "{err}");

    let report = fs::read_to_string(&file).expect("written");
    assert!(!report.contains("mary"), "{report}");
    let fences = fences(&report);
    let summary = &fences[0];
    assert_eq!((&summary["schema"], &summary["is_complete"]), (&1.into(), &true.into()), "{report}");
    let parts = summary["parts"].as_array().expect("a list");
    let names: Vec<&str> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
    let expected = [
        "machine",
        "doctor",
        "devices",
        "tables",
        "text in f32",
        "text in bf16",
        "kernels check",
        "peaks",
        "bench of gpt-oss-20b's shape",
    ];
    assert_eq!(names, expected, "{report}");
    assert_eq!(parts[0]["state"], "ok", "{report}");
    for part in &parts[4..] {
        assert!(part["state"] != "ok" && part["reason"].is_string(), "{part}");
    }
    for part in parts {
        assert!(report.contains(&format!("\n## {}: ", part["name"].as_str().expect("text"))), "{part}");
    }
    assert!(fences[1]["cores"].as_u64().is_some_and(|cores| cores > 0), "{report}");
    let table = text(&output.stdout);
    assert!(names.iter().all(|name| table.lines().any(|line| line.starts_with(name))), "{table}");
}
