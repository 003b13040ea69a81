//! A model that several fake devices compute together, whose kernels wait for each other.

use std::fs;
use std::process::Output;

use super::Room;
use super::commands::text;
use super::run::cache;
use crate::object::hiprtc;

const TWO: [&str; 2] = ["--tp", "2"];

/// A room of two devices that execute kernels, which are in the cache already.
fn two(more: &str) -> Room {
    Room::new(&format!("arch = gfx1100, gfx1100\nkernels = {}\n{more}", cache().display()))
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn several_devices_say_the_same_with_graphs_and_without() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, simulated) = Room::executing("gfx1100", &TWO, "arch = gfx1100, gfx1100");
    assert_eq!(said(&room.on("hip", &TWO)), simulated);
    // Eight steps alike on two devices, the first of them launched, the second captured.
    assert!(room.count("hipGraphLaunch") >= 14, "{} replays", room.count("hipGraphLaunch"));
    room.assert_all_given_back();

    let apart = two("");
    let output = apart.command("hip", &TWO).env("GPTOSS_JIT_GRAPHS", "0").output().expect("it starts");
    assert_eq!(said(&output), simulated);
    assert_eq!((apart.count("hipStreamBeginCapture"), apart.count("hipGraphLaunch")), (0, 0));
    assert!(apart.count("hipModuleLaunchKernel") > 2 * room.count("hipModuleLaunchKernel"));
    assert!(!text(&output.stderr).contains("kernel by kernel"), "it was asked for: {}", text(&output.stderr));

    // One replays and the other does not.
    let mixed = two("fail = hipStreamBeginCapture:900:2");
    let output = mixed.on("hip", &TWO);
    assert_eq!(said(&output), simulated);
    assert_eq!(mixed.count("hipStreamBeginCapture -> 900"), 1);
    assert!(text(&output.stderr).contains("steps are launched kernel by kernel"), "{}", text(&output.stderr));
    assert!(mixed.count("hipGraphLaunch") >= 7 && mixed.count("hipGraphLaunch") < room.count("hipGraphLaunch"));
}

#[test]
fn logits_of_several_devices_are_the_same_bits_with_graphs_and_without() {
    let Some(_) = hiprtc::compiler() else { return };
    let room = two("");
    let at = |name: &str| room.path().join(name).to_str().expect("text").to_owned();
    let line = (0..20).map(|i| (i * 37 % 500).to_string()).collect::<Vec<_>>().join(" ");
    fs::write(at("ids.txt"), line).expect("written");
    let logits = |device: &str, precision: &str, graphs: &str| {
        let (ids, out) = (at("ids.txt"), at("logits.npy"));
        let words = ["logits", "--ids", &ids, "-o", &out, "--chunk", "5", "--precision", precision, "--device", device];
        let mut command = room.compiling(&[&words[..], &TWO].concat());
        said(&command.env("GPTOSS_JIT_GRAPHS", graphs).output().expect("it starts"));
        let bytes = fs::read(&out).expect("written");
        fs::remove_file(&out).expect("it was there");
        bytes
    };
    for precision in ["f32", "bf16"] {
        let simulated = logits("sim:gfx1100", precision, "1");
        let replays = || room.calls().iter().filter(|line| line.starts_with("hipGraphLaunch")).count();
        // Four steps alike on two devices, of which the first is launched and the second captured.
        let before = if precision == "f32" { 0 } else { replays() };
        assert!(logits("hip", precision, "1") == simulated, "{precision}");
        let after = replays();
        assert!(after - before >= 4, "{before}, then {after}");
        assert!(logits("hip", precision, "0") == simulated, "{precision}");
        assert_eq!(replays(), after);
    }
}

/// A row that has every sum done share by share.
const SHARES: &str = r#"
[provenance.test]
kind   = "hand"
date   = "2026-11-27"
method = "a test"

[[rows]]
op         = "all_reduce"
use        = "all_reduce/two_shot"
params     = { n_slices = 16, block_size = 64 }
provenance = "test"
"#;

#[test]
fn shares_that_devices_fetch_from_each_other_are_the_bits_of_whole_sums() {
    let Some(_) = hiprtc::compiler() else { return };
    let room = two("");
    let at = |name: &str| room.path().join(name).to_str().expect("text").to_owned();
    // Of 7 rows of 64 numbers, shares have 256 and 192.
    fs::write(at("ids.txt"), "3 40 77 114 151 188 225 262 299 336 373 410 447 484").expect("written");
    fs::create_dir(at("tuning")).expect("made");
    fs::write(room.path().join("tuning/generic.toml"), SHARES).expect("written");
    let (ids, out, tuning) = (at("ids.txt"), at("logits.npy"), at("tuning"));
    let logits = |device: &str, more: &[&str]| {
        let words = ["logits", "--ids", &ids, "-o", &out, "--chunk", "7", "--precision", "f32", "--device", device];
        said(&room.compiling(&[&words[..], &TWO, more].concat()).output().expect("it starts"));
        let bytes = fs::read(&out).expect("written");
        fs::remove_file(&out).expect("it was there");
        bytes
    };
    let whole = logits("sim:gfx1100", &[]);
    for device in ["sim:gfx1100", "hip"] {
        assert!(logits(device, &["--tuning", &tuning]) == whole, "{device}");
    }
    let listed = said(&room.compiling(&["cache", "ls", "all_reduce/two_shot"]).output().expect("it starts"));
    assert!(listed.contains("all_reduce/two_shot"), "{listed}");
}

/// Rows that leave norms to kernels of their own, and one that makes them with sums.
const APART: &str = r#"
[[rows]]
op         = ["rmsnorm", "linear"]
use        = "apart"
provenance = "test"

[[rows]]
op         = ["rmsnorm", "linear", "rope_kv"]
use        = "apart"
provenance = "test"

[[rows]]
op         = ["rmsnorm", "linear", "moe_route", "moe_sort"]
use        = "apart"
provenance = "test"

[[rows]]
op         = "rmsnorm"
use        = "rmsnorm/row"
params     = { block_size = 64 }
provenance = "test"
"#;
const NORMED: &str = r#"
[[rows]]
op         = ["all_reduce", "rmsnorm"]
use        = "all_reduce+rmsnorm/two_shot"
params     = { block_size = 64, n_slices = 16, rows = 2 }
provenance = "test"
"#;

#[test]
fn normed_rows_that_devices_fetch_from_each_other_are_the_bits_of_norms_of_whole_sums() {
    let Some(_) = hiprtc::compiler() else { return };
    let room = two("");
    let at = |name: &str| room.path().join(name).to_str().expect("text").to_owned();
    // Of 7 rows a device has 4 and the other 3.
    fs::write(at("ids.txt"), "3 40 77 114 151 188 225 262 299 336 373 410 447 484").expect("written");
    for (name, rows) in [("apart", [SHARES, APART].concat()), ("normed", [SHARES, APART, NORMED].concat())] {
        fs::create_dir(at(name)).expect("made");
        fs::write(room.path().join(name).join("generic.toml"), rows).expect("written");
    }
    let (ids, out) = (at("ids.txt"), at("logits.npy"));
    let logits = |device: &str, tuning: &str, more: &[&str]| {
        let words = ["logits", "--ids", &ids, "-o", &out, "--chunk", "7", "--precision", "bf16", "--device", device];
        said(&room.compiling(&[&words[..], &["--tuning", tuning], more].concat()).output().expect("it starts"));
        let bytes = fs::read(&out).expect("written");
        fs::remove_file(&out).expect("it was there");
        bytes
    };
    let whole = logits("sim:gfx1100", &at("apart"), &TWO);
    for device in ["sim:gfx1100", "hip"] {
        assert!(logits(device, &at("normed"), &TWO) == whole, "{device}");
    }
    // Every row is added once: the logits are those of one device, but for roundings.
    let numbers = |bytes: &[u8]| npyz::NpyFile::new(bytes).expect("an array").into_vec::<f32>().expect("of f32");
    let (two, one) = (numbers(&whole), numbers(&logits("sim:gfx1100", &at("apart"), &[])));
    let largest = |all: &mut dyn Iterator<Item = f32>| all.fold(0.0, |most: f32, number| most.max(number.abs()));
    let (most, off) = (largest(&mut one.iter().copied()), largest(&mut two.iter().zip(&one).map(|(a, b)| a - b)));
    assert!(two.iter().all(|logit| logit.is_finite()) && off < 0.02 * most, "{off} of {most}");
}

#[test]
fn what_the_environment_says_of_graphs_is_0_or_1() {
    let room = two("");
    let output = room.command("hip", &[]).env("GPTOSS_JIT_GRAPHS", "no").output().expect("it starts");
    let err = text(&output.stderr);
    assert!(err.contains("GPTOSS_JIT_GRAPHS is `no`, expected 0 or 1") && err.contains("hint: unset it"), "{err}");
}
