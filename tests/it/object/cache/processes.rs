//! Many processes on one cache, some of them killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::key::KernelKey;

use super::{Room, hit, key, made, names};
use crate::fixtures::skipped;

const ROOT: &str = "GPTOSS_JIT_TEST_CACHE_ROOT";
const ROLE: &str = "GPTOSS_JIT_TEST_CACHE_ROLE";
/// How many kernels the ten processes share.
const SHARED: usize = 12;

/// This test binary again, in another role.
fn child(role: &str, root: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("known"));
    command.args([
        "--exact",
        "object::cache::processes::a_process_compiles_what_is_missing_and_no_more",
        "--nocapture",
    ]);
    command.env(ROLE, role).env(ROOT, root).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The body of the processes that the tests below start, in the role that the environment names. By itself, it is the
/// test that a process which compiles what is missing leaves nothing missing.
#[test]
fn a_process_compiles_what_is_missing_and_no_more() {
    if let Some(root) = env::var_os(ROOT) {
        return play(&env::var(ROLE).expect("a role"), Path::new(&root));
    }
    let room = Room::new();
    drop(room.open());
    play("compile what is missing", &room.root());
    let compiled = || names(&room.root()).iter().filter(|name| name.starts_with("compiled-")).count();
    assert_eq!(compiled(), SHARED);
    assert_eq!(room.open().folder().expect("usable").list().expect("listed").len(), SHARED);
    play("compile what is missing", &room.root()); // which would fail to make a file that is there
    assert_eq!(compiled(), SHARED);
}

fn play(role: &str, root: &Path) {
    let cache = Cache::open(root, CacheLimits::default());
    assert!(cache.folder().is_some());
    match role {
        "publish until killed" => (0..usize::MAX).for_each(|i| drop(cache.publish(&large(i), &made(&large(i))))),
        "compile what is missing" => (0..SHARED).for_each(|i| compile_if_missing(&cache, i, root)),
        "publish with small files" => {
            assert_eq!(cache.publish(&large(0), &made(&large(0))).dir, None, "the file is too large");
            assert!(cache.publish(&key("small"), &made(&key("small"))).dir.is_some());
            assert!(hit(&cache, &large(0)).is_some());
        }
        "hold a lock" => {
            let _lock = cache.lock(&key("s").digest());
            fs::write(root.join("held"), "").expect("written");
            thread::sleep(Duration::from_secs(600));
        }
        role => panic!("unknown role {role}"),
    }
}

/// A key whose entry takes a while to write.
fn large(i: usize) -> KernelKey {
    key(&format!("kernel {} {}", i % 40, "x".repeat(50_000)))
}

/// What the store does: look, lock, look again, compile, publish.
fn compile_if_missing(cache: &Cache, i: usize, root: &Path) {
    let key = key(&format!("shared {i}"));
    if hit(cache, &key).is_some() {
        return;
    }
    let lock = cache.lock(&key.digest());
    assert!(lock.is_held());
    if hit(cache, &key).is_none() {
        // Fails when another process has compiled it: a file of this name is made once.
        fs::File::create_new(root.join(format!("compiled-{i}"))).expect("only one process compiles a kernel");
        thread::sleep(Duration::from_millis(5));
        assert_eq!(&*cache.publish(&key, &made(&key)).object, format!("object of shared {i}").as_bytes());
    }
}

fn kill(mut child: Child) {
    child.kill().expect("killed with signal 9");
    child.wait().expect("reaped");
}

#[test]
fn a_writer_killed_at_any_moment_leaves_only_whole_entries() {
    let room = Room::new();
    let cache = room.open();
    let folder = cache.folder().expect("usable");
    let mut random: u32 = 0x2545_f491;
    for round in 0..50 {
        let child = child("publish until killed", &room.root()).spawn().expect("started");
        // Half the writers are killed some time after their first entry, half wherever they are.
        let deadline = Instant::now() + Duration::from_secs(600);
        while round % 2 == 0 && folder.list().expect("listed").is_empty() {
            assert!(Instant::now() < deadline, "the child published nothing");
            thread::sleep(Duration::from_millis(1));
        }
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        thread::sleep(Duration::from_micros(u64::from(random >> 16)));
        kill(child);
        assert_eq!(folder.verify(false).expect("listed").findings, [], "round {round}");
        folder.clear(true).expect("cleared"); // so that entries are made and not only met
    }
    let staging = names(&room.root().join("v1")).iter().filter(|name| name.starts_with("staging-")).count();
    assert!(staging > 0, "no writer was killed while it wrote");
    let key = large(0);
    assert!(room.open().publish(&key, &made(&key)).dir.is_some());
    assert_eq!(hit(&room.open(), &key).map(|entry| entry.object.to_vec()), Some(made(&key).object));
}

#[test]
fn of_ten_processes_one_compiles() {
    let room = Room::new();
    drop(room.open());
    let children: Vec<Child> =
        (0..10).map(|_| child("compile what is missing", &room.root()).spawn().expect("started")).collect();
    for mut child in children {
        assert!(child.wait().expect("reaped").success());
    }
    let cache = room.open();
    let verified = cache.folder().expect("usable").verify(false).expect("listed");
    assert_eq!((verified.entries, verified.findings), (SHARED, vec![]));
    for i in 0..SHARED {
        let found = hit(&cache, &key(&format!("shared {i}"))).expect("published");
        assert_eq!(&*found.object, format!("object of shared {i}").as_bytes());
    }
    assert!(names(&room.root().join("v1")).iter().all(|name| !name.starts_with("staging-")));
}

#[test]
fn the_lock_of_a_killed_process_is_free_and_the_wait_is_bounded() {
    let room = Room::new();
    drop(room.open());
    let child = child("hold a lock", &room.root()).spawn().expect("started");
    let deadline = Instant::now() + Duration::from_secs(600);
    while !room.root().join("held").exists() {
        assert!(Instant::now() < deadline, "the child never took the lock");
        thread::sleep(Duration::from_millis(5));
    }
    let wait = Duration::from_millis(200);
    let cache = Cache::open(&room.root(), CacheLimits { lock_wait: wait, ..CacheLimits::default() });
    let begin = Instant::now();
    assert!(!cache.lock(&key("s").digest()).is_held());
    assert!(begin.elapsed() >= wait, "{:?}", begin.elapsed());
    kill(child);
    let lock = cache.lock(&key("s").digest());
    assert!(lock.is_held());
    assert!(!cache.lock(&key("s").digest()).is_held(), "threads of one process keep each other out too");
    drop(lock);
    assert!(cache.lock(&key("s").digest()).is_held());
}

#[test]
fn a_file_that_grows_too_large_is_only_a_warning() {
    let room = Room::new();
    let program = env::current_exe().expect("known");
    // The signal is ignored, as a daemon's is, so that writing fails instead.
    let script = "trap '' XFSZ && ulimit -f 16 && exec \"$0\" \"$@\"";
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(program)
        .args(["--exact", "object::cache::processes::a_process_compiles_what_is_missing_and_no_more"])
        .env(ROLE, "publish with small files")
        .env(ROOT, room.root())
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(_) => return skipped("there is no `sh`"),
    }
    assert!(hit(&room.open(), &large(0)).is_none());
    assert!(hit(&room.open(), &key("small")).is_some());
    assert_eq!(room.open().folder().expect("usable").verify(false).expect("listed").findings, []);
}
