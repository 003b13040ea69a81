//! Entries on the disk, as two processes see them: each [`Cache`] remembers for itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::object::compile::Request;

fn key(source: &str) -> KernelKey {
    let request = Request {
        about: String::new(),
        label: "linear/dot".into(),
        source: source.into(),
        entry: "k".into(),
        options: vec!["-O3".into()],
        target: "x86-64".into(),
        compiler: "host",
        params: Default::default(),
    };
    KernelKey::new(&request, "a compiler")
}

fn made(object: &[u8]) -> NewObject {
    NewObject {
        object: object.to_vec(),
        log: String::new(),
        label: "linear/dot".into(),
        about: String::new(),
        compile_ms: 1,
        compiler: "a compiler".into(),
    }
}

fn open(root: &Path) -> Cache {
    Cache::open(root, CacheLimits::default())
}

fn found(cache: &Cache, key: &KernelKey) -> Option<Vec<u8>> {
    match cache.get(key) {
        Lookup::Hit(entry) => Some(entry.object.to_vec()),
        Lookup::Failed { .. } | Lookup::Miss => None,
    }
}

/// A cache with an object under this key, and where it is.
fn with_entry(root: &Path, key: &KernelKey, object: &[u8]) -> PathBuf {
    open(root).publish(key, &made(object)).dir.expect("it is on the disk")
}

#[test]
fn a_damaged_entry_makes_way_for_a_new_one() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let key = key("s");
    let path = with_entry(root.path(), &key, b"one");
    fs::write(path.join("source"), "t").expect("written");
    assert_eq!(open(root.path()).publish(&key, &made(b"two")).dir, Some(path));
    assert_eq!(found(&open(root.path()), &key).as_deref(), Some(&b"two"[..]));
}

#[test]
fn an_entry_that_somebody_is_about_to_remove_is_not_waited_for_for_ever() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let key = key("s");
    let path = with_entry(root.path(), &key, b"one");
    let used = File::open(path.join("used")).expect("there");
    used.try_lock().expect("nobody uses it");
    let published = open(root.path()).publish(&key, &made(b"two"));
    assert_eq!((published.dir, &*published.object), (None, &b"two"[..]), "it lives in memory");
    drop(used);
    assert_eq!(found(&open(root.path()), &key).as_deref(), Some(&b"one"[..]));
}

#[test]
fn what_is_cleared_leaves_pinned_entries_and_says_what_they_take() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (key("s"), key("t"));
    with_entry(root.path(), &one, b"one");
    fs::write(with_entry(root.path(), &two, &[7; 20_000]).join("pin"), "").expect("written");
    let cache = open(root.path());
    let folder = cache.folder().expect("a folder");
    let size = |listed: &[Listed], is_pinned| {
        listed.iter().filter(|entry| entry.is_pinned == is_pinned).map(|entry| entry.size_bytes).sum::<u64>()
    };
    let listed = folder.list().expect("listed");
    let (bytes, left_bytes) = (size(&listed, false), size(&listed, true));
    assert!(bytes > 0 && left_bytes > 20_000);
    let removed = folder.clear(false).expect("cleared");
    assert_eq!(removed, Removed { entries: 1, bytes, kept_pinned: 1, kept_in_use: 0, left_bytes });
    assert_eq!((found(&cache, &one), found(&cache, &two)), (None, Some(vec![7; 20_000])));
}

#[test]
fn a_file_takes_its_blocks_and_its_length_at_least() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let file = root.path().join("file");
    fs::write(&file, [7; 5000]).expect("written");
    File::open(&file).and_then(|file| file.sync_all()).expect("on the disk");
    // POSIX: `st_blocks` counts 512 bytes.
    let blocks = fs::metadata(&file).expect("there").blocks();
    assert_eq!(folder::disk_bytes(&file), (512 * blocks).max(5000));
    File::create(&file).and_then(|file| file.set_len(1 << 20)).expect("a hole");
    assert_eq!(folder::disk_bytes(root.path()), 1 << 20);
}
