//! The C compiler, and how it is remembered who it is.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use hint::Hint;
use kernel::object::cache::Cache;
use kernel::object::compile::{CompileError, CompilerOptions, Compilers, How};
use kernel::object::store::Store;
use tempfile::TempDir;

use super::{HOST_TARGET, compile, options, request, runs};

#[test]
fn the_c_compiler_makes_a_shared_object_with_the_entry() {
    let source = "float expf(float);\nvoid canary_of_tests(float* x) { x[0] = expf(x[0]); }\n";
    let compiled = compile(options(), "host", source).unwrap();
    assert!(compiled.object.starts_with(b"\x7fELF"));
    assert!(compiled.object.windows(15).any(|bytes| bytes == b"canary_of_tests"));
    assert_eq!(compiled.log, "");

    let again = compile(options(), "host", source).unwrap();
    assert_eq!(again.object, compiled.object, "the private folder's name must not get into the object");
}

#[test]
fn a_c_error_names_the_line_of_our_source_and_is_deterministic() {
    let error = compile(options(), "host", "int a;\nint b = undeclared;\n").unwrap_err();
    assert!(error.is_deterministic());
    assert!(error.log().starts_with("kernel.c:2:9: error:"), "{error}");
    assert!(error.to_string().starts_with("could not compile kernel `op/variant` for "), "{error}");
    assert!(error.hint().unwrap().contains("kernels show op/variant"));
}

#[test]
fn a_c_warning_goes_to_the_log_of_the_object() {
    let mut request = request("host", "void f(void) { int unused; }\n");
    request.options.push("-Wall".into());
    let compiled = Compilers::new(options()).compile(&request).unwrap();
    assert!(compiled.log.contains("kernel.c:1:20: warning: unused variable"), "{}", compiled.log);
}

#[test]
fn a_chip_that_the_c_compiler_does_not_know_is_named_and_not_held_against_the_kernel() {
    let mut request = request("host", "int a;\n");
    request.options.push("-march=no-such-chip".into());
    let error = Compilers::new(options()).compile(&request).unwrap_err();
    assert!(matches!(error, CompileError::Failed { how: How::Failed, .. }), "{error}");
    assert!(error.log().contains("no-such-chip"), "{error}");
    assert!(!error.is_deterministic());
}

#[test]
fn without_a_c_compiler_the_error_says_how_to_get_one() {
    let cc = Some(PathBuf::from("/nowhere/cc"));
    let error = compile(CompilerOptions { cc, ..options() }, "host", "int a;\n").unwrap_err();
    assert_eq!(error.to_string(), "could not find a C compiler: looked for `/nowhere/cc`");
    assert!(error.hint().unwrap().contains("apt install gcc"));
}

#[test]
fn a_c_compiler_without_memory_is_not_a_refusal() {
    let memory_bytes = 256 << 20; // the canary fits
    let source = "int a[] = {\n#define A 1,2,3,4,5,6,7,8,\n#define B A A A A A A A A A A\n#define C B B B B B B B B B B\n#define D C C C C C C C C C C\n#define E D D D D D D D D D D\nE E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E E\n};\n";
    let compiler = Compilers::new(CompilerOptions { memory_bytes, ..options() });
    match compiler.compile(&request("host", source)).unwrap_err() {
        CompileError::Failed { how, log, .. } => assert_eq!(how, How::OutOfMemory, "{log}"),
        error => panic!("{error}"),
    }
}

/// A compiler that counts its runs and is the one behind it otherwise.
fn counting_cc(folder: &Path, says: &str, behind: &Path) -> PathBuf {
    let (cc, counter) = (folder.join("cc"), folder.join("runs"));
    let text = format!(
        "#!/bin/sh\necho run >> {}\n[ \"$1\" = -v ] && echo {says}\nexec {} \"$@\"\n",
        counter.display(),
        behind.display()
    );
    fs::write(&cc, text).unwrap();
    fs::set_permissions(&cc, fs::Permissions::from_mode(0o755)).unwrap();
    cc
}

#[test]
fn an_identity_is_remembered_until_the_compiler_changes() {
    let folder = TempDir::new().unwrap();
    let (behind, usual) = (folder.path().join("behind"), which("cc"));
    symlink(&usual, &behind).unwrap();
    let cc = counting_cc(folder.path(), "one", &behind);
    let counter = folder.path().join("runs");
    let options =
        || CompilerOptions { cc: Some(cc.clone()), identities: Some(folder.path().join("compilers")), ..options() };
    let identity = |options| Compilers::new(options).identity("host", HOST_TARGET).unwrap();

    let young = identity(options());
    let runs_at_first = runs(&counter);
    assert!(runs_at_first > 0);
    identity(options());
    assert_eq!(runs(&counter), 2 * runs_at_first, "a compiler that was just installed is not trusted to stay");

    sleep(Duration::from_millis(2100));
    assert_eq!(identity(options()), young);
    let runs_before = runs(&counter);
    assert_eq!(identity(options()), young);
    assert_eq!(runs(&counter), runs_before, "the identity was remembered");
    let asked_once = Compilers::new(options());
    for n_compiles in 1..=3 {
        asked_once.compile(&request("host", "int a;\n")).unwrap();
        assert_eq!(runs(&counter), runs_before + n_compiles, "who it is was asked again");
    }

    // The compiler behind this one is replaced by one that says the same of itself.
    fs::remove_file(&behind).unwrap();
    fs::write(&behind, format!("#!/bin/sh\nexec {} \"$@\"\n", usual.display())).unwrap();
    fs::set_permissions(&behind, fs::Permissions::from_mode(0o755)).unwrap();
    let runs_before = runs(&counter);
    identity(options());
    assert!(runs(&counter) > runs_before, "it was not asked again");

    // Replaced while a program runs: told to who compiles, and no obstacle to the store.
    let running = Compilers::new(options());
    running.identity("host", HOST_TARGET).unwrap();
    let store = Store::new(Cache::in_memory(), options());
    store.compiler().identity("host", HOST_TARGET).unwrap();
    counting_cc(folder.path(), "two", &behind);
    let error = running.compile(&request("host", "int a;\n")).unwrap_err();
    assert!(matches!(error, CompileError::CompilerChanged { .. }), "{error}");
    let request = request("host", "int a;\n");
    let loaded = store.get_all(std::slice::from_ref(&request), &()).remove(0).unwrap();
    assert_ne!(identity(options()).id, young.id);
    assert_eq!(store.key(&request).unwrap().digest(), loaded.digest, "it lies under the new compiler's key");
}

/// Where a program is.
fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file()).expect("it is installed")
}
