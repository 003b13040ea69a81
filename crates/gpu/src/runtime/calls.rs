//! What HIP and the CUDA driver have in common, in HIP's terms: the calls that owners of memory, events, modules and
//! graphs make.

use std::ffi::{CStr, c_int, c_void};

use vendor_library::CallError;

/// Opaque pointers of the runtime: a stream, an event, a module, a function, a graph.
pub(crate) type Handle = *mut c_void;

/// The result of a call.
pub(crate) type Called<T = ()> = Result<T, CallError>;

/// Statuses that are distinguished; both runtimes have the same numbers.
pub(crate) mod status {
    use std::ffi::c_int;

    pub(crate) const OUT_OF_MEMORY: c_int = 2;
    pub(crate) const NO_DEVICE: c_int = 100;
    pub(crate) const INVALID_DEVICE: c_int = 101;
    /// An object for another arch.
    pub(crate) const NO_BINARY_FOR_GPU: c_int = 209;
    /// `hipErrorSharedObjectInitFailed`: an object for another arch, or of a newer version than the runtime knows.
    pub(crate) const SHARED_OBJECT_INIT_FAILED: c_int = 303;
    /// No such kernel in the module.
    pub(crate) const NOT_FOUND: c_int = 500;
}

/// How a kernel is launched.
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// NVIDIA: shared memory of a block beside what the kernel declares, in bytes.
    pub(crate) lds_bytes: u32,
    /// Whether it may begin before what was launched before it has ended: it waits for that by itself.
    pub(crate) is_early: bool,
}

/// The calls for one device. All but [`Self::enter`] are for the device that the calling thread entered.
///
/// # Safety
/// of the unsafe ones: handles and addresses are alive and from the same device, pointers are valid for the length that
/// goes with them, and memory that a copy or a launch uses stays until the stream was waited for.
pub(crate) trait Calls: Send + Sync {
    /// Makes the device the calling thread's current one.
    fn enter(&self) -> Called;

    /// Free and total memory, in bytes.
    fn memory(&self) -> Called<(usize, usize)>;
    fn allocate(&self, len_bytes: usize) -> Called<u64>;
    unsafe fn free(&self, address: u64) -> Called;
    /// Pinned memory of this process.
    fn allocate_pinned(&self, len_bytes: usize) -> Called<*mut c_void>;
    unsafe fn free_pinned(&self, pointer: *mut c_void) -> Called;
    /// Pins existing memory of this process.
    unsafe fn register(&self, pointer: *mut c_void, len_bytes: usize) -> Called;
    unsafe fn unregister(&self, pointer: *mut c_void) -> Called;
    unsafe fn copy_to_device(&self, to: u64, from: *const c_void, len_bytes: usize, stream: Handle) -> Called;
    unsafe fn copy_from_device(&self, to: *mut c_void, from: u64, len_bytes: usize, stream: Handle) -> Called;
    unsafe fn copy_on_device(&self, to: u64, from: u64, len_bytes: usize, stream: Handle) -> Called;

    unsafe fn fill_bytes(&self, address: u64, byte: u8, len_bytes: usize, stream: Handle) -> Called;
    /// Writes `value` to `n` words of four bytes.
    unsafe fn fill(&self, address: u64, value: u32, n: usize, stream: Handle) -> Called;

    /// The device's number.
    fn ordinal(&self) -> c_int;
    /// Whether the device can reach memory of another one.
    fn reaches(&self, other: c_int) -> Called<bool>;
    /// What lengths of [`Self::create_memory`] are multiples of, in bytes.
    fn granularity_bytes(&self) -> Called<usize>;
    /// Memory of the device, which has no address yet.
    fn create_memory(&self, len_bytes: usize) -> Called<u64>;
    unsafe fn release_memory(&self, memory: u64) -> Called;
    /// Reserves unused addresses, the same for all devices of the process.
    fn reserve_addresses(&self, len_bytes: usize) -> Called<u64>;
    unsafe fn free_addresses(&self, address: u64, len_bytes: usize) -> Called;
    unsafe fn map(&self, address: u64, len_bytes: usize, memory: u64) -> Called;
    unsafe fn unmap(&self, address: u64, len_bytes: usize) -> Called;
    /// Lets the device read and write what is mapped there, on whatever device it lies.
    unsafe fn allow(&self, address: u64, len_bytes: usize) -> Called;

    /// A stream that does not wait for the default one.
    fn create_stream(&self) -> Called<Handle>;
    unsafe fn destroy_stream(&self, stream: Handle) -> Called;
    unsafe fn synchronize_stream(&self, stream: Handle) -> Called;

    /// An event that takes times.
    fn create_event(&self) -> Called<Handle>;
    unsafe fn destroy_event(&self, event: Handle) -> Called;
    unsafe fn record_event(&self, event: Handle, stream: Handle) -> Called;
    unsafe fn synchronize_event(&self, event: Handle) -> Called;
    /// Has the stream wait until the device has come to the event, as it was recorded last, before what follows there.
    unsafe fn delay(&self, stream: Handle, event: Handle) -> Called;
    unsafe fn milliseconds(&self, start: Handle, stop: Handle) -> Called<f32>;

    unsafe fn load_module(&self, image: &[u8]) -> Called<Handle>;
    unsafe fn unload_module(&self, module: Handle) -> Called;
    unsafe fn function(&self, module: Handle, name: &CStr) -> Called<Handle>;
    unsafe fn launch(&self, function: Handle, shape: &Shape, stream: Handle, arguments: &mut [*mut c_void]) -> Called;

    /// Whether there are graphs; the rest is called only then.
    fn has_graphs(&self) -> bool;
    unsafe fn begin_capture(&self, stream: Handle) -> Called;
    unsafe fn end_capture(&self, stream: Handle) -> Called<Handle>;
    unsafe fn instantiate_graph(&self, graph: Handle) -> Called<Handle>;
    unsafe fn destroy_graph(&self, graph: Handle) -> Called;
    unsafe fn launch_graph(&self, executable: Handle, stream: Handle) -> Called;
    unsafe fn destroy_executable(&self, executable: Handle) -> Called;
}
