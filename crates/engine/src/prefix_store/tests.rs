use super::*;

const IDENTITY: [u8; 32] = [7; 32];

fn name(number: u8) -> PrefixBlock {
    PrefixBlock { key: PrefixKey([number; 32]), before: PrefixKey([number - 1; 32]), index: number as usize }
}

fn head(number: u8, len_bytes: usize) -> Head {
    Head { identity: IDENTITY, name: name(number), part: PrefixPart::Block, len_bytes: len_bytes as u64 }
}

fn store(root: &Path, most_bytes: u64) -> PrefixStore {
    PrefixStore::open(root, IDENTITY, most_bytes).expect("ours")
}

#[test]
fn a_file_with_any_bit_flipped_or_any_byte_missing_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = store(&folder.path().join("kept"), 1 << 20).folder;
    let bytes: Vec<u8> = (0..40).collect();
    let path = file::write(&own, &head(3, 40), &bytes).expect("written");
    assert_eq!(file::read_head(&path, &IDENTITY).expect("right"), head(3, 40));
    assert_eq!(file::read(&path, &IDENTITY, 40).expect("right"), bytes);
    let whole = fs::read(&path).expect("there");
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).expect("written");
        assert!(file::read(&path, &IDENTITY, 40).is_err(), "byte {at}");
        fs::write(&path, &whole[..at]).expect("written");
        assert!(file::read(&path, &IDENTITY, 40).is_err(), "{at} bytes");
    }
    fs::write(&path, &whole).expect("written");
    for (why, damage) in [
        ("another model", file::read(&path, &[8; 32], 40)),
        ("has 192 bytes, expected 193", file::read(&path, &IDENTITY, 41)),
    ] {
        let damage = damage.expect_err(why).to_string();
        assert!(damage.contains(why), "{damage}");
    }
    let other = path.with_file_name(file_name(&name(4).key, PrefixPart::Block));
    fs::copy(&path, &other).expect("copied");
    assert!(matches!(file::read_head(&other, &IDENTITY), Err(Damage::Name)));
    let link = path.with_file_name(file_name(&name(5).key, PrefixPart::Block));
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    assert!(matches!(file::read_head(&link, &IDENTITY), Err(Damage::Read(_))));
}

#[test]
fn room_is_made_by_what_was_used_longest_ago_whosever_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("kept");
    let of_file = file_bytes(100);
    let other = PrefixStore::open(&root, [9; 32], 1 << 20).expect("ours").folder;
    let own = store(&root, 1 << 20).folder;
    let day = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 86_400);
    let mut paths = Vec::new();
    for (i, folder) in [&own, &other, &own, &other].into_iter().enumerate() {
        let path = file::write(folder, &head(1 + i as u8, 100), &[1; 100]).expect("written");
        File::open(&path).and_then(|file| file.set_modified(day(4 - i as u64))).expect("ours");
        paths.push(path);
    }
    // What a killed process left goes with time, what is being written stays.
    let [left, new] = [".new-1-x", ".new-2-x"].map(|name| own.join(name));
    fs::write(&left, "x").and_then(|()| fs::write(&new, "x")).expect("written");
    File::open(&left).and_then(|file| file.set_modified(day(1))).expect("ours");

    let mut store = store(&root, 4 * of_file);
    assert_eq!((left.exists(), new.exists(), store.total_bytes), (false, true, 4 * of_file));
    store.make_room(of_file);
    assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true, true, true, false]);
    store.make_room(3 * of_file);
    assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true, false, false, false]);
    assert_eq!((store.used.len(), store.total_bytes), (1, of_file));
}
