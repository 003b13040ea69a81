//! Windows, with the same names as Unix. It does not check modes and owners, because access lists are different.
//! Processes have no limits, and only a child itself is ended, not the processes that it started.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::windows::fs::{FileExt as _, MetadataExt as _};
use std::os::windows::io::AsHandle;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Flags to open a file itself, not where a link leads: FILE_FLAG_OPEN_REPARSE_POINT.
pub const NO_FOLLOW: i32 = 0x0020_0000;
/// Flags to open a folder itself: FILE_FLAG_BACKUP_SEMANTICS, too.
pub const FOLDER: i32 = 0x0220_0000;
/// Errors that another attempt may not meet: too many open files, no memory, a file that another program holds.
pub const PASSING: [i32; 3] = [4, 8, 32];
/// What ends a process without a word; no process of Windows ends so.
pub const SIGKILL: i32 = 9;
/// What ends a process when its processor time is up; no process of Windows ends so.
pub const SIGXCPU: i32 = 24;

/// Nanoseconds between two of the steps in which Windows counts time.
const STEP_NS: u64 = 100;
/// Seconds from the year in which Windows begins to count to 1970.
const BEFORE_1970: i64 = 11_644_473_600;

/// What is known of a file.
pub trait MetadataExt {
    /// The disk: not known.
    fn dev(&self) -> u64;
    /// The number of the file there: not known.
    fn ino(&self) -> u64;
    /// The user whose it is: this one.
    fn uid(&self) -> u32;
    /// The group whose it is: not known.
    fn gid(&self) -> u32;
    /// Who may do what: its owner alone.
    fn mode(&self) -> u32;
    /// Names that it has: one.
    fn nlink(&self) -> u64;
    /// When it was written, in seconds.
    fn mtime(&self) -> i64;
    /// The rest of that second.
    fn mtime_nsec(&self) -> i64;
    /// The creation time in seconds, which is the nearest to the time of the last change.
    fn ctime(&self) -> i64;
    /// The rest of that second.
    fn ctime_nsec(&self) -> i64;
    /// What it takes on the disk, in 512 bytes.
    fn blocks(&self) -> u64;
}

fn seconds(steps: u64) -> i64 {
    (steps / (1_000_000_000 / STEP_NS)) as i64 - BEFORE_1970
}

fn rest_ns(steps: u64) -> i64 {
    (steps % (1_000_000_000 / STEP_NS) * STEP_NS) as i64
}

impl MetadataExt for Metadata {
    fn dev(&self) -> u64 {
        0
    }

    fn ino(&self) -> u64 {
        0
    }

    fn uid(&self) -> u32 {
        user()
    }

    fn gid(&self) -> u32 {
        0
    }

    fn mode(&self) -> u32 {
        0o700
    }

    fn nlink(&self) -> u64 {
        1
    }

    fn mtime(&self) -> i64 {
        seconds(self.last_write_time())
    }

    fn mtime_nsec(&self) -> i64 {
        rest_ns(self.last_write_time())
    }

    fn ctime(&self) -> i64 {
        seconds(self.creation_time())
    }

    fn ctime_nsec(&self) -> i64 {
        rest_ns(self.creation_time())
    }

    fn blocks(&self) -> u64 {
        self.len().div_ceil(512)
    }
}

/// How a file is opened.
pub trait OpenOptionsExt {
    /// The mode of a new file: nothing of this system.
    fn mode(&mut self, mode: u32) -> &mut Self;
    /// [`NO_FOLLOW`] or [`FOLDER`].
    fn custom_flags(&mut self, flags: i32) -> &mut Self;
}

impl OpenOptionsExt for OpenOptions {
    fn mode(&mut self, _: u32) -> &mut Self {
        self
    }

    fn custom_flags(&mut self, flags: i32) -> &mut Self {
        std::os::windows::fs::OpenOptionsExt::custom_flags(self, flags.cast_unsigned())
    }
}

/// How a folder is made.
pub trait DirBuilderExt {
    /// The mode of a new folder: nothing of this system.
    fn mode(&mut self, mode: u32) -> &mut Self;
}

impl DirBuilderExt for std::fs::DirBuilder {
    fn mode(&mut self, _: u32) -> &mut Self {
        self
    }
}

/// What may be done with a file.
pub trait PermissionsExt {
    /// Everything, for its owner.
    fn mode(&self) -> u32;
}

impl PermissionsExt for std::fs::Permissions {
    fn mode(&self) -> u32 {
        0o700
    }
}

/// Reads at a place of a file.
pub trait FileExt {
    /// What is there, or less.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// All that is asked for.
    ///
    /// # Errors
    /// The system's, and [`io::ErrorKind::UnexpectedEof`].
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => {
                    buffer = &mut buffer[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }
}

impl FileExt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.seek_read(buffer, offset)
    }
}

/// How a process ended.
pub trait ExitStatusExt {
    /// By which signal: by none.
    fn signal(&self) -> Option<i32>;
}

impl ExitStatusExt for ExitStatus {
    fn signal(&self) -> Option<i32> {
        None
    }
}

/// How a process is started.
pub trait CommandExt {
    /// A group of its own: nothing of this system.
    fn process_group(&mut self, group: i32) -> &mut Self;
    /// What it takes for its own name: nothing of this system.
    fn arg0(&mut self, name: impl AsRef<std::ffi::OsStr>) -> &mut Self;
    /// Puts it in the place of this process: it is started, and this one ends as it does.
    fn exec(&mut self) -> io::Error;
}

impl CommandExt for Command {
    fn process_group(&mut self, _: i32) -> &mut Self {
        self
    }

    fn arg0(&mut self, _: impl AsRef<std::ffi::OsStr>) -> &mut Self {
        self
    }

    fn exec(&mut self) -> io::Error {
        match self.status() {
            Ok(status) => std::process::exit(status.code().unwrap_or(1)),
            Err(error) => error,
        }
    }
}

/// What a process may have of something: all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Address space, in bytes.
    As,
    /// A file with its memory, when it dies.
    Core,
    /// Processor time, in seconds.
    Cpu,
    /// The length of a file.
    Fsize,
    /// Open files.
    Nofile,
}

/// Limits, none of which Windows sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// The one that counts.
    pub current: Option<u64>,
    /// The one up to which it may be raised.
    pub maximum: Option<u64>,
}

/// There is no limit.
pub fn getrlimit(_: Resource) -> Rlimit {
    Rlimit { current: None, maximum: None }
}

/// Sets none.
///
/// # Errors
/// Never.
pub fn setrlimit(_: Resource, _: Rlimit) -> io::Result<()> {
    Ok(())
}

/// The number of this process's user, which owns all files here.
pub fn user() -> u32 {
    0
}

/// Free bytes on a folder's disk: unknown here.
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The same builder: there are no modes.
pub fn with_mode<'a, 'p, 's>(builder: &'a mut tempfile::Builder<'p, 's>, _: u32) -> &'a mut tempfile::Builder<'p, 's> {
    builder
}

/// Opens a file of a folder to be read, by the folder's name.
///
/// # Errors
/// The system's.
pub fn open_in(_: &File, path: &Path, name: &str) -> io::Result<File> {
    File::open(path.join(name))
}

/// Has the names in a folder be on the disk: Windows sees to it.
///
/// # Errors
/// Never.
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Would drop the file from the system's page cache; only Linux does.
pub fn forget_read(_: &File) {}

/// Standard error as a file of its own.
///
/// # Errors
/// The system's.
pub fn stderr_file() -> io::Result<File> {
    Ok(File::from(io::stderr().as_handle().try_clone_to_owned()?))
}

/// Whether a child has ended.
///
/// # Errors
/// The system's.
pub fn has_ended(child: &mut Child) -> io::Result<bool> {
    Ok(child.try_wait()?.is_some())
}

/// Kills a child; what it started lives on.
pub fn kill_group(child: &mut Child) {
    let _ = child.kill();
}

/// Does nothing: there are no groups.
pub fn end_own_group() {}

/// A socket between a process and a child's standard input; not available here.
#[derive(Debug)]
pub enum Socket {}

impl Socket {
    /// Another handle of it.
    ///
    /// # Errors
    /// Never: there is none.
    pub fn try_clone(&self) -> io::Result<Self> {
        match *self {}
    }
}

impl Read for Socket {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for Socket {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}

fn no_socket() -> io::Error {
    let what = "kernels are checked and measured in a process that has a socket for its standard input: not on Windows";
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// There is none.
///
/// # Errors
/// Always.
pub fn socket_for_child() -> io::Result<(Socket, Stdio)> {
    Err(no_socket())
}

/// There is none.
///
/// # Errors
/// Always.
pub fn socket_of_parent() -> io::Result<Socket> {
    Err(no_socket())
}

/// Would limit a running child, in seconds; only Linux does.
pub fn limit_processor_time(_: &Child, _: u64) {}

/// Ends a child from another thread; not available here.
pub enum Ender {}

impl Ender {
    /// `None`: there is no way here.
    pub fn of(_: &Child) -> Option<Self> {
        None
    }

    /// Never called, since there is no `Ender`.
    pub fn end(&self) {
        match *self {}
    }
}

/// Has reads from a socket wait no longer than this.
///
/// # Errors
/// Never: there is none.
pub fn wait_at_most(socket: &Socket, _: Option<Duration>) -> io::Result<()> {
    match *socket {}
}
