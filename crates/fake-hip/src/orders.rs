//! What the tests order: a file `orders` beside this library, lines of `name = value`.
//!
//! ```text
//! arch = gfx1100, gfx90a:sramecc+:xnack-    one device each; nothing after the `=`: no device
//! memory = 1000000, 2000000                 bytes of each device; of those after the last as of that
//! multiprocessors = 48, 2                   what it counts of each device, in the same way: WGPs on RDNA
//! version = 5.7.31921                       of HIP; what comes before 6.3 refuses code objects v6 and later
//! wave_size = 64                            what every device says, whatever its arch has
//! pageable = true                           copies take memory that is not pinned, and wait until they are made
//! peers = false                             whether devices reach each other's memory; they do
//! fail = hipModuleLoadData:209              status that a call returns; `:2` after it: the second time alone
//! fail = kernel:719                         status that a kernel leaves behind when it runs
//! copies = early                            streams beside the first of a device do at once what waits for nothing
//! die = hipInit                             the call that ends the process, as HIP 5.7 does on some chips
//! hang = 40                                 the kernel, counted from 1, that never ends, and all after it
//! kernels = /cache                          cache that code objects come from, with the same kernels for the simulator
//!                                           those run. Without it kernels do nothing
//! ```
//!
//! Every call is a line in the file `calls` beside it.

use std::ffi::{CStr, c_int};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::path::PathBuf;

/// The orders, and the list of calls.
pub struct Orders {
    /// Archs of the devices.
    pub archs: Vec<String>,
    /// Bytes of the devices.
    memory_bytes: Vec<usize>,
    /// WGPs or compute units of the devices.
    multiprocessors: Vec<usize>,
    /// Major, minor, patch.
    pub version: [c_int; 3],
    /// Set if it is not the arch's.
    pub wave_size: Option<c_int>,
    /// Whether devices reach each other's memory.
    pub peers: bool,
    /// Whether streams beside the first of a device do their work as soon as they can.
    pub is_early: bool,
    /// Whether copies take memory that is not pinned.
    pub pageable: bool,
    /// A cache with the text of every object, and the same text compiled for the simulator.
    pub kernels: Option<PathBuf>,
    /// The call that ends the process.
    deadly: Option<String>,
    /// How many kernels end before one that does not.
    n_ending: Option<usize>,
    failures: Vec<Failure>,
    calls: Option<File>,
}

struct Failure {
    call: String,
    status: c_int,
    /// The number of the call; none is every call.
    only: Option<usize>,
    n_calls: usize,
}

impl Orders {
    /// Reads the orders beside the library that this code is in.
    pub fn read() -> Self {
        let folder = folder();
        let text = folder.as_ref().and_then(|folder| fs::read_to_string(folder.join("orders")).ok());
        let calls =
            folder.and_then(|folder| OpenOptions::new().create(true).append(true).open(folder.join("calls")).ok());
        let mut orders = Self {
            archs: vec!["gfx1100".into()],
            memory_bytes: vec![4 << 30],
            multiprocessors: vec![4],
            version: [6, 4, 43_484],
            wave_size: None,
            peers: true,
            is_early: false,
            pageable: false,
            kernels: None,
            deadly: None,
            n_ending: None,
            failures: Vec::new(),
            calls,
        };
        for (name, value) in text.iter().flat_map(|text| text.lines()).filter_map(|line| line.split_once('=')) {
            orders.take(name.trim(), value.trim());
        }
        orders
    }

    fn take(&mut self, name: &str, value: &str) {
        match name {
            "arch" => {
                self.archs = value.split(',').map(|arch| arch.trim().to_owned()).filter(|a| !a.is_empty()).collect()
            }
            "memory" => self.memory_bytes = numbers(value),
            "multiprocessors" => self.multiprocessors = numbers(value),
            "version" => {
                let parts: Vec<c_int> = value.split('.').map(|part| part.parse().expect("a number")).collect();
                self.version = parts.try_into().expect("three numbers");
            }
            "copies" => self.is_early = value == "early",
            "peers" => self.peers = value.parse().expect("true or false"),
            "pageable" => self.pageable = value.parse().expect("true or false"),
            "wave_size" => self.wave_size = Some(value.parse().expect("lanes")),
            "hang" => self.n_ending = Some(value.parse::<usize>().expect("a number") - 1),
            "die" => self.deadly = Some(value.into()),
            "kernels" => self.kernels = Some(value.into()),
            "fail" => {
                let mut parts = value.split(':');
                let call = parts.next().expect("one part at least").to_owned();
                let mut number = || parts.next().map(|part| part.parse::<usize>().expect("a number"));
                let status = number().expect("a status") as c_int;
                self.failures.push(Failure { call, status, only: number(), n_calls: 0 });
            }
            other => panic!("there is no order `{other}`"),
        }
    }

    pub fn memory_bytes(&self, device: c_int) -> usize {
        of_device(&self.memory_bytes, device)
    }

    /// What it counts as multiprocessors of a device.
    pub fn multiprocessors(&self, device: c_int) -> usize {
        of_device(&self.multiprocessors, device)
    }

    /// The version as HIP encodes it: 6.4.1 is 60400001.
    pub fn hip_version(&self) -> c_int {
        let [major, minor, patch] = self.version;
        major * 10_000_000 + minor * 100_000 + patch
    }

    /// The newest version of code objects that it loads.
    pub fn newest_code_object(&self) -> u32 {
        let [major, minor, _] = self.version;
        if (major, minor) < (6, 3) { 5 } else { 6 }
    }

    /// Whether a call ends the process.
    pub fn is_deadly(&self, call: &str) -> bool {
        self.deadly.as_deref() == Some(call)
    }

    /// The status that a call shall return instead of working.
    pub fn failure(&mut self, call: &str) -> Option<c_int> {
        let failure = self.failures.iter_mut().find(|failure| failure.call == call)?;
        failure.n_calls += 1;
        failure.only.is_none_or(|only| only == failure.n_calls).then_some(failure.status)
    }

    /// Whether the kernel that comes next never ends.
    pub fn hangs(&mut self) -> bool {
        match &mut self.n_ending {
            Some(0) => true,
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }

    /// Adds a line to the list of calls.
    pub fn tell(&mut self, line: &str) {
        if let Some(calls) = &mut self.calls {
            // One write a line, so that a process that is killed leaves whole ones.
            let _ = calls.write_all(format!("{line}\n").as_bytes());
        }
    }
}

fn numbers(list: &str) -> Vec<usize> {
    list.split(',').map(|number| number.trim().parse().expect("a number")).collect()
}

/// The number of a device; the list's last is that of all after it.
fn of_device(numbers: &[usize], device: c_int) -> usize {
    let number = numbers.get(device as usize).or(numbers.last());
    *number.expect("one at least")
}

/// Where this library is: tests have a copy each, and with it state of their own.
fn folder() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; the record is valid for writes, and zeroes are one.
    let found = unsafe {
        libc::dladdr(folder as *const libc::c_void, found.as_mut_ptr());
        found.assume_init()
    };
    if found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null, and the loader's names are terminated.
    let path = PathBuf::from(unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned());
    path.parent().map(PathBuf::from)
}
