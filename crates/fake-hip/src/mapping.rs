//! Reserved addresses and memory mapped to them, and which devices may access what: memory of several devices side by
//! side.

use std::ffi::{c_int, c_void};

use hip_runtime_sys::sys::{Access, MEMORY_UNCACHED, MemoryProperties};

use crate::state::{Kind, Mapped, State, StreamWork, status};
use crate::{allocate, arch, call, current, done, stream_of};

/// What lengths are multiples of: not what a real one says, so that nobody takes that for granted.
const GRANULARITY_BYTES: usize = 12 << 10;

/// Whose memory is asked for, and whether caches may keep it.
fn check(state: &State, properties: *const MemoryProperties) -> Result<(c_int, bool), c_int> {
    // SAFETY: the caller's.
    let MemoryProperties { kind, location, .. } = unsafe { *properties };
    let knows_uncached = state.orders.version >= [7, 2, 0];
    let fits = kind == MemoryProperties::PINNED || (kind == MEMORY_UNCACHED && knows_uncached);
    if !fits || location.kind != 1 {
        return Err(status::INVALID_VALUE);
    }
    arch(state, location.id).map(|_| (location.id, kind == MemoryProperties::PINNED))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> c_int {
    call("hipDeviceCanAccessPeer", format!("{device} {peer}"), |state| {
        arch(state, device).and_then(|_| arch(state, peer))?;
        // SAFETY: valid for writes.
        unsafe { *can = c_int::from(device != peer && state.orders.peers) };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetAllocationGranularity(
    granularity_bytes: *mut usize,
    properties: *const MemoryProperties,
    _option: c_int,
) -> c_int {
    call("hipMemGetAllocationGranularity", "", |state| {
        check(state, properties)?;
        // SAFETY: valid for writes.
        unsafe { *granularity_bytes = GRANULARITY_BYTES };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemCreate(
    memory: *mut *mut c_void,
    len_bytes: usize,
    properties: *const MemoryProperties,
    flags: u64,
) -> c_int {
    call("hipMemCreate", len_bytes.to_string(), |state| {
        let (device, is_cached) = check(state, properties)?;
        if flags != 0 || len_bytes == 0 || !len_bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(status::INVALID_VALUE);
        }
        if len_bytes > state.orders.memory_bytes(device) - state.used_bytes(device) {
            return Err(status::OUT_OF_MEMORY);
        }
        let handle = state.handle();
        state.created.insert(handle, (device, len_bytes));
        // SAFETY: valid for writes.
        unsafe { *memory = handle as *mut c_void };
        Ok(format!("of {device}{}", if is_cached { "" } else { ", uncached" }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemRelease(memory: *mut c_void) -> c_int {
    call("hipMemRelease", "", |state| {
        let handle = memory as u64;
        if state.mapped.values().any(|mapped| mapped.memory == handle) {
            return Err(status::INVALID_VALUE);
        }
        state.created.remove(&handle).ok_or(status::INVALID_HANDLE).map(|_| format!("created={}", state.created.len()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemAddressReserve(
    pointer: *mut *mut c_void,
    len_bytes: usize,
    _alignment_bytes: usize,
    _wish: *mut c_void,
    flags: u64,
) -> c_int {
    call("hipMemAddressReserve", len_bytes.to_string(), |state| {
        if flags != 0 || len_bytes == 0 || !len_bytes.is_multiple_of(GRANULARITY_BYTES) {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: valid for writes.
        unsafe { *pointer = allocate(state, len_bytes, Kind::Addresses)? };
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemAddressFree(pointer: *mut c_void, len_bytes: usize) -> c_int {
    call("hipMemAddressFree", "", |state| {
        let address = pointer as u64;
        let is_whole =
            state.memory.get(&address).is_some_and(|m| m.kind == Kind::Addresses && m.len_bytes == len_bytes);
        if !is_whole || state.mapped.range(address..address + len_bytes as u64).next().is_some() {
            return Err(status::INVALID_VALUE);
        }
        state.memory.remove(&address);
        Ok(format!("live={}", state.memory.len()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemMap(
    pointer: *mut c_void,
    len_bytes: usize,
    offset_bytes: usize,
    memory: *mut c_void,
    flags: u64,
) -> c_int {
    call("hipMemMap", len_bytes.to_string(), |state| {
        let (address, memory) = (pointer as u64, memory as u64);
        let &(_, created_bytes) = state.created.get(&memory).ok_or(status::INVALID_HANDLE)?;
        let end = address + len_bytes as u64;
        let (start, addresses) = state.memory.range(..=address).next_back().ok_or(status::INVALID_VALUE)?;
        let is_reserved = addresses.kind == Kind::Addresses && end - start <= addresses.len_bytes as u64;
        let is_free = state.mapped.iter().all(|(at, mapped)| at + mapped.len_bytes as u64 <= address || *at >= end);
        if !is_reserved || !is_free || offset_bytes != 0 || len_bytes != created_bytes || flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        state.mapped.insert(address, Mapped { len_bytes, memory, allowed: Vec::new() });
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemUnmap(pointer: *mut c_void, len_bytes: usize) -> c_int {
    call("hipMemUnmap", "", |state| {
        state.drain_all();
        match state.mapped.get(&(pointer as u64)) {
            Some(mapped) if mapped.len_bytes == len_bytes => {
                state.mapped.remove(&(pointer as u64));
                done()
            }
            _ => Err(status::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemSetAccess(
    pointer: *mut c_void,
    len_bytes: usize,
    access: *const Access,
    n_access: usize,
) -> c_int {
    call("hipMemSetAccess", n_access.to_string(), |state| {
        // SAFETY: the caller's.
        let access = unsafe { std::slice::from_raw_parts(access, n_access) };
        let (start, end) = (pointer as u64, pointer as u64 + len_bytes as u64);
        for access in access {
            arch(state, access.location.id)?;
            let mut at = start;
            for (address, mapped) in state.mapped.range_mut(start..end) {
                if *address != at || access.flags != 3 {
                    return Err(status::INVALID_VALUE);
                }
                at += mapped.len_bytes as u64;
                mapped.allowed.push(access.location.id);
            }
            if at != end {
                return Err(status::INVALID_VALUE);
            }
        }
        done()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemsetD32Async(to: *mut c_void, value: c_int, n: usize, stream: *mut c_void) -> c_int {
    call("hipMemsetD32Async", format!("{n} {value}"), |state| {
        let device = current()?;
        let fits = state.kind_for(device, to as u64, 4 * n) == Some(Kind::Device(device));
        let stream = stream_of(state, stream)?;
        if !fits || stream.capture.is_some() {
            return Err(status::INVALID_VALUE);
        }
        stream.queue.push_back(StreamWork::SetWords { to: to as u64, value: value.cast_unsigned(), n });
        done()
    })
}
