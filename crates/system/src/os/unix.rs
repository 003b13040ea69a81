//! Unix. Some functions do more on Linux.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_current_process_group, kill_process_group, waitid,
};

pub use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
pub use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
pub use std::os::unix::net::UnixStream as Socket;
pub use std::os::unix::process::{CommandExt, ExitStatusExt};

/// Flags to open a file itself: not where a link leads, and without waiting for a pipe.
pub const NO_FOLLOW: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
/// Flags to open a folder itself.
pub const FOLDER: i32 = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).bits() as i32;
/// Errors that another attempt may not meet: too many open files, no memory, an interruption, a network disk that
/// changed.
pub const PASSING: [i32; 5] = [
    Errno::MFILE.raw_os_error(),
    Errno::NFILE.raw_os_error(),
    Errno::NOMEM.raw_os_error(),
    Errno::INTR.raw_os_error(),
    Errno::STALE.raw_os_error(),
];
/// What ends a process without a word.
pub const SIGKILL: i32 = Signal::KILL.as_raw();
/// What ends a process when its processor time is up.
pub const SIGXCPU: i32 = Signal::XCPU.as_raw();

/// The number of the user that this process acts for.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Free bytes for this user on a folder's disk, if known.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The same builder, for files and folders of that mode.
pub fn with_mode<'a, 'p, 's>(
    builder: &'a mut tempfile::Builder<'p, 's>,
    mode: u32,
) -> &'a mut tempfile::Builder<'p, 's> {
    builder.permissions(Permissions::from_mode(mode))
}

/// Opens a file of an open folder to be read, whatever became of the folder's name.
///
/// # Errors
/// The system's.
pub fn open_in(folder: &File, _path: &Path, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?))
}

/// Has the names in a folder be on the disk.
///
/// # Errors
/// The system's.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Lets the system forget what it remembers of a file, so that the next read is the disk's. Only Linux does.
pub fn forget_read(file: &File) {
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Standard error as a file of its own.
///
/// # Errors
/// The system's.
pub fn stderr_file() -> io::Result<File> {
    Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// Whether a child has ended. It stays a zombie until it is waited for, so its group's number is not reused.
///
/// # Errors
/// The system's.
pub fn has_ended(child: &mut Child) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
}

/// Kills a child with its own process group, and everything that it started.
pub fn kill_group(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL); // an error means that the group is empty
}

/// Kills this process and everything that it started, if it has its own process group.
pub fn end_own_group() {
    if getpgrp() == getpid() {
        let _ = kill_current_process_group(Signal::KILL);
    }
}

/// Two ends of a wire, of which the second is for a child's standard input.
///
/// # Errors
/// The system's.
pub fn socket_for_child() -> io::Result<(Socket, Stdio)> {
    let (ours, theirs) = Socket::pair()?;
    Ok((ours, OwnedFd::from(theirs).into()))
}

/// The child's end: its standard input.
///
/// # Errors
/// The system's.
pub fn socket_of_parent() -> io::Result<Socket> {
    Ok(Socket::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Limits the processor time of a child that runs. Only Linux does.
pub fn limit_processor_time(child: &Child, seconds: u64) {
    #[cfg(target_os = "linux")]
    {
        let limit = Rlimit { current: Some(seconds), maximum: Some(seconds + 1) };
        // One that has ended by now needs no limit.
        let _ = rustix::process::prlimit(Some(Pid::from_child(child)), Resource::Cpu, limit);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (child, seconds);
}

/// Ends a child from another thread while one waits for it. Only Linux has it.
pub struct Ender {
    #[cfg(target_os = "linux")]
    process: OwnedFd,
}

impl Ender {
    /// For a child that was not waited for yet.
    #[cfg(target_os = "linux")]
    pub fn of(child: &Child) -> Option<Self> {
        use rustix::process::{PidfdFlags, pidfd_open};
        Some(Self { process: pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()? })
    }

    /// `None`: only Linux has handles of processes.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &Child) -> Option<Self> {
        None
    }

    /// Kills the child if it still runs.
    pub fn end(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }
}

/// Has reads from a socket wait no longer than this.
///
/// # Errors
/// The time is zero.
pub fn wait_at_most(socket: &Socket, timeout: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(timeout)
}
