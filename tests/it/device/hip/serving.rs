//! `serve` and files of prompts on the fake device: what it is left with when nobody asks, and what becomes of requests
//! when something goes wrong in their midst.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Room;
use super::commands::text;
use super::run::cache;
use crate::fixtures::http::post;
use crate::fixtures::models::prompt_file;
use crate::fixtures::program::{argument, file};
use crate::fixtures::server::Server;
use crate::object::hiprtc;
use crate::serve::resting::said;

/// Few sequences, so that few kernels are needed.
const FEW: [&str; 8] = ["-b", "2", "-n", "256", "--chunk", "16", "--precision", "f32"];

/// With the experts of two of four layers beside the device.
const BESIDE: [&str; 2] = ["--n-cpu-moe", "2"];

fn serving(room: &Room, device: &str, more: &[&str]) -> Command {
    room.compiling(&[&["serve", "--port", "0", "--device", device, "--threads", "2"], &FEW[..], more].concat())
}

/// What a server on `sim:gfx1100` says, which compiles what the fake executes.
fn expected() -> Value {
    static SAID: LazyLock<Value> =
        LazyLock::new(|| said(&Server::of(&mut serving(&Room::new(""), "sim:gfx1100", &BESIDE), true)));
    SAID.clone()
}

/// A room whose device executes kernels.
fn room(orders: &str) -> Room {
    Room::new(&format!("kernels = {}\n{orders}", cache().display()))
}

#[test]
fn a_device_is_left_alone_while_nobody_asks_and_has_all_of_its_memory_back() {
    let Some(_) = hiprtc::compiler() else { return };
    let (room, expected) = (room(""), expected());
    let server = Server::of(&mut serving(&room, "hip", &[&BESIDE[..], &["--unload-after", "20s"]].concat()), true);
    assert_eq!(said(&server), expected);
    thread::sleep(Duration::from_millis(300));
    let (n_calls, cpu_s) = (room.calls().len(), server.cpu_s());
    thread::sleep(Duration::from_millis(1500));
    let cpu_s = server.cpu_s() - cpu_s;
    assert_eq!(room.calls().len(), n_calls, "calls while nobody asks");
    assert!(cpu_s <= 0.03, "{cpu_s} s of 1.5 s");
    server.wait_until("unloaded");
    room.assert_all_given_back();
    assert_eq!(said(&server), expected);
    server.signal();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// A game that starts takes the memory that a launch or a replay needs besides.
#[test]
fn memory_that_is_gone_in_the_middle_ends_requests_and_not_the_server() {
    let Some(_) = hiprtc::compiler() else { return };
    let expected = expected();
    for (more, orders) in [(&[][..], "fail = hipGraphLaunch:2:5"), (&BESIDE, "fail = hipModuleLaunchKernel:2:70")] {
        let room = room(orders);
        let server = Server::of(&mut serving(&room, "hip", more), true);
        let body = json!({"prompt": ["Once upon a time", "Once upon a"], "max_tokens": 20, "temperature": 0});
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.fails(503).0, "out_of_memory", "{orders}");
        assert!(reply.header("retry-after").is_some());
        for _ in 0..2 {
            assert_eq!(said(&server), expected, "{orders}");
        }
        server.wait_until_idle();
        let usage = server.metrics("gptoss_kv_cache_usage_perc");
        assert_eq!(usage.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [0.0]);
        server.signal();
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("requests end, because the device has no memory"), "{log}");
    }
}

#[test]
fn a_device_that_is_lost_in_the_middle_ends_everything_with_a_sentence() {
    let Some(_) = hiprtc::compiler() else { return };
    expected();
    // In the first step, and in one that is replayed between hand-overs.
    for n in [40, 400] {
        let room = room(&format!("fail = kernel:719:{n}"));
        let server = Server::of(&mut serving(&room, "hip", &BESIDE), true);
        let body = json!({"prompt": ["Once upon a time", "Once upon a"], "max_tokens": 60, "temperature": 0});
        let reply = post(server.address, "/v1/completions", &body);
        let start = Instant::now();
        assert_eq!(reply.fails(503).0, "engine_failed", "kernel {n}");
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(
            log.contains("error: the engine failed: could not") && log.contains("unspecified launch failure"),
            "{log}"
        );
        assert!(start.elapsed() < Duration::from_secs(60), "somebody waited");
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_said_once_and_does() {
    let Some(_) = hiprtc::compiler() else { return };
    let expected = expected();
    let room = room("pageable = true\nfail = hipHostMalloc:2");
    let server = Server::of(&mut serving(&room, "hip", &BESIDE), true);
    assert_eq!(said(&server), expected);
    server.signal();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(log.matches("of main memory can be pinned, copies take longer").count(), 1, "{log}");
    assert!(room.calls().iter().any(|line| line.starts_with("hipMemcpyAsync") && line.ends_with("pageable")));
}

#[test]
fn answers_of_a_file_are_kept_when_memory_is_gone_in_the_middle() {
    let Some(_) = hiprtc::compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let prompts: Vec<String> = (0..6).map(|i| format!("Once upon a time {}", "there was ".repeat(i % 3))).collect();
    let input = file(folder.path(), "prompts.txt", &prompt_file(&prompts));
    let out = |name: &str| argument(&folder.path().join(name));
    let words = |device: &'static str, out: &str| {
        let fixed = ["run", "-m", "getp", "-i", &input, "-n", "30", "-b", "2", "--chunk", "16", "--precision", "f32"];
        [&fixed[..], &["--device", device, "-o", out]].concat().iter().map(|&word| word.to_owned()).collect::<Vec<_>>()
    };
    let run = |room: &Room, device: &'static str, out: &str| {
        let words = words(device, out);
        room.compiling(&words.iter().map(String::as_str).collect::<Vec<_>>()).output().expect("it starts")
    };
    let (expected, found) = (out("expected.txt"), out("found.txt"));
    assert!(run(&room(""), "sim:gfx1100", &expected).status.success());
    let broken = run(&room("fail = hipGraphLaunch:2:40"), "hip", &found);
    let err = text(&broken.stderr);
    assert_eq!(broken.status.code(), Some(1), "{err}");
    assert!(err.contains("answers are kept in") && err.contains("hipErrorOutOfMemory (2)"), "{err}");
    assert!(err.contains("hint: another program may have taken the memory"), "{err}");
    assert!(!Path::new(&found).exists());
    let n_kept = fs::read_to_string(format!("{found}.records")).expect("records").lines().count();
    assert!(n_kept > 1, "{n_kept} lines");
    let again = run(&room(""), "hip", &found);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(fs::read_to_string(&found).expect("written"), fs::read_to_string(&expected).expect("written"));
}
