//! What is removed, in which order, and what stays.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kernel::object::cache::{Cache, CacheLimits, Lookup, PruneOptions};

use super::{Room, hit, key, made, names};

const HOUR: Duration = Duration::from_secs(3600);

fn set_age(path: &Path, age: Duration) {
    let file = fs::File::open(path).expect("there");
    file.set_modified(SystemTime::now() - age).expect("ours");
}

fn age(path: &Path) -> Duration {
    fs::metadata(path).expect("there").modified().expect("known").elapsed().expect("past")
}

/// Publishes four kernels of the same size, used 4, 1, 3 and 2 hours ago.
fn four(room: &Room) -> [&'static str; 4] {
    let sources = ["k0", "k1", "k2", "k3"];
    for (source, hours) in sources.iter().zip([4, 1, 3, 2]) {
        set_age(&room.publish(&key(source)).join("used"), hours * HOUR);
    }
    sources
}

fn present(room: &Room, sources: [&'static str; 4]) -> Vec<&'static str> {
    sources.into_iter().filter(|source| path(room, source).exists()).collect()
}

fn path(room: &Room, source: &str) -> std::path::PathBuf {
    room.open().folder().expect("usable").entry_path(&key(source).digest())
}

fn entry_bytes(room: &Room) -> u64 {
    let sizes: Vec<u64> =
        room.open().folder().expect("usable").list().expect("listed").iter().map(|entry| entry.size_bytes).collect();
    assert!(sizes.iter().all(|size| *size == sizes[0] && *size > 0), "{sizes:?}");
    sizes[0]
}

fn prune(room: &Room, max_bytes: u64) -> kernel::object::cache::Removed {
    room.open().folder().expect("usable").prune(&PruneOptions { max_bytes, older_than: None }).expect("pruned")
}

#[test]
fn the_least_recently_used_goes_first() {
    let room = Room::new();
    let sources = four(&room);
    let bytes = entry_bytes(&room);
    assert_eq!(prune(&room, 4 * bytes).entries, 0);
    let removed = prune(&room, 3 * bytes - 1);
    assert_eq!((removed.entries, removed.bytes, removed.left_bytes), (2, 2 * bytes, 2 * bytes));
    assert_eq!(present(&room, sources), ["k1", "k3"]);
    assert_eq!(prune(&room, 0).entries, 2);
    assert_eq!(present(&room, sources), [""; 0]);
}

#[test]
fn pinned_entries_stay() {
    let room = Room::new();
    let sources = four(&room);
    let cache = room.open();
    let folder = cache.folder().expect("usable");
    folder.pin(&key("k0").digest(), true).expect("pinned");
    assert!(hit(&room.open(), &key("k0")).is_some(), "a pin is no damage");
    let removed = prune(&room, 0);
    assert_eq!((removed.entries, removed.kept_pinned), (3, 1));
    set_age(&path(&room, "k0").join("used"), 4 * HOUR); // the hit was a use
    let old = PruneOptions { max_bytes: u64::MAX, older_than: Some(HOUR) };
    let removed = folder.prune(&old).expect("pruned");
    assert_eq!((removed.entries, removed.kept_pinned), (0, 1), "however old it is");
    assert_eq!(folder.clear(false).expect("cleared").kept_pinned, 1);
    assert_eq!(present(&room, sources), ["k0"]);
    folder.pin(&key("k0").digest(), false).expect("unpinned");
    folder.pin(&key("k0").digest(), false).expect("unpinning twice is no error");
    assert_eq!(prune(&room, 0).entries, 1);
}

#[test]
fn entries_in_use_stay_until_they_are_let_go() {
    let room = Room::new();
    let sources = four(&room);
    let user = room.open();
    let read = hit(&user, &key("k0")).expect("there");
    let published = user.publish(&key("fresh"), &made(&key("fresh")));
    let removed = prune(&room, 0);
    assert_eq!((removed.entries, removed.kept_in_use), (3, 2));
    assert_eq!(room.open().folder().expect("usable").clear(true).expect("cleared").kept_in_use, 2);
    assert_eq!(present(&room, sources), ["k0"]);
    drop((read, published, user));
    assert_eq!(prune(&room, 0).entries, 2);
}

#[test]
fn an_entry_nobody_holds_is_let_go_by_a_cache_that_lives_on() {
    let room = Room::new();
    let cache = room.open();
    drop(cache.publish(&key("a"), &made(&key("a"))));
    let _b = cache.publish(&key("b"), &made(&key("b"))); // remembering this one lets go of the other
    assert_eq!(prune(&room, 0).entries, 1);
    assert!(path(&room, "b").exists() && !path(&room, "a").exists());
    assert!(hit(&cache, &key("a")).is_none());
}

#[test]
fn unused_for_long_is_removed_whatever_the_size() {
    let room = Room::new();
    let sources = four(&room);
    let options = PruneOptions { max_bytes: u64::MAX, older_than: Some(HOUR * 5 / 2) };
    assert_eq!(room.open().folder().expect("usable").prune(&options).expect("pruned").entries, 2);
    assert_eq!(present(&room, sources), ["k1", "k3"]);
}

#[test]
fn failures_are_forgotten_after_a_week() {
    let room = Room::new();
    room.open().remember_failure(&key("bad"), "rmsnorm/simt", "no");
    assert_eq!(prune(&room, u64::MAX).entries, 0);
    let dir = path(&room, "bad");
    let text = fs::read_to_string(dir.join("meta.toml")).expect("text");
    let rest: String = text
        .lines()
        .skip(1)
        .map(|line| match line.strip_prefix("created_unix_s = ") {
            Some(seconds) => {
                format!("created_unix_s = {}\n", seconds.parse::<u64>().expect("a number") - 8 * 24 * 3600)
            }
            None => format!("{line}\n"),
        })
        .collect();
    let sum = kernel::object::key::Digest::of(rest.as_bytes());
    fs::write(dir.join("meta.toml"), format!("rest_sha256 = \"{sum}\"\n{rest}")).expect("written");
    assert!(matches!(room.open().get(&key("bad")), Lookup::Failed { .. }), "the test wrote a sound entry");
    assert_eq!(prune(&room, u64::MAX).entries, 1);
    assert!(matches!(room.open().get(&key("bad")), Lookup::Miss));
}

#[test]
fn reading_sets_the_time_of_use_at_most_hourly() {
    let room = Room::new();
    let used = room.publish(&key("s")).join("used");
    set_age(&used, HOUR / 2);
    assert!(hit(&room.open(), &key("s")).is_some());
    assert!(age(&used) >= HOUR / 2, "half an hour is recent enough");
    set_age(&used, 2 * HOUR);
    room.open().folder().expect("usable").verify(false).expect("listed");
    assert!(age(&used) >= 2 * HOUR, "checking is not using");
    assert!(hit(&room.open(), &key("s")).is_some());
    assert!(age(&used) < HOUR / 2);
}

#[test]
fn publishing_prunes_at_most_hourly() {
    let room = Room::new();
    let sources = four(&room);
    let limits = CacheLimits { max_bytes: 2 * entry_bytes(&room), ..CacheLimits::default() };
    let publish = |source| drop(Cache::open(&room.root(), limits).publish(&key(source), &made(&key(source))));
    publish("x0");
    assert_eq!(present(&room, sources).len(), 4, "the first publication pruned less than an hour ago");
    set_age(&room.root().join("v1/pruned"), 2 * HOUR);
    publish("x1");
    assert_eq!(present(&room, sources), [""; 0], "only the two newest fit");
    assert!(path(&room, "x0").exists() && path(&room, "x1").exists());
}

#[test]
fn staging_folders_of_the_dead_are_swept_and_others_are_not() {
    let room = Room::new();
    drop(room.open());
    let versioned = room.root().join("v1");
    for name in ["staging-dead", "staging-alive"] {
        fs::create_dir(versioned.join(name)).expect("made");
        fs::write(versioned.join(name).join("object"), "half").expect("written");
    }
    set_age(&versioned.join("staging-dead"), 2 * HOUR);
    drop(room.open());
    assert_eq!(names(&versioned), ["staging-alive"]);
}

#[test]
fn clearing_leaves_nothing_but_the_frame() {
    let room = Room::new();
    four(&room);
    let dir = path(&room, "k0");
    fs::write(dir.join("object"), "damaged").expect("written");
    assert!(hit(&room.open(), &key("k0")).is_none());
    let cache = room.open();
    let folder = cache.folder().expect("usable");
    assert_eq!(folder.clear(false).expect("cleared").entries, 3);
    assert_eq!(folder.list().expect("listed").len(), 0);
    assert_eq!(names(&room.root().join("v1/aside")), [""; 0]);
    assert_eq!(folder.verify(false).expect("listed").findings, []);
}
