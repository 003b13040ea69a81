//! Entries that changed behind the cache's back: each is a miss, is moved aside, and is made anew.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use kernel::object::cache::NewObject;

use super::{Room, hit, key, made, names};
use crate::fixtures::skipped;

/// Damages a fresh entry in one way and expects that it is not used, is out of the way, and comes back.
fn heals(what: &str, damage: impl FnOnce(&Path)) {
    let room = Room::new();
    let key = key("__global__ void k() {}\n");
    let dir = room.publish(&key);
    damage(&dir);
    assert!(hit(&room.open(), &key).is_none(), "{what}: it was trusted");
    assert!(!names(&room.root().join("v1/aside")).is_empty(), "{what}: it was not moved aside");
    let again = room.open().publish(&key, &made(&key));
    assert_eq!(again.dir.as_deref(), Some(&*dir), "{what}: it was not stored again");
    assert_eq!(hit(&room.open(), &key).map(|entry| entry.object), Some(again.object), "{what}: it did not heal");
}

fn flip(path: &Path, bit: usize) {
    let mut bytes = fs::read(path).expect("there");
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).expect("written");
}

/// Damages one entry in many ways, whole again before each, and expects that it is never used. Cheaper than
/// [`heals`], since nothing is synced.
struct Target {
    room: Room,
    dir: PathBuf,
    whole: Vec<(&'static str, Vec<u8>)>,
}

impl Target {
    fn new() -> Self {
        let room = Room::new();
        let dir = room.publish(&key("__global__ void k() {}\n"));
        let whole =
            ["object", "source", "log", "meta.toml"].map(|file| (file, fs::read(dir.join(file)).expect("there")));
        Self { room, dir, whole: whole.into() }
    }

    fn refuses(&self, what: &str, file: &str, bytes: &[u8]) {
        let cache = self.room.open();
        let _ = fs::remove_dir_all(self.room.root().join("v1/aside"));
        fs::create_dir_all(&self.dir).expect("made");
        chmod(&self.dir, 0o700);
        for (name, whole) in &self.whole {
            fs::write(self.dir.join(name), if *name == file { bytes } else { whole }).expect("written");
            chmod(&self.dir.join(name), 0o600);
        }
        let is_whole = self.whole.iter().any(|(name, whole)| *name == file && whole == bytes);
        assert_eq!(hit(&cache, &key("__global__ void k() {}\n")).is_some(), is_whole, "{file}: {what}");
        assert_eq!(self.dir.exists(), is_whole, "{file}: {what}: not moved aside");
    }
}

#[test]
fn any_flipped_bit_is_seen() {
    let target = Target::new();
    for (file, whole) in &target.whole {
        target.refuses("whole", file, whole);
        // Of the long file, another bit in each byte; of the others, every bit.
        let step = if *file == "meta.toml" { 9 } else { 1 };
        for bit in (0..8 * whole.len()).step_by(step) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            target.refuses(&format!("bit {bit}"), file, &bytes);
        }
    }
}

#[test]
fn any_truncation_is_seen() {
    let target = Target::new();
    for (file, whole) in &target.whole {
        for len in 0..=whole.len() {
            target.refuses(&format!("cut to {len} bytes"), file, &whole[..len]);
        }
    }
}

#[test]
fn missing_and_added_bytes_are_seen() {
    for file in ["object", "source", "log", "meta.toml"] {
        heals(&format!("{file} deleted"), |dir| fs::remove_file(dir.join(file)).expect("deleted"));
        heals(&format!("{file} longer"), |dir| {
            let mut bytes = fs::read(dir.join(file)).expect("there");
            bytes.push(b'\n');
            fs::write(dir.join(file), bytes).expect("written");
        });
        heals(&format!("{file} is a folder"), |dir| {
            fs::remove_file(dir.join(file)).expect("deleted");
            fs::create_dir(dir.join(file)).expect("made");
        });
        heals(&format!("{file} is a link to itself elsewhere"), |dir| {
            let elsewhere = dir.parent().expect("a shard").join("elsewhere");
            fs::rename(dir.join(file), &elsewhere).expect("moved");
            symlink(&elsewhere, dir.join(file)).expect("linked");
        });
        heals(&format!("{file} is a pipe, which must not block"), |dir| {
            fs::remove_file(dir.join(file)).expect("deleted");
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, dir.join(file), rustix::fs::FileType::Fifo, mode, 0).expect("made");
        });
    }
}

#[test]
fn what_others_can_write_to_is_not_trusted() {
    for mode in [0o720, 0o702, 0o777] {
        heals(&format!("entry with mode {mode:o}"), |dir| chmod(dir, mode));
        heals(&format!("shard with mode {mode:o}"), |dir| chmod(dir.parent().expect("a shard"), mode));
    }
    for file in ["object", "source", "log", "meta.toml"] {
        for mode in [0o620, 0o602] {
            heals(&format!("{file} with mode {mode:o}"), |dir| chmod(&dir.join(file), mode));
        }
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

#[test]
fn what_belongs_to_others_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        return skipped("giving files to another user needs root");
    }
    heals("entry of another user", |dir| std::os::unix::fs::chown(dir, Some(65534), None).expect("given away"));
    for file in ["object", "source", "log", "meta.toml"] {
        heals(&format!("{file} of another user"), |dir| {
            std::os::unix::fs::chown(dir.join(file), Some(65534), None).expect("given away");
        });
    }
}

#[test]
fn an_entry_under_another_name_is_not_that_entry() {
    heals("another key's entry", |dir| {
        let other = Room::new();
        let foreign = other.publish(&key("something else"));
        fs::remove_dir_all(dir).expect("removed");
        fs::create_dir(dir).expect("made");
        chmod(dir, 0o700);
        for name in names(&foreign) {
            fs::copy(foreign.join(&name), dir.join(&name)).expect("copied");
        }
    });
    heals("a link to the entry", |dir| {
        let elsewhere = dir.with_file_name("elsewhere");
        fs::rename(dir, &elsewhere).expect("moved");
        symlink(&elsewhere, dir).expect("linked");
    });
    heals("a file in its place", |dir| {
        fs::remove_dir_all(dir).expect("removed");
        fs::write(dir, "hello").expect("written");
    });
    heals("a shard that is a link", |dir| {
        let shard = dir.parent().expect("a shard");
        let elsewhere = shard.with_file_name("elsewhere");
        fs::rename(shard, &elsewhere).expect("moved");
        symlink(&elsewhere, shard).expect("linked");
    });
    heals("a shard that is a file", |dir| {
        let shard = dir.parent().expect("a shard");
        fs::remove_dir_all(shard).expect("removed");
        fs::write(shard, "hello").expect("written");
    });
    heals("an empty folder", |dir| {
        fs::remove_dir_all(dir).expect("removed");
        fs::create_dir(dir).expect("made");
        chmod(dir, 0o700);
    });
}

#[test]
fn what_is_set_aside_says_why_and_does_not_pile_up() {
    let room = Room::new();
    let key = key("s");
    for _ in 0..70 {
        let dir = room.publish(&key);
        flip(&dir.join("object"), 3);
        assert!(hit(&room.open(), &key).is_none());
    }
    let aside = room.root().join("v1/aside");
    assert_eq!(names(&aside).len(), 64);
    let newest = aside.join(names(&aside).pop().expect("one"));
    let why = fs::read_to_string(newest.join("why")).expect("a reason");
    assert!(why.contains("`object` does not match its SHA-256"), "{why}");
    assert!(newest.join(key.digest().to_string()).join("object").is_file());
}

#[test]
fn set_aside_bytes_are_capped() {
    let room = Room::new();
    let key = key("s");
    for _ in 0..4 {
        let dir = room.publish(&key);
        fs::write(dir.join("object"), vec![1; 30 << 20]).expect("written");
        assert!(hit(&room.open(), &key).is_none());
    }
    assert_eq!(names(&room.root().join("v1/aside")).len(), 2, "two of 30 MiB fit into 64 MiB");
}

#[test]
fn an_object_that_is_cut_short_is_found_though_its_digest_is_right() {
    let room = Room::new();
    let key = key("s");
    let whole = include_bytes!("../../../fixtures/objects/linear_tile.gfx90a.co");
    let publish = |object: &[u8]| drop(room.open().publish(&key, &NewObject { object: object.to_vec(), ..made(&key) }));
    publish(whole);
    assert!(hit(&room.open(), &key).is_some());
    room.open().forget(&key.digest());
    publish(&whole[..whole.len() - 1]);
    let findings = room.open().folder().expect("usable").verify(false).expect("listed").findings;
    assert!(findings.len() == 1 && findings[0].problem.contains("`object` cannot be loaded"), "{findings:?}");
    assert!(hit(&room.open(), &key).is_none());
    assert_eq!(names(&room.root().join("v1/aside")).len(), 1);
}

#[test]
fn what_is_behind_links_among_the_folders_is_left_alone() {
    let room = Room::new();
    let key = key("s");
    let dir = room.publish(&key);
    let precious = room.folder.path().join("precious");
    fs::create_dir(&precious).expect("made");
    fs::write(precious.join("thesis"), "").expect("written");
    for name in ["aside", "lock"] {
        let _ = fs::remove_dir_all(room.root().join("v1").join(name));
        symlink(&precious, room.root().join("v1").join(name)).expect("linked");
    }
    let pruned = room.root().join("v1/pruned");
    fs::remove_file(&pruned).expect("there");
    symlink(precious.join("thesis"), &pruned).expect("linked");

    assert!(!room.open().lock(&key.digest()).is_held());
    room.open().folder().expect("usable").clear(false).expect("listed");
    assert!(fs::symlink_metadata(room.root().join("v1/aside")).is_err(), "the link itself is what was set aside");
    symlink(&precious, room.root().join("v1/aside")).expect("linked");
    room.publish(&key);
    flip(&dir.join("object"), 3);
    assert!(hit(&room.open(), &key).is_none());
    assert_eq!(names(&room.root().join("v1/aside")).len(), 1, "a folder of the cache's own");
    assert_eq!((names(&precious), fs::read(precious.join("thesis")).expect("there")), (vec!["thesis".into()], vec![]));
}
