//! Workers, compilers and the store, with the real program as the worker.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gptoss_jit::error::Hint;
use gptoss_jit::object::cache::{Cache, Limits};
use gptoss_jit::object::compile::{CompileError, Compiled, CompilerOptions, Compilers, How, Request, Toolchain};
use gptoss_jit::object::key::Digest;
use gptoss_jit::object::store::{Origin, Stats, Store, StoreError};
use tempfile::TempDir;

pub const HOST_TARGET: &str = if cfg!(target_arch = "x86_64") { "x86-64" } else { "armv8-a" };

/// hipRTC, whose library is `crates/fake-hip`'s in these tests: it does what the source says.
pub const FAKE: &str = "hiprtc";

pub fn options() -> CompilerOptions {
    let worker = PathBuf::from(env!("CARGO_BIN_EXE_gptoss-jit"));
    let library = std::env::current_exe().unwrap().with_file_name("libfake_hip.so");
    assert!(library.is_file(), "{} is not built", library.display());
    let hiprtc = Toolchain {
        name: FAKE.into(),
        compiler: Some(library),
        arguments: Vec::new(),
        environment: BTreeMap::new(),
        launcher: Vec::new(),
    };
    CompilerOptions { deadline: Duration::from_secs(60), hiprtc, ..CompilerOptions::new(worker) }
}

pub fn request(compiler: &'static str, source: &str) -> Request {
    let target = if compiler == "host" { HOST_TARGET } else { "gfx1100" };
    Request {
        label: "op/variant".into(),
        source: source.into(),
        entry: "canary_of_tests".into(),
        options: Vec::new(),
        target: target.into(),
        compiler,
    }
}

fn compile(options: CompilerOptions, compiler: &'static str, source: &str) -> Result<Compiled, CompileError> {
    Compilers::new(options).compile(&request(compiler, source))
}

/// What happened, and what the compiler said.
fn failure(options: CompilerOptions, compiler: &'static str, source: &str) -> (How, String) {
    match compile(options, compiler, source).expect_err(source) {
        CompileError::Failed { how, log, .. } => (how, log),
        error => panic!("{error}"),
    }
}

fn fake_failure(directives: &str) -> (How, String) {
    failure(options(), FAKE, directives)
}

pub fn store(root: &Path) -> Store {
    Store::new(Cache::open(root, Limits::default()), options())
}

/// How often the fake compiler ran, by the lines it left.
fn runs(counter: &Path) -> usize {
    fs::read_to_string(counter).map_or(0, |text| text.lines().count())
}

/// Whoever opens it waits for somebody at the other end.
pub fn named_pipe(folder: &Path) -> PathBuf {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

// ---- the C compiler ----

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

// ---- what a worker survives ----

#[test]
fn a_compile_is_deterministic_and_depends_on_source_options_and_target() {
    let compiler = Compilers::new(options());
    let request = request(FAKE, "a kernel");
    let object = |request: &Request| compiler.compile(request).unwrap().object;
    assert_eq!(object(&request), object(&Request { label: "another".into(), ..request.clone() }));
    let others = [
        Request { source: "another".into(), ..request.clone() },
        Request { options: vec!["-g".into()], ..request.clone() },
        Request { target: "gfx942".into(), ..request.clone() },
    ];
    let distinct: BTreeSet<Vec<u8>> = others.iter().chain([&request]).map(object).collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn a_compiler_that_kills_its_process_is_reported_with_its_last_words() {
    let (how, log) = fake_failure("// fake: print munmap_chunk(): invalid pointer\n// fake: crash");
    assert_eq!((how, log.as_str()), (How::Crashed { signal: 6 }, "munmap_chunk(): invalid pointer"));
    let (how, log) = fake_failure("// fake: print LLVM ERROR: no\n// fake: exit 3");
    assert_eq!((how, log.as_str()), (How::Exited { code: 3 }, "LLVM ERROR: no"));
    assert_eq!(fake_failure("// fake: exit 0").0, How::Exited { code: 0 });
}

#[test]
fn a_damaged_answer_is_never_an_object() {
    assert!(matches!(fake_failure("// fake: answer-garbage").0, How::Garbage { .. }));
}

#[test]
fn a_compiler_out_of_memory_is_told_apart_from_a_crash() {
    assert_eq!(fake_failure("// fake: oom").0, How::OutOfMemory);
}

#[test]
fn a_refusal_carries_the_log() {
    assert_eq!(fake_failure("// fake: reject no such builtin"), (How::Failed, "no such builtin".into()));
    let at_a_line = "kernel.hip:3:1: error: no such builtin";
    assert_eq!(fake_failure(&format!("// fake: reject {at_a_line}")), (How::Rejected, at_a_line.into()));
}

#[test]
fn a_compiler_that_hangs_is_killed_at_the_deadline() {
    let deadline = Duration::from_millis(300); // it would hang for ever
    let compiler = Compilers::new(CompilerOptions { deadline, ..options() });
    match compiler.compile(&request(FAKE, "// fake: print so far\n// fake: hang")).unwrap_err() {
        CompileError::Failed { how, log, .. } => {
            assert_eq!((how, log.as_str()), (How::TimedOut { after_ms: 300 }, "so far"))
        }
        // A machine so busy that the canary takes longer.
        CompileError::Canary { how, .. } => assert_eq!(how, How::TimedOut { after_ms: 300 }),
        error => panic!("{error}"),
    }
}

#[test]
fn at_the_deadline_what_the_worker_started_is_killed_too() {
    let folder = TempDir::new().unwrap();
    let pipe = named_pipe(folder.path());
    let compiler = Compilers::new(CompilerOptions { deadline: Duration::from_secs(2), ..options() });
    let error = compiler.compile(&request("host", &format!("#include \"{}\"\n", pipe.display()))).unwrap_err();
    assert!(error.to_string().contains("was still busy after 2000 ms"), "{error}");
    // Opening the pipe for writing finds out whether the preprocessor still waits at its other end, and would let it
    // go on: so there is one try, when nobody is left whose folder was taken away.
    let is_orphan = |cwd: &PathBuf| cwd.to_string_lossy().contains("gptoss-jit-compile-") && !cwd.exists();
    wait_until("it lives on", || !current_folders().iter().any(|(_, cwd)| is_orphan(cwd)));
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let writer = fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&pipe);
    let nobody = writer.expect_err("the preprocessor lives on").raw_os_error();
    assert_eq!(nobody, Some(rustix::io::Errno::NXIO.raw_os_error()));
}

#[test]
fn a_worker_sees_nothing_of_the_environment_but_the_fixed_names() {
    let compiled = compile(options(), FAKE, "// fake: environment").unwrap();
    assert_eq!(compiled.log, "AMD_COMGR_CACHE HOME LANG PATH TMPDIR");
}

#[test]
fn a_worker_that_cannot_be_started_is_named() {
    let options = CompilerOptions { worker: Some("/nowhere/gptoss-jit".into()), ..options() };
    let error = compile(options, FAKE, "").unwrap_err();
    assert_eq!(error.to_string(), "could not start the compile worker `/nowhere/gptoss-jit`");
}

#[test]
fn the_hidden_command_touches_no_folder_of_a_person() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("thesis"), "").unwrap();
    let mut worker = Command::new(options().worker.expect("named"));
    worker.arg("__compile-worker").arg(folder.path()).stdin(Stdio::null()); // at its end: as if the parent were gone
    let output = worker.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no job"));
    assert!(folder.path().join("thesis").exists());
}

// ---- the store ----

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
    assert_eq!(first.stats(), Stats { from_cache: 0, compiled: 2 });

    let second = store(folder.path());
    for (again, before) in second.get_all(&requests, &()).into_iter().map(Result::unwrap).zip(&loaded) {
        assert_eq!((again.origin, &again.object), (Origin::Cache, &before.object));
    }
    assert_eq!(second.stats(), Stats { from_cache: 2, compiled: 0 });
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
    assert_eq!((kept, runs(&counter)), (source.clone(), 1));

    let second = error(store(folder.path()));
    assert!(matches!(second, StoreError::FailedBefore { .. }), "{second}");
    assert!(second.to_string().ends_with("because"), "{second}");
    assert_eq!(runs(&counter), 1, "it was not compiled again");

    error(store(folder.path()).retrying_failed(true));
    assert_eq!(runs(&counter), 2, "it was compiled again");
}

#[test]
fn a_passing_failure_is_not_remembered() {
    for directive in ["oom", "answer-garbage", "hang", "crash", "exit 3", "reject because", "cut-short"] {
        let folder = TempDir::new().unwrap();
        let source = format!("// fake: {directive}");
        for _ in 0..2 {
            let options = CompilerOptions { deadline: Duration::from_secs(2), ..options() };
            let store = Store::new(Cache::open(folder.path(), Limits::default()), options);
            let error = store.get_all(&[request(FAKE, &source)], &()).remove(0).unwrap_err();
            assert!(matches!(error, StoreError::Compile(_)), "{directive}: {error}");
        }
    }
}

// ---- several processes ----

const CHILD: &str = "GPTOSS_JIT_TEST_CHILD";

/// The body of the processes that the tests below start. By itself, it is the test that a folder's kernels are compiled
/// once.
#[test]
fn the_kernels_of_a_folder_are_compiled_once() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return drop(compile_folder(Path::new(&folder)));
    }
    let folder = TempDir::new().unwrap();
    for source in ["a", "b"] {
        fs::write(folder.path().join(format!("{source}.kernel")), source).unwrap();
    }
    let (first, second) = (compile_folder(folder.path()), compile_folder(folder.path()));
    let words = |lines: &[String], i: usize| -> Vec<String> {
        lines.iter().map(|line| line.split(' ').nth(i).unwrap().to_owned()).collect()
    };
    assert_eq!((words(&first, 0), words(&second, 0)), (vec!["Compiled".into(); 2], vec!["Cache".into(); 2]));
    assert_eq!(words(&first, 1), words(&second, 1));
    assert_ne!(first[0], first[1]);
}

/// Compiles the files `*.kernel` of a folder into a cache in that folder, and writes a line per kernel to the file that
/// is named after the process.
fn compile_folder(folder: &Path) -> Vec<String> {
    let mut kernels: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    kernels.retain(|path| path.extension().is_some_and(|extension| extension == "kernel"));
    kernels.sort();
    let compiler = if folder.join("host").exists() { "host" } else { FAKE };
    let requests: Vec<Request> =
        kernels.iter().map(|path| request(compiler, &fs::read_to_string(path).unwrap())).collect();
    let store = store(&folder.join("cache"));
    let lines: Vec<String> = store
        .get_all(&requests, &())
        .into_iter()
        .map(|result| match result {
            Ok(loaded) => format!("{:?} {}", loaded.origin, Digest::of(&loaded.object)),
            Err(error) => format!("failed {error}"),
        })
        .collect();
    fs::write(folder.join(format!("{}.out", std::process::id())), lines.join("\n")).unwrap();
    lines
}

pub fn spawn_child(folder: &Path, environment: &[(&str, &Path)]) -> Child {
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "object::compile::the_kernels_of_a_folder_are_compiled_once"])
        .env(CHILD, folder)
        .env("TMPDIR", temporary)
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child that came to its end found, a line per kernel.
pub fn lines_of(mut child: Child, folder: &Path) -> Vec<String> {
    assert!(child.wait().unwrap().success());
    let text = fs::read_to_string(folder.join(format!("{}.out", child.id()))).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Processes, and the folder that each works in.
fn current_folders() -> Vec<(PathBuf, PathBuf)> {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes.filter_map(|path| fs::read_link(path.join("cwd")).ok().map(|cwd| (path, cwd))).collect()
}

/// Processes whose current folder is below this one, or was.
fn processes_in(folder: &Path) -> Vec<PathBuf> {
    current_folders().into_iter().filter(|(_, cwd)| cwd.starts_with(folder)).map(|(path, _)| path).collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(600), "{what}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_of_the_environment_reaches_the_c_compiler() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("host"), "").unwrap();
    fs::write(folder.path().join("leak.h"), "").unwrap();
    let source = "#if __has_include(<leak.h>)\n#error leaked\n#endif\nint a;\n";
    fs::write(folder.path().join("a.kernel"), source).unwrap();
    let names = ["CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"].map(|name| (name, folder.path()));
    let lines = lines_of(spawn_child(folder.path(), &names), folder.path());
    assert!(lines[0].starts_with("Compiled "), "{lines:?}");

    // The trap works: the same variable does reach a compiler that is started with it.
    let mut cc = Command::new("cc");
    cc.args(["-fsyntax-only", "-xc"]).arg(folder.path().join("a.kernel")).stderr(Stdio::null());
    assert!(!cc.env("CPATH", folder.path()).status().unwrap().success());
    assert!(cc.env_remove("CPATH").status().unwrap().success());
}

#[test]
fn workers_and_all_they_started_die_with_their_parent_and_leave_no_folder() {
    for is_host in [false, true] {
        let folder = TempDir::new().unwrap();
        let source = if is_host {
            // The preprocessor, a grandchild of the worker, waits for somebody to write into the pipe.
            let pipe = named_pipe(folder.path());
            fs::write(folder.path().join("host"), "").unwrap();
            format!("#include \"{}\"\n", pipe.display())
        } else {
            "// fake: hang\n".into()
        };
        fs::write(folder.path().join("a.kernel"), source).unwrap();
        let temporary = folder.path().join("tmp");
        let mut child = spawn_child(folder.path(), &[]);
        let is_hanging = |process: &PathBuf| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let stuck = fs::read_to_string(process.join("wchan")).unwrap_or_default();
            if is_host { name.starts_with("cc1") && !stuck.is_empty() } else { name.starts_with("gptoss-jit") }
        };
        wait_until("no worker came up", || processes_in(&temporary).iter().any(is_hanging));
        // Past the canary, whose processes look the same: what is there for so long at a stretch hangs.
        let since = Cell::new(Instant::now());
        wait_until("the compile ended by itself", || {
            if !processes_in(&temporary).iter().any(is_hanging) {
                since.set(Instant::now());
            }
            since.get().elapsed() >= Duration::from_millis(300)
        });

        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("processes were left", || processes_in(&temporary).is_empty());
        wait_until("a folder was left", || fs::read_dir(&temporary).unwrap().next().is_none());
    }
}

#[test]
fn of_ten_processes_one_compiles_each_kernel() {
    let folder = TempDir::new().unwrap();
    let counter = |i: usize| folder.path().join(format!("runs{i}"));
    for i in 0..4 {
        let source = format!("// fake: append-pid {}\n// fake: sleep-ms 50", counter(i).display());
        fs::write(folder.path().join(format!("{i}.kernel")), source).unwrap();
    }
    let children: Vec<Child> = (0..10).map(|_| spawn_child(folder.path(), &[])).collect();
    let lines: Vec<Vec<String>> = children.into_iter().map(|child| lines_of(child, folder.path())).collect();

    assert_eq!((0..4).map(|i| runs(&counter(i))).collect::<Vec<_>>(), [1; 4]);
    let words = |line: &String| line.split_once(' ').map(|(origin, digest)| (origin.to_owned(), digest.to_owned()));
    for i in 0..4 {
        let of_kernel: Vec<_> = lines.iter().map(|lines| words(&lines[i]).unwrap()).collect();
        assert_eq!(of_kernel.iter().filter(|(origin, _)| origin == "Compiled").count(), 1, "{of_kernel:?}");
        assert!(of_kernel.iter().all(|(_, digest)| *digest == of_kernel[0].1), "{of_kernel:?}");
    }
}

#[test]
fn processes_killed_at_any_moment_leave_a_cache_that_works() {
    let folder = TempDir::new().unwrap();
    for i in 0..8 {
        let source = format!("// kernel {i}\n// fake: sleep-ms 5");
        fs::write(folder.path().join(format!("{i}.kernel")), source).unwrap();
    }
    for round in 0..20 {
        let mut child = spawn_child(folder.path(), &[]);
        sleep(Duration::from_millis(10 + round * 37 % 200));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let digests = |lines: Vec<String>| -> Vec<String> {
        lines.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    };
    let found = digests(lines_of(spawn_child(folder.path(), &[]), folder.path()));
    fs::rename(folder.path().join("cache"), folder.path().join("old")).unwrap();
    let fresh = digests(lines_of(spawn_child(folder.path(), &[]), folder.path()));
    assert_eq!(found, fresh);
    assert_eq!(fresh.iter().collect::<BTreeSet<_>>().len(), 8);
    let aside = folder.path().join("old/v1/aside");
    assert!(!aside.exists(), "a killed process left something that had to be put aside");
}
