//! What goes wrong around a compiler and is no kernel's fault: nothing of it is remembered, waited for without a word
//! or without end, or loaded.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use gpu::host::HostDriver;
use hint::Hint;
use kernel::choice::KernelRequest;
use kernel::object::cache::{Cache, CacheLimits, NewObject};
use kernel::object::compile::{CompileError, CompilerOptions, Compilers, How};
use kernel::object::store::{ObjectOrigin, Store, StoreError};
use kernel::pipeline::Pipeline;
use kernel::step::StepKind;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::{Params, Precision, Problem};
use kernel::tuning::TuningTables;
use tempfile::TempDir;

use super::compile::processes::{lines_of, spawn_child};
use super::compile::{FAKE, HOST_TARGET, options, request};
use crate::fixtures::program::{Ran, command, named_pipe, with_environment_of};

const SOURCE: &str = "int a;\n";

/// A C compiler that is `cc`, but that this shell text comes before.
fn script(folder: &Path, before: &str) -> PathBuf {
    let path = folder.join("script");
    fs::write(&path, format!("#!/bin/sh\n{before}\nexec cc \"$@\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The options with such a compiler.
fn with_script(folder: &Path, before: &str) -> CompilerOptions {
    CompilerOptions { cc: Some(script(folder, before)), ..options() }
}

/// Shell text for when a kernel is compiled and the file `armed` is there; the canary was compiled before.
fn armed(folder: &Path, text: &str) -> String {
    format!("if [ \"$1\" = -shared ] && [ -f {} ]; then {text}; fi", folder.join("armed").display())
}

/// A store whose compiler is known already, over the folder's cache; from now on it is armed.
fn armed_store(folder: &Path, options: CompilerOptions) -> Store {
    let _ = fs::remove_file(folder.join("armed"));
    let store = Store::new(Cache::open(&folder.join("cache"), CacheLimits::default()), options);
    store.compiler().identity("host", HOST_TARGET).unwrap();
    fs::write(folder.join("armed"), "").unwrap();
    store
}

#[test]
fn a_fault_of_the_machine_is_not_remembered_and_the_hint_does_not_blame_the_kernel() {
    let faults = [
        "echo '/usr/bin/ld: final link failed: No such device' >&2; echo 'collect2: error: ld returned 1 exit status' >&2; exit 1",
        "echo 'cc: fatal error: cannot execute as: vfork: Resource temporarily unavailable' >&2; exit 1",
        "echo 'kernel.c:1:1: fatal error: error writing to /tmp/cc.s: No space left on device' >&2; exit 1",
        "exit 3",
        "kill -SEGV $$",
        "truncate -s 5000 object; head -c 5000 /bin/sh > object; exit 0",
    ];
    for fault in faults {
        let folder = TempDir::new().unwrap();
        let store = armed_store(folder.path(), with_script(folder.path(), &armed(folder.path(), fault)));
        let request = request("host", SOURCE);
        let get = || store.get_all(std::slice::from_ref(&request), &()).remove(0);
        let error = get().expect_err(fault);
        assert!(matches!(error, StoreError::Compile(CompileError::Failed { .. })), "{fault}: {error}");
        let hint = error.hint().expect("a hint");
        assert!(!hint.contains("kernels show"), "{fault}: {error}: {hint}");
        fs::remove_file(folder.path().join("armed")).unwrap();
        let key = store.key(&request).unwrap().digest();
        assert_eq!(get().unwrap_or_else(|error| panic!("{fault}: {error}")).digest, key, "{fault}");
    }
}

#[test]
fn a_failure_that_was_remembered_without_a_line_of_the_source_is_not_believed() {
    let folder = TempDir::new().unwrap();
    let store = Store::new(Cache::open(folder.path(), CacheLimits::default()), options());
    let request = request("host", SOURCE);
    let get = || store.get_all(std::slice::from_ref(&request), &()).remove(0);
    let key = store.key(&request).unwrap();
    store.cache().remember_failure(&key, "op/variant", "collect2: error: ld returned 1 exit status");
    assert_eq!(get().unwrap().origin, ObjectOrigin::Compiled);

    let other = super::compile::request("host", "int b;\n");
    store.cache().remember_failure(&store.key(&other).unwrap(), "op/variant", "kernel.c:1:2: error: no");
    let error = store.get_all(std::slice::from_ref(&other), &()).remove(0).unwrap_err();
    assert!(matches!(error, StoreError::FailedBefore { .. }), "{error}");
}

/// A program of its own, whose file is replaced while its compiler works, named in two words.
#[test]
fn the_program_compiles_on_when_its_file_is_replaced_and_cc_may_be_two_words() {
    let folder = TempDir::new().unwrap();
    let (program, other) = (folder.path().join("program"), folder.path().join("other"));
    let built = Path::new(env!("CARGO_BIN_EXE_gptoss-jit"));
    fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(drop)).unwrap();
    fs::write(&other, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let replace = format!("[ -f {0} ] && mv {0} {1}; shift", other.display(), program.display());

    let args = ["kernels", "check", "--op", "take_token"];
    let mut check = with_environment_of(&command(folder.path(), &args), Command::new(&program));
    let cache = folder.path().join("cache");
    let cc = format!("{} word", script(folder.path(), &replace).display());
    let output = check.args(args).env("CC", cc).env("GPTOSS_JIT_CACHE", cache).output().unwrap();
    Ran::new(&args, output).ok();
    assert!(!other.exists(), "nothing was replaced");
}

// ---- objects ----

#[test]
fn an_object_that_is_cut_short_or_kills_who_opens_it_is_a_failed_compile() {
    let compiler = Compilers::new(options());
    let how = |request| match compiler.compile(&request) {
        Err(CompileError::Failed { how, .. }) => how,
        other => panic!("{other:?}"),
    };
    let cut = how(request(FAKE, "// fake: cut-short"));
    assert!(matches!(&cut, How::BadObject { what } if what.contains("ELF")), "{cut}");
    let killer = "__attribute__((constructor)) void f(void) { *(volatile int*)0 = 0; }\n";
    assert_eq!(how(request("host", killer)), How::Crashed { signal: 11 });
    let missing = how(request("host", "void no_such_function(void);\nvoid f(void) { no_such_function(); }\n"));
    assert!(matches!(missing, How::BadObject { what } if what.contains("no_such_function")));
}

#[test]
fn an_object_of_the_cache_that_does_not_load_is_compiled_again_once_and_replaced() {
    let folder = TempDir::new().unwrap();
    let pipeline = || {
        let store = Store::new(Cache::open(folder.path(), CacheLimits::default()), options());
        let (library, driver) = (Library::from_layers(vec![Layer::built_in()]), HostDriver::new(1).unwrap());
        Pipeline::new(library, TuningTables::load(&[]).unwrap(), Target::host(), store, Arc::new(driver)).unwrap()
    };
    let problem = Problem::plain("take_token", Precision::F32);
    let wanted = [KernelRequest { problem: problem.clone(), n_rows: 1, step: StepKind::Decode }];
    let load = |pipeline: &Pipeline| pipeline.load_all(&wanted, &()).unwrap().remove(0);

    let first = pipeline();
    let rendered = first.render_with("take_token/rows", &problem, &Params::new()).unwrap();
    let request = first.request(&rendered);
    let key = first.store().key(&request).unwrap();
    let whole = first.store().get_all(std::slice::from_ref(&request), &()).remove(0).unwrap().object;
    for bad in [&whole[..whole.len() - 1], &whole[..64], b"no object"] {
        let made = NewObject {
            object: bad.to_vec(),
            log: String::new(),
            label: rendered.label.clone(),
            about: rendered.about.clone(),
            compile_ms: 0,
            compiler: String::new(),
        };
        let writer = pipeline();
        writer.store().cache().forget(&key.digest());
        drop(writer.store().cache().publish(&key, &made));
        assert_eq!(load(&pipeline()).origin, ObjectOrigin::Compiled);
        assert_eq!(load(&pipeline()).origin, ObjectOrigin::Cache, "it was not replaced");
    }
}

// ---- waiting ----

#[test]
fn a_compiler_that_hangs_is_told_and_not_waited_for_kernel_after_kernel() {
    let folder = TempDir::new().unwrap();
    // The canary has as long; nobody wants to wait for it six times.
    let hang = armed(folder.path(), "exec sleep 600");
    let mut options = with_script(folder.path(), &hang);
    options.identities = Some(folder.path().join("compilers"));
    let requests: Vec<_> = (0..6).map(|i| request("host", &format!("int a{i};\n"))).collect();
    let warnings = Warnings::default();
    // Of one subscriber alone, `tracing` asks only the thread that comes to a warning first, which may be another
    // test's, and takes its answer for all of them.
    let _second = tracing::Dispatch::new(Warnings::default().subscriber());
    let results = tracing::subscriber::with_default(warnings.subscriber(), || {
        options.deadline = Duration::from_secs(10);
        let store = armed_store(folder.path(), options).with_jobs(1.try_into().unwrap());
        store.get_all(&requests, &())
    });

    let errors: Vec<StoreError> = results.into_iter().map(Result::unwrap_err).collect();
    let (stopped, not_tried): (Vec<_>, Vec<_>) = errors.iter().partition(|error| {
        matches!(error, StoreError::Compile(CompileError::Failed { how: How::TimedOut { .. }, .. }))
    });
    assert_eq!((stopped.len(), not_tried.len()), (2, 4), "{errors:?}");
    for error in &not_tried {
        assert!(error.is_hopeless(), "{error}");
        let text = error.to_string();
        assert!(text.contains("the C compiler was still busy after 10 s with `op/variant` and `op/variant`"), "{text}");
    }
    for error in &errors {
        let hint = error.hint().unwrap();
        assert!(hint.contains("`CC` names another one") && !hint.contains("JOBS"), "{hint}");
    }
    let told = warnings.text();
    let words = format!(
        "waiting for the C compiler `{}` to compile kernel `op/variant`; it is stopped after 10 s",
        folder.path().join("script").display()
    );
    assert_eq!(told.matches(&words).count(), 2, "{told}");
}

/// What is warned of on this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Warnings {
    fn subscriber(&self) -> impl tracing::Subscriber + use<> {
        let writer = self.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_compiler_that_prints_without_end_is_stopped_and_takes_no_memory() {
    for text in ["exec yes", "[ \"$1\" = -v ] && exec yes"] {
        let folder = TempDir::new().unwrap();
        let error = Compilers::new(with_script(folder.path(), text)).identity("host", HOST_TARGET).unwrap_err();
        let CompileError::Canary { how: How::Chatter { .. }, log, .. } = &error else { panic!("{text}: {error}") };
        assert!(log.len() <= 64 << 10, "{} bytes", log.len());
    }
}

#[test]
fn a_child_that_a_compiler_leaves_on_its_stdout_is_not_waited_for() {
    let folder = TempDir::new().unwrap();
    // As long as the deadline, at which the compile would fail.
    let compiler = Compilers::new(with_script(folder.path(), "sleep 60 &"));
    compiler.compile(&request("host", SOURCE)).unwrap();
}

// ---- records and folders ----

#[test]
fn a_record_of_a_compiler_is_a_plain_file_that_only_we_can_write() {
    let folder = TempDir::new().unwrap();
    let identities = folder.path().join("compilers");
    let identity = || {
        let options = CompilerOptions { identities: Some(identities.clone()), ..options() };
        Compilers::new(options).identity("host", HOST_TARGET).unwrap()
    };
    let true_one = identity();
    let record = || fs::read_dir(&identities).unwrap().next().unwrap().unwrap().path();
    let path = record();
    let forged = fs::read_to_string(&path).unwrap().replace(&true_one.id, &"0".repeat(64));

    // It is believed as a file of ours: that is what records are for, and shows that the others below would be.
    fs::write(&path, &forged).unwrap();
    assert_eq!(identity().id, "0".repeat(64));
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, &forged).unwrap();
    let spoil: [(&str, &dyn Fn()); 4] = [
        ("others can write to it", &|| {
            fs::write(&path, &forged).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("it is a link", &|| symlink(&elsewhere, &path).unwrap()),
        ("it is a pipe", &|| named_pipe(&path)),
        ("it is too long", &|| {
            fs::write(&path, &forged).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
        }),
    ];
    for (what, spoil) in spoil {
        fs::remove_file(&path).unwrap();
        spoil();
        assert_eq!(identity(), true_one, "{what}");
        assert!(fs::symlink_metadata(&path).unwrap().is_file(), "{what}: it was not replaced");
    }
    fs::write(&path, &forged).unwrap();
    fs::set_permissions(&identities, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(identity(), true_one, "others can write to the folder");
}

#[test]
fn what_killed_processes_left_is_swept_by_the_next_start() {
    let folder = TempDir::new().unwrap();
    let temporary = folder.path().join("tmp");
    let left = temporary.join("gptoss-jit-compile-left");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("job.json"), "{}").unwrap();
    fs::File::open(&left).unwrap().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    fs::write(folder.path().join("a.kernel"), "a").unwrap();
    lines_of(spawn_child(folder.path(), &[]), folder.path());
    assert!(!left.exists());
}
