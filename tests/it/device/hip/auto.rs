//! `--device auto` where there are several GPUs.

use super::Room;
use super::commands::text;
use crate::object::hiprtc;

/// What is said of a choice. Nothing is compiled: there is no hipRTC where it is looked for, and then it is on a GPU
/// that the run fails.
fn said(orders: &str, device: &str, more: &[&str]) -> String {
    let room = Room::new(orders);
    let mut command = room.without_hiprtc(&["run", "-i", "Once upon a time", "-n", "6", "--device", device]);
    let output = command.args(more).env("GPTOSS_JIT_CUDA", "/nowhere").output();
    let output = output.expect("the program starts");
    let err = text(&output.stderr);
    assert_eq!(
        output.status.success(),
        ["the cpu is used", "cpu is used, and hip:0 is not", "gfx803"].iter().any(|word| err.contains(word)),
        "{err}"
    );
    err
}

/// The device that is named as chosen.
fn chosen(orders: &str) -> String {
    let err = said(orders, "auto", &[]);
    let line = err.lines().find_map(|line| line.strip_prefix("device: ")).unwrap_or_else(|| panic!("{err}"));
    line.split(' ').next().expect("a word").to_owned()
}

#[test]
fn the_gpu_with_the_most_compute_is_taken_wherever_it_is_listed() {
    // A processor's own GPU first, as on many desktops.
    assert_eq!(chosen("arch = gfx1103, gfx1100\nmultiprocessors = 6, 48"), "hip:1");
    assert_eq!(chosen("arch = gfx1100, gfx1103\nmultiprocessors = 48, 6"), "hip:0");
    assert_eq!(chosen("arch = gfx1100, gfx1100, gfx1100\nmultiprocessors = 60, 84, 70"), "hip:1");
    // Of equal ones that with the most memory, else the first.
    assert_eq!(chosen("arch = gfx1100, gfx1100\nmemory = 1000000000, 2000000000"), "hip:1");
    assert_eq!(chosen("arch = gfx1100, gfx1100"), "hip:0");
    // A compute unit of RDNA4 does twice what one of RDNA3 does.
    assert_eq!(chosen("arch = gfx1100, gfx1201\nmultiprocessors = 60, 48"), "hip:1");
    // What HIP counts on RDNA is pairs of them: 60 with 1,024 operations at 1,700 MHz each do less than 96 with 512 at
    // 2,500 MHz, and more than 48.
    assert_eq!(chosen("arch = gfx90a, gfx1100\nmultiprocessors = 60, 48"), "hip:1");
    // Where that is not known of all of them, their number counts.
    assert_eq!(chosen("arch = gfx1100, gfx1201, gfx1030\nmultiprocessors = 60, 48, 40"), "hip:0");

    let err = said("arch = gfx1103, gfx1100\nmultiprocessors = 6, 48\nmemory = 24000000000", "auto", &[]);
    let expected = "device: hip:1 (Fake gfx1100, gfx1100, 96 CUs (48 WGPs), 24.0 GB free): of 2 GPUs the one with the most compute\n";
    assert!(err.contains(expected), "{err}");
}

#[test]
fn a_gpu_that_the_model_does_not_fit_on_is_left_out() {
    let err = said("arch = gfx1100, gfx1100\nmultiprocessors = 96, 40\nmemory = 100000, 4000000000", "auto", &[]);
    assert!(err.contains("device: hip:1 (Fake gfx1100, gfx1100, 80 CUs (40 WGPs), 4.0 GB free): of 2 GPUs"), "{err}");
    assert!(err.contains(" that the weights fit on; they take 3.2 MB, too much for hip:0 (Fake gfx1100,"), "{err}");
    // Where it fits on none, one that the processor can help goes before the processor alone.
    let err = said("arch = gfx1100, gfx1100\nmultiprocessors = 40, 96\nmemory = 2000000, 100000", "auto", &[]);
    assert!(err.contains("device: hip:0 (Fake gfx1100, gfx1100, 80 CUs (40 WGPs), 2.0 MB free): of 2 GPUs"), "{err}");
    assert!(err.contains(" that all but the experts fits on; the weights take 3.2 MB"), "{err}");
    // A larger model than the tiny one.
    let shape = ["--shape", "gpt-oss-20b", "--layers", "1"];
    let room = Room::new("arch = gfx1100, gfx1151\nmultiprocessors = 96, 40\nmemory = 1000000000, 64000000000");
    let mut command = room.without_hiprtc(&["run", "-i", "x", "-n", "2"]);
    let output = command.args(shape).output().expect("the program starts");
    let err = text(&output.stderr);
    assert!(err.contains("device: hip:1 (Fake gfx1151, "), "{err}");

    let err = said("arch = gfx1100, gfx1100\nmemory = 100000, 200000", "auto", &[]);
    let expected = "the cpu is used: the weights take 3.2 MB, more than hip:1 (Fake gfx1100, gfx1100, 8 CUs (4 WGPs), 200.0 kB free) has";
    assert!(err.contains(expected), "{err}");
}

#[test]
fn a_gpu_that_cannot_be_used_is_told_of_beside_the_one_that_is() {
    let room = Room::new("arch = gfx803, gfx1100\nmultiprocessors = 200, 4");
    let mut command = room.without_hiprtc(&["run", "-i", "x", "-n", "2"]);
    let output = command.output().expect("the program starts");
    let err = text(&output.stderr);
    assert!(err.contains("device: hip:1 (Fake gfx1100"), "{err}");
    assert!(err.contains("; hip:0 is not used: nothing is known about the arch `gfx803`"), "{err}");
    assert!(!err.contains("warning: hip"), "{err}");
    // Alone, it is a warning, and the cpu is used.
    let err = said("arch = gfx803", "auto", &[]);
    assert!(err.contains("warning: hip:0 is not used: nothing is known about the arch `gfx803`"), "{err}");
}

#[test]
fn where_there_is_no_choice_nothing_is_said_of_it() {
    assert!(!said("arch = gfx1100", "auto", &[]).contains("device: "));
    assert!(said("arch = gfx1100", "auto", &["--verbose"]).contains("device: hip:0 (Fake gfx1100, "));
    assert!(!said("arch = gfx1100, gfx1100", "hip:1", &[]).contains("device: "), "it was named");
}

#[test]
fn the_model_runs_on_the_gpu_that_was_taken() {
    let Some(_) = hiprtc::compiler() else { return };
    let more = ["--verbose"];
    let (room, simulated) = Room::executing("gfx1100", &more, "arch = gfx1100, gfx1100\nmultiprocessors = 4, 8");
    let output = room.on("auto", &more);
    assert_eq!(text(&output.stdout), simulated, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("memory of hip:1 ("), "{}", text(&output.stderr));
    room.assert_all_given_back();
}

#[test]
fn more_copies_than_gpus_are_refused_by_name() {
    let room = Room::new("arch = gfx1100, gfx1103\nmultiprocessors = 48, 6");
    for device in ["hip", "auto"] {
        let mut command =
            room.without_hiprtc(&["run", "-m", "getp", "-i", "a b", "-n", "6", "-g", "3", "--device", device]);
        let output = command.env("GPTOSS_JIT_CUDA", "/nowhere").output().expect("the program starts");
        let err = text(&output.stderr);
        assert!(err.contains("could not run on 3 GPUs: these are there: hip:0, hip:1"), "{err}");
        assert!(err.contains("hint: `-g 2` uses all of them"), "{err}");
    }
    let words = ["run", "-m", "getp", "-i", "a b", "-g", "2", "--device", "hip:1"];
    let output = room.without_hiprtc(&words).output().expect("the program starts");
    assert!(text(&output.stderr).contains("could not run on 2 GPUs: one is there: hip:1"), "{}", text(&output.stderr));
}

#[test]
fn a_model_is_computed_by_as_many_gpus_of_one_kind_as_there_are() {
    let said = |orders: &str, tp: &str| {
        let room = Room::new(orders);
        let mut command = room.without_hiprtc(&["run", "-i", "x", "-n", "4", "--device", "hip", "--tp", tp]);
        text(&command.output().expect("the program starts").stderr)
    };
    let stderr = said("arch = gfx1100", "2");
    assert!(stderr.contains("could not compute a model on 2 devices from hip:0 on: there is 1"), "{stderr}");
    let stderr = said("arch = gfx1100, gfx1030", "2");
    assert!(stderr.contains("devices that differ: hip:0, gfx1100, and hip:1, gfx1030"), "{stderr}");
    let stderr = said("arch = gfx1100, gfx1100\npeers = false", "2");
    assert!(stderr.contains("hip:0 does not reach the memory of hip:1"), "{stderr}");
}

#[test]
fn gpus_whose_flags_need_not_reach_each_other_compute_no_model_together() {
    let room = Room::new("arch = gfx90a:sramecc+:xnack-, gfx90a:sramecc+:xnack-");
    let ids = room.path().join("ids.txt");
    std::fs::write(&ids, "1 2 3").expect("written");
    let (short, ids) = (["-i", "x", "-n", "4"], ["--trace", "--ids", ids.to_str().expect("text")]);
    for (command, more) in [("run", &short[..]), ("bench", &[]), ("logits", &ids), ("serve", &["--port", "0"])] {
        for device in ["hip", "sim:gfx90a"] {
            // Before anything is compiled, which could not be.
            let words = [&[command, "--device", device, "--tp", "2"], more].concat();
            let output = room.without_hiprtc(&words).output().expect("it starts");
            let err = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
            let first = if device == "hip" { "hip:0" } else { device };
            let expected = format!("could not compute a model on several devices from {first} on: on gfx90a");
            assert!(err.contains(&expected), "{words:?}: {err}");
            assert!(err.contains("hint: `run -m getp -g N` and `serve -g N` run a copy"), "{words:?}: {err}");
        }
    }
    assert_eq!((room.count("hipModuleLoadData"), room.count("hipMalloc"), room.count("hipMemCreate")), (0, 0, 0));
    let listed = text(&room.run(&["devices"]).stderr);
    assert!(listed.contains("may never reach that GPU, which then waits for ever: `--tp` cannot use both"), "{listed}");

    // CDNA that nobody knows has what all of it has. Others get as far as their memory.
    let said = |orders: &str| {
        let room = Room::new(orders);
        let mut command = room.without_hiprtc(&["run", "-i", "x", "-n", "4", "--device", "hip", "--tp", "2"]);
        text(&command.output().expect("the program starts").stderr)
    };
    assert!(said("arch = gfx908, gfx908").contains("from hip:0 on: on gfx908"), "{}", said("arch = gfx908, gfx908"));
    for arch in ["gfx942", "gfx950", "gfx1100"] {
        let stderr = said(&format!("arch = {arch}, {arch}\npeers = false"));
        assert!(stderr.contains("hip:0 does not reach the memory of hip:1"), "{stderr}");
    }
}
