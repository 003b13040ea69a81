//! Modules, launches, captures and graphs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::kernel::Launch;
use crate::kernel::Module;
use crate::state::{StreamWork, status};
use crate::{arch, call, current, done, stream_of};

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
            None => stream.queue.push_back(StreamWork::Launch(launch)),
        }
        state.set_others_going();
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
        stream_of(state, stream)?.queue.extend(launches.into_iter().map(StreamWork::Launch));
        state.set_others_going();
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
