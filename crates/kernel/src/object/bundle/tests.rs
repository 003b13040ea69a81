use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::manifest::{BundleTarget, BundledKernel, BundledObject, FORMAT, Manifest};
use super::*;
use crate::template::Params;

pub(super) fn request(target: &str, source: &str) -> Request {
    Request {
        about: String::new(),
        label: "linear/gemv".into(),
        source: source.into(),
        entry: "k".into(),
        options: vec!["-O3".into(), format!("--offload-arch={target}")],
        target: target.into(),
        compiler: "hiprtc",
        params: Params::from([("tile".to_owned(), 4)]),
    }
}

/// A bundle of these requests, all of one target, whose objects are these; none is one that did not compile.
pub(super) fn bytes(of: &[(Request, Option<Vec<u8>>)]) -> Vec<u8> {
    bytes_with(of, &|_| {})
}

fn bytes_with(of: &[(Request, Option<Vec<u8>>)], change: &dyn Fn(&mut [BundledKernel])) -> Vec<u8> {
    let target = BundleTarget {
        target: of[0].0.target.clone(),
        backend: "hiprtc".into(),
        compiler: "c".into(),
        compiler_description: "a compiler".into(),
    };
    let kernel = |(request, object): &(Request, Option<Vec<u8>>)| BundledKernel {
        key: key(request),
        label: request.label.clone(),
        params: request.params.clone(),
        target: 0,
        entry: request.entry.clone(),
        options: request.options.clone(),
        source_sha256: Digest::of(request.source.as_bytes()),
        object: object
            .as_ref()
            .map(|object| BundledObject { len_bytes: object.len() as u64, sha256: Digest::of(object) }),
    };
    let mut kernels: Vec<BundledKernel> = of.iter().map(kernel).collect();
    change(&mut kernels);
    let manifest = Manifest {
        schema: FORMAT,
        version: "0".into(),
        models: vec!["m".into()],
        precisions: Vec::new(),
        templates_sha256: Digest::of(b"templates"),
        tuning_sha256: Digest::of(b"tables"),
        targets: vec![target],
        kernels,
    };
    let sources: Vec<(Digest, &str)> =
        of.iter().map(|(request, _)| (Digest::of(request.source.as_bytes()), request.source.as_str())).collect();
    archive::bytes(&manifest, |i| of[i].1.as_deref().unwrap_or_default(), &sources).expect("small")
}

pub(super) fn opened(folder: &Path, bytes: &[u8]) -> Bundles {
    let path = folder.join("b.tar.zst");
    fs::write(&path, bytes).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
    Bundles::open(&[path])
}

/// Bytes that do not pack, so that there are several frames.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn every_object_is_found_by_its_request_whatever_the_frame() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut all: Vec<(Request, Option<Vec<u8>>)> =
        (0..9).map(|i| (request("gfx942", &format!("source {i}")), Some(noise(i, 200_000)))).collect();
    all.push((request("gfx942", "broken"), None));
    let bundles = opened(folder.path(), &bytes(&all));
    let [bundle] = bundles.all() else { panic!("{:?}", bundles.refused()) };
    assert_eq!((bundle.n_kernels(), bundle.targets().collect::<Vec<_>>()), (10, vec!["gfx942"]));
    assert_eq!(bundle.verify(), []);
    // From the last to the first: each has its frame unpacked anew.
    for (request, object) in all.iter().rev() {
        assert!(bundles.has(request));
        let found = bundles.get(request).expect("it is there");
        assert_eq!(found.object.as_deref(), object.as_deref());
    }
}

#[test]
fn a_chip_with_modes_takes_what_is_for_the_chip_and_no_other_chip_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundles = opened(folder.path(), &bytes(&[(request("gfx942", "s"), Some(b"object".to_vec()))]));
    let found = bundles.get(&request("gfx942:sramecc+:xnack-", "s")).expect("it is for both");
    assert_eq!(found.object.as_deref(), Some(&b"object"[..]));
    assert!(!bundles.has(&request("gfx950", "s")) && !bundles.has(&request("gfx942", "t")));
    bundles.forget(&request("gfx942", "s"));
    assert!(bundles.get(&request("gfx942", "s")).is_none(), "the device refused it");
    assert_eq!(largest(["gfx942"].into_iter()), None);
    let levels = ["x86-64", "gfx942", "x86-64-v2", "x86-64-v9"];
    let expected = if cfg!(target_arch = "x86_64") { Some("x86-64-v2".to_owned()) } else { None };
    assert_eq!(largest(levels.into_iter()).map(|target| target.id()), expected);
}

#[test]
fn a_changed_byte_is_found_or_changes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all = [(request("gfx942", "s"), Some(b"object".to_vec())), (request("gfx942", "t"), None)];
    let whole = bytes(&all);
    let is_whole = |bytes: &[u8]| match opened(folder.path(), bytes).all() {
        [bundle] => bundle.verify().is_empty(),
        _ => false,
    };
    assert!(is_whole(&whole));
    let mut n_missed = 0;
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        if is_whole(&changed) {
            n_missed += 1;
            let bundles = opened(folder.path(), &changed);
            let objects = all.iter().map(|(request, _)| bundles.get(request).expect("it is there").object);
            assert!(objects.eq([Some(b"object"[..].into()), None]), "at {at}");
        }
    }
    // The eight bytes that the skippable frame begins with are zstd's own, as are bits that pad its frames.
    assert!((8..=16).contains(&n_missed), "{n_missed}");
    for len in 0..whole.len() {
        assert!(!is_whole(&whole[..len]), "cut at {len}");
    }
}

#[test]
fn all_that_is_wrong_is_found_and_not_the_first_thing_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Objects and sources that do not pack: a frame each, or more of them.
    let text = |i| noise(i, 200_000).iter().map(|byte| char::from(b'a' + byte % 16)).collect::<String>();
    let all: Vec<(Request, Option<Vec<u8>>)> =
        (0..4).map(|i| (request("gfx942", &text(i)), Some(noise(i, 600_000)))).collect();
    let mut bytes = bytes(&all);
    for i in [0, 2] {
        bytes[i * 600_000 + 300_000] ^= 1; // in the middle of an object
    }
    bytes[4 * 600_000 + 50_000] ^= 1; // in the first of two frames of sources
    let bundles = opened(folder.path(), &bytes);
    let [bundle] = bundles.all() else { panic!("{:?}", bundles.refused()) };
    let findings = bundle.verify();
    let places = |problem: &str| -> Vec<&str> {
        findings.iter().filter(|one| one.problem.contains(problem)).map(|one| one.place.as_str()).collect()
    };
    let of = |i: usize| format!("linear/gemv {}", key(&all[i].0));
    assert_eq!(places("unpack"), ["sources", &of(0), &of(2)], "{findings:?}");
    assert!(
        places("its source is not there").contains(&&*of(3)),
        "what is behind the damage is not found: {findings:?}"
    );
}

#[test]
fn a_bundle_ends_as_a_tar_archive_does() {
    let whole = bytes(&[(request("gfx942", "s"), Some(noise(1, 1000)))]);
    let tar = zstd::decode_all(&*whole).expect("frames");
    let files = archive::files(&tar).expect("a tar archive");
    assert!(files.len() >= 3, "an object, a source and the manifest");
    let filled: usize = files.iter().map(|(_, content)| 512 + content.len().next_multiple_of(512)).sum();
    assert_eq!((tar.len() - filled, tar[filled..].iter().all(|byte| *byte == 0)), (2 * 512, true));
}

#[test]
fn a_key_that_is_not_its_sources_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let all = [(request("gfx942", "s"), Some(b"object".to_vec()))];
    let another = key(&request("gfx942", "t"));
    let bundles = opened(folder.path(), &bytes_with(&all, &|kernels| kernels[0].key = another));
    let problems: Vec<String> = bundles.all()[0].verify().into_iter().map(|finding| finding.problem).collect();
    assert!(problems.contains(&"its key is not that of its source".to_owned()), "{problems:?}");
}

#[test]
fn bundles_are_found_by_the_end_of_their_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["b.tar.zst", "a.tar.zst", "a.tar", "c.zst"] {
        fs::write(folder.path().join(name), "").expect("written");
    }
    let [a, b] = ["a.tar.zst", "b.tar.zst"].map(|name| folder.path().join(name));
    assert_eq!((files_at(folder.path()), files_at(&b)), (vec![a, b.clone()], vec![b]));
    assert_eq!(files_at(&folder.path().join("none")), Vec::<PathBuf>::new());
}
