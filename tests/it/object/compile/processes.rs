//! Several processes with one cache, some of which are killed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::object::compile::Request;
use kernel::object::key::Digest;
use tempfile::TempDir;

use super::{FAKE, current_folders, pipe_in, request, runs, store, wait_until};

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
        .args(["--exact", "object::compile::processes::the_kernels_of_a_folder_are_compiled_once"])
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

/// Processes whose current folder is below this one, or was.
fn processes_in(folder: &Path) -> Vec<PathBuf> {
    current_folders().into_iter().filter(|(_, cwd)| cwd.starts_with(folder)).map(|(path, _)| path).collect()
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
            let pipe = pipe_in(folder.path());
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
