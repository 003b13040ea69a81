//! Mapped files that become shorter: reading a page that is gone raises SIGBUS, which would end the process without a
//! message. The handler here names the file.
//!
//! It runs in a signal handler, so it allocates nothing, takes no lock and calls only async-signal-safe functions:
//! `write`, `_exit` and `sigaction`. Its list of mappings only grows, by one node for each file that was ever mapped;
//! unmapped ones are marked.

use std::ffi::c_int;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{mem, ptr};

/// A mapping that the handler knows of.
pub(crate) struct Watched {
    mapping: memmap2::Mmap,
    entry: &'static MappingNode,
}

/// A node of the list, never freed: a handler may be looking at it.
struct MappingNode {
    begin: usize,
    /// In bytes; 0 once it is unmapped.
    len: AtomicUsize,
    message: Vec<u8>,
    next: *const MappingNode,
}

// SAFETY: `next` is written before the entry is put into the list, and never again.
unsafe impl Send for MappingNode {}
// SAFETY: as above.
unsafe impl Sync for MappingNode {}

static ENTRIES: AtomicPtr<MappingNode> = AtomicPtr::new(ptr::null_mut());

/// What was there before, as `sigaction` gave it: set once, before the handler can run.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl Watched {
    pub(crate) fn new(mapping: memmap2::Mmap, path: &Path) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let message = [
            b"error: the file `",
            path.as_os_str().as_bytes(),
            b"` became shorter while it was in use, or its disk failed\n\
              hint: replace a file by another of its name, do not write into it, while the program runs\n",
        ];
        let entry = MappingNode {
            begin: mapping.as_ptr() as usize,
            len: AtomicUsize::new(mapping.len()),
            message: message.concat(),
            next: ptr::null(),
        };
        let entry: &'static mut MappingNode = Box::leak(Box::new(entry));
        let mut first = ENTRIES.load(Ordering::Acquire);
        loop {
            entry.next = first;
            match ENTRIES.compare_exchange_weak(first, entry, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Self { mapping, entry },
                Err(now) => first = now,
            }
        }
    }
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.mapping
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.entry.len.store(0, Ordering::Release);
    }
}

fn install() {
    // SAFETY: all zero is a valid `sigaction`; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut ours: libc::sigaction = mem::zeroed();
        ours.sa_sigaction = handler as *const () as usize;
        // On the thread's signal stack where it has one, as Rust's own handlers.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut previous: Box<libc::sigaction> = Box::new(mem::zeroed());
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut *previous) == 0 {
            PREVIOUS.store(Box::into_raw(previous), Ordering::Release);
            libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut());
        }
    }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info`; entries are never freed; `PREVIOUS` was set before this handler was.
    unsafe {
        let address = (*info).si_addr() as usize;
        let mut entry = ENTRIES.load(Ordering::Acquire).cast_const();
        while let Some(one) = entry.as_ref() {
            if address.wrapping_sub(one.begin) < one.len.load(Ordering::Acquire) {
                libc::write(libc::STDERR_FILENO, one.message.as_ptr().cast(), one.message.len());
                libc::_exit(1);
            }
            entry = one.next;
        }
        chain(signal, info, context);
    }
}

/// What was to happen before there was a handler here.
///
/// # Safety
/// It is called by the handler, with what that was given.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the handler, from what `sigaction` said; a handler there has the signature its flags say.
    unsafe {
        let previous = &*PREVIOUS.load(Ordering::Acquire);
        match previous.sa_sigaction {
            // Back to what was: the instruction that failed is run again, and what somebody sent is sent again.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, previous, ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
            address if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = mem::transmute(address);
                handler(signal, info, context);
            }
            address => {
                let handler: extern "C" fn(c_int) = mem::transmute(address);
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    /// What a child of this test is to do.
    const TASK: &str = "MAPPED_FILE_TEST_TASK";

    extern "C" fn exit_with_7(_: libc::c_int) {
        // SAFETY: it may be called in a signal.
        unsafe { libc::_exit(7) }
    }

    /// Maps two pages of a file, one by this crate and one not, and reads one of them when the file is empty.
    #[expect(clippy::print_stdout, reason = "the parent reads it")]
    fn child(task: &str) {
        let path = std::env::temp_dir().join(format!("mapped-file-shrunk-{}", std::process::id()));
        fs::write(&path, [1; 8192]).unwrap();
        if task.contains("before") {
            // SAFETY: the handler calls nothing but `_exit`.
            unsafe { libc::signal(libc::SIGBUS, exit_with_7 as *const () as usize) };
        }
        let ours = crate::map(&path).unwrap();
        // SAFETY: it is shrunk below, which is what is tested.
        let others = unsafe { memmap2::Mmap::map(&File::open(&path).unwrap()) }.unwrap();
        File::create(&path).unwrap(); // empties it
        fs::remove_file(&path).unwrap();
        let read = if task.contains("ours") { ours[5000] } else { others[5000] };
        println!("{read}");
    }

    fn run(task: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "shrunk::tests::a_file_that_shrinks_is_named", "--nocapture"]).env(TASK, task);
        command.output().unwrap()
    }

    #[test]
    fn a_file_that_shrinks_is_named() {
        if let Ok(task) = std::env::var(TASK) {
            return child(&task);
        }
        for task in ["ours", "ours, a handler before"] {
            let output = run(task);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(stderr.contains("error: the file `") && stderr.contains("` became shorter"), "{stderr}");
        }
        assert_eq!(run("another's").status.signal(), Some(libc::SIGBUS), "as if there were no handler");
        assert_eq!(run("another's, a handler before").status.code(), Some(7), "that one is called");
    }
}
