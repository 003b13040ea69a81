//! The `hip` device against a fake runtime (`crates/fake-hip`): what is called and in which order, what is given back,
//! and what is said when a call fails.

mod ahead;
mod auto;
mod commands;
mod driver;
mod driver_files;
mod embedding;
mod extras;
mod prefetch;
mod run;
mod serving;
mod several;
mod shared;
mod unused;

use std::fs;
use std::path::{Path, PathBuf};

use gpu::hip::{HipDriver, HipRuntime};
use tempfile::TempDir;

/// A folder with a copy of the fake runtime, which makes its state this test's own.
struct Room {
    folder: TempDir,
}

impl Room {
    /// With orders, as `orders` of the crate describes them.
    fn new(orders: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::copy(library(), folder.path().join("libamdhip64.so")).expect("copied");
        fs::write(folder.path().join("orders"), orders).expect("written");
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn runtime(&self) -> HipRuntime {
        HipRuntime::open(Some(self.path()), None).expect("the fake opens")
    }

    fn driver(&self) -> HipDriver {
        HipDriver::new(&self.runtime(), 0).expect("there is a device")
    }

    /// The calls so far, with what the runtime says of them.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("calls")).expect("something was called");
        text.lines().map(str::to_owned).collect()
    }

    /// The calls whose line begins so.
    fn count(&self, prefix: &str) -> usize {
        self.calls().iter().filter(|line| line.starts_with(prefix)).count()
    }

    /// The last line of all: the stream goes last, when nothing is left.
    #[track_caller]
    fn assert_all_given_back(&self) {
        assert_eq!(self.calls().last().map(String::as_str), Some("hipStreamDestroy live=0 streams=0"));
    }
}

/// The fake, which cargo built beside this test because the test depends on it.
fn library() -> PathBuf {
    let file = std::env::current_exe().expect("this program").with_file_name("libgptoss_jit_fake_hip.so");
    assert!(file.is_file(), "{} is not there", file.display());
    file
}
