//! What prompts begin with, over a restart.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixtures::http::post;
use crate::fixtures::models::{Counter, letters};
use crate::fixtures::program::{argument, run};
use crate::fixtures::server::Server;

const PATH: &str = "/v1/completions";

/// A folder for prefixes, and the flag that names it.
struct Kept {
    folder: TempDir,
    flags: [String; 2],
}

impl Kept {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ["--prefix-cache-dir".into(), argument(&folder.path().join("kept"))];
        Self { folder, flags }
    }

    /// Asks a server one thing after the other, and ends it: what it said, with how many tokens were there already, and
    /// its log.
    fn asked(&self, more: &[&str], bodies: &[Value]) -> (Vec<(Value, u64)>, String) {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let server = Server::start(&[&flags[..], &["-b", "2"], more].concat());
        let answers = bodies.iter().map(|body| {
            let answer = post(server.address, PATH, body).ok();
            let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
            (answer["choices"][0]["text"].clone(), cached.as_u64().unwrap_or(0))
        });
        let answers = answers.collect();
        server.signal();
        let (status, log) = server.ended();
        assert_eq!(status.code(), Some(0), "{log}");
        (answers, log)
    }

    /// Files by their paths, and the folder that each is in.
    fn files(&self) -> BTreeMap<PathBuf, PathBuf> {
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let models = inside(&self.folder.path().join("kept/v1"));
        models.flat_map(|model| inside(&model).map(|file| (file, model.clone())).collect::<Vec<_>>()).collect()
    }
}

/// A prompt of so many ids, and what to do with it.
fn body(seed: usize, n: usize) -> Value {
    let ids: Vec<usize> = (0..n).map(|i| (i * i * 7 + i * 13 + seed * 101) % 700).collect();
    json!({"prompt": ids, "max_tokens": 12, "temperature": 0})
}

#[test]
fn what_was_computed_before_a_restart_is_not_computed_again() {
    let kept = Kept::new();
    let bodies = [body(1, 300), body(2, 150)];
    let (first, _) = kept.asked(&[], &bodies);
    assert_eq!(first.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0, 0]);
    let files = kept.files();
    assert!(files.len() >= 4 + 2 + 2, "{files:?}");
    for path in files.keys() {
        assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    // A later turn begins with all that was there.
    let mut longer = body(1, 300);
    longer["prompt"].as_array_mut().expect("ids").extend([json!(5), json!(6)]);
    let (again, log) = kept.asked(&[], &[bodies[0].clone(), bodies[1].clone(), longer]);
    assert_eq!(again[..2].iter().map(|(text, _)| text).collect::<Vec<_>>(), [&first[0].0, &first[1].0]);
    assert_eq!(again.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [256, 128, 256]);
    assert!(log.contains("tokens of prompts are back from"), "{log}");
}

#[test]
fn what_was_computed_outlives_an_unloaded_model_and_a_kill() {
    let kept = Kept::new();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    let [flag, folder] = kept.flags.each_ref().map(String::as_str);
    let server = Server::start(&[flag, folder, "-b", "2", "--unload-after", "0.1s"]);
    let other = body(5, 300);
    let before = post(server.address, PATH, &other).ok();
    server.wait_until("unloaded");
    let after = post(server.address, PATH, &other).ok();
    assert_eq!((cached(&before), cached(&after)), (0, 256));
    assert_eq!(before["choices"][0]["text"], after["choices"][0]["text"]);
    drop(server);
    // What was written while nobody asked: two blocks and a window at least.
    let (n_files, begun) = (kept.files().len(), Instant::now());
    let server = Server::start(&[flag, folder, "-b", "2"]);
    let third = body(6, 150);
    let _ = post(server.address, PATH, &third).ok();
    while kept.files().keys().filter(|path| !path.to_string_lossy().contains("/.new-")).count() < n_files + 3 {
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing is written while nobody asks");
        thread::sleep(Duration::from_millis(20));
    }
    drop(server); // kills it
    assert_eq!(kept.asked(&[], &[third]).0[0].1, 128);
}

#[test]
fn files_that_are_not_as_they_were_written_are_named_and_not_used() {
    let kept = Kept::new();
    let body = body(3, 150);
    let (first, _) = kept.asked(&[], std::slice::from_ref(&body));
    let files: Vec<PathBuf> = kept.files().into_keys().collect();
    type Damage = (&'static str, fn(&mut Vec<u8>));
    let damages: [Damage; 4] = [
        ("its digest does not match its bytes", |bytes| {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        }),
        ("bytes, expected", |bytes| bytes.truncate(bytes.len() - 1)),
        ("it is not a prefix file", |bytes| bytes.truncate(40)),
        ("it is of another model", |bytes| bytes[8] ^= 1),
    ];
    for (why, damage) in damages {
        for path in &files {
            let mut bytes = fs::read(path).expect("there");
            damage(&mut bytes);
            fs::write(path, bytes).expect("written");
        }
        let (again, log) = kept.asked(&[], std::slice::from_ref(&body));
        assert_eq!(again, first, "{why}: {log}");
        for path in &files {
            let named = format!("a kept prefix is not used: `{}`: ", path.display());
            let line = log.lines().find(|line| line.contains(&named)).unwrap_or_else(|| panic!("{named}: {log}"));
            assert!(line.contains(why), "{line}");
        }
        // It was written again.
        assert_eq!(kept.asked(&[], std::slice::from_ref(&body)).0[0].1, 128, "{why}");
    }
    // What does not belong there is named, too.
    let foreign = files[0].with_file_name("thesis.txt");
    fs::write(&foreign, "x".repeat(500)).expect("written");
    let (again, log) = kept.asked(&[], std::slice::from_ref(&body));
    assert!(log.contains("thesis.txt`: it is not a prefix file") && foreign.exists(), "{log}");
    assert_eq!(again[0], (first[0].0.clone(), 128));
}

#[test]
fn another_model_or_another_type_of_keys_begins_at_nothing() {
    let kept = Kept::new();
    let counter = Counter::new(512);
    let (model, tokenizer) = (counter.path("model.bin"), counter.path("tokenizer.bin"));
    let of_counter = [model.as_str(), "-z", &tokenizer];
    let counted =
        json!({"prompt": letters(&(0..150).map(|i| i % 8).collect::<Vec<_>>()), "max_tokens": 12, "temperature": 0});
    let ids = body(4, 150);
    let (own, _) = kept.asked(&[], std::slice::from_ref(&ids));
    let (counts, _) = kept.asked(&of_counter, std::slice::from_ref(&counted));
    assert_eq!(counts[0].1, 0);
    let (wide, _) = kept.asked(&["--kv32"], std::slice::from_ref(&ids));
    assert_eq!(wide[0].1, 0);
    let files = kept.files();
    let models: Vec<&PathBuf> = files.values().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    assert_eq!(models.len(), 3);
    // A file of one in the folder of the others is named.
    for (path, model) in &files {
        for other in models.iter().filter(|other| **other != model) {
            let to = other.join(path.file_name().expect("a name"));
            if !to.exists() {
                fs::copy(path, to).expect("copied");
            }
        }
    }
    let (again, log) = kept.asked(&[], std::slice::from_ref(&ids));
    assert_eq!(again[0], (own[0].0.clone(), 128));
    assert!(log.contains("it is of another model, format or set of templates"), "{log}");
    assert_eq!(kept.asked(&of_counter, &[counted]).0[0], (counts[0].0.clone(), 128));
}

#[test]
fn files_take_no_more_than_they_may_and_what_was_used_longest_ago_goes_first() {
    let kept = Kept::new();
    let bodies: Vec<Value> = (10..14).map(|seed| body(seed, 150)).collect();
    let (first, _) = kept.asked(&[], &bodies);
    let bytes = |kept: &Kept| kept.files().keys().map(|path| fs::metadata(path).expect("there").len()).sum::<u64>();
    let all = bytes(&kept);
    let most = (all * 5 / 8).to_string();
    let (again, _) = kept.asked(&["--prefix-cache-size", &most], &[body(10, 150), body(20, 150)]);
    assert_eq!(again[0], (first[0].0.clone(), 128));
    assert!(bytes(&kept) <= all * 5 / 8, "{} of {all}", bytes(&kept));
    // The newest are the one that was asked again, and the new one.
    let (last, _) = kept.asked(&["--prefix-cache-size", &most], &[body(10, 150), body(20, 150), body(11, 150)]);
    assert_eq!(last.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [128, 128, 0]);
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let kept = Kept::new();
    let folder = kept.folder.path().join("kept");
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("ours");
    let ran = run(&["serve", "--port", "0", "--device", "cpu", "-b", "2", &kept.flags[0], &kept.flags[1]]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("its mode 0777 lets other users write to it"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\nhint: `chmod go-w "), "{}", ran.stderr);
}
