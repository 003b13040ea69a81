//! A server that nobody asks: it takes no time, and gives its memory back if it is told to.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixtures::http::post;
use crate::fixtures::program::{argument, run};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

/// What is said to a prompt.
pub fn said(server: &Server) -> Value {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0});
    post(server.address, PATH, &body).ok()["choices"][0]["text"].clone()
}

fn state(server: &Server) -> String {
    let (labels, _) = server.metrics("gptoss_model_state").into_iter().find(|(_, value)| *value == 1.0).expect("one");
    labels.rsplit_once("state=\"").expect("a label").1.trim_end_matches(['"', '}']).to_owned()
}

#[test]
fn a_model_that_nobody_asks_gives_its_memory_back_and_comes_back_with_the_same_words() {
    let server = Server::start(&["--unload-after", "8s", "-b", "2", "--kv-memory", "64"]);
    let expected = said(&server);
    assert_eq!(state(&server), "loaded");
    let loaded_kib = server.proc_status("VmData");
    server.wait_until("unloaded");
    assert_eq!(state(&server), "unloaded");
    // Counted from outside: the cache alone had more.
    let left_kib = server.proc_status("VmData");
    crate::fixtures::say(&format!("{loaded_kib} KiB loaded, {left_kib} KiB unloaded"));
    assert!(left_kib + 20_000 < loaded_kib, "{loaded_kib} KiB, then {left_kib}");
    // All who come meanwhile wait for the same model.
    thread::scope(|scope| {
        let asking: Vec<_> = (0..5).map(|_| scope.spawn(|| said(&server))).collect();
        for said in asking {
            assert_eq!(said.join().expect("answered"), expected);
        }
    });
    assert_eq!(state(&server), "loaded");
    server.wait_until("unloaded");
    assert!(server.proc_status("VmData") < loaded_kib - 20_000);
    server.signal();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(log.matches("the idle model is unloaded").count(), 2, "{log}");
}

#[test]
fn a_model_that_cannot_be_loaded_again_says_why_until_it_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept");
    let server = Server::start(&["--unload-after", "0.2s", "-b", "2", "--prefix-cache-dir", &argument(&kept)]);
    let expected = said(&server);
    server.wait_until("unloaded");
    fs::set_permissions(&kept, Permissions::from_mode(0o777)).expect("ours");
    let body = json!({"prompt": "Once upon a time", "n": 2, "max_tokens": 20});
    for _ in 0..2 {
        let reply = post(server.address, PATH, &body);
        assert_eq!(reply.fails(503).0, "load_failed");
        let message = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(message.contains("could not be loaded again: could not keep prefixes in"), "{message}");
        assert!(message.contains("its mode 0777 lets other users write to it"), "{message}");
        assert!(reply.header("retry-after").is_some());
        server.wait_until("unloaded");
    }
    fs::set_permissions(&kept, Permissions::from_mode(0o700)).expect("ours");
    assert_eq!(said(&server), expected);
    server.signal();
    assert_eq!(server.ended().0.code(), Some(0));
}

/// With the model on cores, and on cores beside a device.
#[test]
fn a_server_that_nobody_asks_takes_no_time() {
    for flags in [&["-b", "2", "--threads", "2"][..], &BESIDE] {
        let server = Server::start(flags);
        let first = said(&server);
        // What begins with a server, grammars for one, comes to its end first.
        let (begun, mut taken) = (Instant::now(), f64::MAX);
        while taken > 0.03 && begun.elapsed() < Duration::from_secs(30) {
            let before = server.cpu_s();
            thread::sleep(Duration::from_secs(2));
            taken = server.cpu_s() - before;
        }
        crate::fixtures::say(&format!("{flags:?}: {taken} s of the processor in 2 s"));
        assert!(taken <= 0.03, "{flags:?}: {taken} s of 2 s");
        assert_eq!(said(&server), first);
    }
}

/// A device, and two of four layers' experts beside it.
pub const BESIDE: [&str; 10] =
    ["--device", "sim:gfx1100", "--n-cpu-moe", "2", "--threads", "2", "-b", "2", "--precision", "f32"];

#[test]
fn flags_that_need_one_model_in_one_process_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = argument(&folder.path().join("kept"));
    for (flags, why) in [
        (&["--unload-after", "1m", "-g", "2"][..], "`--unload-after` does not go with `-g`"),
        (&["--prefix-cache-dir", &kept, "--tp", "2"], "`--prefix-cache-dir` does not go with `--tp`"),
        (&["--prefix-cache-dir", &kept, "--snapshots", "0"], "`--snapshots 0`, which keeps no prefix"),
        (&["--unload-after", "1m", "--replay", "x"], "a script has no model"),
    ] {
        let stderr = run(&[&["serve", "--port", "0"], flags].concat()).fails(2);
        assert!(stderr.contains(why), "{stderr}");
    }
    assert!(!folder.path().join("kept").exists());
}
