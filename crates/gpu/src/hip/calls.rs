//! HIP, as [`crate::runtime`] calls it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use hip_runtime_sys::sys::{self, GraphApi, MappingApi, status};
use hip_runtime_sys::{CallError, Hip};

use crate::runtime::{Called, Calls, Handle, Shape};

/// The functions, for one device.
pub(super) struct HipCalls {
    hip: Arc<Hip>,
    ordinal: c_int,
    /// Whether memory can be asked for that no cache keeps: since HIP 7.2.
    has_uncached: bool,
}

impl HipCalls {
    pub(crate) fn new(hip: Arc<Hip>, ordinal: usize, release: Option<(u32, u32)>) -> Self {
        let ordinal = c_int::try_from(ordinal).expect("the caller compared it with the number of devices");
        Self { hip, ordinal, has_uncached: release.is_some_and(|release| release >= (7, 2)) }
    }

    /// # Errors
    /// The runtime maps no memory.
    fn mapping(&self) -> Called<&MappingApi> {
        self.hip.mapping.as_ref().ok_or_else(|| CallError {
            call: "hipMemCreate",
            code: status::NOT_SUPPORTED,
            name: "hipErrorNotSupported".into(),
            text: "this runtime has no such function".into(),
        })
    }

    /// What is written to such memory is seen by other devices while kernels run, where the runtime knows of that.
    fn mapped(&self) -> sys::MemoryProperties {
        let kind = if self.has_uncached { sys::MEMORY_UNCACHED } else { sys::MemoryProperties::PINNED };
        sys::MemoryProperties::on_device(self.ordinal, kind)
    }

    fn graphs(&self) -> &GraphApi {
        self.hip.graphs.as_ref().expect("the caller asked whether there are graphs")
    }
}

// SAFETY of what follows: results are written to variables of this process; the rest is the trait's.
impl Calls for HipCalls {
    fn enter(&self) -> Called {
        // SAFETY: takes any number.
        self.hip.check("hipSetDevice", unsafe { (self.hip.set_device)(self.ordinal) })
    }

    fn memory(&self) -> Called<(usize, usize)> {
        super::devices::memory(&self.hip)
    }

    fn allocate(&self, len_bytes: usize) -> Called<u64> {
        let mut pointer = ptr::null_mut();
        // SAFETY: as above.
        self.hip.check("hipMalloc", unsafe { (self.hip.malloc)(&mut pointer, len_bytes) })?;
        Ok(pointer.addr() as u64)
    }

    unsafe fn free(&self, address: u64) -> Called {
        // SAFETY: as above.
        self.hip.check("hipFree", unsafe { (self.hip.free)(ptr::without_provenance_mut(address as usize)) })
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Called<*mut c_void> {
        let mut pointer = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.hip.host_malloc)(&mut pointer, len_bytes, sys::HOST_MALLOC_DEFAULT) };
        self.hip.check("hipHostMalloc", code).map(|()| pointer)
    }

    unsafe fn free_pinned(&self, pointer: *mut c_void) -> Called {
        // SAFETY: as above.
        self.hip.check("hipHostFree", unsafe { (self.hip.host_free)(pointer) })
    }

    unsafe fn register(&self, pointer: *mut c_void, len_bytes: usize) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.hip.host_register)(pointer, len_bytes, sys::HOST_REGISTER_DEFAULT) };
        self.hip.check("hipHostRegister", code)
    }

    unsafe fn unregister(&self, pointer: *mut c_void) -> Called {
        // SAFETY: as above.
        self.hip.check("hipHostUnregister", unsafe { (self.hip.host_unregister)(pointer) })
    }

    unsafe fn copy_to_device(&self, to: u64, from: *const c_void, len_bytes: usize, stream: Handle) -> Called {
        let to = ptr::without_provenance_mut(to as usize);
        // SAFETY: as above.
        let code = unsafe { (self.hip.memcpy_async)(to, from, len_bytes, sys::MEMCPY_HOST_TO_DEVICE, stream) };
        self.hip.check("hipMemcpyAsync", code)
    }

    unsafe fn copy_from_device(&self, to: *mut c_void, from: u64, len_bytes: usize, stream: Handle) -> Called {
        let from = ptr::without_provenance(from as usize);
        // SAFETY: as above.
        let code = unsafe { (self.hip.memcpy_async)(to, from, len_bytes, sys::MEMCPY_DEVICE_TO_HOST, stream) };
        self.hip.check("hipMemcpyAsync", code)
    }

    unsafe fn copy_on_device(&self, to: u64, from: u64, len_bytes: usize, stream: Handle) -> Called {
        let (to, from) = (ptr::without_provenance_mut(to as usize), ptr::without_provenance(from as usize));
        // SAFETY: as above.
        let code = unsafe { (self.hip.memcpy_async)(to, from, len_bytes, sys::MEMCPY_DEVICE_TO_DEVICE, stream) };
        self.hip.check("hipMemcpyAsync", code)
    }

    unsafe fn fill_bytes(&self, address: u64, byte: u8, len_bytes: usize, stream: Handle) -> Called {
        let address = ptr::without_provenance_mut(address as usize);
        // SAFETY: as above.
        let code = unsafe { (self.hip.memset_async)(address, byte.into(), len_bytes, stream) };
        self.hip.check("hipMemsetAsync", code)
    }

    unsafe fn fill(&self, address: u64, value: u32, n: usize, stream: Handle) -> Called {
        let address = ptr::without_provenance_mut(address as usize);
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.memset_words)(address, value.cast_signed(), n, stream) };
        self.hip.check("hipMemsetD32Async", code)
    }

    fn ordinal(&self) -> c_int {
        self.ordinal
    }

    fn reaches(&self, other: c_int) -> Called<bool> {
        let mut can = 0;
        // SAFETY: as above; takes any numbers.
        let code = unsafe { (self.mapping()?.device_can_access_peer)(&mut can, self.ordinal, other) };
        self.hip.check("hipDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    fn granularity_bytes(&self) -> Called<usize> {
        let (mut len_bytes, properties) = (0, self.mapped());
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.granularity)(&mut len_bytes, &properties, 0) };
        self.hip.check("hipMemGetAllocationGranularity", code).map(|()| len_bytes)
    }

    fn create_memory(&self, len_bytes: usize) -> Called<u64> {
        let (mut memory, properties) = (ptr::null_mut(), self.mapped());
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.create)(&mut memory, len_bytes, &properties, 0) };
        self.hip.check("hipMemCreate", code).map(|()| memory.expose_provenance() as u64)
    }

    unsafe fn release_memory(&self, memory: u64) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.release)(ptr::with_exposed_provenance_mut(memory as usize)) };
        self.hip.check("hipMemRelease", code)
    }

    fn reserve_addresses(&self, len_bytes: usize) -> Called<u64> {
        let mut address = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.reserve)(&mut address, len_bytes, 0, ptr::null_mut(), 0) };
        self.hip.check("hipMemAddressReserve", code).map(|()| address.addr() as u64)
    }

    unsafe fn free_addresses(&self, address: u64, len_bytes: usize) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.free)(ptr::without_provenance_mut(address as usize), len_bytes) };
        self.hip.check("hipMemAddressFree", code)
    }

    unsafe fn map(&self, address: u64, len_bytes: usize, memory: u64) -> Called {
        let (address, memory) =
            (ptr::without_provenance_mut(address as usize), ptr::with_exposed_provenance_mut(memory as usize));
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.map)(address, len_bytes, 0, memory, 0) };
        self.hip.check("hipMemMap", code)
    }

    unsafe fn unmap(&self, address: u64, len_bytes: usize) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.mapping()?.unmap)(ptr::without_provenance_mut(address as usize), len_bytes) };
        self.hip.check("hipMemUnmap", code)
    }

    unsafe fn allow(&self, address: u64, len_bytes: usize) -> Called {
        let (address, access) = (ptr::without_provenance_mut(address as usize), sys::Access::from_device(self.ordinal));
        // SAFETY: as above.
        self.hip.check("hipMemSetAccess", unsafe { (self.mapping()?.set_access)(address, len_bytes, &access, 1) })
    }

    fn create_stream(&self) -> Called<Handle> {
        let mut stream = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.hip.stream_create_with_flags)(&mut stream, sys::STREAM_NON_BLOCKING) };
        self.hip.check("hipStreamCreateWithFlags", code).map(|()| stream)
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipStreamDestroy", unsafe { (self.hip.stream_destroy)(stream) })
    }

    unsafe fn synchronize_stream(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipStreamSynchronize", unsafe { (self.hip.stream_synchronize)(stream) })
    }

    fn create_event(&self) -> Called<Handle> {
        let mut event = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.hip.event_create_with_flags)(&mut event, sys::EVENT_DEFAULT) };
        self.hip.check("hipEventCreateWithFlags", code).map(|()| event)
    }

    unsafe fn destroy_event(&self, event: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipEventDestroy", unsafe { (self.hip.event_destroy)(event) })
    }

    unsafe fn record_event(&self, event: Handle, stream: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipEventRecord", unsafe { (self.hip.event_record)(event, stream) })
    }

    unsafe fn synchronize_event(&self, event: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipEventSynchronize", unsafe { (self.hip.event_synchronize)(event) })
    }

    unsafe fn delay(&self, stream: Handle, event: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipStreamWaitEvent", unsafe { (self.hip.stream_wait_event)(stream, event, 0) })
    }

    unsafe fn milliseconds(&self, start: Handle, stop: Handle) -> Called<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: as above.
        let code = unsafe { (self.hip.event_elapsed_time)(&mut milliseconds, start, stop) };
        self.hip.check("hipEventElapsedTime", code).map(|()| milliseconds)
    }

    unsafe fn load_module(&self, image: &[u8]) -> Called<Handle> {
        let mut module = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.hip.module_load_data)(&mut module, image.as_ptr().cast()) };
        self.hip.check("hipModuleLoadData", code).map(|()| module)
    }

    unsafe fn unload_module(&self, module: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipModuleUnload", unsafe { (self.hip.module_unload)(module) })
    }

    unsafe fn function(&self, module: Handle, name: &CStr) -> Called<Handle> {
        let mut function = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.hip.module_get_function)(&mut function, module, name.as_ptr()) };
        self.hip.check("hipModuleGetFunction", code).map(|()| function)
    }

    unsafe fn launch(&self, function: Handle, shape: &Shape, stream: Handle, arguments: &mut [*mut c_void]) -> Called {
        let ([x, y, z], block) = (shape.grid, shape.block);
        let (arguments, extra) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: as above; no dynamic LDS.
        let code =
            unsafe { (self.hip.module_launch_kernel)(function, x, y, z, block, 1, 1, 0, stream, arguments, extra) };
        self.hip.check("hipModuleLaunchKernel", code)
    }

    fn has_graphs(&self) -> bool {
        self.hip.graphs.is_some()
    }

    unsafe fn begin_capture(&self, stream: Handle) -> Called {
        // SAFETY: as above.
        let code = unsafe { (self.graphs().stream_begin_capture)(stream, sys::CAPTURE_THREAD_LOCAL) };
        self.hip.check("hipStreamBeginCapture", code)
    }

    unsafe fn end_capture(&self, stream: Handle) -> Called<Handle> {
        let mut graph = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe { (self.graphs().stream_end_capture)(stream, &mut graph) };
        self.hip.check("hipStreamEndCapture", code).map(|()| graph)
    }

    unsafe fn instantiate_graph(&self, graph: Handle) -> Called<Handle> {
        let (mut executable, nothing) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above; no log is asked for.
        let code = unsafe { (self.graphs().graph_instantiate)(&mut executable, graph, nothing, ptr::null_mut(), 0) };
        self.hip.check("hipGraphInstantiate", code).map(|()| executable)
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipGraphDestroy", unsafe { (self.graphs().graph_destroy)(graph) })
    }

    unsafe fn launch_graph(&self, executable: Handle, stream: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipGraphLaunch", unsafe { (self.graphs().graph_launch)(executable, stream) })
    }

    unsafe fn destroy_executable(&self, executable: Handle) -> Called {
        // SAFETY: as above.
        self.hip.check("hipGraphExecDestroy", unsafe { (self.graphs().graph_exec_destroy)(executable) })
    }
}
