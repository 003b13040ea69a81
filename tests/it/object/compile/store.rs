//! The store: the cache and the compilers in one.

use std::fs;
use std::time::Duration;

use hint::Hint;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::{CompileError, CompilerOptions};
use kernel::object::store::{ObjectOrigin, Stats, Store, StoreError};
use tempfile::TempDir;

use super::{FAKE, options, request, runs, store};

#[test]
fn equal_requests_share_an_object_and_a_second_store_finds_it() {
    let folder = TempDir::new().unwrap();
    let counter = folder.path().join("runs");
    let a = request(FAKE, &format!("// fake: append-pid {}", counter.display()));
    let b = request(FAKE, "b");
    let requests = [a.clone(), b, a];

    let first = store(folder.path());
    let loaded: Vec<_> = first.get_all(&requests, &()).into_iter().map(Result::unwrap).collect();
    assert_eq!(runs(&counter), 1);
    assert_eq!(loaded[0].object, loaded[2].object);
    assert_ne!(loaded[0].object, loaded[1].object);
    assert_eq!(first.stats(), Stats { from_cache: 0, from_bundles: 0, compiled: 2 });

    let second = store(folder.path());
    for (again, before) in second.get_all(&requests, &()).into_iter().map(Result::unwrap).zip(&loaded) {
        assert_eq!((again.origin, &again.object), (ObjectOrigin::Cache, &before.object));
    }
    assert_eq!(second.stats(), Stats { from_cache: 2, from_bundles: 0, compiled: 0 });
    assert_eq!(runs(&counter), 1);
}

#[test]
fn the_store_puts_nothing_into_the_cache_that_verifying_does_not_know() {
    let folder = TempDir::new().unwrap();
    let store = store(folder.path());
    let requests = [request("host", "int a;\n"), request(FAKE, "// fake: reject kernel.hip:1:1: error: no")];
    let results = store.get_all(&requests, &());
    assert!(results[0].is_ok() && results[1].is_err());
    let verified = store.cache().folder().unwrap().verify(false).unwrap();
    assert_eq!((verified.entries, verified.findings.len()), (2, 0), "{:?}", verified.findings);
    let remembered = fs::read_dir(store.cache().folder().unwrap().identities_folder()).unwrap();
    assert_eq!(remembered.count(), 1, "the C compiler's identity; the fake has no files that could change");
}

#[test]
fn one_failure_in_a_batch_leaves_the_others_whole() {
    let folder = TempDir::new().unwrap();
    let sources = ["a", "// fake: reject because", "b"];
    let results = store(folder.path()).get_all(&sources.map(|source| request(FAKE, source)), &());
    assert!(results[0].is_ok() && results[2].is_ok());
    let error = results[1].as_ref().unwrap_err();
    assert!(error.to_string().ends_with("because"), "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn an_error_at_a_line_is_remembered_and_retried_on_request() {
    let folder = TempDir::new().unwrap();
    let counter = folder.path().join("runs");
    let source = format!("// fake: append-pid {}\n// fake: reject kernel.hip:3:1: error: because", counter.display());
    let error = |store: Store| store.get_all(&[request(FAKE, &source)], &()).remove(0).expect_err("it fails always");
    let first = error(store(folder.path()));
    let StoreError::Compile(CompileError::Failed { source_path, .. }) = &first else { panic!("{first}") };
    let kept = fs::read_to_string(source_path.as_ref().expect("the cache keeps the source")).unwrap();
    // Once with the header that the worker brings, and once with hipRTC's own, which may have what that lacks.
    assert_eq!((kept, runs(&counter)), (source.clone(), 2));

    let second = error(store(folder.path()));
    assert!(matches!(second, StoreError::FailedBefore { .. }), "{second}");
    assert!(second.to_string().ends_with("because"), "{second}");
    assert_eq!(runs(&counter), 2, "it was not compiled again");

    error(store(folder.path()).retrying_failed(true));
    assert_eq!(runs(&counter), 4, "it was compiled again");
}

#[test]
fn a_passing_failure_is_not_remembered() {
    for directive in ["oom", "answer-garbage", "hang", "crash", "exit 3", "reject because", "cut-short"] {
        let folder = TempDir::new().unwrap();
        let source = format!("// fake: {directive}");
        for _ in 0..2 {
            let options = CompilerOptions { deadline: Duration::from_secs(2), ..options() };
            let store = Store::new(Cache::open(folder.path(), CacheLimits::default()), options);
            let error = store.get_all(&[request(FAKE, &source)], &()).remove(0).unwrap_err();
            assert!(matches!(error, StoreError::Compile(_)), "{directive}: {error}");
        }
    }
}
