//! The worker: the process that a compiler may kill.

use std::io::{self, Read};
use std::path::Path;
use std::{fs, process, thread};

use system::os::{Resource, Rlimit, end_own_group, getrlimit, setrlimit};

use super::job::{CompileJob, Failure, How};
use super::{answer, disassembly};

/// What the names of private folders start with.
pub(super) const FOLDER_PREFIX: &str = "gptoss-jit-compile-";
/// What the worker and the compiler print, in the private folder.
pub(super) const PRINTED: &str = "printed";
/// What a compiler answers that is asked who it is, there.
pub(super) const ASKED: &str = "asked";

/// Reads the job in `folder`, compiles, leaves the answer there.
///
/// Standard input is the lifeline: it is at its end when the parent is gone, however that happened.
///
/// # Errors
/// When the job cannot be read or the answer cannot be written. That a kernel does not compile is an answer.
pub fn run(folder: &Path) -> io::Result<()> {
    if !is_private_folder(folder) {
        let what = format!("`{}` is no job: this command is started by the program itself", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let folder_of_job = folder.to_owned();
    // The parent would have removed it. Whoever still writes there is killed right afterwards.
    follow_parent(move || drop(fs::remove_dir_all(&folder_of_job)))?;
    let job = CompileJob::read(folder)?;
    limit_resources(job.memory_bytes)?;
    let outcome = match super::named(&job.toolchain.name) {
        Some(_) if job.reads.is_some() => disassembly::disassemble(&job),
        Some(compiler) => compiler.compile(&job),
        None => Err(Failure { how: How::Unavailable, log: format!("there is no compiler `{}`", job.toolchain.name) }),
    };
    answer::write(folder, &answer::encode(&outcome)?)
}

/// The folder is removed when standard input ends, so a person's folder must not be taken for one.
fn is_private_folder(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(FOLDER_PREFIX.as_bytes()))
}

/// Ends this process and all that it started when the parent ends. A parent-death signal would not do: it reaches
/// this process alone, and `cc` and its children would live on. A parent that is gone before this line is no race:
/// its end of the pipe is closed then, too. `clean_up` comes first.
pub fn follow_parent(clean_up: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let follow = move || {
        let mut sink = [0; 64];
        // One that cannot be read is as good as at its end.
        let is_over = |read: io::Result<usize>| match read {
            Ok(n) => n == 0,
            Err(error) => error.kind() != io::ErrorKind::Interrupted,
        };
        while !is_over(io::stdin().read(&mut sink)) {}
        clean_up();
        end_own_group();
        process::exit(1);
    };
    thread::Builder::new().spawn(follow).map(|_| ())
}

fn limit_resources(memory_bytes: u64) -> io::Result<()> {
    let limits = [(Resource::Core, 0), (Resource::As, memory_bytes), (Resource::Fsize, 2 * answer::MAX_LEN_BYTES)];
    for (resource, wanted) in limits {
        let hard = getrlimit(resource).maximum;
        let limit = Some(hard.map_or(wanted, |hard| hard.min(wanted)));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}
