//! A HIP runtime for tests. Its devices are this process's memory. Work is done only when a caller waits for it, as on
//! a GPU. It is strict where a real one would read garbage, and fails on demand ([`orders`]). It has only what
//! `hip-runtime-sys` uses.
//!
//! Every function of the C interface is `unsafe` for the reasons of the real one: pointers must be what its
//! documentation says. Pointers that a real runtime would follow blindly are looked up instead.

#![allow(unsafe_code)]
#![expect(clippy::missing_safety_doc, reason = "as above")]

mod errors;
mod hiprtc;
mod kernel;
mod launches;
mod mapping;
pub mod orders;
mod running;
mod simulator;
mod state;

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::time::Duration;

use running::Held;
use state::{Kind, Memory, State, Stream, StreamWork, status};

thread_local! {
    /// The current device of this thread; none before it said so, which a real runtime takes for 0.
    static CURRENT: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// A call: told, failed if that was ordered, else done.
fn call(name: &str, detail: impl AsRef<str>, work: impl FnOnce(&mut Held) -> Result<String, c_int>) -> c_int {
    let mut state = Held::lock();
    if state.orders.is_deadly(name) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"free(): invalid pointer\n");
        std::process::abort();
    }
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
    call("hipRuntimeGetVersion", "", |state| {
        // SAFETY: valid for writes.
        unsafe { *version = state.orders.hip_version() };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> c_int {
    call("hipDriverGetVersion", "", |state| {
        // SAFETY: valid for writes.
        unsafe { *version = state.orders.hip_version() };
        done()
    })
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
    let known = arch(&Held::lock(), device).is_ok();
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
            63 => state.orders.multiprocessors(device) as c_int,
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
            *total_bytes = state.orders.memory_bytes(device);
            *free_bytes = state.orders.memory_bytes(device) - state.used_bytes(device);
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

fn release(state: &mut Held, pointer: *mut c_void, fits: fn(Kind) -> bool) -> Result<String, c_int> {
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
        if len_bytes > state.orders.memory_bytes(device) - state.used_bytes(device) {
            return Err(status::OUT_OF_MEMORY);
        }
        // SAFETY: valid for writes.
        unsafe { *pointer = allocate(state, len_bytes, Kind::Device(device))? };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFree(pointer: *mut c_void) -> c_int {
    call("hipFree", "", |state| release(state, pointer, |kind| matches!(kind, Kind::Device(_))))
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
pub unsafe extern "C" fn hipHostRegister(pointer: *mut c_void, len_bytes: usize, flags: c_uint) -> c_int {
    call("hipHostRegister", len_bytes.to_string(), |state| {
        current()?;
        let (address, end) = (pointer as u64, pointer as u64 + len_bytes as u64);
        let mut before = state.registered.range(..end);
        let is_apart = before.next_back().is_none_or(|(start, len_bytes)| start + *len_bytes as u64 <= address);
        if len_bytes == 0 || flags != 0 || !is_apart || state.kind_of(address, 1).is_some() {
            return Err(status::INVALID_VALUE);
        }
        state.registered.insert(address, len_bytes);
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostUnregister(pointer: *mut c_void) -> c_int {
    call("hipHostUnregister", "", |state| {
        state.drain_all();
        state.registered.remove(&(pointer as u64)).ok_or(status::INVALID_VALUE)?;
        Ok(format!("registered={}", state.registered.len()))
    })
}

/// Whether two ranges of the same length have a byte in common: what a copy makes of it nobody knows.
fn overlap(to: *const c_void, from: *const c_void, len_bytes: usize) -> bool {
    to.addr().abs_diff(from.addr()) < len_bytes
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    len_bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> c_int {
    let direction = ["host to host", "to the device", "from the device", "on the device"];
    let direction = direction.get(kind as usize).copied().unwrap_or("somewhere");
    call("hipMemcpyAsync", format!("{len_bytes} {direction}"), |state| {
        let device = current()?;
        let kinds = (state.kind_for(device, from as u64, len_bytes), state.kind_for(device, to as u64, len_bytes));
        let own = Some(Kind::Device(device));
        let is_pageable = matches!((kind, kinds), (1, (None, to)) if to == own) || kind == 2 && kinds == (own, None);
        if is_pageable && state.orders.pageable && stream_of(state, stream)?.capture.is_none() {
            ok_or(state.drain(stream as u64, None))?;
            // SAFETY: one range is in memory that is allocated, the other is the caller's, who says that it is valid.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), len_bytes) };
            return Ok("pageable".to_owned());
        }
        // Stricter than HIP, which takes pageable memory too and may then wait for the copy, unless it is told.
        let fits = match kind {
            1 => kinds == (Some(Kind::Pinned), Some(Kind::Device(device))),
            2 => kinds == (Some(Kind::Device(device)), Some(Kind::Pinned)),
            3 => kinds == (Some(Kind::Device(device)), Some(Kind::Device(device))) && !overlap(to, from, len_bytes),
            _ => false,
        };
        let stream = stream_of(state, stream)?;
        if !fits || stream.capture.is_some() {
            return Err(status::INVALID_VALUE);
        }
        stream.queue.push_back(StreamWork::Copy { to: to as u64, from: from as u64, len_bytes });
        state.hurry();
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
        stream.queue.push_back(StreamWork::Set { to: to as u64, byte: byte as u8, len_bytes });
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) -> c_int {
    call("hipStreamCreateWithFlags", flags.to_string(), |state| {
        let device = current()?;
        let handle = state.handle();
        state.streams.insert(handle, Stream { device, queue: Default::default(), capture: None, is_busy: false });
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
        let (event, mark) = (event as u64, state.mark());
        *state.events.get_mut(&event).ok_or(status::INVALID_HANDLE)? = None;
        stream_of(state, stream)?.queue.push_back(StreamWork::Mark { event, mark });
        state.hurry();
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) -> c_int {
    call("hipStreamWaitEvent", flags.to_string(), |state| {
        let event = event as u64;
        state.events.get(&event).ok_or(status::INVALID_HANDLE)?;
        let mark = state.streams.values().filter_map(|stream| stream.last_mark(event)).max();
        let stream = stream_of(state, stream)?;
        if stream.capture.is_some() || flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        stream.queue.extend(mark.map(|mark| StreamWork::Wait { mark }));
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventSynchronize(event: *mut c_void) -> c_int {
    call("hipEventSynchronize", "", |state| {
        let event = event as u64;
        let found = state.streams.iter().find(|(_, stream)| stream.comes_to(event)).map(|(handle, _)| *handle);
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
