//! Finds and runs LLVM's tools, `llvm-mca` and `llc`, and returns what they print.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;
use std::{env, thread};

use hint::Hint;
use system::os::{Ender, ExitStatusExt as _, SIGKILL, SIGXCPU, limit_processor_time};

/// The user's word on where the tools are: a folder that holds them, or Debian packages unpacked.
const ROOT_VARIABLE: &str = "GPTOSS_JIT_LLVM";

/// Where `tests/fetch-llvm.sh` unpacks them, below the folder that the program is started in.
const FETCHED: &str = "target/llvm";

/// The version whose tools are looked for first on `PATH`; any other is taken when there is none.
const VERSION: &str = "22";

/// Processor time that a tool may take: `llvm-mca` does not come to an end with all that it is asked. No kernel of
/// `moe_mlp1` for gfx90a needs so long, on two busy cores.
const SECONDS: u64 = 20;

/// Where the tools are.
#[derive(Clone, Debug)]
pub struct Llvm {
    /// The folder of unpacked packages or of an installation; without it the tools are those on `PATH`.
    root: Option<PathBuf>,
    /// From when on none is started, and what runs is stopped.
    until: Option<Instant>,
}

/// What kept a tool from answering.
#[derive(Debug, thiserror::Error)]
pub enum LlvmError {
    #[error("could not find `{tool}` in {}", searched.join(", "))]
    NotFound {
        tool: &'static str,
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// It could not be started, or its words not be read.
    #[error("could not run `{}`", program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It does not come to an end.
    #[error("`{tool}` was not done after {seconds} s")]
    Time { tool: &'static str, seconds: u64 },
    /// The time for its answer is over.
    #[error("`{tool}` was not done when the time was over")]
    TimeIsOver { tool: &'static str },
    #[error("`{tool}` failed: {said}")]
    Failed {
        tool: &'static str,
        /// The first lines that it wrote to stderr.
        said: String,
    },
}

impl Hint for LlvmError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { .. } | Self::Start { .. } | Self::Failed { .. } => Some(format!(
                "`tests/fetch-llvm.sh {FETCHED}` fetches LLVM's tools (Debian); ${ROOT_VARIABLE} names a folder that has them"
            )),
            Self::Time { .. } | Self::TimeIsOver { .. } => None,
        }
    }
}

impl Llvm {
    /// `$GPTOSS_JIT_LLVM` if it is set; else `target/llvm` if it was fetched; else `PATH`. Nothing is started.
    pub fn find() -> Self {
        let named = env::var_os(ROOT_VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from);
        let fetched = Path::new(FETCHED);
        Self { root: named.or_else(|| fetched.join(".complete").is_file().then(|| fetched.to_owned())), until: None }
    }

    /// The same, until a time: then what runs is stopped, and nothing else is started.
    #[must_use]
    pub fn until(self, until: Option<Instant>) -> Self {
        Self { until, ..self }
    }

    /// The version of `llvm-mca`, as it states it, and where it is.
    pub fn version(&self) -> String {
        let said = self.run("llvm-mca", &["--version"], b"").unwrap_or_default();
        let version =
            said.lines().map(str::trim).find(|line| line.contains("version")).unwrap_or("some LLVM").to_owned();
        let path = self.program("llvm-mca").map(|(program, args)| {
            args.last().map_or(program.display().to_string(), |last| last.to_string_lossy().into_owned())
        });
        path.map_or(version.clone(), |path| format!("`{path}` ({version})"))
    }

    /// The tools below a folder: unpacked packages, or an installation.
    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: Some(root.to_owned()), until: None }
    }

    /// Runs a tool on `input` and gives what it writes to stdout.
    ///
    /// # Errors
    /// [`LlvmError`]: there is no such tool, it fails, it takes more than 20 s of processor time, or the time is over.
    pub fn run(&self, tool: &'static str, args: &[&str], input: &[u8]) -> Result<String, LlvmError> {
        self.run_for(SECONDS, tool, args, input)
    }

    fn run_for(&self, seconds: u64, tool: &'static str, args: &[&str], input: &[u8]) -> Result<String, LlvmError> {
        let left = || self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left().is_some_and(|left| left.is_zero()) {
            return Err(LlvmError::TimeIsOver { tool });
        }
        let (program, first_args) = self.program(tool)?;
        let start = |source| LlvmError::Start { program: program.clone(), source };
        let mut command = Command::new(&program);
        command.args(first_args).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(start)?;
        limit_processor_time(&child, seconds);
        let handle = left().and_then(|left| Some((left, Ender::of(&child)?)));
        let (ends, has_ended) = mpsc::channel::<()>();
        let mut stdin = child.stdin.take().expect("it is piped");
        // Written beside reading: a tool that answers while it still reads would wait for us, and we for it. One that
        // does not read all has a reason, which it tells.
        let output = thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input));
            if let Some((left, handle)) = handle {
                scope.spawn(move || match has_ended.recv_timeout(left) {
                    Err(mpsc::RecvTimeoutError::Timeout) => handle.end(),
                    Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
                });
            }
            let output = child.wait_with_output();
            drop(ends);
            output
        });
        let output = output.map_err(start)?;
        if output.status.signal() == Some(SIGKILL) && left().is_some_and(|left| left.is_zero()) {
            return Err(LlvmError::TimeIsOver { tool });
        }
        if output.status.signal() == Some(SIGXCPU) {
            return Err(LlvmError::Time { tool, seconds });
        }
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().take(5).collect::<Vec<_>>().join("\n");
            return Err(LlvmError::Failed { tool, said });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The program of a tool, and what must come before its arguments.
    fn program(&self, tool: &'static str) -> Result<(PathBuf, Vec<OsString>), LlvmError> {
        let versioned = format!("{tool}-{VERSION}");
        let folders: Vec<PathBuf> = match &self.root {
            Some(root) => {
                let unpacked = format!("usr/lib/llvm-{VERSION}/bin");
                [unpacked.as_str(), "bin", "llvm/bin", ""].iter().map(|folder| root.join(folder)).collect()
            }
            None => env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default(),
        };
        let named = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
        let Some(program) = named(&versioned).or_else(|| named(tool)) else {
            let searched = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
            return Err(LlvmError::NotFound { tool, searched });
        };
        // Unpacked packages bring a loader and a libc of their own, newer than this system's perhaps.
        let libraries = self.root.as_ref().map(|root| root.join("usr/lib/x86_64-linux-gnu"));
        match libraries.filter(|libraries| libraries.join("ld-linux-x86-64.so.2").is_file()) {
            Some(libraries) => {
                let loader = libraries.join("ld-linux-x86-64.so.2");
                Ok((loader, vec!["--library-path".into(), libraries.into(), program.into()]))
            }
            None => Ok((program, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn unpacked_packages_are_started_with_their_own_loader() {
        let root = tempfile::tempdir().unwrap();
        let llvm = Llvm::below(root.path());
        let error = llvm.run("llvm-mca", &[], b"").expect_err("it is empty");
        assert!(error.to_string().starts_with("could not find `llvm-mca` in `"), "{error}");
        assert!(error.hint().is_some());

        let (bin, libraries) = (root.path().join("usr/lib/llvm-22/bin"), root.path().join("usr/lib/x86_64-linux-gnu"));
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("llvm-mca"), "").unwrap();
        assert_eq!(llvm.program("llvm-mca").unwrap(), (bin.join("llvm-mca"), vec![]));
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("ld-linux-x86-64.so.2"), "").unwrap();
        let (program, args) = llvm.program("llvm-mca").unwrap();
        assert_eq!(program, libraries.join("ld-linux-x86-64.so.2"));
        assert_eq!(args, [OsString::from("--library-path"), libraries.into(), bin.join("llvm-mca").into()]);
    }

    #[test]
    fn a_tool_that_never_ends_is_ended() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bin")).unwrap();
        let tool = root.path().join("bin/llvm-mca");
        fs::write(&tool, "#!/bin/sh\nwhile :; do :; done\n").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Llvm::below(root.path()).run_for(1, "llvm-mca", &[], b"s_nop 0\n").expect_err("it never ends");
        assert!(matches!(error, LlvmError::Time { tool: "llvm-mca", seconds: 1 }), "{error}");
    }

    #[test]
    fn a_tool_that_waits_is_stopped_when_the_time_is_over_and_none_is_started_then() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bin")).unwrap();
        let (tool, started) = (root.path().join("bin/llvm-mca"), root.path().join("started"));
        fs::write(&tool, format!("#!/bin/sh\necho >> {}\nexec sleep 1000\n", started.display())).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        let llvm = Llvm::below(root.path()).until(Some(until));
        for _ in 0..2 {
            let error = llvm.run("llvm-mca", &[], b"s_nop 0\n").expect_err("it waits for ever");
            assert!(matches!(error, LlvmError::TimeIsOver { tool: "llvm-mca" }), "{error}");
        }
        assert_eq!(fs::read_to_string(started).unwrap_or_default().len(), 1, "started once");
    }
}
