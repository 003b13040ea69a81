//! The C functions of the CUDA driver: types, constants, and pointers looked up once.
//!
//! Types and numbers are those of `cuda.h`, which keeps both stable: a function that changes gets another symbol
//! (`_v2`). The symbols below are those that `cuda.h` of CUDA 12 and 13 uses.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;
pub use vendor_library::mapping::{Access, MemoryProperties};

/// `CUresult`.
pub type Status = c_int;
/// `CUdevice`, a number.
pub type DeviceId = c_int;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`, `CUgraph`, `CUgraphExec`: opaque pointers.
pub type Handle = *mut c_void;
/// `CUdeviceptr`.
pub type DevicePointer = u64;

/// `CUdevice_attribute`.
pub mod attribute {
    use std::ffi::c_int;

    /// Shared memory that one block may use without asking for more, in bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 8;
    /// Lanes of a warp.
    pub const WARP_SIZE: c_int = 10;
    /// Streaming multiprocessors.
    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    /// 1 if the device shares the memory of the host.
    pub const INTEGRATED: c_int = 18;
    /// Where the device is on the PCI bus: bus, device, domain.
    pub const PCI_BUS_ID: c_int = 33;
    pub const PCI_DEVICE_ID: c_int = 34;
    pub const PCI_DOMAIN_ID: c_int = 50;
    /// 9 of 9.0.
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// 0 of 9.0.
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
}

/// `CUfunction_attribute`.
pub mod function_attribute {
    use std::ffi::c_int;

    /// Most dynamic shared memory that a launch may ask for, in bytes; can be set.
    pub const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
}

/// A stream that does not wait for the default stream, nor that one for it.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DEFAULT`: takes times, and waiting for it spins.
pub const EVENT_DEFAULT: c_uint = 0;
/// While a stream is captured, other threads may do what they like.
pub const CAPTURE_THREAD_LOCAL: c_int = 1;

/// `CUlaunchConfig`.
#[derive(Debug)]
#[repr(C)]
pub struct LaunchShape {
    pub grid_x: c_uint,
    pub grid_y: c_uint,
    pub grid_z: c_uint,
    pub block_x: c_uint,
    pub block_y: c_uint,
    pub block_z: c_uint,
    pub dynamic_shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub n_attributes: c_uint,
}

/// `CUlaunchAttribute`: its value is a union, of which all that is used is an int.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct LaunchAttribute {
    /// `CUlaunchAttributeID`.
    pub id: c_int,
    _pad: c_int,
    pub value: c_int,
    _value: [c_int; 15],
}

impl LaunchAttribute {
    /// An attribute whose value is an int.
    pub const fn new(id: c_int, value: c_int) -> Self {
        Self { id, _pad: 0, value, _value: [0; 15] }
    }
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may begin before the one before it has ended,
/// and waits for that by itself. Of the GPUs before compute capability 9.0 none does so.
pub const LAUNCH_EARLY: c_int = 6;

macro_rules! functions {
    ($($field:ident, $symbol:literal: fn($($name:ident: $type:ty),* $(,)?);)*) => {
        /// The functions, valid as long as this lives.
        pub struct Api {
            $(pub $field: unsafe extern "C" fn($($name: $type),*) -> Status,)*
            // Never closed: the driver has threads of its own.
            _library: ManuallyDrop<Library>,
        }

        impl Api {
            /// Opens `path` and looks every function up.
            ///
            /// # Errors
            /// The loader's own words: no such file, a missing dependency, a missing symbol.
            pub fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: opening a library runs its constructors. The caller chose the file to be his CUDA driver;
                // devices are touched by `cuInit`.
                let library = unsafe { Library::new(path) }?;
                // SAFETY: the types are those of `cuda.h`, and the library stays loaded for the life of the process, so
                // the pointers stay valid.
                unsafe {
                    Ok(Self {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                        _library: ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}

functions! {
    init, "cuInit": fn(flags: c_uint);
    get_error_name, "cuGetErrorName": fn(status: Status, name: *mut *const c_char);
    get_error_string, "cuGetErrorString": fn(status: Status, text: *mut *const c_char);
    driver_get_version, "cuDriverGetVersion": fn(version: *mut c_int);
    device_get_count, "cuDeviceGetCount": fn(count: *mut c_int);
    device_get, "cuDeviceGet": fn(device: *mut DeviceId, ordinal: c_int);
    device_get_name, "cuDeviceGetName": fn(name: *mut c_char, len_bytes: c_int, device: DeviceId);
    device_get_attribute, "cuDeviceGetAttribute": fn(value: *mut c_int, attribute: c_int, device: DeviceId);
    primary_context_retain, "cuDevicePrimaryCtxRetain": fn(context: *mut Handle, device: DeviceId);
    primary_context_release, "cuDevicePrimaryCtxRelease_v2": fn(device: DeviceId);
    context_set_current, "cuCtxSetCurrent": fn(context: Handle);
    mem_get_info, "cuMemGetInfo_v2": fn(free_bytes: *mut usize, total_bytes: *mut usize);
    mem_alloc, "cuMemAlloc_v2": fn(pointer: *mut DevicePointer, len_bytes: usize);
    mem_free, "cuMemFree_v2": fn(pointer: DevicePointer);
    mem_host_alloc, "cuMemHostAlloc": fn(pointer: *mut *mut c_void, len_bytes: usize, flags: c_uint);
    mem_free_host, "cuMemFreeHost": fn(pointer: *mut c_void);
    mem_host_register, "cuMemHostRegister_v2": fn(pointer: *mut c_void, len_bytes: usize, flags: c_uint);
    mem_host_unregister, "cuMemHostUnregister": fn(pointer: *mut c_void);
    memcpy_to_device, "cuMemcpyHtoDAsync_v2":
        fn(to: DevicePointer, from: *const c_void, len_bytes: usize, stream: Handle);
    memcpy_to_host, "cuMemcpyDtoHAsync_v2": fn(to: *mut c_void, from: DevicePointer, len_bytes: usize, stream: Handle);
    memcpy_on_device, "cuMemcpyDtoDAsync_v2":
        fn(to: DevicePointer, from: DevicePointer, len_bytes: usize, stream: Handle);
    memset_bytes, "cuMemsetD8Async": fn(pointer: DevicePointer, byte: c_uchar, n: usize, stream: Handle);
    memset_words, "cuMemsetD32Async": fn(pointer: DevicePointer, value: c_uint, n: usize, stream: Handle);
    device_can_access_peer, "cuDeviceCanAccessPeer": fn(can: *mut c_int, device: DeviceId, peer: DeviceId);
    mem_get_allocation_granularity, "cuMemGetAllocationGranularity":
        fn(granularity_bytes: *mut usize, properties: *const MemoryProperties, option: c_int);
    mem_create, "cuMemCreate":
        fn(memory: *mut u64, len_bytes: usize, properties: *const MemoryProperties, flags: u64);
    mem_release, "cuMemRelease": fn(memory: u64);
    mem_address_reserve, "cuMemAddressReserve":
        fn(pointer: *mut DevicePointer, len_bytes: usize, alignment_bytes: usize, wish: DevicePointer, flags: u64);
    mem_address_free, "cuMemAddressFree": fn(pointer: DevicePointer, len_bytes: usize);
    mem_map, "cuMemMap":
        fn(pointer: DevicePointer, len_bytes: usize, offset_bytes: usize, memory: u64, flags: u64);
    mem_unmap, "cuMemUnmap": fn(pointer: DevicePointer, len_bytes: usize);
    mem_set_access, "cuMemSetAccess":
        fn(pointer: DevicePointer, len_bytes: usize, access: *const Access, n_access: usize);
    stream_create, "cuStreamCreate": fn(stream: *mut Handle, flags: c_uint);
    stream_destroy, "cuStreamDestroy_v2": fn(stream: Handle);
    stream_synchronize, "cuStreamSynchronize": fn(stream: Handle);
    stream_wait_event, "cuStreamWaitEvent": fn(stream: Handle, event: Handle, flags: c_uint);
    event_create, "cuEventCreate": fn(event: *mut Handle, flags: c_uint);
    event_destroy, "cuEventDestroy_v2": fn(event: Handle);
    event_record, "cuEventRecord": fn(event: Handle, stream: Handle);
    event_synchronize, "cuEventSynchronize": fn(event: Handle);
    event_elapsed_time, "cuEventElapsedTime": fn(milliseconds: *mut f32, start: Handle, stop: Handle);
    module_load_data, "cuModuleLoadData": fn(module: *mut Handle, image: *const c_void);
    module_unload, "cuModuleUnload": fn(module: Handle);
    module_get_function, "cuModuleGetFunction": fn(function: *mut Handle, module: Handle, name: *const c_char);
    func_set_attribute, "cuFuncSetAttribute": fn(function: Handle, attribute: c_int, value: c_int);
    launch_kernel, "cuLaunchKernelEx":
        fn(shape: *const LaunchShape, function: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    stream_begin_capture, "cuStreamBeginCapture_v2": fn(stream: Handle, mode: c_int);
    stream_end_capture, "cuStreamEndCapture": fn(stream: Handle, graph: *mut Handle);
    graph_instantiate, "cuGraphInstantiateWithFlags": fn(executable: *mut Handle, graph: Handle, flags: u64);
    graph_launch, "cuGraphLaunch": fn(executable: Handle, stream: Handle);
    graph_exec_destroy, "cuGraphExecDestroy": fn(executable: Handle);
    graph_destroy, "cuGraphDestroy": fn(graph: Handle);
}
