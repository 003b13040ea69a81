//! The CUDA driver, as [`crate::runtime`] calls it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cuda_driver_sys::{Cuda, sys};

use super::context::Context;
use crate::runtime::{Called, Calls, Handle, Shape};

/// The functions, for the device of a context.
pub(super) struct CudaCalls {
    pub(crate) context: Arc<Context>,
    /// Whether kernels that wait by themselves are launched early.
    pub(crate) launches_early: bool,
}

impl CudaCalls {
    fn cuda(&self) -> &Cuda {
        &self.context.cuda
    }

    fn mapped(&self) -> sys::MemoryProperties {
        sys::MemoryProperties::on_device(self.context.device, sys::MemoryProperties::PINNED)
    }
}

// SAFETY of what follows: results are written to variables of this process; the rest is the trait's.
impl Calls for CudaCalls {
    fn enter(&self) -> Called {
        self.context.enter()
    }

    fn memory(&self) -> Called<(usize, usize)> {
        self.context.memory()
    }

    fn allocate(&self, len_bytes: usize) -> Called<u64> {
        let mut address = 0;
        // SAFETY: as above.
        let code = unsafe { (self.cuda().mem_alloc)(&mut address, len_bytes) };
        self.cuda().check("cuMemAlloc", code).map(|()| address)
    }

    unsafe fn free(&self, address: u64) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemFree", unsafe { (self.cuda().mem_free)(address) })
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Called<*mut c_void> {
        let mut pointer = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().mem_host_alloc)(&mut pointer, len_bytes, 0) };
        self.cuda().check("cuMemHostAlloc", code).map(|()| pointer)
    }

    unsafe fn free_pinned(&self, pointer: *mut c_void) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemFreeHost", unsafe { (self.cuda().mem_free_host)(pointer) })
    }

    unsafe fn register(&self, pointer: *mut c_void, len_bytes: usize) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemHostRegister", unsafe { (self.cuda().mem_host_register)(pointer, len_bytes, 0) })
    }

    unsafe fn unregister(&self, pointer: *mut c_void) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemHostUnregister", unsafe { (self.cuda().mem_host_unregister)(pointer) })
    }

    unsafe fn copy_to_device(&self, to: u64, from: *const c_void, len_bytes: usize, stream: Handle) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.cuda().memcpy_to_device)(to, from, len_bytes, stream) };
        self.cuda().check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn copy_from_device(&self, to: *mut c_void, from: u64, len_bytes: usize, stream: Handle) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.cuda().memcpy_to_host)(to, from, len_bytes, stream) };
        self.cuda().check("cuMemcpyDtoHAsync", code)
    }

    unsafe fn copy_on_device(&self, to: u64, from: u64, len_bytes: usize, stream: Handle) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.cuda().memcpy_on_device)(to, from, len_bytes, stream) };
        self.cuda().check("cuMemcpyDtoDAsync", code)
    }

    unsafe fn fill_bytes(&self, address: u64, byte: u8, len_bytes: usize, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemsetD8Async", unsafe { (self.cuda().memset_bytes)(address, byte, len_bytes, stream) })
    }

    unsafe fn fill(&self, address: u64, value: u32, n: usize, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemsetD32Async", unsafe { (self.cuda().memset_words)(address, value, n, stream) })
    }

    fn ordinal(&self) -> c_int {
        self.context.device
    }

    fn reaches(&self, other: c_int) -> Called<bool> {
        let mut can = 0;
        // SAFETY: as above; takes any numbers.
        let code = unsafe { (self.cuda().device_can_access_peer)(&mut can, self.context.device, other) };
        self.cuda().check("cuDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    fn granularity_bytes(&self) -> Called<usize> {
        let (mut len_bytes, properties) = (0, self.mapped());
        // SAFETY: as above.
        let code = unsafe { (self.cuda().mem_get_allocation_granularity)(&mut len_bytes, &properties, 0) };
        self.cuda().check("cuMemGetAllocationGranularity", code).map(|()| len_bytes)
    }

    fn create_memory(&self, len_bytes: usize) -> Called<u64> {
        let (mut memory, properties) = (0, self.mapped());
        // SAFETY: as above.
        let code = unsafe { (self.cuda().mem_create)(&mut memory, len_bytes, &properties, 0) };
        self.cuda().check("cuMemCreate", code).map(|()| memory)
    }

    unsafe fn release_memory(&self, memory: u64) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemRelease", unsafe { (self.cuda().mem_release)(memory) })
    }

    fn reserve_addresses(&self, len_bytes: usize) -> Called<u64> {
        let mut address = 0;
        // SAFETY: as above.
        let code = unsafe { (self.cuda().mem_address_reserve)(&mut address, len_bytes, 0, 0, 0) };
        self.cuda().check("cuMemAddressReserve", code).map(|()| address)
    }

    unsafe fn free_addresses(&self, address: u64, len_bytes: usize) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemAddressFree", unsafe { (self.cuda().mem_address_free)(address, len_bytes) })
    }

    unsafe fn map(&self, address: u64, len_bytes: usize, memory: u64) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemMap", unsafe { (self.cuda().mem_map)(address, len_bytes, 0, memory, 0) })
    }

    unsafe fn unmap(&self, address: u64, len_bytes: usize) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuMemUnmap", unsafe { (self.cuda().mem_unmap)(address, len_bytes) })
    }

    unsafe fn allow(&self, address: u64, len_bytes: usize) -> Called {
        let access = sys::Access::from_device(self.context.device);
        // SAFETY: as above.
        self.cuda().check("cuMemSetAccess", unsafe { (self.cuda().mem_set_access)(address, len_bytes, &access, 1) })
    }

    fn create_stream(&self) -> Called<Handle> {
        let mut stream = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().stream_create)(&mut stream, sys::STREAM_NON_BLOCKING) };
        self.cuda().check("cuStreamCreate", code).map(|()| stream)
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuStreamDestroy", unsafe { (self.cuda().stream_destroy)(stream) })
    }

    unsafe fn synchronize_stream(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuStreamSynchronize", unsafe { (self.cuda().stream_synchronize)(stream) })
    }

    fn create_event(&self) -> Called<Handle> {
        let mut event = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().event_create)(&mut event, sys::EVENT_DEFAULT) };
        self.cuda().check("cuEventCreate", code).map(|()| event)
    }

    unsafe fn destroy_event(&self, event: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuEventDestroy", unsafe { (self.cuda().event_destroy)(event) })
    }

    unsafe fn record_event(&self, event: Handle, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuEventRecord", unsafe { (self.cuda().event_record)(event, stream) })
    }

    unsafe fn synchronize_event(&self, event: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuEventSynchronize", unsafe { (self.cuda().event_synchronize)(event) })
    }

    unsafe fn delay(&self, stream: Handle, event: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuStreamWaitEvent", unsafe { (self.cuda().stream_wait_event)(stream, event, 0) })
    }

    unsafe fn milliseconds(&self, start: Handle, stop: Handle) -> Called<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: as above.
        let code = unsafe { (self.cuda().event_elapsed_time)(&mut milliseconds, start, stop) };
        self.cuda().check("cuEventElapsedTime", code).map(|()| milliseconds)
    }

    unsafe fn load_module(&self, image: &[u8]) -> Called<Handle> {
        let mut module = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().module_load_data)(&mut module, image.as_ptr().cast()) };
        self.cuda().check("cuModuleLoadData", code).map(|()| module)
    }

    unsafe fn unload_module(&self, module: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuModuleUnload", unsafe { (self.cuda().module_unload)(module) })
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Called<Handle> {
        let mut function = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().module_get_function)(&mut function, module, name.as_ptr()) };
        self.cuda().check("cuModuleGetFunction", code).map(|()| function)
    }

    unsafe fn launch(&self, function: Handle, shape: &Shape, stream: Handle, arguments: &mut [*mut c_void]) -> Called {
        let [grid_x, grid_y, grid_z] = shape.grid;
        let early = [sys::LaunchAttribute::new(sys::LAUNCH_EARLY, 1)];
        let shape = sys::LaunchShape {
            grid_x,
            grid_y,
            grid_z,
            block_x: shape.block,
            block_y: 1,
            block_z: 1,
            dynamic_shared_bytes: shape.lds_bytes,
            stream,
            attributes: early.as_ptr(),
            n_attributes: (shape.is_early && self.launches_early).into(),
        };
        // SAFETY: as above; when it was loaded, the kernel was allowed the dynamic shared memory. The attribute
        // outlives the call, and an early kernel waits for the one before it.
        let code = unsafe { (self.cuda().launch_kernel)(&shape, function, arguments.as_mut_ptr(), ptr::null_mut()) };
        self.cuda().check("cuLaunchKernelEx", code)
    }

    fn has_graphs(&self) -> bool {
        true
    }

    unsafe fn begin_capture(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.cuda().stream_begin_capture)(stream, sys::CAPTURE_THREAD_LOCAL) };
        self.cuda().check("cuStreamBeginCapture", code)
    }

    unsafe fn end_capture(&self, stream: Handle) -> Called<Handle> {
        let mut graph = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().stream_end_capture)(stream, &mut graph) };
        self.cuda().check("cuStreamEndCapture", code).map(|()| graph)
    }

    unsafe fn instantiate_graph(&self, graph: Handle) -> Called<Handle> {
        let mut executable = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.cuda().graph_instantiate)(&mut executable, graph, 0) };
        self.cuda().check("cuGraphInstantiate", code).map(|()| executable)
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuGraphDestroy", unsafe { (self.cuda().graph_destroy)(graph) })
    }

    unsafe fn launch_graph(&self, executable: Handle, stream: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuGraphLaunch", unsafe { (self.cuda().graph_launch)(executable, stream) })
    }

    unsafe fn destroy_executable(&self, executable: Handle) -> Called {
        // SAFETY: as above.
        self.cuda().check("cuGraphExecDestroy", unsafe { (self.cuda().graph_exec_destroy)(executable) })
    }
}
