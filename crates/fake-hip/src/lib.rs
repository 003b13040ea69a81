//! A HIP runtime for tests. Its devices are this process's memory; what it is asked to do waits until somebody waits
//! for it, as on a GPU; it is strict where a real one would read garbage; and it fails when it is told to
//! ([`orders`]). Only what `hip-runtime-sys` uses is here.
//!
//! Every function of the C interface is `unsafe` for the reasons of the real one: pointers must be what its
//! documentation says. Pointers that a real runtime would follow blindly are looked up instead.

#![expect(missing_docs, reason = "functions are those of hip/hip_runtime_api.h; the rest is of no use outside")]
#![expect(clippy::missing_safety_doc, reason = "as above")]

mod kernel;
pub mod orders;
mod simulator;
mod state;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use kernel::{Launch, Module};
use state::{Kind, Memory, State, Stream, Work, status};

thread_local! {
    /// The current device of this thread; none before it said so, which a real runtime takes for 0.
    static CURRENT: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// A call: told, failed if that was ordered, else done.
fn call(name: &str, detail: impl AsRef<str>, work: impl FnOnce(&mut State) -> Result<String, c_int>) -> c_int {
    let mut state = State::lock();
    let result = match state.orders.failure(name) {
        Some(failure) => Err(failure),
        None => work(&mut state),
    };
    let line = match &result {
        Ok(more) => format!("{name} {} {more}", detail.as_ref()),
        Err(code) => format!("{name} {} -> {code}", detail.as_ref()),
    };
    state.orders.tell(line.split_whitespace().collect::<Vec<_>>().join(" ").as_str());
    result.err().unwrap_or(status::SUCCESS)
}

fn done() -> Result<String, c_int> {
    Ok(String::new())
}

fn ok_or(code: c_int) -> Result<String, c_int> {
    if code == status::SUCCESS { done() } else { Err(code) }
}

fn current() -> Result<c_int, c_int> {
    CURRENT.get().ok_or(status::INVALID_CONTEXT)
}

/// The stream, which must be of the calling thread's device.
fn stream_of(state: &mut State, stream: *mut c_void) -> Result<&mut Stream, c_int> {
    let device = current()?;
    let stream = state.streams.get_mut(&(stream as u64)).ok_or(status::INVALID_HANDLE)?;
    if stream.device == device { Ok(stream) } else { Err(status::INVALID_HANDLE) }
}

fn arch(state: &State, device: c_int) -> Result<String, c_int> {
    let archs = &state.orders.archs;
    usize::try_from(device).ok().and_then(|i| archs.get(i)).cloned().ok_or(status::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipInit(_flags: c_uint) -> c_int {
    call("hipInit", "", |state| if state.orders.archs.is_empty() { Err(status::NO_DEVICE) } else { done() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: valid for writes.
    unsafe { *version = 60_443_484 };
    call("hipRuntimeGetVersion", "", |_| done())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: valid for writes.
    unsafe { *version = 60_443_484 };
    call("hipDriverGetVersion", "", |_| done())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> c_int {
    call("hipGetDeviceCount", "", |state| {
        // SAFETY: valid for writes.
        unsafe { *count = state.orders.archs.len() as c_int };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipSetDevice(device: c_int) -> c_int {
    // Not told: it comes before everything.
    let known = arch(&State::lock(), device).is_ok();
    CURRENT.set(known.then_some(device));
    if known { status::SUCCESS } else { status::INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int {
    call("hipDeviceGetAttribute", attribute.to_string(), |state| {
        let arch = arch(state, device)?;
        let found = match attribute {
            16 => 0,
            56 => 1024,
            63 => 4,
            74 if arch.starts_with("gfx950") => 163_840,
            74 => 65_536,
            87 => state.orders.wave_size.unwrap_or(if arch.starts_with("gfx9") { 64 } else { 32 }),
            _ => return Err(status::INVALID_VALUE),
        };
        // SAFETY: valid for writes.
        unsafe { *value = found };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    call("hipDeviceGetName", "", |state| {
        let text = format!("Fake {}", arch(state, device)?);
        let len_bytes = text.len().min(len as usize - 1);
        // SAFETY: valid for `len` bytes, the terminator included.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), len_bytes);
            *name.add(len_bytes) = 0;
        }
        done()
    })
}

/// Fills a structure of HIP 6: 1472 bytes, `gcnArchName` at 1160.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8, device: c_int) -> c_int {
    // SAFETY: the caller's.
    call("hipGetDevicePropertiesR0600", "", |state| unsafe { fill(state, properties, device, 1472, 1160) })
}

/// Fills a structure of HIP 5: 792 bytes, `gcnArchName` at 396.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceProperties(properties: *mut u8, device: c_int) -> c_int {
    // SAFETY: the caller's.
    call("hipGetDeviceProperties", "", |state| unsafe { fill(state, properties, device, 792, 396) })
}

/// What is not the arch's name is not zero: reading the wrong place shows.
unsafe fn fill(state: &State, properties: *mut u8, device: c_int, len: usize, at: usize) -> Result<String, c_int> {
    let name = arch(state, device)?;
    // SAFETY: the caller gave room for the structure.
    unsafe {
        properties.write_bytes(0x5a, len);
        properties.add(at).write_bytes(0, 256);
        properties.add(at).copy_from_nonoverlapping(name.as_ptr(), name.len());
    }
    done()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free_bytes: *mut usize, total_bytes: *mut usize) -> c_int {
    call("hipMemGetInfo", "", |state| {
        let device = current()?;
        // SAFETY: both are valid for writes.
        unsafe {
            *total_bytes = state.orders.memory_bytes;
            *free_bytes = state.orders.memory_bytes - state.used_bytes(device);
        }
        done()
    })
}

/// Memory of every kind is the simulator's: aligned to pages, and filled with what is no number.
fn allocate(state: &mut State, len_bytes: usize, kind: Kind) -> Result<*mut c_void, c_int> {
    let buffer = state.sim.allocate(len_bytes).ok_or(status::OUT_OF_MEMORY)?;
    let address = gpu::sim::address(&buffer.view()).expect("the simulator's memory is in this process");
    state.memory.insert(address as u64, Memory { len_bytes, kind, buffer });
    Ok(std::ptr::with_exposed_provenance_mut(address))
}

fn release(state: &mut State, pointer: *mut c_void, fits: fn(Kind) -> bool) -> Result<String, c_int> {
    state.drain_all();
    let address = pointer as u64;
    if !state.memory.get(&address).is_some_and(|memory| fits(memory.kind)) {
        return Err(status::INVALID_VALUE);
    }
    state.memory.remove(&address);
    Ok(format!("live={}", state.memory.len()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, len_bytes: usize) -> c_int {
    call("hipMalloc", len_bytes.to_string(), |state| {
        let device = current()?;
        if len_bytes == 0 {
            return Err(status::INVALID_VALUE);
        }
        if len_bytes > state.orders.memory_bytes - state.used_bytes(device) {
            return Err(status::OUT_OF_MEMORY);
        }
        // SAFETY: valid for writes.
        unsafe { *pointer = allocate(state, len_bytes, Kind::Device(device))? };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFree(pointer: *mut c_void) -> c_int {
    call("hipFree", "", |state| release(state, pointer, |kind| kind != Kind::Pinned))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostMalloc(pointer: *mut *mut c_void, len_bytes: usize, _flags: c_uint) -> c_int {
    call("hipHostMalloc", len_bytes.to_string(), |state| {
        current()?;
        // SAFETY: valid for writes.
        unsafe { *pointer = allocate(state, len_bytes.max(1), Kind::Pinned)? };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostFree(pointer: *mut c_void) -> c_int {
    call("hipHostFree", "", |state| release(state, pointer, |kind| kind == Kind::Pinned))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    len_bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> c_int {
    let direction = ["host to host", "to the device", "from the device"];
    let direction = direction.get(kind as usize).copied().unwrap_or("somewhere");
    call("hipMemcpyAsync", format!("{len_bytes} {direction}"), |state| {
        let device = current()?;
        let kinds = (state.kind_of(from as u64, len_bytes), state.kind_of(to as u64, len_bytes));
        // Stricter than HIP, which takes pageable memory too and may then wait for the copy.
        let fits = match kind {
            1 => kinds == (Some(Kind::Pinned), Some(Kind::Device(device))),
            2 => kinds == (Some(Kind::Device(device)), Some(Kind::Pinned)),
            _ => false,
        };
        let stream = stream_of(state, stream)?;
        if !fits || stream.capture.is_some() {
            return Err(status::INVALID_VALUE);
        }
        stream.queue.push_back(Work::Copy { to: to as u64, from: from as u64, len_bytes });
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemsetAsync(to: *mut c_void, byte: c_int, len_bytes: usize, stream: *mut c_void) -> c_int {
    call("hipMemsetAsync", format!("{len_bytes} {byte}"), |state| {
        let fits = state.kind_of(to as u64, len_bytes) == Some(Kind::Device(current()?));
        let stream = stream_of(state, stream)?;
        if !fits || stream.capture.is_some() {
            return Err(status::INVALID_VALUE);
        }
        stream.queue.push_back(Work::Set { to: to as u64, byte: byte as u8, len_bytes });
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    call("hipStreamCreateWithFlags", flags.to_string(), |state| {
        let device = current()?;
        let handle = state.handle();
        state.streams.insert(handle, Stream { device, queue: Default::default(), capture: None });
        // SAFETY: valid for writes.
        unsafe { *stream = handle as *mut c_void };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamDestroy(stream: *mut c_void) -> c_int {
    call("hipStreamDestroy", "", |state| {
        state.drain(stream as u64, None);
        let left = state.streams.remove(&(stream as u64)).ok_or(status::INVALID_HANDLE);
        left.map(|_| format!("live={} streams={}", state.memory.len(), state.streams.len()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamSynchronize(stream: *mut c_void) -> c_int {
    call("hipStreamSynchronize", "", |state| {
        if stream_of(state, stream)?.capture.is_some() {
            return Err(status::INVALID_VALUE);
        }
        ok_or(state.drain(stream as u64, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventCreateWithFlags(event: *mut *mut c_void, _flags: c_uint) -> c_int {
    call("hipEventCreateWithFlags", "", |state| {
        current()?;
        let handle = state.handle();
        state.events.insert(handle, None);
        // SAFETY: valid for writes.
        unsafe { *event = handle as *mut c_void };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventDestroy(event: *mut c_void) -> c_int {
    call("hipEventDestroy", "", |state| {
        state.events.remove(&(event as u64)).map(|_| String::new()).ok_or(status::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    call("hipEventRecord", "", |state| {
        let event = event as u64;
        *state.events.get_mut(&event).ok_or(status::INVALID_HANDLE)? = None;
        stream_of(state, stream)?.queue.push_back(Work::Mark { event });
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventSynchronize(event: *mut c_void) -> c_int {
    call("hipEventSynchronize", "", |state| {
        let event = event as u64;
        let marked = |stream: &Stream| stream.queue.iter().any(|w| matches!(w, Work::Mark { event: e } if *e == event));
        let found = state.streams.iter().find(|(_, stream)| marked(stream)).map(|(handle, _)| *handle);
        match (found, state.events.get(&event)) {
            (_, None) => Err(status::INVALID_HANDLE),
            (Some(stream), _) => ok_or(state.drain(stream, Some(event))),
            (None, _) => ok_or(state.sticky),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, stop: *mut c_void) -> c_int {
    call("hipEventElapsedTime", "", |state| {
        let at = |event: *mut c_void| state.events.get(&(event as u64)).copied().ok_or(status::INVALID_HANDLE);
        let (Some(start), Some(stop)) = (at(start)?, at(stop)?) else { return Err(status::NOT_READY) };
        let elapsed: Duration = stop.saturating_duration_since(start);
        // SAFETY: valid for writes.
        unsafe { *milliseconds = elapsed.as_secs_f32() * 1e3 };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> c_int {
    call("hipModuleLoadData", "", |state| {
        let device = current()?;
        let arch = arch(state, device)?;
        // SAFETY: the caller's.
        let read = unsafe { Module::read(image, device, &arch, state) }?;
        let names: Vec<String> = read.object.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        let handle = state.handle();
        state.modules.insert(handle, Arc::new(read));
        // SAFETY: valid for writes.
        unsafe { *module = handle as *mut c_void };
        Ok(names.join(" "))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleUnload(module: *mut c_void) -> c_int {
    call("hipModuleUnload", "", |state| {
        state.drain_all();
        let removed = state.modules.remove(&(module as u64)).ok_or(status::INVALID_HANDLE);
        state.functions.retain(|_, (of, _)| *of != module as u64);
        removed.map(|_| format!("modules={}", state.modules.len()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    // SAFETY: a terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    call("hipModuleGetFunction", &name, |state| {
        let loaded = state.modules.get(&(module as u64)).ok_or(status::INVALID_HANDLE)?;
        let index = loaded.object.kernels.iter().position(|kernel| kernel.name == name).ok_or(status::NOT_FOUND)?;
        let handle = state.handle();
        state.functions.insert(handle, (module as u64, index));
        // SAFETY: valid for writes.
        unsafe { *function = handle as *mut c_void };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic_lds_bytes: c_uint,
    stream: *mut c_void,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    call("hipModuleLaunchKernel", format!("grid={grid:?} block={block:?}"), |state| {
        let (module, kernel) = *state.functions.get(&(function as u64)).ok_or(status::INVALID_HANDLE)?;
        let module = Arc::clone(&state.modules[&module]);
        let facts = &module.object.kernels[kernel];
        let name = facts.name.clone();
        let threads: u32 = block.iter().product();
        let fits = !grid.contains(&0) && threads > 0 && threads <= facts.max_block_size;
        if !fits || dynamic_lds_bytes > 0 || !extra.is_null() || module.device != current()? {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        let launch = unsafe { Launch::new(module, kernel, grid, arguments.cast()) };
        let stream = stream_of(state, stream)?;
        match &mut stream.capture {
            Some(launches) => launches.push(launch),
            None => stream.queue.push_back(Work::Launch(launch)),
        }
        Ok(name)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamBeginCapture(stream: *mut c_void, _mode: c_int) -> c_int {
    call("hipStreamBeginCapture", "", |state| {
        let stream = stream_of(state, stream)?;
        if stream.capture.replace(Vec::new()).is_some() {
            return Err(status::INVALID_VALUE);
        }
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> c_int {
    call("hipStreamEndCapture", "", |state| {
        let launches = stream_of(state, stream)?.capture.take().ok_or(status::INVALID_VALUE)?;
        let (handle, n) = (state.handle(), launches.len());
        state.graphs.insert(handle, launches);
        // SAFETY: valid for writes.
        unsafe { *graph = handle as *mut c_void };
        Ok(format!("launches={n}"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphInstantiate(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    _error_node: *mut *mut c_void,
    _log: *mut c_char,
    _log_bytes: usize,
) -> c_int {
    call("hipGraphInstantiate", "", |state| {
        let launches = state.graphs.get(&(graph as u64)).cloned().ok_or(status::INVALID_HANDLE)?;
        let handle = state.handle();
        state.executables.insert(handle, launches);
        // SAFETY: valid for writes.
        unsafe { *executable = handle as *mut c_void };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphLaunch(executable: *mut c_void, stream: *mut c_void) -> c_int {
    call("hipGraphLaunch", "", |state| {
        let launches = state.executables.get(&(executable as u64)).cloned().ok_or(status::INVALID_HANDLE)?;
        let n = launches.len();
        stream_of(state, stream)?.queue.extend(launches.into_iter().map(Work::Launch));
        Ok(format!("launches={n}"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphExecDestroy(executable: *mut c_void) -> c_int {
    call("hipGraphExecDestroy", "", |state| {
        state.executables.remove(&(executable as u64)).map(|_| String::new()).ok_or(status::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphDestroy(graph: *mut c_void) -> c_int {
    call("hipGraphDestroy", "", |state| {
        state.graphs.remove(&(graph as u64)).map(|_| String::new()).ok_or(status::INVALID_HANDLE)
    })
}

/// Statuses, names and words of the real runtime.
const STATUSES: [(c_int, &CStr, &CStr); 14] = [
    (0, c"hipSuccess", c"no error"),
    (1, c"hipErrorInvalidValue", c"invalid argument"),
    (2, c"hipErrorOutOfMemory", c"out of memory"),
    (100, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (101, c"hipErrorInvalidDevice", c"invalid device ordinal"),
    (200, c"hipErrorInvalidImage", c"device kernel image is invalid"),
    (201, c"hipErrorInvalidContext", c"invalid device context"),
    (209, c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device"),
    (303, c"hipErrorSharedObjectInitFailed", c"shared object initialization failed"),
    (400, c"hipErrorInvalidHandle", c"invalid resource handle"),
    (500, c"hipErrorNotFound", c"named symbol not found"),
    (600, c"hipErrorNotReady", c"device not ready"),
    (719, c"hipErrorLaunchFailure", c"unspecified launch failure"),
    (900, c"hipErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing"),
];

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    let known = STATUSES.iter().find(|(number, ..)| *number == code);
    known.map_or(c"hipErrorUnknown", |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: c_int) -> *const c_char {
    let known = STATUSES.iter().find(|(number, ..)| *number == code);
    known.map_or(c"unknown error", |(_, _, text)| text).as_ptr()
}
