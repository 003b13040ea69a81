//! Disks that do not do what a cache wants: all are warnings, and the objects live in memory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use hint::Hint;
use kernel::object::cache::{Cache, CacheError, CacheLimits, Distrust, Folder, Lookup};

use super::{Room, hit, key, made};
use crate::fixtures::skipped;

/// Expects a cache that works in memory alone.
fn works_without_disk(root: &Path) {
    let cache = Cache::open(root, CacheLimits::default());
    assert!(cache.folder().is_none(), "{} was used", root.display());
    let (good, bad) = (key("good"), key("bad"));
    assert!(!cache.lock(&good.digest()).is_held());
    let entry = cache.publish(&good, &made(&good));
    assert_eq!(entry.dir, None);
    drop(entry);
    cache.remember_failure(&bad, "rmsnorm/simt", "no\n");
    assert_eq!(hit(&cache, &good).map(|entry| entry.object.to_vec()), Some(b"object of good".to_vec()));
    assert!(matches!(cache.get(&bad), Lookup::Failed { log } if log == "no\n"));
    cache.publish(&bad, &made(&bad));
    assert!(hit(&cache, &bad).is_some(), "an object takes the place of a failure");
}

#[test]
fn a_folder_that_cannot_be_made_is_done_without() {
    let room = Room::new();
    let file = room.folder.path().join("file");
    fs::write(&file, "in the way").expect("written");
    for root in [&file, &file.join("below"), Path::new("/proc/gptoss-jit/cache")] {
        works_without_disk(root);
        let error = Folder::open(root).expect_err("not usable");
        assert!(matches!(&error, CacheError::Open { path, .. } if path == root), "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("GPTOSS_JIT_CACHE")));
    }
    assert_eq!(fs::read_to_string(&file).expect("still there"), "in the way");
    let room = Room::new();
    fs::create_dir(room.root()).expect("made");
    fs::write(room.root().join("v1"), "in the way").expect("written");
    works_without_disk(&room.root());
}

#[test]
fn a_folder_that_others_can_write_to_is_done_without() {
    for below in [".", "v1"] {
        for mode in [0o720, 0o702, 0o1777] {
            let room = Room::new();
            room.publish(&key("good"));
            let path = room.root().join(below);
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            works_without_disk(&room.root());
            match Folder::open(&room.root()) {
                Err(CacheError::Distrusted { source, .. }) => assert_eq!(source, Distrust::Writable { mode }),
                other => panic!("{below} {mode:o}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_folder_of_another_user_is_done_without() {
    if !rustix::process::geteuid().is_root() {
        return skipped("giving a folder to another user needs root");
    }
    for below in [".", "v1"] {
        let room = Room::new();
        room.publish(&key("good"));
        std::os::unix::fs::chown(room.root().join(below), Some(65534), None).expect("given away");
        works_without_disk(&room.root());
        match Folder::open(&room.root()) {
            Err(CacheError::Distrusted { source: Distrust::Owner { found: 65534, .. }, .. }) => {}
            other => panic!("{below}: {other:?}"),
        }
    }
}

#[test]
fn the_root_may_be_a_link_and_what_is_below_may_not() {
    let room = Room::new();
    room.publish(&key("s"));
    let link = room.folder.path().join("link");
    symlink(room.root(), &link).expect("linked");
    assert!(hit(&Cache::open(&link, CacheLimits::default()), &key("s")).is_some());

    fs::rename(room.root().join("v1"), room.root().join("elsewhere")).expect("moved");
    symlink(room.root().join("elsewhere"), room.root().join("v1")).expect("linked");
    works_without_disk(&room.root());
}

#[test]
fn a_folder_that_became_unusable_while_open_is_only_a_warning() {
    let room = Room::new();
    let cache = room.open();
    let key = key("s");
    fs::remove_dir_all(room.root()).expect("removed");
    fs::write(room.root(), "in the way").expect("written");
    let entry = cache.publish(&key, &made(&key));
    assert_eq!(entry.dir, None);
    drop(entry);
    assert!(hit(&cache, &key).is_some());
    assert!(!cache.lock(&key.digest()).is_held());
}

/// A small file system of its own, unmounted on drop.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).expect("made");
        fs::set_permissions(at, Permissions::from_mode(0o700)).expect("ours");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).output();
        mounted.is_ok_and(|mount| mount.status.success()).then(|| Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_only_a_warning() {
    let room = Room::new();
    let root = room.root();
    let Some(_disk) = SmallDisk::mount(&root, "size=128k,mode=700") else {
        return skipped("a small disk needs the right to mount one");
    };
    let cache = room.open();
    let sources: Vec<String> = (0..40).map(|i| format!("kernel {i}")).collect();
    let mut stored = 0;
    for source in &sources {
        stored += usize::from(cache.publish(&key(source), &made(&key(source))).dir.is_some());
    }
    assert!(stored > 0 && stored < sources.len(), "{stored} of {} fit", sources.len());
    let fresh = room.open();
    let found = sources.iter().filter(|source| hit(&fresh, &key(source)).is_some()).count();
    assert_eq!(found, stored, "what was stored is whole, what was not is absent");
    let kept = sources.iter().filter(|source| hit(&cache, &key(source)).is_some()).count();
    assert_eq!(kept, sources.len(), "what does not fit lives in memory");
    let verified = room.open().folder().expect("usable").verify(false).expect("listed");
    assert_eq!(verified.findings, [], "nothing half written is visible");
}

#[test]
fn a_read_only_disk_is_read_and_not_written() {
    let room = Room::new();
    let root = room.root();
    let Some(_disk) = SmallDisk::mount(&root, "size=1m,mode=700") else {
        return skipped("a read-only disk needs the right to mount one");
    };
    room.publish(&key("old"));
    let again = Command::new("mount").args(["-o", "remount,ro"]).arg(&root).status();
    if !again.is_ok_and(|status| status.success()) {
        return skipped("a read-only disk needs the right to remount one");
    }
    let cache = room.open();
    assert_eq!(hit(&cache, &key("old")).map(|entry| entry.object.to_vec()), Some(b"object of old".to_vec()));
    assert_eq!(cache.publish(&key("new"), &made(&key("new"))).dir, None);
    assert!(hit(&cache, &key("new")).is_some());
    assert!(hit(&room.open(), &key("new")).is_none());
}
