//! The `cpu` device: a block is one call of a C function, and the blocks of a grid run on all cores.
//!
//! An object is a shared library with two symbols: `<entry>`, the kernel, and `<entry>_abi`, a string that describes
//! its arguments. It is loaded from memory (a memfd), so the bytes whose digest was verified are the bytes that run.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
#[cfg(unix)]
use libloading::os::unix::Library;
#[cfg(windows)]
use libloading::os::windows::Library;

use crate::launch::{Argument, Kernel, KernelSpec, Launch};
use crate::memory::{Buffer, BufferView};
use crate::team::{Team, threads_or_cores};
use crate::{DeviceMemory, Driver, GpuError, numa};

/// The signature of every host kernel: arguments (pointers as they are, values by address), private memory of the
/// calling thread, and which block to run.
type HostEntryPoint = unsafe extern "C" fn(*const *const c_void, *mut c_void, u32, u32, u32);

/// A kernel in a loaded shared library, which stays loaded as long as this lives.
struct Function {
    entry: HostEntryPoint,
    _object: Loaded,
}

/// A shared library in memory. The file stays open as long as the library is loaded: the loader knows libraries by
/// path, and a path that names an open file cannot be given to another one.
pub(crate) struct Loaded {
    pub(crate) library: Library,
    file: ObjectFile,
}

/// In memory, where the system has such files; else with a name, until it is dropped.
#[cfg(target_os = "linux")]
type ObjectFile = std::fs::File;
#[cfg(not(target_os = "linux"))]
type ObjectFile = tempfile::NamedTempFile;

/// This machine's cores.
pub struct HostDriver {
    team: Team,
    /// Held while anything reads or writes buffers: what makes the safe functions of [`Driver`] race-free.
    stream: Mutex<()>,
    /// The most private memory that launches were granted, for each thread.
    scratch_bytes: AtomicUsize,
}

/// Private memory of a thread that is there without a question, in bytes: asking the system at every launch takes time.
const MAX_UNASKED_SCRATCH_BYTES: usize = 16 << 20;

/// How many runs each thread would take, were all as long as the first.
const RUNS_OF_A_THREAD: u64 = 4;

fn out_of_memory(len_bytes: usize, free_bytes: Option<usize>) -> GpuError {
    GpuError::OutOfMemory { device: "cpu".into(), len_bytes, free_bytes }
}

impl HostDriver {
    /// A device with `n_threads` threads; 0 means one for every core. On a machine of several memory nodes what they
    /// and the calling thread touch first is spread over all nodes.
    ///
    /// # Errors
    /// [`GpuError::Threads`].
    pub fn new(n_threads: usize) -> Result<Self, GpuError> {
        numa::spread();
        let team = Team::new(threads_or_cores(n_threads), "cpu device").map_err(GpuError::Threads)?;
        Ok(Self { team, stream: Mutex::new(()), scratch_bytes: AtomicUsize::new(0) })
    }
}

impl Driver for HostDriver {
    fn describe(&self) -> String {
        let n = self.parallelism();
        format!("cpu ({n} thread{})", if n == 1 { "" } else { "s" })
    }

    fn parallelism(&self) -> usize {
        self.team.len()
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        Ok(memory())
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        allocate(len_bytes)
    }

    fn fenced(&self, len_bytes: usize) -> Result<Option<Buffer>, GpuError> {
        Buffer::fenced(len_bytes).map(Some).map_err(|_| out_of_memory(len_bytes, None))
    }

    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError> {
        Ok(Buffer::read_only(bytes))
    }

    fn alignment_bytes(&self) -> usize {
        1 // a tensor of a checkpoint lies where the file has it
    }

    fn copies_uploads(&self) -> bool {
        false
    }

    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError> {
        let refused = |reason: String| GpuError::NotLoadable { entry: spec.entry.clone(), reason };
        let object = open_from_memory(object).map_err(refused)?;
        let found = abi(&object.library, &format!("{}_abi", spec.entry))?;
        if found != spec.abi {
            return Err(GpuError::Abi { entry: spec.entry, expected: spec.abi, found });
        }
        let missing = |_| GpuError::NoEntry { symbol: spec.entry.clone() };
        // SAFETY: the ABI string says that this object was rendered by us for exactly these arguments, and every
        // rendered host kernel exports its entry with the type `HostEntryPoint`.
        let entry = *unsafe { object.library.get::<HostEntryPoint>(spec.entry.as_bytes()) }.map_err(missing)?;
        Ok(Kernel::new(spec, Function { entry, _object: object }))
    }

    fn launch(&self, kernel: &Kernel, launch: &Launch<'_>) -> Result<(), GpuError> {
        kernel.check(launch.args)?;
        let function: &Function = kernel.function()?;
        let args = Pointers(launch.args.iter().map(pointer).collect::<Result<_, _>>()?);
        let [x, y, z] = launch.grid.map(u64::from);
        let too_many = || GpuError::Blocks { entry: kernel.entry().to_owned(), grid: launch.grid };
        let n_blocks = (x * y).checked_mul(z).ok_or_else(too_many)?; // two numbers of 32 bits fit 64
        let run = |block: u64| {
            with_scratch(launch.scratch_bytes, |scratch| {
                let index = |n: u64| n as u32; // each is below its grid dimension, a u32
                // SAFETY: `check` made sure that the arguments are what the kernel takes and that `launch.args`,
                // which outlives this call, holds them; the stream lock keeps everything else off the buffers;
                // `scratch` is private to this thread. Staying inside the lengths is the template's contract.
                unsafe {
                    (function.entry)(
                        args.as_ptr(),
                        scratch,
                        index(block % x),
                        index(block / x % y),
                        index(block / x / y),
                    );
                }
            });
        };
        let all = || {
            let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            self.check_scratch(launch.scratch_bytes)?;
            match n_blocks {
                0 => {}
                1 => run(0),
                _ => self.on_all_cores(n_blocks, &run),
            }
            Ok(())
        };
        // The step before the stream, as in `enter`: two threads could wait for each other.
        if n_blocks > 1 { self.team.within(all) } else { all() }
    }

    fn write(&self, view: &BufferView, bytes: &[u8]) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        view.copy_from(bytes)
    }

    fn read(&self, view: &BufferView, bytes: &mut [u8]) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        view.copy_to(bytes)
    }

    fn copy(&self, from: &BufferView, to: &BufferView) -> Result<(), GpuError> {
        let _stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        to.copy_from_view(from)
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        // The other threads wake up for all launches, and not for each.
        self.team.within(work);
    }
}

impl HostDriver {
    /// Refuses private memory that there is not for all threads: growing into it would end the process. What they
    /// had before they have still.
    fn check_scratch(&self, len_bytes: usize) -> Result<(), GpuError> {
        let had = self.scratch_bytes.load(Ordering::Relaxed);
        if len_bytes <= had.max(MAX_UNASKED_SCRATCH_BYTES) {
            return Ok(());
        }
        let wanted = (len_bytes - had).checked_mul(self.parallelism()).filter(|wanted| *wanted < isize::MAX as usize);
        let free_bytes = memory().map(|memory| memory.free_bytes);
        if wanted.is_none_or(|wanted| free_bytes.is_some_and(|free| wanted > free)) {
            return Err(out_of_memory(wanted.unwrap_or(len_bytes), free_bytes));
        }
        self.scratch_bytes.fetch_max(len_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Hands the blocks out in runs of neighbours: what a block asks the memory for ahead is mostly its own thread's
    /// next block. Runs get shorter, down to one block, so that a slow one does not hold up a share of the grid. Called
    /// within a step.
    fn on_all_cores(&self, n_blocks: u64, run: &(impl Fn(u64) + Sync)) {
        let n_threads = n_blocks.min(self.team.len() as u64);
        let run_end = |begin: u64| begin + ((n_blocks - begin) / (RUNS_OF_A_THREAD * n_threads)).max(1);
        let next = AtomicU64::new(0);
        let taken = |begin| (begin < n_blocks).then(|| run_end(begin));
        let work = || {
            while let Ok(begin) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
                (begin..run_end(begin)).for_each(run);
            }
        };
        // Whoever does not come before all is done is not waited for: to wake a thread may take longer than the blocks
        // of a small launch.
        self.team.together(&work);
    }
}

/// Zeroed memory of this process, which no device can reach by itself.
///
/// # Errors
/// [`GpuError::OutOfMemory`].
pub fn allocate(len_bytes: usize) -> Result<Buffer, GpuError> {
    Buffer::pages(len_bytes).map_err(|_| out_of_memory(len_bytes, memory().map(|memory| memory.free_bytes)))
}

/// Memory of this machine: what programs could still get, and all of it. `None` where the system does not say.
pub fn memory() -> Option<DeviceMemory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = |name: &str| -> Option<usize> {
        let kib: usize = text.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1)?.parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(DeviceMemory { free_bytes: line("MemAvailable:")?, total_bytes: line("MemTotal:")? })
}

/// The argument array of a launch: shared by the threads that run its blocks, and only read by them.
struct Pointers(Vec<*const c_void>);

impl Pointers {
    fn as_ptr(&self) -> *const *const c_void {
        self.0.as_ptr()
    }
}

// SAFETY: the pointers are only read through while the launch that made them runs; what they point at is either a
// value of the launch's own argument list or a buffer, which the stream lock keeps to this launch.
unsafe impl Sync for Pointers {}

/// Where an argument is: the memory itself, or the value's place in the caller's list.
pub(crate) fn pointer(arg: &Argument) -> Result<*const c_void, GpuError> {
    Ok(match arg {
        Argument::Memory { view, .. } => view.host_address()?.cast_const().cast(),
        Argument::U32(value) => (&raw const *value).cast(),
        Argument::I32(value) => (&raw const *value).cast(),
        Argument::F32(value) => (&raw const *value).cast(),
    })
}

/// One cache line, so that vectors of 64 bytes can be loaded aligned.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct CacheLine(#[expect(dead_code, reason = "only its address is used")] [u8; 64]);

/// Calls `f` with at least `len_bytes` bytes of this thread's own, 64-byte aligned; contents are what was left there.
fn with_scratch(len_bytes: usize, f: impl FnOnce(*mut c_void)) {
    thread_local! {
        static SCRATCH: RefCell<Vec<CacheLine>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let n_lines = len_bytes.div_ceil(size_of::<CacheLine>());
        if scratch.len() < n_lines {
            scratch.resize(n_lines, CacheLine([0; 64]));
        }
        f(scratch.as_mut_ptr().cast());
    });
}

impl Loaded {
    /// A path of the object's file.
    #[cfg(target_os = "linux")]
    pub(crate) fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// A path of the object's file.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn path(&self) -> String {
        self.file.path().to_string_lossy().into_owned()
    }
}

/// Opens an object and closes it again, for its loader's verdict; a damaged one may take the process with it.
///
/// # Errors
/// The loader's own words.
pub fn try_to_open(object: &[u8]) -> Result<(), String> {
    open_from_memory(object).map(drop)
}

/// Opens a shared library from its bytes.
#[cfg(target_os = "linux")]
pub(crate) fn open_from_memory(object: &[u8]) -> Result<Loaded, String> {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    crate::elf::check_whole(object).map_err(|error| error.to_string())?;
    let fd = rustix::fs::memfd_create("kernel", rustix::fs::MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    let mut file = std::fs::File::from(fd);
    file.write_all(object).map_err(|e| e.to_string())?;
    // A debugger reads the file by the name that it is loaded by, in a process of its own.
    let by_process = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let is_there = std::fs::symlink_metadata(&by_process).is_ok();
    let by_itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let library = open(if is_there { &by_process } else { &by_itself }.as_ref())?;
    Ok(Loaded { library, file })
}

/// Opens a shared library from its bytes.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_from_memory(object: &[u8]) -> Result<Loaded, String> {
    use std::io::Write;

    let mut file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    file.write_all(object).map_err(|e| e.to_string())?;
    let library = open(file.path())?;
    Ok(Loaded { library, file })
}

fn open(path: &std::path::Path) -> Result<Library, String> {
    // SAFETY: the object was compiled from a rendered template by a compiler the user chose, and the cache refuses
    // entries that anyone else could have written; a C object has no constructors unless a template writes them.
    unsafe { load(path) }.map_err(|error| {
        let reason = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{reason}")
    })
}

/// Every symbol is resolved now, and only for this library.
///
/// # Safety
/// The library's constructors are run.
#[cfg(unix)]
unsafe fn load(path: &std::path::Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the caller's part.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
}

/// # Safety
/// The library's constructors are run.
#[cfg(windows)]
unsafe fn load(path: &std::path::Path) -> Result<Library, libloading::Error> {
    // SAFETY: the caller's part.
    unsafe { Library::new(path) }
}

/// The string that an object describes its arguments with.
pub(crate) fn abi(library: &Library, symbol: &str) -> Result<String, GpuError> {
    // SAFETY: only the address is taken here.
    let found = unsafe { library.get::<*const c_char>(symbol.as_bytes()) };
    let address = found.map_err(|_| GpuError::NoEntry { symbol: symbol.to_string() })?.as_raw_ptr();
    // SAFETY: rendered objects define the symbol as a NUL-terminated `const char[]`, and the library is still loaded.
    let text = unsafe { CStr::from_ptr(address.cast::<c_char>()) };
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::launch::{ArgumentKind, ArgumentSpec};

    const SOURCE: &str = r#"
        const char scale_abi[] = "x y n factor";
        void scale(void* const* args, void* scratch, unsigned bx, unsigned by, unsigned bz) {
            const float* x = args[0]; float* y = args[1];
            unsigned n = *(const unsigned*)args[2]; float factor = *(const float*)args[3];
            float* copy = scratch;
            for (unsigned i = 0; i < n; ++i) copy[i] = x[bx * n + i] * factor;
            for (unsigned i = 0; i < n; ++i) y[bx * n + i] = copy[i];
        }
    "#;

    fn compile(source: &str) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let (c, so) = (dir.path().join("k.c"), dir.path().join("k.so"));
        std::fs::write(&c, source).unwrap();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&so).arg(&c).status().unwrap();
        assert!(status.success());
        std::fs::read(so).unwrap()
    }

    fn spec() -> KernelSpec {
        let arg = |name: &str, kind| ArgumentSpec::new(name, kind);
        KernelSpec {
            entry: "scale".into(),
            abi: "x y n factor".into(),
            args: vec![
                arg("x", ArgumentKind::Read),
                arg("y", ArgumentKind::Write),
                arg("n", ArgumentKind::U32),
                arg("factor", ArgumentKind::F32),
            ],
            block_size: 1,
            ..KernelSpec::default()
        }
    }

    fn memory(view: &BufferView, required_bytes: usize) -> Argument {
        Argument::Memory { view: view.clone(), required_bytes }
    }

    #[test]
    fn every_block_runs_once_with_its_arguments_and_scratch() {
        let driver = HostDriver::new(3).unwrap();
        let kernel = driver.load(&compile(SOURCE), spec()).unwrap();
        let values: Vec<f32> = (0..100 * 100).map(|i| i as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let x = driver.upload(bytes.clone().into()).unwrap().view();
        let y = driver.allocate(bytes.len()).unwrap().view();
        let args = [memory(&x, bytes.len()), memory(&y, bytes.len()), Argument::U32(100), Argument::F32(2.0)];
        driver.enter(&mut || {
            driver.launch(&kernel, &Launch { grid: [100, 1, 1], scratch_bytes: 100 * 4, args: &args }).unwrap()
        });
        let mut back = vec![0; bytes.len()];
        driver.read(&y, &mut back).unwrap();
        let got: Vec<f32> = back.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(got, values.iter().map(|v| v * 2.0).collect::<Vec<_>>());
    }

    #[test]
    fn two_objects_are_two() {
        let driver = HostDriver::new(1).unwrap();
        let _first = driver.load(&compile(SOURCE), spec()).unwrap();
        let renamed = SOURCE.replace("scale", "other");
        let second = driver.load(&compile(&renamed), KernelSpec { entry: "other".into(), ..spec() }).unwrap();
        assert_eq!(second.entry(), "other");
    }

    #[test]
    fn a_launch_that_does_not_fit_is_refused() {
        let driver = HostDriver::new(1).unwrap();
        let kernel = driver.load(&compile(SOURCE), spec()).unwrap();
        let read_only = driver.upload(Bytes::from_static(&[0; 8])).unwrap().view();
        let y = driver.allocate(8).unwrap().view();
        let launch = |args: &[Argument]| {
            driver.launch(&kernel, &Launch { grid: [1, 1, 1], scratch_bytes: 8, args }).unwrap_err().to_string()
        };
        assert_eq!(launch(&[]), "kernel `scale`, argument `(count)`: expected 4, found 0");
        let two = [Argument::U32(2), Argument::F32(1.0)];
        let with = |x: Argument, y: Argument| launch(&[x, y, two[0].clone(), two[1].clone()]);
        assert!(with(memory(&read_only, 12), memory(&y, 8)).ends_with("expected 12 bytes, found 8 bytes"));
        assert!(
            with(memory(&y, 8), memory(&read_only, 8)).ends_with("expected writable memory, found read-only memory")
        );
        assert!(with(Argument::U32(1), memory(&y, 8)).contains("argument `x`"));
    }

    #[test]
    fn sizes_beyond_all_memory_are_refused() {
        let driver = HostDriver::new(2).unwrap();
        let kernel = driver.load(&compile(SOURCE), spec()).unwrap();
        let y = driver.allocate(8).unwrap().view();
        let args = [memory(&y, 8), memory(&y, 8), Argument::U32(2), Argument::F32(1.0)];
        let launch = |grid, scratch_bytes| driver.launch(&kernel, &Launch { grid, scratch_bytes, args: &args });
        for scratch_bytes in [usize::MAX, usize::MAX / 2, isize::MAX as usize, 1 << 50] {
            assert!(matches!(launch([1; 3], scratch_bytes), Err(GpuError::OutOfMemory { .. })), "{scratch_bytes}");
        }
        assert!(matches!(launch([u32::MAX; 3], 8), Err(GpuError::Blocks { .. })));
        assert!(launch([1; 3], 8).is_ok() && launch([1; 3], 20 << 20).is_ok());
    }

    #[test]
    fn an_object_for_other_arguments_is_refused() {
        let driver = HostDriver::new(1).unwrap();
        let object = compile(&SOURCE.replace("x y n factor", "x y n"));
        assert!(matches!(driver.load(&object, spec()), Err(GpuError::Abi { .. })));
        assert!(matches!(driver.load(b"not an object", spec()), Err(GpuError::NotLoadable { .. })));
    }
}
