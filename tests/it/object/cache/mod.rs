//! The cache of compiled kernels, on a real disk with real damage.

mod command;
mod damage;
mod disk;
mod evict;
mod processes;

use std::fs;
use std::path::{Path, PathBuf};

use kernel::object::cache::{Cache, CacheEntry, CacheLimits, Explanation, Lookup, NewObject};
use kernel::object::key::KernelKey;
use tempfile::TempDir;

/// A cache in a folder of its own.
struct Room {
    folder: TempDir,
}

impl Room {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// The root, which does not exist before the first opening.
    fn root(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// A cache as a fresh process sees it: with nothing in memory.
    fn open(&self) -> Cache {
        let cache = Cache::open(&self.root(), CacheLimits::default());
        assert!(cache.folder().is_some(), "the folder is usable");
        cache
    }

    /// Publishes a key's object and lets go of it.
    fn publish(&self, key: &KernelKey) -> PathBuf {
        self.open().publish(key, &made(key)).dir.expect("it is stored")
    }
}

fn key(source: &str) -> KernelKey {
    KernelKey {
        source: source.into(),
        options: vec!["-O3".into(), "-DNAME=\"a b\"".into()],
        target: "gfx90a:sramecc+:xnack-".into(),
        entry: "rmsnorm".into(),
        compiler_name: "fake".into(),
        compiler: "0123".into(),
    }
}

/// What a deterministic compiler makes of a key.
fn made(key: &KernelKey) -> NewObject {
    NewObject {
        object: format!("object of {}", key.source).into_bytes(),
        log: "a warning\n".into(),
        label: "rmsnorm/simt".into(),
        about: "hidden_size=2880 f32 block_size=256".into(),
        compile_ms: 12,
        compiler: "a fake".into(),
    }
}

fn hit(cache: &Cache, key: &KernelKey) -> Option<CacheEntry> {
    match cache.get(key) {
        Lookup::Hit(entry) => Some(entry),
        Lookup::Failed { log } => panic!("expected a hit or a miss, found a failure: {log}"),
        Lookup::Miss => None,
    }
}

/// The names in a folder, sorted; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|child| child.expect("listed").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_published_is_found_by_another_process() {
    let room = Room::new();
    let key = key("void k() {}");
    assert!(hit(&room.open(), &key).is_none());
    let published = room.open().publish(&key, &made(&key));

    let found = hit(&room.open(), &key).expect("it was published");
    assert_eq!(&*found.object, b"object of void k() {}");
    assert_eq!(found.digest, key.digest());
    assert_eq!(found.meta, published.meta);
    assert_eq!(found.meta.label, "rmsnorm/simt");
    assert_eq!(found.meta.compile_ms, 12);
    assert_eq!(found.meta.compiler_description, "a fake");
    assert_eq!(found.meta.key.options, key.options);

    let digest = key.digest().to_string();
    let dir = room.root().join("v1").join(&digest[..2]).join(&digest);
    assert_eq!(found.dir.as_deref(), Some(&*dir));
    assert_eq!(names(&dir), ["log", "meta.toml", "object", "source", "used"]);
    assert_eq!(fs::read_to_string(dir.join("source")).expect("text"), key.source);
    assert_eq!(fs::read_to_string(dir.join("log")).expect("text"), "a warning\n");
    assert!(fs::read(room.root().join("CACHEDIR.TAG")).expect("a tag").starts_with(b"Signature: 8a477f597d28d172"));
}

#[test]
fn every_field_of_the_key_tells_entries_apart() {
    let room = Room::new();
    let base = key("s");
    let others = [
        KernelKey { source: "t".into(), ..base.clone() },
        KernelKey { options: vec!["-O3".into()], ..base.clone() },
        KernelKey { target: "gfx90a".into(), ..base.clone() },
        KernelKey { entry: "linear".into(), ..base.clone() },
        KernelKey { compiler_name: "hiprtc".into(), ..base.clone() },
        KernelKey { compiler: "0124".into(), ..base.clone() },
    ];
    room.publish(&base);
    for other in &others {
        assert!(hit(&room.open(), other).is_none(), "{other:?}");
    }
}

#[test]
fn everything_in_the_folder_is_private_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let room = Room::new();
    let dir = room.publish(&key("s"));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&room.root()), 0o700);
    assert_eq!(mode(&room.root().join("v1")), 0o700);
    assert_eq!(mode(dir.parent().expect("a shard")), 0o700);
    assert_eq!(mode(&dir), 0o700);
    for name in names(&dir) {
        assert_eq!(mode(&dir.join(&name)), 0o600, "{name}");
    }
}

#[test]
fn odd_keys_come_back_as_they_were() {
    let room = Room::new();
    let odd = "\0\u{7f}\r\n\t\"'''\\ü🦀\u{2028}#[x]\n\n";
    let key = KernelKey {
        source: odd.into(),
        options: vec![odd.into(), String::new()],
        target: odd.into(),
        entry: String::new(),
        compiler_name: "host".into(),
        compiler: odd.into(),
    };
    let made = NewObject {
        object: Vec::new(),
        log: odd.into(),
        label: odd.into(),
        about: odd.into(),
        compile_ms: 0,
        compiler: odd.into(),
    };
    room.open().publish(&key, &made);
    let found = hit(&room.open(), &key).expect("it was published");
    assert_eq!(found.object.len(), 0);
    assert_eq!(found.meta.label, odd);
    assert_eq!(found.meta.key.options, key.options);
}

#[test]
fn a_failure_is_remembered_until_an_object_takes_its_place() {
    let room = Room::new();
    let key = key("broken");
    room.open().remember_failure(&key, "rmsnorm/simt", "1:1: error: no\n");
    match room.open().get(&key) {
        Lookup::Failed { log } => assert_eq!(log, "1:1: error: no\n"),
        other => panic!("expected the failure, found {other:?}"),
    }
    let other_compiler = KernelKey { compiler: "0124".into(), ..key.clone() };
    assert!(hit(&room.open(), &other_compiler).is_none(), "another compiler may manage");

    room.publish(&key);
    assert!(hit(&room.open(), &key).is_some());
    room.open().remember_failure(&key, "rmsnorm/simt", "late");
    assert!(hit(&room.open(), &key).is_some(), "an object does not give way to a failure");
}

#[test]
fn a_second_publication_gives_the_entry_that_was_first() {
    let room = Room::new();
    let key = key("s");
    let (first, second) = (room.open(), room.open());
    first.publish(&key, &made(&key));
    let late = second.publish(&key, &NewObject { object: b"another object".to_vec(), ..made(&key) });
    assert_eq!(&*late.object, b"object of s");
    assert_eq!(hit(&second, &key).map(|entry| entry.object), Some(late.object));
}

#[test]
fn an_entry_of_another_schema_is_a_miss() {
    let room = Room::new();
    let key = key("s");
    let dir = room.publish(&key);
    let text = fs::read_to_string(dir.join("meta.toml")).expect("text");
    let (_, rest) = text.split_once('\n').expect("a first line");
    let rest = rest.replacen("schema = 1\n", "schema = 2\n", 1);
    let sum = kernel::object::key::Digest::of(rest.as_bytes());
    fs::write(dir.join("meta.toml"), format!("rest_sha256 = \"{sum}\"\n{rest}")).expect("written");
    assert!(hit(&room.open(), &key).is_none());
    assert!(!dir.exists(), "it is moved aside");
}

#[test]
fn a_miss_is_explained_by_the_nearest_entry() {
    let room = Room::new();
    let base = key("a\nb\nc\n");
    room.publish(&base);
    room.publish(&KernelKey { target: "gfx1100".into(), compiler: "9".into(), ..base.clone() });
    room.publish(&KernelKey { entry: "linear".into(), ..base.clone() });

    let wanted = KernelKey { source: "a\nB\nc\n".into(), ..base.clone() };
    let Explanation::Nearest(nearest) = room.open().explain(&wanted) else { panic!("expected a nearest entry") };
    assert_eq!(nearest.digest, base.digest());
    let [difference] = &nearest.differences[..] else { panic!("expected one difference: {nearest:?}") };
    assert_eq!((&*difference.field, difference.line), ("source", Some(2)));
    assert_eq!((difference.theirs.as_deref(), difference.ours.as_deref()), (Some("b"), Some("B")));

    let wanted = KernelKey { compiler: "0124".into(), options: vec!["-O3".into()], ..base.clone() };
    let Explanation::Nearest(nearest) = room.open().explain(&wanted) else { panic!("expected a nearest entry") };
    let fields: Vec<&str> = nearest.differences.iter().map(|difference| &*difference.field).collect();
    assert_eq!(fields, ["compiler", "option 1"]);
    assert_eq!(nearest.differences[1].ours, None);

    assert!(matches!(room.open().explain(&base), Explanation::Hit { digest, .. } if digest == base.digest()));
    assert!(matches!(Room::new().open().explain(&base), Explanation::Empty));
}
